"""Elementwise kernels on 16-bit fixed point: stored numbers become reals, and results stored numbers, in registers.

Arithmetic is done in float64, so that results are the nearest steps. Other functions are those of the float32 kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import (
    device,
    generated,
    kernel,
    read_u8,
    read_u16,
    write_u8,
    write_u16,
)
from isthmus.engine.native.kernels.elementwise import BOTH_ADVANCE, RIGHT_FIXED, outer_offset, span
from isthmus.engine.native.kernels.integer_functions import BINARY_TO_BOOL
from isthmus.engine.native.kernels.mathematics import f32
from isthmus.engine.native.kernels.real_functions import UNARY_F32
from isthmus.engine.native.kernels.rounding import NEAREST
from isthmus.engine.native.signatures.fixed16_elementwise import BINARY, CONVERT, UNARY
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.target import Target

f64 = np.float64
_ZERO = f64(0)


@device
def centred(stored, flip, zero):  # type: ignore[no-untyped-def]
    """Return the signed number of steps that a stored 16-bit number is above its zero point, in float64."""
    return f64(np.int32(np.int16(stored ^ flip)) - zero)


def nearest_of(ties: str) -> Callable:
    """Return a function for the stored 16-bit number of steps above the zero point: rounded, limited; NaN is zero."""
    rounded = NEAREST[ties]

    @device
    def number(steps, zero, least, most, flip):  # type: ignore[no-untyped-def]
        value = rounded(steps if steps == steps else _ZERO) + zero
        return np.uint16(np.int32(min(max(value, least), most))) ^ flip

    return number


nearest = nearest_of("")
"""The function that rounds halves to even."""


@device
def _centred_byte(stored, flip, zero):  # type: ignore[no-untyped-def]
    """Return the signed number of steps that a stored byte is above its zero point, in float64."""
    return f64(np.int32(np.int8(stored ^ np.uint8(flip))) - zero)


def _nearest_byte_of(ties: str) -> Callable:
    """Return a function for the stored byte of steps above the zero point."""
    rounded = NEAREST[ties]

    @device
    def number(steps, zero, least, most, flip):  # type: ignore[no-untyped-def]
        return np.uint8(np.int32(min(max(rounded(steps) + zero, least), most))) ^ np.uint8(flip)

    return number


_BY_SIZE: dict[str, tuple[Callable, Callable, Callable, Callable[[str], Callable]]] = {
    "1": (read_u8, _centred_byte, write_u8, _nearest_byte_of),
    "2": (read_u16, centred, write_u16, nearest_of),
}
"""By the bytes of a stored number: how it is read, centred, written, and, by the rounding of halves, rounded."""


@generated
def convert(target: Target, variant: str) -> Any:
    """Multiply by a factor that depends on the sign, and round.

    Variant: the bytes of operands and of results, and how halves are rounded.
    """
    sizes, ties = without_ties(variant)
    source, _, goal = sizes.partition("_")
    (read, steps_of, _, _), (_, _, write, rounding) = _BY_SIZE[source], _BY_SIZE[goal]
    rounded = rounding(ties)
    size, out_size = int(source), int(goal)

    @kernel(CONVERT)
    def execute(
        output, x, elements, factor, factor_below, in_zero: np.int32, in_flip: np.uint16, out_zero: f64,
        out_flip: np.uint16, least: f64, most: f64, tid, nt,
    ):  # fmt: skip
        begin, end = span(elements, tid, nt)
        output, x = output + begin * out_size, x + begin * size
        for i in range(end - begin):
            steps = steps_of(read(x, i), in_flip, in_zero)
            write(
                output, i, rounded(steps * (factor_below if steps < _ZERO else factor), out_zero, least, most, out_flip)
            )

    return execute


@generated
def unary(target: Target, variant: str) -> Any:
    """Apply a function of float32 to each real. Variant: the function."""
    function = UNARY_F32[variant]

    @kernel(UNARY)
    def execute(
        output, x, elements, first: f32, second: f32, scale, inverse, in_zero: np.int32, in_flip: np.uint16,
        out_zero: f64, out_flip: np.uint16, least: f64, most: f64, tid, nt,
    ):  # fmt: skip
        begin, end = span(elements, tid, nt)
        output, x = output + begin * 2, x + begin * 2
        for i in range(end - begin):
            value = function(f32(centred(read_u16(x, i), in_flip, in_zero) * scale), first, second)
            write_u16(output, i, nearest(f64(value) * inverse, out_zero, least, most, out_flip))

    return execute


_ARITHMETIC: dict[str, Callable] = {
    "add": device(lambda a, b: a + b),
    "subtract": device(lambda a, b: a - b),
    "multiply": device(lambda a, b: a * b),
    "divide": device(lambda a, b: a / b),
    "maximum": device(lambda a, b: max(a, b)),
    "minimum": device(lambda a, b: min(a, b)),
    "squared_difference": device(lambda a, b: (a - b) * (a - b)),
    "floor_div": device(lambda a, b: np.floor(a / b)),
    "power": device(lambda a, b: f64(f32(a) ** f32(b))),
    "prelu": device(lambda x, slope: x * slope if x < _ZERO else x),
}


@generated
def binary(target: Target, variant: str) -> Any:
    """Apply a function to pairs of numbers, with broadcasting. Variant: the function, and how halves are rounded.

    Outer dimensions are listed innermost first; strides are in bytes.
    """
    name, ties = without_ties(variant)
    to_bool = name in BINARY_TO_BOOL
    function = BINARY_TO_BOOL[name] if to_bool else _ARITHMETIC[name]
    rounded = nearest_of(ties)
    out_size = 1 if to_bool else 2
    write = write_u8 if to_bool else write_u16
    if to_bool:
        result_of = device(lambda value, factor, zero, least, most, flip: value)
    else:
        result_of = device(
            lambda value, factor, zero, least, most, flip: rounded(value * factor, zero, least, most, flip)
        )

    @kernel(BINARY)
    def execute(
        output, left, right, elements, inner, mode, left_factor, right_factor, factor, left_zero: np.int32,
        left_flip: np.uint16, right_zero: np.int32, right_flip: np.uint16, out_zero: f64, out_flip: np.uint16,
        least: f64, most: f64, rank, dims, left_strides, right_strides, tid, nt,
    ):  # fmt: skip
        begin, end = span(elements, tid, nt)
        row = begin // inner
        column = begin - row * inner
        while begin < end:
            count = min(inner - column, end - begin)
            goal = output + begin * out_size
            left_row = left + outer_offset(dims, rank, row, left_strides)
            right_row = right + outer_offset(dims, rank, row, right_strides)
            if mode == BOTH_ADVANCE:
                left_row, right_row = left_row + column * 2, right_row + column * 2
                for i in range(count):
                    one = centred(read_u16(left_row, i), left_flip, left_zero) * left_factor
                    other = centred(read_u16(right_row, i), right_flip, right_zero) * right_factor
                    write(goal, i, result_of(function(one, other), factor, out_zero, least, most, out_flip))
            elif mode == RIGHT_FIXED:
                left_row = left_row + column * 2
                other = centred(read_u16(right_row, 0), right_flip, right_zero) * right_factor
                for i in range(count):
                    one = centred(read_u16(left_row, i), left_flip, left_zero) * left_factor
                    write(goal, i, result_of(function(one, other), factor, out_zero, least, most, out_flip))
            else:
                right_row = right_row + column * 2
                one = centred(read_u16(left_row, 0), left_flip, left_zero) * left_factor
                for i in range(count):
                    other = centred(read_u16(right_row, i), right_flip, right_zero) * right_factor
                    write(goal, i, result_of(function(one, other), factor, out_zero, least, most, out_flip))
            begin += count
            row += 1
            column = 0

    return execute
