"""``isthmus compare`` names the operation that is wrong, writes a smaller model, and ends with 0, 1 or 2."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import onnx
import pytest
from comparison import fault_models as faults
from support import dlc_graphs, dlc_write, tiny

import isthmus
from isthmus.comparison.onnx_subject import OnnxSubject
from isthmus.comparison.report import deviation
from isthmus.errors import Code
from isthmus.report.findings import apart
from isthmus.system import progress
from isthmus.tools.cli import main


@pytest.fixture
def model(tmp_path):
    return tiny.convolution(tmp_path / "model.onnx")


@pytest.fixture
def broken(tmp_path, model):
    return faults.damaged(tmp_path / "broken.onnx", model, faults.clipped("w"))


def test_a_model_that_agrees_ends_with_0(model, capsys) -> None:
    assert main(["compare", str(model)]) == 0
    out = capsys.readouterr()
    assert "model.onnx on cpu, compared with ONNX Runtime" in out.out
    assert "agrees: every operation alone computes what the reference computes" in out.out
    assert not out.err  # no progress bar outside a terminal


def test_a_model_that_differs_ends_with_1_and_the_operation(broken, model, capsys) -> None:
    assert main(["compare", str(broken), "--against", str(model)]) == 1
    assert "DIFFERS first at conv_1 (Conv): wrong by itself" in capsys.readouterr().out


def test_the_report_as_json_has_every_tensor(broken, model, capsys) -> None:
    assert main(["compare", str(broken), "--against", str(model), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["agrees"], report["first"], report["reduced"]) == (False, "conv_1", None)
    rows = {row["tensor"]: row for row in report["tensors"]}
    assert set(rows) == {"c", "y"}
    assert rows["c"]["verdict"] == "inside a fused operation"
    assert rows["y"]["alone"]["max_abs"] > rows["y"]["tolerance"] > 0
    assert rows["y"]["shape"] == [1, 4, 8, 8]


def test_a_reduced_model_differs_again_when_it_is_compared(broken, model, tmp_path, capsys) -> None:
    small = tmp_path / "small.onnx"
    assert main(["compare", str(broken), "--against", str(model), "--reduce", str(small)]) == 1
    assert "reduced to 1 operation: conv_1 (Conv)" in capsys.readouterr().out
    assert [node.name for node in onnx.load(small).graph.node] == ["conv_1"]
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(onnx.load(small)))
    again = ["compare", str(small), "--against", str(small.with_suffix(".reference.onnx"))]
    assert main([*again, "--inputs", str(small.with_suffix(".npz"))]) == 1
    assert main(["run", str(small)]) == 0


def test_a_model_with_external_data_is_reduced_to_one_without(broken, model, tmp_path, capsys) -> None:
    small = tmp_path / "small" / "small.onnx"
    small.parent.mkdir()
    for path in (broken, model):
        onnx.save(onnx.load(path), path, save_as_external_data=True, location=f"{path.stem}.data", size_threshold=0)
        assert path.with_suffix(".data").stat().st_size
    assert main(["compare", str(broken), "--against", str(model), "--reduce", str(small)]) == 1
    assert "reduced to 1 operation: conv_1 (Conv)" in capsys.readouterr().out
    again = ["compare", str(small), "--against", str(small.with_suffix(".reference.onnx"))]
    assert main([*again, "--inputs", str(small.with_suffix(".npz"))]) == 1


def test_a_part_that_cannot_be_compared_does_not_count_as_equal(broken, model, tmp_path, capsys, monkeypatch) -> None:
    def extract(*arguments):
        raise isthmus.QnnError(Code.GRAPH_CREATE_FAILED, "tensor 'w'", "its data is missing")

    monkeypatch.setattr(OnnxSubject, "extract", extract)
    small = tmp_path / "small.onnx"
    assert main(["compare", str(broken), "--against", str(model), "--reduce", str(small)]) == 2
    error = capsys.readouterr().err
    assert "operation conv_1 (Conv) cannot be compared in a model of its own: tensor 'w': its data is missing" in error
    assert error.count("\n") == 1
    assert not small.exists()


def test_a_tflite_model_is_reduced_to_a_tflite_model(tmp_path, capsys) -> None:
    from tools.test_split import wake_word_like

    source, small = wake_word_like(tmp_path / "two.tflite"), tmp_path / "small.tflite"
    assert main(["compare", str(source)]) == 0
    with faults.wrong_kernel("Conv2d", lambda step: faults.clamped(step) if step.name == "y" else {}):
        assert main(["compare", str(source), "--reduce", str(small), "--json"]) == 1
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert report["first"] == "y"
        assert report["reduced"]["operations"] == ["y"]
        assert main(["compare", str(small), "--inputs", str(small.with_suffix(".npz"))]) == 1
    assert main(["compare", str(small), "--inputs", str(small.with_suffix(".npz"))]) == 0


def test_from_python_a_report_names_the_first_operation(broken, model) -> None:
    report = isthmus.compare(broken, model)
    assert repr(report) == (
        "<ComparisonReport 'broken.onnx' on cpu and model.onnx in ONNX Runtime differ first at conv_1 (Conv)>"
    )
    assert report.first.operation.kind == "Conv"
    assert isthmus.compare(model).first is None


def test_inputs_can_be_given(model, tmp_path) -> None:
    np.savez(tmp_path / "in.npz", x=np.full((1, 3, 8, 8), 2, np.float32))
    assert main(["compare", str(model), "--inputs", str(tmp_path / "in.npz")]) == 0
    report = isthmus.compare(model, inputs={"x": np.ones((1, 3, 8, 8), np.float32)})
    assert (report.inputs["x"] == 1).all()


def test_a_dlc_is_compared_with_another_backend_and_has_no_runtime(tmp_path, capsys) -> None:
    path = tmp_path / "model.dlc"
    path.write_bytes(dlc_write.dlc([dlc_graphs.convolution()]))
    assert main(["compare", str(path), "--against", "htp"]) == 0
    assert main(["compare", str(path)]) == 2
    assert "its format has no runtime to compare with" in capsys.readouterr().err


def test_every_option_that_cannot_be_used_is_refused_in_one_line(model, tmp_path, capsys) -> None:
    np.savez(tmp_path / "wrong.npz", x=np.ones((1, 3, 8, 9), np.float32))
    np.savez(tmp_path / "unknown.npz", xx=np.ones((1, 3, 8, 8), np.float32))
    (tmp_path / "text.onnx").write_text("this is no model")
    renamed = onnx.load(model)
    for node in renamed.graph.node:
        node.output[:] = [f"{name}_renamed" for name in node.output]
        node.input[:] = [name if name in ("x", "w", "b") else f"{name}_renamed" for name in node.input]
    for output in renamed.graph.output:
        output.name += "_renamed"
    onnx.save(renamed, tmp_path / "renamed.onnx")
    for arguments, message in {
        (str(tmp_path / "none.onnx"),): "there is no such file",
        (str(tmp_path),): "it cannot be read",
        (str(tmp_path / "text.onnx"),): "its format is not known: it begins with",
        (str(model), "--against", "htpp"): "Did you mean 'htp'?",
        (str(model), "--against", "none.onnx"): "there is no such file",
        (str(model), "--backend", "gpuu"): "Did you mean 'gpu'?",
        (str(model), "--inputs", str(tmp_path / "wrong.npz")): "must be float32[1, 3, 8, 8], is float32[1, 3, 8, 9]",
        (str(model), "--inputs", str(tmp_path / "unknown.npz")): "Did you mean 'x'?",
        (str(model), "--reduce", "small.tflite"): "must have the suffix of the model, '.onnx'",
        (str(model), "--seed", "-1"): "must not be negative",
        (str(model), "--against", str(tmp_path / "renamed.onnx")): "so nothing can be compared",
        (str(model), "--threads", "0"): "threads",
    }.items():
        assert main(["compare", *arguments]) == 2, arguments
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "options"),
    [((7,), {}), (("model.onnx", 7), {}), (("model.onnx",), {"inputs": [1]}), (("model.onnx",), {"shapes": {"x": 3}})],
)
def test_arguments_of_other_types_are_refused(model, monkeypatch, arguments, options) -> None:
    monkeypatch.chdir(model.parent)
    with pytest.raises(isthmus.QnnError, match="must"):
        isthmus.compare(*arguments, **options)


def test_a_folder_that_cannot_be_written_leaves_nothing(broken, model, tmp_path, capsys) -> None:
    out = tmp_path / "none" / "small.onnx"
    assert main(["compare", str(broken), "--against", str(model), "--reduce", str(out)]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert not out.parent.exists()


def test_a_terminal_shows_the_stage_and_erases_it(model, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_DELAY", 0)
    monkeypatch.setattr(progress, "_INTERVAL", 0)
    assert main(["compare", str(model)]) == 0
    shown = capsys.readouterr().err
    assert re.search(r"3 of 5 stages, \d+ s: run each operation alone", shown)
    assert shown.endswith("\r\x1b[K")


def test_help_has_examples(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--help"])
    assert ended.value.code == 0
    assert "isthmus compare model.onnx --against fp16" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def infinite(tmp_path):
    """A quantized model, its float original, and inputs of which some are infinite."""
    path, source = faults.quantized_relu(tmp_path / "quantized.onnx", 0.0, 0.5)
    x = np.full((1, 8, 64), 0.25, np.float32)
    x[0, 0, :3], x[0, 1, :2] = np.inf, -np.inf
    np.savez(tmp_path / "in.npz", x=x)
    return ["compare", str(path), "--against", str(source), "--inputs", str(tmp_path / "in.npz")]


def refuse_constant(name):
    raise ValueError(f"JSON has no {name}")


def test_infinite_values_are_called_so(infinite, capsys) -> None:
    assert main(infinite) == 1
    assert (
        "5 of 512 values exceed the range of its quantizer, 0 to 0.5, and some are infinite" in capsys.readouterr().out
    )


def test_the_report_of_infinite_values_is_strict_json(infinite, capsys) -> None:
    assert main([*infinite, "--json", "--profile"]) == 1
    report = json.loads(capsys.readouterr().out, parse_constant=refuse_constant)
    [suspect] = report["suspects"]
    assert suspect["in_model"] == dict.fromkeys(("max_abs", "rms", "relative", "steps"), "inf")
    assert (suspect["saturation"]["count"], suspect["saturation"]["excess"], suspect["saturation"]["span"]) == (
        5, "inf", "inf",
    )  # fmt: skip


def test_the_page_of_infinite_values_says_so(infinite, tmp_path, capsys) -> None:
    assert main([*infinite, "--html", str(tmp_path / "page.html")]) == 1
    text = (tmp_path / "page.html").read_text().partition('id="facts">')[2].partition("</script>")[0]
    facts = json.loads(text, parse_constant=refuse_constant)
    figures = {each["title"]: each["value"] for each in facts["sections"][0]["figures"]}
    assert figures["Largest difference"] == "infinite"
    [profile] = [each for each in facts["sections"] if each["kind"] == "profile"]
    assert "in the model: infinitely far apart" in [line for point in profile["points"] for line in point["lines"]]


def test_a_difference_from_zero_is_no_fraction() -> None:
    found = deviation(np.float32([0.5, 0]), np.float32([0, 0]))
    assert apart(vars(found)) == "up to 0.5 apart (the reference is 0)"
