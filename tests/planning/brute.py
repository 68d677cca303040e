"""The slow way to the same answers: every layout there is, step by step through time."""

from __future__ import annotations

from isthmus.planning import Problem


def fits(problem: Problem, capacity: int) -> bool:
    """Whether any layout fits, by carrying all sets of offsets that are possible from each step to the next."""
    steps = sorted({t for b in problem.buffers for piece in b.lifetimes for t in piece})
    known: set[frozenset[tuple[int, int]]] = {frozenset()}
    for step in steps:
        ending = {i for i, b in enumerate(problem.buffers) if b.end == step}
        known = {frozenset(entry for entry in layout if entry[0] not in ending) for layout in known}
        coming = [
            i for i, b in enumerate(problem.buffers) if b.size and any(start == step for start, _ in b.lifetimes)
        ]
        live = {i for i, b in enumerate(problem.buffers) if any(start <= step < end for start, end in b.lifetimes)}
        for i in coming:
            b = problem.buffers[i]
            grown = set()
            for layout in known:
                where = dict(layout)
                if i in where:
                    places = [where[i]]
                elif b.offset is not None:
                    places = [b.offset] if b.offset + b.size <= capacity else []
                else:
                    places = list(range(0, capacity - b.size + 1, b.alignment))
                others = [(at, at + problem.buffers[j].size) for j, at in layout if j in live and j != i]
                for at in places:
                    if all(at + b.size <= low or high <= at for low, high in others):
                        grown.add(frozenset({*layout, (i, at)}))
            known = grown
            if not known:
                return False
    return True


def smallest_peak(problem: Problem) -> int:
    """The peak of the smallest layout."""
    peak = max((b.size + (b.offset or 0) for b in problem.buffers), default=0)
    while not fits(problem, peak):
        peak += 1
    return peak
