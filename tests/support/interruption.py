"""Interrupts at every place where one can come: the handler of a signal that raises, put exactly there by tracing.

Python runs such handlers in the main thread, when a function begins, when a loop turns back and when a call has
returned, before what it returned is stored. `everywhere` repeats an action, and has it interrupted at the first such
place, at the second, and so on to the last; chance has no part in it.
"""

from __future__ import annotations

import dis
import gc
import itertools
import os
import sys
import threading
import time
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from isthmus.memory import holds, tcm
from isthmus.system.interrupts import run_pending
from support.waiting import eventually

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX", "CALL_METHOD")
_SECONDS_TO_SETTLE = 60.0

_REMOVALS = {kind()._remove.__code__ for kind in (WeakSet, WeakKeyDictionary, WeakValueDictionary)}
"""What strikes a forgotten object off a weak collection of Python.

Python drops an interrupt that comes there, and the collection keeps a dead reference for ever. Each loop over it has a
place more from then on, so that whoever counts on to the next place finds the same one again, without end.
"""


class Interrupt(KeyboardInterrupt):
    """What the handler raises: a KeyboardInterrupt of its own, so that it is not taken for a person's."""


class Alarm(Exception):
    """What another handler raises: no KeyboardInterrupt, and caught by whoever catches all exceptions."""


class _Places:
    """Counts the places of an action where a handler could run, and raises at one of them.

    Parameters
    ----------
    at
        The number of the place, from 0, and then of a place after that, counted from there; none to count them only.
    by
        What is raised there.
    outside
        Parts of file names: what runs in such files is passed over.
    """

    def __init__(
        self, at: tuple[int, ...] = (), by: type[BaseException] = Interrupt, outside: tuple[str, ...] = ()
    ) -> None:
        self.count = 0
        self.where: list[str] = []
        """The places where it was raised; not all, if the action had fewer."""
        self._at, self._by = list(at), by
        self._raised_in: FrameType | None = None
        self._outside = (__file__, *outside)
        self._before: dict[FrameType, int] = {}

    def __enter__(self) -> _Places:
        sys.setprofile(self._profile)
        sys.settrace(self._call)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)
        sys.setprofile(None)
        self._before.clear()
        self._raised_in = None

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._go_on(frame)
        if frame.f_code in _REMOVALS or any(part in frame.f_code.co_filename for part in self._outside):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._here(frame)
        return self._within

    def _within(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._go_on(frame)
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
        self._go_on(frame)
        if event == "c_return" and frame.f_trace is not None:
            code = _code(frame.f_code)
            if code.handler(frame.f_lasti) != code.handler(code.after(frame.f_lasti)):
                self._here(frame)

    def _here(self, frame: FrameType) -> None:
        self.count += 1
        if self._at and self.count == self._at[0] + 1:
            self.where.append(_described(frame))
            self._before.clear()
            self.count, self._raised_in = 0, frame
            del self._at[0]
            raise self._by

    def _go_on(self, frame: FrameType) -> None:
        """Watch again: Python takes away a function that raised, and what it would have told of that frame."""
        if self._raised_in is not None:
            self._before[frame] = frame.f_lasti
            self._raised_in.f_trace = self._within
            self._raised_in.f_trace_opcodes = True
            self._raised_in = None
            sys.setprofile(self._profile)
            sys.settrace(self._call)


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
    action: Callable[[], object],
    by: type[BaseException] = Interrupt,
    outside: tuple[str, ...] = (),
    most: int = 100_000,
    prepare: Callable[[], object] = lambda: None,
) -> Iterator[str]:
    """Do an action once for every place, interrupted there; yield the place each time, so that the caller can check.

    An action with more places than `most` is interrupted at so many of them, evenly spaced. `prepare` is called before
    each action and not interrupted.
    """
    assert threading.current_thread() is threading.main_thread()
    prepare()
    action()
    prepare()
    with _Places(outside=outside) as all_:
        action()
    step = max(1, -(-all_.count // most))
    for number in range(0, all_.count, step):
        prepare()
        yield from _interrupted(action, (number,), by, outside)


def twice_everywhere(
    action: Callable[[], object],
    by: type[BaseException] = Interrupt,
    outside: tuple[str, ...] = (),
    step: int = 1,
) -> Iterator[str]:
    """As `everywhere`, with a second interrupt at every `step`-th place that comes after the first."""
    assert threading.current_thread() is threading.main_thread()
    action()
    with _Places(outside=outside) as all_:
        action()
    for first in range(all_.count):
        for second in itertools.count(first % step, step):
            places = list(_interrupted(action, (first, second), by, outside))
            yield from places
            if not places:
                break


def _interrupted(
    action: Callable[[], object], at: tuple[int, ...], by: type[BaseException], outside: tuple[str, ...]
) -> Iterator[str]:
    """Do an action, interrupted at these places; yield where that was, if it had them all."""
    places = _Places(at, by, outside)
    with _destructors(by) as problems:
        # The exception's traceback, and the objects in its frames, are dropped here.
        try:
            with places:
                action()
        except by:
            pass
    assert not problems, f"a destructor fails with {problems[0]}: interrupted at {places.where}"
    if len(places.where) == len(at):
        yield " and ".join(places.where)


@contextmanager
def _destructors(by: type[BaseException]) -> Iterator[list[str]]:
    """Collect the errors of destructors. An interrupt while one runs is not raised further, and is no error."""
    problems: list[str] = []

    def record(problem: Any) -> None:
        # Kept as text: the exception would keep all that it has seen.
        if not isinstance(problem.exc_value, by):
            problems.append("".join(traceback.format_exception(problem.exc_value)))

    before, sys.unraisablehook = sys.unraisablehook, record
    try:
        yield problems
    finally:
        sys.unraisablehook = before


def check_every_interrupt(
    action: Callable[[], object], check: Callable[[str], object] = lambda where: None, **how: Any
) -> int:
    """Check that an action leaves nothing behind wherever it is interrupted; return the number of places."""
    action()
    gc.collect()
    before, count = account(), 0
    for where in everywhere(action, **how):
        more = left(before)
        assert not more, f"{more}: interrupted at {where}"
        check(where)
        count += 1
    return count


def wait_until_restored(count: Callable[[], object], before: object) -> bool:
    """Wait until a count is what it was.

    In Python before 3.13 an interrupt inside `Thread.is_alive` makes a running thread look ended, so a thread that was
    waited for may still hold what is counted.
    """

    def is_as_before() -> bool:
        if count() != before:
            gc.collect()
        return count() == before

    return eventually(is_as_before)


def left(before: dict[str, Any]) -> str:
    """Return what there is more of than before, in words; threads and processes are given a moment to end."""
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
    """Return what this process has now: descriptors, threads, holds, buffers of TCM."""
    run_pending()
    return {
        "descriptors": os.listdir("/proc/self/fd"),
        "tasks": os.listdir("/proc/self/task"),
        "threads": [thread.name for thread in threading.enumerate()],
        "holds": [f"{id(hold)} {hold.holder}" for hold in holds.present()],
        "TCM": [str(span) for span in tcm.pool()._spans],
    }
