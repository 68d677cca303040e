"""What the functions answer: to clients that do right, and to those that do not, by QNN's codes and with a reason."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.interruption import Alarm, Interrupt, everywhere
from support.processes import answer, run_client

from capi.qnn_calls import Client, at, doubling, opened
from isthmus import capi, qnn
from isthmus.cabi import objects, types
from isthmus.cabi import tables as interface
from isthmus.capi import functions, records, serve, values
from isthmus.capi.handles import Handles
from isthmus.capi.messages import name_of
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, TensorType
from isthmus.version import PRODUCER

F32 = DataType.FLOAT_32


# -- the tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["libQnnCpu.so", "libQnnGpu.so", "libQnnHtp.so", "libQnnLpai.so", "libQnnSystem.so"])
def test_no_entry_of_a_table_is_null_and_what_is_not_offered_answers_so(libraries: Path, name: str) -> None:
    table = Client(libraries / name).provider.table
    entries = [getattr(table, field) for field, _ in table._fields_]
    assert all(entries)
    shared = max(set(entries), key=entries.count)
    assert entries.count(shared) >= 5
    assert ctypes.CFUNCTYPE(ctypes.c_uint64)(shared)() == Code.COMMON_NOT_SUPPORTED


def test_libraries_say_which_back_end_they_are(libraries: Path) -> None:
    reported = {
        name: (int(provider.backendId), provider.providerName, str(provider.coreApiVersion))
        for name in ("Cpu", "Dsp", "Gpu", "Htp", "Ir", "Lpai", "Saver")
        for provider in [Client(libraries / f"libQnn{name}.so").provider]
    }
    assert reported == {
        "Cpu": (3, b"CPU_ISTHMUS", "2.40.0"),
        "Dsp": (5, b"DSP_ISTHMUS", "2.40.0"),
        "Gpu": (4, b"GPU_ISTHMUS", "2.40.0"),
        "Htp": (6, b"HTP_ISTHMUS", "2.40.0"),
        "Ir": (9, b"IR_ISTHMUS", "2.40.0"),
        "Lpai": (12, b"LPAI_ISTHMUS", "2.40.0"),
        "Saver": (2, b"SAVER_ISTHMUS", "2.40.0"),
    }


def test_versions_operations_and_build_can_be_read(client: Client) -> None:
    backend, _ = opened(client)
    versions, build = (types.Version * 2)(), ctypes.c_char_p()
    client.do("backendGetApiVersion", ctypes.byref(versions))
    client.do("backendGetBuildId", ctypes.byref(build))
    assert str(versions[0]) == "2.40.0"
    assert build.value is not None
    assert build.value.startswith(PRODUCER.encode())
    count, names = ctypes.c_uint32(), ctypes.POINTER(objects.OperationName)()
    client.do("backendGetSupportedOperations", backend, ctypes.byref(count), ctypes.byref(names))
    listed = {(names[i].packageName, names[i].name) for i in range(count.value)}
    assert len(listed) == count.value > 100
    assert (b"qti.aisw", b"Conv2d") in listed
    is_qnns = [names[i].packageName == b"qti.aisw" for i in range(count.value)]
    assert is_qnns == sorted(is_qnns, reverse=True), "operations of QNN's package come first"
    assert not all(is_qnns)
    client.do("backendFree", backend)


def test_asking_often_keeps_no_more_objects(client: Client) -> None:
    backend, context = opened(client)
    server = next(server for server in serve.servers() if server.library == "QnnCpu" and server.handles.of_kind(object))
    text, count, names = ctypes.c_char_p(), ctypes.c_uint32(), ctypes.POINTER(objects.OperationName)()
    sizes = []
    for _ in range(3):
        for _ in range(50):
            client.do("backendGetBuildId", ctypes.byref(text))
            client.do("errorGetMessage", 1000, ctypes.byref(text))
            client.do("backendGetSupportedOperations", backend, ctypes.byref(count), ctypes.byref(names))
            assert client.graphFinalize(context, None, None) == Code.GRAPH_INVALID_HANDLE
            client.do("errorGetVerboseMessage", Code.GRAPH_INVALID_HANDLE, ctypes.byref(text))
            client.do("errorFreeVerboseMessage", text)
            assert client.reason(Code.GRAPH_INVALID_HANDLE)
        sizes.append((len(server.client_objects), len(server._once), len(server.handles.of_kind(object))))
    assert sizes[0] == sizes[1] == sizes[2]
    client.do("backendFree", backend)


def test_capabilities_are_answered_by_back_end(libraries: Path) -> None:
    ask = {name: Client(libraries / f"libQnn{name}.so").propertyHasCapability for name in ("Cpu", "Htp", "Lpai")}
    assert [ask[name](1102) for name in ("Cpu", "Htp", "Lpai")] == [1000, 0, 0]
    assert ask["Htp"](objects.PROPERTY_TENSOR_SUPPORT_RETRIEVE_RAW) == 1000
    assert ask["Htp"](99999) == 2000


def test_every_code_that_is_answered_has_a_name(client: Client) -> None:
    """Also codes whose names in C have a word twice, and the one that only propertyHasCapability answers."""
    text = ctypes.c_char_p()
    for code in Code:
        client.do("errorGetMessage", code, ctypes.byref(text))
        name, _, sentence = (text.value or b"").decode().partition(": ")
        assert name == name_of(code)
        assert sentence, "a code without a sentence"
    for code, name in (
        (0, b"QNN_SUCCESS"), (2000, b"QNN_PROPERTY_ERROR_UNKNOWN_KEY"), (6000, b"QNN_GRAPH_ERROR_INVALID_ARGUMENT"),
        (6024, b"QNN_GRAPH_ERROR_GRAPH_FINALIZED"),
    ):  # fmt: skip
        client.do("errorGetMessage", code, ctypes.byref(text))
        assert (text.value or b"").startswith(name + b": ")
    assert client.errorGetMessage(1000, None) == Code.ERROR_INVALID_ARGUMENT
    assert client.errorGetMessage(9999, ctypes.byref(text)) == Code.ERROR_INVALID_ERROR_HANDLE
    assert text.value is None


def test_refusals_have_the_codes_of_the_vendors_library(htp: Client) -> None:
    """Those that `tests/differential` has measured, for readers without that library."""
    backend, context = opened(htp)
    out, size = ctypes.c_void_p(), ctypes.c_uint64()
    graph, _, y = doubling(htp, context)

    def configs(kind: Any, option: int) -> Any:
        config = htp.keep(kind())
        config.option = option
        return htp.keep((ctypes.POINTER(kind) * 2)(ctypes.pointer(config)))

    found = {
        "a log without a place": htp.logCreate(None, 1, None),
        "an op package that is not there": htp.backendRegisterOpPackage(backend, b"/nowhere.so", b"provider", None),
        "an op package without a path": htp.backendRegisterOpPackage(backend, None, b"provider", None),
        "an unknown config of a backend": htp.backendSetConfig(backend, configs(objects.BackendConfig, 77)),
        "an unknown config of a context": htp.contextSetConfig(context, configs(objects.ContextConfig, 77)),
        "an unknown config of a graph": htp.graphSetConfig(graph, configs(objects.GraphConfig, 77)),
        "a graph that is not there": htp.graphRetrieve(context, b"other", ctypes.byref(out)),
        "no name of a graph": htp.graphRetrieve(context, None, ctypes.byref(out)),
        "no tensor": htp.tensorCreateGraphTensor(graph, None),
        "no inputs": htp.execute(graph, [], [y]),
        "an unknown profile": htp.contextFree(context, 1 << 40),
        "a device without its config": htp.deviceCreate(None, configs(objects.DeviceConfig, 0), ctypes.byref(out)),
        "no properties": htp.contextGetProperty(context, None),
        "a graph that is not finalized": [
            htp.make("graphCreate", context, b"open", None),
            htp.contextGetBinarySize(context, ctypes.byref(size)),
        ][1],
    }
    assert found == {
        "a log without a place": 11004,
        "an op package that is not there": 4005,
        "an op package without a path": 4004,
        "an unknown config of a backend": 4012,
        "an unknown config of a context": 1000,
        "an unknown config of a graph": 1000,
        "a graph that is not there": 6003,
        "no name of a graph": 6003,
        "no tensor": 7001,
        "no inputs": 6000,
        "an unknown profile": 5000,
        "a device without its config": 14001,
        "no properties": 5000,
        "a graph that is not finalized": 5003,
    }
    htp.do("backendFree", backend)


def test_a_node_that_is_only_validated_is_refused_by_one_code(client: Client) -> None:
    backend, _ = opened(client)
    x = client.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
    small = client.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 4))
    y = client.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
    unknown = client.tensor("y", TensorType.APP_READ, 0x999, (1, 8))
    colour = {"colour": (int(DataType.UINT_32), 1)}
    for node in (
        client.operation("n", "Relu", [x], [small]), client.operation("n", "Relu", [], [y]),
        client.operation("n", "Relu", [x], [unknown]), client.operation("n", "Relu", [x], [y], colour),
        client.operation("n", "Transpose", [x], [y]),
        client.operation("n", "Softmax", [x], [y], {"axis": (int(DataType.INT_32), 1)}),
        client.operation("n", "Softmax", [x], [y], {"axis": (int(DataType.INT_64), 1)}),
    ):  # fmt: skip
        assert client.backendValidateOpConfig(backend, node) == Code.OP_PACKAGE_VALIDATION_FAILURE
    right = client.operation("n", "Softmax", [x], [y], {"axis": (int(DataType.UINT_32), 1)})
    client.do("backendValidateOpConfig", backend, right)
    assert client.backendValidateOpConfig(backend, client.operation("n", "Nonsense", [x], [y])) == 4005
    client.do("backendFree", backend)


# -- graphs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_quantized_convolution_computes_what_the_graph_in_python_does(client: Client, version: int) -> None:
    random = np.random.default_rng(5)
    weights = random.integers(-127, 128, (3, 3, 4, 6)).astype(np.int8)
    bias = random.integers(-500, 500, 6).astype(np.int32)
    scales = [0.01 * (i + 1) for i in range(6)]
    image = random.integers(0, 256, (1, 9, 9, 4)).astype(np.uint8)
    stride, pads = np.array([2, 2], np.uint32), np.array([[1, 1], [1, 1]], np.uint32)

    with qnn.Backend("cpu") as backend:
        graph = backend.create_context().create_graph("g")
        q = qnn.Quantization
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.UFIXED_POINT_8, image.shape, q((0.05,), (-128,)))
        w = graph.create_tensor(
            "w", TensorType.STATIC, DataType.SFIXED_POINT_8, weights.shape, q(tuple(np.float32(scales)), (0,) * 6, 3),
            weights,
        )  # fmt: skip
        b = graph.create_tensor("b", TensorType.STATIC, DataType.SFIXED_POINT_32, bias.shape, q((0.0005,), (0,)), bias)
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.UFIXED_POINT_8, (1, 5, 5, 6), q((0.2,), (-100,)))
        graph.add_node("conv", "Conv2d", [x, w, b], [y], {"stride": stride, "pad_amount": pads})
        graph.finalize()
        expected = np.zeros((1, 5, 5, 6), np.uint8)
        graph.execute([qnn.ClientTensor("x", image)], [qnn.ClientTensor("y", expected)])

    handle, context = opened(client)
    made = client.make("graphCreate", context, b"g", None)
    tensors = [
        client.tensor("x", TensorType.APP_WRITE, 0x408, image.shape, client.quantize(0.05, -128), version=version),
        client.tensor(
            "w", TensorType.STATIC, 0x308, weights.shape, client.quantize_axis(3, scales), weights, version=version
        ),
        client.tensor("b", TensorType.STATIC, 0x332, bias.shape, client.quantize(0.0005, 0), bias, version=version),
        client.tensor("y", TensorType.APP_READ, 0x408, (1, 5, 5, 6), client.quantize(0.2, -100), version=version),
    ]
    for tensor in tensors:
        client.do("tensorCreateGraphTensor", made, ctypes.byref(tensor))
    assert sorted(tensor.v1.id for tensor in tensors) == [1, 2, 3, 4]
    config = client.operation(
        "conv", "Conv2d", tensors[:3], tensors[3:], {"group": (0x132, 1), "reuse_sparse_indices": (0x508, 0)},
        {"stride": stride, "pad_amount": pads},
    )  # fmt: skip
    client.do("backendValidateOpConfig", handle, config)
    client.do("graphAddNode", made, config)
    client.do("graphFinalize", made, None, None)
    found = np.zeros((1, 5, 5, 6), np.uint8)
    assert client.execute(made, [at(tensors[0], image)], [at(tensors[3], found)]) == 0
    np.testing.assert_array_equal(found, expected)
    assert found.std() > 5
    client.do("backendFree", handle)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("axis", [None, 1])
def test_only_the_low_bits_of_four_bit_weights_are_read(client: Client, packed: bool, axis: int | None) -> None:
    stored = np.array([[-8, -3, 0], [7, 1, -1]], np.int8)
    scales = [0.5, 0.25, 2.0] if axis == 1 else [0.5]
    handle, context = opened(client)
    graph = client.make("graphCreate", context, b"g", None)
    if packed:
        low = (stored.reshape(-1) & 15).astype(np.uint8)
        data, dtype = low[0::2] | low[1::2] << 4, types.DATATYPE_SFIXED_POINT_4
    else:
        # The upper halves of the bytes mean nothing.
        data, dtype = (stored & 15).view(np.int8), int(DataType.SFIXED_POINT_8)
    weights = client.tensor("w", TensorType.STATIC, dtype, (2, 3), client.quantize_bits(4, axis, scales), data)
    y = client.tensor("y", TensorType.APP_READ, F32, (2, 3))
    x = client.tensor("x", TensorType.APP_WRITE, F32, (2, 3))
    plain = client.tensor("plain", TensorType.NATIVE, F32, (2, 3))
    for tensor in (weights, x, y, plain):
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    client.do("graphAddNode", graph, client.operation("real", "Dequantize", [weights], [plain]))
    client.do("graphAddNode", graph, client.operation("add", "ElementWiseAdd", [x, plain], [y]))
    client.do("graphFinalize", graph, None, None)
    given, found = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    assert client.execute(graph, [at(x, given)], [at(y, found)]) == 0
    np.testing.assert_array_equal(found, stored * np.float32(scales))
    client.do("backendFree", handle)


def test_parameters_may_be_tensors_that_were_created_before(client: Client) -> None:
    handle, context = opened(client)
    graph = client.make("graphCreate", context, b"g", None)
    x = client.tensor("x", TensorType.APP_WRITE, F32, (2, 3))
    y = client.tensor("y", TensorType.APP_READ, F32, (3, 2))
    perm = client.tensor("perm", TensorType.STATIC, DataType.UINT_32, (2,), data=np.array([1, 0], np.uint32))
    for tensor in (x, y, perm):
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    config = client.operation("turn", "Transpose", [x], [y], tensors={"perm": np.array([0, 0], np.uint32)})
    config.v1.params[0].tensorParam = perm
    config.v1.params[0].tensorParam.v1.clientBuf.data = None
    client.do("graphAddNode", graph, config)
    client.do("graphFinalize", graph, None, None)
    given, found = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((3, 2), np.float32)
    assert client.execute(graph, [at(x, given)], [at(y, found)]) == 0
    np.testing.assert_array_equal(found, given.T)
    client.do("backendFree", handle)


def test_what_is_not_supported_is_refused_by_name(client: Client) -> None:
    handle, context = opened(client)
    graph = client.make("graphCreate", context, b"g", None)
    codebook = types.QuantizeParams(types.Definition.DEFINED, types.QuantizationEncoding.VECTOR)
    dynamic = client.tensor("d", TensorType.APP_WRITE, F32, (2,), version=2)
    dynamic.v2.isDynamicDimensions = client.keep((ctypes.c_uint8 * 1)(1))
    sparse = client.tensor("s", TensorType.NATIVE, F32, (2,))
    sparse.v1.dataFormat = 1
    later = client.tensor("l", TensorType.NATIVE, F32, (2,))
    later.v1.type = types.TensorKind.UPDATEABLE_STATIC
    for tensor, reason in (
        (client.tensor("b", TensorType.STATIC, 0x308, (2,), codebook, np.zeros(2, np.int8)), "encoding VECTOR"),
        (dynamic, "dynamic dimensions"),
        (sparse, "data format 1"),
        (later, "UPDATEABLE_STATIC"),
    ):
        assert client.tensorCreateGraphTensor(graph, ctypes.byref(tensor)) == Code.TENSOR_UNSUPPORTED_TENSOR_PARAM
        assert reason in client.reason(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM)
    client.do("backendFree", handle)


def test_tensors_that_were_not_created_are_refused_in_nodes_and_executions(client: Client) -> None:
    handle, context = opened(client)
    graph, x, y = doubling(client, context)
    stranger = client.tensor("z", TensorType.APP_WRITE, F32, (1, 8))
    stranger.v1.id = 77
    memory = np.zeros((1, 8), np.float32)
    assert client.execute(graph, [at(stranger, memory)], [at(y, memory)]) == Code.GRAPH_INVALID_TENSOR
    assert "of the id 77" in client.reason(Code.GRAPH_INVALID_TENSOR)
    open_graph = client.make("graphCreate", context, b"open", None)
    config = client.operation("relu", "Relu", [stranger], [y])
    assert client.graphAddNode(open_graph, config) == Code.GRAPH_INVALID_OP_CONFIG
    assert "Create the tensor first" in client.reason(Code.GRAPH_INVALID_OP_CONFIG)
    client.do("backendFree", handle)
    assert x.v1.id == 1


# -- wrong handles, wild pointers, failures ----------------------------------------------------------------------------


def test_handles_that_are_freed_unknown_or_of_another_kind_are_refused(client: Client, htp: Client) -> None:
    backend, context = opened(client)
    graph, _, _ = doubling(client, context)
    assert client.contextFree(graph, None) == Code.CONTEXT_INVALID_HANDLE
    assert client.graphFinalize(context, None, None) == Code.GRAPH_INVALID_HANDLE
    assert client.graphFinalize(12345, None, None) == Code.GRAPH_INVALID_HANDLE
    assert htp.contextFree(context, None) == Code.CONTEXT_INVALID_HANDLE, "handles belong to one library"
    client.do("contextFree", context, None)
    assert client.graphFinalize(graph, None, None) == Code.GRAPH_INVALID_HANDLE, "it ended with its context"
    assert client.contextFree(context, None) == Code.CONTEXT_INVALID_HANDLE
    client.do("backendFree", backend)
    assert client.backendFree(backend) == Code.BACKEND_INVALID_HANDLE
    assert "It may have been freed" in client.reason(Code.BACKEND_INVALID_HANDLE)
    assert client.backendFree(None) == Code.BACKEND_INVALID_HANDLE
    assert client.reason(Code.BACKEND_INVALID_HANDLE).endswith("backend handle 0x0: it is null")


@pytest.mark.parametrize("wild", [0x10, 0x7F0000000000, 2**64 - 64])
def test_invalid_pointers_are_refused_and_nothing_is_changed(client: Client, wild: int) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    pointer = ctypes.cast(ctypes.c_void_p(wild), ctypes.c_void_p)

    def raw(name: str, *arguments: object) -> int:
        """Call with plain words, as a client in C may by mistake."""
        call = ctypes.CFUNCTYPE(ctypes.c_uint64, *[ctypes.c_void_p] * len(arguments))
        return int(call(getattr(client.provider.table, name))(*arguments))

    assert raw("graphCreate", context, pointer, None, pointer) == Code.GRAPH_INVALID_ARGUMENT
    assert raw("contextCreate", backend, None, pointer, pointer) == Code.CONTEXT_INVALID_ARGUMENT
    assert raw("tensorCreateGraphTensor", graph, pointer) == Code.TENSOR_INVALID_TENSOR_PARAM
    assert raw("contextCreateFromBinary", backend, None, None, pointer, 64, pointer, None) == 5000
    assert raw("memRegister", context, pointer, 1, pointer) == Code.MEM_INVALID_ARGUMENT
    memory = np.ones((1, 8), np.float32)
    bad = at(x, memory)
    bad.v1.clientBuf.data = wild
    assert client.execute(graph, [bad], [at(y, memory)]) == Code.COMMON_INVALID_ARGUMENT
    assert client.execute(graph, [at(x, memory)], [at(y, memory.copy())]) == 0
    client.do("backendFree", backend)


def test_an_exception_of_ours_is_answered_as_a_general_error(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(server: serve.LibraryServer, *arguments: int) -> None:
        raise ZeroDivisionError("ours")

    name = "signalTrigger"
    monkeypatch.setitem(functions.TABLE, name, functions.Function(name, broken, Code.COMMON_INVALID_ARGUMENT))
    server = serve.LibraryServer("QnnCpu")
    assert server.signalTrigger(1) == Code.COMMON_GENERAL
    assert "ZeroDivisionError: ours" in caplog.text


def test_after_python_has_ended_frees_succeed_and_the_rest_answers_an_error(libraries: Path) -> None:
    code = (
        "import atexit, ctypes, sys\n"
        "from isthmus.cabi import tables as interface\n"
        "table = interface.providers(ctypes.CDLL(sys.argv[1]))[0].table\n"
        "def late():\n"
        "    print(interface.function(table, 'backendFree')(backend), interface.function(table, 'backendGetBuildId')"
        "(ctypes.byref(text)), flush=True)\n"
        "atexit.register(late)\n"
        "text, backend = ctypes.c_char_p(), ctypes.c_void_p()\n"
        "print(interface.function(table, 'backendCreate')(None, None, ctypes.byref(backend)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, libraries / "libQnnCpu.so"], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("0\n0 1003\n", "")


WRONG = {
    "logFree": (0x999,),
    "logSetLogLevel": (0x999, 3),
    "profileFree": (0x999,),
    "backendFree": (0x999,),
    "contextFree": (0x999, None),
    "graphFinalize": (0x999, None, None),
    "deviceFree": (0x999,),
    "profileGetEventData": (12345, ctypes.byref(objects.EventData())),
    "tensorCreateGraphTensor": (0x999, ctypes.byref(types.Tensor())),
}
WRONG_CREATIONS = {
    "contextCreate": (0x999, None, None),
    "graphCreate": (0x999, b"g", None),
    "graphRetrieve": (0x999, b"g"),
    "profileCreate": (0x999, 1),
    "backendCreate": (0x999, None),
    "deviceCreate": (0x999, None),
    "logCreate": (None, 99),
}


def test_wrong_handles_are_answered_as_the_vendors_library_does(htp: Client) -> None:
    package = pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    answers = {name: getattr(htp, name)(*arguments) for name, arguments in WRONG.items()}
    out = ctypes.c_void_p()
    answers |= {name: getattr(htp, name)(*arguments, ctypes.byref(out)) for name, arguments in WRONG_CREATIONS.items()}
    code = (
        "import sys, ctypes, json; from pathlib import Path; from capi.qnn_calls import Client\n"
        "from capi.test_functions import WRONG, WRONG_CREATIONS\n"
        "client, out = Client(Path(sys.argv[1])), ctypes.c_void_p()\n"
        "client.make('backendCreate', None, None)\n"
        "found = {name: getattr(client, name)(*arguments) for name, arguments in WRONG.items()}\n"
        "found |= {name: getattr(client, name)(*a, ctypes.byref(out)) for name, a in WRONG_CREATIONS.items()}\n"
        "print(json.dumps(found))\n"
    )
    done = run_client(code, package.get_qnn_htp_path())
    assert done.returncode == 0, done.stderr
    assert answers == answer(done.stdout)


@pytest.mark.parametrize("problem", [MemoryError, RuntimeError, OSError])
def test_a_failed_allocation_is_a_null_pointer_and_no_code(monkeypatch: pytest.MonkeyPatch, problem: type) -> None:
    def fail(*arguments: object) -> None:
        raise problem

    monkeypatch.setattr("isthmus.memory.rpcmem.alloc2", fail)
    monkeypatch.setattr("isthmus.memory.rpcmem.to_fd", fail)
    server = serve.LibraryServer("cdsprpc")
    assert server.rpcmem_alloc(25, 1, 4096) == 0
    monkeypatch.setattr("isthmus.capi.memory._buffers", {4096: object()})
    assert server.rpcmem_to_fd(4096) == -1


def test_released_handles_are_kept_nowhere() -> None:
    handles = Handles()
    owner = handles.add("backend")
    for _ in range(100):
        handles.remove(handles.add("memory", owner))
    assert (len(handles._objects), handles._owned[owner], handles._owner) == (1, set(), {})
    assert sorted(handles.remove(owner)) == ["backend"]


# -- configs and sizes -------------------------------------------------------------------------------------------------


def context_config(option: int, **values: Any) -> Any:
    """A list of one config."""
    config = objects.ContextConfig(option)
    for name, value in values.items():
        setattr(config, name, value)
    return (ctypes.POINTER(objects.ContextConfig) * 2)(ctypes.pointer(config))


def test_a_config_that_is_not_given_stays_as_it_was(client: Client) -> None:
    backend = client.make("backendCreate", None, None)
    configs = context_config(objects.ContextOption.PRIORITY, priority=qnn.Priority.HIGH)
    context = client.make("contextCreate", backend, None, configs)
    client.do("contextSetConfig", context, context_config(objects.ContextOption.ERROR_REPORTING))
    client.do("contextSetConfig", context, None)
    doubling(client, context, "created later")
    (graph,) = [graph for graph in capi.graphs() if graph.name == "created later"]
    assert graph.driver.priority == qnn.Priority.HIGH
    client.do("contextSetConfig", context, context_config(objects.ContextOption.PRIORITY, priority=qnn.Priority.LOW))
    doubling(client, context, "created last")
    (graph,) = [graph for graph in capi.graphs() if graph.name == "created last"]
    assert graph.driver.priority == qnn.Priority.LOW
    wrong = context_config(objects.ContextOption.PRIORITY, priority=7)
    assert client.contextSetConfig(context, wrong) == Code.CONTEXT_INVALID_CONFIG
    client.do("backendFree", backend)


def test_configs_of_signals_and_profiles_that_are_refused_change_nothing(client: Client) -> None:
    backend, _ = opened(client)
    right, wrong = objects.SignalConfig(objects.SignalOption.TIMEOUT), objects.SignalConfig(77)
    right.timeoutDurationUs = 5_000_000
    signal = client.make("signalCreate", backend, None)
    both = (ctypes.POINTER(objects.SignalConfig) * 3)(ctypes.pointer(right), ctypes.pointer(wrong))
    assert client.signalSetConfig(signal, both) == Code.COMMON_INVALID_ARGUMENT
    server = next(server for server in serve.servers() if signal in dict(server.handles.of_kind(qnn.Signal)))
    assert dict(server.handles.of_kind(qnn.Signal))[signal].timeout_us is None
    client.do("backendFree", backend)


@pytest.mark.parametrize("dims", [(1 << 16,) * 4, ((1 << 32) - 1,) * 8, (0, *((1 << 32) - 1,) * 3)])
def test_dimensions_whose_product_no_number_holds_are_refused(client: Client, dims: tuple[int, ...]) -> None:
    backend, context = opened(client)
    graph = client.make("graphCreate", context, b"huge", None)
    for kind in (TensorType.STATIC, TensorType.NATIVE):
        tensor = client.tensor("huge", kind, F32, dims, data=np.zeros(4, np.float32))
        assert client.tensorCreateGraphTensor(graph, ctypes.byref(tensor)) == Code.TENSOR_INVALID_TENSOR_PARAM
    client.do("backendFree", backend)


# -- plain errors of what is asked from Python -------------------------------------------------------------------------


def test_a_function_that_a_table_does_not_have_is_a_plain_error(client: Client) -> None:
    table = client.provider.table
    for name in ("graphFly", "systemContextCreate", "", None, "_fields_"):
        with pytest.raises(QnnError, match=re.escape(f"function {name!r}: the table has no function of that name")):
            interface.function(table, name)
    with pytest.raises(QnnError, match="function 'reserved72': its parameters are not documented"):
        interface.function(table, "reserved72")


def test_a_library_without_providers_is_a_plain_error(libraries: Path) -> None:
    libc = ctypes.CDLL("libc.so.6")
    with pytest.raises(QnnError, match=r"library 'libc.so.6': it has no QnnInterface_getProviders"):
        interface.providers(libc)
    with pytest.raises(QnnError, match="it has no QnnSystemInterface_getProviders"):
        interface.system_providers(ctypes.CDLL(str(libraries / "libQnnCpu.so")))


def test_a_node_without_names_has_empty_ones(client: Client) -> None:
    config = client.operation("n", "Relu", [], [], {"axis": (0x132, 1)})
    config.v1.name = config.v1.packageName = config.v1.typeName = config.v1.params[0].name = None
    node = values.node_at(ctypes.addressof(config))
    assert (node.name, node.package, node.op, node.params) == ("", "", "", {"": 1})
    config.version = 2
    with pytest.raises(QnnError, match=re.escape("node '' (): the version 2 of its config is not 1")):
        values.node_at(ctypes.addressof(config))


def test_a_profile_keeps_no_more_than_its_latest_events() -> None:
    handles = Handles()
    with qnn.Backend("cpu") as backend:
        profile = records.ClientProfile(SimpleNamespace(handles=handles), backend, 1)  # type: ignore[arg-type]
        for count in (3, 2, 4):
            profile.replace([(records.EventType.EXECUTE, "time", 1.0)] * count)
            present = [number for number, _ in handles.of_kind(records.ClientEvent)]
            assert present == list(profile.events) == profile._event_handles
            assert len(present) == count


@pytest.mark.parametrize("by", [Interrupt, Alarm])
def test_what_is_added_in_an_interrupted_call_ends_with_its_owner(by) -> None:
    handles = Handles()

    owner, count = 1, 0
    for where in everywhere(lambda: handles.add("owned", owner), by=by):
        handles.remove(owner)
        assert not handles.of_kind(str), f"interrupted at {where}"
        count += 1
    assert count > 3


def test_a_back_end_whose_number_never_got_to_the_client_is_freed() -> None:
    server = serve.LibraryServer("QnnCpu")
    out = ctypes.c_void_p()

    def action() -> None:
        for number, _ in server.handles.of_kind(qnn.Backend):
            server.backendFree(number)
        out.value = 0
        server.backendCreate(0, 0, ctypes.addressof(out))

    count = 0
    for where in everywhere(action, outside=("json", "enum.py", "dataclasses", "functools", "config", "ctypes")):
        known = {number for number, _ in server.handles.of_kind(qnn.Backend)}
        assert known <= {out.value}, f"interrupted at {where}"
        count += 1
    assert count > 5
    for number, _ in server.handles.of_kind(qnn.Backend):
        assert server.backendFree(number) == 0
