"""A saved report is read from a page or from JSON; a damaged one is refused, whatever is wrong with it."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.errors import QnnError
from isthmus.report.page import page
from isthmus.report.page.reports import sections_of_both
from isthmus.report.page.saved import saved_report

PLACE = {"name": "</script>", "bytes": 64, "offset": 0}
REPORT = {
    "model": "a.onnx", "backend": "cpu", "target": None, "threads": 1, "steps": 2, "scratch_bytes": 64,
    "state_bytes": 0, "io_bytes": 8, "constant_bytes": 4, "status": "optimal", "lower_bound": 64, "greedy_bytes": 64,
    "backend_copied_bytes": 0, "latency_ms": {"p50": 1.5, "p99": 2.5}, "operations": [{"name": "Relu r", "us": 3.0}],
    "order": [
        {"op": "Relu", "name": "r", "after": [], "reads": [], "writes": [0], "inputs": ["x"], "outputs": []},
        {"op": "Relu", "name": "s", "after": [0], "reads": [0], "writes": [], "inputs": [], "outputs": ["y"]},
    ],
    "regions": [{"tiles": 2, "first": 0, "last": 1}],
    "peak": {"step": 0, "op": "Relu", "name": "r", "live_bytes": 64, "live": [PLACE]},
    "tensors": [{**PLACE, "first": -1, "last": 2}],
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def places(value, path=()):
    """List the paths of all values inside a value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        found += places(each, (*path, key))
    return found


@pytest.mark.parametrize("text", [json.dumps(REPORT), page("title", [], reports=[REPORT])], ids=["json", "page"])
def test_a_report_is_read_as_it_was_written(text) -> None:
    assert saved_report(text, "it") == REPORT
    assert saved_report(json.dumps({**REPORT, "more": [1]}), "it") == REPORT


def test_a_report_of_an_earlier_version_is_read_without_links() -> None:
    earlier = {**REPORT, "order": [{"op": each["op"], "name": each["name"]} for each in REPORT["order"]]}
    assert saved_report(json.dumps(earlier), "it") == earlier


@pytest.mark.parametrize(("key", "value"), [("after", [1]), ("after", [-1]), ("reads", [1]), ("writes", [-1])])
def test_links_to_what_is_not_there_are_refused(key, value) -> None:
    changed = copy.deepcopy(REPORT)
    changed["order"][1][key] = value
    with pytest.raises(QnnError, match="it is damaged"):
        saved_report(json.dumps(changed), "it")


@pytest.mark.parametrize("text", ["", "[]", "<p>", "[" * 10_000, page("a", []), '<script id="facts">', '"model"'])
def test_what_is_no_report_is_refused(text) -> None:
    with pytest.raises(QnnError, match="it is neither a page of --html"):
        saved_report(text, "file 'x'")


def test_a_report_without_a_plan_is_refused() -> None:
    with pytest.raises(QnnError, match="it has no plan of memory"):
        saved_report('{"model": "x"}', "it")


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(places(REPORT)), JSON)
def test_a_changed_report_is_refused_or_can_be_compared(path, value) -> None:
    changed = copy.deepcopy(REPORT)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    try:
        found = saved_report(json.dumps(changed), "it")
    except QnnError:
        return
    for pair in ((REPORT, found), (found, REPORT)):
        assert page("both", sections_of_both(*pair), reports=pair).startswith("<!doctype html>")
