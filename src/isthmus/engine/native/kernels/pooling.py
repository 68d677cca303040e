"""Pooling kernels: each output pixel combines the pixels of its window, all channels of a pixel at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.engine.native.kernels.base import accessor, device, generated, kernel, share
from isthmus.engine.native.kernels.elementwise import SIZES, reader, writer
from isthmus.engine.native.kernels.mathematics import f32, select, square_root
from isthmus.engine.native.signatures.elementwise import FLOATS
from isthmus.engine.native.signatures.pooling import POOL
from isthmus.engine.native.target import Target

_INPUT, _OUTPUT, _WINDOW, _STRIDE, _BEFORE, _AFTER = range(6)
"""The words of an axis, in the order of the signature: sizes of input and output, window, stride, padding."""
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
def _window(axis, out):
    """Return the first input index of window `out` along an axis, and how many of its positions are inside."""
    start = out * axis[_STRIDE] - axis[_BEFORE]
    first = max(start, 0)
    return first, min(start + axis[_WINDOW], axis[_INPUT]) - first


@device
def _counted(axis, out):
    """Return how many positions of window `out` along an axis are inside the padded input."""
    start = out * axis[_STRIDE] - axis[_BEFORE]
    return min(start + axis[_WINDOW], axis[_INPUT] + axis[_AFTER]) - start


@generated
def pool(target: Target, variant: str) -> Any:
    """Pool windows. The variant is ``function_kind``: max, avg or l2, and the kind of elements.

    Results of avg and l2 are float32.
    """
    name, _, kind = variant.partition("_")
    single, combine, finish = _functions(name, kind)
    scaled = name != "max"
    result = "f32" if scaled else kind
    read, write, size, out_size = reader(kind, target), writer(result, target), SIZES[kind], SIZES[result]
    load, store = accessor("load", result, target), accessor("store", result, target)

    @kernel(POOL)
    def execute(output, x, batch, channels, padding_counts, depth, height, width, tid, nt):
        in_d, out_d = depth[_INPUT], depth[_OUTPUT]
        in_h, out_h = height[_INPUT], height[_OUTPUT]
        in_w, out_w = width[_INPUT], width[_OUTPUT]
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
            z, deep = _window(depth, z0)
            y, down = _window(height, y0)
            corner = x + (rest // out_d * in_d + z) * plane_bytes + y * row_bytes
            # The rows of the padded input in the window, for means that count padding.
            lines = _counted(depth, z0) * _counted(height, y0)
            for x0 in range(column, end):
                at, across = _window(width, x0)
                taps = deep * down * across
                counted = lines * _counted(width, x0)
                factor = f32(1) / f32(counted if padding_counts else taps)
                window = corner + at * pixel_bytes
                out = output + (line * out_w + x0) * channels * out_size
                w, h, d = 0, 0, 0
                done = 0
                # Four positions at a time; the first four need no earlier result.
                while taps - done >= 4:
                    p0 = window + d * plane_bytes + h * row_bytes + w * pixel_bytes
                    w, h, d = _next(w, h, d, across, down)
                    p1 = window + d * plane_bytes + h * row_bytes + w * pixel_bytes
                    w, h, d = _next(w, h, d, across, down)
                    p2 = window + d * plane_bytes + h * row_bytes + w * pixel_bytes
                    w, h, d = _next(w, h, d, across, down)
                    p3 = window + d * plane_bytes + h * row_bytes + w * pixel_bytes
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
                    p0 = window + d * plane_bytes + h * row_bytes + w * pixel_bytes
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

    return execute
