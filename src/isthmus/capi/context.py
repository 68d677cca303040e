"""QnnContext_*: contexts, created empty or from binaries, and their binaries."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from isthmus import qnn
from isthmus.cabi.client import checked, pointer, read, read_large, text, write_bytes, write_number
from isthmus.cabi.objects import (
    CONTEXT_NOTIFY,
    ContextConfig,
    ContextOption,
    ContextParams,
    EventType,
)
from isthmus.capi import options
from isthmus.capi.device import ClientDevice
from isthmus.capi.functions import handled, serves
from isthmus.capi.records import ClientProfile
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel
from isthmus.memory import window

if TYPE_CHECKING:
    from isthmus.capi.graph import ClientGraph
    from isthmus.capi.serve import LibraryServer

DEFAULT_PRIORITY = 100
_GRAPH_INIT, _CONTEXT_INIT = 0, 1
"""QNN_CONTEXT_NOTIFY_TYPE_*."""
MAX_BINARY_BYTES = 1 << 40
_MAX_NAMES = 1024
"""How many graphs a client may enable; a list without an end is cut here."""


@handled("Qnn_ContextHandle_t", "context", Code.CONTEXT_INVALID_HANDLE)
@dataclass(eq=False)
class ClientContext:
    """A client's context.

    Parameters
    ----------
    priority
        The priority of its graphs (QNN_PRIORITY_*), unless a graph sets its own.
    enabled
        The graphs of its binary that may be retrieved; all if None.
    is_composed
        Whether the client composes its graphs; otherwise they come from a binary.
    has_memory_limit
        Whether the client has set a memory limit hint, without which the order of retention has no meaning.
    retention
        The graphs to keep loaded, the most important first. All graphs are always loaded here.
    graphs
        The graphs that the client has handles of, by name. Their handles keep them, so that a context and its graphs
        are released by the call that frees them and not by the garbage collector.
    binary
        Its binary, kept from getBinarySize to the next getBinary.
    """

    handle: qnn.Context
    priority: int = DEFAULT_PRIORITY
    enabled: frozenset[str] | None = None
    is_composed: bool = True
    has_memory_limit: bool = False
    retention: tuple[str, ...] = ()
    graphs: WeakValueDictionary[str, ClientGraph] = field(default_factory=WeakValueDictionary)
    binary: bytes | None = None


@dataclass(frozen=True)
class _Configs:
    """The configs that a client has set; None for those it has not mentioned.

    Parameters
    ----------
    settings
        Custom configs by option.
    priority, enabled, has_memory_limit, retention
        As for `ClientContext`.
    """

    settings: dict[Any, Any]
    priority: int | None
    enabled: frozenset[str] | None
    has_memory_limit: bool | None
    retention: tuple[str, ...] | None

    def check_retention(self, graphs: Iterable[str]) -> None:
        """Refuse an order of retention that names a graph twice, or one that is not among these."""
        names, known = self.retention or (), sorted(graphs)
        for index, name in enumerate(names):
            if name in names[:index] or name not in known:
                problem = "twice" if name in names[:index] else f"and there are {', '.join(known) or 'none'}"
                rule = f"the order of retention names graph '{name}', {problem}"
                raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context", rule)

    def keep_retention(self, server: LibraryServer, context: ClientContext) -> None:
        """Set an order of retention that was checked, and the hint that it depends on."""
        if self.has_memory_limit is not None:
            context.has_memory_limit = self.has_memory_limit
        if self.retention is not None:
            context.retention = self.retention
            if self.retention and not context.has_memory_limit:
                server.log(LogLevel.WARN, "an order of retention without a memory limit hint: no graph is switched")


def _read_configs(server: LibraryServer, configs: list[ContextConfig]) -> _Configs:
    """Read the client's configs; refuse unknown options and priorities."""
    settings: dict[Any, Any] = {}
    priority, enabled, has_memory_limit, retention = None, None, None, None
    for config in configs:
        if config.option == ContextOption.CUSTOM:
            settings.update(options.settings(server, "context", checked(config.customConfig or 0)))
        elif config.option == ContextOption.PRIORITY:
            priority = config.priority
        elif config.option == ContextOption.ENABLE_GRAPHS:
            enabled = frozenset(_names(pointer(config, "enableGraphs")))
        elif config.option == ContextOption.GRAPH_RETENTION_ORDER:
            retention = tuple(_names(pointer(config, "graphRetentionOrder")))
        elif config.option in list(ContextOption):
            if config.option == ContextOption.MEMORY_LIMIT_HINT:
                has_memory_limit = config.memoryLimitHint != 0
            name = ContextOption(config.option).name
            server.log(LogLevel.INFO, f"context option {name}: accepted, but without effect here")
        else:
            raise QnnError(Code.COMMON_NOT_SUPPORTED, "context", f"it has no config {config.option}")
    if priority is not None and priority not in list(qnn.Priority):
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context", f"there is no priority {priority}")
    return _Configs(settings, priority, enabled, has_memory_limit, retention)


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
    qnn_device = None if device is None else device.on(backend)
    client_configs = _read_configs(server, configs)
    if binary is None:
        context = backend.create_context(client_configs.settings, qnn_device)
    else:
        context = backend.create_context_from_binary(binary, client_configs.settings, qnn_device)
    enabled = set(context.graphs) if client_configs.enabled is None else client_configs.enabled
    try:
        if not enabled <= set(context.graphs):
            missing = ", ".join(sorted(enabled - set(context.graphs)))
            raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context binary", f"it has no graph {missing}")
        if binary is not None:
            client_configs.check_retention(enabled)
    except QnnError:
        context.free()
        raise
    priority = DEFAULT_PRIORITY if client_configs.priority is None else client_configs.priority
    for graph in context.graphs.values():
        graph.set_config(qnn.GraphConfig.PRIORITY, priority)
    made = ClientContext(context, priority, client_configs.enabled, is_composed=binary is None)
    client_configs.keep_retention(server, made)
    return made


def _binary(backend: qnn.Backend, address: int, nbytes: int) -> memoryview:
    """Copy the client's binary, or return a view of it if the backend uses binaries in place."""
    if not 1 <= nbytes <= MAX_BINARY_BYTES:
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "context binary", f"it cannot have {nbytes} bytes")
    if backend.driver.keeps_binaries:
        code = Code.CONTEXT_INVALID_ARGUMENT
        in_place = window(checked(address), "context binary", nbytes=nbytes, writable=False, code=code)
        return in_place.view(np.uint8, (nbytes,)).data
    return read_large(checked(address), nbytes)


@serves("contextCreateFromBinary", Code.CONTEXT_INVALID_ARGUMENT)
@serves("contextCreateFromBinaryWithSignal", Code.CONTEXT_INVALID_ARGUMENT)
def context_create_from_binary(
    server: LibraryServer, backend: qnn.Backend, device: ClientDevice | None, configs: list[ContextConfig],
    binary: int, nbytes: int, profile: ClientProfile | None, signal: qnn.Signal | None = None,
) -> ClientContext:  # fmt: skip
    """Create a context with the graphs of a binary; a signal has no effect, since this does not take long."""
    begin = time.perf_counter()
    context: ClientContext = context_create(server, backend, device, configs, _binary(backend, binary, nbytes))
    if profile is not None:
        profile.replace([(EventType.INIT, "context created from binary", (time.perf_counter() - begin) * 1e6)])
    return context


@serves("contextCreateFromBinaryListAsync", Code.CONTEXT_INVALID_ARGUMENT)
def context_create_from_binary_list_async(
    server: LibraryServer, backend: int, device: int, all_params: list[ContextParams], configs: list[ContextConfig],
    signal: qnn.Signal | None,
) -> None:  # fmt: skip
    """Create contexts from several binaries, one after the other, and notify the client of each.

    The notification for a graph passes no context handle, because clients free every context handle they are given.
    During a notification the client may free any context it knows.
    """
    _read_configs(server, configs)
    if not all_params:
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "list of binaries", "it is empty")
    for each in all_params:
        if each.version != 1 or not each.v1.notifyFunc:
            rule = "its version must be 1, and it needs a callback to notify"
            raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "binary of a list", rule)
    for each in all_params:
        out = ctypes.c_uint64()
        notify = CONTEXT_NOTIFY(each.v1.notifyFunc)
        arguments = (
            backend, device, pointer(each.v1, "config"), each.v1.binaryBuffer or 0, each.v1.binaryBufferSize,
            ctypes.addressof(out), each.v1.profile or 0,
        )  # fmt: skip
        # Called like a client's call, so that an error of one binary becomes a code and does not end the loop.
        error = server.contextCreateFromBinary(*arguments)
        for name, number in () if error else _graph_handles(server, out.value):
            notify(None, number, name.encode(), _GRAPH_INIT, each.v1.notifyParam, 0)
        notify(out.value, None, None, _CONTEXT_INIT, each.v1.notifyParam, error)


def _graph_handles(server: LibraryServer, number: int) -> list[tuple[str, int]]:
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
    if context.enabled is not None and name not in context.enabled:
        raise QnnError(Code.GRAPH_INVALID_NAME, f"graph '{name}'", "it is not among those that are enabled")
    return _client_graph(context, name, context.handle.retrieve(name))


@serves("contextValidateBinary", Code.CONTEXT_INVALID_ARGUMENT)
def context_validate_binary(
    server: LibraryServer, backend: qnn.Backend, device: ClientDevice | None, configs: list[ContextConfig],
    binary: int, nbytes: int,
) -> None:  # fmt: skip
    """Check whether a binary can be used here, by creating a context from it and freeing that."""
    context_create(server, backend, device, configs, _binary(backend, binary, nbytes)).handle.free()


@serves("contextSetConfig", Code.CONTEXT_INVALID_ARGUMENT)
def context_set_config(server: LibraryServer, context: ClientContext, configs: list[ContextConfig]) -> None:
    """Change configs of a context: all or none."""
    client_configs = _read_configs(server, configs)
    # Graphs that a client composes are not switched: as with the vendor's library, none of them can be named.
    known = set() if context.is_composed else set(context.handle.graphs)
    client_configs.check_retention(known if context.enabled is None else known & context.enabled)
    if client_configs.settings:
        context.handle.set_config(client_configs.settings)
    if client_configs.priority is not None:
        context.priority = client_configs.priority
    client_configs.keep_retention(server, context)


@serves("contextGetBinarySize", Code.CONTEXT_INVALID_ARGUMENT)
def context_get_binary_size(server: LibraryServer, context: ClientContext, out: int) -> None:
    """Write the size of a context's binary. The binary is made here and kept for the next getBinary."""
    context.binary = context.handle.get_binary()
    write_number(out, len(context.binary))


@serves("contextGetBinary", Code.CONTEXT_INVALID_ARGUMENT)
def context_get_binary(server: LibraryServer, context: ClientContext, target: int, nbytes: int, written: int) -> None:
    """Copy a context's binary into the client's buffer."""
    binary, context.binary = context.binary or context.handle.get_binary(), None
    if nbytes < len(binary):
        rule = f"{nbytes} bytes are not enough for {len(binary)}"
        raise QnnError(Code.CONTEXT_GET_BINARY_FAILED, "buffer for a context binary", rule)
    write_number(written, 0)
    write_bytes(target, binary)
    write_number(written, len(binary))


@serves("contextFinalize", Code.CONTEXT_INVALID_ARGUMENT)
def context_finalize(server: LibraryServer, context: ClientContext, profile: ClientProfile | None) -> None:
    """Do nothing: no graph needs this call."""


@serves("contextFree", Code.CONTEXT_INVALID_HANDLE)
def context_free(server: LibraryServer, context: ClientContext, profile: ClientProfile | None) -> None:
    """Free a context with its graphs and memory handles."""
    begin = time.perf_counter()
    # The library's cached executions hold graphs and memory; these can be freed only without them.
    server.forget_executions()
    context.handle.free()
    if profile is not None:
        profile.replace([(EventType.DEINIT, "context freed", (time.perf_counter() - begin) * 1e6)])
