"""QnnGraph_execute and executeAsync: reading the client's tensors, binding their memory, and repeating an execution."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from isthmus import audit_log, qnn
from isthmus.backends.seam.driver import DriverBinding
from isthmus.cabi.client import checked, listed_all, pointer, read, write
from isthmus.cabi.objects import EnvironmentOption, ExecuteEnvironment
from isthmus.cabi.types import Tensor, TensorMemType, TensorSetV1
from isthmus.capi.functions import TABLE, serves
from isthmus.capi.graph import ClientGraph, IoTensor
from isthmus.capi.memory import mem_handle_of
from isthmus.capi.records import ClientProfile
from isthmus.capi.values import differences, stated_dims
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType
from isthmus.memory import Window, window
from isthmus.qnn.batches import check_multiples, multiple_of
from isthmus.qnn.binding import check_finalized

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

MAX_TENSORS = 4096
# The result of a repeated execution whose memory is no longer bound: the full path must be taken.
_AGAIN = -1


def _tensors(
    server: LibraryServer, graph: ClientGraph, address: int, count: int, kind: str, io: Mapping[int, IoTensor]
) -> tuple[list[qnn.ClientTensor], list[int]]:
    """Read the client's tensors for inputs or outputs, and the multiples of the batch that they state."""
    if count > MAX_TENSORS:
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, graph.handle.what, f"it has no {count} {kind}s")
    tensors, multiples = [], []
    any_batch = graph.handle.context.backend.driver.takes_other_batches
    for index in range(count):
        tensor = read(checked(address), Tensor, index)
        what = f"{kind} {index} of {graph.handle.what}"
        if tensor.version not in (1, 2):
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, f"its version {tensor.version} is neither 1 nor 2")
        fields = tensor.v1
        io_tensor = io.get(fields.id)
        if io_tensor is None:
            rule = f"the graph has no input or output of the id {fields.id}"
            hint = "Use the description that tensorCreateGraphTensor or the binary's information has filled in."
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, hint)
        name = io_tensor.name
        what = f"{kind} '{name}' of {graph.handle.what}"
        for difference in differences(fields, io_tensor.dtype, io_tensor.dims, any_batch):
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, f"it {difference}")
        described = stated_dims(fields)
        if described is not None:
            multiples.append(multiple_of(described, io_tensor.dims))
        if fields.memType == TensorMemType.MEMHANDLE:
            number = fields.memHandle
            if not number:
                raise QnnError(Code.GRAPH_INVALID_TENSOR, f"{kind} '{name}'", "its memory handle is null")
            tensors.append(qnn.ClientTensor(name, mem_handle=mem_handle_of(server, number)))
        elif fields.memType == TensorMemType.RAW:
            data, nbytes = fields.clientBuf.data, fields.clientBuf.dataSize
            # Without client memory, a tensor uses the memory that the backend planned for it, if any.
            if data and multiples and multiples[-1] > 1 and described is not None:
                memory = window(data, what, nbytes=nbytes, writable=kind == "output", code=Code.GRAPH_INVALID_TENSOR)
                tensors.append(qnn.ClientTensor(name, _array(what, memory, io_tensor.dtype, described)))
            else:
                tensors.append(qnn.ClientTensor(name, data, nbytes=nbytes) if data else qnn.ClientTensor(name))
        else:
            rule = f"its memory type {fields.memType} is neither RAW nor MEMHANDLE"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"{kind} '{name}'", rule)
    return tensors, multiples


def _array(what: str, memory: Window, dtype: DataType, dims: tuple[int, ...]) -> np.ndarray:
    """Return a client's memory as an array, whose shape states the multiple of the batch."""
    size = math.prod(dims) * dtype.itemsize
    memory.check(what, size, code=Code.GRAPH_INVALID_TENSOR)
    return memory.part(0, size).view(dtype.numpy, dims)


def read_tensors(
    server: LibraryServer, graph: ClientGraph, inputs: int, input_count: int, outputs: int, output_count: int,
    input_tensors: Sequence[IoTensor], output_tensors: Sequence[IoTensor],
) -> tuple[list[qnn.ClientTensor], list[qnn.ClientTensor]]:  # fmt: skip
    """Read the client's tensors of an execution: for inputs and for outputs. None of the graph's may be missing."""
    io = graph.io_tensors()
    for kind, count, tensors in (("input", input_count, input_tensors), ("output", output_count, output_tensors)):
        if tensors and not count:
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, graph.handle.what, f"it has {kind}s, and none is given")
    given_inputs, of_inputs = _tensors(server, graph, inputs, input_count, "input", io)
    given_outputs, of_outputs = _tensors(server, graph, outputs, output_count, "output", io)
    check_multiples(graph.handle.what, of_inputs, of_outputs)
    for kind, client_tensors, tensors in (
        ("input", given_inputs, input_tensors),
        ("output", given_outputs, output_tensors),
    ):
        for missing in {each.name for each in tensors} - {each.name for each in client_tensors}:
            rule = "it is not given"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"{kind} '{missing}' of {graph.handle.what}", rule)
    return given_inputs, given_outputs


def _bind_tensors(
    server: LibraryServer, graph: ClientGraph, inputs: int, input_count: int, outputs: int, output_count: int
) -> tuple[list[qnn.ClientTensor], list[qnn.ClientTensor]]:
    """Return the client's tensors for all inputs and for all outputs, with their memory bound, which checks it."""
    check_finalized(graph.handle)
    info = graph.handle.info
    tensors = read_tensors(server, graph, inputs, input_count, outputs, output_count, info.inputs, info.outputs)
    graph.handle.bound(*tensors)
    return tensors


@serves("graphExecute", Code.GRAPH_INVALID_ARGUMENT)
def graph_execute(
    server: LibraryServer, graph: ClientGraph, inputs: int, input_count: int, outputs: int, output_count: int,
    profile: ClientProfile | None, signal: qnn.Signal | None,
) -> Callable[[], int] | None:  # fmt: skip
    """Run once. Return a function that repeats it, for the library to cache, or None if it must not be cached."""
    given_inputs, given_outputs = _bind_tensors(server, graph, inputs, input_count, outputs, output_count)
    profile = profile or ClientProfile.of(server, graph.profile)
    if profile is not None:
        with profile.collecting() as events:
            graph.handle.execute(given_inputs, given_outputs, events, signal)
        return None
    graph.handle.execute(given_inputs, given_outputs, signal=signal)
    if signal is not None or audit_log.active:
        return None
    return _repetition(server, graph, graph.handle.bound(given_inputs, given_outputs))


def _repetition(server: LibraryServer, graph: ClientGraph, binding: DriverBinding) -> Callable[[], int]:
    """Return a function that repeats an execution on its binding; it returns a QNN code, or `_AGAIN`."""
    # Call the driver directly: this is the fast path of an execution.
    handle, answer = graph.handle, server.answer

    def again() -> int:
        """Run once. A profile that the graph was given since needs the full path."""
        if graph.profile or not handle.usable:
            return _AGAIN
        try:
            binding.execute()
        except BaseException as problem:
            if isinstance(problem, QnnError) and (binding.closed or not handle.usable):
                return _AGAIN
            # It may have run; taking the full path would run it twice.
            return answer(TABLE["graphExecute"], problem)
        return 0

    return again


@serves("graphPrepareExecutionEnvironment", Code.GRAPH_INVALID_ARGUMENT)
def graph_prepare_execution_environment(
    server: LibraryServer, graph: ClientGraph, environments: int, count: int
) -> None:
    """Write where the backend has planned inputs and outputs; the client may use that memory."""
    for environment in _environments(graph, environments, count):
        if environment.option != EnvironmentOption.POPULATE_CLIENT_BUFS:
            rule = "memory handles are bound by the executions that bring them"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, graph.handle.what, rule)
        for address, view in _planned_memory(graph, environment.tensorSet.v1):
            tensor = read(address, Tensor)
            tensor.v1.memType = TensorMemType.RAW
            tensor.v1.clientBuf.data, tensor.v1.clientBuf.dataSize = view.ctypes.data, view.nbytes
            write(address, tensor)


@serves("graphReleaseExecutionEnvironment", Code.GRAPH_INVALID_ARGUMENT)
def graph_release_execution_environment(
    server: LibraryServer, graph: ClientGraph, environments: int, count: int
) -> None:
    """Check the arguments and do nothing: nothing is held for prepared environments."""
    _environments(graph, environments, count)


def _environments(graph: ClientGraph, environments: int, count: int) -> list[ExecuteEnvironment]:
    """Read the client's execution environments; `graph` is for messages."""
    if count > MAX_TENSORS:
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, graph.handle.what, f"it has no {count} environments")
    return listed_all(checked(environments), ExecuteEnvironment, count)


def _planned_memory(graph: ClientGraph, tensors: TensorSetV1) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the address of each of the client's tensors, with a view of the memory that the backend planned for it."""
    io = graph.io_tensors()
    for kind, count, views in (
        ("inputs", tensors.numInputs, graph.handle.inputs), ("outputs", tensors.numOutputs, graph.handle.outputs),
    ):  # fmt: skip
        for index in range(min(count, MAX_TENSORS)):
            address = checked(pointer(tensors, kind)) + index * ctypes.sizeof(Tensor)
            io_tensor = io.get(read(address, Tensor).v1.id)
            name = "" if io_tensor is None else io_tensor.name
            if name not in views:
                rule = "the back end has no memory of its own for it"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, f"tensor '{name}' of {graph.handle.what}", rule)
            yield address, views[name]


@serves("graphExecuteAsync", Code.GRAPH_INVALID_ARGUMENT)
def graph_execute_async(
    server: LibraryServer, graph: ClientGraph, inputs: int, input_count: int, outputs: int, output_count: int,
    profile: ClientProfile | None, signal: qnn.Signal | None, notify: int, parameter: int,
) -> None:  # fmt: skip
    """Run once on another thread, in the order of such calls on the context, and notify the client at the end."""
    given_inputs, given_outputs = _bind_tensors(server, graph, inputs, input_count, outputs, output_count)
    client_profile = profile or ClientProfile.of(server, graph.profile)

    def finish(execution: qnn.Execution) -> None:
        """Record the profile, and call the client's callback with the error code."""
        problem = None if execution.cancelled() else execution.exception()
        error = 0
        if isinstance(problem, QnnError):
            error = server.record_failure("graphExecuteAsync", problem)
        elif problem is not None:
            error = int(Code.COMMON_GENERAL)
        elif execution.cancelled():
            error = int(Code.GRAPH_ABORTED)
        try:
            if client_profile is not None:
                client_profile.end(events, failed=error != 0)
        finally:
            # Even if the profile fails: a client may be waiting for this.
            if notify:
                server.notify(notify, parameter, error)

    if client_profile is None:
        graph.handle.execute_async(given_inputs, given_outputs, finish, signal=signal)
        return
    events = client_profile.begin()
    try:
        graph.handle.execute_async(given_inputs, given_outputs, finish, events, signal)
    except BaseException:
        client_profile.end(events, failed=True)
        raise
