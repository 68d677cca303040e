"""Matrix products: `packed` multiplies by panels, `pack` makes panels of a matrix known only at run time.

If operands and results have 16 bits, left rows are converted to float32 in work space, a block of tiles at a
time, and the depth is summed as a whole: sums that wait in the result would be rounded more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from isthmus.engine.native.kernels import base
from isthmus.engine.native.kernels.base import accessor, generated, kernel, share
from isthmus.engine.native.kernels.gemm import dense_tile, divide_work, form_of, shape_of, single_row, staging
from isthmus.engine.native.kernels.nibble_floats import nibble_panel_bytes, nibble_row, unpacker
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.signatures.elementwise import SIZES
from isthmus.engine.native.signatures.matmul import PACK, PACKED, VECTOR
from isthmus.engine.native.target import Target

# The number of sums per vector that `single_row` computes independently.
_CHAINS = 4
_INFINITY = np.float32(np.inf)


@generated
def packed(target: Target, variant: str) -> Any:
    """Compute ``c = clamp(a @ b + bias)`` for a batch of matrices; the variant names the tile, ``rows x vectors``.

    After it comes the kind of operands of 16 bits, as in ``8x3_f16``. In ``8x3_nibbles``, floats are multiplied by
    panels of 4-bit weights, of which parts are dequantized into work space.
    """
    shape, kind, nibbles = form_of(variant)
    height, vectors = shape_of(shape)
    half = max(1, height // 2)
    width = vectors * target.lanes
    tile, half_tile = dense_tile(target, height, vectors, kind), dense_tile(target, half, vectors, kind)
    size, staged, stage = SIZES[kind], kind != "f32", staging(target, kind)
    dequantize = unpacker(target, vectors)

    @kernel(PACKED)
    def execute(
        a, panels, c, table, batches, rows, columns, depth, a_row, a_column, c_row, tile_block, depth_block,
        work, work_bytes, block, least: np.float32, most: np.float32, tid, nt,
    ):  # fmt: skip
        tiles, panel_count = (rows + height - 1) // height, (columns + width - 1) // width
        panel_bytes = nibble_panel_bytes(depth, block, width) if nibbles else (4 + depth * size) * width
        # Left rows, or a part of the weights, as float32.
        own_work = work + tid * work_bytes
        by_columns = columns > rows * batches
        first, last, first_panel, last_panel = divide_work(batches * tiles, panel_count, by_columns, tid, nt)
        while first < last:
            batch = first // tiles
            begin = first - batch * tiles
            end = min(begin + tile_block, min(tiles, begin + last - first))
            left, panel, goal = a, panels, c
            if table != 0:
                left += base.load_i64(table, 3 * batch)
                panel += base.load_i64(table, 3 * batch + 1)
                goal += base.load_i64(table, 3 * batch + 2)
            left, left_row, left_column = left + begin * height * a_row, a_row, a_column
            if staged:
                count = min(rows, end * height) - begin * height
                if a_column == size and a_row == depth * size:
                    stage(left, size, own_work, count * depth)
                else:
                    for i in range(count):
                        stage(left + i * a_row, a_column, own_work + i * depth * 4, depth)
                left, left_row, left_column = own_work, depth * 4, 4
            # The depth is summed in parts. Sums wait in the result, so only the last part is clamped.
            done = 0
            while done < depth:
                part = min(depth - done, depth_block)
                low, high = -_INFINITY, _INFINITY
                if done + part == depth:
                    low, high = least, most
                for j in range(first_panel, last_panel):
                    bias, present = panel + j * panel_bytes, columns - j * width
                    right = bias + (4 + done * size) * width
                    if nibbles:
                        right = dequantize(bias, depth, block, done, done + part, own_work)
                    if done > 0:
                        bias = 0
                    for i in range(begin, end):
                        row = i * height
                        x = left + (i - begin) * height * left_row + done * left_column
                        y = goal + row * c_row + j * width * size
                        if rows - row > half:
                            tile(x, left_row, left_column, part, bias, right, y, c_row, rows - row, present, low, high)
                        else:
                            half_tile(
                                x, left_row, left_column, part, bias, right, y, c_row, rows - row, present, low, high
                            )
                done += part
            first += end - begin

    return execute


@generated
def vector(target: Target, variant: str) -> Any:
    """Compute ``c = clamp(a @ b + bias)`` where each a is one row; the variant is the number of vectors in a panel.

    After it comes the kind of operands of 16 bits, as in ``2_f16``; in ``2_nibbles``, 4-bit weights are dequantized in
    registers. The operands are those of `packed`; rows, bytes between rows and blocks are not used.
    """
    shape, kind, nibbles = form_of(variant)
    vectors = int(shape)
    width = vectors * target.lanes
    tile = nibble_row(target, vectors) if nibbles else single_row(target, vectors, _CHAINS, kind)
    size, staged, stage = SIZES[kind], kind != "f32", staging(target, kind)

    @kernel(VECTOR)
    def execute(
        a, panels, c, table, batches, columns, depth, a_column, work, work_bytes, block, least: np.float32,
        most: np.float32, tid, nt,
    ):  # fmt: skip
        panel_bytes = nibble_panel_bytes(depth, block, width) if nibbles else (4 + depth * size) * width
        panel_count = (columns + width - 1) // width
        first, last = share(batches * panel_count, tid, nt)
        for i in range(first, last):
            batch = i // panel_count
            j = i - batch * panel_count
            left, panel, goal = a, panels + j * panel_bytes, c + j * width * size
            if table != 0:
                left += base.load_i64(table, 3 * batch)
                panel += base.load_i64(table, 3 * batch + 1)
                goal += base.load_i64(table, 3 * batch + 2)
            step = a_column
            if staged:
                row = work + tid * work_bytes
                if i == first or j == 0:
                    stage(left, a_column, row, depth)
                left, step = row, 4
            tile(left, step, depth, block, panel, goal, columns - j * width, least, most)

    return execute


def _transposed_square(target: Target, element: ir.Type) -> Callable:
    """Return a micro-kernel that transposes a square of lanes x lanes elements.

    Arguments: source, bytes between its rows, destination, bytes between its rows.
    """
    lanes = target.lanes

    def emit(code: VectorCode, source: Any, source_row: Any, goal: Any, goal_row: Any) -> None:
        kind = vector_type(element, lanes)
        rows = [code.load(code.plus(source, code.times(source_row, i)), kind) for i in range(lanes)]
        distance = lanes // 2
        while distance:
            # Swap the off-diagonal quarters of each square of twice the distance.
            upper = [i if not i & distance else i - distance + lanes for i in range(lanes)]
            lower = [i + distance if not i & distance else i + lanes for i in range(lanes)]
            for i in range(lanes):
                if not i & distance:
                    pair = rows[i], rows[i + distance]
                    rows[i], rows[i + distance] = (
                        code.builder.shuffle_vector(*pair, ir.Constant(vector_type(base.I32, lanes), order))
                        for order in (upper, lower)
                    )
            distance //= 2
        for i, row in enumerate(rows):
            code.store(row, code.plus(goal, code.times(goal_row, i)))

    return outlined("transposed_square", "iiii", target, emit)


@generated
def pack(target: Target, variant: str) -> Any:
    """Pack matrices into panels, each with its bias in front. The variant is the number of vectors in a panel, and for
    elements of 16 bits their kind, ``2_f16``. The bias in front is float32.

    `row` and `column` are the bytes from one row or column to the next. Contiguous rows are copied, contiguous columns
    are transposed in squares.
    """
    lanes = target.lanes
    vectors, kind, _ = form_of(variant)
    width, size = int(vectors) * lanes, SIZES[kind]
    square = _transposed_square(target, base.F32 if kind == "f32" else base.I16)
    # Elements of 16 bits are moved as they are.
    moved = "f32" if kind == "f32" else "u16"
    load, store, load_bias = accessor("load", moved), accessor("store", moved), accessor("load", kind, target)
    zero = np.float32(0) if kind == "f32" else np.uint16(0)

    @kernel(PACK)
    def execute(b, bias, panels, table, batches, columns, depth, row, column, tid, nt):
        panel_count = (columns + width - 1) // width
        first, last = share(batches * panel_count, tid, nt)
        for i in range(first, last):
            batch = i // panel_count
            j = i - batch * panel_count
            source = b + base.load_i64(table, 2 * batch) + j * width * column
            goal = panels + base.load_i64(table, 2 * batch + 1) + j * (4 + depth * size) * width
            present = min(columns - j * width, width)
            for c in range(width):
                value = np.float32(0)
                if bias != 0 and c < present:
                    value = load_bias(bias, j * width + c)
                base.store_f32(goal, c, value)
            goal += width * 4
            if column == size:
                for k in range(depth):
                    for c in range(present):
                        store(goal + k * width * size, c, load(source + k * row, c))
                    for c in range(present, width):
                        store(goal + k * width * size, c, zero)
                continue
            done = 0
            square_depth = depth // lanes * lanes
            if row == size:
                while done + lanes <= present:
                    for s in range(square_depth // lanes):
                        k = s * lanes
                        corner = goal + (k * width + done) * size
                        square(source + done * column + k * size, column, corner, width * size)
                    for k in range(square_depth, depth):
                        for c in range(done, done + lanes):
                            store(goal, k * width + c, load(source + c * column, k))
                    done += lanes
            for k in range(depth):
                for c in range(done, present):
                    store(goal, k * width + c, load(source + c * column + k * row, 0))
                for c in range(present, width):
                    store(goal, k * width + c, zero)

    return execute
