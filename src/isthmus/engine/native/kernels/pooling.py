"""Pooling kernels: each output pixel combines the pixels of its window, all channels of a pixel at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.engine.native.kernels import base
from isthmus.engine.native.kernels.base import accessor, device, generated, kernel, share
from isthmus.engine.native.kernels.mathematics import f32, select, square_root
from isthmus.engine.native.kernels.quantized_reduction import kinds_of, wide_number
from isthmus.engine.native.kernels.storage import NEAREST, READ, SIZE, STORED, WRITE, f64, reader, writer
from isthmus.engine.native.signatures.elementwise import FLOATS
from isthmus.engine.native.signatures.pooling import POOL
from isthmus.engine.native.target import Target

# The words of an axis, in the order of the signature: sizes of input and output, window, stride, padding.
_INPUT, _OUTPUT, _WINDOW, _STRIDE, _BEFORE, _AFTER = range(6)
# The number of output pixels in each piece that is distributed to threads.
_PIXELS = 4


@device
def _place(window, position, steps):
    """Return the address of a position in a window: column, row and plane, with the bytes between those."""
    return window + position[2] * steps[2] + position[1] * steps[1] + position[0] * steps[0]


@device
def _next(position, extents):
    """Return the next position in a window of these extents."""
    w, h, d = position
    w += 1
    if w == extents[0]:
        w = 0
        h += 1
        if h == extents[1]:
            h = 0
            d += 1
    return w, h, d


def _functions(name: str, kind: str) -> tuple[Callable, Callable, Callable]:
    """Return three functions: what is taken of an element, how two are combined, and what the result is, given the
    combined elements and the reciprocal of their number.
    """
    keep = device(lambda x: x)
    if name == "avg":
        return keep, device(lambda a, b: a + b), device(lambda x, r: x * r)
    if name == "l2":
        return device(lambda x: x * x), device(lambda a, b: a + b), device(lambda x, r: square_root(x * r))
    larger = device(lambda a, b: select(a > b, a, b)) if kind in FLOATS else device(lambda a, b: max(a, b))
    return keep, larger, device(lambda x, r: x)


@device
def _window(axis, out):
    """Return the first input index of window `out` along an axis, and how many of its positions are inside."""
    start = out * axis[_STRIDE] - axis[_BEFORE]
    first = max(start, 0)
    return first, min(start + axis[_WINDOW], axis[_INPUT]) - first


@device
def _count_within(axis, out):
    """Return how many positions of window `out` along an axis are inside the padded input."""
    start = out * axis[_STRIDE] - axis[_BEFORE]
    return min(start + axis[_WINDOW], axis[_INPUT] + axis[_AFTER]) - start


def _plain(name: str, kind: str, target: Target) -> Callable:
    """Return the function that pools a window of plain numbers by max, avg or l2. Results of avg and l2 are float32.

    Arguments: result, window, its columns, rows and planes, bytes between these, channels, positions inside the input,
    positions that count, sums in work space, and the words about fixed-point elements.
    """
    single, combine, finish = _functions(name, kind)
    scaled = name != "max"
    result = "f32" if scaled else kind
    read, write = reader(kind, target), writer(result, target)
    load, store = accessor("load", result, target), accessor("store", result, target)

    @device
    def pool_window(out, window, extents, steps, channels, taps, counted, _sums, _storage):
        position = 0, 0, 0
        done = 0
        # Four positions at a time; the first four need no earlier result.
        while taps - done >= 4:
            p0 = _place(window, position, steps)
            position = _next(position, extents)
            p1 = _place(window, position, steps)
            position = _next(position, extents)
            p2 = _place(window, position, steps)
            position = _next(position, extents)
            p3 = _place(window, position, steps)
            position = _next(position, extents)
            if done == 0:
                for c in range(channels):
                    a, e = combine(single(read(p0, c)), single(read(p1, c))), single(read(p2, c))
                    write(out, c, combine(a, combine(e, single(read(p3, c)))))
            else:
                for c in range(channels):
                    a, e = combine(single(read(p0, c)), single(read(p1, c))), single(read(p2, c))
                    store(out, c, combine(load(out, c), combine(a, combine(e, single(read(p3, c))))))
            done += 4
        while done < taps:
            p0 = _place(window, position, steps)
            position = _next(position, extents)
            if done == 0:
                for c in range(channels):
                    write(out, c, single(read(p0, c)))
            else:
                for c in range(channels):
                    store(out, c, combine(load(out, c), single(read(p0, c))))
            done += 1
        if scaled:
            factor = f32(1) / f32(counted)
            for c in range(channels):
                store(out, c, finish(load(out, c), factor))

    return pool_window


def _byte_means(source: str, goal: str, ties: str) -> tuple[Callable, Callable]:
    """Return the functions that add up bytes of a pixel, and that write means.

    If `ties_away`, they are means of stored values, rounded half away from zero; else means of reals, in float32.
    """
    read, write, stored, nearest = READ[source], WRITE[goal], STORED[goal], NEAREST[ties]

    @device
    def add(sums, pixel, channels, storage):
        ties_away, scale, _, zero, _, _, _ = storage
        if ties_away != 0:
            for c in range(channels):
                base.store_i32(sums, c, base.load_i32(sums, c) + np.int32(read(pixel, c)))
        else:
            for c in range(channels):
                term = f32(np.int32(read(pixel, c)) - np.int32(zero)) * f32(scale)
                base.store_f32(sums, c, base.load_f32(sums, c) + term)

    @device
    def write_means(result, sums, channels, count, outside, storage):
        ties_away, _, scale, zero_in, zero, least, most = storage
        if ties_away != 0:
            half = np.int32(count // 2)
            for c in range(channels):
                total = base.load_i32(sums, c) + np.int32(outside) * np.int32(zero_in)
                signed_half = half if total >= 0 else -half
                # Division truncates towards zero, as in C.
                value = np.int32(f64(total + signed_half) / f64(count))
                write(result, c, stored(min(max(value, np.int32(least)), np.int32(most))))
        else:
            divisor = f32(count)
            for c in range(channels):
                value = nearest(base.load_f32(sums, c) / divisor / f32(scale)) + f32(zero)
                write(result, c, stored(np.int32(min(max(value, f32(least)), f32(most)))))

    return add, write_means


def _wide_means(source: str, goal: str, ties: str) -> tuple[Callable, Callable]:
    """Return the same functions for 16-bit numbers; sums are kept in 64 bits, and are exact."""
    read, write, number, half = READ[source], WRITE[goal], wide_number(goal, ties), f64(0.5)

    @device
    def add(sums, pixel, channels, storage):
        zero = storage[3]
        for c in range(channels):
            base.store_i64(sums, c, base.load_i64(sums, c) + (np.int64(read(pixel, c)) - zero))

    @device
    def write_means(result, sums, channels, count, _outside, storage):
        ties_away, _, scale, _, zero, least, most = storage
        divisor = f64(count)
        if ties_away != 0:
            for c in range(channels):
                mean = f64(base.load_i64(sums, c)) / divisor
                mean = np.trunc(mean + (half if mean >= 0 else -half))
                write(result, c, number(mean, zero, least, most))
        else:
            for c in range(channels):
                write(result, c, number(f64(base.load_i64(sums, c)) * scale / divisor, zero, least, most))

    return add, write_means


def _mean(source: str, goal: str, ties: str) -> Callable:
    """Return the function that writes the means of a window of fixed-point elements."""
    sum_size = 4 * SIZE[source]
    add, write_means = (_byte_means if SIZE[source] == 1 else _wide_means)(source, goal, ties)

    @device
    def pool_window(out, window, extents, steps, channels, taps, counted, sums, storage):
        base.fill_bytes(sums, 0, channels * sum_size)
        for d in range(extents[2]):
            for h in range(extents[1]):
                pixel = _place(window, (0, h, d), steps)
                for _ in range(extents[0]):
                    add(sums, pixel, channels, storage)
                    pixel += steps[0]
        write_means(out, sums, channels, counted, counted - taps, storage)

    return pool_window


@generated
def pool(target: Target, variant: str) -> Any:
    """Pool windows. The variant is ``function_kind``: max, avg or l2, and the kind of elements; or ``mean`` and the
    stored types of fixed-point elements, and how halves are rounded unless `ties_away`.
    """
    name, _, kind = variant.partition("_")
    sizes = POOL.variants[variant]
    size, out_size, sum_size = sizes["size"], sizes["out_size"], sizes["sum_size"]
    pool_window = _mean(*kinds_of(kind)) if name == "mean" else _plain(name, kind, target)

    @kernel(POOL)
    def execute(
        output, x, batch, channels, padding_counts, depth, height, width, work, ties_away, scale_in, scale_out, zero_in,
        zero, least, most, tid, nt,
    ):  # fmt: skip
        storage = ties_away, scale_in, scale_out, zero_in, zero, least, most
        sums = work + tid * channels * sum_size
        in_d, out_d = depth[_INPUT], depth[_OUTPUT]
        in_h, out_h = height[_INPUT], height[_OUTPUT]
        in_w, out_w = width[_INPUT], width[_OUTPUT]
        pixels = batch * out_d * out_h * out_w
        first, last = share((pixels + _PIXELS - 1) // _PIXELS, tid, nt)
        first, last = first * _PIXELS, min(last * _PIXELS, pixels)
        pixel_bytes = channels * size
        row_bytes = in_w * pixel_bytes
        steps = pixel_bytes, row_bytes, in_h * row_bytes
        while first < last:
            line = first // out_w
            column = first - line * out_w
            end = min(out_w, column + last - first)
            y0, rest = line % out_h, line // out_h
            z0 = rest % out_d
            # Along each axis, where the window begins and how long it is inside the input.
            z, deep = _window(depth, z0)
            y, down = _window(height, y0)
            corner = x + (rest // out_d * in_d + z) * steps[2] + y * row_bytes
            # The rows of the padded input in the window, for means that count padding.
            lines = _count_within(depth, z0) * _count_within(height, y0)
            for x0 in range(column, end):
                at, across = _window(width, x0)
                taps = deep * down * across
                counted = lines * _count_within(width, x0) if padding_counts else taps
                out = output + (line * out_w + x0) * channels * out_size
                window = corner + at * pixel_bytes
                pool_window(out, window, (across, down, deep), steps, channels, taps, counted, sums, storage)
            first += end - column

    return execute
