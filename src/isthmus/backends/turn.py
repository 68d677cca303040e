"""A turn that is given in the order of asking, so that nobody who waits is overtaken for ever.

A thread that executes in a tight loop takes an ordinary lock again before anyone who waits for it has woken up.
"""

from __future__ import annotations

import threading
from collections import deque


class FairTurn:
    """A lock that serves in the order of asking.

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
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    @property
    def is_taken(self) -> bool:
        """Whether somebody has it."""
        return self._taken

    def acquire(self) -> None:
        """Wait for the turn."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            called = threading.Lock()
            called.acquire()
            self._waiting.append(called)
        try:
            called.acquire()
        except BaseException:
            with self._lock:
                if called in self._waiting:
                    self._waiting.remove(called)
                    raise
            # It was called in the very moment.
            self.release()
            raise

    def release(self) -> None:
        """End it, and call the one who has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False

    def __enter__(self) -> FairTurn:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
