"""Live bytes of steps, fused regions under a limit as a shortest path over the steps, and the smallest limit.

Schedules and model files are tiled by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import inf
from typing import TypeVar

T = TypeVar("T")


def live_bytes(lives: Iterable[tuple[int, int, int]], count: int) -> list[int]:
    """Return the bytes alive at each of `count` steps; `lives` has the first step, last step and bytes of each value.

    A time before the first step counts as the first step, and one after the last step as the last.

    Examples
    --------
    >>> live_bytes([(-1, 0, 64), (0, 2, 8), (1, 5, 16)], 3)
    [72, 24, 24]
    """
    change = [0] * (count + 1)
    for first, last, size in lives:
        if first < count and last >= 0:
            change[max(first, 0)] += size
            change[min(last + 1, count)] -= size
    return list(accumulate(change[:count]))


def cheapest_regions(
    live: Sequence[int],
    limit: int,
    firsts: Callable[[int, int], Iterable[int]],
    choose: Callable[[int, int, float], tuple[float, T] | None],
) -> tuple[list[T] | None, int]:
    """Choose the cheapest regions that keep every step within `limit` live bytes; None if there are none.

    Each step is either within the limit without tiling, or in a region whose tiles are.

    - `live`: the live bytes of each untiled step.
    - `firsts`: a function that returns the steps with which a region may begin. Its arguments are the region's last
      step, and the last step so far that exceeds the limit; -1 if none does, and then no region is useful.
    - `choose`: a function that returns the cost and the tiling of a region, given its first and last step, if one costs
      less than a bound.

    Returns the tilings in order, and the number of steps from the beginning that can be computed within the limit.
    """
    # For each number of steps from the beginning, the least cost and its tilings; None if they do not fit.
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
            tiling = choose(first, last, inf if entry is None else entry[0] - before[0])
            if tiling is not None and (entry is None or before[0] + tiling[0] < entry[0]):
                entry = before[0] + tiling[0], (*before[1], tiling[1])
        best.append(entry)
        if entry is not None:
            reached = last + 1
    all_steps = best[-1]
    return None if all_steps is None else [*all_steps[1]], reached


def least_limit(
    low: int, best: tuple[int, T], finest: Callable[[int], int], attempt: Callable[[int], tuple[int, T] | None]
) -> tuple[int, T]:
    """Find approximately the smallest limit above `low` for which an attempt succeeds, with its result.

    - `best`: a limit that is known to suffice, and its result.
    - `finest`: a function that returns the smallest reduction worth another attempt, given the best limit so far.
    - `attempt`: a function that returns a limit, at most the one that it is given, and its result; None if it fails.
    """
    while best[0] - low > finest(best[0]):
        middle = (low + best[0]) // 2
        better = attempt(middle)
        if better is None:
            low = middle
        else:
            best = better
    return best
