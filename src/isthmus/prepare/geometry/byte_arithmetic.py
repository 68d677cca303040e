"""Rounding of sums and products of two 8-bit tensors: every engine rounds as LiteRT's default kernels do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isthmus.prepare.geometry.fixed_point import is_eight_bit, quantization_of
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

# Products with this scale or a larger one are not computed as a `ByteProduct`.
_MAX_SCALE = 2.0**14


@dataclass(frozen=True)
class WeightedSum:
    """``(a * factors[0] + b * factors[1] + bias) >> shift`` of stored values, in units of the result; ties round up.

    The sum fits 32 bits.
    """

    factors: tuple[int, int]
    bias: int
    shift: int


@dataclass(frozen=True)
class ByteProduct:
    """``rint((a - zeros[0]) * (b - zeros[1]) * scale)`` of stored values, in units of the result; ties round to even.

    The integer product is exact in a float; it is multiplied by the scale as a float.
    """

    zeros: tuple[int, int]
    scale: np.float32


def _is_of_bytes(step: Step) -> bool:
    """Return whether all operands and results are 8-bit fixed point of the same type."""
    tensors = (*step.inputs, *step.outputs)
    return all(map(is_eight_bit, tensors)) and len({t.dtype for t in tensors if t is not None}) == 1


def weighted_sum(step: Step, negative: bool) -> WeightedSum | None:
    """Return the sum of two tensors, or their difference if `negative`.

    None unless all are 8-bit and their scales are similar enough.
    """
    if not _is_of_bytes(step):
        return None
    quantizations = [quantization_of(operand(step, i)) for i in (0, 1)]
    result = quantization_of(step.outputs[0])
    if not 2.0**-10 <= max(q.scale for q in quantizations) / result.scale < 2.0**8:
        return None
    ratios = [np.float32(q.scale) / np.float32(result.scale) for q in quantizations]
    # Multipliers have about 20 bits, so that the sum of two products with 8-bit values fits 32 bits.
    shift = 20 - (int(np.frexp(max(ratios))[1]) - 1)
    first, second = (int(np.rint(np.ldexp(np.float64(ratio), shift))) for ratio in ratios)
    factors = first, -second if negative else second
    zeros = sum(f * q.zero_point for f, q in zip(factors, quantizations, strict=True))
    # The bias adds one half for rounding, and subtracts the zero points.
    return WeightedSum(factors, (1 << (shift - 1)) - zeros, shift)


def byte_product(step: Step) -> ByteProduct | None:
    """Return the product of two tensors; None unless all are 8-bit and the scale is small enough."""
    if not _is_of_bytes(step):
        return None
    first, second, result = map(quantization_of, (operand(step, 0), operand(step, 1), step.outputs[0]))
    if first.scale * second.scale / result.scale >= _MAX_SCALE:
        return None
    scale = np.float32(first.scale) * np.float32(second.scale) / np.float32(result.scale)
    return ByteProduct((first.zero_point, second.zero_point), scale)
