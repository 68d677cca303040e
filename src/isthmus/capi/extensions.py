"""libQnnLpaiNetRunExtensions.so: buffers for inputs and outputs in a context's memory type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from isthmus.capi.context import ClientContext
from isthmus.capi.functions import serves
from isthmus.errors import Code, QnnError
from isthmus.memory import Buffer

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

# Buffers that clients have, by address.
_buffers: dict[int, Buffer] = {}


@serves("QnnLpaiNetRunExtensions_allocateBuffer", failure=0)
def allocate_buffer(server: LibraryServer, handle: int, size: int) -> int:
    """Allocate a buffer in a context's memory type; return its address, or 0 on error."""
    what = f"buffer of {size} bytes"
    allocate, owner = _allocator(handle, what)
    try:
        buffer = allocate(what, size)
    except QnnError as problem:
        owner.record_failure("QnnLpaiNetRunExtensions_allocateBuffer", problem)
        return 0
    _buffers[buffer.address] = buffer
    return buffer.address


@serves("QnnLpaiNetRunExtensions_freeBuffer")
def free_buffer(server: LibraryServer, address: int) -> None:
    """Free a buffer; ignore an unknown address."""
    buffer = _buffers.pop(address, None)
    if buffer is None:
        return
    try:
        buffer.close()
    except QnnError as problem:
        # Cached bindings of earlier executions may still hold it; the memory is freed with the last of them.
        if problem.code is not Code.COMMON_OPERATION_NOT_PERMITTED:
            raise


def _allocator(handle: int, what: str) -> tuple[Callable[[str, int], Buffer], LibraryServer]:
    """Return a context's allocation function, and the server of the library that created the context."""
    # This library has no contexts of its own: the handle is one of libQnnLpai.so. `what` is the buffer, for messages.
    from isthmus.capi.serve import servers

    for server in servers():
        if server.facet.allocate is not None:
            context = dict(server.handles.of_kind(ClientContext)).get(handle)
            if context is not None:
                return partial(server.facet.allocate, context.handle.driver), server
    raise QnnError(Code.CONTEXT_INVALID_HANDLE, what, f"{handle:#x} is not a context of libQnnLpai.so")
