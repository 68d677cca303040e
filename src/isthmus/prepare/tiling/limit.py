"""Limits on a model's scratch, as users give them: bytes, a fraction of the unlimited size, or the least."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from isthmus.errors import QnnError, invalid_argument

SLOWER = 0.05
"""The default fraction of a model's time that the least scratch may cost."""
MAX_SLOWER = 10.0
"""The maximum of that fraction."""
_SHARE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*%")
_SIZE = re.compile(r"(\d{1,15})\s*(|[kmg]i?b?|b)", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}


def parse_size(text: str) -> int | None:
    """Return the number of bytes that a text states, with or without a unit; None if it states none.

    Examples
    --------
    >>> parse_size("64KiB"), parse_size("64 KB"), parse_size("65536"), parse_size("25%")
    (65536, 64000, 65536, None)
    """
    size = _SIZE.fullmatch(text.strip())
    if size is None:
        return None
    unit = size[2].lower()
    # "KiB" and "KB" are looked up without their "b".
    return int(size[1]) * _UNITS[unit if unit in _UNITS else unit[:-1]]


@dataclass(frozen=True)
class ScratchLimit:
    """A limit on scratch.

    - `bytes`: the number of bytes; the cheapest schedule that fits is chosen.
    - `share`: a fraction of the scratch that the model needs without a limit, instead of bytes.
    - `slower`: the fraction of the model's time that the limit may cost, by estimate. With bytes or a share, a schedule
      that costs more is refused, and None allows any cost. With neither, the schedule with the least scratch within
      that cost is chosen; None then means `SLOWER`.
    """

    bytes: int | None = None
    share: float | None = None
    slower: float | None = None

    @staticmethod
    def of(value: Any, slower: Any = None) -> ScratchLimit:
        """Parse a user's limit: bytes, ``"25%"``, ``"300 KiB"`` or ``"least"``, and its maximum cost.

        Examples
        --------
        >>> ScratchLimit.of("25%"), ScratchLimit.of("300KiB").bytes
        (ScratchLimit(bytes=None, share=0.25, slower=None), 307200)
        """
        cost = _check_slower(slower)
        if isinstance(value, ScratchLimit):
            return value if cost is None else replace(value, slower=cost)
        if isinstance(value, str):
            return _from_text(value.strip(), cost)
        try:
            count = value.__index__() if not isinstance(value, bool) else -1
        except AttributeError:
            count = -1
        if count < 0:
            raise _refusal(value)
        return ScratchLimit(bytes=count, slower=cost)

    @staticmethod
    def if_any(value: Any, slower: Any = None) -> ScratchLimit | None:
        """Parse a user's limit as `of` does; None means no limit, and then no cost may be given.

        Examples
        --------
        >>> ScratchLimit.if_any(None, 0.1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        isthmus.errors.QnnError: ... slower 0.1: limits the cost of a scratch limit, and there is no scratch limit. ...
        """
        if value is not None:
            return ScratchLimit.of(value, slower)
        if slower is not None:
            rule = "limits the cost of a scratch limit, and there is no scratch limit"
            raise invalid_argument(f"slower {slower!r}"[:200], rule, "Give a scratch limit too.")
        return None

    def bytes_of(self, unsplit: int) -> int | None:
        """Return the limit in bytes for a model that needs `unsplit` bytes without it; None for the least."""
        return self.bytes if self.share is None else int(self.share * unsplit)


def _from_text(text: str, slower: float | None) -> ScratchLimit:
    """Parse "least", a percentage, or a number of bytes with or without a unit."""
    if text.lower() == "least":
        return ScratchLimit(slower=slower)
    share = _SHARE.fullmatch(text)
    if share is not None:
        if float(share[1]) > 100:
            rule = "a percentage is of the scratch that the model needs without a limit: at most 100%"
            raise invalid_argument(f"scratch limit {text!r}"[:200], rule)
        return ScratchLimit(share=float(share[1]) / 100, slower=slower)
    size = parse_size(text)
    if size is None:
        raise _refusal(text)
    return ScratchLimit(bytes=size, slower=slower)


def _refusal(value: Any) -> QnnError:
    """Return the error for a limit that is not valid."""
    rule = "must be a number of bytes, a percentage like '25%', or 'least'"
    return invalid_argument(f"scratch limit {value!r}"[:200], rule)


def _check_slower(slower: Any) -> float | None:
    """Return a user's maximum cost as a float, or raise an error if it is not valid; None stays None."""
    if slower is None:
        return None
    try:
        cost = float(slower)
    except (TypeError, ValueError, OverflowError):
        cost = math.nan
    if isinstance(slower, (bool, str)) or not 0 <= cost <= MAX_SLOWER:
        rule = f"must be a fraction of the model's time from 0 to {MAX_SLOWER:g}"
        raise invalid_argument(f"slower {slower!r}"[:200], rule)
    return cost
