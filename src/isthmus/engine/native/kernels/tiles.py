"""Kernels for steps that are computed tile by tile: advancing cursors, and sums that continue."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.control import WORDS
from isthmus.engine.native.kernels.base import (
    device,
    device_reassociated,
    generated,
    kernel,
    load_f32,
    load_i32,
    load_i64,
    read_f32,
    share,
    store_f32,
    store_i32,
    store_i64,
    word,
    write_f32,
)
from isthmus.engine.native.kernels.mathematics import f32
from isthmus.engine.native.kernels.quantized_elementwise import READ, STORED, WRITE
from isthmus.engine.native.kernels.rounding import NEAREST
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.signatures.tiles import ADD_BYTES, ADD_ROWS, MEAN_OF_SUMS, REPEAT, VARY
from isthmus.engine.native.target import Target

_BLOCK = 128
"""The number of channels that one thread adds up together, as in the kernel of whole means."""


@device
def point_cursors(bases, first, cursors, pools, strides, iteration):
    """Point cursors from number `first` on at their positions in an iteration."""
    for i in range(cursors):
        store_i64(bases, first + i, load_i64(bases, word(pools, i)) + iteration * word(strides, i))


@generated
def repeat(target: Target, variant: str) -> Any:
    """Point all cursors at their positions in an iteration, whose number comes as `tid`. The executor repeats."""

    @kernel(REPEAT)
    def execute(first_cursor, cursors, pools, strides, bases, tid):
        point_cursors(bases, first_cursor, cursors, pools, strides, tid)

    return execute


@generated
def vary(target: Target, variant: str) -> Any:
    """Write words of other instructions. The address of the program's words is in the header of the base table."""

    @kernel(VARY)
    def execute(targets, firsts, masks, values, bases):
        program, value = load_i64(bases, WORDS), 0
        for i in range(targets):
            index, mask = word(firsts, i), word(masks, i)
            while mask > 0:
                if mask & 1:
                    store_i64(program, index, word(values, value))
                    value += 1
                mask >>= 1
                index += 1

    return execute


@generated
def add_rows(target: Target, variant: str) -> Any:
    """Add the pixels of a tile to the sums of each channel, in the order of the mean of a whole image.

    The same order gives the same bits. If `goes_on` is set, the sums of earlier tiles are there already. The sums are
    then multiplied by the factor: 1, or, in the last tile, one that makes them means.
    """
    combine = device_reassociated(lambda a, b: a + b)

    @kernel(ADD_ROWS)
    def execute(sums, x, pixels, channels, goes_on, factor: f32, tid, nt):
        first, last = share((channels + _BLOCK - 1) // _BLOCK, tid, nt)
        for piece in range(first, last):
            column = piece * _BLOCK
            count = min(_BLOCK, channels - column)
            y = sums + column * 4
            source = x + column * 4
            if not goes_on:
                for i in range(count):
                    write_f32(y, i, f32(0))
            whole = pixels - pixels % 4
            step = channels * 4
            r = 0
            while r < whole:
                x0 = source + r * step
                x1, x2, x3 = x0 + step, x0 + 2 * step, x0 + 3 * step
                for i in range(count):
                    four = combine(combine(read_f32(x0, i), read_f32(x1, i)), combine(read_f32(x2, i), read_f32(x3, i)))
                    store_f32(y, i, combine(load_f32(y, i), four))
                r += 4
            while r < pixels:
                x0 = source + r * step
                for i in range(count):
                    store_f32(y, i, combine(load_f32(y, i), read_f32(x0, i)))
                r += 1
            for i in range(count):
                store_f32(y, i, load_f32(y, i) * factor)

    return execute


@generated
def add_bytes(target: Target, variant: str) -> Any:
    """Add up pixels of stored values in 32 bits. Variant: the type of stored elements."""
    read = READ[variant]

    @kernel(ADD_BYTES)
    def execute(sums, x, pixels, channels, goes_on, tid, nt):
        first, last = share(channels, tid, nt)
        if not goes_on:
            for i in range(first, last):
                store_i32(sums, i, np.int32(0))
        for r in range(pixels):
            source = x + r * channels
            for i in range(first, last):
                store_i32(sums, i, load_i32(sums, i) + np.int32(read(source, i)))

    return execute


@generated
def mean_of_sums(target: Target, variant: str) -> Any:
    """Compute means of sums as `quantized_reduction.mean` does. Variant: the stored type and the rounding of halves."""
    kind, ties = without_ties(variant)
    write, stored, nearest = WRITE[kind], STORED[kind], NEAREST[ties]

    @kernel(MEAN_OF_SUMS)
    def execute(sums, y, channels, scale: np.float32, offset: np.int32, bias: np.float32, zero, least, most, tid, nt):
        zero, least, most = np.int32(zero), np.float32(least - zero), np.float32(most - zero)
        first, last = share(channels, tid, nt)
        for i in range(first, last):
            value = np.float32(load_i32(sums, i) - offset) * scale + bias
            write(y, i, stored(np.int32(nearest(min(max(value, least), most))) + zero))

    return execute
