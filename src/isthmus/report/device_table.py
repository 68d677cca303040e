"""Rows of figures for chips, as text and CSV. A row is plain data, one for a model and a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.report import rows as table_rows

Row = Mapping[str, Any]

COLUMNS: Mapping[str, str] = {
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
    "plan_scratch": "our scratch",
    "plan_state": "our state",
    "plan_constants": "our constants",
    "plan_io": "our IO",
    "problem": "problem",
}
"""The columns, each with its title. Memory is in bytes."""
_SHOWN = ("spill_fill", "op_data", "constants", "ddr", "io", "total_ram", "file_bytes", "finalize_seconds")
"""The columns of figures in text."""
_TEXTS = ("model", "chip", "problem")
_PLAN = ("plan_scratch", "plan_state", "plan_constants", "plan_io")


def is_row(row: Row) -> bool:
    """Return whether plain data is a row: its columns have texts or numbers, and none that is shown is missing."""
    figures = [] if row.get("problem") else [*_SHOWN]
    figures += [] if row.get("plan_scratch") is None else _PLAN
    return (
        all(isinstance(row.get(name), str) for name in _TEXTS)
        and {"vtcm_mb", "level"} <= row.keys()
        and all(isinstance(row.get(name), (int, float, type(None))) for name in COLUMNS if name not in _TEXTS)
        and all(row.get(name) is not None for name in figures)
    )


def to_text(rows: Sequence[Row]) -> list[str]:
    """Return the rows as lines: for each model what our plan says, then a line for each target.

    Examples
    --------
    >>> row = {"model": "a.onnx", "chip": "SM8750", "vtcm_mb": 8, "level": 3, "problem": "", "spill_fill": 0,
    ...        "op_data": 16128, "constants": 110592, "ddr": 0, "io": 16384, "total_ram": 8531712,
    ...        "file_bytes": 159744, "finalize_seconds": 0.05, "plan_scratch": 1024, "plan_constants": 9,
    ...        "plan_io": 8, "plan_state": 0}
    >>> print("\\n".join(to_text([row])))
    a.onnx: our plan has scratch 1,024, state 0, constants 9, IO 8 bytes
      chip            VTCM  O    spill-fill       op data     constants  ...
      SM8750          8 MB  3             0        16,128       110,592  ...
    """
    lines: list[str] = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        plan = own[0]
        if plan.get("plan_scratch") is None:
            lines.append(f"{model}: {plan.get('plan_problem') or 'a context binary'}")
        else:
            lines.append(
                f"{model}: our plan has scratch {plan['plan_scratch']:,}, state {plan['plan_state']:,}, "
                f"constants {plan['plan_constants']:,}, IO {plan['plan_io']:,} bytes"
            )
        titles = "".join(f"{COLUMNS[name]:>14}" for name in _SHOWN)
        lines.append(f"  {'chip':<14}{'VTCM':>6}{'O':>3}{titles}")
        for row in own:
            size = "" if row["vtcm_mb"] is None else f"{row['vtcm_mb']} MB"
            start = f"  {row['chip']:<14}{size:>6}{'' if row['level'] is None else row['level']:>3}"
            lines.append(start + (f"  {row['problem']}" if row["problem"] else "".join(_cell(row[n]) for n in _SHOWN)))
    return lines


def _cell(value: Any) -> str:
    return f"{value:>14.2f}" if isinstance(value, float) else f"{value:>14,}"


def to_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV with a line of column names."""
    return table_rows.to_csv(rows, COLUMNS)
