"""Which buffers are live at the same time, and so may not share memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .problem import Problem


@dataclass(frozen=True)
class Conflicts:
    """For each buffer the others that it may not overlap, as one flat table.

    The conflicts of buffer ``i`` are ``others[first[i]:first[i + 1]]``, in rising order. Buffers of zero bytes have
    none.
    """

    first: NDArray[np.int64]
    others: NDArray[np.int64]

    def lists(self) -> list[list[int]]:
        """The same as Python lists, which are faster to walk through outside compiled code."""
        flat, first = self.others.tolist(), self.first.tolist()
        return [flat[a:b] for a, b in pairwise(first)]


def find_conflicts(problem: Problem) -> Conflicts:
    """List the pairs of buffers that are live at the same time.

    Sorted by start, the stretches that meet a given one and begin after it follow it without a break, so the cost is
    that of sorting plus that of writing the pairs down.

    Examples
    --------
    >>> from isthmus.planning import Buffer, Problem
    >>> find_conflicts(Problem((Buffer("a", 0, 2, 8), Buffer("b", 1, 3, 8), Buffer("c", 2, 4, 8)))).lists()
    [[1], [0, 2], [1]]
    """
    count = len(problem.buffers)
    pieces = [(s, e, i) for i, b in enumerate(problem.buffers) if b.size for s, e in b.lifetimes]
    table = np.array(pieces, dtype=np.int64).reshape(-1, 3)
    table = table[np.argsort(table[:, 0], kind="stable")]
    starts, ends, owners = table[:, 0], table[:, 1], table[:, 2]
    after = np.arange(1, len(table) + 1)
    meets = np.searchsorted(starts, ends, side="left") - after
    left = np.repeat(np.arange(len(table)), meets)
    right = np.arange(len(left)) - np.repeat(np.cumsum(meets) - meets, meets) + after[left]
    a, b = owners[left], owners[right]
    keys = np.concatenate((a * count + b, b * count + a))
    # Only a buffer with gaps can meet another one twice; without gaps sorting is enough.
    keys = np.unique(keys) if len(pieces) > count else np.sort(keys)
    rows = keys // max(count, 1)
    first = np.searchsorted(rows, np.arange(count + 1))
    return Conflicts(first.astype(np.int64), keys - rows * count)
