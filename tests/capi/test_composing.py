"""Libraries on which graphs are composed and not executed: libQnnIr.so, libQnnSaver.so; libQnnDsp.so is not there."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.dlc_graphs import BIAS, ONES, PADS, WEIGHTS, convolved
from support.waiting import run_in_threads

import isthmus
from capi.qnn_calls import Client, at, doubling, opened
from isthmus import Session
from isthmus.cabi import objects, types
from isthmus.cabi.other_backends import IrGraphConfig, IrSerialization
from isthmus.capi import composing
from isthmus.capi.installation import INCLUDE
from isthmus.errors import Code
from isthmus.frontends import dlc
from isthmus.frontends.dlc import writing
from isthmus.graph import DataType, TensorType

F32, SECONDS = DataType.FLOAT_32, 200


@pytest.fixture
def ir(libraries: Path) -> Client:
    return Client(libraries / "libQnnIr.so")


def serialized(client: Client, path: bytes | None, option: int = 1, kind: int = 1) -> Any:
    """Configs of a graph that name its DLC."""
    text = None if path is None else ctypes.addressof(client.keep(ctypes.create_string_buffer(path)))
    custom = client.keep(IrGraphConfig(option))
    custom.serializationOption = IrSerialization(kind, text)
    config = client.keep(objects.GraphConfig(objects.GraphOption.CUSTOM))
    config.customConfig = ctypes.addressof(custom)
    return client.keep((ctypes.POINTER(objects.GraphConfig) * 2)(ctypes.pointer(config)))


def convolution(client: Client, context: int, configs: Any = None, name: bytes = b"net") -> tuple[int, list[Any]]:
    """A graph of a convolution and a ReLU, not finalized, with its inputs and outputs."""
    graph = client.make("graphCreate", context, name, configs)
    x, w, b, c, y = tensors = [
        client.tensor("in/x:0", TensorType.APP_WRITE, F32, (1, 6, 6, 2)),
        client.tensor("w", TensorType.STATIC, F32, WEIGHTS.shape, data=WEIGHTS),
        client.tensor("b", TensorType.STATIC, F32, BIAS.shape, data=BIAS),
        client.tensor("c", TensorType.NATIVE, F32, (1, 6, 6, 4)),
        client.tensor('y "quoted" ??/ é', TensorType.APP_READ, F32, (1, 6, 6, 4)),
    ]
    for tensor in tensors:
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    group = {"group": (int(DataType.UINT_32), 1)}
    conv = client.operation("conv", "Conv2d", [x, w, b], [c], group, {"stride": ONES, "pad_amount": PADS})
    client.do("graphAddNode", graph, conv)
    client.do("graphAddNode", graph, client.operation("relu", "Relu", [c], [y]))
    return graph, [x, y]


def test_a_graph_that_is_finalized_becomes_a_dlc(ir: Client, tmp_path: Path) -> None:
    backend, context = opened(ir)
    file = tmp_path / "made.dlc"
    graph, _ = convolution(ir, context, serialized(ir, os.fsencode(file)))
    assert not file.exists()
    ir.do("graphFinalize", graph, None, None)
    contents = dlc.read(file)
    assert [each.type for each in contents.graphs[0].nodes] == ["Conv2d", "Relu"]
    assert contents.graphs[0].nodes[0].kinds["group"] == DataType.UINT_32
    given = np.random.default_rng(7).standard_normal((1, 6, 6, 2)).astype(np.float32)
    with Session(file) as session:
        (found,) = session.run({"in/x:0": given}).values()
    np.testing.assert_allclose(found, convolved(given), rtol=1e-5, atol=1e-5)
    # It is finalized: nothing can be added.
    assert ir.graphFinalize(graph, None, None) == Code.GRAPH_FINALIZED
    late = ir.tensor("late", TensorType.NATIVE, F32, (1,))
    assert ir.tensorCreateGraphTensor(graph, ctypes.byref(late)) == Code.GRAPH_FINALIZED
    ir.do("backendFree", backend)


def test_graphs_of_a_context_may_share_a_dlc_and_one_without_a_path_is_in_the_working_folder(
    ir: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend, context = opened(ir)
    for name in (b"one", b"two"):
        graph, _ = convolution(ir, context, serialized(ir, b"both.dlc"), name)
        ir.do("graphFinalize", graph, None, None)
    doubling(ir, context, "alone")
    graph, _ = convolution(ir, context, None, b"moved")
    ir.do("graphSetConfig", graph, serialized(ir, b"elsewhere.dlc"))
    ir.do("graphFinalize", graph, None, None)
    found = {file.name: [graph.name for graph in dlc.read(file).graphs] for file in tmp_path.iterdir()}
    assert found == {"both.dlc": ["one", "two"], "alone.dlc": ["alone"], "elsewhere.dlc": ["moved"]}
    ir.do("backendFree", backend)


def test_a_dlc_that_cannot_be_written_is_refused_and_can_be_written_elsewhere(ir: Client, tmp_path: Path) -> None:
    backend, context = opened(ir)
    graph, _ = convolution(ir, context, serialized(ir, os.fsencode(tmp_path / "no" / "made.dlc")))
    assert ir.graphFinalize(graph, None, None) == Code.GRAPH_FINALIZE_FAILED
    assert "cannot be written" in ir.reason(Code.GRAPH_FINALIZE_FAILED)
    ir.do("graphSetConfig", graph, serialized(ir, os.fsencode(tmp_path / "made.dlc")))
    ir.do("graphFinalize", graph, None, None)
    empty = ir.make("graphCreate", context, b"empty", serialized(ir, b""))
    assert ir.graphFinalize(empty, None, None) == Code.GRAPH_FINALIZE_FAILED
    ir.do("backendFree", backend)
    assert [file.name for file in tmp_path.iterdir()] == ["made.dlc"]


@pytest.mark.parametrize(
    ("field", "value"), [("name", None), ("name", b""), ("type", 3), ("memType", types.TensorMemType.UNDEFINED)]
)
@pytest.mark.parametrize("library", ["QnnCpu", "QnnIr", "QnnSaver"])
def test_parameters_are_taken_however_their_tensors_are_described(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, field: str, value: Any
) -> None:
    """A tensor of a parameter needs no name, no type and no memory type: it is a constant of its node."""
    monkeypatch.chdir(tmp_path)
    client = Client(libraries / f"lib{library}.so")
    backend, context = opened(client)
    graph = client.make("graphCreate", context, b"net", None)
    x, taken, y = tensors = [
        client.tensor("x", TensorType.APP_WRITE, F32, (1, 3, 4, 1)),
        client.tensor("pool.stride.1", TensorType.NATIVE, F32, (1, 3, 4, 1)),
        client.tensor("y", TensorType.APP_READ, F32, (1, 2, 2, 1)),
    ]
    for tensor in tensors:
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    client.do("graphAddNode", graph, client.operation("relu", "Relu", [x], [taken]))
    sizes = {"filter_size": np.array([2, 2], np.uint32), "stride": np.array([1, 2], np.uint32)}
    sizes["pad_amount"] = np.zeros((2, 2), np.uint32)
    pool = client.operation("pool", "PoolMax2d", [taken], [y], {}, sizes)
    for index in range(3):
        setattr(pool.v1.params[index].tensorParam.v1, field, value)
    client.do("graphAddNode", graph, pool)
    client.do("graphFinalize", graph, None, None)
    client.do("backendFree", backend)
    if library == "QnnIr":
        params = dlc.read(tmp_path / "net.dlc").graphs[0].nodes[1].params
        names = {each.name for each in params.values()}
        assert len({*names, "x", "y", "pool.stride.1"}) == 6
        given = np.arange(12, dtype=np.float32).reshape(1, 3, 4, 1)
        with Session(tmp_path / "net.dlc") as session:
            (found,) = session.run({"x": given}).values()
        assert found.ravel().tolist() == [5, 7, 9, 11]


def test_a_call_that_ir_cannot_record_can_be_repeated(ir: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, context = opened(ir)
    graph = ir.make("graphCreate", context, b"net", None)
    x, y = ir.tensor("x", TensorType.APP_WRITE, F32, (1, 4)), ir.tensor("y", TensorType.APP_READ, F32, (1, 4))

    def fail(*arguments: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(composing, "composed_tensor", fail)
        assert ir.tensorCreateGraphTensor(graph, ctypes.byref(x)) == Code.COMMON_MEM_ALLOC
    for tensor in (x, y):
        ir.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    relu = ir.operation("relu", "Relu", [x], [y])
    with monkeypatch.context() as patch:
        patch.setattr(composing.GraphRecording, "describe_node", fail)
        assert ir.graphAddNode(graph, relu) == Code.COMMON_MEM_ALLOC
    ir.do("graphAddNode", graph, relu)
    ir.do("backendFree", backend)


def test_graphs_that_threads_finalize_at_once_are_all_in_their_dlc(
    ir: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, context = opened(ir)
    path = os.fsencode(tmp_path / "both.dlc")
    graphs = [convolution(ir, context, serialized(ir, path), name)[0] for name in (b"one", b"two")]
    both, write = threading.Barrier(2), writing.dlc

    def wait_and_write(*arguments: Any) -> bytes:
        # Threads that are here at once do not know of each other's graph.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1)
        return write(*arguments)

    monkeypatch.setattr(writing, "dlc", wait_and_write)
    run_in_threads(lambda graph: ir.do("graphFinalize", graph, None, None), graphs)
    assert {graph.name for graph in dlc.read(tmp_path / "both.dlc").graphs} == {"one", "two"}
    ir.do("backendFree", backend)


def test_wrong_configs_of_ir_are_refused(ir: Client) -> None:
    backend, context = opened(ir)
    out = ctypes.c_void_p(1)
    wild = serialized(ir, b"x")
    wild[0].contents.customConfig = 16
    for configs in (serialized(ir, b"x", 2), serialized(ir, b"x", 1, 2), serialized(ir, None), wild):
        assert ir.graphCreate(context, b"net", configs, ctypes.byref(out)) == Code.GRAPH_INVALID_ARGUMENT
    ir.make("graphCreate", context, b"net", None)
    ir.do("backendFree", backend)


@pytest.mark.parametrize(("library", "code"), [("Ir", Code.COMMON_NOT_SUPPORTED), ("Saver", Code.SAVER_DUMMY_RETVALUE)])
def test_ir_and_saver_neither_prepare_nor_execute(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, code: Code
) -> None:
    monkeypatch.chdir(tmp_path)
    client = Client(libraries / f"libQnn{library}.so")
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    size = ctypes.c_uint64()
    assert client.contextGetBinarySize(context, ctypes.byref(size)) == code
    assert client.reason(code)
    binary = ctypes.create_string_buffer(64)
    out = ctypes.c_void_p()
    assert client.contextCreateFromBinary(backend, None, None, binary, 64, ctypes.byref(out), None) == code
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    executed = client.execute(graph, [at(x, given)], [at(y, made)])
    assert executed == (Code.SUCCESS if library == "Saver" else code)
    assert not made.any()
    # A node that no backend takes is refused there as well.
    wrong = client.operation("n", "Relu", [x], [client.tensor("z", TensorType.NATIVE, F32, (5,))])
    assert client.backendValidateOpConfig(backend, wrong) == Code.OP_PACKAGE_VALIDATION_FAILURE
    client.do("backendFree", backend)


def test_there_is_no_dsp(libraries: Path) -> None:
    client = Client(libraries / "libQnnDsp.so")
    for name, arguments in (
        ("backendCreate", (None, None)), ("deviceCreate", (None, None)), ("deviceGetPlatformInfo", (None,)),
    ):  # fmt: skip
        out = ctypes.c_void_p(1)
        target: Any = ctypes.cast(ctypes.byref(out), ctypes.POINTER(ctypes.POINTER(objects.PlatformInfo)))
        target = target if name == "deviceGetPlatformInfo" else ctypes.byref(out)
        assert getattr(client, name)(*arguments, target) == Code.COMMON_PLATFORM_NOT_SUPPORTED
        assert not out.value
    assert "libQnnHtp.so" in client.reason(Code.COMMON_PLATFORM_NOT_SUPPORTED)


def test_there_are_no_backend_extensions_of_htp(libraries: Path, capfd: pytest.CaptureFixture[str]) -> None:
    library = ctypes.CDLL(str(libraries / "libQnnHtpNetRunExtensions.so"))
    library.createBackendInterface.restype = ctypes.c_void_p
    assert library.createBackendInterface() is None
    assert "there are no backend extensions here" in capfd.readouterr().err
    library.destroyBackendInterface(None)


# -- recordings --------------------------------------------------------------------------------------------------------

RECORD = """
import ctypes, sys
from pathlib import Path
sys.path[:0] = PATHS
import numpy as np
from capi.qnn_calls import Client, at, opened
from capi.test_composing import convolution
from isthmus.cabi.other_backends import SaverConfig, SaverOption
client = Client(Path(LIBRARY))
initialize = ctypes.CDLL(LIBRARY).QnnSaver_initialize
initialize.argtypes, initialize.restype = [ctypes.c_void_p], ctypes.c_uint64
folder, path = SaverConfig(SaverOption.OUTPUT_DIRECTORY), ctypes.create_string_buffer(b"made/here")
folder.outputDirectory = ctypes.addressof(path)
configs = (ctypes.POINTER(SaverConfig) * 2)(ctypes.pointer(folder))
assert initialize(configs) == 0
assert initialize(configs) == 4951
backend, context = opened(client)
device = client.make("deviceCreate", None, None)
graph, (x, y) = convolution(client, context)
client.do("graphFinalize", graph, None, None)
given, made = np.full((1, 6, 6, 2), 0.25, np.float32), np.zeros((1, 6, 6, 4), np.float32)
assert client.execute(graph, [at(x, given)], [at(y, made)]) == 0
if ENDS:
    client.do("contextFree", context, None)
    client.do("deviceFree", device)
    client.do("backendFree", backend)
"""


@pytest.mark.parametrize("ends", [True, False])
def test_a_recording_is_a_program_that_makes_the_same_calls(libraries: Path, tmp_path: Path, ends: bool) -> None:
    here = Path(__file__).parent
    paths = [str(here.parent), str(Path(isthmus.__file__).parents[1])]
    code = RECORD.replace("PATHS", repr(paths)).replace("LIBRARY", repr(str(libraries / "libQnnSaver.so")))
    subprocess.run([sys.executable, "-c", code.replace("ENDS", str(ends))], cwd=tmp_path, check=True, timeout=SECONDS)
    folder = tmp_path / "made" / "here"
    assert {file.name for file in folder.iterdir()} == {"saver_output.c", "params.bin"}
    program = folder / "program"
    subprocess.run(
        ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}/QNN", "saver_output.c", f"-L{libraries}",
         "-lQnnCpu", f"-Wl,-rpath,{libraries}", "-o", program], cwd=folder, check=True, timeout=SECONDS,
    )  # fmt: skip
    report = tmp_path / "report.json"
    environment = {**os.environ, "ISTHMUS_QNN_VALIDATE": "1", "ISTHMUS_QNN_REPORT": str(report)}
    done = subprocess.run([program], cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    reported = json.loads(report.read_text())
    assert not reported["mistakes"]
    counts = {name: call["count"] for name, call in reported["calls"].items()}
    expected = {
        "backendCreate": 1, "contextCreate": 1, "deviceCreate": 1, "graphCreate": 1, "tensorCreateGraphTensor": 5,
        "graphAddNode": 2, "graphFinalize": 1, "graphExecute": 1,
    }  # fmt: skip
    assert counts == expected | ({"contextFree": 1, "deviceFree": 1, "backendFree": 1} if ends else {})
