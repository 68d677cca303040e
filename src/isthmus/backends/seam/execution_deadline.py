"""Early ends of an execution: a time limit, or an abort by the client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from isthmus.errors import Code, QnnError

_HINT = "Its outputs and states are undefined; reset() restores states."


class ExecutionDeadline:
    """A bound on executions, one after the other: `begin` starts the time of each one.

    - `seconds`: The time limit of an execution. By default none.
    - `_begun`: The time at which the current execution was requested.
    - `_triggered`: Whether it was aborted.
    - `_abort`: The function that aborts it, while it is running.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._abort: Callable[[], None] | None = None
        self._begun = time.monotonic()
        self._triggered = False

    def begin(self) -> None:
        """Start the time limit of one execution, at the moment of its request."""
        with self._lock:
            self._begun, self._triggered = time.monotonic(), False

    @property
    def left(self) -> float | None:
        """Seconds that are left; None without a limit."""
        return None if self.seconds is None else self.seconds - (time.monotonic() - self._begun)

    def check(self, what: str) -> None:
        """Refuse an execution that got the execution lock too late, or that was aborted before."""
        if self._triggered:
            raise abort_error(what)
        if self.left is not None and self.left <= 0:
            raise self.timeout_error(what)

    @contextmanager
    def watched(self, abort: Callable[[], None]) -> Iterator[None]:
        """Let `trigger` call `abort` inside the block; if it was called before, call `abort` now."""
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
        """Abort the execution that runs or waits for the execution lock, if there is one."""
        with self._lock:
            self._triggered = True
            if self._abort is not None:
                self._abort()

    def timeout_error(self, what: str) -> QnnError:
        """Return the error of an execution that took too long."""
        rule = f"it did not end within {self.seconds:g} s and was aborted"
        return QnnError(Code.GRAPH_TIMED_OUT, what, rule, _HINT)


def abort_error(what: str) -> QnnError:
    """Return the error of an execution that was aborted."""
    return QnnError(Code.GRAPH_ABORTED, what, "its execution was aborted", _HINT)
