"""Options for many jobs, shards and their merging, for ``isthmus device`` and ``isthmus sweep``.

A shard is one of several parts of a sweep, each computed by itself and printed as JSON; ``--merge`` joins them.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.system import reading
from isthmus.tools.files import file_name

MAX_PART = 1 << 30
"""The largest file that is accepted as a part of a sweep."""


def add_farm_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for many jobs to a parser."""
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="processes at a time (default: processors)")
    parser.add_argument("--no-cache", action="store_true", help="compute again what was computed before")
    parser.add_argument("--shard", metavar="I/N", help="only part I of N of the sweep; --merge joins the parts")
    parser.add_argument("--merge", action="store_true", help="join parts: the arguments are files made by --shard")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of a dask.distributed cluster")
    parser.add_argument("--csv", type=file_name, metavar="FILE", help="also write the rows as CSV")
    parser.add_argument("--html", type=file_name, metavar="FILE", help="also write the rows as a page")


def check_jobs(options: argparse.Namespace) -> None:
    """Refuse a negative number of processes, and a model that is named twice, by any path: its rows would be equal."""
    if options.jobs < 0:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--jobs {options.jobs}", "must not be negative")
    seen: dict[str, Path] = {}
    for path in options.models:
        real = os.path.realpath(path)
        if real in seen:
            also = "" if seen[real] == path else f", also as '{seen[real]}'"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", f"it is named twice{also}")
        seen[real] = path


# -- parts -------------------------------------------------------------------------------------------------------------


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """Return which part of how many the value of ``--shard`` means; None without the option."""
    if text is None:
        return None
    first, slash, second = text.partition("/")
    if slash and first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second):
        return int(first), int(second)
    rule = "must look like 1/4, the first of four parts; the first number must not exceed the second"
    raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--shard {text}", rule)


def numbers_of(shard: tuple[int, int] | None, numbers: Collection[int]) -> list[int]:
    """Return the rows of a shard, or all: every n-th, so that each part has some of every model.

    Examples
    --------
    >>> numbers_of((2, 3), range(7))
    [1, 4]
    """
    part, count = shard or (1, 1)
    return [number for number in sorted(numbers) if number % count == part - 1]


def part_report(
    shard: tuple[int, int] | None, sweep: str, made_by: Mapping[str, str], rows: Mapping[int, Any]
) -> dict[str, Any]:
    """Return rows as the report of a sweep, or of one of its shards, which `merged` can join.

    Parameters
    ----------
    sweep
        The sweep's identity: a hash of all its jobs.
    made_by
        What made the rows, such as the build of a library; equal in all parts of a sweep.
    rows
        The rows by number.
    """
    numbers = sorted(rows)
    report: dict[str, Any] = {**made_by, "rows": [rows[number] for number in numbers]}
    return report if shard is None else report | {"shard": list(shard), "sweep": sweep, "numbers": numbers}


def merged(
    paths: Sequence[Path], command: str, made_by: str, is_row: Callable[[Mapping[str, Any]], bool]
) -> dict[str, Any]:
    """Join the parts of a sweep; refuse parts that are missing, given twice, or of another sweep.

    Parameters
    ----------
    command
        The subcommand that prints the parts, for messages.
    made_by
        The key of what made the rows.
    is_row
        Returns whether an object of JSON is a row of that command.
    """
    parts = [(path, _part(path, command, made_by)) for path in paths]
    first = parts[0][1]
    seen: dict[int, Path] = {}
    rows: dict[int, dict[str, Any]] = {}
    for path, part in parts:
        number, count = part["shard"]
        if (part["sweep"], part[made_by], count) != (first["sweep"], first[made_by], first["shard"][1]):
            rule = f"it is part of another sweep than '{paths[0]}'"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", rule)
        if number in seen:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", f"it is part {number}, as '{seen[number]}' is")
        if not all(isinstance(row, dict) and is_row(row) for row in part["rows"]):
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", "it has rows that no sweep has")
        seen[number] = path
        rows |= dict(zip(part["numbers"], part["rows"], strict=True))
    missing = [str(number) for number in range(1, first["shard"][1] + 1) if number not in seen]
    if missing:
        rule = f"{'part' if len(missing) == 1 else 'parts'} {', '.join(missing)} of {first['shard'][1]} missing"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "--merge", rule)
    return {made_by: first[made_by], "rows": [rows[number] for number in sorted(rows)]}


def _part(path: Path, command: str, made_by: str) -> dict[str, Any]:
    """Read a part; refuse a file that is none."""
    try:
        part: dict[str, Any] = json.loads(reading.contents(path, MAX_PART))
        number, count = part["shard"]
        texts, numbers = (part["sweep"], part[made_by]), (number, count, *part["numbers"])
        is_typed = all(isinstance(text, str) for text in texts) and all(type(each) is int for each in numbers)
        if is_typed and 1 <= number <= count and len(part["numbers"]) == len(part["rows"]):
            return part
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    rule = f"it is not what `isthmus {command} --shard I/N --json` prints"
    raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", rule)
