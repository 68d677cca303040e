"""Helpers with which signatures compute extents, which they contain as text."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod as product

__all__ = ["Reach", "ceil", "outer", "padded", "product", "reach", "sum_of", "walk"]

Reach = tuple[int, int]
"""How many bytes before an operand's start (at most 0), and how many after it, are accessed."""


def ceil(count: int, by: int) -> int:
    """Return how many pieces of this size hold `count` elements."""
    return -(-count // by)


def padded(count: int, to: int) -> int:
    """Return the count, rounded up to a multiple of `to`."""
    return -(-count // to) * to


def reach(counts: Sequence[int], strides: Sequence[int], size: int) -> Reach:
    """Return the reach of elements of `size` bytes at all indices below `counts`, at sums of index times stride.

    >>> reach([3, 2], [-4, 100], 4)
    (-8, 104)
    """
    if not all(counts) or not size:
        return 0, 0
    low = high = 0
    for count, stride in zip(counts, strides, strict=True):
        last = (count - 1) * stride
        if last < 0:
            low += last
        else:
            high += last
    return low, high + size


def outer(rows: int, dims: Sequence[int], strides: Sequence[int]) -> Reach:
    """Return the smallest and largest offset of the first `rows` combinations of indices, innermost dimension first.

    The last dimension is not limited to its size: as in the kernels, its index is the row's number divided by the sizes
    of all others.
    """
    low = high = 0
    remaining = max(rows - 1, 0)
    for number, (size, stride) in enumerate(zip(dims, strides, strict=True), 1):
        last = (remaining if number == len(dims) else min(remaining, size - 1)) * stride
        remaining //= size
        low, high = min(low, low + last), max(high, high + last)
    return low, high


def walk(elements: int, inner: int, dims: Sequence[int], strides: Sequence[int], step: int, size: int) -> Reach:
    """Return the reach of an operand over rows of `inner` elements; the last row may be short.

    Parameters
    ----------
    elements
        The number of elements in all rows.
    dims, strides
        The outer dimensions, innermost first, and the operand's bytes between rows along each.
    step, size
        The bytes between neighbouring elements of a row, and those of an element.
    """
    if not elements:
        return 0, 0
    rows = -(-elements // inner)
    low, high = outer(rows, dims, strides)
    across = (min(inner, elements) - 1) * step
    # With one outer dimension, a short last row is taken into account: it may end before the row above it does.
    if rows > 1 and len(dims) == 1 and strides[0] >= 0 and step >= 0:
        last = (elements - (rows - 1) * inner - 1) * step
        return 0, max((rows - 2) * strides[0] + across, (rows - 1) * strides[0] + last) + size
    return low + min(across, 0), high + max(across, 0) + size


def sum_of(*reaches: Reach) -> Reach:
    """Return the reach of sums of offsets; only the last reach includes the size of an element."""
    return sum(low for low, _ in reaches), sum(high for _, high in reaches)
