"""``isthmus split`` writes a model file in tiles, whole or not at all."""

import json
import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support import tiny

from isthmus.frontends.tflite.model import ModelFile
from isthmus.frontends.tflite.offline_plan import arena_tensors
from isthmus.split.onnx import OnnxFile
from isthmus.tools.cli import main


@pytest.fixture
def model(tmp_path):
    return tiny.wide(tmp_path / "wide.onnx")


def wake_word_like(path):
    """A TFLite file of two convolutions."""
    from frontends.tflite.build import Op, Subgraph, T, options
    from frontends.tflite.build import model as build

    window = options("Conv2D", padding=0, strideW=2, strideH=2, dilationWFactor=1, dilationHFactor=1)
    rng = np.random.default_rng(0)
    tensors = [
        T("f32", [1, 32, 32, 3], name="x"),
        T("f32", [32, 3, 3, 3], data=rng.standard_normal((32, 3, 3, 3)).astype(np.float32)),
        T("f32", [32], data=np.zeros(32, np.float32)),
        T("f32", [1, 16, 16, 32], name="wide"),
        T("f32", [8, 3, 3, 32], data=rng.standard_normal((8, 3, 3, 32)).astype(np.float32)),
        T("f32", [8], data=np.zeros(8, np.float32)),
        T("f32", [1, 8, 8, 8], name="y"),
    ]
    operators = [Op("CONV_2D", [0, 1, 2], [3], window), Op("CONV_2D", [3, 4, 5], [6], window)]
    path.write_bytes(build(Subgraph(tensors, operators, [0], [6])))
    return path


def test_the_command_lists_what_is_alive_and_checks_the_bits(model, tmp_path, capsys) -> None:
    out = tmp_path / "out.onnx"
    assert main(["split", str(model), "--out", str(out), "--live-limit", "50%", "--check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["live_bytes_after"] <= report["live_bytes_before"] // 2
    assert report["same_bits"] == {"as written": True, "optimized": True}
    assert report["runs"][0]["tiles"] > 1
    assert report["file_bytes_after"] == out.stat().st_size


def test_the_check_is_one_line_that_states_how_far_results_are_apart(model, tmp_path, capsys, monkeypatch) -> None:
    out = tmp_path / "out.onnx"
    assert main(["split", str(model), "--out", str(out), "--check"]) == 0
    assert capsys.readouterr().out.count("as written: the same bits; optimized: the same bits\n") == 1
    other = onnx.load(model)
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.zeros((4, 32, 3, 3), np.float32), "b"))
    monkeypatch.setattr(OnnxFile, "write", lambda *_: other.SerializeToString())
    assert main(["split", str(model), "--out", str(out), "--check"]) == 1
    [line] = [line for line in capsys.readouterr().out.splitlines() if "checked" in line]
    assert re.search(r"written: OTHER BITS, up to [\d.e+]+ apart where results reach [\d.e+]+; optimized: OTHER", line)


def test_a_file_that_the_runtime_cannot_load_is_refused_in_one_line(model, tmp_path, capsys, monkeypatch) -> None:
    out = tmp_path / "out.onnx"
    damaged = onnx.load(model)
    damaged.graph.node[1].input[0] = "nothing"
    monkeypatch.setattr(OnnxFile, "write", lambda *_: damaged.SerializeToString())
    assert main(["split", str(model), "--out", str(out), "--check"]) == 2
    said = capsys.readouterr().err
    assert "the split file: ONNX Runtime cannot load it" in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_weights_in_other_files_are_found_by_the_check(model, tmp_path, capsys) -> None:
    beside = tmp_path / "beside.onnx"
    onnx.save(onnx.load(model), str(beside), save_as_external_data=True, location="weights", size_threshold=0)
    assert main(["split", str(beside), "--out", str(tmp_path / "out.onnx"), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["largest_difference"] == {"as written": 0, "optimized": 0}


def test_the_text_report_names_regions_and_the_peak(model, tmp_path, capsys) -> None:
    assert main(["split", str(model), "--out", str(tmp_path / "out.onnx")]) == 0
    text = capsys.readouterr().out
    assert "steps, first to" in text
    assert "has the most alive" in text


def test_a_plan_for_tflite_micro_is_put_in_the_split_file(tmp_path, capsys) -> None:
    model, out = wake_word_like(tmp_path / "two.tflite"), tmp_path / "out.tflite"
    assert main(["split", str(model), "--out", str(out), "--embed-plan", "--check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["runs"]
    assert report["embedded"]["planned"] == len(arena_tensors(ModelFile(out.read_bytes(), "out")))
    assert report["live_bytes_after"] <= report["embedded"]["arena_bytes"] < report["live_bytes_before"]
    assert b"OfflineMemoryAllocation" in out.read_bytes()
    assert all(report["same_bits"].values())


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        (["--live-limit", "100"], 1, "holds it up"),
        (["--live-limit", "much"], 2, "must be a number of bytes"),
        (["--embed-plan"], 2, "only a TFLite file can hold a plan"),
    ],
)
def test_a_refusal_writes_nothing(model, tmp_path, capsys, more, status, message) -> None:
    out = tmp_path / "out.onnx"
    assert main(["split", str(model), "--out", str(out), *more]) == status
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_the_model_itself_is_not_written_over(model, capsys) -> None:
    before = model.read_bytes()
    assert main(["split", str(model), "--out", str(model)]) == 2
    assert "would overwrite" in capsys.readouterr().err
    assert model.read_bytes() == before


def test_a_file_is_not_written_under_the_name_of_the_other_format(model, tmp_path, capsys) -> None:
    for source, name in ((model, "out.tflite"), (wake_word_like(tmp_path / "two.tflite"), "out.onnx")):
        assert main(["split", str(source), "--out", str(tmp_path / name)]) == 2
        assert "and so is what is written" in capsys.readouterr().err
        assert not (tmp_path / name).exists()


def test_dimensions_that_the_model_leaves_open_are_reported(tmp_path, capsys) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Add", ["a", "z"], ["y"])]
    inputs = {"x": [1, 4, "rows", 8], "z": [1, 4, 1, 8]}
    model = tiny.save(tmp_path / "open.onnx", nodes, inputs, {"y": [1, 4, "rows", 8]})
    command = ["split", str(model), "--json"]
    assert main(command) == main([*command, "--shape", "x=1,4,6,8"]) == 1
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [report["fixed_shapes"] for report in reports] == [{"x": [1, 4, 1, 8]}, {"x": [1, 4, 6, 8]}]
    assert main(command[:-1]) == 1
    assert "x at [1, 4, 1, 8], some of which the model leaves open (--shape)" in capsys.readouterr().out


def test_what_is_no_model_is_refused(tmp_path, capsys) -> None:
    (tmp_path / "text").write_text("no model")
    assert main(["split", str(tmp_path / "text"), "--out", str(tmp_path / "out")]) == 2
    assert main(["split", str(tmp_path / "missing"), "--out", str(tmp_path / "out")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_what_cannot_be_split_is_not_written(tmp_path, capsys) -> None:
    model, out = tiny.convolution(tmp_path / "small.onnx"), tmp_path / "out.onnx"
    assert main(["split", str(model), "--out", str(out)]) == 1
    assert "nothing is split, and nothing is written: no tiling needs less than the" in capsys.readouterr().out
    assert main(["split", str(model), "--out", str(out), "--live-limit", "1GB", "--check", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["problem"].startswith("the limit of 1,000,000,000 allows the")
    assert report["runs"] == []
    assert report["out"] is None
    assert not out.exists()


def test_without_a_file_to_write_the_command_only_reports(model, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["split", str(model)]) == 0
    assert capsys.readouterr().out.endswith("--out FILE writes it\n")
    assert list(tmp_path.iterdir()) == [model]
