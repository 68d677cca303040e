"""The processes of ``isthmus sweep``: each does a job, here or on another machine, and its outcome is kept."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.errors import one_line
from isthmus.system.child import Child, describe_status, last_line
from isthmus.system.jobs import ResultFolder, Started, end_with_task
from isthmus.tools.sweep_grid import DEVICE, FIGURES, RUN, SweepJob, contents


@dataclass(frozen=True)
class JobOutcome:
    """What a job's process printed: rows of figures, or why there are none."""

    rows: Sequence[Mapping[str, Any]] = ()
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether every row has figures. Otherwise another attempt may end differently."""
        return bool(self.rows) and not any(row.get("problem") for row in self.rows)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> JobOutcome:
        """Read an outcome from plain data."""
        return cls(content["rows"], content["problem"])


def failure(problem: str) -> JobOutcome:
    """Return the outcome of a job without figures."""
    return JobOutcome(problem=problem)


class KeptOutcomes:
    """Outcomes in a folder; only those with all figures are kept. With `fresh`, everything is computed again."""

    def __init__(self, folder: Path, fresh: bool) -> None:
        self._results, self._fresh = ResultFolder(folder), fresh

    def get(self, key: str) -> JobOutcome | None:
        """Return an outcome; None if there is none."""
        if not self._fresh:
            with suppress(LookupError, TypeError):
                return JobOutcome.from_json(self._results.get(key))
        return None

    def put(self, key: str, outcome: JobOutcome) -> None:
        """Keep an outcome that has all figures."""
        if outcome.is_complete:
            self._results.put(key, vars(outcome))


class CommandProcess:
    """A command line, without ``isthmus``, in a process that writes one JSON object and ends when this process does."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._reason = ""
        module, pipe = "isthmus.tools.sweep_process", subprocess.PIPE
        self._child = Child(module, str(os.getpid()), *arguments, folder=None, stdout=pipe, stderr=pipe)

    def kill(self, reason: str) -> None:
        """End the process and those that it started, also while another thread waits for it."""
        self._reason = self._reason or reason
        self._child.kill_group()

    def outcome(self, mode: str, seconds: float | None) -> JobOutcome:
        """Wait for the end of the process, at most so many seconds; return what it printed."""
        try:
            printed, messages = self._child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill(f"it took longer than {seconds:g} s")
            printed, messages = self._child.communicate()
        status = self._child.returncode
        if self._reason:
            return failure(self._reason)
        if status < 0:
            return failure(f"its process was ended by {describe_status(status)}")
        try:
            return JobOutcome(_figures(mode, json.loads(printed), status))
        except (ValueError, LookupError, TypeError):
            return failure(one_line(last_line(messages) or "without a message").removeprefix(f"isthmus {mode}: "))


def _figures(mode: str, report: Mapping[str, Any], status: int) -> list[dict[str, Any]]:
    """Return the figures of a command's report as rows."""
    if mode == DEVICE:
        return [{key: row.get(key) for key in (*FIGURES[DEVICE], "problem")} for row in report["rows"]]
    figures = dict(report)
    if mode == RUN:
        figures |= {"p50_ms": report["latency_ms"]["p50"], "min_ms": report["latency_ms"]["min"]}
    else:
        figures["fits"] = status == 0
    return [{"backend": report["backend"], **{key: figures.get(key) for key in FIGURES[mode]}}]


class LocalWork:
    """A function that does a job in a process of this machine, within some seconds."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def __call__(self, job: SweepJob, started: Started) -> JobOutcome:
        config = [] if job.config is None else ["--config", str(job.config)]
        return _run_command(job.mode, job.model, [*config, *job.arguments], self._seconds, started)


def _run_command(
    mode: str, model: Path, arguments: Sequence[str], seconds: float | None, started: Started
) -> JobOutcome:
    """Run a command on a model in a process of its own."""
    try:
        # The name may begin with a dash.
        process = CommandProcess([mode, *arguments, "--json", "--", str(model)])
    except OSError as problem:
        return failure(f"its process cannot be started: {problem.strerror}")
    started(process)
    return process.outcome(mode, seconds)


class RemoteArguments:
    """A function that makes the arguments of `run_remotely` for a job: workers of a cluster may not see our files."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def __call__(self, job: SweepJob) -> tuple[Any, ...]:
        config = None if job.config is None else contents(job.config)
        return job.mode, job.model.name, contents(job.model), config, job.arguments, self._seconds


def run_remotely(
    mode: str, name: str, model: bytes, config: bytes | None, arguments: Sequence[str], seconds: float | None
) -> dict[str, Any]:
    """Do a job on another machine, in a folder with copies of its files; return plain data."""
    with tempfile.TemporaryDirectory(prefix="isthmus-sweep-") as folder:
        path = Path(folder, name)
        path.write_bytes(model)
        options = list(arguments)
        if config is not None:
            Path(folder, "config.json").write_bytes(config)
            options += ["--config", str(Path(folder, "config.json"))]
        with end_with_task() as started:
            return vars(_run_command(mode, path, options, seconds, started))
