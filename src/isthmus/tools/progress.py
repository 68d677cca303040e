"""The progress of a long command: a line that is rewritten on a terminal, and a sentence if it is interrupted."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_DELAY = 1.0
"""Seconds before the line is first shown: short commands show none."""
_INTERVAL = 0.1
_WIDTH = 24


@dataclass
class Progress:
    """The number of steps done, of `total` if that is known; `noun` is what one step is, in the plural."""

    noun: str
    total: int | None = None
    done: int = 0
    _began: float = field(default_factory=time.monotonic)
    _shown: float = 0.0

    def step(self) -> None:
        """Count a step."""
        self.reach(self.done + 1)

    def reach(self, done: int) -> None:
        """Set the number of steps done, and rewrite the line on a terminal now and then."""
        self.done = done
        now = time.monotonic()
        if now - self._began < _DELAY or now - self._shown < _INTERVAL or not sys.stderr.isatty():
            return
        self._shown = now
        print(f"\r\x1b[K{self._bar()}{self.described()}", end="", file=sys.stderr, flush=True)

    def described(self) -> str:
        """Describe how far the command has come."""
        return f"{self.done:,} of {self.total:,} {self.noun}" if self.total else f"{self.done:,} {self.noun}"

    def erase(self) -> None:
        """Erase the line if there is one."""
        if self._shown:
            self._shown = 0.0
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _bar(self) -> str:
        """Draw a bar if the total is known."""
        if not self.total:
            return ""
        filled = min(self.done * _WIDTH // self.total, _WIDTH)
        return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] "


@contextmanager
def progress(noun: str, total: int | None = None) -> Iterator[Progress]:
    """Yield the progress of a block. An interrupt inside it is passed on after a sentence on standard error."""
    state = Progress(noun, total)
    try:
        yield state
    except KeyboardInterrupt:
        state.erase()
        print(f"{state.described()} are complete", file=sys.stderr)
        raise
    finally:
        state.erase()
