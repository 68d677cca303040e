"""What `make test-clients` records of clients: each test that was collected has a result, and each table is one."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

CLIENTS = Path(__file__).with_name("clients")
SUITE = """
import os
import pytest

class TestOperator:
    def test_first(self): pass
    def test_second(self): assert not os.environ.get("FAIL")
    def test_third(self):
        if os.environ.get("STOP"): pytest.exit("enough")
    def test_fourth(self): pass
    def test_fifth(self): pass
"""


@pytest.fixture
def executorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that runs ExecuTorch's tests, with a package of that name whose tests need nothing."""
    tests = tmp_path / "executorch" / "backends" / "qualcomm" / "tests"
    tests.mkdir(parents=True)
    for folder in (tests, *list(tests.parents)[:3]):
        (folder / "__init__.py").write_text("")
    (tests / "utils.py").write_text("")
    (tests / "test_qnn_delegate.py").write_text(SUITE)
    (tests / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--timeout')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("EXECUTORCH_TESTS", raising=False)
    for folder in (CLIENTS, tmp_path):
        monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("test_executorch")
    for name in [name for name in sys.modules if name.partition(".")[0] == "executorch"]:
        del sys.modules[name]


@pytest.mark.parametrize(("variable", "failed"), [("FAIL", ["second"]), ("STOP", ["third", "fourth", "fifth"])])
def test_all_tests_of_executorch_that_were_collected_have_a_result(
    executorch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, failed: list[str]
) -> None:
    """One that never ran, because pytest stopped, counts as failed."""
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "1")
    monkeypatch.setenv(variable, "1")
    found, done = executorch.outcomes("TestOperator", tmp_path / "sdk", tmp_path)
    assert {name.removeprefix("TestOperator::"): result["outcome"] for name, result in found.items()} == {
        name: "failed" if name in failed else "passed" for name in ("first", "second", "third", "fourth", "fifth")
    }, done.stdout + done.stderr
    assert done.returncode != 0


def test_a_reason_of_several_lines_is_one_row_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(CLIENTS)
    report = importlib.import_module("clients_report")
    rows = {"a": {"outcome": "first line\n\n  second | third\n"}, "b": {"outcome": "passes"}}
    assert report.table({"client": "c", "versions": {}, "rows": rows})[-1] == "| a | first line second / third |"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_sources_that_miss_a_name_or_a_header_of_qnn_or_take_one_from_elsewhere_are_reported(tmp_path: Path) -> None:
    trees, headers, elsewhere = tmp_path / "trees", tmp_path / "headers", tmp_path / "dependencies" / "another_sdk"
    sources = trees / "executorch" / "backends" / "qualcomm"
    for folder in (sources, headers / "QNN", elsewhere):
        folder.mkdir(parents=True)
    (headers / "QNN" / "QnnTypes.h").write_text("typedef int Qnn_Known_t;\n")
    (headers / "QNN" / "QnnOther.h").write_text("#include_next <QnnOther.h>\n")
    (elsewhere / "QnnOther.h").write_text("")
    for name, text in {
        "whole.cpp": "#include <QnnTypes.h>\nQnn_Known_t known;\n",
        "name.cpp": "#include <QnnTypes.h>\nQnn_Unknown_t unknown;\n",
        "header.cpp": '#include "QnnMissing.h"\n',
        "foreign.cpp": "#include <QnnOther.h>\n",
        "other.cpp": "#include <absent.h>\n",
    }.items():
        (sources / name).write_text(text)

    def table(*options: str) -> tuple[int, list[str]]:
        command = [sys.executable, CLIENTS / "compile_trees.py", trees, "--headers", headers, *options]
        done = subprocess.run(
            [*command, "--dependencies", elsewhere.parent, "--only", "executorch"], capture_output=True, text=True
        )
        return done.returncode, [cell.strip() for cell in done.stdout.splitlines()[-1].strip("| ").split("|")]

    assert table("--match", "whole") == (0, ["executorch", "1", "1", "0", "0", "0", "0"])
    status, row = table()
    assert status == 1
    assert row == ["executorch", "5", "2", "QnnMissing.h", "Qnn_Unknown_t", str(elsewhere / "QnnOther.h"), "1"]
