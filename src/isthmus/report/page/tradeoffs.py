"""The sections of pages about choices: limits of scratch for a model, and chips for models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.errors import counted
from isthmus.report.device_table import COLUMNS, Row
from isthmus.report.page.sections import (
    BAD,
    BYTES,
    COUNT,
    GOOD,
    TEXT,
    TIMES,
    Bar,
    Bars,
    Column,
    Figure,
    Figures,
    MemoryMap,
    Note,
    Notes,
    Section,
    SideBySide,
    SortableTable,
)
from isthmus.report.tradeoff import BOUNDED

_TEXTS = ("model", "chip", "problem")
_MAX_BARS = 24
"""Maximum number of rows that are drawn as bars beside the table of all."""


def tradeoff_sections(report: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Return the sections of what ``isthmus fit`` reports.

    - `reports`: the plan without a limit and, if another is advised, that plan: they are drawn side by side.
    """
    points, advised = report["points"], report["advised"]
    first = points[0]
    chosen = next((point for point in points if (point["limit"] or "none") == advised), None)
    figures = [Figure("Without a limit", first["scratch_bytes"], BYTES, "scratch")]
    if chosen is None:
        summary = f"Nothing fits: {report['problem']}."
    elif chosen is first:
        summary = "Advised: no limit."
    else:
        summary = f"Advised: --scratch-limit {chosen['limit']}. Results stay bit-identical."
        saved = 1 - chosen["scratch_bytes"] / max(first["scratch_bytes"], 1)
        figures += [
            Figure("Advised", chosen["scratch_bytes"], BYTES, f"{saved:.0%} less scratch", GOOD),
            Figure("Time", chosen["times"], TIMES, "of a run without a limit"),
            Figure("Fused regions", chosen["regions"], COUNT, "computed in tiles"),
        ]
    bars = [
        Bar(point["limit"] or "no limit", point["scratch_bytes"], report["room_bytes"], f"{point['times']:.3f} times",
            "accent" if point is chosen else "")
        for point in points
    ]  # fmt: skip
    columns = Column("limit"), Column("scratch", BYTES, bar=True), Column("time", TIMES), Column("regions", COUNT)
    rows = [(point["limit"] or "none", point["scratch_bytes"], point["times"], point["regions"]) for point in points]
    found: list[Section] = [
        Figures(figures, note=summary),
        Bars("Scratch at each limit", bars, note="" if report["room_bytes"] is None else "The mark is the budget."),
    ]
    if len(reports) == 2:
        scale = max(each["scratch_bytes"] for each in reports)
        heads = "Without a limit", f"With --scratch-limit {advised}" if chosen is not None else "With the least scratch"
        sides = [MemoryMap("", number, scale) for number in range(2)]
        found.append(SideBySide("Scratch over time, on one scale", heads, [sides[0]], [sides[1]]))
    elif reports:
        found.append(MemoryMap("Scratch over time", 0))
    found.append(SortableTable("Limits", columns, rows))
    notes = [Note(f"Below that: {report['held_up']}")] if report["held_up"] else []
    if report["search_bounded"]:
        notes.append(Note(f"The search {BOUNDED}."))
    return [*found, Notes("What holds it up", notes)] if notes else found


def judged_sections(report: Mapping[str, Any]) -> list[Section]:
    """Return the sections of what ``isthmus fit --judge`` reports: variants in tiles, compiled for a chip."""
    advised, plain = report["advised"], report["unsplit"]
    figures = [
        Figure(title, each["total_ram"], BYTES, f"total RAM; spill-fill {each['spill_fill']:,}")
        for title, each in (("The model as it is", plain), ("Advised", advised))
        if each is not None
    ]
    columns = (
        Column("variant"), Column("level", COUNT), Column("spill-fill", BYTES, bar=True),
        Column("total RAM", BYTES, bar=True), Column("file", BYTES), Column("finalize s", "s"), Column("tiles"),
        Column("problem"),
    )  # fmt: skip
    keys = ("variant", "level", "spill_fill", "total_ram", "file_bytes", "finalize_seconds")
    rows = [
        (*(each[key] for key in keys), " ".join(str(region["count"]) for region in each["regions"]), each["problem"])
        for each in report["variants"]
    ]
    found: list[Section] = [Figures(figures)] if figures else []
    return [*found, SortableTable("Variants", columns, rows)]


def device_sections(rows: Sequence[Row], shown: Mapping[str, str] = COLUMNS) -> list[Section]:
    """Return the sections of figures for chips: a row for each model and target.

    `shown` has the columns of the table with their titles; those that are not in `COLUMNS` are texts.
    """
    totals = [row for row in rows if row.get("total_ram") is not None]
    found: list[Section] = []
    if totals:
        least, most = (choose(totals, key=lambda row: row["total_ram"]) for choose in (min, max))
        failed = len(rows) - len(totals)
        figures = [
            Figure("Least total RAM", least["total_ram"], BYTES, _label(least)),
            Figure("Most total RAM", most["total_ram"], BYTES, _label(most)),
            Figure("Spill-fill", max(row["spill_fill"] for row in totals), BYTES, "at most"),
            Figure("Results", len(rows), COUNT, *((f"{failed} refused", BAD) if failed else ("all compiled",))),
        ]
        found.append(Figures(figures))
        bars = [
            Bar(_label(row), row["total_ram"], note=f"spill-fill {row['spill_fill']:,}", tone="accent" * (row is least))
            for row in totals[:_MAX_BARS]
        ]
        more = f"The first {_MAX_BARS} of {counted(len(totals), 'result')}." if len(totals) > _MAX_BARS else ""
        found.append(Bars("Total RAM", bars, note=more))
    columns = [
        Column(title, TEXT if name in _TEXTS or name not in COLUMNS else "s" if name == "finalize_seconds" else BYTES,
               bar=name == "total_ram")
        for name, title in shown.items()
    ]  # fmt: skip
    table = [tuple(row.get(name) for name in shown) for row in rows]
    return [*found, SortableTable("All figures", columns, table, "Memory in bytes.")]


def _label(row: Row) -> str:
    """Name a row by its model, chip, VTCM and level."""
    parts = [str(row["model"]).rpartition("/")[2], row["chip"]]
    parts += [f"{row['vtcm_mb']} MB"] if row.get("vtcm_mb") is not None else []
    parts += [f"O{row['level']}"] if row.get("level") is not None else []
    return ", ".join(parts)
