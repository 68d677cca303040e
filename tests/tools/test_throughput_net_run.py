"""qnn-throughput-net-run runs the threads of its documented file, and counts their inferences."""

import copy
import json
import re

import numpy as np
import onnx
import pytest
from onnx import helper
from support import tiny

from isthmus.tools.cli import context_binary_generator, throughput_net_run

CONFIG = {
    "backends": [
        {"backendName": "cpu_backend", "backendPath": "/opt/lib/libQnnCpu.so", "profilingLevel": "OFF",
         "perfProfile": "high_performance"},
    ],
    "models": [
        {"modelName": "model", "modelPath": "model.onnx", "loadFromCachedBinary": False, "inputPath": "list.txt",
         "inputDataType": "FLOAT", "outputPath": "output", "outputDataType": "FLOAT_ONLY", "saveOutput": "NATIVE_ALL",
         "postProcessor": "NONE"},
        {"modelName": "binary", "modelPath": "output/model.bin", "loadFromCachedBinary": True, "inputPath": "list.txt",
         "outputPath": "output", "saveOutput": "NATIVE_LAST"},
    ],
    "contexts": [{"contextName": "context_1"}, {"contextName": "context_2"}],
    "testCase": {
        "iteration": 2,
        "logLevel": "error",
        "threads": [
            {"threadName": "thread_1", "backend": "cpu_backend", "context": "context_1", "model": "model",
             "interval": 10, "loopUnit": "count", "loop": 3},
            {"threadName": "thread_2", "backend": "cpu_backend", "context": "context_2", "model": "binary",
             "loopUnit": "count", "loop": 5},
        ],
    },
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a model that adds 1, its binary, two inputs and a list of them."""
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("Add", ["x", "k"], ["y"])]
    tiny.save(tmp_path / "model.onnx", nodes, {"x": [1, 4]}, {"y": [1, 4]}, {"k": np.float32([1])})
    assert context_binary_generator(["--model", "model.onnx", "--backend", "libQnnCpu.so"]) == 0
    for n in range(2):
        np.full(4, n, np.float32).tofile(f"in{n}.raw")
    (tmp_path / "list.txt").write_text("in0.raw\nin1.raw\n")
    return tmp_path


def execute(config, *more):
    with open("config.json", "w") as file:
        json.dump(config, file)
    return throughput_net_run(["--config", "config.json", *more])


def test_a_key_without_effect_is_logged_once_by_name(folder, capsys) -> None:
    capsys.readouterr()
    assert execute(CONFIG) == 0
    lines = capsys.readouterr().err.splitlines()
    assert all(re.fullmatch(r"\[WARN\] .+: accepted, but without effect here", line) for line in lines)
    keys = ("backends.profilingLevel", "backends.perfProfile", "models.postProcessor", "testCase.logLevel")
    assert [[key in line for line in lines].count(True) for key in keys] == [1] * len(lines)


def test_integers_that_are_read_as_floats_are_warned_of(folder, capsys) -> None:
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    model = onnx.load(tiny.save(folder / "model.onnx", nodes, {"x": [4]}, {"y": [4]}, {"table": np.float32([5, 6, 7])}))
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    onnx.save(model, "model.onnx")
    np.int32([0, 1, 2, 1]).tofile("in0.raw")
    (folder / "list.txt").write_text("in0.raw\n")
    config = copy.deepcopy(CONFIG)
    del config["testCase"]["threads"][1]
    for kind, results, warnings in (("FLOAT", [5, 5, 5, 5], 1), ("NATIVE", [5, 6, 7, 6], 0)):
        config["models"][0]["inputDataType"] = kind
        capsys.readouterr()
        assert execute(config) == 0
        assert capsys.readouterr().err.count("input 'x' is INT_32, and its files are read as floats") == warnings
        np.testing.assert_array_equal(np.fromfile("output/thread_1/Result_0/y.raw", np.float32), results)


def test_all_threads_run_their_models_and_the_figures_are_printed(folder, capsys) -> None:
    capsys.readouterr()
    assert execute(CONFIG, "--output", "figures.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("thread_1:graphExecute: 6 inferences, ")
    assert lines[1].startswith("thread_2:graphExecute: 10 inferences, ")
    assert re.fullmatch(r"TotalTime \(us\): \d+", lines[2])
    figures = json.loads((folder / "figures.json").read_text())
    assert figures["threads"]["thread_2"]["inferences"] == 10
    for n in range(6):
        # Each iteration begins with the first line of the list.
        got = np.fromfile(f"output/thread_1/Result_{n}/y.raw", np.float32)
        np.testing.assert_array_equal(got, np.full(4, 1 + n % 3 % 2, np.float32))
    assert sorted(path.name for path in (folder / "output" / "thread_2").iterdir()) == ["Result_4", "Result_9"]


def test_a_thread_may_run_for_a_number_of_seconds(folder, capsys) -> None:
    config = copy.deepcopy(CONFIG)
    config["testCase"] = {"threads": [{**CONFIG["testCase"]["threads"][1], "loopUnit": "second", "loop": 1}]}
    assert execute(config, "--output", "figures.json") == 0
    assert json.loads((folder / "figures.json").read_text())["total_us"] >= 1e6


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("testCase", "threads", 0, "model"), "modle", "'thread_1': there is no model 'modle'. Did you mean 'model'?"),
        (("testCase", "threads", 1, "backend"), "gpu", "there is no backend 'gpu'"),
        (("testCase", "threads", 0, "loopUnit"), "hours", "key 'testCase.threads.loopUnit': must be one of"),
        (("testCase", "threads"), [], "it names no thread"),
        (("models", 0, "inputPath"), "gone.txt", "input list 'gone.txt': cannot be read"),
        (("models", 0, "inputDataTyp"), "FLOAT", "Did you mean 'inputDataType'?"),
        (("models", 0, "modelName"), "binary", "two are called 'binary'"),
        (("backends", 0, "backendPath"), "libQnnAbacus.so", "libQnnAbacus.so"),
        (("models", 1, "modelPath"), "model.onnx", "it does not begin as one does"),
    ],
)
def test_mistakes_in_the_file_are_refused_in_one_line_and_nothing_runs(folder, capsys, path, value, words) -> None:
    config = copy.deepcopy(CONFIG)
    place = config
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    capsys.readouterr()
    assert execute(config) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (folder / "output" / "thread_1").exists()


def test_an_error_of_one_thread_ends_the_others_and_is_reported(folder, capsys) -> None:
    config = copy.deepcopy(CONFIG)
    (folder / "taken").write_text("")
    config["models"][0]["outputPath"] = "taken"
    config["testCase"]["threads"][1].update(loopUnit="count", loop=1 << 40)
    capsys.readouterr()
    assert execute(config) == 2
    *warnings, line = capsys.readouterr().err.splitlines()
    assert "cannot be written" in line
    assert all(each.startswith("[WARN] ") for each in warnings)
