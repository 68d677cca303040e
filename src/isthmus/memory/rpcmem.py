"""Memory that an application shares with its accelerator, in rpcmem's words: alloc, alloc2, to_fd, free.

It comes from one of three places: a sealed memfd (the default), a DMA heap of the kernel, or a device's own rpcmem
library. ``ISTHMUS_RPCMEM`` chooses: ``memfd``, ``dma_heap``, or the path of a library.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.memory.holds import holders
from isthmus.memory.region import Region
from isthmus.memory.shareable import shared_file

HEAP_ID_SYSTEM = 25
DEFAULT_FLAGS = 1
MAX_ALLOC = (1 << 31) - 1
"""The most that `alloc` can be asked for: its size is a C int."""

_DMA_HEAP = "/dev/dma_heap/system"
_DMA_HEAP_IOCTL_ALLOC = 0xC0184800
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_buffers: weakref.WeakValueDictionary[tuple[int, int], RpcBuffer] = weakref.WeakValueDictionary()


class RpcBuffer(mmap.mmap):
    """Page-aligned, zeroed memory with a file descriptor; a context manager. Made by `alloc` and `alloc2`.

    It is a buffer in Python's sense, an array in numpy's and a tensor in DLPack's: all of them views of one memory.

    Examples
    --------
    >>> with alloc(HEAP_ID_SYSTEM, DEFAULT_FLAGS, 16) as buffer:
    ...     buffer.view("float32", (4,))[:] = 1, 2, 3, 4
    ...     np.from_dlpack(buffer)[:4].tolist(), memoryview(buffer).nbytes
    ([0, 0, 128, 63], 16)
    """

    def __new__(cls, fd: int, nbytes: int, give_back: Callable[[], object] | None = None) -> RpcBuffer:
        # Only a subclass of a type that exports memory can itself export it in every version of Python.
        return super().__new__(cls, fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)

    def __init__(self, fd: int, nbytes: int, give_back: Callable[[], object] | None = None) -> None:
        self._fd, self._nbytes = fd, nbytes
        self._address = np.frombuffer(self, np.uint8).ctypes.data
        self._close_rest = weakref.finalize(self, _let_go, fd, give_back)
        _buffers[shared_file(fd, "rpcmem buffer").identity] = self

    @property
    def fd(self) -> int:
        """Its file descriptor, which lives as long as the buffer."""
        self._check()
        return self._fd

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self._nbytes

    @property
    def array(self) -> np.ndarray:
        """The memory as bytes."""
        self._check()
        return np.frombuffer(self, np.uint8)

    @property
    def region(self) -> Region:
        """Its address and size."""
        return Region(self._address, self._nbytes, self.array)

    @property
    def is_closed(self) -> bool:
        """Whether it has been freed."""
        return not self._close_rest.alive

    def view(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """A typed view of part of it."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if offset < 0 or offset + count > self._nbytes:
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT,
                f"view of {dtype}{list(shape)} at offset {offset}",
                f"lies outside a buffer of {self._nbytes} bytes",
            )
        return self.array[offset : offset + count].view(dtype).reshape(shape)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.array.__array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def close(self) -> None:
        """Free it; safe to call again. Views that were taken keep the memory, not the descriptor, until they go.

        Raises
        ------
        QnnError
            COMMON_OPERATION_NOT_PERMITTED while memory handles refer to it, with the handles named.
        """
        if self.is_closed:
            return
        held = holders(Region(self._address, self._nbytes, None))
        if held:
            raise QnnError(
                Code.COMMON_OPERATION_NOT_PERMITTED,
                f"rpcmem buffer of {self._nbytes} bytes (fd {self._fd})",
                f"it is the {', the '.join(hold.holder for hold in held)}",
                "Deregister the memory, or free its context, before the buffer.",
            )
        self._close_rest()
        try:
            super().close()
        except BufferError:
            # A view is still out; the mapping goes with the last one.
            return

    def __enter__(self) -> RpcBuffer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"fd {self._fd}"
        return f"<rpcmem buffer of {self._nbytes} bytes, {state}>"

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def _check(self) -> None:
        if self.is_closed:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"rpcmem buffer of {self._nbytes} bytes", "it has been freed")


def _let_go(fd: int, give_back: Callable[[], object] | None) -> None:
    os.close(fd)
    if give_back is not None:
        give_back()


def alloc(heap_id: int, flags: int, size: int) -> RpcBuffer:
    """Allocate shared memory (rpcmem_alloc).

    Raises
    ------
    QnnError
        COMMON_MEM_ALLOC where rpcmem answers NULL: a size that is no positive C int, or not enough memory.
    """
    if _whole(size) and size > MAX_ALLOC:
        raise QnnError(
            Code.COMMON_MEM_ALLOC,
            f"rpcmem_alloc of {size} bytes",
            f"its size is a C int and must not exceed {MAX_ALLOC}",
            "rpcmem_alloc2 takes 64 bits.",
        )
    return alloc2(heap_id, flags, size)


def alloc2(heap_id: int, flags: int, size: int) -> RpcBuffer:
    """Allocate shared memory of any size (rpcmem_alloc2)."""
    what = f"rpcmem allocation of {size!r} bytes"
    if not _whole(size) or size < 1:
        raise QnnError(Code.COMMON_MEM_ALLOC, what, "the size must be a positive whole number")
    if not (_whole(heap_id) and _whole(flags)) or heap_id < 0 or not 0 <= flags < 1 << 32:
        rule = f"heap id {heap_id!r} and flags {flags!r} must be whole numbers, not negative"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule)
    name = os.environ.get("ISTHMUS_RPCMEM", "memfd")
    source = SOURCES[name]() if name in SOURCES else Library(name)
    try:
        return source.allocate(heap_id, flags, size)
    except (OSError, OverflowError, ValueError) as problem:
        raise QnnError(Code.COMMON_MEM_ALLOC, what, f"{source.name} refuses: {problem}") from None


def to_fd(buffer: RpcBuffer) -> int:
    """The file descriptor of a buffer (rpcmem_to_fd); -1 for what is none."""
    return buffer.fd if isinstance(buffer, RpcBuffer) and not buffer.is_closed else -1


def free(buffer: Any) -> None:
    """Free a buffer (rpcmem_free). What is no buffer, or is freed already, is ignored."""
    if isinstance(buffer, RpcBuffer):
        buffer.close()


def buffer_of(fd: int) -> RpcBuffer | None:
    """The buffer of this process that a descriptor, or a duplicate of it, belongs to."""
    buffer = _buffers.get(shared_file(fd, f"file descriptor {fd}").identity)
    return None if buffer is None or buffer.is_closed else buffer


def buffer_around(region: Region) -> RpcBuffer | None:
    """The buffer of this process that a region lies in."""
    for buffer in list(_buffers.values()):
        begin = buffer._address
        inside = begin <= region.address and region.address + region.nbytes <= begin + buffer.nbytes
        if inside and not buffer.is_closed:
            return buffer
    return None


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


class Source(Protocol):
    """A place that shared memory comes from."""

    name: str

    def allocate(self, heap_id: int, flags: int, size: int) -> RpcBuffer:
        """New memory, or an OSError."""


class Memfd:
    """Anonymous memory of the kernel with a descriptor, which nobody can make smaller or larger later."""

    name = "memfd"

    def allocate(self, heap_id: int, flags: int, size: int) -> RpcBuffer:
        """New memory, or an OSError."""
        fd = os.memfd_create("isthmus-rpcmem", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        return _owned(fd, size, lambda: _reserve(fd, size))


def _reserve(fd: int, size: int) -> None:
    if size > (available := _available()):
        raise OSError(f"the system has {available} bytes left")
    os.ftruncate(fd, size)
    # Without this, missing memory would show as a signal at first touch.
    os.posix_fallocate(fd, 0, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)


def _available() -> int:
    """What the system can still give. It would try to give more, and end processes for it."""
    with open("/proc/meminfo") as table:
        rows = dict(line.split(":") for line in table)
    return sum(int(rows[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))


class DmaHeap:
    """The kernel's DMA heap ``/dev/dma_heap/system``."""

    name = _DMA_HEAP

    def allocate(self, heap_id: int, flags: int, size: int) -> RpcBuffer:
        """New memory, or an OSError."""
        length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        request = bytearray(struct.pack("=QIIQ", length, 0, os.O_RDWR | os.O_CLOEXEC, 0))
        heap = os.open(_DMA_HEAP, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(heap, _DMA_HEAP_IOCTL_ALLOC, request)
        finally:
            os.close(heap)
        return _owned(struct.unpack_from("=QI", request)[1], size)


class Library:
    """A device's own rpcmem library, for example ``libcdsprpc.so``.

    Parameters
    ----------
    library
        Its path, or an object with its functions.
    """

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
        """New memory, or an OSError."""
        pointer = self._library.rpcmem_alloc2(heap_id, flags, size)
        if not pointer:
            raise OSError("rpcmem_alloc2 answers NULL")
        try:
            # The library's descriptor ends with its memory; ours must be our own.
            fd = os.dup(self._library.rpcmem_to_fd(pointer))
            return _owned(fd, size, give_back=lambda: self._library.rpcmem_free(pointer))
        except BaseException:
            self._library.rpcmem_free(pointer)
            raise


def _owned(
    fd: int, size: int, prepare: Callable[[], object] | None = None, give_back: Callable[[], object] | None = None
) -> RpcBuffer:
    """A buffer that owns `fd`, which is closed if it cannot be made."""
    try:
        if prepare is not None:
            prepare()
        return RpcBuffer(fd, size, give_back)
    except BaseException:
        os.close(fd)
        raise


SOURCES: dict[str, Callable[[], Source]] = {"memfd": Memfd, "dma_heap": DmaHeap}
"""The places by the name that ``ISTHMUS_RPCMEM`` gives them."""
