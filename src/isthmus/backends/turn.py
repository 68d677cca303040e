"""A turn that is given in the order of asking, so that nobody who waits is overtaken for ever.

A thread that executes in a tight loop takes an ordinary lock again before anyone who waits for it has woken up.
"""

from __future__ import annotations

import threading
from collections import deque


class FairTurn:
    """A lock that serves in the order of asking, and again whoever has it.

    Whoever has it may ask again, for the garbage collector may end a binding in the middle of another's turn.

    Examples
    --------
    >>> turn = FairTurn()
    >>> with turn, turn:
    ...     turn.is_taken
    True
    >>> turn.is_taken
    False
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    @property
    def is_taken(self) -> bool:
        """Whether somebody has it."""
        return self._owner is not None

    def acquire(self) -> None:
        """Wait for the turn."""
        me = threading.get_ident()
        with self._lock:
            if self._owner is None or self._owner == me:
                self._owner = me
                self._depth += 1
                return
            called = threading.Lock()
            called.acquire()
            self._waiting.append((me, called))
        try:
            called.acquire()
        except BaseException:
            with self._lock:
                if (me, called) in self._waiting:
                    self._waiting.remove((me, called))
                    raise
            self.release()
            raise

    def release(self) -> None:
        """End it, and call the one who has waited longest."""
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._owner = None
                if self._waiting:
                    self._owner, called = self._waiting.popleft()
                    self._depth = 1
                    called.release()

    def __enter__(self) -> FairTurn:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
