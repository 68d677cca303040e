"""``isthmus sweep``: plan, run or compile many models with many settings, in parallel processes, as one table.

Every combination of model, backend and values of ``--set`` is a row. Each is computed by a process of its own, so that
a crash costs one row. Results are kept by a hash of the model, the settings, the processor and this package: an
interrupted or repeated sweep computes only what is missing.

A CI farm divides a sweep by ``--shard 1/4 --json`` and joins the parts by ``--merge``.

The exit status is 1 if a row has a problem, or a model does not fit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from isthmus import frontends
from isthmus.backends.seam import registry
from isthmus.backends.seam.native import target_key
from isthmus.backends.vendor.library import find
from isthmus.backends.vendor.sweep import build_of
from isthmus.compiled.folder import Folder
from isthmus.errors import Code, QnnError, did_you_mean, one_line
from isthmus.report import device_table
from isthmus.report.rows import Columns, to_csv, to_table
from isthmus.report.sweep_page import to_page
from isthmus.system import isolated, reading
from isthmus.system.jobs import FarmJobs, LocalJobs, ResultFolder, Runner, Started, resumed
from isthmus.system.progress import Progress, shown
from isthmus.tools.farm import add_farm_options, check_jobs, merged, numbers_of, parse_shard, part_report
from isthmus.tools.files import file_name, written_whole
from isthmus.tools.messages import print_line
from isthmus.tools.model_options import add_model_options, apply_settings, split_setting
from isthmus.tools.report_options import check_report_options
from isthmus.version import build_id

PLAN, RUN, DEVICE = "plan", "run", "device"
MEMORY: Columns = {"scratch_bytes": "scratch", "state_bytes": "state", "io_bytes": "io", "constant_bytes": "constants"}
FIGURES: Mapping[str, Columns] = {
    PLAN: {**MEMORY, "lower_bound": "lower bound", "greedy_bytes": "greedy", "status": "status", "fits": "fits"},
    RUN: {
        **MEMORY, "p50_ms": "p50 ms", "min_ms": "min ms", "load_seconds": "load s", "copied_bytes": "copied",
        "backend_copied_bytes": "copied by backend",
    },
    DEVICE: {key: title for key, title in device_table.COLUMNS.items() if key not in ("model", "problem")},
}  # fmt: skip
"""The columns of figures of each mode: keys of a row, and titles."""
DEVICE_SETTINGS = ("soc", "vtcm", "level", "precision", "hvx")
"""The options of ``isthmus device`` that can be set."""
_PACKAGE = Path(__file__).parents[1]
MAX_MODEL = 1 << 34
_PIECE = 1 << 20
"""Bytes of a file that are read at a time."""
MAX_ROWS = 1 << 16
"""More rows than one job has."""


@dataclass(frozen=True)
class SweepJob:
    """A row of a sweep, or the rows of a model on several chips.

    Parameters
    ----------
    backend
        The backend; None for the default.
    settings
        The values of ``--set`` by key.
    mode, arguments
        The command that computes it, and its options.
    config
        The backend's configuration file.
    digest
        A hash of the contents of the model and the configuration; for chips, with the build of Qualcomm's library.
    machine
        What its result depends on besides: this package, and the instruction set of this machine.
    """

    number: int
    model: Path
    backend: str | None
    settings: Mapping[str, str]
    mode: str
    arguments: tuple[str, ...]
    config: Path | None
    digest: str
    machine: tuple[str, ...]

    @property
    def title(self) -> str:
        """What a progress bar shows of it."""
        settings = (f"{key}={value}" for key, value in self.settings.items())
        return ", ".join(filter(None, (self.model.name, self.backend, *settings)))

    @property
    def task(self) -> str:
        """The hash of what it computes, the same on every machine."""
        return _hashed(self.mode, self.digest, self.model.suffix, *self.arguments)

    @property
    def key(self) -> str:
        """The hash of all that its result depends on."""
        return _hashed(*self.machine, self.task)


def _hashed(*facts: str) -> str:
    """Return the hash of some texts."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("--mode", choices=tuple(FIGURES), default=PLAN, help="what to do with each (default: plan)")
    add_model_options(parser, many=True)
    parser.add_argument("--repeat", type=int, default=10, metavar="N", help="runs of a row of --mode run (default 10)")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="how long a row may take (default: any time)")
    parser.add_argument("--state", type=file_name, metavar="DIR", help="where results are kept (default: user's cache)")
    add_farm_options(parser)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if not options.models:
        rule, hint = "names no model", "`isthmus samples .` writes some."
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "isthmus sweep", rule, hint)
    _refuse_audits(options)
    check_report_options(options, *options.models)
    report = merged(options.models, "sweep", "version", _is_row) if options.merge else _swept(options)
    rows = report["rows"]
    columns = _columns(rows)
    if options.csv is not None:
        with written_whole(options.csv, f"'{options.csv}'") as stream:
            stream.write(to_csv(rows, columns).encode())
    if options.html is not None:
        with written_whole(options.html, f"'{options.html}'") as stream:
            stream.write(to_page(rows, columns, report["version"]).encode())
    if options.json:
        print(json.dumps(report))
    else:
        for line in to_table(rows, columns):
            print_line(line)
    return 1 if any(row["problem"] or row.get("fits") is False for row in rows) else 0


def _refuse_audits(options: argparse.Namespace) -> None:
    """Refuse an audit: it covers this process, and models run in others."""
    if options.audit or options.max_copied is not None:
        what = "--audit" if options.max_copied is None else f"--max-copied {options.max_copied}"
        rule, hint = "rows are computed in processes of their own", "`isthmus run` has it for one model."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, what, rule, hint)


def _is_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row may be one of a sweep: names, a mode, and values for all settings."""
    expected = {"model": str, "mode": str, "settings": dict, "problem": str, "backend": str | None}
    is_typed = all(isinstance(row.get(key), kind) for key, kind in expected.items())
    return is_typed and row["mode"] in FIGURES and row["settings"].keys() <= row.keys()


def _columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return the columns of some rows: the model, the settings, the figures of their mode, and problems."""
    modes = dict.fromkeys(row["mode"] for row in rows)
    settings = dict.fromkeys(key for row in rows for key in row["settings"])
    figures = {key: title for mode in modes for key, title in FIGURES[mode].items()}
    names = {"model": "model", "backend": "backend", **{key: key for key in settings}}
    return {**names, **figures, "problem": "problem"}


# -- jobs --------------------------------------------------------------------------------------------------------------


def _swept(options: argparse.Namespace) -> dict[str, Any]:
    """Do the jobs of a command line; return the report as plain data."""
    shard = parse_shard(options.shard)
    check_jobs(options)
    jobs = list(_jobs(options))
    sweep = _hashed(*(job.task for job in jobs))[:16]
    mine = set(numbers_of(shard, range(len(jobs))))
    chosen = [job for job in jobs if job.number in mine]
    runner: Runner[SweepJob, JobOutcome] = LocalJobs(_Work(options.limit), options.jobs)
    if options.scheduler is not None:
        _refuse_other_files(options.models)
        arguments = _RemoteArguments(options.limit)
        runner = FarmJobs(options.scheduler, run_remotely, arguments, JobOutcome.from_json, _failed)
    kept = _KeptOutcomes(options.state or state_folder(), options.no_cache)
    rows: dict[int, list[dict[str, Any]]] = {}
    try:
        with shown(Progress("jobs", len(chosen))) as work:
            for job, outcome in resumed(chosen, lambda job: job.key, kept, runner):
                rows[job.number] = _rows(job, outcome)
                work.step(job.title)
    except KeyboardInterrupt:
        print(f"{len(rows)} of {len(chosen)} are finished; the same command continues", file=sys.stderr)
        raise
    # A job for several chips has several rows; all rows of a sweep have numbers of their own, in all its shards.
    numbered = {number * MAX_ROWS + index: row for number, each in rows.items() for index, row in enumerate(each)}
    return part_report(shard, sweep, {"version": build_id()}, numbered)


def _refuse_other_files(paths: Sequence[Path]) -> None:
    """Refuse models that workers would lack a part of: only the file of a model is sent to them."""
    for path in paths:
        if not frontends.is_self_contained(_contents(path)):
            rule, hint = "weights in other files are not sent to workers", "Sweep it without --scheduler."
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"'{path}'", rule, hint)


def _failed(problem: str) -> JobOutcome:
    """Return the outcome of a job without figures."""
    return JobOutcome(problem=problem)


def state_folder() -> Path:
    """Return where results are kept by default."""
    return Folder.of_user().path / "sweep"


def _rows(job: SweepJob, outcome: JobOutcome) -> list[dict[str, Any]]:
    """Return the rows of a job: what it is, and its figures or its problem."""
    what = {
        "model": str(job.model), "backend": job.backend, **job.settings, "settings": dict(job.settings),
        "mode": job.mode, "problem": outcome.problem,
    }  # fmt: skip
    return [{**what, **row} for row in outcome.rows] or [what]


def _jobs(options: argparse.Namespace) -> Iterator[SweepJob]:
    """Yield a job for every combination of model, backend and settings; refuse what no job could be."""
    _check_options(options)
    backends: list[str | None] = [None]
    if options.backend is not None:
        backends = [registry.entry(name).name for name in options.backend.split(",")]
    choices = [_choices(text, options.mode) for text in options.set]
    keys = [key for key, _ in choices]
    for key in keys:
        if keys.count(key) > 1:
            hint = "Join its values by commas."
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--set {key}", "it is given twice", hint)
    common = _common(options)
    config = "" if options.config is None else _digest(options.config)
    library = build_of(find()) if options.mode == DEVICE else ""
    machine = build_id(), target_key(), _sources()
    number = 0
    for path in options.models:
        digest = _digest(path) + config + library
        for backend, values in product(backends, product(*(values for _, values in choices))):
            settings = dict(zip(keys, values, strict=True))
            arguments = [*common, *([] if backend is None else ["--backend", backend]), *_given(settings, options.mode)]
            if path is options.models[0]:
                _check(options.mode, [str(path), *arguments])
            yield SweepJob(
                number, path, backend, settings, options.mode, tuple(arguments), options.config, digest, machine
            )
            number += 1


def _check_options(options: argparse.Namespace) -> None:
    """Refuse options that have no meaning for a chip."""
    if options.mode == DEVICE:
        for name in ("backend", "config", "threads", "scratch_limit", "slower", "direct_mode"):
            if getattr(options, name) != (1 if name == "threads" else None):
                what = f"--{name.replace('scratch_limit', 'scratch-limit')} {getattr(options, name)}"
                rule, hint = "has no meaning for a chip", "--set soc=SM8750,SM8650 names chips."
                raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, hint)


def _choices(text: str, mode: str) -> tuple[str, list[str]]:
    """Return the key and the values of one ``--set``.

    Examples
    --------
    >>> _choices("threads=1,2", "run")
    ('threads', ['1', '2'])
    """
    key, values = split_setting(text)
    if mode == DEVICE and key not in DEVICE_SETTINGS:
        rule = f"must be one of {', '.join(DEVICE_SETTINGS)}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--set {text}", rule, did_you_mean(key, DEVICE_SETTINGS))
    found = [value for value in values.split(",") if value]
    if not found:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--set {text}", "has no value")
    return key, found


def _common(options: argparse.Namespace) -> list[str]:
    """Return the options that all jobs have, as a command line."""
    arguments = [part for text in options.shape for part in ("--shape", text)]
    if options.graph is not None:
        arguments += ["--graph", options.graph]
    if options.mode == DEVICE:
        return arguments
    for name in ("scratch_limit", "slower", "direct_mode"):
        value = getattr(options, name)
        if value is not None:
            arguments += [f"--{name.replace('scratch_limit', 'scratch-limit')}", str(value)]
    if options.threads != 1:
        arguments += ["--threads", str(options.threads)]
    return [*arguments, "--repeat", str(options.repeat)] if options.mode == RUN else arguments


def _given(settings: Mapping[str, str], mode: str) -> list[str]:
    """Return settings as a command line."""
    if mode == DEVICE:
        return [part for key, value in settings.items() for part in (f"--{key}", value)]
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def _check(mode: str, arguments: Sequence[str]) -> None:
    """Refuse options that the command does not have, before any process starts."""
    parser = argparse.ArgumentParser(prog=f"isthmus sweep --mode {mode}")
    import_module(f"isthmus.tools.{mode}").add_arguments(parser)
    options = parser.parse_args(arguments)
    if mode != DEVICE:
        apply_settings(options)


def _contents(path: Path) -> bytes:
    """Read a file that a job needs on another machine."""
    with _named(path):
        return reading.contents(path, MAX_MODEL)


def _sources() -> str:
    """Return the hash of the package's sources, which change more often than its version."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(bytes.fromhex(_digest(path)))
    return digest.hexdigest()


def _digest(path: Path) -> str:
    """Return the hash of a file's contents."""
    digest = hashlib.sha256()
    with _named(path), reading.opened(path) as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn errors of the system inside the block into one that names a file."""
    try:
        yield
    except OSError as problem:
        rule = f"cannot be read: {problem.strerror}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", rule) from None


class _KeptOutcomes:
    """Outcomes in a folder; only those with all figures are kept.

    Parameters
    ----------
    fresh
        Whether to compute everything again, and keep the new outcomes.
    """

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


# -- processes ---------------------------------------------------------------------------------------------------------


class CommandProcess:
    """A command of ours in a process of its own, which writes one JSON object and ends when this process does.

    Parameters
    ----------
    arguments
        The command line, without ``isthmus``.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._reason = ""
        command = isolated.command("isthmus.tools.sweep_process", str(os.getpid()), *arguments)
        self._child = subprocess.Popen(
            command, env=isolated.environment() | {"OPENBLAS_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def kill(self, reason: str) -> None:
        """End the process and those that it started, also while another thread waits for it."""
        self._reason = self._reason or reason
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def outcome(self, mode: str, seconds: float | None) -> JobOutcome:
        """Wait for the end of the process, at most so many seconds; return what it printed."""
        try:
            printed, messages = self._child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill(f"it took longer than {seconds:g} s")
            printed, messages = self._child.communicate()
        status = self._child.returncode
        if self._reason:
            return _failed(self._reason)
        if status < 0:
            return _failed(f"its process was ended by {_signal(-status)}")
        try:
            return JobOutcome(_figures(mode, json.loads(printed), status))
        except (ValueError, LookupError, TypeError):
            lines = messages.decode("utf-8", "replace").strip().splitlines() or ["without a message"]
            return _failed(one_line(lines[-1]).removeprefix(f"isthmus {mode}: "))


def _signal(number: int) -> str:
    """Return a signal's name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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


class _Work:
    """A function that does a job in a process of this machine, within some seconds."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def __call__(self, job: SweepJob, started: Started) -> JobOutcome:
        config = [] if job.config is None else ["--config", str(job.config)]
        return _done(job.mode, job.model, [*config, *job.arguments], self._seconds, started)


def _done(
    mode: str, model: Path, arguments: Sequence[str], seconds: float | None, started: Started
) -> JobOutcome:
    """Run a command on a model in a process of its own."""
    try:
        process = CommandProcess([mode, str(model), *arguments, "--json"])
    except OSError as problem:
        return _failed(f"its process cannot be started: {problem.strerror}")
    started(process)
    return process.outcome(mode, seconds)


class _RemoteArguments:
    """A function that makes the arguments of `run_remotely` for a job: workers of a cluster may not see our files."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def __call__(self, job: SweepJob) -> tuple[Any, ...]:
        config = None if job.config is None else _contents(job.config)
        return job.mode, job.model.name, _contents(job.model), config, job.arguments, self._seconds


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
        return vars(_done(mode, path, options, seconds, lambda process: None))
