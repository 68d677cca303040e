"""Validation rules for single functions of forwarded calls: checks before a call, and records after it.

A rule takes the validation (`seen`), where it reports mistakes and finds the client's objects, and the call's arguments
as plain numbers (`values`), in C's order. Rules of `AFTER` run only if the call has succeeded.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from isthmus.backends.seam.facets import Feature
from isthmus.cabi.client import listed_all, pointer, read, read_array, read_bytes, text
from isthmus.cabi.objects import (
    BinaryCallback,
    ContextParams,
    ContextParamsV2,
    EventData,
    ExecuteEnvironment,
    MemDescriptor,
)
from isthmus.cabi.types import Tensor, TensorMemType
from isthmus.capi import exclusions, lifetimes
from isthmus.capi.values import (
    MAX_RANK,
    ClientNode,
    ClientTensorInfo,
    differences,
    node_at,
    stated_dims,
    tensor_at,
)
from isthmus.errors import counted
from isthmus.graph import DataType, TensorType
from isthmus.log import LogLevel
from isthmus.qnn.batches import multiple_of

if TYPE_CHECKING:
    from isthmus.capi.validation import Object, Validation

Values = tuple[int, ...]
Rule = Callable[["Validation", Values], None]
BEFORE: dict[str, Rule] = {}
AFTER: dict[str, Rule] = {}
"""The rules by the names of functions in QNN's table."""
MAX_TENSORS = 4096
MAX_HANDLES = MAX_EVENTS = 1 << 16
"""How many items of a list are checked: a client's count may be nonsense."""


def _enter_in(table: dict[str, Rule], names: tuple[str, ...]) -> Callable[[Rule], Rule]:
    """Return a decorator that enters a rule in a table, for the functions of these names."""

    def enter(rule: Rule) -> Rule:
        table.update(dict.fromkeys(names, rule))
        return rule

    return enter


def _before(*names: str) -> Callable[[Rule], Rule]:
    """Return a decorator for a rule that checks calls of these functions before they are made."""
    return _enter_in(BEFORE, names)


def _after(*names: str) -> Callable[[Rule], Rule]:
    """Return a decorator for a rule that records the result of calls of these functions."""
    return _enter_in(AFTER, names)


# -- backends, devices, logs -------------------------------------------------------------------------------------------


@_before("backendFree")
def _backend_free(seen: Validation, values: Values) -> None:
    for kind in ("context", "profile", "signal"):
        for each in seen.living(kind, values[0]):
            seen.mistake(f"{each.what} of it is not freed ({each.created_by})")


@_before("deviceFree")
def _device_free(seen: Validation, values: Values) -> None:
    for each in seen.living("context"):
        seen.mistake(f"{each.what} may still use this device ({each.created_by})")


@_before("logFree")
def _log_free(seen: Validation, values: Values) -> None:
    for each in seen.living("backend"):
        seen.mistake(f"{each.what} still uses this log handle ({each.created_by})")


@_before("logCreate", "logSetLogLevel")
def _log_level(seen: Validation, values: Values) -> None:
    if values[1] not in list(LogLevel):
        seen.mistake(f"there is no log level {values[1]}")


@_before("backendValidateOpConfig")
def _validate_op_config(seen: Validation, values: Values) -> None:
    # The client asks whether the backend supports it; here only check that it can be read. A parameter may refer to a
    # tensor of a graph that is not known here: any contents will do.
    node_at(values[1], lambda number: np.empty(0))


# -- contexts and binaries ---------------------------------------------------------------------------------------------


@_before("contextCreateFromBinary", "contextCreateFromBinaryWithSignal", "contextValidateBinary")
def _binary(seen: Validation, values: Values) -> None:
    _readable(seen, "context binary", values[3], values[4])


@_before("contextCreateFromBinaryWithCallback")
def _binary_by_callbacks(seen: Validation, values: Values) -> None:
    _callbacks(seen, "data callbacks", values[3])
    _readable(seen, "context binary", values[4], values[5])


def _callbacks(seen: Validation, what: str, address: int) -> None:
    """Check the structure of data callbacks; a null pointer to it is another rule's."""
    if not address:
        return
    callbacks = read(address, BinaryCallback)
    functions = [pointer(callbacks.dmaBufferCallback.v1, name) for name in ("dataProvide", "dataRelease")]
    if callbacks.type != 2 or callbacks.dmaBufferCallback.version != 1 or not all(functions):
        seen.mistake(f"{what}: only version 1 of callbacks with DMA buffers (type 2) is there, with both functions")


@_after("contextCreateFromBinary", "contextCreateFromBinaryWithSignal")
def _created_from_binary(seen: Validation, values: Values) -> None:
    """Remember a binary that must stay; the place of the new handle is the sixth argument."""
    context = seen.objects.get(("context", read(values[5], ctypes.c_uint64).value))
    if context is not None:
        lifetimes.keep_binary(context, values)


@_after("contextApplyBinarySection")
def _keep_section(seen: Validation, values: Values) -> None:
    lifetimes.keep_section(seen, values)


@_after("contextSetConfig")
def _note_context(seen: Validation, values: Values) -> None:
    exclusions.note(seen, "context", values[0])


@_after("deviceSetConfig")
def _note_device(seen: Validation, values: Values) -> None:
    exclusions.note(seen, "device", values[0])


@_after("contextFinalize")
def _context_finalized(seen: Validation, values: Values) -> None:
    context = seen.objects.get(("context", values[0]))
    if context is not None:
        context.features.pop(Feature.DEFERRED, None)


@_before("contextCreateFromBinaryListAsync")
def _binaries(seen: Validation, values: Values) -> None:
    """Check the null-terminated list of binaries, each with its callback."""
    for index in range(MAX_HANDLES):
        address = read(values[2], ctypes.c_uint64, index).value
        if not address:
            return
        version = read(address, ctypes.c_uint32).value
        if version not in (1, 2):
            seen.mistake(f"binary {index}: the version {version} of its parameters is neither 1 nor 2")
            continue
        params = read(address, ContextParams).v1 if version == 1 else _second(address)
        callbacks = 0 if version == 1 else pointer(params, "callbacks")
        if not params.notifyFunc:
            seen.mistake(f"binary {index}: there is no callback to notify")
        else:
            _readable(seen, f"binary {index}", params.binaryBuffer, params.binaryBufferSize)
            _callbacks(seen, f"binary {index}", callbacks)
            exclusions.check_entry(seen, values[3], pointer(params, "config"), bool(callbacks))
    seen.mistake(f"the list at {values[2]:#x} has no null pointer among its first {MAX_HANDLES} entries")


def _second(address: int) -> ContextParamsV2:
    """Return the parameters of a binary in version 2, of which the client has a pointer."""
    return read(read(address + ContextParams.v1.offset, ctypes.c_uint64).value, ContextParamsV2)


@_after("contextCreateFromBinaryListAsync")
def _announced_by_callback(seen: Validation, values: Values) -> None:
    """Expect handles that no call has returned: the client gets contexts and graphs in its callback."""
    exclusions.adopt(seen, values[3])


def _readable(seen: Validation, what: str, address: int | None, nbytes: int) -> None:
    """Check that a client's memory has a size, and that its first and last byte can be read."""
    if not nbytes:
        seen.mistake(f"{what}: it has 0 bytes")
    elif address:
        for each in (address, address + nbytes - 1):
            read_bytes(each, 1)


@_after("contextGetBinarySize")
def _binary_size(seen: Validation, values: Values) -> None:
    seen.objects["context", values[0]].nbytes = read(values[1], ctypes.c_uint64).value


@_before("contextGetBinary")
def _get_binary(seen: Validation, values: Values) -> None:
    context = seen.objects.get(("context", values[0]))
    if context is not None and values[2] < context.nbytes:
        seen.mistake(f"its buffer has {values[2]} bytes, contextGetBinarySize has said {context.nbytes}")


@_before("contextFree")
def _context_free(seen: Validation, values: Values) -> None:
    for each in seen.living("memory handle", values[0]):
        # The context uses buffers of the client's until then.
        if Feature.BUFFERS in each.features:
            seen.current.ends_buffers = True
            continue
        seen.mistake(f"{each.what} of it is registered still ({each.created_by})")


# -- memory ------------------------------------------------------------------------------------------------------------


def _registered_bytes(values: Values, index: int) -> int:
    """Return how many bytes a descriptor of a memRegister call covers; 0 if its data type is unknown."""
    descriptor = read(values[1], MemDescriptor, index)
    shape = descriptor.memShape
    dims = read_array(pointer(shape, "dimSize"), np.uint32, (min(shape.numDim, MAX_RANK),))
    try:
        return DataType(descriptor.dataType).itemsize * math.prod(int(dim) for dim in dims)
    except (ValueError, KeyError):
        return 0


@_before("memRegister")
def _mem_register(seen: Validation, values: Values) -> None:
    """Check the descriptors of memory."""
    if not values[2]:
        seen.mistake("there is no descriptor")
    for index in range(min(values[2], MAX_HANDLES)):
        descriptor = read(values[1], MemDescriptor, index)
        if descriptor.memShape.numDim > MAX_RANK:
            seen.mistake(f"descriptor {index}: its rank is {descriptor.memShape.numDim}")
        elif not descriptor.memShape.numDim and not exclusions.of_memory(seen, descriptor):
            seen.mistake(f"descriptor {index}: it has no dimensions")
        # Raises an error if the dimensions cannot be read.
        _registered_bytes(values, index)
    lifetimes.note_mapped(seen, values)


@_after("memRegister")
def _mem_registered(seen: Validation, values: Values) -> None:
    """Record the sizes of registered memory."""
    for index in range(min(values[2], MAX_HANDLES)):
        number = read(values[3], ctypes.c_uint64, index).value
        memory = seen.objects.get(("memory handle", number))
        if memory is not None:
            memory.nbytes = _registered_bytes(values, index)
            memory.features = dict(exclusions.of_memory(seen, read(values[1], MemDescriptor, index)))
    exclusions.note(seen, "context", values[0])
    lifetimes.keep_buffers(seen, values)
    lifetimes.check_limit(seen, values[0])


@_before("memDeRegister")
def _mem_deregister(seen: Validation, values: Values) -> None:
    """Check that the handles are known, different from each other, and not in use."""
    if not values[1]:
        seen.mistake("there is no handle")
    handles = set()
    for index in range(min(values[1], MAX_HANDLES)):
        number = read(values[0], ctypes.c_uint64, index).value
        if number in handles:
            seen.mistake(f"memory handle {number:#x}: it is given twice")
        handles.add(number)
        memory = seen.find("memory handle", number)
        if memory is not None:
            seen.check_unused("memory handle", number)
            lifetimes.check_deregistered(seen, memory)


@_after("memDeRegister")
def _mem_deregistered(seen: Validation, values: Values) -> None:
    for index in range(min(values[1], MAX_HANDLES)):
        number = read(values[0], ctypes.c_uint64, index).value
        memory = seen.objects.get(("memory handle", number))
        if memory is not None and not memory.freed_by:
            lifetimes.forget_buffer(seen, memory)
        seen.end("memory handle", number)


# -- profiles ----------------------------------------------------------------------------------------------------------


@_before("profileCreate")
def _profile_level(seen: Validation, values: Values) -> None:
    if not values[1]:
        seen.mistake("there is no profile level 0")


def _note_events(seen: Validation, profile: int, events: int, count: int) -> None:
    """Record which profile has reported events; `events` and `count` are where the call has written them."""
    numbers = read_array(read(events, ctypes.c_uint64).value, np.uint64, (read(count, ctypes.c_uint32).value,))
    for number in numbers[:MAX_EVENTS].tolist():
        # Keep the latest last; the oldest are dropped first.
        seen.events.pop(number, None)
        seen.events[number] = profile
    while len(seen.events) > MAX_EVENTS:
        seen.events.pop(next(iter(seen.events)))


@_after("profileGetEvents")
def _events(seen: Validation, values: Values) -> None:
    _note_events(seen, values[0], values[1], values[2])


@_before("profileGetSubEvents", "profileGetEventData", "profileGetExtendedEventData")
def _event(seen: Validation, values: Values) -> None:
    """Check that a profile that is not freed has reported the event."""
    profile = seen.objects.get(("profile", seen.events.get(values[0], 0)))
    if profile is None and len(seen.events) < MAX_EVENTS:
        seen.mistake(f"event {values[0]:#x}: no profile has reported it")
    elif profile is not None and profile.freed_by:
        seen.mistake(f"event {values[0]:#x}: its profile was freed by {profile.freed_by}")
    elif values[1]:
        # Event data is written to the second argument, or a pointer to sub-events; both must be accessible.
        read_bytes(values[1], ctypes.sizeof(EventData) if len(values) == 2 else 8)


@_after("profileGetSubEvents")
def _sub_events(seen: Validation, values: Values) -> None:
    if values[0] in seen.events:
        _note_events(seen, seen.events[values[0]], values[1], values[2])


# -- graphs ------------------------------------------------------------------------------------------------------------


def _open_graph(seen: Validation, number: int) -> Object | None:
    """Return the graph that a call changes; report a mistake if it is finalized."""
    graph = seen.graph(number)
    if graph is not None and graph.finalized and not graph.freed_by:
        seen.mistake(f"{graph.what}: it is finalized and cannot be changed")
    return graph


@_before("graphCreate")
def _graph_create(seen: Validation, values: Values) -> None:
    """Check that the graph has a name, and no other graph of its context has the same."""
    name = text(values[1])
    if name == "":
        seen.mistake("a graph must have a name")
    for each in seen.living("graph", values[0]):
        if name and each.name == name:
            seen.mistake(f"graph '{name}': {each.what} of the context has that name ({each.created_by})")


@_after("graphCreate")
def _graph_created(seen: Validation, values: Values) -> None:
    graph = seen.graph(read(values[3], ctypes.c_uint64).value)
    if graph is not None:
        graph.name = text(values[1]) or ""


@_before("graphCreateSubgraph")
def _subgraph(seen: Validation, values: Values) -> None:
    _open_graph(seen, values[0])


@_before("tensorCreateGraphTensor")
def _create_tensor(seen: Validation, values: Values) -> None:
    """Check a new tensor: its name is new in the graph, and a static tensor has data."""
    graph = _open_graph(seen, values[0])
    info = tensor_at(values[1])
    if graph is not None and info.name in {each.name for each in graph.tensors.values()}:
        seen.mistake(f"{info.what}: {graph.what} has one of that name")
    if info.type is TensorType.STATIC:
        info.contents()
        if not info.data:
            seen.mistake(f"{info.what}: a static tensor without data")


@_after("tensorCreateGraphTensor")
def _tensor_created(seen: Validation, values: Values) -> None:
    info = tensor_at(values[1])
    seen.objects["graph", values[0]].tensors[info.id] = info


@_before("tensorCreateContextTensor")
def _context_tensor(seen: Validation, values: Values) -> None:
    tensor_at(values[1])


@_after("tensorCreateContextTensor")
def _context_tensor_created(seen: Validation, values: Values) -> None:
    """Record a tensor of a context as one of each of its graphs, which may use it like their own."""
    info = tensor_at(values[1])
    for graph in seen.living("graph", values[0]):
        graph.tensors.setdefault(info.id, info)


@_before("tensorUpdateGraphTensors", "tensorUpdateContextTensors")
def _update_tensors(seen: Validation, values: Values) -> None:
    """Check that the tensors are those of the graph, if its composition was observed."""
    graph = seen.graph(values[0])
    for index in range(min(values[2], MAX_TENSORS)):
        info = tensor_at(read(values[1], ctypes.c_uint64, index).value)
        if graph is not None and graph.complete and info.id not in graph.tensors:
            seen.mistake(f"{info.what} has the id {info.id}, and {graph.what} none of that id")


@_before("graphAddNode")
def _add_node(seen: Validation, values: Values) -> None:
    """Check a new node: its tensors exist as described, and it may write its outputs."""
    graph = _open_graph(seen, values[0])
    if graph is None:
        return
    node = node_at(values[1], lambda number: graph.tensors[number].contents() if number in graph.tensors else None)
    for info in _present([*node.inputs, *node.outputs]):
        created = graph.tensors.get(info.id)
        what = f"node '{node.name}' ({node.op}): {info.what}"
        if created is None:
            seen.mistake(f"{what} has the id {info.id}, and the graph none of that id")
        elif (created.name, created.dims, created.dtype) != (info.name, info.dims, info.dtype):
            seen.mistake(
                f"{what} is {info.dtype.name}{list(info.dims)}, and was created as '{created.name}' "
                f"{created.dtype.name}{list(created.dims)}"
            )
    for info in _present(node.outputs):
        _check_written(seen, graph, node, info)


def _check_written(seen: Validation, graph: Object, node: ClientNode, info: ClientTensorInfo) -> None:
    """Check that an output is written by no other node or the client, and is not a constant."""
    what = f"node '{node.name}' ({node.op}): {info.what}"
    created = graph.tensors.get(info.id)
    if info.id in graph.writers:
        seen.mistake(f"{what} is written by node '{graph.writers[info.id]}' already")
    elif created is not None and created.type in (TensorType.APP_WRITE, TensorType.STATIC):
        seen.mistake(f"{what} is {created.type.name}, and no node may write it")


@_after("graphAddNode")
def _node_added(seen: Validation, values: Values) -> None:
    """Record the name of a new node and which tensors it writes."""
    graph = seen.objects["graph", values[0]]
    node = node_at(values[1], lambda number: np.empty(0))
    graph.nodes.add(node.name)
    graph.writers.update({info.id: node.name for info in _present(node.outputs)})


def _present(tensors: list[ClientTensorInfo]) -> list[ClientTensorInfo]:
    """Drop the tensors that mark an absent input or output; their ids mean nothing."""
    return [info for info in tensors if info.type is not TensorType.NULL]


@_before("graphFinalize")
def _finalize(seen: Validation, values: Values) -> None:
    """Check that the graph has nodes and is not finalized yet."""
    graph = seen.graph(values[0])
    if graph is None or not graph.complete:
        return
    if graph.finalized:
        seen.mistake(f"{graph.what}: it is finalized already")
    elif not graph.nodes:
        seen.mistake(f"{graph.what}: it has no nodes")


@_after("graphFinalize")
def _note_finalized(seen: Validation, values: Values) -> None:
    seen.objects["graph", values[0]].finalized = True


@_before("graphPrepareExecutionEnvironment", "graphReleaseExecutionEnvironment")
def _environments(seen: Validation, values: Values) -> None:
    if values[1]:
        listed_all(values[1], ExecuteEnvironment, min(values[2], MAX_TENSORS))


# -- executions --------------------------------------------------------------------------------------------------------


@_before("graphExecute", "graphExecuteAsync")
def _execute(seen: Validation, values: Values) -> None:
    """Check the tensors of an execution: all inputs and outputs are given, once each, in fitting memory."""
    graph = seen.graph(values[0])
    if graph is None:
        return
    if not graph.finalized:
        seen.mistake(f"{graph.what}: it is not finalized")
    # The client's buffers so far: first address, address behind the last, name of the tensor.
    places: list[tuple[int, int, str]] = []
    for kind, tensor_type, address, count in (
        ("input", TensorType.APP_WRITE, values[1], values[2]),
        ("output", TensorType.APP_READ, values[3], values[4]),
    ):
        ids: set[int] = set()
        for index in range(min(count, MAX_TENSORS)):
            number = _check_operand(seen, graph, kind, tensor_type, address, index, places)
            if number in ids:
                seen.mistake(f"{kind} {index}: the id {number} is given twice")
            ids.add(number)
        if graph.complete:
            for number, tensor in graph.tensors.items():
                if tensor.type is tensor_type and number not in ids:
                    seen.mistake(f"{kind} '{tensor.name}' of {graph.what} is not given")


def _check_operand(
    seen: Validation, graph: Object, kind: str, tensor_type: TensorType, address: int, index: int,
    places: list[tuple[int, int, str]],
) -> int:  # fmt: skip
    """Check one tensor of an execution, and return its id."""
    # - `places`: The buffers of the tensors before it; its own is added. An output must not overlap them, but may be
    #   exactly an input's.
    tensor = read(address, Tensor, index)
    fields = tensor.v1
    created = graph.tensors.get(fields.id)
    if graph.complete and (created is None or created.type is not tensor_type):
        seen.mistake(f"{kind} {index}: {graph.what} has no {kind} of the id {fields.id}")
        return int(fields.id)
    info = created or tensor_at(address, index)
    what = f"{kind} '{info.name}'"
    for difference in () if created is None else differences(fields, created.dtype, created.dims, any_batch=True):
        seen.mistake(f"{what} {difference}")
    # HTP takes a multiple of the batch.
    needed = info.dtype.itemsize * math.prod(info.dims) * max(multiple_of(stated_dims(fields) or (), info.dims), 1)
    if fields.memType == TensorMemType.MEMHANDLE:
        handle = fields.memHandle or 0
        memory = seen.find("memory handle", handle)
        seen.use("memory handle", handle)
        # Of a graph from a callback the context is not known.
        if memory is not None and graph.owner and memory.owner != graph.owner:
            seen.mistake(f"{what}: {memory.what} is registered with another context")
        elif memory is not None and 0 < memory.nbytes < needed:
            seen.mistake(f"{what}: {memory.what} has {memory.nbytes} bytes, {needed} are needed")
        seen.shared_bytes += needed
    else:
        data, nbytes = fields.clientBuf.data or 0, fields.clientBuf.dataSize
        seen.raw_bytes += needed
        if not data:
            seen.mistake(f"{what}: its buffer is null")
        elif nbytes < needed:
            # Of a graph from a binary only the client's own description is known, which may be the mistake.
            stated = (
                "" if created is not None else f" for {info.dtype.name}{list(info.dims)}, as this call describes it"
            )
            seen.mistake(f"{what}: its buffer has {counted(nbytes, 'byte')}, {needed} are needed{stated}")
        for first, last, other in places if kind == "output" and data else ():
            same = (first, last) == (data, data + needed) and other.startswith("input")
            if data < last and first < data + needed and not same:
                seen.mistake(f"{what}: its buffer overlaps that of {other}")
        places.append((data, data + needed, what))
    return int(fields.id)
