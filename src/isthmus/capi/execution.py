"""QnnGraph_execute and executeAsync: the client's tensors, the binding of their memory, and the way back to it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from isthmus import qnn
from isthmus.cabi.client import checked, listed_all, pointer, read, write
from isthmus.cabi.objects import EnvironmentOption, ExecuteEnvironment
from isthmus.cabi.types import Tensor, TensorMemType, TensorSetV1
from isthmus.capi.functions import TABLE, serves
from isthmus.capi.graph import ClientGraph, IoTensor, graph_of
from isthmus.capi.memory import mem_handle_of
from isthmus.capi.records import ClientProfile, ClientSignal
from isthmus.capi.values import differences
from isthmus.errors import Code, QnnError

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

MOST_TENSORS = 4096
_AGAIN = -1
"""What an execution answers when the memory it knew is bound no more: the whole way has to be gone."""

Key = tuple[tuple[int, int, int, int], ...]


def _tensors(
    server: LibraryServer, graph: ClientGraph, address: int, count: int, kind: str, io: Mapping[int, IoTensor]
) -> tuple[list[qnn.ClientTensor], Key]:
    """What the client gives for inputs or outputs, and what tells it from other memory."""
    if count > MOST_TENSORS:
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, graph.handle._what, f"it has no {count} {kind}s")
    given, key = [], []
    for index in range(count):
        tensor = read(checked(address), Tensor, index)
        what = f"{kind} {index} of {graph.handle._what}"
        if tensor.version not in (1, 2):
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, f"its version {tensor.version} is neither 1 nor 2")
        fields = tensor.v1
        known = io.get(fields.id)
        if known is None:
            raise QnnError(
                Code.GRAPH_INVALID_TENSOR,
                what,
                f"the graph has no input or output of the id {fields.id}",
                "Use the description that tensorCreateGraphTensor or the binary's information has filled in.",
            )
        name = known.name
        for difference in differences(fields, known.dtype, known.dims):
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"{kind} '{name}' of {graph.handle._what}", f"it {difference}")
        if fields.memType == TensorMemType.MEMHANDLE:
            number = fields.memHandle or 0
            if not number:
                raise QnnError(Code.GRAPH_INVALID_TENSOR, f"{kind} '{name}'", "its memory handle is null")
            given.append(qnn.ClientTensor(name, mem_handle=mem_handle_of(server, number)))
            key.append((fields.id, 1, number, 0))
        elif fields.memType == TensorMemType.RAW:
            data, nbytes = fields.clientBuf.data or 0, fields.clientBuf.dataSize
            # Without memory of the client's a tensor lies where the back end has planned it, if it has.
            given.append(qnn.ClientTensor(name, data, nbytes=nbytes) if data else qnn.ClientTensor(name))
            key.append((fields.id, 0, data, nbytes))
        else:
            rule = f"its memory type {fields.memType} is neither RAW nor MEMHANDLE"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"{kind} '{name}'", rule)
    return given, tuple(key)


def _bound(
    server: LibraryServer, handle: int, inputs: int, input_count: int, outputs: int, output_count: int
) -> tuple[ClientGraph, qnn.Binding]:
    graph = graph_of(server, handle)
    if not graph.handle.finalized:
        rule = "only a finalized graph can be executed"
        raise QnnError(Code.GRAPH_NOT_FINALIZED, graph.handle._what, rule, "Call graphFinalize first.")
    io = graph.io_tensors()
    given, key = _tensors(server, graph, inputs, input_count, "input", io)
    made, made_key = _tensors(server, graph, outputs, output_count, "output", io)
    both = (key, made_key)
    binding = graph.bindings.find(both)
    if binding is None:
        info = graph.handle.info
        for kind, tensors, known in (("input", given, info.inputs), ("output", made, info.outputs)):
            for missing in {each.name for each in known} - {each.name for each in tensors}:
                rule = "it is not given"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, f"{kind} '{missing}' of {graph.handle._what}", rule)
        binding = graph.bindings.keep(both, graph.handle.bind(given, made))
    return graph, binding


@serves("graphExecute", Code.GRAPH_INVALID_ARGUMENT)
def graph_execute(
    server: LibraryServer, handle: int, inputs: int, input_count: int, outputs: int, output_count: int, profile: int,
    signal: int,
) -> Callable[[], int] | None:  # fmt: skip
    """Run once. The answer is what does the same again, for the library to remember; None if nothing should be."""
    graph, binding = _bound(server, handle, inputs, input_count, outputs, output_count)
    noted = ClientProfile.of(server, profile or graph.profile)
    limit = ClientSignal.of(server, signal)
    if noted is not None:
        with noted.collecting() as events:
            binding.execute(events, limit)
        return None
    binding.execute(signal=limit)
    return None if limit is not None else _repeated(server, graph, binding)


def _repeated(server: LibraryServer, graph: ClientGraph, binding: qnn.Binding) -> Callable[[], int]:
    # Straight to the driver: this is what an execution costs.
    handle, execute, answer = graph.handle, binding._execute, server.answer

    def again(bound: qnn.Binding = binding) -> int:
        if graph.profile or not handle._alive:
            return _AGAIN
        try:
            execute()
        except BaseException as problem:
            if isinstance(problem, QnnError) and not handle._alive:
                return _AGAIN
            # It may have run: going the whole way would run it twice.
            return answer(TABLE["graphExecute"], problem)
        return 0

    return again


@serves("graphPrepareExecutionEnvironment", Code.GRAPH_INVALID_ARGUMENT)
def graph_prepare_execution_environment(server: LibraryServer, handle: int, environments: int, count: int) -> None:
    """Tell the client where the back end has planned inputs and outputs: it may use that memory as its own."""
    graph = graph_of(server, handle)
    for environment in _environments(graph, environments, count):
        if environment.option != EnvironmentOption.POPULATE_CLIENT_BUFS:
            rule = "memory handles are bound by the executions that bring them"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, graph.handle._what, rule)
        for address, view in _planned(graph, environment.tensorSet.v1):
            tensor = read(address, Tensor)
            tensor.v1.memType = TensorMemType.RAW
            tensor.v1.clientBuf.data, tensor.v1.clientBuf.dataSize = view.ctypes.data, view.nbytes
            write(address, tensor)


@serves("graphReleaseExecutionEnvironment", Code.GRAPH_INVALID_ARGUMENT)
def graph_release_execution_environment(server: LibraryServer, handle: int, environments: int, count: int) -> None:
    """Nothing is held for a client that was told where memory is."""
    graph = graph_of(server, handle)
    _environments(graph, environments, count)


def _environments(graph: ClientGraph, environments: int, count: int) -> list[ExecuteEnvironment]:
    if count > MOST_TENSORS:
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, graph.handle._what, f"it has no {count} environments")
    return listed_all(checked(environments), ExecuteEnvironment, count)


def _planned(graph: ClientGraph, tensors: TensorSetV1) -> Iterator[tuple[int, np.ndarray]]:
    io = graph.io_tensors()
    for kind, count, views in (
        ("inputs", tensors.numInputs, graph.handle.inputs), ("outputs", tensors.numOutputs, graph.handle.outputs),
    ):  # fmt: skip
        for index in range(min(count, MOST_TENSORS)):
            address = checked(pointer(tensors, kind)) + index * ctypes.sizeof(Tensor)
            known = io.get(read(address, Tensor).v1.id)
            name = "" if known is None else known.name
            if name not in views:
                rule = "the back end has no memory of its own for it"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, f"tensor '{name}' of {graph.handle._what}", rule)
            yield address, views[name]


@serves("graphExecuteAsync", Code.GRAPH_INVALID_ARGUMENT)
def graph_execute_async(
    server: LibraryServer, handle: int, inputs: int, input_count: int, outputs: int, output_count: int, profile: int,
    signal: int, notify: int, parameter: int,
) -> None:  # fmt: skip
    """Run once on another thread, in the order of such calls to the context, and notify the client at the end."""
    graph, binding = _bound(server, handle, inputs, input_count, outputs, output_count)
    noted, limit = ClientProfile.of(server, profile or graph.profile), ClientSignal.of(server, signal)

    def ended(execution: qnn.Execution) -> None:
        problem = None if execution.cancelled() else execution.exception()
        error = 0
        if isinstance(problem, QnnError):
            error = server.failed("graphExecuteAsync", problem)
        elif problem is not None:
            error = int(Code.COMMON_GENERAL)
        elif execution.cancelled():
            error = int(Code.GRAPH_ABORTED)
        try:
            if noted is not None:
                noted.end(events, failed=error != 0)
        finally:
            # Whatever becomes of the profile, a client may be waiting for this.
            if notify:
                server.notify(notify, parameter, error)

    if noted is None:
        binding.execute_async(ended, signal=limit)
        return
    events = noted.begin()
    try:
        binding.execute_async(ended, events, limit)
    except BaseException:
        noted.end(events, failed=True)
        raise
