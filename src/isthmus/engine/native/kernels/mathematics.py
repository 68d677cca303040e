"""Elementary functions on float32 without branches, so that loops over them vectorise on every target.

LLVM does not vectorise calls into the C library. These functions make no calls. They are accurate to about two units in
the last place for ordinary arguments, have the right limits at both infinities, and propagate NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from isthmus.engine.native.kernels.base import F32, I1, I32, device

f32 = np.float32


def llvm_intrinsic(name: str, arity: int, flags: tuple[str, ...] = ()) -> Callable:
    """Return a function that calls an LLVM intrinsic on `arity` float32 arguments, with fast-math flags."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(F32, [F32] * arity)
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(function, args, fastmath=flags)

    signature = types.float32(*[types.float32] * arity)
    if arity == 1:
        return intrinsic(lambda typing_context, a: (signature, emit))
    if arity == 2:
        return intrinsic(lambda typing_context, a, b: (signature, emit))
    return intrinsic(lambda typing_context, a, b, c: (signature, emit))


multiply_add = llvm_intrinsic("llvm.fmuladd.f32", 3)
"""``a * b + c``, fused if the target has an instruction for it."""
floor = llvm_intrinsic("llvm.floor.f32", 1)
ceil = llvm_intrinsic("llvm.ceil.f32", 1)
truncate = llvm_intrinsic("llvm.trunc.f32", 1)
round_even = llvm_intrinsic("llvm.rint.f32", 1)
square_root = llvm_intrinsic("llvm.sqrt.f32", 1)
absolute = llvm_intrinsic("llvm.fabs.f32", 1)
copy_sign = llvm_intrinsic("llvm.copysign.f32", 2)


def _conversion(instruction: str, source: Any, goal: Any, goal_llvm: ir.Type) -> Callable:
    """Return a function that converts a number by an LLVM instruction; `source` and `goal` are numba's types."""

    @intrinsic
    def convert(typing_context: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(args[0], goal_llvm)

        return goal(source), emit

    return convert


bits_of = _conversion("bitcast", types.float32, types.int32, I32)
float_of_bits = _conversion("bitcast", types.int32, types.float32, F32)
float_of_int = _conversion("sitofp", types.int32, types.float32, F32)
int_of_float = _conversion("fptosi", types.float32, types.int32, I32)


def _on_i32(instruction: str) -> Callable:
    """Return a 32-bit integer operation; Python operators would widen to 64 bits, which halves the number of lanes."""

    @intrinsic
    def combine(typing_context: Any, a: Any, b: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(*args)

        return types.int32(types.int32, types.int32), emit

    return combine


add_i32, subtract_i32, and_i32, or_i32 = (_on_i32(name) for name in ("add", "sub", "and_", "or_"))
shift_left_i32, shift_right_i32 = _on_i32("shl"), _on_i32("ashr")


@intrinsic
def select(typing_context: Any, condition: Any, yes: Any, no: Any) -> Any:
    """Return `yes` if the condition holds, else `no`, without a branch."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flag = args[0] if args[0].type == I1 else builder.trunc(args[0], I1)
        return builder.select(flag, args[1], args[2])

    return types.float32(types.boolean, types.float32, types.float32), emit


@intrinsic
def remainder(typing_context: Any, a: Any, b: Any) -> Any:
    """Return the remainder of truncating division, with the sign of `a`: C's fmodf, or fmod for doubles."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.frem(*args)

    return a(a, a), emit


@device
def maximum(a, b):  # type: ignore[no-untyped-def]
    """Return the larger value; NaN if either is NaN."""
    return select(a != a, a, select(a > b, a, b))


@device
def minimum(a, b):  # type: ignore[no-untyped-def]
    """Return the smaller value; NaN if either is NaN."""
    return select(a != a, a, select(a < b, a, b))


@device
def clamp(x, low, high):  # type: ignore[no-untyped-def]
    """Limit `x` to a range; NaN stays NaN."""
    x = select(x < low, low, x)
    return select(x > high, high, x)


_LOG2_E = f32(math.log2(math.e))
_LN2_HIGH = f32(0.693145751953125)
_LN2_LOW = f32(math.log(2) - 0.693145751953125)
# Adding this number rounds to an integer, which is then in the low bits of the sum.
_ROUNDER = f32(1.5 * 2**23)
_ROUNDER_BITS = np.int32(np.float32(1.5 * 2**23).view(np.int32))
_ONE_BITS = np.int32(127 << 23)
_MANTISSA_BITS = np.int32(23)
_SHIFT_ONE = np.int32(1)
_ZERO, _HALF, _ONE, _TWO = f32(0), f32(0.5), f32(1), f32(2)


@device
def _power_of_two(n):  # type: ignore[no-untyped-def]
    """Return ``2**n`` by writing the exponent bits of a float."""
    return float_of_bits(add_i32(shift_left_i32(n, _MANTISSA_BITS), _ONE_BITS))


@device
def _reduce_exp(x):  # type: ignore[no-untyped-def]
    """Return `n`, an integer, and ``expm1(r)``, by a polynomial, with ``x = n ln 2 + r`` and a small `r`."""
    shifted = multiply_add(x, _LOG2_E, _ROUNDER)
    n = shifted - _ROUNDER
    r = multiply_add(n, -_LN2_LOW, multiply_add(n, -_LN2_HIGH, x))
    q = multiply_add(r, f32(0.00019918089674320072), f32(0.001394725637510419))
    q = multiply_add(q, r, f32(0.008333264850080013))
    q = multiply_add(q, r, f32(0.04166625440120697))
    q = multiply_add(q, r, f32(0.1666666716337204))
    q = multiply_add(q, r, _HALF)
    return subtract_i32(bits_of(shifted), _ROUNDER_BITS), multiply_add(q, r * r, r)


@device
def exp(x):  # type: ignore[no-untyped-def]
    """Return the exponential of `x`."""
    n, small = _reduce_exp(clamp(x, f32(-104), f32(89)))
    # 2**n in two factors: a single one could not reach subnormal numbers or overflow to infinity.
    half = shift_right_i32(n, _SHIFT_ONE)
    return (small + _ONE) * _power_of_two(half) * _power_of_two(subtract_i32(n, half))


@device
def exp_of_negative(x):  # type: ignore[no-untyped-def]
    """Return ``exp(x)`` for arguments that are not positive; subnormal results become 0."""
    n, small = _reduce_exp(select(x < f32(-87.3), f32(-87.3), x))
    scale = _power_of_two(n)
    return select(x < f32(-87.3), _ZERO, multiply_add(small, scale, scale))


@device
def expm1_of_negative(x):  # type: ignore[no-untyped-def]
    """Return ``exp(x) - 1`` for arguments that are not positive, accurate near 0."""
    n, small = _reduce_exp(select(x < f32(-25), f32(-25), x))
    scale = _power_of_two(n)
    return multiply_add(small, scale, scale - _ONE)


@device
def _log_mantissa(f):  # type: ignore[no-untyped-def]
    """Return ``log(1 + f) - f`` for f between sqrt(1/2) - 1 and sqrt(2) - 1."""
    p = multiply_add(f, f32(0.06746552139520645), f32(-0.11675628274679184))
    p = multiply_add(p, f, f32(0.11888190358877182))
    p = multiply_add(p, f, f32(-0.12405594438314438))
    p = multiply_add(p, f, f32(0.14219549298286438))
    p = multiply_add(p, f, f32(-0.16667994856834412))
    p = multiply_add(p, f, f32(0.2000211924314499))
    p = multiply_add(p, f, f32(-0.25000008940696716))
    p = multiply_add(p, f, f32(0.3333331346511841))
    square = f * f
    return multiply_add(p * f, square, -_HALF * square)


_SQRT_HALF_BITS = np.int32(np.float32(math.sqrt(0.5)).view(np.int32))
_MANTISSA_MASK = np.int32(0x007FFFFF)
_TINY = f32(1.1754943508222875e-38)
_INFINITY = f32(np.inf)
_NAN = f32(np.nan)


@device
def log(x):  # type: ignore[no-untyped-def]
    """Return the natural logarithm."""
    subnormal = x < _TINY
    scaled = select(subnormal, x * f32(2.0**23), x)
    offset = subtract_i32(bits_of(scaled), _SQRT_HALF_BITS)
    n = float_of_int(shift_right_i32(offset, _MANTISSA_BITS)) - select(subnormal, f32(23), _ZERO)
    f = float_of_bits(add_i32(and_i32(offset, _MANTISSA_MASK), _SQRT_HALF_BITS)) - _ONE
    result = multiply_add(n, _LN2_HIGH, multiply_add(n, _LN2_LOW, _log_mantissa(f)) + f)
    result = select(x == _INFINITY, _INFINITY, result)
    result = select(x == _ZERO, -_INFINITY, result)
    return select((x < _ZERO) | (x != x), _NAN, result)


@device
def log1p_of_unit(t):  # type: ignore[no-untyped-def]
    """Return ``log(1 + t)`` for t from 0 to 1, accurate near 0."""
    u = _ONE + t
    upper = u > f32(math.sqrt(2))
    mantissa = select(upper, u * _HALF, u)
    f = select(upper, mantissa - _ONE, t)
    return select(upper, f32(math.log(2)), _ZERO) + (_log_mantissa(f) + f)


@device
def tanh(x):  # type: ignore[no-untyped-def]
    """Return the hyperbolic tangent."""
    t = expm1_of_negative(-_TWO * absolute(x))
    return copy_sign(t / (t + _TWO), x)


@device
def sigmoid(x):  # type: ignore[no-untyped-def]
    """Return the logistic function."""
    t = exp_of_negative(-absolute(x))
    d = _ONE / (_ONE + t)
    return select(x < _ZERO, t * d, d)


@device
def softplus(x):  # type: ignore[no-untyped-def]
    """Return ``log(1 + exp(x))``."""
    return select(x > _ZERO, x, _ZERO) + log1p_of_unit(exp_of_negative(-absolute(x)))


@device
def erf(x):  # type: ignore[no-untyped-def]
    """Return the error function."""
    t = absolute(x)
    z = x * x
    s = multiply_add(z, f32(7.889114931458607e-05), f32(-0.000802083988673985))
    s = multiply_add(s, z, f32(0.005189535208046436))
    s = multiply_add(s, z, f32(-0.026854444295167923))
    s = multiply_add(s, z, f32(0.11283600330352783))
    s = multiply_add(s, z, f32(-0.3761262595653534))
    s = multiply_add(s, z, f32(0.12837916612625122))
    near = multiply_add(s, x, x)
    # That is for arguments below 0.95. Above, 1 - exp(p) with p near the logarithm of the complement.
    u = select(t > f32(4.05), f32(4.05), t)
    p = multiply_add(u, f32(-2.0909674959970953e-05), f32(0.00043230430553485816))
    p = multiply_add(p, u, f32(-0.004160532919303264))
    p = multiply_add(p, u, f32(0.025091511436731523))
    p = multiply_add(p, u, f32(-0.1082366405965165))
    p = multiply_add(p, u, f32(-0.6333866284478182))
    p = multiply_add(p, u, f32(-1.1294951674559215))
    p = multiply_add(p, u, f32(0.00017055366630583594))
    far = copy_sign(_ONE - exp_of_negative(p), x)
    return select(t < f32(0.95), near, far)


_PI_HALF_HIGH = 1.5707963267341256
_PI_HALF_LOW = math.pi / 2 - 1.5707963267341256
_ROUNDER_64 = 1.5 * 2.0**52
MAX_ANGLE = f32(1e5)
"""The largest argument for which `sine` is accurate in both phases; beyond it the C library's functions are needed."""


@intrinsic
def _low_word(typing_context: Any, value: Any) -> Any:
    """Return the low 32 bits of a double."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.trunc(builder.bitcast(args[0], ir.IntType(64)), I32)

    return types.int32(types.float64), emit


@device
def sine(x, phase):  # type: ignore[no-untyped-def]
    """Return ``sin(x + phase * pi / 2)`` for ``abs(x) <= MAX_ANGLE``; phase 1 is the cosine."""
    wide = np.float64(x)
    shifted = wide * (2 / math.pi) + _ROUNDER_64
    n = shifted - _ROUNDER_64
    # In double precision, the reduction leaves a remainder that is exact in single precision.
    r = f32((wide - n * _PI_HALF_HIGH) - n * _PI_HALF_LOW)
    quadrant = add_i32(_low_word(shifted), phase)
    z = r * r
    s = multiply_add(z, f32(2.7182370558875846e-06), f32(-0.00019839327433146536))
    s = multiply_add(s, z, f32(0.008333329111337662))
    s = multiply_add(s, z, f32(-0.1666666716337204))
    s = multiply_add(s * z, r, r)
    c = multiply_add(z, f32(-2.720954341839388e-07), f32(2.479951217537746e-05))
    c = multiply_add(c, z, f32(-0.0013888883404433727))
    c = multiply_add(c, z, f32(0.0416666679084301))
    c = multiply_add(c, z * z, multiply_add(z, -_HALF, _ONE))
    value = select(and_i32(quadrant, np.int32(1)) != 0, c, s)
    return select(and_i32(quadrant, np.int32(2)) != 0, -value, value)
