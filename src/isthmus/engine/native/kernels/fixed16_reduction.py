"""Kernels on 16-bit fixed point that combine many elements into one: sums, means, pools, softmax.

Sums are kept in float64, which holds them exactly, and are rounded once.
"""

from __future__ import annotations

import numpy as np

from isthmus.engine.native.kernels import mathematics
from isthmus.engine.native.kernels.base import (
    address,
    device,
    fill_bytes,
    load_f32,
    load_f64,
    read_u16,
    real,
    share,
    store_f32,
    store_f64,
    word,
    write_u16,
)
from isthmus.engine.native.kernels.fixed16_elementwise import centred, f64, nearest
from isthmus.engine.native.kernels.mathematics import f32
from isthmus.engine.native.signatures.fixed16_reduction import AVERAGE_POOL, SOFTMAX, SUM

_HALF = f64(0.5)
_SUM, _AVERAGE_POOL, _SOFTMAX = SUM.place, AVERAGE_POOL.place, SOFTMAX.place


@device
def _add(sums, source, count, flip, zero):  # type: ignore[no-untyped-def]
    """Add `count` numbers to sums."""
    for i in range(count):
        store_f64(sums, i, load_f64(sums, i) + centred(read_u16(source, i), flip, zero))


@device
def reduce_sum(p, b, tid, nt):  # type: ignore[no-untyped-def]
    """Add up a middle axis, and divide by a number."""
    words = _SUM
    x, y, count, inner = address(p, b, words.x), address(p, b, words.y), word(p, words.count), word(p, words.inner)
    sums = address(p, b, words.work) + tid * inner * 8
    in_zero, in_flip = np.int32(word(p, words.in_zero)), np.uint16(word(p, words.in_flip))
    zero, flip = f64(word(p, words.out_zero)), np.uint16(word(p, words.out_flip))
    least, most = f64(word(p, words.least)), f64(word(p, words.most))
    ratio, divisor = real(p, words.ratio), f64(word(p, words.divisor))
    low, high = share(word(p, words.outer_count), tid, nt)
    for row in range(low, high):
        fill_bytes(sums, 0, inner * 8)
        if inner == 1:
            # Numbers of 16 bits are added up in whole numbers, which may be reordered.
            total = np.int64(0)
            for i in range(count):
                total += np.int64(np.int16(read_u16(x + row * count * 2, i) ^ in_flip))
            store_f64(sums, 0, f64(total - count * np.int64(in_zero)))
        else:
            for k in range(count):
                _add(sums, x + (row * count + k) * inner * 2, inner, in_flip, in_zero)
        result = y + row * inner * 2
        for i in range(inner):
            write_u16(result, i, nearest(load_f64(sums, i) * ratio / divisor, zero, least, most, flip))


@device
def average_pool(p, b, tid, nt):  # type: ignore[no-untyped-def]
    """Average-pool, NHWC."""
    words = _AVERAGE_POOL
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
    top, left, bottom, right = word(p, words.top), word(p, words.left), word(p, words.bottom), word(p, words.right)
    sums = address(p, b, words.work) + tid * channels * 8
    in_zero, in_flip = np.int32(word(p, words.in_zero)), np.uint16(word(p, words.in_flip))
    zero, flip = f64(word(p, words.out_zero)), np.uint16(word(p, words.out_flip))
    least, most, ratio = f64(word(p, words.least)), f64(word(p, words.most)), real(p, words.ratio)
    low, high = share(word(p, words.batch) * out_height, tid, nt)
    for row in range(low, high):
        n, oh = row // out_height, row % out_height
        for ow in range(out_width):
            h0, w0 = oh * stride_h - top, ow * stride_w - left
            # The rows and columns of the window that are inside the input.
            ha, hb, wa, wb = max(h0, 0), min(h0 + kernel_h, height), max(w0, 0), min(w0 + kernel_w, width)
            count = (hb - ha) * (wb - wa)
            if word(p, words.padding_counts) != 0:
                count = (min(h0 + kernel_h, height + bottom) - h0) * (min(w0 + kernel_w, width + right) - w0)
            fill_bytes(sums, 0, channels * 8)
            for h in range(ha, hb):
                for w in range(wa, wb):
                    _add(sums, x + ((n * height + h) * width + w) * channels * 2, channels, in_flip, in_zero)
            result, divisor = y + (row * out_width + ow) * channels * 2, f64(count)
            if word(p, words.ties_away) != 0:
                for c in range(channels):
                    mean = load_f64(sums, c) / divisor
                    mean = np.trunc(mean + (_HALF if mean >= 0 else -_HALF))
                    write_u16(result, c, nearest(mean, zero, least, most, flip))
            else:
                for c in range(channels):
                    write_u16(result, c, nearest(load_f64(sums, c) * ratio / divisor, zero, least, most, flip))


@device
def softmax(p, b, tid, nt):  # type: ignore[no-untyped-def]
    """Compute softmax over the last axis: exponentials in float32, their sum in float64."""
    words = _SOFTMAX
    x, y, length = address(p, b, words.x), address(p, b, words.y), word(p, words.length)
    powers = address(p, b, words.work) + tid * length * 4
    scale, inverse, in_flip = real(p, words.scale), real(p, words.inverse), np.uint16(word(p, words.in_flip))
    zero, flip = f64(word(p, words.out_zero)), np.uint16(word(p, words.out_flip))
    least, most = f64(word(p, words.least)), f64(word(p, words.most))
    low, high = share(word(p, words.rows), tid, nt)
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
            write_u16(result, i, nearest(f64(load_f32(powers, i)) * factor, zero, least, most, flip))
