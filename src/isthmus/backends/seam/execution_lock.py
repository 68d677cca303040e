"""Execution locks. The fair one is given in the order of requests, so that no waiting thread is overtaken forever.

A thread that executes in a tight loop takes an ordinary lock again before any waiting thread has woken up.
"""

from __future__ import annotations

import threading

from isthmus.system.lock import Lock


class ExecutionLock(Lock):  # type: ignore[misc]
    """A lock for executions: the system lock's own calls take and release it, which no signal handler can split."""

    def release_if_held(self) -> None:
        """Do nothing: the end of a ``with`` is one C call, so it has released the lock."""


class FairLock(ExecutionLock):  # type: ignore[misc]
    """A lock that is given in the order of requests.

    Waiting threads form a line: each has a place, and waits until the thread in front has left its own.

    Whatever exceptions signal handlers raise, the lock is never left taken, nor a departed thread in the line.
    Releasing the lock, or a place in the line, is a single call of a system lock, and it is the first call after an
    exception. No handler can run before it.

    - `_last`: The last place in the line. If it has been left, no thread waits.
    - `_lock`: Guards `_last`.

    >>> lock = FairLock()
    >>> with lock:
    ...     lock.is_taken
    True
    >>> lock.is_taken
    False
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._last = _Place()
        self._last.occupied.release()

    @property
    def is_taken(self) -> bool:
        """Whether a thread has it."""
        # A reentrant lock would let the thread that holds it take it again.
        if self._is_owned():  # type: ignore[attr-defined]
            return True
        free = super().acquire(blocking=False)
        if free:
            self.release()
        return not free

    @property
    def is_awaited(self) -> bool:
        """Whether a thread waits for it."""
        return self._last.occupied.locked()

    def acquire(self) -> None:  # type: ignore[override]
        """Wait for the lock and take it."""
        try:
            if self._last.occupied.locked() or not super().acquire(blocking=False):
                self._queue()
        except BaseException:
            # The lock may or may not have been taken. It is released without asking, because any call before that
            # would be a point for the next interrupt; a thread that does not hold it gets a RuntimeError.
            try:  # noqa: SIM105
                self.release()
            except RuntimeError:
                pass
            raise

    __enter__ = acquire  # type: ignore[assignment]

    def _queue(self) -> None:
        """Wait in line, and take the lock after those in front."""
        mine = _Place()
        place: _Place | None
        try:
            with self._lock:
                mine.before, self._last = self._last, mine
            place = mine.before
            # An interrupted thread leaves its place while others are still in front of it: wait for all of these too.
            while place is not None:
                with place.occupied:
                    pass
                place = place.before
            mine.before = None
            super().acquire()
        finally:
            mine.occupied.release()

    def _free_after_fork(self) -> None:
        """Make the lock free in a forked child, unless the forking thread holds it; no other thread exists there."""
        super()._free_after_fork()
        self._lock = threading.Lock()
        self._last = _Place()
        self._last.occupied.release()


class _Place:
    """A place in the line of waiting threads."""

    # `occupied` is locked until the thread at this place leaves. `before` is the place in front, for the thread behind
    # one that left early; it is None once all in front have left.

    __slots__ = ("before", "occupied")

    def __init__(self) -> None:
        self.before: _Place | None = None
        self.occupied = threading.Lock()
        self.occupied.acquire()
