"""Regions of images, resampled to one size."""

from __future__ import annotations

import math

import numpy as np

from isthmus.engine.native.kernels.base import device, kernel, load_f32, load_i32, share, store_f32
from isthmus.engine.native.kernels.faults import report_outside
from isthmus.engine.native.signatures.regions import ROI_ALIGN

_MAX_SAMPLES = 1 << 12
"""The most samples along an axis of a pixel whose region says how many there are."""


@device
def _samples(given, cell):  # type: ignore[no-untyped-def]
    """Return the number of samples along an axis of a pixel: the given one, or as many as pixels it covers."""
    if given > 0:
        return given
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
        store_f32(out, k, max(before, value) if largest else before + value)


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
        wanted = np.int64(load_i32(indices, index))
        own = max(0, min(wanted, batch - 1))
        outside |= own ^ wanted
        image = x + own * height * width * channels * 4
        out = output + pixel * channels * 4
        for k in range(channels):
            store_f32(out, k, np.float32(-np.inf) if largest else np.float32(0))
        for i in range(count_y):
            y = start_y + (row * count_y + i + 0.5) / count_y * cell_y
            for j in range(count_x):
                place_x = start_x + (column * count_x + j + 0.5) / count_x * cell_x
                _gather(out, image, height, width, channels, y, place_x, largest)
        if not largest:
            for k in range(channels):
                store_f32(out, k, load_f32(out, k) / np.float32(count_y * count_x))
    report_outside(instruction, bases, outside)
