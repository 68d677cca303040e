"""Kernels on 16-bit fixed point that combine many elements into one: sums, means, softmax.

Sums are kept in float64, which holds them exactly, and are rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels import mathematics
from isthmus.engine.native.kernels.base import (
    device,
    fill_bytes,
    generated,
    kernel,
    load_f32,
    load_f64,
    read_u16,
    share,
    store_f32,
    store_f64,
    write_u16,
)
from isthmus.engine.native.kernels.fixed16_elementwise import centred, f64, nearest, nearest_of
from isthmus.engine.native.kernels.mathematics import f32
from isthmus.engine.native.signatures.fixed16_reduction import SOFTMAX, SUM
from isthmus.engine.native.target import Target


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


@kernel(SOFTMAX)
def softmax(
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
