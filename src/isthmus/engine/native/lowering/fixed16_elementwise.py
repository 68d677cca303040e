"""Lowering of elementwise operations on 16-bit fixed-point tensors, and of conversions between 8 and 16 bits."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from isthmus.engine.native.lowering.elementwise import rows
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.fixed_point import rounding_kernel
from isthmus.engine.native.program import Operand
from isthmus.engine.native.signatures.elementwise import kernel_of
from isthmus.engine.native.signatures.quantized_elementwise import ARITHMETIC, COMPARISONS, UNARY
from isthmus.graph import DataType, Tensor
from isthmus.graph.operation import Operation
from isthmus.graph.ops.elementwise import FUNCTIONS, NUMBERED, numbered
from isthmus.prepare.geometry.fixed_point import is_eight_bit, is_sixteen_bit, quantization_of, stored_limits
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

_SIGNED = (DataType.SFIXED_POINT_8, DataType.SFIXED_POINT_16)


def middle_of(tensor: Tensor) -> int:
    """Return what must be subtracted from stored numbers to make them signed; flipping that bit does the same."""
    return 0 if tensor.dtype in _SIGNED else 1 << (8 * tensor.dtype.itemsize - 1)


def scale_of(tensor: Tensor) -> float:
    """Return the scale as it is stored in a model, in single precision."""
    return float(np.float32(quantization_of(tensor).scale))


def operand_words(tensor: Tensor, name: str) -> dict[str, int]:
    """Return the words of an operand: its zero point as a signed number, and its flip."""
    middle = middle_of(tensor)
    return {f"{name}_zero": quantization_of(tensor).zero_point - middle, f"{name}_flip": middle}


def result_words(step: Step, output: Tensor, low: float = -inf, high: float = inf) -> dict[str, int]:
    """Return the words of a result, which is limited as its type, the fused activation and these reals limit it."""
    middle, bounds, zero = middle_of(output), stored_limits(step, output), quantization_of(output).zero_point
    least, most = (np.clip(np.rint(limit / scale_of(output)) + zero, *bounds) for limit in (low, high))
    return {**operand_words(output, "out"), "least": int(least) - middle, "most": int(most) - middle}


def _function(step: Step) -> Operation | None:
    """Return the elementwise function of a step, which may be selected by a number; None for a conversion."""
    if step.op in NUMBERED:
        return numbered(step.op, step.params["operation"])
    return FUNCTIONS.get(step.op)


# -- functions of one element ------------------------------------------------------------------------------------------


def emit_convert(
    e: Emitter, step: Step, x: Tensor, output: Tensor, target: Operand, factors: tuple[float, float] = (1.0, 1.0),
    limits: tuple[float, float] = (-inf, inf),
) -> None:  # fmt: skip
    """Emit a conversion of `x` to the type and quantization of `output`, at `target`.

    Reals above and below zero are multiplied by the two `factors`, and limited.
    """
    ratio = scale_of(x) / scale_of(output)
    e.emit(
        rounding_kernel(e, step.op, "quantized_elementwise:convert", f"{x.dtype.itemsize}_{output.dtype.itemsize}"),
        output=target, x=e.at(x),
        elements=x.elements, factor=factors[0] * ratio, factor_below=factors[1] * ratio, **operand_words(x, "in"),
        **result_words(step, output, *limits),
    )  # fmt: skip


def is_convertible(x: Tensor | None, output: Tensor | None) -> bool:
    """Return whether a conversion between two tensors involves 16 bits, and otherwise 8 bits or 16."""
    small = all(is_eight_bit(t) or is_sixteen_bit(t) for t in (x, output))
    return small and (is_sixteen_bit(x) or is_sixteen_bit(output))


def _slope(step: Step) -> float | None:
    """Return the only slope of a Prelu; None if it has several or they are not constant."""
    slope = operand(step, 1)
    if not slope.is_static or slope.elements != 1 or slope.data is None:
        return None
    values = quantization_of(slope).dequantize(slope.data) if slope.dtype.is_fixed_point else slope.data
    return float(values.reshape(-1)[0])


def _factors(step: Step, function: Operation | None) -> tuple[float, float] | None:
    """Return the factors of a function that multiplies reals above and below zero; None for another function."""
    if function is None or function.traits.limits is not None or function.name == "ReluMinMax":
        return 1.0, 1.0
    if function.name == "Prelu":
        slope = _slope(step)
        return None if slope is None else (1.0, slope)
    return {"ElementWiseNeg": (-1.0, -1.0), "ElementWiseAbs": (1.0, -1.0)}.get(function.name)


def _limits(step: Step, function: Operation | None) -> tuple[float, float]:
    """Return the reals that a function limits its result to."""
    if function is not None and function.name == "ReluMinMax":
        return float(step.params["min_value"]), float(step.params["max_value"])
    limits = None if function is None else function.traits.limits
    return (-inf, inf) if limits is None else limits


def _covers_unary(step: Step) -> bool:
    x, output, function = step.inputs[0], step.outputs[0], _function(step)
    if _factors(step, function) is not None:
        return is_convertible(x, output)
    known = function is not None and function.inputs == (1, 1) and kernel_of(function.name) in UNARY.variants
    return known and is_sixteen_bit(x) and is_sixteen_bit(output)


def _emit_unary(step: Step, e: Emitter) -> None:
    x, output, function = operand(step, 0), step.outputs[0], _function(step)
    factors = _factors(step, function)
    if factors is not None:
        emit_convert(e, step, x, output, e.at(output), factors, _limits(step, function))
        return
    assert function is not None
    first, second, *_ = (*(float(step.params[p.name]) for p in function.params), 0.0, 0.0)
    e.emit(
        f"quantized_elementwise:unary.{kernel_of(function.name)}", output=e.at(output), x=e.at(x), elements=x.elements,
        first=first, second=second, scale=scale_of(x), inverse=1.0 / scale_of(output), **operand_words(x, "in"),
        **result_words(step, output),
    )  # fmt: skip


# -- functions of two elements -----------------------------------------------------------------------------------------


def _second(step: Step) -> Tensor:
    """Return the second operand; constant slopes of 8 bits are widened to 16."""
    tensor = operand(step, 1)
    if step.op != "Prelu" or not tensor.is_static or not is_eight_bit(tensor) or tensor.data is None:
        return tensor
    wide = np.int16 if tensor.dtype is DataType.SFIXED_POINT_8 else np.uint16
    data = tensor.data.astype(wide)
    return replace(tensor, dtype=DataType.fixed_point(wide), data=data)


def _covers_binary(step: Step) -> bool:
    function, output = _function(step), step.outputs[0]
    if function is None or function.inputs != (2, 2) or not is_sixteen_bit(step.inputs[0]):
        return False
    if not is_sixteen_bit(_second(step)):
        return False
    name = kernel_of(function.name)
    if name in COMPARISONS:
        return output.dtype is DataType.BOOL_8
    return name in ARITHMETIC and is_sixteen_bit(output)


def _binary_factors(name: str, left: float, right: float, result: float) -> tuple[float, float, float]:
    """Return the factors of the operands and of the function's result, from the three scales.

    Ratios of scales are computed first: many are powers of two, and ties are then exact.
    """
    if name in ("add", "subtract", "maximum", "minimum"):
        return left / result, right / result, 1.0
    if name == "prelu":
        return left / result, right, 1.0
    if name == "multiply":
        return 1.0, 1.0, left * right / result
    if name == "divide":
        return 1.0, 1.0, left / (right * result)
    return left, right, 1.0 / result


def _emit_binary(step: Step, e: Emitter) -> None:
    left, right, output, function = operand(step, 0), _second(step), step.outputs[0], _function(step)
    assert function is not None
    name = kernel_of(function.name)
    inner, dims, (left_strides, right_strides), steps = rows(output.dims, (left, right), [2, 2])
    mode = {(1, 1): 0, (0, 1): 1, (1, 0): 2, (0, 0): 0}[steps[0], steps[1]]
    if name in COMPARISONS:
        kernel = f"quantized_elementwise:binary.{name}"
        factors, result = (scale_of(left), scale_of(right), 1.0), {"out_zero": 0, "out_flip": 0, "least": 0, "most": 0}
    else:
        kernel = rounding_kernel(e, step.op, "quantized_elementwise:binary", name)
        factors = _binary_factors(name, scale_of(left), scale_of(right), scale_of(output))
        result = result_words(step, output)
    e.emit(
        kernel, output=e.at(output), left=e.at(left), right=e.at(right),
        elements=output.elements, inner=max(inner, 1), mode=mode, left_factor=factors[0], right_factor=factors[1],
        factor=factors[2], **operand_words(left, "left"), **operand_words(right, "right"), **result, dims=dims,
        left_strides=left_strides, right_strides=right_strides,
    )  # fmt: skip


def _covers(step: Step) -> bool:
    return bool(step.outputs[0].elements) and (_covers_binary(step) or _covers_unary(step))


def _emit(step: Step, e: Emitter) -> None:
    if _covers_binary(step):
        _emit_binary(step, e)
    else:
        _emit_unary(step, e)


FIXED16 = {op: (_covers, Lowering(_emit)) for op in (*FUNCTIONS, *NUMBERED, "Convert")}
"""For each operation, a test of which steps its 16-bit lowering covers, and that lowering."""
