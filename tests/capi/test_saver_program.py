"""The program of a Saver recording describes, call by call, exactly what the client has described.

Programs are compiled and run on a table of functions that records what they call.
"""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cabi.test_writer import ENCODINGS, entry

from capi.qnn_calls import at
from capi.served import Served
from capi.test_saver import Recorded, maker
from isthmus.cabi.other_backends import SaverConfig, SaverFiles
from isthmus.cabi.types import Tensor
from isthmus.capi.installation import INCLUDE
from isthmus.capi.saver_program import SaverProgram
from isthmus.errors import Code
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry, NodeEntry, Scalar
from isthmus.graph import DataType, TensorType
from isthmus.qnn.recorder import Recorder

PROVIDER = """\
#include "QnnInterface.h"
const QnnInterface_t *provider;
Qnn_ErrorHandle_t QnnInterface_getProviders(const QnnInterface_t ***providers, uint32_t *count) {
  *providers = &provider, *count = 1;
  return QNN_SUCCESS;
}
"""


def replay(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> list[GraphEntry]:
    """Compile a recording and run it; the graphs that it composes."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    (folder / "provider.c").write_text(PROVIDER)
    flags = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{INCLUDE / 'QNN'}",
        "-shared",
        "-fPIC",
        "-Dmain=recording",
        *more,
    ]
    # The recording must call `provider.c`, not a library that another test has loaded globally.
    sources = ["-Wl,-Bsymbolic", "saver_output.c", "provider.c"]
    subprocess.run(["gcc", *flags, *sources, "-o", "recording.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "recording.so"))
    recorder = Recorder()
    interface = recorder.interface
    ctypes.c_void_p.in_dll(library, "provider").value = ctypes.addressof(interface)
    monkeypatch.chdir(folder)
    assert library.recording() == 0, recorder.problem
    return recorder.graphs


class Writing:
    """A program with one graph."""

    def __init__(self, folder: Path) -> None:
        self.program = SaverProgram(folder / "saver_output.c", folder / "params.bin", "a test")
        self.variables: dict[str, str] = {}
        create = 'CALL(graphCreate, NULL, "g", NULL, &graph_0);'
        self.program.add(create, variable="Qnn_GraphHandle_t graph_0")

    def tensor(self, tensor: ComposedTensor) -> ComposedTensor:
        variable = self.variables[tensor.name] = f"tensor_{len(self.variables)}"
        call = f"CALL(tensorCreateGraphTensor, graph_0, &{variable});"
        self.program.add(*self.program.tensor(variable, tensor), call, variable=f"Qnn_Tensor_t {variable}")
        return tensor

    def node(self, node: NodeEntry) -> NodeEntry:
        self.program.add(*self.program.node(node, self.variables), "CALL(graphAddNode, graph_0, node);")
        return node


def same(found: ComposedTensor, expected: ComposedTensor) -> None:
    """Compare two tensors, all of their fields."""
    assert replace(found, encoding=None, data=None) == replace(expected, encoding=None, data=None)
    assert (found.data is None) == (expected.data is None)
    if found.data is not None and expected.data is not None:
        assert bytes(found.data) == bytes(expected.data)
    assert (found.encoding is None) == (expected.encoding is None)
    if found.encoding is not None and expected.encoding is not None:
        for name, value in vars(expected.encoding).items():
            np.testing.assert_array_equal(getattr(found.encoding, name), value, name)


def test_tensors_of_every_form_are_described_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(tmp_path)
    expected = [
        writing.tensor(ComposedTensor(case, 4, 0x308, (2, 3), encoding, memoryview(bytes(range(index, index + 6)))))
        for index, (case, encoding) in enumerate(ENCODINGS.items())
    ]
    special = replace(ENCODINGS["an axis"], scales=np.array([0.1, 1e-30, 3.4e38], np.float32))
    expected += [
        writing.tensor(ComposedTensor("other scales", 4, 0x308, (2, 3), special, memoryview(b"sixsix"))),
        writing.tensor(ComposedTensor("in", 0, 0x232, (1, 4, 5))),
        writing.tensor(ComposedTensor("out", 1, 0x132, (7,), mem_type=1)),
        writing.tensor(ComposedTensor('a "scalar"\\?', 3, 0x508, ())),
        writing.tensor(ComposedTensor("nothing", 4, 0x308, (0,), data=memoryview(b""))),
    ]
    writing.program.close()
    (graph,) = replay(tmp_path, monkeypatch)
    assert graph.name == "g"
    assert len(graph.tensors) == len(expected)
    for found, tensor in zip(graph.tensors, expected, strict=True):
        same(found, tensor)


SCALARS: dict[str, tuple[Scalar, int, str]] = {
    "true": (True, 0x508, "1"), "false": (False, 0x508, "0"), "text": ('a"b', 0x608, '"a\\042b"'),
    "half": (0.5, 0x232, "0x1.0000000000000p-1"), "tenth": (0.1, 0x264, "0x1.999999999999ap-4"),
    "nan": (math.nan, 0x232, "NAN"), "inf": (math.inf, 0x232, "INFINITY"), "-inf": (-math.inf, 0x232, "-INFINITY"),
    "i8": (-8, 0x8, "-8"), "i16": (-300, 0x16, "-300"), "i32": (-(1 << 31) + 1, 0x32, "-2147483647"),
    "lowest i32": (-(1 << 31), 0x32, "-2147483648LL"), "i64": (-(1 << 40), 0x64, "-1099511627776LL"),
    "u8": (200, 0x108, "200"), "u16": (60000, 0x116, "60000"), "zero": (0, 0x132, "0"),
    "u32": ((1 << 31) - 1, 0x132, "2147483647"), "large u32": (1 << 31, 0x132, "2147483648LL"),
    "u64": ((1 << 63) - 1, 0x164, "9223372036854775807LL"), "large u64": (1 << 63, 0x164, "9223372036854775808ULL"),
    "largest": ((1 << 64) - 1, 0x164, "18446744073709551615ULL"),
}  # fmt: skip


def test_nodes_are_described_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(tmp_path)
    x, y, z = (writing.tensor(ComposedTensor(name, 3, 0x232, (2, 3))) for name in "xyz")
    axes = writing.tensor(ComposedTensor("axes", 4, 0x132, (2,), data=memoryview(bytes(8))))
    own = ComposedTensor("own", 4, 0x308, (2, 3), ENCODINGS["an axis"], memoryview(b"abcdef"))
    values = {name: value for name, (value, _, _) in SCALARS.items()}
    kinds = {name: kind for name, (_, kind, _) in SCALARS.items()}
    expected = [
        writing.node(NodeEntry("scalars", "Op", ("x",), ("y",), values, package="own", kinds=kinds)),
        writing.node(NodeEntry("tensors", "Op", ("x", "", "y"), ("z", "x"), {"axes": axes, "own": own})),
        writing.node(NodeEntry("nothing", "Op", (), (), {})),
        writing.node(NodeEntry("encodings", "Op", (), (), {
            case: replace(own, name=f"own {case}", encoding=encoding) for case, encoding in ENCODINGS.items()})),
    ]  # fmt: skip
    writing.program.close()
    (graph,) = replay(tmp_path, monkeypatch)
    assert [each.name for each in graph.tensors] == [x.name, y.name, z.name, axes.name]
    for found, node in zip(graph.nodes, expected, strict=True):
        assert replace(found, params={}) == replace(node, params={})
        assert list(found.params) == list(node.params)
        for name, value in node.params.items():
            param = found.params[name]
            if isinstance(value, ComposedTensor) and isinstance(param, ComposedTensor):
                same(param, value)
            else:
                assert repr(param) == repr(value), name
    source = (tmp_path / "saver_output.c").read_text()
    literals = re.findall(r"scalarParam\.\w+Value = (.*);", source)
    assert literals == [literal for _, _, literal in SCALARS.values()]
    assert source.count(
        "  inputs[1] = (Qnn_Tensor_t)QNN_TENSOR_INIT;\n  inputs[1].version = QNN_TENSOR_VERSION_1;\n"
        "  inputs[1].v1.type = QNN_TENSOR_TYPE_NULL;\n"
    ) == 1  # fmt: skip
    count = sum(len(node.params) for node in expected)
    assert len(re.findall(r"  params\[\d+\] = \(Qnn_Param_t\)QNN_PARAM_INIT;", source)) == count
    # A parameter that is a tensor of the graph has its id, and other tensors have none.
    assert re.findall(r"params\[(\d)\]\.tensorParam\.v1\.id = (\w+)\.v1\.id;", source) == [("0", "tensor_3")]


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        (entry(0, [0.5, 9.0], [-3, 9]), "scaleOffsetEncoding = (Qnn_ScaleOffset_t){0x1.0000000000000p-1, -3};"),
        (entry(2, [0.5, 9.0], [-3, 9], bits=4),
         "bwScaleOffsetEncoding = (Qnn_BwScaleOffset_t){4, 0x1.0000000000000p-1, -3};"),
        (entry(1, [0.5], [-3]), "axisScaleOffsetEncoding = (Qnn_AxisScaleOffset_t){0, 1, t_pairs};"),
        (entry(3, [0.5], [-3], bits=6),
         "bwAxisScaleOffsetEncoding = (Qnn_BwAxisScaleOffset_t){6, 0, 1, t_scales, t_offsets};"),
        (entry(0, [], []), "scaleOffsetEncoding = (Qnn_ScaleOffset_t){0, 0};"),
        (entry(6, [], []), "quantizationEncoding = (Qnn_QuantizationEncoding_t)6;"),
    ],
)  # fmt: skip
def test_what_an_encoding_has_too_many_of_or_leaves_out_has_a_default(
    tmp_path: Path, encoding: EncodingEntry, value: str
) -> None:
    program = SaverProgram(tmp_path / "a.c", tmp_path / "a.bin", "a test")
    *_, last = program.tensor("t", ComposedTensor("t", 4, 0x308, (2, 3), encoding))
    assert last == f"t.v1.quantizeParams.{value}"
    program.close()


def test_a_program_without_calls_compiles_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SaverProgram(tmp_path / "saver_output.c", tmp_path / "params.bin", "a test").close()
    assert replay(tmp_path, monkeypatch, "-Wno-unused-function") == []
    assert (tmp_path / "saver_output.c").read_text().startswith("/* Calls of a client of QNN, as a test recorded them.")


def test_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    program = SaverProgram(tmp_path / "a.c", tmp_path / "a.bin", "a test")
    stored = [program.store(data) for data in (b"one", b"three", b"one", memoryview(b"three"), b"")]
    assert stored == ["stored(0, 3)", "stored(3, 5)", "stored(0, 3)", "stored(3, 5)", "stored(8, 0)"]
    program.close()
    assert (tmp_path / "a.bin").read_bytes() == b"onethree"


def test_a_recording_may_have_the_time_in_the_name_of_its_folder(tmp_path: Path) -> None:
    recorded = Recorded(str(tmp_path / "out"), b"data.bin", stamp=True)
    backend = recorded.make("backendCreate", 0, 0)
    (folder,) = tmp_path.iterdir()
    assert re.fullmatch(r"out_\d{8}_\d{6}", folder.name)
    assert recorded.server.backendFree(backend) == 0
    assert sorted(each.name for each in folder.iterdir()) == ["data.bin", "saver_output.c"]
    recorded.server.leave()


def test_configs_of_a_recording_that_cannot_be_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    served = Served("QnnSaver")

    def initialized(option: int, **fields: Any) -> tuple[int, str]:
        config = SaverConfig(option)
        for name, value in fields.items():
            setattr(config, name, value)
        return served.refused("QnnSaver_initialize", served.listed(config))

    invalid = Code.COMMON_INVALID_ARGUMENT
    empty = served.number(b"")
    assert initialized(4) == (invalid, "Saver: it has no config 4")
    assert initialized(0) == (invalid, "its arguments: a pointer is null")
    assert initialized(0, outputDirectory=empty) == (invalid, "Saver: its output directory is empty")
    files = SaverFiles(empty, served.number(b"data"))
    assert initialized(3, fileConfig=files) == (invalid, "Saver: its name of the program is empty")
    files = SaverFiles(served.number(b"program"), empty)
    assert initialized(3, fileConfig=files) == (invalid, "Saver: its name of the data file is empty")
    ignored = SaverConfig(2)
    served.do("QnnSaver_initialize", served.listed(ignored))
    assert served.refused("QnnSaver_initialize", 0) == (
        Code.SAVER_ALREADY_INSTANTIATED, "Saver: it can be initialized once, before all other calls",
    )  # fmt: skip
    served.make("backendCreate", 0, 0)
    assert sorted(each.name for each in (tmp_path / "saver_output").iterdir()) == ["params.bin"]
    served.server.leave()
    assert (tmp_path / "saver_output" / "saver_output.c").exists()


def test_what_only_an_execution_could_give_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for library, code, rule in (
        ("QnnSaver", Code.SAVER_DUMMY_RETVALUE,
         "Saver: calls are recorded here, and nothing is prepared or executed"),
        ("QnnIr", Code.COMMON_NOT_SUPPORTED,
         "IR backend: graphs are composed there and written to DLC files; they are neither executed nor kept in "
         "context binaries. Compose the DLC on a backend such as libQnnHtp.so (QnnSystemDlc_composeGraphs)."),
    ):  # fmt: skip
        served = Served(library)
        for name in ("graphExecuteAsync", "contextGetBinarySize", "contextGetBinary", "contextCreateFromBinary",
                     "contextCreateFromBinaryWithSignal", "contextCreateFromBinaryListAsync", "contextValidateBinary",
                     "memRegister"):  # fmt: skip
            assert served.refused(name, 0, 0, 0, 0) == (code, rule), name
    dsp = Served("QnnDsp")
    for name in ("backendCreate", "deviceCreate", "deviceGetPlatformInfo"):
        out = (ctypes.c_uint64 * 2)((1 << 64) - 1, 7)
        assert dsp.refused(name, 0, out) == (
            Code.COMMON_PLATFORM_NOT_SUPPORTED,
            "DSP backend: there is no such processor on this machine, and none is simulated. "
            "Load libQnnHtp.so instead.",
        )
        assert list(out) == [0, 7]


CALLS = """\
CALL(backendCreate, NULL, NULL, &backend_0);
CALL(deviceCreate, NULL, NULL, &device_1);
CALL(contextCreate, backend_0, device_1, NULL, &context_2);
CALL(contextCreate, backend_0, NULL, NULL, &context_3);
CALL(graphCreate, context_2, "net", NULL, &graph_4);
CALL(tensorCreateGraphTensor, graph_4, &graph_4_tensor_1);
CALL(tensorCreateGraphTensor, graph_4, &graph_4_tensor_2);
CALL(tensorCreateGraphTensor, graph_4, &graph_4_tensor_3);
CALL(graphAddNode, graph_4, node);
CALL(graphFinalize, graph_4, NULL, NULL);
CALL(graphExecute, graph_4, inputs, 1, outputs, 1, NULL, NULL);
CALL(contextFree, context_3, NULL);
CALL(contextFree, context_2, NULL);
CALL(deviceFree, device_1);
CALL(backendFree, backend_0);
"""
EXECUTION = """\
Qnn_Tensor_t inputs[1];
inputs[0] = graph_4_tensor_1;
inputs[0].v1.clientBuf.data = stored(16, 16);
inputs[0].v1.clientBuf.dataSize = 16;
Qnn_Tensor_t outputs[1];
outputs[0] = graph_4_tensor_3;
outputs[0].v1.clientBuf.data = calloc(1, 16);
outputs[0].v1.clientBuf.dataSize = 16;
"""


def test_calls_are_recorded_in_their_order_with_the_variables_of_their_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, client = Recorded(str(tmp_path)), maker()
    server = recorded.server
    backend = recorded.make("backendCreate", 0, 0)
    device = recorded.make("deviceCreate", 0, 0)
    first = recorded.make("contextCreate", backend, device, 0)
    second = recorded.make("contextCreate", backend, 0, 0)
    name = ctypes.create_string_buffer(b"net")
    graph = recorded.make("graphCreate", first, ctypes.addressof(name), 0)
    ones = np.ones((1, 4), np.float32)
    x = client.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
    w = client.tensor("w", TensorType.STATIC, DataType.FLOAT_32, (1, 4), data=ones)
    y = client.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 4))
    for each in (x, w, y):
        assert server.tensorCreateGraphTensor(graph, ctypes.addressof(each)) == 0
    node = client.operation("add", "ElementWiseAdd", [x, w], [y])
    assert server.graphAddNode(graph, ctypes.addressof(node)) == 0
    assert server.graphFinalize(graph, 0, 0) == 0
    written = (tmp_path / "saver_output.c").read_text()
    assert "CALL(graphFinalize" in written, "it is written as soon as a graph is final"
    given = np.arange(4, dtype=np.float32)
    tensors: list[Any] = [(Tensor * 1)(at(x, given)), (Tensor * 1)(at(y, np.zeros(4, np.float32)))]
    places = [ctypes.addressof(each) for each in tensors]
    assert server.graphExecute(graph, places[0], 1, places[1], 1, 0, 0) == 0
    for context in (second, first):
        assert server.contextFree(context, 0) == 0
        source = (tmp_path / "saver_output.c").read_text()
        assert source.count("CALL(contextFree,") == 1 + (context == first), "it is written with every object freed"
    assert server.deviceFree(device) == 0
    assert server.backendFree(backend) == 0
    source = (tmp_path / "saver_output.c").read_text()
    assert re.findall(r"^  (CALL\(.*\);)$", source, re.MULTILINE) == CALLS.splitlines()
    body = re.search(r"call_10\(void\) \{\n(.*?)\}\n", source, re.DOTALL)
    assert body is not None
    assert [line.strip() for line in body[1].splitlines()][:-1] == EXECUTION.splitlines()
    declared = re.findall(r"^static (Qnn_\w+) \w+_\d;$", source, re.MULTILINE)
    assert declared == [
        "Qnn_BackendHandle_t", "Qnn_DeviceHandle_t", "Qnn_ContextHandle_t", "Qnn_ContextHandle_t", "Qnn_GraphHandle_t",
        "Qnn_Tensor_t", "Qnn_Tensor_t", "Qnn_Tensor_t",
    ]  # fmt: skip
    assert (tmp_path / "params.bin").read_bytes() == ones.tobytes() + given.tobytes()
    (graph_entry,) = replay(tmp_path, monkeypatch)
    assert [each.name for each in graph_entry.tensors] == ["x", "w", "y"]
    assert [(each.type, each.inputs, each.outputs) for each in graph_entry.nodes] == [
        ("ElementWiseAdd", ("x", "w"), ("y",))
    ]
    for free, handle in (("backendFree", backend), ("deviceFree", device)):
        assert getattr(server, free)(handle) != 0, "it is freed"
    server.leave()


def test_a_graph_without_nodes_is_not_finalized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    served = Served("QnnSaver")
    _, context = served.opened()
    empty = served.make("graphCreate", context, b"empty", 0)
    assert served.refused("graphFinalize", empty, 0, 0) == (
        Code.GRAPH_FINALIZE_FAILED, "graph 'empty': it has no nodes",
    )  # fmt: skip
    served.server.leave()
    assert "graphFinalize" not in (tmp_path / "saver_output" / "saver_output.c").read_text()
