"""A lower bound of the bytes that any layout needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isthmus.planning.problem import PlannerBuffer, Problem


def lower_bound(problem: Problem) -> int:
    """Return a number of bytes that every layout needs.

    At each step the live buffers do not overlap, so their sizes add up. If all offsets are multiples of some number,
    each buffer except the topmost also occupies the rest of its last multiple. A fixed buffer needs the space up to its
    own end.

    Parameters
    ----------
    problem
        The problem; its capacity is ignored.

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
    # Buffers with coarser alignments may need more by themselves than all buffers at the finest common alignment, where
    # small buffers could fill the padding of the others.
    for unit in sorted({1, *(b.alignment for b in buffers)}):
        family = [b for b in buffers if b.alignment % unit == 0]
        step = math.gcd(*(b.alignment for b in family)) if family else 1
        if step == unit or unit == 1:
            bound = max(bound, _live_total(family, step))
    return bound


def _live_total(buffers: Sequence[PlannerBuffer], unit: int) -> int:
    """Return the maximum over time of the sum of live sizes, each but the topmost a multiple of `unit`."""
    if not buffers:
        return 0
    pieces = [(s, e, i) for i, b in enumerate(buffers) for s, e in b.lifetimes]
    starts, ends, owners = np.array(pieces, dtype=np.int64).T
    sizes = np.array([b.size for b in buffers], dtype=np.int64)
    rounded = -(-sizes // unit) * unit
    ordered = np.sort(starts)
    # Not by `np.unique`: its first call loads numpy's masked arrays, which takes longer than most plans.
    times = ordered[np.append(True, ordered[1:] != ordered[:-1])]
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
    """Return for each of `count` steps the largest value among the intervals ``[begin, stop)`` that cover it."""
    # Intervals are painted in descending order of value; `free` maps a painted step to the next unpainted one.
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
