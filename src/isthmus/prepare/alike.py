"""Equal offsets for buffers of equal computations, so that their instructions are identical.

The first and last tiles of a fused region do mostly the same work as the repeated tile. The planner does not know that
and may place their buffers at other offsets. When these are moved to the offsets of the repeated tile's buffers, the
instructions become identical.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isthmus.planning import PlannerBuffer

Pairs = Sequence[tuple[int, int]]
"""Pairs of buffer numbers: the first buffer should be at the offset of the second."""


def moved_together(
    buffers: Sequence[PlannerBuffer], offsets: Sequence[int], groups: Sequence[Pairs], most: int
) -> list[int]:
    """Move as many buffers of each group as possible to the offsets of their partners, below `most`."""
    at = np.array(offsets, np.int64)
    start, end = (np.array([getattr(b, name) for b in buffers], np.int64) for name in ("start", "end"))
    size = np.array([b.size for b in buffers], np.int64)
    for group in groups:
        wanted = {a: int(at[b]) for a, b in group if buffers[a].offset is None and at[b] + size[a] <= most}
        while wanted:
            tried = at.copy()
            tried[list(wanted)] = list(wanted.values())
            met = [a for a in wanted if _meets(a, tried, start, end, size)]
            if not met:
                at = tried
                break
            for a in met:
                del wanted[a]
    return [int(offset) for offset in at]


def _meets(one: int, at: np.ndarray, start: np.ndarray, end: np.ndarray, size: np.ndarray) -> bool:
    """Return whether a buffer overlaps another one in both memory and time."""
    then = (start < end[one]) & (start[one] < end)
    there = (at < at[one] + size[one]) & (at[one] < at + size)
    return int((then & there).sum()) > 1
