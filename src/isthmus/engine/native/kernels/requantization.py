"""Conversion of 32-bit sums to stored bytes: ``rint(sum * scale) + zero_point``, limited, for up to four vectors at
once.

Results are computed as signed bytes. For unsigned ones the caller passes zero point and limits minus 128, and the sign
bit is flipped at the end. The product must fit 32 bits, which lowerings check.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from isthmus.engine.native.kernels.base import I1, I8, I16, I32
from isthmus.engine.native.kernels.vector import VectorCode, type_suffix, vector_type
from isthmus.engine.native.signatures.rounding import UP

# Instructions that pack two vectors into one with saturation, by lanes: 32 bits to 16, and 16 bits to 8.
_PACK_WORDS = {4: "llvm.x86.sse2.packssdw.128", 8: "llvm.x86.avx2.packssdw", 16: "llvm.x86.avx512.packssdw.512"}
_PACK_HALVES = {4: "llvm.x86.sse2.packsswb.128", 8: "llvm.x86.avx2.packsswb", 16: "llvm.x86.avx512.packsswb.512"}


class Requantizer:
    """A code generator for converting sums to stored bytes.

    Parameters
    ----------
    zero, least, most
        Zero point and limits of the result as signed bytes (64-bit integers in the code).
    flip
        0x80 to flip the sign bit of results, else 0.
    ties
        UP to round exact halves up, else to even.
    """

    def __init__(self, code: VectorCode, zero: Any, least: Any, most: Any, flip: Any, ties: str = "") -> None:
        self._code, self._ties = code, ties
        self._x86 = code.target.triple.startswith("x86_64")
        count = 4 * code.lanes
        builder = code.builder
        # On x86, the zero point is added to 16-bit numbers and bytes are limited; elsewhere, both happen in 32 bits.
        kinds = (I16, I8) if self._x86 else (I32, I32)
        lanes = (2 * code.lanes, count) if self._x86 else (code.lanes, code.lanes)
        self._zero = code.splat(builder.trunc(zero, kinds[0]), lanes[0])
        self._least = code.splat(builder.trunc(least, kinds[1]), lanes[1])
        self._most = code.splat(builder.trunc(most, kinds[1]), lanes[1])
        self._flip = code.splat(builder.trunc(flip, I8), count)

    def stored(self, sums: list[Any], scales: list[Any], interleaved: bool = False) -> Any:
        """Return the bytes of up to four vectors of sums: consecutive, or interleaved in groups of four.

        Interleaving is within each 128 bits, the order that unpacked bytes need.
        """
        code, builder = self._code, self._code.builder
        integers = [
            self.rounded(builder.fmul(builder.sitofp(total, code.floats), scale))
            for total, scale in zip(sums, scales, strict=True)
        ]
        return self.packed(integers, interleaved)

    def rounded(self, value: Any) -> Any:
        """Return the nearest integers."""
        code, builder = self._code, self._code.builder
        whole = code.call(f"llvm.lrint.{type_suffix(code.ints)}.{type_suffix(code.floats)}", code.ints, [value])
        if self._ties != UP:
            return whole
        rest = builder.fsub(value, builder.sitofp(whole, code.floats))
        # A half that was rounded down; as an integer of all ones, true is -1.
        down = builder.fcmp_ordered("==", rest, code.constant(0.5))
        return builder.sub(whole, builder.sext(down, code.ints))

    def packed(self, integers: list[Any], interleaved: bool = False) -> Any:
        """Return the bytes of up to four vectors of integers, after adding the zero point and limiting them."""
        packed = self._packed_x86(integers, interleaved) if self._x86 else self._packed(integers)
        return self._code.builder.xor(packed, self._flip)

    def _limit(self, value: Any) -> Any:
        """Limit a vector to the range of results."""
        code, kind = self._code, value.type
        suffix = type_suffix(kind)
        value = code.call(f"llvm.smax.{suffix}", kind, [value, self._least])
        return code.call(f"llvm.smin.{suffix}", kind, [value, self._most])

    def _packed(self, integers: list[Any]) -> Any:
        """Limit, join and truncate; missing vectors repeat the first one."""
        code, builder = self._code, self._code.builder
        limited = [self._limit(builder.add(value, self._zero)) for value in integers]
        limited += [limited[0]] * (4 - len(limited))
        pairs = [_join(code, limited[0], limited[1]), _join(code, limited[2], limited[3])]
        return builder.trunc(_join(code, *pairs), vector_type(I8, 4 * code.lanes))

    def _packed_x86(self, integers: list[Any], interleaved: bool) -> Any:
        """Pack with saturation. Packs work within each 128 bits, so the pieces are put in order at the end."""
        code, builder, lanes = self._code, self._code.builder, self._code.lanes
        halves_type, bytes_type = vector_type(I16, 2 * lanes), vector_type(I8, 4 * lanes)
        integers = integers + [integers[-1]] * (len(integers) % 2)
        halves = []
        for first, second in zip(integers[::2], integers[1::2], strict=True):
            packed = code.call(_PACK_WORDS[lanes], halves_type, [first, second])
            halves.append(code.call(f"llvm.sadd.sat.v{2 * lanes}i16", halves_type, [packed, self._zero]))
        packed = code.call(_PACK_HALVES[lanes], bytes_type, [halves[0], halves[-1]])
        limited = self._limit(packed)
        if interleaved:
            return limited
        limited = builder.bitcast(limited, code.ints)
        blocks = lanes // 4
        order = ir.Constant(vector_type(I32, lanes), [4 * (i % blocks) + i // blocks for i in range(lanes)])
        return builder.bitcast(builder.shuffle_vector(limited, limited, order), bytes_type)


def _join(code: VectorCode, low: Any, high: Any) -> Any:
    """Return one vector with the elements of two."""
    count = 2 * low.type.count
    return code.builder.shuffle_vector(low, high, ir.Constant(vector_type(I32, count), list(range(count))))


def part(code: VectorCode, value: Any, first: int, count: int) -> Any:
    """Return `count` neighbouring elements of a vector, from element `first` on."""
    if count == value.type.count:
        return value
    order = ir.Constant(vector_type(I32, count), list(range(first, first + count)))
    return code.builder.shuffle_vector(value, value, order)


def byte_mask(code: VectorCode, count: Any, lanes: int) -> Any:
    """Return a mask of the first `count` of up to 64 lanes; `count` is at least 1.

    It is made from the bits of a word, which is cheaper than comparing each lane.
    """
    builder = code.builder
    missing = builder.sub(code.number(64), count)
    bits = builder.lshr(code.number(-1), builder.select(code.below(missing, 0), code.number(0), missing))
    narrow = builder.trunc(bits, ir.IntType(lanes)) if lanes < 64 else bits
    return builder.bitcast(narrow, vector_type(I1, lanes))


def store_rows(code: VectorCode, stored: list[Any], places: list[Any], width: int, present: Any, valid: Any) -> None:
    """Store rows of `width` bytes: only the first `present` rows, and only the first `valid` bytes of each.

    `stored` are vectors that hold one or several rows each, `places` the address of each row.
    """
    builder = code.builder
    rows_each = stored[0].type.count // width
    pieces = [part(code, stored[r // rows_each], r % rows_each * width, width) for r in range(len(places))]
    partial = builder.or_(code.below(valid, width), code.below(present, len(places)))
    with builder.if_else(partial) as (some, all_of_them):
        with some:
            # Masks exist for these widths only; a row of another width has a vector of its own.
            mask_lanes = width if width in (4, 8, 16, 32, 64) else stored[0].type.count
            mask = byte_mask(code, builder.select(code.below(valid, width), valid, code.number(width)), mask_lanes)
            for r, place in enumerate(places):
                with builder.if_then(code.below(r, present)):
                    code.masked_store(pieces[r] if mask_lanes == width else stored[r // rows_each], place, mask)
        with all_of_them:
            for piece, place in zip(pieces, places, strict=True):
                code.store(piece, place)
