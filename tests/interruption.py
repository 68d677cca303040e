"""Interrupts at every place where one can come: the handler of a signal that raises, put exactly there by tracing.

Python runs such handlers in the main thread, when a function begins, when a loop turns back and when a call has
returned, before what it returned is stored. `everywhere` repeats a deed, and has it interrupted at the first such
place, at the second, and so on to the last; chance has no part in it.
"""

from __future__ import annotations

import dis
import gc
import os
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

from isthmus.interrupts import settle
from isthmus.memory import holds, tcm

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX", "CALL_METHOD")
_SECONDS_TO_SETTLE = 10.0


class Interrupt(KeyboardInterrupt):
    """What the handler raises, told from a person's."""


class Alarm(Exception):
    """What another handler raises: no KeyboardInterrupt, and caught by whoever catches all exceptions."""


class Places:
    """Counts the places of a deed where a handler could run, and raises at one of them.

    Parameters
    ----------
    at
        The number of the place, from 0; none to count them only.
    by
        What is raised there.
    outside
        Parts of file names: what runs in such files is passed over.
    """

    def __init__(self, at: int = -1, by: type[BaseException] = Interrupt, outside: tuple[str, ...] = ()) -> None:
        self.count = 0
        self.where = ""
        """The place where it was raised; empty if the deed had fewer."""
        self._at, self._by = at, by
        self._outside = (__file__, *outside)
        self._before: dict[FrameType, int] = {}

    def __enter__(self) -> Places:
        sys.setprofile(self._profile)
        sys.settrace(self._call)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)
        sys.setprofile(None)
        self._before.clear()

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if any(part in frame.f_code.co_filename for part in self._outside):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._here(frame)
        return self._within

    def _within(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            code = _code(frame.f_code)
            before, now = self._before.get(frame, 0), frame.f_lasti
            self._before[frame] = now
            # Raised here, it must be caught by who would catch it if it came up in the call.
            returned = code.operations[before] in _CALLS and code.handler(before) == code.handler(now)
            if returned or "BACKWARD" in code.operations[now]:
                self._here(frame)
        elif event == "return":
            self._before.pop(frame, None)
        return self._within

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_return" and frame.f_trace is not None:
            code = _code(frame.f_code)
            if code.handler(frame.f_lasti) != code.handler(code.after(frame.f_lasti)):
                self._here(frame)

    def _here(self, frame: FrameType) -> None:
        self.count += 1
        if self.count == self._at + 1:
            self.where = _described(frame)
            self._before.clear()
            raise self._by


class _Code:
    """The instructions of a function, and who catches what comes up in each."""

    def __init__(self, code: CodeType) -> None:
        self.operations = {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}
        self._offsets = sorted(self.operations)
        parse = getattr(dis, "_parse_exception_table", lambda code: ())
        self._handlers = [(entry.start, entry.end, entry.target) for entry in parse(code)]

    def handler(self, offset: int) -> int | None:
        return next((target for start, end, target in self._handlers if start <= offset < end), None)

    def after(self, offset: int) -> int:
        return self._offsets[min(bisect_right(self._offsets, offset), len(self._offsets) - 1)]


@cache
def _code(code: CodeType) -> _Code:
    return _Code(code)


def _described(frame: FrameType | None) -> str:
    found: list[str] = []
    while frame is not None and len(found) < 6:
        found.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(found)


def everywhere(
    deed: Callable[[], object],
    by: type[BaseException] = Interrupt,
    outside: tuple[str, ...] = (),
    most: int = 100_000,
) -> Iterator[str]:
    """Do a deed once for every place, interrupted there; each time the place, for who looks at what is left.

    A deed with more places than `most` is interrupted at so many of them, evenly apart.
    """
    assert threading.current_thread() is threading.main_thread()
    deed()
    with Places(outside=outside) as all_:
        deed()
    step = max(1, -(-all_.count // most))
    for number in range(0, all_.count, step):
        places = Places(number, by, outside)
        try:
            with _lost_in_destructors(by), places:
                deed()
        except by:
            pass
        if places.where:
            yield places.where


@contextmanager
def _lost_in_destructors(by: type[BaseException]) -> Iterator[None]:
    """What is raised while a destructor runs goes no further; whoever else keeps it keeps all that it has seen."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda problem: None if isinstance(problem.exc_value, by) else before(problem)
    try:
        yield
    finally:
        sys.unraisablehook = before


def unharmed(deed: Callable[[], object], check: Callable[[str], object] = lambda where: None, **how: Any) -> int:
    """See that a deed leaves nothing behind wherever it is interrupted; how many places there were."""
    deed()
    gc.collect()
    before, count = account(), 0
    for where in everywhere(deed, **how):
        more = left(before)
        assert not more, f"{more}: interrupted at {where}"
        check(where)
        count += 1
    return count


def left(before: dict[str, Any]) -> str:
    """What there is more of than before, in words; threads and processes are given a moment to end."""
    deadline = time.monotonic() + _SECONDS_TO_SETTLE
    while True:
        now = account()
        grown = [name for name in now if len(now[name]) > len(before[name])]
        more = {name: sorted(set(now[name]) - set(before[name])) for name in grown}
        if not more or time.monotonic() > deadline:
            return "; ".join(f"{name}: {what}" for name, what in more.items())
        gc.collect()
        time.sleep(0.002)


def account() -> dict[str, Any]:
    """What this process has now: descriptors, threads, holds, buffers of TCM."""
    settle()
    return {
        "descriptors": os.listdir("/proc/self/fd"),
        "tasks": os.listdir("/proc/self/task"),
        "threads": [thread.name for thread in threading.enumerate()],
        "holds": [f"{id(hold)} {hold.holder}" for hold in holds.present()],
        "TCM": [str(span) for span in tcm.pool()._spans],
    }
