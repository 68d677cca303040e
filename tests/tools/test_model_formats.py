"""``run``, ``plan``, ``fit`` and ``inspect`` take every kind of model, with the same options."""

import argparse
import json
from importlib import import_module

import pytest

from isthmus.tools.cli import main

COMMANDS = ("run", "plan", "fit", "inspect")
MODELS = {
    "camera.onnx": [], "camera.tflite": [], "net.dlc": ["--graph", "second"], "camera.bin": [],
    "libqnn_model.so": [],
}  # fmt: skip
"""A model of each kind, and the options that it needs."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    assert main(["samples", str(folder)]) == 0
    if not (folder / "libqnn_model.so").exists():
        pytest.skip("needs a compiler, for a model library")
    return folder


@pytest.fixture(autouse=True)
def here(prepared, monkeypatch, capsys):
    """All tests run in the folder of the models."""
    monkeypatch.chdir(prepared)
    capsys.readouterr()


def refused(capsys, *arguments):
    """Return the one line that refuses a command line."""
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("command", ["run", "plan", "inspect"])
def test_every_kind_of_model_is_run_planned_and_inspected(capsys, command, model) -> None:
    assert main([command, model, *MODELS[model], "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    if command == "inspect":
        [report] = report["graphs"]
        assert [len(report[kind]) for kind in ("inputs", "outputs")] == [1, 1]
    else:
        assert report["backend"] == ("htp" if model == "camera.bin" else "cpu")
        assert report["scratch_bytes"] > 0
        assert report["io_bytes"] > 0


@pytest.mark.parametrize("model", [model for model in MODELS if model != "camera.bin"])
def test_every_kind_of_model_but_a_context_binary_is_fitted(capsys, model) -> None:
    assert main(["fit", model, *MODELS[model], "--rounds", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["advised"]


@pytest.mark.parametrize("command", COMMANDS)
def test_all_commands_have_the_same_options(command) -> None:
    def options_of(add):
        parser = argparse.ArgumentParser()
        add(parser)
        return {name for action in parser._actions for name in action.option_strings}

    shared = options_of(import_module("isthmus.tools.model_options").add_model_options)
    assert {"--backend", "--shape", "--graph", "--config", "--set", "--threads", "--scratch-limit", "--json"} <= shared
    assert shared <= options_of(import_module(f"isthmus.tools.{command}").add_arguments)


@pytest.mark.parametrize("command", ["run", "fit"])
def test_commands_that_execute_a_model_can_be_audited(capsys, command) -> None:
    assert main([command, "camera.tflite", "--audit", *(["--rounds", "1"] if command == "fit" else [])]) == 0
    assert "copied" in capsys.readouterr().err


# -- a context binary is prepared --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "plan", "inspect"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scratch-limit", "1000"], "is fixed and has 655,360 bytes of scratch. Use --scratch-limit of qnn-"),
        (["--scratch-limit", "50%"], "its plan is fixed and has 655,360 bytes of scratch"),
        (["--threads", "2"], "2 threads for context binary 'camera.bin': its graphs are prepared: the number of"),
        (["--shape", "image=1,32,32,3"], "its graphs are prepared: their inputs are fixed"),
        (["--backend", "lpai"], "it is for backend 'htp', not 'lpai'"),
        (["--graph", "camra"], "'camera.bin' has 'camera'"),
    ],
)
def test_an_option_that_would_prepare_a_context_binary_again_is_refused(capsys, command, arguments, words) -> None:
    assert words in refused(capsys, command, "camera.bin", *arguments)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_shapes_of_a_model_library_are_those_it_was_compiled_for(capsys, command) -> None:
    words = "shapes and inputs of a model library are what it was compiled for"
    assert words in refused(capsys, command, "libqnn_model.so", "--shape", "x=1,4,4,3")


def test_a_limit_that_the_plan_of_a_context_binary_meets_is_accepted(capsys) -> None:
    # The plan of camera.bin has exactly this much scratch.
    assert main(["run", "camera.bin", "--scratch-limit", "655360"]) == 0


def test_fit_refuses_a_plan_that_is_fixed(capsys) -> None:
    assert "its plan is fixed. Fit the model that it was made from." in refused(capsys, "fit", "camera.bin")


def test_a_binary_gives_the_results_of_its_model(capsys, tmp_path) -> None:
    outputs = []
    for model in ("camera.tflite", "camera.bin"):
        assert main(["run", model, "--backend", "htp", "--outputs", str(tmp_path / "out.npz")]) == 0
        outputs.append((tmp_path / "out.npz").read_bytes())
    assert outputs[0] == outputs[1]


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "lpai"])
def test_inspect_shows_the_memory_that_plan_reports(capsys, backend) -> None:
    assert main(["inspect", "net.dlc", "--backend", backend, "--json"]) == 0
    for graph in json.loads(capsys.readouterr().out)["graphs"]:
        assert main(["plan", "net.dlc", "--graph", graph["name"], "--backend", backend, "--json"]) == 0
        assert graph["scratch_bytes"] == json.loads(capsys.readouterr().out)["scratch_bytes"]


def test_a_limit_of_fit_is_the_most_that_it_advises(capsys) -> None:
    assert main(["plan", "camera.tflite", "--json"]) == 0
    unlimited = json.loads(capsys.readouterr().out)["scratch_bytes"]
    assert main(["fit", "camera.tflite", "--scratch-limit", "50%", "--rounds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    [advised] = [point for point in report["points"] if point["limit"] == report["advised"]]
    assert advised["scratch_bytes"] <= unlimited // 2


@pytest.mark.parametrize(
    ("given", "equal"),
    [
        (["--set", "scratch-limit=50%"], ["--scratch-limit", "50%"]),
        (["--set", "threads=2"], ["--threads", "2"]),
        (["--set", "lpai_graph.prepare.scratch_limit=50%", "--backend", "lpai"],
         ["--scratch-limit", "50%", "--backend", "lpai"]),
    ],
)  # fmt: skip
def test_a_setting_does_what_its_option_does(capsys, given, equal) -> None:
    reports = []
    for arguments in (given, equal, equal[2:]):
        assert main(["plan", "camera.tflite", *arguments, "--json"]) in (0, 1)
        reports.append({**json.loads(capsys.readouterr().out), "seconds": 0, "plan_seconds": 0})
    assert reports[0] == reports[1]
    assert reports[0] != reports[2]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("thread=2", "--set thread=2: must be one of threads, scratch-limit"),
        ("thread=2", "Did you mean 'threads'?"),
        ("threads=two", "--set threads=two: 'two' is not a number"),
        ("threads", "--set threads: must look like threads=2"),
        ("htp.precisoin=float16", "precision"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_there_is(capsys, setting, words) -> None:
    assert words in refused(capsys, "plan", "camera.tflite", "--backend", "htp", "--set", setting)
