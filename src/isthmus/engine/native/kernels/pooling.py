"""Pooling kernels: each output pixel combines the pixels of its window, all channels of a pixel at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.engine.native.kernels.base import accessor, address, device, generated, share, word
from isthmus.engine.native.kernels.elementwise import SIZES, reader, writer
from isthmus.engine.native.kernels.mathematics import f32, select, square_root
from isthmus.engine.native.signatures.elementwise import FLOATS
from isthmus.engine.native.signatures.pooling import POOL
from isthmus.engine.native.target import Target

_PIXELS = 4
"""The number of output pixels in each piece that is distributed to threads."""


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
def _next(w, h, d, across, down):  # type: ignore[no-untyped-def]
    """Return the next position in a window that is `across` wide and `down` high: column, row and plane."""
    w += 1
    if w == across:
        w = 0
        h += 1
        if h == down:
            h = 0
            d += 1
    return w, h, d


@device
def _window(out, stride, before, kernel, size):  # type: ignore[no-untyped-def]
    """Return the first input index of a window along an axis, and how many of its positions are inside the input."""
    start = out * stride - before
    return max(start, 0), min(start + kernel, size) - max(start, 0)


@device
def _counted(out, stride, before, kernel, size, after):  # type: ignore[no-untyped-def]
    """Return how many positions of a window are inside the padded input."""
    start = out * stride - before
    return min(start + kernel, size + after) - start


@generated
def pool(target: Target, variant: str) -> Any:
    """Pool windows. Variant: ``function_kind``, function one of max, avg, l2. Results of the last two are float32."""
    words = POOL.place
    name, _, kind = variant.partition("_")
    single, combine, finish = _functions(name, kind)
    scaled = name != "max"
    result = "f32" if scaled else kind
    read, write, size, out_size = reader(kind, target), writer(result, target), SIZES[kind], SIZES[result]
    load, store = accessor("load", result, target), accessor("store", result, target)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        batch, channels, edges = word(p, words.batch), word(p, words.channels), word(p, words.padding_counts)
        in_d, out_d = word(p, words.depth), word(p, words.depth + 1)
        in_h, out_h = word(p, words.height), word(p, words.height + 1)
        in_w, out_w = word(p, words.width), word(p, words.width + 1)
        pixels = batch * out_d * out_h * out_w
        first, last = share((pixels + _PIXELS - 1) // _PIXELS, tid, nt)
        first, last = first * _PIXELS, min(last * _PIXELS, pixels)
        pixel_bytes = channels * size
        row_bytes = in_w * pixel_bytes
        plane_bytes = in_h * row_bytes
        while first < last:
            line = first // out_w
            column = first - line * out_w
            end = min(out_w, column + last - first)
            y0, rest = line % out_h, line // out_h
            z0 = rest % out_d
            # Along each axis, where the window begins and how long it is inside the input.
            z, deep = _window(z0, word(p, words.depth + 3), word(p, words.depth + 4), word(p, words.depth + 2), in_d)
            y, down = _window(y0, word(p, words.height + 3), word(p, words.height + 4), word(p, words.height + 2), in_h)
            corner = address(p, b, words.x) + (rest // out_d * in_d + z) * plane_bytes + y * row_bytes
            # The rows of the padded input in the window, for means that count padding.
            lines = _counted(
                z0,
                word(p, words.depth + 3),
                word(p, words.depth + 4),
                word(p, words.depth + 2),
                in_d,
                word(p, words.depth + 5),
            )
            lines *= _counted(
                y0,
                word(p, words.height + 3),
                word(p, words.height + 4),
                word(p, words.height + 2),
                in_h,
                word(p, words.height + 5),
            )
            for x0 in range(column, end):
                at, across = _window(
                    x0, word(p, words.width + 3), word(p, words.width + 4), word(p, words.width + 2), in_w
                )
                taps = deep * down * across
                counted = lines * _counted(
                    x0,
                    word(p, words.width + 3),
                    word(p, words.width + 4),
                    word(p, words.width + 2),
                    in_w,
                    word(p, words.width + 5),
                )
                factor = f32(1) / f32(counted if edges else taps)
                x = corner + at * pixel_bytes
                out = address(p, b, words.output) + (line * out_w + x0) * channels * out_size
                w, h, d = 0, 0, 0
                done = 0
                # Four positions at a time; the first four need no earlier result.
                while taps - done >= 4:
                    p0 = x + d * plane_bytes + h * row_bytes + w * pixel_bytes
                    w, h, d = _next(w, h, d, across, down)
                    p1 = x + d * plane_bytes + h * row_bytes + w * pixel_bytes
                    w, h, d = _next(w, h, d, across, down)
                    p2 = x + d * plane_bytes + h * row_bytes + w * pixel_bytes
                    w, h, d = _next(w, h, d, across, down)
                    p3 = x + d * plane_bytes + h * row_bytes + w * pixel_bytes
                    w, h, d = _next(w, h, d, across, down)
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
                    p0 = x + d * plane_bytes + h * row_bytes + w * pixel_bytes
                    w, h, d = _next(w, h, d, across, down)
                    if done == 0:
                        for c in range(channels):
                            write(out, c, single(read(p0, c)))
                    else:
                        for c in range(channels):
                            store(out, c, combine(load(out, c), single(read(p0, c))))
                    done += 1
                if scaled:
                    for c in range(channels):
                        store(out, c, finish(load(out, c), factor))
            first += end - column

    return kernel
