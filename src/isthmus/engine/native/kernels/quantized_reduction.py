"""Kernels on fixed-point tensors that combine many elements into one: means, sums, pools, softmax, resizing.

Sums of 16-bit numbers are kept in float64, which holds them exactly, and are rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels import mathematics
from isthmus.engine.native.kernels.base import (
    REASSOCIATED,
    device,
    fill_bytes,
    generated,
    kernel,
    load_f32,
    load_f64,
    load_i32,
    read_u16,
    share,
    store_f32,
    store_f64,
    store_i32,
    write_u16,
)
from isthmus.engine.native.kernels.mathematics import f32
from isthmus.engine.native.kernels.quantized_elementwise import (
    READ,
    SIZE,
    STORED,
    WRITE,
    centred,
    f64,
    nearest,
    nearest_of,
)
from isthmus.engine.native.kernels.rounding import NEAREST
from isthmus.engine.native.signatures.quantized_reduction import (
    AVERAGE_POOL,
    MEAN,
    RESIZE_BILINEAR,
    SOFTMAX,
    SOFTMAX_OF_INTEGERS,
    SOFTMAX_WIDE,
    SUM,
)
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.target import Target


@generated
def mean(target: Target, variant: str) -> Any:
    """Compute means over a middle axis: ``(sum - offset) * scale + bias``, rounded, plus zero, limited.

    Variant: the stored type, and how halves are rounded.
    """
    kind, ties = without_ties(variant)
    read, write, stored, nearest = READ[kind], WRITE[kind], STORED[kind], NEAREST[ties]

    @kernel(MEAN)
    def execute(
        x, y, outer_count, count, inner, work, scale: np.float32, offset: np.int32, bias: np.float32, zero, least, most,
        tid, nt,
    ):  # fmt: skip
        sums = work + tid * inner * 4
        zero, least, most = np.int32(zero), np.float32(least - zero), np.float32(most - zero)
        low, high = share(outer_count, tid, nt)
        for row in range(low, high):
            fill_bytes(sums, 0, inner * 4)
            for k in range(count):
                source = x + (row * count + k) * inner
                for i in range(inner):
                    store_i32(sums, i, load_i32(sums, i) + np.int32(read(source, i)))
            result = y + row * inner
            for i in range(inner):
                value = np.float32(load_i32(sums, i) - offset) * scale + bias
                write(result, i, stored(np.int32(nearest(min(max(value, least), most))) + zero))

    return execute


def _byte_means(source: str, goal: str, ties: str) -> tuple[Any, Any]:
    """Return the functions that add up bytes of a pixel, and that write means.

    If `ties_away`, they are means of stored values, rounded half away from zero; else means of reals, in float32.
    """
    read, write, stored, nearest = READ[source], WRITE[goal], STORED[goal], NEAREST[ties]

    @device
    def add(sums, pixel, channels, ties_away, scale, zero):
        if ties_away != 0:
            for c in range(channels):
                store_i32(sums, c, load_i32(sums, c) + np.int32(read(pixel, c)))
        else:
            for c in range(channels):
                term = np.float32(np.int32(read(pixel, c)) - np.int32(zero)) * np.float32(scale)
                store_f32(sums, c, load_f32(sums, c) + term)

    @device
    def write_means(result, sums, channels, ties_away, count, outside, scale, zero_in, zero_out, least, most):
        if ties_away != 0:
            half = np.int32(count // 2)
            for c in range(channels):
                total = load_i32(sums, c) + np.int32(outside) * np.int32(zero_in)
                signed_half = half if total >= 0 else -half
                # Division truncates towards zero, as in C.
                value = np.int32(np.float64(total + signed_half) / np.float64(count))
                write(result, c, stored(min(max(value, np.int32(least)), np.int32(most))))
        else:
            divisor, scale, zero = np.float32(count), np.float32(scale), np.float32(zero_out)
            for c in range(channels):
                value = nearest(load_f32(sums, c) / divisor / scale) + zero
                write(result, c, stored(np.int32(min(max(value, np.float32(least)), np.float32(most)))))

    return add, write_means


def _wide_means(source: str, goal: str, ties: str) -> tuple[Any, Any]:
    """Return the same functions for 16-bit numbers; sums are kept in float64, which holds them exactly."""
    read, write, stored, nearest = READ[source], WRITE[goal], STORED[goal], NEAREST[ties]
    half = np.float64(0.5)

    @device
    def rounded(steps, zero, least, most):
        value = nearest(steps if steps == steps else np.float64(0)) + np.float64(zero)
        return stored(np.int32(min(max(value, np.float64(least)), np.float64(most))))

    @device
    def add(sums, pixel, channels, ties_away, scale, zero):
        for c in range(channels):
            store_f64(sums, c, load_f64(sums, c) + np.float64(np.int32(read(pixel, c)) - np.int32(zero)))

    @device
    def write_means(result, sums, channels, ties_away, count, outside, scale, zero_in, zero_out, least, most):
        divisor = np.float64(count)
        if ties_away != 0:
            for c in range(channels):
                mean = load_f64(sums, c) / divisor
                mean = np.trunc(mean + (half if mean >= 0 else -half))
                write(result, c, rounded(mean, zero_out, least, most))
        else:
            for c in range(channels):
                write(result, c, rounded(load_f64(sums, c) * scale / divisor, zero_out, least, most))

    return add, write_means


@generated
def average_pool(target: Target, variant: str) -> Any:
    """Average-pool, NHWC. Variant: the stored types of input and result, or one for both, and how halves are rounded
    unless `ties_away`.
    """
    name, ties = without_ties(variant)
    source, goal = name.split("_")[0], name.split("_")[-1]
    add, write_means = (_byte_means if SIZE[source] == 1 else _wide_means)(source, goal, ties)
    size, sum_size = SIZE[source], 4 * SIZE[source]

    @kernel(AVERAGE_POOL)
    def execute(
        x, y, batch, height, width, channels, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, top, left,
        padding_counts, work, ties_away, scale_in, scale_out, zero_in, zero_out, least, most, bottom, right, tid, nt,
    ):  # fmt: skip
        sums = work + tid * channels * sum_size
        low, high = share(batch * out_height, tid, nt)
        for row in range(low, high):
            n, oh = row // out_height, row % out_height
            for ow in range(out_width):
                h0, w0 = oh * stride_h - top, ow * stride_w - left
                # The rows and columns of the window that are inside the input.
                ha, hb, wa, wb = max(h0, 0), min(h0 + kernel_h, height), max(w0, 0), min(w0 + kernel_w, width)
                inside = (hb - ha) * (wb - wa)
                count = inside
                if padding_counts != 0:
                    count = (min(h0 + kernel_h, height + bottom) - h0) * (min(w0 + kernel_w, width + right) - w0)
                fill_bytes(sums, 0, channels * sum_size)
                for h in range(ha, hb):
                    for w in range(wa, wb):
                        pixel = x + ((n * height + h) * width + w) * channels * size
                        add(sums, pixel, channels, ties_away, scale_in, zero_in)
                result = y + (row * out_width + ow) * channels * size
                write_means(
                    result, sums, channels, ties_away, count, count - inside, scale_out, zero_in, zero_out, least, most
                )

    return execute


@device
def _below(top, value):  # type: ignore[no-untyped-def]
    """Return how far a value is below the largest one, `top`: a valid index of 256 entries even if another thread
    writes the data.
    """
    return np.int64(top - np.int32(value)) & 255


@generated
def softmax(target: Target, variant: str) -> Any:
    """Compute softmax over the last axis, with a table of exponentials of the distance from the largest stored
    value.
    """
    read, write, stored = READ[variant], WRITE[variant], STORED[variant]

    @kernel(SOFTMAX, REASSOCIATED)
    def execute(
        x, y, rows, length, table, inverse: np.float32, zero: np.float32, least: np.float32, most: np.float32, tid, nt
    ):
        low, high = share(rows, tid, nt)
        for row in range(low, high):
            source, result = x + row * length, y + row * length
            top = np.int32(read(source, 0))
            for i in range(length):
                top = max(top, np.int32(read(source, i)))
            total = np.float32(0)
            for i in range(length):
                total += load_f32(table, _below(top, read(source, i)))
            factor = inverse / total
            for i in range(length):
                value = np.rint(load_f32(table, _below(top, read(source, i))) * factor) + zero
                write(result, i, stored(np.int32(min(max(value, least), most))))

    return execute


@generated
def softmax_of_integers(target: Target, variant: str) -> Any:
    """Compute softmax over the last axis in integers: exponentials from a table, quotients rounded half up."""
    read, write, stored = READ[variant], WRITE[variant], STORED[variant]

    @kernel(SOFTMAX_OF_INTEGERS)
    def execute(x, y, rows, length, table, factor, zero, least, most, tid, nt):
        low, high = share(rows, tid, nt)
        for row in range(low, high):
            source, result = x + row * length, y + row * length
            top = np.int32(read(source, 0))
            for i in range(length):
                top = max(top, np.int32(read(source, i)))
            total = 0
            for i in range(length):
                total += np.int64(load_i32(table, _below(top, read(source, i))))
            for i in range(length):
                power = np.int64(load_i32(table, _below(top, read(source, i))))
                value = (power * factor + (total >> 1)) // total + zero
                write(result, i, stored(min(max(value, least), most)))

    return execute


@generated
def resize_bilinear(target: Target, variant: str) -> Any:
    """Resize bilinearly, NHWC, with weights of 11 fractional bits, rounded half up."""
    read, write, stored = READ[variant], WRITE[variant], STORED[variant]

    @kernel(RESIZE_BILINEAR)
    def execute(x, y, batch, height, width, channels, out_height, out_width, rows, columns, tid, nt):
        low, high = share(batch * out_height, tid, nt)
        for row in range(low, high):
            n, oh = row // out_height, row % out_height
            above = x + (n * height + np.int64(load_i32(rows, 3 * oh))) * width * channels
            below = x + (n * height + np.int64(load_i32(rows, 3 * oh + 1))) * width * channels
            down = load_i32(rows, 3 * oh + 2)
            for ow in range(out_width):
                left = np.int64(load_i32(columns, 3 * ow)) * channels
                right = np.int64(load_i32(columns, 3 * ow + 1)) * channels
                across = load_i32(columns, 3 * ow + 2)
                result = y + (row * out_width + ow) * channels
                for c in range(channels):
                    a, d = np.int32(read(above + left, c)), np.int32(read(below + left, c))
                    first = (a << 11) + (np.int32(read(above + right, c)) - a) * across
                    second = (d << 11) + (np.int32(read(below + right, c)) - d) * across
                    write(result, c, stored(((first << 11) + (second - first) * down + (1 << 21)) >> 22))

    return execute


@device
def _add(sums, source, count, flip, zero):  # type: ignore[no-untyped-def]
    """Add `count` numbers to sums."""
    for i in range(count):
        store_f64(sums, i, load_f64(sums, i) + centred(read_u16(source, i), flip, zero))


@generated
def reduce_sum(target: Target, variant: str) -> Any:
    """Add up two of five axes, and divide by a number. Variant: how halves are rounded."""
    nearest = nearest_of(variant)

    @kernel(SUM)
    def execute(
        x, y, outer_count, count, kept, inner_count, inner, work, divisor: f64, ratio, in_zero: np.int32,
        in_flip: np.uint16, out_zero: f64, out_flip: np.uint16, least: f64, most: f64, tid, nt,
    ):  # fmt: skip
        sums = work + tid * inner * 8
        low, high = share(outer_count * kept, tid, nt)
        for row in range(low, high):
            fill_bytes(sums, 0, inner * 8)
            for k in range(count):
                source = x + ((row // kept * count + k) * kept + row % kept) * inner_count * inner * 2
                if inner == 1:
                    # Whole numbers may be added up in any order.
                    total = np.int64(0)
                    for i in range(inner_count):
                        total += np.int64(np.int16(read_u16(source, i) ^ in_flip))
                    store_f64(sums, 0, load_f64(sums, 0) + f64(total - inner_count * np.int64(in_zero)))
                else:
                    for i in range(inner_count):
                        _add(sums, source + i * inner * 2, inner, in_flip, in_zero)
            result = y + row * inner * 2
            for i in range(inner):
                write_u16(result, i, nearest(load_f64(sums, i) * ratio / divisor, out_zero, least, most, out_flip))

    return execute


@kernel(SOFTMAX_WIDE)
def softmax_wide(
    x, y, rows, length, work, scale, inverse, in_flip: np.uint16, out_zero: f64, out_flip: np.uint16, least: f64,
    most: f64, tid, nt,
):  # fmt: skip
    """Compute softmax over the last axis: exponentials in float32, their sum in float64."""
    powers = work + tid * length * 4
    low, high = share(rows, tid, nt)
    for row in range(low, high):
        source, result = x + row * length * 2, y + row * length * 2
        top = np.int32(np.int16(read_u16(source, 0) ^ in_flip))
        for i in range(length):
            top = max(top, np.int32(np.int16(read_u16(source, i) ^ in_flip)))
        for i in range(length):
            store_f32(powers, i, mathematics.exp_of_negative(f32(centred(read_u16(source, i), in_flip, top) * scale)))
        total = f64(0)
        for i in range(length):
            total += f64(load_f32(powers, i))
        factor = inverse / total
        for i in range(length):
            write_u16(result, i, nearest(f64(load_f32(powers, i)) * factor, out_zero, least, most, out_flip))
