"""Micro-kernels of 8-bit products: a tile of rows times a panel of packed weights, summed in 32 bits, scaled to 8.

Rows are read in groups of four bytes, in the form that the target multiplies: unsigned bytes, signed bytes, or pairs of
16-bit numbers where there is no four-way dot product. A panel holds for each group four bytes a column.

Panel layout, for `columns` = vectors * lanes: bias i32[columns], scale f32[columns], then the groups of each tap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.engine.kernels.base import I8, I16, I32, I64
from isthmus.engine.kernels.requantization import Requantizer, store_rows
from isthmus.engine.kernels.vector import Code, outlined, vector_type
from isthmus.engine.target import Target

_PAIR_PRODUCTS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


def accumulate(code: Code, total: Any, row: Any, weights: Any) -> Any:
    """``total`` plus the products of one group."""
    builder, target, lanes = code.builder, code.target, code.lanes
    bytes_type, halves_type = vector_type(I8, 4 * lanes), vector_type(I16, 2 * lanes)
    if target.dot in ("vnni", "avxvnni"):
        name = f"llvm.x86.avx512.vpdpbusd.{target.vector_bytes * 8}"
        return code.call(
            name, total.type, [total, builder.bitcast(row, bytes_type), builder.bitcast(weights, bytes_type)]
        )
    if target.dot == "sdot":
        name = f"llvm.aarch64.neon.sdot.v{lanes}i32.v{4 * lanes}i8"
        return code.call(
            name, total.type, [total, builder.bitcast(row, bytes_type), builder.bitcast(weights, bytes_type)]
        )
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
    result, bytes between result rows, rows present, columns present; zero point, least, most and flip of the result
    (see `Requantizer`).
    Rows that are not present are read all the same.
    """
    lanes = target.lanes
    columns = vectors * lanes

    def emit(
        code: Code, first: Any, distance: Any, offsets: Any, taps: Any, groups: Any, panel: Any, result: Any,
        stride: Any, present: Any, wanted: Any, zero: Any, least: Any, most: Any, flip: Any,
    ) -> None:  # fmt: skip
        sums = [code.load(panel, code.ints, v * lanes * 4) for v in range(vectors)] * rows
        outer = code.loop(taps, [code.plus(panel, 8 * columns), *sums])
        start = code.plus(first, code.load(code.plus(offsets, code.times(outer.index, 8)), I64))
        # Three rows to an address register: the distance scaled by 1 and 2 reaches the second and third.
        starts = [start]
        for _ in range(3, rows, 3):
            starts.append(code.opaque(code.plus(starts[-1], code.times(distance, 3))))
        inner = code.loop(groups, [*starts, *outer.values])
        places, weights_at = inner.values[: len(starts)], inner.values[len(starts)]
        weights = [code.load(weights_at, code.ints, v * lanes * 4) for v in range(vectors)]
        totals = list(inner.values[len(starts) + 1 :])
        for r in range(rows):
            place = code.plus(places[r // 3], code.times(distance, r % 3)) if r % 3 else places[r // 3]
            row = code.splat(code.load(place, I32))
            for v in range(vectors):
                totals[r * vectors + v] = accumulate(code, totals[r * vectors + v], row, weights[v])
        done = inner.end([*(code.plus(p, 4) for p in places), code.plus(weights_at, 4 * columns), *totals])
        totals = outer.end(done[len(starts) :])[1:]
        requantizer = Requantizer(code, zero, least, most, flip)
        _finish(code, totals, rows, vectors, panel, result, stride, present, wanted, requantizer)

    return outlined(f"quantized_tile_{rows}x{vectors}", "iiiiiiiiiiiiii", target, emit)


def _finish(
    code: Code, totals: list[Any], rows: int, vectors: int, panel: Any, result: Any, stride: Any, present: Any,
    wanted: Any, requantizer: Requantizer,
) -> None:  # fmt: skip
    lanes = code.lanes
    scales = [code.load(panel, code.floats, 4 * vectors * lanes + v * lanes * 4) for v in range(vectors)]
    # Four vectors at a time become bytes: several rows where they are narrow.
    step = 4 // vectors * vectors
    stored = [
        requantizer.stored(totals[i : i + step], (scales * rows)[i : i + step][: len(totals) - i])
        for i in range(0, len(totals), step)
    ]
    places = [result]
    for _ in range(1, rows):
        places.append(code.plus(places[-1], stride))
    store_rows(code, stored, places, vectors * lanes, present, wanted)
