"""Who may run next: at most so many executions at a time, one of a lane, higher priorities first, else in order."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field


@dataclass(order=True)
class _Waiter:
    precedence: int
    number: int
    lane: object = field(compare=False)
    turn: threading.Lock = field(compare=False, default_factory=threading.Lock)


class Gate:
    """The way to an accelerator with a number of units.

    Parameters
    ----------
    units
        How many executions may run at a time.
    """

    def __init__(self, units: int) -> None:
        self._lock = threading.Lock()
        self._free = units
        self._busy: set[object] = set()
        self._waiting: list[_Waiter] = []
        self._numbers = itertools.count()

    def enter(self, lane: object, priority: int, seconds: float | None = None) -> bool:
        """Wait for a turn of this lane, at most so long; whether it has come."""
        with self._lock:
            if self._free > 0 and lane not in self._busy and not self._waiting:
                self._free -= 1
                self._busy.add(lane)
                return True
            waiter = _Waiter(-priority, next(self._numbers), lane)
            waiter.turn.acquire()
            self._waiting.append(waiter)
            self._admit()
        try:
            if waiter.turn.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX)):
                return True
        except BaseException:
            if not self._withdraw(waiter):
                self.leave(lane)
            raise
        return not self._withdraw(waiter)

    def _withdraw(self, waiter: _Waiter) -> bool:
        """Wait no longer; false if the turn has come in the last moment."""
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                return True
            return False

    def leave(self, lane: object) -> None:
        """End the turn."""
        with self._lock:
            self._busy.discard(lane)
            self._free += 1
            if self._waiting:
                self._admit()

    def _admit(self) -> None:
        for waiter in sorted(self._waiting):
            if self._free <= 0:
                return
            if waiter.lane not in self._busy:
                self._waiting.remove(waiter)
                self._free -= 1
                self._busy.add(waiter.lane)
                waiter.turn.release()
