"""Functions of elements in numpy, where one expression does not say them: right and plain, not fast."""

from __future__ import annotations

import math

import numpy as np

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


def negative(x: np.ndarray) -> np.ndarray:
    """0 - x, which of unsigned integers wraps."""
    return np.zeros((), x.dtype) - x if x.dtype.kind == "u" else np.negative(x)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotient; of integers, truncated towards zero, and 0 where the divisor is 0."""
    if a.dtype.kind == "f":
        return a / b
    floor = a // b
    inexact = (a - floor * b != 0) & ((a < 0) != (b < 0))
    return np.where(b == 0, 0, floor + inexact)


def floor_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotient, rounded down."""
    return np.floor(a / b) if a.dtype.kind == "f" else a // b


def power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Power; of integers an integer, unless an exponent is negative."""
    if a.dtype.kind in "iu" and not (b < 0).any():
        return np.power(a, b)
    return np.power(a.astype(np.float64), b)


def is_infinite(x: np.ndarray, detect_negative: bool, detect_positive: bool) -> np.ndarray:
    """Whether x is an infinity of a sign that is looked for."""
    return (np.isneginf(x) & detect_negative) | (np.isposinf(x) & detect_positive)
