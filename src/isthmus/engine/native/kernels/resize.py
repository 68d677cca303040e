"""Kernels that read images between pixels: resizing by tables of indices and weights, sampling at computed
positions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from isthmus.engine.native.kernels import base, mathematics
from isthmus.engine.native.kernels.base import device, generated, kernel, load_f32, load_i64, read_f32, share, write_f32
from isthmus.engine.native.kernels.mathematics import f32, floor, multiply_add, round_even, select
from isthmus.engine.native.kernels.selection import locate, report_outside
from isthmus.engine.native.kernels.storage import READ, SIZE, SIZES, WRITE, reader, writer
from isthmus.engine.native.signatures.elementwise import FLOATS
from isthmus.engine.native.signatures.resize import ALONG_AXIS, BILINEAR, CROP_AND_RESIZE, GRID_SAMPLE, ROI_ALIGN
from isthmus.engine.native.target import Target

_ZERO, _HALF, _ONE, _TWO = f32(0), f32(0.5), f32(1), f32(2)


@device
def _between(read, a, c, d, e, k, along, down):
    """Return element `k` between the pixels above on the left (a) and right (c), and those below (d, e)."""
    top = multiply_add(read(c, k) - read(a, k), along, read(a, k))
    bottom = multiply_add(read(e, k) - read(d, k), along, read(d, k))
    return multiply_add(bottom - top, down, top)


@device
def _between_bytes(read, a, c, d, e, k, along, down):
    """Return the same in integers, with weights of 11 fractional bits, rounded half up."""
    left, lower_left = np.int32(read(a, k)), np.int32(read(d, k))
    top = (left << 11) + (np.int32(read(c, k)) - left) * along
    bottom = (lower_left << 11) + (np.int32(read(e, k)) - lower_left) * along
    return ((top << 11) + (bottom - top) * down + (1 << 21)) >> 22


@generated
def bilinear(target: Target, variant: str) -> Any:
    """Resize images, with tables of the offsets above, below, left and right of each pixel, and their weights.

    Variant: the kind of the pixels; weights of bytes are integers.
    """
    if variant in FLOATS:
        read, write, size = reader(variant, target), writer(variant, target), SIZES[variant]
        weight, between = load_f32, _between
    else:
        read, write, size = READ[variant], WRITE[variant], SIZE[variant]
        weight, between = base.load_i32, _between_bytes

    @kernel(BILINEAR)
    def execute(
        output, x, batch, image_bytes, height, width, channels, upper, lower, row_weights, left, right, pixel_weights,
        tid, nt,
    ):  # fmt: skip
        first, last = share(batch * height, tid, nt)
        for line in range(first, last):
            image = line // height
            row = line - image * height
            start = x + image * image_bytes
            above, below, down = start + load_i64(upper, row), start + load_i64(lower, row), weight(row_weights, row)
            for column in range(width):
                out = output + (line * width + column) * channels * size
                # The pixels above on the left and right, then those below.
                a, c = above + load_i64(left, column), above + load_i64(right, column)
                d, e = below + load_i64(left, column), below + load_i64(right, column)
                along = weight(pixel_weights, column)
                for k in range(channels):
                    write(out, k, between(read, a, c, d, e, k, along, down))

    return execute


@kernel(ALONG_AXIS)
def along_axis(output, x, outer_count, size, count, inner, taps, places, weights, tid, nt):
    """Resize one axis: an element of the result is a weighted sum of `taps` elements, whose indices are in a table."""
    first, last = share(outer_count * count, tid, nt)
    for line in range(first, last):
        outer = line // count
        entry = (line - outer * count) * taps
        out, line_start = output + line * inner * 4, x + outer * size * inner * 4
        source, weight = line_start + load_i64(places, entry) * inner * 4, load_f32(weights, entry)
        for i in range(inner):
            write_f32(out, i, read_f32(source, i) * weight)
        for t in range(1, taps):
            source, weight = line_start + load_i64(places, entry + t) * inner * 4, load_f32(weights, entry + t)
            for i in range(inner):
                base.store_f32(out, i, multiply_add(read_f32(source, i), weight, load_f32(out, i)))


@device
def _bound(value, size):  # type: ignore[no-untyped-def]
    """Return the index nearest to a float, also for NaN and infinities."""
    last = f32(size - 1)
    value = select(value > _ZERO, value, _ZERO)
    return int(select(value < last, value, last))


@device
def _inside(value, size):  # type: ignore[no-untyped-def]
    """Return whether a position is between the first and the last of `size` pixels."""
    return value >= _ZERO and value <= f32(size - 1)


@device
def _blend(out, image, height, width, channels, y, x, zeros):  # type: ignore[no-untyped-def]
    """Write the pixel at a fractional position; pixels outside count as 0 if `zeros`, else as the nearest inside."""
    top, left = floor(y), floor(x)
    down, along = y - top, x - left
    # The four pixels: a above left, b above right, c below left, d below right.
    bottom, right = top + _ONE, left + _ONE
    weight_a, weight_b = (_ONE - down) * (_ONE - along), (_ONE - down) * along
    weight_c, weight_d = down * (_ONE - along), down * along
    if zeros:
        up, low = _inside(top, height), _inside(bottom, height)
        west, east = _inside(left, width), _inside(right, width)
        weight_a = weight_a if up and west else _ZERO
        weight_b = weight_b if up and east else _ZERO
        weight_c = weight_c if low and west else _ZERO
        weight_d = weight_d if low and east else _ZERO
    row_a, row_c = _bound(top, height) * width, _bound(bottom, height) * width
    column_a, column_b = _bound(left, width), _bound(right, width)
    a, b = image + (row_a + column_a) * channels * 4, image + (row_a + column_b) * channels * 4
    c, d = image + (row_c + column_a) * channels * 4, image + (row_c + column_b) * channels * 4
    for k in range(channels):
        upper = multiply_add(read_f32(b, k), weight_b, read_f32(a, k) * weight_a)
        write_f32(out, k, multiply_add(read_f32(d, k), weight_d, multiply_add(read_f32(c, k), weight_c, upper)))


@device
def _pick(out, image, height, width, channels, y, x, zeros):  # type: ignore[no-untyped-def]
    """Write the pixel at an integer position; outside, it is 0 if `zeros`, else the nearest inside."""
    source = image + (_bound(y, height) * width + _bound(x, width)) * channels * 4
    factor = _ZERO if zeros and not (_inside(y, height) and _inside(x, width)) else _ONE
    for k in range(channels):
        write_f32(out, k, read_f32(source, k) * factor)


@device
def _reflect(at, low, high):  # type: ignore[no-untyped-def]
    """Reflect a coordinate at both edges until it is between them."""
    length = high - low
    if length <= _ZERO:
        return _ZERO
    # Reflections repeat after twice the length: once forwards, once backwards.
    position = (at - low) - floor((at - low) / (_TWO * length)) * (_TWO * length)
    return low + mathematics.minimum(position, _TWO * length - position)


@device
def _grid_place(at, size, corners, nearest, padding):  # type: ignore[no-untyped-def]
    """Return the position in pixels of a coordinate from -1 to 1.

    If `corners`, -1 and 1 are the centers of the outer pixels, else their outer edges. Outside the image, padding 1
    moves the position to the edge, 2 reflects it, and 0 leaves it.
    """
    at = select(at == at, at, _ZERO)
    extent = f32(size)
    at = (at + _ONE) * _HALF * (extent - _ONE) if corners else ((at + _ONE) * extent - _ONE) * _HALF
    at = round_even(at) if nearest else at
    if padding == 1:
        at = mathematics.clamp(at, _ZERO, extent - _ONE)
    elif padding == 2:
        edge = _ZERO if corners else _HALF
        at = _reflect(at, -edge, extent - _ONE + edge)
    return at


@kernel(GRID_SAMPLE)
def grid_sample(output, x, grid, batch, height, width, channels, pixels, corners, nearest, padding, tid, nt):
    """Sample images at positions given by another tensor, from -1 to 1."""
    first, last = share(batch * pixels, tid, nt)
    for pixel in range(first, last):
        place_x = _grid_place(read_f32(grid, 2 * pixel), width, corners, nearest, padding)
        y = _grid_place(read_f32(grid, 2 * pixel + 1), height, corners, nearest, padding)
        image = x + pixel // pixels * height * width * channels * 4
        out = output + pixel * channels * 4
        if nearest:
            _pick(out, image, height, width, channels, y, place_x, padding == 0)
        else:
            _blend(out, image, height, width, channels, y, place_x, padding == 0)


@device
def _crop_place(low, high, index, count, size):  # type: ignore[no-untyped-def]
    """Return the position in pixels of the `index`-th of `count` samples between two edges of a box, from 0 to 1."""
    part = f32(index) / f32(count - 1) if count > 1 else _HALF
    return (low + (high - low) * part) * f32(size - 1)


@generated
def crop_and_resize(target: Target, variant: str) -> Any:
    """Crop boxes of images and resize each to one size. Variant: the kind of the indices, which select the image.

    Samples outside the image have the value `outside`.
    """
    load_index = load_i64 if variant == "i64" else base.load_i32

    @kernel(CROP_AND_RESIZE)
    def execute(
        output, x, boxes, indices, count, batch, height, width, channels, out_height, out_width, nearest, outside: f32,
        bases, instruction, tid, nt,
    ):  # fmt: skip
        pixels = out_height * out_width
        first, last = share(count * pixels, tid, nt)
        wrong = 0
        for pixel in range(first, last):
            box = pixel // pixels
            row = (pixel - box * pixels) // out_width
            column = pixel % out_width
            corners = boxes + box * 16
            y = _crop_place(read_f32(corners, 0), read_f32(corners, 2), row, out_height, height)
            place_x = _crop_place(read_f32(corners, 1), read_f32(corners, 3), column, out_width, width)
            index, outside_batch = locate(load_index(indices, box), batch, 1)
            wrong |= outside_batch
            image = x + index * height * width * channels * 4
            out = output + pixel * channels * 4
            if not (_inside(y, height) and _inside(place_x, width)):
                for k in range(channels):
                    write_f32(out, k, outside)
            elif nearest:
                _pick(out, image, height, width, channels, round_even(y), round_even(place_x), False)
            else:
                _blend(out, image, height, width, channels, y, place_x, False)
        report_outside(instruction, bases, wrong)

    return execute


# The most samples along an axis of a pixel whose region says how many there are.
_MAX_SAMPLES = 1 << 12


@device
def _samples(fixed, cell):  # type: ignore[no-untyped-def]
    """Return the number of samples along an axis of a pixel: a fixed one, or as many as pixels it covers."""
    if fixed > 0:
        return fixed
    # A region of infinite size, or one that is not a number, has no such number.
    return max(math.ceil(min(cell, float(_MAX_SAMPLES))), 1) if cell == cell else 1


@device
def _cell(low, high, ratio, size, aligned):  # type: ignore[no-untyped-def]
    """Return the start of a region along an axis, and the extent of each of its `size` pixels, in pixels of the image.

    Pixels of an aligned region have their centers, not their corners, at whole numbers.
    """
    shift = 0.5 if aligned else 0.0
    start = np.float64(low) / ratio - shift
    extent = np.float64(high) / ratio - shift - start
    return start, (extent if aligned else max(extent, 1.0)) / size


@device
def _gather(out, image, height, width, channels, y, x, largest):  # type: ignore[no-untyped-def]
    """Add to a pixel, or take the maximum with, the image at a position; outside the image there is 0."""
    inside = y >= -1.0 and y <= height and x >= -1.0 and x <= width
    y, x = (min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)) if inside else (0.0, 0.0)
    top, left = int(y), int(x)
    down, right = np.float32(y - top), np.float32(x - left)
    bottom, east = min(top + 1, height - 1), min(left + 1, width - 1)
    one = np.float32(1) if inside else np.float32(0)
    for k in range(channels):
        upper = load_f32(image, (top * width + left) * channels + k) * (np.float32(1) - right)
        upper += load_f32(image, (top * width + east) * channels + k) * right
        lower = load_f32(image, (bottom * width + left) * channels + k) * (np.float32(1) - right)
        lower += load_f32(image, (bottom * width + east) * channels + k) * right
        value = (upper * (np.float32(1) - down) + lower * down) * one
        before = load_f32(out, k)
        base.store_f32(out, k, max(before, value) if largest else before + value)


@kernel(ROI_ALIGN)
def roi_align(
    output, x, regions, indices, batch, height, width, channels, count, out_height, out_width, samples_y, samples_x,
    aligned, largest, ratio_y, ratio_x, bases, instruction, tid, nt,
):  # fmt: skip
    """Write the mean, or the largest, of samples of an image for each pixel of each region."""
    pixels = out_height * out_width
    first, last = share(count * pixels, tid, nt)
    outside = 0
    for pixel in range(first, last):
        index = pixel // pixels
        row, column = (pixel - index * pixels) // out_width, pixel % out_width
        region = regions + 16 * index
        left, top, right, bottom = load_f32(region, 0), load_f32(region, 1), load_f32(region, 2), load_f32(region, 3)
        start_y, cell_y = _cell(top, bottom, ratio_y, out_height, aligned)
        start_x, cell_x = _cell(left, right, ratio_x, out_width, aligned)
        count_y, count_x = _samples(samples_y, cell_y), _samples(samples_x, cell_x)
        own, wrong = locate(base.load_i32(indices, index), batch, 0)
        outside |= wrong
        image = x + own * height * width * channels * 4
        out = output + pixel * channels * 4
        for k in range(channels):
            base.store_f32(out, k, np.float32(-np.inf) if largest else np.float32(0))
        for i in range(count_y):
            y = start_y + (row * count_y + i + 0.5) / count_y * cell_y
            for j in range(count_x):
                place_x = start_x + (column * count_x + j + 0.5) / count_x * cell_x
                _gather(out, image, height, width, channels, y, place_x, largest)
        if not largest:
            for k in range(channels):
                base.store_f32(out, k, load_f32(out, k) / np.float32(count_y * count_x))
    report_outside(instruction, bases, outside)
