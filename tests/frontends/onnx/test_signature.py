"""Inputs keep the file's names, shapes, types and order; open dimensions are fixed by the caller or become 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from frontends.onnx.graphs import check, convert, floats, interpret, model, node
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType

SUM = [node("Add", "a b", "y")]


def test_open_dimensions_become_one() -> None:
    graph = convert(model([node("Relu", "x", "y")], {"x": floats("batch", 3, "time")}, "y"))
    assert [t.dims for t in graph.inputs] == [(1, 3, 1)]


def test_one_symbol_has_one_size() -> None:
    made = model(SUM, {"a": floats("batch", 3), "b": floats("batch", 1)}, "y")
    graph = convert(made, shapes={"a": (4, 3)})
    assert [t.dims for t in graph.inputs] == [(4, 3), (4, 1)]
    assert [t.dims for t in graph.outputs] == [(4, 3)]


def test_inputs_keep_their_order_and_types() -> None:
    nodes = [node("Where", "c a b", "y")]
    inputs = {"c": (TensorProto.BOOL, (2,)), "a": (TensorProto.INT64, (2,)), "b": (TensorProto.INT64, (2,))}
    graph = convert(model(nodes, inputs, "y"))
    assert [(t.name, t.dtype) for t in graph.inputs] == [
        ("c", DataType.BOOL_8), ("a", DataType.INT_64), ("b", DataType.INT_64),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shapes", "rule"),
    [
        ({"nowhere": (1,)}, "no such input"),
        ({"a": (4, 4)}, "fixes it"),
        ({"a": (4,)}, "rank 2"),
        ({"a": (-1, 3)}, "from 0 to 2147483647"),
        ({"a": (1 << 31, 3)}, "from 0 to 2147483647"),
        ({"a": (1.5, 3)}, "integer"),
        ({"a": (4, 3), "b": (5, 1)}, "is 4 in another"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[float, ...]], rule: str) -> None:
    made = model(SUM, {"a": floats("batch", 3), "b": floats("batch", 1)}, "y")
    with pytest.raises(QnnError, match=rule) as caught:
        convert(made, shapes=shapes)
    assert caught.value.code is Code.GRAPH_INVALID_ARGUMENT


def test_a_bound_input_is_a_constant_and_no_input() -> None:
    nodes = [node("Reshape", "x shape", "y")]
    made = model(nodes, {"x": floats(2, 6), "shape": (TensorProto.INT64, (2,))}, "y")
    graph = check(made, constants={"shape": np.int64([3, 4])})
    assert [t.name for t in graph.inputs] == ["x"]
    assert [t.dims for t in graph.outputs] == [(3, 4)]


@pytest.mark.parametrize(
    ("constants", "rule"),
    [
        ({"z": np.float32([1])}, "no such input"),
        ({"n": 0.5}, "takes int64"),
        ({"n": np.int64([[1]])}, "rank 1"),
        ({"n": np.int64([1, 2, 3])}, "fixes it"),
    ],
)
def test_bindings_that_do_not_fit_are_refused(constants: dict[str, Any], rule: str) -> None:
    made = model([node("Reshape", "x n", "y")], {"x": floats(2), "n": (TensorProto.INT64, (2,))}, "y")
    with pytest.raises(QnnError, match=rule) as caught:
        convert(made, constants=constants)
    assert caught.value.code is Code.GRAPH_INVALID_ARGUMENT


def test_a_plain_number_can_be_bound_and_fixes_symbols() -> None:
    nodes = [node("Mul", "x k", "m"), node("Add", "m row", "y")]
    inputs = {"x": floats("n", 2), "k": floats(), "row": floats("n", 1)}
    graph = convert(model(nodes, inputs, "y"), constants={"k": 2, "row": [[1], [2], [3]]})
    assert [t.dims for t in graph.inputs] == [(3, 2)]


def test_an_initializer_that_is_also_an_input_is_a_constant() -> None:
    made = model(SUM, {"a": floats(2), "b": floats(2)}, "y", {"b": np.float32([1, 2])})
    graph = convert(made)
    assert [t.name for t in graph.inputs] == ["a"]
    np.testing.assert_array_equal(interpret(graph, {"a": np.float32([1, 1])})["y"], [2, 3])


def test_shape_arithmetic_vanishes() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n first", "u"),
        node("Concat", "u rest", "target", axis=0),
        node("Reshape", "x target", "r"),
        node("ConstantOfShape", "target", "ones"),
        node("Expand", "half target", "e"),
        node("Mul", "r e", "m"),
        node("Add", "m ones", "y"),
    ]
    constants = {
        "zero": np.int64(0), "first": np.int64([0]), "rest": np.int64([2, -1]), "half": np.float32([0.5]),
    }  # fmt: skip
    made = model(nodes[:5], {"x": floats("n", 6)}, "r", constants)
    assert [s.op for s in check(made, shapes={"x": (3, 6)}).nodes] == ["Reshape"]
    constants["rest"] = np.int64([2, 3])
    graph = check(model(nodes, {"x": floats("n", 6)}, "y", constants), shapes={"x": (3, 6)})
    assert {s.op for s in graph.nodes} == {"Reshape", "ElementWiseMultiply", "ElementWiseAdd"}


@pytest.mark.parametrize("names", [("a", "a"), ("a", "")])
def test_inputs_need_a_name_each(names: tuple[str, str]) -> None:
    made = model(SUM, {"a": floats(2), "b": floats(2)}, "y")
    for value, name in zip(made.graph.input, names, strict=True):
        value.name = name
    with pytest.raises(QnnError, match="a name each, each its own"):
        convert(made)
