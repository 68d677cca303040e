"""Reference computations element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isthmus.graph.evaluation import Computation, Values
from isthmus.graph.ops.elementwise import BINARY_OPERATIONS, NEURON_OPERATIONS, UNARY_OPERATIONS
from isthmus.graph.tensor import Tensor

Function = Callable[..., np.ndarray]

_erf_of_object = np.frompyfunc(math.erf, 1, 1)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, in float64."""
    return np.asarray(_erf_of_object(x)).astype(np.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def softplus(x: np.ndarray, beta: float = 1.0, threshold: float = -1.0) -> np.ndarray:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above a threshold that is not negative."""
    soft = np.logaddexp(0.0, beta * x) / beta
    return np.where(beta * x > threshold, x, soft) if threshold >= 0 else soft


# Computed in float64, so that the result is the float32 nearest to the true one.
_REAL_FUNCTIONS: dict[str, Function] = {
    "ElementWiseAsin": np.arcsin,
    "ElementWiseAtan": np.arctan,
    "ElementWiseCeil": np.ceil,
    "ElementWiseCos": np.cos,
    "ElementWiseExp": np.exp,
    "ElementWiseFloor": np.floor,
    "ElementWiseLog": np.log,
    "ElementWiseRound": np.rint,
    "ElementWiseRsqrt": lambda x: 1.0 / np.sqrt(x),
    "ElementWiseSin": np.sin,
    "ElementWiseSquareRoot": np.sqrt,
    "ElementWiseSoftplus": softplus,
    "Reciprocal": lambda x: 1.0 / x,
    "Elu": lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "Gelu": lambda x: 0.5 * x * (1.0 + erf(x / math.sqrt(2.0))),
    "HardSigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0.0, 1.0),
    "HardSwish": lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0,
    "ReluMinMax": lambda x, min_value, max_value: np.clip(x, np.float32(min_value), np.float32(max_value)),
    "Sigmoid": sigmoid,
    "Tanh": np.tanh,
    "Erf": erf,
    "Tan": np.tan,
    "Acos": np.arccos,
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
    "Silu": lambda x: x * sigmoid(x),
}

# Computed in the type of the input.
_PLAIN_FUNCTIONS: dict[str, Function] = {
    "ElementWiseAbs": np.abs,
    "ElementWiseNeg": lambda x: np.zeros((), x.dtype) - x if x.dtype.kind == "u" else np.negative(x),
    "ElementWiseNot": np.logical_not,
    "ElementWiseSign": np.sign,
    "Relu": lambda x: np.maximum(x, 0),
    "Relu1": lambda x: np.clip(x, -1, 1) if x.dtype.kind != "u" else np.minimum(x, 1),
    "Relu6": lambda x: np.clip(x, 0, 6),
    "IsNaN": np.isnan,
    "IsInf": lambda x, detect_negative, detect_positive: (
        (np.isneginf(x) & detect_negative) | (np.isposinf(x) & detect_positive)
    ),
}


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotient; of integers, truncated towards zero, and 0 where the divisor is 0."""
    if a.dtype.kind == "f":
        return a / b
    floor = a // b
    inexact = (a - floor * b != 0) & ((a < 0) != (b < 0))
    return np.where(b == 0, 0, floor + inexact)


def _floor_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.floor(a / b) if a.dtype.kind == "f" else a // b


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "iu" and not (b < 0).any():
        return np.power(a, b)
    return np.power(a.astype(np.float64), b)


_BINARY_FUNCTIONS: dict[str, Function] = {
    "ElementWiseAdd": np.add,
    "ElementWiseAnd": np.logical_and,
    "ElementWiseDivide": _divide,
    "ElementWiseEqual": np.equal,
    "ElementWiseFloorDiv": _floor_divide,
    "ElementWiseFmod": np.fmod,
    "ElementWiseGreater": np.greater,
    "ElementWiseGreaterEqual": np.greater_equal,
    "ElementWiseLess": np.less,
    "ElementWiseLessEqual": np.less_equal,
    "ElementWiseMaximum": np.maximum,
    "ElementWiseMinimum": np.minimum,
    "ElementWiseMod": np.mod,
    "ElementWiseMultiply": np.multiply,
    "ElementWiseNotEqual": np.not_equal,
    "ElementWiseOr": np.logical_or,
    "ElementWisePower": _power,
    "ElementWiseSquaredDifference": lambda a, b: np.square(a - b),
    "ElementWiseSubtract": np.subtract,
    "ElementWiseXor": np.logical_xor,
}

_NEURON_PARAMS = {
    "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "ReluMinMax": ("min_value", "max_value"),
    "ElementWiseSoftplus": ("beta", "threshold"),
}


def _unary(name: str) -> Computation:
    if name in _PLAIN_FUNCTIONS:
        return lambda values, params, outputs: _PLAIN_FUNCTIONS[name](values[0], **params)
    return lambda values, params, outputs: _REAL_FUNCTIONS[name](values[0].astype(np.float64), **params)


def _binary(name: str) -> Computation:
    return lambda values, params, outputs: _BINARY_FUNCTIONS[name](values[0], values[1])


def _numbered(names: Sequence[str], values: Values, params: dict[str, Any], outputs: Sequence[Tensor]) -> Any:
    name = names[params["operation"]]
    return COMPUTATIONS[name](values, {p: params[p] for p in _NEURON_PARAMS.get(name, ())}, outputs)


def _prelu(values: Values, params: dict[str, Any], outputs: Sequence[Tensor]) -> np.ndarray:
    x, slope = values
    return np.where(x < 0, x * slope, x)


def _same(values: Values, params: dict[str, Any], outputs: Sequence[Tensor]) -> np.ndarray:
    return values[0]


COMPUTATIONS: dict[str, Computation] = {
    **{name: _unary(name) for name in (*_REAL_FUNCTIONS, *_PLAIN_FUNCTIONS)},
    **{name: _binary(name) for name in _BINARY_FUNCTIONS},
    "ElementWiseUnary": lambda v, p, o: _numbered(UNARY_OPERATIONS, v, p, o),
    "ElementWiseBinary": lambda v, p, o: _numbered(BINARY_OPERATIONS, v, p, o),
    "ElementWiseNeuron": lambda v, p, o: _numbered(NEURON_OPERATIONS, v, p, o),
    "ElementWiseSelect": lambda v, p, o: np.asarray(np.where(v[0], v[1], v[2])),
    "Prelu": _prelu,
    "Convert": _same,
    "Quantize": _same,
    "Dequantize": _same,
}
