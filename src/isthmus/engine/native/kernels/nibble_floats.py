"""4-bit weights of float products: dequantized in registers, for one row at once, for many rows into work space.

A panel has, for `columns` = vectors * lanes: bias f32[columns]; for each block of the depth scale f32[columns]; for
each block the element that means 0, i8[columns]; for each eight steps of the depth a word u32[columns]. A word has
eight successive elements from 0 to 15, the first in its lowest bits. A weight is ``(element - zero) * scale`` in
float32, rounded once. So a product has the same bits as one with weights that were dequantized before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.engine.native.kernels.base import F32, I8, device
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.target import Target

# The steps of the depth in a word.
_STEPS = 8


def _scale_of(code: VectorCode, scales: Any, zeros: Any, vector: int) -> tuple[Any, Any]:
    """Load the scales and the zeros of one vector of columns of a block."""
    zero = code.load(zeros, vector_type(I8, code.lanes), vector * code.lanes)
    return code.load(scales, None, 4 * vector * code.lanes), code.builder.sext(zero, code.ints)


def _weight(code: VectorCode, words: Any, shift: Any, scale: Any, zero: Any) -> Any:
    """Return the weights whose bits begin at `shift`, a vector of equal counts."""
    builder = code.builder
    element = builder.and_(builder.lshr(words, shift), code.constant(15, code.ints))
    return builder.fmul(builder.sitofp(builder.sub(element, zero), code.floats), scale)


def unpacking(target: Target, vectors: int) -> Callable:
    """Return a micro-kernel that dequantizes some words of a panel into rows of floats.

    Arguments: scales and zeros of the first block, first word, its index, words, words in a block, destination.
    """
    columns = vectors * target.lanes

    def emit(
        code: VectorCode, scales: Any, zeros: Any, words: Any, first: Any, count: Any, block: Any, goal: Any
    ) -> None:
        builder = code.builder
        loop = code.loop(count, [words, goal])
        here, rows = loop.values
        number = builder.udiv(code.plus(loop.index, first), block)
        scale_row = code.plus(scales, code.times(number, 4 * columns))
        zero_row = code.plus(zeros, code.times(number, columns))
        for v in range(vectors):
            scale, zero = _scale_of(code, scale_row, zero_row, v)
            packed = code.load(here, code.ints, 4 * v * code.lanes)
            for step in range(_STEPS):
                weight = _weight(code, packed, code.constant(4 * step, code.ints), scale, zero)
                code.store(weight, rows, 4 * (step * columns + v * code.lanes))
        loop.end([code.plus(here, 4 * columns), code.plus(rows, 4 * _STEPS * columns)])

    return outlined(f"unpacking_{vectors}", "iiiiiii", target, emit)


@device
def nibble_panel_bytes(depth, block, width):  # type: ignore[no-untyped-def]
    """Return the size of a panel of 4-bit weights with a scale for each `block` steps of the depth."""
    block_words, words = block // 8, (depth + 7) // 8
    return width * (4 + (words + block_words - 1) // block_words * 5 + words * 4)


def unpacker(target: Target, vectors: int) -> Any:
    """Return a function that dequantizes the rows of a panel that a part of the depth needs.

    It returns the address of the part's first row in work space.
    """
    width = vectors * target.lanes
    unpack = unpacking(target, vectors)

    @device
    def dequantize(panel, depth, block, begin, end, work):  # type: ignore[no-untyped-def]
        block_words, words = block // 8, (depth + 7) // 8
        blocks = (words + block_words - 1) // block_words
        scales = panel + width * 4
        zeros = scales + blocks * width * 4
        first = begin // 8
        place = zeros + blocks * width + first * width * 4
        unpack(scales, zeros, place, first, (end + 7) // 8 - first, block_words, work)
        return work + (begin - first * 8) * width * 4

    return dequantize


def nibble_row(target: Target, vectors: int) -> Callable:
    """Return a micro-kernel for one row, limited by reading the panel: four sums per vector keep products in flight.

    Arguments: left row, bytes between its columns, depth, steps in a block, panel, result, valid columns, least, most.
    """
    chains = 4
    columns = vectors * target.lanes

    def emit(
        code: VectorCode, a: Any, a_column: Any, depth: Any, block: Any, panel: Any, c: Any, valid: Any, least: Any,
        most: Any,
    ) -> None:  # fmt: skip
        builder = code.builder
        block_words = builder.sdiv(block, code.number(_STEPS))
        words = builder.sdiv(code.plus(depth, _STEPS - 1), code.number(_STEPS))
        blocks = builder.sdiv(builder.sub(code.plus(words, block_words), code.number(1)), block_words)
        full, rest = builder.sdiv(depth, code.number(_STEPS)), builder.srem(depth, code.number(_STEPS))
        first = [code.load(panel, None, 4 * code.lanes * v) for v in range(vectors)]
        scales = code.plus(panel, 4 * columns)
        zeros = code.plus(scales, code.times(blocks, 4 * columns))
        start = [a, code.plus(zeros, code.times(blocks, columns)), *first]

        def scaling(word: Any) -> list[tuple[Any, Any]]:
            """Load the scales and zeros of the block that a word belongs to."""
            number = builder.udiv(word, block_words)
            scale_row = code.plus(scales, code.times(number, 4 * columns))
            zero_row = code.plus(zeros, code.times(number, columns))
            return [_scale_of(code, scale_row, zero_row, v) for v in range(vectors)]

        def bulk() -> list[Any]:
            """Add up the steps of full words, four sums at a time."""
            loop = code.loop(full, [*start, *[code.constant(0.0)] * (vectors * (chains - 1))])
            left, here, *sums = loop.values
            factors = scaling(loop.index)
            packed = [code.load(here, code.ints, 4 * code.lanes * v) for v in range(vectors)]
            for step in range(_STEPS):
                x = code.splat(code.load(left, F32))
                for v in range(vectors):
                    weight = _weight(code, packed[v], code.constant(4 * step, code.ints), *factors[v])
                    at = step % chains * vectors + v
                    sums[at] = code.fma(x, weight, sums[at])
                left = code.plus(left, a_column)
            left, here, *sums = loop.end([left, code.plus(here, 4 * columns), *sums])
            for chain in range(1, chains):
                for v in range(vectors):
                    sums[v] = builder.fadd(sums[v], sums[chain * vectors + v])
            return [left, here, *sums[:vectors]]

        left, here, *sums = code.either(code.below(0, full), bulk, lambda: start)

        def remainder() -> list[Any]:
            """Add up the steps of the last word, one at a time."""
            factors = scaling(full)
            packed = [code.load(here, code.ints, 4 * code.lanes * v) for v in range(vectors)]
            loop = code.loop(rest, [left, *sums])
            x = code.splat(code.load(loop.values[0], F32))
            shift = code.splat(builder.trunc(code.times(loop.index, 4), code.ints.element))
            added = [
                code.fma(x, _weight(code, packed[v], shift, *factors[v]), loop.values[1 + v]) for v in range(vectors)
            ]
            return loop.end([code.plus(loop.values[0], a_column), *added])[1:]

        sums = code.either(code.below(0, rest), remainder, lambda: sums)
        low, high = code.splat(least), code.splat(most)
        for v, value in enumerate(sums):
            code.masked_store(code.clamp(value, low, high), c, code.mask(valid, code.lanes * v), 4 * code.lanes * v)

    return outlined(f"nibble_row_{vectors}", "iiiiiiiff", target, emit)
