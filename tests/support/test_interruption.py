"""The tests' own tools: interrupts at every place, and a time limit that always ends in a failed test."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from support.interruption import everywhere

TESTS = Path(__file__).parents[1]


class Mortal:
    """Something that a weak reference can be to."""


def test_a_forgotten_object_leaves_no_dead_reference_and_no_new_place_behind() -> None:
    known = weakref.WeakSet()

    def action():
        mortal = Mortal()
        known.add(mortal)
        for reference in known.data:
            reference()
        del mortal
        end()

    def end():
        pass

    places = list(everywhere(action))
    assert not known.data, "what was forgotten is struck off, wherever the interrupt came"
    assert any(" end < " in place for place in places), "places after the one where it was forgotten"
    assert not any("_remove" in place for place in places)
    assert len(places) == len(list(everywhere(action))), "as many places as before"


def test_the_preparation_of_each_call_is_not_interrupted() -> None:
    calls, ready = [], []

    def prepare():
        calls.append("prepared")
        ready.append(True)

    def action():
        assert ready, "prepared"
        ready.clear()

    places = list(everywhere(action, prepare=prepare))
    assert len(calls) == 2 + len(places)
    assert not any(" prepare < " in place for place in places)


LATE = """
import time, weakref

class Mortal: pass

def dropped(reference):
    while True: time.sleep(0.01)

def test_a_limit_that_python_drops():
    mortal = Mortal()
    reference = weakref.ref(mortal, dropped)
    del mortal
    while True: time.sleep(0.01)

def test_the_next(): pass
"""

NO_LINE = """
import sys

class Late(Exception): pass

def turns_back():
    for number in range(3):
        if number > 5:
            print(number)

def trace(frame, event, argument):
    frame.f_trace_opcodes = True
    if event == "opcode" and frame.f_lineno is None:
        sys.settrace(None)
        raise Late("where there is no line")
    return trace if frame.f_code is turns_back.__code__ else None

def raise_without_a_line():
    sys.settrace(trace)
    try:
        turns_back()
    finally:
        sys.settrace(None)

def test_itself():
    raise_without_a_line()

def test_what_comes_after_it():
    try:
        raise_without_a_line()
    except Late:
        assert False, "after it"

def test_the_next(): pass
"""


def test_a_time_limit_that_python_drops_is_raised_again(tmp_path) -> None:
    said = run(tmp_path, LATE, seconds="1")
    assert "took longer than 1 s" in said
    assert "1 failed, 1 passed" in said


@pytest.mark.skipif(sys.version_info < (3, 11), reason="every instruction has a line")
def test_what_is_raised_where_there_is_no_line_fails_a_test_and_not_the_worker(tmp_path) -> None:
    said = run(tmp_path, NO_LINE)
    assert "INTERNALERROR" not in said
    assert "Late: where there is no line" in said
    assert "AssertionError: after it" in said
    assert "2 failed, 1 passed" in said


def run(folder: Path, tests: str, seconds: str = "60") -> str:
    """Run tests with what all tests share; what pytest says."""
    (folder / "test_own.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-n", "1", "-c", os.devnull]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    done = subprocess.run(
        [*command, f"--rootdir={folder}", str(folder)], cwd=folder, capture_output=True, text=True, timeout=300,
        env=environment | {"PYTHONPATH": path, "ISTHMUS_TEST_SECONDS": seconds}, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr
