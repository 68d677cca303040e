"""A turn that is given in the order of asking, so that nobody who waits is overtaken for ever.

A thread that executes in a tight loop takes an ordinary lock again before anyone who waits for it has woken up.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque

from isthmus.lock import Lock


class PlainTurn(Lock):  # type: ignore[misc]
    """A lock as a turn: taken and ended by the system lock's own calls, which no handler of a signal can divide."""

    def forsake(self) -> None:
        """Nothing: it has ended with its ``with``."""


class FairTurn(PlainTurn):  # type: ignore[misc]
    """A lock that serves in the order of asking.

    An exception that a signal's handler raises never leaves it taken. To end it is the system lock's own call, which no
    handler can come before; and who is interrupted while taking it gives it back.

    Examples
    --------
    >>> turn = FairTurn()
    >>> with turn:
    ...     turn.is_taken
    True
    >>> turn.is_taken
    False
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    @property
    def is_taken(self) -> bool:
        """Whether somebody has it."""
        if self._is_owned():  # type: ignore[attr-defined]
            return True
        free = super().acquire(blocking=False)
        if free:
            self.release()
        return not free

    def acquire(self) -> None:  # type: ignore[override]
        """Wait for the turn."""
        try:
            if self._waiting or not super().acquire(blocking=False):
                self._queue()
        except BaseException:
            if self._is_owned():  # type: ignore[attr-defined]
                self.release()
            raise

    __enter__ = acquire  # type: ignore[assignment]

    def _queue(self) -> None:
        """Wait in line, and take the turn when those before have had it."""
        called = threading.Lock()
        called.acquire()
        try:
            with self._lock:
                self._waiting.append(called)
                if self._waiting[0] is called:
                    called.release()
            called.acquire()
            super().acquire()
        finally:
            try:
                self._leave(called)
            except BaseException:
                self._leave(called)
                raise

    def _leave(self, called: threading.Lock) -> None:
        """Wait no longer, and let the next be the first; safe to call again."""
        with self._lock:
            if called in self._waiting:
                self._waiting.remove(called)
            if self._waiting:
                # One that was called before needs no second call.
                with contextlib.suppress(RuntimeError):
                    self._waiting[0].release()

    def _free_after_fork(self) -> None:
        super()._free_after_fork()
        self._lock = threading.Lock()
        self._waiting.clear()
