"""Functions of single floats, in single and double precision, by their names in variants of elementwise kernels."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from isthmus.engine.native.kernels import mathematics
from isthmus.engine.native.kernels.base import device
from isthmus.engine.native.kernels.integer_functions import ARITHMETIC
from isthmus.engine.native.kernels.mathematics import f32, select

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


def _library(*names: str) -> dict[str, Callable]:
    """Return functions of the C library."""
    return {name: _plain(getattr(math, name)) for name in names}


_RARE = _library("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")
UNARY_F32: dict[str, Callable] = {
    **_RARE,
    "abs": _plain(mathematics.absolute),
    "ceil": _plain(mathematics.ceil),
    "clamp": device(lambda x, a, b: mathematics.clamp(x, a, b)),
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
    "softplus": _softplus,
    "sqrt": _plain(mathematics.square_root),
    "square": device(lambda x, a, b: x * x),
    "tanh": _plain(mathematics.tanh),
}
"""Functions of an element and two parameters."""


@device
def _double_sigmoid(x):  # type: ignore[no-untyped-def]
    """Return the logistic function, without an exponential that overflows."""
    t = math.exp(-abs(x))
    return t / (1.0 + t) if x < 0.0 else 1.0 / (1.0 + t)


UNARY_F64: dict[str, Callable] = {
    **_RARE,
    **_library("cos", "erf", "exp", "log", "sin", "sqrt", "tanh"),
    "abs": device(lambda x, a, b: abs(x)),
    "ceil": device(lambda x, a, b: np.ceil(x)),
    "floor": device(lambda x, a, b: np.floor(x)),
    "neg": device(lambda x, a, b: -x),
    "reciprocal": device(lambda x, a, b: 1.0 / x),
    "round": device(lambda x, a, b: np.rint(x)),
    "rsqrt": device(lambda x, a, b: 1.0 / math.sqrt(x)),
    "sigmoid": _plain(_double_sigmoid),
    "sign": device(lambda x, a, b: 1.0 if x > 0.0 else -1.0 if x < 0.0 else x),
}
"""The same in double precision."""

_INFINITY = f32(math.inf)
UNARY_TO_BOOL: dict[str, Callable] = {
    "isnan": device(lambda x, a, b: np.uint8(x != x)),
    "isinf": device(lambda x, a, b: np.uint8(((x == -_INFINITY) & (a != _ZERO)) | ((x == _INFINITY) & (b != _ZERO)))),
}
"""Tests of floats; the parameters of isinf say whether it accepts the negative and the positive one."""


@device
def _float_modulo(a, b):  # type: ignore[no-untyped-def]
    """Return the remainder that has the sign of `b`."""
    rest = mathematics.remainder(a, b)
    return rest + b if rest != _ZERO and (rest < _ZERO) != (b < _ZERO) else rest


BINARY_F32: dict[str, Callable] = {
    **ARITHMETIC,
    "divide": device(lambda a, b: a / b),
    "floor_div": device(lambda a, b: mathematics.floor(a / b)),
    "mod": _float_modulo,
    "fmod": mathematics.remainder,
    "power": device(lambda a, b: a**b),
    "maximum": mathematics.maximum,
    "minimum": mathematics.minimum,
    "prelu": device(lambda x, slope: select(x < _ZERO, x * slope, x)),
}

BINARY_F64: dict[str, Callable] = {
    **{name: BINARY_F32[name] for name in (*ARITHMETIC, "divide", "mod", "fmod", "power")},
    "floor_div": device(lambda a, b: np.floor(a / b)),
    "maximum": device(lambda a, b: a if a > b or a != a else b),
    "minimum": device(lambda a, b: a if a < b or a != a else b),
}

_NONE = np.float64(0)
BINARY_STEPS: dict[str, Callable] = {
    **{name: BINARY_F64[name] for name in (*ARITHMETIC, "divide", "floor_div")},
    "maximum": device(lambda a, b: max(a, b)),
    "minimum": device(lambda a, b: min(a, b)),
    "power": device(lambda a, b: np.float64(f32(a) ** f32(b))),
    "prelu": device(lambda x, slope: x * slope if x < _NONE else x),
}
"""Functions of steps of fixed point, none of which is NaN, in double precision."""
