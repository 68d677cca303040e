"""Rows of figures for chips, and their text. A row is plain data, one for a model and a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def is_row(row: Row) -> bool:
    """Return whether plain data can be drawn as a row: it has no total, or a chip and numbers beside it."""
    numbers = row.get("total_ram"), row.get("spill_fill")
    is_drawn = isinstance(row.get("chip"), str) and all(isinstance(each, (int, float)) for each in numbers)
    return row.get("total_ram") is None or is_drawn


def to_text(rows: Sequence[Row]) -> list[str]:
    """Return the rows of a model as lines: what our plan says, then a line for each target.

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
    first = rows[0]
    plan = first.get("plan_problem") or "a context binary"
    if first.get("plan_scratch") is not None:
        plan = (
            f"our plan has scratch {first['plan_scratch']:,}, state {first['plan_state']:,}, "
            f"constants {first['plan_constants']:,}, IO {first['plan_io']:,} bytes"
        )
    titles = "".join(f"{COLUMNS[name]:>14}" for name in _SHOWN)
    lines = [f"{first['model']}: {plan}", f"  {'chip':<14}{'VTCM':>6}{'O':>3}{titles}"]
    for row in rows:
        size = "" if row["vtcm_mb"] is None else f"{row['vtcm_mb']} MB"
        start = f"  {row['chip']:<14}{size:>6}{'' if row['level'] is None else row['level']:>3}"
        lines.append(start + (f"  {row['problem']}" if row["problem"] else "".join(_cell(row[n]) for n in _SHOWN)))
    return lines


def _cell(value: Any) -> str:
    """Return a figure, aligned."""
    return f"{value:>14.2f}" if isinstance(value, float) else f"{value:>14,}"
