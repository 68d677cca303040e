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
from isthmus.engine.native.kernels.base import address, copy_bytes, device, generated, load_i64, share, word
from isthmus.engine.native.kernels.elementwise import outer_offset
from isthmus.engine.native.signatures.movement import COPY, FILL, JOIN, PAD, REMAP, TRANSPOSE
from isthmus.engine.native.target import Target

_KINDS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_UNIT_BYTES = 1024
"""The approximate size of the pieces of a copy that are distributed to threads."""
_BLOCK_BYTES = 8192
"""The approximate size of the pieces in which interleaving is distributed and done."""


def mover(size: int) -> Callable:
    """Return ``move(destination, source)``, which copies one element of that many bytes."""
    load, store = getattr(base, f"load_{_KINDS[size]}"), getattr(base, f"store_{_KINDS[size]}")
    return device(lambda destination, source: store(destination, 0, load(source, 0)))


@device
def _span(total, unit, tid, nt):  # type: ignore[no-untyped-def]
    """Return a thread's half-open range of `total` elements, in whole units."""
    begin, end = share((total + unit - 1) // unit, tid, nt)
    return begin * unit, min(end * unit, total)


@generated
def copy(target: Target, variant: str) -> Any:
    """Copy with strides, row by row. Variant: bytes of an element."""
    words = COPY.place
    size = int(variant)
    move, unit = mover(size), _UNIT_BYTES // size

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        begin, end = _span(word(p, words.elements), unit, tid, nt)
        inner, to_step, from_step, rank = (
            word(p, words.inner),
            word(p, words.to_step),
            word(p, words.from_step),
            word(p, words.rank),
        )
        row = begin // inner
        column = begin - row * inner
        while begin < end:
            count = min(inner - column, end - begin)
            goal = (
                address(p, b, words.destination)
                + outer_offset(p, words.dims, rank, row, words.dims + rank)
                + column * to_step
            )
            source = (
                address(p, b, words.source)
                + outer_offset(p, words.dims, rank, row, words.dims + 2 * rank)
                + column * from_step
            )
            if to_step == size and from_step == size:
                # They are the same if a client's output is in the memory of the input that it updates.
                if goal != source:
                    copy_bytes(goal, source, count * size)
            else:
                for i in range(count):
                    move(goal + i * to_step, source + i * from_step)
            begin += count
            row += 1
            column = 0

    return kernel


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
    words = TRANSPOSE.place
    size = int(variant)
    edge = _tile_edge(target, size)
    tile, move = _transpose_tile(size, edge), mover(size)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        rows, columns, to_stride, from_stride, rank = (
            word(p, words.rows),
            word(p, words.columns),
            word(p, words.to_stride),
            word(p, words.from_stride),
            word(p, words.rank),
        )
        outer = 1
        for d in range(rank):
            outer *= word(p, words.dims + d)
        # Threads divide bands of `edge` rows. Columns up to `full` are transposed by tiles, the others one by one.
        bands = (rows + edge - 1) // edge
        full = columns - columns % edge
        first, last = share(outer * bands, tid, nt)
        for piece in range(first, last):
            batch = piece // bands
            row = (piece - batch * bands) * edge
            height = min(edge, rows - row)
            goal = (
                address(p, b, words.destination)
                + outer_offset(p, words.dims, rank, batch, words.dims + rank)
                + row * to_stride
            )
            source = (
                address(p, b, words.source)
                + outer_offset(p, words.dims, rank, batch, words.dims + 2 * rank)
                + row * size
            )
            start = 0
            if height == edge:
                while start < full:
                    tile(goal + start * size, to_stride, source + start * from_stride, from_stride)
                    start += edge
            for r in range(height):
                for c in range(start, columns):
                    move(goal + r * to_stride + c * size, source + c * from_stride + r * size)

    return kernel


def _interleave_loop(size: int, parts: int, joining: bool) -> Callable:
    """Return the loop that interleaves `parts` dense rows element by element, or separates them again."""
    read, write = getattr(base, f"read_{_KINDS[size]}"), getattr(base, f"write_{_KINDS[size]}")
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
    words = JOIN.place
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

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        count, stride, outer = word(p, words.count), word(p, words.stride), word(p, words.batches)
        pieces = (count + unit - 1) // unit
        first, last = share(outer * pieces, tid, nt)
        for piece in range(first, last):
            batch = piece // pieces
            begin = (piece - batch * pieces) * unit
            dense = address(p, b, words.dense) + batch * word(p, words.dense_stride) + begin * size * parts
            row = address(p, b, words.rows) + batch * word(p, words.rows_stride) + begin * size
            run(dense, min(unit, count - begin), row, stride)

    return kernel


def _filler(size: int) -> Callable:
    """Return ``fill(destination, value, count)`` for elements of that many bytes."""
    write = getattr(base, f"write_{_KINDS[size]}")

    @device
    def fill(goal, value, count):  # type: ignore[no-untyped-def]
        for i in range(count):
            write(goal, i, value)

    return fill


@generated
def fill(target: Target, variant: str) -> Any:
    """Write one value everywhere. Variant: bytes of an element."""
    words = FILL.place
    size = int(variant)
    put, unit = _filler(size), _UNIT_BYTES // size

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        begin, end = _span(word(p, words.elements), unit, tid, nt)
        put(address(p, b, words.destination) + begin * size, word(p, words.value), end - begin)

    return kernel


@generated
def pad(target: Target, variant: str) -> Any:
    """Copy and surround with a value. Variant: bytes of an element.

    The lists contain, for each outer dimension: its size, the number of elements before the input's, the input's size,
    and the input's stride.
    """
    words = PAD.place
    size = int(variant)
    put = _filler(size)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        value, inner, before, kept, rank = (
            word(p, words.value),
            word(p, words.inner),
            word(p, words.before),
            word(p, words.kept),
            word(p, words.rank),
        )
        first, last = share(word(p, words.rows), tid, nt)
        for row in range(first, last):
            goal, source = address(p, b, words.output) + row * inner * size, address(p, b, words.x)
            # The row's index along each outer dimension, relative to the input, which may be outside it.
            remaining, inside = row, True
            for d in range(rank):
                length = word(p, words.dims + d)
                index = remaining % length - word(p, words.dims + rank + d)
                remaining //= length
                inside = inside and 0 <= index < word(p, words.dims + 2 * rank + d)
                source += index * word(p, words.dims + 3 * rank + d)
            if inside:
                put(goal, value, before)
                copy_bytes(goal + before * size, source, kept * size)
                put(goal + (before + kept) * size, value, inner - before - kept)
            else:
                put(goal, value, inner)

    return kernel


@generated
def remap(target: Target, variant: str) -> Any:
    """Copy element (i, j, ...) from the sum of table entries i, j, ...: byte offsets in the input.

    Variant: bytes of an element, or ``run`` for elements of any number of bytes.
    """
    words = REMAP.place
    sized = variant != "run"
    size = int(variant) if sized else 0
    move = mover(size) if sized else copy_bytes

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        inner, table, rank = word(p, words.inner), address(p, b, words.table), word(p, words.rank)
        length = word(p, words.length)
        first, last = share(word(p, words.rows), tid, nt)
        for row in range(first, last):
            goal, source, remaining = address(p, b, words.output) + row * inner * length, address(p, b, words.x), row
            for d in range(rank):
                count = word(p, words.counts + d)
                source += load_i64(address(p, b, words.counts + rank + d), remaining % count)
                remaining //= count
            for i in range(inner):
                if sized:
                    move(goal + i * size, source + load_i64(table, i))
                else:
                    copy_bytes(goal + i * length, source + load_i64(table, i), length)

    return kernel
