"""contextCreateFromBinaryWithCallback, and lists of binaries in version 2: what C clients bring, and get back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends.htp.test_provided_weights import file_of, run

from capi.qnn_calls import Client, at
from capi.test_binary_lists import CONTEXT, Notification
from capi.test_custom_configs import context_config
from isthmus import qnn
from isthmus.backends.htp.options import HtpContextOption
from isthmus.cabi import objects
from isthmus.errors import Code
from isthmus.graph import DataType, TensorType
from isthmus.memory import rpcmem

CREATE, LIST = "contextCreateFromBinaryWithCallback", "contextCreateFromBinaryListAsync"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return file_of(tmp_path_factory.mktemp("callbacks"), True)


@pytest.fixture
def htp(libraries: Path) -> Client:
    return Client(libraries / "libQnnHtp.so")


@pytest.fixture
def backend(htp: Client) -> Iterator[int]:
    made = htp.make("backendCreate", None, None)
    yield made
    htp.backendFree(made)


@dataclass
class Callbacks:
    """A client's callbacks: `errors` are what it answers, by the number of the call; `moved` is added to addresses."""

    content: bytes
    errors: tuple[int, ...] = ()
    release_error: int = 0
    moved: int = 0
    requests: list[tuple[int, int, int]] = field(default_factory=list)
    buffers: list[rpcmem.RpcBuffer] = field(default_factory=list)
    released: list[tuple[int, int, int]] = field(default_factory=list)
    parameters: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._functions = objects.PROVIDE_DATA(self.provide), objects.RELEASE_DATA(self.release)
        self.structure = objects.BinaryCallback(2)
        callbacks = self.structure.dmaBufferCallback
        callbacks.version, callbacks.v1.notifyParam = 1, 42
        callbacks.v1.dataProvide, callbacks.v1.dataRelease = (
            ctypes.cast(each, ctypes.c_void_p).value for each in self._functions
        )

    def provide(self, request: Any, response: int, parameter: int) -> int:
        self.parameters.add(parameter)
        number = len(self.requests)
        self.requests.append((request.offset, request.size, request.isBackendMappingNeeded))
        if number < len(self.errors) and self.errors[number]:
            return self.errors[number]
        buffer = rpcmem.share(request.size + (1 << 16))
        buffer.array[: request.size] = np.frombuffer(self.content, np.uint8, request.size, request.offset)
        self.buffers.append(buffer)
        answer = objects.DmaDataResponse.from_address(response)
        answer.dmaBuffer.fd, answer.dmaBuffer.data = buffer.fd, buffer.address + self.moved
        answer.dataStartOffset, answer.alignedSize = 0, buffer.nbytes
        return 0

    def release(self, mem: Any, parameter: int) -> int:
        self.parameters.add(parameter)
        self.released.append((mem.dmaBuffer.fd, mem.dmaBuffer.data, mem.memSize))
        return self.release_error

    @property
    def given(self) -> list[tuple[int, int, int]]:
        return [(each.fd, each.address + self.moved, each.nbytes) for each in self.buffers]

    def create(self, client: Client, backend: int, configs: Any = None) -> tuple[int, int | None]:
        """Create a context; the answer and the handle."""
        out = ctypes.c_void_p(7)
        # They are called until the backend is freed.
        client.keep(self)
        held = ctypes.create_string_buffer(self.content, len(self.content))
        error = client.contextCreateFromBinaryWithCallback(
            backend, None, configs, ctypes.byref(self.structure), held, len(self.content), ctypes.byref(out), None, None
        )
        return error, out.value


def execute(client: Client, context: int) -> np.ndarray:
    graph = client.make("graphRetrieve", context, b"prefill")
    x, y = np.ones((1, 256), np.float32), np.zeros((1, 256), np.float32)
    given = client.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, x.shape)
    got = client.tensor("y1", TensorType.APP_READ, DataType.FLOAT_32, y.shape)
    given.v1.id, got.v1.id = 1, 2
    assert client.execute(graph, [at(given, x)], [at(got, y)]) == 0
    return y


def test_structures_have_the_documented_sizes() -> None:
    kinds = (
        objects.BinaryDataRequest, objects.DmaDataResponse, objects.DmaDataMem, objects.BinaryCallback,
        objects.ContextParams, objects.ContextParamsV2,
    )  # fmt: skip
    assert [ctypes.sizeof(each) for each in kinds] == [24, 32, 24, 40, 56, 56]
    callback = objects.BinaryCallback()
    assert [ctypes.sizeof(each) for each in (callback.dmaBufferCallback, callback.dmaBufferCallback.v1)] == [32, 24]
    base = ctypes.addressof(callback)
    v1 = callback.dmaBufferCallback.v1
    assert [ctypes.addressof(each) - base for each in (callback.dmaBufferCallback, v1)] == [8, 16]
    assert objects.ContextParams.v2.offset == 8
    assert objects.ContextParamsV2.callbacks.offset == 48


def test_a_context_uses_the_buffers_until_it_is_freed(htp: Client, backend: int, model: Path) -> None:
    callbacks = Callbacks(model.read_bytes())
    error, context = callbacks.create(htp, backend)
    assert (error, bool(context)) == (0, True)
    assert [mapping for _, _, mapping in callbacks.requests] == [1, 1]
    assert callbacks.requests[0][0] == 4096
    with qnn.Backend("htp") as other:
        assert np.array_equal(execute(htp, context), run(other.create_context_from_binary(model)))
    assert callbacks.released == []
    for each in callbacks.buffers:
        each.array[...] = 0
    assert not execute(htp, context).any()
    htp.do("contextFree", context, None)
    assert callbacks.released == callbacks.given
    assert callbacks.parameters == {42}


def test_buffers_are_released_with_the_backend(htp: Client, model: Path) -> None:
    backend = htp.make("backendCreate", None, None)
    # What the client answers then is no error of the call.
    callbacks = Callbacks(model.read_bytes(), release_error=1234)
    assert callbacks.create(htp, backend)[0] == 0
    htp.do("backendFree", backend)
    assert callbacks.released == callbacks.given


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("error", [1, int(Code.COMMON_MEM_ALLOC), (1 << 63) + 5])
def test_the_error_of_a_callback_is_that_of_the_call(
    htp: Client, backend: int, model: Path, number: int, error: int
) -> None:
    callbacks = Callbacks(model.read_bytes(), errors=(*[0] * number, error))
    assert callbacks.create(htp, backend) == (error, None)
    assert len(callbacks.buffers) == number
    assert callbacks.released == callbacks.given
    # The next one works.
    error, context = Callbacks(model.read_bytes()).create(htp, backend)
    assert error == 0
    assert execute(htp, context).any()


def test_an_address_that_is_not_aligned_is_refused_and_released(htp: Client, backend: int, model: Path) -> None:
    callbacks = Callbacks(model.read_bytes(), moved=64)
    assert callbacks.create(htp, backend) == (Code.CONTEXT_INVALID_ARGUMENT, None)
    assert callbacks.released == callbacks.given
    assert "must be a multiple of 4096" in htp.reason(Code.CONTEXT_INVALID_ARGUMENT)


def test_callbacks_that_are_none_are_refused(htp: Client, backend: int, model: Path) -> None:
    for change, code in (
        (lambda it: setattr(it, "type", 1), Code.COMMON_NOT_SUPPORTED),
        (lambda it: setattr(it.dmaBufferCallback, "version", 2), Code.CONTEXT_INVALID_ARGUMENT),
        (lambda it: setattr(it.dmaBufferCallback.v1, "dataProvide", None), Code.CONTEXT_INVALID_ARGUMENT),
        (lambda it: setattr(it.dmaBufferCallback.v1, "dataRelease", None), Code.CONTEXT_INVALID_ARGUMENT),
    ):
        callbacks = Callbacks(model.read_bytes())
        change(callbacks.structure)
        assert callbacks.create(htp, backend) == (code, None)
        assert callbacks.requests == []
    out = ctypes.c_void_p()
    binary = ctypes.create_string_buffer(model.read_bytes())
    right = Callbacks(model.read_bytes())
    for address, place, size in (
        (None, binary, len(binary)), (right.structure, None, 8), (right.structure, binary, 0),
        (right.structure, ctypes.c_void_p(16), 8), (right.structure, binary, (1 << 41)),
    ):  # fmt: skip
        given = None if address is None else ctypes.byref(address)
        error = htp.contextCreateFromBinaryWithCallback(
            backend, None, None, given, place, size, ctypes.byref(out), None, None
        )
        assert (error, out.value) == (Code.CONTEXT_INVALID_ARGUMENT, None)


def configs_of(client: Client, *options: objects.ContextConfig) -> Any:
    made = (ctypes.POINTER(objects.ContextConfig) * (len(options) + 1))(*map(ctypes.pointer, options))
    return client.keep(made)


def config(option: objects.ContextOption, name: str, value: Any) -> objects.ContextConfig:
    made = objects.ContextConfig(option)
    setattr(made, name, value)
    return made


def test_configs_that_exclude_data_callbacks_are_refused_before_any_is_called(
    htp: Client, backend: int, model: Path
) -> None:
    option = objects.ContextOption
    persistent, limit = config(option.PERSISTENT_BINARY, "isPersistentBinary", 1), option.MEMORY_LIMIT_HINT
    for configs, word in (
        (configs_of(htp, config(option.DEFER_GRAPH_INIT, "isGraphInitDeferred", 1)), "graphs are deferred"),
        (configs_of(htp, persistent, config(limit, "memoryLimitHint", 64)), "graph switching"),
        (context_config(htp, HtpContextOption.USE_EXTENDED_UDMA, useExtendedUdma=True), "extended UDMA"),
    ):
        callbacks = Callbacks(model.read_bytes())
        assert callbacks.create(htp, backend, configs) == (Code.COMMON_NOT_SUPPORTED, None)
        assert word in htp.reason(Code.COMMON_NOT_SUPPORTED)
        assert callbacks.requests == []
    assert Callbacks(model.read_bytes()).create(htp, backend, configs_of(htp, persistent))[0] == 0


def test_a_backend_without_a_device_takes_no_callbacks(libraries: Path, model: Path) -> None:
    cpu = Client(libraries / "libQnnCpu.so")
    backend = cpu.make("backendCreate", None, None)
    callbacks = Callbacks(model.read_bytes())
    assert callbacks.create(cpu, backend) == (Code.COMMON_NOT_SUPPORTED, None)
    assert (cpu.propertyHasCapability(220), callbacks.requests) == (1000, [])
    cpu.do("backendFree", backend)


def test_the_capability_is_there(htp: Client) -> None:
    assert htp.propertyHasCapability(220) == 0


def load(
    client: Client, backend: int, entries: list[tuple[bytes, Callbacks | None, Any]], configs: Any = None
) -> tuple[int, list[Notification]]:
    """Load a list of binaries in version 2, each with callbacks or without; the answer, and all notifications."""
    seen: list[Notification] = []
    notify = client.keep(objects.CONTEXT_NOTIFY(lambda *reported: seen.append(Notification(*reported))))
    all_params = []
    for number, (content, callbacks, own) in enumerate(entries, 1):
        params = client.keep(objects.ContextParamsV2())
        held = client.keep(ctypes.create_string_buffer(content, len(content)))
        params.binaryBuffer, params.binaryBufferSize = ctypes.addressof(held), len(content)
        params.notifyFunc, params.notifyParam = ctypes.cast(notify, ctypes.c_void_p).value, number
        if client.keep(callbacks) is not None:
            params.callbacks = ctypes.pointer(callbacks.structure)
        if own is not None:
            params.config = ctypes.cast(own, type(params.config))
        each = objects.ContextParams(2)
        each.v2 = ctypes.pointer(params)
        all_params.append(each)
    listed = (ctypes.POINTER(objects.ContextParams) * (len(entries) + 1))(*map(ctypes.pointer, all_params))
    return client.contextCreateFromBinaryListAsync(backend, None, listed, configs, None), seen


def test_binaries_of_a_list_may_have_callbacks(htp: Client, backend: int, model: Path) -> None:
    content = model.read_bytes()
    right, wrong = Callbacks(content), Callbacks(content, errors=(0, 77))
    error, seen = load(htp, backend, [(content, right, None), (content, wrong, None), (content, None, None)])
    assert error == 0
    contexts = [each for each in seen if each.kind == CONTEXT]
    assert [(each.number, bool(each.context), each.error) for each in contexts] == [
        (1, True, 0), (2, False, 77), (3, True, 0),
    ]  # fmt: skip
    assert [each.number for each in seen if each.kind != CONTEXT] == [1, 1, 3, 3]
    assert wrong.released == wrong.given
    assert np.array_equal(*(execute(htp, each.context) for each in contexts if each.context))
    htp.do("contextFree", contexts[0].context, None)
    assert right.released == right.given


@pytest.mark.parametrize(
    ("kind", "expected"), [(0, Code.COMMON_NOT_SUPPORTED), (1, 0), (None, Code.COMMON_NOT_SUPPORTED)]
)
def test_callbacks_are_refused_in_a_list_of_type_0(
    htp: Client, backend: int, model: Path, kind: int | None, expected: int
) -> None:
    content = model.read_bytes()
    options = [(HtpContextOption.SHARE_RESOURCES, {"shareResources": True})]
    if kind is not None:
        options.append((HtpContextOption.SHARE_RESOURCES_OPTIMIZATION_TYPE, {"shareResOptType": kind}))
    configs = configs_of(htp, *(context_config(htp, option, **given)[0].contents for option, given in options))
    callbacks = Callbacks(content)
    error, seen = load(htp, backend, [(content, callbacks, None), (content, None, None)], configs)
    assert error == 0
    assert [each.error for each in seen if each.kind == CONTEXT] == [expected, 0]
    assert bool(callbacks.requests) == (not expected)


def test_a_list_of_another_version_or_without_parameters_is_refused(htp: Client, backend: int, model: Path) -> None:
    for version in (0, 2, 3):
        params = objects.ContextParams(version)
        listed = (ctypes.POINTER(objects.ContextParams) * 2)(ctypes.pointer(params))
        assert htp.contextCreateFromBinaryListAsync(backend, None, listed, None, None) == Code.CONTEXT_INVALID_ARGUMENT
