"""A pytest plugin for ExecuTorch's own tests: their runner executes in the process that lowers, and results are kept.

    QNN_DELEGATE_TEST=1 QNN_SDK_ROOT=SDK EXECUTORCH_RESULTS=FILE pytest -p executorch_plugin .../test_qnn_delegate.py

The tests themselves are not changed: where they would start `qnn_executor_runner` and wait for it, its job is done
here, which saves loading torch for each execution. One JSON object is written for each test that was collected, with
its name alone, and one when it has ended: its name, how it ended, how long it took, and, for a test that failed, its
message and the errors that were logged.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import traceback
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).with_name("qnn_executor_runner.py")
MESSAGE, ERRORS = 600, 5


class RunnerInProcess:
    """The module subprocess, except that the runner is called instead of started."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def run(self, command: Any, *arguments: Any, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Call the runner, or start another program."""
        if not isinstance(command, Sequence) or isinstance(command, str) or command[0] != str(RUNNER):
            return subprocess.run(command, *arguments, **settings)
        import qnn_executor_runner

        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                qnn_executor_runner.run(command[1:])
        except (Exception, SystemExit):
            return subprocess.CompletedProcess(command, 1, printed.getvalue() + traceback.format_exc())
        return subprocess.CompletedProcess(command, 0, printed.getvalue())


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Put the runner in the place where ExecuTorch's tests look for it."""
    from executorch.backends.qualcomm.tests import utils

    # transformers, which the tests import, has looked for torchaudio by now.
    _replace_torchaudio()
    RUNNER.chmod(RUNNER.stat().st_mode | 0o100)
    os.environ["QNN_EXECUTOR_RUNNER"] = str(RUNNER)
    utils.subprocess = RunnerInProcess()
    # Workers of pytest-xdist report to the process that started them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(Path(os.environ["EXECUTORCH_RESULTS"])))


def _replace_torchaudio() -> None:
    """Let the tests be imported without torchaudio, which has no release for newer versions of torch.

    Only tests of whole models use it.
    """
    if importlib.util.find_spec("torchaudio") is None:
        package, models = types.ModuleType("torchaudio"), types.ModuleType("torchaudio.models")
        package.models = models  # type: ignore[attr-defined]
        sys.modules |= {"torchaudio": package, "torchaudio.models": models}


class Results:
    """The file of results. A test with subtests has failed if one of them has."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._reports: dict[str, list[pytest.TestReport]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write the names of the tests that will run."""
        self._write({"test": _short(item.nodeid)} for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Write the names of the tests that workers will run; each worker collects all."""
        self._write({"test": _short(name)} for name in ids)

    def _write(self, results: Iterable[dict[str, Any]]) -> None:
        with self._file.open("a") as file:
            file.writelines(json.dumps(result) + "\n" for result in results)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report, and write the test's result when it has ended."""
        reports = self._reports.setdefault(report.nodeid, [])
        reports.append(report)
        # A test whose worker has crashed has one report, without a phase.
        if report.when in ("teardown", "???"):
            self._write([self._result(report.nodeid, reports)])

    def _result(self, name: str, reports: list[pytest.TestReport]) -> dict[str, Any]:
        failed = [report for report in reports if report.failed]
        skipped = [report for report in reports if report.skipped]
        result: dict[str, Any] = {
            "test": _short(name),
            "outcome": "failed" if failed else "skipped" if skipped else "passed",
            "seconds": round(sum(report.duration for report in reports), 2),
        }
        if failed:
            result["message"] = str(failed[0].longrepr)[-MESSAGE:]
            result["errors"] = list(dict.fromkeys(_errors(failed)))[:ERRORS]
        elif skipped:
            result["message"] = _skip_reason(skipped[0])[-MESSAGE:]
        return result


def _skip_reason(report: pytest.TestReport) -> str:
    """Say why a test was skipped; pytest reports an expected failure as a skip."""
    if hasattr(report, "wasxfail"):
        return f"it is expected to fail {report.wasxfail}".rstrip()
    return str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")


def _short(name: str) -> str:
    """Return a test's name as a table has it: without its file, and without what all names begin with."""
    for beginning in ("TestQNN", "test_", "qnn_backend_"):
        name = name.replace(f"::{beginning}", "::")
    return name.partition("::")[2]


def _errors(reports: list[pytest.TestReport]) -> Iterator[str]:
    """Yield the lines with errors that a test printed or logged."""
    for report in reports:
        for _, text in report.sections:
            yield from (line.strip()[:MESSAGE] for line in text.splitlines() if "ERROR" in line)
