"""8-bit convolution and matrix product with constant weights.

An image row of results is computed in segments. The input rows under a segment are read in place where they have the
form that the target multiplies and no window leaves the image; else they are copied into work space, in that form and
with the padding around them. Either way the taps of neighbouring results lie at a regular distance.
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
from isthmus.engine.native.kernels.quantized_gemm import float_tile, tile
from isthmus.engine.native.target import Target

WORDS = (
    "x", "y", "weights", "offsets", "work", "work_bytes",
    "rows", "height", "width", "pixel", "channels", "out_height", "out_width", "out_pixel", "columns",
    "kernel_h", "span", "stride_h", "stride_w", "dilation_h", "top", "left",
    "taps", "groups", "panel_bytes", "segment", "staged", "pitch", "distance",
    "padding", "input_zero", "zero", "least", "most", "flip", "few_rows", "scaling", "image_step", "result_step",
)  # fmt: skip
"""The words of the instruction, in order.

rows: image rows of results, of all images. pixel, out_pixel: bytes between neighbouring pixels. channels: of this
group. span: input columns under a result. offsets: i64 for each tap, from the first. groups: groups of a tap.
segment: results computed together. staged: 0 to read in place, else how rows are copied (1 as they are, 2 with the sign
bit flipped, 3 and 4 widened from signed and unsigned bytes less `input_zero`). pitch: bytes between copied rows.
distance: bytes between the taps of neighbouring results. padding: the byte that means 0. zero, least, most, flip: of
the result, see `requantization`. few_rows: whether threads had better share columns.

Where results are floats, `least` and `most` are reals; `padding` is whether there is one; `scaling` is what quantizing
the input left (f32 scale, i32 origin), one entry for each image or for each result: `image_step` and `result_step` are
the bytes from one to the next.
"""
_AT = {name: index for index, name in enumerate(WORDS)}


@device
def _copy(form, target, source, count, zero):  # type: ignore[no-untyped-def]
    """Copy elements in a form; the answer is the address after the last one."""
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
    height_at, width_at, pixel_at, channels_at = _AT["height"], _AT["width"], _AT["pixel"], _AT["channels"]
    kernel_at, span_at, dilation_at, stride_at = _AT["kernel_h"], _AT["span"], _AT["dilation_h"], _AT["stride_w"]
    staged_at, pitch_at, zero_at = _AT["staged"], _AT["pitch"], _AT["input_zero"]

    @device
    def stage(p, image, target, top, left, count, padding):  # type: ignore[no-untyped-def]
        """Copy the input rows under `count` results, of which the first begins at row `top` and column `left`."""
        height, width, pixel, channels = word(p, height_at), word(p, width_at), word(p, pixel_at), word(p, channels_at)
        form, pitch = word(p, staged_at), word(p, pitch_at)
        zero = np.int16(word(p, zero_at))
        size = 2 if form >= 3 else 1
        needed = (count - 1) * word(p, stride_at) + word(p, span_at)
        before = min(max(-left, 0), needed)
        inside = max(min(width, left + needed) - max(left, 0), 0)
        for i in range(word(p, kernel_at)):
            row = top + i * word(p, dilation_at)
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
    """Convolution of bytes with the tile named by the variant, ``ROWSxVECTORS``. Words: see `WORDS`."""
    return _kernel(target, variant, False)


@generated
def convolve_to_float(target: Target, variant: str) -> Any:
    """Convolution of an input that was quantized on the way, with float results. Words: see `WORDS`."""
    return _kernel(target, variant, True)


def _kernel(target: Target, variant: str, to_float: bool) -> Any:
    rows, vectors = (int(n) for n in variant.split("x"))
    lanes = target.lanes
    columns = vectors * lanes
    # The last panel may hold fewer vectors than the others, and has tiles of its own.
    tiles = [(float_tile if to_float else tile)(target, rows, v) for v in range(1, vectors + 1)]
    widest, narrow = tiles[-1], _narrow(tiles[:-1], lanes)
    stage = _stager()
    x_at, y_at, weights_at, offsets_at, work_at, work_bytes_at = (_AT[n] for n in WORDS[:6])
    rows_at, height_at, width_at, pixel_at = _AT["rows"], _AT["height"], _AT["width"], _AT["pixel"]
    out_height_at, out_width_at, out_pixel_at, columns_at = (
        _AT["out_height"], _AT["out_width"], _AT["out_pixel"], _AT["columns"],
    )  # fmt: skip
    stride_h_at, stride_w_at, top_at, left_at = _AT["stride_h"], _AT["stride_w"], _AT["top"], _AT["left"]
    taps_at, groups_at, panel_at, segment_at = _AT["taps"], _AT["groups"], _AT["panel_bytes"], _AT["segment"]
    staged_at, distance_at, few_at = _AT["staged"], _AT["distance"], _AT["few_rows"]
    zero_at, least_at, most_at, flip_at = _AT["zero"], _AT["least"], _AT["most"], _AT["flip"]
    padding_at, scaling_at = _AT["padding"], _AT["scaling"]
    image_step_at, result_step_at = _AT["image_step"], _AT["result_step"]
    size = 4 if to_float else 1

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        x, y, weights, offsets = (
            address(p, b, x_at),
            address(p, b, y_at),
            address(p, b, weights_at),
            address(p, b, offsets_at),
        )
        work = address(p, b, work_at) + tid * word(p, work_bytes_at)
        out_height, out_width, out_pixel = word(p, out_height_at), word(p, out_width_at), word(p, out_pixel_at)
        wanted, taps, groups, panel_bytes = word(p, columns_at), word(p, taps_at), word(p, groups_at), word(p, panel_at)
        segment, staged, distance = word(p, segment_at), word(p, staged_at), word(p, distance_at)
        zero, least, most, flip = word(p, zero_at), word(p, least_at), word(p, most_at), word(p, flip_at)
        segments, panels = (out_width + segment - 1) // segment, (wanted + columns - 1) // columns
        first_unit, last_unit, first_panel, last_panel = divide_work(
            word(p, rows_at) * segments, panels, word(p, few_at), tid, nt
        )
        if first_panel == last_panel:
            return
        for unit in range(first_unit, last_unit):
            row = unit // segments
            begin = (unit - row * segments) * segment
            count = min(segment, out_width - begin)
            n = row // out_height
            image = x + n * word(p, height_at) * word(p, width_at) * word(p, pixel_at)
            top = (row - n * out_height) * word(p, stride_h_at) - word(p, top_at)
            left = begin * word(p, stride_w_at) - word(p, left_at)
            padding, scaling = word(p, padding_at), 0
            if to_float:
                scaling = address(p, b, scaling_at) + n * word(p, image_step_at) + begin * word(p, result_step_at)
                if padding != 0:
                    padding = load_i32(scaling, 1)
            source = work
            if staged != 0:
                stage(p, image, work, top, left, count, padding)
            else:
                source = image + (top * word(p, width_at) + left) * word(p, pixel_at)
            result = y + (row * out_width + begin) * out_pixel
            for panel in range(first_panel, last_panel):
                column = panel * columns
                place, packed = result + column * size, weights + panel * panel_bytes
                done = 0
                while done < count:
                    present = min(rows, count - done)
                    if staged == 0 and present < rows:
                        # Rows after the last do not exist: take some before it again.
                        done, present = count - rows, rows
                    if to_float:
                        zero, least = scaling + done * word(p, result_step_at), word(p, result_step_at)
                        most, flip = p + 8 * least_at, 0
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
    """Whichever of the tiles of 1, 2 ... vectors holds the wanted columns."""
    if not tiles:

        @device
        def none(a, b, c, d, e, f, g, h, i, wanted, zero, least, most, flip):  # type: ignore[no-untyped-def]
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
