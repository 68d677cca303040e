"""The system library's functions for DLC files: created, described, composed on any table, freed."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref
from ctypes import (
    POINTER,
    addressof,
    byref,
    c_float,
    c_int32,
    c_uint32,
    c_uint64,
    c_void_p,
    cast,
    create_string_buffer,
    string_at,
)
from pathlib import Path

import numpy as np
import pytest
from support import dlc_graphs, dlc_write
from support.processes import answer
from support.recurrent_states import LAYERS, Recurrent, check
from support.waiting import run_in_threads

from capi.host_programs import Build, execute
from capi.qnn_calls import Client, at
from capi.qnn_calls import opened as made
from isthmus import Session
from isthmus.cabi import system
from isthmus.capi.dlc import Dlc
from isthmus.capi.serve import LibraryServer
from isthmus.errors import Code
from isthmus.frontends import dlc
from isthmus.frontends.composed.entries import GraphEntry
from isthmus.frontends.dlc.operations import translate
from isthmus.graph import DataType, TensorType
from isthmus.qnn.recorder import Recorder

INVALID_HANDLE = 30000


@pytest.fixture
def reader(libraries: Path) -> Client:
    """A client of the system library."""
    return Client(libraries / "libQnnSystem.so")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A DLC with two graphs."""
    path = tmp_path / "two.dlc"
    path.write_bytes(dlc_write.dlc([dlc_graphs.convolution("first"), dlc_graphs.convolution("second")]))
    return path


def opened(reader: Client, path: Path) -> int:
    out = c_void_p()
    assert reader.systemDlcCreateFromFile(None, str(path).encode(), byref(out)) == 0
    assert out.value
    return out.value


def composed(reader: Client, handle: int, backend: int, context: int, interface: object, version: int = 1) -> tuple:
    graphs, count = POINTER(system.GraphInfo)(), c_uint32()
    error = reader.systemDlcComposeGraphs(
        handle, None, 0, backend, context, interface, version, byref(graphs), byref(count)
    )
    return error, [graphs[index] for index in range(count.value)]


def test_graphs_of_a_dlc_are_composed_finalized_and_executed(reader: Client, client: Client, file: Path) -> None:
    handle = opened(reader, file)
    backend = client.make("backendCreate", None, None)
    context = client.make("contextCreate", backend, None, None)
    error, graphs = composed(reader, handle, backend, context, client.provider, version=3)
    assert error == 0
    assert [(info.version, info.graphInfoV3.graphName) for info in graphs] == [(3, b"first"), (3, b"second")]
    # What was composed needs the file no more.
    assert reader.systemDlcFree(handle) == 0
    x = np.random.default_rng(1).standard_normal((1, 6, 6, 2)).astype(np.float32)
    for info in graphs:
        reported = info.graphInfoV3
        graph = client.make("graphRetrieve", context, reported.graphName)
        client.do("graphFinalize", graph, None, None)
        y = np.zeros((1, 6, 6, 4), np.float32)
        for tensor, array in ((reported.graphInputs[0], x), (reported.graphOutputs[0], y)):
            tensor.v1.clientBuf.data, tensor.v1.clientBuf.dataSize = array.ctypes.data, array.nbytes
            assert tuple(tensor.v1.dimensions[: tensor.v1.rank]) == array.shape
        assert (reported.graphInputs[0].v1.name, reported.graphOutputs[0].v1.name) == (b"in_x_0", b"y")
        client.do("graphExecute", graph, reported.graphInputs, 1, reported.graphOutputs, 1, None, None)
        np.testing.assert_allclose(y, dlc_graphs.convolved(x), rtol=1e-5, atol=1e-6)
    client.do("backendFree", backend)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.op)
def test_a_recurrent_layer_of_a_dlc_keeps_its_states(
    reader: Client, client: Client, tmp_path: Path, layer: Recurrent
) -> None:
    path = tmp_path / "layer.dlc"
    path.write_bytes(dlc_write.dlc([layer.entry()]))
    handle = opened(reader, path)
    backend, context = made(client)
    error, [info] = composed(reader, handle, backend, context, client.provider, version=3)
    assert error == 0
    assert reader.systemDlcFree(handle) == 0
    reported = info.graphInfoV3
    assert (reported.numGraphInputs, reported.numGraphOutputs) == (1, 1)
    graph = client.make("graphRetrieve", context, reported.graphName)
    client.do("graphFinalize", graph, None, None)
    results = []
    for frame in layer.frames:
        results.append(np.zeros(layer.expected.shape[1:], np.float32))
        tensors = [at(reported.graphInputs[0], frame)], [at(reported.graphOutputs[0], results[-1])]
        assert client.execute(graph, *tensors) == 0
    check(layer, results)
    client.do("backendFree", backend)


def written(tmp_path: Path) -> list[Path]:
    """DLCs with what a file can hold: encodings of each form, packed weights, scalars of each type."""
    stored = np.array([[1, -2, 3], [4, -5, 6]], np.int8)
    fixed = {"dtype": DataType.SFIXED_POINT_8}
    weights = [
        dlc_write.static("w", stored, scale=0.5, **fixed),
        dlc_write.static("w", stored, scale=(0.5, 0.25), axis=0, **fixed),
        dlc_write.static("w", stored, scale=0.5, bits=4, **fixed),
        dlc_write.static("w", stored, scale=(0.5, 0.25), axis=0, bits=4, **fixed),
    ]
    graphs = [dlc_graphs.convolution(), *map(dlc_graphs.fully_connected, weights)]
    files = []
    for number, graph in enumerate(graphs):
        files.append(tmp_path / f"{number}.dlc")
        files[-1].write_bytes(dlc_write.dlc([graph]))
    return files


def test_what_is_composed_on_another_table_is_what_the_file_holds(reader: Client, tmp_path: Path) -> None:
    for path in written(tmp_path):
        recorder = Recorder()
        handle = opened(reader, path)
        error, _ = composed(reader, handle, 0x10, 0x20, recorder.interface)
        assert (error, recorder.problem) == (0, None)
        (theirs,), (mine,) = recorder.graphs, dlc.read(path).graphs
        mine = translate(mine, clean_names=True)
        assert [(n.name, n.type, n.inputs, n.outputs) for n in theirs.nodes] == [
            (n.name, n.type, n.inputs, n.outputs) for n in mine.nodes
        ]
        named = {tensor.name: tensor for tensor in theirs.tensors}
        for tensor in mine.tensors:
            reported = named[tensor.name]
            assert (reported.type, reported.dtype, reported.dims) == (tensor.type, tensor.dtype, tensor.dims)
            assert bytes(reported.data or b"") == bytes(tensor.data or b"")
            if tensor.encoding is not None and reported.encoding is not None:
                np.testing.assert_array_equal(reported.encoding.scales, tensor.encoding.scales)
                assert (reported.encoding.kind, reported.encoding.axis) == (tensor.encoding.kind, tensor.encoding.axis)
            else:
                assert reported.encoding is tensor.encoding is None
        for ours, node in zip(mine.nodes, theirs.nodes, strict=True):
            for name, value in ours.params.items():
                found = node.params[name]
                same = found.data == value.data if hasattr(value, "data") else found == value
                assert same, (node.name, name)
        assert reader.systemDlcFree(handle) == 0


@pytest.mark.parametrize("said", [{}, {"time_major": False}, {"time_major": True}], ids=["not said", "batch", "time"])
def test_a_recurrent_layer_has_the_order_that_the_file_says(
    reader: Client, client: Client, tmp_path: Path, said: dict[str, bool]
) -> None:
    rng = np.random.default_rng(4)
    batch, time, features, units = 2, 4, 3, 2
    steps = (time, batch) if said.get("time_major") else (batch, time)
    held = {f"{kind}{i}": rng.standard_normal((units, *more)).astype(np.float32)
            for kind, more in (("w", (features,)), ("r", (units,)), ("b", ())) for i in range(4)}  # fmt: skip
    start = {name: np.zeros((batch, units), np.float32) for name in ("h", "c")}
    order = ["x", "w0", "w1", "w2", "r0", "r1", "r2", "b0", "b1", "b2", "h", "c", *["none"] * 4, "w3", "r3",
             *["none"] * 3, "b3", "none", "none"]  # fmt: skip
    kinds = dlc_graphs.WRITE, dlc_graphs.READ
    graph = GraphEntry(
        "net",
        (
            dlc_write.tensor("x", kinds[0], (*steps, features)),
            *(dlc_write.static(name, array) for name, array in {**held, **start}.items()),
            dlc_write.tensor("none", TensorType.NULL, (0,)),
            dlc_write.tensor("y", kinds[1], (*steps, units)),
            dlc_write.tensor("cell", kinds[1], (batch, units)),
            dlc_write.tensor("last", kinds[1], (batch, units)),
        ),
        (dlc_write.node("lstm", "Lstm", order, ["y", "cell", "last"], {**said, "hidden_size": units}),),
    )
    path = tmp_path / "lstm.dlc"
    path.write_bytes(dlc_write.dlc([graph]))
    x = rng.standard_normal((*steps, features)).astype(np.float32)
    with Session(path) as session:
        expected = session.run({"x": x})
    backend = client.make("backendCreate", None, None)
    context = client.make("contextCreate", backend, None, None)
    error, (info,) = composed(reader, opened(reader, path), backend, context, client.provider)
    assert error == 0
    reported, got = info.graphInfoV3, {name: np.zeros_like(array) for name, array in expected.items()}
    handle = client.make("graphRetrieve", context, b"net")
    client.do("graphFinalize", handle, None, None)
    outputs = [(each, got[each.v1.name.decode()]) for each in reported.graphOutputs[:3]]
    for tensor, array in [(reported.graphInputs[0], x), *outputs]:
        tensor.v1.clientBuf.data, tensor.v1.clientBuf.dataSize = array.ctypes.data, array.nbytes
    client.do("graphExecute", handle, reported.graphInputs, 1, reported.graphOutputs, 3, None, None)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6)
    client.do("backendFree", backend)


VENDOR = """
import ctypes, json, sys
from ctypes import POINTER, byref, c_char_p, c_uint32, c_void_p
from isthmus.cabi.tables import function, system_providers
(provider,) = system_providers(ctypes.CDLL(sys.argv[1]))
call = lambda name, *a: function(provider.table, name)(*a)
found = []
for file in sys.argv[2:]:
    handle, graphs, count = c_void_p(), POINTER(c_void_p)(), c_uint32()
    assert call("systemDlcCreateFromFile", None, file.encode(), byref(handle)) == 0
    assert call("systemDlcGetComposableGraphInfoHandles", handle, byref(graphs), byref(count)) == 0
    for graph in graphs[: count.value]:
        name, n = c_char_p(), c_uint32()
        assert call("systemDlcGetComposableGraphInfoGraphName", graph, byref(name)) == 0
        facts = [name.value.decode()]
        for side in ("Input", "Output"):
            assert call(f"systemDlcGetComposableGraphInfoNum{side}Tensors", graph, byref(n)) == 0
            for index in range(n.value):
                tensor, text, kind, dtype, rank = c_void_p(), c_char_p(), c_uint32(), c_uint32(), c_uint32()
                assert call(f"systemDlcGetGraphInfo{side}TensorInfo", graph, index, byref(tensor)) == 0
                assert call("systemDlcGetTensorInfoName", tensor, byref(text)) == 0
                assert call("systemDlcGetTensorInfoType", tensor, byref(kind)) == 0
                assert call("systemDlcGetTensorInfoDataType", tensor, byref(dtype)) == 0
                assert call("systemDlcGetTensorInfoRank", tensor, byref(rank)) == 0
                dims = (c_uint32 * rank.value)()
                assert call("systemDlcGetTensorInfoDimensions", tensor, dims) == 0
                facts.append([text.value.decode(), kind.value, dtype.value, list(dims)])
        found.append(facts)
    for kind in (1, 2, 3, 4, 7):
        records = POINTER(c_void_p)()
        error = call("systemDlcGetRecordsByType", handle, kind, 0, byref(records), byref(count))
        found.append([kind, count.value if not error else 0])
print(json.dumps(found), flush=True)
"""


def test_a_file_is_described_as_the_vendors_library_describes_it(libraries: Path, tmp_path: Path) -> None:
    package = pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    folder = Path(package.get_library_path()).parent
    files = [str(path) for path in written(tmp_path)]
    answers = []
    for library in (folder / "libQnnSystem.so", libraries / "libQnnSystem.so"):
        command = [sys.executable, "-c", VENDOR, library, *files]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        answers.append(answer(done.stdout))
    assert answers[1] == answers[0]


def test_every_field_of_an_encoding_can_be_read(reader: Client, tmp_path: Path) -> None:
    path = tmp_path / "fixed.dlc"
    stored = np.array([[1, -2, 3], [4, -5, 6]], np.int8)
    weights = dlc_write.static("w", stored, dtype=DataType.SFIXED_POINT_8, scale=0.5)
    path.write_bytes(dlc_write.dlc([dlc_graphs.fully_connected(weights)]))
    handle = opened(reader, path)
    graphs, count = POINTER(c_void_p)(), c_uint32()
    assert reader.systemDlcGetComposableGraphInfoHandles(handle, byref(graphs), byref(count)) == 0
    tensor, quantization = c_void_p(), c_void_p()
    scale, offset, kind = c_float(), c_int32(), c_uint32()
    assert reader.systemDlcGetGraphInfoInputTensorInfo(graphs[0], 0, byref(tensor)) == 0
    assert reader.systemDlcGetTensorInfoQuantParams(tensor, byref(quantization)) == 0
    assert reader.systemDlcGetQuantParamsEncoding(quantization, byref(kind)) == 0
    assert reader.systemDlcGetQuantParamsScaleOffsetScale(quantization, byref(scale)) == 0
    assert reader.systemDlcGetQuantParamsScaleOffsetOffset(quantization, byref(offset)) == 0
    assert (kind.value, round(scale.value, 6), offset.value) == (0, 0.1, -3)
    wrong = reader.systemDlcGetQuantParamsAxisScaleOffsetScaleAtIndex(quantization, 0, byref(scale))
    assert wrong == Code.COMMON_INVALID_ARGUMENT
    assert reader.systemDlcFree(handle) == 0
    # The description ends with its DLC.
    assert reader.systemDlcGetTensorInfoQuantParams(tensor, byref(quantization)) == INVALID_HANDLE


def held(reader: Client, handle: int) -> bytes:
    """The bytes of a DLC as its own size says."""
    size, written = c_uint64(), c_uint64()
    assert reader.systemDlcGetBinarySize(handle, byref(size)) == 0
    buffer = create_string_buffer(size.value)
    assert reader.systemDlcGetBinary(handle, buffer, size.value, byref(written)) == 0
    assert written.value == size.value
    return buffer.raw


def test_a_dlc_with_a_folder_to_unpack_into_is_the_same_and_leaves_the_folder_alone(
    reader: Client, file: Path, tmp_path: Path
) -> None:
    folder, out, content = tmp_path / "folder", c_void_p(), file.read_bytes()
    folder.mkdir()
    for name in (str(folder).encode(), None):
        call = reader.systemDlcCreateFromFileWithDestinationDir(None, str(file).encode(), name, byref(out))
        assert (call, held(reader, out.value)) == (0, content)
        assert reader.systemDlcFree(out) == 0
        call = reader.systemDlcCreateFromBinaryWithDestinationDir(None, content, len(content), name, byref(out))
        assert (call, held(reader, out.value)) == (0, content)
        assert reader.systemDlcFree(out) == 0
    assert list(folder.iterdir()) == []


def test_a_buffer_too_small_for_a_dlc_is_refused_and_stays_as_it_was(reader: Client, file: Path) -> None:
    handle, content = opened(reader, file), file.read_bytes()
    written, buffer = c_uint64(7), create_string_buffer(b"x" * len(content))
    short = reader.systemDlcGetBinary(handle, buffer, len(content) - 1, byref(written))
    assert (short, written.value, set(buffer.raw[:-1])) == (Code.COMMON_INVALID_ARGUMENT, 0, {ord("x")})
    none = reader.systemDlcCreateFromBinary(None, content, 0, byref(c_void_p()))
    assert none == Code.COMMON_INVALID_ARGUMENT
    assert reader.systemDlcFree(handle) == 0


def test_records_are_found_by_name_and_by_kind(reader: Client, file: Path) -> None:
    handle = opened(reader, file)
    entries = {name: bytes(data) for name, data in dlc.records(memoryview(file.read_bytes()), "file").items()}
    assert list(entries) == ["model", "model.params", "model.params.bin"]

    def content(record: int) -> bytes:
        size, place, mapped = c_uint64(), c_void_p(), c_uint64()
        assert reader.systemDlcGetRecordDataSize(record, byref(size)) == 0
        assert reader.systemDlcReadRecordDataMemoryMapped(record, byref(place), byref(mapped)) == 0
        assert size.value == mapped.value
        return string_at(place, size.value)

    by_name = {}
    for name in entries:
        record = c_void_p()
        assert reader.systemDlcGetRecordByName(handle, name.encode(), byref(record)) == 0
        by_name[name] = content(record.value)
        assert reader.systemDlcFreeRecord(record) == 0
        assert reader.systemDlcFreeRecord(record) == INVALID_HANDLE
    assert by_name == entries
    kinds = {1: [], 2: ["model"], 3: ["model.params"], 4: ["model.params.bin"], 7: []}
    for kind, names in kinds.items():
        found, count = POINTER(c_void_p)(), c_uint32()
        assert reader.systemDlcGetRecordsByType(handle, kind, 0, byref(found), byref(count)) == 0
        assert [content(found[index]) for index in range(count.value)] == [entries[name] for name in names], kind
        assert bool(found) == bool(names)
    assert reader.systemDlcGetRecordsByType(handle, 99, 0, byref(found), byref(count)) == Code.COMMON_INVALID_ARGUMENT
    assert reader.systemDlcFree(handle) == 0


def test_files_that_are_no_dlc_and_unknown_handles_are_refused(
    reader: Client, client: Client, file: Path, tmp_path: Path
) -> None:
    out, none = c_void_p(), c_void_p(0x999)
    (tmp_path / "text.dlc").write_text("this is no archive")
    cut = tmp_path / "cut.dlc"
    cut.write_bytes(file.read_bytes()[:-40])
    for path in ("text.dlc", "cut.dlc"):
        assert reader.systemDlcCreateFromFile(None, str(tmp_path / path).encode(), byref(out)) == Code.COMMON_MEM_ALLOC
        assert not out.value
    missing = reader.systemDlcCreateFromFile(None, b"/nowhere.dlc", byref(out))
    assert missing == Code.COMMON_INVALID_ARGUMENT
    assert reader.systemDlcCreateFromFile(None, None, byref(out)) == Code.COMMON_INVALID_ARGUMENT
    assert reader.systemDlcCreateFromBinary(None, 0x10, 100, byref(out)) == Code.COMMON_INVALID_ARGUMENT
    size, data, count = c_uint64(), c_void_p(), c_uint32()
    assert reader.systemDlcFree(none) == INVALID_HANDLE
    assert reader.systemDlcSave(none, b"/nowhere/x") == INVALID_HANDLE
    assert reader.systemDlcGetRecordDataSize(none, byref(size)) == INVALID_HANDLE
    assert composed(reader, 0x999, 0, 0, client.provider)[0] == INVALID_HANDLE
    handle = opened(reader, file)
    assert reader.systemDlcGetRecordByName(handle, b"weights", byref(data)) == Code.COMMON_INVALID_ARGUMENT
    assert reader.systemDlcGetOpMappings(handle, byref(data), byref(count)) == 0
    assert (data.value, count.value) == (None, 0)
    assert composed(reader, handle, 0x999, 0x999, client.provider)[0] == Code.COMMON_MEM_ALLOC
    assert composed(reader, handle, 0, 0, type(client.provider)())[0] == Code.COMMON_MEM_ALLOC
    assert composed(reader, handle, 0, 0, client.provider, version=9)[0] == Code.COMMON_INVALID_ARGUMENT
    assert reader.systemDlcFree(handle) == 0


def test_a_dlc_is_saved_whole_or_the_file_is_as_it_was(
    reader: Client, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handle, before = opened(reader, file), sorted(tmp_path.iterdir())
    for wrong in (file / "below.dlc", tmp_path, tmp_path / "nowhere" / "x.dlc", tmp_path / ("n" * 300)):
        assert reader.systemDlcSave(handle, str(wrong).encode()) == Code.COMMON_INVALID_ARGUMENT, wrong
    for wrong in (b"", b".", b"/"):
        caplog.clear()
        assert reader.systemDlcSave(handle, wrong) == Code.COMMON_INVALID_ARGUMENT
        assert "is not a file name" in caplog.text
    assert sorted(tmp_path.iterdir()) == before
    for name in ("saved.dlc", "n" * 250):
        assert reader.systemDlcSave(handle, str(tmp_path / name).encode()) == 0
        assert (tmp_path / name).read_bytes() == file.read_bytes()
    answers: list[int] = []

    def often() -> None:
        answers.extend(reader.systemDlcSave(handle, str(tmp_path / "saved.dlc").encode()) for _ in range(30))

    run_in_threads(lambda _: often(), range(2))
    assert answers == [0] * 60
    assert len(list(tmp_path.iterdir())) == len(before) + 2
    assert reader.systemDlcFree(handle) == 0


def test_names_returned_to_a_client_are_stored_once_and_freed_with_the_dlc(tmp_path: Path) -> None:
    server, out, count, graphs, tensor = LibraryServer("QnnSystem"), c_uint64(), c_uint32(), c_uint64(), c_uint64()
    ours: list[weakref.ref] = []
    kept = (len(server._once), len(server.client_objects))
    for number in range(3):
        path = tmp_path / f"{number}.dlc"
        path.write_bytes(dlc_write.dlc([dlc_graphs.convolution(f"graph{number}")]))
        name = create_string_buffer(str(path).encode())
        assert server.systemDlcCreateFromFile(0, addressof(name), addressof(out)) == 0
        handle = out.value
        assert server.systemDlcGetComposableGraphInfoHandles(handle, addressof(graphs), addressof(count)) == 0
        graph = c_uint64.from_address(graphs.value).value
        assert server.systemDlcGetGraphInfoInputTensorInfo(graph, 0, addressof(tensor)) == 0
        for ask, of, expected in (
            (server.systemDlcGetComposableGraphInfoGraphName, graph, f"graph{number}"),
            (server.systemDlcGetTensorInfoName, tensor.value, "in/x:0"),
        ):
            places = set()
            for _ in range(2):
                assert ask(of, addressof(out)) == 0
                places.add(out.value)
            assert [string_at(place).decode() for place in places] == [expected]
        # Of each DLC, watch the object and the two names that it returned.
        (known,) = server.handles.of_kind(Dlc)
        ours += map(weakref.ref, [known[1], *known[1].texts.values()])
        assert len(ours) == 3 * (number + 1)
        del known
        assert server.systemDlcFree(handle) == 0
    gc.collect()
    # Nothing was stored in the server, which would outlive the DLC.
    assert (len(server._once), len(server.client_objects)) == kept
    assert [made() for made in ours] == [None] * 9


PEAKS = """
import ctypes, sys
from pathlib import Path
from isthmus.capi.serve import LibraryServer

def peak():
    return next(int(line.split()[1]) << 10 for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))

server, handle, written = LibraryServer("QnnSystem"), ctypes.c_uint64(), ctypes.c_uint64()
nbytes = Path(sys.argv[1]).stat().st_size
given, taken = ctypes.create_string_buffer(nbytes), ctypes.create_string_buffer(nbytes)
with open(sys.argv[1], "rb") as file:
    assert file.readinto(given) == nbytes
ctypes.memset(taken, 1, nbytes)
small, at = ctypes.create_string_buffer(Path(sys.argv[2]).read_bytes()), ctypes.addressof
assert server.systemDlcCreateFromBinary(0, at(small), len(small) - 1, at(handle)) == 0
peaks = [peak()]
assert server.systemDlcCreateFromBinary(0, at(given), nbytes, at(handle)) == 0
peaks.append(peak())
assert server.systemDlcGetBinary(handle.value, at(taken), nbytes, at(written)) == 0
peaks.append(peak())
assert ctypes.string_at(taken, nbytes) == ctypes.string_at(given, nbytes)
print(*((after - before) / nbytes for before, after in zip(peaks, peaks[1:])))
"""


def test_a_dlc_out_of_memory_is_copied_once_and_given_without_another_copy(file: Path, tmp_path: Path) -> None:
    weights = dlc_write.static("w", np.ones((2048, 4096), np.float32))
    large = tmp_path / "large.dlc"
    large.write_bytes(dlc_write.dlc([dlc_graphs.fully_connected(weights)]))
    command = [sys.executable, "-c", PEAKS, str(large), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    taken, given = map(float, done.stdout.split())
    assert taken < 1.3, "one copy is ours"
    assert given < 0.3


@pytest.mark.parametrize("configs", ["null", "wild", "null within", "other graph", "null configs within"])
def test_wrong_configs_are_answered_as_whatever_goes_wrong_while_composing(
    reader: Client, client: Client, file: Path, configs: str
) -> None:
    backend, context = made(client)
    other = system.DlcGraphConfigInfo(1, b"third" if configs == "other graph" else b"first")
    other.numGraphConfigs = int(configs == "null configs within")
    inside = c_void_p() if configs == "null within" else c_void_p(addressof(other))
    place = {"null": None, "wild": 16}.get(configs, addressof(inside))
    given = cast(c_void_p(place), POINTER(POINTER(system.DlcGraphConfigInfo)))
    handle, graphs, count = opened(reader, file), POINTER(system.GraphInfo)(), c_uint32(7)
    error = reader.systemDlcComposeGraphs(
        handle, given, 1, backend, context, client.provider, 1, byref(graphs), byref(count)
    )
    assert (error, bool(graphs), count.value) == (Code.COMMON_MEM_ALLOC, False, 0)
    error = reader.systemDlcComposeGraphs(
        handle, given, 1, backend, context, client.provider, 4, byref(graphs), byref(count)
    )
    assert error == Code.COMMON_INVALID_ARGUMENT
    assert composed(reader, handle, backend, context, client.provider)[0] == 0, "nothing was composed before"
    assert reader.systemDlcFree(handle) == 0
    client.do("backendFree", backend)


@pytest.mark.parametrize(("compiler", "sanitize"), [("gcc", False), ("g++", True)], ids=["c", "c++-asan"])
def test_a_program_in_c_composes_a_dlc_and_frees_what_it_is_given(
    libraries: Path, build: Build, tmp_path: Path, compiler: str, sanitize: bool
) -> None:
    path = tmp_path / "net.dlc"
    path.write_bytes(dlc_write.dlc([dlc_graphs.convolution()]))
    done = execute(build("dlc_compose", compiler, sanitize), libraries, "libQnnCpu.so", path)
    assert done.returncode == 0, done.stderr
    expected = dlc_graphs.convolved(np.ones((1, 6, 6, 2), np.float32)).sum()
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("sum")]
    assert abs(float(line.split()[1]) - expected) < 1e-3
    assert "the context has one of that name" in done.stdout + done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere a table is passed by its address")
@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_a_client_of_earlier_headers_may_pass_a_shorter_table(
    libraries: Path, build: Build, tmp_path: Path, compiler: str
) -> None:
    file = tmp_path / "net.dlc"
    file.write_bytes(dlc_write.dlc([dlc_graphs.convolution()]))
    done = subprocess.run(
        [build("earlier_table", compiler), libraries, file], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    sizes = ["48 0", "58 0", "69 0", "71 0", "74 0", "75 0", "75 35", "75 74", "75 74"]
    *lines, function, half, none = done.stdout.splitlines()
    assert lines == [f"{size}: 0 1 net" for size in sizes]
    assert function == "c3", "an entry in memory that can be written is not written"
    refused = f"{int(Code.COMMON_INVALID_ARGUMENT)} 7"
    assert half.rstrip() == f"58 -1: {refused}", "where nothing fits, nothing is written"
    assert none.rstrip() == f"71 -2: {refused}", "the client's own stack is not written"
