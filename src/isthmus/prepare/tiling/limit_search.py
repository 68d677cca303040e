"""The search for a schedule within a limit: which choices are tried, in what order, and when to give up."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log

from isthmus.prepare.schedule import Schedule
from isthmus.prepare.tiling.candidate import Candidate, Fitted, written
from isthmus.prepare.tiling.search import RegionChoice, RegionSearch

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

Chosen = tuple[Candidate, RegionSearch, list[RegionChoice]]
"""Fused regions, with the candidate and the search that they come from."""


class LimitSearch:
    """Schedules of some candidates for different limits.

    The limits tried belong to a fixed series. So a schedule that is found for a limit is also found for any larger one.
    A limit of the series is an estimate: the schedule chosen for it may need more or fewer bytes.

    Parameters
    ----------
    candidates
        The candidates, available as `places`.
    unsplit
        The bytes of scratch with whole tensors, where the series begins.
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
            if self._chosen(number) is None:
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
            missing = missing + 1 if self._chosen(number) is None else 0
            number += 1
        return None

    def widely(self, limit: int) -> Fitted | None:
        """Find a schedule within a limit that was estimated at far more, as can happen with small tensors."""
        number, steps = self._number(int(limit * ABOVE) + self._slack) - 1, 0
        while number > 0 and steps < WIDELY:
            known = len(self._fitted)
            fitted = self._at(number)
            if fitted is not None and fitted.bytes <= limit:
                return fitted
            if len(self._fitted) > known:
                steps += self._steps if fitted is None else len(fitted.schedule.steps)
            number -= 1
        return None

    def least(self, lowest: int, slower: float) -> Schedule | None:
        """Find the first schedule for at least `lowest` bytes that costs no more than allowed."""
        for number in range(self._number(lowest), 0, -1):
            chosen, fitted = self._chosen(number), self._at(number)
            if chosen is None or fitted is None or fitted.bytes >= self._unsplit:
                continue
            _, search, choices = chosen
            if fitted.is_within(slower, search.time) and search.is_small(choices, self._unsplit - fitted.bytes):
                return fitted.schedule
        return None

    def needed(self, lowest: int) -> int:
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
        """Return the schedule that was estimated at `bytes_`."""
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

    def _chosen(self, number: int) -> Chosen | None:
        """Find the cheapest choice for the limit at an index of the series."""
        if number not in self._choices:
            self._choices[number] = _cheapest(self.places, self._target(number))
        return self._choices[number]

    def _at(self, number: int) -> Fitted | None:
        """Write the schedule of that choice; None if there is no choice or one of its tiles would read nothing."""
        chosen = self._chosen(number)
        if chosen is None:
            return None
        candidate, search, choices = chosen
        key = candidate, search, *((id(one.region), one.rows, one.start, one.arenas) for one in choices)
        if key not in self._fitted:
            self._fitted[key] = written(*chosen)
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
