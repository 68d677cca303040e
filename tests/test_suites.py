"""The suites are what the README says they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import suites
from support.suites import long, only, sampled

ROOT = Path(__file__).parents[1]
TOLERANCE = 0.05  # tests come and go


def test_the_readme_and_make_state_how_many_tests_there_are(request: pytest.FixtureRequest) -> None:
    config = request.config
    if config.option.markexpr != "not long" or config.args != config.getini("testpaths"):
        pytest.skip("only `make test` collects all short tests, and no others")
    counts = {"short": len(request.session.items), "long": suites.deselected}
    for file, sentences in (
        ("README.md", {"short": r"about ([\d,]+) tests", "long": r"the other ([\d,]+) tests"}),
        ("Makefile", {"short": r"about ([\d,]+) short tests", "long": r"the ([\d,]+) tests that make test leaves out"}),
    ):
        for kind, sentence in sentences.items():
            [stated] = re.findall(sentence, " ".join((ROOT / file).read_text().split()))
            assert int(stated.replace(",", "")) == pytest.approx(counts[kind], rel=TOLERANCE), (file, kind)


def test_one_in_so_many_is_short_and_all_others_are_long() -> None:
    parameters = [pytest.param(i, i + 1, id=f"n{i}") for i in range(4)]
    for values in (range(4), parameters):
        marked = sampled(values, 3)
        assert [bool(getattr(value, "marks", ())) for value in marked] == [False, True, True, False]
    assert (marked[1].values, marked[1].id) == ((1, 2), "n1")
    assert only((2,), (1, 2, 3)) == [long(1), 2, long(3)]
