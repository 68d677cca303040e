"""Brings the scratch of a model below a limit by strips: looks for them in several orders, writes them, and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log

from isthmus.errors import Code, QnnError
from isthmus.prepare.schedule import Region, Repeat, Schedule, Step
from isthmus.prepare.storage import Block
from isthmus.prepare.strips.again import Again, affordable, candidates
from isthmus.prepare.strips.base import Arranged, Base, Effort, Engine, profile
from isthmus.prepare.strips.limit import MOST_SLOWER, SLOWER, ScratchLimit
from isthmus.prepare.strips.material import Native
from isthmus.prepare.strips.orders import ORDERS
from isthmus.prepare.strips.search import Budget, Choice, Search
from isthmus.prepare.strips.write import write

ATTEMPTS = 4
"""How often a limit is tightened where a plan has turned out larger than estimated, before all the others are tried."""
FINENESS, ABOVE, SLACK, GIVE_UP = 0.98, 1.25, 8, 3
"""Choices are looked for at bytes each of which is this part of the one before: from so much above a limit, and so many
units of alignment, since a plan may turn out smaller than estimated, down to where so many in a row have none."""
WIDELY = 1_500
"""Steps that are written in all when choices are tried that should take far more than a limit."""
AGAIN = (0.05, 0.12, 0.3)
"""What a limit may cost in computing tensors again, as parts of the model's time, one after the other."""
CHEAP = 0.02
"""What a limit costs, as a part of the model's time, where no cheaper way is looked for."""
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
    """

    limit: ScratchLimit
    nanoseconds: Callable[[Step], float]
    splits: Callable[[Step, int], bool] = lambda step, axis: True
    shared: Callable[[Step], bool] = lambda step: False
    sharing: float = 0.0
    threads: int = 1
    effort: Callable[[Step, int], Effort | None] = lambda step, axis: None


@dataclass(frozen=True)
class Site:
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
    again: Callable[[Sequence[Again]], Site]
    arrange: Callable[[str], Arranged | None]
    place: Callable[[Arranged, Sequence[Repeat], Sequence[Region]], Schedule]
    native: Native
    engine: Engine
    alignment: int
    planned: Callable[[Block], bool]


def fitted(site: Site, strips: Strips) -> Schedule:
    """The schedule of a graph within a limit.

    Raises
    ------
    QnnError
        COMMON_MEM_ALLOC where nothing fits, with the step that holds it up and by how much.
    """
    tried: list[_Place] = []
    made = _fitted(site, strips, tried)
    return replace(made, plan=replace(made.plan, bounded=True)) if _bounded(tried) else made


def _fitted(site: Site, strips: Strips, tried: list[_Place]) -> Schedule:
    """The same; notes the places whose searches were asked."""
    arranged = site.arrange(ORDERS[0])
    assert arranged is not None
    unsplit = site.place(arranged, (), ())
    wanted = strips.limit.bytes_of(unsplit.scratch_bytes)
    if wanted is not None and wanted >= unsplit.scratch_bytes:
        return unsplit
    plain = _Place(site, _searches(site, strips))
    tried.append(plain)

    def again(nanoseconds: float, than: tuple[Again, ...] = ()) -> list[_Place]:
        found = _again(plain, strips, nanoseconds, than)
        tried.extend(found)
        return found

    if not plain.searches:
        return unsplit
    time, slower = plain.searches[0].time, strips.limit.slower
    if wanted is None:
        may_cost = SLOWER if slower is None else slower
        return _least([plain, *again(may_cost * time)], may_cost, unsplit)
    # What is computed twice costs more than copies do: so it comes last, and as little of it as will do.
    ways = [_Way([plain], unsplit.scratch_bytes)]
    made = ways[0].quickly(wanted)
    for share in AGAIN:
        if made is None:
            others = again(share * time, than=ways[-1].places[-1].again)
            if others:
                ways.append(_Way([plain, *others], unsplit.scratch_bytes))
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


@dataclass(frozen=True)
class _Made:
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


def _affordable(made: _Made, slower: float | None, time: float, wanted: int, name: str) -> Schedule:
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


@dataclass(frozen=True, eq=False)
class _Place:
    """A site, the searches of its orders, and what is computed again there."""

    site: Site
    searches: list[Search]
    again: tuple[Again, ...] = ()


_Chosen = tuple[_Place, Search, list[Choice]]


class _Way:
    """The schedules of some places for limits.

    What is tried for a limit are choices for bytes of a fixed series. So whatever is found for a limit is found for any
    larger one.
    """

    def __init__(self, places: Sequence[_Place], unsplit: int) -> None:
        self.places = list(places)
        self._unsplit = unsplit
        self._slack = SLACK * self.places[0].site.alignment
        self._steps = len(self.places[0].searches[0].base.steps)
        self._found: dict[int, _Chosen | None] = {}
        self._made: dict[tuple[object, ...], _Made | None] = {}

    def quickly(self, wanted: int) -> _Made | None:
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

    def thoroughly(self, wanted: int) -> _Made | None:
        """A schedule within a limit, if there is one."""
        number, missing = self._number(int(wanted * ABOVE) + self._slack), 0
        while missing < GIVE_UP and self._target(number):
            made = self._at(number)
            if made is not None and made.bytes <= wanted:
                return made
            missing = missing + 1 if self._chosen(number) is None else 0
            number += 1
        return None

    def widely(self, wanted: int) -> _Made | None:
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
        found = min((made.bytes for made in self._made.values() if made is not None), default=bytes_)
        found = min(found, bytes_)
        while (made := self.thoroughly(found - 1) or self.widely(found - 1)) is not None:
            found = made.bytes
        return found

    def at(self, bytes_: int) -> _Made | None:
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

    def _chosen(self, number: int) -> _Chosen | None:
        """The cheapest choice for the bytes of a place in the series."""
        if number not in self._found:
            self._found[number] = _cheapest(self.places, self._target(number))
        return self._found[number]

    def _at(self, number: int) -> _Made | None:
        """The schedule of that choice; None also where a strip of it would read nothing."""
        found = self._chosen(number)
        if found is None:
            return None
        place, search, choices = found
        key = place, search, *((id(one.stretch), one.rows, one.start) for one in choices)
        if key not in self._made:
            self._made[key] = _written(*found)
        return self._made[key]


def _bounded(places: Sequence[_Place]) -> bool:
    """Whether some stretches would have been too much work to look at."""
    return any(search.bounded for place in places for search in place.searches)


def _again(plain: _Place, strips: Strips, nanoseconds: float, than: tuple[Again, ...]) -> list[_Place]:
    """The place with what a time allows to compute again, where there is something else `than` known."""
    chosen = tuple(affordable(candidates(plain.searches[0]), nanoseconds))
    if chosen == than:
        return []
    site = plain.site.again(chosen)
    return [_Place(site, _searches(site, strips, sum(one.nanoseconds for one in chosen)), chosen)]


def _searches(site: Site, strips: Strips, spent: float = 0.0) -> list[Search]:
    """A search for each order that differs from those before."""
    searches: list[Search] = []
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
        base = Base(arranged, live, work, site.engine, site.alignment, site.planned)
        searches.append(Search(base, kind, spent))
    return searches


def _cheapest(places: Sequence[_Place], limit: int) -> _Chosen | None:
    best: tuple[float, _Place, Search, list[Choice]] | None = None
    for place in places:
        for search in place.searches:
            chosen = search.solve(limit)
            if chosen is not None and (best is None or search.cost(chosen) < best[0]):
                best = search.cost(chosen), place, search, chosen
            if best is not None and best[0] <= CHEAP * search.time:
                return best[1:]
    return None if best is None else best[1:]


def _least(places: Sequence[_Place], slower: float, unsplit: Schedule) -> Schedule:
    budget = Budget(slower)
    best: tuple[int, _Place, Search, list[Choice]] | None = None
    for place in places:
        for search in place.searches:
            found = search.least(budget, None if best is None else min(best[0], search.peak))
            if found is not None:
                best = found[0], place, search, found[1]
    if best is None:
        return unsplit
    bytes_, place, search, chosen = best
    cheapest: tuple[int, list[Choice]] | None = bytes_, chosen
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
    return _Way(places, unsplit.scratch_bytes).least(bytes_, slower) or unsplit


def _closest(
    place: _Place, search: Search, limit: int, chosen: list[Choice], budget: Budget
) -> tuple[_Made, list[Choice]] | None:
    """The schedule of a choice; where a plan has turned out much larger, the best of those for limits in between."""
    made = _written(place, search, chosen)
    if made is None:
        return None
    best = made, chosen
    for _ in range(_CLOSER):
        limit += limit // _CLOSENESS
        if best[0].bytes <= limit:
            break
        other = search.solve(limit)
        if other is not None and search.affordable(other, limit, budget):
            made = _written(place, search, other)
            best = best if made is None or made.bytes >= best[0].bytes else (made, other)
    return best


def _written(place: _Place, search: Search, chosen: list[Choice]) -> _Made | None:
    """The schedule with the chosen stretches by strips."""
    site = place.site
    arranged = site.arrange(search.kind)
    assert arranged is not None
    base = Base(arranged, search.base.live, search.base.work, site.engine, site.alignment, site.planned)
    written = write(base, chosen, site.native)
    if written is None:
        return None
    arranged = replace(arranged, steps=written.steps, overlaid=written.overlaid, alike=written.alike)
    made = site.place(arranged, written.repeats, written.regions)
    names = tuple(one.chain[-1] for one in place.again)
    made = replace(made, plan=replace(made.plan, again=names)) if names else made
    return _Made(made, search.cost(chosen))


def _refused(ways: Sequence[_Way], wanted: int, fewest: int) -> QnnError:
    """The error of a limit that nothing fits. It names the fewest bytes that any limit comes to: up to a number."""
    places = ways[-1].places
    best: tuple[int, Search] | None = None
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
    looked = ", as far as was looked" if _bounded(places) else ""
    return QnnError(
        Code.COMMON_MEM_ALLOC,
        f"graph '{places[0].site.name}'",
        f"its scratch cannot be brought to {wanted:,} bytes: step '{name}' ({op}) holds it up; {needed:,} bytes "
        f"are needed, {needed - wanted:,} more{looked}",
        f"Allow {needed:,} bytes, or ask for 'least'.",
    )


def _held_up(way: _Way, search: Search, wanted: int) -> tuple[str, str]:
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
