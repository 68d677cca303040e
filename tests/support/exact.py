"""Exact arithmetic on fixed-point tensors: integers and fractions, rounded once at the end."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from isthmus.graph import Quantization


def fraction(scale: float) -> Fraction:
    """A scale as stored in a model: the float32 nearest to it."""
    return Fraction(float(np.float32(scale)))


def round_half_even(numerators: np.ndarray, factor: Fraction) -> np.ndarray:
    """Integers times a fraction, rounded half to even."""
    top, bottom = numerators.astype(object) * factor.numerator, factor.denominator
    whole, rest = top // bottom, top % bottom
    up = (2 * rest > bottom) | ((2 * rest == bottom) & (whole % 2 == 1))
    return np.asarray(whole + up, object)


def stored_values(
    steps: np.ndarray, output: Quantization, kind: Any, clamp: tuple[float, float] | None = None
) -> np.ndarray:
    """Numbers of steps as stored values of a quantization: plus its zero point, limited."""
    info, zero = np.iinfo(kind), output.zero_point
    low, high = int(info.min), int(info.max)
    if clamp is not None:
        low, high = (int(np.clip(np.rint(c / output.scale) + zero, low, high)) for c in clamp)
    return np.clip(steps + zero, low, high).astype(np.int64).astype(kind)
