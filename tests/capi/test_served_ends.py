"""What calls leave behind: files, events, memory of the client, results of executions that fail."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cabi.test_writer import ENCODINGS, check_encoding
from support.waiting import PATIENCE

from capi.qnn_calls import at
from capi.served import F32, UNREADABLE, Served
from capi.test_served_graphs import Composing, binary_of, notified
from isthmus import capi, qnn
from isthmus.backends.htp import headers as htp_headers
from isthmus.backends.htp.options import HtpGraphConfigOption
from isthmus.backends.seam.runner import RunnerBinding
from isthmus.cabi import objects, other_backends, system
from isthmus.cabi.tensors import tensor_fields
from isthmus.cabi.writer import write_tensor
from isthmus.capi import dlc, extensions, options, records, serve
from isthmus.capi.values import node_at
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor
from isthmus.graph import DataType, TensorType
from isthmus.log import LogLevel


@pytest.fixture
def served() -> Served:
    return Served("QnnCpu")


# -- backends ----------------------------------------------------------------------------------------------------------


def test_of_a_backends_configs_only_the_reports_of_errors_can_be_changed_later(served: Served) -> None:
    backend = served.make("backendCreate", 0, served.configs(objects.BackendConfig, 1))
    served.do("backendSetConfig", backend, served.configs(objects.BackendConfig, 1))
    for option in (0, 2):
        assert served.refused("backendSetConfig", backend, served.configs(objects.BackendConfig, option)) == (
            Code.BACKEND_NOT_SUPPORTED, f"backend: config {objects.BackendOption(option).name} cannot be changed later",
        )  # fmt: skip
    unknown = (Code.BACKEND_INVALID_CONFIG, "backend: it has no config 3")
    assert served.refused("backendSetConfig", backend, served.configs(objects.BackendConfig, 3)) == unknown
    out = ctypes.c_uint64()
    assert served.refused("backendCreate", 0, served.configs(objects.BackendConfig, 3), out) == unknown
    assert served.refused("backendCreate", 0, served.configs(objects.BackendConfig, 2), out) == (
        Code.BACKEND_INVALID_CONFIG, "backend: its platform option is null",
    )  # fmt: skip
    option = objects.BackendConfig(2)
    option.platformOption = b"colour:blue"
    served.logged.clear()
    assert served.make("backendCreate", 0, served.listed(option))
    assert served.logged == [(LogLevel.INFO, "platform option 'colour' has no effect here")]
    option.platformOption = b"config_file_path:/nowhere/config.json"
    other = Served("QnnLpai")
    code, rule = other.refused("backendCreate", 0, other.listed(option), out)
    assert (code, "/nowhere/config.json" in rule) == (Code.BACKEND_INVALID_CONFIG, True), rule


@pytest.mark.parametrize(
    ("code", "reported"),
    [(Code.BACKEND_INVALID_ARGUMENT, Code.BACKEND_CANNOT_INITIALIZE), (Code.COMMON_SYSTEM, Code.COMMON_SYSTEM)],
)
def test_an_argument_that_the_backend_refuses_is_answered_as_a_failed_initialization(
    served: Served, monkeypatch: pytest.MonkeyPatch, code: Code, reported: Code
) -> None:
    def refuse(*arguments: Any) -> None:
        raise QnnError(code, "config", "it is wrong", "Put it right.")

    monkeypatch.setattr(qnn, "Backend", refuse)
    assert served.refused("backendCreate", 0, 0, ctypes.c_uint64()) == (reported, "config: it is wrong. Put it right.")


def test_an_op_package_that_is_named_with_its_folder_must_exist(served: Served) -> None:
    backend = served.make("backendCreate", 0, 0)
    name = "backendRegisterOpPackage"
    assert served.refused(name, backend, b"/nowhere/own.so", b"provider", 0) == (
        Code.BACKEND_OP_PACKAGE_NOT_FOUND, "op package '/nowhere/own.so': there is no such file",
    )  # fmt: skip
    # Without a folder the loader searches for it, as for any library.
    assert "there is no such file" not in served.refused(name, backend, b"libown_nowhere.so", b"provider", 0)[1]
    assert served.refused(name, backend, 0, b"provider", 0)[1] == "its arguments: a pointer is null"
    assert served.refused(name, backend, b"a.so", 0, 0)[1] == "its arguments: a pointer is null"


def test_a_config_of_htps_graph_that_has_an_effect_is_a_setting() -> None:
    config = htp_headers.GRAPH_CONFIG()
    config.option, config.precision = 2, 1
    server = Served("QnnHtp")
    ((option, value),) = options.settings(server.server, "graph", ctypes.addressof(config)).items()
    assert (option, int(value)) == (HtpGraphConfigOption.PRECISION, 1)
    assert server.logged == [(LogLevel.INFO, f"HTP graph option PRECISION = {value.name}")]
    config.precision = 9
    with pytest.raises(QnnError, match="HTP precision") as refused:
        options.settings(server.server, "graph", ctypes.addressof(config))
    assert refused.value.code is Code.GRAPH_INVALID_ARGUMENT


# -- executions that fail ----------------------------------------------------------------------------------------------


def events_of(served: Served, profile: int) -> list[bytes]:
    """The names of a profile's events."""
    events, count, data = ctypes.c_uint64(), ctypes.c_uint32(), objects.EventData()
    served.do("profileGetEvents", profile, events, count)
    names = []
    for number in (ctypes.c_uint64 * count.value).from_address(events.value) if count.value else ():
        served.do("profileGetEventData", number, data)
        names.append(data.identifier)
    return names


def failing(monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> None:
    """Have every execution fail."""

    def run(binding: RunnerBinding, *arguments: Any) -> None:
        raise problem

    for name in ("_run", "_run_within", "execute_timed"):
        monkeypatch.setattr(RunnerBinding, name, run)


Execution = tuple[int, tuple[Any, ...]]


@pytest.fixture
def execution(served: Served) -> Iterator[Execution]:
    """A profile, and the arguments of an execution, whose memory lives as long as the test."""
    backend, context = served.opened()
    graph, x, y = served.ready(context)
    given, made = np.ones(8, np.float32), np.zeros(8, np.float32)
    yield served.make("profileCreate", backend, 1), (graph, at(x, given), 1, at(y, made), 1)
    del given, made


failures = pytest.mark.parametrize(
    ("problem", "code"),
    [
        pytest.param(ZeroDivisionError("ours"), Code.COMMON_GENERAL, id="ours"),
        pytest.param(QnnError(Code.GRAPH_TIMED_OUT, "it", "is late"), Code.GRAPH_TIMED_OUT, id="qnn's"),
    ],
)


@failures
def test_an_execution_that_fails_is_answered_and_leaves_its_profile(
    served: Served, execution: Execution, monkeypatch: pytest.MonkeyPatch, problem: BaseException, code: Code
) -> None:
    profile, arguments = execution
    assert served.call("graphExecute", *arguments, profile, 0) == 0
    again = served.call("graphExecute", *arguments, 0, 0)
    before = events_of(served, profile)
    assert before
    failing(monkeypatch, problem)
    assert served.call("graphExecute", *arguments, profile, 0) == code
    assert events_of(served, profile) == before
    assert again() == code, "it may have run, so it is not run again"


@failures
def test_the_end_of_an_execution_on_another_thread_has_its_code(
    served: Served, execution: Execution, monkeypatch: pytest.MonkeyPatch, problem: BaseException, code: Code
) -> None:
    profile, arguments = execution
    reported: list[tuple[int, int, int]] = []
    ended = threading.Event()

    def notify(callback: int, parameter: int, error: int) -> None:
        reported.append((callback, parameter, error))
        ended.set()

    monkeypatch.setattr(served.server, "notify", notify)
    served.do("graphExecuteAsync", *arguments, profile, 0, 0x77, 0x88)
    assert ended.wait(PATIENCE)
    ended.clear()
    before = events_of(served, profile)
    assert before
    failing(monkeypatch, problem)
    served.do("graphExecuteAsync", *arguments, profile, 0, 0x77, 0x99)
    assert ended.wait(PATIENCE)
    assert reported == [(0x77, 0x88, 0), (0x77, 0x99, code)]
    assert events_of(served, profile) == before


def test_an_execution_that_does_not_begin_leaves_its_profile(
    served: Served, execution: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, arguments = execution
    assert served.call("graphExecute", *arguments, profile, 0) == 0
    before = events_of(served, profile)

    def refuse(*arguments: Any, **named: Any) -> None:
        raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, "queue", "it is full")

    monkeypatch.setattr(qnn.Graph, "execute_async", refuse)
    assert served.refused("graphExecuteAsync", *arguments, profile, 0, 0, 0) == (
        Code.COMMON_RESOURCE_UNAVAILABLE, "queue: it is full",
    )  # fmt: skip
    assert events_of(served, profile) == before


def test_parts_of_a_call_are_parts_of_the_latest_event(served: Served) -> None:
    backend, _ = served.opened()
    handle = served.make("profileCreate", backend, 1)
    profile = served.server.handles.get(handle, records.ClientProfile, Code.PROFILE_INVALID_HANDLE, "profile")
    event = qnn.Event
    profile._take((
        event("read", 4, "bytes"), event("finalize", 1.6, "us"), event("execute", 2.4, "us"),
        event("copied", 8, "bytes"), event(f"{records.OPERATION}add", 3, "us"), event("other", 5, "us"),
    ))  # fmt: skip
    found = [each for _, each in served.server.handles.of_kind(records.ClientEvent)]
    reported = {each.name: (each.type, each.unit, each.value, [inner.name for inner in each.inner]) for each in found}
    assert reported == {
        "read": (1000, 2, 4, []), "finalize": (300, 1, 2, []), "execute": (400, 1, 2, ["copied", "add"]),
        "copied": (1000, 2, 8, []), "add": (404, 1, 3, []), "other": (1000, 1, 5, []),
    }  # fmt: skip


# -- what is freed -----------------------------------------------------------------------------------------------------


def test_executions_that_a_library_remembers_end_before_what_they_use(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    for kind, name in ((qnn.Context, "context"), (qnn.Backend, "backend"), (qnn.MemHandle, "memory")):
        free = kind.free
        monkeypatch.setattr(kind, "free", lambda self, free=free, name=name: forgotten.append(name) or free(self))
    monkeypatch.setattr(served.server, "forget_executions", lambda: forgotten.append("forget"))
    backend, context = served.opened()
    served.call("memDeRegister", served.listed(0x99), 1)
    assert forgotten == ["forget"]
    served.do("contextFree", context, 0)
    assert forgotten == ["forget", "forget", "context"]
    served.do("backendFree", backend)
    assert forgotten[3:5] == ["forget", "backend"]


def test_a_backend_that_cannot_be_freed_at_the_end_is_reported(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.opened()

    def refuse(backend: qnn.Backend) -> None:
        raise QnnError(Code.BACKEND_TERMINATE_FAILED, "backend", "it does not end")

    with monkeypatch.context() as patched:
        patched.setattr(qnn.Backend, "free", refuse)
        served.server.leave()
    text = "backendFree: [4001 BACKEND_TERMINATE_FAILED] backend: it does not end"
    level, reported = served.logged[-1]
    assert (level, reported.partition("[")[0], reported.partition("] ")[2]) == (
        LogLevel.ERROR, text.partition("[")[0], text.partition("] ")[2],
    )  # fmt: skip
    assert served.server.handles.of_kind(qnn.Backend) == []


def test_a_binary_that_cannot_be_written_has_no_bytes(served: Served) -> None:
    _, context = served.opened()
    served.ready(context)
    written = ctypes.c_uint64(7)
    assert served.refused("contextGetBinary", context, UNREADABLE, 1 << 30, written)[1].endswith(
        "are not memory of this process"
    )
    assert written.value == 0


def test_a_binary_of_a_list_has_its_own_profile(served: Served) -> None:
    backend, context = served.opened()
    served.ready(context)
    binary = binary_of(served, context)
    callback, reported = notified(served)
    profile = served.make("profileCreate", backend, 1)
    params = objects.ContextParams(1)
    params.v1.notifyFunc = ctypes.cast(callback, ctypes.c_void_p).value
    params.v1.binaryBuffer, params.v1.binaryBufferSize = served.number(binary), len(binary)
    params.v1.profile = profile
    served.do("contextCreateFromBinaryListAsync", backend, 0, served.listed(params), 0, 0)
    assert len(reported) == 2
    assert events_of(served, profile) == [b"context created from binary"]
    config = served.configs(objects.ContextConfig, 77)
    params.v1.config = ctypes.cast(config, type(params.v1.config))
    reported.clear()
    served.do("contextCreateFromBinaryListAsync", backend, 0, served.listed(params), 0, 0)
    assert [each[-1] for each in reported] == [Code.COMMON_NOT_SUPPORTED]


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_dlc_is_saved_for_all_that_the_user_lets_read(tmp_path: Path) -> None:
    made = Composing()
    for mask in (0o022, 0o000):
        before = os.umask(mask)
        try:
            made.served.do("systemDlcSave", made.handle, str(tmp_path / f"{mask}.dlc").encode())
        finally:
            os.umask(before)
        assert (tmp_path / f"{mask}.dlc").stat().st_mode & 0o777 == 0o666 & ~mask


def test_ir_logs_where_a_graph_is_written_and_writes_none_without_nodes(tmp_path: Path) -> None:
    served = Served("QnnIr")
    _, context = served.opened()
    path = str(tmp_path / "net.dlc").encode()
    custom = served.client.keep(other_backends.IrGraphConfig(1))
    custom.serializationOption.serializationType = 1
    custom.serializationOption.outputPath = path
    configs = served.configs(objects.GraphConfig, 0, customConfig=ctypes.addressof(custom))
    empty = served.make("graphCreate", context, b"empty", configs)
    assert served.refused("graphFinalize", empty, 0, 0) == (
        Code.GRAPH_FINALIZE_FAILED, "graph 'empty': it has no nodes",
    )  # fmt: skip
    graph, _, _ = served.composed(context, b"net")
    served.do("graphSetConfig", graph, configs)
    served.logged.clear()
    served.do("graphFinalize", graph, 0, 0)
    assert served.logged == [(LogLevel.INFO, f"graph 'net' is written to '{path.decode()}'")]
    assert (tmp_path / "net.dlc").exists()
    for name, arguments in (("graphFinalize", (0, 0)), ("graphSetConfig", (configs,))):
        assert served.refused(name, graph, *arguments) == (Code.GRAPH_FINALIZED, "graph 'net': it is finalized")
    for option, kind in ((2, 1), (1, 2)):
        custom.option, custom.serializationOption.serializationType = option, kind
        assert served.refused("graphCreate", context, b"other", configs, ctypes.c_uint64()) == (
            Code.GRAPH_INVALID_ARGUMENT,
            f"IR graph: it has no custom config {option} of type {kind}; it has QNN_IR_GRAPH_CONFIG_OPTION_"
            "SERIALIZATION (1) of type QNN_IR_GRAPH_SERIALIZATION_TYPE_FLAT_BUFFER (1)",
        )
    custom.option, custom.serializationOption.serializationType = 1, 1
    custom.serializationOption.outputPath = None
    assert served.refused("graphCreate", context, b"other", configs, ctypes.c_uint64())[1] == (
        "its arguments: a pointer is null"
    )
    nothing = served.configs(objects.GraphConfig, 0)
    assert served.refused("graphCreate", context, b"other", nothing, ctypes.c_uint64())[1] == (
        "its arguments: a pointer is null"
    )


def test_events_without_parts_have_none(tmp_path: Path) -> None:
    """Neither a count of parts with a null address nor an address with a count of 0 means parts."""
    served = Served("QnnSystem")
    target = system.SerializationTarget(1)
    target.file.fileName, target.file.fileDirectory = b"profile", str(tmp_path).encode()
    handle = served.make("systemProfileCreateSerializationTarget", target, 0, 0)
    events = (system.ProfileEvent * 2)()
    events[0].numSubEvents = 2
    events[1].profileSubEventData = UNREADABLE
    data = system.ProfileData(1)
    data.v1.profilingEvents, data.v1.numProfilingEvents = events, 2
    served.do("systemProfileSerializeEventData", handle, served.listed(data, end=False), 1)
    assert (tmp_path / "profile").read_text().count('"parts": []') == 2


# -- memory of the client ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["one scale", "an axis", "bits", "an axis and bits"])
def test_a_composed_tensor_is_copied_with_all_that_it_points_to(case: str) -> None:
    keeps: list[Any] = []
    entries = [
        ComposedTensor("x", 0, 0x308, (2, 3), ENCODINGS[case]), ComposedTensor("s", 0, 0x308, ()),
        ComposedTensor("y", 1, 0x308, (2, 3), replace(ENCODINGS[case], axis=ENCODINGS[case].axis)),
    ]  # fmt: skip
    written = tuple(write_tensor(each, keeps, number=number) for number, each in enumerate(entries, 5))
    address = dlc._client_tensors(written)
    copies = (type(written[0]) * 3).from_address(address)
    for copy, tensor, each in zip(copies, written, entries, strict=True):
        found = tensor_fields(copy)
        assert (found.id, found.name, found.dims) == (tensor.v1.id, each.name, each.dims)
        if each.encoding is not None:
            check_encoding(found.encoding, each.encoding)
        assert ctypes.cast(copy.v1.name, ctypes.c_void_p).value
        if each.dims:
            places = [ctypes.cast(which.v1.dimensions, ctypes.c_void_p).value for which in (copy, tensor)]
            assert places[0] != places[1]


def test_a_failed_allocation_is_answered_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Composing()
    monkeypatch.setattr(dlc._libc, "malloc", lambda nbytes: None)
    assert made() == Code.COMMON_MEM_ALLOC
    assert made.graphs.value == 0


def test_a_parameter_of_a_clients_package_has_the_name_of_its_tensor_or_its_own(served: Served) -> None:
    make = served.client.tensor
    x, y = make("x", TensorType.APP_WRITE, F32, (2,)), make("y", TensorType.APP_READ, F32, (2,))
    array = np.array([1, 2], np.uint32)
    node = served.client.operation(
        "n", "Own", [x], [y], {"k": (0x132, 5), "s": (0x608, b"text")}, {"p": array, "q": array}
    )
    node.v1.packageName = b"own"
    node.v1.params[3].tensorParam.v1.name = None
    client_node = node_at(ctypes.addressof(node))
    assert (client_node.key, client_node.what, client_node.is_packaged) == ("own::Own", "node 'n' (Own)", True)
    params = client_node.graph_params()
    assert (params["k"], params["s"]) == (5, "text")
    assert params["k"].dtype == np.uint32
    for name, tensor_name in (("p", "n.p"), ("q", "q")):
        tensor = params[name]
        assert (tensor.name, tensor.type, tensor.dtype, tensor.dims) == (
            tensor_name, TensorType.STATIC, DataType.UINT_32, (2,),
        )  # fmt: skip
        np.testing.assert_array_equal(tensor.data, array)


def test_the_name_of_a_library_is_a_file_name(tmp_path: Path) -> None:
    names: list[Any] = ["", "a\0b", 5]
    for name in names:
        with pytest.raises(QnnError, match="must be the name of a file"):
            capi.load(tmp_path, name)
    for folder in [*names, b"bytes"]:
        with pytest.raises(QnnError, match="must be the path of a folder"):
            capi.install(folder)


# -- other libraries ---------------------------------------------------------------------------------------------------


def test_buffers_of_lpais_extensions_are_in_the_memory_of_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    lpai, served = Served("QnnLpai"), Served("QnnLpaiNetRunExtensions")
    allocate, free = (f"QnnLpaiNetRunExtensions_{each}Buffer" for each in ("allocate", "free"))
    _, context = lpai.opened()
    assert served.call(allocate, context, 4096) == 0, "no library has that context"
    monkeypatch.setattr(serve, "_servers", {1: Served("QnnCpu").server, 2: lpai.server})
    address = served.call(allocate, context, 4096)
    assert address
    ctypes.memset(address, 1, 4096)
    served.do(free, address)
    served.do(free, address)
    served.do(free, 0x10)
    assert served.call(allocate, 0x99, 4096) == 0
    code = int(Code.CONTEXT_INVALID_HANDLE)
    reason = f"[{code} CONTEXT_INVALID_HANDLE] buffer of 4096 bytes: 0x99 is not a context of libQnnLpai.so"
    assert served.server.reason(code) == f"{allocate}: {reason}"
    lpai.logged.clear()
    assert served.call(allocate, context, 1 << 60) == 0
    ((level, text),) = lpai.logged
    assert (level, text.partition(": ")[0]) == (LogLevel.ERROR, allocate)


def test_a_buffer_that_an_execution_holds_is_freed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        address = 0x5000

        def __init__(self, code: Code) -> None:
            self.code = code

        def close(self) -> None:
            raise QnnError(self.code, "buffer", "it is held")

    served = Served("QnnLpaiNetRunExtensions")
    for code, expected in ((Code.COMMON_OPERATION_NOT_PERMITTED, 0), (Code.COMMON_SYSTEM, Code.COMMON_SYSTEM)):
        monkeypatch.setattr(extensions, "_buffers", {0x5000: Held(code)})
        assert served.call("QnnLpaiNetRunExtensions_freeBuffer", 0x5000) == expected
        assert extensions._buffers == {}


def test_calls_are_validated_by_the_names_that_a_library_passes(served: Served) -> None:
    name = served.number(b"contextFinalize")
    for error in (0, 5):
        served.do("validationBefore", name, 0x77, 0x99, 0)
        served.do("validationAfter", name, error, 0x99, 0)
    seen = served.server.validation
    assert seen.mistakes == [f"call {number} (contextFinalize): context 0x99: no call has made it" for number in (1, 2)]
    assert (seen.calls["contextFinalize"].count, dict(seen.calls["contextFinalize"].errors)) == (2, {5: 1})


def test_a_library_hands_messages_and_ends_of_executions_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its functions in C, whose addresses the server was given."""
    monkeypatch.setattr(serve, "_checks", [])
    reported: list[tuple[Any, ...]] = []
    address, number = ctypes.c_void_p, ctypes.c_uint64
    log = ctypes.CFUNCTYPE(None, address, ctypes.c_uint32, number, ctypes.c_char_p, ctypes.c_char_p)(
        lambda *arguments: reported.append(arguments)
    )
    notify = ctypes.CFUNCTYPE(None, address, address, number)(lambda *arguments: reported.append(arguments))
    forget, leave = (
        ctypes.PYFUNCTYPE(None)(lambda name=name: reported.append((name,))) for name in ("forget", "leave")
    )
    places = [ctypes.cast(each, address).value or 0 for each in (log, notify, forget, leave)]
    server = serve.LibraryServer("QnnCpu", *places)
    out = ctypes.c_uint64()
    assert server.logCreate(0x55, 3, ctypes.addressof(out)) == 0
    server.log(LogLevel.WARN, "one")
    server.log(LogLevel.DEBUG, "two")
    ((callback, level, nanoseconds, form, text),) = reported
    assert (callback, level, form, text) == (0x55, 2, b"%s\n", b"one")
    assert 0 < nanoseconds < 60_000_000_000
    reported.clear()
    server.notify(0x66, 0x77, 5)
    server.forget_executions()
    server.leave()
    server.leave()
    assert reported == [(0x66, 0x77, 5), ("forget",), ("leave",)]
