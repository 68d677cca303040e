"""The order of an ONNX file's nodes: any is accepted, as tools that insert casts leave them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import isthmus
from isthmus import QnnError

onnx = pytest.importorskip("onnx")
from onnx import helper  # noqa: E402

NODES = [
    helper.make_node("Cast", ["x"], ["h"], name="cast", to=10),
    helper.make_node("Relu", ["h"], ["r"], name="relu"),
    helper.make_node("Add", ["r", "h"], ["s"], name="add"),
    helper.make_node(
        "If", ["yes"], ["i"], name="if",
        then_branch=helper.make_graph(
            [helper.make_node("Neg", ["s"], ["n"])], "then", [], [helper.make_tensor_value_info("n", 10, [4])]
        ),
        else_branch=helper.make_graph(
            [helper.make_node("Abs", ["s"], ["a"])], "else", [], [helper.make_tensor_value_info("a", 10, [4])]
        ),
    ),
    helper.make_node("Cast", ["i"], ["y"], name="back", to=1),
]  # fmt: skip
X = np.float32([-1, 0, 2, 3])


def saved(nodes: list, path: Path) -> Path:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [4])], [helper.make_tensor_value_info("y", 1, [4])],
        [onnx.numpy_helper.from_array(np.array(True), "yes")],
    )  # fmt: skip
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return path


@pytest.mark.parametrize("seed", range(4))
def test_nodes_in_any_order_give_the_same_graph(seed: int, tmp_path: Path) -> None:
    nodes = list(NODES)
    random.Random(seed).shuffle(nodes)
    with isthmus.Session(saved(nodes, tmp_path / "model.onnx")) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], -(np.maximum(X, 0) + X))


def test_a_cycle_is_refused_in_one_line(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    nodes.append(helper.make_node("Relu", ["b"], ["y"]))
    with pytest.raises(QnnError, match="a cycle has no such order"):
        isthmus.Session(saved(nodes, tmp_path / "model.onnx"))
