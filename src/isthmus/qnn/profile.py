"""Profiles: what graphs took time and memory for (QnnProfile_*)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import IntEnum

from isthmus.errors import Code, QnnError
from isthmus.qnn.backend import Backend
from isthmus.qnn.handle import Handle


class ProfileLevel(IntEnum):
    """QNN_PROFILE_LEVEL_*."""

    BASIC = 1
    DETAILED = 2


@dataclass(frozen=True)
class ProfilingEvent:
    """One measurement: what, how much, in which unit."""

    name: str
    value: float
    unit: str


class Profile(Handle):
    """Collects events of the calls it is handed to (QnnProfile_create).

    BASIC tells the time of each call; DETAILED also the memory that executions used in place or copied.

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
        self._writing = threading.Lock()

    def add(self, *events: ProfilingEvent) -> None:
        """Note events."""
        self._check()
        with self._writing:
            self._events.extend(events)

    def get_events(self) -> tuple[ProfilingEvent, ...]:
        """All events so far (QnnProfile_getEvents)."""
        self._check()
        return tuple(self._events)
