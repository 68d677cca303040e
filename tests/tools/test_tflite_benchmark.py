"""The command that compares a model in LiteRT with and without the delegate."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import tiny, zoo

from isthmus.tools.cli import main

pytestmark = pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="LiteRT is not installed")


@pytest.fixture
def model(tmp_path):
    try:
        return str(zoo.path("okay_nabu"))
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))


def report(capsys, *arguments: str) -> dict:
    assert main(["tflite-benchmark", *arguments, "--json", "--rounds", "3"]) == 0
    return json.loads(capsys.readouterr().out)


def test_four_ways_are_run_in_turn_and_counted(model, capsys) -> None:
    ways = report(capsys, model)["ways"]
    assert [way["way"] for way in ways] == [
        "LiteRT", "LiteRT with XNNPACK", "delegate, ordinary tensors", "delegate, shared tensors",
    ]  # fmt: skip
    assert all(way["refused"] is None and way["latency_ms"]["min"] > 0 for way in ways)
    assert [way["copied_bytes"] for way in ways] == [None, None, 121, 0]
    assert [(way["nodes_delegated"], way["nodes"], way["partitions"]) for way in ways[2:]] == [(61, 61, 1)] * 2


def test_what_delegates_print_about_their_nodes_is_only_in_the_report(model, capfd) -> None:
    assert main(["tflite-benchmark", model, "--rounds", "1"]) == 0
    assert "INFO: TfLiteQnnDelegate" not in capfd.readouterr().err


def test_a_backend_without_shared_memory_says_so(model, capsys) -> None:
    ways = report(capsys, model, "--backend", "cpu")["ways"]
    assert ways[2]["copied_bytes"] == 0
    assert "shares no memory" in ways[3]["refused"]


def test_a_model_that_litert_alone_cannot_run_runs_by_the_delegate(capsys) -> None:
    try:
        path = zoo.path("selfie_segmentation")
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    ways = report(capsys, str(path), "--backend", "cpu")["ways"]
    assert "unresolved custom op" in ways[0]["refused"]
    assert (ways[2]["nodes_delegated"], ways[2]["nodes"]) == (246, 246)


def test_the_report_is_also_printed_as_text(model, capsys) -> None:
    assert main(["tflite-benchmark", model, "--rounds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("  delegate, shared tensors")
    assert lines[-1].endswith("0  61 of 61 nodes (100 %), partitions: 1")


def test_shapes_are_given_by_name(capsys) -> None:
    try:
        path = str(zoo.path("precise_vad"))
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    shape = "serving_default_net_input:0=1,29,13"
    ways = report(capsys, path, "--backend", "cpu", "--shape", shape)["ways"]
    assert all(way["refused"] is None for way in ways[:3])
    assert main(["tflite-benchmark", path, "--shape", "nothing=1"]) == 2
    assert "the model has no such input" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["no/such.tflite"], ["MODEL", "--rounds", "0"], ["MODEL", "--threads", "0"], ["MODEL", "--threads", "65"]],
)
def test_bad_input_is_refused(arguments, model, capsys) -> None:
    assert main(["tflite-benchmark", *(model if word == "MODEL" else word for word in arguments)]) == 2
    assert capsys.readouterr().err.startswith("isthmus tflite-benchmark: [")


@pytest.mark.parametrize("name", ["nothing.tflite", "model.onnx", "empty.tflite", "folder", "missing.tflite"])
def test_what_is_no_tflite_file_is_refused_in_a_line(name, tmp_path, capsys) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    elif name == "model.onnx":
        tiny.convolution(path)
    elif name != "missing.tflite":
        path.write_bytes(b"nothing at all" * 10 if name == "nothing.tflite" else b"")
    assert main(["tflite-benchmark", str(path)]) == 2
    reported = capsys.readouterr()
    assert not reported.out
    assert reported.err.startswith(f"isthmus tflite-benchmark: [1004 COMMON_INVALID_ARGUMENT] model file '{path}': ")
    assert reported.err.count("\n") == 1
    if name in ("nothing.tflite", "model.onnx"):
        assert "it is not a TFLite model" in reported.err


def test_a_damaged_model_is_refused_in_every_way(model, tmp_path, capsys) -> None:
    path = tmp_path / "half.tflite"
    path.write_bytes(Path(model).read_bytes()[:5000])
    assert main(["tflite-benchmark", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[2:30].strip() for line in lines[2:]] == [
        "LiteRT", "LiteRT with XNNPACK", "delegate, ordinary tensors", "delegate, shared tensors",
    ]  # fmt: skip
    assert all(len(line) > 31 for line in lines[2:])


def test_the_gpu_is_compared_too(tmp_path, capsys) -> None:
    pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
    build = pytest.importorskip("frontends.tflite.build", reason="flatbuffers is not installed")
    path = tmp_path / "negated.tflite"
    path.write_bytes(build.single("NEG", [build.T("f32", (1, 4))], [build.T("f32", (1, 4))]))
    ways = report(capsys, str(path), "--backend", "gpu")["ways"]
    assert (ways[2]["nodes_delegated"], ways[2]["copied_bytes"]) == (1, 32)
    assert "shares no memory" in ways[3]["refused"]
