"""The sections of a page: facts and their units. The page's script lays them out; nothing here is markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

BYTES, COUNT, MICROSECONDS, MILLISECONDS, SECONDS, TIMES, TEXT = "bytes", "count", "us", "ms", "s", "times", "text"
REAL = "real"
"""The units of a value; they decide how it is written and aligned."""
GOOD, BAD = "good", "bad"
"""The tones of a statement; by default it has none."""


@dataclass(frozen=True)
class Figure:
    """One figure at the head of a page: what it is, its value, and what to know of it.

    Parameters
    ----------
    part
        The fraction of a whole that it is, which is drawn as a bar; None for no bar.
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


@dataclass(frozen=True)
class SortableTable:
    """A table that a reader can sort and search. A cell is a text, a number, or None.

    Parameters
    ----------
    tones
        The tone of each row; none by default.
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

    Parameters
    ----------
    label, lines
        Its name, and what to know of it.
    value, alone
        Its value in the model, and alone; None if it has none.
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

    Parameters
    ----------
    report
        Which of the page's reports is drawn: the description of a plan as ``isthmus plan --json`` prints it.
    bytes
        The height of the map, so that two maps can have the same scale; 0 for that of the plan.
    """

    kind: ClassVar[str] = "map"
    title: str
    report: int = 0
    bytes: int = 0
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


Section = Figures | Bars | SortableTable | Notes | ErrorProfile | MemoryMap | Viewer | Heading | SideBySide


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
