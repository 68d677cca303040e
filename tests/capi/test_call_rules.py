"""Every function that has rules is held to them: what a client does wrong is named, and what it does right is not."""

from __future__ import annotations

import ctypes
import mmap
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.waiting import PATIENCE

from capi.qnn_calls import Client, at, doubling, in_handle, opened
from isthmus.backends.htp import headers as htp_headers
from isthmus.cabi import objects, types
from isthmus.cabi import tables as interface
from isthmus.capi import rules
from isthmus.capi.protocol import CONFIGS, CREATES, FREES, HANDLES, NEEDED
from isthmus.capi.validation import Validation
from isthmus.graph import DataType, TensorType
from isthmus.memory import rpcmem

F32 = DataType.FLOAT_32


class Watched(Client):
    """A client whose calls are validated, as if they were forwarded to another library."""

    def __init__(self, library: Path) -> None:
        super().__init__(library)
        self.seen = Validation()

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)

        def watched(*arguments: Any) -> int:
            values = tuple(map(as_number, arguments))
            self.seen.before(name, values)
            error = int(call(*arguments))
            self.seen.after(name, error, values)
            return error

        return watched

    def rules(self) -> list[str]:
        """The rules that were broken since the last time, without the calls' numbers."""
        found = [mistake.partition("): ")[2] for mistake in self.seen.mistakes]
        self.seen.mistakes.clear()
        return found


def as_number(argument: Any) -> int:
    """An argument as C passes it."""
    if argument is None or isinstance(argument, int):
        return int(argument or 0)
    if isinstance(argument, bytes):
        return ctypes.cast(ctypes.c_char_p(argument), ctypes.c_void_p).value or 0
    if hasattr(argument, "_obj"):
        return ctypes.addressof(argument._obj)
    if isinstance(argument, (ctypes.Array, ctypes.Structure)):
        return ctypes.addressof(argument)
    return ctypes.cast(argument, ctypes.c_void_p).value or 0


@pytest.fixture
def watched(libraries: Path) -> Watched:
    return Watched(libraries / "libQnnCpu.so")


def test_every_function_that_takes_a_handle_or_gives_one_has_rules() -> None:
    looked_at = HANDLES.keys() | CREATES.keys() | FREES.keys() | NEEDED.keys() | CONFIGS.keys() | rules.BEFORE.keys()
    assert set(interface.BACKEND_FUNCTIONS) & interface.ARGUMENTS.keys() - looked_at == {"propertyHasCapability"}
    assert looked_at <= set(interface.BACKEND_FUNCTIONS)


def test_what_a_call_does_with_its_arguments_follows_from_their_declaration() -> None:
    assert HANDLES["contextCreate"] == [(0, "backend", False), (1, "device", True)]
    assert CREATES["contextCreate"] == [(3, "context", 0)]
    assert CREATES["backendCreate"] == [(2, "backend", None)], "a log owns no backend"
    assert CREATES["memRegister"] == [(3, "memory handle", 0)]
    assert NEEDED["backendRegisterOpPackage"] == [1, 2]
    assert "memDeRegister" not in FREES, "its list is looked at by a rule of its own"
    for get, free, place, kind in (
        ("errorGetVerboseMessage", "errorFreeVerboseMessage", 0, "message"),
        ("deviceGetPlatformInfo", "deviceFreePlatformInfo", 1, "platform information"),
    ):
        assert CREATES[get] == [(1, kind, None)]
        assert FREES[free] == [(place, kind)]
        assert (place, kind, False) in HANDLES[free]
    assert "deviceGetInfo" not in CREATES, "that information is the device's"
    assert CONFIGS["contextCreateFromBinaryListAsync"] == (3, objects.ContextConfig)


def test_an_operation_with_a_parameter_that_only_a_graph_knows_may_be_asked_about(watched: Watched) -> None:
    backend, context = opened(watched)
    graph = watched.make("graphCreate", context, b"reduction", None)
    x = watched.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
    y = watched.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1,))
    axes = watched.tensor("axes", TensorType.STATIC, DataType.UINT_32, (1,), data=np.array([1], np.uint32))
    for tensor in (x, y, axes):
        watched.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    axes.v1.clientBuf.data, axes.v1.clientBuf.dataSize = None, 0
    node = watched.operation("sum", "ReduceSum", [x], [y], tensors={"axes": np.array([1], np.uint32)})
    node.v1.params[0].tensorParam = axes
    watched.backendValidateOpConfig(backend, node)
    assert watched.rules() == []
    watched.backendFree(backend)


def test_a_client_that_does_right_makes_no_mistake(watched: Watched) -> None:
    backend, context = opened(watched)
    graph, x, y = doubling(watched, context)
    profile = watched.make("profileCreate", backend, 2)
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    inputs, outputs = (types.Tensor * 1)(at(x, given)), (types.Tensor * 1)(at(y, made))
    watched.do("graphExecute", graph, inputs, 1, outputs, 1, profile, None)
    events, count, data = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint32(), objects.EventData()
    watched.do("profileGetEvents", profile, ctypes.byref(events), ctypes.byref(count))
    inner = ctypes.POINTER(ctypes.c_uint64)()
    watched.do("profileGetSubEvents", events[0], ctypes.byref(inner), ctypes.byref(count))
    watched.do("profileGetEventData", inner[0], ctypes.byref(data))
    binary = watched.binary(context)
    again = ctypes.c_void_p()
    watched.do("contextCreateFromBinary", backend, None, None, binary, len(binary), ctypes.byref(again), None)
    watched.do("profileFree", profile)
    watched.do("contextFree", context, None)
    watched.do("contextFree", again, None)
    watched.do("backendFree", backend)
    assert watched.rules() == []
    assert watched.seen.leaks() == []


def test_a_buffer_for_a_graph_from_a_binary_is_judged_by_what_the_call_describes(watched: Watched) -> None:
    backend, context = opened(watched)
    _, x, y = doubling(watched, context)
    binary = watched.binary(context)
    again, graph = ctypes.c_void_p(), ctypes.c_void_p()
    watched.do("contextCreateFromBinary", backend, None, None, binary, len(binary), ctypes.byref(again), None)
    watched.do("graphRetrieve", again, b"twice", ctypes.byref(graph))
    given, small = np.ones((1, 8), np.float32), np.zeros(1, np.uint8)
    inputs, outputs = (types.Tensor * 1)(at(x, given)), (types.Tensor * 1)(at(y, small))
    assert watched.graphExecute(graph, inputs, 1, outputs, 1, None, None) != 0
    needed = "32 are needed for FLOAT_32[1, 8], as this call describes it"
    assert watched.rules() == [f"output 'y': its buffer has 1 byte, {needed}"]
    watched.backendFree(backend)


def test_an_asynchronous_execution_is_held_to_the_rules_of_any(watched: Watched) -> None:
    backend, context = opened(watched)
    graph, x, y = doubling(watched, context)
    given, small = np.ones((1, 8), np.float32), np.zeros(1, np.float32)
    inputs, outputs = (types.Tensor * 2)(at(x, given), at(x, given)), (types.Tensor * 1)(at(y, small))
    assert watched.graphExecuteAsync(graph, inputs, 2, outputs, 1, None, None, None, None) != 0
    assert watched.rules() == [
        "input 1: the id 1 is given twice",
        "output 'y': its buffer has 4 bytes, 32 are needed",
    ]
    assert watched.graphExecuteAsync(77, inputs, 1, outputs, 1, None, None, None, None) != 0
    assert watched.rules() == ["graph 0x4d: no call has made it"]
    watched.backendFree(backend)


def event_of_nobody(watched: Watched, backend: int, context: int) -> None:
    watched.profileGetEventData(4711, ctypes.byref(objects.EventData()))


def pages_with_a_hole() -> ctypes.Array[ctypes.c_char]:
    """Map two pages, the second of which cannot be accessed."""
    mapping = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    pages = (ctypes.c_char * (2 * mmap.PAGESIZE)).from_buffer(mapping)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(ctypes.addressof(pages) + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    return pages


def data_of_events_beyond_memory(watched: Watched, backend: int, context: int) -> None:
    """The last 8 bytes of a page have room for a pointer to sub-events, but not for the data of an event."""
    graph, x, y = doubling(watched, context)
    profile = watched.make("profileCreate", backend, 2)
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    inputs, outputs = (types.Tensor * 1)(at(x, given)), (types.Tensor * 1)(at(y, made))
    watched.do("graphExecute", graph, inputs, 1, outputs, 1, profile, None)
    events, count = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint32()
    watched.do("profileGetEvents", profile, ctypes.byref(events), ctypes.byref(count))
    pages = pages_with_a_hole()
    last = ctypes.addressof(pages) + mmap.PAGESIZE - 8
    inner = type(events).from_address(last)
    watched.do("profileGetSubEvents", events[0], ctypes.byref(inner), ctypes.byref(count))
    assert watched.rules() == []
    watched.profileGetEventData(events[0], ctypes.cast(last, ctypes.POINTER(objects.EventData)))
    watched.do("profileFree", profile)


def no_environments(watched: Watched, backend: int, context: int) -> None:
    graph, _, _ = doubling(watched, context)
    watched.graphPrepareExecutionEnvironment(graph, None, 1)


def name_twice(watched: Watched, backend: int, context: int) -> None:
    for _ in range(2):
        watched.graphCreate(context, b"same", None, ctypes.byref(ctypes.c_void_p()))


def no_name(watched: Watched, backend: int, context: int) -> None:
    watched.graphCreate(context, b"", None, ctypes.byref(ctypes.c_void_p()))


def no_nodes(watched: Watched, backend: int, context: int) -> None:
    watched.graphFinalize(watched.make("graphCreate", context, b"empty", None), None, None)


def small_binary(watched: Watched, backend: int, context: int) -> None:
    size, buffer = ctypes.c_uint64(), ctypes.create_string_buffer(8)
    watched.contextGetBinarySize(context, ctypes.byref(size))
    watched.contextGetBinary(context, buffer, 8, ctypes.byref(size))


def empty_binary(watched: Watched, backend: int, context: int) -> None:
    watched.contextValidateBinary(backend, None, None, b"x", 0)


def no_notification(watched: Watched, backend: int, context: int) -> None:
    params = objects.ContextParams(1)
    listed = (ctypes.POINTER(objects.ContextParams) * 2)(ctypes.pointer(params))
    watched.contextCreateFromBinaryListAsync(backend, None, listed, None, None)


def endless_configs(watched: Watched, backend: int, context: int) -> None:
    config = objects.ContextConfig(objects.ContextOption.OEM_STRING)
    listed = (ctypes.POINTER(objects.ContextConfig) * 300)(*[ctypes.pointer(config)] * 300)
    watched.contextSetConfig(context, listed)


def level(watched: Watched, backend: int, context: int) -> None:
    watched.logCreate(None, 99, ctypes.byref(ctypes.c_void_p()))
    watched.profileCreate(backend, 0, ctypes.byref(ctypes.c_void_p()))


def nothing_to_register(watched: Watched, backend: int, context: int) -> None:
    watched.memRegister(context, ctypes.byref(objects.MemDescriptor()), 0, ctypes.byref(ctypes.c_void_p()))
    watched.memDeRegister((ctypes.c_void_p * 2)(5, 5), 2)


def malformed_question(watched: Watched, backend: int, context: int) -> None:
    config = watched.operation("n", "Relu", [], [])
    config.version = 9
    watched.backendValidateOpConfig(backend, config)


def message_of_nobody(watched: Watched, backend: int, context: int) -> None:
    watched.errorFreeVerboseMessage(0x1234)


def node_twice(watched: Watched, backend: int, context: int) -> None:
    graph = watched.make("graphCreate", context, b"g", None)
    x, y = (watched.tensor(name, kind, F32, (1, 8)) for name, kind in (("x", 0), ("y", 1)))
    for tensor in (x, y):
        watched.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    for _ in range(2):
        watched.graphAddNode(graph, watched.operation("n", "Relu", [x], [y]))
    watched.graphAddNode(graph, watched.operation("m", "Relu", [y], [x]))


def other_description(watched: Watched, backend: int, context: int) -> None:
    graph, x, y = doubling(watched, context)
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    for field, value in (("dataType", 0x216), ("dataType", 0), ("rank", 1), ("rank", 0), ("dimensions", None)):
        tensor = at(x, given)
        setattr(tensor.v1, field, value)
        watched.execute(graph, [tensor], [at(y, made)])


def left_behind(watched: Watched, backend: int, context: int) -> None:
    watched.do("contextFree", context, None)
    watched.make("profileCreate", backend, 1)
    watched.make("signalCreate", backend, None)
    watched.do("backendFree", backend)


def not_offered(watched: Watched, backend: int, context: int) -> None:
    watched.tensorUpdateGraphTensors(context, None, 1)
    watched.graphCreateSubgraph(0, b"below", None)
    watched.contextGetBinarySectionSize(5, 6, 0, None)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (event_of_nobody, ["event 0x1267: no profile has reported it"]),
        (data_of_events_beyond_memory, [r"\d+ bytes at 0x.* are not memory of this process"]),
        (no_environments, ["argument 2 is null"]),
        (name_twice, [r"graph 'same': graph 0x.* of the context has that name \(call \d+ \(graphCreate\)\)"]),
        (no_name, ["a graph must have a name"]),
        (no_nodes, ["graph 0x.*: it has no nodes"]),
        (small_binary, [r"its buffer has 8 bytes, contextGetBinarySize has said \d+"]),
        (empty_binary, ["context binary: it has 0 bytes"]),
        (no_notification, ["binary 0: there is no callback to notify"]),
        (endless_configs, ["the list at 0x.* has no null pointer among its first 256 entries"]),
        (level, ["there is no log level 99", "there is no profile level 0"]),
        (
            nothing_to_register,
            ["there is no descriptor", "memory handle 0x5: no call has made it", "memory handle 0x5: it is given twice",
             "memory handle 0x5: no call has made it"],
        ),
        (malformed_question, [r"node 'n' \(Relu\): the version 9 of its config is not 1"]),
        (message_of_nobody, ["message 0x1234: no call has made it"]),
        (
            node_twice,
            [r"node 'n' \(Relu\): tensor 'y' is written by node 'n' already",
             r"node 'm' \(Relu\): tensor 'x' is APP_WRITE, and no node may write it"],
        ),
        (
            other_description,
            ["input 'x' is FLOAT_16, and was created as FLOAT_32",
             r"input 'x' has the dimensions \[1\], and was created with \[1, 8\]"],
        ),
        (
            left_behind,
            [r"profile 0x.* of it is not freed \(call \d+ \(profileCreate\)\)",
             r"signal 0x.* of it is not freed \(call \d+ \(signalCreate\)\)"],
        ),
        (
            not_offered,
            ["graph 0x.*: no call has made it; a context has that number", "argument 2 is null", "a pointer is null",
             "graph 0x0: no call has made it", "argument 3 is null", "context 0x5: no call has made it",
             "graph 0x6: no call has made it", "argument 4 is null"],
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_named(watched: Watched, action: Callable[[Watched, int, int], None], expected: list[str]) -> None:
    backend, context = opened(watched)
    action(watched, backend, context)
    found = watched.rules()
    assert len(found) == len(expected), found
    for rule, pattern in zip(found, expected, strict=True):
        assert re.fullmatch(pattern, rule), rule
    watched.backendFree(backend)


def test_an_event_whose_profile_was_freed_is_named(watched: Watched) -> None:
    backend, context = opened(watched)
    graph, x, y = doubling(watched, context)
    profile = watched.make("profileCreate", backend, 1)
    memory = np.zeros((1, 8), np.float32)
    watched.execute(graph, [at(x, memory)], [at(y, memory.copy())], profile)
    events, count = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint32()
    watched.do("profileGetEvents", profile, ctypes.byref(events), ctypes.byref(count))
    number = events[0]
    watched.do("profileFree", profile)
    assert watched.profileGetEventData(number, ctypes.byref(objects.EventData())) != 0
    (rule,) = watched.rules()
    assert rule.startswith(f"event {number:#x}: its profile was freed by call ")
    watched.backendFree(backend)


def test_memory_that_is_registered_too_small_is_named(libraries: Path) -> None:
    watched = Watched(libraries / "libQnnHtp.so")
    backend, context = opened(watched)
    graph, x, y = doubling(watched, context)
    with rpcmem.alloc(25, 1, 4096) as buffer:
        shared = htp_headers.MEM_DESCRIPTOR(1, 4096)
        shared.sharedBufferConfig.fd, shared.sharedBufferConfig.offset = buffer.fd, 0
        descriptor = objects.MemDescriptor(objects.MemShape(2, (ctypes.c_uint32 * 2)(1, 4), None), int(F32), 2)
        descriptor.customInfo = ctypes.addressof(shared)
        handle = ctypes.c_void_p()
        watched.do("memRegister", context, ctypes.byref(descriptor), 1, ctypes.byref(handle))
        found = np.zeros((1, 8), np.float32)
        assert watched.execute(graph, [in_handle(x, handle.value or 0)], [at(y, found)]) != 0
        assert watched.rules() == [f"input 'x': memory handle {handle.value:#x} has 16 bytes, 32 are needed"]
        watched.do("memDeRegister", (ctypes.c_void_p * 1)(handle), 1)
    watched.backendFree(backend)


def test_what_another_call_uses_is_not_to_be_freed() -> None:
    seen, freed = Validation(), threading.Event()
    handle, signal = ctypes.c_uint64(0x10), ctypes.c_uint64(0x20)
    for name, values in (
        ("backendCreate", (0, 0, ctypes.addressof(handle))),
        ("signalCreate", (0x10, 0, ctypes.addressof(signal))),
    ):
        seen.before(name, values)
        seen.after(name, 0, values)
    seen.objects["graph", 0x30] = type(seen.objects["backend", 0x10])("graph", 0x30, "a test", complete=False)
    long_call = (0x30, 0, 0x20)

    def free() -> None:
        seen.before("signalFree", (0x20,))
        seen.after("signalFree", 4711, (0x20,))
        freed.set()

    seen.before("graphFinalize", long_call)
    threading.Thread(target=free).start()
    assert freed.wait(PATIENCE)
    seen.after("graphFinalize", 0, long_call)
    assert seen.mistakes == ["call 4 (signalFree): signal 0x20: call 3 (graphFinalize) uses it now"]
    seen.before("signalFree", (0x20,))
    seen.after("signalFree", 0, (0x20,))
    assert len(seen.mistakes) == 1


def test_a_call_from_within_a_call_is_another_one() -> None:
    seen = Validation()
    seen.before("backendGetBuildId", (0,))
    seen.before("errorGetMessage", (1, 0))
    seen.after("errorGetMessage", 0, (1, 0))
    seen.after("backendGetBuildId", 0, (0,))
    assert seen.mistakes == [
        "call 1 (backendGetBuildId): argument 1 is null",
        "call 2 (errorGetMessage): argument 2 is null",
    ]
    assert {name: call.count for name, call in seen.calls.items()} == {"backendGetBuildId": 1, "errorGetMessage": 1}


def test_handles_that_a_callback_has_passed_on_are_no_mistakes() -> None:
    seen = Validation()
    handle, end = ctypes.c_uint64(0x10), ctypes.c_uint64(0)
    for name, values in (
        ("backendCreate", (0, 0, ctypes.addressof(handle))),
        ("contextCreateFromBinaryListAsync", (0x10, 0, ctypes.addressof(end), 0, 0)),
        ("contextFinalize", (0x50, 0)),
        ("graphExecute", (0x60, 0, 0, 0, 0, 0, 0)),
        ("contextFree", (0x50, 0)),
    ):
        seen.before(name, values)
        seen.after(name, 0, values)
    assert seen.mistakes == []


def test_absent_outputs_of_several_nodes_are_not_one_tensor(watched: Watched) -> None:
    """A library that is forwarded to may take them; ours does not."""
    seen = Validation()
    handle = ctypes.c_uint64(0x30)
    seen.before("graphCreate", (0, 0, 0, ctypes.addressof(handle)))
    seen.after("graphCreate", 0, (0, 0, 0, ctypes.addressof(handle)))
    seen.mistakes.clear()
    absent = watched.tensor("", types.TensorKind.NULL, F32, ())
    for name in ("a", "b"):
        values = (0x30, ctypes.addressof(watched.operation(name, "Lstm", [], [absent])))
        seen.before("graphAddNode", values)
        seen.after("graphAddNode", 0, values)
    assert seen.mistakes == []
