"""Two memories: which items stay in a small fast memory between their uses, and the traffic of the others.

A fast memory of limited capacity belongs to a slow one without a limit. Steps use items, which are blocks of bytes.
In each gap between two uses an item either stays in the fast memory, or it does not. An item that does not stay passes
through the fast memory at a use in tiles, which need a small window, and its bytes are moved once:

- A read moves bytes from the slow memory, unless they have stayed.
- Bytes that were written are moved to the slow memory once, when the item leaves, if a later use reads them before they
  are overwritten, or if they must be in the slow memory in the end.

A `Stay` is a range of uses through which an item stays without a pause. It is a rectangle: its place in the fast memory
is fixed while it lasts, and the item may have another place in its next stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from isthmus.planning.problem import MAX_BYTES, PlannerBuffer, PlanningError, Problem, Status

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of bytes: sorted, not empty, not touching each other."""
WINDOW = 64 << 10
"""The bytes of fast memory that an item needs at a use through which it does not stay."""


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the bytes of any ranges as sorted ranges that do not touch.

    >>> union([(8, 12), (0, 4), (4, 6), (9, 9)])
    ((0, 6), (8, 12))
    """
    merged: list[tuple[int, int]] = []
    for low, high in sorted(each for each in ranges if each[0] < each[1]):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def common(first: Ranges, second: Ranges) -> Ranges:
    """Return the bytes that are in both."""
    return union((max(a, c), min(b, d)) for a, b in first for c, d in second)


def without(first: Ranges, second: Ranges) -> Ranges:
    """Return the bytes of the first that are not in the second."""
    left = list(first)
    for low, high in second:
        left = [(a, b) for c, d in left for a, b in ((c, min(d, low)), (max(c, high), d)) if a < b]
    return tuple(left)


def amount(ranges: Ranges) -> int:
    """Return the number of bytes."""
    return sum(high - low for low, high in ranges)


@dataclass(frozen=True)
class SpillUse:
    """What a step does with an item: the bytes that it reads, and those that it writes afterwards."""

    step: int
    reads: Ranges = ()
    writes: Ranges = ()

    @property
    def touched_bytes(self) -> int:
        """The number of bytes that the step reads or writes."""
        return amount(union((*self.reads, *self.writes)))


@dataclass(frozen=True)
class SpillItem:
    """A block of bytes that steps use.

    Parameters
    ----------
    id
        The name in messages; unique within a problem.
    size
        The size in bytes, of which a stay needs all.
    uses
        The uses in order, at most one for each step.
    before, after
        Whether its bytes are in the slow memory before the first step, and must be there after the last one.
    """

    id: str
    size: int
    uses: tuple[SpillUse, ...]
    before: bool = False
    after: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.size <= MAX_BYTES:
            raise PlanningError(f"item {self.id!r}: size {self.size} is not from 1 to {MAX_BYTES}")
        if not self.uses:
            raise PlanningError(f"item {self.id!r} has no uses")
        steps = [use.step for use in self.uses]
        if any(a >= b for a, b in pairwise(steps)) or steps[0] < 0:
            raise PlanningError(f"item {self.id!r}: its uses are not in the order of steps")
        for use in self.uses:
            for ranges in (use.reads, use.writes):
                if union(ranges) != ranges or any(low < 0 or high > self.size for low, high in ranges):
                    raise PlanningError(
                        f"item {self.id!r}: ranges {ranges} at step {use.step} are not sorted inside it"
                    )

    @cached_property
    def ranges_written(self) -> tuple[Ranges, ...]:
        """For each use, the bytes that have a value before it."""
        before_uses: list[Ranges] = [((0, self.size),) if self.before else ()]
        for use in self.uses[:-1]:
            before_uses.append(union((*before_uses[-1], *use.writes)))
        return tuple(before_uses)

    @cached_property
    def ranges_needed(self) -> tuple[Ranges, ...]:
        """For each use, the bytes whose value after it matters."""
        after_uses: list[Ranges] = [((0, self.size),) if self.after else ()]
        for use in reversed(self.uses[1:]):
            after_uses.append(union((*use.reads, *without(after_uses[-1], use.writes))))
        return tuple(reversed(after_uses))


@dataclass(frozen=True)
class SpillTraffic:
    """Bytes that are moved between the memories: `read` from the slow one, and `written` to it."""

    read: int = 0
    written: int = 0

    @property
    def total(self) -> int:
        """All bytes that are moved."""
        return self.read + self.written


@dataclass(frozen=True)
class Visit:
    """A visit of an item to the fast memory: a stay through uses `first` to `last`, or a single use if they are equal.

    `filled` and `spilled` are the bytes that it moves from the slow memory and to it; `last_fill` is the last use that
    moves any from there, or -1.
    """

    first: int
    last: int
    filled: Ranges
    spilled: Ranges
    last_fill: int = -1

    @property
    def traffic(self) -> SpillTraffic:
        """The bytes that it moves."""
        return SpillTraffic(amount(self.filled), amount(self.spilled))


def visits_from(item: SpillItem, first: int, last: int) -> list[Visit]:
    """List the visits that begin at a use, by their last use, up to `last`."""
    visits: list[Visit] = []
    there: Ranges = ()
    dirty: Ranges = ()
    filled: Ranges = ()
    last_fill = -1
    for number in range(first, last + 1):
        use = item.uses[number]
        more = without(common(use.reads, item.ranges_written[number]), there)
        if more:
            filled, last_fill = union((*filled, *more)), number
        there = union((*there, *use.reads, *use.writes))
        dirty = union((*dirty, *use.writes))
        visits.append(Visit(first, number, filled, common(dirty, item.ranges_needed[number]), last_fill))
    return visits


@dataclass(frozen=True)
class SpillProblem:
    """Items, and the fast memory that they share.

    Parameters
    ----------
    items
        The items in any order.
    capacity
        The bytes of fast memory.
    alignment
        Places in fast memory are multiples of this, and so are the bytes that they take.
    window
        The bytes that an item needs at a use through which it does not stay, or all that the use touches if that is
        less. Steps that use so many items that their windows do not fit have smaller windows.

    Examples
    --------
    >>> everything = ((0, 8),)
    >>> chain = [SpillItem(str(i), 8, (SpillUse(i, writes=everything), SpillUse(i + 1, everything))) for i in range(2)]
    >>> SpillProblem(tuple(chain), capacity=16, window=2).steps
    3
    """

    items: tuple[SpillItem, ...]
    capacity: int
    alignment: int = 1
    window: int = WINDOW

    def __post_init__(self) -> None:
        if not 0 <= self.capacity <= MAX_BYTES:
            raise PlanningError(f"capacity {self.capacity} is not from 0 to {MAX_BYTES}")
        if self.alignment < 1 or self.window < 0:
            raise PlanningError(f"alignment {self.alignment} or window {self.window} is too small")
        if len({item.id for item in self.items}) < len(self.items):
            raise PlanningError("two items have the same id")

    @cached_property
    def steps(self) -> int:
        """The number of steps."""
        return max((item.uses[-1].step + 1 for item in self.items), default=0)

    @cached_property
    def rooms(self) -> tuple[int, ...]:
        """The bytes that a stay of each item takes."""
        return tuple(self._align(item.size) for item in self.items)

    @cached_property
    def windows(self) -> tuple[tuple[int, ...], ...]:
        """The bytes that each use of each item takes if the item does not stay through it."""
        count = [0] * self.steps
        for item in self.items:
            for use in item.uses:
                count[use.step] += 1
        share = [self.capacity // max(each, 1) // self.alignment * self.alignment for each in count]
        return tuple(
            tuple(min(self._align(use.touched_bytes), self._align(self.window), share[use.step]) for use in item.uses)
            for item in self.items
        )

    def _align(self, nbytes: int) -> int:
        return -(-nbytes // self.alignment) * self.alignment


Stays = tuple[bool, ...]
"""For each gap between two uses of an item, whether it stays."""


def visits_of(item: SpillItem, stays: Stays) -> list[Visit]:
    """List the visits of an item that stays in these gaps."""
    if len(stays) != len(item.uses) - 1:
        raise PlanningError(f"item {item.id!r} has {len(item.uses) - 1} gaps, not {len(stays)}")
    ends = [number for number in range(len(item.uses)) if number == len(stays) or not stays[number]]
    firsts = [0, *(end + 1 for end in ends[:-1])]
    return [visits_from(item, first, last)[-1] for first, last in zip(firsts, ends, strict=True)]


def traffic_of(item: SpillItem, stays: Stays) -> SpillTraffic:
    """Return the bytes that an item moves if it stays in these gaps.

    >>> use = SpillUse(0, writes=((0, 8),)), SpillUse(2, ((0, 8),)), SpillUse(5, ((0, 8),))
    >>> traffic_of(SpillItem("x", 8, use), (True, False)), traffic_of(SpillItem("x", 8, use), (False, False))
    (SpillTraffic(read=8, written=8), SpillTraffic(read=16, written=8))
    """
    traffic = [visit.traffic for visit in visits_of(item, stays)]
    return SpillTraffic(sum(each.read for each in traffic), sum(each.written for each in traffic))


def fast_layout(problem: SpillProblem, stays: Sequence[Stays]) -> Problem:
    """Return the rectangles to place in the fast memory: stays, and the windows of other uses."""
    buffers = []
    for number, item in enumerate(problem.items):
        for visit in visits_of(item, stays[number]):
            is_stay = visit.first < visit.last
            size = problem.rooms[number] if is_stay else problem.windows[number][visit.first]
            if size:
                start, end = item.uses[visit.first].step, item.uses[visit.last].step + 1
                buffers.append(PlannerBuffer(f"{number} from {start}", start, end, size, problem.alignment))
    return Problem(tuple(buffers), problem.capacity)


def slow_layout(problem: SpillProblem, stays: Sequence[Stays], alignment: int = 1) -> Problem:
    """Return the rectangles of items that need slow memory only because they do not stay.

    Each lives from the visit that first moves it to the slow memory to the last one that moves it back. Items that are
    in the slow memory before or after all steps have memory there already.
    """
    buffers = []
    for number, item in enumerate(problem.items):
        visits = [] if item.before or item.after else visits_of(item, stays[number])
        out = [item.uses[visit.last].step for visit in visits if visit.spilled]
        back = [item.uses[visit.last_fill].step for visit in visits if visit.filled]
        if out:
            buffers.append(PlannerBuffer(f"{number}", out[0], max(*back, out[0]) + 1, item.size, alignment))
    return Problem(tuple(buffers))


@dataclass(frozen=True)
class SpillSolution:
    """Which items stay, and the traffic of the others.

    Parameters
    ----------
    status
        ``OPTIMAL``: no choice of stays that can be placed has less traffic. ``FEASIBLE``: not proved.
    stays
        For each item, the gaps in which it stays.
    offsets
        Where everything in `fast_layout` is in the fast memory.
    traffic
        The bytes that are moved.
    lower_bound
        Bytes that any choice moves, as far as proved. Equals the total traffic if the status is optimal.
    largest_first
        The bytes that are moved if the largest items that fit stay from their first to their last use.
    states
        The number of states that the search examined; 0 if it was not needed.
    """

    status: Status
    stays: tuple[Stays, ...]
    offsets: tuple[int, ...]
    traffic: SpillTraffic
    lower_bound: int
    largest_first: int
    states: int = 0
