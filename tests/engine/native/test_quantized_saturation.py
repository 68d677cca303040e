"""A result that is far beyond what its type can say is the largest or the smallest stored value, never another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.suites import long

from engine.native import harness
from engine.native.harness import Operand, Result, quantized_input
from isthmus.engine.native.lowering.fixed_point import bias_fits, sums_fit
from isthmus.engine.native.lowering.tables import function_codes
from isthmus.errors import QnnError
from isthmus.graph import DataType, Quantization, Tensor, TensorType

pytestmark = harness.ON_TARGETS
CONV = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
POOL = {"filter_size": [2, 2], **CONV}
_SIGNS = np.where(np.arange(2 * 4 * 4 * 16).reshape(2, 4, 4, 16) // 256 % 2, 1, -1)
IMAGE = quantized_input((_SIGNS * 100).astype(np.int8), 0.5)


def weights(*dims: int) -> Operand:
    return quantized_input(np.full(dims, 100, np.int8), 0.5, static=True)


CASES: dict[str, tuple[str, list[Operand], dict[str, Any]]] = {
    "convolution": ("Conv2d", [IMAGE, weights(3, 3, 16, 8)], CONV),
    "depthwise convolution": ("DepthWiseConv2d", [IMAGE, weights(3, 3, 1, 16)], CONV),
    "depthwise convolution with several filters": ("DepthWiseConv2d", [IMAGE, weights(3, 3, 1, 32)], CONV),
    "transposed convolution": ("TransposeConv2d", [IMAGE, weights(2, 2, 16, 8)], CONV),
    "fully connected layer": ("FullyConnected", [IMAGE, weights(8, 16)], {"keep_dims": True}),
    "matrix product": ("MatMul", [IMAGE, weights(16, 8)], {}),
    "sum": ("ElementWiseAdd", [IMAGE, IMAGE], {}),
    "difference": ("ElementWiseSubtract", [IMAGE, quantized_input(-IMAGE.array, 0.5)], {}),
    "product": ("ElementWiseMultiply", [IMAGE, quantized_input(np.full((16,), 100, np.int8), 0.5)], {}),
    "mean": ("ReduceMean", [IMAGE], {"axes": [1, 2], "keep_dims": True}),
    "average of windows": ("PoolAvg2d", [IMAGE], POOL),
    "conversion": ("Convert", [IMAGE], {"dynamic_input_data": False, "dynamic_output_data": False}),
    "maximum": ("ElementWiseMaximum", [IMAGE, IMAGE], {}),
}


@pytest.mark.parametrize("scale", [long(1e-9), 1e-7, long(1e-4)])
@pytest.mark.parametrize("case", CASES)
def test_a_tiny_scale_of_the_result_saturates_it(case: str, scale: float) -> None:
    op, inputs, params = CASES[case]
    result = Result(dtype=DataType.SFIXED_POINT_8, quantization=Quantization.per_tensor(scale, 3))
    step, arrays = harness.make_step(op, inputs, params, [result])
    # The first image is negative throughout, the second positive.
    expected = np.broadcast_to(np.array([-128, 127]).reshape(2, 1, 1, 1), step.outputs[0].dims)
    for target in harness.targets():
        [got] = harness.run(step, arrays, target)
        np.testing.assert_array_equal(got, expected, err_msg=target.name)


@pytest.mark.parametrize(("largest", "fits"), [((1 << 31) - 257, True), ((1 << 31) - 256, False)])
def test_sums_that_could_round_beyond_32_bits_are_not_scaled_as_integers(largest: int, fits: bool) -> None:
    """With a multiplier of 1 the largest sum is that of 16 products of the largest bytes and the largest bias."""
    biases = np.full(8, 16 * 255 * 128 - largest, np.int32)
    bias = quantized_input(biases, 0.25, static=True)
    result = Result(dtype=DataType.SFIXED_POINT_8, quantization=Quantization.per_tensor(0.25, 0))
    step, _ = harness.make_step("FullyConnected", [IMAGE, weights(8, 16), bias], {"keep_dims": True}, [result])
    assert sums_fit(step, columns=8, depth=16) is fits


SCALES = [(1e-30, 1e30), (1e30, 1e-30), (1e-38, 1.0), (1.0, 1e-38), (2e-39, 1e-39), (1e-12, 1e-12)]
FUNCTIONS: dict[str, tuple[dict[str, float], Callable[[np.ndarray], np.ndarray]]] = {
    "Relu": ({}, lambda x: np.maximum(x, 0)),
    "ReluMinMax": ({"min_value": -1.0, "max_value": 1.0}, lambda x: np.clip(x, -1, 1)),
    "ElementWiseAbs": ({}, np.abs),
    "ElementWiseNeg": ({}, np.negative),
    "HardSwish": ({}, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "Convert": ({}, lambda x: x),
}


@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("numerics", ["exact", "litert", "onnxruntime"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("op", [*FUNCTIONS, "Convert to the other kind"])
def test_functions_of_bytes_are_right_whatever_the_ratio_of_scales(
    op: str, kind: type, numerics: str, scales: tuple[float, float]
) -> None:
    op, *other = op.split(" ", 1)
    made = {np.int8: np.uint8, np.uint8: np.int8}[kind] if other else kind
    params, function = FUNCTIONS[op]
    given = np.arange(256, dtype=np.uint8).view(kind)
    result = Result(dtype=DataType.fixed_point(made), quantization=Quantization.per_tensor(scales[1], 3))
    step, _ = harness.make_step(op, [quantized_input(given, scales[0], 3)], params, [result])
    with np.errstate(all="ignore"):
        stored = function_codes(step, numerics)
    limits = np.iinfo(made)
    reals = function((given.astype(np.float64) - 3) * np.float32(scales[0]))
    expected = np.clip(np.rint(reals / np.float32(scales[1])) + 3, limits.min, limits.max)
    assert np.abs(np.clip(stored, limits.min, limits.max) - expected).max() <= 1


@pytest.mark.parametrize(
    ("slope", "scale", "below"), [(127, 3e38, -128), (-127, 3e38, 127), (127, 1e-38, -128), (0, 1.0, 3)]
)
def test_a_slope_beyond_all_numbers_saturates_what_is_below_zero(slope: int, scale: float, below: int) -> None:
    given = np.arange(256, dtype=np.uint8).view(np.int8)
    inputs = [quantized_input(given, 1e30, 3), quantized_input(np.full(1, slope, np.int8), scale, static=True)]
    result = Result(dtype=DataType.SFIXED_POINT_8, quantization=Quantization.per_tensor(1e-30, 3))
    step, _ = harness.make_step("Prelu", inputs, {}, [result])
    with np.errstate(all="ignore"):
        stored = np.clip(function_codes(step, "litert"), -128, 127)
    np.testing.assert_array_equal(stored, np.where(given > 3, 127, np.where(given < 3, below, 3)))


@pytest.mark.parametrize("numerics", ["exact", "litert", "onnxruntime"])
@pytest.mark.parametrize("scale", [1e-45, 1e-30, 1e-10, 1e30])
def test_a_softmax_saturates_at_a_tiny_scale_and_vanishes_at_a_huge_one(scale: float, numerics: str) -> None:
    result = Result(dtype=DataType.SFIXED_POINT_8, quantization=Quantization.per_tensor(scale, 3))
    step, arrays = harness.make_step(
        "Softmax", [quantized_input(np.zeros((4, 6), np.int8), 0.5)], {"beta": 1.0}, [result]
    )
    with np.errstate(all="ignore"):
        [got] = harness.run(step, arrays, numerics=numerics)
    np.testing.assert_array_equal(got, 127 if scale < 1 else 3)


def test_a_bias_that_32_bits_cannot_hold_is_added_in_float() -> None:
    """In units of the sums it is 1e22: a sum in integers would have another sign, or none of it."""
    tiny = quantized_input(np.ones((2, 16), np.int8), 1e-11)
    layer = [
        tiny,
        quantized_input(np.ones((8, 16), np.int8), 1e-11, static=True),
        Operand(np.full(8, 1.0, np.float32), True),
    ]
    result = Result(dtype=DataType.SFIXED_POINT_8, quantization=Quantization.per_tensor(0.01, 3))
    step, _ = harness.make_step("FullyConnected", layer, {"keep_dims": True}, [result])
    assert not bias_fits(step, columns=8)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_a_scale_beyond_single_precision_is_refused(scale: float) -> None:
    with pytest.raises(QnnError, match="positive and finite in single precision"):
        Tensor("x", TensorType.NATIVE, DataType.SFIXED_POINT_8, (4,), Quantization.per_tensor(scale, 0))
