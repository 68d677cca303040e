"""Memory that an application shares with its accelerator, by rpcmem's functions: alloc, alloc2, to_fd, free.

It has three sources: a sealed memfd (the default), a DMA heap of the kernel, or a device's own rpcmem library.
``ISTHMUS_RPCMEM`` selects one: ``memfd``, ``dma_heap``, or the path of a library.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from isthmus.errors import Code, QnnError
from isthmus.memory.buffer import Buffer
from isthmus.memory.integers import as_int, is_int
from isthmus.memory.resource import AllocationRequest, MemoryResource, current, provide
from isthmus.memory.shareable import SharedMapping, remember
from isthmus.system.interrupts import FileDescriptor, own_fd

HEAP_ID_SYSTEM = 25
"""RPCMEM_HEAP_ID_SYSTEM, the system heap."""
DEFAULT_FLAGS = 1
"""RPCMEM_DEFAULT_FLAGS."""
MAX_ALLOC = (1 << 31) - 1
"""The largest size that `alloc` accepts: it is a C int."""

_DMA_HEAP = "/dev/dma_heap/system"
_DMA_HEAP_IOCTL_ALLOC = 0xC0184800
# Seals that prevent any change of size, and further seals.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class RpcmemRequest(AllocationRequest):
    """A request for shared memory from a heap, with rpcmem's flags."""

    heap_id: int = HEAP_ID_SYSTEM
    flags: int = DEFAULT_FLAGS


class RpcBuffer(SharedMapping):
    """Page-aligned, zeroed memory with a file descriptor that lives as long as the buffer; see `alloc` and `alloc2`.

    Parameters
    ----------
    own
        The file descriptor of the memory; the buffer closes it.
    nbytes
        The size of the buffer.
    give_back, arguments
        A function that frees the memory when the buffer is gone, and its arguments. None if closing the descriptor
        frees it.

    Examples
    --------
    >>> import numpy as np
    >>> with alloc(HEAP_ID_SYSTEM, DEFAULT_FLAGS, 16) as buffer:
    ...     buffer.view("float32", (4,))[:] = 1, 2, 3, 4
    ...     np.from_dlpack(buffer)[:4].tolist(), memoryview(buffer).nbytes
    ([0, 0, 128, 63], 16)
    """

    def __new__(
        cls, own: FileDescriptor, nbytes: int, give_back: Callable[..., object] | None = None, *arguments: object
    ) -> RpcBuffer:
        return super().__new__(cls, own, nbytes)  # type: ignore[return-value]

    def __init__(
        self, own: FileDescriptor, nbytes: int, give_back: Callable[..., object] | None = None, *arguments: object
    ) -> None:
        super().__init__(own, nbytes, "rpcmem")
        remember(self)
        # Last: if the constructor fails, its caller frees the memory.
        if give_back is not None:
            self.when_gone(give_back, *arguments)

    @property
    def what(self) -> str:
        return f"rpcmem buffer of {self.nbytes} bytes (fd {self.fd})"


def alloc(heap_id: int, flags: int, size: int) -> RpcBuffer:
    """Allocate shared memory (rpcmem_alloc).

    Raises `QnnError`: COMMON_MEM_ALLOC where rpcmem returns NULL: a size that is not a positive C int, or not enough
    memory.
    """
    if is_int(size) and size > MAX_ALLOC:
        raise QnnError(
            Code.COMMON_MEM_ALLOC,
            f"rpcmem_alloc of {size} bytes",
            f"its size is a C int and must not exceed {MAX_ALLOC}",
            "rpcmem_alloc2 takes 64 bits.",
        )
    return alloc2(heap_id, flags, size)


def alloc2(heap_id: int, flags: int, size: int) -> RpcBuffer:
    """Allocate shared memory of any size (rpcmem_alloc2)."""
    if not (is_int(heap_id) and is_int(flags)) or heap_id < 0 or not 0 <= flags < 1 << 32:
        rule = f"heap id {heap_id!r} and flags {flags!r} must be integers and not negative, flags less than 2**32"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"rpcmem allocation of {size!r} bytes", rule)
    buffer = current("rpcmem").fulfil(RpcmemRequest(size, mmap.PAGESIZE, int(heap_id), int(flags)))
    if not isinstance(buffer, RpcBuffer):
        rule = f"the resource in its place hands out a {buffer.what}, which has no file descriptor"
        raise QnnError(Code.COMMON_MEM_ALLOC, f"rpcmem allocation of {size!r} bytes", rule)
    return buffer


def share(nbytes: int) -> RpcBuffer:
    """Allocate memory that an accelerator can see, from the system heap; at least one byte."""
    return alloc2(HEAP_ID_SYSTEM, DEFAULT_FLAGS, max(nbytes, 1))


def to_fd(buffer: RpcBuffer) -> int:
    """Return the file descriptor of a buffer (rpcmem_to_fd), or -1 if it is not an open one."""
    return buffer.fd if isinstance(buffer, RpcBuffer) and not buffer.is_closed and buffer.fd is not None else -1


def free(buffer: Any) -> None:
    """Free a buffer (rpcmem_free). Ignore anything that is not a buffer or is freed already."""
    if isinstance(buffer, RpcBuffer):
        buffer.close()


class Rpcmem(MemoryResource):
    """The resource for shared memory, from the source that ``ISTHMUS_RPCMEM`` names."""

    kind = "rpcmem"

    def fulfil(self, request: AllocationRequest) -> Buffer:
        if not isinstance(request, RpcmemRequest):
            request = RpcmemRequest(request.nbytes, request.alignment)
        what = f"rpcmem allocation of {request.nbytes!r} bytes"
        nbytes = as_int(request.nbytes, what, Code.COMMON_MEM_ALLOC)
        if nbytes < 1:
            raise QnnError(Code.COMMON_MEM_ALLOC, what, "the size must be a positive integer")
        if as_int(request.alignment, what) > mmap.PAGESIZE:
            rule = f"shared memory is aligned to {mmap.PAGESIZE}, not {request.alignment}"
            raise QnnError(Code.COMMON_MEM_ALLOC, what, rule)
        name = os.environ.get("ISTHMUS_RPCMEM", "memfd")
        source = SOURCES[name]() if name in SOURCES else Library(name)
        try:
            return source.allocate(request.heap_id, request.flags, nbytes)
        except (OSError, OverflowError, ValueError) as problem:
            raise QnnError(Code.COMMON_MEM_ALLOC, what, f"{source.name} refuses: {problem}") from None


class Source(Protocol):
    """A source of shared memory. Only a device's library distinguishes heaps and flags; others ignore them."""

    name: str
    """Its name in messages."""

    def allocate(self, heap_id: int, flags: int, size: int) -> RpcBuffer:
        """Allocate memory, or raise an OSError."""


class Memfd:
    """Anonymous kernel memory with a file descriptor, sealed against resizing."""

    name = "memfd"

    def allocate(self, heap_id: int, flags: int, size: int) -> RpcBuffer:
        """Allocate memory, or raise an OSError."""
        own = own_fd(os.memfd_create, "isthmus-rpcmem", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            _reserve(own.fileno(), size)
            return RpcBuffer(own, size)
        except Exception:
            own.close()
            raise


def _reserve(fd: int, size: int) -> None:
    """Allocate all pages of a new memfd and fix its size, or raise an OSError."""
    if size > (available := _available()):
        raise OSError(f"the system has {available} bytes left")
    os.ftruncate(fd, size)
    # Without this, missing memory would show as a signal at the first access.
    os.posix_fallocate(fd, 0, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)


def _available() -> int:
    """Return the bytes that the system can still give. For more it would overcommit and kill processes."""
    with open("/proc/meminfo") as table:
        rows = dict(line.split(":") for line in table)
    return sum(int(rows[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))


class DmaHeap:
    """The kernel's DMA heap ``/dev/dma_heap/system``."""

    name = _DMA_HEAP

    def allocate(self, heap_id: int, flags: int, size: int) -> RpcBuffer:
        """Allocate memory, or raise an OSError."""
        length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        # struct dma_heap_allocation_data: length, descriptor, the descriptor's flags, the heap's flags.
        request = bytearray(struct.pack("=QIIQ", length, 0, os.O_RDWR | os.O_CLOEXEC, 0))
        with own_fd(os.open, _DMA_HEAP, os.O_RDONLY | os.O_CLOEXEC) as heap:
            # The call stores the descriptor in the second field and returns 0, which is the index to read it at. All
            # of this happens in C, so that no interrupt can lose the descriptor (`own_fd`).
            descriptor = memoryview(request)[8:12].cast("I")
            calls = map(fcntl.ioctl, (heap.fileno(),), (_DMA_HEAP_IOCTL_ALLOC,), (request,))
            own = own_fd(next, map(descriptor.__getitem__, calls))
        try:
            return RpcBuffer(own, size)
        except Exception:
            own.close()
            raise


class Library:
    """A device's own rpcmem library, for example ``libcdsprpc.so``: its path, or an object with its functions."""

    def __init__(self, library: Any) -> None:
        self.name = str(library)
        if isinstance(library, str):
            try:
                library = ctypes.CDLL(library)
                library.rpcmem_alloc2.restype = ctypes.c_void_p
                library.rpcmem_alloc2.argtypes = (ctypes.c_int, ctypes.c_uint32, ctypes.c_size_t)
                library.rpcmem_to_fd.argtypes = (ctypes.c_void_p,)
                library.rpcmem_free.argtypes = (ctypes.c_void_p,)
            except (OSError, AttributeError) as problem:
                raise QnnError(
                    Code.COMMON_PLATFORM_NOT_SUPPORTED,
                    f"rpcmem library '{self.name}'",
                    f"cannot be used: {problem}",
                    f"Unset ISTHMUS_RPCMEM, or set it to {' or '.join(SOURCES)} or to the path of a library.",
                ) from None
        self._library = library

    def allocate(self, heap_id: int, flags: int, size: int) -> RpcBuffer:
        """Allocate memory, or raise an OSError."""
        # The address of the memory, until that is freed.
        addresses: list[int] = []
        try:
            # The address is stored by the same C call that allocates. Between two calls an interrupt could lose it.
            addresses.extend(filter(None, map(self._library.rpcmem_alloc2, (heap_id,), (flags,), (size,))))
            if not addresses:
                raise OSError("rpcmem_alloc2 answers NULL")
            # The library's descriptor is closed with its memory; so this one must be a duplicate.
            own = own_fd(os.dup, self._library.rpcmem_to_fd(addresses[0]))
            return RpcBuffer(own, size, self._free, addresses)
        except BaseException:
            self._free(addresses)
            raise

    def _free(self, addresses: list[int]) -> None:
        """Free the memory at these addresses and remove them; safe to repeat."""
        # A single C call removes an address and frees its memory, so that no interrupt can come in between.
        while addresses:
            any(map(self._library.rpcmem_free, map(addresses.pop, (-1,))))


SOURCES: dict[str, Callable[[], Source]] = {"memfd": Memfd, "dma_heap": DmaHeap}
"""The sources by their name in ``ISTHMUS_RPCMEM``."""

provide(Rpcmem())
