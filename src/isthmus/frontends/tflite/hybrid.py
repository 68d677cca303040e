"""Hybrid operators, which have float activations and integer weights.

LiteRT rounds the activations of such an operator to 8 bits at run time, each row (or image) by its own range, and this
rounding is visible in the results. A graph does the same for float activations with fixed-point weights in an ordinary
convolution or a fully connected layer. For other operators the activations are rounded here by float operations, the
weights are dequantized once, and the product is an ordinary one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isthmus.frontends.tflite.operator_context import OperatorContext
from isthmus.graph import DataType, Tensor

SMALLEST_SCALE = np.float32(1e-30)
"""The scale used for a row of zeros, which has no range."""
RECIPROCAL = {"operation": 10}
"""The parameters of ElementWiseUnary that select the reciprocal."""


def factors(site: OperatorContext, x: Tensor) -> Tensor:
    """Return the weights (operand 1) of a convolution or fully connected layer.

    With float activations they stay fixed-point if the graph supports that: signed bytes with a zero point of 0, and
    one scale or one per output channel. Otherwise they are dequantized.
    """
    weights = site.input(1)
    quantization = weights.quantization
    if (
        x.dtype is DataType.FLOAT_32
        and weights.is_static
        and weights.dtype is DataType.SFIXED_POINT_8
        and quantization is not None
        and quantization.axis in (None, 0)
        and not any(quantization.offsets)
    ):
        return weights
    return site.weights(1, x)


def activations(site: OperatorContext, x: Tensor, weights: Tensor, index: int, axes: Sequence[int]) -> Tensor:
    """Return the activations `x`, rounded along `axes` if the file's weights (operand `index`) are integers.

    They are not rounded if `weights`, the same operand as the operation takes it, is still fixed-point: then the graph
    rounds.
    """
    file_weights = site.input(index)
    is_hybrid = x.dtype.is_float and file_weights.is_static and file_weights.dtype.is_fixed_point
    if not is_hybrid or weights.dtype.is_fixed_point:
        return x
    return _rounded(site, x, [site.axis(axis, x.rank) for axis in axes])


def _rounded(site: OperatorContext, x: Tensor, axes: Sequence[int]) -> Tensor:
    """Round activations to 256 steps of their range along `axes`; 0 is one of the steps."""

    def number(value: float) -> Tensor:
        """Return a constant with one element, created once for each number."""
        key = ("number", value)
        if key not in site.derived:
            site.derived[key] = site.graph.constant(f"number {value:g}", np.full(1, value, np.float32))
        return site.derived[key]

    def reduce(op: str, tensor: Tensor) -> Tensor:
        return site.step(op, [tensor], {"axes": axes, "keep_dims": True})

    zero, smallest = number(0.0), number(float(SMALLEST_SCALE))
    low = site.step("ElementWiseMinimum", [reduce("ReduceMin", x), zero])
    high = site.step("ElementWiseMaximum", [reduce("ReduceMax", x), zero])
    span = site.step("ElementWiseSubtract", [high, low])
    scale = site.step("ElementWiseMaximum", [site.step("ElementWiseDivide", [span, number(255.0)]), smallest])
    inverse = site.step("ElementWiseUnary", [scale], RECIPROCAL)
    # Compute the zero point, then all stored values, as 8-bit numbers held in float.
    lowest = site.step("ElementWiseMultiply", [low, inverse])
    zero_point = site.step("ElementWiseRound", [site.step("ElementWiseSubtract", [number(-128.0), lowest])])
    stored = site.step("ElementWiseAdd", [site.step("ElementWiseMultiply", [x, inverse]), zero_point])
    stored = site.step("ElementWiseRound", [stored])
    stored = site.step("ReluMinMax", [stored], {"min_value": -128.0, "max_value": 127.0})
    return site.step("ElementWiseMultiply", [site.step("ElementWiseSubtract", [stored, zero_point]), scale])
