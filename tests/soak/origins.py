"""Where growth comes from: the calls that have allocated what is there at the end and was not after the warm-up.

To trace every allocation takes time and memory itself, so the sizes of a run that does are not judged.
"""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

_FRAMES = 6
_MAX_LISTED = 12


class Origins:
    """Traces allocations from now on, and tells which there are more of than when it was told to settle."""

    def __init__(self) -> None:
        tracemalloc.start(_FRAMES)
        self._before: tracemalloc.Snapshot | None = None

    def settle(self) -> None:
        """Compare with now."""
        self._before = _snapshot()

    def grown(self) -> list[str]:
        """The places that have allocated most of what is there more of, each with its number of blocks and bytes."""
        if self._before is None:
            return []
        more = _snapshot().compare_to(self._before, "traceback")
        more.sort(key=lambda each: -each.count_diff)
        return [
            f"{each.count_diff:+} blocks, {each.size_diff:+} bytes: {_described(each.traceback)}"
            for each in more[:_MAX_LISTED]
            if each.count_diff > 0
        ]


def _snapshot() -> tracemalloc.Snapshot:
    gc.collect()
    return tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])


def _described(calls: tracemalloc.Traceback) -> str:
    """The calls, innermost first."""
    return " < ".join(f"{'/'.join(Path(call.filename).parts[-2:])}:{call.lineno}" for call in reversed(calls))
