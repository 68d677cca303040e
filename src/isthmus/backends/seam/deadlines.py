"""Time limits for the accelerator, after which its client kills it."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace

from isthmus.errors import Code, QnnError

CHUNK = 0.5
"""The longest single wait, in seconds."""
_VARIABLE = "ISTHMUS_TIMEOUT"


@dataclass(frozen=True)
class Deadlines:
    """Time limits in seconds; `math.inf` waits forever.

    - `starting`: For the process to start.
    - `control`: For a control call: a registration, loading a binary.
    - `execution`: For an execution without a time limit of its own.
    - `closing`: For a running execution when its queue is closed, and for the accelerator's reply to the close.
    - `grace`: For an aborted execution, which ends only after its current instruction. Then the accelerator is killed:
      an abandoned execution must not go on writing into the client's memory.

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
        """Return the defaults, with ``ISTHMUS_TIMEOUT`` seconds for executions; 0 there means no limit."""
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
    """The rest of a time limit, for a wait in pieces of at most `CHUNK`.

    Time in which the waiting process was stopped, and perhaps the other process with it, is not counted.

    - `seconds`: The time limit.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._last = time.monotonic()

    def left(self) -> float:
        """Return the seconds that are left; zero or less when the time is over."""
        now = time.monotonic()
        # The caller waits for at most `CHUNK` between two calls. If more time has passed, this process was stopped.
        self._left -= min(now - self._last, 2 * CHUNK)
        self._last = now
        return self._left
