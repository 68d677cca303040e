"""8-bit convolution and matrix product with constant weights.

An image row of results is computed in segments. The input rows under a segment are read in place if they have the form
that the target multiplies and no window leaves the image. Otherwise they are copied into work space, in that form and
with padding. In both cases the taps of neighbouring results are evenly spaced.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import (
    address,
    copy_bytes,
    device,
    fill_bytes,
    generated,
    load_i32,
    read_i8,
    read_u8,
    word,
    write_i16,
    write_u8,
)
from isthmus.engine.native.kernels.gemm import divide_work
from isthmus.engine.native.kernels.nibbles import NibbleForm
from isthmus.engine.native.kernels.quantized_gemm import float_tile, tile
from isthmus.engine.native.signatures.quantized_convolution import CONVOLVE_TO_FLOAT
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.target import Target

# The operands of both kernels are at the same positions; for float results there are some more at the end.
_WORDS = CONVOLVE_TO_FLOAT.place


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
            write_i16(target, i, np.int16(np.int16(read_i8(source, i)) - zero))
        return target + 2 * count
    else:
        for i in range(count):
            write_i16(target, i, np.int16(np.int16(read_u8(source, i)) - zero))
        return target + 2 * count
    return target + count


def _stager() -> Any:
    """Return the function that copies input rows into work space."""

    @device
    def stage(p, image, target, top, left, count, padding):  # type: ignore[no-untyped-def]
        """Copy the input rows under `count` results, whose first window begins at row `top` and column `left`.

        Elements outside the image become the byte `padding`.
        """
        height, width, pixel, channels = (
            word(p, _WORDS.height),
            word(p, _WORDS.width_in),
            word(p, _WORDS.pixel),
            word(p, _WORDS.channels),
        )
        form, pitch = word(p, _WORDS.staged), word(p, _WORDS.pitch)
        zero = np.int16(word(p, _WORDS.input_zero))
        size = 2 if form >= 3 else 1
        needed = (count - 1) * word(p, _WORDS.stride_w) + word(p, _WORDS.span)
        before = min(max(-left, 0), needed)
        inside = max(min(width, left + needed) - max(left, 0), 0)
        for i in range(word(p, _WORDS.kernel_h)):
            row = top + i * word(p, _WORDS.dilation_h)
            if row < 0 or row >= height:
                fill_bytes(target, padding, needed * channels * size)
            else:
                fill_bytes(target, padding, before * channels * size)
                place = target + before * channels * size
                source = image + (row * width + max(left, 0)) * pixel
                if pixel == channels:
                    place = _copy(form, place, source, inside * channels, zero)
                else:
                    for column in range(inside):
                        place = _copy(form, place, source + column * pixel, channels, zero)
                fill_bytes(place, padding, (needed - before - inside) * channels * size)
            target += pitch

    return stage


@generated
def convolve(target: Target, variant: str) -> Any:
    """Convolve bytes with the tile named by the variant, ``ROWSxVECTORS``, and round as its end says."""
    return _kernel(target, variant, False)


@generated
def convolve_to_float(target: Target, variant: str) -> Any:
    """Convolve an input that was quantized at run time; results are floats."""
    return _kernel(target, variant, True)


@generated
def convolve_nibbles(target: Target, variant: str) -> Any:
    """Convolve bytes with 4-bit weights; the variant names the tile and the form of the weights."""
    return _kernel(target, variant, False)


@generated
def convolve_nibbles_to_float(target: Target, variant: str) -> Any:
    """Convolve an input that was quantized at run time with 4-bit weights; results are floats."""
    return _kernel(target, variant, True)


def _kernel(target: Target, variant: str, to_float: bool) -> Any:
    """Return the kernel for byte results, or for float results of an input that was quantized at run time."""
    name, ties = without_ties(variant)
    shape, *parts = name.split("_")
    rows, vectors = (int(n) for n in shape.split("x"))
    form = NibbleForm(2 if "bytes" in parts else 4, "factors" in parts) if parts else None
    lanes = target.lanes
    columns = vectors * lanes
    # The last panel may have fewer vectors than the others; it has tiles of its own.
    widths = range(1, vectors + 1)
    tiles = [float_tile(target, rows, v, form) if to_float else tile(target, rows, v, form, ties) for v in widths]
    widest, narrow = tiles[-1], _narrow(tiles[:-1], lanes)
    stage = _stager()
    size = 4 if to_float else 1

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        x, y, weights, offsets = (
            address(p, b, _WORDS.x),
            address(p, b, _WORDS.y),
            address(p, b, _WORDS.weights),
            address(p, b, _WORDS.offsets),
        )
        work = address(p, b, _WORDS.work) + tid * word(p, _WORDS.work_bytes)
        out_height, out_width, out_pixel = (
            word(p, _WORDS.out_height),
            word(p, _WORDS.out_width),
            word(p, _WORDS.out_pixel),
        )
        wanted, taps, groups, panel_bytes = (
            word(p, _WORDS.columns),
            word(p, _WORDS.taps),
            word(p, _WORDS.groups),
            word(p, _WORDS.panel_bytes),
        )
        segment, staged, distance = word(p, _WORDS.segment), word(p, _WORDS.staged), word(p, _WORDS.distance)
        zero, least, most, flip = (
            word(p, _WORDS.zero),
            word(p, _WORDS.least),
            word(p, _WORDS.most),
            word(p, _WORDS.flip),
        )
        segments, panels = (out_width + segment - 1) // segment, (wanted + columns - 1) // columns
        first_unit, last_unit, first_panel, last_panel = divide_work(
            word(p, _WORDS.rows) * segments, panels, word(p, _WORDS.few_rows), tid, nt
        )
        if first_panel == last_panel:
            return
        # A unit is one segment of a row of results.
        for unit in range(first_unit, last_unit):
            row = unit // segments
            begin = (unit - row * segments) * segment
            count = min(segment, out_width - begin)
            n = row // out_height
            image = x + n * word(p, _WORDS.height) * word(p, _WORDS.width_in) * word(p, _WORDS.pixel)
            top = (row - n * out_height) * word(p, _WORDS.stride_h) - word(p, _WORDS.top)
            left = begin * word(p, _WORDS.stride_w) - word(p, _WORDS.left)
            padding, scaling = word(p, _WORDS.padding), 0
            if to_float:
                scaling = (
                    address(p, b, _WORDS.scaling) + n * word(p, _WORDS.image_step) + begin * word(p, _WORDS.result_step)
                )
                if padding != 0:
                    padding = load_i32(scaling, 1)
            source = work
            if staged != 0:
                stage(p, image, work, top, left, count, padding)
            else:
                source = image + (top * word(p, _WORDS.width_in) + left) * word(p, _WORDS.pixel)
            result = y + (row * out_width + begin) * out_pixel
            for panel in range(first_panel, last_panel):
                column = panel * columns
                place, packed = result + column * size, weights + panel * panel_bytes
                done = 0
                while done < count:
                    present = min(rows, count - done)
                    if staged == 0 and present < rows:
                        # There are no rows after the last: repeat some before it.
                        done, present = count - rows, rows
                    if to_float:
                        # The last arguments of `float_tile`.
                        zero, least = scaling + done * word(p, _WORDS.result_step), word(p, _WORDS.result_step)
                        most, flip = p + 8 * _WORDS.least, 0
                    if wanted - column > columns - lanes:
                        widest(
                            source + done * distance, distance, offsets, taps, groups, packed,
                            place + done * out_pixel, out_pixel, present, wanted - column, zero, least, most, flip,
                        )  # fmt: skip
                    else:
                        narrow(
                            source + done * distance, distance, offsets, taps, groups, packed,
                            place + done * out_pixel, out_pixel, present, wanted - column, zero, least, most, flip,
                        )  # fmt: skip
                    done += rows

    return kernel


def _narrow(tiles: list[Any], lanes: int) -> Any:
    """Return a function that calls the tile of 1, 2 ... vectors that holds the wanted columns.

    `tiles` are those of 1, 2 ... vectors, which all have the same parameters.
    """
    if not tiles:

        @device
        def none(a, b, c, d, e, f, g, h, i, wanted, zero, least, most, flip):  # type: ignore[no-untyped-def]
            """Do nothing: this is never called, since some tile always holds the columns."""
            return None

        return none
    widest, narrower, least_wanted = tiles[-1], _narrow(tiles[:-1], lanes), (len(tiles) - 1) * lanes

    @device
    def narrow(a, b, c, d, e, f, g, h, i, wanted, zero, least, most, flip):  # type: ignore[no-untyped-def]
        if wanted > least_wanted:
            widest(a, b, c, d, e, f, g, h, i, wanted, zero, least, most, flip)
        else:
            narrower(a, b, c, d, e, f, g, h, i, wanted, zero, least, most, flip)

    return narrow
