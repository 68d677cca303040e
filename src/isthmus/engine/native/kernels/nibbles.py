"""Unpacking of 4-bit weights in registers, for products that multiply bytes or pairs of 16-bit numbers.

A word of 32 bits has eight successive weights of one column, each in two's complement. It is unpacked into groups that
`quantized_gemm.accumulate` multiplies: two groups of four bytes, or four groups of two 16-bit numbers. Weights in
blocks are multiplied by the integer factor of their block and column on the way, and are then 8-bit numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isthmus.engine.native.kernels.base import I8, I16
from isthmus.engine.native.kernels.vector import VectorCode, vector_type

# Masks of the high and of the low four bits of each byte of a word.
_HIGH, _LOW = -0x0F0F0F10, 0x0F0F0F0F


@dataclass(frozen=True)
class NibbleForm:
    """The form of packed weights.

    Parameters
    ----------
    groups
        The number of groups in a word: 2 groups of bytes, or 4 of pairs.
    factors
        Whether a tap begins with a factor for each column, an unsigned byte from 1 to 16. The weights of its words are
        then offset by 8 instead of in two's complement.
    """

    groups: int
    factors: bool

    def factor(self, code: VectorCode, address: Any) -> tuple[Any, Any]:
        """Load the factors of a vector of columns: as two 16-bit numbers per lane, and times 8 as four bytes."""
        builder = code.builder
        factor = builder.zext(code.load(address, vector_type(I8, code.lanes)), code.ints)
        return builder.mul(factor, code.constant(0x10001, code.ints)), builder.mul(
            factor, code.constant(0x08080808, code.ints)
        )

    def unpacked(self, code: VectorCode, words: Any, group: int, factor: tuple[Any, Any] | None) -> Any:
        """Return one group of the weights in a vector of words, as `accumulate` takes it."""
        if self.groups == 2:
            return self._bytes(code, words, group, factor)
        builder, halves = code.builder, vector_type(I16, 2 * code.lanes)
        words = builder.bitcast(words, halves)
        if factor is not None:
            # Weights are offset by 8: flipping the sign bit makes them two's complement.
            words = builder.xor(words, code.constant(-0x7778, halves))
        if group < 3:
            words = builder.shl(words, code.constant(12 - 4 * group, halves))
        words = builder.ashr(words, code.constant(12, halves))
        return words if factor is None else builder.mul(words, builder.bitcast(factor[0], halves))

    def _bytes(self, code: VectorCode, words: Any, group: int, factor: tuple[Any, Any] | None) -> Any:
        """Return a group of bytes: multiples of 16 of the weights, or products of the weights and their factors."""
        builder, four = code.builder, code.constant(4, code.ints)
        if factor is None:
            return builder.and_(words if group else builder.shl(words, four), code.constant(_HIGH, code.ints))
        low = builder.and_(builder.lshr(words, four) if group else words, code.constant(_LOW, code.ints))
        # At most 15 * 16, so two bytes can be multiplied as one 16-bit number.
        halves, parts = vector_type(I16, 2 * code.lanes), vector_type(I8, 4 * code.lanes)
        products = builder.mul(builder.bitcast(low, halves), builder.bitcast(factor[0], halves))
        return builder.sub(builder.bitcast(products, parts), builder.bitcast(factor[1], parts))


class NarrowForm(NibbleForm):
    """The form of 8-bit weights that are multiplied as pairs of 16-bit numbers: a word has four, for two groups.

    Their order is 0, 2, 1, 3, so that each half of a word has a weight of either group.
    """

    def __init__(self) -> None:
        super().__init__(2, False)

    def unpacked(self, code: VectorCode, words: Any, group: int, _factor: tuple[Any, Any] | None) -> Any:
        """Return one group of the weights in a vector of words as 16-bit numbers."""
        halves = vector_type(I16, 2 * code.lanes)
        eight, words = code.constant(8, halves), code.builder.bitcast(words, halves)
        return code.builder.ashr(words if group else code.builder.shl(words, eight), eight)
