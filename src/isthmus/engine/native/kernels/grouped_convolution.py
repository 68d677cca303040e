"""Convolutions of floats in groups so small that a vector holds several, each with as many filters as channels.

A vector of a pixel's channels is permuted for each step of the depth, so that each lane has a channel of its own group.
Addresses are listed as in `convolution`, once for all groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from isthmus.engine.native.kernels.base import F32, I32, I64, generated, kernel, share
from isthmus.engine.native.kernels.convolution import list_tiles_of
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.signatures.grouped_convolution import CONVOLVE, ROWS
from isthmus.engine.native.target import Target

# The instruction that moves any lane to any other, by lanes.
_PERMUTATIONS = {8: "llvm.x86.avx2.permps", 16: "llvm.x86.avx512.permvar.sf.512"}


def _permute(code: VectorCode, row: Any, order: Any) -> Any:
    """Return the vector at `row` with its lanes in an order."""
    if code.lanes in _PERMUTATIONS:
        return code.call(_PERMUTATIONS[code.lanes], code.floats, [code.load(row), order])
    value = ir.Constant(code.floats, ir.Undefined)
    for lane in range(code.lanes):
        place = code.number(lane, I32)
        number = code.builder.zext(code.builder.extract_element(order, place), I64)
        element = code.load(code.plus(row, code.times(number, 4)), F32)
        value = code.builder.insert_element(value, element, place)
    return value


def _tile(target: Target) -> Callable:
    """Return a micro-kernel that multiplies gathered rows by a panel of a vector.

    Arguments: the list of addresses (for each tap one for each row), taps, channels of a group, panel with its bias,
    the list of the results' addresses, bytes to add to all addresses, least, most.
    """

    def emit(
        code: VectorCode, addresses: Any, taps: Any, group: Any, panel: Any, goals: Any, shift: Any, least: Any,
        most: Any,
    ) -> None:  # fmt: skip
        builder, width = code.builder, 4 * code.lanes
        kind = vector_type(I32, code.lanes)
        # Groups have a power of two of channels, because vectors have whole groups.
        numbers = ir.Constant(kind, list(range(code.lanes)))
        size = code.splat(builder.trunc(group, I32))
        first = builder.and_(numbers, builder.sub(ir.Constant(kind, None), size))
        outer = code.loop(taps, [addresses, code.plus(panel, width), *[code.load(panel)] * ROWS])
        entry = outer.values[0]
        rows = [code.plus(code.load(entry, I64, 8 * m), shift) for m in range(ROWS)]
        inner = code.loop(group, [first, *outer.values[1:]])
        order, place, *sums = inner.values
        weights = code.load(place)
        sums = [code.fma(_permute(code, row, order), weights, value) for row, value in zip(rows, sums, strict=True)]
        last = inner.end([builder.add(order, code.constant(1, kind)), code.plus(place, width), *sums])[1:]
        sums = outer.end([code.plus(entry, 8 * ROWS), *last])[2:]
        low, high = code.splat(least), code.splat(most)
        for m, value in enumerate(sums):
            code.store(code.clamp(value, low, high), code.plus(code.load(goals, I64, 8 * m), shift))

    return outlined("grouped_tile", "iiiiiiff", target, emit)


@generated
def convolve(target: Target, _variant: str) -> Any:
    """Convolve. Rows of the product are pixels of the result; a panel has a vector of neighbouring filters.

    Each thread computes its tiles in blocks of `tile_block`: it lists the addresses of a block, then multiplies all its
    tiles by each panel of weights. A panel has a bias for each filter, and then the weights of all taps.
    """
    lanes = target.lanes
    tile, list_tiles = _tile(target), list_tiles_of(ROWS)

    @kernel(CONVOLVE)
    def execute(
        x, panels, result, zeros, work, work_bytes, tile_block, batches, size, out, kernel, stride, dilation, pad,
        channels, group, least: np.float32, most: np.float32, tid, nt,
    ):  # fmt: skip
        pixel = channels * 4
        geometry = size, kernel, stride, dilation, pad, pixel, False
        steps = out[0] * out[1] * out[2] * pixel, out[1] * out[2] * pixel, out[2] * pixel, pixel
        lists = work + tid * work_bytes
        rows, taps = batches * out[0] * out[1] * out[2], kernel[0] * kernel[1] * kernel[2]
        list_bytes, panel_bytes = (taps + 1) * ROWS * 8, (taps * group + 1) * lanes * 4
        begin, last = share((rows + ROWS - 1) // ROWS, tid, nt)
        while begin < last:
            end = min(begin + tile_block, last)
            list_tiles(geometry, out, steps, x, zeros, result, lists, 0, taps, begin, end, rows)
            for panel in range((channels + lanes - 1) // lanes):
                # The last vector is moved back, so some filters are computed twice.
                first = min(panel * lanes, channels - lanes)
                for i in range(end - begin):
                    entry = lists + i * list_bytes
                    tile(
                        entry, taps, group, panels + panel * panel_bytes, entry + taps * ROWS * 8, first * 4, least,
                        most,
                    )  # fmt: skip
            begin = end

    return execute
