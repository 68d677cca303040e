"""The rows of ``isthmus sweep``: its modes, and the columns of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.report import device_table
from isthmus.report.rows import Columns

PLAN, RUN, DEVICE = "plan", "run", "device"
MEMORY: Columns = {"scratch_bytes": "scratch", "state_bytes": "state", "io_bytes": "io", "constant_bytes": "constants"}
FIGURES: Mapping[str, Columns] = {
    PLAN: {**MEMORY, "lower_bound": "lower bound", "greedy_bytes": "greedy", "status": "status", "fits": "fits"},
    RUN: {
        **MEMORY, "p50_ms": "p50 ms", "min_ms": "min ms", "load_seconds": "load s", "copied_bytes": "copied",
        "backend_copied_bytes": "copied by backend",
    },
    DEVICE: {
        **{key: title for key, title in device_table.COLUMNS.items() if key not in ("model", "problem")},
        "plan_problem": "", "build": "", "graphs": "",
    },
}  # fmt: skip
"""The figures of each mode: keys of a row, and the titles of their columns; those without a title are in JSON only."""


def is_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row may be one of a sweep: names, a mode, and values for all settings."""
    expected = {"model": str, "mode": str, "settings": dict, "problem": str, "backend": str | None}
    is_typed = all(isinstance(row.get(key), kind) for key, kind in expected.items())
    if not is_typed or row["mode"] not in FIGURES or not row["settings"].keys() <= row.keys():
        return False
    return row["mode"] != DEVICE or device_table.is_row(row)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return the columns of some rows: the model, the settings, the figures of their mode, and problems."""
    modes = dict.fromkeys(row["mode"] for row in rows)
    settings = dict.fromkeys(key for row in rows for key in row["settings"])
    titles = {key: title for mode in modes for key, title in FIGURES[mode].items() if title}
    # The option `io` is a kind of memory, the figure a number of bytes.
    figures = {key: f"{title} bytes" if title in settings and key != title else title for key, title in titles.items()}
    names = {"model": "model", "backend": "backend", **{key: key for key in settings}}
    return {**names, **figures, "problem": "problem"}
