"""QNN's encodings of fixed-point tensors, as a graph's quantization.

BLOCK has a scale and offset for each block. Its pairs are in the order of the tensor's elements, except that the output
channels come first if they are the last axis. BLOCKWISE_EXPANSION (LPBQ) has one for each output channel, and an
integer factor for each block of input channels. Its elements have four bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Quantization

BLOCK, BLOCKWISE_EXPANSION = 4, 5
"""QNN's numbers of the encodings with blocks."""
LPBQ_BITS = 4
"""The bits of an element of BLOCKWISE_EXPANSION."""


class EncodingParts(Protocol):
    """The parts of an encoding, read from a client or from a file (see `EncodingEntry`)."""

    @property
    def scales(self) -> np.ndarray: ...
    @property
    def offsets(self) -> np.ndarray: ...
    @property
    def axis(self) -> int | None: ...
    @property
    def kind(self) -> int: ...
    @property
    def blocks(self) -> np.ndarray: ...
    @property
    def factors(self) -> np.ndarray: ...


def narrow_bits(quantization: Quantization | None, contents: np.ndarray | None) -> Quantization | None:
    """Return a constant's quantization, with four bits if its elements fit: encoding BLOCK does not give the bits."""
    if quantization is None or contents is None or not quantization.block or quantization.bits:
        return quantization
    narrow = replace(quantization, bits=LPBQ_BITS)
    return narrow if contents.dtype.itemsize == 1 and narrow.holds(contents) else quantization


def read_encoding(
    encoding: EncodingParts, what: str, dims: Sequence[int], dtype: DataType, bits: int = 0, is_constant: bool = True
) -> Quantization | None:
    """Return an encoding as a quantization; None for a bias whose scales are 0, since it is in units of its products.

    - `bits`: the number of bits of an element that are used, if fewer than its type has; otherwise 0.
    - `is_constant`: whether the tensor has contents of that size. Only then are scales repeated, so that dimensions of
      a file that nothing confirms make no large array.
    """
    axis = encoding.axis
    if axis is not None and axis < 0:
        axis += len(dims)
    if encoding.kind == BLOCK:
        return _blocks(encoding, what, dims, bits)
    if encoding.kind == BLOCKWISE_EXPANSION:
        return _expansion(encoding, what, dims, axis)
    scales, offsets = encoding.scales, encoding.offsets
    if dtype is DataType.SFIXED_POINT_32 and not scales.any():
        return None
    is_bias = is_constant and dtype is DataType.SFIXED_POINT_32 and len(dims) == 1 and axis == 0
    if is_bias and not dims[0] % len(scales):
        # The bias of a transposed convolution in groups may have the scales of one group.
        scales, offsets = (np.tile(each, dims[0] // len(each)) for each in (scales, offsets))
    return Quantization(tuple(scales.tolist()), tuple(offsets.tolist()), axis, bits)


def _blocks(encoding: EncodingParts, what: str, dims: Sequence[int], bits: int) -> Quantization:
    """Return an encoding with a pair for each block; blocks of several axes become blocks of one, with equal scales."""
    sizes = encoding.blocks.tolist()
    grid = [-(-dim // size) for dim, size in zip(dims, sizes, strict=True)]
    long = [axis for axis, size in enumerate(sizes) if size > 1 and dims[axis] > 1]
    # The longest blocks along one axis remain blocks; those of other axes are spread.
    axis = max(long, key=lambda a: sizes[a], default=len(sizes) - 1)

    def spread(values: np.ndarray) -> tuple[Any, ...]:
        first = axis != len(dims) - 1
        array = np.moveaxis(values.reshape(grid[-1], *grid[:-1]), 0, -1) if first else values.reshape(grid)
        for other, size in enumerate(sizes):
            if other != axis:
                array = array.repeat(size, other).take(range(dims[other]), other)
        return tuple(array.reshape(-1).tolist())

    if len(encoding.scales) != np.prod(grid):
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, f"{len(encoding.scales)} scales for {grid} blocks")
    return Quantization(spread(encoding.scales), spread(encoding.offsets), axis, bits, sizes[axis])


def _expansion(encoding: EncodingParts, what: str, dims: Sequence[int], axis: int | None) -> Quantization:
    """Return an encoding with a pair for each output channel and a factor for each of its blocks."""
    count = int(encoding.blocks[0]) if len(encoding.blocks) else 0
    if axis is None or not 0 <= axis < len(dims) or len(dims) < 2:
        rule = f"factors of blocks need an axis of output channels and another of input channels, axis {axis} of "
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, f"{rule}{list(dims)} is no such axis")
    inputs = len(dims) - 2 if axis == len(dims) - 1 else len(dims) - 1
    if not count or dims[inputs] % count or len(encoding.scales) != dims[axis]:
        blocks = f"{count} blocks for {dims[inputs]} input channels"
        rule = f"{blocks}, {len(encoding.scales)} scales for {dims[axis]} output channels"
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, rule)
    if len(encoding.factors) != dims[axis] * count or not encoding.factors.all():
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, "each block needs a factor of at least 1")
    grid = [count if a == inputs else dim for a, dim in enumerate(dims)]

    def spread(values: np.ndarray) -> np.ndarray:
        """Return numbers [output channels, blocks] for every block of the tensor, in the order of its elements."""
        table = values if axis < inputs else values.T
        shape = [grid[a] if a in (axis, inputs) else 1 for a in range(len(dims))]
        return np.broadcast_to(table.reshape(shape), grid).reshape(-1)

    factors = encoding.factors.reshape(dims[axis], count).astype(np.int64)
    # The product of a float32 and an integer of 16 bits is exact in double precision.
    scales = spread(encoding.scales.astype(np.float64)[:, None] * factors)
    offsets = spread(np.broadcast_to(encoding.offsets[:, None], factors.shape))
    return Quantization(
        tuple(scales.tolist()), tuple(offsets.tolist()), inputs, LPBQ_BITS, dims[inputs] // count,
        tuple(spread(factors).tolist()),
    )  # fmt: skip
