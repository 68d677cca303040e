"""Convolution and matrix product of 8-bit and 16-bit fixed point."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import (
    copy_bytes,
    device,
    fill_bytes,
    generated,
    kernel,
    load_i64,
    load_u8,
    load_u16,
    read_i8,
    read_u8,
    read_u16,
    share,
    store_f64,
    store_i16,
    write_i16,
    write_u8,
    write_u16,
)
from isthmus.engine.native.kernels.blocks import blocks_kernel
from isthmus.engine.native.kernels.nibbles import NarrowForm, NibbleForm
from isthmus.engine.native.kernels.quantized_gemm import float_tile, tile
from isthmus.engine.native.kernels.segments import segments_kernel, stager
from isthmus.engine.native.kernels.wide_gemm import wide_depthwise_tile, wide_tile
from isthmus.engine.native.signatures.quantized_convolution import (
    CONVOLVE,
    CONVOLVE_GROUPS,
    CONVOLVE_TO_FLOAT,
    CONVOLVE_WIDE,
    CONVOLVE_WIDE_DEPTHWISE,
    DEPTHWISE_ROWS,
    MULTIPLY_WIDE,
)
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.target import Target
from isthmus.engine.native.words import Signature


@device
def _copy(form, target, source, count, zero):  # type: ignore[no-untyped-def]
    """Copy `count` elements in a form (see `staged` in the signature); return the address after the last one.

    `zero` is the zero point that is subtracted from 16-bit ones.
    """
    if form == 1:
        copy_bytes(target, source, count)
    elif form == 2:
        for i in range(count):
            write_u8(target, i, np.uint8(read_u8(source, i) ^ np.uint8(0x80)))
    elif form == 3:
        for i in range(count):
            write_i16(target, i, np.int16(np.int16(read_i8(source, i)) - np.int16(zero)))
        return target + 2 * count
    else:
        for i in range(count):
            write_i16(target, i, np.int16(np.int16(read_u8(source, i)) - np.int16(zero)))
        return target + 2 * count
    return target + count


@generated
def convolve(target: Target, variant: str) -> Any:
    """Convolve bytes with the tile that the variant names, ``ROWSxVECTORS``.

    After it come the form of 4-bit weights, and how halves are rounded.
    """
    return _kernel(CONVOLVE, target, variant)


@generated
def convolve_groups(target: Target, variant: str) -> Any:
    """Convolve bytes in groups of channels, each panel those of some groups, with the tile that the variant names."""
    return _kernel(CONVOLVE_GROUPS, target, variant)


@generated
def convolve_blocks(target: Target, variant: str) -> Any:
    """Convolve bytes by blocks for matrix registers. Variant: the form of bytes, then how halves are rounded."""
    form, ties = without_ties(variant)
    return blocks_kernel(target, form == "s8", ties, stager(fill_bytes, _copy))


@generated
def convolve_to_float(target: Target, variant: str) -> Any:
    """Convolve an input that was quantized at run time; results are floats. The variants are those of `convolve`."""
    return _kernel(CONVOLVE_TO_FLOAT, target, variant)


def _kernel(signature: Signature, target: Target, variant: str) -> Any:
    """Return the kernel for byte results, or for float results of an input that was quantized at run time."""
    name, ties = without_ties(variant)
    shape, *parts = name.split("_")
    rows, vectors = (int(n) for n in shape.split("x"))
    form = NibbleForm(2 if "bytes" in parts else 4, "factors" in parts) if "nibbles" in parts else None
    if "narrow" in parts:
        form = NarrowForm()
    to_float = "scaling" in signature.at
    widths = range(1, vectors + 1)
    tiles = [float_tile(target, rows, v, form) if to_float else tile(target, rows, v, form, ties) for v in widths]
    # Where the limits of float results are in the instruction.
    limits = 8 * signature.at["least"]
    if to_float:
        rest = device(lambda zero, least, most, flip, _, __, scales, step, instruction: (
            scales, step, instruction + limits, 0
        ))  # fmt: skip
    else:
        rest = device(lambda zero, least, most, flip, _, __, scales, step, instruction: (zero, least, most, flip))
    item = 4 if to_float else 1
    return segments_kernel(signature, tiles, rows, target.lanes, item, fill_bytes, _copy, rest, scaled=to_float)


# -- 16 bits -----------------------------------------------------------------------------------------------------------


@device
def _fill_wide(target, value, nbytes):
    """Set 16-bit numbers to a value."""
    for i in range(nbytes >> 1):
        write_u16(target, i, np.uint16(value))


@device
def _copy_wide(form, target, source, count, _zero):
    """Copy `count` bytes of 16-bit numbers; form 2 flips their sign bits. Return the address after the last one."""
    if form == 1:
        copy_bytes(target, source, count)
    else:
        for i in range(count >> 1):
            write_u16(target, i, np.uint16(read_u16(source, i) ^ np.uint16(0x8000)))
    return target + count


_wide_rest = device(lambda zero, least, most, flip, block, blocks, _, __, ___: (block, blocks, zero, least, most))


@generated
def convolve_wide(target: Target, variant: str) -> Any:
    """Convolve 16-bit numbers, with the width of weights and the tile named by the variant, ``WIDTH_ROWSxVECTORS``."""
    width, _, tile = variant.partition("_")
    rows, vectors = (int(n) for n in tile.split("x"))
    tiles = [wide_tile(target, width, rows, v) for v in range(1, vectors + 1)]
    return segments_kernel(CONVOLVE_WIDE, tiles, rows, target.lanes, 2, _fill_wide, _copy_wide, _wide_rest)


@generated
def convolve_wide_depthwise(target: Target, variant: str) -> Any:
    """Convolve 16-bit numbers depth-wise with one filter for each channel. The variant is the width of weights."""
    tiles, lanes = [wide_depthwise_tile(target, variant)], 2 * target.lanes
    return segments_kernel(
        CONVOLVE_WIDE_DEPTHWISE, tiles, DEPTHWISE_ROWS, lanes, 2, _fill_wide, _copy_wide, _wide_rest, depthwise=True
    )


@device
def _pack(matrix, right, panel, wanted, width):
    """Pack `wanted` columns of a matrix into a panel of `width` columns, with 16-bit weights.

    `matrix` has the words about it, the left zero point, the scale and the groups of the depth.
    """
    depth, row, column, size, flip, zero, left_zero, scale, groups = matrix
    body = panel + 24 * width
    low = (-zero + 128) % 256 - 128
    high = (-zero - low) >> 8
    for c in range(width):
        store_f64(panel, width + c, scale)
        for half in range(2):
            store_i16(panel + 16 * width, 2 * c + half, np.int16(high))
            store_i16(panel + 20 * width, 2 * c + half, np.int16(low))
        total = 0
        if c >= wanted:
            for k in range(2 * groups):
                store_i16(body + (k >> 1) * 4 * width, 2 * c + (k & 1), np.int16(zero))
        else:
            for k in range(depth):
                place = right + k * row + c * column
                if size == 1:
                    number = np.int64(np.int8(np.int32(load_u8(place, 0)) ^ flip))
                else:
                    number = np.int64(np.int16(np.int32(load_u16(place, 0)) ^ flip))
                total += number - zero
                store_i16(body + (k >> 1) * 4 * width, 2 * c + (k & 1), np.int16(number))
            for k in range(depth, 2 * groups):
                store_i16(body + (k >> 1) * 4 * width, 2 * c + (k & 1), np.int16(zero))
        store_f64(panel, c, -np.float64(left_zero) * np.float64(total))


@generated
def multiply_wide(target: Target, variant: str) -> Any:
    """Multiply matrices of 16 bits that are both known at run time, with the tile of the variant, ``ROWSxVECTORS``."""
    tile_rows, vectors = (int(n) for n in variant.split("x"))
    width = vectors * target.lanes
    tile = wide_tile(target, "w16", tile_rows, vectors)

    @kernel(MULTIPLY_WIDE)
    def execute(
        left, right, y, batches, batch_count, rows, depth, columns, left_row, left_column, right_row, right_column,
        right_size, left_zero, left_flip: np.uint16, right_zero, right_flip: np.int32, work, work_bytes, offsets,
        chunks, groups, scale, out_zero, out_flip, least, most, tid, nt,
    ):  # fmt: skip
        pitch = 4 * chunks * groups
        panel = work + tid * work_bytes
        staged = panel + width * (24 + pitch)
        weights = (
            depth, right_row, right_column, right_size, right_flip, right_zero, left_zero, scale, chunks * groups
        )  # fmt: skip
        panels = (columns + width - 1) // width
        first, last = share(batch_count * panels, tid, nt)
        for unit in range(first, last):
            batch, column = unit // panels, unit % panels * width
            wanted = min(width, columns - column)
            matrix = right + load_i64(batches, 2 * batch + 1)
            _pack(weights, matrix + column * right_column, panel, wanted, width)
            source = left + load_i64(batches, 2 * batch)
            result = y + (batch * rows * columns + column) * 2
            for begin in range(0, rows, tile_rows):
                present = min(tile_rows, rows - begin)
                for r in range(present):
                    place, target_row = source + (begin + r) * left_row, staged + r * pitch
                    if left_column == 2:
                        for k in range(depth):
                            write_u16(target_row, k, np.uint16(read_u16(place, k) ^ left_flip))
                    else:
                        for k in range(depth):
                            write_u16(target_row, k, np.uint16(read_u16(place + k * left_column, 0) ^ left_flip))
                    for k in range(depth, 2 * chunks * groups):
                        write_u16(target_row, k, np.uint16(0))
                tile(
                    staged, pitch, offsets, panel, result + begin * columns * 2, columns * 2, present, wanted, chunks,
                    groups, 1, chunks, out_zero + out_flip, least + out_flip, most + out_flip,
                )  # fmt: skip

    return execute
