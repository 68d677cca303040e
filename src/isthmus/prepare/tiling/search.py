"""The choice of stretches and of the rows of their strips: exact for a limit, by steps and not by time.

A step either has no more alive than the limit as it is, or lies in a stretch whose strips have not. The cheapest set of
stretches is a shortest path over the steps. The least memory within a budget of time is found by halving.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from operator import sub

from isthmus.prepare.schedule import Step
from isthmus.prepare.tiling.fused_region import BYTES_A_STEP, MOST_UNROLLED, MOST_WON, NANOSECONDS_A_STEP, FusedRegion
from isthmus.prepare.tiling.lower_bounds import floors
from isthmus.prepare.tiling.region_grower import RegionGrower
from isthmus.prepare.tiling.region_path import cheapest_regions, least_limit
from isthmus.prepare.tiling.step_table import WIDTH, StepTable

LONGEST = 90
"""Steps of a stretch."""
TABLE_SHARE = 0.09
"""The most that a program may grow, as a part of the scratch that this saves."""
_FINEST = 100
_BARGAINS, _LEAST_STEP = 32, 1.02
"""How many limits are tried for a program that is small enough, and the least ratio between two of them."""
_BETTER = 50
MOST_GROWTH, LEAST_SHARE = 8_000, 16
"""Steps by which stretches grow in one search, all in all, and those by which all with the same end may in any case: in
models of more steps than the first is for, a stretch is as long as its share."""
_A_REGION, _A_BYTE = 200.0, 0.05


@dataclass(frozen=True)
class RegionChoice:
    """A stretch with the rows of its strips and where the first one ends, and how many threads take strips by turns."""

    stretch: FusedRegion
    rows: int
    start: int
    lanes: int = 1

    @cached_property
    def nanoseconds(self) -> float:
        """The time that it takes more than whole steps do."""
        return self.stretch.nanoseconds(self.rows, self.start, self.lanes)

    @cached_property
    def cost(self) -> float:
        """What choices are compared by: its time, with a little for the program that it takes."""
        return self.nanoseconds + _A_REGION + _A_BYTE * self.table_bytes

    @property
    def table_bytes(self) -> int:
        """By how much the program grows."""
        whole = self.stretch.last - self.stretch.first + 1
        return BYTES_A_STEP * (self.stretch.emitted(self.rows, self.start) - whole)


@dataclass(frozen=True)
class Budget:
    """What less memory may cost: a part of the model's time, and whether a program must stay small."""

    slower: float
    small_program: bool = True


class RegionSearch:
    """The search over one arrangement of steps.

    Parameters
    ----------
    kind
        The order of its steps.
    spent
        Time that is spent already on computing tensors again.
    """

    def __init__(self, base: StepTable, kind: str, spent: float = 0.0) -> None:
        self.base = base
        self.kind = kind
        self.spent = spent
        self.threads = base.engine.threads
        self.time = float(base.together.sum()) - spent
        self._endings: dict[tuple[int, int], RegionGrower] = {}
        self._modes = [(1, WIDTH) if _is_wide(step) else (1,) for step in base.steps]
        self._barriers = [self._barrier(index) for index in range(len(base.steps))]
        self._reaches = self._reached()
        self._share = share_of(
            MOST_GROWTH, [reach for reach, modes in zip(self._reaches, self._modes, strict=True) for _ in modes]
        )
        self._floors = floors(base, self._reaches)
        self._least: list[list[float]] = [[*map(sub, one.alive, one.saved)] for one in self._floors]
        """For each step the bytes that stretches which end with it take at the least, as far as is known."""
        self.reached = 0

    @property
    def peak(self) -> int:
        """The most that any step has alive as it is."""
        return max(self.base.live, default=0)

    def is_barrier(self, index: int) -> bool:
        """Whether no stretch goes on behind a step: none can hold it, or it brings all rows together."""
        sink = self.base.sink(index, 1)
        return self._barriers[index] or (sink is not None and sink[1].reduces)

    def _barrier(self, index: int) -> bool:
        """Whether no stretch can hold a step."""
        step = self.base.steps[index]
        if self.base.result[index] is None:
            return True
        rank = step.outputs[0].rank
        axes = {axis for axis in range(rank) if step.outputs[0].dims[axis] > 1}
        sinks = any(self.base.sink(index, mode) is not None for mode in (1, WIDTH))
        return not sinks and all(self.base.map(index, axis) is None for axis in axes)

    def _reached(self) -> list[int]:
        """How many steps a stretch that ends with each step has at the most."""
        reaches, run = [], 0
        for barrier in self._barriers:
            run = 0 if barrier else min(run + 1, LONGEST)
            reaches.append(run)
        return reaches

    @property
    def bounded(self) -> bool:
        """Whether there are stretches that were not looked at, since they would have been too much work."""
        return any(ending.cut_short for ending in self._endings.values())

    def _stretches(self, first: int, last: int, mode: int, limit: int) -> list[FusedRegion]:
        key = last, mode
        ending = self._endings.get(key)
        if ending is None:
            ending = self._endings[key] = RegionGrower(self.base, last, mode, self._share, self._floors[last])
        return ending.stretches(first, limit)

    def cheapest(self, first: int, last: int, limit: int, below: float = inf) -> RegionChoice | None:
        """The cheapest strips of a stretch that stay within a limit and cost less than others do."""
        best: RegionChoice | None = None
        if last - first >= self._reaches[last]:
            return None
        none = True
        for mode in self._modes[last]:
            for found in self._stretches(first, last, mode, limit):
                none = False
                for choice in self._choices(found, limit, below):
                    if choice.cost < below:
                        best, below = choice, choice.cost
        if none:
            known = (self._endings[last, mode].least(first) for mode in self._modes[last])
            self._least[last][last - first] = min(known)
        return best

    def _choices(self, found: FusedRegion, limit: int, below: float) -> Iterator[RegionChoice]:
        """Strips of a stretch that stay within a limit, but for some that cost no less than others do."""
        # Threads share the steps of a strip, or each takes another strip.
        for lanes in (1, self.threads) if self.threads > 1 and found.regular else (1,):
            fewest = -(-(self.threads if lanes == 1 else 1) // found.grain) * found.grain
            rows = found.rows(limit, lanes)
            if rows < fewest or (not found.regular and rows * MOST_UNROLLED < found.height):
                continue
            for even in found.even(rows, fewest):
                # There are no fewer strips than with a first one that is as long as the others.
                if lanes == 1 and found.nanoseconds(even, even) + _A_REGION >= below:
                    continue
                choice = RegionChoice(found, even, found.start(limit, even), lanes)
                if found.strips(even, choice.start) > 1:
                    yield choice

    def solve(self, limit: int) -> list[RegionChoice] | None:
        """The cheapest stretches with which no step has more than `limit` bytes alive; None where there are none."""

        def firsts(last: int, hot: int) -> Iterator[int]:
            least = self._least[last]
            return (n for n in range(hot, last - self._reaches[last], -1) if least[last - n] <= limit)

        def choose(first: int, last: int, below: float) -> tuple[float, RegionChoice] | None:
            # Of two tiles each step is an instruction more, at the least, and not all of that is won back. Threads that
            # take turns may win more than that.
            least_cost = _A_REGION + (last - first + 1) * NANOSECONDS_A_STEP * (1 - MOST_WON)
            if self.threads == 1 and least_cost >= below:
                return None
            choice = self.cheapest(first, last, limit, below)
            return None if choice is None else (choice.cost, choice)

        chosen, self.reached = cheapest_regions(self.base.live, limit, firsts, choose)
        return chosen

    def cost(self, chosen: list[RegionChoice]) -> float:
        """The time that a choice takes more, with what is spent already."""
        return self.spent + sum(choice.nanoseconds for choice in chosen)

    def affordable(self, chosen: list[RegionChoice] | None, limit: int, budget: Budget) -> bool:
        """Whether a choice keeps to a budget."""
        if chosen is None or self.cost(chosen) > budget.slower * self.time:
            return False
        return not budget.small_program or self.is_small(chosen, self.peak - limit)

    @staticmethod
    def is_small(chosen: list[RegionChoice], saved: int) -> bool:
        """Whether a program grows by little beside the scratch that this saves."""
        return sum(choice.table_bytes for choice in chosen) <= TABLE_SHARE * max(0, saved)

    def bargain(self, least: int, budget: Budget) -> tuple[int, list[RegionChoice]] | None:
        """The least limit from one on whose program is small enough: which does not fall evenly with the limit."""
        step = max((self.peak / max(least, 1)) ** (1 / _BARGAINS), _LEAST_STEP)
        low, high = least, least
        found: tuple[int, list[RegionChoice]] | None = None
        while found is None:
            low, high = high, max(int(high * step), high + self.base.alignment)
            if high >= self.peak:
                return None
            found = self._attempt(high, budget)
        return least_limit(low, found, lambda best: self.base.alignment, lambda limit: self._attempt(limit, budget))

    def _attempt(self, limit: int, budget: Budget) -> tuple[int, list[RegionChoice]] | None:
        chosen = self.solve(limit)
        return (limit, chosen) if chosen is not None and self.affordable(chosen, limit, budget) else None

    def least(self, budget: Budget, below: int | None = None) -> tuple[int, list[RegionChoice]] | None:
        """The least limit that the time of a budget allows, and the choice for it; None if nothing below `below` is."""
        budget = replace(budget, small_program=False)
        best: tuple[int, list[RegionChoice] | None] = self.peak, None
        if below is not None:
            # Another order has reached that: one that does no better is soon known.
            found = self._attempt(below - below // _BETTER, budget)
            if found is None:
                return None
            best = found
        low = max((bytes_ for index, bytes_ in enumerate(self.base.live) if self._barriers[index]), default=0)
        limit, chosen = least_limit(
            low, best, lambda limit: max(self.base.alignment, limit // _FINEST), lambda n: self._attempt(n, budget)
        )
        return None if chosen is None else (limit, chosen)


def share_of(work: int, reaches: Sequence[int]) -> int:
    """The share with which those who reach no further take what they need, and all others that, within so much work.

    Examples
    --------
    >>> share_of(100, [3, 90, 90]), share_of(10, [4, 5]), share_of(10, [30] * 10)
    (48, 90, 16)
    """
    left = work
    for done, reach in enumerate(sorted(reaches)):
        share = left // (len(reaches) - done)
        if share < reach:
            return max(share, LEAST_SHARE)
        left -= reach
    return LONGEST


def _is_wide(step: Step) -> bool:
    """Whether an image has so few rows that its columns are the better strips."""
    dims = step.outputs[0].dims
    source = step.inputs[0].dims if step.inputs and step.inputs[0] is not None else ()
    return any(len(image) == 4 and image[2] >= 2 * image[1] for image in (dims, source))
