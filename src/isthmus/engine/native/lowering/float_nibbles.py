"""4-bit weights of float products: which constants stay packed, and their panels.

A float constant that was dequantized from 4-bit elements is stored as these elements with their scales. The kernels
multiply by the same floats as if it had been stored dequantized. A constant stays packed if each eight successive steps
of the depth have one scale for each column: per tensor, per output channel, or in blocks of the input channels. Others,
and very small ones, are stored as floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isthmus.engine.native.lowering.packed_weights import WORD
from isthmus.engine.native.lowering.panels import split_panels
from isthmus.graph import DataType, Tensor
from isthmus.prepare.geometry.fixed_point import quantization_of

# The input channels from which packing saves memory, in spite of scales.
_MIN_DEPTH = 16


@dataclass(frozen=True)
class FloatNibbles:
    """4-bit weights as three arrays of the same shape.

    Parameters
    ----------
    elements
        The elements, from 0 to 15.
    zeros, scales
        The element that means 0, and the scale, of each element.
    block
        The number of successive steps of the depth that have one scale; 0 if all have.
    """

    elements: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    block: int

    def rearrange(self, change: Callable[[np.ndarray], np.ndarray]) -> FloatNibbles:
        """Return the weights after a change of all three arrays that keeps the order of the depth."""
        return FloatNibbles(change(self.elements), change(self.zeros), change(self.scales), self.block)

    def panels(self, bias: np.ndarray | None, width: int) -> np.ndarray:
        """Pack weights [depth, columns] into panels: bias, scales and zeros of blocks, words (see `nibble_floats`)."""
        depth, columns = self.elements.shape
        words, step = -(-depth // WORD), scale_block(self, depth)
        full = np.zeros((words * WORD, columns), np.uint32)
        full[:depth] = self.elements
        shifts = np.arange(0, 4 * WORD, 4, dtype=np.uint32)
        packed = np.bitwise_or.reduce(full.reshape(words, WORD, -1) << shifts[:, None], axis=1)
        parts = (self.scales[::step].astype(np.float32), self.zeros[::step].astype(np.int8), packed)

        def body(own: slice, padded_width: int) -> np.ndarray:
            missing = padded_width - (own.stop - own.start)
            padded = (np.pad(part[:, own], ((0, 0), (0, missing))) for part in parts)
            return np.concatenate([np.ascontiguousarray(rows).view(np.uint8).reshape(-1) for rows in padded])

        first = np.zeros(columns, np.float32) if bias is None else bias.reshape(-1).astype(np.float32)
        return split_panels(columns, width, width, [first], body)


def scale_block(nibbles: FloatNibbles | None, depth: int) -> int:
    """Return how many steps of the depth have one scale, a multiple of WORD; it means nothing if weights are floats."""
    if nibbles is not None and 0 < nibbles.block < depth:
        return nibbles.block
    return WORD if nibbles is None else -(-depth // WORD) * WORD


def stays_packed(weights: Tensor, input_axis: int, column_axis: int) -> bool:
    """Return whether a float constant is stored as the 4-bit elements that it was dequantized from.

    The axes are those of input channels and of output channels. The answer depends on types and shapes only.
    """
    source = weights.source
    if source is None or weights.dtype is not DataType.FLOAT_32 or source.dims[input_axis] < _MIN_DEPTH:
        return False
    quantization, channels = quantization_of(source), source.dims[input_axis]
    if not quantization.block:
        return quantization.axis in (None, column_axis)
    # The last block of input channels may be shorter than the others, or end within a word, only if nothing follows it.
    several = source.elements > channels * source.dims[column_axis]
    whole_words = quantization.block % WORD == 0 or (quantization.block >= channels and not several)
    return quantization.axis == input_axis and whole_words and not (several and channels % quantization.block)


def float_nibbles(weights: Tensor) -> FloatNibbles:
    """Return the 4-bit weights that a float constant was dequantized from, in its shape, if it `stays_packed`."""
    source = weights.source
    assert source is not None
    assert source.data is not None
    quantization = quantization_of(source)
    middle = 0 if source.dtype is DataType.UFIXED_POINT_8 else 8
    offsets, scales = (
        np.broadcast_to(quantization.spread(values, source.dims), source.dims)
        for values in (quantization.offsets, quantization.scales)
    )
    return FloatNibbles(source.data.astype(np.int16) + middle, middle - offsets, scales, quantization.block)


def work_bytes(depth: int, width: int) -> int:
    """Return the work space of a thread for this many steps of the depth as floats."""
    return -(-(-(-depth // WORD) * WORD + WORD) * width * 4 // 64) * 64
