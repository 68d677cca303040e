"""Recordings of QNN's Saver and of ours compile against our header, and replay as their models compute."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support import oracles, stimuli, zoo
from support.qnn_export import export_saver, with_static_shapes
from support.suites import only
from support.waiting import run_in_threads, switched_often

import isthmus
from capi.qnn_calls import Client, at, in_handle
from isthmus.cabi.other_backends import SaverConfig, SaverFiles, SaverOption
from isthmus.cabi.types import Tensor
from isthmus.capi import saver
from isthmus.capi.installation import INCLUDE
from isthmus.capi.saver_program import SaverProgram
from isthmus.capi.serve import LibraryServer
from isthmus.errors import Code
from isthmus.graph import DataType, TensorType
from isthmus.qnn.recorder import composed_tensor

MODELS = ("kws_fp32", "kws_qdq", "mixed_ops", "silero_vad_16k_sequence")
"""Floats and bytes, several kinds of operations, an LSTM."""
SECONDS = 200


@pytest.fixture(scope="module")
def record(tmp_path_factory, libraries):
    """Makes recordings, each once: a model's ONNX file with fixed shapes, and the folder with its recording.

    By QNN's own Saver, or by ours.
    """
    made = {}

    def of(key, saver):
        try:
            source, model = zoo.path(key), zoo.MODELS[key]
        except zoo.Unavailable as reason:
            pytest.skip(str(reason))
        if (key, saver) not in made:
            folder = tmp_path_factory.mktemp(key)
            static = with_static_shapes(source, model.shapes, folder / "fixed.onnx")
            made[key, saver] = static, export_saver(static, folder, libraries if saver == "ours" else None)
        return made[key, saver]

    return of


def compiled(folder: Path, libraries: Path, backend: str, *options: str) -> Path:
    out = folder / f"{backend}{len(options)}"
    command = ["gcc", "-std=gnu11", "-O0", "-Wall", "-Wno-unused", f"-I{INCLUDE}", *options, "saver_output.c",
               f"-L{libraries}", f"-l{backend}", f"-Wl,-rpath,{libraries}", "-o", str(out)]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.parametrize("backend", ["QnnHtp", "QnnCpu"])
@pytest.mark.parametrize("key", only(("kws_qdq",), MODELS))
@pytest.mark.parametrize("saver", ["the vendor's", "ours"])
def test_a_recording_is_a_program_that_succeeds(record, saver, key, libraries, backend) -> None:
    """The program checks every call, and ends with the first error."""
    _, folder = record(key, saver)
    program = compiled(folder, libraries, backend)
    done = subprocess.run([program], cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@pytest.mark.parametrize("key", only(("kws_qdq",), MODELS))
@pytest.mark.parametrize("saver", ["the vendor's", "ours"])
def test_the_graph_of_a_recording_computes_what_its_model_does(record, saver, key, libraries, tmp_path) -> None:
    onnx, folder = record(key, saver)
    feeds = stimuli.stimuli(key)[-1]
    np.savez(tmp_path / "feeds.npz", **feeds)
    library = compiled(folder, libraries, "QnnCpu", "-shared", "-fPIC", "-Dmain=recording")
    script = Path(__file__).with_name("replay_saver.py")
    command = [sys.executable, script, library, tmp_path / "feeds.npz", tmp_path / "results.npz"]
    environment = {**os.environ, "PYTHONPATH": str(Path(isthmus.__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    got = np.load(tmp_path / "results.npz")
    for name, expected in oracles.onnx_answers(onnx, feeds).items():
        step = got.get(f"output step of {name}")
        allowed = 1e-4 * np.abs(expected).max() if step is None else 1.01 * step
        np.testing.assert_allclose(got[f"output {name}"].reshape(expected.shape), expected, atol=allowed, rtol=0)


@pytest.mark.parametrize("saver", ["the vendor's", "ours"])
def test_a_recording_that_is_not_right_ends_with_the_error(record, saver, libraries, tmp_path) -> None:
    """Shows that the programs of the other tests can fail."""
    _, folder = record("kws_fp32", saver)
    source = (folder / "saver_output.c").read_text()
    damaged = source.replace('"FullyConnected"', '"NoSuchOperation"')
    assert damaged != source
    (tmp_path / "saver_output.c").write_text(damaged)
    shutil.copy(folder / "params.bin", tmp_path)
    program = compiled(tmp_path, libraries, "QnnCpu")
    done = subprocess.run([program], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode != 0
    assert "NoSuchOperation" in done.stdout + done.stderr


# -- what goes wrong ---------------------------------------------------------------------------------------------------


class Recorded:
    """A server of Saver that no library has loaded, whose recording is in a folder."""

    def __init__(self, folder: str, data: bytes = b"params.bin", stamp: bool = False) -> None:
        self.server, self.kept = LibraryServer("QnnSaver"), []
        self.folder = Path(folder)
        where, files, stamped = map(
            SaverConfig,
            (SaverOption.OUTPUT_DIRECTORY, SaverOption.FILE_CONFIG, SaverOption.APPEND_TIMESTAMP),
        )
        texts = list(map(ctypes.create_string_buffer, (os.fsencode(folder), b"saver_output.c", data)))
        where.outputDirectory, *names = map(ctypes.addressof, texts)
        files.fileConfig, stamped.appendTimestamp = SaverFiles(*names), int(stamp)
        configs = (ctypes.c_void_p * 4)(*map(ctypes.addressof, (where, files, stamped)))
        self.initialized = self.server.QnnSaver_initialize(ctypes.addressof(configs))

    def make(self, name: str, *arguments: int) -> int:
        out = ctypes.c_uint64()
        assert getattr(self.server, name)(*arguments, ctypes.addressof(out)) == 0
        return out.value

    @property
    def program(self) -> SaverProgram:
        return saver._program(self.server)


def test_variables_of_live_objects_differ_after_one_is_freed(tmp_path: Path) -> None:
    recorded = Recorded(str(tmp_path))
    backend = recorded.make("backendCreate", 0, 0)
    contexts = [recorded.make("contextCreate", backend, 0, 0) for _ in range(2)]
    assert recorded.server.contextFree(contexts[0], 0) == 0
    recorded.make("contextCreate", backend, 0, 0)
    names = list(saver._recorder(recorded.server).variables.values())
    assert len(set(names)) == len(names) == 3
    recorded.server.leave()


def test_a_folder_that_is_gone_at_the_end_is_reported_and_other_objects_end(tmp_path: Path) -> None:
    recorded, ended = Recorded(str(tmp_path / "made")), []
    recorded.server.endings[-1] = lambda: ended.append(1)
    recorded.make("backendCreate", 0, 0)
    shutil.rmtree(tmp_path / "made")
    recorded.server.leave()
    assert ended == [1]
    assert "cannot be written" in (recorded.server.reason(Code.COMMON_SYSTEM) or "")


@pytest.mark.parametrize("folder", [".", "./", "/"])
@pytest.mark.parametrize("stamp", [False, True])
def test_a_folder_without_a_name_is_taken(folder: str, stamp: bool) -> None:
    assert Recorded(folder, stamp=stamp).initialized == 0


def test_bytes_that_were_not_written_are_written_with_the_next_tensor(tmp_path: Path) -> None:
    program = SaverProgram(tmp_path / "a.c", tmp_path / "a.bin", "x")
    file, program._data = program._data, Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError, match="No space"):
        program.store(b"bytes")
    program._data = file
    assert program.store(b"bytes") == "stored(0, 5)"
    program.close()
    assert (tmp_path / "a.bin").read_bytes() == b"bytes"


def maker() -> Client:
    """A client that only makes descriptions."""
    made = Client.__new__(Client)
    made._kept = []
    return made


def graphs_on(recorded: Recorded, *names: str) -> list[int]:
    """Graphs of one context."""
    context = recorded.make("contextCreate", recorded.make("backendCreate", 0, 0), 0, 0)
    texts = [ctypes.create_string_buffer(name.encode()) for name in names]
    return [recorded.make("graphCreate", context, ctypes.addressof(text), 0) for text in texts]


@pytest.mark.parametrize("names", [("one",), ("one", "two")])
def test_a_refused_call_leaves_what_other_threads_record(
    tmp_path: Path, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(str(tmp_path))
    server, graphs, answers = recorded.server, graphs_on(recorded, *names), []
    monkeypatch.setattr(server, "log", lambda *arguments: None)

    def create(graph: int, tensor_names: list[str]) -> None:
        client = maker()
        for name in tensor_names:
            data = np.frombuffer(name.encode().ljust(16), np.float32)
            tensor = client.tensor(name, TensorType.STATIC, DataType.FLOAT_32, (1, 4), data=data)
            answers.append((server.tensorCreateGraphTensor(graph, ctypes.addressof(tensor)), tensor.v1.id, graph))

    work = [(graphs[0], [f"t{number}" for number in range(200)]), (graphs[-1], ["same"] * 200)]
    with switched_often(1e-5):
        run_in_threads(lambda arguments: create(*arguments), work)
    created = [(graph, number) for error, number, graph in answers if not error]
    assert len(created) == len(set(created)) == 201
    server.leave()
    source = (tmp_path / "saver_output.c").read_text()
    assert source.count("CALL(tensorCreateGraphTensor,") == 201
    functions = re.findall(r"static void (call_\d+)\(", source)
    assert functions == [f"call_{number}" for number in range(len(functions))]
    # Each tensor has its own bytes.
    stored = (tmp_path / "params.bin").read_bytes()
    for name, place in re.findall(r'v1.name = "(t\d+|same)";.*?stored\((\d+), 16\)', source, re.DOTALL):
        assert stored[int(place) :][:16] == name.encode().ljust(16)


def test_a_node_on_constants_that_cannot_be_recorded_can_be_added_again(tmp_path: Path) -> None:
    """The output of such a node becomes a constant; a refusal takes that back."""
    recorded, client = Recorded(str(tmp_path)), maker()
    (graph,), server = graphs_on(recorded, "net"), recorded.server
    w = client.tensor("w", TensorType.STATIC, DataType.FLOAT_32, (1, 4), data=np.ones((1, 4), np.float32))
    h = client.tensor("h", TensorType.NATIVE, DataType.FLOAT_32, (4, 1))
    for each in (w, h):
        assert server.tensorCreateGraphTensor(graph, ctypes.addressof(each)) == 0
    node = client.operation("turn", "Transpose", [w], [h], {}, {"perm": np.array([1, 0], np.uint32)})
    program = recorded.program
    # The file of the tensors' bytes is full: the call fails, and succeeds when there is room again.
    file, program._data = program._data, Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    assert server.graphAddNode(graph, ctypes.addressof(node)) == Code.COMMON_SYSTEM
    program._data = file
    assert server.graphAddNode(graph, ctypes.addressof(node)) == 0
    server.leave()
    assert (tmp_path / "saver_output.c").read_text().count("CALL(graphAddNode,") == 1


EXECUTIONS = {
    "all is right": (["x"], ["y"], 0, 0, Code.SUCCESS),
    "no tensors": ([], [], 0, 0, Code.GRAPH_INVALID_ARGUMENT),
    "no outputs": (["x"], [], 0, 0, Code.GRAPH_INVALID_ARGUMENT),
    "exchanged": (["y"], ["x"], 0, 0, Code.GRAPH_INVALID_TENSOR),
    "given twice": (["x", "x"], ["y"], 0, 0, Code.GRAPH_INVALID_TENSOR),
    "an input as output": (["x"], ["y", "x"], 0, 0, Code.GRAPH_INVALID_TENSOR),
    "a short input": (["short x"], ["y"], 0, 0, Code.GRAPH_INVALID_TENSOR),
    "a short output": (["x"], ["short y"], 0, 0, Code.GRAPH_INVALID_TENSOR),
    "another type": (["int x"], ["y"], 0, 0, Code.GRAPH_INVALID_TENSOR),
    "a memory handle": (["handle x"], ["y"], 0, 0, Code.MEM_INVALID_HANDLE),
    "no such profile": (["x"], ["y"], 12345, 0, Code.GRAPH_INVALID_ARGUMENT),
    "no such signal": (["x"], ["y"], 0, 12345, Code.GRAPH_INVALID_ARGUMENT),
}
"""Inputs, outputs, profile, signal, and what every library answers."""


@pytest.mark.parametrize("library", ["QnnCpu", "QnnSaver"])
def test_executions_are_checked_as_on_other_backends(tmp_path: Path, library: str) -> None:
    recorded, client = Recorded(str(tmp_path)), maker()
    if library != "QnnSaver":
        recorded.server = LibraryServer(library)
    (graph,), server = graphs_on(recorded, "net"), recorded.server
    x, y = (client.tensor(name, kind, DataType.FLOAT_32, (1, 4)) for name, kind in (
        ("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ)))  # fmt: skip
    for each in (x, y):
        assert server.tensorCreateGraphTensor(graph, ctypes.addressof(each)) == 0
    assert server.graphAddNode(graph, ctypes.addressof(client.operation("relu", "Relu", [x], [y]))) == 0
    given, made = np.ones(4, np.float32), np.zeros(4, np.float32)
    tensors = {
        "x": at(x, given), "y": at(y, made), "short x": at(x, given[:1]), "short y": at(y, made[:1]),
        "int x": at(x, given), "handle x": in_handle(x, 16), "x without memory": x,
    }  # fmt: skip
    tensors["int x"].v1.dataType = int(DataType.INT_32)

    def answer(inputs: list[str], outputs: list[str], profile: int, signal: int) -> int:
        arrays = [(Tensor * max(len(names), 1))(*map(tensors.get, names)) for names in (inputs, outputs)]
        places = [ctypes.addressof(array) for array in arrays]
        result = server.graphExecute(graph, places[0], len(inputs), places[1], len(outputs), profile, signal)
        # A library that executes returns what repeats a successful execution.
        return 0 if callable(result) else result

    assert answer(["x"], ["y"], 0, 0) == Code.GRAPH_NOT_FINALIZED
    assert server.graphFinalize(graph, 0, 0) == 0
    found = {case: answer(*arguments) for case, (*arguments, _) in EXECUTIONS.items()}
    assert found == {case: code for case, (*_, code) in EXECUTIONS.items()}
    if library == "QnnSaver":
        # As on HTP: the graph has no memory of its own for its inputs.
        assert answer(["x without memory"], ["y"], 0, 0) == Code.GRAPH_INVALID_TENSOR
    server.leave()
    if library == "QnnSaver":
        assert (tmp_path / "saver_output.c").read_text().count("CALL(graphExecute,") == 1
        assert not made.any()


def test_calls_that_cannot_be_recorded_can_be_repeated(tmp_path: Path) -> None:
    recorded, client = Recorded(str(tmp_path / "made")), maker()
    (graph,), server = graphs_on(recorded, "net"), recorded.server
    x, w, y = (client.tensor(name, kind, DataType.FLOAT_32, (1, 4), data=data) for name, kind, data in (
        ("x", TensorType.APP_WRITE, None), ("w", TensorType.STATIC, np.ones((1, 4), np.float32)),
        ("y", TensorType.APP_READ, None)))  # fmt: skip
    assert server.tensorCreateGraphTensor(graph, ctypes.addressof(x)) == 0
    program = recorded.program
    # The file of the tensors' bytes is full: the call fails, and succeeds when there is room again.
    file, program._data = program._data, Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    assert server.tensorCreateGraphTensor(graph, ctypes.addressof(w)) == Code.COMMON_SYSTEM
    program._data = file
    for each in (w, y):
        assert server.tensorCreateGraphTensor(graph, ctypes.addressof(each)) == 0
    node = client.operation("add", "ElementWiseAdd", [x, w], [y])
    assert server.graphAddNode(graph, ctypes.addressof(node)) == 0
    # The folder is missing: the same for finalizing.
    (tmp_path / "made").rename(tmp_path / "away")
    assert server.graphFinalize(graph, 0, 0) == Code.COMMON_SYSTEM
    (tmp_path / "away").rename(tmp_path / "made")
    assert server.graphFinalize(graph, 0, 0) == 0
    source = (tmp_path / "made" / "saver_output.c").read_text()
    assert [source.count(f"CALL({name},") for name in ("tensorCreateGraphTensor", "graphFinalize")] == [3, 1]
    # An input that claims 4 GiB is refused before its bytes are read.
    wild, made = at(x, np.ones(4, np.float32)), at(y, np.ones(4, np.float32))
    wild.v1.clientBuf.dataSize = (1 << 32) - 1
    tracemalloc.start()
    places = ctypes.addressof(wild), 1, ctypes.addressof(made), 1
    assert server.graphExecute(graph, *places, 0, 0) == Code.COMMON_INVALID_ARGUMENT
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()
    server.leave()


def test_the_name_of_the_data_file_is_written_as_c_writes_it(tmp_path: Path) -> None:
    program = SaverProgram(tmp_path / "a.c", tmp_path / 'a"b*\\.bin', "x")
    program.close()
    source = (tmp_path / "a.c").read_text()
    assert source.count('"a\\042b*\\134.bin"') == 2
    assert 'a"b' not in source


def test_the_bits_of_the_factors_of_blocks_are_recorded(tmp_path: Path) -> None:
    client = maker()
    params = client.quantize_expansion(0, [1.0, 1.0], np.ones((2, 2), np.uint8))
    params.blockwiseExpansion.contents.blockScaleBitwidth = 8
    weights = client.tensor("w", TensorType.STATIC, DataType.SFIXED_POINT_8, (2, 4), params, np.ones((2, 4), np.int8))
    program = SaverProgram(tmp_path / "a.c", tmp_path / "a.bin", "x")
    assert any(line.endswith("blockScaleBitwidth = 8;") for line in program.tensor("t", composed_tensor(weights)))
    program.close()
