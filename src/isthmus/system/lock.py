"""A lock that survives a fork: if another thread held it, it is free in the child.

Only the forking thread continues in the child. A lock held by another thread would never be released there.
"""

from __future__ import annotations

import os
import weakref
from _thread import RLock

# All locks of this process.
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock(RLock):  # type: ignore[misc]
    """A reentrant lock that is free in a forked child, unless the forking thread holds it.

    >>> lock = Lock()
    >>> with lock, lock:
    ...     lock.acquire(blocking=False)
    True
    """

    def __init__(self) -> None:
        _locks.add(self)

    def _free_after_fork(self) -> None:
        """Make the lock free in a forked child, unless the thread that forked holds it."""
        # The forking thread continues in the child and releases what it holds.
        if not self._is_owned():  # type: ignore[attr-defined]
            self._at_fork_reinit()  # type: ignore[attr-defined]


def _after_fork() -> None:
    """Free all locks in a forked child."""
    for lock in list(_locks):
        lock._free_after_fork()


os.register_at_fork(after_in_child=_after_fork)
