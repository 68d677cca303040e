"""The site that `make docs` builds: every document once, an API reference, and pages that work when opened as files."""

from __future__ import annotations

import os
import pydoc
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from support import chromium
from support.requirements import lacking
from support.suites import LONG

import isthmus

ROOT = Path(__file__).parents[2]
PAGES = re.findall(r"^ +- ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
NAMES = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)


FROM_ROOT = ["CHANGELOG.md", "CONTRIBUTING.md"]
"""Pages that are outside of docs."""
SIZES = {"laptop": (1440, 900), "phone": chromium.PHONE}
NARROW = 5
"""A table with so many columns or fewer never scrolls; on a laptop none does."""


def test_every_document_is_in_the_navigation_once() -> None:
    assert sorted(PAGES) == sorted([*FROM_ROOT, *(path.name for path in (ROOT / "docs").glob("*.md"))])


def test_the_first_page_leads_to_every_other() -> None:
    linked = re.findall(r"\]\((?:\.\./)?([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text())
    assert set(linked) == set(PAGES) - {"index.md"}


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
    for package in ("mkdocs-material", "mkdocstrings"):
        assert re.search(rf"^docs = .*\"{package}[\[>]", extras, re.MULTILINE)
    assert "\ndocs: $(VENV)/docs.stamp\n" in (ROOT / "Makefile").read_text()


# -- the pages in a browser --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning, such as a link that leads nowhere, is an error."""
    program = shutil.which("mkdocs", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        lacking("site", "there is no mkdocs on this machine (`make docs` installs it)")
    folder = tmp_path_factory.mktemp("site")
    command = [program, "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Page]:
    with chromium.browser() as page:
        yield page


def _pages(site: Path) -> list[Path]:
    return [site / name.replace(".md", ".html") for name in PAGES]


@LONG
def test_every_link_leads_to_a_place_in_the_site(site: Path, browser: chromium.Page) -> None:
    places, links = {}, []
    for path in _pages(site):
        browser.open(path)
        names = browser.evaluate("[...document.querySelectorAll('[id], a[name]')].map(each => each.id || each.name)")
        places[path.resolve()] = {"", *names}
        links += [(path.name, link) for link in browser.evaluate("[...document.links].map(each => each.href)")]
        broken = browser.evaluate(
            "Promise.all([...document.images].map(each => each.decode().then(() => '', () => each.src)))"
        )
        assert not any(broken), f"{path.name} shows no picture: {broken}"
    for page, link in links:
        if urlparse(link).scheme == "file":
            address, fragment = urldefrag(link)
            target = Path(unquote(urlparse(address).path)).resolve()
            assert unquote(fragment) in places.get(target, ()), f"{page} leads to {link}"
        else:
            assert link.startswith("https://docs.qualcomm.com/"), f"{page} leads to {link}"


@LONG
@pytest.mark.parametrize(("size", "dark"), [("laptop", False), ("phone", True)], ids=["laptop-light", "phone-dark"])
def test_pages_load_nothing_complain_of_nothing_and_fit_their_window(
    site: Path, browser: chromium.Page, size: str, dark: bool
) -> None:
    browser.problems.clear()
    for path in _pages(site):
        browser.open(path, SIZES[size], dark)
        assert not browser.problems, f"{path.name}: {browser.problems}"
        excess = browser.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert excess <= 0, f"{path.name} is {excess} pixels too wide"
        background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", background)[:3])) < 64) == dark, f"{path.name} is {background}"
        wide = browser.evaluate(
            "[...document.querySelectorAll('article table')].filter(each => each.offsetWidth > "
            "each.closest('article').clientWidth).map(each => each.rows[0].cells.length)"
        )
        assert size == "phone" or not wide, f"{path.name} has tables that are too wide"
        code = browser.evaluate(
            "[...document.querySelectorAll('article pre > code')].filter(each => each.scrollWidth > each.clientWidth)"
            ".map(each => each.textContent)"
        )
        assert size == "phone" or not code, f"{path.name} has code that is too wide: {code}"
        assert all(columns > NARROW for columns in wide), f"{path.name}: a table of {min(wide)} columns scrolls"


@LONG
def test_code_has_colours_that_the_build_has_written(site: Path, browser: chromium.Page) -> None:
    browser.open(site / "first-steps.html")
    colours = "[...document.querySelectorAll('pre span[class]')].map(each => getComputedStyle(each).color)"
    assert len(set(browser.evaluate(colours))) > 3
    assert '<span class="kn">import</span>' in (site / "first-steps.html").read_text()


@LONG
@pytest.mark.parametrize("size", SIZES)
def test_the_links_of_the_first_page_can_be_clicked(site: Path, browser: chromium.Page, size: str) -> None:
    browser.problems.clear()
    first = site / "index.html"
    browser.open(first, SIZES[size])
    count = browser.evaluate("document.querySelectorAll('article table a').length")
    for number in range(count):
        browser.open(first, SIZES[size])
        x, y, goal = browser.evaluate(
            f"(() => {{ const link = document.querySelectorAll('article table a')[{number}];"
            "link.scrollIntoView({block: 'center', behavior: 'instant'}); const box = link.getClientRects()[0];"
            "return [box.left + box.width / 2, box.top + box.height / 2, link.href]; })()"
        )
        browser.click(x, y)
        browser.wait(f"location.href === {goal!r} && document.querySelector('article h1') !== null")
    assert count > 20
    assert not browser.problems


@LONG
def test_the_search_finds_words_without_a_server(site: Path, browser: chromium.Page) -> None:
    browser.problems.clear()
    browser.open(site / "index.html")
    browser.evaluate("document.querySelector('.md-search__input').focus()")
    browser.type("rpcme")
    browser.key("m")
    browser.wait("document.querySelectorAll('.md-search-result__link').length > 3")
    assert not browser.problems
