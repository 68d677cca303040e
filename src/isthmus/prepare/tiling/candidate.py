"""Where strips are looked for: a graph, maybe with some tensors computed again, in each order of its steps.

What is chosen there is written here, and placed in memory: only then is it known what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from isthmus.prepare.schedule import Region, Repeat, Schedule
from isthmus.prepare.storage import Block
from isthmus.prepare.tiling.orders import ORDERS
from isthmus.prepare.tiling.region_steps import Native
from isthmus.prepare.tiling.rematerialize import Remat, affordable, candidates
from isthmus.prepare.tiling.search import RegionChoice, RegionSearch
from isthmus.prepare.tiling.step_table import Arranged, Engine, StepTable, profile
from isthmus.prepare.tiling.write import write


@dataclass(frozen=True)
class Replanner:
    """What fitting works with: ways to arrange the steps of a graph, and to place an arrangement in memory.

    Parameters
    ----------
    again
        The same graph with some tensors computed again.
    arrange
        The steps in an order of `ORDERS`, in storage of their own each time; None where there is no such order.
    place
        The schedule of an arrangement with repeats and regions.
    planned
        Whether a block lies in scratch.
    """

    name: str
    again: Callable[[Sequence[Remat]], Replanner]
    arrange: Callable[[str], Arranged | None]
    place: Callable[[Arranged, Sequence[Repeat], Sequence[Region]], Schedule]
    native: Native
    engine: Engine
    alignment: int
    planned: Callable[[Block], bool]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A site, the searches of its orders, and what is computed again there."""

    site: Replanner
    searches: list[RegionSearch]
    again: tuple[Remat, ...] = ()


@dataclass(frozen=True)
class Fitted:
    """A schedule by strips, and the time that it takes more, by estimate."""

    schedule: Schedule
    nanoseconds: float

    @property
    def bytes(self) -> int:
        """Its scratch."""
        return self.schedule.scratch_bytes

    def share(self, time: float) -> float:
        """How much longer it takes than the model's time."""
        return max(0.0, self.nanoseconds) / time

    def is_within(self, slower: float | None, time: float) -> bool:
        """Whether it takes no more than it may."""
        return slower is None or self.share(time) <= slower


def place_of(site: Replanner) -> Candidate:
    """The place where nothing is computed again."""
    return Candidate(site, _searches(site, 0.0))


def again_at(plain: Candidate, nanoseconds: float, than: tuple[Remat, ...]) -> list[Candidate]:
    """The place with what a time allows to compute again, where there is something else `than` known."""
    chosen = tuple(affordable(candidates(plain.searches[0]), nanoseconds))
    if chosen == than:
        return []
    site = plain.site.again(chosen)
    return [Candidate(site, _searches(site, sum(one.nanoseconds for one in chosen)), chosen)]


def _searches(site: Replanner, spent: float) -> list[RegionSearch]:
    """A search for each order that differs from those before."""
    searches: list[RegionSearch] = []
    seen: list[list[tuple[str, str]]] = []
    for kind in ORDERS:
        arranged, twin = site.arrange(kind), site.arrange(kind)
        if arranged is None or twin is None:
            continue
        names = [(step.op, step.name) for step in arranged.steps]
        if names in seen:
            continue
        seen.append(names)
        live, work = profile(twin, site.engine, site.alignment, site.planned)
        base = StepTable(arranged, live, work, site.engine, site.alignment, site.planned)
        searches.append(RegionSearch(base, kind, spent))
    return searches


def is_bounded(places: Sequence[Candidate]) -> bool:
    """Whether some stretches would have been too much work to look at."""
    return any(search.bounded for place in places for search in place.searches)


def written(place: Candidate, search: RegionSearch, chosen: list[RegionChoice]) -> Fitted | None:
    """The schedule with the chosen stretches by strips."""
    site = place.site
    arranged = site.arrange(search.kind)
    assert arranged is not None
    base = StepTable(arranged, search.base.live, search.base.work, site.engine, site.alignment, site.planned)
    strips = write(base, chosen, site.native)
    if strips is None:
        return None
    arranged = replace(arranged, steps=strips.steps, overlaid=strips.overlaid, alike=strips.alike)
    made = site.place(arranged, strips.repeats, strips.regions)
    names = tuple(one.chain[-1] for one in place.again)
    made = replace(made, plan=replace(made.plan, again=names)) if names else made
    return Fitted(made, search.cost(chosen))
