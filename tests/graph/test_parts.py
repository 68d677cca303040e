"""Tensors, quantizations and parameters refuse what they must, at the first number outside and not before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.errors import QnnError
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorMemType, TensorType
from isthmus.graph.folding import emit
from isthmus.graph.operation import Operation, Param
from isthmus.graph.ops import functions
from isthmus.graph.quantization import Encoding
from isthmus.graph.tensor import MAX_BYTES, MAX_RANK

F32, S8 = DataType.FLOAT_32, DataType.SFIXED_POINT_8
WRITE = TensorType.APP_WRITE


def complete(kind: str, value: Any) -> Any:
    operation = Operation("Op", (0, 0), (0, 0), (Param("p", kind),), lambda call: [])
    return operation.complete("n", {"p": value})["p"]


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        ("u32", [0, 1, 2**32 - 1, np.int64(7), 3.0, True], [-1, 2**32, 0.5, "1", float("nan"), [1, 2], 1j]),
        ("i32", [-(2**31), 2**31 - 1, 0], [-(2**31) - 1, 2**31, 0.5, None, "x"]),
        ("f32", [0.5, 1, -3, True], ["x", float("nan"), 1j, [1.0, 2.0]]),
        ("bool", [0, 1, True, False], [2, -1, 0.5]),
        ("scalar", [0.5, 7, float("nan"), -3], ["x", 1j]),
        ("u32[]", [[0, 2**32 - 1], [[1], [2]], []], [[-1], [2**32], [0.5], ["x"]]),
        ("i32[]", [[-(2**31), 2**31 - 1], []], [[-(2**31) - 1], [2**31], [0.5]]),
        ("f32[]", [[0.5, 1], []], [["x"]]),
    ],
)
def test_a_parameter_takes_its_kind_and_nothing_else(kind: str, taken: list, refused: list) -> None:
    for value in taken:
        found = complete(kind, value)
        np.testing.assert_array_equal(found, value)
        assert isinstance(found, np.ndarray) == kind.endswith("[]")
    for value in refused:
        with pytest.raises(QnnError, match=r"must be|is missing"):
            complete(kind, value)


def test_the_numbers_of_a_parameter_have_one_type() -> None:
    assert complete("f32[]", [1, 2]).dtype == np.float32
    assert complete("u32[]", np.uint8([1])).dtype == np.int64
    assert complete("u32[]", []).dtype == np.int64
    assert (type(complete("u32", 3.0)), type(complete("f32", 3)), type(complete("bool", 1))) == (int, float, bool)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"name": ""}, "needs a name"),
        ({"dtype": DataType.UNDEFINED}, "undefined"),
        ({"dims": (1,) * (MAX_RANK + 1)}, "rank 9 is above"),
        ({"dims": (2, -1)}, "must not be negative"),
        ({"dims": (2.5,)}, "integers"),
        ({"dims": (MAX_BYTES // 4 + 1,)}, "above the limit"),
        ({"type": 99}, "type 99 is none of TensorType"),
        ({"dtype": 99}, "dtype 99 is none of DataType"),
        ({"type": TensorType.STATIC}, "needs its data"),
        ({"data": np.zeros((2, 3), np.float32)}, "cannot carry data"),
        ({"type": TensorType.STATIC, "data": np.zeros((3, 2), np.float32)}, "declared as"),
        ({"type": TensorType.STATIC, "data": np.zeros((2, 3), np.int8)}, "declared as"),
        ({"type": TensorType.NATIVE, "mem_type": TensorMemType.MEMHANDLE}, "only graph inputs and outputs"),
        ({"dtype": S8}, "needs quantization parameters"),
        ({"dtype": S8, "quantization": Quantization((1.0, 1.0), (0, 0), 1)}, "2 scales for 3 channels along axis 1"),
        ({"dtype": S8, "quantization": Quantization((1.0, 1.0), (0, 0), 2)}, "axis 2 is outside rank 2"),
        ({"dtype": S8, "quantization": Quantization((1.0, 1.0), (0, 0), -1)}, "axis -1 is outside rank 2"),
    ],
)
def test_a_tensor_with_impossible_fields_is_refused(more: dict, sentence: str) -> None:
    with pytest.raises(QnnError, match=sentence):
        Tensor(**({"name": "x", "type": WRITE, "dtype": F32, "dims": (2, 3)} | more))


def test_the_largest_tensors_are_accepted() -> None:
    assert (MAX_RANK, MAX_BYTES) == (8, 1 << 40)
    assert Tensor("x", WRITE, F32, (1,) * MAX_RANK).rank == 8
    assert Tensor("x", WRITE, F32, (MAX_BYTES // 4,)).nbytes == MAX_BYTES
    assert Tensor("x", WRITE, S8, (2, 3), Quantization((1.0, 1.0), (0, 0), 0)).dtype is S8


@pytest.mark.parametrize(
    ("scales", "offsets", "axis", "sentence"),
    [
        ((), (), None, "at least one"),
        ((1.0,), (0, 0), None, "as many offsets"),
        ((1.0, 2.0), (0, 0), None, "need an axis"),
        ((0.0,), (0,), None, "positive and finite"),
        ((-1.0,), (0,), None, "positive and finite"),
        ((1.0, float("inf")), (0, 0), 0, "positive and finite"),
        ((float("nan"),), (0,), None, "positive and finite"),
    ],
)
def test_a_quantization_that_means_nothing_is_refused(scales, offsets, axis, sentence) -> None:
    with pytest.raises(QnnError, match=sentence):
        Quantization(scales, offsets, axis)


def test_a_quantization_says_what_stored_numbers_mean() -> None:
    one, many = Quantization.per_tensor(0.5, 3), Quantization.per_channel(np.array([0.5, 2.0]), np.array([3, 0]), 1)
    assert (one.encoding, many.encoding) == (Encoding.SCALE_OFFSET, Encoding.AXIS_SCALE_OFFSET)
    assert (one.scale, one.offset, one.zero_point) == (0.5, -3, 3)
    for ask in ("scale", "offset", "zero_point"):
        with pytest.raises(QnnError, match="no single"):
            getattr(many, ask)
    stored = np.int8([[3, 1], [5, -1]])
    np.testing.assert_array_equal(one.dequantize(stored), [[0, -1], [1, -2]])
    np.testing.assert_array_equal(many.dequantize(stored), [[0, 2], [1, -2]])
    np.testing.assert_array_equal(many.quantize(np.float32([[0, 2], [1, -2]]), np.dtype(np.int8)), stored)
    hard = np.float32([0.25, 0.75, np.nan, 1e9, -1e9, np.inf])
    np.testing.assert_array_equal(one.quantize(hard, np.dtype(np.int8)), [3, 5, 3, 127, -128, 127])


def test_names_are_made_new_by_counting_on() -> None:
    graph = Graph("g")
    x = graph.create_tensor("x", WRITE, F32, (2,))
    names = [graph.emit("Relu", [x], name="n")[0].name for _ in range(3)]
    assert names == ["n", "n.1", "n.2"]
    assert [node.name for node in graph.nodes] == ["n", "n.1", "n.2"]
    assert graph.fresh("x") == "x.1"
    assert graph.fresh("y", {"y"}) == "y.1"
    y = graph.create_tensor("y", TensorType.APP_READ, F32, (2,))
    for name in ("n", ""):
        with pytest.raises(QnnError, match="a name that is new"):
            graph.add_node(name, "Relu", [x], [y])


def test_outputs_missing_from_a_list_of_names_or_types_get_defaults() -> None:
    graph = Graph("g")
    x = graph.create_tensor("x", WRITE, F32, (2, 6))
    parts = graph.emit("Split", [x], {"axis": 1, "split_index": [1, 3]}, name="s", output_names=["first"])
    assert [t.name for t in parts] == ["first", "s:1", "s:2"]
    parts = graph.emit("TopK", [x], {"k": 2}, name="t", outputs=2, dtypes=[F32])
    assert [(t.name, t.dtype) for t in parts] == [("t", F32), ("t:1", DataType.INT_32)]


@pytest.mark.parametrize(
    ("op", "params", "dims", "axis"),
    [
        ("Transpose", {"perm": [2, 0, 1]}, (4, 2, 3), 2),
        ("Reshape", {}, (2, 3, 2, 2), 1),
        ("Reshape", {}, (1, 2, 3, 4), 2),
        ("Reshape", {}, (3, 2, 4), None),
        ("Reshape", {}, (2, 12), None),
        ("Reshape", {}, (3, 8), None),
    ],
)
def test_the_axis_of_scales_follows_the_data_or_its_loss_is_refused(op, params, dims, axis) -> None:
    graph = Graph("g")
    x = graph.create_tensor("x", WRITE, S8, (2, 3, 4), Quantization((1.0, 2.0, 3.0), (0, 0, 0), 1))
    more = {"dims": [dims]} if op == "Reshape" else {}
    if axis is None:
        with pytest.raises(QnnError, match=r"the quantized axis 1 .* is lost"):
            graph.emit(op, [x], params, **more)
    else:
        [y] = graph.emit(op, [x], params, **more)
        assert (y.dims, y.quantization.axis) == (dims, axis)


def test_a_shrunk_slice_of_either_direction_takes_one_element() -> None:
    graph = Graph("g")
    x = graph.create_tensor("x", WRITE, F32, (5, 6))
    for begin, end, stride in ((3, 5, 1), (3, -1, -1), (4, 1, -2)):
        graph.emit("StridedSlice", [x], {"ranges": [[begin, end, stride], [0, 6, 1]], "shrink_axes": 1})
        first, last, step = graph.nodes[-1].params["ranges"][0]
        assert list(range(first, last, step)) == [begin]


def test_functions_of_integers_are_exact() -> None:
    large = np.int64([2**60 + 1, -(2**60) - 1])
    np.testing.assert_array_equal(functions.floor_divide(large, np.int64([1, 1])), large)
    np.testing.assert_array_equal(functions.floor_divide(np.int64([-7, 7]), np.int64([2, -2])), [-4, -4])
    np.testing.assert_array_equal(functions.floor_divide(np.float64([1.0, -7]), np.float64([0.1, 2])), [10, -4])
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(functions.divide(np.int32([7, -7, 5, 6]), np.int32([2, 2, 0, 3])), [3, -3, 0, 2])
    np.testing.assert_array_equal(functions.divide(np.float32([1]), np.float32([4])), [0.25])
    np.testing.assert_array_equal(functions.power(np.int64([3, 2**31]), np.int64([2, 1])), [9, 2**31])
    np.testing.assert_array_equal(functions.power(np.int64([2]), np.int64([-1])), [0.5])
    np.testing.assert_array_equal(functions.negative(np.uint8([1, 0])), [255, 0])
    np.testing.assert_array_equal(functions.negative(np.int8([1, 0])), [-1, 0])
    infinite = np.float32([np.inf, -np.inf, 0])
    np.testing.assert_array_equal(functions.is_infinite(infinite, True, False), [False, True, False])
    np.testing.assert_array_equal(functions.is_infinite(infinite, False, True), [True, False, False])


@pytest.mark.parametrize("op", ["ElementWiseAbs", "Relu", "ElementWiseNeg"])
def test_large_integers_keep_their_last_digit(op) -> None:
    graph = Graph("g")
    [y] = emit(graph, op, [graph.constant("x", np.int64([2**60 + 1]))])
    assert abs(int(y.data[0])) == 2**60 + 1


def test_softplus_is_linear_above_its_threshold() -> None:
    x = np.float64([-1, 0.5, 3])
    soft = np.log1p(np.exp(2 * x)) / 2
    np.testing.assert_allclose(functions.softplus(x, 2.0, -1.0), soft)
    np.testing.assert_allclose(functions.softplus(x, 2.0, 0.0), [soft[0], 0.5, 3])
    np.testing.assert_allclose(functions.softplus(x, 2.0, 2.0), [soft[0], soft[1], 3])
