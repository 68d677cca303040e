"""A page is one file that loads nothing, and texts of a model are never markup in it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.report import page as pages
from isthmus.report.page import (
    Bar,
    Bars,
    Column,
    ErrorPoint,
    ErrorProfile,
    Figure,
    Figures,
    Note,
    Notes,
    SideBySide,
    SortableTable,
    Viewer,
    page,
)

STYLE = Path(pages.__file__).with_name("page.css")
HOSTILE = ["</script><script>alert(1)</script>", "<!--<script>", "]]>", "&lt;", "\u2028", "@@facts@@", "\x00\ud800"]


class Elements(HTMLParser):
    """The elements of a page, and the content of its facts."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.inside, self.content = [], [], None, {}

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.inside = dict(attrs).get("id") or tag

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        self.content[self.inside] = self.content.get(self.inside, "") + data


def parsed(text):
    elements = Elements()
    elements.feed(text)
    elements.close()
    return elements


def sections(text):
    table = SortableTable(text, [Column(text), Column("n", "bytes", bar=True)], [(text, 1), (None, float("inf"))], text)
    figures, bars = Figures([Figure(text, text, note=text)]), Bars(text, [Bar(text, 2.0, 1.0, text)])
    notes = Notes(text, [Note(text, text)])
    profile = ErrorProfile(text, [ErrorPoint(text, [text], 0.5)])
    return [figures, bars, table, notes, SideBySide(text, (text, text), [notes], [table]), profile]


PLAIN = parsed(page("plain", sections("plain")))


@settings(deadline=None, max_examples=60)
@given(st.one_of(st.text(), st.sampled_from(HOSTILE), st.lists(st.sampled_from(HOSTILE)).map("".join)))
def test_no_text_adds_an_element_or_changes_the_facts(text) -> None:
    written = page(text, sections(text), subtitle=text, reports=[{"model": text}]).encode().decode()
    found = parsed(written)
    assert (found.tags, found.attributes) == (PLAIN.tags, PLAIN.attributes)
    facts = json.loads(found.content["facts"])
    assert facts["subtitle"] == text
    assert facts["sections"][2]["rows"] == [[text, 1], [None, None]]
    assert facts["reports"] == [{"model": text}]


def test_a_page_names_no_other_file() -> None:
    allowed = {"charset", "name", "content", "http-equiv", "type", "id", "lang"}
    assert {name for name, _ in PLAIN.attributes} <= allowed
    policy = dict(PLAIN.attributes)["http-equiv"], next(v for k, v in PLAIN.attributes if "default-src" in (v or ""))
    assert policy[0] == "Content-Security-Policy"
    assert policy[1].startswith("default-src 'none';")


def test_only_the_viewer_has_the_script_that_opens_files() -> None:
    assert "DOMParser" in page("a", [Viewer()])
    assert "DOMParser" not in page("a", sections("a"))


def test_the_parts_of_a_page_are_part_of_a_wheel() -> None:
    package = STYLE.parents[2]
    (patterns,) = re.findall(r"^isthmus = \[(.*)\]$", (package.parents[1] / "pyproject.toml").read_text(), re.MULTILINE)
    packed = {path for pattern in re.findall(r'"([^"]+)"', patterns) for path in package.glob(pattern)}
    parts = [path for path in STYLE.parent.iterdir() if path.suffix not in (".py", "")]
    assert {path.suffix for path in parts} == {".css", ".html", ".js"}
    assert packed.issuperset(parts)


def luminance(color):
    """Return the relative luminance of a colour like #a0b1c2, as WCAG defines it."""
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_have_enough_contrast(theme) -> None:
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", STYLE.read_text())
    colors = {name: pair[theme] for name, *pair in found}
    on = {name: ["ground", "surface", "raised"] for name in ("text", "muted", "accent", "peak", "good", "bad")}
    on |= {f"on-{kind}": [name for name in colors if name.startswith(kind)] for kind in ("cool", "warm")}
    on["on-cool"] += ["work"]
    assert all(len(grounds) >= 3 for grounds in on.values())
    for name, grounds in on.items():
        for ground in grounds:
            high, low = sorted((luminance(colors[name]), luminance(colors[ground])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, f"{name} on {ground}"
