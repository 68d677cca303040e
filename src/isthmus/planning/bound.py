"""How many bytes every layout needs, whatever a planner may do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isthmus.planning.problem import PlannerBuffer, Problem


def lower_bound(problem: Problem) -> int:
    """Bytes below which no layout can go.

    At each step all live buffers lie side by side, so their sizes add up. When all offsets are multiples of some
    number, each buffer but the topmost also fills its last multiple. A fixed buffer needs the room up to its own end.

    Parameters
    ----------
    problem
        Its capacity plays no part.

    Examples
    --------
    >>> from isthmus.planning import PlannerBuffer, Problem
    >>> lower_bound(Problem((PlannerBuffer("a", 0, 2, 100), PlannerBuffer("b", 1, 3, 30))))
    130
    >>> lower_bound(Problem((PlannerBuffer("a", 0, 2, 100, alignment=64), PlannerBuffer("b", 1, 3, 30, alignment=64))))
    158
    """
    buffers = [b for b in problem.buffers if b.size]
    bound = max((b.offset + b.size for b in problem.buffers if b.offset is not None), default=0)
    # Buffers with coarser alignments alone may need more than all buffers at the finest common one, where small
    # buffers could fill the padding of the others.
    for unit in sorted({1, *(b.alignment for b in buffers)}):
        family = [b for b in buffers if b.alignment % unit == 0]
        step = math.gcd(*(b.alignment for b in family)) if family else 1
        if step == unit or unit == 1:
            bound = max(bound, _live_total(family, step))
    return bound


def _live_total(buffers: Sequence[PlannerBuffer], unit: int) -> int:
    """Largest sum of live sizes over time, each but the topmost rounded up to a multiple of `unit`."""
    if not buffers:
        return 0
    pieces = [(s, e, i) for i, b in enumerate(buffers) for s, e in b.lifetimes]
    starts, ends, owners = np.array(pieces, dtype=np.int64).T
    sizes = np.array([b.size for b in buffers], dtype=np.int64)
    rounded = -(-sizes // unit) * unit
    times = np.unique(starts)
    begin = np.searchsorted(times, starts)
    stop = np.searchsorted(times, ends)
    change = np.zeros(len(times) + 1, dtype=np.int64)
    np.add.at(change, begin, rounded[owners])
    np.add.at(change, stop, -rounded[owners])
    totals = np.cumsum(change)[:-1]
    padding = (rounded - sizes)[owners]
    if padding.any():
        totals = totals - _largest_at(begin, stop, padding, len(times))
    return int(totals.max())


def _largest_at(begin: np.ndarray, stop: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """For each of `count` steps the largest value among the intervals ``[begin, stop)`` that cover it.

    Intervals paint in falling order of value; `free` leads from a painted step to the next that is not.
    """
    painted = np.zeros(count, dtype=np.int64)
    free = list(range(count + 1))
    for k in np.argsort(-values, kind="stable").tolist():
        step, end, value = int(begin[k]), int(stop[k]), values[k]
        while True:
            root = step
            while free[root] != root:
                root = free[root]
            while free[step] != root:
                free[step], step = root, free[step]
            if root >= end:
                break
            painted[root] = value
            free[root] = step = root + 1
    return painted
