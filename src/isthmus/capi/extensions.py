"""libQnnLpaiNetRunExtensions.so: buffers for inputs and outputs in the memory type that a context has."""

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

_buffers: dict[int, Buffer] = {}
"""What clients have, by its address."""


@serves("QnnLpaiNetRunExtensions_allocateBuffer", failure=0)
def allocate_buffer(server: LibraryServer, handle: int, size: int) -> int:
    """Allocate a buffer in a context's memory type; answer its address, or 0 where it cannot be had."""
    what = f"buffer of {size} bytes"
    allocate, owner = _allocator(handle, what)
    try:
        buffer = allocate(what, size)
    except QnnError as problem:
        owner.failed("QnnLpaiNetRunExtensions_allocateBuffer", problem)
        return 0
    _buffers[buffer.address] = buffer
    return buffer.address


@serves("QnnLpaiNetRunExtensions_freeBuffer")
def free_buffer(server: LibraryServer, address: int) -> None:
    """Free a buffer; an address that is none's is ignored."""
    buffer = _buffers.pop(address, None)
    if buffer is None:
        return
    try:
        buffer.close()
    except QnnError as problem:
        # Memory of earlier executions is remembered; it ends with the last one that has it.
        if problem.code is not Code.COMMON_OPERATION_NOT_PERMITTED:
            raise


def _allocator(handle: int, what: str) -> tuple[Callable[[str, int], Buffer], LibraryServer]:
    """Find what allocates for a context, and the server of the library that created it."""
    from isthmus.capi.serve import servers

    for server in servers():
        if server.facet.allocate is not None:
            found = dict(server.handles.of_kind(ClientContext)).get(handle)
            if found is not None:
                return partial(server.facet.allocate, found.handle.driver), server
    raise QnnError(Code.CONTEXT_INVALID_HANDLE, what, f"{handle:#x} is not a context of libQnnLpai.so")
