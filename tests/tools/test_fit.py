"""``isthmus fit`` weighs limits on scratch against time; ``isthmus plan`` shows what a limit does."""

import json

import numpy as np
import pytest
from onnx import helper
from support import tiny

from isthmus.prepare.tiling import search
from isthmus.report.text import Point
from isthmus.tools import fit
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


def test_limits_are_measured_and_one_is_advised(model, capsys) -> None:
    status, out, _ = called(capsys, "fit", model, "--rounds", 5, "--slower", 10, "--json")
    report = json.loads(out)
    assert status == 0
    scratch = [point["scratch_bytes"] for point in report["points"]]
    assert scratch == sorted(scratch, reverse=True)
    assert report["points"][0]["limit"] == ""
    assert report["points"][0]["times"] == 1.0
    advised = next(point for point in report["points"] if point["limit"] == report["advised"])
    assert advised["scratch_bytes"] == scratch[-1]


def test_a_budget_takes_the_mildest_limit_that_fits(model, capsys) -> None:
    _, out, _ = called(capsys, "fit", model, "--rounds", 1, "--json")
    points = json.loads(out)["points"]
    io = (3 + 2) * 64 * 16 * 4
    budget = io + points[1]["scratch_bytes"]
    status, out, _ = called(capsys, "fit", model, "--rounds", 1, "--budget", budget, "--json")
    report = json.loads(out)
    chosen = next(point for point in report["points"] if point["limit"] == report["advised"])
    assert status == 0
    assert points[1]["scratch_bytes"] <= chosen["scratch_bytes"] <= budget - io


def test_a_model_that_no_limit_fits_is_reported(model, capsys) -> None:
    status, out, _ = called(capsys, "fit", model, "--rounds", 1, "--budget", 1000)
    assert status == 1
    assert "nothing fits: what is beside scratch (state, inputs, outputs) takes 19,480 bytes more" in out
    assert "holds it up" in out
    status, out, _ = called(capsys, "fit", model, "--rounds", 1, "--budget", 20481)
    assert status == 1
    assert "nothing fits: the budget leaves 1 byte for scratch" in out


def test_inputs_and_outputs_inside_scratch_count_once(model, capsys) -> None:
    _, out, _ = called(capsys, "fit", model, "--backend", "lpai", "--rounds", 1, "--json")
    least = json.loads(out)["points"][-1]
    options = ("--backend", "lpai", "--rounds", 1, "--budget", least["scratch_bytes"])
    assert called(capsys, "fit", model, *options)[0] == 0


def test_a_search_that_ends_at_its_bound_is_reported(model, capsys, monkeypatch) -> None:
    assert not json.loads(called(capsys, "fit", model, "--rounds", 1, "--json")[1])["search_bounded"]
    monkeypatch.setattr(search, "MIN_SHARE", 1)
    monkeypatch.setattr(search, "MAX_GROWTH", 1)
    assert "the search left out long regions" in called(capsys, "fit", model, "--rounds", 1)[1]
    assert "search" in called(capsys, "plan", model, "--scratch-limit", "least")[1]
    assert json.loads(called(capsys, "plan", model, "--scratch-limit", "least", "--json")[1])["search_bounded"]


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--slower", "-1"], ["--graph", "none such"]])
def test_wrong_options_are_refused(model, capsys, wrong) -> None:
    status, _, err = called(capsys, "fit", model, *wrong)
    assert status == 2
    assert "isthmus fit:" in err


@pytest.mark.parametrize("option", ["--budget", "--tcm"])
@pytest.mark.parametrize("size", ["25%", "much", "-1", "64KX"])
def test_what_is_no_size_is_refused(model, capsys, option, size) -> None:
    with pytest.raises(SystemExit) as ended:
        called(capsys, "fit", model, f"{option}={size}")
    assert ended.value.code == 2
    assert f"argument {option}: '{size}' is not a size: write bytes, or a unit as in 64KiB" in capsys.readouterr().err


# -- TCM ---------------------------------------------------------------------------------------------------------------


def tcm_of(capsys, model):
    """Return what the model takes in TCM, by its plan on LPAI."""
    return json.loads(called(capsys, "plan", model, "--backend", "lpai", "--json")[1])["lpai"]["tcm"]


def test_only_what_fits_the_stated_tcm_is_advised(model, capsys) -> None:
    tcm = tcm_of(capsys, model)
    lines = ("fit", model, "--backend", "lpai", "--rounds", 1)
    status, out, _ = called(capsys, *lines, "--tcm", tcm["bytes"], "--json")
    report = json.loads(out)
    assert status == 0
    # Tiles make the binary larger, so only the model as it is fits these bytes.
    assert report["advised"] == "none"
    assert all(point["problem"] for point in report["points"] if point["limit"])
    [limit] = report["limits"]
    assert (limit["bytes"], limit["limit"], limit["binary_bytes"]) == (tcm["bytes"], tcm["bytes"], tcm["binary_bytes"])
    status, out, _ = called(capsys, *lines, "--tcm", tcm["bytes"] - 1)
    assert status == 1
    assert "nothing fits: TCM: binary and IO: does not fit: 1 byte too many" in out


def test_a_budget_for_tcm_counts_the_model_binary(model, capsys) -> None:
    binary = tcm_of(capsys, model)["binary_bytes"]
    lines = ("fit", model, "--backend", "lpai", "--rounds", 1)
    whole = json.loads(called(capsys, *lines, "--json")[1])["points"][0]
    needed = whole["scratch_bytes"] + whole["beside_bytes"]
    assert json.loads(called(capsys, *lines, "--budget", needed, "--json")[1])["advised"] == "none"
    within = ("--tcm", "1MiB", "--budget", needed + binary, "--json")
    assert json.loads(called(capsys, *lines, *within)[1])["advised"] == "none"
    report = json.loads(called(capsys, *lines, "--tcm", "1MiB", "--budget", needed + binary - 1, "--json")[1])
    assert report["advised"] != "none"
    status, out, _ = called(capsys, *lines, "--tcm", "1MiB", "--budget", "1KB")
    assert status == 1
    assert "budget: 1,000 bytes for scratch and what is beside it (state, inputs, outputs, model binary)" in out
    assert "nothing fits: what is beside scratch (state, inputs, outputs, model binary) takes" in out


def test_all_stages_of_a_model_must_fit_the_stated_tcm(tmp_path, capsys) -> None:
    path = tiny.in_stages(tmp_path / "stages.onnx")
    on_lpai = (path, "--backend", "lpai")
    stages = json.loads(called(capsys, "plan", *on_lpai, "--json")[1])["stages"]
    need = max(stage["lpai"]["tcm"]["bytes"] for stage in stages)
    for size, status in ((need, 0), (need - 1, 1)):
        ended, out, _ = called(capsys, "fit", *on_lpai, "--rounds", 1, "--tcm", size)
        assert ended == called(capsys, "plan", *on_lpai, "--tcm", size)[0] == status
        assert out.count(f"bytes of {size:,}: {'fits, ' if status == 0 else 'does not fit: '}") > 0
        assert all(f"stage {number}: TCM: binary and IO: " in out for number in range(1, len(stages) + 1))
        assert "each stage is judged alone" in out
    assert "nothing fits: " in out
    assert "TCM" not in called(capsys, "fit", *on_lpai, "--rounds", 1)[1]
    binaries = sum(stage["lpai"]["tcm"]["binary_bytes"] for stage in stages)
    [without] = json.loads(called(capsys, "fit", *on_lpai, "--rounds", 1, "--json")[1])["points"]
    [point] = json.loads(called(capsys, "fit", *on_lpai, "--rounds", 1, "--tcm", "1MiB", "--json")[1])["points"]
    assert point["beside_bytes"] == without["beside_bytes"] + binaries


def test_a_page_says_why_nothing_fits_tcm(model, tmp_path, capsys) -> None:
    page = tmp_path / "fit.html"
    lines = ("fit", model, "--backend", "lpai", "--rounds", 1, "--tcm", 100, "--html", page)
    assert called(capsys, *lines)[0] == 1
    assert "Nothing fits: TCM: binary and IO: does not fit" in page.read_text()


@pytest.mark.parametrize("option", ["--tcm", "--budget"])
def test_sizes_that_a_judge_does_not_use_are_refused(model, capsys, option) -> None:
    status, _, err = called(capsys, "fit", model, "--judge", "htp", option, "64KiB")
    assert status == 2
    assert f"{option} 65536: a judge decides by spill-fill" in err


# -- noise -------------------------------------------------------------------------------------------------------------


def measured(capsys, monkeypatch, model, seconds):
    """Return what is said about noise if runs of a variant take these seconds in each round, by its place in line."""
    ratios = iter(seconds)
    monkeypatch.setattr(fit, "_points", lambda limits, sessions, rounds: points_of(limits, sessions, ratios))
    return called(capsys, "fit", model, "--slower", 5)[1].splitlines()[-1]


def points_of(limits, sessions, ratios):
    found = []
    for limit, session in zip(limits, sessions, strict=True):
        times = [1.0] * 5 if not limit else next(ratios)
        noise = fit._noise(times)
        found.append(Point(limit, session.info.memory.scratch_bytes, sorted(times)[len(times) // 2], 0, noise))
    return sorted(found, key=lambda point: -point.scratch_bytes)


def test_differences_within_noise_are_reported_as_such(model, capsys, monkeypatch) -> None:
    noisy, clear = [0.9, 0.95, 1.02, 1.1, 1.2], [1.2, 1.2, 1.2, 1.21, 1.21]
    said = measured(capsys, monkeypatch, model, [noisy] * 20)
    assert said == "noise: all differences in time are within it, so no limit is known to be slower or faster than none"
    said = measured(capsys, monkeypatch, model, [clear] * 20)
    assert said == "noise: no difference in time is within it"
    said = measured(capsys, monkeypatch, model, [noisy, *[clear] * 20])
    assert said == "noise: within it are the differences in time of 75%"


def test_noise_cannot_be_measured_with_one_round(model, capsys) -> None:
    status, out, _ = called(capsys, "fit", model, "--rounds", 1)
    assert status == 0
    assert out.splitlines()[-1] == "noise: one round of measurement cannot tell it; --rounds 9 does"
    assert json.loads(called(capsys, "fit", model, "--rounds", 1, "--json")[1])["points"][1]["noise"] is None
    assert json.loads(called(capsys, "fit", model, "--rounds", 3, "--json")[1])["points"][1]["noise"] >= 0


def test_a_plan_within_a_limit_shows_its_tiles(model, capsys) -> None:
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
