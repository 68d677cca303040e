"""Rows of plain data as a table of text and as CSV, by a list of columns with their titles; the rows of chips."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

Columns = Mapping[str, str]
"""The title of each column, by the key of its values in a row."""
_GAP = "  "
# How a text begins that spreadsheets compute.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


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
        cells.append(
            [None if row.get(problem) and row.get(name) is None else cell_text(row.get(name)) for name in used]
        )
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


def cell_text(value: Any) -> str:
    """Return a value as a cell of a table shows it.

    Examples
    --------
    >>> cell_text(1234567), cell_text(0.51234), cell_text(None), cell_text(True)
    ('1,234,567', '0.512', '', 'yes')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


# -- figures for chips -------------------------------------------------------------------------------------------------

Row = Mapping[str, Any]

DEVICE_COLUMNS: Mapping[str, str] = {
    "model": "model",
    "chip": "chip",
    "arch": "arch",
    "vtcm_mb": "VTCM MB",
    "level": "level",
    "spill_fill": "spill-fill",
    "vtcm": "VTCM",
    "op_data": "op data",
    "constants": "constants",
    "ddr": "DDR",
    "io": "IO",
    "shared_weights": "shared weights",
    "total_ram": "total RAM",
    "file_bytes": "file",
    "finalize_seconds": "finalize s",
    "spilled": "spilled",
    "filled": "filled",
    "written": "written to DDR",
    "read": "read from DDR",
    "plan_spill_fill": "our spill-fill",
    **{f"plan_{name}": f"our {name}" for name in ("spilled", "filled", "written", "read", "scratch", "state")},
    "plan_constants": "our constants",
    "plan_io": "our IO",
    "problem": "problem",
}
"""The columns, each with its title. Memory is in bytes."""
# The columns of figures in text.
_SHOWN = ("spill_fill", "op_data", "constants", "ddr", "io", "total_ram", "file_bytes", "finalize_seconds")
# The columns about DDR memory in a run; those of our plan begin with ``plan_``.
_MOVED = ("spill_fill", "spilled", "filled", "written", "read")


def is_device_row(row: Row) -> bool:
    """Return whether plain data can be drawn as a row: it has no total, or a chip and numbers beside it."""
    numbers = row.get("total_ram"), row.get("spill_fill")
    is_drawn = isinstance(row.get("chip"), str) and all(isinstance(each, (int, float)) for each in numbers)
    return row.get("total_ram") is None or is_drawn


def device_lines(rows: Sequence[Row]) -> list[str]:
    """Return the rows of a model as lines: what our plan says, then a line for each target.

    Examples
    --------
    >>> row = {"model": "a.onnx", "chip": "SM8750", "vtcm_mb": 8, "level": 3, "problem": "", "spill_fill": 0,
    ...        "op_data": 16128, "constants": 110592, "ddr": 0, "io": 16384, "total_ram": 8531712,
    ...        "file_bytes": 159744, "finalize_seconds": 0.05, "plan_scratch": 1024, "plan_constants": 9,
    ...        "plan_io": 8, "plan_state": 0}
    >>> print("\\n".join(device_lines([row])))
    a.onnx: our plan has scratch 1,024, state 0, constants 9, IO 8 bytes
      chip            VTCM  O    spill-fill       op data     constants  ...
      SM8750          8 MB  3             0        16,128       110,592  ...
    """
    first = rows[0]
    plan = first.get("plan_problem") or "a context binary"
    if first.get("plan_scratch") is not None:
        plan = (
            f"our plan has scratch {first['plan_scratch']:,}, state {first['plan_state']:,}, "
            f"constants {first['plan_constants']:,}, IO {first['plan_io']:,} bytes"
        )
    titles = "".join(f"{DEVICE_COLUMNS[name]:>14}" for name in _SHOWN)
    lines = [f"{first['model']}: {plan}", f"  {'chip':<14}{'VTCM':>6}{'O':>3}{titles}"]
    for row in rows:
        size = "" if row["vtcm_mb"] is None else f"{row['vtcm_mb']} MB"
        start = f"  {row['chip']:<14}{size:>6}{'' if row['level'] is None else row['level']:>3}"
        lines.append(
            start + (f"  {row['problem']}" if row["problem"] else "".join(_align_figure(row[n]) for n in _SHOWN))
        )
    return [*lines, *_traffic_lines(rows)]


def _traffic_lines(rows: Sequence[Row]) -> list[str]:
    """Return lines about what a run moves: the compiler's figures, ours and the difference, where both are known."""
    comparable = [row for row in rows if row.get("spilled") is not None and row.get("plan_spilled") is not None]
    if not comparable:
        return []
    titles = "".join(f"{DEVICE_COLUMNS[name]:>16}" for name in _MOVED)
    lines = [f"  DDR memory in a run{'':<20}{titles}"]
    for row in comparable:
        ours = [row[f"plan_{name}"] for name in _MOVED]
        theirs = [row[name] for name in _MOVED]
        start = f"{row['chip']} {row['vtcm_mb']} MB" + ("" if row["level"] is None else f" O{row['level']}")
        differences = [f"{a - b:+,}" for a, b in zip(ours, theirs, strict=True)]
        for title, values in (("compiler", map("{:,}".format, theirs)), ("ours", map("{:,}".format, ours)),
                              ("difference", differences)):  # fmt: skip
            lines.append(f"    {start:<24}{title:<11}{''.join(f'{value:>16}' for value in values)}")
            start = ""
    return lines


def _align_figure(value: Any) -> str:
    """Return a figure, aligned."""
    return f"{value:>14.2f}" if isinstance(value, float) else f"{value:>14,}"
