"""The mapping from stored integers to reals: ``real = (stored + offset) * scale``, per tensor, channel or block.

QNN's offset is the negative of the zero point of TFLite and ONNX. Elements may use fewer bits than their type has:
4-bit weights are SFIXED_POINT_8 or UFIXED_POINT_8 with `bits` 4. Arrays hold one such element per byte; programs pack
two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.graph.rounding import Ties, round_steps


class Encoding(IntEnum):
    """QNN's names for the forms of quantization parameters."""

    SCALE_OFFSET = 0
    AXIS_SCALE_OFFSET = 1
    BW_SCALE_OFFSET = 2
    BW_AXIS_SCALE_OFFSET = 3
    BLOCK = 4
    BLOCKWISE_EXPANSION = 5


# The form that also says how many bits are used, for each that does not.
_WITH_BITS = {
    Encoding.SCALE_OFFSET: Encoding.BW_SCALE_OFFSET, Encoding.AXIS_SCALE_OFFSET: Encoding.BW_AXIS_SCALE_OFFSET,
}  # fmt: skip


@dataclass(frozen=True)
class Quantization:
    """Scale and offset of a tensor, of each index along one axis, or of each block of elements along it.

    Parameters
    ----------
    scales
        One scale, or one per index along `axis`; each positive and finite. If there are blocks, one for each block, in
        the order of the tensor's elements: all other axes have as many entries as the tensor.
    offsets
        One offset for each scale (the negative of its zero point).
    axis
        The axis of a per-channel quantization, or the axis that is divided into blocks; None for a per-tensor one.
    bits
        The number of bits of an element that are used, if fewer than its type has; otherwise 0.
    block
        The number of elements in a block (the last one may have fewer); 0 if there are no blocks.
    factors
        Integers by which the scales are multiples of one scale per channel (QNN's BLOCKWISE_EXPANSION), one for each
        block; empty if there are none. They are already contained in `scales`.

    Examples
    --------
    >>> q = Quantization.per_tensor(scale=0.5, zero_point=-3)
    >>> q.scale, q.offset, q.zero_point
    (0.5, 3, -3)
    """

    scales: tuple[float, ...]
    offsets: tuple[int, ...]
    axis: int | None = None
    bits: int = 0
    block: int = 0
    factors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rule = ""
        if not self.scales or len(self.scales) != len(self.offsets):
            rule = "as many offsets as scales, at least one"
        elif self.axis is None and len(self.scales) != 1:
            rule = "several scales need an axis"
        elif not all(math.isfinite(s) and s > 0 for s in self.scales):
            rule = "scales must be positive and finite"
        elif self.bits < 0 or self.block < 0 or (self.block and self.axis is None):
            rule = "bits are at least 0, and blocks need an axis"
        elif self.factors and (len(self.factors) != len(self.scales) or not self.block or min(self.factors) < 1):
            rule = "each block has one factor, at least 1"
        if rule:
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"quantization with scales {self.scales[:3]}", rule)

    @staticmethod
    def per_tensor(scale: float, zero_point: int = 0) -> Quantization:
        """Create a quantization with one scale for the whole tensor, from the zero point of TFLite and ONNX."""
        return Quantization((float(scale),), (-int(zero_point),))

    @staticmethod
    def per_channel(scales: np.ndarray, zero_points: np.ndarray, axis: int) -> Quantization:
        """Create a quantization with one scale per index along `axis`."""
        return Quantization(
            tuple(float(s) for s in np.asarray(scales).reshape(-1)),
            tuple(-int(z) for z in np.asarray(zero_points).reshape(-1)),
            int(axis),
        )

    @property
    def encoding(self) -> Encoding:
        """QNN's encoding."""
        if self.block:
            return Encoding.BLOCKWISE_EXPANSION if self.factors else Encoding.BLOCK
        plain = Encoding.SCALE_OFFSET if self.axis is None else Encoding.AXIS_SCALE_OFFSET
        return _WITH_BITS[plain] if self.bits else plain

    @property
    def is_single(self) -> bool:
        """Whether all scales are also positive and finite in single precision."""
        with np.errstate(over="ignore"):
            singles = np.array(self.scales, np.float32)
        return bool(((singles > 0) & np.isfinite(singles)).all())

    @property
    def scale(self) -> float:
        """The scale of a per-tensor quantization."""
        return self._only(self.scales)

    @property
    def offset(self) -> int:
        """The offset of a per-tensor quantization."""
        return int(self._only(self.offsets))

    @property
    def zero_point(self) -> int:
        """The stored value that represents 0.0, for a per-tensor quantization."""
        return -self.offset

    def _only(self, values: tuple[float, ...]) -> float:
        """Return the only scale or offset; refuse a per-channel quantization."""
        if self.axis is not None:
            rule = "it has no single scale or offset"
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, "per-channel quantization", rule)
        return values[0]

    def grid(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Return how many scales there are along each axis of a tensor with these dimensions."""
        if self.axis is None:
            return (1,) * len(dims)
        if not self.block:
            return tuple(dim if axis == self.axis else 1 for axis, dim in enumerate(dims))
        return tuple(-(-dim // self.block) if axis == self.axis else dim for axis, dim in enumerate(dims))

    def fits(self, dims: Sequence[int]) -> bool:
        """Return whether a tensor with these dimensions needs this many scales."""
        return self.axis is None or (0 <= self.axis < len(dims) and prod(self.grid(dims)) == len(self.scales))

    def limits(self, dtype: np.dtype) -> tuple[int, int]:
        """Return the smallest and largest element of a type that has this quantization."""
        info = np.iinfo(dtype)
        unused = info.bits - self.bits if 0 < self.bits < info.bits else 0
        return int(info.min) >> unused, int(info.max) >> unused

    def holds(self, stored: np.ndarray) -> bool:
        """Return whether all elements have no more bits than they may have."""
        least, most = self.limits(stored.dtype)
        return not stored.size or (int(stored.min()) >= least and int(stored.max()) <= most)

    def spread(self, values: Sequence[float], dims: Sequence[int]) -> np.ndarray:
        """Return scales, offsets or factors, shaped to broadcast with a tensor of these dimensions."""
        array = np.asarray(values)
        if self.axis is None:
            return array[0]
        array = array.reshape(self.grid(dims))
        return array.repeat(self.block, self.axis).take(range(dims[self.axis]), self.axis) if self.block else array

    def transpose(self, order: Sequence[int], dims: Sequence[int]) -> Quantization:
        """Return the quantization of a tensor with these dimensions after its axes are put in another order."""
        if self.axis is None:
            return self
        moved = replace(self, axis=tuple(order).index(self.axis))
        if not self.block:
            return moved

        def rearrange(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(np.array(values).reshape(self.grid(dims)).transpose(order).reshape(-1).tolist())

        return replace(
            moved, scales=rearrange(self.scales), offsets=rearrange(self.offsets),
            factors=rearrange(self.factors) if self.factors else (),
        )  # fmt: skip

    def dequantize(self, stored: np.ndarray) -> np.ndarray:
        """Return the float32 values that stored integers represent."""
        scale = self.spread(self.scales, stored.shape)
        offset = self.spread(self.offsets, stored.shape)
        return ((stored.astype(np.int64) + offset) * np.asarray(scale, np.float32)).astype(np.float32)

    def quantize(self, real: np.ndarray, dtype: np.dtype, ties: Ties = Ties.EVEN) -> np.ndarray:
        """Return the stored integers nearest to reals, clamped to the type; `ties` says what becomes of halves."""
        scale = np.asarray(self.spread(self.scales, real.shape), np.float32)
        offset = self.spread(self.offsets, real.shape)
        stored = round_steps(np.nan_to_num(real / scale, nan=0.0), ties).astype(np.float64) - offset
        return np.clip(stored, *self.limits(dtype)).astype(dtype)
