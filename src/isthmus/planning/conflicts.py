"""Conflicts: pairs of buffers that are live at the same time and must not share memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from isthmus.planning.problem import Problem

MAX_CONFLICTS = 1_000_000
"""The maximum number of pairs of buffers to list; Python needs some hundred bytes for each."""


@dataclass(frozen=True)
class Conflicts:
    """The buffers that each buffer must not overlap, as one flat table.

    The conflicts of buffer ``i`` are ``others[first[i]:first[i + 1]]``, in ascending order. Buffers of zero bytes have
    none.
    """

    first: NDArray[np.int64]
    others: NDArray[np.int64]

    def lists(self) -> list[list[int]]:
        """Return the conflicts as Python lists, which are faster to iterate outside compiled code."""
        flat, first = self.others.tolist(), self.first.tolist()
        return [flat[a:b] for a, b in pairwise(first)]


def count_conflicts(problem: Problem) -> int:
    """Count the pairs of buffers that are live at the same time; a pair that meets twice counts as two.

    >>> from isthmus.planning import PlannerBuffer, Problem
    >>> buffers = PlannerBuffer("a", 0, 2, 8), PlannerBuffer("b", 1, 3, 8), PlannerBuffer("c", 2, 4, 8)
    >>> count_conflicts(Problem(buffers))
    2
    """
    _, meets = _meetings(problem)
    return int(meets.sum())


def _meetings(problem: Problem) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a table of live intervals, and how many later intervals each one overlaps."""
    # The rows of the table are (start, end, number of the buffer) in order of start. So the later intervals that one
    # overlaps directly follow it.
    pieces = [(s, e, i) for i, b in enumerate(problem.buffers) if b.size for s, e in b.lifetimes]
    table = np.array(pieces, dtype=np.int64).reshape(-1, 3)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return table, np.searchsorted(table[:, 0], table[:, 1], side="left") - np.arange(1, len(table) + 1)


def find_conflicts(problem: Problem) -> Conflicts:
    """List the pairs of buffers that are live at the same time.

    The cost is that of sorting plus that of writing the pairs.

    >>> from isthmus.planning import PlannerBuffer, Problem
    >>> buffers = PlannerBuffer("a", 0, 2, 8), PlannerBuffer("b", 1, 3, 8), PlannerBuffer("c", 2, 4, 8)
    >>> find_conflicts(Problem(buffers)).lists()
    [[1], [0, 2], [1]]
    """
    count = len(problem.buffers)
    table, meets = _meetings(problem)
    owners, after = table[:, 2], np.arange(1, len(table) + 1)
    # Pair k consists of the intervals left[k] and right[k]; right counts up from the row after left.
    left = np.repeat(np.arange(len(table)), meets)
    right = np.arange(len(left)) - np.repeat(np.cumsum(meets) - meets, meets) + after[left]
    a, b = owners[left], owners[right]
    # One number for each pair, in both directions, so that sorting groups the pairs by their first buffer.
    keys = np.concatenate((a * count + b, b * count + a))
    # Only a buffer with gaps can meet another one twice; without gaps, sorting suffices.
    keys = np.unique(keys) if len(table) > count else np.sort(keys)
    rows = keys // max(count, 1)
    first = np.searchsorted(rows, np.arange(count + 1))
    return Conflicts(first.astype(np.int64), keys - rows * count)
