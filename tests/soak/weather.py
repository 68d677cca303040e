"""What is done to programs from outside while they run, and which refusals that explains.

Faults, limits and missing descriptors are the whole process's; a program that runs beside the one that asked for them
meets them too. So each kind of trouble tells when it was there, and a call asks for the codes of all that was there
while it ran.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from isthmus import memory
from isthmus.errors import Code

EXPLAINED: dict[str, frozenset[int]] = {
    "fault": frozenset({Code.COMMON_MEM_ALLOC}),
    "limit": frozenset({Code.COMMON_MEM_ALLOC}),
    # What cannot be opened is, to the caller, memory, a mapping, a file, a process or a binary that cannot be had.
    "descriptors": frozenset(
        {
            Code.COMMON_MEM_ALLOC,
            Code.COMMON_SYSTEM,
            Code.COMMON_INVALID_ARGUMENT,
            Code.COMMON_RESOURCE_UNAVAILABLE,
            Code.COMMON_SYSTEM_COMMUNICATION,
            Code.COMMON_LOADING_BINARIES,
            Code.CONTEXT_INVALID_ARGUMENT,
            Code.CONTEXT_CREATE_FROM_BINARY,
            Code.MEM_INVALID_ARGUMENT,
            Code.MEM_MAPPING,
        }
    ),
}
"""The codes that a call may be refused with while a kind of trouble lasts."""


class Interrupt(KeyboardInterrupt):
    """What the soak's own signals raise: KeyboardInterrupt, told from one that a person sent."""


class Alarm(Exception):
    """What a handler of the client's may raise in the middle of anything."""


INTERRUPTS = (Interrupt, Alarm)
_FRAMES_TOLD = 3


class Weather:
    """The troubles that there are, were, and how many there have been."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clock = itertools.count(1)
        self._now: Counter[str] = Counter()
        self._ended: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        """Kills, stops, forks, interrupts, faults …, by name."""
        self._armed: type[BaseException] | None = None
        self._may_come_again = False
        self.landed: list[str] = []
        """Where interrupts of the present round came up, innermost last."""

    def note(self, what: str) -> None:
        """Count something that was done."""
        with self._lock:
            self.counts[what] += 1

    def moment(self) -> int:
        """A point in time, to ask `explained` about later."""
        return next(self._clock)

    def explained(self, since: int) -> frozenset[int]:
        """The codes that troubles since then explain."""
        with self._lock:
            there = [kind for kind in EXPLAINED if self._now[kind] or self._ended.get(kind, 0) >= since]
        return frozenset().union(*(EXPLAINED[kind] for kind in there))

    @contextmanager
    def trouble(self, kind: str) -> Iterator[None]:
        """Trouble of a kind while the block lasts."""
        with self._lock:
            self._now[kind] += 1
            self.counts[kind] += 1
        try:
            yield
        finally:
            with self._lock:
                self._now[kind] -= 1
                self._ended[kind] = next(self._clock)

    # -- kinds ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def fault(self, rng: random.Random) -> Iterator[None]:
        """Have one of the next allocations fail."""
        kinds = rng.choice(((), ("host",), ("rpcmem",), ("tcm",), ("opencl",)))
        with self.trouble("fault"), memory.fault(rng.randint(1, 4), *kinds, times=rng.randint(1, 3)):
            yield

    @contextmanager
    def limit(self, rng: random.Random) -> Iterator[None]:
        """Let memory be short."""
        with self.trouble("limit"), memory.limit(rng.choice((0, 64, 4096, 1 << 16)), *rng.choice(((), ("rpcmem",)))):
            yield

    @contextmanager
    def descriptors(self, rng: random.Random) -> Iterator[None]:
        """Let there be hardly a file descriptor left."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        with self.trouble("descriptors"):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + rng.randint(0, 4), before[1]))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)

    # -- signals -------------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Take the signals of two timers for interrupts. In the main thread."""
        signal.signal(signal.SIGALRM, self._raise)
        signal.signal(signal.SIGVTALRM, self._raise)
        # A library in C has an interrupt come up again, as SIGINT, where it was called from.
        signal.signal(signal.SIGINT, self._raise_again)

    @contextmanager
    def interrupts(self, rng: random.Random) -> Iterator[None]:
        """Have an exception come up at some moment of the block, or not at all. In the main thread."""
        delay, kind = 10 ** rng.uniform(-5, -2), rng.choice(INTERRUPTS)
        # By a clock on the wall or one that counts work; armed last, so that it meets the block and not this.
        number = rng.choice((signal.SIGALRM, signal.SIGVTALRM))
        timer = signal.ITIMER_REAL if number == signal.SIGALRM else signal.ITIMER_VIRTUAL
        self._armed = kind
        try:
            signal.setitimer(timer, delay)
            yield
        finally:
            self._armed = None
            signal.setitimer(timer, 0)

    def _raise_again(self, number: int, frame: FrameType | None) -> None:
        again, self._may_come_again = self._may_come_again, False
        raise Interrupt("in the midst of a call in C") if again else KeyboardInterrupt

    def _raise(self, number: int, frame: FrameType | None) -> None:
        raised, self._armed = self._armed, None
        if raised is not None:
            self.counts["interrupts"] += 1
            self._may_come_again = raised is Interrupt
            self.landed.append(" > ".join(_innermost(frame)))
            raise raised("in the midst of a call")


def _innermost(frame: FrameType | None) -> list[str]:
    """The last lines under way, outermost first; `traceback` would keep the text of every file that it names."""
    found: list[str] = []
    while frame is not None and len(found) < _FRAMES_TOLD:
        found.insert(0, f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return found
