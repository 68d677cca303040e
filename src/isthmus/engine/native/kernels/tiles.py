"""Kernels for steps that are computed tile by tile: advancing cursors, and sums that continue."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.control import WORDS
from isthmus.engine.native.kernels.base import (
    address,
    device,
    device_reassociated,
    generated,
    load_f32,
    load_i32,
    load_i64,
    read_f32,
    real,
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


@generated
def repeat(target: Target, variant: str) -> Any:
    """Point all cursors at their positions in iteration `iteration`. The executor does the repeating."""
    words = REPEAT.place

    @device
    def kernel(p, b, iteration, times):  # type: ignore[no-untyped-def]
        first, cursors = word(p, words.first_cursor), word(p, words.cursors)
        for i in range(cursors):
            pool, stride = word(p, words.pools + i), word(p, words.pools + cursors + i)
            store_i64(b, first + i, load_i64(b, pool) + iteration * stride)

    return kernel


@generated
def vary(target: Target, variant: str) -> Any:
    """Write words of other instructions. The address of the program's words is in the header of the base table."""
    words = VARY.place

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        program, targets = load_i64(b, WORDS), word(p, words.targets)
        # The new values follow the two lists and their own count.
        value = words.firsts + 2 * targets + 1
        for i in range(targets):
            index, mask = word(p, words.firsts + i), word(p, words.firsts + targets + i)
            while mask > 0:
                if mask & 1:
                    store_i64(program, index, word(p, value))
                    value += 1
                mask >>= 1
                index += 1

    return kernel


@generated
def add_rows(target: Target, variant: str) -> Any:
    """Add the pixels of a tile to the sums of each channel, in the order of the mean of a whole image.

    The same order gives the same bits. If `goes_on` is set, the sums of earlier tiles are there already. The sums are
    then multiplied by the factor: 1, or, in the last tile, one that makes them means.
    """
    words = ADD_ROWS.place
    combine = device_reassociated(lambda a, b: a + b)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        channels, pixels, factor = word(p, words.channels), word(p, words.pixels), f32(real(p, words.factor))
        first, last = share((channels + _BLOCK - 1) // _BLOCK, tid, nt)
        for piece in range(first, last):
            column = piece * _BLOCK
            count = min(_BLOCK, channels - column)
            y = address(p, b, words.sums) + column * 4
            x = address(p, b, words.x) + column * 4
            if not word(p, words.goes_on):
                for i in range(count):
                    write_f32(y, i, f32(0))
            whole = pixels - pixels % 4
            step = channels * 4
            r = 0
            while r < whole:
                x0 = x + r * step
                x1, x2, x3 = x0 + step, x0 + 2 * step, x0 + 3 * step
                for i in range(count):
                    four = combine(combine(read_f32(x0, i), read_f32(x1, i)), combine(read_f32(x2, i), read_f32(x3, i)))
                    store_f32(y, i, combine(load_f32(y, i), four))
                r += 4
            while r < pixels:
                x0 = x + r * step
                for i in range(count):
                    store_f32(y, i, combine(load_f32(y, i), read_f32(x0, i)))
                r += 1
            for i in range(count):
                store_f32(y, i, load_f32(y, i) * factor)

    return kernel


@generated
def add_bytes(target: Target, variant: str) -> Any:
    """Add up pixels of stored values in 32 bits. Variant: the type of stored elements."""
    words = ADD_BYTES.place
    read = READ[variant]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        channels = word(p, words.channels)
        first, last = share(channels, tid, nt)
        sums, x = address(p, b, words.sums), address(p, b, words.x)
        if not word(p, words.goes_on):
            for i in range(first, last):
                store_i32(sums, i, np.int32(0))
        for r in range(word(p, words.pixels)):
            source = x + r * channels
            for i in range(first, last):
                store_i32(sums, i, load_i32(sums, i) + np.int32(read(source, i)))

    return kernel


@generated
def mean_of_sums(target: Target, variant: str) -> Any:
    """Compute means of sums as `quantized_reduction.mean` does. Variant: the stored type and the rounding of halves."""
    words = MEAN_OF_SUMS.place
    kind, ties = without_ties(variant)
    write, stored, nearest = WRITE[kind], STORED[kind], NEAREST[ties]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        sums, y = address(p, b, words.sums), address(p, b, words.y)
        scale, offset, bias = (
            np.float32(real(p, words.scale)),
            np.int32(word(p, words.offset)),
            np.float32(real(p, words.bias)),
        )
        zero, least, most = (
            np.int32(word(p, words.zero)),
            np.float32(word(p, words.least) - word(p, words.zero)),
            np.float32(word(p, words.most) - word(p, words.zero)),
        )
        first, last = share(word(p, words.channels), tid, nt)
        for i in range(first, last):
            value = np.float32(load_i32(sums, i) - offset) * scale + bias
            write(y, i, stored(np.int32(nearest(min(max(value, least), most))) + zero))

    return kernel
