"""``isthmus sweep``: plan, run or compile many models with many settings, in parallel processes, as one table.

Every combination of model, backend and values of ``--set`` is a row. Each is computed by a process of its own, so that
a crash costs one row. Results are kept by a hash of the model, the settings, the processor and this package: an
interrupted or repeated sweep computes only what is missing.

A CI farm divides a sweep by ``--shard 1/4 --json`` and joins the parts by ``--merge``.

The exit status is 1 if a row has a problem, or a model does not fit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.compiled.folder import Folder
from isthmus.errors import QnnError, invalid_argument
from isthmus.report.page.tradeoffs import to_page
from isthmus.report.rows import to_csv, to_table
from isthmus.system import reading
from isthmus.system.jobs import FarmJobs, LocalJobs, Runner, resume
from isthmus.system.progress import Progress, show_progress
from isthmus.tools.files import file_name, refuse_unwritable_folder, write_whole
from isthmus.tools.messages import print_report
from isthmus.tools.model_options import add_model_options, open_shapes, refuses_shapes
from isthmus.tools.options import TCM, add_shared
from isthmus.tools.report_options import check_report_options
from isthmus.tools.sweep_grid import FIGURES, PLAN, SweepJob, columns_of, hash_of, is_row, jobs_of, refuse_other_files
from isthmus.tools.sweep_running import JobOutcome, KeptOutcomes, LocalWork, RemoteArguments, failure, run_remotely
from isthmus.version import build_id

MAX_ROWS = 1 << 16
"""More rows than one job has."""
MAX_PART = 1 << 30
"""The largest file that is accepted as a part of a sweep."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("--mode", choices=tuple(FIGURES), default=PLAN, help="what to do with each (default: plan)")
    add_model_options(parser, many=True)
    tcm = f"{TCM}: verdicts of --mode plan are for this size, allocations of --mode run are within it"
    add_shared(parser, "tcm", help=tcm)
    parser.add_argument("--repeat", type=int, default=10, metavar="N", help="runs of a row of --mode run (default 10)")
    what = "how long a row may take (default: any time)"
    parser.add_argument("--row-timeout", type=float, metavar="SECONDS", help=what)
    parser.add_argument("--state", type=file_name, metavar="DIR", help="where results are kept (default: user's cache)")
    add_shared(parser, "jobs")
    parser.add_argument("--no-cache", action="store_true", help="compute again what was computed before")
    parser.add_argument("--shard", metavar="I/N", help="only part I of N of the sweep; --merge joins the parts")
    parser.add_argument("--merge", action="store_true", help="join parts: the arguments are files made by --shard")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of a dask.distributed cluster")
    parser.add_argument("--csv", type=file_name, metavar="FILE", help="also write the rows as CSV")
    parser.add_argument("--html", type=file_name, metavar="FILE", help="also write the rows as a page")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if not options.models:
        raise invalid_argument("isthmus sweep", "names no model", "`isthmus samples .` writes some.")
    check_report_options(options, *options.models)
    if not options.merge and refuses_shapes(options, *options.models):
        return 1
    report = merge(options.models) if options.merge else _sweep(options)
    rows = report["rows"]
    if not options.merge:
        open_inputs = {str(model): open_shapes(options, model) for model in options.models}
        for row in rows:
            row["open_shapes"] = open_inputs[row["model"]]
    columns = columns_of(rows)
    if options.csv is not None:
        write_whole(options.csv, f"'{options.csv}'", to_csv(rows, columns).encode())
    if options.html is not None:
        write_whole(options.html, f"'{options.html}'", to_page(rows, columns, report["version"]).encode())
    print_report(options, report, to_table(rows, columns) if rows else [f"part {options.shard} has no rows"])
    return 1 if any(row["problem"] or row.get("fits") is False for row in rows) else 0


def _sweep(options: argparse.Namespace) -> dict[str, Any]:
    """Do the jobs of a command line; return the report as plain data."""
    shard = parse_shard(options.shard)
    jobs = list(jobs_of(options))
    sweep = hash_of(*(job.task for job in jobs))[:16]
    mine = set(numbers_of(shard, range(len(jobs))))
    chosen = [job for job in jobs if job.number in mine]
    runner: Runner[SweepJob, JobOutcome] = LocalJobs(LocalWork(options.row_timeout), options.jobs)
    if options.scheduler is not None:
        refuse_other_files(options.models)
        arguments = RemoteArguments(options.row_timeout)
        runner = FarmJobs(options.scheduler, run_remotely, arguments, JobOutcome.from_json, failure)
    if options.state is not None:
        refuse_unwritable_folder(f"--state {options.state}", options.state)
    cache = KeptOutcomes(options.state or state_folder(), options.no_cache)
    rows: dict[int, list[dict[str, Any]]] = {}
    try:
        with show_progress(Progress("jobs", len(chosen))) as work:
            for job, outcome in resume(chosen, lambda job: job.key, cache, runner):
                rows[job.number] = _rows(job, outcome)
                work.step(job.title)
    except KeyboardInterrupt:
        print(f"{len(rows)} of {len(chosen)} are finished{_continuation(options)}", file=sys.stderr)
        raise
    # A job for several chips has several rows; all rows of a sweep have numbers of their own, in all its shards.
    numbered = {number * MAX_ROWS + index: row for number, each in rows.items() for index, row in enumerate(each)}
    return part_report(shard, sweep, build_id(), numbered)


def state_folder() -> Path:
    """Return where results are kept by default."""
    return Folder.of_user().path / "sweep"


def _continuation(options: argparse.Namespace) -> str:
    """Return the end of the sentence about an interrupt: how the sweep continues, if results could be kept."""
    try:
        refuse_unwritable_folder("--state", options.state or state_folder())
    except QnnError:
        return ", and not kept: the folder for results cannot be written"
    return "; without --no-cache the same command continues" if options.no_cache else "; the same command continues"


def _rows(job: SweepJob, outcome: JobOutcome) -> list[dict[str, Any]]:
    """Return the rows of a job: what it is, and its figures or its problem."""
    what = {
        "model": str(job.model), "backend": job.backend, **job.settings, "settings": dict(job.settings),
        "mode": job.mode, "problem": outcome.problem,
    }  # fmt: skip
    return [{**what, **row} for row in outcome.rows] or [what]


# -- parts -------------------------------------------------------------------------------------------------------------


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """Return which part of how many the value of ``--shard`` means; None without the option."""
    if text is None:
        return None
    first, slash, second = text.partition("/")
    if slash and first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second):
        return int(first), int(second)
    rule = "must look like 1/4, the first of four parts; the first number must not exceed the second"
    raise invalid_argument(f"--shard {text}", rule)


def numbers_of(shard: tuple[int, int] | None, numbers: Collection[int]) -> list[int]:
    """Return the rows of a shard, or all: every n-th, so that each part has some of every model.

    Examples
    --------
    >>> numbers_of((2, 3), range(7))
    [1, 4]
    """
    part, count = shard or (1, 1)
    return [number for number in sorted(numbers) if number % count == part - 1]


def part_report(shard: tuple[int, int] | None, sweep: str, version: str, rows: Mapping[int, Any]) -> dict[str, Any]:
    """Return rows as the report of a sweep, or of one of its shards, which `merge` can join.

    - `sweep`: the sweep's identity: a hash of all its jobs.
    - `version`: the version that computed the rows; equal in all parts of a sweep.
    - `rows`: the rows by number.
    """
    numbers = sorted(rows)
    report: dict[str, Any] = {"version": version, "rows": [rows[number] for number in numbers]}
    return report if shard is None else report | {"shard": list(shard), "sweep": sweep, "numbers": numbers}


def merge(paths: Sequence[Path]) -> dict[str, Any]:
    """Join the parts of a sweep; refuse parts that are missing, given twice, or of another sweep."""
    parts = [(path, _part(path)) for path in paths]
    first = parts[0][1]
    seen: dict[int, Path] = {}
    rows: dict[int, dict[str, Any]] = {}
    for path, part in parts:
        number, count = part["shard"]
        if (part["sweep"], part["version"], count) != (first["sweep"], first["version"], first["shard"][1]):
            raise invalid_argument(f"'{path}'", f"it is part of another sweep than '{paths[0]}'")
        if number in seen:
            raise invalid_argument(f"'{path}'", f"it is part {number}, as '{seen[number]}' is")
        if not all(isinstance(row, dict) and is_row(row) for row in part["rows"]):
            raise invalid_argument(f"'{path}'", "it has rows that no sweep has")
        seen[number] = path
        rows |= dict(zip(part["numbers"], part["rows"], strict=True))
    missing = [str(number) for number in range(1, first["shard"][1] + 1) if number not in seen]
    if missing:
        rule = f"{'part' if len(missing) == 1 else 'parts'} {', '.join(missing)} of {first['shard'][1]} missing"
        raise invalid_argument("--merge", rule)
    return {"version": first["version"], "rows": [rows[number] for number in sorted(rows)]}


def _part(path: Path) -> dict[str, Any]:
    """Read a part; refuse a file that is none."""
    try:
        part: dict[str, Any] = json.loads(reading.contents(path, MAX_PART))
        number, count = part["shard"]
        texts, numbers = (part["sweep"], part["version"]), (number, count, *part["numbers"])
        is_typed = all(isinstance(text, str) for text in texts) and all(type(each) is int for each in numbers)
        if is_typed and 1 <= number <= count and len(part["numbers"]) == len(part["rows"]):
            return part
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise invalid_argument(f"'{path}'", "it is not what `isthmus sweep --shard I/N --json` prints")
