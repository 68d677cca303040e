"""Candidates for tiling: a rewritten graph, possibly with rematerialized tensors, and a search for each step order.

A choice is also written and placed in memory here, since only then is its scratch size known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from isthmus.prepare.planner import Planner
from isthmus.prepare.schedule import Schedule
from isthmus.prepare.tiling.orders import ORDERS
from isthmus.prepare.tiling.rematerialize import Remat, affordable, candidates, compute_again
from isthmus.prepare.tiling.search import RegionChoice, RegionSearch
from isthmus.prepare.tiling.step_table import StepTable, profile
from isthmus.prepare.tiling.write import write
from isthmus.prepare.work import Work


@dataclass(frozen=True, eq=False)
class Candidate:
    """A rewritten graph with a search for each order of its steps, and its rematerialized tensors.

    Parameters
    ----------
    planner, work
        The planner of the graph, and the rewritten graph.
    searches
        The searches; the first is for the order with the fewest live bytes.
    remats
        The tensors that are computed again.
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
    """Set up the candidate that rematerializes what a time allows, unless that equals `than`.

    Return a list with this candidate, or an empty one.
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


def written(candidate: Candidate, search: RegionSearch, chosen: list[RegionChoice]) -> Fitted | None:
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
