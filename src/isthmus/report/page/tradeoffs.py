"""The sections of pages about choices: limits of scratch for a model, chips for models, and the rows of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.errors import counted
from isthmus.report import page
from isthmus.report.rows import DEVICE_COLUMNS, Columns, Row, cell_text
from isthmus.report.text import BOUNDED

MAX_BARS = 40
"""The most rows that are compared by length; more are only in the table, which can be sorted."""
COMPARED = {"p50_ms": "Time of a run", "scratch_bytes": "Scratch"}
"""The figures that rows are compared by: the first that they have, with its title."""
# The unit of a column by how its key ends.
_UNITS = {"_ms": page.MILLISECONDS, "_seconds": page.SECONDS, "_bytes": page.BYTES, "lower_bound": page.BYTES}

_TEXTS = ("model", "chip", "problem")
# Maximum number of rows that are drawn as bars beside the table of all.
_MAX_BARS = 24


def tradeoff_sections(report: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> list[page.Section]:
    """Return the sections of what ``isthmus fit`` reports.

    - `reports`: the plan without a limit and, if another is advised, that plan: they are drawn side by side.
    """
    points, advised = report["points"], report["advised"]
    first = points[0]
    chosen = next((point for point in points if (point["limit"] or "none") == advised), None)
    figures = [page.Figure("Without a limit", first["scratch_bytes"], page.BYTES, "scratch")]
    if chosen is None:
        summary = f"Nothing fits: {report['problem']}."
    elif chosen is first:
        summary = "Advised: no limit."
    else:
        summary = f"Advised: --scratch-limit {chosen['limit']}. Results stay bit-identical."
        saved = 1 - chosen["scratch_bytes"] / max(first["scratch_bytes"], 1)
        figures += [
            page.Figure("Advised", chosen["scratch_bytes"], page.BYTES, f"{saved:.0%} less scratch", page.GOOD),
            page.Figure("Time", chosen["times"], page.TIMES, "of a run without a limit"),
            page.Figure("Fused regions", chosen["regions"], page.COUNT, "computed in tiles"),
        ]
    room = report["room_bytes"]
    bars = [
        page.Bar(
            point["limit"] or "no limit", point["scratch_bytes"], room, f"{point['times']:.3f} times",
            "accent" if point is chosen else "",
        )
        for point in points
    ]  # fmt: skip
    units = {"limit": page.TEXT, "scratch": page.BYTES, "time": page.TIMES, "regions": page.COUNT}
    rows = [(point["limit"] or "none", point["scratch_bytes"], point["times"], point["regions"]) for point in points]
    found: list[page.Section] = [
        page.Figures(figures, note=summary),
        page.Bars("Scratch at each limit", bars, note="" if room is None else "The mark is the budget."),
    ]
    if len(reports) == 2:
        scale = max(each["scratch_bytes"] for each in reports)
        heads = "Without a limit", f"With --scratch-limit {advised}" if chosen is not None else "With the least scratch"
        sides = [page.MemoryMap("", number, scale) for number in range(2)]
        found.append(page.SideBySide("Scratch over time, on one scale", heads, [sides[0]], [sides[1]]))
    elif reports:
        found.append(page.MemoryMap("Scratch over time", 0))
    found.append(page.SortableTable("Limits", page.columns_of(units, ["scratch"]), rows))
    notes = [page.Note(f"Below that: {report['held_up']}")] if report["held_up"] else []
    if report["search_bounded"]:
        notes.append(page.Note(f"The search {BOUNDED}."))
    return [*found, page.Notes("What holds it up", notes)] if notes else found


def judged_sections(report: Mapping[str, Any]) -> list[page.Section]:
    """Return the sections of what ``isthmus fit --judge`` reports: variants in tiles, compiled for a chip."""
    advised, plain = report["advised"], report["unsplit"]
    figures = [
        page.Figure(title, each["total_ram"], page.BYTES, f"total RAM; spill-fill {each['spill_fill']:,}")
        for title, each in (("The model as it is", plain), ("Advised", advised))
        if each is not None
    ]
    units = {
        "variant": page.TEXT, "level": page.COUNT, "spill-fill": page.BYTES, "total RAM": page.BYTES,
        "file": page.BYTES, "finalize s": "s", "tiles": page.TEXT, "problem": page.TEXT,
    }  # fmt: skip
    keys = ("variant", "level", "spill_fill", "total_ram", "file_bytes", "finalize_seconds")
    rows = [
        (*(each[key] for key in keys), " ".join(str(region["count"]) for region in each["regions"]), each["problem"])
        for each in report["variants"]
    ]
    found: list[page.Section] = [page.Figures(figures)] if figures else []
    return [*found, page.SortableTable("Variants", page.columns_of(units, ["spill-fill", "total RAM"]), rows)]


def device_sections(rows: Sequence[Row], titles: Mapping[str, str] = DEVICE_COLUMNS) -> list[page.Section]:
    """Return the sections of figures for chips: a row for each model and target.

    `titles` has the columns of the table with their titles; those that are not in `DEVICE_COLUMNS` are texts.
    """
    totals = [row for row in rows if row.get("total_ram") is not None]
    found: list[page.Section] = []
    if totals:
        least, most = (choose(totals, key=lambda row: row["total_ram"]) for choose in (min, max))
        failed = len(rows) - len(totals)
        tone = page.BAD if failed else ""
        figures = [
            page.Figure("Least total RAM", least["total_ram"], page.BYTES, _label(least)),
            page.Figure("Most total RAM", most["total_ram"], page.BYTES, _label(most)),
            page.Figure("Spill-fill", max(row["spill_fill"] for row in totals), page.BYTES, "at most"),
            page.Figure("Results", len(rows), page.COUNT, f"{failed} refused" if failed else "all compiled", tone),
        ]
        found.append(page.Figures(figures))
        bars = [
            page.Bar(
                _label(row), row["total_ram"], None, f"spill-fill {row['spill_fill']:,}", "accent" * (row is least)
            )
            for row in totals[:_MAX_BARS]
        ]
        more = f"The first {_MAX_BARS} of {counted(len(totals), 'result')}." if len(totals) > _MAX_BARS else ""
        found.append(page.Bars("Total RAM", bars, note=more))
    units = dict.fromkeys(DEVICE_COLUMNS, page.BYTES) | dict.fromkeys(_TEXTS, page.TEXT) | {"finalize_seconds": "s"}
    columns = [page.Column(title, units.get(name, page.TEXT), name == "total_ram") for name, title in titles.items()]
    table = [tuple(row.get(name) for name in titles) for row in rows]
    return [*found, page.SortableTable("All figures", columns, table, "Memory in bytes.")]


def _label(row: Row) -> str:
    """Name a row by its model, chip, VTCM and level."""
    parts = [str(row["model"]).rpartition("/")[2], row["chip"]]
    parts += [f"{row['vtcm_mb']} MB"] if row.get("vtcm_mb") is not None else []
    parts += [f"O{row['level']}"] if row.get("level") is not None else []
    return ", ".join(parts)


# -- sweeps ------------------------------------------------------------------------------------------------------------


def to_page(rows: Sequence[Mapping[str, Any]], columns: Columns, note: str) -> str:
    """Return the rows of a sweep as a page that needs no network; `note` is the line below its heading."""
    if rows and "total_ram" in columns:
        settings = {key: key for row in rows for key in row["settings"] if key not in DEVICE_COLUMNS}
        builds = ", ".join(dict.fromkeys(row["build"] for row in rows if row.get("build")))
        subtitle = f"{note}; compiled by Qualcomm's library, build {builds}" if builds else note
        chips = device_sections(rows, {**settings, **DEVICE_COLUMNS})
        return page.page("A sweep of models", chips, subtitle=subtitle, reports=[{"rows": rows}])
    refused = [row for row in rows if row["problem"]]
    misfits = [row for row in rows if row.get("fits") is False]
    counts = {"With a problem": len(refused)} | ({"Do not fit": len(misfits)} if "fits" in columns else {})
    figures = [page.Figure("Rows", len(rows), page.COUNT)]
    figures += [page.Figure(*each, page.COUNT, "", page.BAD if each[1] else page.GOOD) for each in counts.items()]
    sections: list[page.Section] = [page.Figures(figures), *_comparison(rows, columns), _table(rows, columns)]
    if refused:
        notes = [page.Note(_title(row, columns), str(row["problem"]), page.BAD) for row in refused]
        sections.append(page.Notes("Problems", notes))
    return page.page("A sweep of models", sections, subtitle=note)


def _title(row: Mapping[str, Any], columns: Columns) -> str:
    """Return what a row is: its model, backend and settings."""
    settings = (f"{key} {row[key]}" for key in row["settings"] if key in columns)
    return ", ".join(filter(None, (str(row["model"]), row.get("backend"), *settings)))


def _comparison(rows: Sequence[Mapping[str, Any]], columns: Columns) -> list[page.Section]:
    """Return bars for the figure that matters most, if there are not too many rows."""
    key = next((key for key in COMPARED if key in columns), None)
    found = [row for row in rows if key is not None and row.get(key) is not None]
    if key is None or not found or len(found) > MAX_BARS:
        return []
    bars = [
        page.Bar(_title(row, columns), row[key], tone=page.BAD if row.get("fits") is False else "") for row in found
    ]
    return [page.Bars(COMPARED[key], bars, _unit(key))]


def _unit(key: str) -> str:
    """Return the unit of a column."""
    return next((unit for ending, unit in _UNITS.items() if key.endswith(ending)), page.BYTES)


def _table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> page.Section:
    """Return all rows as a table that can be sorted and searched. Problems are too long for its cells."""
    given = [key for key in columns if any(row.get(key) not in (None, "") for row in rows)]
    used = [key for key in given if key != "problem"]
    numeric = {key for key in used if all(_is_number(row.get(key)) for row in rows)}
    listed = [page.Column(columns[key], _unit(key), key in COMPARED) if key in numeric else page.Column(columns[key])
              for key in used]  # fmt: skip
    cells = [[row.get(key) if key in numeric else cell_text(row.get(key)) for key in used] for row in rows]
    return page.SortableTable("Rows", listed, cells)


def _is_number(value: Any) -> bool:
    """Return whether a cell is a number or empty."""
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
