"""Fast layouts: buffers are placed one after another, each as low as it can go."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence

from .conflicts import find_conflicts
from .problem import Problem


def greedy_by_size(problem: Problem) -> tuple[int, ...]:
    """Place the largest buffer first, each into the lowest gap that holds it.

    This is what most runtimes do (TensorFlow Lite's arena planner among them), so it is the figure to compare with.
    The capacity of the problem plays no part.

    Returns
    -------
    tuple of int
        An offset for each buffer.

    Examples
    --------
    >>> from isthmus.planning import Buffer, Problem
    >>> greedy_by_size(Problem((Buffer("a", 0, 2, 4), Buffer("b", 1, 3, 8), Buffer("c", 2, 4, 6))))
    (8, 0, 8)
    """
    buffers = problem.buffers
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i].size, buffers[i].start, i))
    return first_fit(problem, order, find_conflicts(problem).lists())


def first_fit(
    problem: Problem,
    order: Sequence[int],
    conflicts: Sequence[Sequence[int]],
    given: Mapping[int, int] | None = None,
) -> tuple[int, ...]:
    """Place buffers in the given order, each at the lowest offset that is free for its whole lifetime.

    Parameters
    ----------
    problem
        Fixed buffers are placed before all others, where they have to be.
    order
        Indices of all buffers, or of those that are neither fixed nor given.
    conflicts
        For each buffer those it may not overlap.
    given
        Offsets that are decided already.
    """
    buffers = problem.buffers
    offsets = [0] * len(buffers)
    taken: list[list[tuple[int, int]]] = [[] for _ in buffers]
    done = [False] * len(buffers)

    def put(index: int, offset: int) -> None:
        offsets[index] = offset
        done[index] = True
        span = (offset, offset + buffers[index].size)
        for other in conflicts[index]:
            if not done[other]:
                insort(taken[other], span)

    for index, offset in (given or {}).items():
        put(index, offset)
    for index, buffer in enumerate(buffers):
        if buffer.offset is not None and not done[index]:
            put(index, buffer.offset)
    for index in order:
        if not done[index]:
            put(index, _lowest_gap(taken[index], buffers[index].size, buffers[index].alignment))
    return tuple(offsets)


def _lowest_gap(taken: list[tuple[int, int]], size: int, alignment: int) -> int:
    offset = 0
    for low, high in taken:
        if low - offset >= size:
            break
        if high > offset:
            offset = -(-high // alignment) * alignment
    return offset


def orders(problem: Problem, conflicts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Orders for `first_fit` that do well on different kinds of problem, greedy-by-size first."""
    buffers = problem.buffers
    size = [b.size for b in buffers]
    width = [b.end - b.start for b in buffers]
    # Bytes live around each buffer: where memory is scarce, place first.
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
