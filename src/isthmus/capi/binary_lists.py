"""Contexts out of a list of binaries (QnnContext_createFromBinaryListAsync), each of which the client is notified of.

The configs of the list win over those of a binary. The notification for a graph passes no context handle, because
clients free every context handle they are given. Until the call has returned the client makes no other one, also not in
a notification. If it frees contexts or the backend there all the same, nothing else ends.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from isthmus import qnn
from isthmus.backends.seam.driver import ListEntry
from isthmus.cabi.client import BadPointer, listed, pointer, read
from isthmus.cabi.objects import (
    CONTEXT_NOTIFY,
    ContextConfig,
    ContextParams,
    ContextParamsV1,
    ContextParamsV2,
)
from isthmus.capi.context import (
    ReadConfigs,
    check_size,
    client_binary,
    create_configured,
    graph_handles,
    note_creation,
    read_configs,
)
from isthmus.capi.data_callbacks import CallbackError, ClientBinary, DataCallbacks
from isthmus.capi.device import ClientDevice
from isthmus.capi.functions import TABLE
from isthmus.capi.records import ClientProfile
from isthmus.errors import Code, QnnError

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

# QNN_CONTEXT_NOTIFY_TYPE_*.
_GRAPH_INIT, _CONTEXT_INIT = 0, 1
_NAME = "contextCreateFromBinaryListAsync"


@dataclass
class _Entry:
    """A binary of a list, with its configs or the reason why they were refused."""

    params: ContextParamsV1 | ContextParamsV2
    configs: ReadConfigs
    refusal: Exception | None = None
    shared: Any = None

    @property
    def callbacks(self) -> int:
        """The address of its data callbacks; 0 for none."""
        return pointer(self.params, "callbacks") if isinstance(self.params, ContextParamsV2) else 0


def load_list(
    server: LibraryServer, backend: int, device: int, all_params: list[ContextParams], configs: list[ContextConfig]
) -> None:
    """Create contexts from several binaries, one after the other, and notify the client of each."""
    if not all_params:
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "list of binaries", "it is empty")
    of_list = read_configs(server, configs)
    entries = [_Entry(_params_of(each), ReadConfigs()) for each in all_params]
    for entry in entries:
        _read_entry(server, entry, configs)
    client_backend, client_device = _owners(server, backend, device)
    usual = client_backend.driver.contexts
    views = [
        ListEntry(
            partial(_reader_of, entry),
            usual.enabled if entry.configs.enabled is None else entry.configs.enabled,
            usual.priority if entry.configs.priority is None else entry.configs.priority,
        )
        for entry in entries
    ]
    place = None if client_device is None else client_device.on(client_backend)
    common, shared = client_backend.open_list(of_list.settings, views, place)
    for entry, own in zip(entries, shared, strict=True):
        rest = {option: value for option, value in entry.configs.settings.items() if option not in of_list.settings}
        entry.configs.settings, entry.shared = rest | {**common}, own
    for entry in entries:
        _load(server, backend, device, entry)


def _params_of(params: ContextParams) -> ContextParamsV1 | ContextParamsV2:
    """Return the parameters of a binary in their version; refuse those without a binary or a function to notify."""
    second = pointer(params, "v2") if params.version == 2 else 0
    if params.version != 1 and not second:
        rule = "its version must be 1 or 2"
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "binary of a list", rule)
    fields = read(second, ContextParamsV2) if second else params.v1
    if not fields.notifyFunc or not fields.binaryBuffer or not fields.binaryBufferSize:
        rule = "it needs a buffer, a size and a callback to notify"
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "binary of a list", rule)
    return fields


def _read_entry(server: LibraryServer, entry: _Entry, of_list: list[ContextConfig]) -> None:
    """Read the configs of a binary, followed by those of its list: of two that set the same, the last one counts."""
    try:
        configs = [*listed(pointer(entry.params, "config"), ContextConfig), *of_list]
        entry.configs = read_configs(server, configs)
        check_size(entry.params.binaryBufferSize)
    except (BadPointer, QnnError) as problem:
        entry.refusal = problem


def _owners(server: LibraryServer, backend: int, device: int) -> tuple[qnn.Backend, ClientDevice | None]:
    """Return the objects of both handles, which the client may free between two binaries."""
    code = Code.CONTEXT_INVALID_HANDLE
    owner = server.handles.get(backend, qnn.Backend, code, "backend")
    return owner, server.handles.get(device, ClientDevice, code, "device") if device else None


def _reader_of(entry: _Entry) -> ClientBinary:
    """Return a reader of a binary, to see what it needs."""
    if entry.refusal is not None:
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "binary of a list", "its configs are refused")
    return ClientBinary(entry.params.binaryBuffer, entry.params.binaryBufferSize)


def _load(server: LibraryServer, backend: int, device: int, entry: _Entry) -> None:
    """Create the context of one binary, and notify the client of its graphs and of itself, or of the error."""
    params, number, error = entry.params, 0, 0
    notify = CONTEXT_NOTIFY(pointer(params, "notifyFunc"))
    parameter = pointer(params, "notifyParam") or None
    graphs: list[tuple[str, int]] = []
    try:
        number, graphs = _create(server, backend, device, entry)
    except CallbackError as problem:
        error = problem.error
    except BaseException as problem:
        # Like the error of a call of its own, so that it becomes a code and does not end the loop.
        error = server.answer(TABLE[_NAME], problem)
    for name, graph in graphs:
        notify(None, graph, name.encode(), _GRAPH_INIT, parameter, 0)
    notify(number or None, None, None, _CONTEXT_INIT, parameter, error)


def _create(server: LibraryServer, backend: int, device: int, entry: _Entry) -> tuple[int, list[tuple[str, int]]]:
    """Create the context of a binary; return its handle, and its graphs with theirs."""
    begin = time.perf_counter()
    client_backend, client_device = _owners(server, backend, device)
    if entry.refusal is not None:
        raise entry.refusal
    params = entry.params
    profile = None
    if params.profile:
        profile = server.handles.get(params.profile, ClientProfile, Code.CONTEXT_SET_PROFILE, "profile")
    address, nbytes = params.binaryBuffer, params.binaryBufferSize
    provider = DataCallbacks(server, entry.callbacks) if entry.callbacks else None
    binary = ClientBinary(address, nbytes) if provider else client_binary(client_backend, address, nbytes)
    context = create_configured(server, client_backend, client_device, entry.configs, binary, provider, entry.shared)
    number = server.handles.add(context, backend)
    note_creation(profile, begin, context)
    return number, list(graph_handles(server, number))
