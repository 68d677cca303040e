"""Integers as clients pass them: Python's and numpy's, but no booleans."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError

# Characters of a refused value that a message shows.
_MAX_QUOTED = 60


def is_int(value: object) -> bool:
    """Return whether a value is an integer, numpy's included; booleans are not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_int(value: Any, what: str, code: Code = Code.COMMON_INVALID_ARGUMENT) -> int:
    """Return a value as an int, or refuse it with `code`; `what` names its purpose in the message."""
    if not is_int(value):
        text = repr(value)
        shown = text if len(text) <= _MAX_QUOTED else f"{text[: _MAX_QUOTED - 3]}..."
        raise QnnError(code, what, f"{shown} is not an integer")
    return int(value)
