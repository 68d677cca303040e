"""Brings the scratch of a model below a limit by strips: the cheapest way that fits, the least, or why nothing fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from isthmus.errors import Code, QnnError
from isthmus.prepare.schedule import Schedule, Step
from isthmus.prepare.tiling.candidate import Candidate, Fitted, Replanner, again_at, is_bounded, place_of, written
from isthmus.prepare.tiling.limit import MOST_SLOWER, SLOWER, ScratchLimit
from isthmus.prepare.tiling.limit_search import LimitSearch
from isthmus.prepare.tiling.orders import ORDERS
from isthmus.prepare.tiling.rematerialize import Remat
from isthmus.prepare.tiling.search import Budget, RegionChoice, RegionSearch
from isthmus.prepare.tiling.step_table import Effort

AGAIN = (0.05, 0.12, 0.3)
"""What a limit may cost in computing tensors again, as parts of the model's time, one after the other."""
_CLOSER, _CLOSENESS = 3, 64
"""How often another limit is tried where a plan has turned out larger than estimated, each so much above the last."""
UNLIMITED = Budget(slower=float("inf"), small_program=False)


@dataclass(frozen=True)
class Strips:
    """That a graph is to be prepared with a limit on scratch, and what that asks of the engine.

    Parameters
    ----------
    limit
        How much scratch there may be.
    nanoseconds
        About how long a step takes.
    splits
        Whether a step computed by rows along an axis of its result has the same bits as the whole.
    shared, sharing
        Whether several threads share a whole step, and how long it takes to share one besides.
    threads
        How many threads share a step: strips have at least as many rows.
    effort
        What strips of a step take, by their rows along an axis of its result; None where it is in proportion.
    work_alone
        How many bytes of scratch a step needs besides its tensors where one thread computes it by itself.
    """

    limit: ScratchLimit
    nanoseconds: Callable[[Step], float]
    splits: Callable[[Step, int], bool] = lambda step, axis: True
    shared: Callable[[Step], bool] = lambda step: False
    sharing: float = 0.0
    threads: int = 1
    effort: Callable[[Step, int], Effort | None] = lambda step, axis: None
    work_alone: Callable[[Step], int] | None = None


def fitted(site: Replanner, strips: Strips) -> Schedule:
    """The schedule of a graph within a limit.

    Raises
    ------
    QnnError
        COMMON_MEM_ALLOC where nothing fits, with the step that holds it up and by how much.
    """
    tried: list[Candidate] = []
    made = _fitted(site, strips, tried)
    return replace(made, plan=replace(made.plan, bounded=True)) if is_bounded(tried) else made


def _fitted(site: Replanner, strips: Strips, tried: list[Candidate]) -> Schedule:
    """The same; notes the places whose searches were asked."""
    arranged = site.arrange(ORDERS[0])
    assert arranged is not None
    unsplit = site.place(arranged, (), ())
    wanted = strips.limit.bytes_of(unsplit.scratch_bytes)
    if wanted is not None and wanted >= unsplit.scratch_bytes:
        return unsplit
    plain = place_of(site)
    tried.append(plain)

    def again(nanoseconds: float, than: tuple[Remat, ...] = ()) -> list[Candidate]:
        found = again_at(plain, nanoseconds, than)
        tried.extend(found)
        return found

    if not plain.searches:
        return unsplit
    time, slower = plain.searches[0].time, strips.limit.slower
    if wanted is None:
        may_cost = SLOWER if slower is None else slower
        return _least([plain, *again(may_cost * time)], may_cost, unsplit)
    # What is computed twice costs more than copies do: so it comes last, and as little of it as will do.
    ways = [LimitSearch([plain], unsplit.scratch_bytes)]
    made = ways[0].quickly(wanted)
    for share in AGAIN:
        if made is None:
            others = again(share * time, than=ways[-1].places[-1].again)
            if others:
                ways.append(LimitSearch([plain, *others], unsplit.scratch_bytes))
                made = ways[-1].quickly(wanted)
    for way in ways:
        made = made or way.thoroughly(wanted)
    for way in ways:
        made = made or way.widely(wanted)
    fewest = unsplit.scratch_bytes
    if made is None or not made.is_within(slower, time):
        # The least looks elsewhere too: what it comes to fits every limit from there on.
        for cost in (SLOWER, MOST_SLOWER) if slower is None else (slower,):
            least = _least([plain, *again(cost * time)], cost, unsplit)
            if least.scratch_bytes <= wanted:
                return least
            fewest = min(fewest, least.scratch_bytes)
    if made is None:
        raise _refused(ways, wanted, fewest)
    return _affordable(made, slower, time, wanted, site.name)


def _affordable(made: Fitted, slower: float | None, time: float, wanted: int, name: str) -> Schedule:
    """The schedule, unless it costs more than a limit may."""
    cost = made.share(time)
    if slower is not None and cost > slower:
        enough = ceil(cost * 1000) / 1000
        raise QnnError(
            Code.COMMON_MEM_ALLOC,
            f"graph '{name}'",
            f"{wanted:,} bytes of scratch take about {cost:.1%} more time, and the limit may cost {slower:.1%}",
            f"Say slower={enough:g}, allow more bytes, or ask for 'least'.",
        )
    return made.schedule


def _least(places: Sequence[Candidate], slower: float, unsplit: Schedule) -> Schedule:
    budget = Budget(slower)
    best: tuple[int, Candidate, RegionSearch, list[RegionChoice]] | None = None
    for place in places:
        for search in place.searches:
            found = search.least(budget, None if best is None else min(best[0], search.peak))
            if found is not None:
                best = found[0], place, search, found[1]
    if best is None:
        return unsplit
    bytes_, place, search, chosen = best
    cheapest: tuple[int, list[RegionChoice]] | None = bytes_, chosen
    if not search.affordable(chosen, bytes_, budget):
        cheapest = search.bargain(bytes_, budget)
    for _ in range(2):
        closest = None if cheapest is None else _closest(place, search, *cheapest, budget)
        if closest is None or closest[0].bytes >= unsplit.scratch_bytes:
            break
        made, chosen = closest
        if search.is_small(chosen, unsplit.scratch_bytes - made.bytes):
            return made.schedule
        # The plan has turned out larger than estimated, and its program too large for what is saved.
        cheapest = search.bargain(made.bytes, budget)
    return LimitSearch(places, unsplit.scratch_bytes).least(bytes_, slower) or unsplit


def _closest(
    place: Candidate, search: RegionSearch, limit: int, chosen: list[RegionChoice], budget: Budget
) -> tuple[Fitted, list[RegionChoice]] | None:
    """The schedule of a choice; where a plan has turned out much larger, the best of those for limits in between."""
    made = written(place, search, chosen)
    if made is None:
        return None
    best = made, chosen
    for _ in range(_CLOSER):
        limit += limit // _CLOSENESS
        if best[0].bytes <= limit:
            break
        other = search.solve(limit)
        if other is not None and search.affordable(other, limit, budget):
            made = written(place, search, other)
            best = best if made is None or made.bytes >= best[0].bytes else (made, other)
    return best


def _refused(ways: Sequence[LimitSearch], wanted: int, fewest: int) -> QnnError:
    """The error of a limit that nothing fits. It names the fewest bytes that any limit comes to: up to a number."""
    places = ways[-1].places
    best: tuple[int, RegionSearch] | None = None
    for place in places:
        for search in place.searches:
            found = search.least(UNLIMITED, None if best is None else min(best[0], search.peak))
            if found is not None:
                best = found[0], search
    search = places[0].searches[0] if best is None else best[1]
    lowest = search.peak if best is None else best[0]
    needed = min(fewest, ways[-1].needed(max(lowest, wanted)))
    for way in ways:
        needed = way.fewest(needed)
    op, name = _held_up(ways[-1], search, wanted)
    looked = ", as far as was looked" if is_bounded(places) else ""
    return QnnError(
        Code.COMMON_MEM_ALLOC,
        f"graph '{places[0].site.name}'",
        f"its scratch cannot be brought to {wanted:,} bytes: step '{name}' ({op}) holds it up; {needed:,} bytes "
        f"are needed, {needed - wanted:,} more{looked}",
        f"Allow {needed:,} bytes, or ask for 'least'.",
    )


def _held_up(way: LimitSearch, search: RegionSearch, wanted: int) -> tuple[str, str]:
    """The operation and the name of the step that cannot be had within a limit."""
    steps = {(step.op, step.name): step for step in search.base.steps}
    step = search.base.steps[-1]
    made = None
    if search.solve(wanted) is None:
        step = search.base.steps[search.reached]
    else:
        made = way.at(wanted)
    if made is not None:
        # It was to fit, and has more alive than was estimated: of the model's own steps the nearest to where that is.
        plan = made.schedule.plan
        near = sorted(range(len(plan.steps)), key=lambda index: abs(index - plan.peak_step))
        step = next((steps[plan.steps[index]] for index in near if plan.steps[index] in steps), step)
    # Converters join the names of all that they fused.
    return step.op, step.name.partition(";")[0] or step.outputs[0].name
