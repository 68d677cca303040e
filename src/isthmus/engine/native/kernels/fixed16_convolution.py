"""Convolution and matrix product of 16-bit fixed point with constant weights of 8 or 16 bits; sums are exact.

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

import numpy as np
from llvmlite import ir

from isthmus.engine.native.kernels.base import (
    F64,
    I8,
    I16,
    I32,
    I64,
    copy_bytes,
    device,
    generated,
    kernel,
    load_i64,
    load_u8,
    load_u16,
    read_u16,
    share,
    store_f64,
    store_i16,
    write_u16,
)
from isthmus.engine.native.kernels.quantized_gemm import accumulate_pairs
from isthmus.engine.native.kernels.segments import segments_kernel
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.signatures.fixed16_convolution import (
    CONVOLVE,
    CONVOLVE_DEPTHWISE,
    DEPTHWISE_ROWS,
    GROUP_BYTES,
    HEAD_BYTES,
    MULTIPLY,
)
from isthmus.engine.native.target import Target

_ARGUMENTS = 15
"""The number of arguments of a tile."""


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


def _stored(code: VectorCode, total: Any, addend: Any, scale: Any, limits: list[Any]) -> Any:
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


def _store(code: VectorCode, rows: list[list[Any]], places: list[Any], present: Any, wanted: Any) -> None:
    """Store the vectors of each row: only of the first `present` rows, and only the first `wanted` numbers."""
    builder = code.builder
    count = rows[0][0].type.count
    partial = builder.or_(code.below(wanted, count * len(rows[0])), code.below(present, len(rows)))
    with builder.if_else(partial) as (some, all_of_them):
        with some:
            masks = [code.mask(wanted, count * v, count) for v in range(len(rows[0]))]
            for r, vectors in enumerate(rows):
                with builder.if_then(code.below(r, present)):
                    for v, value in enumerate(vectors):
                        code.masked_store(value, places[r], masks[v], 2 * count * v)
        with all_of_them:
            for vectors, place in zip(rows, places, strict=True):
                for v, value in enumerate(vectors):
                    code.store(value, place, 2 * count * v)


def _limits(code: VectorCode, *limits: Any) -> list[Any]:
    """Return zero point, least and most as vectors."""
    return [code.splat(code.builder.sitofp(value, F64)) for value in limits]


def _places(code: VectorCode, first: Any, stride: Any, rows: int) -> list[Any]:
    """Return the addresses of `rows` rows that are `stride` bytes apart."""
    places = [first]
    for _ in range(1, rows):
        places.append(code.plus(places[-1], stride))
    return places


def _tile(target: Target, width: str, rows: int, vectors: int) -> Callable:
    """Return a micro-kernel for `rows` rows of results of one panel; only rows present are stored.

    Arguments: those of `segments_kernel`; then taps in a block, blocks, zero point, least and most of the result. Rows
    that are not present are read nevertheless.
    """

    def emit(
        code: VectorCode, first: Any, distance: Any, offsets: Any, panel: Any, result: Any, stride: Any, present: Any,
        wanted: Any, taps: Any, groups: Any, block: Any, blocks: Any, *limits: Any,
    ) -> None:  # fmt: skip
        parts = _Panel(code, panel, width, vectors)

        def sums_of(parts: _Panel, part: int, here: Any, count: Any, weights: Any) -> tuple[list[Any], Any]:
            addends = parts.addends(part)
            outer = code.loop(count, [weights, *[ir.Constant(code.ints, None)] * (rows * vectors)])
            tap = code.plus(first, code.load(code.plus(here, code.times(outer.index, 8)), I64))
            # Three rows per address register: the distance scaled by 1 and 2 reaches the second and third.
            starts = [tap]
            for _ in range(3, rows, 3):
                starts.append(code.opaque(code.plus(starts[-1], code.times(distance, 3))))
            inner = code.loop(groups, [*starts, *outer.values])
            places, at = inner.values[: len(starts)], inner.values[len(starts)]
            factors = [parts.weights(at, v, part, addends[v]) for v in range(vectors)]
            totals = list(inner.values[len(starts) + 1 :])
            for r in range(rows):
                place = code.plus(places[r // 3], code.times(distance, r % 3)) if r % 3 else places[r // 3]
                row = code.splat(code.load(place, I32))
                for v in range(vectors):
                    totals[r * vectors + v] = accumulate_pairs(code, totals[r * vectors + v], row, factors[v])
            ended = inner.end([*(code.plus(p, 4) for p in places), code.plus(at, parts.group_bytes), *totals])
            ended = outer.end(ended[len(starts) :])
            return ended[1:], ended[0]

        totals, addend = _emit_tile(code, rows, parts, offsets, taps, block, blocks, sums_of)
        wide, bounds = vector_type(F64, code.lanes), _limits(code, *limits)
        scales = [parts.scale(v) for v in range(vectors)]
        stored = [
            [
                _stored(code, totals[r * vectors + v], code.load(addend(r, v), wide), scales[v], bounds)
                for v in range(vectors)
            ]
            for r in range(rows)
        ]
        _store(code, stored, _places(code, result, stride, rows), present, wanted)

    return outlined(f"fixed16_tile_{width}_{rows}x{vectors}", "i" * _ARGUMENTS, target, emit)


def _interleaved(code: VectorCode, left: Any, right: Any, high: bool) -> Any:
    """Interleave 16-bit numbers of both vectors, from the low or the high half of each 128 bits."""
    count = 2 * code.lanes
    order = [n for k in range(0, count, 8) for i in range(4) for n in (k + i + 4 * high, k + i + 4 * high + count)]
    return code.builder.shuffle_vector(left, right, ir.Constant(vector_type(I32, count), order))


def _depthwise_tile(target: Target, width: str) -> Callable:
    """Return a micro-kernel for neighbouring results of a row of two vectors of channels, each with its own filter.

    Arguments: those of `_tile`; the groups are not used. Taps come in pairs, whose inputs are interleaved. A panel's
    columns are in the order of interleaved channels.
    """
    rows, vectors = DEPTHWISE_ROWS, 2

    def emit(
        code: VectorCode, first: Any, distance: Any, offsets: Any, panel: Any, result: Any, stride: Any, present: Any,
        wanted: Any, taps: Any, groups: Any, block: Any, blocks: Any, *limits: Any,
    ) -> None:  # fmt: skip
        builder, kind = code.builder, vector_type(I16, 2 * code.lanes)
        parts = _Panel(code, panel, width, vectors)
        starts = _places(code, first, distance, rows)

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
                    pairs = _interleaved(code, *inputs, bool(v))
                    totals[vectors * r + v] = accumulate_pairs(code, totals[vectors * r + v], pairs, factors[v])
            ended = loop.end([code.plus(at, parts.group_bytes), *totals])
            return ended[1:], ended[0]

        totals, addend = _emit_tile(code, rows, parts, offsets, taps, block, blocks, sums_of)
        wide, bounds = vector_type(F64, code.lanes), _limits(code, *limits)
        scales = [parts.scale(v) for v in range(vectors)]
        # The order of channels again: four from each vector in turn.
        lanes = code.lanes
        order = [v * lanes + k + i for k in range(0, lanes, 4) for v in range(2) for i in range(4)]
        stored = []
        for r in range(rows):
            low, high = (
                _stored(code, totals[r * vectors + v], code.load(addend(r, v), wide), scales[v], bounds)
                for v in range(vectors)
            )
            stored.append([builder.shuffle_vector(low, high, ir.Constant(vector_type(I32, 2 * lanes), order))])
        _store(code, stored, _places(code, result, stride, rows), present, wanted)

    return outlined(f"fixed16_depthwise_tile_{width}", "i" * _ARGUMENTS, target, emit)


@device
def _fill(target, value, nbytes):
    """Set 16-bit numbers to a value."""
    for i in range(nbytes >> 1):
        write_u16(target, i, np.uint16(value))


@device
def _copy(form, target, source, count, zero):
    """Copy `count` bytes of 16-bit numbers; form 2 flips their sign bits. Return the address after the last one."""
    if form == 1:
        copy_bytes(target, source, count)
    else:
        for i in range(count >> 1):
            write_u16(target, i, np.uint16(read_u16(source, i) ^ np.uint16(0x8000)))
    return target + count


_rest = device(lambda zero, least, most, flip, block, blocks, _, __, ___: (block, blocks, zero, least, most))


@generated
def convolve(target: Target, variant: str) -> Any:
    """Convolve with the width of weights and the tile named by the variant, ``WIDTH_ROWSxVECTORS``."""
    width, _, tile = variant.partition("_")
    rows, vectors = (int(n) for n in tile.split("x"))
    tiles = [_tile(target, width, rows, v) for v in range(1, vectors + 1)]
    return segments_kernel(CONVOLVE, tiles, rows, target.lanes, 2, _fill, _copy, _rest)


@generated
def convolve_depthwise(target: Target, variant: str) -> Any:
    """Convolve depth-wise with one filter for each channel. The variant is the width of weights."""
    tiles, lanes = [_depthwise_tile(target, variant)], 2 * target.lanes
    return segments_kernel(CONVOLVE_DEPTHWISE, tiles, DEPTHWISE_ROWS, lanes, 2, _fill, _copy, _rest, depthwise=True)


@device
def _pack(matrix, right, panel, wanted, width):
    """Pack `wanted` columns of a matrix into a panel of `width` columns, with 16-bit weights.

    `matrix` has the words about it, the left zero point, the scale and the groups of the depth.
    """
    depth, row, column, size, flip, zero, left_zero, scale, groups = matrix
    body = panel + 24 * width
    low = (-zero + 128) % 256 - 128
    high = (-zero - low) >> 8
    for c in range(width):
        store_f64(panel, width + c, scale)
        for half in range(2):
            store_i16(panel + 16 * width, 2 * c + half, np.int16(high))
            store_i16(panel + 20 * width, 2 * c + half, np.int16(low))
        total = 0
        if c >= wanted:
            for k in range(2 * groups):
                store_i16(body + (k >> 1) * 4 * width, 2 * c + (k & 1), np.int16(zero))
        else:
            for k in range(depth):
                place = right + k * row + c * column
                if size == 1:
                    number = np.int64(np.int8(np.int32(load_u8(place, 0)) ^ flip))
                else:
                    number = np.int64(np.int16(np.int32(load_u16(place, 0)) ^ flip))
                total += number - zero
                store_i16(body + (k >> 1) * 4 * width, 2 * c + (k & 1), np.int16(number))
            for k in range(depth, 2 * groups):
                store_i16(body + (k >> 1) * 4 * width, 2 * c + (k & 1), np.int16(zero))
        store_f64(panel, c, -np.float64(left_zero) * np.float64(total))


@generated
def multiply(target: Target, variant: str) -> Any:
    """Multiply matrices that are both known at run time, with the tile named by the variant, ``ROWSxVECTORS``."""
    tile_rows, vectors = (int(n) for n in variant.split("x"))
    width = vectors * target.lanes
    tile = _tile(target, "w16", tile_rows, vectors)

    @kernel(MULTIPLY)
    def execute(
        left, right, y, batches, batch_count, rows, depth, columns, left_row, left_column, right_row, right_column,
        right_size, left_zero, left_flip: np.uint16, right_zero, right_flip: np.int32, work, work_bytes, offsets,
        chunks, groups, scale, out_zero, out_flip, least, most, tid, nt,
    ):  # fmt: skip
        pitch = 4 * chunks * groups
        panel = work + tid * work_bytes
        staged = panel + width * (24 + pitch)
        weights = (
            depth, right_row, right_column, right_size, right_flip, right_zero, left_zero, scale, chunks * groups
        )  # fmt: skip
        panels = (columns + width - 1) // width
        first, last = share(batch_count * panels, tid, nt)
        for unit in range(first, last):
            batch, column = unit // panels, unit % panels * width
            wanted = min(width, columns - column)
            matrix = right + load_i64(batches, 2 * batch + 1)
            _pack(weights, matrix + column * right_column, panel, wanted, width)
            source = left + load_i64(batches, 2 * batch)
            result = y + (batch * rows * columns + column) * 2
            for begin in range(0, rows, tile_rows):
                present = min(tile_rows, rows - begin)
                for r in range(present):
                    place, target_row = source + (begin + r) * left_row, staged + r * pitch
                    if left_column == 2:
                        for k in range(depth):
                            write_u16(target_row, k, np.uint16(read_u16(place, k) ^ left_flip))
                    else:
                        for k in range(depth):
                            write_u16(target_row, k, np.uint16(read_u16(place + k * left_column, 0) ^ left_flip))
                    for k in range(depth, 2 * chunks * groups):
                        write_u16(target_row, k, np.uint16(0))
                tile(
                    staged, pitch, offsets, panel, result + begin * columns * 2, columns * 2, present, wanted, chunks,
                    groups, 1, chunks, out_zero + out_flip, least + out_flip, most + out_flip,
                )  # fmt: skip

    return execute
