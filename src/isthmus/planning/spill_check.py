"""The check of a solution for two memories: a walk through the steps that follows every byte, in code of its own."""

from __future__ import annotations

from itertools import pairwise

from isthmus.planning.problem import PlannerBuffer, PlanningError, Problem
from isthmus.planning.spill import SpillItem, SpillProblem, SpillSolution, SpillTraffic
from isthmus.planning.validate import check


def check_spills(problem: SpillProblem, solution: SpillSolution) -> SpillTraffic:
    """Check that a solution can be executed, and return its traffic.

    Parameters
    ----------
    problem
        The problem.
    solution
        A solution of it.

    Returns
    -------
    SpillTraffic
        The bytes that are moved, counted byte by byte.

    Raises
    ------
    PlanningError
        If the fast memory cannot hold what the solution keeps there, a value is lost, or its figures are wrong.
    """
    read = written = 0
    buffers = []
    for number, (item, stays) in enumerate(zip(problem.items, solution.stays, strict=True)):
        if len(stays) != len(item.uses) - 1:
            raise PlanningError(f"item {item.id!r} has {len(item.uses) - 1} gaps, not {len(stays)}", number)
        more = _walk(item, stays)
        read, written = read + more.read, written + more.written
        begin = 0
        for use in range(len(item.uses)):
            if use < len(stays) and stays[use]:
                continue
            size = problem.rooms[number] if use > begin else problem.windows[number][use]
            if size:
                start, end = item.uses[begin].step, item.uses[use].step + 1
                buffers.append(PlannerBuffer(f"{number} {begin}", start, end, size, problem.alignment))
            begin = use + 1
    check(Problem(tuple(buffers), problem.capacity), solution.offsets)
    traffic = SpillTraffic(read, written)
    if traffic != solution.traffic:
        raise PlanningError(f"the traffic is {traffic}, not {solution.traffic}")
    if not solution.lower_bound <= traffic.total <= solution.largest_first:
        raise PlanningError(f"traffic {traffic.total} is outside {solution.lower_bound} to {solution.largest_first}")
    return traffic


def _walk(item: SpillItem, stays: tuple[bool, ...]) -> SpillTraffic:
    """Move the bytes of an item as its gaps say, and count them. Bytes that all uses treat alike move together."""
    borders = {0, item.size, *(end for use in item.uses for part in (*use.reads, *use.writes) for end in part)}
    ordered = sorted(borders)
    read = written = 0
    for low, high in pairwise(ordered):
        reads, writes = (
            [any(a <= low < b for a, b in part) for part in parts]
            for parts in ([use.reads for use in item.uses], [use.writes for use in item.uses])
        )
        # The version of the value: how often it was written; -1 if a memory has none.
        now = 0 if item.before else -1
        slow, fast = now, -1
        for use in range(len(item.uses)):
            if reads[use] and now >= 0 and fast != now:
                if slow != now:
                    raise PlanningError(f"item {item.id!r}: bytes {low}-{high} are lost before use {use}")
                read, fast = read + high - low, now
            if writes[use]:
                now += 1
                fast = now
            if use == len(stays) or not stays[use]:
                if fast > slow and _is_needed(item, use, reads, writes):
                    written, slow = written + high - low, now
                fast = -1
        if item.after and slow != now:
            raise PlanningError(f"item {item.id!r}: bytes {low}-{high} are not in the slow memory in the end")
    return SpillTraffic(read, written)


def _is_needed(item: SpillItem, use: int, reads: list[bool], writes: list[bool]) -> bool:
    """Return whether the value of bytes after a use is read before it is replaced, or must be there in the end."""
    for later in range(use + 1, len(reads)):
        if reads[later]:
            return True
        if writes[later]:
            return False
    return item.after
