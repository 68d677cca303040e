"""Rows of plain data as a table of text and as CSV, by a list of columns with their titles."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

Columns = Mapping[str, str]
"""The title of each column, by the key of its values in a row."""
_GAP = "  "
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that spreadsheets compute."""


def to_csv(rows: Sequence[Mapping[str, Any]], columns: Columns) -> str:
    """Return the rows as CSV with a line of the columns' keys, which no spreadsheet takes for formulas.

    Examples
    --------
    >>> print(to_csv([{"model": "=1+1.onnx", "bytes": -2}], {"model": "model", "bytes": "bytes"}), end="")
    model,bytes
    '=1+1.onnx,-2
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(columns), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(row.get(name)) for name in columns} for row in rows)
    return stream.getvalue()


def _cell(value: Any) -> Any:
    """Return a value for CSV: texts are valid Unicode, and those that would be formulas begin with an apostrophe."""
    if not isinstance(value, str):
        return value
    text = value.encode(errors="backslashreplace").decode()
    return f"'{text}" if text.startswith(_FORMULA) else text


def to_table(rows: Sequence[Mapping[str, Any]], columns: Columns, problem: str = "problem") -> list[str]:
    """Return the rows as aligned lines below a line of titles; columns that no row uses are left out.

    In a row with a problem, the problem follows the columns that have a value.

    Examples
    --------
    >>> rows = [{"model": "a.onnx", "bytes": 1024}, {"model": "b.onnx", "problem": "it is empty"}]
    >>> for line in to_table(rows, {"model": "model", "bytes": "bytes"}):
    ...     print(line)
    model   bytes
    a.onnx  1,024
    b.onnx  it is empty
    """
    used = [name for name in columns if name != problem and any(row.get(name) is not None for row in rows)]
    numeric = {name for name in used if all(isinstance(row.get(name), (int, float, type(None))) for row in rows)}
    cells: list[list[str | None]] = [[columns[name] for name in used]]
    for row in rows:
        # A problem stands where the figures would be.
        cells.append([None if row.get(problem) and row.get(name) is None else shown(row.get(name)) for name in used])
    title, *lines = align(cells, [name in numeric for name in used])
    problems = [f"{_GAP}{row[problem]}" if row.get(problem) else "" for row in rows]
    return [title, *map("".join, zip(lines, problems, strict=True))]


def align(rows: Sequence[Sequence[str | None]], right: Sequence[bool]) -> list[str]:
    """Return rows of cells as lines in which columns are aligned, to the right where `right` says so; None is no cell.

    Examples
    --------
    >>> align([["name", "bytes"], ["x", "12"]], [False, True])
    ['name  bytes', 'x        12']
    """
    widths = [max(len(row[column] or "") for row in rows) for column in range(len(right))]
    return [
        _GAP.join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
            if cell is not None
        ).rstrip()
        for row in rows
    ]


def shown(value: Any) -> str:
    """Return a value as a cell of a table shows it.

    Examples
    --------
    >>> shown(1234567), shown(0.51234), shown(None), shown(True)
    ('1,234,567', '0.512', '', 'yes')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
