"""QnnMem_* and rpcmem_*: memory shared with the accelerator, registered or not."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus import qnn
from isthmus.cabi.client import checked, pointer, read, read_array, write_number
from isthmus.cabi.objects import MemDescriptor
from isthmus.capi.context import ClientContext
from isthmus.capi.functions import serves
from isthmus.capi.values import MAX_RANK
from isthmus.errors import Code, QnnError
from isthmus.memory import RpcBuffer, rpcmem
from isthmus.qnn import DescriptorType

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

MAX_DESCRIPTORS = 1 << 16


def mem_handle_of(server: LibraryServer, number: int) -> qnn.MemHandle:
    """Return registered memory by its handle."""
    return server.handles.get(number, qnn.MemHandle, Code.MEM_INVALID_HANDLE, "memory")


def _descriptor(server: LibraryServer, address: int, index: int) -> qnn.MemDescriptor:
    """Read one of a client's memory descriptors; the backend reads its own kind of memory."""
    descriptor = read(address, MemDescriptor, index)
    shape = descriptor.memShape
    if shape.numDim > MAX_RANK:
        raise QnnError(Code.MEM_INVALID_SHAPE, f"memory descriptor {index}", f"its rank is {shape.numDim}")
    dims = tuple(int(dim) for dim in read_array(pointer(shape, "dimSize"), np.uint32, (shape.numDim,)))
    kind: Any = descriptor.memType
    if kind == DescriptorType.CUSTOM:
        reader = server.facet.memory
        if reader is None:
            rule = "this back end has no custom memory"
            raise QnnError(Code.MEM_UNSUPPORTED_MEMTYPE, f"memory descriptor {index}", rule)
        return qnn.MemDescriptor(dims, descriptor.dataType, kind, custom=reader(checked(descriptor.customInfo)))
    if kind == DescriptorType.DMA_BUF:
        return qnn.MemDescriptor(
            dims, descriptor.dataType, kind, fd=descriptor.dmaBufInfo.fd, address=descriptor.dmaBufInfo.data or 0
        )
    return qnn.MemDescriptor(dims, descriptor.dataType, kind, fd=descriptor.ionInfo.fd)


@serves("memRegister", Code.MEM_INVALID_ARGUMENT)
def mem_register(server: LibraryServer, context: ClientContext, descriptors: int, count: int, out: int) -> None:
    """Register memory: all or none."""
    if not 1 <= count <= MAX_DESCRIPTORS:
        rule = f"{count} descriptors: there must be 1 to {MAX_DESCRIPTORS}"
        raise QnnError(Code.MEM_INVALID_ARGUMENT, "memory registration", rule)
    # Null first: the client sees no old values if the call fails.
    for index in range(count):
        write_number(checked(out) + 8 * index, 0)
    qnn_descriptors = [_descriptor(server, checked(descriptors), index) for index in range(count)]
    for index, registered in enumerate(context.handle.mem_register(qnn_descriptors)):
        write_number(out + 8 * index, server.handles.add(registered, server.handles.number_of(context)))


@serves("memDeRegister", Code.MEM_INVALID_ARGUMENT)
def mem_deregister(server: LibraryServer, handles: int, count: int) -> None:
    """Deregister memory: every valid handle in the list, even if another is refused."""
    if not 1 <= count <= MAX_DESCRIPTORS:
        rule = f"{count} handles: there must be 1 to {MAX_DESCRIPTORS}"
        raise QnnError(Code.MEM_INVALID_ARGUMENT, "memory handles", rule)
    numbers = [read(checked(handles), ctypes.c_uint64, index).value for index in range(count)]
    # The library's cached executions hold the memory that they use; it can be freed only without them.
    server.forget_executions()
    refused: QnnError | None = None
    for number in numbers:
        try:
            mem_handle_of(server, number).free()
            server.handles.remove(number)
        except QnnError as problem:
            refused = problem
    if refused is not None:
        raise refused


# -- rpcmem ------------------------------------------------------------------------------------------------------------

# Shared memory that clients have allocated, by address.
_buffers: dict[int, RpcBuffer] = {}


@serves("rpcmem_alloc", failure=0)
def rpcmem_alloc(server: LibraryServer, heap: int, flags: int, size: int) -> int:
    """Allocate shared memory and return its address, or 0 on failure."""
    try:
        buffer = rpcmem.alloc2(heap, flags, size)
    except QnnError as problem:
        server.record_failure("rpcmem_alloc", problem)
        return 0
    _buffers[buffer.address] = buffer
    return buffer.address


@serves("rpcmem_free")
def rpcmem_free(server: LibraryServer, address: int) -> None:
    """Free shared memory. Other addresses are ignored."""
    rpcmem.free(_buffers.pop(address, None))


@serves("rpcmem_to_fd", failure=-1)
def rpcmem_to_fd(server: LibraryServer, address: int) -> int:
    """Return the file descriptor of shared memory, or -1 for other addresses."""
    buffer = _buffers.get(address)
    return -1 if buffer is None else rpcmem.to_fd(buffer)
