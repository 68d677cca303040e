"""Contexts, graphs, executions and what is said of binaries: each field that is written, and each refusal."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import platform
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cabi.test_writer import check_encoding
from support import dlc_graphs, dlc_write
from support.waiting import PATIENCE

from capi.qnn_calls import at, in_handle
from capi.served import F32, UNREADABLE, Served
from isthmus import qnn
from isthmus.cabi import objects, system, types
from isthmus.cabi.tables import BACKEND_FUNCTIONS, Interface
from isthmus.cabi.tensors import tensor_fields
from isthmus.capi import context as contexts
from isthmus.capi import dlc, execution
from isthmus.capi.graph import ClientGraph
from isthmus.capi.records import ClientProfile
from isthmus.errors import Code
from isthmus.frontends import dlc as files
from isthmus.frontends.composed.entries import EncodingEntry
from isthmus.graph import DataType, TensorType
from isthmus.log import LogLevel
from isthmus.qnn.recorder import Recorder
from isthmus.version import PRODUCER

NULL = "its arguments: a pointer is null"


@pytest.fixture
def served() -> Served:
    return Served("QnnCpu")


# -- contexts ----------------------------------------------------------------------------------------------------------


def binary_of(served: Served, context: int) -> np.ndarray:
    size, written = ctypes.c_uint64(), ctypes.c_uint64(7)
    served.do("contextGetBinarySize", context, size)
    binary = np.zeros(size.value, np.uint8)
    served.do("contextGetBinary", context, binary, len(binary), written)
    assert written.value == len(binary)
    return binary


def test_a_binary_has_one_byte_at_least_and_not_more_than_any_memory(served: Served) -> None:
    backend, _ = served.opened()
    out, content = ctypes.c_uint64(7), np.zeros(64, np.uint8)
    for name, more in (("contextCreateFromBinary", (out, 0)), ("contextCreateFromBinaryWithSignal", (out, 0, 0)),
                       ("contextValidateBinary", ())):  # fmt: skip
        for nbytes in (0, (1 << 40) + 1):
            assert served.refused(name, backend, 0, 0, content, nbytes, *more) == (
                Code.CONTEXT_INVALID_ARGUMENT, f"context binary: it cannot have {nbytes} bytes",
            )  # fmt: skip
        for nbytes in (1, 64):
            assert "it cannot have" not in served.refused(name, backend, 0, 0, content, nbytes, *more)[1]
        assert served.refused(name, backend, 0, 0, content, 1 << 40, *more)[1].endswith(
            "are not memory of this process"
        )
        assert served.refused(name, backend, 0, 0, 0, 64, *more) == (Code.CONTEXT_INVALID_ARGUMENT, NULL)
    assert out.value == 0


def test_a_binary_is_made_once_for_its_size_and_its_bytes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    _, context = served.opened()
    served.ready(context)
    made: list[int] = []
    get_binary = qnn.Context.get_binary
    monkeypatch.setattr(qnn.Context, "get_binary", lambda self: made.append(1) or get_binary(self))
    binary = binary_of(served, context)
    assert len(made) == 1
    written = ctypes.c_uint64(7)
    served.do("contextGetBinary", context, binary, len(binary), written)
    assert (len(made), written.value) == (2, len(binary))
    written.value = 7
    small = served.refused("contextGetBinary", context, binary, len(binary) - 1, written)
    rule = f"buffer for a context binary: {len(binary) - 1} bytes are not enough for {len(binary)}"
    assert small == (Code.CONTEXT_GET_BINARY_FAILED, rule)


def test_a_graph_that_is_added_after_the_size_was_asked_is_in_the_binary(served: Served) -> None:
    """The binary that was made to tell the size does not have it."""
    _, context = served.opened()
    served.ready(context, b"one")
    size = ctypes.c_uint64()
    served.do("contextGetBinarySize", context, size)
    served.ready(context, b"two")
    binary, written = np.zeros(1 << 20, np.uint8), ctypes.c_uint64()
    served.do("contextGetBinary", context, binary, len(binary), written)
    info = qnn.SystemContext().get_binary_info(binary[: written.value].tobytes())
    assert [each.name for each in info.graphs] == ["one", "two"]


def notified(served: Served) -> tuple[Any, list[tuple[Any, ...]]]:
    reported: list[tuple[Any, ...]] = []
    callback = objects.CONTEXT_NOTIFY(lambda *arguments: reported.append(arguments))
    return served.client.keep(callback), reported


def test_a_list_of_binaries_notifies_for_each_graph_then_for_each_binary(served: Served) -> None:
    backend, context = served.opened()
    served.ready(context, b"one")
    served.ready(context, b"two")
    binary = binary_of(served, context)
    callback, reported = notified(served)
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0

    def params(version: int = 1, notify: int = address, data: Any = binary, parameter: int = 5) -> Any:
        each = objects.ContextParams(version)
        each.v1.notifyFunc, each.v1.notifyParam = notify, parameter
        each.v1.binaryBuffer, each.v1.binaryBufferSize = served.number(data), len(binary)
        return each

    name = "contextCreateFromBinaryListAsync"
    served.do(name, backend, 0, served.listed(params(), params(data=bytes(len(binary)), parameter=6)), 0, 0)
    *graphs, whole, failed = reported
    assert [(context, name, kind, parameter, error) for context, _, name, kind, parameter, error in graphs] == [
        (None, b"one", 0, 5, 0), (None, b"two", 0, 5, 0),
    ]  # fmt: skip
    assert whole[0]
    assert whole[1:] == (None, None, 1, 5, 0)
    assert failed == (None, None, None, 1, 6, int(Code.CONTEXT_CREATE_FROM_BINARY))
    assert served.make("graphRetrieve", whole[0], b"one") == graphs[0][1]
    served.do("contextFree", whole[0], 0)
    reported.clear()
    parts = "it needs a buffer, a size and a callback to notify"
    for wrong, why in (
        (params(version=3), "its version must be 1 or 2"), (params(notify=0), parts), (params(data=0), parts),
    ):  # fmt: skip
        rule = f"binary of a list: {why}"
        listed = served.listed(params(), wrong)
        assert served.refused(name, backend, 0, listed, 0, 0) == (Code.CONTEXT_INVALID_ARGUMENT, rule)
    assert served.refused(name, backend, 0, served.listed(), 0, 0) == (
        Code.CONTEXT_INVALID_ARGUMENT, "list of binaries: it is empty",
    )  # fmt: skip
    assert served.refused(name, backend, 0, 0, 0, 0) == (Code.CONTEXT_INVALID_ARGUMENT, NULL)
    assert reported == [], "all are checked before the first"


def test_graphs_that_are_not_enabled_cannot_be_retrieved(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend, context = served.opened()
    served.ready(context, b"one")
    served.ready(context, b"two")
    binary = binary_of(served, context)

    def config(option: int, *names: bytes) -> Any:
        each = objects.ContextConfig(option)
        listed = served.listed(*names)
        field = "enableGraphs" if option == 5 else "graphRetentionOrder"
        setattr(each, field, ctypes.cast(listed, ctypes.POINTER(ctypes.c_char_p)))
        return each

    def created(*configs: Any) -> int:
        out = ctypes.c_uint64()
        served.do("contextCreateFromBinary", backend, 0, served.listed(*configs), binary, len(binary), out, 0)
        return out.value

    def refused(*configs: Any) -> tuple[int, str]:
        more = (binary, len(binary), ctypes.c_uint64(), 0)
        return served.refused("contextCreateFromBinary", backend, 0, served.listed(*configs), *more)

    some = created(config(5, b"one"))
    assert served.make("graphRetrieve", some, b"one")
    assert served.refused("graphRetrieve", some, b"two", ctypes.c_uint64()) == (
        Code.GRAPH_INVALID_NAME, "graph 'two': the context has 'one'",
    )  # fmt: skip
    assert served.refused("graphRetrieve", some, 0, ctypes.c_uint64())[1].startswith("graph '': ")
    assert refused(config(5, b"one", b"four", b"three")) == (
        Code.CONTEXT_INVALID_CONFIG, "context binary: it has no graph four, three",
    )  # fmt: skip
    # The order of retention names graphs that are enabled, each once.
    invalid = Code.CONTEXT_INVALID_CONFIG
    invalid_configs = "Failed to validate graph switching configs. Please provide valid configs."
    unknown = "context: Graph name {} provided does not exist in the context. " + invalid_configs
    twice = f"context: Duplicate graph name one provided in the retention list. {invalid_configs}"
    assert refused(config(10, b"one", b"one")) == (invalid, twice)
    assert refused(config(10, b"three")) == (invalid, unknown.format("three"))
    assert refused(config(5, b"one"), config(10, b"two")) == (invalid, unknown.format("two"))
    served.logged.clear()
    kept = created(config(10, b"two", b"one"))
    warning = "Graph retention order set without memory limit hint. Disabling graph switching mode."
    assert [each.message for each in caplog.records] == [warning]
    limit = objects.ContextConfig(6)
    limit.memoryLimitHint = 1
    served.logged.clear()
    served.do("contextSetConfig", kept, served.listed(limit, config(10, b"one")))
    late = "context option MEMORY_LIMIT_HINT = 1: without effect, its graphs are loaded as it was created"
    assert served.logged == [(LogLevel.INFO, late)]
    assert [each.message for each in caplog.records] == 2 * [warning]
    known = served.server.handles.get(kept, contexts.ClientContext, Code.CONTEXT_INVALID_HANDLE, "context")
    assert (known.handle.driver.loading.retained, known.is_composed) == (("one",), False)
    assert served.refused("contextSetConfig", some, served.listed(config(10, b"two"))) == (
        invalid, unknown.format("two"),
    )  # fmt: skip
    assert known.handle.driver.loading.retained == ("one",)
    assert served.refused("contextSetConfig", context, served.listed(config(10, b"one"))) == (
        invalid,
        "context: Invalid or duplicate graph names provided in graph switching config list. "
        "Provide valid graph names.",
    )  # fmt: skip
    served.do("contextSetConfig", context, served.listed(config(10)))
    # A list without an end is cut.
    monkeypatch.setattr(contexts, "_MAX_NAMES", 2)
    served.do("contextSetConfig", kept, served.listed(config(10, b"one", b"two", b"three")))
    assert known.handle.driver.loading.retained == ("one", "two")


def test_configs_of_a_context_are_set_all_or_none(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, context = served.opened()
    known = served.server.handles.get(context, contexts.ClientContext, Code.CONTEXT_INVALID_HANDLE, "context")
    assert known.priority is None
    priority = objects.ContextConfig(1)
    priority.priority = 200
    served.do("contextSetConfig", context, served.listed(priority))
    assert known.priority == 200
    lower = objects.ContextConfig(1)
    lower.priority = 0
    unknown = objects.ContextConfig(77)
    assert served.refused("contextSetConfig", context, served.listed(lower, unknown)) == (
        Code.COMMON_NOT_SUPPORTED, "context: it has no config 77",
    )  # fmt: skip
    wrong = objects.ContextConfig(1)
    wrong.priority = 5
    for name, arguments in (("contextSetConfig", (context,)), ("contextCreate", (backend, 0))):
        more = [ctypes.c_uint64()] * (name == "contextCreate")
        assert served.refused(name, *arguments, served.listed(wrong), *more) == (
            Code.CONTEXT_INVALID_CONFIG, "context: there is no priority 5",
        )  # fmt: skip
    assert known.priority == 200
    assert served.refused("contextSetConfig", context, served.listed(objects.ContextConfig(0)))[1] == NULL
    other = served.make("contextCreate", backend, 0, served.listed(lower))
    made = served.server.handles.get(other, contexts.ClientContext, Code.CONTEXT_INVALID_HANDLE, "context")
    assert made.priority == 0
    served.logged.clear()
    level = objects.ContextConfig(2)
    for number, name in enumerate(("BRIEF", "DETAILED", "2")):
        level.errorConfig.reportingLevel = number
        contexts.read_configs(served.server, [level])
        said = f"context option ERROR_REPORTING = {name}: accepted, but without effect here"
        assert served.logged.pop() == (LogLevel.INFO, said)
    assert served.refused("contextSetConfig", context, served.configs(objects.ContextConfig, 3)) == (
        Code.COMMON_NOT_SUPPORTED, "context option OEM_STRING: it is not supported",
    )  # fmt: skip
    settings: list[Any] = []
    monkeypatch.setattr(qnn.Context, "set_config", lambda self, given: settings.append(given))
    monkeypatch.setattr("isthmus.capi.options.settings", lambda server, noun, custom: {noun: custom})
    custom = served.configs(objects.ContextConfig, 0, customConfig=UNREADABLE)
    served.do("contextSetConfig", context, custom)
    assert settings == [{"context": UNREADABLE}]


@pytest.mark.parametrize("priority", [None, 0, 100, 200])
def test_graphs_of_a_binary_have_the_priority_of_their_context(
    served: Served, monkeypatch: pytest.MonkeyPatch, priority: int | None
) -> None:
    backend, context = served.opened()
    for name in (b"one", b"two"):
        served.ready(context, name)
    binary = binary_of(served, context)
    config = objects.ContextConfig(1)
    config.priority = priority or 0
    configs = 0 if priority is None else served.listed(config)
    made = ctypes.c_uint64()
    served.do("contextCreateFromBinary", backend, 0, configs, binary, len(binary), made, 0)
    known = served.server.handles.get(made.value, contexts.ClientContext, Code.CONTEXT_INVALID_HANDLE, "context")
    found = {name: graph.get_property(qnn.GraphConfig.PRIORITY) for name, graph in known.handle.graphs.items()}
    assert found == dict.fromkeys(("one", "two"), qnn.Priority.NORMAL if priority is None else priority)


def test_a_profile_has_the_microseconds_that_calls_for_a_context_take(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that shows three seconds more each time."""
    backend, context = served.opened()
    served.ready(context)
    binary = binary_of(served, context)
    profile, seconds = served.make("profileCreate", backend, 1), itertools.count(100, 3)
    noted: list[tuple[int, str, float]] = []
    # Of a context that was made without deferred graphs nothing is left to finalize.
    monkeypatch.setattr(qnn.Context, "finalize", lambda self: None)
    monkeypatch.setattr(contexts, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    monkeypatch.setattr(ClientProfile, "replace", lambda self, events, figures=(): noted.extend(events))
    arguments = (backend, 0, 0, binary, len(binary))
    other, signal = ctypes.c_uint64(), served.make("signalCreate", backend, 0)
    for name, more in (("contextCreateFromBinary", ()), ("contextCreateFromBinaryWithSignal", (signal,))):
        served.do(name, *arguments, other, profile, *more)
        served.do("contextFinalize", other.value, profile)
        served.do("contextFree", other.value, profile)
    assert noted == 2 * [
        (objects.EventType.INIT, "context created from binary", 3e6),
        (objects.EventType.INIT, "context finalized", 3e6),
        (objects.EventType.DEINIT, "context freed", 3e6),
    ]


# -- graphs ------------------------------------------------------------------------------------------------------------


def test_configs_of_a_graph_are_set_all_or_none(served: Served) -> None:
    backend, context = served.opened()
    profile = served.make("profileCreate", backend, 1)
    graph = served.make("graphCreate", context, b"net", served.configs(objects.GraphConfig, 4, profileHandle=profile))
    served.logged.clear()
    for option, name in ((5, "SET_PROFILING_STATE"), (6, "SET_PROFILING_NUM_EXECUTIONS")):
        served.do("graphSetConfig", graph, served.configs(objects.GraphConfig, option))
        assert served.logged.pop() == (LogLevel.INFO, f"graph option {name}: accepted, but without effect here")
    for option, code, rule in (
        (77, Code.COMMON_NOT_SUPPORTED, "graph: it has no config 77"), (0, Code.GRAPH_INVALID_ARGUMENT, NULL),
    ):  # fmt: skip
        configs = served.configs(objects.GraphConfig, option)
        assert served.refused("graphSetConfig", graph, configs) == (code, rule)
        assert served.refused("graphCreate", context, b"other", configs, ctypes.c_uint64()) == (code, rule)
    wrong = served.configs(objects.GraphConfig, 4, profileHandle=0x99)
    assert served.refused("graphSetConfig", graph, wrong) == (
        Code.GRAPH_INVALID_ARGUMENT, "profile handle 0x99: unknown handle. It may have been freed.",
    )  # fmt: skip
    # A graph that was refused has left its name.
    assert served.make("graphCreate", context, b"other", 0)
    events, count = ctypes.c_uint64(), ctypes.c_uint32()
    finalized, _, _ = served.composed(context, b"third")
    served.do("graphSetConfig", finalized, served.configs(objects.GraphConfig, 4, profileHandle=profile))
    served.do("graphFinalize", finalized, 0, 0)
    served.do("profileGetEvents", profile, events, count)
    assert count.value >= 1, "it has the profile of its config"
    served.do("graphSetConfig", finalized, served.configs(objects.GraphConfig, 4))


def test_a_tensor_that_a_graph_cannot_take_is_refused(served: Served) -> None:
    _, context = served.opened()
    graph = served.make("graphCreate", context, b"net", 0)
    make = served.client.tensor
    name = "tensorCreateGraphTensor"
    assert served.refused(name, graph, 0) == (Code.TENSOR_INVALID_HANDLE, "tensor: its description is null")
    absent = make("", TensorType.NULL, F32, ())
    served.do(name, graph, absent)
    assert absent.v1.id == 0
    handle = make("w", TensorType.STATIC, F32, (2,), data=np.zeros(2, np.float32))
    handle.v1.memType = 1
    rule = "tensor 'w': the memory type of a static tensor must be RAW"
    assert served.refused(name, graph, handle) == (Code.TENSOR_INVALID_TENSOR_PARAM, rule)
    invalid, unsupported = Code.TENSOR_INVALID_TENSOR_PARAM, Code.TENSOR_UNSUPPORTED_TENSOR_PARAM
    for fields, code, rule in (
        ({"memType": 2}, unsupported, "callbacks for its data are not supported"),
        ({"memType": 3}, invalid, "its memory type 3 is neither RAW nor MEMHANDLE"),
        ({"type": 6}, unsupported, "its type UPDATEABLE_STATIC is not supported"),
        ({"type": 14}, unsupported, "its type 14 is not supported"),
        ({"dataType": 0x999}, invalid, "its data type 0x999 is not known"),
    ):
        wrong = make("x", TensorType.APP_WRITE, F32, (2,))
        for field, value in fields.items():
            setattr(wrong.v1, field, value)
        assert served.refused(name, graph, wrong) == (code, f"tensor 'x': {rule}")
    large = make("x", TensorType.APP_WRITE, F32, (1 << 31, 1 << 29, 0, 2))
    assert served.refused(name, graph, large) == (
        invalid, "tensor 'x': its dimensions [2147483648, 536870912, 0, 2] are those of no memory",
    )  # fmt: skip
    largest = make("x", TensorType.APP_WRITE, F32, (1 << 31, 1 << 29, 0))
    assert "those of no memory" not in ((served.call(name, graph, largest) and served.server.reason(invalid)) or "")
    blocks = served.client.quantize_blocks([1], [0.5, 0.25])
    assert served.refused(name, graph, make("q", TensorType.NATIVE, 0x308, (2,), blocks)) == (
        unsupported, "tensor 'q': only static tensors have a quantization in blocks",
    )  # fmt: skip
    plain = types.QuantizeParams(types.Definition.DEFINED, 6)
    assert served.refused(name, graph, make("q", TensorType.NATIVE, 0x308, (2,), plain)) == (
        unsupported, "tensor 'q': its quantization encoding VECTOR is not supported",
    )  # fmt: skip
    plain.quantizationEncoding = 77
    assert served.refused(name, graph, make("q", TensorType.NATIVE, 0x308, (2,), plain))[1] == (
        "tensor 'q': its quantization encoding 77 is not supported"
    )


def changed(tensor: Any, **fields: Any) -> Any:
    copy = types.Tensor.from_buffer_copy(tensor)
    for name, value in fields.items():
        setattr(copy.v1, name, value)
    return copy


def test_a_node_that_a_graph_cannot_take_is_refused(served: Served) -> None:
    _, context = served.opened()
    graph = served.make("graphCreate", context, b"net", 0)
    make = served.client.tensor
    x, y, n = (make(name, kind, F32, (2, 4)) for name, kind in (("x", 0), ("y", 1), ("n", 3)))
    for each in (x, y, n):
        served.do("tensorCreateGraphTensor", graph, each)
    invalid, what = Code.GRAPH_INVALID_OP_CONFIG, "node 'r' (Relu)"

    def refused(inputs: list[Any], outputs: list[Any], **fields: Any) -> tuple[int, str]:
        node = served.client.operation("r", "Relu", inputs, outputs)
        for field, value in fields.items():
            setattr(node if field == "version" else node.v1, field, value)
        return served.refused("graphAddNode", graph, node)

    hint = "Create the tensor first; its id is written into its description."
    shape = served.client.keep((ctypes.c_uint32 * 2)(4, 2))
    assert refused([changed(x, id=9)], [y]) == (
        invalid, f"{what}: tensor 'x' has the id 9, and the graph none of that id. {hint}",
    )  # fmt: skip
    assert refused([changed(x, id=2)], [y]) == (invalid, f"{what}: tensor 'x' has the id 2, which is that of 'y'")
    created = "and was created as FLOAT_32[2, 4]"
    assert refused([changed(x, dimensions=shape)], [y]) == (
        invalid, f"{what}: tensor 'x' is described as FLOAT_32[4, 2], {created}",
    )  # fmt: skip
    assert refused([changed(x, dataType=0x32)], [y])[1] == f"{what}: tensor 'x' is described as INT_32[2, 4], {created}"
    assert refused([x], [changed(n, memType=1)]) == (
        invalid, f"{what}: tensor 'n' is MEMHANDLE there, which only graph inputs and outputs may be",
    )  # fmt: skip
    assert refused([x], [make("", TensorType.NULL, F32, ())]) == (invalid, f"{what}: an output cannot be absent")
    assert refused([x], [y], version=2) == (invalid, f"{what}: the version 2 of its config is not 1")
    for field, noun in (("numOfParams", "parameters"), ("numOfInputs", "inputs"), ("numOfOutputs", "outputs")):
        assert refused([x], [y], **{field: (1 << 14) + 1}) == (
            invalid, f"{what}: 16385 {noun} are more than any operation has",
        )  # fmt: skip
    assert refused([x], [y], packageName=b"own") == (
        Code.GRAPH_UNCONNECTED_NODE,
        f"{what}: there is no op package 'own'. Registered are {' and '.join(sorted(packages(served, context)))}.",
    )
    assert refused([x], [y], typeName=b"Rel") == (
        invalid, "node 'r' (Rel): op package 'qti.aisw' has no such operation",
    )  # fmt: skip
    # A description without a name is that of the tensor with its id; memory handles may be announced here.
    node = served.client.operation("r", "Relu", [changed(x, name=None, memType=1)], [y])
    served.do("graphAddNode", graph, node)
    served.do("graphFinalize", graph, 0, 0)
    (known,) = [each for _, each in served.server.handles.of_kind(ClientGraph)]
    assert [(each.name, int(each.mem_type)) for each in known.handle.info.tensors] == [("x", 1), ("y", 0)]


def packages(served: Served, context: int) -> set[str]:
    known = served.server.handles.get(context, contexts.ClientContext, Code.CONTEXT_INVALID_HANDLE, "context")
    return {each.package for each in known.handle.backend.driver.definitions.values()}


def test_parameters_that_cannot_be_read_are_refused(served: Served) -> None:
    backend, context = served.opened()
    graph = served.make("graphCreate", context, b"net", 0)
    make = served.client.tensor
    x, y = (make(name, kind, F32, (2, 4)) for name, kind in (("x", 0), ("y", 1)))
    for each in (x, y):
        served.do("tensorCreateGraphTensor", graph, each)

    def softmax(dtype: int = 0x132, kind: int = 0) -> Any:
        node = served.client.operation("s", "Softmax", [x], [y], {"axis": (0x132, 1)})
        node.v1.params[0].scalarParam.dataType, node.v1.params[0].paramType = dtype, kind
        return node

    invalid, what = Code.GRAPH_INVALID_OP_CONFIG, "node 's' (Softmax)"
    for number, name in ((0x999, "0x999"), (0x308, "SFIXED_POINT_8")):
        assert served.refused("graphAddNode", graph, softmax(number)) == (
            invalid, f"{what}: the data type {name} of parameter 'axis' is not one of a number",
        )  # fmt: skip
    assert served.refused("graphAddNode", graph, softmax(kind=2)) == (
        invalid, f"{what}: parameter 'axis' is neither a scalar nor a tensor",
    )  # fmt: skip
    turn = served.client.operation("t", "Transpose", [x], [y], tensors={"perm": np.array([0, 1], np.uint32)})
    turn.v1.params[0].tensorParam.v1.clientBuf.data = None
    assert served.refused("graphAddNode", graph, turn) == (
        invalid, "node 't' (Transpose): parameter 'perm' has no data",
    )  # fmt: skip
    code = Code.OP_PACKAGE_VALIDATION_FAILURE
    assert served.refused("backendValidateOpConfig", backend, softmax(0x999)) == (
        code, f"{what}: the data type 0x999 of parameter 'axis' is not one of a number",
    )  # fmt: skip
    declared = served.refused("backendValidateOpConfig", backend, softmax(0x32))
    assert declared == (code, f"{what}: parameter 'axis' has the data type 0x32, and must be UINT_32")
    served.do("backendValidateOpConfig", backend, softmax())
    served.do("graphAddNode", graph, softmax())


# -- executions --------------------------------------------------------------------------------------------------------


def test_tensors_that_an_execution_cannot_take_are_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    _, context = served.opened()
    graph, x, y = served.ready(context)
    what = "graph 'twice'"
    given, made = at(x, np.ones(8, np.float32)), at(y, np.zeros(8, np.float32))

    def refused(inputs: list[Any], outputs: list[Any], counts: tuple[int, int] | None = None) -> tuple[int, str]:
        arrays = [(types.Tensor * max(len(each), 1))(*each) for each in (inputs, outputs)]
        numbers = counts or (len(inputs), len(outputs))
        before = (graph, arrays[0] if inputs else 0, numbers[0], arrays[1] if outputs else 0, numbers[1])
        first = served.refused("graphExecute", *before, 0, 0)
        assert served.refused("graphExecuteAsync", *before, 0, 0, 0, 0) == first
        return first

    tensor = Code.GRAPH_INVALID_TENSOR
    assert refused([], [made]) == (Code.GRAPH_INVALID_ARGUMENT, f"{what}: it has inputs, and none is given")
    assert refused([given], []) == (Code.GRAPH_INVALID_ARGUMENT, f"{what}: it has outputs, and none is given")
    assert refused([], [made], (1, 1)) == (Code.GRAPH_INVALID_ARGUMENT, NULL)
    third = types.Tensor.from_buffer_copy(given)
    third.version = 3
    assert refused([third], [made]) == (tensor, f"input 0 of {what}: its version 3 is neither 1 nor 2")
    zeroth = types.Tensor.from_buffer_copy(made)
    zeroth.version = 0
    assert refused([given], [zeroth]) == (tensor, f"output 0 of {what}: its version 0 is neither 1 nor 2")
    hint = "Use the description that tensorCreateGraphTensor or the binary's information has filled in."
    assert refused([given, changed(given, id=9)], [made]) == (
        tensor, f"input 1 of {what}: the graph has no input or output of the id 9. {hint}",
    )  # fmt: skip
    assert refused([changed(given, dataType=0x32)], [made]) == (
        tensor, f"input 'x' of {what}: it is INT_32, and was created as FLOAT_32",
    )  # fmt: skip
    assert refused([changed(given, dataType=0x999)], [made])[1].endswith("it is 0x999, and was created as FLOAT_32")
    many = served.client.keep((ctypes.c_uint32 * 16)(*range(16)))
    assert refused([changed(given, rank=16, dimensions=many)], [made])[1] == (
        f"input 'x' of {what}: it has the dimensions {list(range(9))}, and was created with [1, 8]"
    )
    assert refused([in_handle(x, 0)], [made]) == (tensor, "input 'x': its memory handle is null")
    assert refused([in_handle(x, 0x99)], [made])[0] == Code.MEM_INVALID_HANDLE
    assert refused([changed(given, memType=2)], [made]) == (
        tensor, "input 'x': its memory type 2 is neither RAW nor MEMHANDLE",
    )  # fmt: skip
    assert refused([made], [made])[1] == f"input 'x' of {what}: it is not given"
    assert refused([given], [given])[1] == f"output 'y' of {what}: it is not given"
    monkeypatch.setattr(execution, "MAX_TENSORS", 2)
    assert refused([given] * 3, [made]) == (Code.GRAPH_INVALID_ARGUMENT, f"{what}: it has no 3 inputs")
    assert refused([given], [made] * 3)[1] == f"{what}: it has no 3 outputs"
    assert "it has no" not in refused([given] * 2, [made])[1]
    # What a client leaves out of a description is as it was created.
    blank = changed(given, dataType=0, rank=0, dimensions=None)
    assert callable(served.call("graphExecute", graph, blank, 1, made, 1, 0, 0))
    undefined = changed(given, dataType=types.UNDEFINED)
    assert callable(served.call("graphExecute", graph, undefined, 1, made, 1, 0, 0))


def test_the_profile_of_a_call_comes_before_that_of_its_graph(served: Served) -> None:
    backend, context = served.opened()
    own, given = (served.make("profileCreate", backend, 1) for _ in range(2))

    def collected() -> list[bool]:
        """Return whether each has events, of which the next call finds none."""
        found = []
        for profile in (own, given):
            events, count = ctypes.c_uint64(), ctypes.c_uint32()
            served.do("profileGetEvents", profile, events, count)
            found.append(count.value > 0)
            known = served.server.handles.get(profile, ClientProfile, Code.PROFILE_INVALID_HANDLE, "profile")
            known.replace([])
        return found

    done = threading.Event()
    vars(served.server)["notify"] = lambda callback, parameter, error: done.set()
    for profile, expected in ((given, [False, True]), (0, [True, False])):
        graph, x, y = served.composed(context, b"net%d" % profile)
        served.do("graphSetConfig", graph, served.configs(objects.GraphConfig, 4, profileHandle=own))
        served.do("graphFinalize", graph, profile, 0)
        assert collected() == expected
        arguments = (graph, at(x, np.ones(8, np.float32)), 1, at(y, np.zeros(8, np.float32)), 1, profile, 0)
        assert served.call("graphExecute", *arguments) == 0
        assert collected() == expected
        done.clear()
        served.do("graphExecuteAsync", *arguments, 1, 0)
        assert done.wait(PATIENCE)
        assert collected() == expected


def test_an_execution_is_repeated_natively_unless_it_has_a_signal_or_a_profile(served: Served) -> None:
    backend, context = served.opened()
    graph, x, y = served.ready(context)
    given, made = np.ones(8, np.float32), np.zeros(8, np.float32)
    arguments = (graph, at(x, given), 1, at(y, made), 1)
    again = served.call("graphExecute", *arguments, 0, 0)
    given[:] = 4
    assert again() == 0
    assert made.tolist() == [8] * 8
    signal = served.make("signalCreate", backend, 0)
    assert served.call("graphExecute", *arguments, 0, signal) == 0
    profile = served.make("profileCreate", backend, 1)
    assert served.call("graphExecute", *arguments, profile, 0) == 0
    served.do("graphSetConfig", graph, served.configs(objects.GraphConfig, 4, profileHandle=profile))
    assert again() == -1, "its profile wants to know"
    served.do("graphSetConfig", graph, served.configs(objects.GraphConfig, 4))
    assert again() == 0
    served.do("contextFree", context, 0)
    assert again() == -1


def test_environments_say_where_inputs_and_outputs_are(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    _, context = served.opened()
    graph, x, y = served.ready(context)
    planned = {"x": np.zeros(8, np.float32)}, {"y": np.zeros(8, np.float32)}
    tensors = [(types.Tensor * 1)(types.Tensor.from_buffer_copy(each)) for each in (x, y)]
    for each in tensors:
        each[0].v1.memType = 77
    environment = objects.ExecuteEnvironment()
    environment.option = 1
    sets = environment.tensorSet.v1
    sets.numInputs = sets.numOutputs = 1
    sets.inputs, sets.outputs = (ctypes.cast(each, type(sets.inputs)) for each in tensors)
    listed = served.listed(environment, end=False)
    prepare, release = "graphPrepareExecutionEnvironment", "graphReleaseExecutionEnvironment"
    missing = "the back end has no memory of its own for it"
    monkeypatch.setattr(qnn.Graph, "inputs", property(lambda graph: {}))
    assert served.refused(prepare, graph, listed, 1) == (
        Code.GRAPH_INVALID_TENSOR, f"tensor 'x' of graph 'twice': {missing}",
    )  # fmt: skip
    monkeypatch.setattr(qnn.Graph, "inputs", property(lambda graph: planned[0]))
    monkeypatch.setattr(qnn.Graph, "outputs", property(lambda graph: planned[1]))
    served.do(prepare, graph, listed, 1)
    for each, memory in zip(tensors, (planned[0]["x"], planned[1]["y"]), strict=True):
        fields = each[0].v1
        assert (fields.memType, fields.clientBuf.data, fields.clientBuf.dataSize) == (0, memory.ctypes.data, 32)
    served.do(release, graph, listed, 1)
    environment.option = 0
    assert served.refused(prepare, graph, listed, 1) == (
        Code.COMMON_NOT_SUPPORTED, "graph 'twice': memory handles are bound by the executions that bring them",
    )  # fmt: skip
    environment.option = 1
    tensors[1][0].v1.id = 9
    assert served.refused(prepare, graph, listed, 1)[1] == f"tensor '' of graph 'twice': {missing}"
    sets.outputs = None
    assert served.refused(prepare, graph, listed, 1) == (Code.GRAPH_INVALID_ARGUMENT, NULL)
    for name in (prepare, release):
        assert served.refused(name, graph, 0, 1) == (Code.GRAPH_INVALID_ARGUMENT, NULL)
        assert served.refused(name, graph, listed, 4097) == (
            Code.GRAPH_INVALID_ARGUMENT, "graph 'twice': it has no 4097 environments",
        )  # fmt: skip


# -- what is said of binaries ------------------------------------------------------------------------------------------


def test_a_binary_is_described_field_by_field() -> None:
    served, reader = Served("QnnHtp"), Served("QnnSystem")
    _, context = served.opened()
    graph = served.make("graphCreate", context, b"net", 0)
    quantized = served.client.quantize(0.5, -3)
    x = served.client.tensor("x", TensorType.APP_WRITE, DataType.UFIXED_POINT_8, (1, 8), quantized)
    y = served.client.tensor("y", TensorType.APP_READ, DataType.UFIXED_POINT_8, (1, 8), quantized)
    z = served.client.tensor("z", TensorType.APP_READ, DataType.UFIXED_POINT_8, (1, 8), quantized)
    y.v1.memType = 1
    for each in (x, y, z):
        served.do("tensorCreateGraphTensor", graph, each)
    served.do("graphAddNode", graph, served.client.operation("r", "Relu", [x], [y]))
    served.do("graphAddNode", graph, served.client.operation("s", "Relu", [x], [z]))
    served.do("graphFinalize", graph, 0, 0)
    binary = binary_of(served, context)
    handle = reader.make("systemContextCreate")
    out, size = ctypes.c_uint64(7), ctypes.c_uint64(7)
    reader.do("systemContextGetBinaryInfo", handle, binary, len(binary), out, size)
    assert size.value == ctypes.sizeof(system.BinaryInfo)
    reader.do("systemContextGetBinaryInfo", handle, binary, len(binary), out, 0)
    reader.do("systemContextGetMetaData", handle, binary, len(binary), out)
    info = system.BinaryInfo.from_address(out.value)
    v3 = info.contextBinaryInfoV3
    assert (info.version, v3.backendId, v3.buildId, v3.socVersion) == (3, 6, PRODUCER.encode(), b"")
    assert str(v3.coreApiVersion) == "2.40.0"
    assert str(v3.backendApiVersion) == str(types.Version(*served.server.facet.version))
    version = qnn.SystemContext().get_binary_info(binary.tobytes()).version
    assert version > 0
    assert str(v3.contextBlobVersion) == f"{version}.0.0"
    assert (v3.contextBlobSize, v3.numContextTensors, v3.numGraphs) == (len(binary), 0, 1)
    described = v3.graphs[0]
    inner = described.graphInfoV3
    assert (described.version, inner.graphName, inner.numGraphInputs, inner.numGraphOutputs) == (3, b"net", 1, 2)
    found = [inner.graphInputs[0], *inner.graphOutputs[:2]]
    assert [(each.version, each.v1.name, each.v1.id, each.v1.type, each.v1.memType) for each in found] == [
        (1, b"x", 1, 0, 0), (1, b"y", 2, 1, 1), (1, b"z", 3, 1, 0),
    ]  # fmt: skip
    for each in found:
        fields = tensor_fields(each)
        assert (fields.dtype, fields.dims) == (0x408, (1, 8))
        check_encoding(fields.encoding, EncodingEntry(np.array([0.5], np.float32), np.array([-3], np.int32)))
    reader.do("systemContextFree", handle)


def test_bytes_that_are_no_context_binary_are_refused() -> None:
    reader = Served("QnnSystem")
    handle, out, content = reader.make("systemContextCreate"), ctypes.c_uint64(7), np.zeros(64, np.uint8)
    name = "systemContextGetBinaryInfo"
    for nbytes in (0, (1 << 40) + 1):
        assert reader.refused(name, handle, content, nbytes, out, 0) == (
            Code.COMMON_INVALID_ARGUMENT, f"context binary: it cannot have {nbytes} bytes",
        )  # fmt: skip
    assert out.value == 0
    assert reader.refused(name, handle, 0, 64, out, 0)[1] == NULL
    for nbytes in (1, 64):
        reader.logged.clear()
        assert reader.call(name, handle, content, nbytes, out, 0) == 30010
        ((level, text),) = reader.logged
        assert level == LogLevel.ERROR
        assert text.startswith("systemContextGetBinaryInfo: [")
    reader.do("systemContextFree", handle)
    assert reader.call(name, handle, content, 64, out, 0) == 30000


@pytest.mark.parametrize(
    ("dtype", "dims", "nbytes"),
    [(0x232, (2, 3), 24), (0x408, (5,), 5), (0x304, (2, 3), 3), (0x404, (5,), 3), (0x304, (1,), 1), (0x232, (0, 3), 0)],
)
def test_the_footprint_of_a_tensor_is_its_elements(dtype: int, dims: tuple[int, ...], nbytes: int) -> None:
    reader, out = Served("QnnSystem"), ctypes.c_uint64(7)
    quantized = reader.client.quantize_bits(4, None, [0.5]) if dtype in (0x304, 0x404) else None
    tensor = reader.client.tensor("t", TensorType.NATIVE, dtype, dims, quantized)
    reader.do("systemTensorGetMemoryFootprint", tensor, out)
    assert out.value == nbytes
    absent = reader.client.tensor("t", TensorType.NULL, dtype, dims)
    assert reader.refused("systemTensorGetMemoryFootprint", absent, out) == (
        Code.COMMON_INVALID_ARGUMENT, "tensor 't': an absent tensor has no size",
    )  # fmt: skip


# -- DLCs --------------------------------------------------------------------------------------------------------------


class Composing:
    """A DLC of two graphs, and a table of functions that records what is composed."""

    def __init__(self) -> None:
        self.served = Served("QnnSystem")
        content = dlc_write.dlc([dlc_graphs.convolution("first"), dlc_graphs.convolution("second")])
        self.content = np.frombuffer(content, np.uint8)
        self.handle = self.served.make("systemDlcCreateFromBinary", 0, self.content, len(self.content))
        self.recorder = Recorder()
        self.interface = self.recorder.interface
        self.graphs, self.count = ctypes.c_uint64(7), (ctypes.c_uint32 * 2)(7, 7)

    def arguments(self, interface: Any = None, version: int = 1, configs: Any = 0, count: int = 0) -> list[Any]:
        table = self.interface if interface is None else interface
        return [self.handle, configs, count, 1, 2, table, version, self.graphs, self.count]

    def __call__(self, **changes: Any) -> Any:
        return self.served.call("systemDlcComposeGraphs", *self.arguments(**changes))

    def failed(self, **changes: Any) -> str:
        """Compose what cannot be: why not."""
        self.served.logged.clear()
        assert self(**changes) == Code.COMMON_MEM_ALLOC
        ((level, text),) = self.served.logged
        assert level == LogLevel.ERROR
        assert self.recorder.graphs == []
        assert (self.graphs.value, list(self.count)) == (0, [0, 7])
        return text.partition("] ")[2]


@pytest.fixture
def composing() -> Composing:
    return Composing()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_composed_graphs_are_described_in_memory_of_the_client(composing: Composing, version: int) -> None:
    assert composing(version=version) == 0
    assert list(composing.count) == [2, 7]
    infos = (system.GraphInfo * 2).from_address(composing.graphs.value)
    assert [info.version for info in infos] == [version, version]
    assert [info.graphInfoV3.graphName for info in infos] == [b"first", b"second"]
    for info, graph in zip(infos, composing.recorder.graphs, strict=True):
        inner = info.graphInfoV3
        found = [*inner.graphInputs[: inner.numGraphInputs], *inner.graphOutputs[: inner.numGraphOutputs]]
        expected = [each for kind in (0, 1) for each in graph.tensors if each.type == kind]
        assert [(each.v1.name, each.v1.type, each.v1.dataType) for each in found] == [
            (each.name.encode(), each.type, each.dtype) for each in expected
        ]
        for each, tensor in zip(found, expected, strict=True):
            assert tuple(each.v1.dimensions[: each.v1.rank]) == tensor.dims
            fields = tensor_fields(each)
            assert (fields.encoding is None) == (tensor.encoding is None)
            if tensor.encoding is not None:
                check_encoding(fields.encoding, tensor.encoding)


def test_versions_of_graph_information_are_1_to_3(composing: Composing) -> None:
    for version in (0, 4):
        assert composing.served.refused("systemDlcComposeGraphs", *composing.arguments(version=version)) == (
            Code.COMMON_INVALID_ARGUMENT,
            f"graph information: there is no version {version} of them; there are 1, 2 and 3",
        )
    assert composing.recorder.graphs == []


@pytest.mark.parametrize(
    "name",
    ["graphCreate", "tensorCreateGraphTensor", "backendValidateOpConfig", "graphAddNode", "propertyHasCapability"],
)
def test_a_table_without_a_function_that_composing_needs_is_refused(composing: Composing, name: str) -> None:
    setattr(composing.interface.table, name, None)
    assert composing.failed() == f"the back end's table: its entry {name} is null"


def configs_of(served: Served, *entries: tuple[bytes | None, int, int]) -> Any:
    """Configs of graphs: names, where they are and how many."""
    made = [system.DlcGraphConfigInfo(1, name) for name, _, _ in entries]
    for each, (_, address, count) in zip(made, entries, strict=True):
        each.graphConfigs = ctypes.cast(address, system.GRAPH_CONFIGS) if address else None
        each.numGraphConfigs = count
    return served.listed(*made, end=False)


def test_configs_of_graphs_are_passed_as_a_list_with_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, list[int] | None]] = []
    create = Recorder._graphCreate

    def noted(recorder: Recorder, context: int, name: bytes, configs: Any, out: Any) -> None:
        address = ctypes.cast(configs, ctypes.c_void_p).value
        listed = (ctypes.c_uint64 * 3).from_address(address) if address else None
        given.append((name.decode(), None if listed is None else list(listed)))
        create(recorder, context, name, configs, out)

    monkeypatch.setattr(Recorder, "_graphCreate", noted)
    made = Composing()
    served = made.served
    two = served.listed(0x100, 0x200, 0x300, end=False)
    assert made(configs=configs_of(served, (b"first", served.number(two), 2)), count=1) == 0
    assert given == [("first", [0x100, 0x200, 0]), ("second", None)]


def test_configs_that_cannot_be_are_refused(composing: Composing, monkeypatch: pytest.MonkeyPatch) -> None:
    served = composing.served
    wrong = configs_of(served, (b"third", 0, 0))
    assert composing.failed(configs=wrong, count=1) == "configs of graph 'third': the DLC has 'first', 'second'"
    unnamed = configs_of(served, (None, 0, 0))
    assert composing.failed(configs=unnamed, count=1) == "configs of graph '': the DLC has 'first', 'second'"
    nowhere = configs_of(served, (b"first", 0, 1))
    assert composing.failed(configs=nowhere, count=1) == NULL
    assert composing.failed(configs=0, count=1) == NULL
    monkeypatch.setattr(dlc, "MAX_CONFIGS", 2)
    assert composing.failed(configs=wrong, count=3) == "graph configs: 3 are too many, 2 at most"
    three = configs_of(served, (b"first", served.number(served.listed(0, 0, 0)), 3))
    assert composing.failed(configs=three, count=1) == "configs of graph 'first': 3 are too many, 2 at most"
    fine = configs_of(served, (b"first", 0, 0), (b"second", 0, 0))
    assert composing(configs=fine, count=2) == 0


ENTRIES = len(BACKEND_FUNCTIONS)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere a table is passed by its address")
class TestShorterTables:
    """A table of earlier headers ends where the last two arguments begin."""

    @staticmethod
    def shortened(composing: Composing, length: int, *behind: int, nulls: tuple[int, ...] = ()) -> Any:
        """The table with so many entries, and these words after them."""
        size = ctypes.sizeof(Interface) + 16
        memory = composing.served.client.keep((ctypes.c_uint64 * (size // 8))())
        ctypes.memmove(memory, ctypes.addressof(composing.interface), ctypes.sizeof(Interface))
        first = Interface.table.offset // 8
        for index in range(length, ENTRIES + 2):
            memory[first + index] = 0
        for index in nulls:
            memory[first + index] = 0
        for index, word in enumerate(behind):
            memory[first + length + index] = word
        return memory

    @pytest.mark.parametrize("length", [25, 26, 48, ENTRIES - 2, ENTRIES - 1])
    def test_the_arguments_behind_a_shorter_table_are_used(self, composing: Composing, length: int) -> None:
        graphs, count = ctypes.c_uint64(5), ctypes.c_uint32(5)
        places = [composing.served.number(each) for each in (graphs, count)]
        assert composing(interface=self.shortened(composing, length, *places)) == 0
        assert (bool(graphs.value), count.value) == (True, 2)
        assert (composing.graphs.value, composing.count[0]) == (7, 7), "those of a whole table are not written"

    def test_the_place_for_the_graphs_may_begin_a_page(self, composing: Composing) -> None:
        pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(first), mmap.PAGESIZE, 0) == 0
        place = first + mmap.PAGESIZE
        assert composing(interface=self.shortened(composing, 48, place, place + 8)) == 0
        assert ctypes.c_uint32.from_address(place + 8).value == 2

    @pytest.mark.parametrize("length", [ENTRIES, ENTRIES + 1])
    def test_a_whole_table_has_its_own_arguments(self, composing: Composing, length: int) -> None:
        graphs, count = ctypes.c_uint64(5), ctypes.c_uint32(5)
        places = [composing.served.number(each) for each in (graphs, count)][: ENTRIES + 2 - length]
        assert composing(interface=self.shortened(composing, length, *places)) == 0
        assert (graphs.value, count.value, composing.count[0]) == (5, 5, 2)

    def test_entries_may_be_null(self, composing: Composing) -> None:
        graphs, count = ctypes.c_uint64(5), ctypes.c_uint32(5)
        places = [composing.served.number(each) for each in (graphs, count)]
        assert composing(interface=self.shortened(composing, 48, *places, nulls=(30, 40, 46))) == 0
        assert count.value == 2

    @pytest.mark.parametrize(
        ("nulls", "second", "index"),
        [((47,), True, 48), ((30, 31), True, 48), ((), False, 48)],
        ids=["a null before", "two nulls", "one argument"],
    )
    def test_where_the_table_may_end_earlier_nothing_is_written(
        self, composing: Composing, nulls: tuple[int, ...], second: bool, index: int
    ) -> None:
        graphs, count = ctypes.c_uint64(5), ctypes.c_uint32(5)
        places = [composing.served.number(graphs), composing.served.number(count) if second else 0]
        table = self.shortened(composing, 48, *places, nulls=nulls)
        rule = f"word {index} of the back end's table is neither an entry nor, beyond doubt, the place for the graphs"
        assert composing.served.refused("systemDlcComposeGraphs", *composing.arguments(interface=table)) == (
            Code.COMMON_INVALID_ARGUMENT, f"its arguments: {rule}",
        )  # fmt: skip
        assert (graphs.value, count.value, composing.graphs.value, composing.count[0]) == (5, 5, 7, 7)

    def test_memory_for_machine_code_is_no_place_for_the_number_of_graphs(self, composing: Composing) -> None:
        """A just-in-time compiler's memory may be written and executed: an address there is that of a function."""
        try:
            pages = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        except PermissionError:
            pytest.skip("this system has no memory that can be written and executed")
        graphs, code = ctypes.c_uint64(5), ctypes.addressof(ctypes.c_char.from_buffer(pages))
        table = self.shortened(composing, 48, composing.served.number(graphs), code)
        assert composing.served.refused("systemDlcComposeGraphs", *composing.arguments(interface=table))[1].startswith(
            "its arguments: word 48 of the back end's table"
        )
        assert (graphs.value, bytes(pages[:8])) == (5, bytes(8))

    def test_a_word_that_is_no_address_ends_no_table(self, composing: Composing) -> None:
        for word in (UNREADABLE, ctypes.addressof(ctypes.c_char.from_buffer(bytearray(1))) | 1 << 60):
            table = self.shortened(composing, 48, word, composing.served.number(composing.count))
            assert composing.served.refused("systemDlcComposeGraphs", *composing.arguments(interface=table))[
                1
            ].startswith("its arguments: word 48 of the back end's table")


def test_a_dlc_has_one_byte_at_least(tmp_path: Path) -> None:
    served = Served("QnnSystem")
    content = np.zeros(64, np.uint8)
    for name, more in (("systemDlcCreateFromBinary", ()), ("systemDlcCreateFromBinaryWithDestinationDir", (b".",))):
        for nbytes in (0, (1 << 36) + 1):
            assert served.refused(name, 0, content, nbytes, *more, ctypes.c_uint64()) == (
                Code.COMMON_INVALID_ARGUMENT, f"DLC: it cannot have {nbytes} bytes",
            )  # fmt: skip
        assert served.refused(name, 0, 0, 64, *more, ctypes.c_uint64())[1] == NULL
        for nbytes in (1, 64):
            served.logged.clear()
            assert served.call(name, 0, content, nbytes, *more, ctypes.c_uint64()) == Code.COMMON_MEM_ALLOC
            ((level, text),) = served.logged
            assert (level, text.partition(": [")[0]) == (LogLevel.ERROR, "systemDlcCreate")
    made = Composing()
    assert made.served.refused("systemDlcSave", made.handle, b"/") == (
        Code.COMMON_INVALID_ARGUMENT, "DLC file: '/' is not a file name",
    )  # fmt: skip
    assert made.served.refused("systemDlcSave", made.handle, str(tmp_path / "no" / "a.dlc").encode()) == (
        Code.COMMON_INVALID_ARGUMENT,
        f"DLC file '{tmp_path}/no/a.dlc': it cannot be written: No such file or directory",
    )
    made.served.do("systemDlcSave", made.handle, str(tmp_path / "a.dlc").encode())
    assert (tmp_path / "a.dlc").read_bytes() == made.content.tobytes()


def test_the_bytes_and_records_of_a_dlc_can_be_read(composing: Composing) -> None:
    served, handle, out, count = composing.served, composing.handle, ctypes.c_uint64(7), (ctypes.c_uint32 * 2)(7, 7)
    served.do("systemDlcGetBinarySize", handle, out)
    assert out.value == len(composing.content)
    buffer = np.zeros(out.value, np.uint8)
    rule = f"buffer for a DLC: {len(buffer) - 1} bytes are not enough for {len(buffer)}"
    assert served.refused("systemDlcGetBinary", handle, buffer, len(buffer) - 1, out) == (1004, rule)
    assert out.value == 0
    assert not buffer.any()
    served.do("systemDlcGetBinary", handle, buffer, len(buffer), out)
    assert out.value == len(buffer)
    np.testing.assert_array_equal(buffer, composing.content)
    served.do("systemDlcGetOpMappings", handle, out, count)
    assert (out.value, list(count)) == (0, [0, 7])
    found = {}
    for kind in (1, 2, 3, 4, 7):
        served.do("systemDlcGetRecordsByType", handle, kind, 0, out, count)
        assert count[1] == 7
        assert bool(out.value) == bool(count[0])
        for record in (ctypes.c_uint64 * count[0]).from_address(out.value) if count[0] else ():
            place, size, again = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
            served.do("systemDlcReadRecordDataMemoryMapped", record, place, size)
            served.do("systemDlcGetRecordDataSize", record, again)
            assert size.value == again.value
            found[kind] = ctypes.string_at(place.value, size.value)
            served.do("systemDlcFreeRecord", record)
            assert served.call("systemDlcGetRecordDataSize", record, again) == 30000
    assert 2 in found
    by_name = served.make("systemDlcGetRecordByName", handle, b"model")
    served.do("systemDlcGetRecordDataSize", by_name, out)
    assert out.value == len(found[2])
    count[0] = 7
    assert served.refused("systemDlcGetRecordsByType", handle, 5, 0, out, count) == (
        1004, "record type 5: must be one of 1, 2, 3, 4, 7",
    )  # fmt: skip
    assert (out.value, count[0]) == (0, 0)
    code, rule = served.refused("systemDlcGetRecordByName", handle, b"other", out)
    assert code == 1004
    assert re.fullmatch("record 'other': the DLC has '[^']*'(, '[^']*')*", rule)
    served.do("systemDlcFree", handle)
    assert served.call("systemDlcGetBinarySize", handle, out) == 30000


def test_tensors_of_a_dlc_have_the_numbers_of_their_places(composing: Composing) -> None:
    """From 1, in each graph, among all of its tensors in the file."""
    entries = files.parse(memoryview(composing.content.tobytes()), "two.dlc").graphs
    served, graphs, count = composing.served, ctypes.c_uint64(), ctypes.c_uint32()
    served.do("systemDlcGetComposableGraphInfoHandles", composing.handle, graphs, count)
    assert count.value == len(entries) == 2
    handles = (ctypes.c_uint64 * 2).from_address(graphs.value)
    for graph, entry in zip(handles, entries, strict=True):
        for side, kind in (("Input", 0), ("Output", 1)):
            numbers = [number for number, each in enumerate(entry.tensors, 1) if each.type == kind]
            found = []
            for index in range(len(numbers)):
                tensor, number = ctypes.c_uint64(), ctypes.c_uint32()
                served.do(f"systemDlcGetGraphInfo{side}TensorInfo", graph, index, tensor)
                served.do("systemDlcGetTensorInfoId", tensor.value, number)
                found.append(number.value)
            assert found == numbers
