"""Adaptors of memory resources: count, limit, audit, fail. Each wraps any resource, and they stack.

The functions put one around every kind of memory while a block lasts::

    with memory.statistics() as s:
        with isthmus.Session("model.tflite", backend="htp") as session:
            session.run()
    print(s.peak_bytes, s.of("rpcmem").allocations)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from isthmus.errors import Code, QnnError
from isthmus.lock import Lock
from isthmus.memory.buffer import Buffer
from isthmus.memory.resource import DEFAULT_ALIGNMENT, Adaptor, MemoryResource, around
from isthmus.memory.whole import whole

_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Counts:
    """What was allocated: buffers and bytes there are now, the most there were at a time, and all there ever were."""

    allocations: int = 0
    live_allocations: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0
    total_bytes: int = 0

    def more(self, nbytes: int) -> Counts:
        """With one buffer more."""
        live = self.live_bytes + nbytes
        return Counts(
            self.allocations + 1,
            self.live_allocations + 1,
            live,
            max(self.peak_bytes, live),
            self.total_bytes + nbytes,
        )

    def less(self, nbytes: int) -> Counts:
        """With one buffer gone."""
        return replace(self, live_allocations=self.live_allocations - 1, live_bytes=self.live_bytes - nbytes)


class Tally:
    """Counts of several kinds of memory, kept by `Statistics` adaptors that share it.

    Examples
    --------
    >>> from isthmus import memory
    >>> with memory.statistics() as s, memory.host(4096):
    ...     s.of("host").live_bytes
    4096
    >>> s.live_bytes, s.peak_bytes, s.allocations
    (0, 4096, 1)
    """

    def __init__(self) -> None:
        # A buffer may be collected, and tell so, while its own thread is in here.
        self._lock = Lock()
        self._kinds: dict[str, Counts] = {}
        self._all = Counts()

    def of(self, kind: str) -> Counts:
        """The counts of one kind."""
        with self._lock:
            return self._kinds.get(kind, Counts())

    @property
    def by_kind(self) -> dict[str, Counts]:
        """The counts of every kind that was allocated."""
        with self._lock:
            return dict(self._kinds)

    @property
    def allocations(self) -> int:
        """Buffers that were ever allocated."""
        return self._all.allocations

    @property
    def live_allocations(self) -> int:
        """Buffers there are now."""
        return self._all.live_allocations

    @property
    def live_bytes(self) -> int:
        """Bytes there are now."""
        return self._all.live_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes of all kinds together that there were at a time."""
        return self._all.peak_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes that were ever allocated."""
        return self._all.total_bytes

    def __repr__(self) -> str:
        return f"<{self._all}; by kind {self._kinds}>"

    def add(self, kind: str, nbytes: int) -> None:
        """Count a buffer."""
        with self._lock:
            self._kinds[kind] = self.of(kind).more(nbytes)
            self._all = self._all.more(nbytes)

    def remove(self, kind: str, nbytes: int) -> None:
        """Count its end."""
        with self._lock:
            self._kinds[kind] = self.of(kind).less(nbytes)
            self._all = self._all.less(nbytes)


class Statistics(Adaptor):
    """Counts what passes.

    Parameters
    ----------
    tally
        Where the counts are kept, possibly together with those of other kinds; one of its own without it.
    """

    def __init__(self, upstream: MemoryResource, tally: Tally | None = None) -> None:
        super().__init__(upstream)
        self.tally = tally or Tally()

    def allocate(self, nbytes: int, alignment: int = DEFAULT_ALIGNMENT) -> Buffer:
        buffer = self.upstream.allocate(nbytes, alignment)
        self.tally.add(self.kind, buffer.nbytes)
        buffer.when_gone(self.tally.remove, self.kind, buffer.nbytes)
        return buffer


class Limit(Adaptor):
    """Refuses what would take more than `nbytes` at a time."""

    def __init__(self, upstream: MemoryResource, nbytes: int) -> None:
        super().__init__(upstream)
        self.nbytes = whole(nbytes, "limit of memory")
        if self.nbytes < 0:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "limit of memory", f"{self.nbytes} bytes are less than none")
        self._lock = Lock()
        self._live = 0

    def allocate(self, nbytes: int, alignment: int = DEFAULT_ALIGNMENT) -> Buffer:
        nbytes = whole(nbytes, f"{self.kind} buffer")
        with self._lock:
            if self._live + nbytes > self.nbytes:
                raise QnnError(
                    Code.COMMON_MEM_ALLOC,
                    f"{self.kind} buffer of {nbytes} bytes",
                    f"{self._live} of the {self.nbytes} bytes that are allowed are taken",
                )
            self._live += nbytes
        try:
            buffer = self.upstream.allocate(nbytes, alignment)
        except BaseException:
            self._give_back(nbytes)
            raise
        buffer.when_gone(self._give_back, nbytes)
        return buffer

    def _give_back(self, nbytes: int) -> None:
        with self._lock:
            self._live -= nbytes


@dataclass(frozen=True)
class Allocation:
    """One buffer in an audit: what, how much, and where in the user's code it was asked for."""

    kind: str
    nbytes: int
    where: str


@dataclass
class Record:
    """What an audit has seen: all allocations, and those whose buffers are still there."""

    allocations: list[Allocation] = field(default_factory=list)
    _live: dict[int, Allocation] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @property
    def live(self) -> list[Allocation]:
        """The buffers that have not ended."""
        with self._lock:
            return list(self._live.values())

    def add(self, allocation: Allocation) -> int:
        """Note an allocation; its number."""
        with self._lock:
            self.allocations.append(allocation)
            number = len(self.allocations)
            self._live[number] = allocation
            return number

    def remove(self, number: int) -> None:
        """Note its end."""
        with self._lock:
            self._live.pop(number, None)


class Audit(Adaptor):
    """Writes down every allocation with the line of the user's code that led to it."""

    def __init__(self, upstream: MemoryResource, record: Record | None = None) -> None:
        super().__init__(upstream)
        self.record = record or Record()

    def allocate(self, nbytes: int, alignment: int = DEFAULT_ALIGNMENT) -> Buffer:
        buffer = self.upstream.allocate(nbytes, alignment)
        number = self.record.add(Allocation(self.kind, buffer.nbytes, _where()))
        buffer.when_gone(self.record.remove, number)
        return buffer


def _where() -> str:
    """The nearest line outside this package that is being executed."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


class Schedule:
    """Which calls fail: the `nth` and those after it, `times` of them; counted over all resources that share it."""

    def __init__(self, nth: int, times: int = 1) -> None:
        first, count = whole(nth, "allocation to fail"), whole(times, "allocations to fail")
        if first < 1 or count < 1:
            rule = f"allocation {first} and {count} in all: both count from 1"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "allocations to fail", rule)
        self.calls = 0
        """How many allocations were asked for so far."""
        self._failing = range(first, first + count)
        self._lock = Lock()

    def fails(self) -> bool:
        """Count a call; whether it is one of those."""
        with self._lock:
            self.calls += 1
            return self.calls in self._failing


class Fault(Adaptor):
    """Fails on schedule, as if there were no memory."""

    def __init__(self, upstream: MemoryResource, schedule: Schedule) -> None:
        super().__init__(upstream)
        self.schedule = schedule

    def allocate(self, nbytes: int, alignment: int = DEFAULT_ALIGNMENT) -> Buffer:
        if self.schedule.fails():
            what = f"{self.kind} buffer of {nbytes} bytes"
            raise QnnError(Code.COMMON_MEM_ALLOC, what, f"allocation {self.schedule.calls} was made to fail")
        return self.upstream.allocate(nbytes, alignment)


@contextmanager
def statistics(*kinds: str) -> Iterator[Tally]:
    """Count what is allocated inside the block, of all kinds or of those named.

    Examples
    --------
    >>> from isthmus import memory
    >>> with memory.statistics("host") as seen:
    ...     memory.host(100).close()
    >>> seen.allocations, seen.peak_bytes, seen.live_bytes
    (1, 100, 0)
    """
    tally = Tally()
    with around(lambda upstream: Statistics(upstream, tally), *kinds):
        yield tally


@contextmanager
def limit(nbytes: int, *kinds: str) -> Iterator[None]:
    """Let each kind of memory have at most `nbytes` at a time inside the block.

    Examples
    --------
    >>> from isthmus import memory
    >>> with memory.limit(1000), memory.host(900):
    ...     memory.host(200)
    Traceback (most recent call last):
    isthmus.errors.QnnError: [1002 COMMON_MEM_ALLOC] host buffer of 200 bytes: 900 of the 1000 bytes that are allowed
    are taken
    """
    with around(lambda upstream: Limit(upstream, nbytes), *kinds):
        yield


@contextmanager
def audit(*kinds: str) -> Iterator[Record]:
    """Write down what is allocated inside the block, and where in the user's code.

    Examples
    --------
    >>> from isthmus import memory
    >>> with memory.audit() as record:
    ...     memory.host(64).close()
    >>> [each.nbytes for each in record.allocations], record.live
    ([64], [])
    """
    record = Record()
    with around(lambda upstream: Audit(upstream, record), *kinds):
        yield record


@contextmanager
def fault(nth: int, *kinds: str, times: int = 1) -> Iterator[Schedule]:
    """Have the nth allocation inside the block fail, and the ones after it up to `times`.

    Examples
    --------
    >>> from isthmus import memory
    >>> with memory.fault(1):
    ...     memory.host(64)
    Traceback (most recent call last):
    isthmus.errors.QnnError: [1002 COMMON_MEM_ALLOC] host buffer of 64 bytes: allocation 1 was made to fail
    """
    schedule = Schedule(nth, times)
    with around(lambda upstream: Fault(upstream, schedule), *kinds):
        yield schedule
