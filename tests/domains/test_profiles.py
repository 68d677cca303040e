"""Profiles of chips: every figure has a source, a user's file takes their place, and a wrong one is refused."""

import json
import re

import pytest

from isthmus.domains import profile, profile_names
from isthmus.errors import Code, QnnError

GIB = 1 << 30


@pytest.mark.parametrize("name", [*profile_names(), "SM8650"])
def test_every_figure_of_a_profile_says_whether_it_is_documented_measured_or_assumed(name) -> None:
    facts = profile(name, arch=79, vtcm_mb=8).facts
    assert {"domains", "capacity", "alignment"} <= {each.name for each in facts}
    for each in facts:
        assert re.match(r"(documented|measured|assumed)\b.*: ", each.source), each


def test_the_default_is_what_the_vendor_documents() -> None:
    found = profile()
    assert [(each.number, each.capacity) for each in found.domains] == [(0, 15 * GIB // 4), (1, 15 * GIB // 4)]
    assert not found.power_of_two


def test_a_chip_without_figures_of_its_own_has_those_of_the_default_and_says_so() -> None:
    found = profile("SM8650", soc=57, arch=75, vtcm_mb=8)
    assert (found.name, found.soc, found.arch, found.vtcm_mb) == ("SM8650", 57, 75, 8)
    assert found.domains == profile().domains
    assert found.sources["domains"].startswith("assumed: no figures of SM8650")


def test_a_chip_is_found_in_any_case_of_letters() -> None:
    assert profile("sa8255p") == profile("SA8255P")


def test_a_users_file_is_a_profile(tmp_path) -> None:
    file = tmp_path / "board.json"
    stated = {
        "domains": [0, 2],
        "capacity": [1000, 2000],
        "alignment": "power of two",
        "dsp_arch": "v79",
        "vtcm_mb": 8,
        "free_ram": 5000,
    }
    file.write_text(json.dumps({**stated, "soc_model": 69, "sources": {"capacity": "measured by us: twice"}}))
    found = profile(file)
    assert found.name == "board"
    assert [(each.number, each.capacity) for each in found.domains] == [(0, 1000), (2, 2000)]
    assert (found.power_of_two, found.soc, found.arch, found.vtcm_mb, found.capacity) == (True, 69, 79, 8, 3000)
    assert found.free_ram == 5000
    assert {each.name: each.source for each in found.facts}["capacity"] == "measured by us: twice"
    assert {each.name: each.source for each in found.facts}["domains"] == "stated in board.json"


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("[]", "not an object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"domain": [0]}', "no key 'domain'"),
        ('{"domains": []}', "list 1 to"),
        ('{"domains": [0, 0]}', "twice"),
        ('{"domains": [true]}', "must be an integer"),
        ('{"domains": [0], "capacity": [1, 2]}', "2 numbers for 1"),
        ('{"capacity": 0}', "must be an integer from 1"),
        ('{"capacity": "3GB"}', "must be an integer"),
        ('{"capacity": 1e9}', "must be an integer"),
        ('{"alignment": 3}', "no power of two"),
        ('{"alignment": "best"}', "must be an integer"),
        ('{"dsp_arch": "79"}', "such as 'v79'"),
        ('{"soc_model": -1}', "must be an integer"),
        ('{"name": 5}', "must be a text"),
        ('{"sources": {"capacity": 5}}', "a text for each key"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_by_what_is_wrong(tmp_path, content, rule) -> None:
    file = tmp_path / "board.json"
    file.write_text(content)
    with pytest.raises(QnnError, match=re.escape(rule)) as caught:
        profile(file)
    assert caught.value.code is Code.COMMON_INVALID_ARGUMENT


def test_a_file_that_does_not_exist_is_named(tmp_path) -> None:
    with pytest.raises(QnnError, match="cannot be read"):
        profile(tmp_path / "board.json")
