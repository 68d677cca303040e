"""Matrix products in float32: `packed` multiplies by panels, `pack` makes panels of a matrix known only at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from isthmus.engine.native.kernels.base import (
    I32,
    address,
    device,
    generated,
    load_f32,
    load_i64,
    real,
    share,
    store_f32,
    word,
)
from isthmus.engine.native.kernels.gemm import dense_tile, divide_work, shape_of, single_row
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.signatures.matmul import PACK, PACKED, VECTOR
from isthmus.engine.native.target import Target

_CHAINS = 4
"""The number of sums per vector that `single_row` computes independently."""
_INFINITY = np.float32(np.inf)


@generated
def packed(target: Target, variant: str) -> Any:
    """Compute ``c = clamp(a @ b + bias)`` for a batch of matrices; the variant names the tile, ``rows x vectors``."""
    words = PACKED.place
    height, vectors = shape_of(variant)
    half = max(1, height // 2)
    width = vectors * target.lanes
    tile, half_tile = dense_tile(target, height, vectors), dense_tile(target, half, vectors)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        a_base, panel_base, c_base = address(p, b, words.a), address(p, b, words.panels), address(p, b, words.c)
        table, batches, m, n, depth = (
            address(p, b, words.table),
            word(p, words.batches),
            word(p, words.rows),
            word(p, words.columns),
            word(p, words.depth),
        )
        a_row, a_column, c_row, block, depth_block = (
            word(p, words.a_row),
            word(p, words.a_column),
            word(p, words.c_row),
            word(p, words.tile_block),
            word(p, words.depth_block),
        )
        least, most = np.float32(real(p, words.least)), np.float32(real(p, words.most))
        tiles, panels = (m + height - 1) // height, (n + width - 1) // width
        panel_bytes = (depth + 1) * width * 4
        first, last, first_panel, last_panel = divide_work(batches * tiles, panels, n > m * batches, tid, nt)
        while first < last:
            batch = first // tiles
            begin = first - batch * tiles
            end = min(begin + block, min(tiles, begin + last - first))
            a, panel, c = a_base, panel_base, c_base
            if table != 0:
                a += load_i64(table, 3 * batch)
                panel += load_i64(table, 3 * batch + 1)
                c += load_i64(table, 3 * batch + 2)
            # The depth is summed in parts. Sums wait in the result, so only the last part is clamped.
            done = 0
            while done < depth:
                part = min(depth - done, depth_block)
                low, high = -_INFINITY, _INFINITY
                if done + part == depth:
                    low, high = least, most
                for j in range(first_panel, last_panel):
                    bias, columns = panel + j * panel_bytes, n - j * width
                    right = bias + (1 + done) * width * 4
                    if done > 0:
                        bias = 0
                    for i in range(begin, end):
                        row = i * height
                        x, y = a + row * a_row + done * a_column, c + row * c_row + j * width * 4
                        if m - row > half:
                            tile(x, a_row, a_column, part, bias, right, y, c_row, m - row, columns, low, high)
                        else:
                            half_tile(x, a_row, a_column, part, bias, right, y, c_row, m - row, columns, low, high)
                done += part
            first += end - begin

    return kernel


@generated
def vector(target: Target, variant: str) -> Any:
    """Compute ``c = clamp(a @ b + bias)`` where each a is one row; the variant is the number of vectors in a panel.

    The operands are those of `packed`; rows, bytes between rows and blocks are not used.
    """
    words = VECTOR.place
    vectors = int(variant)
    width = vectors * target.lanes
    tile = single_row(target, vectors, _CHAINS)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        a_base, panel_base, c_base = address(p, b, words.a), address(p, b, words.panels), address(p, b, words.c)
        table, batches, n, depth, a_column = (
            address(p, b, words.table),
            word(p, words.batches),
            word(p, words.columns),
            word(p, words.depth),
            word(p, words.a_column),
        )
        least, most = np.float32(real(p, words.least)), np.float32(real(p, words.most))
        panels = (n + width - 1) // width
        first, last = share(batches * panels, tid, nt)
        for i in range(first, last):
            batch = i // panels
            j = i - batch * panels
            a, panel, c = a_base, panel_base + j * (depth + 1) * width * 4, c_base + j * width * 4
            if table != 0:
                a += load_i64(table, 3 * batch)
                panel += load_i64(table, 3 * batch + 1)
                c += load_i64(table, 3 * batch + 2)
            tile(a, a_column, depth, panel, c, n - j * width, least, most)

    return kernel


def _transposed_square(target: Target) -> Callable:
    """Return a micro-kernel that transposes a square of lanes x lanes floats.

    Arguments: source, bytes between its rows, destination, bytes between its rows.
    """
    lanes = target.lanes

    def emit(code: VectorCode, source: Any, source_row: Any, goal: Any, goal_row: Any) -> None:
        rows = [code.load(code.plus(source, code.times(source_row, i))) for i in range(lanes)]
        distance = lanes // 2
        while distance:
            # Swap the off-diagonal quarters of each square of twice the distance.
            upper = [i if not i & distance else i - distance + lanes for i in range(lanes)]
            lower = [i + distance if not i & distance else i + lanes for i in range(lanes)]
            for i in range(lanes):
                if not i & distance:
                    pair = rows[i], rows[i + distance]
                    rows[i], rows[i + distance] = (
                        code.builder.shuffle_vector(*pair, ir.Constant(vector_type(I32, lanes), order))
                        for order in (upper, lower)
                    )
            distance //= 2
        for i, row in enumerate(rows):
            code.store(row, code.plus(goal, code.times(goal_row, i)))

    return outlined("transposed_square", "iiii", target, emit)


@generated
def pack(target: Target, variant: str) -> Any:
    """Pack matrices into panels, each with its bias in front; the variant is the number of vectors in a panel.

    Rows (`column` is 4 bytes) are copied; columns (`row` is 4 bytes) are transposed in squares.
    """
    words = PACK.place
    lanes = target.lanes
    width = int(variant) * lanes
    square = _transposed_square(target)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        source_base, bias, goal_base, table = (
            address(p, b, words.b),
            address(p, b, words.bias),
            address(p, b, words.panels),
            address(p, b, words.table),
        )
        batches, n, depth, row, column = (
            word(p, words.batches),
            word(p, words.columns),
            word(p, words.depth),
            word(p, words.row),
            word(p, words.column),
        )
        panels = (n + width - 1) // width
        first, last = share(batches * panels, tid, nt)
        for i in range(first, last):
            batch = i // panels
            j = i - batch * panels
            source = source_base + load_i64(table, 2 * batch) + j * width * column
            goal = goal_base + load_i64(table, 2 * batch + 1) + j * (depth + 1) * width * 4
            columns = min(n - j * width, width)
            for c in range(width):
                value = np.float32(0)
                if bias != 0 and c < columns:
                    value = load_f32(bias, j * width + c)
                store_f32(goal, c, value)
            goal += width * 4
            if column == 4:
                for k in range(depth):
                    for c in range(columns):
                        store_f32(goal + k * width * 4, c, load_f32(source + k * row, c))
                    for c in range(columns, width):
                        store_f32(goal + k * width * 4, c, np.float32(0))
                continue
            done = 0
            square_depth = depth // lanes * lanes
            if row == 4:
                while done + lanes <= columns:
                    for s in range(square_depth // lanes):
                        k = s * lanes
                        square(source + done * column + k * 4, column, goal + (k * width + done) * 4, width * 4)
                    for k in range(square_depth, depth):
                        for c in range(done, done + lanes):
                            store_f32(goal, k * width + c, load_f32(source + c * column, k))
                    done += lanes
            for k in range(depth):
                for c in range(done, columns):
                    store_f32(goal, k * width + c, load_f32(source + c * column + k * row, 0))
                for c in range(columns, width):
                    store_f32(goal, k * width + c, np.float32(0))

    return kernel
