"""Storages: how kernels read the elements of a type as numbers to compute with, and write results as elements.

Floats of 16 bits are float32 in registers, other plain types are themselves. Numbers of fixed point are steps above a
zero point, in float64, so that a result can be the nearest step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isthmus.engine.native.kernels.base import accessor, device
from isthmus.engine.native.signatures.elementwise import BYTE_STEPS, SIZES, STEPS
from isthmus.engine.native.signatures.rounding import AWAY, TOWARDS, UP
from isthmus.engine.native.target import Target

f64 = np.float64
_ZERO = f64(0)
_HALF = np.float32(0.5)

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
    return whole + rest + rest if abs(rest) == _HALF and (rest > np.float32(0)) == (value > np.float32(0)) else whole


@device
def _towards(value):  # type: ignore[no-untyped-def]
    whole = np.rint(value)
    rest = value - whole
    return whole + rest + rest if abs(rest) == _HALF and (rest > np.float32(0)) != (value > np.float32(0)) else whole


NEAREST: dict[str, Callable] = {"": _even, UP: _up, AWAY: _away, TOWARDS: _towards}
"""The rounding of floats to integers, by what becomes of exact halves (see `signatures.rounding`)."""

# By the name of a type of stored integers: its numpy type, how it is read and written, and its size in bytes.
STORED = {"s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16, "s32": np.int32}
READ = {name: accessor("read", name.replace("s", "i")) for name in STORED}
WRITE = {name: accessor("write", name.replace("s", "i")) for name in STORED}
SIZE = {name: np.dtype(stored).itemsize for name, stored in STORED.items()}


def reader(kind: str, target: Target | None = None) -> Callable:
    """Return the streaming read of a kind; only floats of 16 bits need the target."""
    return accessor("read", kind, target)


def writer(kind: str, target: Target | None = None) -> Callable:
    """Return the streaming write of a kind; only floats of 16 bits need the target."""
    return accessor("write", kind, target)


def _centred_of(size: int) -> Callable:
    """Return the function for the steps that a stored number of this many bytes is above its zero point, in float64."""
    signed, unsigned = STORED[f"s{8 * size}"], STORED[f"u{8 * size}"]
    return device(lambda stored, flip, zero: f64(np.int32(signed(stored ^ unsigned(flip))) - zero))


centred = _centred_of(2)
"""The signed number of steps that a stored 16-bit number is above its zero point, in float64."""


def nearest_of(ties: str, size: int = 2) -> Callable:
    """Return the function for the stored number, of this many bytes, of steps above the zero point: rounded, limited.

    Of 16 bits, NaN is zero; bytes are only converted, and never NaN.
    """
    rounded, unsigned, checked = NEAREST[ties], STORED[f"u{8 * size}"], size == 2

    @device
    def number(steps, zero, least, most, flip):
        value = rounded(steps if not checked or steps == steps else _ZERO) + zero
        return unsigned(np.int32(min(max(value, least), most))) ^ unsigned(flip)

    return number


nearest = nearest_of("")
"""The function that rounds halves to even."""


@device
def of_operand(zero, flip):
    """Return the words of an operand's storage."""
    return np.uint16(flip), np.int32(zero)


@device
def of_result(zero, flip, least, most):
    """Return the words of a result's storage."""
    return np.uint16(flip), f64(zero), f64(least), f64(most)


@dataclass(frozen=True)
class ElementStorage:
    """The storage of a type.

    Parameters
    ----------
    size
        The bytes of an element.
    load
        ``(place, index, words)`` returns an element as a number; only fixed point uses the words.
    store
        ``(place, index, number, words)`` writes a result.
    """

    size: int
    load: Callable
    store: Callable

    @staticmethod
    def of(kind: str, target: Target | None = None, ties: str = "") -> ElementStorage:
        """Return the storage of a kind; `ties` says how fixed point rounds halves."""
        if kind in (BYTE_STEPS, STEPS):
            return ElementStorage._of_steps(1 if kind == BYTE_STEPS else 2, ties)
        read, write = reader(kind, target), writer(kind, target)
        return ElementStorage(
            SIZES[kind],
            device(lambda place, i, _: read(place, i)),
            device(lambda place, i, number, _: write(place, i, number)),
        )

    @staticmethod
    def _of_steps(size: int, ties: str) -> ElementStorage:
        """Return the storage of fixed point of this many bytes."""
        read, write, steps_of = READ[f"u{8 * size}"], WRITE[f"u{8 * size}"], _centred_of(size)
        rounded = nearest_of(ties, size)
        return ElementStorage(
            size,
            device(lambda place, i, words: steps_of(read(place, i), words[0], words[1])),
            device(
                lambda place, i, steps, words: write(place, i, rounded(steps, words[1], words[2], words[3], words[0]))
            ),
        )
