"""Kernels on fixed-point tensors that combine many elements into one: means, sums, softmax.

Sums of bytes are kept in 32 bits. Sums of 16-bit numbers are kept in 64 bits, scaled in float64, which holds them
exactly, and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels import base
from isthmus.engine.native.kernels.base import device, device_reassociated, generated, kernel, share
from isthmus.engine.native.kernels.mathematics import exp_of_negative, f32
from isthmus.engine.native.kernels.storage import NEAREST, READ, SIZE, STORED, WRITE, f64
from isthmus.engine.native.signatures.quantized_reduction import (
    ADD_BYTES,
    MEAN,
    MEAN_OF_SUMS,
    SOFTMAX,
)
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.target import Target


def kinds_of(variant: str) -> tuple[str, str, str]:
    """Return the stored types of operand and result that a variant names, and how it rounds halves.

    >>> kinds_of("s16_u16_up"), kinds_of("s8")
    (('s16', 'u16', 'up'), ('s8', 's8', ''))
    """
    kinds, ties = without_ties(variant)
    source, *others = kinds.split("_")
    return source, others[0] if others else source, ties


def wide_number(goal: str, ties: str = "") -> Any:
    """Return a function for the stored 16-bit number of steps above the zero point: rounded, limited; NaN is zero."""
    stored, nearest = STORED[goal], NEAREST[ties]

    @device
    def number(steps, zero, least, most):
        value = nearest(steps if steps == steps else f64(0)) + f64(zero)
        return stored(np.int32(min(max(value, f64(least)), f64(most))))

    return number


# How sums are loaded and stored, and their type, by the size of an element.
_SUMS = {1: (base.load_i32, base.store_i32, np.int32), 2: (base.load_i64, base.store_i64, np.int64)}


def _adder(kind: str) -> Any:
    """Return the function that adds the elements `begin` to `end` of a pixel to sums."""
    read, (load, store, number) = READ[kind], _SUMS[SIZE[kind]]

    @device
    def add(sums, pixel, begin, end):
        for i in range(begin, end):
            store(sums, i, load(sums, i) + number(read(pixel, i)))

    return add


def _writer(goal: str, ties: str) -> Any:
    """Return the function that makes means or sums of sums, as the signature says, and writes them."""
    write, stored, nearest, number = WRITE[goal], STORED[goal], NEAREST[ties], wide_number(goal, ties)

    @device
    def write_bytes(result, sums, begin, end, scale, divisor, offset, bias, zero, least, most):
        scale, offset, bias = f32(scale), np.int32(offset), f32(bias)
        zero, least, most = np.int32(zero), f32(least - zero), f32(most - zero)
        for i in range(begin, end):
            value = f32(base.load_i32(sums, i) - offset) * scale + bias
            write(result, i, stored(np.int32(nearest(min(max(value, least), most))) + zero))

    @device
    def write_wide(result, sums, begin, end, scale, divisor, offset, bias, zero, least, most):
        for i in range(begin, end):
            steps = f64(base.load_i64(sums, i) - offset) * scale / f64(divisor)
            write(result, i, number(steps, zero, least, most))

    return write_bytes if SIZE[goal] == 1 else write_wide


@generated
def mean(target: Target, variant: str) -> Any:
    """Add up two of five axes, and make means or sums of that. Variant: see `kinds_of`."""
    source, goal, ties = kinds_of(variant)
    read, size, add, write_means = READ[source], SIZE[source], _adder(source), _writer(goal, ties)
    load, store, number = _SUMS[size]

    @kernel(MEAN)
    def execute(
        x, y, outer_count, count, kept, inner_count, inner, work, scale, divisor, offset, bias, zero, least, most, tid,
        nt,
    ):  # fmt: skip
        sums = work + tid * inner * 4 * size
        low, high = share(outer_count * kept, tid, nt)
        for row in range(low, high):
            base.fill_bytes(sums, 0, inner * 4 * size)
            for k in range(count):
                place = x + ((row // kept * count + k) * kept + row % kept) * inner_count * inner * size
                if inner == 1:
                    # Whole numbers may be added up in any order.
                    total = np.int64(0)
                    for i in range(inner_count):
                        total += np.int64(read(place, i))
                    store(sums, 0, load(sums, 0) + number(total))
                else:
                    for r in range(inner_count):
                        add(sums, place + r * inner * size, 0, inner)
            write_means(y + row * inner * size, sums, 0, inner, scale, divisor, offset, bias, zero, least, most)

    return execute


@generated
def add_bytes(target: Target, variant: str) -> Any:
    """Add up pixels of stored values in 32 bits, tile by tile. Variant: the type of stored elements."""
    add = _adder(variant)

    @kernel(ADD_BYTES)
    def execute(sums, x, pixels, channels, goes_on, tid, nt):
        first, last = share(channels, tid, nt)
        if not goes_on:
            for i in range(first, last):
                base.store_i32(sums, i, np.int32(0))
        for r in range(pixels):
            add(sums, x + r * channels, first, last)

    return execute


@generated
def mean_of_sums(target: Target, variant: str) -> Any:
    """Make means of the sums of all tiles as `mean` does. Variant: the stored type and the rounding of halves."""
    _, goal, ties = kinds_of(variant)
    write_means = _writer(goal, ties)

    @kernel(MEAN_OF_SUMS)
    def execute(sums, y, channels, scale, divisor, offset, bias, zero, least, most, tid, nt):
        first, last = share(channels, tid, nt)
        write_means(y, sums, first, last, scale, divisor, offset, bias, zero, least, most)

    return execute


@device
def _below(top, value):  # type: ignore[no-untyped-def]
    """Return how far a value is below the largest one, `top`: a valid index of 256 entries even if another thread
    writes the data.
    """
    return np.int64(top - np.int32(value)) & 255


def _softmax_by_table(kind: str, integers: bool) -> tuple[Any, Any]:
    """Return the functions that add up the exponentials of a row, and that write its results; those are in a table.

    In floats, quotients are rounded to even; in integers, half up.
    """
    read, write, stored, nothing = READ[kind], WRITE[kind], STORED[kind], np.int64(0) if integers else f32(0)
    power_of = device(lambda table, i: np.int64(base.load_i32(table, i))) if integers else base.load_f32

    @device_reassociated
    def add_up(source, length, top, table, scale):
        total = nothing
        for i in range(length):
            total += power_of(table, _below(top, read(source, i)))
        return total

    @device
    def put_floats(result, source, length, top, table, total, inverse, zero, least, most):
        factor, zero, least, most = f32(inverse) / total, f32(zero), f32(least), f32(most)
        for i in range(length):
            value = np.rint(power_of(table, _below(top, read(source, i))) * factor) + zero
            write(result, i, stored(np.int32(min(max(value, least), most))))

    @device
    def put_integers(result, source, length, top, table, total, inverse, zero, least, most):
        factor = np.int64(inverse)
        for i in range(length):
            value = (power_of(table, _below(top, read(source, i))) * factor + (total >> 1)) // total + zero
            write(result, i, stored(min(max(value, least), most)))

    return add_up, put_integers if integers else put_floats


def _softmax_of_wide(source: str, goal: str) -> tuple[Any, Any]:
    """Return the same functions for 16 bits: exponentials are computed in float32, and added up in float64."""
    read, write, number = READ[source], WRITE[goal], wide_number(goal)

    @device
    def add_up(source, length, top, powers, scale):
        for i in range(length):
            base.store_f32(powers, i, exp_of_negative(f32(f64(np.int32(read(source, i)) - top) * scale)))
        total = f64(0)
        for i in range(length):
            total += f64(base.load_f32(powers, i))
        return total

    @device
    def put(result, source, length, top, powers, total, inverse, zero, least, most):
        factor = inverse / total
        for i in range(length):
            write(result, i, number(f64(base.load_f32(powers, i)) * factor, zero, least, most))

    return add_up, put


@generated
def softmax(target: Target, variant: str) -> Any:
    """Compute softmax over the last axis, with exponentials of the distance from the largest stored value.

    Variant: the stored types; for bytes, ``_integers`` after them if exponentials and quotients are integers.
    """
    kind, goal, _ = kinds_of(variant)
    if SIZE[kind] == 2:
        add_up, put = _softmax_of_wide(kind, goal)
    else:
        add_up, put = _softmax_by_table(kind, variant.endswith("_integers"))
    read, size = READ[kind], SIZE[kind]

    @kernel(SOFTMAX)
    def execute(x, y, rows, length, table, work, scale, inverse, zero, least, most, tid, nt):
        powers = table if size == 1 else work + tid * length * 4
        low, high = share(rows, tid, nt)
        for row in range(low, high):
            source, result = x + row * length * size, y + row * length * size
            top = np.int32(read(source, 0))
            for i in range(length):
                top = max(top, np.int32(read(source, i)))
            total = add_up(source, length, top, powers, scale)
            put(result, source, length, top, powers, total, inverse, zero, least, most)

    return execute
