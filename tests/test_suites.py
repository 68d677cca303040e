"""The suites are what the README says they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import requirements, suites
from support.suites import LONG, long, only, sampled
from targets import SELECTION

ROOT = Path(__file__).parents[1]
TOLERANCE = 0.05  # tests come and go


def test_the_readme_and_make_state_how_many_tests_there_are(request: pytest.FixtureRequest) -> None:
    config = request.config
    if config.option.markexpr != "not long" or config.args != config.getini("testpaths"):
        pytest.skip("only `make test` collects all short tests, and no others")
    counts = {"short": len(request.session.items), "long": suites.deselected}
    for file, sentences in (
        ("README.md", {"short": r"about ([\d,]+) tests", "long": r"the other ([\d,]+) tests"}),
        ("Makefile", {"short": r"about ([\d,]+) short tests", "long": r"the ([\d,]+) tests that make test leaves out"}),
    ):
        for kind, sentence in sentences.items():
            [stated] = re.findall(sentence, " ".join((ROOT / file).read_text().split()))
            assert int(stated.replace(",", "")) == pytest.approx(counts[kind], rel=TOLERANCE), (file, kind)


def test_one_in_so_many_is_short_and_all_others_are_long() -> None:
    parameters = [pytest.param(i, i + 1, id=f"n{i}") for i in range(4)]
    for values in (range(4), parameters):
        marked = sampled(values, 3)
        assert [bool(getattr(value, "marks", ())) for value in marked] == [False, True, True, False]
    assert (marked[1].values, marked[1].id) == ((1, 2), "n1")
    assert only((2,), (1, 2, 3)) == [long(1), 2, long(3)]


def pytest_prints(*arguments: str | Path, **environment: str) -> list[str]:
    """Run pytest with the settings of all tests and return the lines that it prints."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *arguments]
    given = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), **environment}
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True).stdout.splitlines()


@LONG
def test_make_states_how_many_tests_each_target_has() -> None:
    counted = pytest_prints("-q", "--collect-only", *SELECTION)[-1]
    [stated] = re.findall(r"about ([\d,]+) tests for each target", (ROOT / "Makefile").read_text())
    assert int(stated.replace(",", "")) == pytest.approx(int(counted.split()[0]), rel=TOLERANCE)


def test_a_seed_gives_tests_an_order_that_is_printed_and_can_be_repeated() -> None:
    def order(seed: str) -> list[str]:
        lines = pytest_prints("--collect-only", "-q", "tests/test_suites.py", ISTHMUS_SHUFFLE=seed)
        assert bool(seed) == any(f"random order of seed {seed}:" in line for line in lines)
        return [line for line in lines if "::" in line]

    first, again, plain = (order(seed) for seed in ("1", "1", ""))
    assert first == again != plain
    assert sorted(first) == sorted(plain)


def test_files_of_tests_that_leave_logging_changed_fail_and_harm_no_other(tmp_path: Path) -> None:
    changes = (
        "getLogger().setLevel(40)", "getLogger('isthmus').setLevel(40)", "getLogger('isthmus.x').disabled = True",
        "getLogger('isthmus').propagate = False", "disable(50)",
        "getLogger('isthmus').addHandler(logging.NullHandler())",
    )  # fmt: skip
    files = []
    for number, change in enumerate(changes):
        files += [tmp_path / f"test_change_{number}.py", tmp_path / f"test_read_{number}.py"]
        files[-2].write_text(f"import logging\ndef test_change(): logging.{change}\n")
        reads = "logging.getLogger('isthmus.x').warning('heard')\n    assert 'heard' in caplog.text"
        files[-1].write_text(f"import logging\ndef test_read(caplog):\n    {reads}\n")
    printed = pytest_prints("-p", "tests.conftest", f"--rootdir={ROOT}", *files)
    assert printed[-1].strip("= ").startswith("12 passed, 6 errors"), printed
    assert sum("py leave logging changed: " in line and line.startswith("E ") for line in printed) == 6


@pytest.mark.parametrize(("names", "outcome"), [("", "s"), ("site", "s"), ("browser", "F"), ("site, browser", "F")])
def test_a_test_whose_browser_is_missing_is_skipped_or_fails_if_it_is_required(
    tmp_path: Path, names: str, outcome: str
) -> None:
    file = tmp_path / "test_needing.py"
    file.write_text("from support import chromium\nchromium.PROGRAMS = ()\ndef test(): chromium.find()\n")
    printed = pytest_prints("-p", "tests.conftest", f"--rootdir={ROOT}", "-q", file, ISTHMUS_REQUIRE=names)
    assert any(line.startswith(f"{outcome} ") for line in printed), printed


def test_nothing_unknown_can_be_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_REQUIRE", "site,brwoser")
    with pytest.raises(pytest.UsageError, match="there is no brwoser; known are browser, site"):
        requirements.required()


def test_what_ci_builds_is_required_by_its_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    [required] = (line for line in lines if "ISTHMUS_REQUIRE" in line and not line.startswith("#"))
    assert lines.index("make docs") < lines.index(required) < lines.index("make test-long")
