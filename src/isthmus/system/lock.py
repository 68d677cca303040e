"""The lock of what outlives a fork: one that another thread held then is free in the child.

Only the thread that forks goes on in the child. A lock that another one held there would never be released.
"""

from __future__ import annotations

import os
import weakref
from _thread import RLock

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock(RLock):  # type: ignore[misc]
    """A lock that its holder can take again, and that a forked child finds free.

    Examples
    --------
    >>> lock = Lock()
    >>> with lock, lock:
    ...     lock.acquire(blocking=False)
    True
    """

    def __init__(self) -> None:
        _locks.add(self)

    def _free_after_fork(self) -> None:
        # The thread that forked goes on in the child, and releases what it holds.
        if not self._is_owned():  # type: ignore[attr-defined]
            self._at_fork_reinit()  # type: ignore[attr-defined]


def _after_fork() -> None:
    for lock in list(_locks):
        lock._free_after_fork()


os.register_at_fork(after_in_child=_after_fork)
