"""Profiles: time and memory that graphs used (QnnProfile_*)."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from statistics import median

from isthmus.backends.seam.driver import Timings
from isthmus.errors import Code, QnnError
from isthmus.qnn.backend import Backend
from isthmus.qnn.handle import Handle

OPERATION = "operation: "
"""How the names of events of single operations begin."""


class ProfileLevel(IntEnum):
    """QNN_PROFILE_LEVEL_*."""

    BASIC = 1
    DETAILED = 2


@dataclass(frozen=True)
class ProfilingEvent:
    """One measurement: name, value and unit."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class ExecutionSpans:
    """When an execution and its parts ran, in seconds on the system's monotonic clock.

    - `begin`, `end`: The execution, without the preparation of its measurement as far as that is known.
    - `timings`: The times of operations, when they ran if the backend measures that, and the caller's copies and
      waiting.
    """

    graph: str
    begin: float
    end: float
    thread: str
    timings: Timings


def median_times(events: Iterable[ProfilingEvent]) -> dict[str, float]:
    """Return the median time of each operation in microseconds, by its name, from the events of several executions."""
    times: dict[str, list[float]] = {}
    for event in events:
        if event.name.startswith(OPERATION):
            times.setdefault(event.name.removeprefix(OPERATION), []).append(event.value)
    return {name: median(values) for name, values in times.items()}


class Profile(Handle):
    """A collector of events from the calls it is passed to (QnnProfile_create).

    BASIC records the time of each call; DETAILED also the memory that executions used in place or copied, and the time
    of each operation.

    Examples
    --------
    >>> from isthmus import qnn
    >>> with qnn.Backend("cpu") as backend:
    ...     profile = qnn.Profile(backend, qnn.ProfileLevel.DETAILED)
    ...     profile.get_events()
    ()
    """

    invalid = Code.COMMON_INVALID_ARGUMENT

    def __init__(self, backend: Backend, level: ProfileLevel | int = ProfileLevel.BASIC) -> None:
        if not isinstance(backend, Backend):
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "profile", f"{backend!r} is not a backend")
        try:
            self.level = ProfileLevel(level)
        except ValueError:
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT, f"profile level {level!r}", "must be BASIC 1 or DETAILED 2"
            ) from None
        super().__init__("profile", backend)
        self._events: list[ProfilingEvent] = []
        self._spans: list[ExecutionSpans] = []
        # Guards `_events`: several executions may use one profile.
        self._writing = threading.Lock()

    def add(self, *events: ProfilingEvent) -> None:
        """Record events."""
        self._check()
        with self._writing:
            self._events.extend(events)

    def add_spans(self, spans: ExecutionSpans) -> None:
        """Record when an execution ran."""
        self._check()
        with self._writing:
            self._spans.append(spans)

    def get_spans(self) -> tuple[ExecutionSpans, ...]:
        """Return when each execution so far ran, if the profile is DETAILED."""
        self._check()
        return tuple(self._spans)

    def get_events(self, since: int = 0) -> tuple[ProfilingEvent, ...]:
        """Return the events so far (QnnProfile_getEvents), without the first `since`, which the caller has already."""
        self._check()
        return tuple(self._events[since:])
