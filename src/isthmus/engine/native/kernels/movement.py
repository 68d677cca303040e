"""Kernels that only move elements: strided copies, transposes in tiles, padding, and copies by a table of offsets.

Kernels know the size of elements, not their type. Strides and offsets are in bytes and may be negative; outer
dimensions are listed innermost first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from isthmus.engine.native.kernels import base
from isthmus.engine.native.kernels.base import accessor, device, generated, kernel, share, word
from isthmus.engine.native.kernels.elementwise import outer_offset
from isthmus.engine.native.signatures.movement import COPY, FILL, JOIN, PAD, REMAP, TRANSPOSE
from isthmus.engine.native.target import Target

# The approximate size of the pieces of a copy that are distributed to threads.
_UNIT_BYTES = 1024
# The approximate size of the pieces in which interleaving is distributed and done.
_BLOCK_BYTES = 8192


def mover(size: int) -> Callable:
    """Return ``move(destination, source)``, which copies one element of that many bytes."""
    load, store = accessor("load", f"u{8 * size}"), accessor("store", f"u{8 * size}")
    return device(lambda destination, source: store(destination, 0, load(source, 0)))


@device
def _span(total, unit, tid, nt):  # type: ignore[no-untyped-def]
    """Return a thread's half-open range of `total` elements, in whole units."""
    begin, end = share((total + unit - 1) // unit, tid, nt)
    return begin * unit, min(end * unit, total)


@generated
def copy(target: Target, variant: str) -> Any:
    """Copy with strides, row by row. Variant: bytes of an element."""
    size = int(variant)
    move, unit = mover(size), _UNIT_BYTES // size

    @kernel(COPY)
    def execute(
        destination, source, elements, inner, to_step, from_step, rank, dims, to_strides, from_strides, tid, nt
    ):
        begin, end = _span(elements, unit, tid, nt)
        row = begin // inner
        column = begin - row * inner
        while begin < end:
            count = min(inner - column, end - begin)
            goal = destination + outer_offset(dims, rank, row, to_strides) + column * to_step
            start = source + outer_offset(dims, rank, row, from_strides) + column * from_step
            if to_step == size and from_step == size:
                # They are the same if a client's output is in the memory of the input that it updates.
                if goal != start:
                    base.copy_bytes(goal, start, count * size)
            else:
                for i in range(count):
                    move(goal + i * to_step, start + i * from_step)
            begin += count
            row += 1
            column = 0

    return execute


def _tile_edge(target: Target, size: int) -> int:
    """Return the edge length, in elements, of a square that is transposed in registers."""
    return {1: 16, 2: 8, 4: min(target.lanes, 8), 8: min(target.lanes // 2, 4)}[size]


def _transpose_tile(size: int, edge: int) -> Callable:
    """Return ``(destination, row stride, source, row stride)``: a function that transposes one tile in registers."""

    @intrinsic
    def transpose_tile(typing_context: Any, goal: Any, goal_stride: Any, source: Any, source_stride: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8 * size), edge)

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def at(start: Any, stride: Any, row: int) -> Any:
                """Return a pointer to a row."""
                offset = builder.add(start, builder.mul(stride, ir.Constant(base.I64, row)))
                return builder.inttoptr(offset, vector.as_pointer())

            rows = [builder.load(at(args[2], args[3], row), align=1) for row in range(edge)]
            half = edge // 2
            low = [v for i in range(half) for v in (i, i + edge)]
            high = [v + half for v in low]
            masks = [ir.Constant(ir.VectorType(base.I32, edge), mask) for mask in (low, high)]
            # Interleaving rows i and i + edge/2, log2(edge) times, transposes the square.
            stages = edge.bit_length() - 1
            for _ in range(stages):
                rows = [builder.shuffle_vector(rows[i], rows[i + half], mask) for i in range(half) for mask in masks]
            for row, value in enumerate(rows):
                builder.store(value, at(args[0], args[1], row), align=1)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), emit

    return transpose_tile


@generated
def transpose(target: Target, variant: str) -> Any:
    """Copy with two axes exchanged. Variant: bytes of an element.

    Rows and columns are the destination's; its columns and the source's rows are dense.
    """
    size = int(variant)
    edge = _tile_edge(target, size)
    tile, move = _transpose_tile(size, edge), mover(size)

    @kernel(TRANSPOSE)
    def execute(
        destination, source, rows, columns, to_stride, from_stride, rank, dims, to_strides, from_strides, tid, nt
    ):
        outer = 1
        for d in range(rank):
            outer *= word(dims, d)
        # Threads divide bands of `edge` rows. Columns up to `full` are transposed by tiles, the others one by one.
        bands = (rows + edge - 1) // edge
        full = columns - columns % edge
        first, last = share(outer * bands, tid, nt)
        for piece in range(first, last):
            batch = piece // bands
            row = (piece - batch * bands) * edge
            height = min(edge, rows - row)
            goal = destination + outer_offset(dims, rank, batch, to_strides) + row * to_stride
            origin = source + outer_offset(dims, rank, batch, from_strides) + row * size
            start = 0
            if height == edge:
                while start < full:
                    tile(goal + start * size, to_stride, origin + start * from_stride, from_stride)
                    start += edge
            for r in range(height):
                for c in range(start, columns):
                    move(goal + r * to_stride + c * size, origin + c * from_stride + r * size)

    return execute


def _interleave_loop(size: int, parts: int, joining: bool) -> Callable:
    """Return the loop that interleaves `parts` dense rows element by element, or separates them again."""
    read, write = accessor("read", f"u{8 * size}"), accessor("write", f"u{8 * size}")
    # Unrolled, because LLVM vectorises groups of accesses only at constant distances.
    name = "join" if joining else "part"
    parameters = ", ".join(f"row{k}" for k in range(parts))
    body = [
        f"        write(dense, i * {parts} + {k}, read(row{k}, i))" if joining else
        f"        write(row{k}, i, read(dense, i * {parts} + {k}))"
        for k in range(parts)
    ]  # fmt: skip
    source = "\n".join([f"def {name}(dense, count, {parameters}):", "    for i in range(count):", *body, ""])
    namespace: dict[str, Any] = {"read": read, "write": write}
    exec(source, namespace)
    return device(namespace[name])


@generated
def interleave(target: Target, variant: str) -> Any:
    """Interleave rows or separate them. Variant: ``join_size_parts`` or ``part_size_parts``, 2 to 4 parts."""
    direction, size_text, parts_text = variant.split("_")
    size, parts = int(size_text), int(parts_text)
    loop = _interleave_loop(size, parts, direction == "join")
    # By the number of parts: the dense run, the length of a row, the first row, and the bytes between rows.
    calls = {
        2: device(lambda d, n, r, s: loop(d, n, r, r + s)),
        3: device(lambda d, n, r, s: loop(d, n, r, r + s, r + 2 * s)),
        4: device(lambda d, n, r, s: loop(d, n, r, r + s, r + 2 * s, r + 3 * s)),
    }
    run, unit = calls[parts], _BLOCK_BYTES // size

    @kernel(JOIN)
    def execute(dense, rows, count, stride, batches, dense_stride, rows_stride, tid, nt):
        pieces = (count + unit - 1) // unit
        first, last = share(batches * pieces, tid, nt)
        for piece in range(first, last):
            batch = piece // pieces
            begin = (piece - batch * pieces) * unit
            dense_piece = dense + batch * dense_stride + begin * size * parts
            row = rows + batch * rows_stride + begin * size
            run(dense_piece, min(unit, count - begin), row, stride)

    return execute


def _filler(size: int) -> Callable:
    """Return ``fill(destination, value, count)`` for elements of that many bytes."""
    write = accessor("write", f"u{8 * size}")

    @device
    def fill(goal, value, count):  # type: ignore[no-untyped-def]
        for i in range(count):
            write(goal, i, value)

    return fill


@generated
def fill(target: Target, variant: str) -> Any:
    """Write one value everywhere. Variant: bytes of an element."""
    size = int(variant)
    put, unit = _filler(size), _UNIT_BYTES // size

    @kernel(FILL)
    def execute(destination, elements, value, tid, nt):
        begin, end = _span(elements, unit, tid, nt)
        put(destination + begin * size, value, end - begin)

    return execute


@generated
def pad(target: Target, variant: str) -> Any:
    """Copy and surround with a value. Variant: bytes of an element.

    The lists contain, for each outer dimension: its size, the number of elements before the input's, the input's size,
    and the input's stride.
    """
    size = int(variant)
    put = _filler(size)

    @kernel(PAD)
    def execute(output, x, value, rows, inner, before, kept, rank, dims, first, lengths, strides, tid, nt):
        begin, end = share(rows, tid, nt)
        for row in range(begin, end):
            goal, source = output + row * inner * size, x
            # The row's index along each outer dimension, relative to the input, which may be outside it.
            remaining, inside = row, True
            for d in range(rank):
                length = word(dims, d)
                index = remaining % length - word(first, d)
                remaining //= length
                inside = inside and 0 <= index < word(lengths, d)
                source += index * word(strides, d)
            if inside:
                put(goal, value, before)
                base.copy_bytes(goal + before * size, source, kept * size)
                put(goal + (before + kept) * size, value, inner - before - kept)
            else:
                put(goal, value, inner)

    return execute


@generated
def remap(target: Target, variant: str) -> Any:
    """Copy element (i, j, ...) from the sum of table entries i, j, ...: byte offsets in the input.

    Variant: bytes of an element, or ``run`` for elements of any number of bytes.
    """
    sized = variant != "run"
    size = int(variant) if sized else 0
    move = mover(size) if sized else base.copy_bytes

    @kernel(REMAP)
    def execute(output, x, rows, inner, table, length, rank, counts, tables, bases, tid, nt):
        first, last = share(rows, tid, nt)
        for row in range(first, last):
            goal, source, remaining = output + row * inner * length, x, row
            for d in range(rank):
                count = word(counts, d)
                source += base.load_i64(base.address(tables, bases, d), remaining % count)
                remaining //= count
            for i in range(inner):
                if sized:
                    move(goal + i * size, source + base.load_i64(table, i))
                else:
                    base.copy_bytes(goal + i * length, source + base.load_i64(table, i), length)

    return execute
