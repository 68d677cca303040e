"""Helpers for lowerings of fixed-point steps: limits in stored values, tables of 256 entries, requantization."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter
from isthmus.engine.native.program import Operand
from isthmus.graph import DataType, Tensor
from isthmus.graph.rounding import HEXAGON, Ties, ties_of
from isthmus.prepare.geometry.fixed_point import (
    centred_weights,
    is_eight_bit,
    is_sixteen_bit,
    quantization_of,
    stored_limits,
)
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

STORED = {
    DataType.SFIXED_POINT_8: "s8",
    DataType.UFIXED_POINT_8: "u8",
    DataType.SFIXED_POINT_16: "s16",
    DataType.UFIXED_POINT_16: "u16",
    DataType.SFIXED_POINT_32: "s32",
}
"""The kernels' names of the types of stored elements."""


def rounding_kernel(
    e: Emitter, op: str, kernel: str, variant: str = "", params: Mapping[str, Any] | None = None
) -> str:
    """Return the full name of the kernel that rounds halves as an operation does in the program's numerics.

    `params` are as in `ties_of`.
    """
    ties = ties_of(e.numerics, op, params)
    name = "_".join(filter(None, (variant, "" if ties is Ties.EVEN else ties.value)))
    return f"{kernel}.{name}" if name else kernel


def pair(step: Step, name: str) -> tuple[int, int]:
    """Return a parameter that has a number for height and one for width."""
    first, second = np.asarray(step.params[name]).reshape(2).tolist()
    return first, second


def middle_of(tensor: Tensor) -> int:
    """Return what must be subtracted from stored numbers to make them signed; flipping that bit does the same."""
    return 0 if tensor.dtype.numpy.kind == "i" else 1 << (8 * tensor.dtype.itemsize - 1)


def scale_of(tensor: Tensor) -> float:
    """Return the scale as it is stored in a model, in single precision."""
    return float(np.float32(quantization_of(tensor).scale))


def operand_words(tensor: Tensor, name: str) -> dict[str, int]:
    """Return the words of an operand: its zero point as a signed number, and its flip (see `middle_of`)."""
    middle = middle_of(tensor)
    return {f"{name}_zero": quantization_of(tensor).zero_point - middle, f"{name}_flip": middle}


def result_words(step: Step, output: Tensor, low: float = -inf, high: float = inf) -> dict[str, int]:
    """Return the words of a result, which is limited as its type, the fused activation and these reals limit it."""
    middle, bounds, zero = middle_of(output), stored_limits(step, output), quantization_of(output).zero_point
    least, most = (np.clip(np.rint(limit / scale_of(output)) + zero, *bounds) for limit in (low, high))
    return {**operand_words(output, "out"), "least": int(least) - middle, "most": int(most) - middle}


def signed_result(step: Step, output: Tensor) -> dict[str, int]:
    """Return the words of an 8-bit result, `zero`, `least`, `most` and `flip`, as `result_words` returns them."""
    words = result_words(step, output)
    return {"zero": words.pop("out_zero"), "flip": words.pop("out_flip"), **words}


def slope_of(step: Step) -> np.float32 | None:
    """Return the only slope of a Prelu; None if it has several or they are not constant."""
    slope = operand(step, 1)
    if not slope.is_static or slope.elements != 1 or slope.data is None:
        return None
    values = quantization_of(slope).dequantize(slope.data) if slope.dtype.is_fixed_point else slope.data
    return np.float32(values.reshape(-1)[0])


def has_byte_weights(weights: Tensor) -> bool:
    """Return whether constant weights, and their zero points, are 8-bit numbers."""
    if not weights.is_static or weights.dtype not in (DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_8):
        return False
    limits, offsets = np.iinfo(weights.dtype.numpy), quantization_of(weights).offsets
    return limits.min <= -max(offsets) and -min(offsets) <= limits.max


def without_zero_points(weights: Tensor) -> np.ndarray:
    """Return constant 8-bit weights minus their zero points; the differences need nine bits."""
    assert weights.data is not None
    quantization = quantization_of(weights)
    offsets = np.array(quantization.offsets, np.int16)
    if quantization.axis is not None:
        offsets = offsets.reshape([-1 if axis == quantization.axis else 1 for axis in range(weights.rank)])
    return weights.data.astype(np.int16) + offsets


def byte_parts(numbers: np.ndarray) -> list[np.ndarray]:
    """Split integers into signed bytes that add up to them: one array if they fit, else several."""
    parts: list[np.ndarray] = []
    remainder = numbers
    while not parts or remainder.any():
        parts.append(np.clip(remainder, -128, 127).astype(np.int8))
        remainder = remainder - parts[-1]
    return parts


def result_scales(e: Emitter, step: Step, columns: int) -> np.ndarray:
    """Return, for each column, the factor from integer sums of products to quantization steps of the result.

    It is computed in single precision; the numerics of chips compute it more precisely.
    """
    scales = weight_scales(operand(step, 1), columns)
    first, last = quantization_of(operand(step, 0)).scale, quantization_of(step.outputs[0]).scale
    kind = np.float64 if e.numerics == HEXAGON else np.float32
    return (kind(first) * scales.astype(kind) / kind(last)).astype(np.float32)


def weight_scales(weights: Tensor, columns: int) -> np.ndarray:
    """Return the scale of the weights for each column of results: one for all, or one each."""
    return np.broadcast_to(np.array(quantization_of(weights).scales, np.float32), (columns,))


def product_units(x: Tensor, weights: Tensor, columns: int) -> np.ndarray:
    """Return the real value of 1 in the integer sums of a product, for each column of results."""
    return quantization_of(x).scale * weight_scales(weights, columns).astype(np.float64)


def is_in_reals(bias: Tensor, units: np.ndarray) -> bool:
    """Return whether a bias is not in units of the sums: floats, or numbers with their own scale or zero point."""
    if not bias.dtype.is_fixed_point:
        return bias.dtype.is_float
    quantization = quantization_of(bias)
    return any(quantization.offsets) or not np.allclose(quantization.scales, units, rtol=1e-5, atol=0)


def _bias(step: Step) -> Tensor | None:
    """Return the bias of a product, which may be absent."""
    return step.inputs[2] if len(step.inputs) > 2 else None


def bias_of(step: Step, columns: int) -> np.ndarray:
    """Return the bias of a product as integers in units of its sums (see `product_units`); zeros if it has none."""
    bias = _bias(step)
    if bias is None:
        return np.zeros(columns, np.int64)
    assert bias.data is not None
    units = product_units(operand(step, 0), operand(step, 1), columns)
    if is_in_reals(bias, units):
        return _round_bias(bias, units).astype(np.int64)
    return bias.data.reshape(-1).astype(np.int64)


def _round_bias(bias: Tensor, units: np.ndarray) -> np.ndarray:
    """Round a bias in reals to units of the sums."""
    assert bias.data is not None
    reals = bias.data if bias.dtype.is_float else quantization_of(bias).dequantize(bias.data)
    return np.rint(reals.reshape(-1) / units)


def sums_fit(step: Step, columns: int, depth: int) -> bool:
    """Return whether the scaled sums of a product fit 32 bits, so that rounding them cannot overflow.

    `depth` is the number of products in a sum. The sums themselves wrap around, as in other runtimes: biases of
    channels that hardly vary may be enormous.
    """
    x, weights = operand(step, 0), operand(step, 1)
    scales = quantization_of(x).scale * weight_scales(weights, columns) / quantization_of(step.outputs[0]).scale
    # The largest magnitude of a weight without its zero point.
    widest = 128 if centred_weights(weights) is not None else 255
    largest = np.minimum(depth * 255 * widest + np.abs(bias_of(step, columns)), 1 << 31)
    return bool((largest * scales < (1 << 31) - 256).all())


def bias_fits(step: Step, columns: int) -> bool:
    """Return whether a bias, rounded to units of the sums, fits 32 bits and loses at most half a step of the result."""
    bias = _bias(step)
    if bias is None:
        return True
    units = product_units(operand(step, 0), operand(step, 1), columns)
    if not is_in_reals(bias, units):
        return True
    # A bias rounded to units is off by at most half a unit.
    fine = units <= quantization_of(step.outputs[0]).scale
    return bool((fine & (np.abs(_round_bias(bias, units)) < 1 << 31)).all())


def codes(tensor: Tensor) -> np.ndarray:
    """Return all 256 stored values of an 8-bit tensor, in the order of their bytes."""
    return np.arange(256, dtype=np.uint8).view(tensor.dtype.numpy)


def real_codes(tensor: Tensor) -> np.ndarray:
    """Return the reals of all 256 stored values."""
    return quantization_of(tensor).dequantize(codes(tensor))


def nearest(reals: np.ndarray, output: Tensor) -> np.ndarray:
    """Return the stored values nearest to reals, half to even, not yet limited."""
    quantization = quantization_of(output)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.rint(np.nan_to_num(reals / np.float32(quantization.scale))) + quantization.zero_point


def emit_lookup(e: Emitter, source: Tensor, target: Operand, stored: np.ndarray, step: Step, output: Tensor) -> None:
    """Map each byte of `source` to one of the 256 values `stored`, limited as the step limits its output.

    The result is at `target`, in the type of `output`.
    """
    table = np.clip(stored, *stored_limits(step, output)).astype(output.dtype.numpy)
    e.emit("quantized_elementwise:lookup", x=e.at(source), y=target, count=source.elements, table=e.constant(table))


def _scales(tensor: Tensor) -> tuple[int, int, int, np.ndarray, np.ndarray]:
    """Return how a tensor's scales apply to its elements, and the scales and the zero points."""
    # The first three numbers are the elements before, along and after the axis that has a scale for each position. If
    # one scale is for all, they are 1, 1 and the number of elements.
    quantization = quantization_of(tensor)
    scales = np.array(quantization.scales, np.float32)
    zeros = -np.array(quantization.offsets, np.int64).astype(np.int32)
    if quantization.axis is None:
        return 1, 1, tensor.elements, scales, zeros
    outer = int(np.prod(tensor.dims[: quantization.axis], dtype=np.int64))
    inner = int(np.prod(tensor.dims[quantization.axis + 1 :], dtype=np.int64))
    return outer, tensor.dims[quantization.axis], inner, scales, zeros


def no_reals_of(tensor: Tensor) -> str | None:
    """Return why a fixed-point tensor cannot be converted to reals, or None."""
    return None if tensor.dtype in STORED else f"{tensor.describe()} cannot be turned to reals"


def not_from_reals(tensor: Tensor) -> str | None:
    """Return why a fixed-point tensor cannot be made from reals, or None."""
    return None if tensor.dtype in STORED else f"{tensor.describe()} cannot be made from reals"


def emit_dequantize(e: Emitter, source: Tensor, target: Operand) -> None:
    """Emit the conversion of a fixed-point tensor to reals."""
    outer, axis, inner, scales, zeros = _scales(source)
    e.emit(
        f"quantized_elementwise:dequantize.{STORED[source.dtype]}", x=e.at(source), y=target, outer_count=outer,
        axis=axis, inner=inner, scales=e.constant(scales), zeros=e.constant(zeros),
    )  # fmt: skip


def emit_quantize(e: Emitter, source: Operand, output: Tensor, op: str) -> None:
    """Emit the conversion of reals to stored values; `op` is the operation whose results they are."""
    outer, axis, inner, scales, zeros = _scales(output)
    ones = np.ones_like(scales)
    # LiteRT multiplies by the reciprocal of the scale, as chips do in a Quantize.
    by_reciprocal = e.numerics == "litert" or (e.numerics == HEXAGON and op == "Quantize")
    divisors, factors = (ones, ones / scales) if by_reciprocal else (scales, ones)
    e.emit(
        rounding_kernel(e, op, "quantized_elementwise:quantize", STORED[output.dtype]), x=source, y=e.at(output),
        outer_count=outer, axis=axis, inner=inner, divisors=e.constant(divisors), factors=e.constant(factors),
        zeros=e.constant(zeros),
    )  # fmt: skip


def is_convertible(x: Tensor | None, output: Tensor | None) -> bool:
    """Return whether `emit_convert` applies: one of two fixed-point tensors has 16 bits, the other has 8 or 16."""
    small = all(is_eight_bit(t) or is_sixteen_bit(t) for t in (x, output))
    return small and (is_sixteen_bit(x) or is_sixteen_bit(output))


def emit_convert(
    e: Emitter, step: Step, x: Tensor, output: Tensor, target: Operand, factors: tuple[float, float] = (1.0, 1.0),
    limits: tuple[float, float] = (-inf, inf),
) -> None:  # fmt: skip
    """Emit a conversion of `x` to the type and quantization of `output`, at `target`.

    Reals above and below zero are multiplied by the two `factors`, and limited.
    """
    ratio = scale_of(x) / scale_of(output)
    kinds = "_".join(f"q{8 * tensor.dtype.itemsize}" for tensor in (x, output))
    e.emit(
        rounding_kernel(e, step.op, "quantized_elementwise:convert", kinds),
        output=target, x=e.at(x), elements=x.elements, factor=factors[0] * ratio, factor_below=factors[1] * ratio,
        **operand_words(x, "in"), **result_words(step, output, *limits),
    )  # fmt: skip
