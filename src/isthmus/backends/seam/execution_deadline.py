"""What ends an execution before it is done: a time limit, or somebody who says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from isthmus.errors import Code, QnnError

_HINT = "Its outputs and states are undefined; reset() restores states."


class ExecutionDeadline:
    """A bound on one execution after the other.

    Parameters
    ----------
    seconds
        How long an execution may take; as long as it likes without it.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._abort: Callable[[], None] | None = None
        self._begun = time.monotonic()
        self._triggered = False

    def begin(self) -> None:
        """Count from now on: for one execution, from when it was asked for."""
        with self._lock:
            self._begun, self._triggered = time.monotonic(), False

    @property
    def left(self) -> float | None:
        """Seconds that are left."""
        return None if self.seconds is None else self.seconds - (time.monotonic() - self._begun)

    def check(self, what: str) -> None:
        """Refuse an execution whose turn came too late, or that was ended before."""
        if self._triggered:
            raise aborted(what)
        if self.left is not None and self.left <= 0:
            raise self.timed_out(what)

    @contextmanager
    def watched(self, abort: Callable[[], None]) -> Iterator[None]:
        """While the block lasts, `trigger` calls `abort`."""
        with self._lock:
            self._abort = abort
            if self._triggered:
                abort()
        try:
            yield
        finally:
            with self._lock:
                self._abort = None

    def trigger(self) -> None:
        """End the execution that is under way or waits for its turn, if one does."""
        with self._lock:
            self._triggered = True
            if self._abort is not None:
                self._abort()

    def timed_out(self, what: str) -> QnnError:
        """The error of an execution that took too long."""
        rule = f"it has not ended within {self.seconds:g} s and was aborted"
        return QnnError(Code.GRAPH_TIMED_OUT, what, rule, _HINT)


def aborted(what: str) -> QnnError:
    """The error of an execution that somebody ended."""
    return QnnError(Code.GRAPH_ABORTED, what, "its execution was aborted", _HINT)
