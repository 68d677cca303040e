"""Commands say which dimensions of an ONNX file they take as 1, and what to type; ``--strict`` refuses them."""

import json
import re
import shlex

import numpy as np
import pytest
from onnx import helper
from support import tiny

from isthmus.tools.cli import main


def called(capsys, *arguments):
    status = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def model(tmp_path):
    return tiny.convolution(tmp_path / "picture.onnx", "height", "width")


def command(name, model, folder):
    """The command line of a command on a model, and the function that finds the fact in its report."""
    if name == "context-binary-generator":
        return [name, "--backend", "cpu", "--model", model, "--binary_file", "out", "--output_dir", folder]
    more = {"fit": ["--rounds", 1], "sweep": ["--state", folder / "state"]}.get(name, [])
    return [name, model, *more]


def fact(name, out):
    report = json.loads(out)
    return report["rows"][0]["open_shapes"] if name == "sweep" else report["open_shapes"]


COMMANDS = ("plan", "run", "fit", "compare", "sweep", "context-binary-generator")


@pytest.mark.parametrize("name", COMMANDS)
def test_open_dimensions_are_named_once_with_the_option_to_type(name, model, tmp_path, capsys) -> None:
    line = command(name, model, tmp_path / "out")
    _, out, err = called(capsys, *line, "--json")
    assert err.count("leaves dimensions open, which are taken as 1") == 1
    option = shlex.split(re.search(r"--shape .*", err)[0])
    assert option == ["--shape", "x=1,3,height,width"]
    assert fact(name, out) == {"x": [1, 3, "height", "width"]}

    typed = [option[0], option[1].replace("height", "8").replace("width", "6")]
    _, out, err = called(capsys, *line, *typed, "--strict", "--json")
    assert "leaves dimensions open" not in err
    assert fact(name, out) == {}


@pytest.mark.parametrize("name", COMMANDS)
def test_strict_refuses_open_dimensions_with_status_1_and_writes_nothing(name, model, tmp_path, capsys) -> None:
    status, out, err = called(capsys, *command(name, model, tmp_path / "out"), "--strict")
    assert (status, out) == (1, "")
    assert "refused by --strict" in err
    assert "--shape x=1,3,height,width" in err
    assert not (tmp_path / "out").exists()


def test_a_dimension_that_another_input_gives_is_not_open_and_one_without_a_name_is_a_question_mark(
    tmp_path, capsys
) -> None:
    add = helper.make_node("Add", ["a", "b"], ["sum"])
    use = helper.make_node("MatMul", ["sum", "c"], ["y"])
    inputs = {"a": ["rows", 4], "b": ["rows", 4], "c": [4, None]}
    model = tiny.save(tmp_path / "two.onnx", [add, use], inputs, {"y": ["rows", None]})
    _, out, err = called(capsys, "plan", model, "--shape", "a=7,4", "--json")
    assert json.loads(out)["open_shapes"] == {"c": [4, "?"]}
    assert "--shape 'c=4,?'" in err
    assert "b=" not in err


def test_an_initializer_that_is_also_an_input_and_fixed_shapes_are_no_reason_to_warn(tmp_path, capsys) -> None:
    weights = np.ones((4, 2), np.float32)
    use = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = tiny.save(tmp_path / "fixed.onnx", [use], {"x": [1, 4], "w": ["k", 2]}, {"y": [1, 2]}, {"w": weights})
    status, out, err = called(capsys, "plan", model, "--strict", "--json")
    assert (status, err, json.loads(out)["open_shapes"]) == (0, "", {})


def test_a_model_that_runs_in_stages_is_warned_of_too(tmp_path, capsys) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["where"]), helper.make_node("Cast", ["where"], ["y"], to=1)]
    model = tiny.save(tmp_path / "stages.onnx", nodes, {"x": ["n"]}, {"y": [1, "k"]})
    status, out, err = called(capsys, "plan", model, "--json")
    report = json.loads(out)
    assert status == 0
    assert report["stages"]
    assert report["open_shapes"] == {"x": ["n"]}
    assert "--shape x=n" in err


def test_a_refusal_stays_one_line(model, capsys) -> None:
    status, _, err = called(capsys, "plan", model, "--shape", "z=1")
    assert (status, err.count("\n")) == (2, 1)
