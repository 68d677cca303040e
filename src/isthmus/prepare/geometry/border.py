"""Padding that repeats or mirrors the data it surrounds."""

from __future__ import annotations

import numpy as np

from isthmus.graph.ops.movement import EDGE, MIRROR_REFLECT, MIRROR_SYMMETRIC


def border(scheme: int, size: int, before: int, after: int) -> np.ndarray:
    """Return the source index for each index of a padded axis.

    `scheme` is QNN's: EDGE repeats the outermost element; a mirror repeats it too if it is symmetric, and not if it
    reflects.
    """
    index = np.arange(-before, size + after)
    if scheme == EDGE:
        return np.clip(index, 0, size - 1)
    repeated = {MIRROR_SYMMETRIC: 1, MIRROR_REFLECT: 0}[scheme]
    index = np.where(index < 0, -index - repeated, index)
    return np.where(index >= size, 2 * (size - 1) - index + repeated, index)
