"""Random arrays for the inputs of a model, when a command has to run it and is given none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def random_array(
    generator: np.random.Generator, dtype: Any, dims: Sequence[int], within: tuple[float, float] = (-1.0, 1.0)
) -> np.ndarray:
    """Return random elements of a numpy type: floats in a range, bytes of all values, and 0 or 1 for others.

    Integers of more than a byte may be indices, so larger ones might be out of range.

    >>> random_array(np.random.default_rng(0), np.int64, (4,))
    array([1, 1, 1, 0])
    """
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return np.asarray(generator.uniform(*within, dims)).astype(kind)
    if kind.kind in "iu" and kind.itemsize == 1:
        limits = np.iinfo(kind)
        return np.asarray(generator.integers(limits.min, limits.max, dims, kind, endpoint=True))
    return np.asarray(generator.integers(0, 2, dims)).astype(kind)
