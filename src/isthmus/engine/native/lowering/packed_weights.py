"""The weights of a product of bytes as its kernel reads them: bytes, two bytes for nine bits, or nibbles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isthmus.engine.native.lowering.fixed_point import byte_parts
from isthmus.engine.native.lowering.nibbles import NibblePlan, nibble_panels
from isthmus.engine.native.lowering.quantized_product import ProductBlocking, QuantizedProduct, offsets, panels
from isthmus.prepare.schedule import Step


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

    def panels(self, part: slice, heads: Sequence[np.ndarray], columns: int, lanes: int) -> np.ndarray:
        """Return the panels of some columns, each with the heads in front."""
        matrix = self.matrix[:, :, part]
        if self.plan.is_narrow:
            taps, depth, width = matrix.shape
            words = np.zeros((taps, self.plan.groups // 2, 2, 2, width), np.int8)
            words.reshape(taps, -1, width)[:, :depth] = matrix
            # The order of weights in a word (see `kernels.nibbles.NarrowForm`).
            return panels(words.swapaxes(2, 3).reshape(taps, -1, width), heads, columns, lanes, 4, np.int8)
        if self.nibbles is None:
            kind = np.int8 if self.size == 1 else np.int16
            return panels(matrix, heads, columns, lanes, 4 // self.size, kind, self.plan.groups)
        factors = None if self.factors is None else self.factors[:, part]
        return nibble_panels(matrix, heads, columns, lanes, self.nibbles, factors)


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
