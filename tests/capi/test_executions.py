"""Executions: by the memory they bring, with memory handles, in the background, within limits, profiled and logged."""

from __future__ import annotations

import ctypes
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.waiting import PATIENCE, run_in_threads

from capi.qnn_calls import Client, at, doubling, in_handle, opened
from isthmus import qnn
from isthmus.backends.htp import headers as htp_headers
from isthmus.backends.seam import execution_deadline as limit
from isthmus.backends.seam.binding import BindingBase as DriverBinding
from isthmus.cabi import objects, types
from isthmus.cabi import tables as interface
from isthmus.capi import execution, serve
from isthmus.capi.graph import ClientGraph
from isthmus.capi.records import ClientProfile
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, TensorType
from isthmus.memory import rpcmem
from isthmus.qnn import binding as bindings
from isthmus.qnn.binding import REMEMBERED

F32 = DataType.FLOAT_32


def test_the_same_memory_goes_straight_to_its_binding(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    given, found = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    whole_ways: list[int] = []
    read = execution._bind_tensors
    monkeypatch.setattr(execution, "_bind_tensors", lambda *all: whole_ways.append(1) or read(*all))
    for value in range(5):
        given[...] = value
        assert client.execute(graph, [at(x, given)], [at(y, found)]) == 0
        assert found.tolist() == (2 * given).tolist()
    assert len(whole_ways) == 1
    other = np.zeros((1, 8), np.float32)
    assert client.execute(graph, [at(x, given)], [at(y, other)]) == 0
    assert len(whole_ways) == 2, "other memory is another binding"
    client.do("backendFree", backend)


def test_a_repetition_is_recognized_by_every_field_of_its_tensors(client: Client) -> None:
    """C itself compares them with those of earlier executions, so a field that it left out would not be checked."""
    backend, context = opened(client)
    dims = (2, 3, 5)
    graphs = []
    for operation in ("ElementWiseAdd", "ElementWiseMultiply"):
        graph = client.make("graphCreate", context, operation.encode(), None)
        x = client.tensor("x", TensorType.APP_WRITE, F32, dims)
        y = client.tensor("y", TensorType.APP_READ, F32, dims)
        for tensor in (x, y):
            client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
        client.do("graphAddNode", graph, client.operation("n", operation, [x, x], [y]))
        client.do("graphFinalize", graph, None, None)
        graphs.append(graph)
    given, found = np.full(dims, 3, np.float32), np.zeros(dims, np.float32)
    same = [at(x, given), at(y, found)]
    for _ in range(2):
        for graph, result in zip(graphs, (6, 9), strict=True):
            assert client.execute(graph, same[:1], same[1:]) == 0
            assert (found == result).all(), "the graph is compared too"
    changes: dict[str, Callable[[types.Tensor], None]] = {
        "version": lambda tensor: setattr(tensor, "version", 3),
        "id": lambda tensor: setattr(tensor.v1, "id", 77),
        "type": lambda tensor: setattr(tensor.v1, "dataType", int(DataType.INT_32)),
        "kind of memory": lambda tensor: setattr(tensor.v1, "memType", types.TensorMemType.MEMHANDLE),
        "size of memory": lambda tensor: setattr(tensor.v1.clientBuf, "dataSize", given.nbytes - 4),
        "rank": lambda tensor: setattr(tensor.v1, "rank", 2),
        "dimension 0": lambda tensor: setattr(tensor.v1, "dimensions", dimensions(client, 3, 3, 5)),
        "dimension 1": lambda tensor: setattr(tensor.v1, "dimensions", dimensions(client, 2, 4, 5)),
        "dimension 2": lambda tensor: setattr(tensor.v1, "dimensions", dimensions(client, 2, 3, 6)),
    }
    for place, (name, change) in itertools.product(range(2), changes.items()):
        changed = list(same)
        changed[place] = types.Tensor.from_buffer_copy(same[place])
        change(changed[place])
        assert client.execute(graphs[0], changed[:1], changed[1:]), f"{name} of tensor {place}"
        assert client.execute(graphs[0], same[:1], same[1:]) == 0, "it is remembered still"
    assert client.execute(graphs[0], same, []), "two inputs and no output"
    client.do("backendFree", backend)


def dimensions(client: Client, *dims: int) -> Any:
    """Dimensions as an array in C."""
    return client.keep((ctypes.c_uint32 * len(dims))(*dims))


def test_an_output_in_its_inputs_memory_is_computed_each_time_it_is_repeated(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    memory = np.arange(8, dtype=np.float32).reshape(1, 8)
    start = memory.copy()
    for times in range(1, 6):
        assert client.execute(graph, [at(x, memory)], [at(y, memory)]) == 0
        assert memory.tolist() == (start * 2**times).tolist()
    room = np.zeros(9, np.float32)
    assert client.execute(graph, [at(x, room[:8])], [at(y, room[1:])]) == Code.GRAPH_INVALID_TENSOR
    # A graph that overwrites what it has not read yet.
    turned = client.make("graphCreate", context, b"turned", None)
    x = client.tensor("x", TensorType.APP_WRITE, F32, (4, 4))
    y = client.tensor("y", TensorType.APP_READ, F32, (4, 4))
    perm = {"perm": np.uint32([1, 0])}
    for tensor in (x, y):
        client.do("tensorCreateGraphTensor", turned, ctypes.byref(tensor))
    client.do("graphAddNode", turned, client.operation("n", "Transpose", [x], [y], None, perm))
    client.do("graphFinalize", turned, None, None)
    square = np.arange(16, dtype=np.float32).reshape(4, 4)
    for _ in range(2):
        before = square.copy()
        for _ in range(3):
            assert client.execute(turned, [at(x, square)], [at(y, square)]) == 0
        assert square.tolist() == before.T.tolist()
    client.do("backendFree", backend)


def test_an_execution_may_have_more_tensors_than_the_library_remembers(client: Client) -> None:
    backend, context = opened(client)
    graph = client.make("graphCreate", context, b"many", None)
    x = client.tensor("x", TensorType.APP_WRITE, F32, (1, 8))
    client.do("tensorCreateGraphTensor", graph, ctypes.byref(x))
    results = []
    for number in range(70):
        y = client.tensor(f"y{number}", TensorType.APP_READ, F32, (1, 8))
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(y))
        client.do("graphAddNode", graph, client.operation(f"n{number}", "ElementWiseAdd", [x, x], [y]))
        results.append((y, np.zeros((1, 8), np.float32)))
    client.do("graphFinalize", graph, None, None)
    for value in range(1, 4):
        given = np.full((1, 8), value, np.float32)
        assert client.execute(graph, [at(x, given)], [at(y, found) for y, found in results]) == 0
        assert all((found == 2 * value).all() for _, found in results)
    client.do("backendFree", backend)


def test_an_execution_that_failed_half_way_is_answered_and_not_run_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    given, found = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    runs: list[int] = []
    ends: list[type[BaseException] | None] = [None, None, KeyboardInterrupt, MemoryError, RuntimeError, None]
    execute = DriverBinding.execute

    def counted(binding: DriverBinding, *arguments: Any, **named: Any) -> Any:
        runs.append(1)
        answer = execute(binding, *arguments, **named)
        end = ends[len(runs) - 1]
        if end is not None:
            raise end
        return answer

    monkeypatch.setattr(DriverBinding, "execute", counted)
    answers = []
    for _ in ends:
        try:
            answers.append(client.execute(graph, [at(x, given)], [at(y, found)]))
        except KeyboardInterrupt:
            answers.append(-1)
    assert len(runs) == len(ends)
    assert answers[:2] + answers[5:] == [0, 0, 0]
    assert answers[2] == -1, "the interrupt is the caller's"
    assert answers[3:5] == [Code.COMMON_MEM_ALLOC, Code.COMMON_GENERAL]
    monkeypatch.undo()
    client.do("backendFree", backend)


def test_many_memories_in_turn_are_each_right(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    arrays = [np.full((1, 8), float(i), np.float32) for i in range(50)]
    for _ in range(2):
        for array in arrays:
            found = np.zeros((1, 8), np.float32)
            assert client.execute(graph, [at(x, array)], [at(y, found)]) == 0
            np.testing.assert_array_equal(found, 2 * array)
    client.do("backendFree", backend)


def test_memory_that_a_thread_is_about_to_execute_on_outlives_its_place_among_the_remembered(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    arrays = [(np.full((1, 8), float(i), np.float32), np.zeros((1, 8), np.float32)) for i in range(2 * REMEMBERED)]
    read, others = execution._bind_tensors, iter(arrays[1:])

    def crowded_out(*arguments: Any) -> Any:
        found = read(*arguments)
        # Between the look-up and the execution, other threads bring more memories than are remembered.
        for given, made in others:
            assert client.execute(graph, [at(x, given)], [at(y, made)]) == 0
        return found

    monkeypatch.setattr(execution, "_bind_tensors", crowded_out)
    assert client.execute(graph, [at(x, arrays[0][0])], [at(y, arrays[0][1])]) == 0
    assert all((made == 2 * given).all() for given, made in arrays)
    client.do("backendFree", backend)


def test_more_threads_than_memories_are_remembered_execute_at_once(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    problems: list[Any] = []

    def run(number: int) -> None:
        for round in range(20):
            given, made = np.full((1, 8), number + round, np.float32), np.zeros((1, 8), np.float32)
            error = client.execute(graph, [at(x, given)], [at(y, made)])
            if error or (made != 2 * given).any():
                problems.append((number, round, error))

    run_in_threads(run, range(REMEMBERED + 8))
    assert problems == []
    client.do("backendFree", backend)


def test_memories_in_turn_go_straight_to_their_bindings_however_large_they_are(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings, "REMEMBERED_BYTES", 0)
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    arrays = [(np.full((1, 8), i, np.float32), np.zeros((1, 8), np.float32)) for i in range(REMEMBERED)]
    whole_ways: list[int] = []
    read = execution._bind_tensors
    monkeypatch.setattr(execution, "_bind_tensors", lambda *all: whole_ways.append(1) or read(*all))
    for _ in range(3):
        for given, made in arrays:
            assert client.execute(graph, [at(x, given)], [at(y, made)]) == 0
    assert len(whole_ways) == len(arrays), "memory at an address is the client's to keep, and costs nothing to remember"
    client.do("backendFree", backend)


def test_memory_whose_binding_was_closed_for_others_is_bound_again(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    assert client.execute(graph, [at(x, given)], [at(y, made)]) == 0
    # There are two caches of REMEMBERED entries: bindings in Python, executions in the C library. Profiled executions
    # use only the first, so they evict the binding of `made` while the C library still has its execution.
    profile = client.make("profileCreate", backend, 1)
    others = [np.zeros((1, 8), np.float32) for _ in range(REMEMBERED)]
    for other in others:
        inputs, outputs = (types.Tensor * 1)(at(x, given)), (types.Tensor * 1)(at(y, other))
        client.do("graphExecute", graph, inputs, 1, outputs, 1, profile, None)
    made[...] = 0
    assert client.execute(graph, [at(x, given)], [at(y, made)]) == 0
    assert made.tolist() == [[2.0] * 8]
    client.do("backendFree", backend)


def test_memory_whose_binding_was_evicted_is_released(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    server = next(server for server in serve.servers() if graph in dict(server.handles.of_kind(ClientGraph)))
    known = dict(server.handles.of_kind(ClientGraph))[graph].handle.driver._counts.bindings
    first: list[weakref.ref[Any]] = []
    kept = []
    for number in range(3 * REMEMBERED):
        given, found = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
        kept.append((given, found))
        assert client.execute(graph, [at(x, given)], [at(y, found)]) == 0
        if number == 0:
            first += map(weakref.ref, known)
    assert len(known) == REMEMBERED
    server.forget_executions()
    gc.collect()
    assert first[0]() is None
    client.do("backendFree", backend)


def test_deregistered_memory_is_not_executed_on(htp: Client) -> None:
    backend, context = opened(htp)
    graph, x, y = doubling(htp, context)
    with rpcmem.alloc(25, 1, 4096) as buffer:
        handles = []
        for offset in (0, 64):
            shared = htp_headers.MEM_DESCRIPTOR(1, 4096)
            shared.sharedBufferConfig.fd, shared.sharedBufferConfig.offset = buffer.fd, offset
            descriptor = objects.MemDescriptor(objects.MemShape(2, (ctypes.c_uint32 * 2)(1, 8), None), int(F32), 2)
            descriptor.customInfo = ctypes.addressof(shared)
            handle = ctypes.c_void_p()
            htp.do("memRegister", context, ctypes.byref(descriptor), 1, ctypes.byref(handle))
            handles.append(handle)
        view = buffer.view("float32", (1024,))
        view[:8] = 3
        given, made = in_handle(x, handles[0].value or 0), in_handle(y, handles[1].value or 0)
        for _ in range(3):
            assert htp.execute(graph, [given], [made]) == 0
        assert view[16:24].tolist() == [6.0] * 8
        htp.do("memDeRegister", (ctypes.c_void_p * 1)(handles[0]), 1)
        assert htp.execute(graph, [given], [made]) == Code.MEM_INVALID_HANDLE
        assert htp.memDeRegister((ctypes.c_void_p * 2)(handles[0], handles[1]), 2) == Code.MEM_INVALID_HANDLE
        assert htp.execute(graph, [in_handle(x, handles[1].value or 0)], [made]) == Code.MEM_INVALID_HANDLE
    htp.do("backendFree", backend)


def test_asynchronous_executions_notify_in_order(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    reported: list[tuple[int, int]] = []
    ended = threading.Event()

    @objects.NOTIFY
    def notify(parameter: int, error: int) -> None:
        reported.append((parameter, error))
        if len(reported) == 5:
            ended.set()

    arrays = [(np.full((1, 8), i, np.float32), np.zeros((1, 8), np.float32)) for i in range(5)]
    for number, (given, made) in enumerate(arrays, 1):
        inputs, outputs = (types.Tensor * 1)(at(x, given)), (types.Tensor * 1)(at(y, made))
        client.do("graphExecuteAsync", graph, inputs, 1, outputs, 1, None, None, notify, number)
    assert ended.wait(PATIENCE)
    assert reported == [(number, 0) for number in range(1, 6)]
    assert all((made == 2 * given).all() for given, made in arrays)
    client.do("backendFree", backend)


class Notified:
    """What an asynchronous execution answers by its notification."""

    def __init__(self, within: Callable[[], object] = lambda: None) -> None:
        self._ended, self._answers = threading.Event(), list[int]()

        @objects.NOTIFY
        def notify(parameter: int, error: int) -> None:
            within()
            self._answers.append(error)
            self._ended.set()

        self.callback = notify

    def answer(self) -> int:
        """Wait for the notification and return its error."""
        assert self._ended.wait(PATIENCE)
        [error] = self._answers
        return error


class Held(Notified):
    """A notification that does not return before it is released."""

    def __init__(self) -> None:
        self.begun, self.release = threading.Event(), threading.Event()
        super().__init__(self._hold)

    def _hold(self) -> None:
        self.begun.set()
        assert self.release.wait(PATIENCE)


def start(
    client: Client, graph: int, tensors: tuple[types.Tensor, types.Tensor], notified: Notified, *more: int | None
) -> int:
    """Execute in the background, with a profile and a signal; the error of the call."""
    inputs, outputs = (types.Tensor * 1)(tensors[0]), (types.Tensor * 1)(tensors[1])
    profile, signal = (*more, None, None)[:2]
    return int(client.graphExecuteAsync(graph, inputs, 1, outputs, 1, profile, signal, notified.callback, None))


def noted_events(client: Client, profile: int) -> list[bytes]:
    """The names of the events that a profile holds."""
    events, count, data = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint32(), objects.EventData()
    client.do("profileGetEvents", profile, ctypes.byref(events), ctypes.byref(count))
    names = []
    for index in range(count.value):
        client.do("profileGetEventData", events[index], ctypes.byref(data))
        names.append(data.identifier)
    return names


def test_an_asynchronous_execution_is_noted_in_its_profile_before_it_notifies(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    profile = client.make("profileCreate", backend, 1)
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    seen: list[list[bytes]] = []
    notified = Notified(lambda: seen.append(noted_events(client, profile)))
    assert start(client, graph, (at(x, given), at(y, made)), notified, profile) == 0
    assert notified.answer() == 0
    assert seen == [[b"execute"]]
    assert made.tolist() == [[2.0] * 8]
    client.do("backendFree", backend)


def test_an_asynchronous_execution_that_fails_leaves_its_profile_as_it_was(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    profile = client.make("profileCreate", backend, 1)
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    assert start(client, graph, (at(x, given), at(y, made)), first := Notified(), profile) == 0
    assert first.answer() == 0
    with monkeypatch.context() as patch:
        patch.setattr(DriverBinding, "execute", lambda *_: (_ for _ in ()).throw(QnnError(Code.COMMON_SYSTEM, "", "")))
        assert start(client, graph, (at(x, given), at(y, made)), second := Notified(), profile) == 0
        assert second.answer() == Code.COMMON_SYSTEM
    assert noted_events(client, profile) == [b"execute"]
    server = next(server for server in serve.servers() if graph in dict(server.handles.of_kind(ClientGraph)))
    handle = dict(server.handles.of_kind(qnn.Backend))[backend]
    assert sum(isinstance(owned, qnn.Profile) for owned in handle._owned) == 1, "those of the calls have ended"
    client.do("backendFree", backend)


def test_a_client_is_notified_although_its_profile_fails(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    profile = client.make("profileCreate", backend, 1)
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    monkeypatch.setattr(ClientProfile, "_take", lambda *_: (_ for _ in ()).throw(QnnError(Code.COMMON_SYSTEM, "", "")))
    assert start(client, graph, (at(x, given), at(y, made)), notified := Notified(), profile) == 0
    assert notified.answer() == 0
    client.do("backendFree", backend)


def test_a_profile_that_is_freed_before_its_execution_has_ended_is_no_harm(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    profile = client.make("profileCreate", backend, 1)
    given, made, elsewhere = np.ones((1, 8), np.float32), *np.zeros((2, 1, 8), np.float32)
    first = Held()
    assert start(client, graph, (at(x, given), at(y, elsewhere)), first) == 0
    assert first.begun.wait(PATIENCE)
    assert start(client, graph, (at(x, given), at(y, made)), second := Notified(), profile) == 0
    client.do("profileFree", profile)
    first.release.set()
    assert (first.answer(), second.answer()) == (0, 0)
    assert made.tolist() == [[2.0] * 8]
    client.do("backendFree", backend)


def test_a_signal_is_in_use_until_its_asynchronous_execution_has_ended(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    signal = client.make("signalCreate", backend, None)
    given, made, elsewhere = np.ones((1, 8), np.float32), *np.zeros((2, 1, 8), np.float32)
    first = Held()
    assert start(client, graph, (at(x, given), at(y, elsewhere)), first) == 0
    assert first.begun.wait(PATIENCE)
    reused: list[int] = []
    second = Notified(lambda: reused.append(client.execute(graph, [at(x, given)], [at(y, made)], None, signal)))
    assert start(client, graph, (at(x, given), at(y, made)), second, None, signal) == 0
    third = Notified()
    assert start(client, graph, (at(x, given), at(y, made)), third, None, signal) == Code.GRAPH_SIGNAL_IN_USE
    client.do("signalTrigger", signal)
    first.release.set()
    assert first.answer() == 0
    assert second.answer() == Code.GRAPH_ABORTED, "it was ended while it waited"
    assert reused == [0], "the notification finds the signal free"
    client.do("backendFree", backend)


def test_the_time_of_an_asynchronous_execution_runs_from_its_call(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    config = objects.SignalConfig(objects.SignalOption.TIMEOUT)
    config.timeoutDurationUs = 1
    signal = client.make("signalCreate", backend, (ctypes.POINTER(objects.SignalConfig) * 2)(ctypes.pointer(config)))
    given, made, elsewhere = np.ones((1, 8), np.float32), *np.zeros((2, 1, 8), np.float32)
    go_on = threading.Event()
    first, second = Notified(lambda: go_on.wait(PATIENCE)), Notified()
    assert start(client, graph, (at(x, given), at(y, elsewhere)), first) == 0
    assert start(client, graph, (at(x, given), at(y, made)), second, None, signal) == 0
    go_on.set()
    assert (first.answer(), second.answer()) == (0, Code.GRAPH_TIMED_OUT)
    assert not made.any(), "it has not begun"
    client.do("backendFree", backend)


def test_freeing_a_context_releases_the_signals_of_waiting_executions(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    other = client.make("contextCreate", backend, None, None)
    there, its_x, its_y = doubling(client, other)
    signal = client.make("signalCreate", backend, None)
    given, made, elsewhere = np.ones((1, 8), np.float32), *np.zeros((2, 1, 8), np.float32)
    first = Held()
    assert start(client, graph, (at(x, given), at(y, elsewhere)), first) == 0
    assert first.begun.wait(PATIENCE)
    assert start(client, graph, (at(x, given), at(y, made)), second := Notified(first.release.set), None, signal) == 0
    client.do("contextFree", context, None)
    assert (first.answer(), second.answer()) == (0, Code.GRAPH_ABORTED)
    assert client.execute(there, [at(its_x, given)], [at(its_y, made)], None, signal) == 0
    client.do("backendFree", backend)


def test_a_signal_that_timed_out_ends_an_execution(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, context = opened(client)
    config = objects.SignalConfig(objects.SignalOption.TIMEOUT)
    config.timeoutDurationUs = 1
    listed = (ctypes.POINTER(objects.SignalConfig) * 2)(ctypes.pointer(config))
    signal = client.make("signalCreate", backend, listed)
    graph, x, y = doubling(client, context)
    given, found = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    with monkeypatch.context() as patch:
        clock = itertools.count(0.0, 0.001)
        patch.setattr(limit.time, "monotonic", lambda: next(clock))
        answers = [client.execute(graph, [at(x, given)], [at(y, found)], None, signal) for _ in range(3)]
    assert answers == [Code.GRAPH_TIMED_OUT] * 3
    assert found.tolist() == [[0.0] * 8], "it has not begun"
    config.timeoutDurationUs = 60_000_000
    client.do("signalSetConfig", signal, listed)
    assert client.execute(graph, [at(x, given)], [at(y, found)], None, signal) == 0
    assert found.tolist() == [[2.0] * 8]
    client.do("signalTrigger", signal)
    client.do("signalFree", signal)
    client.do("backendFree", backend)


def test_a_profile_holds_what_its_latest_call_took(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    profile = client.make("profileCreate", backend, 2)
    memory = np.zeros((1, 8), np.float32)
    for _ in range(2):
        assert client.execute(graph, [at(x, memory)], [at(y, memory.copy())], profile) == 0
    events, count = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint32()
    client.do("profileGetEvents", profile, ctypes.byref(events), ctypes.byref(count))
    assert count.value == 1
    data, extended = objects.EventData(), objects.ExtendedEventData()
    client.do("profileGetEventData", events[0], ctypes.byref(data))
    client.do("profileGetExtendedEventData", events[0], ctypes.byref(extended))
    assert (data.type, data.unit, data.identifier) == (400, 1, b"execute")
    assert extended.v1.value.uint64Value == data.value
    assert extended.v1.timestamp > 0
    inner = ctypes.POINTER(ctypes.c_uint64)()
    client.do("profileGetSubEvents", events[0], ctypes.byref(inner), ctypes.byref(count))
    names = set()
    for index in range(count.value):
        client.do("profileGetEventData", inner[index], ctypes.byref(data))
        names.add((data.identifier, data.value))
    assert {(b"copied in", 0), (b"used in place: raw", 64)} <= names
    old = events[0]
    client.do("profileFree", profile)
    assert client.profileGetEventData(old, ctypes.byref(data)) == Code.COMMON_INVALID_ARGUMENT
    client.do("backendFree", backend)


def listener(messages: list[tuple[int, bytes, int]]) -> Any:
    """A log callback that notes level, text and time of each message."""
    libc = ctypes.CDLL(None)
    libc.vsnprintf.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p]

    @interface.LOG_CALLBACK
    def callback(format: bytes, level: int, timestamp: int, arguments: int) -> None:
        text = ctypes.create_string_buffer(4096)
        libc.vsnprintf(text, len(text), format, arguments)
        messages.append((level, text.value, timestamp))

    return callback


def test_a_log_gets_messages_up_to_its_own_level(client: Client) -> None:
    messages: list[tuple[int, bytes, int]] = []
    callback = listener(messages)
    log = client.make("logCreate", callback, 1)
    assert client.contextFree(1, None) == Code.CONTEXT_INVALID_HANDLE
    assert [level for level, *_ in messages] == [1]
    assert messages[0][1].startswith(b"contextFree: [5002 CONTEXT_INVALID_HANDLE] context handle 0x1")
    client.do("logSetLogLevel", log, 5)
    client.do("logFree", log)
    assert client.logFree(log) == Code.LOG_INVALID_ARGUMENT
    assert client.contextFree(1, None) == Code.CONTEXT_INVALID_HANDLE
    assert len(messages) == 1


def test_a_message_is_a_line_and_its_time_counts_from_the_log(client: Client) -> None:
    messages: list[tuple[int, bytes, int]] = []
    callback = listener(messages)
    begin = time.monotonic_ns()
    log = client.make("logCreate", callback, 1)
    for handle in (1, 2):
        assert client.contextFree(handle, None) == Code.CONTEXT_INVALID_HANDLE
    assert all(text.endswith(b"\n") and text.count(b"\n") == 1 for _, text, _ in messages)
    times = [timestamp for *_, timestamp in messages]
    assert times == sorted(times)
    assert times[-1] <= time.monotonic_ns() - begin
    client.do("logFree", log)


def test_a_client_gets_the_reason_of_a_refusal_at_the_level_of_errors(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    messages: list[tuple[int, bytes, int]] = []
    callback = listener(messages)
    backend, context = opened(client)
    x, y = client.tensor("x", TensorType.NATIVE, F32, (4,)), client.tensor("y", TensorType.NATIVE, F32, (5,))
    relu = client.operation("n", "Relu", [x], [y])

    def refused() -> None:
        assert client.backendValidateOpConfig(backend, relu) == Code.OP_PACKAGE_VALIDATION_FAILURE
        subgraph = ctypes.c_void_p()
        assert client.graphCreateSubgraph(context, b"part", ctypes.byref(subgraph)) == Code.COMMON_NOT_SUPPORTED

    # Whoever has no log asks, and is not told of every node that is not accepted.
    refused()
    assert [each.message.split(":")[0] for each in caplog.records if each.levelname == "ERROR"] == [
        "graphCreateSubgraph"
    ]
    log = client.make("logCreate", callback, 1)
    refused()
    assert [text.split(b": ")[0] for _, text, _ in messages] == [b"backendValidateOpConfig", b"graphCreateSubgraph"]
    assert b"[5]" in messages[0][1]
    assert client.reason(Code.COMMON_NOT_SUPPORTED).startswith("graphCreateSubgraph: [1000")
    client.do("logFree", log)
    client.do("backendFree", backend)
