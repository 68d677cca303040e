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
    """Return offsets with as many buffers of each group as possible at the offsets of their partners.

    All buffers of a group are moved at once. Those that would then overlap another buffer stay where they are, and the
    others are tried again.

    Parameters
    ----------
    buffers, offsets
        All buffers, and a valid layout.
    groups
        The buffers to move, and their partners.
    most
        The offset at which a moved buffer must end at the latest.
    """
    at = np.array(offsets, np.int64)
    start, end = (np.array([getattr(b, name) for b in buffers], np.int64) for name in ("start", "end"))
    size = np.array([b.size for b in buffers], np.int64)
    for group in groups:
        wanted = {a: int(at[b]) for a, b in group if buffers[a].offset is None and at[b] + size[a] <= most}
        while wanted:
            tried = at.copy()
            tried[list(wanted)] = list(wanted.values())
            colliding = [a for a in wanted if _meets(a, tried, start, end, size)]
            if not colliding:
                at = tried
                break
            for a in colliding:
                del wanted[a]
    return [int(offset) for offset in at]


def _meets(one: int, at: np.ndarray, start: np.ndarray, end: np.ndarray, size: np.ndarray) -> bool:
    """Return whether a buffer overlaps another one in both memory and time."""
    same_time = (start < end[one]) & (start[one] < end)
    same_bytes = (at < at[one] + size[one]) & (at[one] < at + size)
    return int((same_time & same_bytes).sum()) > 1  # one of them is the buffer itself
