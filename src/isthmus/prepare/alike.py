"""Places of what is computed the same way several times: the same ones, so that the instructions are the same too.

The strips at either end of a stretch do most of what the repeated one does. A planner knows nothing of that and puts
what they hold anywhere. Moved to where the repeated strip holds it, their instructions differ in nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isthmus.planning import PlannerBuffer

Pairs = Sequence[tuple[int, int]]
"""Numbers of buffers, each with that of the one whose place it should have."""


def moved_together(
    buffers: Sequence[PlannerBuffer], offsets: Sequence[int], groups: Sequence[Pairs], most: int
) -> list[int]:
    """A layout in which as many buffers of each group as can be lie where their others do, below `most`."""
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
    """Whether a buffer lies where another one lies at the same time."""
    then = (start < end[one]) & (start[one] < end)
    there = (at < at[one] + size[one]) & (at[one] < at + size)
    return int((then & there).sum()) > 1
