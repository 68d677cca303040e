"""FlexAttention: attention whose scores and probabilities subgraphs change."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from frontends.onnx.graphs import convert, floats, interpret, model, node, operations, subgraph
from isthmus.errors import QnnError

DOMAIN = "ai.onnx.preview"
SHAPES = {"q": (2, 6, 4, 8), "k": (2, 3, 5, 8), "v": (2, 3, 5, 7)}


def attention(shapes: dict[str, tuple[int, ...]] = SHAPES, **attributes: Any) -> Any:
    only = helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain=DOMAIN, **attributes)
    inputs = {name: floats(*dims) for name, dims in shapes.items()}
    return model([only], inputs, "y", {"bias": np.float32(0.25)}, opset=26, domains=[DOMAIN])


def body(op: str, operands: str) -> Any:
    """A subgraph of one node that changes scores."""
    return subgraph([node(op, operands, "changed")], [helper.make_tensor_value_info("s", 1, None)], "changed")


@pytest.mark.parametrize("more", [{}, {"scale": 0.3}, {"softmax_precision": TensorProto.DOUBLE}], ids=str)
def test_flex_attention_with_fewer_key_heads(more: dict[str, Any]) -> None:
    made = attention(**more)
    rng = np.random.default_rng(3)
    feeds = {name: rng.standard_normal(dims).astype(np.float32) for name, dims in SHAPES.items()}
    (reference,) = ReferenceEvaluator(made).run(None, feeds)
    graph = convert(made)
    answer = interpret(graph, feeds)["y"]
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, reference, rtol=1e-4, atol=1e-5)
    assert not {"Tile", "Concat"} & operations(graph).keys(), "keys and values are not repeated"


def test_subgraphs_change_scores_and_probabilities_and_read_values_around_them() -> None:
    made = attention(score_mod=body("Sin", "s"), prob_mod=body("Mul", "s bias"))
    rng = np.random.default_rng(4)
    feeds = {name: rng.standard_normal(dims).astype(np.float32) for name, dims in SHAPES.items()}
    keys, values = (np.repeat(feeds[name], 2, axis=1) for name in "kv")
    scores = np.sin(feeds["q"] @ keys.swapaxes(2, 3) * 8**-0.5)
    powers = np.exp(scores - scores.max(3, keepdims=True))
    expected = 0.25 * powers / powers.sum(3, keepdims=True) @ values
    np.testing.assert_allclose(interpret(convert(made), feeds)["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("made", "rule"),
    [
        (attention({**SHAPES, "q": (2, 4, 4, 8)}), "4 heads of queries do not fit"),
        (attention({**SHAPES, "q": (2, 6, 4, 9)}), "do not fit each other"),
        (attention(score_mod=body("Transpose", "s")), "score_mod must return one value"),
    ],
)
def test_wrong_shapes_are_refused(made: Any, rule: str) -> None:
    with pytest.raises(QnnError, match=re.escape(rule)):
        convert(made)
