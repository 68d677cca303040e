"""The choice of fused regions under a limit as a shortest path over the steps, and the least limit by bisection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TypeVar

T = TypeVar("T")


def cheapest_regions(
    live: Sequence[int],
    limit: int,
    firsts: Callable[[int, int], Iterable[int]],
    choose: Callable[[int, int, float], tuple[float, T] | None],
) -> tuple[list[T] | None, int]:
    """Choose the cheapest regions with which no step has more than `limit` bytes alive; None where there are none.

    A step either has no more alive than the limit as it is, or is in a region whose tiles have no more.

    Parameters
    ----------
    live
        The bytes that each step has alive as it is.
    firsts
        The steps that a region may begin with, by the step that it ends with and the last step up to there that has too
        much alive; -1 where none has, and no region is of use.
    choose
        The cost and the tiling of a region, by its first and its last step, where one costs less than a number.

    Returns
    -------
    The tilings in order, and how many steps from the first on can be computed within the limit.
    """
    best: list[tuple[float, tuple[T, ...]] | None] = [(0, ())]
    reached, hot = 0, -1
    for last, alive in enumerate(live):
        entry = best[last]
        if alive > limit:
            hot, entry = last, None
        for first in firsts(last, hot):
            before = best[first]
            if before is None:
                continue
            found = choose(first, last, inf if entry is None else entry[0] - before[0])
            if found is not None and (entry is None or before[0] + found[0] < entry[0]):
                entry = before[0] + found[0], (*before[1], found[1])
        best.append(entry)
        if entry is not None:
            reached = last + 1
    whole = best[-1]
    return None if whole is None else [*whole[1]], reached


def least_limit(
    low: int, best: tuple[int, T], finest: Callable[[int], int], attempt: Callable[[int], tuple[int, T] | None]
) -> tuple[int, T]:
    """Find about the least limit above `low` that an attempt succeeds for, with its result.

    Parameters
    ----------
    best
        A limit that is known to be enough, and the result for it.
    finest
        How much less is not worth another attempt, by the best limit so far.
    """
    while best[0] - low > finest(best[0]):
        middle = (low + best[0]) // 2
        found = attempt(middle)
        if found is None:
            low = middle
        else:
            best = found
    return best
