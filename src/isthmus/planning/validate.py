"""Validation of a layout against its problem, by a sweep through time that shares no code with the planner."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from isthmus.planning.problem import PlanningError, Problem


def check(problem: Problem, offsets: Sequence[int]) -> int:
    """Check that a layout obeys every rule of its problem.

    Parameters
    ----------
    problem
        The problem.
    offsets
        One offset for each buffer, in the order of the problem.

    Returns
    -------
    int
        The peak: bytes from zero to the end of the highest buffer.

    Raises
    ------
    PlanningError
        Names the first rule that is broken, and the buffers that break it.

    Examples
    --------
    >>> from isthmus.planning import PlannerBuffer, Problem
    >>> problem = Problem((PlannerBuffer("a", 0, 2, 8), PlannerBuffer("b", 1, 3, 8)))
    >>> check(problem, (0, 8))
    16
    >>> check(problem, (0, 4))
    Traceback (most recent call last):
    isthmus.planning.problem.PlanningError: buffers 'a' and 'b' share bytes at step 1
    """
    if len(offsets) != len(problem.buffers):
        raise PlanningError(f"{len(offsets)} offsets for {len(problem.buffers)} buffers")
    peak = 0
    # A time, 1 for a start or 0 for an end, and the number of the buffer.
    events: list[tuple[int, int, int]] = []
    for index, (buffer, offset) in enumerate(zip(problem.buffers, offsets, strict=True)):
        if offset < 0:
            raise PlanningError(f"buffer {buffer.id!r} is at the negative offset {offset}", index)
        if offset % buffer.alignment:
            raise PlanningError(f"buffer {buffer.id!r} at {offset} is not aligned to {buffer.alignment}", index)
        if buffer.offset is not None and offset != buffer.offset:
            raise PlanningError(f"buffer {buffer.id!r} is fixed at {buffer.offset} but is at {offset}", index)
        top = offset + buffer.size
        if problem.capacity is not None and top > problem.capacity:
            raise PlanningError(f"buffer {buffer.id!r} ends at {top}, above capacity {problem.capacity}", index)
        peak = max(peak, top)
        if buffer.size == 0:
            continue
        # At equal times an end (0) comes before a start (1): lifetimes are half open.
        arrive, leave = buffer.start, buffer.end
        for gap in buffer.gaps:
            events += [(arrive, 1, index), (gap.start, 0, index)]
            arrive = gap.end
        events += [(arrive, 1, index), (leave, 0, index)]

    # The offset and number of each live buffer, in ascending order. They do not overlap, so only neighbours can.
    live: list[tuple[int, int]] = []
    for time, starts, index in sorted(events):
        entry = (int(offsets[index]), index)
        if not starts:
            del live[bisect_left(live, entry)]
            continue
        at = bisect_left(live, entry)
        for other in live[max(at - 1, 0) : at + 1]:
            below, above = min(entry, other), max(entry, other)
            if below[0] + problem.buffers[below[1]].size > above[0]:
                names = sorted((entry[1], other[1]))
                raise PlanningError(
                    f"buffers {problem.buffers[names[0]].id!r} and {problem.buffers[names[1]].id!r} "
                    f"share bytes at step {time}",
                    names[1],
                )
        insort(live, entry)
    return peak
