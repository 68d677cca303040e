"""The progress of long work: one line on the terminal, rewritten as steps are done and erased at the end.

Work that ends within a second shows none, and nothing is written where standard error is not a terminal, or is one that
cannot erase. The line is also rewritten while one step takes long. Of nested work, the innermost is shown.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TextIO

from isthmus.errors import one_line
from isthmus.system.interrupts import start
from isthmus.system.lock import Lock

# Seconds before the line is first shown: short work shows none.
_DELAY = 1.0
# Seconds between two drawings of the line at least.
_INTERVAL = 0.1
# Seconds after which the line is drawn again although no step was done.
_TICK = 0.5
# Characters of the bar, and of the line on a terminal that does not know its width.
_BAR, _COLUMNS = 24, 80
_ERASE = "\r\x1b[K"


@dataclass(eq=False)
class Progress:
    """The number of steps done, as a line of text.

    - `noun`: What the steps are, in the plural.
    - `total`: How many there are; None if that is unknown.
    - `title`: What the line begins with, if anything.
    - `alike`: Whether all steps take about equally long, so that the time left can be estimated.
    """

    noun: str
    total: int | None = None
    title: str = ""
    alike: bool = True
    done: int = 0
    _doing: str = ""
    _began: float = field(default_factory=time.monotonic)

    def step(self, doing: str = "") -> None:
        """Count a step; `doing` names it."""
        self.reach(self.done + 1, doing)

    def reach(self, done: int, doing: str = "") -> None:
        """Set the number of steps done, and the name of the last or the present one."""
        self.done, self._doing = done, doing
        _line.draw(self, _INTERVAL)

    def described(self) -> str:
        """Describe how many steps are done."""
        return f"{self.done:,} of {self.total:,} {self.noun}" if self.total else f"{self.done:,} {self.noun}"

    def line(self, now: float) -> str:
        """Return the line at a time of the monotonic clock.

        >>> Progress("runs", 8, done=2, _began=0.0).line(now=10.0)
        '[######..................] 2 of 8 runs, about 30 s left'
        >>> Progress("stages", 4, alike=False, done=1, _doing="search", _began=0.0).line(now=10.0)
        '[######..................] 1 of 4 stages, 10 s: search'
        """
        bar, seconds = "", now - self._began
        clock = f"{seconds:.0f} s"
        if self.total:
            filled = min(self.done * _BAR // self.total, _BAR)
            bar = f"[{'#' * filled}{'.' * (_BAR - filled)}]"
            if self.alike and 0 < self.done < self.total:
                clock = f"about {max(1, round(seconds / self.done * (self.total - self.done)))} s left"
        doing = f": {one_line(self._doing)}" if self._doing else ""
        return " ".join(filter(None, (self.title, bar, f"{self.described()}, {clock}{doing}")))

    def is_due(self, now: float) -> bool:
        """Return whether the work has taken long enough to be shown."""
        return now - self._began >= _DELAY


class _Line:
    """The line of this process on its terminal."""

    def __init__(self) -> None:
        # Held while the line is drawn or erased, and while something is printed above it.
        self.lock = Lock()
        self._open: list[Progress] = []
        """The work in progress, the innermost last."""
        self._drawn: float | None = None
        """When the line was last drawn; None if there is none on the terminal."""

    @contextmanager
    def showing(self, work: Progress) -> Iterator[None]:
        """Show the progress of work inside the block, if there is a terminal."""
        if _terminal() is None:
            yield
            return
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(_TICK):
                self.draw(work, _TICK)

        try:
            self._open.append(work)
            # Where no thread can be started, the line is drawn only when a step is done.
            with suppress(RuntimeError):
                start(threading.Thread(target=tick, name="isthmus-progress", daemon=True))
            yield
        finally:
            ended.set()
            with self.lock:
                if work in self._open:
                    self._open.remove(work)
                self.erase()

    def draw(self, work: Progress, interval: float) -> None:
        """Draw the line of work, unless other work is shown or it was drawn within the last `interval` seconds."""
        if not self._open:
            return
        now = time.monotonic()
        if not work.is_due(now):
            return
        with self.lock:
            terminal = _terminal()
            is_recent = self._drawn is not None and now - self._drawn < interval
            if terminal is None or is_recent or not self._open or self._open[-1] is not work:
                return
            self._drawn = now
            _write(terminal, _ERASE + work.line(now)[: _columns(terminal) - 1])

    def erase(self) -> None:
        """Erase the line if there is one; the caller holds the lock."""
        terminal = _terminal()
        if self._drawn is not None and terminal is not None:
            _write(terminal, _ERASE)
        self._drawn = None


_line = _Line()


def _terminal() -> TextIO | None:
    """Return standard error if it is a terminal whose lines can be erased."""
    # A program may have been started without standard error, or have closed or replaced it.
    with suppress(AttributeError, ValueError):
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            return sys.stderr
    return None


def is_terminal() -> bool:
    """Return whether progress is shown: standard error is a terminal whose lines can be erased."""
    return _terminal() is not None


def _columns(terminal: TextIO) -> int:
    """Return the width of a terminal: a longer line would continue on the next, where it could not be erased."""
    try:
        return os.get_terminal_size(terminal.fileno()).columns or _COLUMNS
    except OSError:
        return _COLUMNS


def _write(terminal: TextIO, text: str) -> None:
    """Write text at once; a terminal that has gone away is no reason to end the work."""
    with suppress(OSError):
        terminal.write(text)
        terminal.flush()


@contextmanager
def above() -> Iterator[None]:
    """Erase the line while the block prints what is to stay on the terminal; it is drawn again later."""
    with _line.lock:
        _line.erase()
        yield


@contextmanager
def show_progress(work: Progress) -> Iterator[Progress]:
    """Yield the progress of work that the block does, and show it on the terminal."""
    with _line.showing(work):
        yield work


@contextmanager
def progress(noun: str, total: int | None = None) -> Iterator[Progress]:
    """Yield the progress of a block: how many of `total` steps, named by a plural, are done.

    An interrupt inside it is passed on after a sentence on standard error.
    """
    work = Progress(noun, total)
    try:
        with show_progress(work):
            yield work
    except KeyboardInterrupt:
        print(f"{work.described()} are complete", file=sys.stderr)
        raise


@contextmanager
def stages(names: Sequence[str]) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows which stage of the block begins; `names` are all stages, in order."""
    with show_progress(Progress("stages", len(names), alike=False)) as work:
        yield lambda name: work.reach(names.index(name), name)
