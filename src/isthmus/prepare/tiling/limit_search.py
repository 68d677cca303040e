"""The search for a schedule within a limit: which choices are tried, in what order, and when to give up.

A candidate is a rewritten graph, possibly with rematerialized tensors, and a search for each step order. A choice is
written and placed in memory here, since only then is its scratch size known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log

from isthmus.prepare.planner import Planner
from isthmus.prepare.schedule import Schedule
from isthmus.prepare.tiling.orders import ORDERS
from isthmus.prepare.tiling.rematerialize import Remat, affordable, candidates, compute_again
from isthmus.prepare.tiling.search import RegionChoice, RegionSearch
from isthmus.prepare.tiling.step_table import StepTable, profile
from isthmus.prepare.tiling.write import write
from isthmus.prepare.work import Work

ATTEMPTS = 4
"""How often a limit is tightened if a plan is larger than estimated, before all other limits are tried."""
FINENESS, ABOVE, SLACK, GIVE_UP = 0.98, 1.25, 8, 3
"""Limits are tried in a geometric series with ratio FINENESS. It starts at ABOVE times the wanted limit plus SLACK
units of alignment, since a plan may be smaller than estimated. It ends when GIVE_UP successive limits have no
choice.
"""
WIDELY = 1_500
"""The total number of steps to write while trying choices that were estimated at far more than a limit."""
CHEAP = 0.02
"""If a choice costs less than this fraction of the model's time, no cheaper one is searched."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A rewritten graph with a search for each order of its steps, and its rematerialized tensors.

    - `planner`, `work`: the planner of the graph, and the rewritten graph.
    - `searches`: the searches; the first is for the order with the fewest live bytes.
    - `remats`: the tensors that are computed again.
    """

    planner: Planner
    work: Work
    searches: list[RegionSearch]
    remats: tuple[Remat, ...] = ()


@dataclass(frozen=True)
class Fitted:
    """A tiled schedule, and its estimated extra time compared with whole tensors, in nanoseconds."""

    schedule: Schedule
    nanoseconds: float

    @property
    def bytes(self) -> int:
        """The bytes of its scratch."""
        return self.schedule.scratch_bytes

    def share(self, time: float) -> float:
        """Return the extra time as a fraction of the model's time."""
        return max(0.0, self.nanoseconds) / time

    def is_within(self, slower: float | None, time: float) -> bool:
        """Return whether the extra time is at most a fraction `slower` of the model's time."""
        return slower is None or self.share(time) <= slower


def candidate_of(planner: Planner, work: Work, remats: tuple[Remat, ...] = ()) -> Candidate:
    """Set up the searches of a rewritten graph: one for each distinct order."""
    searches: list[RegionSearch] = []
    seen: list[list[tuple[str, str]]] = []
    for kind in ORDERS:
        # `profile` writes results in place, which changes the storage; so it gets an arrangement of its own.
        arrangement, twin = planner.arrange(work, kind), planner.arrange(work, kind)
        if arrangement is None or twin is None:
            continue
        names = [(step.op, step.name) for step in arrangement.steps]
        if names in seen:
            continue
        seen.append(names)
        base = StepTable(arrangement, *profile(twin, planner), planner)
        searches.append(RegionSearch(base, kind, sum(one.nanoseconds for one in remats)))
    return Candidate(planner, work, searches, remats)


def again_at(plain: Candidate, nanoseconds: float, than: tuple[Remat, ...]) -> list[Candidate]:
    """Return a list of one candidate, which rematerializes as many tensors as `nanoseconds` allow.

    The list is empty if these are the tensors `than`.
    """
    chosen = tuple(affordable(candidates(plain.searches[0]), nanoseconds))
    if chosen == than:
        return []
    work = plain.planner.rewrite()
    compute_again(work, chosen)
    return [candidate_of(plain.planner, work, chosen)]


def is_bounded(candidates: Sequence[Candidate]) -> bool:
    """Return whether a search skipped regions because they would have been too much work."""
    return any(search.bounded for candidate in candidates for search in candidate.searches)


def write_choice(candidate: Candidate, search: RegionSearch, chosen: list[RegionChoice]) -> Fitted | None:
    """Write the chosen fused regions as tiles, and place the result in memory; None if a tile would read nothing."""
    planner = candidate.planner
    arrangement = planner.arrange(candidate.work, search.kind)
    assert arrangement is not None
    tiled = write(StepTable(arrangement, search.base.live, search.base.work, planner), chosen, candidate.work.native)
    if tiled is None:
        return None
    arrangement = replace(arrangement, steps=tiled.steps, overlaid=tiled.overlaid, alike=tiled.alike)
    schedule = planner.place(arrangement, tiled.repeats, tiled.regions)
    names = tuple(one.chain[-1] for one in candidate.remats)
    schedule = replace(schedule, plan=replace(schedule.statistics, rematerialized=names)) if names else schedule
    return Fitted(schedule, search.cost(chosen))


Chosen = tuple[Candidate, RegionSearch, list[RegionChoice]]
"""Fused regions, with the candidate and the search that they come from."""


class LimitSearch:
    """Schedules of some candidates for different limits.

    The limits tried belong to a fixed series. So a schedule that is found for a limit is also found for any larger one.
    A limit of the series is an estimate: the schedule chosen for it may need more or fewer bytes.

    - `candidates`: the candidates; the attribute is `places`.
    - `unsplit`: the bytes of scratch with whole tensors, where the series begins.
    """

    def __init__(self, candidates: Sequence[Candidate], unsplit: int) -> None:
        self.places = list(candidates)
        self._unsplit = unsplit
        self._slack = SLACK * self.places[0].planner.engine.alignment
        self._steps = len(self.places[0].searches[0].base.steps)
        # The choice for each limit, by its index in the series; None if there is none.
        self._choices: dict[int, Chosen | None] = {}
        # The schedule of each choice; neighbouring limits often have the same choice.
        self._fitted: dict[tuple[object, ...], Fitted | None] = {}

    def quickly(self, limit: int) -> Fitted | None:
        """Find a schedule within a limit in a few attempts."""
        number = self._number(limit)
        for _ in range(ATTEMPTS):
            if self._choice_at(number) is None:
                break
            fitted = self._at(number)
            if fitted is not None and fitted.bytes <= limit:
                return fitted
            over = 0 if fitted is None else fitted.bytes - limit
            number = max(number + 1, self._number(max(self._target(number) - over, 0)))
        return None

    def thoroughly(self, limit: int) -> Fitted | None:
        """Find a schedule within a limit among all choices estimated at about `limit` bytes."""
        number, missing = self._number(int(limit * ABOVE) + self._slack), 0
        while missing < GIVE_UP and self._target(number):
            fitted = self._at(number)
            if fitted is not None and fitted.bytes <= limit:
                return fitted
            missing = missing + 1 if self._choice_at(number) is None else 0
            number += 1
        return None

    def widely(self, limit: int) -> Fitted | None:
        """Find a schedule within a limit that was estimated at far more, as can happen with small tensors."""
        number, steps = self._number(int(limit * ABOVE) + self._slack) - 1, 0
        while number > 0 and steps < WIDELY:
            before = len(self._fitted)
            fitted = self._at(number)
            if fitted is not None and fitted.bytes <= limit:
                return fitted
            if len(self._fitted) > before:
                steps += self._steps if fitted is None else len(fitted.schedule.steps)
            number -= 1
        return None

    def least(self, lowest: int, slower: float) -> Schedule | None:
        """Find the schedule for the smallest limit from `lowest` on that saves scratch at an acceptable cost.

        It costs at most a fraction `slower` of the model's time, and its program grows little.
        """
        for number in range(self._number(lowest), 0, -1):
            chosen, fitted = self._choice_at(number), self._at(number)
            if chosen is None or fitted is None or fitted.bytes >= self._unsplit:
                continue
            _, search, choices = chosen
            if fitted.is_within(slower, search.time) and search.is_small(choices, self._unsplit - fitted.bytes):
                return fitted.schedule
        return None

    def bytes_needed(self, lowest: int) -> int:
        """Return approximately the smallest limit of at least `lowest` bytes for which there is a schedule."""
        number = self._number(lowest)
        while number:
            fitted = self._at(number)
            if fitted is not None and fitted.bytes < self._unsplit:
                return max(fitted.bytes, ceil((self._target(number) - self._slack) / ABOVE))
            number -= 1
        return self._unsplit

    def fewest(self, bytes_: int) -> int:
        """Return the smallest limit for which there is a schedule, given that there is one for `bytes_`."""
        smallest = min([bytes_, *(fitted.bytes for fitted in self._fitted.values() if fitted is not None)])
        while (fitted := self.thoroughly(smallest - 1) or self.widely(smallest - 1)) is not None:
            smallest = fitted.bytes
        return smallest

    def at(self, bytes_: int) -> Fitted | None:
        """Return the schedule for the largest limit of the series that is at most `bytes_`, if there is one."""
        return self._at(self._number(bytes_))

    def _target(self, number: int) -> int:
        """Return the limit at an index of the series."""
        return int(self._unsplit * FINENESS**number)

    def _number(self, bytes_: int) -> int:
        """Return the index in the series of the largest limit that is at most `bytes_`."""
        number = max(0, floor(log(max(bytes_, 1) / self._unsplit) / log(FINENESS)))
        while self._target(number) > bytes_:
            number += 1
        return number

    def _choice_at(self, number: int) -> Chosen | None:
        """Find the cheapest choice for the limit at an index of the series."""
        if number not in self._choices:
            self._choices[number] = _cheapest(self.places, self._target(number))
        return self._choices[number]

    def _at(self, number: int) -> Fitted | None:
        """Write the schedule of ``_choice_at(number)``; None without a choice, or if a tile would read nothing."""
        chosen = self._choice_at(number)
        if chosen is None:
            return None
        candidate, search, choices = chosen
        key = candidate, search, *((id(one.region), one.rows, one.start, one.arenas) for one in choices)
        if key not in self._fitted:
            self._fitted[key] = write_choice(*chosen)
        return self._fitted[key]


def _cheapest(candidates: Sequence[Candidate], limit: int) -> Chosen | None:
    """Find the cheapest choice that is estimated within a limit, or the first that is cheap enough."""
    best: tuple[float, Candidate, RegionSearch, list[RegionChoice]] | None = None
    for candidate in candidates:
        for search in candidate.searches:
            chosen = search.solve(limit)
            if chosen is not None and (best is None or search.cost(chosen) < best[0]):
                best = search.cost(chosen), candidate, search, chosen
            if best is not None and best[0] <= CHEAP * search.time:
                return best[1:]
    return None if best is None else best[1:]
