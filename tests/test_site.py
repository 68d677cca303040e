"""The site that `make docs` builds has every document once, and its API reference names objects with docstrings."""

from __future__ import annotations

import pydoc
import re
from pathlib import Path

import isthmus

ROOT = Path(__file__).parents[1]
PAGES = re.findall(r"^ +- ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
NAMES = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)


def test_every_document_is_in_the_navigation_once() -> None:
    assert sorted(PAGES) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_every_name_of_the_api_reference_has_a_docstring() -> None:
    assert NAMES
    for name in NAMES:
        found = pydoc.locate(name)
        assert found is not None, f"there is no {name}"
        assert (found.__doc__ or "").strip(), f"{name} has no docstring"


def test_every_public_name_of_the_package_is_in_the_api_reference() -> None:
    documented = [pydoc.locate(name) for name in NAMES]
    for name in set(isthmus.__all__) - {"__version__", "qnn"}:
        assert getattr(isthmus, name) in documented, name


def test_what_builds_the_site_is_an_extra() -> None:
    extras = (ROOT / "pyproject.toml").read_text()
    for package in ("mkdocs", "mkdocstrings"):
        assert re.search(rf"^docs = .*\"{package}[\[>]", extras, re.MULTILINE)
    assert "\ndocs: $(VENV)/docs.stamp\n" in (ROOT / "Makefile").read_text()
