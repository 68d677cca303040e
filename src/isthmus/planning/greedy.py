"""Fast layouts: buffers are placed one after another, each as low as possible."""

from __future__ import annotations

import math
import time
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence

from isthmus.planning.conflicts import MAX_CONFLICTS, count_conflicts, find_conflicts
from isthmus.planning.problem import Problem

# The number of buffers placed between two checks of the clock.
_LOOK_EVERY = 256


def greedy_by_size(problem: Problem) -> tuple[int, ...]:
    """Place buffers by descending size, each into the lowest gap that holds it.

    This is what most runtimes do (including TensorFlow Lite's arena planner), so it serves as the baseline. The
    capacity of the problem is ignored. If too many buffers are live at once to list the pairs, buffers are placed in
    order of time instead.

    Returns
    -------
    tuple of int
        An offset for each buffer.

    Examples
    --------
    >>> from isthmus.planning import PlannerBuffer, Problem
    >>> greedy_by_size(Problem((PlannerBuffer("a", 0, 2, 4), PlannerBuffer("b", 1, 3, 8), PlannerBuffer("c", 2, 4, 6))))
    (8, 0, 8)
    """
    if count_conflicts(problem) > MAX_CONFLICTS:
        return in_order_of_time(problem)
    buffers = problem.buffers
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i].size, buffers[i].start, i))
    offsets = first_fit(problem, order, find_conflicts(problem).lists())
    assert offsets is not None
    return offsets


def first_fit(
    problem: Problem,
    order: Sequence[int],
    conflicts: Sequence[Sequence[int]],
    known_offsets: Mapping[int, int] | None = None,
    deadline: float = math.inf,
) -> tuple[int, ...] | None:
    """Place buffers in the given order, each at the lowest offset that is free for its whole lifetime.

    - `problem`: fixed buffers are placed before all others, at their offsets.
    - `order`: indices of all buffers, or of those that are neither fixed nor in `known_offsets`.
    - `conflicts`: for each buffer, those it must not overlap.
    - `known_offsets`: offsets that are already decided.
    - `deadline`: a time of `time.perf_counter`; once it has passed, the function returns None.
    """
    buffers = problem.buffers
    offsets = [0] * len(buffers)
    # For each buffer, the bytes from low to high that placed neighbours occupy, in ascending order.
    taken: list[list[tuple[int, int]]] = [[] for _ in buffers]
    done = [False] * len(buffers)

    def put(index: int, offset: int) -> None:
        """Place a buffer, and make its bytes known to the neighbours that are not placed yet."""
        offsets[index] = offset
        done[index] = True
        span = (offset, offset + buffers[index].size)
        for other in conflicts[index]:
            if not done[other]:
                insort(taken[other], span)

    for index, offset in (known_offsets or {}).items():
        put(index, offset)
    for index, buffer in enumerate(buffers):
        if buffer.offset is not None and not done[index]:
            put(index, buffer.offset)
    for number, index in enumerate(order):
        if number and number % _LOOK_EVERY == 0 and time.perf_counter() >= deadline:
            return None
        if not done[index]:
            put(index, _lowest_gap(taken[index], buffers[index].size, buffers[index].alignment))
    return tuple(offsets)


def in_order_of_time(problem: Problem) -> tuple[int, ...]:
    """Place buffers as an allocator does over time: each, when it starts, into the smallest hole that holds it.

    It needs no list of conflicts, so it is suitable for problems with very many of them. Gaps stay unused, and fixed
    buffers occupy their bytes for all time.

    >>> from isthmus.planning import PlannerBuffer, Problem
    >>> buffers = PlannerBuffer("a", 0, 2, 4), PlannerBuffer("b", 1, 3, 8), PlannerBuffer("c", 2, 4, 6)
    >>> in_order_of_time(Problem(buffers))
    (0, 4, 12)
    """
    buffers = problem.buffers
    offsets = [b.offset or 0 for b in buffers]
    # Fixed buffers occupy their bytes before the first event and are never given back.
    holes = _Holes(sorted((b.offset, b.offset + b.size) for b in buffers if b.offset is not None))
    placed = [i for i, b in enumerate(buffers) if b.size and b.offset is None]
    # At equal times an end (0) comes before a start (1): lifetimes are half open.
    events = sorted([(buffers[i].start, 1, i) for i in placed] + [(buffers[i].end, 0, i) for i in placed])
    for _, starts, index in events:
        if starts:
            offsets[index] = holes.take(buffers[index].size, buffers[index].alignment)
        else:
            holes.give_back(offsets[index], offsets[index] + buffers[index].size)
    return tuple(offsets)


class _Holes:
    """Free memory: holes below a top that rises as needed, and everything above it.

    - `taken`: bytes from low to high that are occupied from the start, in ascending order.
    """

    def __init__(self, taken: list[tuple[int, int]]) -> None:
        # Each hole as its size and its start, the smallest first.
        self._by_size: list[tuple[int, int]] = []
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self._top = 0
        for low, high in taken:
            if low > self._top:
                self._add(self._top, low)
            self._top = max(self._top, high)

    def take(self, size: int, alignment: int) -> int:
        """Allocate bytes in a hole, or else at the top."""
        # A hole that is just large enough may be aligned; every larger one contains an aligned part.
        for least in dict.fromkeys((size, size + alignment - 1)):
            at = bisect_left(self._by_size, (least, 0))
            if at < len(self._by_size):
                low = self._by_size[at][1]
                high, offset = self._end_of[low], -(-low // alignment) * alignment
                if offset + size <= high:
                    self._remove(low, high)
                    self._add(low, offset)
                    self._add(offset + size, high)
                    return offset
        offset = -(-self._top // alignment) * alignment
        self._add(self._top, offset)
        self._top = offset + size
        return offset

    def give_back(self, low: int, high: int) -> None:
        """Free bytes as a hole, merged with adjacent ones."""
        if low in self._start_of:
            before = self._start_of[low]
            self._remove(before, low)
            low = before
        if high in self._end_of:
            after = self._end_of[high]
            self._remove(high, after)
            high = after
        if high == self._top:
            self._top = low
        else:
            self._add(low, high)

    def _add(self, low: int, high: int) -> None:
        """Add a hole, unless it is empty."""
        if low < high:
            insort(self._by_size, (high - low, low))
            self._end_of[low], self._start_of[high] = high, low

    def _remove(self, low: int, high: int) -> None:
        del self._by_size[bisect_left(self._by_size, (high - low, low))]
        del self._end_of[low], self._start_of[high]


def _lowest_gap(taken: list[tuple[int, int]], size: int, alignment: int) -> int:
    """Return the lowest aligned offset of free bytes, given the occupied ones (from low to high) in ascending order."""
    offset = 0
    for low, high in taken:
        if low - offset >= size:
            break
        if high > offset:
            offset = -(-high // alignment) * alignment
    return offset


def orders(problem: Problem, conflicts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield orders for `first_fit` that suit different kinds of problems, greedy-by-size first."""
    buffers = problem.buffers
    size = [b.size for b in buffers]
    width = [b.end - b.start for b in buffers]
    # Bytes live around each buffer: buffers where memory is scarce are placed first.
    crowd = [size[i] + sum(size[j] for j in others) for i, others in enumerate(conflicts)]
    keys = (
        lambda i: (-size[i], buffers[i].start),
        lambda i: (-size[i] * width[i], -size[i]),
        lambda i: (-width[i], -size[i]),
        lambda i: (-crowd[i], -size[i]),
        lambda i: (buffers[i].start, -width[i]),
        lambda i: (-buffers[i].end, -width[i]),
    )
    for key in keys:
        yield sorted(range(len(buffers)), key=key)
