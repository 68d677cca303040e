"""Schedules within a limit on scratch: the cheapest tiling that fits, the one with the least scratch, or an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from isthmus.errors import Code, DoesNotFit, QnnError
from isthmus.prepare.planner import Planner
from isthmus.prepare.schedule import Schedule
from isthmus.prepare.tiling.limit import MAX_SLOWER, SLOWER, ScratchLimit
from isthmus.prepare.tiling.limit_search import (
    Candidate,
    Fitted,
    LimitSearch,
    again_at,
    candidate_of,
    is_bounded,
    write_choice,
)
from isthmus.prepare.tiling.rematerialize import Remat
from isthmus.prepare.tiling.search import Budget, RegionChoice, RegionSearch

AGAIN = (0.05, 0.12, 0.3)
"""Time that rematerialization may cost to meet a limit, as fractions of the model's time, tried in this order."""
# If a plan is larger than estimated, _CLOSER more limits are tried, each 1 / _CLOSENESS larger than the last.
_CLOSER, _CLOSENESS = 3, 64
UNLIMITED = Budget(slower=float("inf"), small_program=False)
"""The budget of a search for the least scratch at any cost."""


def schedule_within(planner: Planner, limit: ScratchLimit) -> Schedule:
    """Plan a graph within a limit on scratch; what does not fit with whole tensors is computed in tiles.

    Raises
    ------
    QnnError
        COMMON_MEM_ALLOC if nothing fits, with the step that prevents it and the bytes missing.
    """
    if not planner.options.reuse_memory:
        rule = "memory that is never used again cannot be limited"
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"graph '{planner.graph.name}'", rule)
    work = planner.rewrite()
    arrangement = planner.arrange(work)
    assert arrangement is not None
    unsplit = planner.place(arrangement)
    most = limit.bytes_of(unsplit.scratch_bytes)
    if most is not None and most >= unsplit.scratch_bytes:
        return unsplit
    fit = _Fit(candidate_of(planner, work), unsplit, limit.slower)
    if most is None:
        schedule = fit.least(SLOWER if limit.slower is None else limit.slower)
    else:
        schedule = fit.within(most)
    return replace(schedule, plan=replace(schedule.statistics, bounded=True)) if is_bounded(fit.tried) else schedule


class _Fit:
    """The search for a schedule within a limit.

    - `plain`: the candidate that rematerializes nothing.
    - `unsplit`: the schedule with whole tensors.
    - `slower`: the fraction of the model's time that a limit may cost; None for no bound.
    - `tried`: the candidates that were searched.
    """

    def __init__(self, plain: Candidate, unsplit: Schedule, slower: float | None) -> None:
        self._plain, self._unsplit, self._slower = plain, unsplit, slower
        self._time = plain.searches[0].time
        self.tried = [plain]

    def least(self, slower: float) -> Schedule:
        """Find the schedule with the least scratch that costs at most a fraction `slower` of the model's time."""
        return _least([self._plain, *self._again(slower * self._time)], slower, self._unsplit)

    def within(self, most: int) -> Schedule:
        """Find the cheapest schedule that needs at most `most` bytes."""
        searches, fitted = self._search(most)
        fewest = self._unsplit.scratch_bytes
        if fitted is None or not fitted.is_within(self._slower, self._time):
            # `least` also tries other choices, and its result fits every larger limit.
            for cost in (SLOWER, MAX_SLOWER) if self._slower is None else (self._slower,):
                least = self.least(cost)
                if least.scratch_bytes <= most:
                    return least
                fewest = min(fewest, least.scratch_bytes)
        if fitted is None:
            raise _refusal(searches, most, fewest)
        return _affordable(fitted, self._slower, self._time, most)

    def _search(self, most: int) -> tuple[list[LimitSearch], Fitted | None]:
        """Search for a schedule within a limit; return all searches, and the schedule if one was found."""
        # Computing tensors twice costs more than copies do, so it is tried last, and as little of it as suffices.
        searches = [LimitSearch([self._plain], self._unsplit.scratch_bytes)]
        fitted = searches[0].quickly(most)
        for share in AGAIN:
            others = self._again(share * self._time, searches[-1].places[-1].remats) if fitted is None else []
            if others:
                searches.append(LimitSearch([self._plain, *others], self._unsplit.scratch_bytes))
                fitted = searches[-1].quickly(most)
        for search in searches:
            fitted = fitted or search.thoroughly(most)
        for search in searches:
            fitted = fitted or search.widely(most)
        return searches, fitted

    def _again(self, nanoseconds: float, than: tuple[Remat, ...] = ()) -> list[Candidate]:
        """Return the result of `again_at`, and record it as tried."""
        new_candidates = again_at(self._plain, nanoseconds, than)
        self.tried += new_candidates
        return new_candidates


def _affordable(fitted: Fitted, slower: float | None, time: float, most: int) -> Schedule:
    """Return the schedule, or raise an error if it costs more than a fraction `slower` of the model's time."""
    cost = fitted.share(time)
    if slower is not None and cost > slower:
        enough = ceil(cost * 1000) / 1000
        raise DoesNotFit(
            Code.COMMON_MEM_ALLOC,
            f"graph '{fitted.schedule.name}'",
            f"{most:,} bytes of scratch take about {cost:.1%} more time, and the limit may cost {slower:.1%}",
            f"Say slower={enough:g}, allow more bytes, or ask for 'least'.",
        )
    return fitted.schedule


def _least(candidates: Sequence[Candidate], slower: float, unsplit: Schedule) -> Schedule:
    """Find the schedule with the least scratch among candidates; `unsplit`, that of whole tensors, if none has less."""
    # Regions are chosen by estimates. So the choice with the least estimate is written as a schedule, and chosen again,
    # with a larger limit, if its program is too large for the bytes that it really saves.
    budget = Budget(slower)
    best: tuple[int, Candidate, RegionSearch, list[RegionChoice]] | None = None
    for candidate in candidates:
        # First an estimate for which there is a schedule; then each search looks for a smaller one.
        for search in candidate.searches:
            smaller = search.least(budget, None if best is None else min(best[0], search.peak))
            if smaller is not None:
                best = smaller[0], candidate, search, smaller[1]
    if best is None:
        return unsplit
    bytes_, candidate, search, chosen = best
    to_write: tuple[int, list[RegionChoice]] | None = bytes_, chosen
    if not search.affordable(chosen, bytes_, budget):
        to_write = search.bargain(bytes_, budget)
    for _ in range(2):
        closest = None if to_write is None else _closest(candidate, search, *to_write, budget)
        if closest is None or closest[0].bytes >= unsplit.scratch_bytes:
            break
        fitted, chosen = closest
        if search.is_small(chosen, unsplit.scratch_bytes - fitted.bytes):
            return fitted.schedule
        # The plan is larger than estimated, and its program is too large for the bytes saved.
        to_write = search.bargain(fitted.bytes, budget)
    return LimitSearch(candidates, unsplit.scratch_bytes).least(bytes_, slower) or unsplit


def _closest(
    candidate: Candidate, search: RegionSearch, limit: int, chosen: list[RegionChoice], budget: Budget
) -> tuple[Fitted, list[RegionChoice]] | None:
    """Write a choice estimated at `limit` bytes; if it is much larger, try larger limits and return the best."""
    fitted = write_choice(candidate, search, chosen)
    if fitted is None:
        return None
    best = fitted, chosen
    for _ in range(_CLOSER):
        limit += limit // _CLOSENESS
        if best[0].bytes <= limit:
            break
        other = search.solve(limit)
        if other is not None and search.affordable(other, limit, budget):
            fitted = write_choice(candidate, search, other)
            best = best if fitted is None or fitted.bytes >= best[0].bytes else (fitted, other)
    return best


def _refusal(searches: Sequence[LimitSearch], most: int, fewest: int) -> QnnError:
    """Return the error for a limit that cannot be met; it names the smallest limit that can, at most `fewest` bytes."""
    candidates = searches[-1].places
    best: tuple[int, RegionSearch] | None = None
    for candidate in candidates:
        for search in candidate.searches:
            smaller = search.least(UNLIMITED, None if best is None else min(best[0], search.peak))
            if smaller is not None:
                best = smaller[0], search
    search = candidates[0].searches[0] if best is None else best[1]
    lowest = search.peak if best is None else best[0]
    needed = min(fewest, searches[-1].bytes_needed(max(lowest, most)))
    for limit_search in searches:
        needed = limit_search.fewest(needed)
    op, name = _blame(searches[-1], search, most)
    looked = ", as far as was looked" if is_bounded(candidates) else ""
    return DoesNotFit(
        Code.COMMON_MEM_ALLOC,
        f"graph '{candidates[0].planner.graph.name}'",
        f"its scratch cannot be brought to {most:,} bytes: step '{name}' ({op}) holds it up; {needed:,} bytes "
        f"are needed, {needed - most:,} more{looked}",
        f"Allow {needed:,} bytes, or ask for 'least'.",
    )


def _blame(limit_search: LimitSearch, search: RegionSearch, most: int) -> tuple[str, str]:
    """Find the step to blame for a limit that cannot be met; return its operation and name, for a message."""
    steps = {(step.op, step.name): step for step in search.base.steps}
    step = search.base.steps[-1]
    fitted = None
    if search.solve(most) is None:
        # All steps before this one can be computed within the limit.
        step = search.base.steps[search.reached]
    else:
        fitted = limit_search.at(most)
    if fitted is not None:
        # The schedule was estimated to fit, but needs more. Report the model's step nearest to its peak.
        plan = fitted.schedule.statistics
        near = sorted(range(len(plan.steps)), key=lambda index: abs(index - plan.peak_step))
        step = next((steps[plan.steps[index]] for index in near if plan.steps[index] in steps), step)
    # Converters join the names of all nodes that they fused.
    return step.op, step.name.partition(";")[0] or step.outputs[0].name
