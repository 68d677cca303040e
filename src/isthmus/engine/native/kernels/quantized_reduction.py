"""Kernels on 8-bit fixed-point tensors that combine many elements into one: means, pools, softmax, resizing."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import (
    REASSOCIATED,
    device,
    fill_bytes,
    generated,
    kernel,
    load_f32,
    load_i32,
    share,
    store_f32,
    store_i32,
)
from isthmus.engine.native.kernels.quantized_elementwise import READ, STORED, WRITE
from isthmus.engine.native.kernels.rounding import NEAREST
from isthmus.engine.native.signatures.quantized_reduction import (
    AVERAGE_POOL,
    MEAN,
    RESIZE_BILINEAR,
    SOFTMAX,
    SOFTMAX_OF_INTEGERS,
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


@generated
def average_pool(target: Target, variant: str) -> Any:
    """Average-pool, NHWC. If `ties_away`, means of stored values are rounded half away from zero; else means of
    reals are rounded as the variant says, which is the stored type and how halves are rounded.
    """
    kind, ties = without_ties(variant)
    read, write, stored, nearest = READ[kind], WRITE[kind], STORED[kind], NEAREST[ties]

    @kernel(AVERAGE_POOL)
    def execute(
        x, y, batch, height, width, channels, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, top, left,
        padding_counts, work, ties_away, scale_in: np.float32, scale_out: np.float32, zero_in: np.int32,
        zero_out: np.float32, least: np.int32, most: np.int32, bottom, right, tid, nt,
    ):  # fmt: skip
        sums = work + tid * channels * 4
        low_real, high_real = np.float32(least), np.float32(most)
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
                result = y + (row * out_width + ow) * channels
                fill_bytes(sums, 0, channels * 4)
                if ties_away != 0:
                    for h in range(ha, hb):
                        for w in range(wa, wb):
                            source = x + ((n * height + h) * width + w) * channels
                            for c in range(channels):
                                store_i32(sums, c, load_i32(sums, c) + np.int32(read(source, c)))
                    half = np.int32(count // 2)
                    for c in range(channels):
                        total = load_i32(sums, c) + np.int32(count - inside) * zero_in
                        signed_half = half if total >= 0 else -half
                        # Division truncates towards zero, as in C.
                        value = np.int32(np.float64(total + signed_half) / np.float64(count))
                        write(result, c, stored(min(max(value, least), most)))
                else:
                    for h in range(ha, hb):
                        for w in range(wa, wb):
                            source = x + ((n * height + h) * width + w) * channels
                            for c in range(channels):
                                term = np.float32(np.int32(read(source, c)) - zero_in) * scale_in
                                store_f32(sums, c, load_f32(sums, c) + term)
                    for c in range(channels):
                        mean_real = load_f32(sums, c) / np.float32(count)
                        value_real = nearest(mean_real / scale_out) + zero_out
                        write(result, c, stored(np.int32(min(max(value_real, low_real), high_real))))

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
