"""The choice of fused regions and of the rows of their tiles: exact for a limit, bounded by steps and not by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from operator import sub

from isthmus.prepare.schedule import Step
from isthmus.prepare.tiling.fused_region import BYTES_A_STEP, MOST_UNROLLED, MOST_WON, NANOSECONDS_A_STEP, FusedRegion
from isthmus.prepare.tiling.lower_bounds import lower_bounds
from isthmus.prepare.tiling.region_grower import RegionGrower
from isthmus.prepare.tiling.region_path import cheapest_regions, least_limit
from isthmus.prepare.tiling.step_table import WIDTH, StepTable
from isthmus.system.shield import check

LONGEST = 90
"""The most steps of a region."""
TABLE_SHARE = 0.09
"""The most that a program may grow, as a part of the scratch that tiles save."""
_FINEST = 100
_BARGAINS, _LEAST_STEP = 32, 1.02
"""How many limits are tried for a program that is small enough, and the least ratio between two of them."""
_BETTER = 50
MOST_GROWTH, LEAST_SHARE = 8_000, 16
"""Steps by which regions may grow in one search, all in all, and those by which all with the same end may in any case:
in models of more steps, a region is at most as long as its share."""
_A_REGION, _A_BYTE = 200.0, 0.05


@dataclass(frozen=True)
class RegionChoice:
    """A region with the rows of its tiles, where the first one ends, and how many threads take tiles by turns."""

    region: FusedRegion
    rows: int
    start: int
    lanes: int = 1

    @cached_property
    def nanoseconds(self) -> float:
        """The time that it takes more than whole steps do."""
        return self.region.nanoseconds(self.rows, self.start, self.lanes)

    @cached_property
    def cost(self) -> float:
        """The measure that choices are compared by: time, with a little for the size of the program."""
        return self.nanoseconds + _A_REGION + _A_BYTE * self.table_bytes

    @property
    def table_bytes(self) -> int:
        """The bytes by which the program grows."""
        whole = self.region.last - self.region.first + 1
        return BYTES_A_STEP * (self.region.instruction_count(self.rows, self.start) - whole)


@dataclass(frozen=True)
class Budget:
    """Costs that less memory may have: a part of the model's time, and whether a program must stay small."""

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
        self._growers: dict[tuple[int, int], RegionGrower] = {}
        self._modes = [(1, WIDTH) if _is_wide(step) else (1,) for step in base.steps]
        self._barriers = [self._barrier(index) for index in range(len(base.steps))]
        self._reaches = self._reached()
        self._share = share_of(
            MOST_GROWTH, [reach for reach, modes in zip(self._reaches, self._modes, strict=True) for _ in modes]
        )
        self._bounds = lower_bounds(base, self._reaches)
        self._least: list[list[float]] = [[*map(sub, one.alive, one.saved)] for one in self._bounds]
        """For each step the bytes that regions which end with it need at the least, as far as is known."""
        self.reached = 0

    @property
    def peak(self) -> int:
        """The most that any step has alive as it is."""
        return max(self.base.live, default=0)

    def is_barrier(self, index: int) -> bool:
        """Tell whether no region goes on behind a step: none can hold it, or it brings all rows together."""
        sink = self.base.sink(index, 1)
        return self._barriers[index] or (sink is not None and sink[1].reduces)

    def _barrier(self, index: int) -> bool:
        """Tell whether no region can hold a step."""
        step = self.base.steps[index]
        if self.base.result[index] is None:
            return True
        rank = step.outputs[0].rank
        axes = {axis for axis in range(rank) if step.outputs[0].dims[axis] > 1}
        sinks = any(self.base.sink(index, mode) is not None for mode in (1, WIDTH))
        return not sinks and all(self.base.map(index, axis) is None for axis in axes)

    def _reached(self) -> list[int]:
        """Count for each step the most steps of a region that ends with it."""
        reaches, run = [], 0
        for barrier in self._barriers:
            run = 0 if barrier else min(run + 1, LONGEST)
            reaches.append(run)
        return reaches

    @property
    def bounded(self) -> bool:
        """Whether some regions were left out, since they would have been too much work."""
        return any(grower.cut_short for grower in self._growers.values())

    def _regions(self, first: int, last: int, mode: int, limit: int) -> list[FusedRegion]:
        key = last, mode
        grower = self._growers.get(key)
        if grower is None:
            grower = self._growers[key] = RegionGrower(self.base, last, mode, self._share, self._bounds[last])
        return grower.regions(first, limit)

    def cheapest(self, first: int, last: int, limit: int, below: float = inf) -> RegionChoice | None:
        """Find the cheapest tiles of a region that stay within a limit and cost less than a number."""
        best: RegionChoice | None = None
        if last - first >= self._reaches[last]:
            return None
        check()
        none = True
        for mode in self._modes[last]:
            for found in self._regions(first, last, mode, limit):
                none = False
                for choice in self._choices(found, limit, below):
                    if choice.cost < below:
                        best, below = choice, choice.cost
        if none:
            known = (self._growers[last, mode].least(first) for mode in self._modes[last])
            self._least[last][last - first] = min(known)
        return best

    def _choices(self, found: FusedRegion, limit: int, below: float) -> Iterator[RegionChoice]:
        """Yield tiles of a region that stay within a limit, but for some that cost no less than a number."""
        # Threads share the steps of a tile, or each takes another tile.
        for lanes in (1, self.threads) if self.threads > 1 and found.regular else (1,):
            fewest = -(-(self.threads if lanes == 1 else 1) // found.grain) * found.grain
            rows = found.rows(limit, lanes)
            if rows < fewest or (not found.regular and rows * MOST_UNROLLED < found.height):
                continue
            for even in found.even_rows(rows, fewest):
                # There are no fewer tiles than with a first one that is as long as the others.
                if lanes == 1 and found.nanoseconds(even, even) + _A_REGION >= below:
                    continue
                choice = RegionChoice(found, even, found.start(limit, even), lanes)
                if found.tile_count(even, choice.start) > 1:
                    yield choice

    def solve(self, limit: int) -> list[RegionChoice] | None:
        """Choose the cheapest regions with which no step has more than `limit` bytes alive; None if there are none."""

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
        """Add up the time that a choice takes more, with what is spent already."""
        return self.spent + sum(choice.nanoseconds for choice in chosen)

    def affordable(self, chosen: list[RegionChoice] | None, limit: int, budget: Budget) -> bool:
        """Tell whether a choice keeps to a budget."""
        if chosen is None or self.cost(chosen) > budget.slower * self.time:
            return False
        return not budget.small_program or self.is_small(chosen, self.peak - limit)

    @staticmethod
    def is_small(chosen: list[RegionChoice], saved: int) -> bool:
        """Tell whether a program grows by little beside the scratch that is saved."""
        return sum(choice.table_bytes for choice in chosen) <= TABLE_SHARE * max(0, saved)

    def bargain(self, least: int, budget: Budget) -> tuple[int, list[RegionChoice]] | None:
        """Find the least limit from `least` on whose program is small enough, which not every larger limit's is."""
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
        """Find the least limit that the time of a budget allows, and its choice; None if none is below `below`."""
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
    """Divide work among reaches: each gets what it needs, or else the share that all the others get too.

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
    """Tell whether an image has so few rows that tiles of its columns are better."""
    dims = step.outputs[0].dims
    source = step.inputs[0].dims if step.inputs and step.inputs[0] is not None else ()
    return any(len(image) == 4 and image[2] >= 2 * image[1] for image in (dims, source))
