"""Pages of HTML that need no network: facts and their units as JSON, and a style and a script that draw them.

A page is made of sections. Nothing in them is markup: the page's script lays them out.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

FORMAT = "isthmus report 1"
_FOLDER = Path(__file__).parent
# The parts of the script, in order.
_SCRIPTS = (
    "elements.js",
    "map_facts.js",
    "graph.js",
    "memory_map.js",
    "domains.js",
    "profile.js",
    "sections.js",
    "start.js",
)
# The parts that only a page with a viewer has.
_VIEWING = ("saved.js", "viewer.js")
BEGIN, END = '<script type="application/json" id="facts">', "</script>"
"""What is around the facts in a page."""
# Characters that could end a script or begin markup; in JSON they occur in texts only, where an escape means them.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}

BYTES, COUNT, MICROSECONDS, MILLISECONDS, SECONDS, TIMES, TEXT = "bytes", "count", "us", "ms", "s", "times", "text"
REAL = "real"
"""The units of a value; they decide how it is written and aligned."""
GOOD, BAD = "good", "bad"
"""The tones of a statement; by default it has none."""


@dataclass(frozen=True)
class Figure:
    """One figure at the head of a page: what it is, its value, and what to know of it.

    - `part`: the fraction of a whole that it is, which is drawn as a bar; None for no bar.
    """

    title: str
    value: float | str
    unit: str = TEXT
    note: str = ""
    tone: str = ""
    part: float | None = None


@dataclass(frozen=True)
class Figures:
    """The figures that answer the main questions."""

    kind: ClassVar[str] = "figures"
    figures: Sequence[Figure]
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """A bar: a value, and the limit that it must not exceed, if there is one."""

    label: str
    value: float
    limit: float | None = None
    note: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Bars:
    """Values that are compared by length, in one unit."""

    kind: ClassVar[str] = "bars"
    title: str
    bars: Sequence[Bar]
    unit: str = BYTES
    note: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table; with `bar`, a cell shows its value as a bar too."""

    title: str
    unit: str = TEXT
    bar: bool = False


def columns_of(units: Mapping[str, str], bars: Collection[str] = ()) -> list[Column]:
    """Return columns by the unit of each title; those of `bars` show their values as bars too."""
    return [Column(title, unit, title in bars) for title, unit in units.items()]


@dataclass(frozen=True)
class SortableTable:
    """A table that a reader can sort and search. A cell is a text, a number, or None.

    - `tones`: the tone of each row; none by default.
    """

    kind: ClassVar[str] = "table"
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[float | str | None]]
    note: str = ""
    tones: Sequence[str] = ()


@dataclass(frozen=True)
class Note:
    """A statement, and what follows from it."""

    text: str
    detail: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Notes:
    """Statements in words."""

    kind: ClassVar[str] = "notes"
    title: str
    notes: Sequence[Note]


@dataclass(frozen=True)
class ErrorPoint:
    """An operation in a profile.

    - `label`, `lines`: its name, and what to know of it.
    - `value`, `alone`: its value in the model, and alone; None if it has none.
    """

    label: str
    lines: Sequence[str]
    value: float | None = None
    alone: float | None = None
    tone: str = ""


@dataclass(frozen=True)
class ErrorProfile:
    """Values of operations in order, on a logarithmic scale; the first with the tone BAD is marked."""

    kind: ClassVar[str] = "profile"
    title: str
    points: Sequence[ErrorPoint]
    note: str = ""


@dataclass(frozen=True)
class MemoryMap:
    """The map of a plan: addresses over steps.

    - `report`: which of the page's reports is drawn: the description of a plan as ``isthmus plan --json`` prints it.
    - `bytes`: the height of the map, so that two maps can have the same scale; 0 for that of the plan.
    """

    kind: ClassVar[str] = "map"
    title: str
    report: int = 0
    bytes: int = 0
    note: str = ""


@dataclass(frozen=True)
class DomainBlock:
    """A part of a domain that is mapped: for which context, what it is, its address and bytes."""

    context: str
    what: str
    address: int
    bytes: int


@dataclass(frozen=True)
class DomainColumn:
    """A process domain with its blocks by address."""

    title: str
    capacity: int
    blocks: Sequence[DomainBlock]


@dataclass(frozen=True)
class DomainColumns:
    """Process domains beside each other, on one scale."""

    kind: ClassVar[str] = "domains"
    title: str
    columns: Sequence[DomainColumn]
    note: str = ""


@dataclass(frozen=True)
class Viewer:
    """A place on a page where a reader opens reports from files, which are drawn below it."""

    kind: ClassVar[str] = "viewer"


@dataclass(frozen=True)
class Heading:
    """A heading above the sections that follow it."""

    kind: ClassVar[str] = "heading"
    title: str


@dataclass(frozen=True)
class SideBySide:
    """Two lists of sections beside each other, each below its heading."""

    kind: ClassVar[str] = "sides"
    title: str
    headings: tuple[str, str]
    left: Sequence[Section]
    right: Sequence[Section]


Section = (
    Figures | Bars | SortableTable | Notes | ErrorProfile | MemoryMap | DomainColumns | Viewer | Heading | SideBySide
)


def to_data(section: Section) -> dict[str, Any]:
    """Return a section as plain data, with its kind.

    Examples
    --------
    >>> to_data(Notes("Advice", [Note("Use tiles.")]))
    {'kind': 'notes', 'title': 'Advice', 'notes': [{'text': 'Use tiles.', 'detail': '', 'tone': ''}]}
    """
    if isinstance(section, SideBySide):
        sides = {side: [to_data(each) for each in getattr(section, side)] for side in ("left", "right")}
        return {"kind": section.kind, "title": section.title, "headings": list(section.headings), **sides}
    return {"kind": section.kind, **asdict(section)}


def page(
    title: str, sections: Sequence[Section], *, subtitle: str = "", reports: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Return a page as HTML in one piece: it loads nothing, and works without a network.

    - `title`, `subtitle`: the heading, and the line below it.
    - `sections`: what to show, in order.
    - `reports`: the data that maps of memory draw, and that `saved_report` reads from the page later.

    Examples
    --------
    >>> from isthmus.report.page import Column, SortableTable
    >>> table = SortableTable("Models", [Column("model"), Column("scratch", "bytes", bar=True)], [("a.onnx", 1024)])
    >>> text = page("A sweep", [table])
    >>> text.startswith("<!doctype html>"), "://" in text
    (True, False)
    """
    facts = {
        "format": FORMAT,
        "title": title,
        "subtitle": subtitle,
        "sections": [to_data(section) for section in sections],
        "reports": list(reports),
    }
    scripts = (*_VIEWING, *_SCRIPTS) if any(isinstance(each, Viewer) for each in sections) else _SCRIPTS
    filled = {
        "title": html.escape(_printable(title)),
        "style": (_FOLDER / "page.css").read_text(),
        "facts": script_json(facts),
        "script": "\n".join((_FOLDER / name).read_text() for name in scripts),
    }
    # Split, not replaced: what is filled in may itself contain the name of a field.
    parts = (_FOLDER / "page.html").read_text().split("@@")
    return "".join(filled[part] if index % 2 else part for index, part in enumerate(parts))


def script_json(facts: Any) -> str:
    """Return data as JSON that may be inside an element of HTML, whatever texts it has.

    JSON has no infinite numbers; they become null.

    Examples
    --------
    >>> script_json({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    return json.dumps(_finite(facts), separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def _finite(value: Any) -> Any:
    """Return data without numbers that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value


def _printable(text: str) -> str:
    """Return a text without control characters and halves of pairs, which a file in UTF-8 cannot have."""
    return "".join(char if char.isprintable() else "?" for char in text)
