"""The driver of 8-bit and 16-bit convolutions and matrix products with constant weights.

An image row of results is computed in segments. The input rows under a segment are read in place if they have the form
that the target multiplies and no window leaves the image. Otherwise they are copied into work space, in that form and
with padding. In both cases the taps of neighbouring results are evenly spaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.engine.native.kernels.base import device, kernel, load_i32
from isthmus.engine.native.kernels.gemm import divide_work
from isthmus.engine.native.words import Signature


def stager(fill: Callable, copy: Callable) -> Any:
    """Return the function that copies input rows into work space; `fill` and `copy` are those of `segments_kernel`."""

    @device
    def stage(rows, image, target, top, left, count, padding, zero):
        """Copy the input rows under `count` results, whose first window begins at row `top` and column `left`.

        Elements outside the image become `padding`; `zero` is the zero point that is subtracted from widened bytes.
        In `rows`: `pixel` and `pitch` are the bytes from one pixel of the image, or one staged row, to the next; `span`
        is the width of a window in pixels; `form` is 1 for a plain copy, else that of `quantized_product.row_form`.
        """
        height, width, pixel, channels, form, pitch, stride, span, kernel_height, dilation = rows
        # Forms 3 and 4 widen bytes to 16 bits.
        size = 2 if form >= 3 else 1
        needed = (count - 1) * stride + span
        before = min(max(-left, 0), needed)
        inside = max(min(width, left + needed) - max(left, 0), 0)
        for i in range(kernel_height):
            row = top + i * dilation
            if row < 0 or row >= height:
                fill(target, padding, needed * channels * size)
            else:
                fill(target, padding, before * channels * size)
                place = target + before * channels * size
                source = image + (row * width + max(left, 0)) * pixel
                if pixel == channels:
                    place = copy(form, place, source, inside * channels, zero)
                else:
                    for column in range(inside):
                        place = copy(form, place, source + column * pixel, channels, zero)
                fill(place, padding, (needed - before - inside) * channels * size)
            target += pitch

    return stage


def by_columns(tiles: list[Any], lanes: int) -> Any:
    """Return a function that calls the tile of 1, 2 ... vectors that holds the present columns, with a tuple."""
    widest = tiles[-1]
    if len(tiles) == 1:
        return device(lambda present, arguments: widest(*arguments))
    narrower, least = by_columns(tiles[:-1], lanes), (len(tiles) - 1) * lanes

    @device
    def call(present, arguments):
        if present > least:
            widest(*arguments)
        else:
            narrower(present, arguments)

    return call


def segments_kernel(
    signature: Signature, tiles: list[Any], tile_rows: int, lanes: int, item: int,
    fill: Callable, copy: Callable, rest: Callable, scaled: bool = False, depthwise: bool = False,
) -> Any:  # fmt: skip
    """Return the kernel that computes segments of rows by tiles.

    Parameters
    ----------
    tiles, tile_rows, lanes
        Micro-kernels of 1, 2 ... times `lanes` columns, since the last panel may have fewer than the others, and their
        rows. Arguments: first row, bytes between rows, list of the taps' offsets from a row's start, panel, result,
        bytes between result rows, rows present, columns present, taps, groups per tap, and those of `rest`.
    item
        Bytes of a result.
    fill, copy
        ``fill(target, value, bytes)``; ``copy(form, target, source, elements, zero)``, which returns the next address.
        Elements of 16 bits are counted in bytes.
    rest
        The last arguments of a tile, a tuple of four, from: zero, least, most, flip, block, blocks, the address of the
        scales of the first row, the bytes to the next ones, and the address of the instruction.
    scaled
        Whether each row of inputs has its own scale and origin.
    depthwise
        Whether a tile reads only the channels that are its columns.
    """
    width = len(tiles) * lanes
    call, stage = by_columns(tiles, lanes), stager(fill, copy)
    has_row, has_groups = "out_row" in signature.at, "panel_columns" in signature.at

    @kernel(signature)
    def execute(
        x, y, weights, offsets, work, work_bytes, rows, height, width_in, pixel, channels, out_height, out_width,
        out_pixel, columns, kernel_h, span, stride_h, stride_w, dilation_h, top, left, taps, groups, panel_bytes,
        segment, staged, pitch, distance, padding, zero, least, most, few_rows, instruction, tid, nt, input_zero=0,
        flip=0, out_row=0, block=0, blocks=0, scaling=0, image_step=0, result_step=0, panel_columns=0, panel_input=0,
    ):  # fmt: skip
        own_work = work + tid * work_bytes
        row_bytes = out_row if has_row else out_width * out_pixel
        windows = height, width_in, pixel, channels, staged, pitch, stride_w, span, kernel_h, dilation_h
        wide = panel_columns if has_groups else width
        segments, panels = (out_width + segment - 1) // segment, (columns + wide - 1) // wide
        first_unit, last_unit, first_panel, last_panel = divide_work(rows * segments, panels, few_rows, tid, nt)
        if first_panel == last_panel:
            return
        # A unit is one segment of a row of results.
        for unit in range(first_unit, last_unit):
            row = unit // segments
            begin = (unit - row * segments) * segment
            count = min(segment, out_width - begin)
            n = row // out_height
            image = x + n * height * width_in * pixel
            first_row, first_column = (row - n * out_height) * stride_h - top, begin * stride_w - left
            blank, scales = padding, scaling + n * image_step + begin * result_step
            if scaled and padding != 0:
                blank = load_i32(scales, 1)
            source = own_work
            if staged != 0:
                stage(windows, image, own_work, first_row, first_column, count, blank, input_zero)
            else:
                source = image + (first_row * width_in + first_column) * pixel
            result = y + row * row_bytes + begin * out_pixel
            for panel in range(first_panel, last_panel):
                column = panel * wide
                place, packed = result + column * item, weights + panel * panel_bytes
                valid, first = min(columns - column, wide), source + panel * panel_input
                if depthwise:
                    first = source + column * item
                done = 0
                while done < count:
                    present = min(tile_rows, count - done)
                    if staged == 0 and present < tile_rows:
                        # There are no rows after the last: repeat some before it.
                        done, present = count - tile_rows, tile_rows
                    last = rest(
                        zero, least, most, flip, block, blocks, scales + done * result_step, result_step, instruction
                    )
                    call(valid, (
                        first + done * distance, distance, offsets, packed, place + done * out_pixel, out_pixel,
                        present, valid, taps, groups, *last,
                    ))  # fmt: skip
                    done += tile_rows

    return execute
