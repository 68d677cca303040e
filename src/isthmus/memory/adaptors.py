"""Adaptors of memory resources: count, limit or fail allocations. Each wraps any resource, and they stack.

The functions put an adaptor around every kind of memory for the duration of a ``with`` block::

    with memory.statistics() as s:
        with isthmus.Session("model.tflite", backend="htp") as session:
            session.run()
    print(s.peak_bytes, s.of("rpcmem").allocations)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from isthmus import audit_log
from isthmus.errors import Code, QnnError
from isthmus.memory.buffer import Buffer
from isthmus.memory.integers import as_int
from isthmus.memory.resource import Adaptor, AllocationRequest, MemoryResource, around
from isthmus.system.interrupts import run_pending
from isthmus.system.lock import Lock


@dataclass(frozen=True)
class Counts:
    """Counts of allocations. A buffer is live until it is closed or collected.

    - `allocations`, `total_bytes`: Buffers ever allocated, and their bytes.
    - `live_allocations`, `live_bytes`: Buffers that are live now, and their bytes.
    - `peak_bytes`: The largest `live_bytes` so far.
    """

    allocations: int = 0
    live_allocations: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0
    total_bytes: int = 0

    def more(self, nbytes: int) -> Counts:
        """Return the counts with one more buffer."""
        live = self.live_bytes + nbytes
        return Counts(
            self.allocations + 1,
            self.live_allocations + 1,
            live,
            max(self.peak_bytes, live),
            self.total_bytes + nbytes,
        )

    def less(self, nbytes: int) -> Counts:
        """Return the counts with one buffer less."""
        return replace(self, live_allocations=self.live_allocations - 1, live_bytes=self.live_bytes - nbytes)


@dataclass(eq=False)
class Counted:
    """One buffer: its kind, its size, and whether it is counted as live.

    The counters keep this object instead of the buffer, which they must not keep alive.
    """

    kind: str
    nbytes: int
    live: bool = False


class Tally:
    """Counts of several kinds of memory, kept by `Statistics` adaptors that share it.

    >>> from isthmus import memory
    >>> with memory.statistics() as s, memory.host(4096):
    ...     s.of("host").live_bytes
    4096
    >>> s.live_bytes, s.peak_bytes, s.allocations
    (0, 4096, 1)
    """

    def __init__(self) -> None:
        # The garbage collector may run a buffer's finalizer in this thread while the lock is held.
        self._lock = Lock()
        self._kinds: dict[str, Counts] = {}
        self._all = Counts()

    def of(self, kind: str) -> Counts:
        """Return the counts of one kind."""
        return self.by_kind.get(kind, Counts())

    @property
    def by_kind(self) -> dict[str, Counts]:
        """The counts of every kind that was allocated."""
        # Finalizers of collected buffers that have not run yet would change the counts.
        run_pending()
        return self._kinds

    @property
    def all(self) -> Counts:
        """The counts of all kinds together."""
        run_pending()
        return self._all

    @property
    def allocations(self) -> int:
        """Number of buffers ever allocated."""
        return self.all.allocations

    @property
    def live_allocations(self) -> int:
        """Number of live buffers."""
        return self.all.live_allocations

    @property
    def live_bytes(self) -> int:
        """Number of live bytes."""
        return self.all.live_bytes

    @property
    def peak_bytes(self) -> int:
        """Largest number of live bytes at a time, over all kinds together."""
        return self.all.peak_bytes

    @property
    def total_bytes(self) -> int:
        """Number of bytes ever allocated."""
        return self.all.total_bytes

    def __repr__(self) -> str:
        return f"<{self.all}; by kind {self.by_kind}>"

    def add(self, counted: Counted) -> None:
        """Count a buffer."""
        with self._lock:
            kind = self._kinds.get(counted.kind, Counts()).more(counted.nbytes)
            kinds, all_ = {**self._kinds, counted.kind: kind}, self._all.more(counted.nbytes)
            # No signal handler runs within one assignment.
            self._kinds, self._all, counted.live = kinds, all_, True

    def remove(self, counted: Counted) -> None:
        """Count the end of a buffer, once; ignore a buffer that is not counted as live."""
        with self._lock:
            if counted.live:
                kind = self._kinds[counted.kind].less(counted.nbytes)
                kinds, all_ = {**self._kinds, counted.kind: kind}, self._all.less(counted.nbytes)
                self._kinds, self._all, counted.live = kinds, all_, False


class Statistics(Adaptor):
    """An adaptor that counts allocations in a tally, which several adaptors may share. By default it has a new one."""

    def __init__(self, upstream: MemoryResource, tally: Tally | None = None) -> None:
        super().__init__(upstream)
        self.tally = tally or Tally()

    def fulfil(self, request: AllocationRequest) -> Buffer:
        buffer = self.upstream.fulfil(request)
        counted = Counted(self.kind, buffer.nbytes)
        # The finalizer comes first: after an interrupt a buffer must not stay counted forever.
        buffer.when_gone(self.tally.remove, counted)
        self.tally.add(counted)
        return buffer


class MemoryCap(Adaptor):
    """An adaptor that refuses allocations beyond `nbytes` live bytes.

    Bytes are reserved before the allocation, so that concurrent ones cannot exceed the limit together.
    """

    def __init__(self, upstream: MemoryResource, nbytes: int) -> None:
        super().__init__(upstream)
        self.nbytes = as_int(nbytes, "limit of memory")
        if self.nbytes < 0:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "limit of memory", f"must not be negative, is {self.nbytes}")
        self._lock = Lock()
        self._live = 0

    def fulfil(self, request: AllocationRequest) -> Buffer:
        reserved = Counted(self.kind, as_int(request.nbytes, f"{self.kind} buffer"))
        try:
            self._reserve(reserved)
            buffer = self.upstream.fulfil(replace(request, nbytes=reserved.nbytes))
            buffer.when_gone(self._give_back, reserved)
        except BaseException:
            self._give_back(reserved)
            raise
        return buffer

    def _reserve(self, reserved: Counted) -> None:
        """Count bytes as live, or refuse them if the limit would be exceeded."""
        # Collected buffers whose finalizers have not run yet still count.
        run_pending()
        with self._lock:
            live = self._live + reserved.nbytes
            if live > self.nbytes:
                raise QnnError(
                    Code.COMMON_MEM_ALLOC,
                    f"{self.kind} buffer of {reserved.nbytes} bytes",
                    f"{self._live} of the {self.nbytes} bytes that are allowed are taken",
                )
            self._live, reserved.live = live, True

    def _give_back(self, reserved: Counted) -> None:
        """Count bytes as no longer live; safe to repeat."""
        with self._lock:
            if reserved.live:
                self._live, reserved.live = self._live - reserved.nbytes, False


def report_fault(what: str) -> None:
    """Report to the audits in progress that a fault has been injected."""
    if audit_log.active:
        audit_log.note(audit_log.Action.FAULT, what)


def fault_rule(fault: str) -> str:
    """Return how an error says that an injected fault is its cause."""
    return f"fault '{fault}' was injected"


class FaultSchedule:
    """A schedule of failures: `times` calls fail, starting with the `nth`, of all resources that share it.

    `what` is the name of an injected fault. By default the number of the call is reported.
    """

    def __init__(self, nth: int, times: int = 1, what: str = "") -> None:
        first, count = as_int(nth, "allocation to fail"), as_int(times, "allocations to fail")
        if first < 1 or count < 1:
            rule = f"allocation {first} and {count} in all: both count from 1"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "allocations to fail", rule)
        self.calls = 0
        """Number of allocations requested so far."""
        self._failing = range(first, first + count)
        self._what = what
        self._lock = Lock()

    def fails(self) -> bool:
        """Count a call and return whether it should fail."""
        with self._lock:
            self.calls += 1
            if self.calls not in self._failing:
                return False
        report_fault(self.what)
        return True

    @property
    def what(self) -> str:
        """The name of the fault."""
        return self._what or f"allocation {self.calls}"

    @property
    def rule(self) -> str:
        """Why a call fails, for messages."""
        return fault_rule(self._what) if self._what else f"{self.what} was made to fail"


class Fault(Adaptor):
    """An adaptor that fails allocations on schedule, as if memory had run out."""

    def __init__(self, upstream: MemoryResource, schedule: FaultSchedule) -> None:
        super().__init__(upstream)
        self.schedule = schedule

    def fulfil(self, request: AllocationRequest) -> Buffer:
        if self.schedule.fails():
            what = f"{self.kind} buffer of {request.nbytes} bytes"
            raise QnnError(Code.COMMON_MEM_ALLOC, what, self.schedule.rule)
        return self.upstream.fulfil(request)


@contextmanager
def statistics(*kinds: str) -> Iterator[Tally]:
    """Count the allocations inside the block, of all kinds or of those named.

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
    """Limit each kind of memory, or each of those named, to `nbytes` live bytes inside the block.

    Examples
    --------
    >>> from isthmus import memory
    >>> with memory.limit(1000), memory.host(900):
    ...     memory.host(200)
    Traceback (most recent call last):
    isthmus.errors.QnnError: [1002 COMMON_MEM_ALLOC] host buffer of 200 bytes: 900 of the 1000 bytes that are allowed
    are taken
    """
    with around(lambda upstream: MemoryCap(upstream, nbytes), *kinds):
        yield


@contextmanager
def fault(nth: int, *kinds: str, times: int = 1) -> Iterator[FaultSchedule]:
    """Make the nth allocation inside the block fail, and those after it, `times` in all.

    Allocations of all kinds, or of those named, are counted together, from 1.

    Examples
    --------
    >>> from isthmus import memory
    >>> with memory.fault(1):
    ...     memory.host(64)
    Traceback (most recent call last):
    isthmus.errors.QnnError: [1002 COMMON_MEM_ALLOC] host buffer of 64 bytes: allocation 1 was made to fail
    """
    schedule = FaultSchedule(nth, times)
    with around(lambda upstream: Fault(upstream, schedule), *kinds):
        yield schedule
