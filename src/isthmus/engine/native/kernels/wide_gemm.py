"""Micro-kernels of products of 16-bit fixed point with weights of 8 or 16 bits; sums are exact.

Rows are read in pairs of signed 16-bit numbers; unsigned ones are copied into work space with their sign bit flipped.
The products of a block of taps are summed in 32 bits. Lowering chooses the blocks by the weights, so that no sum
overflows. The sums of blocks are added up in float64, which is exact for all sums below 2^53. A 16-bit weight is 256
times its upper byte plus its lower one, and each half has sums of its own.

Results are ``rint(sum * scale)``; or, in LiteRT's arithmetic, ``(sum * multiplier + half) >> shift`` in 64 bits.

Panel layout, for `columns` = vectors * lanes: bias f64[columns], scale f64[columns] (in LiteRT's arithmetic i64: the
multiplier, plus 2^32 times the shift), then what is added to a stored
weight: i16 twice [columns]; for 16-bit weights, once for each half. Then the weights: two for each column, for each
group of each tap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from isthmus.engine.native.kernels.base import F64, I8, I16, I32, I64
from isthmus.engine.native.kernels.quantized_gemm import Weights, accumulate_pairs, places_of, tile_sums
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.signatures.quantized_convolution import DEPTHWISE_ROWS, GROUP_BYTES, HEAD_BYTES
from isthmus.engine.native.target import Target

# The number of arguments of a tile.
_ARGUMENTS = 15


class _Panel:
    """The places of a panel's parts, and its weights as 16-bit numbers.

    Parameters
    ----------
    width
        The form of weights (see `HEAD_BYTES`).
    vectors
        The number of vectors of columns.
    """

    def __init__(self, code: VectorCode, panel: Any, width: str, vectors: int) -> None:
        self._code, self._panel, self._width, self.vectors = code, panel, width, vectors
        self.columns = vectors * code.lanes
        self.body = code.plus(panel, HEAD_BYTES[width] * self.columns)
        self.group_bytes = GROUP_BYTES[width] * self.columns
        # The parts that a weight consists of: the shift that makes it, its mask, and the factor of its sums.
        self.parts = (0, 1) if width == "w16" else (0,)

    def factor(self, part: int) -> int:
        """Return what the sums of a part of the weights count."""
        return 256 if self._width == "w16" and part == 0 else 1

    def bias(self) -> Any:
        """Return the address of the bias."""
        return self._panel

    def scale(self, vector: int) -> Any:
        """Return the scales of a vector of columns, floats or integers."""
        code = self._code
        kind = vector_type(I64 if self._width == "w8i" else F64, code.lanes)
        return code.load(self._panel, kind, 8 * (self.columns + vector * code.lanes))

    def addends(self, part: int) -> list[Any]:
        """Return what is added to stored weights of each vector of columns."""
        code, kind = self._code, vector_type(I16, 2 * self._code.lanes)
        start = (16 + 4 * part) * self.columns
        return [code.load(self._panel, kind, start + 4 * v * code.lanes) for v in range(self.vectors)]

    def weights(self, place: Any, vector: int, part: int, addend: Any) -> Any:
        """Return a part of the weights of a vector of columns, two for each; the group begins at `place`."""
        code, builder = self._code, self._code.builder
        kind = vector_type(I16, 2 * code.lanes)
        if self._width != "w16":
            stored = code.load(place, vector_type(I8, 2 * code.lanes), 2 * vector * code.lanes)
            return builder.add(builder.sext(stored, kind), addend)
        stored = code.load(place, kind, 4 * vector * code.lanes)
        if part == 0:
            return builder.add(builder.ashr(stored, code.constant(8, kind)), addend)
        return builder.add(builder.and_(stored, code.constant(255, kind)), addend)


Sums = Callable[[_Panel, int, Any, Any, Any], tuple[list[Any], Any]]
"""The code for the sums of a block: for a part of the weights, from a list of offsets, a number of taps and the address
of their weights, it returns a vector of sums for each row and vector, and the address after the weights.
"""


def _emit_tile(
    code: VectorCode, rows: int, panel: _Panel, offsets: Any, taps: Any, block: Any, blocks: Any, sums_of: Sums,
) -> tuple[list[Any], Callable[[int, int], Any]]:  # fmt: skip
    """Emit the sums of all blocks. Return those of the last block, and a function for the address of what is added.

    That is the bias; or, if there are several blocks, memory on the stack that holds the sums of the others and the
    bias.
    """
    builder, lanes, vectors = code.builder, code.lanes, panel.vectors
    wide = vector_type(F64, lanes)
    width = 8 * lanes
    stack = builder.ptrtoint(builder.alloca(wide, size=rows * vectors), I64)
    source, stride = panel.bias(), code.number(0)
    totals: list[Any] = []

    def place(first: Any, step: Any, r: int, v: int) -> Any:
        return code.plus(code.plus(first, code.times(step, r)) if r else first, width * v)

    for part in panel.parts:
        loop = code.loop(blocks, [offsets, taps, panel.body, source, stride])
        here, left, weights, source, stride = loop.values
        count = builder.select(code.below(left, block), left, block)
        totals, after = sums_of(panel, part, here, count, weights)
        last = builder.icmp_signed(">=", code.plus(loop.index, 1), blocks)
        keeps = builder.not_(last) if part == panel.parts[-1] else ir.Constant(ir.IntType(1), 1)
        with builder.if_then(keeps):
            factor = code.constant(float(panel.factor(part)), wide)
            for r in range(rows):
                for v in range(vectors):
                    added = builder.fmul(builder.sitofp(totals[r * vectors + v], wide), factor)
                    before = code.load(place(source, stride, r, v), wide)
                    code.store(builder.fadd(before, added), stack, width * (r * vectors + v))
        kept_source = builder.select(keeps, stack, source)
        kept_stride = builder.select(keeps, code.number(width * vectors), stride)
        step = code.times(count, 8)
        source, stride = loop.end([code.plus(here, step), builder.sub(left, count), after, kept_source, kept_stride])[
            3:
        ]
    return totals, lambda r, v: place(source, stride, r, v)


def _requantize(code: VectorCode, total: Any, addend: Any, scale: Any, limits: list[Any]) -> Any:
    """Return the rounded product of a sum and its scale, plus zero, limited, as 16-bit numbers."""
    builder, wide = code.builder, vector_type(F64, code.lanes)
    zero, least, most = limits
    value = builder.fadd(builder.sitofp(total, wide), addend)
    if scale.type.element == F64:
        value = code.call(f"llvm.rint.v{code.lanes}f64", wide, [builder.fmul(value, scale)])
    else:
        long = scale.type
        shift = builder.lshr(scale, code.constant(32, long))
        multiplier = builder.and_(scale, code.constant((1 << 32) - 1, long))
        half = builder.lshr(builder.shl(code.constant(1, long), shift), code.constant(1, long))
        scaled = builder.add(builder.mul(builder.fptosi(value, long), multiplier), half)
        # A result of more than 53 bits is limited below, so that its last bits do not matter.
        value = builder.sitofp(builder.ashr(scaled, shift), wide)
    value = builder.fadd(value, zero)
    whole = builder.fptosi(code.clamp(value, least, most), code.ints)
    return builder.trunc(whole, vector_type(I16, code.lanes))


def _store(code: VectorCode, rows: list[list[Any]], places: list[Any], present: Any, valid: Any) -> None:
    """Store the vectors of each row: only of the first `present` rows, and only the first `valid` numbers."""
    builder = code.builder
    count = rows[0][0].type.count
    partial = builder.or_(code.below(valid, count * len(rows[0])), code.below(present, len(rows)))
    with builder.if_else(partial) as (some, all_of_them):
        with some:
            masks = [code.mask(valid, count * v, count) for v in range(len(rows[0]))]
            for r, vectors in enumerate(rows):
                with builder.if_then(code.below(r, present)):
                    for v, value in enumerate(vectors):
                        code.masked_store(value, places[r], masks[v], 2 * count * v)
        with all_of_them:
            for vectors, place in zip(rows, places, strict=True):
                for v, value in enumerate(vectors):
                    code.store(value, place, 2 * count * v)


def _stored_rows(
    code: VectorCode, panel: _Panel, rows: int, totals: list[Any], addend: Callable[[int, int], Any], *limits: Any
) -> list[list[Any]]:
    """Return the results of each row and vector of a tile; see `_emit_tile` for the sums and what is added."""
    wide, vectors = vector_type(F64, code.lanes), panel.vectors
    # Zero point, least and most as vectors.
    bounds = [code.splat(code.builder.sitofp(value, F64)) for value in limits]
    scales = [panel.scale(v) for v in range(vectors)]
    return [
        [
            _requantize(code, totals[r * vectors + v], code.load(addend(r, v), wide), scales[v], bounds)
            for v in range(vectors)
        ]
        for r in range(rows)
    ]


def wide_tile(target: Target, width: str, rows: int, vectors: int) -> Callable:
    """Return a micro-kernel for `rows` rows of results of one panel; only rows present are stored.

    Arguments: those of `segments_kernel`; then taps in a block, blocks, zero point, least and most of the result. Rows
    that are not present are read nevertheless.
    """

    def emit(
        code: VectorCode, first: Any, distance: Any, offsets: Any, panel: Any, result: Any, stride: Any, present: Any,
        valid: Any, taps: Any, groups: Any, block: Any, blocks: Any, *limits: Any,
    ) -> None:  # fmt: skip
        parts = _Panel(code, panel, width, vectors)

        def sums_of(parts: _Panel, part: int, here: Any, count: Any, weights: Any) -> tuple[list[Any], Any]:
            addends, zeros = parts.addends(part), [ir.Constant(code.ints, None)] * vectors

            def begin_tap(place: Any) -> tuple[Any, Weights]:
                return place, lambda at, _: [parts.weights(at, v, part, addends[v]) for v in range(vectors)]

            return tile_sums(
                code, zeros, rows, first, distance, here, count, groups, weights, begin_tap, accumulate_pairs,
                parts.group_bytes,
            )  # fmt: skip

        totals, addend = _emit_tile(code, rows, parts, offsets, taps, block, blocks, sums_of)
        stored = _stored_rows(code, parts, rows, totals, addend, *limits)
        _store(code, stored, places_of(code, result, stride, rows), present, valid)

    return outlined(f"wide_tile_{width}_{rows}x{vectors}", "i" * _ARGUMENTS, target, emit)


def _interleave(code: VectorCode, left: Any, right: Any, high: bool) -> Any:
    """Interleave 16-bit numbers of both vectors, from the low or the high half of each 128 bits."""
    count = 2 * code.lanes
    order = [n for k in range(0, count, 8) for i in range(4) for n in (k + i + 4 * high, k + i + 4 * high + count)]
    return code.builder.shuffle_vector(left, right, ir.Constant(vector_type(I32, count), order))


def wide_depthwise_tile(target: Target, width: str) -> Callable:
    """Return a micro-kernel for neighbouring results of a row of two vectors of channels, each with its own filter.

    Arguments: those of `wide_tile`; the groups are not used. Taps come in pairs, whose inputs are interleaved. The
    columns of a panel are in the order of interleaved channels.
    """
    rows, vectors = DEPTHWISE_ROWS, 2

    def emit(
        code: VectorCode, first: Any, distance: Any, offsets: Any, panel: Any, result: Any, stride: Any, present: Any,
        valid: Any, taps: Any, _groups: Any, block: Any, blocks: Any, *limits: Any,
    ) -> None:  # fmt: skip
        builder, kind = code.builder, vector_type(I16, 2 * code.lanes)
        parts = _Panel(code, panel, width, vectors)
        starts = places_of(code, first, distance, rows)

        def sums_of(parts: _Panel, part: int, here: Any, count: Any, weights: Any) -> tuple[list[Any], Any]:
            addends = parts.addends(part)
            loop = code.loop(count, [weights, *[ir.Constant(code.ints, None)] * (rows * vectors)], step=2)
            at, totals = loop.values[0], list(loop.values[1:])
            pair = code.plus(here, code.times(loop.index, 8))
            one, other = code.load(pair, I64), code.load(pair, I64, 8)
            factors = [parts.weights(at, v, part, addends[v]) for v in range(vectors)]
            for r in range(rows):
                inputs = [code.load(code.plus(starts[r], offset), kind) for offset in (one, other)]
                for v in range(vectors):
                    pairs = _interleave(code, *inputs, bool(v))
                    totals[vectors * r + v] = accumulate_pairs(code, totals[vectors * r + v], pairs, factors[v])
            ended = loop.end([code.plus(at, parts.group_bytes), *totals])
            return ended[1:], ended[0]

        totals, addend = _emit_tile(code, rows, parts, offsets, taps, block, blocks, sums_of)
        # The order of channels again: four from each vector in turn.
        lanes = code.lanes
        order = [v * lanes + k + i for k in range(0, lanes, 4) for v in range(2) for i in range(4)]
        mask = ir.Constant(vector_type(I32, 2 * lanes), order)
        stored = [
            [builder.shuffle_vector(low, high, mask)]
            for low, high in _stored_rows(code, parts, rows, totals, addend, *limits)
        ]
        _store(code, stored, places_of(code, result, stride, rows), present, valid)

    return outlined(f"wide_depthwise_tile_{width}", "i" * _ARGUMENTS, target, emit)
