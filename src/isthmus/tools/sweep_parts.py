"""The parts of a sweep: each is computed by itself and printed as JSON, and ``--merge`` joins them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.system import reading
from isthmus.tools.sweep_table import is_row

MAX_PART = 1 << 30
"""The largest file that is accepted as a part of a sweep."""


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


def part_report(shard: tuple[int, int] | None, sweep: str, version: str, rows: Mapping[int, Any]) -> dict[str, Any]:
    """Return rows as the report of a sweep, or of one of its shards, which `merge` can join.

    Parameters
    ----------
    sweep
        The sweep's identity: a hash of all its jobs.
    version
        The version that computed the rows; equal in all parts of a sweep.
    rows
        The rows by number.
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
    rule = "it is not what `isthmus sweep --shard I/N --json` prints"
    raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", rule)
