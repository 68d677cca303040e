"""Functions of single integers, and comparisons of any numbers, by their names in variants of elementwise kernels.

Nothing traps: a division by zero gives 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isthmus.engine.native.kernels.base import device

UNARY_INTEGER: dict[str, Callable] = {
    "abs": device(lambda x, a, b: abs(x)),
    "neg": device(lambda x, a, b: -x),
    "sign": device(lambda x, a, b: np.int64(x > 0) - np.int64(x < 0)),
    "not": device(lambda x, a, b: np.uint8(x == 0)),
    "bitwise_not": device(lambda x, a, b: ~x),
}


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


def _wide(function: Callable) -> Callable:
    """Return a function that computes in 64 bits: numba promotes mixed signs to a float."""
    return device(lambda a, b: function(np.int64(a), np.int64(b)))


_NONE, _UNIT_64, _BITS = np.uint64(0), np.uint64(1), np.uint64(64)
ARITHMETIC: dict[str, Callable] = {
    "add": device(lambda a, b: a + b),
    "subtract": device(lambda a, b: a - b),
    "multiply": device(lambda a, b: a * b),
    "squared_difference": device(lambda a, b: (a - b) * (a - b)),
}
"""Functions of any two numbers, floats too."""
BINARY_INTEGER: dict[str, Callable] = {
    **ARITHMETIC,
    "divide": _wide(_divide),
    "floor_div": _wide(_floor_divide),
    "mod": _wide(_modulo),
    "fmod": _wide(_remainder),
    "power": _wide(_integer_power),
    "maximum": device(lambda a, b: max(a, b)),
    "minimum": device(lambda a, b: min(a, b)),
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
