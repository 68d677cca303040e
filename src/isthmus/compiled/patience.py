"""The time limit for compiling one piece of code."""

from __future__ import annotations

import math
import os

from isthmus.errors import Code, QnnError

_DEFAULT = 300.0
"""Far more than the largest kernel takes on a slow machine, which is some seconds."""


def seconds_of_patience() -> float:
    """Return ``ISTHMUS_COMPILE_SECONDS``, or five minutes."""
    text = os.environ.get("ISTHMUS_COMPILE_SECONDS")
    if not text:
        return _DEFAULT
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise QnnError(
            Code.COMMON_INVALID_ARGUMENT, f"ISTHMUS_COMPILE_SECONDS '{text}'", "must be a number of seconds above 0"
        )
    return seconds
