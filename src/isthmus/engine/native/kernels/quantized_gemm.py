"""Micro-kernels of 8-bit products: a tile of rows times a panel of packed weights, summed in 32 bits.

Rows are read in groups of four bytes, in the form that the target multiplies: unsigned bytes, signed bytes, or, without
a four-way dot product, pairs of 16-bit numbers. A panel holds four bytes per column for each group.

Panel layout, for `columns` = vectors * lanes: bias i32[columns], scale f32[columns], then the groups of each tap. If
results are floats, the bias is f32, and the sums of weights i32[columns] follow the scales. A panel of 4-bit weights
has words instead of groups, and before them, if there are factors, a byte for each column (see `nibbles`). Bytes that
are unpacked without factors are multiples of 16 of the weights; the bias is then one too, and the scale is divided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from isthmus.engine.native.kernels.base import F32, F64, I8, I16, I32, I64
from isthmus.engine.native.kernels.nibbles import NibbleForm
from isthmus.engine.native.kernels.requantization import Requantizer, store_rows
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.target import Target

# The instruction that multiplies pairs of 16-bit numbers and adds each pair, by lanes.
_PAIR_PRODUCTS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


def accumulate(code: VectorCode, total: Any, row: Any, weights: Any) -> Any:
    """Return ``total`` plus the dot product of a group of `row` and a group of `weights`, in each lane."""
    builder, target, lanes = code.builder, code.target, code.lanes
    bytes_type = vector_type(I8, 4 * lanes)
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
    return accumulate_pairs(code, total, row, weights)


def accumulate_pairs(code: VectorCode, total: Any, row: Any, weights: Any) -> Any:
    """Return ``total`` plus the dot product of two 16-bit numbers of `row` and two of `weights`, in each lane."""
    builder, halves_type = code.builder, vector_type(I16, 2 * code.lanes)
    if code.target.triple.startswith("x86_64"):
        operands = [builder.bitcast(row, halves_type), builder.bitcast(weights, halves_type)]
        return builder.add(total, code.call(_PAIR_PRODUCTS[code.lanes], code.ints, operands))
    row, weights = builder.bitcast(row, code.ints), builder.bitcast(weights, code.ints)
    sixteen = code.constant(16, code.ints)

    def low(value: Any) -> Any:
        return builder.ashr(builder.shl(value, sixteen), sixteen)

    total = builder.add(total, builder.mul(low(row), low(weights)))
    return builder.add(total, builder.mul(builder.ashr(row, sixteen), builder.ashr(weights, sixteen)))


Weights = Callable[[Any, int], list[Any]]
"""The code for weights: from their address, and the number of a group among those together, a vector for each vector of
columns.
"""


def tile_sums(
    code: VectorCode, first: list[Any], rows: int, start: Any, distance: Any, offsets: Any, taps: Any, groups: Any,
    body: Any, begin_tap: Callable[[Any], tuple[Any, Weights]], multiply: Callable[..., Any], group_bytes: int,
    together: int = 1,
) -> tuple[list[Any], Any]:  # fmt: skip
    """Return the sums of a tile, starting from the vectors `first` in each row, and the address after the weights.

    Parameters
    ----------
    start, distance, offsets, taps, groups
        The address of the first row, and arguments of `tile`.
    body, group_bytes
        The address of the panel's weights, and the bytes of those that are loaded together.
    begin_tap
        Emits what comes before the weights of a tap; it returns their address, and the code for them.
    multiply, together
        `accumulate` or `accumulate_pairs`, and for how many groups weights are loaded together.
    """
    vectors = len(first)
    outer = code.loop(taps, [body, *first * rows])
    tap = code.plus(start, code.load(code.plus(offsets, code.times(outer.index, 8)), I64))
    weights_at, weights_of = begin_tap(outer.values[0])
    # Three rows per address register: the distance scaled by 1 and 2 reaches the second and third.
    starts = [tap]
    for _ in range(3, rows, 3):
        starts.append(code.opaque(code.plus(starts[-1], code.times(distance, 3))))
    inner = code.loop(groups, [*starts, weights_at, *outer.values[1:]], step=together)
    places, weights_at = inner.values[: len(starts)], inner.values[len(starts)]
    totals = list(inner.values[len(starts) + 1 :])
    for group in range(together):
        # Words are loaded again for each of their groups, which needs fewer registers than keeping them.
        weights = weights_of(code.opaque(weights_at) if group else weights_at, group)
        for r in range(rows):
            place = code.plus(places[r // 3], code.times(distance, r % 3)) if r % 3 else places[r // 3]
            row = code.splat(code.load(place, I32, 4 * group))
            for v in range(vectors):
                totals[r * vectors + v] = multiply(code, totals[r * vectors + v], row, weights[v])
    ended = inner.end([*(code.plus(p, 4 * together) for p in places), code.plus(weights_at, group_bytes), *totals])
    ended = outer.end(ended[len(starts) :])
    return ended[1:], ended[0]


def _byte_sums(code: VectorCode, first: list[Any], rows: int, form: NibbleForm | None, body: Any, *row: Any) -> Any:
    """Return the sums of a tile of bytes; `form` is that of 4-bit weights, `row` are the arguments about rows."""
    lanes, vectors = code.lanes, len(first)

    def begin_tap(place: Any) -> tuple[Any, Weights]:
        factors: list[tuple[Any, Any] | None] = [None] * vectors
        if form is not None and form.factors:
            factors = [form.factor(code, code.plus(place, v * lanes)) for v in range(vectors)]
            place = code.plus(place, vectors * lanes)

        def weights_of(here: Any, group: int) -> list[Any]:
            words = [code.load(here, code.ints, v * lanes * 4) for v in range(vectors)]
            return (
                words
                if form is None
                else [form.unpacked(code, w, group, f) for w, f in zip(words, factors, strict=True)]
            )

        return place, weights_of

    together = 1 if form is None else form.groups
    return tile_sums(code, first, rows, *row, body, begin_tap, accumulate, 4 * vectors * lanes, together)[0]


def places_of(code: VectorCode, first: Any, stride: Any, rows: int) -> list[Any]:
    """Return the addresses of `rows` rows that are `stride` bytes apart."""
    places = [first]
    for _ in range(1, rows):
        places.append(code.plus(places[-1], stride))
    return places


def tile(target: Target, rows: int, vectors: int, form: NibbleForm | None = None, ties: str = "") -> Callable:
    """Return a micro-kernel for `rows` rows of byte results of one panel; only rows present are stored.

    Arguments: those of `segments_kernel`; then zero point, least, most and flip of the result (see `Requantizer`, also
    for `ties`). Rows that are not present are read nevertheless. `form` is that of 4-bit weights.
    """
    lanes = target.lanes
    columns = vectors * lanes

    def emit(
        code: VectorCode, first: Any, distance: Any, offsets: Any, panel: Any, result: Any, stride: Any, present: Any,
        wanted: Any, taps: Any, groups: Any, *limits: Any,
    ) -> None:  # fmt: skip
        bias = [code.load(panel, code.ints, v * lanes * 4) for v in range(vectors)]
        body = code.plus(panel, 8 * columns)
        totals = _byte_sums(code, bias, rows, form, body, first, distance, offsets, taps, groups)
        requantizer = Requantizer(code, *limits, ties)
        scales = [code.load(panel, code.floats, 4 * columns + v * lanes * 4) for v in range(vectors)]
        # Four vectors at a time are converted to bytes; if they are narrow, they hold several rows.
        step = 4 // vectors * vectors
        stored = [
            requantizer.stored(totals[i : i + step], (scales * rows)[i : i + step][: len(totals) - i])
            for i in range(0, len(totals), step)
        ]
        store_rows(code, stored, places_of(code, result, stride, rows), columns, present, wanted)

    return outlined(f"quantized_tile_{rows}x{vectors}{ties}", "i" * 14, target, emit)


def float_tile(target: Target, rows: int, vectors: int, form: NibbleForm | None = None) -> Callable:
    """Return a micro-kernel for float results from rows quantized at run time, each with its own scale and origin.

    Arguments: those of `tile` up to the groups; then the first row's scale (f32) and origin (i32), bytes to the next
    row's, the address of least and most (f64 each), and an unused one.
    """
    lanes = target.lanes
    columns = vectors * lanes

    def emit(
        code: VectorCode, first: Any, distance: Any, offsets: Any, panel: Any, result: Any, stride: Any, present: Any,
        wanted: Any, taps: Any, groups: Any, scaling: Any, scaling_step: Any, limits: Any, unused: Any,
    ) -> None:  # fmt: skip
        builder = code.builder
        zeros = [ir.Constant(code.ints, None)] * vectors
        body = code.plus(panel, 12 * columns)
        totals = _byte_sums(code, zeros, rows, form, body, first, distance, offsets, taps, groups)
        biases, scales = (
            [code.load(panel, code.floats, 4 * (part * columns + v * lanes)) for v in range(vectors)] for part in (0, 1)
        )
        weight_sums = [code.load(panel, code.ints, 4 * (2 * columns + v * lanes)) for v in range(vectors)]
        least, most = (code.splat(builder.fptrunc(code.load(limits, F64, 8 * i), F32)) for i in (0, 1))
        masks = [code.mask(wanted, lanes * v) for v in range(vectors)]
        places, scalings = places_of(code, result, stride, rows), places_of(code, scaling, scaling_step, rows)
        for r in range(rows):
            with builder.if_then(code.below(r, present)):
                scale, origin = code.splat(code.load(scalings[r], F32)), code.splat(code.load(scalings[r], I32, 4))
                for v in range(vectors):
                    centred = builder.sub(totals[r * vectors + v], builder.mul(origin, weight_sums[v]))
                    real = code.fma(builder.sitofp(centred, code.floats), builder.fmul(scale, scales[v]), biases[v])
                    code.masked_store(code.clamp(real, least, most), places[r], masks[v], 4 * lanes * v)

    return outlined(f"float_tile_{rows}x{vectors}", "i" * 14, target, emit)
