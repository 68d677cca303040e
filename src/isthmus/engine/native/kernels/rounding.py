"""Rounding of floats to integers, by the name of what becomes of exact halves (see `signatures.rounding`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isthmus.engine.native.kernels.base import device
from isthmus.engine.native.signatures.rounding import AWAY, TOWARDS, UP

_HALF = np.float32(0.5)
_ZERO = np.float32(0)

# The rest is exact. Twice the rest leads from one neighbour of a half to the other.


@device
def _even(value):  # type: ignore[no-untyped-def]
    return np.rint(value)


@device
def _up(value):  # type: ignore[no-untyped-def]
    whole = np.rint(value)
    rest = value - whole
    return whole + rest + rest if rest == _HALF else whole


@device
def _away(value):  # type: ignore[no-untyped-def]
    whole = np.rint(value)
    rest = value - whole
    return whole + rest + rest if abs(rest) == _HALF and (rest > _ZERO) == (value > _ZERO) else whole


@device
def _towards(value):  # type: ignore[no-untyped-def]
    whole = np.rint(value)
    rest = value - whole
    return whole + rest + rest if abs(rest) == _HALF and (rest > _ZERO) != (value > _ZERO) else whole


NEAREST: dict[str, Callable] = {"": _even, UP: _up, AWAY: _away, TOWARDS: _towards}
