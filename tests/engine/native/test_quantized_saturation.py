"""A result that is far beyond what its type can say is the largest or the smallest stored value, never another."""

from __future__ import annotations

from typing import Any

import harness
import numpy as np
import pytest
from harness import Operand, Result, quantized

from isthmus.engine.native.lowering.fixed_point import sums_fit
from isthmus.graph import DataType, Quantization

CONV = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
POOL = {"filter_size": [2, 2], **CONV}
_SIGNS = np.where(np.arange(2 * 4 * 4 * 16).reshape(2, 4, 4, 16) // 256 % 2, 1, -1)
IMAGE = quantized((_SIGNS * 100).astype(np.int8), 0.5)


def weights(*dims: int) -> Operand:
    return quantized(np.full(dims, 100, np.int8), 0.5, static=True)


CASES: dict[str, tuple[str, list[Operand], dict[str, Any]]] = {
    "convolution": ("Conv2d", [IMAGE, weights(3, 3, 16, 8)], CONV),
    "depthwise convolution": ("DepthWiseConv2d", [IMAGE, weights(3, 3, 1, 16)], CONV),
    "depthwise convolution with several filters": ("DepthWiseConv2d", [IMAGE, weights(3, 3, 1, 32)], CONV),
    "transposed convolution": ("TransposeConv2d", [IMAGE, weights(2, 2, 16, 8)], CONV),
    "fully connected layer": ("FullyConnected", [IMAGE, weights(8, 16)], {"keep_dims": True}),
    "matrix product": ("MatMul", [IMAGE, weights(16, 8)], {}),
    "sum": ("ElementWiseAdd", [IMAGE, IMAGE], {}),
    "difference": ("ElementWiseSubtract", [IMAGE, quantized(-IMAGE.array, 0.5)], {}),
    "product": ("ElementWiseMultiply", [IMAGE, quantized(np.full((16,), 100, np.int8), 0.5)], {}),
    "mean": ("ReduceMean", [IMAGE], {"axes": [1, 2], "keep_dims": True}),
    "average of windows": ("PoolAvg2d", [IMAGE], POOL),
    "conversion": ("Convert", [IMAGE], {"dynamic_input_data": False, "dynamic_output_data": False}),
    "maximum": ("ElementWiseMaximum", [IMAGE, IMAGE], {}),
}


@pytest.mark.parametrize("scale", [1e-9, 1e-7, 1e-4])
@pytest.mark.parametrize("case", CASES)
def test_a_tiny_scale_of_the_result_saturates_it(case: str, scale: float) -> None:
    op, inputs, params = CASES[case]
    result = Result(dtype=DataType.SFIXED_POINT_8, quantization=Quantization.per_tensor(scale, 3))
    step, arrays = harness.make_step(op, inputs, params, [result])
    # The first image is negative throughout, the second positive.
    wanted = np.broadcast_to(np.array([-128, 127]).reshape(2, 1, 1, 1), step.outputs[0].dims)
    for target in harness.targets():
        [got] = harness.run(step, arrays, target)
        np.testing.assert_array_equal(got, wanted, err_msg=target.name)


@pytest.mark.parametrize(("largest", "fits"), [((1 << 31) - 257, True), ((1 << 31) - 256, False)])
def test_sums_that_could_round_beyond_32_bits_are_not_scaled_as_integers(largest: int, fits: bool) -> None:
    """Where a scale is 1, the largest sum is that of all products, the largest of bytes, and of the largest bias."""
    biases = np.full(8, 16 * 255 * 128 - largest, np.int32)
    bias = quantized(biases, 0.25, static=True)
    result = Result(dtype=DataType.SFIXED_POINT_8, quantization=Quantization.per_tensor(0.25, 0))
    step, _ = harness.make_step("FullyConnected", [IMAGE, weights(8, 16), bias], {"keep_dims": True}, [result])
    assert sums_fit(step, columns=8, depth=16) is fits
