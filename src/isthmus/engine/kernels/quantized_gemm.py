"""Micro-kernels of 8-bit products: a tile of rows times a panel of packed weights, summed in 32 bits, scaled to 8.

Rows are read in groups of four bytes, in the form that the target multiplies: unsigned bytes, signed bytes, or pairs of
16-bit numbers where there is no four-way dot product (see `row_form`). A panel holds for each group four bytes a column.

Panel layout, for `columns` = vectors * lanes: bias i32[columns], scale f32[columns], then the groups of each tap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.engine.kernels.base import I8, I16, I32, I64
from isthmus.engine.kernels.vector import Code, outlined, vector_type
from isthmus.engine.target import Target

_PAIR_PRODUCTS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
_FORMS = {"vnni": "u8", "avxvnni": "u8", "sdot": "s8", "none": "s16"}


def row_form(target: Target) -> str:
    """How a target wants the elements of rows: ``u8``, ``s8``, or ``s16`` with the zero point taken off."""
    return _FORMS[target.dot]


def _accumulate(code: Code, total: Any, row: Any, weights: Any) -> Any:
    """``total`` plus the products of one group."""
    builder, target, lanes = code.builder, code.target, code.lanes
    bytes_type, halves_type = vector_type(I8, 4 * lanes), vector_type(I16, 2 * lanes)
    if target.dot in ("vnni", "avxvnni"):
        name = f"llvm.x86.avx512.vpdpbusd.{target.vector_bytes * 8}"
        return code.call(name, total.type, [total, builder.bitcast(row, bytes_type), builder.bitcast(weights, bytes_type)])
    if target.dot == "sdot":
        name = f"llvm.aarch64.neon.sdot.v{lanes}i32.v{4 * lanes}i8"
        return code.call(name, total.type, [total, builder.bitcast(row, bytes_type), builder.bitcast(weights, bytes_type)])
    if target.triple.startswith("x86_64"):
        products = code.call(
            _PAIR_PRODUCTS[lanes],
            total.type,
            [builder.bitcast(row, halves_type), builder.bitcast(weights, halves_type)],
        )
        return builder.add(total, products)
    sixteen = code.constant(16, code.ints)

    def low(value: Any) -> Any:
        return builder.ashr(builder.shl(value, sixteen), sixteen)

    total = builder.add(total, builder.mul(low(row), low(weights)))
    return builder.add(total, builder.mul(builder.ashr(row, sixteen), builder.ashr(weights, sixteen)))


def tile(target: Target, rows: int, vectors: int) -> Callable:
    """A tile: `rows` rows of results for one panel, of which those present are stored.

    Arguments: first row, bytes between rows, list of the taps' offsets from a row's start, taps, groups a tap, panel,
    result, bytes between result rows, rows present, columns present; zero point, least and most of the result.
    Rows that are not present are read all the same.
    """
    lanes = target.lanes
    columns = vectors * lanes

    def emit(
        code: Code, first: Any, distance: Any, offsets: Any, taps: Any, groups: Any, panel: Any, result: Any,
        stride: Any, present: Any, wanted: Any, zero: Any, least: Any, most: Any,
    ) -> None:  # fmt: skip
        sums = [code.load(panel, code.ints, v * lanes * 4) for v in range(vectors)] * rows
        outer = code.loop(taps, [code.plus(panel, 8 * columns), *sums])
        start = code.plus(first, code.load(code.plus(offsets, code.times(outer.index, 8)), I64))
        # Three rows to an address register: the distance scaled by 1 and 2 reaches the second and third.
        starts = [start]
        for _ in range(3, rows, 3):
            starts.append(code.plus(starts[-1], code.times(distance, 3)))
        inner = code.loop(groups, [*starts, *outer.values])
        places, weights_at = inner.values[: len(starts)], inner.values[len(starts)]
        weights = [code.load(weights_at, code.ints, v * lanes * 4) for v in range(vectors)]
        totals = list(inner.values[len(starts) + 1 :])
        for r in range(rows):
            place = code.plus(places[r // 3], code.times(distance, r % 3)) if r % 3 else places[r // 3]
            row = code.splat(code.load(place, I32))
            for v in range(vectors):
                totals[r * vectors + v] = _accumulate(code, totals[r * vectors + v], row, weights[v])
        done = inner.end([*(code.plus(p, 4) for p in places), code.plus(weights_at, 4 * columns), *totals])
        totals = outer.end(done[len(starts) :])[1:]
        _finish(code, totals, rows, vectors, panel, result, stride, present, wanted, zero, least, most)

    return outlined(f"quantized_tile_{rows}x{vectors}", "iiiiiiiiiifff", target, emit)


def requantized(code: Code, total: Any, scale: Any, zero: Any, least: Any, most: Any) -> Any:
    """Sums as stored bytes: scaled, limited, rounded half to even, moved to the zero point.

    `least` and `most` are relative to the zero point.
    """
    builder = code.builder
    real = builder.fmul(total, scale)
    whole = builder.fptosi(code.round_even(code.clamp(real, least, most)), code.ints)
    return builder.trunc(builder.add(whole, zero), vector_type(I8, code.lanes))


def limits(code: Code, zero: Any, least: Any, most: Any) -> tuple[Any, Any, Any]:
    """Zero point as integers, and the limits relative to it, in every lane."""
    builder = code.builder
    return (
        code.splat(builder.fptosi(zero, I32)),
        code.splat(builder.fsub(least, zero)),
        code.splat(builder.fsub(most, zero)),
    )


def _finish(
    code: Code, totals: list[Any], rows: int, vectors: int, panel: Any, result: Any, stride: Any, present: Any,
    wanted: Any, zero: Any, least: Any, most: Any,
) -> None:  # fmt: skip
    builder, lanes = code.builder, code.lanes
    columns = vectors * lanes
    scales = [code.load(panel, code.floats, 4 * columns + v * lanes * 4) for v in range(vectors)]
    zeros, low, high = limits(code, zero, least, most)
    stored = [
        requantized(code, builder.sitofp(total, code.floats), scales[i % vectors], zeros, low, high)
        for i, total in enumerate(totals)
    ]
    places = [result]
    for _ in range(1, rows):
        places.append(builder.add(places[-1], stride))
    partial = builder.or_(code.below(wanted, columns), code.below(present, rows))
    with builder.if_else(partial) as (part, whole):
        with part:
            masks = [code.mask(wanted, v * lanes) for v in range(vectors)]
            for r in range(rows):
                with builder.if_then(code.below(r, present)):
                    for v in range(vectors):
                        code.masked_store(stored[r * vectors + v], places[r], masks[v], v * lanes)
        with whole:
            for i, value in enumerate(stored):
                code.store(value, places[i // vectors], (i % vectors) * lanes)
