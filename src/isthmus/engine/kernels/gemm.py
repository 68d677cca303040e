"""The micro-kernels of matrix products in float32: a tile of rows times a panel of columns, kept in registers.

A panel is what the right matrix is packed into: for `vectors` vectors of columns the bias, then one row for each step of
the depth. The left rows come from a regular matrix (`dense_tile`), from a list of addresses (`indirect_tile`), or are a
single one (`single_row`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.engine.kernels.base import F32, I64, device
from isthmus.engine.kernels.vector import Code, outlined
from isthmus.engine.target import Target


def _finish(code: Code, sums: list[Any], rows: list[Any], columns: Any, least: Any, most: Any) -> None:
    """Clamp the sums of a tile and store them: row by row, only the first `columns` of each."""
    vectors = len(sums) // len(rows)
    low, high = code.splat(least), code.splat(most)
    sums = [code.clamp(value, low, high) for value in sums]
    width = 4 * code.lanes
    with code.builder.if_else(code.below(columns, vectors * code.lanes)) as (partial, full):
        with full:
            for i, value in enumerate(sums):
                code.store(value, rows[i // vectors], width * (i % vectors))
        with partial:
            masks = [code.mask(columns, code.lanes * v) for v in range(vectors)]
            for i, value in enumerate(sums):
                code.masked_store(value, rows[i // vectors], masks[i % vectors], width * (i % vectors))


def _step(code: Code, sums: list[Any], left: list[Any], offset: Any, panel: Any) -> list[Any]:
    """The sums after one step of the depth: each row's scalar times the panel's row."""
    vectors = len(sums) // len(left)
    offset = code.opaque(offset)
    right = [code.load(panel, None, 4 * code.lanes * v, 4 * code.lanes) for v in range(vectors)]
    result = []
    for m, row in enumerate(left):
        factor = code.splat(code.load(code.plus(row, offset), F32))
        result += [code.fma(factor, right[v], sums[m * vectors + v]) for v in range(vectors)]
    return result


def _first_sums(code: Code, rows: int, vectors: int, panel: Any) -> list[Any]:
    width = 4 * code.lanes
    return [code.load(panel, None, width * v, width) for v in range(vectors)] * rows


def _clamped_rows(code: Code, first: Any, step: Any, rows: int, present: Any) -> list[Any]:
    """Addresses of `rows` rows; those that are not present repeat the last one, so a short tile stays in bounds."""
    result = [first]
    for m in range(1, rows):
        here = result[-1]
        result.append(code.builder.select(code.below(m, present), code.plus(here, step), here))
    return result


def dense_tile(target: Target, rows: int, vectors: int) -> Callable:
    """Rows at a regular distance.

    Called with: left matrix, bytes between its rows, bytes between its columns, depth, panel, result, bytes between its
    rows, rows present, columns present, least, most.
    """
    row_bytes = 4 * target.lanes * vectors

    def emit(
        code: Code, a: Any, a_row: Any, a_column: Any, depth: Any, panel: Any, c: Any, c_row: Any, present: Any,
        columns: Any, least: Any, most: Any,
    ) -> None:  # fmt: skip
        left = _clamped_rows(code, a, a_row, rows, present)
        loop = code.loop(
            depth, [code.number(0), code.plus(panel, row_bytes), *_first_sums(code, rows, vectors, panel)]
        )
        offset, right = loop.values[:2]
        sums = _step(code, loop.values[2:], left, offset, right)
        sums = loop.end([code.plus(offset, a_column), code.plus(right, row_bytes), *sums])[2:]
        _finish(code, sums, _clamped_rows(code, c, c_row, rows, present), columns, least, most)

    return outlined(f"dense_{rows}x{vectors}", "iiiiiiiiiff", target, emit)


def indirect_tile(target: Target, rows: int, vectors: int, listed: int) -> Callable:
    """Rows gathered in pieces: for each tap a run of floats from an address of its own.

    Called with: the list of addresses (for each tap one for each of `listed` rows, then those of the results), taps,
    bytes of a run, panel, bytes to add to the results' addresses, columns present, least, most.
    """
    row_bytes = 4 * target.lanes * vectors

    def emit(
        code: Code, addresses: Any, taps: Any, run: Any, panel: Any, shift: Any, columns: Any, least: Any, most: Any
    ) -> None:
        outer = code.loop(
            taps, [addresses, code.plus(panel, row_bytes), *_first_sums(code, rows, vectors, panel)]
        )
        here = outer.values[0]
        left = [code.load(here, I64, 8 * m, 8) for m in range(rows)]
        inner = code.loop(run, outer.values[1:], step=4)
        sums = _step(code, inner.values[1:], left, inner.index, inner.values[0])
        last = inner.end([code.plus(inner.values[0], row_bytes), *sums])
        here, _, *sums = outer.end([code.plus(here, 8 * listed), *last])
        results = [code.plus(code.load(here, I64, 8 * m, 8), shift) for m in range(rows)]
        _finish(code, sums, results, columns, least, most)

    return outlined(f"indirect_{rows}x{vectors}", "iiiiiiff", target, emit)


def single_row(target: Target, vectors: int, chains: int) -> Callable:
    """One row, bound by reading the panel: `chains` independent sums for each vector keep the loads flowing.

    Called with: left row, bytes between its columns, depth, panel, result, columns present, least, most.
    """
    row_bytes = 4 * target.lanes * vectors

    def emit(
        code: Code, a: Any, a_column: Any, depth: Any, panel: Any, c: Any, columns: Any, least: Any, most: Any
    ) -> None:
        builder = code.builder
        first = _first_sums(code, 1, vectors, panel)
        rounds = builder.sdiv(depth, code.number(chains))
        start = code.plus(panel, row_bytes)
        zero = code.constant(0.0)
        before = builder.block
        with builder.if_then(code.below(0, rounds)):
            loop = code.loop(rounds, [a, start, *first, *[zero] * (vectors * (chains - 1))])
            here, right, *sums = loop.values
            for chain in range(chains):
                part = slice(chain * vectors, (chain + 1) * vectors)
                sums[part] = _step(code, sums[part], [here], code.number(0), right)
                here, right = code.plus(here, a_column), code.plus(right, row_bytes)
            here, right, *sums = loop.end([here, right, *sums])
            for chain in range(chains - 1, 0, -1):
                for v in range(vectors):
                    sums[v] = builder.fadd(sums[v], sums[chain * vectors + v])
            inside = builder.block
        merged = []
        for bulk, none in zip([here, right, *sums[:vectors]], [a, start, *first], strict=True):
            phi = builder.phi(none.type)
            phi.add_incoming(bulk, inside)
            phi.add_incoming(none, before)
            merged.append(phi)
        rest = builder.srem(depth, code.number(chains))
        before = builder.block
        with builder.if_then(code.below(0, rest)):
            loop = code.loop(rest, merged)
            here, right, *sums = loop.values
            sums = _step(code, sums, [here], code.number(0), right)
            last = loop.end([code.plus(here, a_column), code.plus(right, row_bytes), *sums])
            inside = builder.block
        sums = []
        for more, bulk in zip(last[2:], merged[2:], strict=True):
            phi = builder.phi(bulk.type)
            phi.add_incoming(more, inside)
            phi.add_incoming(bulk, before)
            sums.append(phi)
        _finish(code, sums, [c], columns, least, most)

    return outlined(f"single_{vectors}x{chains}", "iiiiiiff", target, emit)


def shape_of(variant: str) -> tuple[int, int]:
    """The rows and vectors that a variant such as ``8x3`` names."""
    rows, _, vectors = variant.partition("x")
    return int(rows), int(vectors)


@device
def divide_work(rows, columns, favour_columns, tid, nt):  # type: ignore[no-untyped-def]
    """A thread's range of row tiles and of column panels: one of the two is divided, whichever is more even."""
    if nt == 1:
        return 0, rows, 0, columns
    longest_by_rows = (rows + nt - 1) // nt * columns
    longest_by_columns = (columns + nt - 1) // nt * rows
    by_columns = longest_by_columns < longest_by_rows
    # Where both are about as even, keep the larger operand apart.
    if abs(longest_by_columns - longest_by_rows) * 16 <= longest_by_rows:
        by_columns = favour_columns != 0
    if by_columns:
        return 0, rows, columns * tid // nt, columns * (tid + 1) // nt
    return rows * tid // nt, rows * (tid + 1) // nt, 0, columns
