"""The choice of fused regions and of the rows of their tiles: exact for a limit, bounded by steps and not by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from operator import sub

from isthmus.prepare.schedule import Step
from isthmus.prepare.tiling.fused_region import BYTES_A_STEP, MAX_UNROLLED, MAX_WON, NANOSECONDS_A_STEP, FusedRegion
from isthmus.prepare.tiling.region_grower import RegionGrower, lower_bounds
from isthmus.prepare.tiling.region_path import cheapest_regions, least_limit
from isthmus.prepare.tiling.step_table import WIDTH, StepTable
from isthmus.system.shield import check as check_interrupted

MAX_REGION_STEPS = 90
"""The maximum number of steps in a region."""
TABLE_SHARE = 0.09
"""The maximum growth of a program, as a fraction of the scratch that tiles save."""
# The least limit is searched with a precision of 1 / this of the best limit so far.
_FINEST = 100
# How many limits are tried to find a program that is small enough, and the minimum ratio between successive limits.
_BARGAINS, _MIN_RATIO = 32, 1.02
# Another order of the steps must need less by at least 1 / this to be of interest.
_BETTER = 50
MAX_GROWTH, MIN_SHARE = 8_000, 16
"""The total number of steps by which regions may grow in one search, and the number guaranteed to the regions with the
same end. In models with more steps, the length of a region is limited to its share.
"""
# The cost of a region and of a byte of the program, in nanoseconds, when choices are compared.
_A_REGION, _A_BYTE = 200.0, 0.05


@dataclass(frozen=True)
class RegionChoice:
    """A region and its tiles.

    - `region`, `rows`: the region, and the rows of a tile, in rows of the reference tensor.
    - `start`: the row at which the first tile ends.
    - `arenas`: the number of threads that compute a tile each at once; 1 if all threads share the steps of one tile.
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
        untiled_count = self.region.last - self.region.first + 1
        return BYTES_A_STEP * (self.region.instruction_count(self.rows, self.start) - untiled_count)


@dataclass(frozen=True)
class Budget:
    """Allowed costs of using less memory.

    - `slower`: the extra time, as a fraction of the model's time.
    - `small_program`: whether the program may grow only by `TABLE_SHARE` of the scratch saved.
    """

    slower: float
    small_program: bool = True


class RegionSearch:
    """The search over one arrangement of steps.

    Tiles of a region are cut along an image axis, the `mode` of the region: 1, or `WIDTH` for wide images.

    - `base`: the steps with their data.
    - `kind`: the kind of order of its steps.
    - `spent`: time already spent on rematerialization.
    - `time`: the time of the model without tiles and rematerialization, in nanoseconds.
    - `reached`: how many steps from the beginning could be computed within the limit of the latest `solve`.
    """

    def __init__(self, base: StepTable, kind: str, spent: float = 0.0) -> None:
        self.base = base
        self.kind = kind
        self.spent = spent
        self.threads = base.engine.threads
        self.time = float(base.together.sum()) - spent
        # The regions that end with a step, by that step and the mode.
        self._growers: dict[tuple[int, int], RegionGrower] = {}
        self._modes = [(1, WIDTH) if _is_wide(step) else (1,) for step in base.steps]
        self._barriers = [self._barrier(index) for index in range(len(base.steps))]
        self._reaches = self._count_reaches()
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

    def _count_reaches(self) -> list[int]:
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
        """List the regions of these steps that are within a limit: without an overlay, and with one."""
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
        check_interrupted()
        has_region = False
        for mode in self._modes[last]:
            for region in self._regions(first, last, mode, limit):
                has_region = True
                for choice in self._choices(region, limit, below):
                    if choice.cost < below:
                        best, below = choice, choice.cost
        if not has_region:
            # Remember what these regions need, so that they are not tried again for such a limit.
            least = (self._growers[last, mode].least(first) for mode in self._modes[last])
            self._least[last][last - first] = min(least)
        return best

    def _choices(self, region: FusedRegion, limit: int, below: float) -> Iterator[RegionChoice]:
        """Yield tiles of a region that are within a limit, skipping some that cost at least `below`."""
        # Either threads share the steps of a tile, or each computes a different tile.
        for arenas in (1, self.threads) if self.threads > 1 and region.regular else (1,):
            # Threads that share a step of a tile need at least one row each.
            fewest = -(-(self.threads if arenas == 1 else 1) // region.grain) * region.grain
            rows = region.rows(limit, arenas)
            if rows < fewest or (not region.regular and rows * MAX_UNROLLED < region.height):
                continue
            for even in region.even_rows(rows, fewest):
                # A first tile that is as long as the others gives the fewest tiles, so this is a lower bound.
                if arenas == 1 and region.nanoseconds(even, even) + _A_REGION >= below:
                    continue
                choice = RegionChoice(region, even, region.start(limit, even), arenas)
                if region.tile_count(even, choice.start) > 1:
                    yield choice

    def solve(self, limit: int) -> list[RegionChoice] | None:
        """Choose the cheapest regions that keep every step within `limit` live bytes; None if there are none."""

        def firsts(last: int, hot: int) -> Iterator[int]:
            """Yield the first steps of regions that contain `hot`, a step above the limit, and may meet the limit."""
            least = self._least[last]
            return (n for n in range(hot, last - self._reaches[last], -1) if least[last - n] <= limit)

        def choose(first: int, last: int, below: float) -> tuple[float, RegionChoice] | None:
            """Return the cheapest tiles of a region with their cost, if that is less than `below`."""
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
        """Return whether a choice for a limit is within a budget."""
        if chosen is None or self.cost(chosen) > budget.slower * self.time:
            return False
        return not budget.small_program or self.is_small(chosen, self.peak - limit)

    @staticmethod
    def is_small(chosen: list[RegionChoice], saved: int) -> bool:
        """Return whether a program grows little compared with the scratch saved."""
        return sum(choice.table_bytes for choice in chosen) <= TABLE_SHARE * max(0, saved)

    def bargain(self, least: int, budget: Budget) -> tuple[int, list[RegionChoice]] | None:
        """Find the smallest limit above `least` with a small program; a larger limit may have a larger one."""
        ratio = max((self.peak / max(least, 1)) ** (1 / _BARGAINS), _MIN_RATIO)
        low, high = least, least
        first_success: tuple[int, list[RegionChoice]] | None = None
        while first_success is None:
            low, high = high, max(int(high * ratio), high + self.base.alignment)
            if high >= self.peak:
                return None
            first_success = self._attempt(high, budget)
        return least_limit(
            low, first_success, lambda best: self.base.alignment, lambda limit: self._attempt(limit, budget)
        )

    def _attempt(self, limit: int, budget: Budget) -> tuple[int, list[RegionChoice]] | None:
        """Return a limit with its choice, if there is one within the budget."""
        chosen = self.solve(limit)
        return (limit, chosen) if chosen is not None and self.affordable(chosen, limit, budget) else None

    def least(self, budget: Budget, below: int | None = None) -> tuple[int, list[RegionChoice]] | None:
        """Find the smallest limit within the time of a budget, and its choice; None if none is below `below`."""
        budget = replace(budget, small_program=False)
        best: tuple[int, list[RegionChoice] | None] = self.peak, None
        if below is not None:
            # Another order has already reached `below`; one that does no better is detected quickly.
            better = self._attempt(below - below // _BETTER, budget)
            if better is None:
                return None
            best = better
        # Steps that no region can contain stay whole, so no limit below these is possible.
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
    work_left = work
    for done, reach in enumerate(sorted(reaches)):
        share = work_left // (len(reaches) - done)
        if share < reach:
            return max(share, MIN_SHARE)
        work_left -= reach
    return MAX_REGION_STEPS


def _is_wide(step: Step) -> bool:
    """Return whether an image has so few rows that tiling its columns is better."""
    dims = step.outputs[0].dims
    source = step.inputs[0].dims if step.inputs and step.inputs[0] is not None else ()
    return any(len(image) == 4 and image[2] >= 2 * image[1] for image in (dims, source))
