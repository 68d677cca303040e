"""Operators that ONNX defines by others, operator sets before the seventh, Scan, and statistics of a batch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from support.waiting import PATIENCE

from frontends.onnx.graphs import check, convert, floats, interpret, model, node, subgraph
from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx import definitions
from isthmus.system.channel import Channel
from isthmus.system.child import Child

RNG = np.random.default_rng(5)


def agrees_with_the_reference(made: Any, constants: dict[str, np.ndarray] | None = None, **feeds: np.ndarray) -> None:
    """Compare a model with ONNX's reference implementation."""
    constants = constants or {}
    references = ReferenceEvaluator(made).run(None, {**feeds, **constants})
    answers = interpret(convert(made, constants=constants), feeds)
    for output, reference in zip(made.graph.output, references, strict=True):
        np.testing.assert_allclose(answers[output.name], reference, rtol=1e-4, atol=1e-5)


def random(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize("more", [{}, {"is_causal": 1}, {"scale": 0.3, "softcap": 2.0}], ids=str)
def test_attention_with_fewer_key_heads(more: dict[str, Any]) -> None:
    arrays = {"q": random(2, 6, 4, 8), "k": random(2, 3, 5, 8), "v": random(2, 3, 5, 7)}
    shapes = {name: floats(*array.shape) for name, array in arrays.items()}
    agrees_with_the_reference(model([node("Attention", "q k v", "y", **more)], shapes, "y", opset=23), **arrays)


def test_attention_with_a_cache() -> None:
    arrays = {"q": random(2, 3, 4, 8), "k": random(2, 3, 5, 8), "v": random(2, 3, 5, 8)}
    arrays |= {"m": random(4, 9), "pk": random(2, 3, 4, 8), "pv": random(2, 3, 4, 8)}
    shapes = {name: floats(*array.shape) for name, array in arrays.items()}
    made = model([node("Attention", "q k v m pk pv", "y nk nv")], shapes, "y nk nv", opset=23)
    agrees_with_the_reference(made, **arrays)


def test_rotary_embedding() -> None:
    arrays = {"x": random(2, 3, 5, 8), "cos": random(5, 4), "sin": random(5, 4)}
    shapes = {name: floats(*array.shape) for name, array in arrays.items()} | {"p": (TensorProto.INT64, (2, 5))}
    made = model([node("RotaryEmbedding", "x cos sin p", "y")], shapes, "y", opset=23)
    agrees_with_the_reference(made, p=RNG.integers(0, 5, (2, 5)), **arrays)


def test_center_crop_pad_and_affine_grid() -> None:
    made = model([node("CenterCropPad", "x s", "y", axes=[0, 2])], {"x": floats(5, 3, 4)}, "y",
                 {"s": np.int64([2, 7])}, 18)  # fmt: skip
    agrees_with_the_reference(made, x=random(5, 3, 4))
    made = model([node("AffineGrid", "x s", "y", align_corners=1)], {"x": floats(2, 2, 3)}, "y",
                 {"s": np.int64([2, 3, 4, 5])}, 20)  # fmt: skip
    agrees_with_the_reference(made, x=random(2, 2, 3))


def test_losses() -> None:
    shapes = {"x": floats(3, 5, 2), "t": (TensorProto.INT64, (3, 2)), "w": floats(5)}
    for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        made = model([node(op, "x t w", "y", reduction="mean", ignore_index=1)], shapes, "y", opset=13)
        feeds = {"x": random(3, 5, 2), "t": RNG.integers(0, 5, (3, 2)), "w": np.abs(random(5))}
        agrees_with_the_reference(made, **feeds)


def test_a_node_that_breaks_the_rules_of_its_operator_is_refused_in_one_line() -> None:
    made = model([node("Attention", "q q q", "y")], {"q": floats(2)}, "y", opset=23)
    with pytest.raises(QnnError, match=r"node 'Attention_0'.*rule of its operator") as caught:
        convert(made)
    assert caught.value.code is Code.GRAPH_INVALID_OP_CONFIG
    assert "\n" not in str(caught.value)


def test_a_result_that_is_not_wanted_is_not_computed() -> None:
    shapes = {"x": floats(3, 5), "t": (TensorProto.INT64, (3,))}
    graph = convert(model([node("SoftmaxCrossEntropyLoss", "x t", "y")], shapes, "y", opset=13))
    assert [t.name for t in graph.outputs] == ["y"]


def test_an_operator_set_before_the_seventh_is_converted() -> None:
    # Until then, operands were broadcast only if the node said so.
    nodes = [node("Add", "x b", "s", broadcast=1), node("Relu", "s", "y")]
    made = model(nodes, {"x": floats(2, 3, 4), "b": floats(4)}, "y", opset=6)
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3, 4)))
    made.ir_version = 3
    feeds = {"x": random(2, 3, 4), "b": random(4)}
    answer = interpret(convert(made), feeds)["y"]
    np.testing.assert_allclose(answer, np.maximum(feeds["x"] + feeds["b"], 0))


def test_an_old_model_that_cannot_be_converted_is_refused_in_one_line() -> None:
    made = model([node("Relu", "missing", "y")], {"x": floats(2)}, "y", opset=6)
    with pytest.raises(QnnError, match="version converter") as caught:
        convert(made)
    assert "\n" not in str(caught.value)


def scan(directions: tuple[int, int], axes: tuple[int, int]) -> Any:
    """A scan over two axes: running sums, and products with them, which are joined."""
    body = subgraph(
        [node("Add", "s a", "next"), node("Mul", "next b", "out")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, (3,)) for name in ("s", "a", "b")],
        "next out",
    )
    attributes = {"scan_input_directions": directions, "scan_input_axes": axes, "scan_output_axes": [1],
                  "scan_output_directions": [directions[0]], "num_scan_inputs": 2}  # fmt: skip
    dims = [(4, 3) if axis == 0 else (3, 4) for axis in axes]
    shapes = {"s0": floats(3), "a0": floats(*dims[0]), "b0": floats(*dims[1])}
    return model([node("Scan", "s0 a0 b0", "last y", body=body, **attributes)], shapes, "last y")


@pytest.mark.parametrize("directions", [(0, 0), (1, 0)])
@pytest.mark.parametrize("axes", [(0, 0), (0, 1)])
def test_a_scan_is_unrolled(directions: tuple[int, int], axes: tuple[int, int]) -> None:
    check(scan(directions, axes))


@pytest.mark.parametrize("directions", [(0, 0), (1, 0)])
def test_a_scan_of_operator_set_8_has_batches(directions: tuple[int, int]) -> None:
    made = scan((0, 0), (0, 0))
    only = made.graph.node[0]
    only.input.insert(0, "")
    kept = [a for a in only.attribute if a.name in ("body", "num_scan_inputs")]
    del only.attribute[:]
    only.attribute.extend([*kept, helper.make_attribute("directions", directions)])
    made.opset_import[0].version = 8
    for value in made.graph.input:
        value.type.tensor_type.shape.dim.insert(0, value.type.tensor_type.shape.dim[0])
        value.type.tensor_type.shape.dim[0].dim_value = 2
    feeds = {"s0": random(2, 3), "a0": random(2, 4, 3), "b0": random(2, 4, 3)}
    answers = interpret(convert(made), feeds)
    step = -1 if directions[0] else 1
    sums = feeds["s0"][:, None] + np.cumsum(feeds["a0"][:, ::step], axis=1)
    np.testing.assert_allclose(answers["last"], sums[:, -1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(answers["y"], sums * feeds["b0"], rtol=1e-5, atol=1e-6)


def test_a_scan_over_axes_of_different_lengths_is_refused() -> None:
    made = scan((0, 0), (0, 0))
    made.graph.input[2].type.tensor_type.shape.dim[0].dim_value = 5
    with pytest.raises(QnnError, match="same length"):
        convert(made)


@pytest.mark.parametrize("dims", [(4, 3), (2, 3, 4, 5)])
def test_normalization_by_the_batch_gives_running_averages(dims: tuple[int, ...]) -> None:
    arrays = {"x": 2 + 3 * random(*dims), **{name: np.abs(random(3)) for name in ("s", "b", "m", "v")}}
    shapes = {name: floats(*array.shape) for name, array in arrays.items()}
    only = node("BatchNormalization", "x s b m v", "y mean variance", training_mode=1, momentum=0.8)
    agrees_with_the_reference(model([only], shapes, "y mean variance", opset=15), **arrays)


DOUBLES = {"x": (TensorProto.DOUBLE, (2, 3, 4)), "z": (TensorProto.DOUBLE, (4, 5))}


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Softmax", "LogSoftmax", "Einsum"])
def test_products_and_exponentials_of_doubles_keep_their_digits(op: str) -> None:
    nodes = {
        "MatMul": node("MatMul", "x z", "y"), "Gemm": node("Gemm", "z w", "y", transA=1, alpha=0.5),
        "Softmax": node("Softmax", "x", "y", axis=1), "LogSoftmax": node("LogSoftmax", "x", "y"),
        "Einsum": node("Einsum", "x z", "y", equation="abc,cd->db"),
    }  # fmt: skip
    made = model([nodes[op]], DOUBLES, "y", {"w": RNG.standard_normal((4, 2))})
    graph = convert(made)
    feeds = {"x": RNG.standard_normal((2, 3, 4)), "z": RNG.standard_normal((4, 5))}
    answer = interpret(graph, feeds)["y"]
    (reference,) = ReferenceEvaluator(made).run(None, feeds)
    assert answer.dtype == np.float64
    np.testing.assert_allclose(answer, reference, rtol=1e-13)


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.UINT64])
def test_products_of_integers(kind: int) -> None:
    check(model([node("MatMul", "x z", "y")], {"x": (kind, (2, 3, 4)), "z": (kind, (4, 5))}, "y"))


def attention(heads: int) -> Any:
    shapes = {name: floats(2, 3, 8) for name in ("q", "k", "v")}
    return model([node("Attention", "q k v", "y", q_num_heads=heads, kv_num_heads=heads)], shapes, "y", opset=23)


def test_a_node_that_crashes_the_onnx_package_is_refused_in_one_line() -> None:
    # The package divides by the number of heads.
    with pytest.raises(QnnError, match="SIGFPE") as caught:
        convert(attention(0))
    assert caught.value.code is Code.GRAPH_INVALID_OP_CONFIG
    assert "\n" not in str(caught.value)
    assert convert(attention(2)).outputs


def test_a_worker_that_ended_is_replaced() -> None:
    definitions._close_idle()
    assert convert(attention(4)).outputs
    (worker,) = definitions._idle
    worker._process.kill()
    worker._process.wait()
    assert convert(attention(1)).outputs
    assert definitions._idle[0] is not worker


def test_a_worker_that_is_idle_ends_by_itself() -> None:
    channel, theirs = Channel.pair()
    with theirs:
        process = Child("isthmus.frontends.onnx.definitions_process", str(os.getpid()), descriptors=[theirs.fileno()])
    assert process.wait(PATIENCE) == 0
    channel.close()
