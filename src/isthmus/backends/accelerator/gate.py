"""Scheduling of executions: a limited number at a time, one per queue, higher priorities first, else in order.

Work other than executions takes its queue's lock without a unit: it waits for its own queue only, however busy others
are.

One table says which thread holds the lock of which queue. An entry is added and removed in a single step each,
everything else follows from it, and releasing is safe to repeat. So whatever an interrupt leaves unfinished, the same
thread or the next waiting one completes.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from dataclasses import dataclass, field

from isthmus.backends.seam.deadlines import CHUNK, Patience
from isthmus.system.shield import check


@dataclass(order=True)
class _Waiter:
    """A thread that waits for a queue's lock. Waiters are sorted by precedence, then by number.

    Parameters
    ----------
    precedence
        The negated priority: a smaller one comes first.
    number
        The order of arrival.
    queue, thread
        The queue whose lock it waits for, and the thread's id.
    unit
        Whether it also needs a unit.
    lock
        Locked until it has got the queue's lock, so that the thread can sleep on it.
    """

    precedence: int
    number: int
    queue: object = field(compare=False)
    thread: int = field(compare=False)
    unit: bool = field(compare=False)
    lock: threading.Lock = field(compare=False, default_factory=threading.Lock)


class Gate:
    """The access to an accelerator with a number of units.

    Parameters
    ----------
    units
        Maximum number of concurrent executions.
    """

    def __init__(self, units: int) -> None:
        self._units = units
        # Held only briefly, while the tables below are read or changed.
        self._lock = threading.Lock()
        self._busy: dict[object, tuple[int, bool]] = {}
        """The thread that holds each locked queue, and whether it has a unit."""
        self._waiting: list[_Waiter] = []
        self._numbers = itertools.count()

    def enter(self, queue: object, priority: int, seconds: float | None = None, unit: bool = True) -> bool:
        """Wait for a queue's lock, up to a time limit; return whether it was acquired.

        A thread that already holds the lock was interrupted before it could release it, and keeps it.

        Parameters
        ----------
        unit
            Whether it is for an execution, which also needs one of the units.
        """
        thread = threading.get_ident()
        try:
            with self._lock:
                holder = self._busy.get(queue)
                if holder is not None and holder[0] == thread:
                    return True
                # While the interpreter exits, other threads do not run any more and release nothing.
                if sys.is_finalizing() or (holder is None and not self._waiting and self._has_unit(unit)):
                    self._busy[queue] = thread, unit
                    return True
                waiter = _Waiter(-priority, next(self._numbers), queue, thread, unit)
                waiter.lock.acquire()
                self._waiting.append(waiter)
                self._admit()
            return self._wait(waiter, math.inf if seconds is None else seconds)
        except BaseException:
            try:
                self._withdraw(queue)
            except BaseException:
                # Interrupted again.
                self._withdraw(queue)
                raise
            raise

    def _wait(self, waiter: _Waiter, seconds: float) -> bool:
        """Wait until the waiter has the lock of its queue, up to a time limit; return whether it has."""
        patience = Patience(seconds)
        while True:
            left = patience.left()
            if waiter.lock.acquire(timeout=max(0.0, min(left, CHUNK))):
                return True
            check()
            with self._lock:
                # A thread that released a queue may have been interrupted before it did this.
                self._admit()
                if self._is_busy_for(waiter.thread, waiter.queue):
                    return True
                if left <= 0:
                    self._waiting.remove(waiter)
                    return False

    def leave(self, queue: object) -> None:
        """Release the lock of a queue; safe to call again, and without holding it."""
        with self._lock:
            if self._is_busy_for(threading.get_ident(), queue):
                del self._busy[queue]
            if self._waiting:
                self._admit()

    def _withdraw(self, queue: object) -> None:
        """Stop waiting for a queue's lock, and release it."""
        thread = threading.get_ident()
        with self._lock:
            self._waiting = [waiter for waiter in self._waiting if waiter.thread != thread]
        self.leave(queue)

    def _admit(self) -> None:
        """Give free queues to the waiters that are first in order, and wake them; the caller holds `_lock`."""
        for waiter in sorted(self._waiting):
            if waiter.queue not in self._busy and self._has_unit(waiter.unit):
                self._busy[waiter.queue] = waiter.thread, waiter.unit
            # Also true if an interrupt ended an earlier call between these two steps.
            if self._is_busy_for(waiter.thread, waiter.queue):
                self._waiting.remove(waiter)
                waiter.lock.release()

    def _has_unit(self, needed: bool) -> bool:
        """Return whether a unit is free, if one is needed."""
        if not needed or len(self._busy) < self._units:
            return True
        return sum(has_unit for _, has_unit in self._busy.values()) < self._units

    def _is_busy_for(self, thread: int, queue: object) -> bool:
        """Return whether this thread holds the lock of a queue."""
        holder = self._busy.get(queue)
        return holder is not None and holder[0] == thread
