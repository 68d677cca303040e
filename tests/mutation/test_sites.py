"""Deliberate mistakes are made where they are said to be, and nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.suites import LONG

from mutation.rooms import watching
from mutation.sites import mistakes

PACKAGE = Path(__file__).parents[2] / "src" / "isthmus"
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"(a <= b)"}),
        ("x = a + 1", {"x = (a - 1)", "x = a + 2", "x = a + (0)", "pass"}),
        ("y(a and b and c)", {"y((a or b or c))", "y((b and c))", "y((a and c))", "y((a and b))", "pass"}),
        ("min(a, b)", {"max(a, b)", "pass"}),
        ("np.maximum(a, b)", {"np.minimum(a, b)", "pass"}),
        ("np.subtract(a, b)", {"np.subtract(b, a)", "pass"}),
        ("if a:\n    b()", {"if (not (a)):\n    b()", "if a:\n    pass"}),
        ("while a:\n    break", {"while (not (a)):\n    break", "while a:\n    pass"}),
        ("def f(a: int) -> int:\n    'Text.'\n    return -a",
         {"def f(a: int) -> int:\n    'Text.'\n    return a", "def f(a: int) -> int:\n    'Text.'\n    pass"}),
        ("f(f'{a + 1}')", {"pass"}),
        ("A = int | None", {"pass"}),
    ],
)  # fmt: skip
def test_each_mistake_changes_one_thing(source: str, expected: set[str]) -> None:
    made = {m.apply(source) for m in mistakes("a.py", source)}
    if source == "a < b":
        made.discard("pass")
    assert made == expected


def test_a_mistake_knows_what_its_statement_defines() -> None:
    source = "A, B = 1, 2\nclass C:\n    x = 3\ndef f():\n    return 4\nfor n in D:\n    g(5)\ng(6)\n"
    defined = {mistake.before: mistake.names for mistake in mistakes("a.py", source) if mistake.before.isdigit()}
    assert defined == {"1": ("A", "B"), "2": ("A", "B"), "3": ("C",), "4": ("f",), "5": ("n",), "6": ()}


@LONG
def test_a_file_with_a_mistake_is_still_a_file_of_python() -> None:
    for file in PACKAGE.rglob("*.py"):
        source = file.read_text()
        for mistake in mistakes(file.name, source)[::97]:
            ast.parse(mistake.apply(source))


def test_every_source_file_has_tests_and_all_that_are_named_are_there() -> None:
    for path in PACKAGE.rglob("*.py"):
        names = watching(path.relative_to(PACKAGE).as_posix())
        assert names, path
        assert all(any(TESTS.glob(name)) for name in names), names


def test_mistakes_that_change_nothing_are_of_lines_that_exist() -> None:
    listed = Path(__file__).with_name("equivalent.txt").read_text().splitlines()
    entries = [entry.split(" | ") for entry in listed if not entry.startswith("#")]
    assert entries
    for file, _, line, *_ in entries:
        lines = [each.strip() for each in (PACKAGE / file).read_text().splitlines()]
        assert line.strip() in lines, (file, line)
