"""A turn that is given in the order of asking, so that nobody who waits is overtaken for ever.

A thread that executes in a tight loop takes an ordinary lock again before anyone who waits for it has woken up.
"""

from __future__ import annotations

import threading

from isthmus.system.lock import Lock


class ExecutionLock(Lock):  # type: ignore[misc]
    """A lock as a turn: taken and ended by the system lock's own calls, which no handler of a signal can divide."""

    def forsake(self) -> None:
        """Nothing: it has ended with its ``with``."""


class FairLock(ExecutionLock):  # type: ignore[misc]
    """A lock that serves in the order of asking.

    However many exceptions the handlers of signals raise, none leaves it taken, or somebody in the line who is not
    there: what ends a turn, and what ends a place in the line, is one call of a lock of the system's, the first after
    whatever went wrong. No handler can come before it.

    Examples
    --------
    >>> turn = FairLock()
    >>> with turn:
    ...     turn.is_taken
    True
    >>> turn.is_taken
    False
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._last = _Place()
        self._last.kept.release()

    @property
    def is_taken(self) -> bool:
        """Whether somebody has it."""
        if self._is_owned():  # type: ignore[attr-defined]
            return True
        free = super().acquire(blocking=False)
        if free:
            self.release()
        return not free

    @property
    def is_awaited(self) -> bool:
        """Whether somebody stands in line."""
        return self._last.kept.locked()

    def acquire(self) -> None:  # type: ignore[override]
        """Wait for the turn."""
        try:
            if self._last.kept.locked() or not super().acquire(blocking=False):
                self._queue()
        except BaseException:
            # Any other call before it would be a place for the next interrupt.
            try:  # noqa: SIM105
                self.release()
            except RuntimeError:
                pass
            raise

    __enter__ = acquire  # type: ignore[assignment]

    def _queue(self) -> None:
        """Wait in line, and take the turn when those before have had it."""
        mine = _Place()
        place: _Place | None
        try:
            with self._lock:
                mine.before, self._last = self._last, mine
            place = mine.before
            while place is not None:
                with place.kept:
                    pass
                place = place.before
            mine.before = None
            super().acquire()
        finally:
            mine.kept.release()

    def _free_after_fork(self) -> None:
        super()._free_after_fork()
        self._lock = threading.Lock()
        self._last = _Place()
        self._last.kept.release()


class _Place:
    """A place in the line.

    `kept` is locked until whoever has it leaves; `before` is the place before it, for whoever comes behind one that
    was left too soon, and nothing once all before it have left.
    """

    __slots__ = ("before", "kept")

    def __init__(self) -> None:
        self.before: _Place | None = None
        self.kept = threading.Lock()
        self.kept.acquire()
