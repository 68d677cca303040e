"""How long one piece of code may take to be compiled before something is thought to be wrong."""

from __future__ import annotations

import math
import os

from isthmus.errors import Code, QnnError

_DEFAULT = 300.0
"""Far beyond what the largest kernel takes on a slow machine: some seconds."""


def seconds_of_patience() -> float:
    """``ISTHMUS_COMPILE_SECONDS``, or five minutes."""
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
