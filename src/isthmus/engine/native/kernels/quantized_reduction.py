"""Kernels on 8-bit fixed-point tensors that combine many elements into one: means, pools, softmax, resizing."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import (
    address,
    device,
    device_reassociated,
    fill_bytes,
    generated,
    load_f32,
    load_i32,
    real,
    share,
    store_f32,
    store_i32,
    word,
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
    words = MEAN.place
    kind, ties = without_ties(variant)
    read, write, stored, nearest = READ[kind], WRITE[kind], STORED[kind], NEAREST[ties]

    @device
    def kernel(p, b, tid, nt):
        x, y, count, inner = address(p, b, words.x), address(p, b, words.y), word(p, words.count), word(p, words.inner)
        sums = address(p, b, words.work) + tid * inner * 4
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
        low, high = share(word(p, words.outer_count), tid, nt)
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

    return kernel


@generated
def average_pool(target: Target, variant: str) -> Any:
    """Average-pool, NHWC. If `ties_away`, means of stored values are rounded half away from zero; else means of
    reals are rounded as the variant says, which is the stored type and how halves are rounded.
    """
    words = AVERAGE_POOL.place
    kind, ties = without_ties(variant)
    read, write, stored, nearest = READ[kind], WRITE[kind], STORED[kind], NEAREST[ties]

    @device
    def kernel(p, b, tid, nt):
        x, y = address(p, b, words.x), address(p, b, words.y)
        height, width, channels, out_height, out_width = (
            word(p, words.height),
            word(p, words.width),
            word(p, words.channels),
            word(p, words.out_height),
            word(p, words.out_width),
        )
        kernel_h, kernel_w, stride_h, stride_w = (
            word(p, words.kernel_h),
            word(p, words.kernel_w),
            word(p, words.stride_h),
            word(p, words.stride_w),
        )
        top, left, count_padding = word(p, words.top), word(p, words.left), word(p, words.padding_counts)
        sums = address(p, b, words.work) + tid * channels * 4
        ties_away, scale_in, scale_out = (
            word(p, words.ties_away),
            np.float32(real(p, words.scale_in)),
            np.float32(real(p, words.scale_out)),
        )
        zero_in, zero_out = np.int32(word(p, words.zero_in)), np.float32(word(p, words.zero_out))
        least, most = np.int32(word(p, words.least)), np.int32(word(p, words.most))
        low_real, high_real = np.float32(least), np.float32(most)
        bottom, right = word(p, words.bottom), word(p, words.right)
        low, high = share(word(p, words.batch) * out_height, tid, nt)
        for row in range(low, high):
            n, oh = row // out_height, row % out_height
            for ow in range(out_width):
                h0, w0 = oh * stride_h - top, ow * stride_w - left
                # The rows and columns of the window that are inside the input.
                ha, hb, wa, wb = max(h0, 0), min(h0 + kernel_h, height), max(w0, 0), min(w0 + kernel_w, width)
                inside = (hb - ha) * (wb - wa)
                count = inside
                if count_padding != 0:
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

    return kernel


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
    words = SOFTMAX.place
    read, write, stored = READ[variant], WRITE[variant], STORED[variant]

    @device_reassociated
    def kernel(p, b, tid, nt):
        x, y, length, table = (
            address(p, b, words.x),
            address(p, b, words.y),
            word(p, words.length),
            address(p, b, words.table),
        )
        inverse, zero = np.float32(real(p, words.inverse)), np.float32(word(p, words.zero))
        least, most = np.float32(word(p, words.least)), np.float32(word(p, words.most))
        low, high = share(word(p, words.rows), tid, nt)
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

    return kernel


@generated
def softmax_of_integers(target: Target, variant: str) -> Any:
    """Compute softmax over the last axis in integers: exponentials from a table, quotients rounded half up."""
    words = SOFTMAX_OF_INTEGERS.place
    read, write, stored = READ[variant], WRITE[variant], STORED[variant]

    @device
    def kernel(p, b, tid, nt):
        x, y, length, table = (
            address(p, b, words.x),
            address(p, b, words.y),
            word(p, words.length),
            address(p, b, words.table),
        )
        factor, zero, least, most = (
            word(p, words.factor),
            word(p, words.zero),
            word(p, words.least),
            word(p, words.most),
        )
        low, high = share(word(p, words.rows), tid, nt)
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

    return kernel


@generated
def resize_bilinear(target: Target, variant: str) -> Any:
    """Resize bilinearly, NHWC, with weights of 11 fractional bits, rounded half up."""
    words = RESIZE_BILINEAR.place
    read, write, stored = READ[variant], WRITE[variant], STORED[variant]

    @device
    def kernel(p, b, tid, nt):
        x, y, height, width, channels = (
            address(p, b, words.x),
            address(p, b, words.y),
            word(p, words.height),
            word(p, words.width),
            word(p, words.channels),
        )
        out_height, out_width, rows, columns = (
            word(p, words.out_height),
            word(p, words.out_width),
            address(p, b, words.rows),
            address(p, b, words.columns),
        )
        low, high = share(word(p, words.batch) * out_height, tid, nt)
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

    return kernel
