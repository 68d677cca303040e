"""Elementwise kernels: one small kernel for each function and type, all with the same few loops.

The lowering has resolved broadcasting. What remains are rows and the offset of each row in each operand. Within a row,
an operand either advances or repeats one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from isthmus.engine.native.kernels import base, mathematics
from isthmus.engine.native.kernels.base import accessor, address, device, generated, real, share, word
from isthmus.engine.native.kernels.mathematics import f32, select
from isthmus.engine.native.signatures.elementwise import BINARY, CAST, CHOOSE, FLOATS, SIZES, TRIGONOMETRIC, UNARY
from isthmus.engine.native.target import Target

_UNIT = 64
"""Elements are distributed to threads in pieces of this size: whole cache lines for every kind."""
_BLOCK = 512
"""The number of elements that are checked together before a slower method is used for all of them."""


def reader(kind: str, target: Target | None = None) -> Callable:
    """Return the streaming read of a kind; only floats of 16 bits need the target."""
    return accessor("read", kind, target)


def writer(kind: str, target: Target | None = None) -> Callable:
    """Return the streaming write of a kind; only floats of 16 bits need the target."""
    return accessor("write", kind, target)


@device
def span(total, tid, nt):  # type: ignore[no-untyped-def]
    """Return a thread's half-open range of `total` elements, in whole pieces."""
    begin, end = share((total + _UNIT - 1) // _UNIT, tid, nt)
    return begin * _UNIT, min(end * _UNIT, total)


_ZERO, _HALF, _ONE = f32(0), f32(0.5), f32(1)
_SQRT_HALF = f32(math.sqrt(0.5))


@device
def _hard_sigmoid(x, a, b):  # type: ignore[no-untyped-def]
    """Return ``a * x + b``, limited to 0 and 1."""
    return mathematics.clamp(mathematics.multiply_add(x, a, b), _ZERO, _ONE)


@device
def _softplus(x, beta, threshold):  # type: ignore[no-untyped-def]
    """Return ``log(1 + exp(beta * x)) / beta``; x itself above the threshold, unless that is negative."""
    scaled = x * beta
    return select((threshold >= _ZERO) & (scaled > threshold), x, mathematics.softplus(scaled) / beta)


@device
def _mish(x):  # type: ignore[no-untyped-def]
    """Return x tanh(log(1 + e^x)), computed from e^x alone; above 20 the tanh is 1 to the last bit."""
    e = mathematics.exp(mathematics.minimum(x, f32(20)))
    n = e * (e + f32(2))
    return x * (n / (n + f32(2)))


@device
def _sign(x):  # type: ignore[no-untyped-def]
    """Return 1, -1 or, for zeros and NaN, x itself."""
    return select(x > _ZERO, _ONE, select(x < _ZERO, -_ONE, x))


def _plain(function: Callable) -> Callable:
    """Adapt a function of one argument to the three arguments that are expected."""
    return device(lambda x, a, b: function(x))


UNARY_F32: dict[str, Callable] = {
    "abs": _plain(mathematics.absolute),
    "acos": device(lambda x, a, b: math.acos(x)),
    "acosh": device(lambda x, a, b: math.acosh(x)),
    "asin": device(lambda x, a, b: math.asin(x)),
    "asinh": device(lambda x, a, b: math.asinh(x)),
    "atan": device(lambda x, a, b: math.atan(x)),
    "atanh": device(lambda x, a, b: math.atanh(x)),
    "ceil": _plain(mathematics.ceil),
    "clamp": device(lambda x, a, b: mathematics.clamp(x, a, b)),
    "cosh": device(lambda x, a, b: math.cosh(x)),
    "elu": device(lambda x, a, b: select(x < _ZERO, a * mathematics.expm1_of_negative(select(x < _ZERO, x, _ZERO)), x)),
    "erf": _plain(mathematics.erf),
    "exp": _plain(mathematics.exp),
    "floor": _plain(mathematics.floor),
    "gelu": device(lambda x, a, b: _HALF * x * (_ONE + mathematics.erf(x * _SQRT_HALF))),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": device(lambda x, a, b: x * _hard_sigmoid(x, f32(1 / 6), _HALF)),
    "log": _plain(mathematics.log),
    "mish": _plain(_mish),
    "neg": device(lambda x, a, b: -x),
    "power": device(lambda x, a, b: x**a),
    "reciprocal": device(lambda x, a, b: _ONE / x),
    "round": _plain(mathematics.round_even),
    "rsqrt": device(lambda x, a, b: _ONE / mathematics.square_root(x)),
    "sigmoid": _plain(mathematics.sigmoid),
    "sign": _plain(_sign),
    "silu": device(lambda x, a, b: x * mathematics.sigmoid(x)),
    "sinh": device(lambda x, a, b: math.sinh(x)),
    "softplus": _softplus,
    "sqrt": _plain(mathematics.square_root),
    "square": device(lambda x, a, b: x * x),
    "tan": device(lambda x, a, b: math.tan(x)),
    "tanh": _plain(mathematics.tanh),
}
"""Functions of an element and two parameters."""


@device
def _double_sigmoid(x):  # type: ignore[no-untyped-def]
    """Return the logistic function, without an exponential that overflows."""
    t = math.exp(-abs(x))
    return t / (1.0 + t) if x < 0.0 else 1.0 / (1.0 + t)


UNARY_F64: dict[str, Callable] = {
    "abs": device(lambda x, a, b: abs(x)),
    "acos": device(lambda x, a, b: math.acos(x)),
    "acosh": device(lambda x, a, b: math.acosh(x)),
    "asin": device(lambda x, a, b: math.asin(x)),
    "asinh": device(lambda x, a, b: math.asinh(x)),
    "atan": device(lambda x, a, b: math.atan(x)),
    "atanh": device(lambda x, a, b: math.atanh(x)),
    "ceil": device(lambda x, a, b: np.ceil(x)),
    "cos": device(lambda x, a, b: math.cos(x)),
    "cosh": device(lambda x, a, b: math.cosh(x)),
    "erf": device(lambda x, a, b: math.erf(x)),
    "exp": device(lambda x, a, b: math.exp(x)),
    "floor": device(lambda x, a, b: np.floor(x)),
    "log": device(lambda x, a, b: math.log(x)),
    "neg": device(lambda x, a, b: -x),
    "reciprocal": device(lambda x, a, b: 1.0 / x),
    "round": device(lambda x, a, b: np.rint(x)),
    "rsqrt": device(lambda x, a, b: 1.0 / math.sqrt(x)),
    "sigmoid": _plain(_double_sigmoid),
    "sign": device(lambda x, a, b: 1.0 if x > 0.0 else -1.0 if x < 0.0 else x),
    "sin": device(lambda x, a, b: math.sin(x)),
    "sinh": device(lambda x, a, b: math.sinh(x)),
    "sqrt": device(lambda x, a, b: math.sqrt(x)),
    "tan": device(lambda x, a, b: math.tan(x)),
    "tanh": device(lambda x, a, b: math.tanh(x)),
}
"""The same in double precision, by the C library."""

UNARY_INTEGER: dict[str, Callable] = {
    "abs": device(lambda x, a, b: abs(x)),
    "neg": device(lambda x, a, b: -x),
    "sign": device(lambda x, a, b: np.int64(x > 0) - np.int64(x < 0)),
    "not": device(lambda x, a, b: np.uint8(x == 0)),
    "bitwise_not": device(lambda x, a, b: ~x),
}
_INFINITY = f32(math.inf)
UNARY_TO_BOOL: dict[str, Callable] = {
    "isnan": device(lambda x, a, b: np.uint8(x != x)),
    "isinf": device(lambda x, a, b: np.uint8(((x == -_INFINITY) & (a != _ZERO)) | ((x == _INFINITY) & (b != _ZERO)))),
}


@generated
def unary(target: Target, variant: str) -> Any:
    """Apply a function to each element. Variant: ``function_kind``."""
    words = UNARY.place
    name, _, kind = variant.rpartition("_")
    of_kind = {"f64": UNARY_F64, **dict.fromkeys(FLOATS, UNARY_F32)}.get(kind, {})
    function = {**UNARY_INTEGER, **UNARY_TO_BOOL, **of_kind}[name]
    result = "bool" if name in UNARY_TO_BOOL else kind
    read, write = reader(kind, target), writer(result, target)
    size, out_size = SIZES[kind], SIZES[result]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        begin, end = span(word(p, words.elements), tid, nt)
        output, x = address(p, b, words.output) + begin * out_size, address(p, b, words.x) + begin * size
        first, second = f32(real(p, words.first)), f32(real(p, words.second))
        for i in range(end - begin):
            write(output, i, function(read(x, i), first, second))

    return kernel


@generated
def trigonometric(target: Target, variant: str) -> Any:
    """Compute sines or cosines. Variant: ``sin_kind`` or ``cos_kind``."""
    words = TRIGONOMETRIC.place
    name, _, kind = variant.partition("_")
    phase = np.int32({"sin": 0, "cos": 1}[name])
    # For large arguments, by the C library.
    exact = {"sin": device(lambda x: math.sin(x)), "cos": device(lambda x: math.cos(x))}[name]
    read, write, size = reader(kind, target), writer(kind, target), SIZES[kind]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        begin, end = span(word(p, words.elements), tid, nt)
        while begin < end:
            output, x, count = (
                address(p, b, words.output) + begin * size,
                address(p, b, words.x) + begin * size,
                min(end - begin, _BLOCK),
            )
            large = 0
            for i in range(count):
                large |= np.int32(not mathematics.absolute(read(x, i)) <= mathematics.MAX_ANGLE)
            if large:
                for i in range(count):
                    write(output, i, exact(read(x, i)))
            else:
                for i in range(count):
                    write(output, i, mathematics.sine(read(x, i), phase))
            begin += count

    return kernel


@device
def _divide(a, b):  # type: ignore[no-untyped-def]
    """Return the quotient, rounded towards zero; division by zero gives 0, where a processor would trap."""
    safe = 1 if b == 0 or b == -1 else b
    quotient = abs(a) // abs(safe)
    quotient = -quotient if (a < 0) != (safe < 0) else quotient
    return 0 if b == 0 else -a if b == -1 else quotient


@device
def _remainder(a, b):  # type: ignore[no-untyped-def]
    """Return the remainder of truncating division; it has the sign of `a`."""
    return 0 if b == 0 else a - _divide(a, b) * b


@device
def _floor_divide(a, b):  # type: ignore[no-untyped-def]
    """Return the quotient, rounded down; 0 if `b` is 0."""
    quotient = _divide(a, b)
    return quotient - 1 if b != 0 and (a < 0) != (b < 0) and quotient * b != a else quotient


@device
def _modulo(a, b):  # type: ignore[no-untyped-def]
    """Return the remainder of `_floor_divide`; it has the sign of `b`."""
    return 0 if b == 0 else a - _floor_divide(a, b) * b


@device
def _integer_power(a, n):  # type: ignore[no-untyped-def]
    """Return a power by repeated squaring; with a negative exponent, 1 / a**-n rounded towards zero."""
    result = 1 if n >= 0 or a == 1 or (a == -1 and (n & 1) == 0) else -1 if a == -1 else 0
    while n > 0:
        result = result * a if n & 1 else result
        a *= a
        n >>= 1
    return result


@device
def _float_modulo(a, b):  # type: ignore[no-untyped-def]
    """Return the remainder that has the sign of `b`."""
    rest = mathematics.remainder(a, b)
    return rest + b if rest != _ZERO and (rest < _ZERO) != (b < _ZERO) else rest


def _wide(function: Callable) -> Callable:
    """Return a function that computes in 64 bits: numba promotes mixed signs to a float."""
    return device(lambda a, b: function(np.int64(a), np.int64(b)))


BINARY_F32: dict[str, Callable] = {
    "add": device(lambda a, b: a + b),
    "subtract": device(lambda a, b: a - b),
    "multiply": device(lambda a, b: a * b),
    "divide": device(lambda a, b: a / b),
    "floor_div": device(lambda a, b: mathematics.floor(a / b)),
    "mod": _float_modulo,
    "fmod": mathematics.remainder,
    "power": device(lambda a, b: a**b),
    "maximum": mathematics.maximum,
    "minimum": mathematics.minimum,
    "squared_difference": device(lambda a, b: (a - b) * (a - b)),
    "prelu": device(lambda x, slope: select(x < _ZERO, x * slope, x)),
}

BINARY_F64: dict[str, Callable] = {
    **{
        name: BINARY_F32[name]
        for name in ("add", "subtract", "multiply", "divide", "mod", "fmod", "power", "squared_difference")
    },
    "floor_div": device(lambda a, b: np.floor(a / b)),
    "maximum": device(lambda a, b: a if a > b or a != a else b),
    "minimum": device(lambda a, b: a if a < b or a != a else b),
}
_NONE, _UNIT_64, _BITS = np.uint64(0), np.uint64(1), np.uint64(64)
BINARY_INTEGER: dict[str, Callable] = {
    "add": device(lambda a, b: a + b),
    "subtract": device(lambda a, b: a - b),
    "multiply": device(lambda a, b: a * b),
    "divide": _wide(_divide),
    "floor_div": _wide(_floor_divide),
    "mod": _wide(_modulo),
    "fmod": _wide(_remainder),
    "power": _wide(_integer_power),
    "maximum": device(lambda a, b: max(a, b)),
    "minimum": device(lambda a, b: min(a, b)),
    "squared_difference": device(lambda a, b: (a - b) * (a - b)),
    "bitwise_and": device(lambda a, b: a & b),
    "bitwise_or": device(lambda a, b: a | b),
    "bitwise_xor": device(lambda a, b: a ^ b),
    "bit_shift_left": device(lambda a, b: _NONE if b >= _BITS else np.uint64(a) << np.uint64(b)),
    "bit_shift_right": device(lambda a, b: _NONE if b >= _BITS else np.uint64(a) >> np.uint64(b)),
}


@device
def _unsigned_power(a, n):  # type: ignore[no-untyped-def]
    """Return a power by repeated squaring, in 64 bits without a sign."""
    result = _UNIT_64
    while n > _NONE:
        result = result * a if n & _UNIT_64 else result
        a *= a
        n >>= _UNIT_64
    return result


_unsigned_quotient = device(lambda a, b: _NONE if b == _NONE else a // b)
_unsigned_rest = device(lambda a, b: _NONE if b == _NONE else a % b)
BINARY_U64: dict[str, Callable] = {
    **BINARY_INTEGER,
    **dict.fromkeys(("divide", "floor_div"), _unsigned_quotient),
    **dict.fromkeys(("mod", "fmod"), _unsigned_rest),
    "power": _unsigned_power,
}
"""Functions of 64-bit words without a sign; those that divide cannot compute in signed words."""
BINARY_TO_BOOL: dict[str, Callable] = {
    "equal": device(lambda a, b: np.uint8(a == b)),
    "not_equal": device(lambda a, b: np.uint8(a != b)),
    "greater": device(lambda a, b: np.uint8(a > b)),
    "greater_equal": device(lambda a, b: np.uint8(a >= b)),
    "less": device(lambda a, b: np.uint8(a < b)),
    "less_equal": device(lambda a, b: np.uint8(a <= b)),
    "and": device(lambda a, b: np.uint8((a != 0) & (b != 0))),
    "or": device(lambda a, b: np.uint8((a != 0) | (b != 0))),
    "xor": device(lambda a, b: np.uint8((a != 0) ^ (b != 0))),
}

BOTH_ADVANCE, LEFT_FIXED, RIGHT_FIXED = 0, 1, 2
"""Which operands advance in a row; a fixed one repeats one element."""


@device
def outer_offset(p, dims, rank, row, strides):  # type: ignore[no-untyped-def]
    """Return the offset of the `row`-th combination of outer indices; `dims` and `strides` are the words of two lists.

    Both lists begin with the innermost dimension; the index of the outermost one is `row` divided by all other sizes.
    """
    offset = 0
    for d in range(rank - 1):
        size = word(p, dims + d)
        quotient = row // size
        offset += (row - quotient * size) * word(p, strides + d)
        row = quotient
    return offset + row * word(p, strides + rank - 1) if rank else offset


@generated
def binary(target: Target, variant: str) -> Any:
    """Apply a function to pairs of elements, with broadcasting. Variant: ``function_kind``.

    Outer dimensions are listed innermost first; strides are in bytes. Results of f32 arithmetic are limited to [low,
    high].
    """
    words = BINARY.place
    name, _, kind = variant.rpartition("_")
    to_bool = name in BINARY_TO_BOOL
    of_kind = {"f64": BINARY_F64, "u64": BINARY_U64, **dict.fromkeys(FLOATS, BINARY_F32)}
    function = {**of_kind.get(kind, BINARY_INTEGER), **BINARY_TO_BOOL}[name]
    result = "bool" if to_bool else kind
    read, write = reader(kind, target), writer(result, target)
    size, out_size = SIZES[kind], SIZES[result]
    if kind in FLOATS and not to_bool:
        compute = device(lambda a, b, low, high: mathematics.clamp(function(a, b), low, high))
    else:
        compute = device(lambda a, b, low, high: function(a, b))

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        begin, end = span(word(p, words.elements), tid, nt)
        inner, mode, rank = word(p, words.inner), word(p, words.mode), word(p, words.rank)
        low, high = f32(real(p, words.low)), f32(real(p, words.high))
        row = begin // inner
        column = begin - row * inner
        while begin < end:
            count = min(inner - column, end - begin)
            output = address(p, b, words.output) + begin * out_size
            left = address(p, b, words.left) + outer_offset(p, words.dims, rank, row, words.dims + rank)
            right = address(p, b, words.right) + outer_offset(p, words.dims, rank, row, words.dims + 2 * rank)
            if mode == BOTH_ADVANCE:
                left, right = left + column * size, right + column * size
                for i in range(count):
                    write(output, i, compute(read(left, i), read(right, i), low, high))
            elif mode == RIGHT_FIXED:
                left, fixed = left + column * size, read(right, 0)
                for i in range(count):
                    write(output, i, compute(read(left, i), fixed, low, high))
            else:
                right, fixed = right + column * size, read(left, 0)
                for i in range(count):
                    write(output, i, compute(fixed, read(right, i), low, high))
            begin += count
            row += 1
            column = 0

    return kernel


@generated
def choose(target: Target, variant: str) -> Any:
    """Choose one of two elements by a third. Variant: bytes of an element.

    The steps are how far each operand advances per element of a row: 0 or 1.
    """
    words = CHOOSE.place
    kind = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}[int(variant)]
    read, write, size = reader(kind, target), writer(kind, target), int(variant)
    read_flag = base.read_u8

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        begin, end = span(word(p, words.elements), tid, nt)
        inner, rank = word(p, words.inner), word(p, words.rank)
        steps = words.dims + 4 * rank
        flag_step, yes_step, no_step = word(p, steps), word(p, steps + 1), word(p, steps + 2)
        row = begin // inner
        column = begin - row * inner
        while begin < end:
            count = min(inner - column, end - begin)
            output = address(p, b, words.output) + begin * size
            flag = (
                address(p, b, words.condition)
                + outer_offset(p, words.dims, rank, row, words.dims + rank)
                + column * flag_step
            )
            yes = (
                address(p, b, words.yes)
                + outer_offset(p, words.dims, rank, row, words.dims + 2 * rank)
                + column * yes_step * size
            )
            no = (
                address(p, b, words.no)
                + outer_offset(p, words.dims, rank, row, words.dims + 3 * rank)
                + column * no_step * size
            )
            if flag_step == 1 and yes_step == 1 and no_step == 1:
                for i in range(count):
                    taken, other = read(yes, i), read(no, i)
                    write(output, i, taken if read_flag(flag, i) != 0 else other)
            elif flag_step == 1 and yes_step == 1:
                other = read(no, 0)
                for i in range(count):
                    taken = read(yes, i)
                    write(output, i, taken if read_flag(flag, i) != 0 else other)
            elif flag_step == 1 and no_step == 1:
                taken = read(yes, 0)
                for i in range(count):
                    other = read(no, i)
                    write(output, i, taken if read_flag(flag, i) != 0 else other)
            else:
                for i in range(count):
                    taken, other = read(yes, i * yes_step), read(no, i * no_step)
                    write(output, i, taken if read_flag(flag, i * flag_step) != 0 else other)
            begin += count
            row += 1
            column = 0

    return kernel


_TWO_TO_31, _BELOW_TWO_TO_31 = f32(2.0**31), f32(2.0**31 - 128)
_MAX_I32 = np.int32(2**31 - 1)


@device
def _to_i32(x):  # type: ignore[no-untyped-def]
    """Convert a float to an integer, vectorisably: the value is first limited to the convertible range."""
    x = select(x == x, x, _ZERO)
    limited = mathematics.int_of_float(mathematics.clamp(x, -_TWO_TO_31, _BELOW_TWO_TO_31))
    return _MAX_I32 if x >= _TWO_TO_31 else limited


def _to_small(goal: str) -> Callable:
    """Return the conversion of a float to an integer of 8 or 16 bits, which saturates."""
    kind = getattr(np, ("uint" if goal[0] == "u" else "int") + goal[1:])
    low, high = f32(np.iinfo(kind).min), f32(np.iinfo(kind).max)
    return device(lambda x: kind(mathematics.int_of_float(mathematics.clamp(select(x == x, x, _ZERO), low, high))))


def _saturating(source: str, goal: str) -> Callable:
    """Return the conversion of a float to an integer towards zero; values out of range saturate, NaN becomes 0."""
    if source == "f32" and goal == "i32":
        return _to_i32
    if source == "f32" and SIZES[goal] < 4:
        return _to_small(goal)
    bits = 8 * SIZES[goal]
    signed = goal[0] == "i"
    name = f"llvm.fpto{'s' if signed else 'u'}i.sat.i{bits}.{source}"
    llvm_source, numba_source = {"f32": (base.F32, types.float32), "f64": (base.F64, types.float64)}[source]
    numba_goal = getattr(types, f"{'int' if signed else 'uint'}{bits}")

    @intrinsic
    def convert(typing_context: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.IntType(bits), [llvm_source])
            function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            return builder.call(function, args)

        return numba_goal(numba_source), emit

    return convert


def _converter(source: str, goal: str) -> Callable:
    """Return the conversion from one kind of number to another."""
    if goal == "bool":
        return device(lambda x: np.uint8(x != 0))
    if goal in ("f32", "f64"):
        kind = getattr(np, goal.replace("f", "float"))
        return device(lambda x: kind(x))
    if source in ("f32", "f64"):
        return _saturating(source, goal)
    kind = getattr(np, goal.replace("u", "uint") if goal[0] == "u" else goal.replace("i", "int"))
    return device(lambda x: kind(x))


@generated
def cast(target: Target, variant: str) -> Any:
    """Convert elements to another kind. Variant: ``source_goal``, two kinds."""
    words = CAST.place
    source, _, goal = variant.partition("_")
    convert = _converter(*("f32" if kind in FLOATS else kind for kind in (source, goal)))
    read, write = reader(source, target), writer(goal, target)
    in_size, out_size = SIZES[source], SIZES[goal]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        begin, end = span(word(p, words.elements), tid, nt)
        output, x = address(p, b, words.output) + begin * out_size, address(p, b, words.x) + begin * in_size
        for i in range(end - begin):
            write(output, i, convert(read(x, i)))

    return kernel
