"""On fixed-point tensors the reference moves bytes unchanged, sums integers exactly and rounds once."""

from __future__ import annotations

import numpy as np
import pytest

from graph.onnx_node import last, ort
from isthmus.errors import QnnError
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType
from isthmus.graph.evaluate import evaluate
from isthmus.graph.folding import emit

RNG = np.random.default_rng(11)


def stored(dtype: type, *dims: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, dims).astype(dtype)


def fixed(graph: Graph, array: np.ndarray, scale: float = 0.1, zero_point: int = 0) -> Tensor:
    return graph.constant("c", array, Quantization.per_tensor(np.float32(scale), zero_point))


def one(graph: Graph, op: str, inputs: list, params: dict | None = None, out: Quantization | None = None, **more):
    (result,) = emit(graph, op, inputs, params, quantizations=None if out is None else [out], **more)
    return result.data


def test_movement_leaves_stored_elements_as_they_are() -> None:
    graph = Graph("g")
    x = fixed(graph, stored(np.int8, 2, 3, 4), 0.07, -5)
    for op, params in (
        ("Transpose", {"perm": [2, 0, 1]}),
        ("Tile", {"multiples": [1, 2, 1]}),
        ("Reverse", {"axes": [1]}),
    ):
        assert set(one(graph, op, [x], params).reshape(-1)) == set(x.data.reshape(-1))
    np.testing.assert_array_equal(one(graph, "Concat", [x, x], {"axis": 0}), np.concatenate([x.data, x.data]))


def test_padding_is_the_real_number_and_not_the_stored_one() -> None:
    graph = Graph("g")
    x = fixed(graph, np.int8([1, 2]), 0.5, -3)
    params = {"scheme": 0, "pad_amount": [[1, 0]]}
    assert one(graph, "Pad", [x], params).tolist() == [-3, 1, 2]
    assert one(graph, "Pad", [x], params | {"pad_constant_value": 1.0}).tolist() == [-1, 1, 2]
    image = fixed(graph, np.int8([[[[1], [2]]]]), 0.5, -3)
    batches = one(graph, "SpaceToBatch", [image], {"block_size": [1, 3], "pad_amount": [[0, 0], [0, 1]]})
    assert batches.reshape(-1).tolist() == [1, 2, -3]


def test_joining_different_quantizations_rounds_to_that_of_the_output() -> None:
    graph = Graph("g")
    a, b = fixed(graph, np.int8([4]), 0.5), fixed(graph, np.int8([4]), 0.25, 2)
    joined = one(graph, "Concat", [a, b], {"axis": 0}, Quantization.per_tensor(0.5, 1))
    assert joined.tolist() == [5, 2]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("group", [1, 2])
def test_convolution_is_within_one_step_of_onnx_runtime_and_mostly_equal(dtype: type, group: int) -> None:
    graph = Graph("g")
    x, w = stored(dtype, 1, 4, 9, 9), stored(np.int8, 8, 4 // group, 3, 3)
    scales = np.linspace(0.01, 0.03, 8).astype(np.float32)
    bias = RNG.integers(-4000, 4000, 8).astype(np.int32)
    zero, out_zero = dtype(7), dtype(100)
    theirs = ort(
        "QLinearConv",
        [
            x,
            np.float32(0.02),
            zero,
            w,
            scales,
            np.zeros(8, np.int8),
            np.float32(0.11),
            out_zero,
            bias,
        ],
        pads=[1, 1, 1, 1],
        group=group,
    )[0]
    weights = graph.constant(
        "w", np.ascontiguousarray(np.moveaxis(w, (0, 1), (3, 2))), Quantization.per_channel(scales, np.zeros(8), 3)
    )
    inputs = [fixed(graph, last(x), 0.02, 7), weights, graph.constant("b", bias)]
    params = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]], "group": group}
    ours = one(graph, "Conv2d", inputs, params, Quantization.per_tensor(np.float32(0.11), 100))
    step = np.abs(ours.astype(int) - last(theirs).astype(int))
    assert step.max() <= 1
    assert (step == 0).mean() > 0.999


def test_a_bias_counts_in_its_own_scale() -> None:
    graph = Graph("g")
    x, w = fixed(graph, np.int8([[1]]), 0.5), fixed(graph, np.int8([[1]]), 0.5)
    out = Quantization.per_tensor(0.25)
    matching = graph.constant("b", np.int32([3]), Quantization.per_tensor(0.25), DataType.SFIXED_POINT_32)
    coarse = graph.constant("b", np.int32([3]), Quantization.per_tensor(1.0), DataType.SFIXED_POINT_32)
    real = graph.constant("b", np.float32([3]))
    plain = graph.constant("b", np.int32([3]))
    results = [one(graph, "FullyConnected", [x, w, b], {}, out).item() for b in (matching, coarse, real, plain)]
    assert results == [4, 13, 13, 4]


def test_sums_are_exact_where_float_would_round() -> None:
    graph = Graph("g")
    size = 5000
    x = fixed(graph, np.full((1, size), 127, np.int8), 1.0)
    w = fixed(graph, np.full((1, size), 127, np.int8), 1.0)
    # More than 2**24, from which on a float32 does not hold every integer.
    total = 127 * 127 * size
    out = one(graph, "FullyConnected", [x, w], {}, Quantization.per_tensor(total / 100))
    assert out.item() == 100


def test_results_clamp_to_the_type() -> None:
    graph = Graph("g")
    x = fixed(graph, np.int8([100, -100]), 1.0)
    assert one(graph, "ElementWiseAdd", [x, x]).tolist() == [127, -128]


def test_rounding_is_to_even() -> None:
    graph = Graph("g")
    x = graph.constant("x", np.float32([0.5, 1.5, 2.5, -0.5]))
    result = one(graph, "Quantize", [x], out=Quantization.per_tensor(1.0), dtypes=[DataType.SFIXED_POINT_8])
    assert result.tolist() == [0, 2, 2, 0]


def test_quantize_and_dequantize_agree_with_onnx_runtime() -> None:
    graph = Graph("g")
    x = RNG.standard_normal(500).astype(np.float32)
    (theirs,) = ort("QuantizeLinear", [x, np.float32(0.013), np.uint8(120)])
    out = Quantization.per_tensor(np.float32(0.013), 120)
    (ours,) = emit(graph, "Quantize", [graph.constant("x", x)], dtypes=[DataType.UFIXED_POINT_8], quantizations=[out])
    np.testing.assert_array_equal(ours.data, theirs)
    (back,) = ort("DequantizeLinear", [theirs, np.float32(0.013), np.uint8(120)])
    np.testing.assert_array_equal(one(graph, "Dequantize", [ours]), back)


def test_conversion_keeps_the_real_number() -> None:
    graph = Graph("g")
    x = fixed(graph, np.int8([-128, 0, 127]), 0.5, 0)
    out = Quantization.per_tensor(0.5, 128)
    assert one(graph, "Convert", [x], out=out, dtypes=[DataType.UFIXED_POINT_8]).tolist() == [0, 128, 255]
    assert one(graph, "Cast", [x], dtypes=[DataType.FLOAT_32]).tolist() == [-128.0, 0.0, 127.0]


def test_large_fixed_point_types_clamp_without_wrapping() -> None:
    quantization = Quantization.per_tensor(1.0)
    huge = quantization.quantize(np.float32([1e30, -1e30, np.inf, np.nan]), np.dtype(np.int32))
    assert huge.tolist() == [2**31 - 1, -(2**31), 2**31 - 1, 0]


PRODUCTS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict]] = [
    ("Conv2d", (1, 4, 4, 6), (2, 2, 6, 4), {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}),
    ("Conv2d", (1, 4, 4, 6), (2, 2, 3, 4), {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]], "group": 2}),
    ("TransposeConv2d", (1, 4, 4, 6), (2, 2, 6, 2), {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]], "group": 2}),
    ("FullyConnected", (3, 6), (4, 6), {}),
    ("MatMul", (3, 6), (6, 4), {}),
    ("MatMul", (3, 6), (4, 6), {"transpose_in1": True}),
]


@pytest.mark.parametrize(("op", "dims", "filters", "params"), PRODUCTS)
@pytest.mark.parametrize("along", ["weights", "input", "output"])
def test_a_product_with_scales_along_any_axis_is_the_product_of_the_reals(op, dims, filters, params, along) -> None:
    graph = Graph("g")
    x, w = stored(np.int8, *dims), stored(np.int8, *filters)

    def scales(array_dims, axis, low):
        if axis is None:
            return Quantization.per_tensor(np.float32(low), 0)
        return Quantization.per_channel(
            np.linspace(low, 2 * low, array_dims[axis]).astype(np.float32), np.zeros(array_dims[axis], int), axis
        )

    def real(array, quantization):
        return quantization.dequantize(array).astype(np.float64)

    for axis in range(len(filters) if along == "weights" else len(dims)):
        of_w = scales(filters, axis if along == "weights" else None, 0.01)
        of_x = scales(dims, axis if along == "input" else None, 0.02)
        reals = [graph.constant("x", real(x, of_x)), graph.constant("w", real(w, of_w))]
        product = one(graph, op, reals, params)
        of_y = scales(product.shape, axis if along == "output" else None, 0.2)
        found = one(graph, op, [graph.constant("x", x, of_x), graph.constant("w", w, of_w)], params, of_y)
        expected = of_y.quantize(product, np.dtype(np.int8))
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1, axis
        assert (found == expected).mean() > 0.9, axis


def test_a_fixed_point_result_needs_a_quantization() -> None:
    graph = Graph("g")
    x = fixed(graph, np.int8([1, 2]))
    result = Tensor("y", TensorType.NATIVE, DataType.SFIXED_POINT_8, (2,), Quantization.per_tensor(1.0))
    result.quantization = None
    with pytest.raises(QnnError, match="it has no quantization"):
        evaluate("Sigmoid", [x], [x.data], {}, [result])
