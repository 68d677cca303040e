"""``isthmus fit`` weighs limits on scratch against time; ``isthmus plan`` shows what a limit does."""

import json

import numpy as np
import pytest
from onnx import helper
from support import tiny

from isthmus.prepare.tiling import search
from isthmus.tools.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    rng = np.random.default_rng(0)
    constants = {"a": rng.normal(0, 0.2, (32, 3, 3, 3)).astype(np.float32)}
    constants["b"] = rng.normal(0, 0.2, (2, 32, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["wide"], pads=[1, 1, 1, 1], name="first"),
        helper.make_node("Conv", ["wide", "b"], ["y"], name="second"),
    ]
    path = tmp_path_factory.mktemp("models") / "wide.onnx"
    return tiny.save(path, nodes, {"x": [1, 3, 64, 16]}, {"y": [1, 2, 64, 16]}, constants)


def called(capsys, *arguments):
    status = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_limits_are_measured_and_one_is_advised(model, capsys):
    status, out, _ = called(capsys, "fit", model, "--rounds", 1, "--slower", 5, "--json")
    report = json.loads(out)
    assert status == 0
    scratch = [point["scratch_bytes"] for point in report["points"]]
    assert scratch == sorted(scratch, reverse=True)
    assert report["points"][0]["limit"] == ""
    assert report["points"][0]["times"] == 1.0
    advised = next(point for point in report["points"] if point["limit"] == report["advised"])
    assert advised["scratch_bytes"] == scratch[-1]


def test_a_budget_takes_the_mildest_limit_that_fits(model, capsys):
    _, out, _ = called(capsys, "fit", model, "--rounds", 1, "--json")
    points = json.loads(out)["points"]
    io = (3 + 2) * 64 * 16 * 4
    budget = io + points[1]["scratch_bytes"]
    status, out, _ = called(capsys, "fit", model, "--rounds", 1, "--budget", budget, "--json")
    report = json.loads(out)
    chosen = next(point for point in report["points"] if point["limit"] == report["advised"])
    assert status == 0
    assert points[1]["scratch_bytes"] <= chosen["scratch_bytes"] <= budget - io


def test_what_no_limit_fits_is_told(model, capsys):
    status, out, _ = called(capsys, "fit", model, "--rounds", 1, "--budget", 1000)
    assert status == 1
    assert "nothing fits: what is beside scratch (state, inputs, outputs) takes 19,480 bytes more" in out
    assert "holds it up" in out
    status, out, _ = called(capsys, "fit", model, "--rounds", 1, "--budget", 20481)
    assert status == 1
    assert "nothing fits: the budget leaves 1 byte for scratch" in out


def test_inputs_and_outputs_inside_scratch_count_once(model, capsys):
    _, out, _ = called(capsys, "fit", model, "--backend", "lpai", "--rounds", 1, "--json")
    least = json.loads(out)["points"][-1]
    options = ("--backend", "lpai", "--rounds", 1, "--budget", least["scratch_bytes"])
    assert called(capsys, "fit", model, *options)[0] == 0


def test_a_search_that_ends_at_its_bound_is_told(model, capsys, monkeypatch):
    assert not json.loads(called(capsys, "fit", model, "--rounds", 1, "--json")[1])["search_bounded"]
    monkeypatch.setattr(search, "MIN_SHARE", 1)
    monkeypatch.setattr(search, "MAX_GROWTH", 1)
    assert "the search left out long regions" in called(capsys, "fit", model, "--rounds", 1)[1]
    assert "search" in called(capsys, "plan", model, "--scratch-limit", "least")[1]
    assert json.loads(called(capsys, "plan", model, "--scratch-limit", "least", "--json")[1])["search_bounded"]


@pytest.mark.parametrize(
    "wrong",
    [["--rounds", "0"], ["--budget", "25%"], ["--budget", "much"], ["--slower", "-1"], ["--graph", "none such"]],
)
def test_wrong_options_are_refused(model, capsys, wrong):
    status, _, err = called(capsys, "fit", model, *wrong)
    assert status == 2
    assert "isthmus fit:" in err
    assert "--budget" not in wrong or "must be a number of bytes, such as" in err


def test_a_plan_within_a_limit_shows_its_tiles(model, capsys):
    status, out, _ = called(capsys, "plan", model, "--scratch-limit", "30%", "--json")
    report = json.loads(out)
    assert status == 0
    assert report["regions"][0]["tiles"] > 2
    status, out, _ = called(capsys, "plan", model, "--scratch-limit", "30%")
    assert "carried between" in out
    assert "\n     tiles " in out
    status, _, err = called(capsys, "plan", model, "--scratch-limit", "1")
    assert status == 1
    assert "holds it up" in err
