"""Who may run next: at most so many executions at a time, one of a lane, higher priorities first, else in order.

What is no execution takes a turn of its lane without a unit: it waits for its own lane only, however busy others are.

A turn is an entry in one table: which thread has which lane. That is put there and taken away in one move each, all
else follows from it, and to end a turn is safe to repeat. So an interrupt leaves nothing half done that the same
thread, or whoever waits next, does not set right.
"""

from __future__ import annotations

import itertools
import math
import threading
from dataclasses import dataclass, field

from isthmus.backends.seam.deadlines import CHUNK, Patience
from isthmus.system.shield import check


@dataclass(order=True)
class _Waiter:
    precedence: int
    number: int
    lane: object = field(compare=False)
    thread: int = field(compare=False)
    unit: bool = field(compare=False)
    turn: threading.Lock = field(compare=False, default_factory=threading.Lock)


class Gate:
    """The way to an accelerator with a number of units.

    Parameters
    ----------
    units
        How many executions may run at a time.
    """

    def __init__(self, units: int) -> None:
        self._units = units
        self._lock = threading.Lock()
        self._busy: dict[object, tuple[int, bool]] = {}
        """The thread that has a lane, and whether it has a unit, for every lane whose turn it is."""
        self._waiting: list[_Waiter] = []
        self._numbers = itertools.count()

    def enter(self, lane: object, priority: int, seconds: float | None = None, unit: bool = True) -> bool:
        """Wait for a turn of this lane, at most so long; whether it has come.

        A thread that asks for a turn which it has already was interrupted before it could end it, and keeps it.

        Parameters
        ----------
        unit
            Whether it is for an execution, which needs one of the units, too.
        """
        me = threading.get_ident()
        try:
            with self._lock:
                having = self._busy.get(lane)
                if having is not None and having[0] == me:
                    return True
                if having is None and not self._waiting and self._has(unit):
                    self._busy[lane] = me, unit
                    return True
                waiter = _Waiter(-priority, next(self._numbers), lane, me, unit)
                waiter.turn.acquire()
                self._waiting.append(waiter)
                self._admit()
            return self._wait(waiter, math.inf if seconds is None else seconds)
        except BaseException:
            try:
                self._withdraw(lane)
            except BaseException:
                # Interrupted once more.
                self._withdraw(lane)
                raise
            raise

    def _wait(self, waiter: _Waiter, seconds: float) -> bool:
        """Wait until it is this one's turn."""
        patience = Patience(seconds)
        while True:
            left = patience.left()
            if waiter.turn.acquire(timeout=max(0.0, min(left, CHUNK))):
                return True
            check()
            with self._lock:
                # Whoever ended a turn may have been interrupted before this.
                self._admit()
                if self._is_busy_for(waiter.thread, waiter.lane):
                    return True
                if left <= 0:
                    self._waiting.remove(waiter)
                    return False

    def leave(self, lane: object) -> None:
        """End the turn; safe to call again, and without having it."""
        with self._lock:
            if self._is_busy_for(threading.get_ident(), lane):
                del self._busy[lane]
            if self._waiting:
                self._admit()

    def _withdraw(self, lane: object) -> None:
        """Neither wait for a turn any longer nor have it."""
        me = threading.get_ident()
        with self._lock:
            self._waiting = [waiter for waiter in self._waiting if waiter.thread != me]
        self.leave(lane)

    def _admit(self) -> None:
        for waiter in sorted(self._waiting):
            if waiter.lane not in self._busy and self._has(waiter.unit):
                self._busy[waiter.lane] = waiter.thread, waiter.unit
            if self._is_busy_for(waiter.thread, waiter.lane):
                self._waiting.remove(waiter)
                waiter.turn.release()

    def _has(self, unit: bool) -> bool:
        """Tell whether there is a unit, if one is needed."""
        if not unit or len(self._busy) < self._units:
            return True
        return sum(taken for _, taken in self._busy.values()) < self._units

    def _is_busy_for(self, thread: int, lane: object) -> bool:
        """Tell whether this thread has the turn of a lane."""
        having = self._busy.get(lane)
        return having is not None and having[0] == thread
