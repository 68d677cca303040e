"""The choice of fused regions and of the rows of their tiles: exact for a limit, bounded by steps and not by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from operator import sub

from isthmus.prepare.schedule import Step
from isthmus.prepare.tiling.fused_region import BYTES_A_STEP, MAX_UNROLLED, MAX_WON, NANOSECONDS_A_STEP, FusedRegion
from isthmus.prepare.tiling.lower_bounds import lower_bounds
from isthmus.prepare.tiling.region_grower import RegionGrower
from isthmus.prepare.tiling.region_path import cheapest_regions, least_limit
from isthmus.prepare.tiling.step_table import WIDTH, StepTable
from isthmus.system.shield import check

MAX_REGION_STEPS = 90
"""The maximum number of steps in a region."""
TABLE_SHARE = 0.09
"""The maximum growth of a program, as a fraction of the scratch that tiles save."""
_FINEST = 100
_BARGAINS, _MIN_RATIO = 32, 1.02
"""How many limits are tried to find a program that is small enough, and the minimum ratio between successive limits."""
_BETTER = 50
MAX_GROWTH, MIN_SHARE = 8_000, 16
"""The total number of steps by which regions may grow in one search, and the number guaranteed to the regions with the
same end. In models with more steps, the length of a region is limited to its share.
"""
_A_REGION, _A_BYTE = 200.0, 0.05


@dataclass(frozen=True)
class RegionChoice:
    """A region with the rows of its tiles, the end of the first tile, and the number of threads that compute tiles at
    once.
    """

    region: FusedRegion
    rows: int
    start: int
    arenas: int = 1

    @cached_property
    def nanoseconds(self) -> float:
        """The extra time compared with whole steps."""
        return self.region.nanoseconds(self.rows, self.start, self.arenas)

    @cached_property
    def cost(self) -> float:
        """The cost for comparing choices: time, plus a small term for the size of the program."""
        return self.nanoseconds + _A_REGION + _A_BYTE * self.table_bytes

    @property
    def table_bytes(self) -> int:
        """The bytes by which the program grows."""
        whole = self.region.last - self.region.first + 1
        return BYTES_A_STEP * (self.region.instruction_count(self.rows, self.start) - whole)


@dataclass(frozen=True)
class Budget:
    """Allowed costs of using less memory: a fraction of the model's time, and whether the program must stay small."""

    slower: float
    small_program: bool = True


class RegionSearch:
    """The search over one arrangement of steps.

    Parameters
    ----------
    kind
        The kind of order of its steps.
    spent
        Time already spent on rematerialization.
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
            MAX_GROWTH, [reach for reach, modes in zip(self._reaches, self._modes, strict=True) for _ in modes]
        )
        self._bounds = lower_bounds(base, self._reaches)
        self._least: list[list[float]] = [[*map(sub, one.alive, one.saved)] for one in self._bounds]
        """For each step, the minimum bytes of each region that ends with it, as far as is known."""
        self.reached = 0

    @property
    def peak(self) -> int:
        """The maximum of live bytes of any untiled step."""
        return max(self.base.live, default=0)

    def is_barrier(self, index: int) -> bool:
        """Return whether regions end at a step: none can contain it, or it reduces all rows."""
        sink = self.base.sink(index, 1)
        return self._barriers[index] or (sink is not None and sink[1].reduces)

    def _barrier(self, index: int) -> bool:
        """Return whether no region can contain a step."""
        step = self.base.steps[index]
        if self.base.result[index] is None:
            return True
        rank = step.outputs[0].rank
        axes = {axis for axis in range(rank) if step.outputs[0].dims[axis] > 1}
        sinks = any(self.base.sink(index, mode) is not None for mode in (1, WIDTH))
        return not sinks and all(self.base.map(index, axis) is None for axis in axes)

    def _reached(self) -> list[int]:
        """Count for each step the maximum number of steps of a region that ends with it."""
        reaches, run = [], 0
        for barrier in self._barriers:
            run = 0 if barrier else min(run + 1, MAX_REGION_STEPS)
            reaches.append(run)
        return reaches

    @property
    def bounded(self) -> bool:
        """Whether some regions were skipped because they would have been too much work."""
        return any(grower.cut_short for grower in self._growers.values())

    def _regions(self, first: int, last: int, mode: int, limit: int) -> list[FusedRegion]:
        key = last, mode
        grower = self._growers.get(key)
        if grower is None:
            grower = self._growers[key] = RegionGrower(self.base, last, mode, self._share, self._bounds[last])
        return grower.regions(first, limit)

    def cheapest(self, first: int, last: int, limit: int, below: float = inf) -> RegionChoice | None:
        """Find the cheapest tiles of a region that are within a limit and cost less than `below`."""
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
        """Yield tiles of a region that are within a limit, skipping some that cost at least `below`."""
        # Either threads share the steps of a tile, or each computes a different tile.
        for arenas in (1, self.threads) if self.threads > 1 and found.regular else (1,):
            fewest = -(-(self.threads if arenas == 1 else 1) // found.grain) * found.grain
            rows = found.rows(limit, arenas)
            if rows < fewest or (not found.regular and rows * MAX_UNROLLED < found.height):
                continue
            for even in found.even_rows(rows, fewest):
                # A first tile that is as long as the others gives the fewest tiles, so this is a lower bound.
                if arenas == 1 and found.nanoseconds(even, even) + _A_REGION >= below:
                    continue
                choice = RegionChoice(found, even, found.start(limit, even), arenas)
                if found.tile_count(even, choice.start) > 1:
                    yield choice

    def solve(self, limit: int) -> list[RegionChoice] | None:
        """Choose the cheapest regions that keep every step within `limit` live bytes; None if there are none."""

        def firsts(last: int, hot: int) -> Iterator[int]:
            least = self._least[last]
            return (n for n in range(hot, last - self._reaches[last], -1) if least[last - n] <= limit)

        def choose(first: int, last: int, below: float) -> tuple[float, RegionChoice] | None:
            # With two tiles, each step takes at least one more instruction, and not all of that cost is regained.
            # Pipelining on several threads may gain more.
            least_cost = _A_REGION + (last - first + 1) * NANOSECONDS_A_STEP * (1 - MAX_WON)
            if self.threads == 1 and least_cost >= below:
                return None
            choice = self.cheapest(first, last, limit, below)
            return None if choice is None else (choice.cost, choice)

        chosen, self.reached = cheapest_regions(self.base.live, limit, firsts, choose)
        return chosen

    def cost(self, chosen: list[RegionChoice]) -> float:
        """Return the extra time of a choice, including the time spent on rematerialization."""
        return self.spent + sum(choice.nanoseconds for choice in chosen)

    def affordable(self, chosen: list[RegionChoice] | None, limit: int, budget: Budget) -> bool:
        """Return whether a choice is within a budget."""
        if chosen is None or self.cost(chosen) > budget.slower * self.time:
            return False
        return not budget.small_program or self.is_small(chosen, self.peak - limit)

    @staticmethod
    def is_small(chosen: list[RegionChoice], saved: int) -> bool:
        """Return whether a program grows little compared with the scratch saved."""
        return sum(choice.table_bytes for choice in chosen) <= TABLE_SHARE * max(0, saved)

    def bargain(self, least: int, budget: Budget) -> tuple[int, list[RegionChoice]] | None:
        """Find the smallest limit above `least` whose program is small enough; a larger limit may have a larger
        program.
        """
        step = max((self.peak / max(least, 1)) ** (1 / _BARGAINS), _MIN_RATIO)
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
        """Find the smallest limit within the time of a budget, and its choice; None if none is below `below`."""
        budget = replace(budget, small_program=False)
        best: tuple[int, list[RegionChoice] | None] = self.peak, None
        if below is not None:
            # Another order has already reached `below`; one that does no better is detected quickly.
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
    """Divide work among regions of given lengths: return the largest length that each may have.

    Examples
    --------
    >>> share_of(100, [3, 90, 90]), share_of(10, [4, 5]), share_of(10, [30] * 10)
    (48, 90, 16)
    """
    left = work
    for done, reach in enumerate(sorted(reaches)):
        share = left // (len(reaches) - done)
        if share < reach:
            return max(share, MIN_SHARE)
        left -= reach
    return MAX_REGION_STEPS


def _is_wide(step: Step) -> bool:
    """Return whether an image has so few rows that tiling its columns is better."""
    dims = step.outputs[0].dims
    source = step.inputs[0].dims if step.inputs and step.inputs[0] is not None else ()
    return any(len(image) == 4 and image[2] >= 2 * image[1] for image in (dims, source))
