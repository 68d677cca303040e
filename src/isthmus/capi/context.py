"""QnnContext_*: contexts, created empty or from binaries, and their binaries."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from isthmus import qnn
from isthmus.backends.seam.facets import show_number
from isthmus.cabi.client import checked, pointer, read, read_large, text, write_bytes, write_number
from isthmus.cabi.objects import (
    BinaryCompatibility,
    ContextConfig,
    ContextOption,
    ContextParams,
    ErrorReportingLevel,
    EventType,
)
from isthmus.capi import options
from isthmus.capi.data_callbacks import CallbackError, ClientBinary, DataCallbacks
from isthmus.capi.device import ClientDevice
from isthmus.capi.functions import handle_type, serves
from isthmus.capi.records import ClientProfile
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel
from isthmus.memory import window

if TYPE_CHECKING:
    from isthmus.backends.seam.provider import BinaryProvider
    from isthmus.capi.graph import ClientGraph
    from isthmus.capi.serve import LibraryServer

MAX_BINARY_BYTES = 1 << 40
# How many graphs a client may enable; a list without an end is cut here.
_MAX_NAMES = 1024


@handle_type("Qnn_ContextHandle_t", "context", Code.CONTEXT_INVALID_HANDLE)
@dataclass(eq=False)
class ClientContext:
    """A client's context.

    - `priority`: The priority of its graphs (QNN_PRIORITY_*), unless a graph sets its own; None if the client has set
      none.
    - `is_composed`: Whether the client composes its graphs; otherwise they come from a binary.
    - `graphs`: The graphs that the client has handles of, by name. Their handles keep them, so that a context and its
      graphs are released by the call that frees them and not by the garbage collector.
    - `binary`: Its binary, kept from getBinarySize to the next getBinary.
    """

    handle: qnn.Context
    priority: int | None = None
    is_composed: bool = True
    graphs: WeakValueDictionary[str, ClientGraph] = field(default_factory=WeakValueDictionary)
    binary: bytes | None = None


@dataclass
class ReadConfigs:
    """The configs that a client has set; None for those it has not mentioned."""

    settings: dict[Any, Any] = field(default_factory=dict)
    priority: int | None = None
    enabled: tuple[str, ...] | None = None
    deferred: bool = False
    queue_depth: int | None = None
    persistent: bool | None = None
    memory_limit: int | None = None
    retention: tuple[str, ...] | None = None
    strict: bool | None = None
    options: set[ContextOption] = field(default_factory=set)

    def refuse_for_composed(self) -> None:
        """Refuse what only contexts from binaries have, in the vendor's words."""
        for option in _FOR_BINARIES:
            name = _IN_WORDS.get(option, option.name.lower().replace("_", " "))
            self.refuse([option], f"Setting {name} is not supported; it is for contexts that are made from binaries")

    def refuse(self, options: Collection[ContextOption], why: str) -> None:
        """Refuse these options; `why` completes a sentence about the first that is given."""
        for option in sorted(self.options & {*options}):
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"context option {option.name}", why)


_UNSUPPORTED = (ContextOption.OEM_STRING,)
# Options of contexts that are made from binaries.
_FOR_BINARIES = (
    ContextOption.ENABLE_GRAPHS, ContextOption.MEMORY_LIMIT_HINT, ContextOption.PERSISTENT_BINARY,
    ContextOption.BINARY_COMPATIBILITY, ContextOption.DEFER_GRAPH_INIT,
)  # fmt: skip
# The vendor's words for options where they are not the option's name.
_IN_WORDS = {ContextOption.ENABLE_GRAPHS: "enabled graphs"}
# Options that are set when a context is created, and not later.
_AT_CREATION = (ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH, ContextOption.DEFER_GRAPH_INIT)
# Options without an effect of their own, each with the function that reads its value.
_UNUSED: dict[ContextOption, Callable[[ContextConfig], object]] = {
    ContextOption.ERROR_REPORTING: lambda config: show_number(ErrorReportingLevel, config.errorConfig.reportingLevel),
}


def read_configs(server: LibraryServer, configs: list[ContextConfig]) -> ReadConfigs:
    """Read the client's configs; refuse unknown options and priorities."""
    result = ReadConfigs()
    for config in configs:
        if config.option not in list(ContextOption):
            raise QnnError(Code.COMMON_NOT_SUPPORTED, "context", f"it has no config {config.option}")
        option = ContextOption(config.option)
        result.options.add(option)
        if option is ContextOption.CUSTOM:
            result.settings.update(options.settings(server, "context", checked(config.customConfig)))
        elif option is ContextOption.PRIORITY:
            result.priority = config.priority
        elif option is ContextOption.ENABLE_GRAPHS:
            result.enabled = tuple(_names(pointer(config, "enableGraphs")))
        elif option is ContextOption.DEFER_GRAPH_INIT:
            result.deferred = bool(config.isGraphInitDeferred)
        elif option is ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH:
            result.queue_depth = config.asyncExeQueueDepth.depth
        elif option is ContextOption.GRAPH_RETENTION_ORDER:
            result.retention = tuple(_names(pointer(config, "graphRetentionOrder")))
        elif option is ContextOption.MEMORY_LIMIT_HINT:
            result.memory_limit = config.memoryLimitHint
        elif option is ContextOption.PERSISTENT_BINARY:
            result.persistent = bool(config.isPersistentBinary)
        elif option is ContextOption.BINARY_COMPATIBILITY:
            result.strict = _is_strict(config.binaryCompatibilityType)
        elif option in _UNUSED:
            value = _UNUSED[option](config)
            server.log_once(LogLevel.INFO, f"context option {option.name} = {value}: accepted, but without effect here")
    result.refuse(_UNSUPPORTED, "it is not supported")
    if result.priority is not None and result.priority not in list(qnn.Priority):
        rule = f"there is no priority {result.priority}"
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context", rule)
    return result


def _is_strict(kind: int) -> bool:
    """Return whether a type of compatibility (QNN_CONTEXT_BINARY_COMPATIBILITY_TYPE_*) is the strict one."""
    if kind not in list(BinaryCompatibility):
        names = ", ".join(f"{each.name} ({each})" for each in BinaryCompatibility)
        rule = f"there is no type {kind}; types are {names}"
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context option BINARY_COMPATIBILITY", rule)
    return kind == BinaryCompatibility.STRICT


def _names(address: int) -> list[str]:
    """Read a null-terminated list of texts."""
    names: list[str] = []
    while (each := read(address, ctypes.c_uint64, len(names)).value) and len(names) < _MAX_NAMES:
        names.append(text(each) or "")
    return names


@serves("contextCreate", Code.CONTEXT_INVALID_ARGUMENT)
def context_create(
    server: LibraryServer, backend: qnn.Backend, device: ClientDevice | None, configs: list[ContextConfig],
    binary: memoryview | None = None,
) -> ClientContext:  # fmt: skip
    """Create a context, empty or from a binary."""
    client_configs = read_configs(server, configs)
    if binary is None:
        client_configs.refuse_for_composed()
    return create_configured(server, backend, device, client_configs, binary)


def create_configured(
    server: LibraryServer, backend: qnn.Backend, device: ClientDevice | None, client_configs: ReadConfigs, binary: Any,
    provider: BinaryProvider | None = None, shared: Any = None,
) -> ClientContext:  # fmt: skip
    """Create a context with configs that were read.

    - `binary`: None for an empty context.
    - `provider`, `shared`: As for `qnn.Context`.
    """
    qnn_device = None if device is None else device.on(backend)
    context = qnn.Context(
        backend, client_configs.settings, qnn_device, binary, binary is not None, client_configs.enabled,
        client_configs.deferred, client_configs.queue_depth, client_configs.priority,
        persistent=client_configs.persistent, memory_limit=client_configs.memory_limit,
        retained=client_configs.retention, strict=client_configs.strict, provider=provider, shared=shared,
    )  # fmt: skip
    return ClientContext(context, client_configs.priority, is_composed=binary is None)


def _set_priorities(context: ClientContext) -> None:
    """Give the graphs of a context its priority, if the client has set another one since it created the context."""
    for graph in context.handle.graphs.values() if context.priority is not None else ():
        if graph.get_property(qnn.GraphConfig.PRIORITY) != context.priority:
            graph.set_config(qnn.GraphConfig.PRIORITY, context.priority)


def check_size(nbytes: int) -> None:
    """Refuse a size that no binary has."""
    if not 1 <= nbytes <= MAX_BINARY_BYTES:
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "context binary", f"it cannot have {nbytes} bytes")


def client_binary(backend: qnn.Backend, address: int, nbytes: int) -> memoryview:
    """Copy the client's binary, or return a view of it if the backend copies it itself or uses it in place."""
    check_size(nbytes)
    if backend.driver.keeps_binaries or backend.driver.copies_binaries:
        code = Code.CONTEXT_INVALID_ARGUMENT
        place = window(checked(address), "context binary", nbytes=nbytes, writable=False, code=code)
        return place.view(np.uint8, (nbytes,)).data
    return read_large(checked(address), nbytes)


@serves("contextCreateFromBinaryWithCallback", Code.CONTEXT_INVALID_ARGUMENT)
def context_create_from_binary_with_callback(
    server: LibraryServer, backend: qnn.Backend, device: ClientDevice | None, configs: list[ContextConfig],
    callbacks: int, binary: int, nbytes: int, profile: ClientProfile | None, signal: qnn.Signal | None,
) -> ClientContext | int:  # fmt: skip
    """Create a context with the graphs of a binary, whose data the client's callbacks bring."""
    begin = time.perf_counter()
    provider = DataCallbacks(server, callbacks)
    check_size(nbytes)
    try:
        context = create_configured(
            server, backend, device, read_configs(server, configs), ClientBinary(binary, nbytes), provider
        )
    except CallbackError as problem:
        return problem.error
    note_creation(profile, begin, context)
    return context


@serves("contextCreateFromBinary", Code.CONTEXT_INVALID_ARGUMENT)
@serves("contextCreateFromBinaryWithSignal", Code.CONTEXT_INVALID_ARGUMENT)
def context_create_from_binary(
    server: LibraryServer, backend: qnn.Backend, device: ClientDevice | None, configs: list[ContextConfig],
    binary: int, nbytes: int, profile: ClientProfile | None, signal: qnn.Signal | None = None,
) -> ClientContext:  # fmt: skip
    """Create a context with the graphs of a binary; a signal has no effect, since this does not take long."""
    begin = time.perf_counter()
    context: ClientContext = context_create(server, backend, device, configs, client_binary(backend, binary, nbytes))
    note_creation(profile, begin, context)
    return context


def note_creation(profile: ClientProfile | None, begin: float, context: ClientContext) -> None:
    """Record in a profile that a context was created, beginning at a time."""
    if profile is not None:
        event = EventType.INIT, "context created from binary", (time.perf_counter() - begin) * 1e6
        profile.replace([event], context.handle.driver.memory_events)


@serves("contextCreateFromBinaryListAsync", Code.CONTEXT_INVALID_ARGUMENT)
def context_create_from_binary_list_async(
    server: LibraryServer, backend: int, device: int, all_params: list[ContextParams], configs: list[ContextConfig],
    signal: qnn.Signal | None,
) -> None:  # fmt: skip
    """Create contexts from several binaries; a signal has no effect, since this does not take long."""
    from isthmus.capi.binary_lists import load_list

    load_list(server, backend, device, all_params, configs)


def graph_handles(server: LibraryServer, number: int) -> list[tuple[str, int]]:
    """List the graphs of a new context by name, with their handles."""
    context = server.handles.get(number, ClientContext, Code.CONTEXT_INVALID_HANDLE, "context")
    graphs = {name: _client_graph(context, name, graph) for name, graph in context.handle.graphs.items()}
    return [(name, server.handles.add(graph, number)) for name, graph in graphs.items()]


def _client_graph(context: ClientContext, name: str, graph: qnn.Graph) -> ClientGraph:
    """Return the client's graph for one of a context, creating it at the first request."""
    from isthmus.capi.graph import ClientGraph

    return context.graphs.setdefault(name, ClientGraph(graph, context))


@serves("graphRetrieve", Code.GRAPH_INVALID_ARGUMENT)
def graph_retrieve(server: LibraryServer, context: ClientContext, name: str | None) -> ClientGraph:
    """Return a graph of a context, given its name."""
    name = name or ""
    return _client_graph(context, name, context.handle.retrieve(name))


@serves("contextValidateBinary", Code.CONTEXT_INVALID_ARGUMENT)
def context_validate_binary(
    server: LibraryServer, backend: qnn.Backend, device: ClientDevice | None, configs: list[ContextConfig],
    binary: int, nbytes: int,
) -> None:  # fmt: skip
    """Check whether a binary can be used here, by creating a context from it and freeing that."""
    context_create(server, backend, device, configs, client_binary(backend, binary, nbytes)).handle.free()


@serves("contextSetConfig", Code.CONTEXT_INVALID_ARGUMENT)
def context_set_config(server: LibraryServer, context: ClientContext, configs: list[ContextConfig]) -> None:
    """Change configs of a context: all or none."""
    client_configs = read_configs(server, configs)
    for each in _AT_CREATION:
        name = each.name.lower().replace("_", " ")
        client_configs.refuse([each], f"setting {name} is not supported, except when the context is created")
    if context.is_composed:
        client_configs.refuse_for_composed()
    if client_configs.enabled is not None:
        names = ", ".join(sorted(client_configs.enabled))
        server.log_once(LogLevel.INFO, f"context option ENABLE_GRAPHS = {names}: without effect, the graphs are loaded")
    if client_configs.strict is not None:
        kind = BinaryCompatibility(client_configs.strict).name
        text = f"context option BINARY_COMPATIBILITY = {kind}: without effect, the binary is loaded"
        server.log_once(LogLevel.INFO, text)
    for option, value in (
        (ContextOption.MEMORY_LIMIT_HINT, client_configs.memory_limit),
        (ContextOption.PERSISTENT_BINARY, client_configs.persistent),
    ):
        if value is not None:
            text = f"context option {option.name} = {value}: without effect, its graphs are loaded as it was created"
            server.log_once(LogLevel.INFO, text)
    if client_configs.priority is not None:
        context.handle.driver.check_priority_change()
    before = context.handle.driver.loading.retained
    if client_configs.retention is not None:
        context.handle.retain(client_configs.retention)
    try:
        if client_configs.settings:
            context.handle.set_config(client_configs.settings)
    except QnnError:
        context.handle.retain(before)
        raise
    if client_configs.priority is not None:
        context.priority = client_configs.priority


def _check_composed(server: LibraryServer, context: ClientContext, rule: str) -> None:
    """Refuse to make a binary of a context that comes from one, on a backend that makes none of such contexts."""
    if not context.is_composed and server.facet.binaries_of_composed:
        hint = "The client has the binary that the context comes from."
        raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, "context", rule, hint)


@serves("contextGetBinarySize", Code.CONTEXT_INVALID_ARGUMENT)
def context_get_binary_size(server: LibraryServer, context: ClientContext, out: int) -> None:
    """Write the size of a context's binary. The binary is made here and kept for the next getBinary."""
    _check_composed(server, context, "Querying binary size after de-serializing binary is illegal")
    context.binary = context.handle.get_binary()
    write_number(out, len(context.binary))


@serves("contextGetBinary", Code.CONTEXT_INVALID_ARGUMENT)
def context_get_binary(server: LibraryServer, context: ClientContext, target: int, nbytes: int, written: int) -> None:
    """Copy a context's binary into the client's buffer."""
    _check_composed(server, context, "Attempting to create context binary from a de-serialized context is illegal")
    binary, context.binary = context.binary or context.handle.get_binary(), None
    if nbytes < len(binary):
        rule = f"{nbytes} bytes are not enough for {len(binary)}"
        raise QnnError(Code.CONTEXT_GET_BINARY_FAILED, "buffer for a context binary", rule)
    write_number(written, 0)
    write_bytes(target, binary)
    write_number(written, len(binary))


@serves("contextFinalize", Code.CONTEXT_INVALID_ARGUMENT)
def context_finalize(server: LibraryServer, context: ClientContext, profile: ClientProfile | None) -> None:
    """Load the graphs of a context that was created with deferred graphs; any other one does not need this call."""
    begin = time.perf_counter()
    context.handle.finalize()
    _set_priorities(context)
    if profile is not None:
        profile.replace([(EventType.INIT, "context finalized", (time.perf_counter() - begin) * 1e6)])


@serves("contextFree", Code.CONTEXT_INVALID_HANDLE)
def context_free(server: LibraryServer, context: ClientContext, profile: ClientProfile | None) -> None:
    """Free a context with its graphs and memory handles."""
    begin = time.perf_counter()
    # The library's cached executions hold graphs and memory; these can be freed only without them.
    server.forget_executions()
    context.handle.free()
    if profile is not None:
        event = EventType.DEINIT, "context freed", (time.perf_counter() - begin) * 1e6
        profile.replace([event], context.handle.driver.memory_events)
