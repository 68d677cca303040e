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
from isthmus.graph.ops.elementwise import UNARY_OPERATIONS

SMALLEST_SCALE = np.float32(1e-30)
"""The scale used for a row of zeros, which has no range."""
RECIPROCAL = {"operation": UNARY_OPERATIONS.index("Reciprocal")}
"""The parameters of ElementWiseUnary that select the reciprocal."""


def factors(node: OperatorContext, x: Tensor) -> Tensor:
    """Return the weights (operand 1) of a convolution or fully connected layer.

    With float activations they stay fixed-point if the graph supports that: signed bytes with a zero point of 0, and
    one scale or one per output channel. Otherwise they are dequantized.
    """
    weights = node.input(1)
    quantization = weights.quantization
    is_hybrid = x.dtype is DataType.FLOAT_32 and weights.is_static and weights.dtype is DataType.SFIXED_POINT_8
    if is_hybrid and quantization is not None and quantization.axis in (None, 0) and not any(quantization.offsets):
        return weights
    return node.weights(1, x)


def activations(node: OperatorContext, x: Tensor, weights: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the activations `x`, rounded along `axes` if the file's weights (operand 1) are integers.

    They are not rounded if `weights`, the same operand as the operation takes it, is still fixed-point: then the graph
    rounds.
    """
    file_weights = node.input(1)
    is_hybrid = x.dtype.is_float and file_weights.is_static and file_weights.dtype.is_fixed_point
    if not is_hybrid or weights.dtype.is_fixed_point:
        return x
    return _round_activations(node, x, [node.axis(axis, x.rank) for axis in axes])


def _round_activations(node: OperatorContext, x: Tensor, axes: Sequence[int]) -> Tensor:
    """Round activations to 256 steps of their range along `axes`; 0 is one of the steps."""

    def number(value: float) -> Tensor:
        """Return a constant with one element, created once for each number."""
        array = np.full(1, value, np.float32)
        return node.derive(("number", value), lambda: node.graph.constant(f"number {value:g}", array))

    def reduce(op: str, tensor: Tensor) -> Tensor:
        return node.step(op, [tensor], {"axes": axes, "keep_dims": True})

    zero, smallest = number(0.0), number(float(SMALLEST_SCALE))
    low = node.step("ElementWiseMinimum", [reduce("ReduceMin", x), zero])
    high = node.step("ElementWiseMaximum", [reduce("ReduceMax", x), zero])
    span = node.step("ElementWiseSubtract", [high, low])
    scale = node.step("ElementWiseMaximum", [node.step("ElementWiseDivide", [span, number(255.0)]), smallest])
    inverse = node.step("ElementWiseUnary", [scale], RECIPROCAL)
    # Compute the zero point, then all stored values, as 8-bit numbers held in float.
    lowest = node.step("ElementWiseMultiply", [low, inverse])
    zero_point = node.step("ElementWiseRound", [node.step("ElementWiseSubtract", [number(-128.0), lowest])])
    stored = node.step("ElementWiseAdd", [node.step("ElementWiseMultiply", [x, inverse]), zero_point])
    stored = node.step("ElementWiseRound", [stored])
    stored = node.step("ReluMinMax", [stored], {"min_value": -128.0, "max_value": 127.0})
    return node.step("ElementWiseMultiply", [node.step("ElementWiseSubtract", [stored, zero_point]), scale])
