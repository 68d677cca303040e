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
from typing import TYPE_CHECKING

from isthmus.backends.seam.deadlines import CHUNK, Patience
from isthmus.system.shield import check

if TYPE_CHECKING:
    from isthmus.backends.accelerator.connection import Connection

NORMAL = 100
"""QNN_PRIORITY_NORMAL."""


@dataclass(order=True)
class _Waiter:
    """A thread that waits for a queue's lock and, if `unit`, for one of the accelerator's units (`Gate`)."""

    # Waiters are sorted by precedence, then by number.
    #
    # `lock` is locked until the thread has got the queue's lock, so that it can sleep on it.

    precedence: int
    number: int
    queue: object = field(compare=False)
    thread: int = field(compare=False)
    unit: bool = field(compare=False)
    lock: threading.Lock = field(compare=False, default_factory=threading.Lock)


class Gate:
    """The access to an accelerator that runs up to `units` executions at a time: locked queues and waiting threads.

    `busy` has the thread that holds each locked queue, and whether it has a unit. `table_lock` is held only briefly,
    while the tables are read or changed.
    """

    def __init__(self, units: int, connection: Connection) -> None:
        self.units, self.connection = units, connection
        self.table_lock = threading.Lock()
        self.busy: dict[object, tuple[int, bool]] = {}
        self.waiting: list[_Waiter] = []
        self.numbers = itertools.count()

    def lock(self, queue: object, priority: int = NORMAL) -> QueueLock:
        """Return the lock of a queue, for threads of a priority."""
        return QueueLock(self, queue, priority)

    def admit(self) -> None:
        """Give free queues to the waiters that are first in order, and wake them; the caller holds `table_lock`."""
        for waiter in sorted(self.waiting):
            if waiter.queue not in self.busy and (not waiter.unit or self.has_unit()):
                self.busy[waiter.queue] = waiter.thread, waiter.unit
            # Also true if an interrupt ended an earlier call of `admit` between giving the queue and waking its thread.
            if self.holder(waiter.queue) == waiter.thread:
                self.waiting.remove(waiter)
                waiter.lock.release()

    def has_unit(self) -> bool:
        """Return whether a unit is free."""
        return sum(has_unit for _, has_unit in self.busy.values()) < self.units

    def holder(self, queue: object) -> int | None:
        """Return the thread that holds the lock of a queue, if any."""
        return self.busy[queue][0] if queue in self.busy else None


class QueueLock:
    """The lock of a queue, for threads of a priority; a context manager, for executions.

    In a forked child it cannot be acquired: the gate is in whatever state another thread left it.
    """

    def __init__(self, gate: Gate, queue: object, priority: int) -> None:
        self._gate, self._queue, self.priority = gate, queue, priority

    def acquire(self, seconds: float | None = None, unit: bool = True) -> bool:
        """Wait for the lock, and with `unit` for a unit as executions need; return whether it was acquired in time.

        A thread that already holds the lock was interrupted before it could release it, and keeps it.
        """
        gate, queue = self._gate, self._queue
        if gate.connection.forked:
            raise gate.connection.gone("execution")
        thread = threading.get_ident()
        try:
            with gate.table_lock:
                busy = gate.busy
                if queue in busy and busy[queue][0] == thread:
                    return True
                is_free = queue not in busy and not gate.waiting
                # While the interpreter exits, other threads do not run any more and release nothing.
                if (is_free and (not unit or len(busy) < gate.units or gate.has_unit())) or sys.is_finalizing():
                    busy[queue] = thread, unit
                    return True
                waiter = _Waiter(-self.priority, next(gate.numbers), queue, thread, unit)
                waiter.lock.acquire()
                gate.waiting.append(waiter)
                gate.admit()
            return self._wait(waiter, math.inf if seconds is None else seconds)
        except BaseException:
            try:
                self._withdraw()
            finally:
                # Again, because the first call may have been interrupted too.
                self._withdraw()
            raise

    def _wait(self, waiter: _Waiter, seconds: float) -> bool:
        """Wait until the waiter has the lock, up to a time limit; return whether it has."""
        gate, patience = self._gate, Patience(seconds)
        while True:
            left = patience.left()
            if waiter.lock.acquire(timeout=max(0.0, min(left, CHUNK))):
                return True
            check()
            with gate.table_lock:
                # A thread that released a queue may have been interrupted before it did this.
                gate.admit()
                if gate.holder(waiter.queue) == waiter.thread:
                    return True
                if left <= 0:
                    gate.waiting.remove(waiter)
                    return False

    def _withdraw(self) -> None:
        """Stop waiting for the lock, and release it."""
        gate, thread = self._gate, threading.get_ident()
        with gate.table_lock:
            gate.waiting = [waiter for waiter in gate.waiting if waiter.thread != thread]
        self.release()

    def release(self, *exception: object) -> None:
        """Release the lock; safe to call again, and without holding it."""
        gate, queue = self._gate, self._queue
        if gate.connection.forked:
            return
        with gate.table_lock:
            if queue in gate.busy and gate.busy[queue][0] == threading.get_ident():
                del gate.busy[queue]
            if gate.waiting:
                gate.admit()

    __enter__, __exit__, release_if_held = acquire, release, release


class GroupedLock:
    """The lock of a queue whose executions exclude those of other queues too: a lock for all of these, then its own.

    It can be used in the place of a `QueueLock`, and what leaves that usable after an interrupt does so here.

    - `group`, `own`: The lock that all queues of a group have, which takes no unit, and the queue's own.
    """

    def __init__(self, group: QueueLock, own: QueueLock) -> None:
        self._group, self._own = group, own

    @property
    def priority(self) -> int:
        """The priority of threads that wait."""
        return self._own.priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self._group.priority = self._own.priority = priority

    def acquire(self, seconds: float | None = None) -> bool:
        """Wait for both locks and a unit; return whether they were acquired, each in this time."""
        try:
            if self._group.acquire(seconds, unit=False) and self._own.acquire(seconds):
                return True
        except BaseException:
            self.release()
            raise
        self.release()
        return False

    def release(self, *exception: object) -> None:
        """Release both locks; safe to call again, and without holding them."""
        try:
            self._own.release()
        finally:
            self._group.release()

    __enter__, __exit__, release_if_held = acquire, release, release
