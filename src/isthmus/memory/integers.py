"""Whole numbers as clients give them: Python's and numpy's, and no truth values."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError

_LONGEST = 60


def is_int(value: object) -> bool:
    """Whether a value is a whole number, one of numpy's too; a truth value is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_int(value: Any, what: str, code: Code = Code.COMMON_INVALID_ARGUMENT) -> int:
    """A whole number, or a refusal."""
    if not is_int(value):
        text = repr(value)
        shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
        raise QnnError(code, what, f"{shown} is not a whole number")
    return int(value)
