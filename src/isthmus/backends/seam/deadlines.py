"""How long the client waits for its accelerator before it ends it."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace

from isthmus.errors import Code, QnnError

CHUNK = 0.5
"""The longest wait in one piece, in seconds."""
_VARIABLE = "ISTHMUS_TIMEOUT"


@dataclass(frozen=True)
class Deadlines:
    """Seconds; `math.inf` waits for ever.

    Parameters
    ----------
    starting
        For the process to start.
    control
        For a control call: a registration, loading a binary.
    execution
        For an execution, unless it brings a time limit of its own.
    closing
        For an execution that is under way when its lane is closed, and for the accelerator's answer to that.
    grace
        For an execution that was aborted, since it ends only after the instruction that is under way. Then the
        accelerator is ended: what nobody waits for must not go on writing into the client's memory.

    Examples
    --------
    >>> Deadlines(execution=5).execution
    5
    """

    starting: float = 60.0
    control: float = 60.0
    execution: float = 600.0
    closing: float = 10.0
    grace: float = 1.0

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
                rule = "must be a number of seconds that is not negative"
                raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"deadline {name} = {seconds!r}", rule)

    @staticmethod
    def from_environment() -> Deadlines:
        """The defaults, with the seconds of ``ISTHMUS_TIMEOUT`` for executions; 0 there means no limit."""
        text = os.environ.get(_VARIABLE)
        if not text:
            return Deadlines()
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not seconds >= 0:
            rule = "must be a number of seconds that is not negative; 0 means no limit"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"{_VARIABLE}={text}", rule)
        return replace(Deadlines(), execution=seconds or math.inf)


class Patience:
    """What is left of a time, for someone who waits in pieces of at most `CHUNK`.

    Time in which the waiting process was itself stopped, and whom it waits for perhaps with it, is not counted.

    Parameters
    ----------
    seconds
        How long it lasts.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._last = time.monotonic()

    def left(self) -> float:
        """Seconds that are left; none if not positive."""
        now = time.monotonic()
        self._left -= min(now - self._last, 2 * CHUNK)
        self._last = now
        return self._left
