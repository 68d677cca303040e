"""Arrays of 4-bit elements: two to a byte, the first of a pair in the low four bits, as all formats store them."""

from __future__ import annotations

import numpy as np


def unpack(data: np.ndarray, count: int, dtype: np.dtype) -> np.ndarray:
    """Return `count` 4-bit elements, one to a byte; the sign is extended if the type is signed.

    >>> unpack(np.array([225, 7], np.uint8), 3, np.dtype(np.int8))
    array([ 1, -2,  7], dtype=int8)
    """
    nibbles = np.stack([data & np.uint8(15), data >> np.uint8(4)], axis=-1).reshape(-1)[:count]
    return low_bits(nibbles.view(dtype), 4)


def pack(elements: np.ndarray) -> np.ndarray:
    """Return 4-bit elements two to a byte; the last byte of an odd number has only one.

    >>> pack(np.array([1, -2, 7], np.int8))
    array([225,   7], dtype=uint8)
    """
    pairs = np.zeros(-(-elements.size // 2) * 2, np.uint8)
    pairs[: elements.size] = elements.reshape(-1).view(np.uint8) & np.uint8(15)
    return pairs[::2] | pairs[1::2] << np.uint8(4)


def low_bits(elements: np.ndarray, bits: int) -> np.ndarray:
    """Return only the low bits of integers. In signed types the highest of them is the sign.

    >>> low_bits(np.array([0x1F, 0x17], np.int8), 4)
    array([-1,  7], dtype=int8)
    """
    shift = elements.dtype.itemsize * 8 - bits
    return (elements << shift) >> shift if shift > 0 else elements
