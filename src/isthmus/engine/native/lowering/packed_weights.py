"""The weights of a product of bytes as its kernel reads them: bytes, two bytes for nine bits, or nibbles.

Kernels unpack 4-bit weights in registers. They stay packed if the element that means 0 is in the middle, so that no
zero point is left, and if the depth fills words of eight weights well. Small and odd constants are expanded to bytes
instead, where packing would cost more time than it saves memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter
from isthmus.engine.native.lowering.fixed_point import byte_parts
from isthmus.engine.native.lowering.panels import split_panels
from isthmus.engine.native.lowering.quantized_product import (
    ProductBlocking,
    QuantizedProduct,
    matrix_of,
    offsets,
    panels,
)
from isthmus.engine.native.program import Operand
from isthmus.graph import DataType, Tensor
from isthmus.prepare.geometry.fixed_point import quantization_of
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

WORD = 8
"""The number of weights in a word of 32 bits."""
# At most 1 / this of the weights in the words of a tap may be padding.
_MAX_WASTE = 8
# Below this depth, sums of products with multiples of 16 of the weights fit 32 bits.
_MAX_DEPTH = (1 << 31) // (255 * 128)
# The smallest scale of sums that can be divided by 16 without losing bits.
_MIN_SCALE = 16 * float(np.finfo(np.float32).tiny)
# The largest factor that a 4-bit weight can have for the product to fit a byte.
_MAX_FACTOR = 16


def four_bit_source(weights: Tensor) -> Tensor | None:
    """Return the 4-bit constant that weights are or were expanded from; None if there is none."""
    return weights if weights.is_four_bit else weights.source


def has_middle_zero(weights: Tensor) -> bool:
    """Return whether 4-bit elements minus their zero point fit four bits: the zero point is in the middle."""
    middle = -8 if weights.dtype is DataType.UFIXED_POINT_8 else 0
    return all(offset == middle for offset in quantization_of(weights).offsets)


@dataclass(frozen=True)
class NibblePlan:
    """The form in which a product reads 4-bit weights.

    Parameters
    ----------
    weights
        The constant of 4-bit elements.
    word_groups
        The number of groups of four bytes of a row that a word of weights is multiplied by.
    block
        The number of successive input channels with one factor; 0 if there are no factors.
    """

    weights: Tensor
    word_groups: int
    block: int

    @property
    def unit(self) -> int:
        """The multiple of the weights that is multiplied: without factors, bytes are unpacked as multiples of 16."""
        return 16 if self.word_groups == 2 and not self.block else 1

    @property
    def suffix(self) -> str:
        """The form's name in kernel variants."""
        return f"_nibbles_{'bytes' if self.word_groups == 2 else 'pairs'}{'_factors' if self.block else ''}"

    def matrix(self, step: Step, product: QuantizedProduct) -> np.ndarray:
        """Return the weights without zero points and factors, as [taps, depth, columns of all groups]."""
        assert self.weights.data is not None
        middle = 8 if self.weights.dtype is DataType.UFIXED_POINT_8 else 0
        return matrix_of(step, product, self.weights.data.astype(np.int8) - np.int8(middle))

    def factors(self, step: Step, product: QuantizedProduct) -> np.ndarray | None:
        """Return the factor of each block, as [taps, blocks, columns of all groups]; None if there are none."""
        if not self.block:
            return None
        quantization = quantization_of(self.weights)
        spread = np.broadcast_to(quantization.spread(quantization.factors, self.weights.dims), self.weights.dims)
        return matrix_of(step, product, spread)[:, :: self.block]


def _input_axis(step: Step, weights: Tensor) -> int:
    """Return the axis of a product's weights that has the input channels."""
    if step.op == "FullyConnected":
        return 1
    return weights.rank - (1 if step.op == "MatMul" and step.params["transpose_in1"] else 2)


def nibble_plan(step: Step, product: QuantizedProduct, size: int) -> NibblePlan | None:
    """Return the form in which a product of bytes reads 4-bit weights; None if they are expanded to bytes.

    The answer depends on types and shapes only. `size` is the size in bytes of an element as it is multiplied.
    """
    weights = four_bit_source(operand(step, 1))
    if weights is None:
        return None
    quantization, channels = quantization_of(weights), product.channels
    if not has_middle_zero(weights):
        return None
    if quantization.block:
        block = min(quantization.block, channels)
        if not quantization.factors or any(quantization.offsets) or max(quantization.factors) > _MAX_FACTOR:
            return None
        if quantization.axis != _input_axis(step, weights) or block % WORD or channels % block:
            return None
        return NibblePlan(weights, WORD * size // 4, block)
    run = product.run_pixels * channels
    depth, padded = run * product.taps, -(-run // WORD) * WORD
    wasteful = (padded - run) * _MAX_WASTE > padded
    return None if wasteful or depth >= _MAX_DEPTH else NibblePlan(weights, WORD * size // 4, 0)


def fits_unit(unit: int, bias: np.ndarray, scales: np.ndarray, depth: int) -> bool:
    """Return whether sums times `unit` fit 32 bits, and their scales can be divided by `unit` without losing bits.

    Both are true unless a channel hardly varies. `bias` is that of all columns, `depth` the products in a sum.
    """
    largest = int(np.abs(bias).max(initial=0)) + depth * 255 * 8
    return unit == 1 or (unit * largest < 1 << 31 and float(scales.min(initial=1.0)) >= _MIN_SCALE)


def nibble_panels(
    matrix: np.ndarray, heads: Sequence[np.ndarray], columns: int, lanes: int, word_groups: int,
    factors: np.ndarray | None,
) -> np.ndarray:  # fmt: skip
    """Pack 4-bit weights [taps, depth, columns] into panels (see `split_panels`).

    After its heads, a panel has, for each tap, the factors of all columns, if there are any, and for each eight
    successive weights of the depth a word for each column. With `factors`, [taps, columns], 8 is added to the weights.
    """
    taps, depth, width = matrix.shape
    words = -(-depth // WORD)
    # The bit of a word where each of its eight weights begins: in the low or high half of a byte, or in one of the four
    # parts of a 16-bit number.
    element = np.arange(WORD)
    if word_groups == 2:
        bits = element % 4 * 8 + element // 4 * 4
    else:
        bits = element % 2 * 16 + element // 2 * 4

    def body(own: slice, padded_width: int) -> np.ndarray:
        part = np.zeros((taps, words * WORD, padded_width), np.uint32)
        part[:, :depth, : own.stop - own.start] = matrix[:, :, own].astype(np.int32).view(np.uint32)
        stored = (part + np.uint32(0 if factors is None else 8)) & np.uint32(15)
        shifted = stored.reshape(taps, words, WORD, padded_width) << bits.astype(np.uint32)[:, None]
        packed: np.ndarray = np.bitwise_or.reduce(shifted, axis=2).reshape(taps, -1).view(np.uint8)
        if factors is None:
            return packed
        before = np.ones((taps, padded_width), np.uint8)
        before[:, : own.stop - own.start] = factors[:, own]
        return np.concatenate([before, packed], axis=1)

    return split_panels(width, columns, lanes, heads, body)


@dataclass(frozen=True)
class PackedWeights:
    """Weights that are ready to be put into panels.

    Parameters
    ----------
    plan
        The blocking of the product; its groups are those of a tap here.
    matrix
        The weights as [taps, depth, columns of all groups].
    offsets
        The offset of each tap in a row, in bytes. A tap may occur twice, or for a part of the channels.
    nibbles
        The form of packed weights; None for bytes.
    factors
        The factor of each tap and column, if there are any.
    size
        The size in bytes of an element as it is multiplied.
    """

    plan: ProductBlocking
    matrix: np.ndarray
    offsets: np.ndarray
    nibbles: NibblePlan | None
    factors: np.ndarray | None
    size: int

    @property
    def taps(self) -> int:
        """The number of taps."""
        return len(self.offsets)

    @property
    def variant(self) -> str:
        """The kernel's variant: its tile, and the form of packed weights."""
        return f"{self.plan.rows}x{self.plan.vectors}{self._suffix}"

    @property
    def _suffix(self) -> str:
        """The end of the variant for weights that are unpacked or widened in registers."""
        return self.nibbles.suffix if self.nibbles else "_narrow" if self.plan.is_narrow else ""

    @property
    def column_bytes(self) -> int:
        """The bytes of weights in each column of a panel."""
        if self.nibbles is None:
            return (2 if self.plan.is_narrow else 4) * self.taps * self.plan.groups
        return self.taps * (4 * self.plan.groups // self.nibbles.word_groups + (self.factors is not None))

    def emit(self, e: Emitter, part: slice, heads: Sequence[np.ndarray], columns: int) -> Operand:
        """Emit the panels of some columns as a constant, each with the heads in front."""
        lanes, matrix = e.target.lanes, self.matrix[:, :, part]
        if self.plan.is_narrow:
            return e.packed(_narrow_panels, matrix, heads, columns, lanes, self.plan.groups)
        if self.nibbles is None:
            kind = np.int8 if self.size == 1 else np.int16
            return e.packed(panels, matrix, heads, columns, lanes, 4 // self.size, kind, self.plan.groups)
        factors = None if self.factors is None else self.factors[:, part]
        return e.packed(nibble_panels, matrix, heads, columns, lanes, self.nibbles.word_groups, factors)


def _narrow_panels(
    matrix: np.ndarray, heads: Sequence[np.ndarray], columns: int, lanes: int, groups: int
) -> np.ndarray:
    """Return panels of weights in the order in which words of two hold them (see `kernels.nibbles.NarrowForm`)."""
    taps, depth, width = matrix.shape
    words = np.zeros((taps, groups // 2, 2, 2, width), np.int8)
    words.reshape(taps, -1, width)[:, :depth] = matrix
    return panels(words.swapaxes(2, 3).reshape(taps, -1, width), heads, columns, lanes, 4, np.int8)


def pack_weights(
    step: Step, product: QuantizedProduct, plan: ProductBlocking, nibbles: NibblePlan | None, matrix: np.ndarray,
    size: int,
) -> PackedWeights:  # fmt: skip
    """Return the weights of a step in the form that its kernel reads.

    Parameters
    ----------
    plan
        The blocking of the product, made for this form.
    nibbles
        The form of packed weights; None for bytes.
    matrix
        All weights without zero points, as [taps, depth, columns of all groups].
    size
        The size in bytes of an element as it is multiplied.
    """
    tap_offsets = offsets(product, plan)
    if nibbles is None:
        parts = byte_parts(matrix) if size == 1 else [matrix]
        return PackedWeights(plan, np.concatenate(parts), np.tile(tap_offsets, len(parts)), None, None, size)
    stored, factors = nibbles.matrix(step, product), nibbles.factors(step, product)
    if factors is None:
        return PackedWeights(plan, stored, tap_offsets, nibbles, None, size)
    # Each block is a tap of its own, because a tap has one factor for each column.
    _, depth, columns = stored.shape
    block_bytes = nibbles.block * size
    block_offsets = (tap_offsets[:, None] + np.arange(depth // nibbles.block) * block_bytes).reshape(-1)
    return PackedWeights(
        replace(plan, groups=block_bytes // 4), stored.reshape(-1, nibbles.block, columns), block_offsets, nibbles,
        factors.reshape(-1, columns), size,
    )  # fmt: skip
