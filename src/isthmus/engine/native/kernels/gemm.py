"""The micro-kernels of matrix products in float32: a tile of rows times a panel of columns, in registers.

A panel is a packed part of the right matrix: for `vectors` vectors of columns, the bias, then one row for each step of
the depth. The left rows come from a regular matrix (`dense_tile`) or from a list of addresses (`indirect_tile`), or
there is only one (`single_row`).

The rows of panels and of results may have 16 bits (`kind`). Panels are then converted as they are loaded, and sums are
rounded as they are stored. The left rows and the bias are float32 in any case: each of their elements is used once for
every panel or row, so they are converted before (see `staging`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.engine.native.kernels import half
from isthmus.engine.native.kernels.base import F32, I64, accessor, device, write_f32
from isthmus.engine.native.kernels.vector import VectorCode, outlined
from isthmus.engine.native.signatures.elementwise import SIZES
from isthmus.engine.native.target import Target


def _finish(
    code: VectorCode, sums: list[Any], rows: list[Any], columns: Any, least: Any, most: Any, kind: str = "f32"
) -> None:
    """Clamp the sums of a tile and store them at the addresses `rows`, only the first `columns` of each row."""
    vectors = len(sums) // len(rows)
    low, high = code.splat(least), code.splat(most)
    sums = [code.clamp(value, low, high) for value in sums]
    width = SIZES[kind] * code.lanes
    with code.builder.if_else(code.below(columns, vectors * code.lanes)) as (partial, full):
        with full:
            for i, value in enumerate(sums):
                code.store_as(kind, value, rows[i // vectors], width * (i % vectors))
        with partial:
            masks = [code.mask(columns, code.lanes * v) for v in range(vectors)]
            for i, value in enumerate(sums):
                code.store_as(kind, value, rows[i // vectors], width * (i % vectors), masks[i % vectors])


def _step(code: VectorCode, sums: list[Any], left: list[Any], offset: Any, panel: Any, kind: str = "f32") -> list[Any]:
    """Return the sums after one step of the depth: each row's scalar times the panel's row is added.

    `left` are the addresses of the rows, `offset` the bytes of this step in them, `panel` is the address of its row.
    """
    vectors = len(sums) // len(left)
    offset = code.opaque(offset)
    right = [code.load_as(kind, panel, SIZES[kind] * code.lanes * v) for v in range(vectors)]
    result = []
    for m, row in enumerate(left):
        factor = code.splat(code.load(code.plus(row, offset), F32))
        result += [code.fma(factor, right[v], sums[m * vectors + v]) for v in range(vectors)]
    return result


def _first_sums(
    code: VectorCode, rows: list[Any], vectors: int, bias: Any, columns: Any, kind: str = "f32"
) -> list[Any]:
    """Return the initial sums of a tile: the bias, or, if its address is 0, the sums of earlier depths in the result.

    A result of 16 bits never holds sums, since they would be rounded more than once. `rows` are the addresses of the
    result's rows, which have `columns` columns.
    """
    width = 4 * code.lanes

    def from_bias() -> list[Any]:
        return [code.load(bias, None, width * v) for v in range(vectors)] * len(rows)

    def from_result() -> list[Any]:
        return [code.load(row, None, width * v) for row in rows for v in range(vectors)]

    def from_partial_result() -> list[Any]:
        masks = [code.mask(columns, code.lanes * v) for v in range(vectors)]
        return [code.masked_load(row, masks[v], None, width * v) for row in rows for v in range(vectors)]

    def from_either_result() -> list[Any]:
        return code.either(code.below(columns, vectors * code.lanes), from_partial_result, from_result)

    if kind != "f32":
        return from_bias()
    return code.either(code.builder.icmp_signed("==", bias, code.number(0)), from_either_result, from_bias)


def _clamped_rows(code: VectorCode, first: Any, step: Any, rows: int, present: Any) -> list[Any]:
    """Return the addresses of `rows` rows, `step` bytes apart, of which only `present` exist.

    Missing ones repeat the last, so a short tile stays in bounds.
    """
    result = [first]
    for m in range(1, rows):
        before = result[-1]
        result.append(code.builder.select(code.below(m, present), code.plus(before, step), before))
    return result


def dense_tile(target: Target, rows: int, vectors: int, kind: str = "f32") -> Callable:
    """Return a micro-kernel that multiplies evenly spaced rows by a panel.

    Arguments: left matrix, bytes between its rows, bytes between its columns, depth, bias (0 to continue from the
    result), panel after its bias, result, bytes between its rows, rows present, columns present, least, most.
    """
    row_bytes = SIZES[kind] * target.lanes * vectors

    def emit(
        code: VectorCode, a: Any, a_row: Any, a_column: Any, depth: Any, bias: Any, panel: Any, c: Any, c_row: Any,
        present: Any, columns: Any, least: Any, most: Any,
    ) -> None:  # fmt: skip
        left = _clamped_rows(code, a, a_row, rows, present)
        results = _clamped_rows(code, c, c_row, rows, present)
        sums = _first_sums(code, results, vectors, bias, columns, kind)
        loop = code.loop(depth, [code.number(0), panel, *sums])
        offset, right = loop.values[:2]
        sums = _step(code, loop.values[2:], left, offset, right, kind)
        sums = loop.end([code.plus(offset, a_column), code.plus(right, row_bytes), *sums])[2:]
        _finish(code, sums, results, columns, least, most, kind)

    return outlined(f"dense_{rows}x{vectors}", "iiiiiiiiiiff", target, emit)


def indirect_tile(target: Target, rows: int, vectors: int, listed: int, kind: str = "f32") -> Callable:
    """Return a micro-kernel that multiplies gathered rows by a panel: each tap is a run of floats with its own address.

    Arguments: the list of addresses (for each tap one for each of `listed` rows), taps, bytes of a run, bias (0 to
    continue from the result), panel after its bias, the list of the results' addresses, bytes to add to those, columns
    present, least, most.
    """
    row_bytes = SIZES[kind] * target.lanes * vectors

    def emit(
        code: VectorCode,
        addresses: Any, taps: Any, run: Any, bias: Any, panel: Any, goals: Any, shift: Any, columns: Any,
        least: Any, most: Any,
    ) -> None:  # fmt: skip
        def results() -> list[Any]:
            return [code.plus(code.load(goals, I64, 8 * m), shift) for m in range(rows)]

        first = _first_sums(code, results(), vectors, bias, columns, kind)
        outer = code.loop(taps, [addresses, panel, *first])
        entry = outer.values[0]
        left = [code.load(entry, I64, 8 * m) for m in range(rows)]
        inner = code.loop(run, outer.values[1:], step=4)
        sums = _step(code, inner.values[1:], left, inner.index, inner.values[0], kind)
        last = inner.end([code.plus(inner.values[0], row_bytes), *sums])
        sums = outer.end([code.plus(entry, 8 * listed), *last])[2:]
        _finish(code, sums, results(), columns, least, most, kind)

    return outlined(f"indirect_{rows}x{vectors}", "iiiiiiiiff", target, emit)


def single_row(target: Target, vectors: int, chains: int, kind: str = "f32") -> Callable:
    """Return a micro-kernel for one row, limited by reading the panel: `chains` sums per vector keep loads in flight.

    Arguments: left row, bytes between its columns, depth, an unused one (as in `nibble_row`), panel with its bias,
    result, columns present, least, most.
    """
    row_bytes = SIZES[kind] * target.lanes * vectors

    def emit(
        code: VectorCode, a: Any, a_column: Any, depth: Any, _: Any, panel: Any, c: Any, columns: Any, least: Any,
        most: Any,
    ) -> None:  # fmt: skip
        builder = code.builder
        rounds, rest = builder.sdiv(depth, code.number(chains)), builder.srem(depth, code.number(chains))
        first = [code.load(panel, None, 4 * code.lanes * v) for v in range(vectors)]
        start = [a, code.plus(panel, 4 * code.lanes * vectors), *first]

        def bulk() -> list[Any]:
            """Add up `chains` steps of the depth at a time, each to sums of its own, which are added at the end."""
            loop = code.loop(rounds, [*start, *[code.constant(0.0)] * (vectors * (chains - 1))])
            left, right, *sums = loop.values
            for chain in range(chains):
                part = slice(chain * vectors, (chain + 1) * vectors)
                sums[part] = _step(code, sums[part], [left], code.number(0), right, kind)
                left, right = code.plus(left, a_column), code.plus(right, row_bytes)
            left, right, *sums = loop.end([left, right, *sums])
            for chain in range(1, chains):
                for v in range(vectors):
                    sums[v] = builder.fadd(sums[v], sums[chain * vectors + v])
            return [left, right, *sums[:vectors]]

        left, right, *sums = code.either(code.below(0, rounds), bulk, lambda: start)

        def remainder() -> list[Any]:
            """Add up the steps that are left, one at a time."""
            loop = code.loop(rest, [left, right, *sums])
            step = _step(code, loop.values[2:], loop.values[:1], code.number(0), loop.values[1], kind)
            return loop.end([code.plus(loop.values[0], a_column), code.plus(loop.values[1], row_bytes), *step])[2:]

        sums = code.either(code.below(0, rest), remainder, lambda: sums)
        _finish(code, sums, [c], columns, least, most, kind)

    return outlined(f"single_{vectors}x{chains}", "iiiiiiiff", target, emit)


def shape_of(variant: str) -> tuple[int, int]:
    """Return the rows and vectors of a variant such as ``8x3``."""
    rows, _, vectors = variant.partition("x")
    return int(rows), int(vectors)


def kind_of(variant: str) -> tuple[str, str]:
    """Return the first part of a variant such as ``8x3_f16``, and its kind; without one, it is f32.

    >>> kind_of("8x3_f16"), kind_of("8x3")
    (('8x3', 'f16'), ('8x3', 'f32'))
    """
    shape, _, kind = variant.partition("_")
    return shape, kind or "f32"


def form_of(variant: str) -> tuple[str, str, bool]:
    """Return the first part of a variant such as ``8x3_nibbles``, its kind, and whether weights have 4 bits.

    >>> form_of("8x3_nibbles"), form_of("8x3_f16")
    (('8x3', 'f32', True), ('8x3', 'f16', False))
    """
    shape, kind = kind_of(variant)
    nibbles = kind == "nibbles"
    return shape, "f32" if nibbles else kind, nibbles


def _widen_run(code: VectorCode, source: Any, goal: Any, count: Any, kind: str) -> None:
    """Emit the conversion of `count` dense elements of a kind to float32."""
    lanes, size = code.lanes, SIZES[kind]

    def vector(first: Any, mask: Any = None) -> None:
        value = code.load_as(kind, code.plus(source, code.times(first, size)), mask=mask)
        code.store_as("f32", value, code.plus(goal, code.times(first, 4)), mask=mask)

    with code.builder.if_else(code.below(count, lanes)) as (short, long):
        with short:
            if code.target.vector_bytes == 64:
                vector(code.number(0), code.mask(count))
            else:
                # Without masks, part of a vector is converted element by element.
                loop = code.loop(count)
                stored = code.load(code.plus(source, code.times(loop.index, size)), half.STORED[kind])
                value = half.widen(code.builder, stored, kind, code.target)
                code.store(value, code.plus(goal, code.times(loop.index, 4)))
                loop.end()
        with long:
            # The last vector is moved back, so some elements are converted twice.
            last = code.builder.sub(count, code.number(lanes))
            with code.builder.if_then(code.below(0, last)):
                loop = code.loop(last, step=lanes)
                vector(loop.index)
                loop.end()
            vector(last)


def staging(target: Target, kind: str) -> Callable:
    """Return a function that converts `count` elements of a kind, `step` bytes apart, to dense float32 at `goal`."""
    if kind == "f32":
        return device(lambda source, step, goal, count: None)
    read, size = accessor("read", kind, target), SIZES[kind]
    widen_run = outlined(
        "widen_run", "iii", target, lambda code, source, goal, count: _widen_run(code, source, goal, count, kind)
    )

    @device
    def stage(source, step, goal, count):  # type: ignore[no-untyped-def]
        if step == size:
            widen_run(source, goal, count)
        else:
            for i in range(count):
                write_f32(goal, i, read(source + i * step, 0))

    return stage


def window_staging(target: Target, kind: str) -> Callable:
    """Return a function that converts runs of elements of a kind to float32, one run after the other.

    Arguments: the list of the runs' addresses, bytes from one address to the next, runs, elements of a run, goal.
    """
    if kind == "f32":
        return device(lambda addresses, step, runs, count, goal: None)

    def emit(code: VectorCode, addresses: Any, step: Any, runs: Any, count: Any, goal: Any) -> None:
        loop = code.loop(runs, [addresses, goal])
        entry, place = loop.values
        _widen_run(code, code.load(entry, I64), place, count, kind)
        loop.end([code.plus(entry, step), code.plus(place, code.times(count, 4))])

    return outlined("widen_windows", "iiiii", target, emit)


@device
def divide_work(rows, columns, favour_columns, tid, nt):  # type: ignore[no-untyped-def]
    """Return a thread's range of row tiles and its range of column panels, as four numbers.

    Threads divide either all `rows` tiles or all `columns` panels, whichever divides more evenly.
    """
    if nt == 1:
        return 0, rows, 0, columns
    longest_by_rows = (rows + nt - 1) // nt * columns
    longest_by_columns = (columns + nt - 1) // nt * rows
    by_columns = longest_by_columns < longest_by_rows
    # If both divide about equally evenly, divide the larger operand.
    if abs(longest_by_columns - longest_by_rows) * 16 <= longest_by_rows:
        by_columns = favour_columns != 0
    if by_columns:
        return 0, rows, columns * tid // nt, columns * (tid + 1) // nt
    return rows * tid // nt, rows * (tid + 1) // nt, 0, columns
