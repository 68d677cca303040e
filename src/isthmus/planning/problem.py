"""The data types of offline memory planning: buffers with sizes and lifetimes, the memory available, and the solution.

A problem is a set of rectangles in a plane of time and memory. Time is counted in steps and memory in bytes. A planner
chooses the memory coordinate of each rectangle and must not change its time coordinate.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum

MAX_BYTES = 2**48
"""The largest size, alignment, offset or capacity that is accepted."""

MAX_TOTAL = 2**60
"""The largest sum of all sizes with their alignment padding; offsets then always fit into 64 bits."""

MAX_TIME = 2**62
"""The largest start or end of a lifetime."""


class PlanningError(ValueError):
    """An error for a problem or layout that is invalid.

    Parameters
    ----------
    message
        The error in one sentence.
    buffer
        Index of the buffer at fault, if there is one.
    """

    def __init__(self, message: str, buffer: int | None = None) -> None:
        super().__init__(message)
        self.buffer = buffer


@dataclass(frozen=True)
class Gap:
    """A pause ``[start, end)`` inside a lifetime, during which other buffers may use the memory."""

    start: int
    end: int

    def __post_init__(self) -> None:
        _whole("gap start", self.start, -MAX_TIME, MAX_TIME)
        _whole("gap end", self.end, -MAX_TIME, MAX_TIME)
        if self.end <= self.start:
            raise PlanningError(f"gap ends at {self.end}, not after its start {self.start}")


@dataclass(frozen=True)
class PlannerBuffer:
    """A block of memory that is needed during ``[start, end)``.

    Parameters
    ----------
    id
        The name in messages and files; unique within a problem.
    start, end
        The lifetime in steps, half open: a buffer that ends when another starts may share memory with it.
    size
        The size in bytes; a buffer of zero bytes conflicts with none.
    alignment
        The offset must be a multiple of this.
    offset
        The fixed offset of the buffer, if the planner must not choose it.
    gaps
        Pauses strictly inside the lifetime, in order, that do not touch each other.

    Examples
    --------
    >>> PlannerBuffer("activation", start=2, end=5, size=4096, alignment=64).lifetimes
    ((2, 5),)
    >>> PlannerBuffer("state", start=0, end=9, size=64, gaps=(Gap(3, 7),)).lifetimes
    ((0, 3), (7, 9))
    """

    id: str
    start: int
    end: int
    size: int
    alignment: int = 1
    offset: int | None = None
    gaps: tuple[Gap, ...] = ()

    def __post_init__(self) -> None:
        name = f"buffer {self.id!r}: "
        _whole(name + "start", self.start, -MAX_TIME, MAX_TIME)
        _whole(name + "end", self.end, -MAX_TIME, MAX_TIME)
        _whole(name + "size", self.size, 0, MAX_BYTES)
        _whole(name + "alignment", self.alignment, 1, MAX_BYTES)
        if self.end <= self.start:
            raise PlanningError(f"{name}ends at {self.end}, not after its start {self.start}")
        if self.offset is not None:
            _whole(name + "offset", self.offset, 0, MAX_BYTES)
            if self.offset % self.alignment:
                raise PlanningError(f"{name}offset {self.offset} is not a multiple of alignment {self.alignment}")
        reached = self.start
        for gap in self.gaps:
            if gap.start <= reached or gap.end >= self.end:
                raise PlanningError(
                    f"{name}gap {gap.start}-{gap.end} must be inside the lifetime {self.start}-{self.end}, "
                    "after the gap before it"
                )
            reached = gap.end

    @property
    def lifetimes(self) -> tuple[tuple[int, int], ...]:
        """The half-open time intervals in which the memory is in use."""
        starts = [self.start, *(gap.end for gap in self.gaps)]
        ends = [*(gap.start for gap in self.gaps), self.end]
        return tuple(zip(starts, ends, strict=True))


@dataclass(frozen=True)
class Problem:
    """Buffers to place, and optionally the memory that they must fit into.

    Parameters
    ----------
    buffers
        The buffers in any order; layouts list their offsets in the same order.
    capacity
        The bytes available. ``None`` asks for the smallest layout instead.

    Raises
    ------
    PlanningError
        If two buffers share an id, or two fixed buffers share memory at the same time.

    Examples
    --------
    >>> problem = Problem((PlannerBuffer("a", 0, 2, 8), PlannerBuffer("b", 1, 3, 8)))
    >>> len(problem)
    2
    """

    buffers: tuple[PlannerBuffer, ...]
    capacity: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffers", tuple(self.buffers))
        if self.capacity is not None:
            _whole("capacity", self.capacity, 0, MAX_BYTES)
        seen: set[str] = set()
        total = 0
        for index, buffer in enumerate(self.buffers):
            if buffer.id in seen:
                raise PlanningError(f"two buffers have the id {buffer.id!r}", index)
            seen.add(buffer.id)
            total += buffer.size + buffer.alignment
            if total + (buffer.offset or 0) > MAX_TOTAL:
                raise PlanningError(f"buffer {buffer.id!r}: all sizes together exceed {MAX_TOTAL} bytes", index)
        self._check_fixed()

    def _check_fixed(self) -> None:
        """Raise an error if two fixed buffers share memory at the same time, by a sweep through time."""
        fixed = [i for i, b in enumerate(self.buffers) if b.offset is not None and b.size > 0]
        # At equal times an end (0) comes before a start (1). Live buffers do not overlap, so only neighbours can
        # collide.
        lives = [(start, end, i) for i in fixed for start, end in self.buffers[i].lifetimes]
        events = sorted([(start, 1, i) for start, _, i in lives] + [(end, 0, i) for _, end, i in lives])
        # The offset and number of each live buffer, in ascending order.
        live: list[tuple[int, int]] = []
        for _, starts, later in events:
            b = self.buffers[later]
            assert b.offset is not None
            entry = b.offset, later
            at = bisect_left(live, entry)
            if not starts:
                del live[at]
                continue
            for place, earlier in live[max(at - 1, 0) : at + 1]:
                a = self.buffers[earlier]
                if place < b.offset + b.size and b.offset < place + a.size:
                    raise PlanningError(
                        f"buffer {b.id!r}: fixed offset {b.offset} collides with buffer {a.id!r} "
                        f"at {place}-{place + a.size}",
                        max(earlier, later),
                    )
            live.insert(at, entry)

    def __len__(self) -> int:
        return len(self.buffers)


def _whole(what: str, value: int, least: int, most: int) -> None:
    """Raise an error unless a value is an integer from `least` to `most`; `what` is its name in the message."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise PlanningError(f"{what} must be an integer, not {value!r}")
    if value < least:
        raise PlanningError(f"{what} {value} is {'negative' if least == 0 else f'below {least}'}")
    if value > most:
        raise PlanningError(f"{what} {value} is above the limit of {most}")


class Status(str, Enum):
    """The outcome of planning as far as it is proved.

    ``OPTIMAL``: a layout, and proof that none is smaller. ``FEASIBLE``: a layout that fits, perhaps not the smallest.
    ``INFEASIBLE``: proof that no layout fits the capacity. ``UNKNOWN``: neither a layout nor a proof within the limits.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Solution:
    """The result of planning.

    Parameters
    ----------
    status
        The outcome; see `Status`.
    offsets
        One offset for each buffer of the problem, in its order; ``None`` without a layout.
    peak
        Bytes that the layout needs; ``None`` without a layout.
    lower_bound
        Bytes that every layout needs, as far as proved. Equals `peak` if the status is optimal.
    seconds
        The wall time of planning.
    nodes
        The number of partial layouts that the exact search examined; 0 if it was not needed.
    stopped_by
        ``"proof"``, ``"time limit"``, ``"node limit"``, or ``"size"`` if too many buffers are live at once to be
        searched. For a given capacity, any layout that fits is a proof.
    loading
        The seconds needed to load the compiled search, or to compile it on its first use. They are not part of
        `seconds`; 0 if it was not needed or already loaded.
    greedy
        Bytes of the greedy-by-size layout; ``None`` if that was not tried.
    """

    status: Status
    offsets: tuple[int, ...] | None
    peak: int | None
    lower_bound: int
    seconds: float
    nodes: int
    stopped_by: str
    loading: float = 0.0
    greedy: int | None = None
