"""What ends an execution before it is done: a time limit, or somebody who says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from isthmus.errors import Code, QnnError

_HINT = "Its outputs and states are undefined; reset() restores states."


class Limit:
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

    @contextmanager
    def watched(self, abort: Callable[[], None]) -> Iterator[None]:
        """While the block lasts, `trigger` calls `abort`."""
        with self._lock:
            self._abort = abort
        try:
            yield
        finally:
            with self._lock:
                self._abort = None

    def trigger(self) -> None:
        """End the execution that is under way, if one is."""
        with self._lock:
            if self._abort is not None:
                self._abort()

    def timed_out(self, what: str) -> QnnError:
        """The error of an execution that took too long."""
        rule = f"it has not ended within {self.seconds:g} s and was aborted"
        return QnnError(Code.GRAPH_TIMED_OUT, what, rule, _HINT)


def aborted(what: str) -> QnnError:
    """The error of an execution that somebody ended."""
    return QnnError(Code.GRAPH_ABORTED, what, "its execution was aborted", _HINT)
