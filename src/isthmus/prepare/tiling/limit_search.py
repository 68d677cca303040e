"""The schedules that limits come to in some places: which are tried, in what order, and when to give up."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log

from isthmus.prepare.schedule import Schedule
from isthmus.prepare.tiling.candidate import Candidate, Fitted, written
from isthmus.prepare.tiling.search import RegionChoice, RegionSearch

ATTEMPTS = 4
"""How often a limit is tightened where a plan has turned out larger than estimated, before all the others are tried."""
FINENESS, ABOVE, SLACK, GIVE_UP = 0.98, 1.25, 8, 3
"""Choices are looked for at bytes each of which is this part of the one before: from so much above a limit, and so many
units of alignment, since a plan may turn out smaller than estimated, down to where so many in a row have none."""
WIDELY = 1_500
"""Steps that are written in all when choices are tried that should take far more than a limit."""
CHEAP = 0.02
"""What a limit costs, as a part of the model's time, where no cheaper way is looked for."""

Chosen = tuple[Candidate, RegionSearch, list[RegionChoice]]


class LimitSearch:
    """The schedules of some places for limits.

    What is tried for a limit are choices for bytes of a fixed series. So whatever is found for a limit is found for any
    larger one.
    """

    def __init__(self, places: Sequence[Candidate], unsplit: int) -> None:
        self.places = list(places)
        self._unsplit = unsplit
        self._slack = SLACK * self.places[0].site.alignment
        self._steps = len(self.places[0].searches[0].base.steps)
        self._found: dict[int, Chosen | None] = {}
        self._made: dict[tuple[object, ...], Fitted | None] = {}

    def quickly(self, wanted: int) -> Fitted | None:
        """A schedule within a limit, where few attempts lead to it."""
        number = self._number(wanted)
        for _ in range(ATTEMPTS):
            if self._chosen(number) is None:
                break
            made = self._at(number)
            if made is not None and made.bytes <= wanted:
                return made
            over = 0 if made is None else made.bytes - wanted
            number = max(number + 1, self._number(max(self._target(number) - over, 0)))
        return None

    def thoroughly(self, wanted: int) -> Fitted | None:
        """A schedule within a limit, if there is one."""
        number, missing = self._number(int(wanted * ABOVE) + self._slack), 0
        while missing < GIVE_UP and self._target(number):
            made = self._at(number)
            if made is not None and made.bytes <= wanted:
                return made
            missing = missing + 1 if self._chosen(number) is None else 0
            number += 1
        return None

    def widely(self, wanted: int) -> Fitted | None:
        """A schedule within a limit that was estimated at far more than it takes, as it happens with small tensors."""
        number, steps = self._number(int(wanted * ABOVE) + self._slack) - 1, 0
        while number > 0 and steps < WIDELY:
            known = len(self._made)
            made = self._at(number)
            if made is not None and made.bytes <= wanted:
                return made
            if len(self._made) > known:
                steps += self._steps if made is None else len(made.schedule.steps)
            number -= 1
        return None

    def least(self, lowest: int, slower: float) -> Schedule | None:
        """The first schedule of those for at least so many bytes that is worth it: costs no more than it may."""
        for number in range(self._number(lowest), 0, -1):
            found, made = self._chosen(number), self._at(number)
            if found is None or made is None or made.bytes >= self._unsplit:
                continue
            _, search, choices = found
            if made.is_within(slower, search.time) and search.is_small(choices, self._unsplit - made.bytes):
                return made.schedule
        return None

    def needed(self, lowest: int) -> int:
        """A limit that there is a schedule for, about the least of at least so many bytes."""
        number = self._number(lowest)
        while number:
            made = self._at(number)
            if made is not None and made.bytes < self._unsplit:
                return max(made.bytes, ceil((self._target(number) - self._slack) / ABOVE))
            number -= 1
        return self._unsplit

    def fewest(self, bytes_: int) -> int:
        """The least limit that there is a schedule for, where there is one for so many bytes."""
        found = min([bytes_, *(made.bytes for made in self._made.values() if made is not None)])
        while (made := self.thoroughly(found - 1) or self.widely(found - 1)) is not None:
            found = made.bytes
        return found

    def at(self, bytes_: int) -> Fitted | None:
        """The schedule that was to take so many bytes."""
        return self._at(self._number(bytes_))

    def _target(self, number: int) -> int:
        """The bytes of a place in the series."""
        return int(self._unsplit * FINENESS**number)

    def _number(self, bytes_: int) -> int:
        """The place in the series of the most bytes up to a number."""
        number = max(0, floor(log(max(bytes_, 1) / self._unsplit) / log(FINENESS)))
        while self._target(number) > bytes_:
            number += 1
        return number

    def _chosen(self, number: int) -> Chosen | None:
        """The cheapest choice for the bytes of a place in the series."""
        if number not in self._found:
            self._found[number] = _cheapest(self.places, self._target(number))
        return self._found[number]

    def _at(self, number: int) -> Fitted | None:
        """The schedule of that choice; None also where a strip of it would read nothing."""
        found = self._chosen(number)
        if found is None:
            return None
        place, search, choices = found
        key = place, search, *((id(one.stretch), one.rows, one.start, one.lanes) for one in choices)
        if key not in self._made:
            self._made[key] = written(*found)
        return self._made[key]


def _cheapest(places: Sequence[Candidate], limit: int) -> Chosen | None:
    best: tuple[float, Candidate, RegionSearch, list[RegionChoice]] | None = None
    for place in places:
        for search in place.searches:
            chosen = search.solve(limit)
            if chosen is not None and (best is None or search.cost(chosen) < best[0]):
                best = search.cost(chosen), place, search, chosen
            if best is not None and best[0] <= CHEAP * search.time:
                return best[1:]
    return None if best is None else best[1:]
