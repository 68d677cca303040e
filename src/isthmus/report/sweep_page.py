"""The page of a sweep: what came out at a glance, a comparison by length, all rows, and the problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.report.device_table import COLUMNS
from isthmus.report.page import Bar, Bars, Column, Figure, Figures, Note, Notes, SortableTable, page
from isthmus.report.page.sections import BAD, BYTES, COUNT, GOOD, MILLISECONDS, SECONDS, Section
from isthmus.report.page.tradeoffs import device_sections
from isthmus.report.rows import Columns, shown

MAX_BARS = 40
"""The most rows that are compared by length; more are only in the table, which can be sorted."""
COMPARED = {"p50_ms": "Time of a run", "scratch_bytes": "Scratch"}
"""The figures that rows are compared by: the first that they have, with its title."""
_UNITS = {"_ms": MILLISECONDS, "_seconds": SECONDS, "_bytes": BYTES, "lower_bound": BYTES}
"""The unit of a column by how its key ends."""


def to_page(rows: Sequence[Mapping[str, Any]], columns: Columns, note: str) -> str:
    """Return the rows of a sweep as a page that needs no network; `note` is the line below its heading."""
    if rows and "total_ram" in columns:
        settings = {key: key for row in rows for key in row["settings"] if key not in COLUMNS}
        builds = ", ".join(dict.fromkeys(row["build"] for row in rows if row.get("build")))
        subtitle = f"{note}; compiled by Qualcomm's library, build {builds}" if builds else note
        chips = device_sections(rows, {**settings, **COLUMNS})
        return page("A sweep of models", chips, subtitle=subtitle, reports=[{"rows": rows}])
    refused = [row for row in rows if row["problem"]]
    misfits = [row for row in rows if row.get("fits") is False]
    figures = Figures([
        Figure("Rows", len(rows), COUNT),
        Figure("With a problem", len(refused), COUNT, tone=BAD if refused else GOOD),
        *([Figure("Do not fit", len(misfits), COUNT, tone=BAD if misfits else GOOD)] if "fits" in columns else []),
    ])  # fmt: skip
    sections: list[Section] = [figures, *_comparison(rows, columns), _table(rows, columns)]
    if refused:
        notes = [Note(_title(row, columns), str(row["problem"]), BAD) for row in refused]
        sections.append(Notes("Problems", notes))
    return page("A sweep of models", sections, subtitle=note)


def _title(row: Mapping[str, Any], columns: Columns) -> str:
    """Return what a row is: its model, backend and settings."""
    settings = (f"{key} {row[key]}" for key in row["settings"] if key in columns)
    return ", ".join(filter(None, (str(row["model"]), row.get("backend"), *settings)))


def _comparison(rows: Sequence[Mapping[str, Any]], columns: Columns) -> list[Section]:
    """Return bars for the figure that matters most, if there are not too many rows."""
    key = next((key for key in COMPARED if key in columns), None)
    found = [row for row in rows if key is not None and row.get(key) is not None]
    if key is None or not found or len(found) > MAX_BARS:
        return []
    bars = [Bar(_title(row, columns), row[key], tone=BAD if row.get("fits") is False else "") for row in found]
    return [Bars(COMPARED[key], bars, _unit(key))]


def _unit(key: str) -> str:
    """Return the unit of a column."""
    return next((unit for ending, unit in _UNITS.items() if key.endswith(ending)), BYTES)


def _table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> Section:
    """Return all rows as a table that can be sorted and searched. Problems are too long for its cells."""
    given = [key for key in columns if any(row.get(key) not in (None, "") for row in rows)]
    used = [key for key in given if key != "problem"]
    numeric = {key for key in used if all(_is_number(row.get(key)) for row in rows)}
    listed = [Column(columns[key], _unit(key), key in COMPARED) if key in numeric else Column(columns[key])
              for key in used]  # fmt: skip
    cells = [[row.get(key) if key in numeric else shown(row.get(key)) for key in used] for row in rows]
    return SortableTable("Rows", listed, cells)


def _is_number(value: Any) -> bool:
    """Return whether a cell is a number or empty."""
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
