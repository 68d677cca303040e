"""QnnContext_*: contexts, created empty or from binaries, and their binaries."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus import qnn
from isthmus.cabi.client import checked, listed, pointer, read, read_large, text, write_bytes, write_number
from isthmus.cabi.objects import (
    CONTEXT_NOTIFY,
    ContextConfig,
    ContextOption,
    ContextParams,
    ContextProperty,
    EventType,
)
from isthmus.capi import options
from isthmus.capi.backend import backend_of
from isthmus.capi.device import ClientDevice
from isthmus.capi.functions import serves
from isthmus.capi.records import ClientProfile, ClientSignal
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel
from isthmus.memory import window

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

DEFAULT_PRIORITY = 100
_GRAPH_INIT, _CONTEXT_INIT = 0, 1
"""QNN_CONTEXT_NOTIFY_TYPE_*."""
MAX_BINARY_BYTES = 1 << 40
_MAX_NAMES = 1024
"""How many graphs a client may enable; a list without an end is cut here."""


@dataclass
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
        The client's handles of its graphs by name.
    binary
        Its binary, kept from getBinarySize to the next getBinary.
    """

    handle: qnn.Context
    priority: int = DEFAULT_PRIORITY
    enabled: frozenset[str] | None = None
    is_composed: bool = True
    has_memory_limit: bool = False
    retention: tuple[str, ...] = ()
    graphs: dict[str, int] = field(default_factory=dict)
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


def context_of(server: LibraryServer, handle: int, code: Code = Code.CONTEXT_INVALID_HANDLE) -> ClientContext:
    """Return the context of a handle; `code` is the error for an unknown handle."""
    return server.handles.get(handle, ClientContext, code, "context")


def _read_configs(server: LibraryServer, configs: int) -> _Configs:
    """Read the client's configs, a null-terminated list of pointers; refuse unknown options and priorities."""
    settings: dict[Any, Any] = {}
    priority, enabled, has_memory_limit, retention = None, None, None, None
    for config in listed(configs, ContextConfig):
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


def _create(
    server: LibraryServer, backend_handle: int, device: int, configs: int, out: int, binary: memoryview | None = None
) -> int:
    """Create a context, empty or from a binary; write its handle to `out` and return it."""
    write_number(out, 0)
    backend = backend_of(server, backend_handle, Code.CONTEXT_INVALID_HANDLE)
    qnn_device = None
    if device:
        qnn_device = server.handles.get(device, ClientDevice, Code.CONTEXT_INVALID_HANDLE, "device").on(backend)
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
    number = server.handles.add(made, backend_handle)
    write_number(out, number)
    client_configs.keep_retention(server, made)
    return number


def _binary(server: LibraryServer, backend: int, address: int, nbytes: int) -> memoryview:
    """Copy the client's binary, or return a view of it if the backend uses binaries in place."""
    if not 1 <= nbytes <= MAX_BINARY_BYTES:
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "context binary", f"it cannot have {nbytes} bytes")
    if backend_of(server, backend, Code.CONTEXT_INVALID_HANDLE).driver.keeps_binaries:
        code = Code.CONTEXT_INVALID_ARGUMENT
        in_place = window(checked(address), "context binary", nbytes=nbytes, writable=False, code=code)
        return in_place.view(np.uint8, (nbytes,)).data
    return read_large(checked(address), nbytes)


@serves("contextCreate", Code.CONTEXT_INVALID_ARGUMENT)
def context_create(server: LibraryServer, backend: int, device: int, configs: int, out: int) -> None:
    """Create a context without graphs."""
    _create(server, backend, device, configs, out)


@serves("contextCreateFromBinary", Code.CONTEXT_INVALID_ARGUMENT)
def context_create_from_binary(
    server: LibraryServer, backend: int, device: int, configs: int, binary: int, nbytes: int, out: int, profile: int
) -> None:
    """Create a context with the graphs of a binary."""
    begin = time.perf_counter()
    write_number(out, 0)
    client_profile = ClientProfile.of(server, profile, Code.CONTEXT_SET_PROFILE)
    _create(server, backend, device, configs, out, _binary(server, backend, binary, nbytes))
    if client_profile is not None:
        client_profile.replace([(EventType.INIT, "context created from binary", (time.perf_counter() - begin) * 1e6)])


@serves("contextCreateFromBinaryWithSignal", Code.CONTEXT_INVALID_ARGUMENT)
def context_create_from_binary_with_signal(
    server: LibraryServer, backend: int, device: int, configs: int, binary: int, nbytes: int, out: int, profile: int,
    signal: int,
) -> None:  # fmt: skip
    """Create a context from a binary; the signal has no effect, since this does not take long."""
    ClientSignal.of(server, signal)
    context_create_from_binary(server, backend, device, configs, binary, nbytes, out, profile)


@serves("contextCreateFromBinaryListAsync", Code.CONTEXT_INVALID_ARGUMENT)
def context_create_from_binary_list_async(
    server: LibraryServer, backend: int, device: int, params: int, configs: int, signal: int
) -> None:
    """Create contexts from several binaries, one after the other, and notify the client of each.

    The notification for a graph passes no context handle, because clients free every context handle they are given.
    During a notification the client may free any context it knows.
    """
    _read_configs(server, configs)
    ClientSignal.of(server, signal)
    all_params = list(listed(checked(params), ContextParams))
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
        for name, number in _graph_handles(server, out.value) if not error else ():
            notify(None, number, name.encode(), _GRAPH_INIT, each.v1.notifyParam, 0)
        notify(out.value, None, None, _CONTEXT_INIT, each.v1.notifyParam, error)


def _graph_handles(server: LibraryServer, context: int) -> list[tuple[str, int]]:
    """List the graphs of a new context by name, with their handles."""
    graphs = context_of(server, context).handle.graphs
    return [(name, _graph_handle(server, context, name, graph)) for name, graph in graphs.items()]


def _graph_handle(server: LibraryServer, context: int, name: str, graph: qnn.Graph) -> int:
    """Return the client's handle of a graph, creating the handle at the first request."""
    from isthmus.capi.graph import ClientGraph

    known = context_of(server, context)
    if name not in known.graphs:
        known.graphs[name] = server.handles.add(ClientGraph(graph, known), context)
    return known.graphs[name]


@serves("graphRetrieve", Code.GRAPH_INVALID_ARGUMENT)
def graph_retrieve(server: LibraryServer, context: int, name: int, out: int) -> None:
    """Write the handle of a context's graph, given its name."""
    write_number(out, 0)
    known = context_of(server, context)
    graph_name = text(name) or ""
    if known.enabled is not None and graph_name not in known.enabled:
        raise QnnError(Code.GRAPH_INVALID_NAME, f"graph '{graph_name}'", "it is not among those that are enabled")
    write_number(out, _graph_handle(server, context, graph_name, known.handle.retrieve(graph_name)))


@serves("contextValidateBinary", Code.CONTEXT_INVALID_ARGUMENT)
def context_validate_binary(
    server: LibraryServer, backend: int, device: int, configs: int, binary: int, nbytes: int
) -> None:
    """Check whether a binary can be used here, by creating a context from it and freeing that."""
    out = ctypes.c_uint64()
    number = _create(server, backend, device, configs, ctypes.addressof(out), _binary(server, backend, binary, nbytes))
    context_free(server, number, 0)


@serves("contextSetConfig", Code.CONTEXT_INVALID_ARGUMENT)
def context_set_config(server: LibraryServer, handle: int, configs: int) -> None:
    """Change configs of a context: all or none."""
    context = context_of(server, handle)
    client_configs = _read_configs(server, configs)
    # Graphs that a client composes are not switched: as with the vendor's library, none of them can be named.
    known = set() if context.is_composed else set(context.handle.graphs)
    client_configs.check_retention(known if context.enabled is None else known & context.enabled)
    if client_configs.settings:
        context.handle.set_config(client_configs.settings)
    if client_configs.priority is not None:
        context.priority = client_configs.priority
    client_configs.keep_retention(server, context)


@serves("contextGetProperty", Code.CONTEXT_INVALID_ARGUMENT)
def context_get_property(server: LibraryServer, handle: int, properties: int) -> None:
    """Read custom properties of a context."""
    context = context_of(server, handle)
    for request in listed(checked(properties), ContextProperty):
        options.get_property(server, context.handle, request)


@serves("contextGetBinarySize", Code.CONTEXT_INVALID_ARGUMENT)
def context_get_binary_size(server: LibraryServer, handle: int, out: int) -> None:
    """Write the size of a context's binary. The binary is made here and kept for the next getBinary."""
    context = context_of(server, handle)
    context.binary = context.handle.get_binary()
    write_number(out, len(context.binary))


@serves("contextGetBinary", Code.CONTEXT_INVALID_ARGUMENT)
def context_get_binary(server: LibraryServer, handle: int, target: int, nbytes: int, written: int) -> None:
    """Copy a context's binary into the client's buffer."""
    context = context_of(server, handle)
    binary, context.binary = context.binary or context.handle.get_binary(), None
    if nbytes < len(binary):
        rule = f"{nbytes} bytes are not enough for {len(binary)}"
        raise QnnError(Code.CONTEXT_GET_BINARY_FAILED, "buffer for a context binary", rule)
    write_number(written, 0)
    write_bytes(target, binary)
    write_number(written, len(binary))


@serves("contextFinalize", Code.CONTEXT_INVALID_ARGUMENT)
def context_finalize(server: LibraryServer, handle: int, profile: int) -> None:
    """Check the handles and do nothing: no graph needs this call."""
    context_of(server, handle)
    ClientProfile.of(server, profile, Code.CONTEXT_INVALID_ARGUMENT)


@serves("contextFree", Code.CONTEXT_INVALID_HANDLE)
def context_free(server: LibraryServer, handle: int, profile: int) -> None:
    """Free a context with its graphs and memory handles."""
    context = context_of(server, handle)
    client_profile = ClientProfile.of(server, profile, Code.CONTEXT_INVALID_ARGUMENT)
    begin = time.perf_counter()
    # The library's cached executions hold graphs and memory; these can be freed only without them.
    server.forget_executions()
    context.handle.free()
    server.handles.remove(handle)
    if client_profile is not None:
        client_profile.replace([(EventType.DEINIT, "context freed", (time.perf_counter() - begin) * 1e6)])
