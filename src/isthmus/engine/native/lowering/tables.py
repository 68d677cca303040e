"""Functions of one byte as tables of 256 stored values: nearest to the real result, or by LiteRT's arithmetic.

LiteRT computes some functions with integer multipliers whose rounding is visible in the stored values. Models in its
file format expect exactly those values, so the same arithmetic is done here, once, when the table is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.engine.native.lowering.fixed_point import codes, nearest, real_codes, scale_of, slope_of
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.evaluate import evaluate
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.rounding import HEXAGON, round_steps, ties_of
from isthmus.prepare.geometry.fixed_point import quantization_of
from isthmus.prepare.schedule import Step

_HALF_BITS = 15
# The fractional bits of LiteRT's 16-bit and 32-bit multipliers.
_WORD_BITS = 31
# The range of scales that matter for bytes: smaller ones make every value zero, larger ones put every value out of
# range.
#
# The ratio of two scales may be anything up to infinity, but integers can only be shifted so far.
_MIN_SCALE, _MAX_SCALE = 2.0**-40, 2.0**18


def conversion_codes(x: Tensor, output: Tensor, numerics: str) -> np.ndarray:
    """Return all 256 stored values of `x` in the quantization of `output`, not yet limited to its type.

    `numerics` is the rounding mode of the graph; with "litert", the result depends on the signs of the types.
    """
    if numerics == HEXAGON:
        # In double precision, steps of one tensor are exact in those of another if the ratio of the scales is.
        steps = _centred_codes(x) * (scale_of(x) / scale_of(output))
        return round_steps(steps, ties_of(HEXAGON, "Convert")) + quantization_of(output).zero_point
    if numerics != "litert":
        return nearest(real_codes(x), output)
    if x.dtype is not output.dtype:
        return _rescaled_across_signs(x, output)
    return _rescaled_coarsely(x, output) if x.dtype is DataType.SFIXED_POINT_8 else _rescaled_in_float(x, output)


# Functions with jumps. Chips compute the real of a stored value in single precision, where twenty times 0.05 is 1.
_JUMPS = ("ElementWiseCeil", "ElementWiseFloor", "ElementWiseRound", "ElementWiseSign")


def function_codes(step: Step, numerics: str) -> np.ndarray:
    """Return a function's results for all stored values of in[0], as stored values not yet limited to the type."""
    x, output = step.inputs[0], step.outputs[0]
    assert x is not None
    if step.op == "Convert":
        return conversion_codes(x, output, numerics)
    if numerics == HEXAGON and step.op not in _JUMPS:
        return _in_double_precision(step, x, output)
    limits = OPERATIONS[step.op].traits.limits
    if numerics == "litert" and limits is not None:
        return _clamp_table(x, output, *limits)
    if numerics == "litert" and step.op in _LITERT:
        return _LITERT[step.op](step, x, output)
    reals = _reals(step, x)
    if numerics != "litert":
        return nearest(reals, output)
    return _away_from_zero(_in_steps(reals, output)) + quantization_of(output).zero_point


def _in_double_precision(step: Step, x: Tensor, output: Tensor) -> np.ndarray:
    """Return the results of the reference, which computes in double precision and so rounds correctly."""
    ends = [Tensor(t.name, TensorType.NATIVE, t.dtype, (256,), t.quantization) for t in (x, output)]
    inputs, arrays = [ends[0]], [codes(x)]
    if len(step.inputs) > 1:
        arrays.append(np.full(1, slope_of(step)))
        inputs.append(Tensor("slope", TensorType.STATIC, DataType.FLOAT_32, (1,), None, arrays[1]))
    return evaluate(step.op, inputs, arrays, step.params, ends[1:], HEXAGON)[0]


def _reals(step: Step, x: Tensor) -> np.ndarray:
    """Return the function of the reals of all stored values."""
    inputs = [Tensor("codes", TensorType.NATIVE, DataType.FLOAT_32, (256,))]
    arrays = [real_codes(x)]
    if len(step.inputs) > 1:
        arrays.append(np.full(1, slope_of(step), np.float32))
        inputs.append(Tensor("slope", TensorType.STATIC, DataType.FLOAT_32, (1,), None, arrays[1]))
    result = Tensor("reals", TensorType.NATIVE, DataType.FLOAT_32, (256,))
    with np.errstate(all="ignore"):
        return evaluate(step.op, inputs, arrays, step.params, [result])[0]


# -- LiteRT's arithmetic -----------------------------------------------------------------------------------------------


def _away_from_zero(values: np.ndarray) -> np.ndarray:
    """Round half away from zero."""
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.nan_to_num(values)
        return np.trunc(finite + np.copysign(np.float32(0.5), finite))


def _in_steps(reals: Any, output: Tensor) -> Any:
    """Return reals in steps of a tensor: times its scale's inverse, or divided by it if that is not finite."""
    scale = np.float32(quantization_of(output).scale)
    inverse = np.float32(1) / scale
    return reals * inverse if np.isfinite(inverse) else reals / scale


def _centred_codes(x: Tensor) -> np.ndarray:
    """Return all stored values minus the zero point."""
    return codes(x).astype(np.int64) - quantization_of(x).zero_point


def _ratio(x: Tensor, output: Tensor) -> np.float32:
    """Return the factor from steps of the input to steps of the output."""
    return np.float32(np.float32(quantization_of(x).scale) / np.float32(quantization_of(output).scale))


def _multiplier(scale: float) -> tuple[int, int]:
    """Return a scale as a 31-bit fraction and a power of two, within the range that matters."""
    fraction, exponent = math.frexp(min(max(scale, _MIN_SCALE), _MAX_SCALE))
    factor = math.floor(fraction * (1 << _WORD_BITS) + 0.5)
    return (factor // 2, exponent + 1) if factor == 1 << _WORD_BITS else (factor, exponent)


def _high_product(values: np.ndarray, factor: int, bits: int) -> np.ndarray:
    """Return ``values * factor / 2**bits``, rounded to nearest, halves up."""
    product = values * factor
    nudged = product + np.where(product >= 0, 1 << (bits - 1), 1 - (1 << (bits - 1)))
    return np.sign(nudged) * (np.abs(nudged) >> bits)


def _halve(values: np.ndarray, exponent: int) -> np.ndarray:
    """Return ``values / 2**exponent``, rounded half away from zero."""
    if exponent <= 0:
        return values
    mask = (1 << exponent) - 1
    return (values >> exponent) + ((values & mask) > (mask >> 1) + (values < 0))


def _rescaled_twice_rounded(values: np.ndarray, scale: float) -> np.ndarray:
    """Multiply by a scale as LiteRT does in 32 bits: by a fraction, then by a power of two, rounding each time."""
    factor, exponent = _multiplier(scale)
    return _halve(_high_product(values << max(exponent, 0), factor, _WORD_BITS), -exponent)


def _rescaled_across_signs(x: Tensor, output: Tensor) -> np.ndarray:
    """Convert between signed and unsigned bytes: by a fraction, then by a power of two, rounded half up."""
    factor, exponent = _multiplier(scale_of(x) / scale_of(output))
    product = _high_product(_centred_codes(x) << max(exponent, 0), factor, _WORD_BITS)
    shift = max(-exponent, 0)
    return ((product + (1 << shift >> 1)) >> shift) + quantization_of(output).zero_point


def _rescaled_coarsely(x: Tensor, output: Tensor) -> np.ndarray:
    """Rescale by a multiplier of 8 fractional bits, rounded half up."""
    return _coarse(_centred_codes(x), _ratio(x, output)) + quantization_of(output).zero_point


def _coarse(values: np.ndarray, scale: np.float32) -> np.ndarray:
    """Multiply by a scale that is rounded to 8 fractional bits."""
    bounded = np.clip(np.nan_to_num(scale), -_MAX_SCALE, _MAX_SCALE)
    return (values * int(np.rint(np.float32(256) * bounded)) + 128) >> 8


def _rescaled_in_float(x: Tensor, output: Tensor) -> np.ndarray:
    """Rescale in float, in LiteRT's order of operations, rounded half away from zero."""
    qx, qy = quantization_of(x), quantization_of(output)
    scale = np.minimum(_in_steps(np.float32(qx.scale), output), np.float32(_MAX_SCALE))
    return _away_from_zero(codes(x).astype(np.float32) * scale + np.float32(-qx.zero_point) * scale) + qy.zero_point


def _clamp_table(x: Tensor, output: Tensor, low: float, high: float) -> np.ndarray:
    """Return the table of a Relu or ReluMinMax by LiteRT's arithmetic: rescale, then limit to the reals low to high."""
    quantization = quantization_of(output)
    stored = _rescaled_twice_rounded(_centred_codes(x), float(_ratio(x, output))) + quantization.zero_point
    least, most = (
        limit if math.isinf(limit) else float(np.rint(limit / quantization.scale)) + quantization.zero_point
        for limit in (low, high)
    )
    return np.clip(stored, least, most)


def _rectified_between(step: Step, x: Tensor, output: Tensor) -> np.ndarray:
    return _clamp_table(x, output, float(step.params["min_value"]), float(step.params["max_value"]))


def _absolute(step: Step, x: Tensor, output: Tensor) -> np.ndarray:
    """Rescale magnitudes as LiteRT does."""
    magnitudes = _rescaled_twice_rounded(np.abs(_centred_codes(x)), float(_ratio(x, output)))
    return magnitudes + quantization_of(output).zero_point


def _leaky(step: Step, x: Tensor, output: Tensor) -> np.ndarray:
    """Rescale with one of two factors, by the sign, each rounded to 8 fractional bits."""
    values, ratio, slope = _centred_codes(x), _ratio(x, output), slope_of(step)
    assert slope is not None
    stored = np.where(values >= 0, _coarse(values, ratio), _coarse(values, ratio * slope))
    return stored + quantization_of(output).zero_point


def _half_multiplier(scale: float) -> tuple[int, int]:
    """Return a scale as a 15-bit fraction and a power of two."""
    factor, exponent = _multiplier(scale)
    return min((factor + (1 << 15)) >> 16, (1 << _HALF_BITS) - 1), exponent


def _saturate(values: np.ndarray) -> np.ndarray:
    """Limit to 16 bits."""
    return np.clip(values, -(1 << _HALF_BITS), (1 << _HALF_BITS) - 1)


def _hard_swish(step: Step, x: Tensor, output: Tensor) -> np.ndarray:
    """Compute in 16 bits: the input times a gate, ``relu6(x + 3) / 6`` as a fraction of 32768."""
    # The order of shifts, roundings and saturations is LiteRT's.
    fine_scale = np.float32(1 / 128) * np.float32(quantization_of(x).scale)
    factor, exponent = _half_multiplier(float(fine_scale) / scale_of(output))
    gate_factor, gate_exponent = _half_multiplier(float(fine_scale / (np.float32(3) / np.float32(32768))))
    fine = _centred_codes(x) << 7
    scaled = _high_product(fine, factor, _HALF_BITS)
    gate = _saturate(fine << (gate_exponent - 1)) if gate_exponent > 0 else fine
    gate = _high_product(gate, gate_factor, _HALF_BITS)
    gate = _saturate(gate << 1) if gate_exponent > 0 else _halve(gate, -gate_exponent)
    gate = (gate + (1 << _HALF_BITS)) >> 1
    product = ((gate * scaled) >> _HALF_BITS) << max(exponent, 0)
    return _halve(product, -exponent) + quantization_of(output).zero_point


# Functions that LiteRT computes in integers, besides those of `_clamp_table`. Others are computed in float and rounded
# half away from zero.
_LITERT: dict[str, Callable[[Step, Tensor, Tensor], np.ndarray]] = {
    "ReluMinMax": _rectified_between,
    "ElementWiseAbs": _absolute,
    "Prelu": _leaky,
    "HardSwish": _hard_swish,
}
