"""Elementwise functions in numpy that need more than one expression. They are simple and correct, not fast."""

from __future__ import annotations

import math

import numpy as np

_erf_of_object = np.frompyfunc(math.erf, 1, 1)


def erf(x: np.ndarray) -> np.ndarray:
    """Compute the error function in float64."""
    return np.asarray(_erf_of_object(x)).astype(np.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Compute 1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def softplus(x: np.ndarray, beta: float = 1.0, threshold: float = -1.0) -> np.ndarray:
    """Compute log(1 + exp(beta x)) / beta; return x where beta x exceeds a non-negative threshold."""
    soft = np.logaddexp(0.0, beta * x) / beta
    return np.where(beta * x > threshold, x, soft) if threshold >= 0 else soft


def negative(x: np.ndarray) -> np.ndarray:
    """Compute 0 - x, which wraps for unsigned integers."""
    return np.zeros((), x.dtype) - x if x.dtype.kind == "u" else np.negative(x)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide; integers are truncated towards zero, and a division by 0 gives 0."""
    if a.dtype.kind == "f":
        return a / b
    # Rounding down differs from truncation by 1 if the quotient is negative and not an integer.
    floor = a // b
    inexact = (a - floor * b != 0) & ((a < 0) != (b < 0))
    return np.where(b == 0, 0, floor + inexact)


def floor_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide and round down."""
    return np.floor(a / b) if a.dtype.kind == "f" else a // b


def power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute a power: in integers if the base is integer and no exponent is negative, else in doubles."""
    if a.dtype.kind in "iu" and not (b < 0).any():
        return np.power(a, b)
    return np.power(a.astype(np.float64), b)


def is_infinite(x: np.ndarray, detect_negative: bool, detect_positive: bool) -> np.ndarray:
    """Return whether x is an infinity of a sign that is to be detected."""
    return (np.isneginf(x) & detect_negative) | (np.isposinf(x) & detect_positive)
