"""A plugin of pytest: which functions of the package each test enters, and how long it takes.

    python -m pytest -q -n 2 --dist loadfile -p tests.mutation.recording

Each process writes a file of its own into `.cache/reach`, a line for a test as it ends; `reach.py` reads them. Only
calls are traced, in all threads that Python starts. What child processes do, and what compiled code calls on threads of
its own, is not seen. A test that traces by itself is seen up to there.

What a fixture of a module or a session enters belongs to all tests that use it, not just to the first.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import TextIO

import pytest

from .reach import FOLDER, ROOT, function

_PACKAGE = f"{ROOT / 'src' / 'isthmus'}{os.sep}"
_entered: set[tuple[str, str]] = set()


def _trace(frame: FrameType, event: str, argument: object) -> None:
    code = frame.f_code
    # The bodies of modules and classes run once, for whichever test happens to import them.
    if code.co_filename.startswith(_PACKAGE) and code.co_flags & inspect.CO_OPTIMIZED:
        _entered.add((code.co_filename, code.co_qualname))


def _swap(functions: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Have what is entered from now on put into this set; the set until now."""
    global _entered
    before, _entered = _entered, functions
    return before


class Recording:
    """The tests of one process."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._numbers: dict[str, int] = {}
        self._fixtures: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
        self._passed = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Write a line on a test."""
        before, begin, self._passed = _swap(set()), time.perf_counter(), True
        sys.settrace(_trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            seconds, entered = time.perf_counter() - begin, _swap(before)
            for name in getattr(item, "fixturenames", ()):
                for (fixture, base), functions in self._fixtures.items():
                    if fixture == name and item.nodeid.startswith(base):
                        entered |= functions
            self._write(item.nodeid, seconds, entered)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> Generator[None, object, object]:
        """Keep what a fixture of several tests enters."""
        if fixturedef.scope == "function":
            return (yield)
        before = _swap(set())
        try:
            return (yield)
        finally:
            functions = _swap(before)
            before |= functions
            self._fixtures[fixturedef.argname, fixturedef.baseid] |= functions

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember whether the test passed: one that fails anyhow tells nothing of a mistake."""
        self._passed = self._passed and report.passed

    def _write(self, test: str, seconds: float, entered: set[tuple[str, str]]) -> None:
        names = {function(Path(file).relative_to(_PACKAGE).as_posix(), name) for file, name in entered}
        new = sorted(names - self._numbers.keys())
        self._numbers |= {name: number for number, name in enumerate(new, len(self._numbers))}
        line = {
            "test": test, "seconds": round(seconds, 3), "passed": self._passed, "new": new,
            "entered": sorted(self._numbers[name] for name in names),
        }  # fmt: skip
        self._file.write(f"{json.dumps(line, separators=(',', ':'))}\n")
        self._file.flush()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--reach", type=Path, default=FOLDER, help="folder for the record")


def pytest_configure(config: pytest.Config) -> None:
    """Begin, in a process that runs tests; the one that distributes them removes the record of last time."""
    folder, worker = Path(config.getoption("--reach")), os.environ.get("PYTEST_XDIST_WORKER")
    folder.mkdir(parents=True, exist_ok=True)
    if worker is None:
        for old in folder.glob("*.jsonl"):
            old.unlink()
    if worker is not None or not config.getoption("numprocesses", None):
        file = (folder / f"{worker or 'main'}.jsonl").open("w")
        config.add_cleanup(file.close)
        config.pluginmanager.register(Recording(file))
        threading.settrace(_trace)  # type: ignore[arg-type]
