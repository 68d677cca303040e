"""Each rule for calls, on calls that no library serves: what is just wrong is named, and what is just right is not."""

from __future__ import annotations

import ctypes
import json
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.waiting import PATIENCE

from capi.qnn_calls import Client, at, in_handle
from capi.test_saver import maker
from isthmus import audit_log
from isthmus.audit_log import LEAKS, Mistake
from isthmus.cabi import objects, types
from isthmus.cabi.declarations import BACKEND as DECLARED
from isthmus.capi import protocol, rules, validation
from isthmus.capi.validation import MemoryCheck, Validation
from isthmus.graph import DataType, TensorType

F32, U32 = DataType.FLOAT_32, DataType.UINT_32
UNREADABLE = 0x10
BACKEND, CONTEXT, GRAPH = 0xB0, 0xC0, 0x60


_kept: list[Any] = []


def zeros(nbytes: int) -> np.ndarray:
    """Memory that stays where it is."""
    _kept.append(np.zeros(nbytes, np.uint8))
    return _kept[-1]


class Calls:
    """A client whose calls succeed unless a test says otherwise; handles are what a test says."""

    def __init__(self) -> None:
        self.seen = Validation()
        self.client: Client = maker()

    def __call__(self, name: str, *values: Any, error: int = 0) -> list[str]:
        """Call a function; the mistakes in the call."""
        before = len(self.seen.mistakes)
        numbers = tuple(value if isinstance(value, int) else self.address(value) for value in values)
        self.seen.before(name, numbers)
        self.seen.after(name, error, numbers)
        begin = f"call {self.seen._number} ({name}): "
        found = self.seen.mistakes[before:]
        assert all(each.startswith(begin) for each in found), found
        return [each.removeprefix(begin) for each in found]

    def address(self, thing: Any) -> int:
        """Return where something is, which stays there."""
        self.client.keep(thing)
        return thing.ctypes.data if isinstance(thing, np.ndarray) else ctypes.addressof(thing)

    def text(self, value: bytes) -> int:
        return self.address(ctypes.create_string_buffer(value))

    def out(self, *handles: int) -> int:
        """Return where a call has put these handles."""
        return self.address((ctypes.c_uint64 * len(handles))(*handles))

    def pointers(self, *things: Any) -> int:
        """A list of pointers to these."""
        return self.out(*map(self.address, things))

    def opened(self) -> Calls:
        """With a backend, a context and a graph."""
        assert self("backendCreate", 0, 0, self.out(BACKEND)) == []
        assert self("contextCreate", BACKEND, 0, 0, self.out(CONTEXT)) == []
        assert self("graphCreate", CONTEXT, self.text(b"net"), 0, self.out(GRAPH)) == []
        return self

    def tensor(self, name: str, kind: TensorType, number: int, dims: tuple[int, ...] = (2, 4), **more: Any) -> Any:
        """A tensor of the graph, as the call that creates it leaves its description."""
        tensor = self.client.tensor(name, kind, more.pop("dtype", F32), dims, **more)
        tensor.v1.id = number
        assert self("tensorCreateGraphTensor", GRAPH, tensor) == []
        return tensor

    def ready(self) -> tuple[Any, Any]:
        """With a finalized graph; its input and output, of 32 bytes each."""
        self.opened()
        x, y = self.tensor("x", TensorType.APP_WRITE, 1), self.tensor("y", TensorType.APP_READ, 2)
        assert self("graphAddNode", GRAPH, self.client.operation("relu", "Relu", [x], [y])) == []
        assert self("graphFinalize", GRAPH, 0, 0) == []
        return x, y

    def execute(self, inputs: list[Any], outputs: list[Any]) -> list[str]:
        arrays = [(types.Tensor * max(len(each), 1))(*each) for each in (inputs, outputs)]
        return self("graphExecute", GRAPH, arrays[0], len(inputs), arrays[1], len(outputs), 0, 0)


@pytest.fixture
def calls() -> Calls:
    return Calls()


# -- objects -----------------------------------------------------------------------------------------------------------


def test_an_owner_is_not_to_be_freed_before_what_it_owns(calls: Calls) -> None:
    calls.opened()
    calls("backendCreate", 0, 0, calls.out(0xB1))
    calls("profileCreate", BACKEND, 1, calls.out(0xF0))
    calls("signalCreate", BACKEND, 0, calls.out(0x50))
    calls("logCreate", 0, 1, calls.out(0x70))
    calls("deviceCreate", 0, 0, calls.out(0xD0))
    assert calls("backendFree", 0xB1) == [], "what another one owns is not its own"
    assert calls("backendFree", BACKEND, error=1) == [
        "context 0xc0 of it is not freed (call 2 (contextCreate))",
        "profile 0xf0 of it is not freed (call 5 (profileCreate))",
        "signal 0x50 of it is not freed (call 6 (signalCreate))",
    ]
    assert calls("deviceFree", 0xD0, error=1) == ["context 0xc0 may still use this device (call 2 (contextCreate))"]
    assert calls("logFree", 0x70, error=1) == ["backend 0xb0 still uses this log handle (call 1 (backendCreate))"]
    for name, number in (("contextFree", CONTEXT), ("profileFree", 0xF0), ("signalFree", 0x50), ("deviceFree", 0xD0),
                         ("backendFree", BACKEND), ("logFree", 0x70)):  # fmt: skip
        assert calls(name, number, *([0] if name == "contextFree" else [])) == [], name
    assert calls.seen.leaks() == []


def test_a_leak_is_reported_by_its_outermost_owner(calls: Calls) -> None:
    calls.opened()
    calls("memRegister", CONTEXT, descriptors((4,)), 1, calls.out(0x40))
    calls("backendCreate", 0, 0, calls.out(0xB1))
    calls("profileCreate", 0xB1, 1, calls.out(0xF0))
    calls("backendFree", 0xB1)
    calls("logCreate", 0, 1, calls.out(0x70))
    assert calls.seen.leaks() == [
        "backend 0xb0 of call 1 (backendCreate) was never freed", "log 0x70 of call 8 (logCreate) was never freed",
    ]  # fmt: skip
    calls("backendFree", BACKEND)
    assert calls.seen.leaks() == ["log 0x70 of call 8 (logCreate) was never freed"], "the rest has ended with it"


def test_what_ends_with_its_owner_has_ended_with_that_call(calls: Calls) -> None:
    calls.opened()
    calls("contextCreate", BACKEND, 0, 0, calls.out(0xC1))
    calls("graphCreate", 0xC1, calls.text(b"other"), 0, calls.out(0x61))
    calls("contextFree", CONTEXT, 0)
    assert calls("graphFinalize", GRAPH, 0, 0) == ["graph 0x60: it was freed by call 6 (contextFree)",
                                                  "graph 0x60: it has no nodes"]  # fmt: skip
    assert calls("graphFinalize", 0x61, 0, 0) == ["graph 0x61: it has no nodes"]
    assert calls("contextFree", CONTEXT, 0) == ["context 0xc0: it was freed by call 6 (contextFree)"]
    assert calls.seen.objects["context", CONTEXT].freed_by == "call 6 (contextFree)"
    # A library may give the number again.
    calls("contextCreate", BACKEND, 0, 0, calls.out(CONTEXT))
    assert calls("contextFinalize", CONTEXT, 0) == []


def test_a_backend_and_a_context_of_one_number_are_two(calls: Calls) -> None:
    calls("backendCreate", 0, 0, calls.out(5))
    calls("contextCreate", 5, 0, 0, calls.out(5))
    calls("graphCreate", 5, calls.text(b"net"), 0, calls.out(5))
    calls("profileCreate", 5, 1, calls.out(6))
    calls("contextFree", 5, 0)
    assert calls.seen.objects["graph", 5].freed_by == "call 5 (contextFree)"
    assert calls.seen.objects["profile", 6].freed_by == "", "that of the backend"
    assert calls.seen.objects["backend", 5].freed_by == ""


def test_a_handle_of_another_kind_is_reported_as_such(calls: Calls) -> None:
    calls.opened()
    assert calls("contextFinalize", GRAPH, 0) == ["context 0x60: no call has made it; a graph has that number"]
    assert calls("contextFinalize", 0, 0) == ["context 0x0: no call has made it"]
    assert calls("graphFinalize", GRAPH, 0x99, 0)[0] == "profile 0x99: no call has made it"
    calls("backendFree", BACKEND)
    assert calls("contextFinalize", GRAPH, 0) == ["context 0x60: no call has made it"], "it is freed"


@pytest.mark.parametrize("name", [name for name, handles in protocol.HANDLES.items() if handles])
def test_every_function_may_be_given_handles_that_no_call_has_made(calls: Calls, name: str) -> None:
    """Each is told, and the rest of the arguments, which are null, ends no check."""
    handles = {index: kind for index, kind, _ in protocol.HANDLES[name]}
    values = [0x99 if index in handles else 0 for index, _ in enumerate(DECLARED[name] or ())]
    found = calls(name, *values, error=1)
    assert found[: len(handles)] == [f"{kind} 0x99: no call has made it" for kind in handles.values()]


def test_a_place_where_no_handle_is_makes_no_object(calls: Calls) -> None:
    assert calls("backendCreate", 0, 0, UNREADABLE) == []
    assert calls("backendCreate", 0, 0, calls.out(0)) == []
    assert calls("backendCreate", 0, 0, 0) == ["argument 3 is null"]
    assert calls("backendCreate", 0, 0, calls.out(7), error=4000) == []
    assert calls.seen.objects == {}


def test_a_subgraph_belongs_to_the_context_of_its_graph(calls: Calls) -> None:
    calls.opened()
    assert calls("graphCreateSubgraph", GRAPH, calls.text(b"below"), calls.out(0x61)) == []
    assert calls.seen.objects["graph", 0x61].owner == CONTEXT
    calls("graphCreateSubgraph", 0x99, calls.text(b"of none"), calls.out(0x62))
    assert calls.seen.objects["graph", 0x62].owner == 0
    calls("contextFree", CONTEXT, 0)
    assert [calls.seen.objects["graph", number].freed_by for number in (0x61, 0x62)] == ["call 6 (contextFree)", ""]


def test_a_graph_of_a_binary_is_retrieved_finalized_and_as_often_as_one_likes(calls: Calls) -> None:
    calls.opened()
    for _ in range(2):
        assert calls("graphRetrieve", CONTEXT, calls.text(b"one"), calls.out(0x61)) == []
        found = calls.seen.objects["graph", 0x61]
        assert (found.finalized, found.complete, found.owner) == (True, False, CONTEXT)
        assert found.created_by == "call 4 (graphRetrieve)"
    assert calls("graphFinalize", 0x61, 0, 0) == [], "of such a graph nothing is known"
    # A graph that was composed stays known in full when it is retrieved.
    assert calls("graphRetrieve", CONTEXT, calls.text(b"net"), calls.out(GRAPH)) == []
    assert calls.seen.objects["graph", GRAPH].complete


@pytest.mark.parametrize(("level", "mistakes"), [(0, 1), (1, 0), (5, 0), (6, 1)])
def test_log_levels_are_those_of_qnn(calls: Calls, level: int, mistakes: int) -> None:
    calls("logCreate", 0, 1, calls.out(0x70))
    rule = [f"there is no log level {level}"] * mistakes
    assert calls("logCreate", 0, level, calls.out(0x71), error=mistakes) == rule
    assert calls("logSetLogLevel", 0x70, level, error=mistakes) == rule


def test_a_profile_has_a_level(calls: Calls) -> None:
    calls.opened()
    assert calls("profileCreate", BACKEND, 0, calls.out(0xF0), error=1) == ["there is no profile level 0"]
    assert calls("profileCreate", BACKEND, 1, calls.out(0xF0)) == []


def test_a_list_of_configs_is_read_to_its_end(calls: Calls) -> None:
    calls.opened()
    assert calls("contextSetConfig", CONTEXT, calls.out(UNREADABLE, 0)) == [
        f"{ctypes.sizeof(objects.ContextConfig)} bytes at 0x10 are not memory of this process"
    ]
    assert calls("contextSetConfig", CONTEXT, UNREADABLE) == ["8 bytes at 0x10 are not memory of this process"]
    assert calls("contextSetConfig", CONTEXT, calls.pointers(objects.ContextConfig()) and calls.out(0)) == []
    assert calls("contextCreate", BACKEND, 0, UNREADABLE, calls.out(0xC1)) == [
        "8 bytes at 0x10 are not memory of this process"
    ]


def test_a_signal_serves_one_call_at_a_time_and_may_be_triggered_meanwhile(calls: Calls) -> None:
    calls.opened()
    calls("signalCreate", BACKEND, 0, calls.out(0x50))
    found: dict[str, list[str]] = {}

    def others() -> None:
        found["trigger"] = calls("signalTrigger", 0x50)
        found["config"] = calls("signalSetConfig", 0x50, 0)
        found["graph"] = calls("graphFinalize", GRAPH, 0, 0x50)
        found["freed"] = calls("contextFree", CONTEXT, 0, error=1)
        found["other"] = calls("signalFree", 0x51, error=1)

    values = (GRAPH, 0, 0x50)
    calls.seen.before("graphFinalize", values)
    thread = threading.Thread(target=others)
    thread.start()
    thread.join(PATIENCE)
    calls.seen.after("graphFinalize", 1, values)
    uses = "signal 0x50: call 5 (graphFinalize) uses it now"
    assert found == {
        "trigger": [], "config": [uses], "graph": [uses, "graph 0x60: it has no nodes"],
        "freed": [], "other": ["signal 0x51: no call has made it"],
    }  # fmt: skip
    assert calls("signalSetConfig", 0x50, 0) == [], "that call has ended"
    assert calls.seen._under_way == {}
    assert calls.seen._stacks == {}


def test_calls_of_a_callback_are_checked_by_their_own_arguments(calls: Calls) -> None:
    calls.opened()
    assert calls.seen.objects["backend", BACKEND].owner == 0
    # The outer call has begun and not ended while the inner ones are made.
    calls.seen.before("backendGetBuildId", (1,))
    assert calls("contextSetConfig", CONTEXT, UNREADABLE) == ["8 bytes at 0x10 are not memory of this process"]
    assert calls("signalFree", 0x50, error=1) == ["signal 0x50: no call has made it"]
    calls.seen.after("backendGetBuildId", 0, (1,))


def test_what_a_thread_is_in_is_its_innermost_call(calls: Calls) -> None:
    assert calls.seen.under_way() is None
    calls.seen.before("backendGetBuildId", (1,))
    calls.seen.before("errorGetMessage", (1, 1))
    begun = calls.seen.under_way()
    assert begun is not None
    assert begun.label == "call 2 (errorGetMessage)"
    calls.seen.after("errorGetMessage", 0, (1, 1))
    begun = calls.seen.under_way()
    assert begun is not None
    assert begun.label == "call 1 (backendGetBuildId)"
    calls.seen.after("backendGetBuildId", 0, (1,))
    assert calls.seen.under_way() is None


def test_only_contexts_and_graphs_come_from_callbacks(calls: Calls) -> None:
    calls.opened()
    assert calls("contextCreateFromBinaryListAsync", BACKEND, 0, calls.out(0), 0, 0) == []
    assert calls("contextFinalize", 0x91, 0) == []
    assert calls("graphExecute", 0x92, 0, 0, 0, 0, 0x93, 0) == ["profile 0x93: no call has made it"]
    assert calls("contextFinalize", 0, 0) == ["context 0x0: no call has made it"]
    context, graph = calls.seen.objects["context", 0x91], calls.seen.objects["graph", 0x92]
    assert (context.created_by, context.finalized, context.complete) == ("a callback", False, False)
    assert (graph.created_by, graph.finalized, graph.complete) == ("a callback", True, False)


# -- binaries ----------------------------------------------------------------------------------------------------------


def test_binaries_have_bytes_that_can_be_read(calls: Calls) -> None:
    calls.opened()
    buffer, outside = np.zeros(16, np.uint8), "1 bytes at 0x10 are not memory of this process"
    for name, more in (("contextCreateFromBinary", (calls.out(0xC1), 0)), ("contextValidateBinary", ()),
                       ("contextCreateFromBinaryWithSignal", (calls.out(0xC2), 0, 0))):  # fmt: skip
        assert calls(name, BACKEND, 0, 0, buffer, 16, *more) == []
        assert calls(name, BACKEND, 0, 0, buffer, 0, *more) == ["context binary: it has 0 bytes"]
        assert calls(name, BACKEND, 0, 0, UNREADABLE, 16, *more) == [outside]
        assert calls(name, BACKEND, 0, 0, 0, 16, *more) == ["argument 4 is null"]
        last = buffer.ctypes.data + (1 << 46) - 1
        assert calls(name, BACKEND, 0, 0, buffer, 1 << 46, *more) == [
            f"1 bytes at {last:#x} are not memory of this process"
        ]


def test_each_binary_of_a_list_has_a_callback_and_bytes(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    calls.opened()
    buffer = np.zeros(16, np.uint8)

    def params(version: int = 1, notify: int = 1, data: int = buffer.ctypes.data, nbytes: int = 16) -> Any:
        each = objects.ContextParams(version)
        each.v1.notifyFunc, each.v1.binaryBuffer, each.v1.binaryBufferSize = notify, data, nbytes
        return each

    def listed(*entries: Any, end: bool = True) -> list[str]:
        addresses = [calls.address(each) for each in entries]
        return calls("contextCreateFromBinaryListAsync", BACKEND, 0, calls.out(*addresses, *[0] * end), 0, 0)

    assert listed(params(), params()) == []
    assert listed(params(), params(version=3), params(notify=0)) == [
        "binary 1: the version 3 of its parameters is neither 1 nor 2", "binary 2: there is no callback to notify",
    ]  # fmt: skip
    assert listed(params(notify=0), params(nbytes=0)) == [
        "binary 0: there is no callback to notify", "binary 1: it has 0 bytes",
    ]  # fmt: skip
    assert listed(params(data=UNREADABLE)) == ["1 bytes at 0x10 are not memory of this process"]
    monkeypatch.setattr(rules, "MAX_HANDLES", 3)
    assert listed(params(), params()) == []
    (rule,) = listed(params(), params(), params(), end=False)
    assert rule.startswith("the list at 0x")
    assert rule.endswith(" has no null pointer among its first 3 entries")


def test_binaries_with_data_callbacks_have_both_functions(calls: Calls) -> None:
    calls.opened()
    buffer, wrong = (
        np.zeros(16, np.uint8),
        "only version 1 of callbacks with DMA buffers (type 2) is there, with both functions",
    )

    def callbacks(kind: int = 2, version: int = 1, provide: int = 1, release: int = 1) -> Any:
        each = objects.BinaryCallback(kind)
        each.dmaBufferCallback.version = version
        each.dmaBufferCallback.v1.dataProvide, each.dmaBufferCallback.v1.dataRelease = provide, release
        return each

    def of_list(given: Any) -> list[str]:
        second = objects.ContextParamsV2(None, calls.address(buffer), 16, 0, 1, 0)
        second.callbacks = ctypes.pointer(given)
        each = objects.ContextParams(2)
        each.v2 = ctypes.pointer(second)
        return calls("contextCreateFromBinaryListAsync", BACKEND, 0, calls.out(calls.address(each), 0), 0, 0)

    def alone(given: Any) -> list[str]:
        return calls("contextCreateFromBinaryWithCallback", BACKEND, 0, 0, given, buffer, 16, calls.out(0), 0, 0)

    assert (alone(callbacks()), of_list(callbacks())) == ([], [])
    for given in ({"kind": 1}, {"version": 2}, {"provide": 0}, {"release": 0}):
        assert alone(callbacks(**given)) == [f"data callbacks: {wrong}"]
        assert of_list(callbacks(**given)) == [f"binary 0: {wrong}"]
    assert calls("contextCreateFromBinaryWithCallback", BACKEND, 0, 0, 0, buffer, 0, calls.out(0), 0, 0) == [
        "argument 4 is null", "context binary: it has 0 bytes",
    ]  # fmt: skip


def test_a_buffer_for_a_binary_has_the_size_that_was_returned(calls: Calls) -> None:
    calls.opened()
    buffer, size = np.zeros(16, np.uint8), ctypes.c_uint64(12)
    assert calls("contextGetBinary", CONTEXT, buffer, 0, size) == [], "no size was told"
    assert calls("contextGetBinarySize", CONTEXT, size) == []
    assert calls("contextGetBinary", CONTEXT, buffer, 12, size) == []
    assert calls("contextGetBinary", CONTEXT, buffer, 11, size) == [
        "its buffer has 11 bytes, contextGetBinarySize has said 12"
    ]
    assert calls("contextGetBinary", 0x99, buffer, 1, size) == ["context 0x99: no call has made it"]


# -- memory ------------------------------------------------------------------------------------------------------------


def descriptors(*shapes: tuple[int, ...], dtype: int = int(F32)) -> Any:
    """Descriptors of memory with these dimensions."""
    made = (objects.MemDescriptor * len(shapes))()
    for descriptor, dims in zip(made, shapes, strict=True):
        array = (ctypes.c_uint32 * len(dims))(*dims)
        _kept.append(array)
        descriptor.memShape = objects.MemShape(len(dims), array if dims else None, None)
        descriptor.dataType = dtype
    _kept.append(made)
    return made


def test_descriptors_have_dimensions_that_can_be_read(calls: Calls) -> None:
    calls.opened()

    def registered(made: Any, count: int) -> list[str]:
        return calls("memRegister", CONTEXT, made, count, calls.out(0x41, 0x42), error=1)

    assert registered(descriptors((1,)), 0) == ["there is no descriptor"]
    assert registered(descriptors((1,) * 8), 1) == []
    assert registered(descriptors((2,), (1,) * 9), 2) == ["descriptor 1: its rank is 9"]
    assert registered(descriptors((2,), ()), 2) == ["descriptor 1: it has no dimensions"]
    wild = descriptors((1,))
    wild[0].memShape.dimSize = ctypes.cast(UNREADABLE, ctypes.POINTER(ctypes.c_uint32))
    assert registered(wild, 1) == ["4 bytes at 0x10 are not memory of this process"]
    assert registered(descriptors((1,)), 1) == []


def test_the_sizes_of_registered_memory_are_known(calls: Calls) -> None:
    calls.opened()
    assert calls("memRegister", CONTEXT, descriptors((2, 3), (5,)), 2, calls.out(0x41, 0x42)) == []
    assert calls("memRegister", CONTEXT, descriptors((2, 3), dtype=0x999), 1, calls.out(0x43)) == []
    assert {number: calls.seen.objects["memory handle", number].nbytes for number in (0x41, 0x42, 0x43)} == {
        0x41: 24, 0x42: 20, 0x43: 0,
    }  # fmt: skip
    assert [calls.seen.objects["memory handle", number].owner for number in (0x41, 0x42)] == [CONTEXT, CONTEXT]
    assert calls("contextFree", CONTEXT, 0, error=1) == [
        f"memory handle {number:#x} of it is registered still (call {call} (memRegister))"
        for number, call in ((0x41, 4), (0x42, 4), (0x43, 5))
    ]
    assert calls("memDeRegister", calls.out(0x41, 0x43), 2) == []
    assert calls("contextFree", CONTEXT, 0, error=1) == [
        "memory handle 0x42 of it is registered still (call 4 (memRegister))"
    ]


def test_memory_is_deregistered_once_and_by_its_handle(calls: Calls) -> None:
    calls.opened()
    calls("memRegister", CONTEXT, descriptors((1,), (1,)), 2, calls.out(0x41, 0x42))
    assert calls("memDeRegister", calls.out(0x41), 0, error=1) == ["there is no handle"]
    assert calls("memDeRegister", calls.out(0x41, 0x41), 2, error=1) == ["memory handle 0x41: it is given twice"]
    assert calls("memDeRegister", calls.out(0x99), 1, error=1) == ["memory handle 0x99: no call has made it"]
    assert calls("memDeRegister", calls.out(0x41, 0x42), 1) == []
    assert calls("memDeRegister", calls.out(0x41), 1, error=1) == [
        "memory handle 0x41: it was freed by call 8 (memDeRegister)"
    ]
    assert calls("memDeRegister", calls.out(0x42), 1) == []
    assert calls("memDeRegister", 0, 1, error=1)[0] == "argument 1 is null"


def test_memory_that_an_execution_uses_is_not_to_be_deregistered(calls: Calls) -> None:
    x, y = calls.ready()
    calls("memRegister", CONTEXT, descriptors((2, 4), (2, 4)), 2, calls.out(0x41, 0x42))
    inputs, outputs = (types.Tensor * 1)(in_handle(x, 0x41)), (types.Tensor * 1)(at(y, zeros(32)))
    values = (GRAPH, calls.address(inputs), 1, calls.address(outputs), 1, 0, 0)
    found: list[list[str]] = []
    calls.seen.before("graphExecute", values)
    number = calls.seen._number
    thread = threading.Thread(
        target=lambda: found.extend(calls("memDeRegister", calls.out(each), 1, error=1) for each in (0x41, 0x42))
    )
    thread.start()
    thread.join(PATIENCE)
    calls.seen.after("graphExecute", 0, values)
    assert found == [[f"memory handle 0x41: call {number} (graphExecute) uses it now"], []]
    assert calls("memDeRegister", calls.out(0x41, 0x42), 2) == []


# -- profiles ----------------------------------------------------------------------------------------------------------


def events(calls: Calls, *numbers: int) -> tuple[int, int]:
    """Return where a call has put these events, and their number."""
    return calls.out(calls.out(*numbers)), calls.address(ctypes.c_uint32(len(numbers)))


def test_events_are_those_that_a_living_profile_has_reported(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    calls.opened()
    data = objects.EventData()
    for number in (0xF0, 0xF1):
        calls("profileCreate", BACKEND, 1, calls.out(number))
    assert calls("profileGetEvents", 0xF0, *events(calls, 1, 2)) == []
    assert calls("profileGetEvents", 0xF1, *events(calls, 3)) == []
    assert calls("profileGetSubEvents", 2, *events(calls, 4)) == []
    assert calls.seen.events == {1: 0xF0, 2: 0xF0, 3: 0xF1, 4: 0xF0}
    for number in (1, 2, 3, 4):
        assert calls("profileGetEventData", number, data) == []
        assert calls("profileGetExtendedEventData", number, data) == []
    assert calls("profileGetEventData", 5, data) == ["event 0x5: no profile has reported it"]
    assert calls("profileGetSubEvents", 5, *events(calls, 6)) == ["event 0x5: no profile has reported it"]
    assert 6 not in calls.seen.events
    size = ctypes.sizeof(objects.EventData)
    assert calls("profileGetEventData", 1, UNREADABLE) == [f"{size} bytes at 0x10 are not memory of this process"]
    assert calls("profileGetSubEvents", 1, UNREADABLE, UNREADABLE) == ["8 bytes at 0x10 are not memory of this process"]
    assert calls("profileGetEventData", 1, 0) == ["argument 2 is null"]
    calls("profileFree", 0xF0)
    (rule,) = calls("profileGetEventData", 4, data)
    assert rule.startswith("event 0x4: its profile was freed by call ")
    assert calls("profileGetEventData", 3, data) == []
    # The latest are known; of an unknown one nothing is said once there were too many.
    monkeypatch.setattr(rules, "MAX_EVENTS", 5)
    calls("profileGetEvents", 0xF1, *events(calls, 1, 7, 8))
    assert list(calls.seen.events) == [3, 4, 1, 7, 8]
    assert calls("profileGetEventData", 2, data) == []
    monkeypatch.setattr(rules, "MAX_EVENTS", 6)
    assert calls("profileGetEventData", 2, data) == ["event 0x2: no profile has reported it"]


# -- graphs ------------------------------------------------------------------------------------------------------------


def test_graphs_of_a_context_have_names_of_their_own(calls: Calls) -> None:
    calls.opened()
    calls("contextCreate", BACKEND, 0, 0, calls.out(0xC1))
    taken = ["graph 'net': graph 0x60 of the context has that name (call 3 (graphCreate))"]
    assert calls("graphCreate", CONTEXT, calls.text(b"net"), 0, calls.out(0x61), error=1) == taken
    assert calls("graphCreate", 0xC1, calls.text(b"net"), 0, calls.out(0x61)) == []
    assert calls("graphCreate", CONTEXT, calls.text(b"ne"), 0, calls.out(0x62)) == []
    assert calls("graphCreate", CONTEXT, calls.text(b""), 0, calls.out(0x63)) == ["a graph must have a name"]
    assert calls("graphCreate", CONTEXT, calls.text(b""), 0, calls.out(0x64)) == ["a graph must have a name"]
    assert calls("graphCreate", CONTEXT, 0, 0, calls.out(0x65), error=1) == ["argument 2 is null"]
    assert [calls.seen.objects["graph", number].name for number in (GRAPH, 0x62)] == ["net", "ne"]


def test_a_finalized_graph_cannot_be_changed(calls: Calls) -> None:
    x, y = calls.ready()
    final = "graph 0x60: it is finalized and cannot be changed"
    other = calls.client.tensor("z", TensorType.NATIVE, F32, (2, 4))
    other.v1.id = 3
    assert calls("tensorCreateGraphTensor", GRAPH, other, error=1) == [final]
    assert calls("graphCreateSubgraph", GRAPH, calls.text(b"below"), calls.out(0x61), error=1) == [final]
    assert calls("graphAddNode", GRAPH, calls.client.operation("n", "Relu", [x], [y]), error=1) == [
        final, "node 'n' (Relu): tensor 'y' is written by node 'relu' already",
    ]  # fmt: skip
    assert calls("graphFinalize", GRAPH, 0, 0) == ["graph 0x60: it is finalized already"]
    calls("contextFree", CONTEXT, 0)
    freed = calls("graphCreateSubgraph", GRAPH, calls.text(b"below"), calls.out(0x61), error=1)
    assert len(freed) == 1
    assert "it was freed by" in freed[0]


def test_tensors_have_names_of_their_own_and_static_ones_their_data(calls: Calls) -> None:
    calls.opened()
    calls.tensor("x", TensorType.APP_WRITE, 1)
    make = calls.client.tensor
    assert calls("tensorCreateGraphTensor", GRAPH, make("x", TensorType.NATIVE, F32, (1,)), error=1) == [
        "tensor 'x': graph 0x60 has one of that name"
    ]
    static = make("w", TensorType.STATIC, F32, (2,), data=np.zeros(2, np.float32))
    assert calls("tensorCreateGraphTensor", GRAPH, static, error=1) == []
    static.v1.clientBuf.dataSize = 7
    assert calls("tensorCreateGraphTensor", GRAPH, static, error=1) == [
        "tensor 'w': its data has 7 bytes, 8 are needed"
    ]
    static.v1.clientBuf.data = None
    assert calls("tensorCreateGraphTensor", GRAPH, static, error=1) == ["tensor 'w': a static tensor without data"]
    assert calls("tensorCreateGraphTensor", GRAPH, UNREADABLE, error=1) == [
        f"{ctypes.sizeof(types.Tensor)} bytes at 0x10 are not memory of this process"
    ]
    native = make("n", TensorType.NATIVE, F32, (2,))
    assert calls("tensorCreateGraphTensor", 0x99, native, error=1) == ["graph 0x99: no call has made it"]
    assert [each.name for each in calls.seen.objects["graph", GRAPH].tensors.values()] == ["x"], "a refused one is none"


def test_a_tensor_of_a_context_is_one_of_its_graphs(calls: Calls) -> None:
    calls.opened()
    calls("contextCreate", BACKEND, 0, 0, calls.out(0xC1))
    calls("graphCreate", 0xC1, calls.text(b"other"), 0, calls.out(0x61))
    shared = calls.client.tensor("shared", TensorType.NATIVE, F32, (2, 4))
    shared.v1.id = 9
    y = calls.tensor("y", TensorType.APP_READ, 2)
    assert calls("tensorCreateContextTensor", CONTEXT, shared) == []
    assert calls("graphAddNode", GRAPH, calls.client.operation("n", "Relu", [shared], [y])) == []
    assert 9 not in calls.seen.objects["graph", 0x61].tensors
    assert calls("tensorCreateContextTensor", CONTEXT, UNREADABLE, error=1) == [
        f"{ctypes.sizeof(types.Tensor)} bytes at 0x10 are not memory of this process"
    ]


def test_tensors_that_are_updated_are_those_of_the_graph(calls: Calls) -> None:
    calls.opened()
    x = calls.tensor("x", TensorType.NATIVE, 1)
    other = calls.client.tensor("z", TensorType.NATIVE, F32, (2, 4))
    other.v1.id = 7
    both = calls.pointers(x, other)
    assert calls("tensorUpdateGraphTensors", GRAPH, both, 1) == []
    assert calls("tensorUpdateGraphTensors", GRAPH, both, 2) == [
        "tensor 'z' has the id 7, and graph 0x60 none of that id"
    ]
    calls("graphRetrieve", CONTEXT, calls.text(b"one"), calls.out(0x61))
    assert calls("tensorUpdateGraphTensors", 0x61, both, 2) == [], "its tensors are not known"
    assert calls("tensorUpdateGraphTensors", 0x99, both, 2) == ["graph 0x99: no call has made it"]
    assert calls("tensorUpdateContextTensors", CONTEXT, both, 2) == []
    assert calls("tensorUpdateGraphTensors", GRAPH, UNREADABLE, 1) == ["8 bytes at 0x10 are not memory of this process"]


def changed(tensor: Any, **fields: Any) -> Any:
    copy = types.Tensor.from_buffer_copy(tensor)
    for name, value in fields.items():
        setattr(copy.v1, name, value)
    return copy


def test_a_node_has_tensors_of_its_graph_as_they_were_created(calls: Calls) -> None:
    calls.opened()
    x, y = calls.tensor("x", TensorType.APP_WRITE, 1), calls.tensor("y", TensorType.APP_READ, 2)
    w = calls.tensor("w", TensorType.STATIC, 3, data=np.zeros((2, 4), np.float32))
    absent = calls.client.tensor("", TensorType.NULL, F32, ())
    shape = calls.client.keep((ctypes.c_uint32 * 2)(4, 2))

    def added(inputs: list[Any], outputs: list[Any], error: int = 1) -> list[str]:
        return calls("graphAddNode", GRAPH, calls.client.operation("n", "Relu", inputs, outputs), error=error)

    what = "node 'n' (Relu): tensor"
    created = "and was created as 'x' FLOAT_32[2, 4]"
    assert added([changed(x, id=77)], [y]) == [f"{what} 'x' has the id 77, and the graph none of that id"]
    assert added([x], [changed(y, id=77)]) == [f"{what} 'y' has the id 77, and the graph none of that id"]
    assert added([changed(x, name=b"z")], [y]) == [f"{what} 'z' is FLOAT_32[2, 4], {created}"]
    assert added([changed(x, dimensions=shape)], [y]) == [f"{what} 'x' is FLOAT_32[4, 2], {created}"]
    assert added([changed(x, dataType=0x32)], [y]) == [f"{what} 'x' is INT_32[2, 4], {created}"]
    assert added([x], [changed(x)]) == [f"{what} 'x' is APP_WRITE, and no node may write it"]
    assert added([x], [w]) == [f"{what} 'w' is STATIC, and no node may write it"]
    assert added([x, absent], [y, absent]) == []
    assert calls("graphAddNode", 0x99, calls.client.operation("n", "Relu", [x], [y]), error=1) == [
        "graph 0x99: no call has made it"
    ]
    assert calls.seen.objects["graph", GRAPH].nodes == set(), "a refused one is none"
    assert added([x], [y], error=0) == []
    assert added([x], [y]) == [f"{what} 'y' is written by node 'n' already"]
    assert calls.seen.objects["graph", GRAPH].writers == {2: "n"}
    assert calls.seen.objects["graph", GRAPH].nodes == {"n"}


def test_a_parameter_without_data_is_a_tensor_of_the_graph(calls: Calls) -> None:
    calls.opened()
    x, y = calls.tensor("x", TensorType.APP_WRITE, 1), calls.tensor("y", TensorType.APP_READ, 2)
    axes = calls.tensor("axes", TensorType.STATIC, 3, (1,), dtype=U32, data=np.array([1], np.uint32))
    node = calls.client.operation("sum", "ReduceSum", [x], [y], tensors={"axes": np.array([1], np.uint32)})
    param = changed(axes)
    param.v1.clientBuf.data, param.v1.clientBuf.dataSize = None, 0
    node.v1.params[0].tensorParam = param
    assert calls("graphAddNode", GRAPH, node, error=1) == []
    assert calls("backendValidateOpConfig", BACKEND, node) == []
    node.v1.params[0].tensorParam = changed(param, id=77)
    assert calls("graphAddNode", GRAPH, node, error=1) == ["node 'sum' (ReduceSum): parameter 'axes' has no data"]
    assert calls("graphAddNode", GRAPH, node) == ["node 'sum' (ReduceSum): parameter 'axes' has no data"]
    assert calls.seen.objects["graph", GRAPH].nodes == {"sum"}, "another library may take it"


def test_environments_are_read(calls: Calls) -> None:
    calls.ready()
    environment = objects.ExecuteEnvironment()
    size = ctypes.sizeof(environment)
    for name in ("graphPrepareExecutionEnvironment", "graphReleaseExecutionEnvironment"):
        assert calls(name, GRAPH, calls.pointers(environment), 1) == []
        assert calls(name, GRAPH, calls.out(UNREADABLE), 1) == [f"{size} bytes at 0x10 are not memory of this process"]
        assert calls(name, GRAPH, calls.out(UNREADABLE), 0) == []


# -- executions --------------------------------------------------------------------------------------------------------


def test_an_execution_has_each_input_and_output_once(calls: Calls) -> None:
    x, y = calls.ready()
    given, made = at(x, zeros(32)), at(y, zeros(32))
    assert calls.execute([given], [made]) == []
    assert calls.seen.raw_bytes == 64
    assert calls.execute([], [made]) == ["input 'x' of graph 0x60 is not given"]
    assert calls.execute([given], []) == ["output 'y' of graph 0x60 is not given"]
    assert calls.execute([given, given], [made]) == ["input 1: the id 1 is given twice"]
    assert calls.execute([made], [given]) == [
        "input 0: graph 0x60 has no input of the id 2", "input 'x' of graph 0x60 is not given",
        "output 0: graph 0x60 has no output of the id 1", "output 'y' of graph 0x60 is not given",
    ]  # fmt: skip
    assert calls.execute([given, changed(given, id=77)], [made]) == ["input 1: graph 0x60 has no input of the id 77"]
    assert calls.execute([changed(given, dataType=0x32)], [made]) == [
        "input 'x' is INT_32, and was created as FLOAT_32"
    ]
    calls("graphCreate", CONTEXT, calls.text(b"open"), 0, calls.out(0x61))
    assert calls("graphExecute", 0x61, 0, 0, 0, 0, 0, 0) == ["graph 0x61: it is not finalized"]


def test_more_tensors_than_any_graph_has_are_not_read(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = calls.ready()
    given, made = at(x, zeros(32)), at(y, zeros(32))
    monkeypatch.setattr(rules, "MAX_TENSORS", 1)
    inputs, outputs = (types.Tensor * 2)(given, given), (types.Tensor * 1)(made)
    assert calls("graphExecute", GRAPH, inputs, 2, outputs, 1, 0, 0) == []
    monkeypatch.setattr(rules, "MAX_TENSORS", 2)
    assert calls("graphExecute", GRAPH, inputs, 2, outputs, 1, 0, 0) == ["input 1: the id 1 is given twice"]


def test_the_buffers_of_an_execution_are_large_enough(calls: Calls) -> None:
    x, y = calls.ready()
    made = at(y, zeros(32))
    assert calls.execute([at(x, zeros(32))], [made]) == []
    assert calls.execute([at(x, zeros(31))], [made]) == ["input 'x': its buffer has 31 bytes, 32 are needed"]
    assert calls.execute([at(x, zeros(1))], [made]) == ["input 'x': its buffer has 1 byte, 32 are needed"]
    null = at(x, zeros(32))
    null.v1.clientBuf.data = None
    assert calls.execute([null], [made]) == ["input 'x': its buffer is null"]
    gone = at(y, zeros(32))
    gone.v1.clientBuf.data = None
    assert calls.execute([null], [gone]) == ["input 'x': its buffer is null", "output 'y': its buffer is null"]


@pytest.mark.parametrize(
    ("first", "second", "overlaps"),
    [(0, 32, False), (32, 0, False), (0, 31, True), (31, 0, True), (0, 0, False), (0, 1, True), (4, 0, True)],
)
def test_an_output_overlaps_no_input_unless_it_is_the_same(
    calls: Calls, first: int, second: int, overlaps: bool
) -> None:
    x, y = calls.ready()
    memory = np.zeros(64, np.uint8)
    found = calls.execute([at(x, memory[first : first + 32])], [at(y, memory[second : second + 32])])
    assert found == ["output 'y': its buffer overlaps that of input 'x'"] * overlaps


def test_outputs_share_no_memory_and_inputs_may(calls: Calls) -> None:
    calls.opened()
    a, b = (calls.tensor(name, TensorType.APP_WRITE, number) for number, name in enumerate("ab", 1))
    y, z = (calls.tensor(name, TensorType.APP_READ, number) for number, name in enumerate("yz", 3))
    for name, output in (("one", y), ("two", z)):
        calls("graphAddNode", GRAPH, calls.client.operation(name, "ElementWiseAdd", [a, b], [output]))
    calls("graphFinalize", GRAPH, 0, 0)
    one, two, three = (np.zeros(8, np.float32) for _ in range(3))
    assert calls.execute([at(a, one), at(b, one)], [at(y, two), at(z, three)]) == []
    both = np.zeros(64, np.uint8)
    assert calls.execute([at(a, both[:32]), at(b, both[16:48])], [at(y, two), at(z, three)]) == []
    assert calls.execute([at(a, one), at(b, one)], [at(y, two), at(z, two)]) == [
        "output 'z': its buffer overlaps that of output 'y'"
    ]


def test_registered_memory_belongs_to_the_context_and_is_large_enough(calls: Calls) -> None:
    x, y = calls.ready()
    made = at(y, zeros(32))
    calls("contextCreate", BACKEND, 0, 0, calls.out(0xC1))
    for context, dims, handle in ((CONTEXT, (8,), 0x41), (CONTEXT, (7,), 0x42), (0xC1, (8,), 0x43)):
        calls("memRegister", context, descriptors(dims), 1, calls.out(handle))
    calls("memRegister", CONTEXT, descriptors((1,), dtype=0x999), 1, calls.out(0x44))
    assert calls.execute([in_handle(x, 0x41)], [made]) == []
    assert (calls.seen.shared_bytes, calls.seen.raw_bytes) == (32, 32)
    assert calls.execute([in_handle(x, 0x42)], [made]) == ["input 'x': memory handle 0x42 has 28 bytes, 32 are needed"]
    assert calls.execute([in_handle(x, 0x43)], [made]) == [
        "input 'x': memory handle 0x43 is registered with another context"
    ]
    assert calls.execute([in_handle(x, 0x44)], [made]) == [], "its size is not known"
    assert calls.execute([in_handle(x, 0x99)], [made]) == ["memory handle 0x99: no call has made it"]
    assert calls.execute([in_handle(x, 0)], [made]) == ["memory handle 0x0: no call has made it"]
    assert calls.execute([in_handle(x, 0x41)], [in_handle(y, 0x41)]) == []


def test_a_graph_from_a_callback_may_use_memory_of_any_context(calls: Calls) -> None:
    """Its own context is not known; that the memory is registered and large enough is checked all the same."""
    calls.opened()
    calls("contextCreateFromBinaryListAsync", BACKEND, 0, calls.out(0), 0, 0)
    assert calls("memRegister", 0x91, descriptors((8,)), 1, calls.out(0x41)) == []
    assert calls("memRegister", 0x91, descriptors((7,)), 1, calls.out(0x42)) == []
    x = calls.client.tensor("x", TensorType.APP_WRITE, F32, (2, 4))

    def executed(handle: int) -> list[str]:
        return calls("graphExecute", 0x92, (types.Tensor * 1)(in_handle(x, handle)), 1, 0, 0, 0, 0)

    assert executed(0x41) == []
    assert executed(0x42) == ["input 'x': memory handle 0x42 has 28 bytes, 32 are needed"]
    assert executed(0x43) == ["memory handle 0x43: no call has made it"]
    assert calls("contextFree", 0x91, 0, error=1) == [
        f"memory handle {handle:#x} of it is registered still ({made})"
        for handle, made in ((0x41, "call 5 (memRegister)"), (0x42, "call 6 (memRegister)"))
    ]


def test_a_tensor_of_a_graph_from_a_binary_is_what_the_call_describes(calls: Calls) -> None:
    calls.opened()
    calls("graphRetrieve", CONTEXT, calls.text(b"one"), calls.out(0x61))
    x = calls.client.tensor("x", TensorType.APP_WRITE, F32, (2, 4))
    small = (types.Tensor * 1)(at(x, zeros(28)))
    assert calls("graphExecute", 0x61, small, 1, 0, 0, 0, 0) == [
        "input 'x': its buffer has 28 bytes, 32 are needed for FLOAT_32[2, 4], as this call describes it"
    ]
    assert calls("graphExecute", 0x61, (types.Tensor * 1)(at(x, zeros(32))), 1, 0, 0, 0, 0) == []


# -- the record --------------------------------------------------------------------------------------------------------


def test_calls_and_their_errors_are_counted(calls: Calls) -> None:
    calls.opened()
    for error in (0, 5, 5, 7):
        calls("contextFinalize", CONTEXT, 0, error=error)
    report = calls.seen.report()
    assert {name: call["count"] for name, call in report["calls"].items()} == {
        "backendCreate": 1, "contextCreate": 1, "contextFinalize": 4, "graphCreate": 1,
    }  # fmt: skip
    assert list(report["calls"]) == sorted(report["calls"])
    assert report["calls"]["contextFinalize"]["errors"] == {5: 2, 7: 1}
    assert report["calls"]["backendCreate"]["errors"] == {}
    assert all(0 <= call["seconds"] < 60 for call in report["calls"].values())
    assert (report["mistakes"], report["raw_bytes"], report["shared_bytes"]) == ([], 0, 0)
    assert report["leaks"] == ["backend 0xb0 of call 1 (backendCreate) was never freed"]


def test_a_mistake_that_a_library_accepts_is_reported_too(calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "isthmus.validation"):
        calls("contextFinalize", 5, 0, error=7)
        calls("contextFinalize", 5, 0)
    wrong = "context 0x5: no call has made it"
    assert [record.getMessage() for record in caplog.records] == [
        f"call 1 (contextFinalize): {wrong}", f"call 2 (contextFinalize): {wrong}",
        "call 2 (contextFinalize): this library returns 0 anyway; another one may not",
    ]  # fmt: skip


def test_the_number_of_reported_mistakes_is_limited(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MAX_MISTAKES", 3)
    for _ in range(5):
        calls.seen.before("contextFinalize", (5, 0))
        calls.seen.after("contextFinalize", 1, (5, 0))
    assert len(calls.seen.mistakes) == 3


LEAK = Mistake(min(LEAKS), "a buffer", "it is there still", where="line 1")
OTHER = Mistake("misaligned", "a buffer", "it is at an odd address")


@pytest.mark.parametrize(
    ("mistake", "mistaken", "error", "reported"),
    [(OTHER, False, 0, True), (OTHER, False, 5, True), (OTHER, True, 0, True), (OTHER, True, 5, False),
     (LEAK, False, 0, True), (LEAK, False, 5, True), (LEAK, True, 0, False), (LEAK, True, 5, False)],
)  # fmt: skip
def test_what_an_audit_finds_in_a_call_is_reported_once(
    calls: Calls, mistake: Mistake, mistaken: bool, error: int, reported: bool
) -> None:
    calls.opened()
    values = (0x99 if mistaken else CONTEXT, 0)
    calls.seen.before("contextFinalize", values)
    begun = calls.seen.under_way()
    assert begun is not None
    begun.audited.append(mistake)
    before = len(calls.seen.mistakes)
    assert before == mistaken
    calls.seen.after("contextFinalize", error, values)
    where = " (line 1)" if mistake is LEAK else ""
    text = f"call 4 (contextFinalize): {mistake.kind}: a buffer: {mistake.rule}{where}"
    assert calls.seen.mistakes[before:] == [text] * reported


def test_a_summary_counts_calls_mistakes_and_leaks(
    calls: Calls, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISTHMUS_QNN_REPORT", raising=False)
    assert calls.seen.print_summary() == 0
    assert capsys.readouterr().err == "", "a library that was not called has nothing to tell"
    assert calls.seen.print_summary(["one"]) == 1
    assert capsys.readouterr().err == "isthmus: checked 0 calls of 0 functions; 1 mistake, 0 leaks\n"
    calls.opened()
    calls("contextFinalize", 5, 0, error=1)
    file = tmp_path / "report.json"
    monkeypatch.setenv("ISTHMUS_QNN_REPORT", str(file))
    assert calls.seen.print_summary(["outside"], ["a leak"]) == 4
    assert capsys.readouterr().err == (
        "isthmus: checked 4 calls of 4 functions; 2 mistakes, 2 leaks\n"
        "isthmus: backend 0xb0 of call 1 (backendCreate) was never freed\nisthmus: a leak\n"
    )
    report = json.loads(file.read_text())
    assert file.read_text() == json.dumps(report, indent=1)
    assert report["mistakes"] == ["call 4 (contextFinalize): context 0x5: no call has made it", "outside"]
    assert report["leaks"] == ["backend 0xb0 of call 1 (backendCreate) was never freed", "a leak"]
    monkeypatch.setenv("ISTHMUS_QNN_REPORT", str(tmp_path / "nowhere" / "report.json"))
    assert calls.seen.print_summary() == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"isthmus: ISTHMUS_QNN_REPORT='{tmp_path}/nowhere/report.json' cannot be written: No such file or directory"
    )


# -- the check of memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "exitcode", "reported"),
    [
        ("", 0, ""), ("0", 0, ""), ("1", 0, ""), ("exitcode=1", 1, ""), ("exitcode=255", 255, ""),
        ("1,exitcode=66", 66, ""), ("exitcode=66,1", 66, ""),
        ("exitcode=0", 0, "exitcode= takes 1 to 255."), ("exitcode=256", 0, "exitcode= takes 1 to 255."),
        ("exitcode=x", 0, "exitcode= takes 1 to 255."), ("exitcode", 0, "exitcode= takes 1 to 255."),
        ("exitcode=²", 0, "exitcode= takes 1 to 255."),
        ("exit=3", 0, "there is no option 'exit=3'. Did you mean 'exitcode'?"), ("2", 0, "there is no option '2'."),
    ],
)  # fmt: skip
def test_options_of_the_validation(
    value: str, exitcode: int, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check = MemoryCheck(value)
    try:
        assert check.exitcode == exitcode
        assert capsys.readouterr().err == (f"isthmus: ISTHMUS_QNN_VALIDATE='{value}': {reported}\n" if reported else "")
        assert (check._log in audit_log.active) == (value not in ("", "0"))
    finally:
        check.end_audit()
    assert check._log not in audit_log.active
    check.end_audit()


def test_the_audit_belongs_to_the_first_library_with_calls_or_to_the_last(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISTHMUS_QNN_REPORT", raising=False)
    check, one, two, three = MemoryCheck(""), Validation(), Calls(), Validation()
    for each in (one, two.seen, three):
        check.include(each)
    two("contextFinalize", 5, 0, error=1)
    check._hear(OTHER)
    outside = "misaligned: a buffer: it is at an odd address"
    check.leave(one)
    assert capsys.readouterr().err == ""
    check.leave(two.seen)
    assert capsys.readouterr().err == "isthmus: checked 1 call of 1 function; 2 mistakes, 0 leaks\n"
    check._hear(OTHER)
    check.leave(three)
    assert capsys.readouterr().err == "isthmus: checked 0 calls of 0 functions; 1 mistake, 0 leaks\n"
    assert outside in str(OTHER)


def test_a_mistake_within_a_call_belongs_to_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    check, calls = MemoryCheck(""), Calls()
    check.include(Validation())
    check.include(calls.seen)
    calls.seen.before("contextFinalize", (5, 0))
    check._hear(OTHER)
    calls.seen.after("contextFinalize", 0, (5, 0))
    assert len(calls.seen.mistakes) == 2
    assert check._outside == []


@pytest.mark.parametrize("case", ["mistakes", "no mistakes", "no status", "one is open"])
def test_the_exit_status_is_that_of_a_program_with_mistakes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(validation.os, "_exit", ended.append)
    flushed: list[str] = []
    for name in ("stdout", "stderr"):
        stream = SimpleNamespace(flush=lambda name=name: flushed.append(name), write=lambda text: None)
        monkeypatch.setattr(validation.sys, name, stream)
    check, calls, other = MemoryCheck(""), Calls(), Validation()
    check.exitcode = 0 if case == "no status" else 66
    for each in (calls.seen, other):
        check.include(each)
    calls("backendGetBuildId", 0 if case != "no mistakes" else calls.out(1), error=1)
    check.leave(calls.seen)
    if case != "one is open":
        check.leave(other)
    check.exit()
    assert ended == [66] * (case == "mistakes")
    assert flushed == ["stdout", "stderr"] * (case == "mistakes")
