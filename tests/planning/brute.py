"""The slow way to the same answers: every layout there is, step by step through time."""

from __future__ import annotations

from isthmus.planning import Problem

Layout = frozenset[tuple[int, int]]


def fits(problem: Problem, capacity: int) -> bool:
    """Return whether any layout fits.

    Buffers are placed in the order in which they come to life, at every offset in turn. What has been tried is known
    by the step and by the offsets of those that will be live again.
    """
    buffers = problem.buffers
    arrivals = sorted((start, i) for i, b in enumerate(buffers) if b.size for start, _ in b.lifetimes)
    tried: set[tuple[int, Layout]] = set()
    work: list[tuple[int, Layout]] = [(0, frozenset())]
    while work:
        number, layout = work.pop()
        if number == len(arrivals):
            return True
        step, i = arrivals[number]
        b = buffers[i]
        layout = frozenset((j, at) for j, at in layout if buffers[j].end > step)
        if (number, layout) in tried:
            continue
        tried.add((number, layout))
        known = dict(layout)
        places = range(0, capacity - b.size + 1, b.alignment)
        if b.offset is not None:
            places = range(b.offset, min(b.offset, capacity - b.size) + 1)
        if i in known:
            places = range(known[i], known[i] + 1)
        taken = [
            (at, at + buffers[j].size)
            for j, at in layout
            if j != i and any(start <= step < end for start, end in buffers[j].lifetimes)
        ]
        for at in reversed(places):
            if all(at + b.size <= low or high <= at for low, high in taken):
                work.append((number + 1, layout | {(i, at)}))
    return all((b.offset or 0) + b.size <= capacity for b in buffers) if not arrivals else False


def smallest_peak(problem: Problem) -> int:
    """The peak of the smallest layout."""
    buffers = problem.buffers
    peak = max((b.size + (b.offset or 0) for b in buffers), default=0)
    for step in {start for b in buffers for start, _ in b.lifetimes}:
        live = [b for b in buffers if any(start <= step < end for start, end in b.lifetimes)]
        peak = max(peak, sum(b.size for b in live))
    while not fits(problem, peak):
        peak += 1
    return peak
