"""Tests that enter the function of a mistake come first, the near and quick ones before the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.suites import LONG

from mutation.reach import Reach

ROOT = Path(__file__).parents[2]
A, B, C, D = "tests/x/test_a.py::test_1", "tests/x/test_a.py::test_2", "tests/x/test_b.py::test_3", "tests/y/t.py::test"


@pytest.fixture
def reach() -> Reach:
    record = Reach()
    record.add(A, 0.5, ["f.py f", "f.py f.inner"])
    record.add(B, 3.0, ["f.py f"])
    record.add(C, 1.0, ["f.py f", "f.py Class.method"])
    record.add(D, 0.1, ["f.py f", "g.py f", "engine/lowering/a.py _emit"])
    return record


@pytest.mark.parametrize(
    ("path", "within", "expected"),
    [
        ("f.py", "f", {A, B, C, D}),
        ("f.py", "f.inner", {A}),
        ("f.py", "Class", {C}),
        ("f.py", "module", {A, B, C, D}),
        ("f.py", "never", set()),
        ("g.py", "module", {D}),
        ("g.py", "fu", set()),
        ("engine/kernels/a.py", "_kernel", {D}),
    ],
)
def test_the_tests_of_a_function_are_those_that_enter_it(
    reach: Reach, path: str, within: str, expected: set[str]
) -> None:
    assert reach.tests(path, within) == expected


def test_what_stands_in_a_module_or_a_class_is_not_entered(reach: Reach) -> None:
    assert reach.is_entered("f.py", "Class.method")
    assert not any(reach.is_entered("f.py", within) for within in ("module", "Class", "never"))


# A file's tests stay together, the file that is quicker in sum first: A (0.5 s) before C (1 s), but C before A and B.
@pytest.mark.parametrize(("seconds", "expected"), [(0, [A]), (1.5, [A, C]), (4.5, [C, A, B]), (4.6, [C, A, B, D])])
def test_near_tests_come_first_and_the_quick_files_among_them(
    reach: Reach, seconds: float, expected: list[str]
) -> None:
    assert reach.first("f.py", "f", ("tests/x",), seconds) == expected


def test_a_name_of_a_module_is_used_by_functions_and_by_files_of_tests(reach: Reach) -> None:
    """`name_of` uses `_GRAPH_TWICE`, `tests/test_errors.py` has `QnnError`, and no test has `_FIRST`."""
    named, by_file = "tests/x/test_a.py::test_names", "tests/test_errors.py::test_any"
    reach.add(named, 1, ["cabi/declarations.py name_of"])
    reach.add(by_file, 1, ["log.py Log"])
    assert reach.using("cabi/declarations.py", ["_GRAPH_TWICE"]) == {named}
    assert reach.using("errors.py", ["QnnError"]) == {by_file}
    assert reach.using("errors.py", []) == reach.using("capi/handles.py", ["_FIRST"]) == set()
    assert reach.first("cabi/declarations.py", "module", (), 90, ["_GRAPH_TWICE"]) == [named]
    assert reach.first("log.py", "module", (), 90, ["_GRAPH_TWICE"]) == [by_file], "those that enter the module"


def test_some_of_each_file_come_before_more_of_one(reach: Reach) -> None:
    for number in range(20):
        reach.add(f"tests/x/test_many.py::test_{number}", 0.01, ["h.py h"])
    reach.add(B, 3.0, ["h.py h"])
    first = reach.first("h.py", "h", ("tests/x",), 3.085)
    assert len(first) == 9
    assert first[-1] == B


def test_a_record_is_read_as_it_was_written_and_without_tests_that_failed(tmp_path: Path) -> None:
    lines = [
        {"test": A, "seconds": 1, "passed": True, "new": ["f.py f", "f.py g"], "entered": [0, 1]},
        {"test": B, "seconds": 2, "passed": False, "new": ["f.py h"], "entered": [1, 2]},
        {"test": C, "seconds": 3, "passed": True, "new": [], "entered": [2]},
    ]
    (tmp_path / "gw0.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "gw1.jsonl").write_text(json.dumps(lines[0] | {"test": D, "new": ["f.py h"], "entered": [0]}))
    read = Reach.read(tmp_path)
    assert read.seconds == {A: 1, C: 3, D: 1}
    assert dict(read.entering) == {"f.py f": {A}, "f.py g": {A}, "f.py h": {C, D}}
    assert Reach.read(tmp_path / "none").first("f.py", "f", (), 90) == []


@LONG
def test_tests_are_recorded_and_run_by_lists(tmp_path: Path) -> None:
    """The two plugins, on tests of their own."""
    (tmp_path / "test_own.py").write_text(
        "import sys, threading, pytest\n"
        "from isthmus import errors, version\n"
        "from isthmus.system import reading\n"
        "@pytest.fixture(scope='module')\n"
        "def shared():\n    return [errors.QnnError.__str__(errors.QnnError(1000, 'a', 'b'))]\n"
        "def test_one(shared): pass\n"
        "def test_two(shared): sys.settrace(None)\n"
        "def test_three():\n"
        "    thread = threading.Thread(target=errors.QnnError, args=(1000, 'a', 'b'))\n"
        "    thread.start()\n    thread.join()\n"
        "def test_four(): assert False\n"
    )
    folder = tmp_path / "reach"
    said = _pytest(tmp_path, "-p", "tests.mutation.recording", f"--reach={folder}")
    assert "1 failed, 3 passed" in said
    read = Reach.read(folder)
    assert {test.rpartition("::")[2] for test in read.seconds} == {"test_one", "test_two", "test_three"}
    entering = {test.rpartition("::")[2] for test in read.tests("errors.py", "QnnError.__init__")}
    assert entering == {"test_one", "test_two", "test_three"}, "a fixture's for both, and a thread's"
    names = {test.rpartition("::")[2]: test for test in read.seconds}
    (tmp_path / "list").write_text("\n".join([names["test_three"], "test_own.py::test_gone", names["test_one"]]))
    choose = ("-p", "tests.mutation.choosing", "-v")
    said = _pytest(tmp_path, *choose, f"--listed={tmp_path / 'list'}")
    assert "2 passed, 2 deselected" in said
    assert said.index("::test_three PASSED") < said.index("::test_one PASSED")
    said = _pytest(tmp_path, *choose, f"--unlisted={tmp_path / 'list'}", f"--failed={tmp_path / 'failed'}")
    assert "1 failed, 1 passed, 2 deselected" in said
    assert (tmp_path / "failed").read_text() == "test_own.py::test_four"


def _pytest(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *options, "-c", os.devnull]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    child = subprocess.run(
        [*command, f"--rootdir={folder}", str(folder)], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    return child.stdout + child.stderr
