"""Handles that a client passes, and what OpenCL reports about a memory object."""

from __future__ import annotations

import operator
import os
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.library import device_handles, library, platforms
from isthmus.backends.gpu.runtime.owned import kinds_of
from isthmus.errors import Code, QnnError
from isthmus.system.interrupts import own_fd


def handle_of(source: Any, kind: str, what: str, code: Code, gone: Code | None = None) -> int:
    """Return the handle that a client passes as a number or as a pyopencl object.

    A handle is an address, and OpenCL must not be asked about one that is not its object or was released. Every object
    begins with the address of its driver's functions until its memory is freed, so this is checked first. A number does
    not tell its kind, and drivers do not check it: an object of another kind that we hold no reference to (a queue or
    an event that only the client has, for example) cannot be distinguished from the expected one.

    - `kind`: The name of the class that pyopencl objects must have. Numbers must not be known to be of another kind:
      platforms, devices, and everything to which we hold a reference in this process.
    - `code`, `gone`: The code for something that is not a handle at all, and for a number that is not the handle of a
      living object.
    """
    kinds = type(source).__mro__
    if kinds[0].__module__.startswith("pyopencl") and kind not in {one.__name__ for one in kinds}:
        raise QnnError(gone or code, what, f"{source!r} is no {kind}")
    handle = source if isinstance(source, int) else _index(source)
    if handle < 0 or isinstance(source, bool):
        raise QnnError(code, what, f"{source!r} is neither an object of OpenCL nor its handle")
    listed = platforms()
    if kinds_of(handle) - {kind} or handle in listed or any(_is_device(handle, platform) for platform in listed):
        raise QnnError(gone or code, what, f"{handle:#x} is an object of OpenCL, but no {kind}")
    # A driver's platform and objects begin with the same address.
    word = _first_word(handle)
    if word is None or word not in {_first_word(platform) for platform in listed}:
        raise QnnError(gone or code, what, f"{handle:#x} is not an object of OpenCL, or was released")
    return handle


def _index(source: Any) -> int:
    """Return the handle of a client's object, which pyopencl objects have as `int_ptr`, or -1 if it has none."""
    try:
        return operator.index(getattr(source, "int_ptr", source))
    except QnnError:
        raise
    except Exception as problem:
        # pyopencl objects raise pyopencl's own errors; any other error comes from a signal handler.
        if type(source).__module__.startswith("pyopencl") and not type(problem).__module__.startswith("pyopencl"):
            raise
        return -1


def _is_device(handle: int, platform: int) -> bool:
    """Return whether a handle is that of a platform's device."""
    try:
        return handle in device_handles(platform)
    except QnnError:
        # The platform does not list its devices.
        return False


def _first_word(address: int) -> int | None:
    """Read 8 bytes at an untrusted address; return None if nothing can be read."""
    # The system reads them from a file that shows this process's memory, so that a wrong address is an error and does
    # not end the process.
    if address <= 0 or address % 8 or address >= 1 << 63:
        return None
    with own_fd(os.open, "/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC) as memory:
        try:
            content = os.pread(memory.fileno(), 8, address)
        except OSError:
            return None
    return int.from_bytes(content, "little") if len(content) == 8 else None


class MemoryFacts:
    """What OpenCL reports about a memory object.

    - `flags`: The MEM_* flags that it was created with.
    - `parent`, `offset`: If it is a sub-buffer: the handle of the buffer that it is part of, and its first byte there.
      Otherwise 0.
    """

    def __init__(self, handle: int, what: str) -> None:
        opencl = library()

        def number(which: int, kind: Any) -> int:
            return opencl.number(what, "clGetMemObjectInfo", handle, which, kind=kind)

        self.handle = handle
        self.is_buffer = number(numbers.MEM_TYPE, c_uint32) == numbers.MEM_OBJECT_BUFFER
        self.flags = number(numbers.MEM_FLAGS, c_uint64)
        self.nbytes = number(numbers.MEM_SIZE, c_size_t)
        self.context = number(numbers.MEM_CONTEXT, c_void_p)
        self.parent = number(numbers.MEM_ASSOCIATED_MEMOBJECT, c_void_p)
        self.offset = number(numbers.MEM_OFFSET, c_size_t) if self.parent else 0
        self.host_address = number(numbers.MEM_HOST_PTR, c_void_p) if self.flags & numbers.MEM_USE_HOST_PTR else 0
        """The address of the host memory that it was created from, or 0."""
        if self.parent:
            # A sub-buffer does not report that it is in host memory, and where; its parent does.
            parent = MemoryFacts(self.parent, what)
            self.flags |= parent.flags & (numbers.MEM_USE_HOST_PTR | numbers.MEM_ALLOC_HOST_PTR)
            self.host_address = parent.host_address + self.offset if parent.host_address else 0

    @property
    def is_of_host(self) -> bool:
        """Whether it was created in host memory, or for access by the host."""
        return bool(self.flags & (numbers.MEM_USE_HOST_PTR | numbers.MEM_ALLOC_HOST_PTR))

    @property
    def kernels_read(self) -> bool:
        """Whether kernels may read it."""
        return not self.flags & numbers.MEM_WRITE_ONLY

    @property
    def kernels_write(self) -> bool:
        """Whether kernels may write it."""
        return not self.flags & numbers.MEM_READ_ONLY


def map_count(handle: int) -> int:
    """Return how often a memory object is currently mapped."""
    return library().number("OpenCL buffer", "clGetMemObjectInfo", handle, numbers.MEM_MAP_COUNT, kind=c_uint32)


def references(handle: int) -> int:
    """Return the number of references to a memory object, for tests and reports."""
    return library().number("OpenCL buffer", "clGetMemObjectInfo", handle, numbers.MEM_REFERENCE_COUNT, kind=c_uint32)
