"""Context binaries through C: made, described by the system library, restored whole or in part."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
from support.processes import context_copies

from capi.qnn_calls import Client, at, doubling, opened
from isthmus import qnn
from isthmus.cabi import objects, types
from isthmus.cabi.system import BinaryInfo
from isthmus.capi import serve
from isthmus.capi.context import ClientContext
from isthmus.errors import Code
from isthmus.graph import DataType, TensorType
from isthmus.memory import host

F32 = DataType.FLOAT_32


def test_a_binary_is_described_checked_and_restored(client: Client, libraries: Path) -> None:
    backend, context = opened(client)
    doubling(client, context)
    size, written = ctypes.c_uint64(), ctypes.c_uint64()
    client.do("contextGetBinarySize", context, ctypes.byref(size))
    small = ctypes.create_string_buffer(size.value - 1)
    assert client.contextGetBinary(context, small, len(small), ctypes.byref(written)) == Code.CONTEXT_GET_BINARY_FAILED
    binary = ctypes.create_string_buffer(size.value)
    client.do("contextGetBinary", context, binary, len(binary), ctypes.byref(written))
    assert written.value == size.value

    system = Client(libraries / "libQnnSystem.so")
    handle = ctypes.c_void_p()
    assert system.systemContextCreate(ctypes.byref(handle)) == 0
    info, info_size = ctypes.POINTER(BinaryInfo)(), ctypes.c_uint64()
    arguments = (binary, len(binary), ctypes.byref(info), ctypes.byref(info_size))
    assert system.systemContextGetBinaryInfo(handle, *arguments) == 0
    assert info_size.value == ctypes.sizeof(BinaryInfo)
    v1 = info.contents.contextBinaryInfoV1
    assert (info.contents.version, v1.backendId, v1.numGraphs) == (1, 3, 1)
    graph_info = v1.graphs[0].graphInfoV3
    assert (graph_info.graphName, graph_info.numGraphInputs, graph_info.numGraphOutputs) == (b"twice", 1, 1)
    x = types.Tensor.from_buffer_copy(graph_info.graphInputs[0])
    y = types.Tensor.from_buffer_copy(graph_info.graphOutputs[0])
    assert (x.v1.name, x.v1.dimensions[1], x.v1.dataType) == (b"x", 8, int(F32))

    client.do("contextValidateBinary", backend, None, None, binary, len(binary))
    again = ctypes.c_void_p()
    client.do("contextCreateFromBinary", backend, None, None, binary, len(binary), ctypes.byref(again), None)
    graph = client.make("graphRetrieve", again, b"twice")
    given, found = np.full((1, 8), 3, np.float32), np.zeros((1, 8), np.float32)
    assert client.execute(graph, [at(x, given)], [at(y, found)]) == 0
    assert found.tolist() == [[6.0] * 8]
    assert client.graphRetrieve(again, b"other", ctypes.byref(ctypes.c_void_p())) == Code.GRAPH_INVALID_NAME
    assert system.systemContextFree(handle) == 0
    client.do("backendFree", backend)


def binary_of_two(client: Client) -> tuple[int, Any]:
    """Return a backend, and the binary of a context with the graphs one and two."""
    backend, context = opened(client)
    doubling(client, context, "one")
    doubling(client, context, "two")
    return backend, client.binary(context)


def test_only_enabled_graphs_of_a_binary_can_be_retrieved(client: Client) -> None:
    backend, binary = binary_of_two(client)
    out = ctypes.c_void_p()
    config = objects.ContextConfig(objects.ContextOption.ENABLE_GRAPHS)
    config.enableGraphs = client.keep((ctypes.c_char_p * 2)(b"two", None))
    listed = (ctypes.POINTER(objects.ContextConfig) * 2)(ctypes.pointer(config))
    client.do("contextCreateFromBinary", backend, None, listed, binary, len(binary), ctypes.byref(out), None)
    client.make("graphRetrieve", out, b"two")
    assert client.graphRetrieve(out, b"one", ctypes.byref(ctypes.c_void_p())) == Code.GRAPH_INVALID_NAME
    config.enableGraphs = client.keep((ctypes.c_char_p * 2)(b"three", None))
    arguments = (backend, None, listed, binary, len(binary), ctypes.byref(out), None)
    assert client.contextCreateFromBinary(*arguments) == Code.CONTEXT_INVALID_CONFIG
    client.do("backendFree", backend)


def retention(client: Client, names: Sequence[bytes | None] | None, limit: int | None = None) -> Any:
    """Configs of a context: the order in which its graphs are retained, and a memory limit hint."""
    order = objects.ContextConfig(objects.ContextOption.GRAPH_RETENTION_ORDER)
    if names is not None:
        order.graphRetentionOrder = client.keep((ctypes.c_char_p * (len(names) + 1))(*names, None))
    hint = objects.ContextConfig(objects.ContextOption.MEMORY_LIMIT_HINT)
    hint.memoryLimitHint = limit or 0
    configs = [client.keep(order)] + ([] if limit is None else [client.keep(hint)])
    return client.keep((ctypes.POINTER(objects.ContextConfig) * 3)(*map(ctypes.pointer, configs)))


def test_the_order_of_retention_is_checked_and_kept(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    backend, context = opened(client)
    for name in ("one", "two", "three"):
        doubling(client, context, name)
    out = ctypes.c_void_p()
    binary = client.binary(context)
    server = next(each for each in serve.servers() if dict(each.handles.of_kind(qnn.Backend)).get(backend))

    def restored(configs: Any) -> int:
        return client.contextCreateFromBinary(backend, None, configs, binary, len(binary), ctypes.byref(out), None)

    def retention_order() -> tuple[str, ...]:
        context = dict(server.handles.of_kind(ClientContext))[out.value or 0]
        return tuple(context.handle.driver.loading.retained)

    with caplog.at_level("WARNING", "isthmus"):
        assert restored(retention(client, [b"two", b"one"], 64)) == 0
        assert retention_order() == ("two", "one")
        assert not caplog.records
        # A new order replaces the earlier one, a refused order does not; the hint of the context stays.
        assert client.contextSetConfig(out, retention(client, [b"three"])) == 0
        for wrong, said in (
            ([b"three", b"four"], "Graph name four provided does not exist in the context. Failed to validate graph"),
            ([b"one", b"one"], "Duplicate graph name one provided in the retention list. Failed to validate graph"),
            ([b""], "Graph name  provided does not exist in the context"),
        ):
            assert client.contextSetConfig(out, retention(client, wrong)) == Code.CONTEXT_INVALID_CONFIG
            assert said in client.reason(Code.CONTEXT_INVALID_CONFIG)
        assert retention_order() == ("three",)
        assert all(each.levelname == "ERROR" for each in caplog.records)
        assert client.contextSetConfig(out, retention(client, [])) == 0
        assert retention_order() == ()
        for wrong, code in (
            ([b"two", b"two"], Code.CONTEXT_INVALID_CONFIG),
            ([b"four"], Code.CONTEXT_INVALID_CONFIG),
            (None, Code.CONTEXT_INVALID_ARGUMENT),
        ):
            contexts = len(server.handles.of_kind(ClientContext))
            assert restored(retention(client, wrong, 64)) == code
            assert len(server.handles.of_kind(ClientContext)) == contexts
        # Without a hint no graph is switched.
        caplog.clear()
        assert restored(retention(client, [b"two"])) == 0
        assert [each.levelname for each in caplog.records] == ["WARNING"]
        assert "Graph retention order set without memory limit hint. Disabling graph switching mode." in caplog.text
    # Graphs that are composed are not switched.
    assert client.contextSetConfig(context, retention(client, [b"one"])) == Code.CONTEXT_INVALID_CONFIG
    client.make("contextCreate", backend, None, retention(client, [b"one"]))
    client.do("backendFree", backend)


def test_the_order_of_retention_names_enabled_graphs_only(client: Client) -> None:
    backend, binary = binary_of_two(client)
    out = ctypes.c_void_p()
    enabled = client.keep(objects.ContextConfig(objects.ContextOption.ENABLE_GRAPHS))
    enabled.enableGraphs = client.keep((ctypes.c_char_p * 2)(b"two", None))
    for name, code in ((b"one", Code.CONTEXT_INVALID_CONFIG), (b"two", 0)):
        configs = retention(client, [name], 64)
        configs[2], listed = ctypes.pointer(enabled), (ctypes.POINTER(objects.ContextConfig) * 4)()
        listed[:3] = configs[:3]
        arguments = (backend, None, listed, binary, len(binary), ctypes.byref(out), None)
        assert client.contextCreateFromBinary(*arguments) == code
        assert not code or not out.value
    assert client.contextSetConfig(out, retention(client, [b"one"])) == Code.CONTEXT_INVALID_CONFIG
    client.do("backendFree", backend)


def test_several_binaries_are_loaded_and_the_client_is_notified_of_each(client: Client) -> None:
    backend, context = opened(client)
    doubling(client, context)
    binary = client.binary(context)
    reported: list[tuple[bytes | None, int, int | None, int]] = []

    @objects.CONTEXT_NOTIFY
    def notify(made: int, graph: int, name: bytes, kind: int, parameter: int, error: int) -> None:
        reported.append((name, kind, parameter, error))

    address = ctypes.cast(notify, ctypes.c_void_p).value
    broken = ctypes.create_string_buffer(b"no binary", 64)
    params = [objects.ContextParams(1) for _ in range(2)]
    for number, (each, it) in enumerate(zip(params, (binary, broken), strict=True), 1):
        each.v1 = objects.ContextParamsV1(None, ctypes.addressof(it), len(it), None, address, number)
    listed = (ctypes.POINTER(objects.ContextParams) * 3)(*map(ctypes.pointer, params))
    client.do("contextCreateFromBinaryListAsync", backend, None, listed, None, None)
    assert reported[:2] == [(b"twice", 0, 1, 0), (None, 1, 1, 0)]
    assert reported[2][:3] == (None, 1, 2)
    assert reported[2][3] != 0
    client.do("backendFree", backend)


def test_malformed_binaries_answer_by_the_systems_codes(libraries: Path) -> None:
    system = Client(libraries / "libQnnSystem.so")
    handle = ctypes.c_void_p()
    assert system.systemContextCreate(ctypes.byref(handle)) == 0
    info = ctypes.POINTER(BinaryInfo)()
    wrong = ctypes.create_string_buffer(b"no binary", 64)
    assert system.systemContextGetBinaryInfo(handle, wrong, 64, ctypes.byref(info), None) == 30010
    for nbytes in (0, (1 << 64) - 1):
        answer = system.systemContextGetBinaryInfo(handle, wrong, nbytes, ctypes.byref(info), None)
        assert answer == Code.COMMON_INVALID_ARGUMENT
    assert system.systemContextFree(handle) == 0
    assert system.systemContextGetBinaryInfo(handle, wrong, 64, ctypes.byref(info), None) == 30000
    assert system.systemContextFree(handle) == 30000


def test_the_system_library_counts_a_tensors_bytes(libraries: Path, client: Client) -> None:
    system = Client(libraries / "libQnnSystem.so")
    out = ctypes.c_uint64()
    tensor = client.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_16, (3, 5))
    call = ctypes.CFUNCTYPE(ctypes.c_uint64, _ByValue, ctypes.POINTER(ctypes.c_uint64))(
        system.provider.table.systemTensorGetMemoryFootprint
    )
    assert call(_ByValue.from_buffer_copy(tensor), ctypes.byref(out)) == 0
    assert out.value == 30


class _ByValue(ctypes.Structure):
    """A tensor without unions, which ctypes does not pass by value."""

    _fields_ = [("words", ctypes.c_uint64 * 18)]


@pytest.mark.parametrize("kept", [True, False])
def test_lpai_uses_a_binary_where_its_client_keeps_it(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    config = tmp_path / "lpai.json"
    config.write_text(f'{{"context_configs": {{"is_persistent_binary": {str(kept).lower()}}}}}')
    monkeypatch.setenv("ISTHMUS_LPAI_CONFIG", str(config))
    weights = np.arange(1000, 1064, dtype=np.float32).reshape(1, 64)
    with qnn.Backend("lpai", {"lpai_graph": {"prepare": {"exclude_io": True}}}) as maker:
        plus = maker.create_context().create_graph("plus")
        inputs = [
            plus.create_tensor("x", TensorType.APP_WRITE, F32, weights.shape),
            plus.create_tensor("w", TensorType.STATIC, F32, weights.shape, data=weights),
        ]
        plus.add_node("add", "ElementWiseAdd", inputs, [plus.create_tensor("y", TensorType.APP_READ, F32, (1, 64))])
        content = plus.context.prepare_offline()
    memory = host(len(content), 64).array
    memory[:] = np.frombuffer(content, np.uint8)
    client = Client(libraries / "libQnnLpai.so")
    backend = client.make("backendCreate", None, None)
    context = ctypes.c_void_p()
    arguments = (backend, None, None, memory.ctypes.data, len(content), ctypes.byref(context), None)
    before = context_copies()
    client.do("contextCreateFromBinary", *arguments)
    assert len(context_copies() - before) == (0 if kept else 1)
    graph = client.make("graphRetrieve", context, b"plus")
    client.do("graphFinalize", graph, None, None)
    given, found = (host(weights.nbytes, 128).view(np.float32, weights.shape) for _ in range(2))
    x = client.tensor("x", TensorType.APP_WRITE, F32, weights.shape)
    y = client.tensor("y", TensorType.APP_READ, F32, weights.shape)
    x.v1.id, y.v1.id = 1, 2
    assert client.execute(graph, [at(x, given)], [at(y, found)]) == 0
    assert found[0, :2].tolist() == [1000, 1001]
    client.do("contextFree", context, None)
    # An address without memory is refused.
    nowhere = (backend, None, None, 4096, len(content), ctypes.byref(context), None)
    assert client.contextCreateFromBinary(*nowhere) == Code.CONTEXT_INVALID_ARGUMENT
    client.do("backendFree", backend)


@pytest.mark.parametrize("freed", ["contextFree", "backendFree"])
def test_a_context_that_is_freed_leaves_nothing_to_the_garbage_collector(client: Client, freed: str) -> None:
    """Weights of large models would stay until the collector runs, beside those of the next context."""
    kinds = (ClientContext, qnn.Context, qnn.Graph)
    gc.collect()
    gc.disable()
    try:
        before = [id(each) for each in gc.get_objects() if isinstance(each, kinds)]
        backend, context = opened(client)
        doubling(client, context, "one")
        there = [ref(each) for each in gc.get_objects() if isinstance(each, kinds) and id(each) not in before]
        assert len(there) == len(kinds)
        client.do(freed, *((context, None) if freed == "contextFree" else (backend,)))
        assert [each() for each in there if each() is not None] == []
    finally:
        gc.enable()
