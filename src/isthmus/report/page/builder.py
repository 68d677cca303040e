"""The page itself: one file with its facts, style and script inside."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.report.page.sections import Section, Viewer, to_data

FORMAT = "isthmus report 1"
_FOLDER = Path(__file__).parent
_SCRIPTS = ("elements.js", "map_facts.js", "graph.js", "memory_map.js", "profile.js", "sections.js", "start.js")
"""The parts of the script, in order."""
_VIEWING = ("saved.js", "viewer.js")
"""The parts that only a page with a viewer has."""
BEGIN, END = '<script type="application/json" id="facts">', "</script>"
"""What is around the facts in a page."""
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
"""Characters that could end a script or begin markup; in JSON they occur in texts only, where an escape means them."""


def page(
    title: str, sections: Sequence[Section], *, subtitle: str = "", reports: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Return a page as HTML in one piece: it loads nothing, and works without a network.

    Parameters
    ----------
    title, subtitle
        The heading, and the line below it.
    sections
        What to show, in order.
    reports
        The data that maps of memory draw, and that `saved_report` reads from the page later.

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
        "facts": embedded(facts),
        "script": "\n".join((_FOLDER / name).read_text() for name in scripts),
    }
    # Split, not replaced: what is filled in may itself contain the name of a field.
    parts = (_FOLDER / "page.html").read_text().split("@@")
    return "".join(filled[part] if index % 2 else part for index, part in enumerate(parts))


def embedded(facts: Any) -> str:
    """Return data as JSON that may be inside an element of HTML, whatever texts it has.

    JSON has no infinite numbers; they become null.

    Examples
    --------
    >>> embedded({"name": "</script>"})
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
