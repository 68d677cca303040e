"""Handles that a client brings, and what OpenCL tells of a memory object."""

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


def handle_of(given: Any, kind: str, what: str, code: Code, gone: Code | None = None) -> int:
    """The handle that a client means: a number, or an object of pyopencl.

    A handle is an address, and OpenCL must not be asked about one that is none of its objects or was released. Every
    object begins with the address of its driver's functions, and ceases to when its memory is given back: that is
    looked at first. A number says nothing of its kind, and drivers do not look: an object of another kind that is
    nobody's here (a queue or an event that only the client has, say) is not told from the one that is meant.

    Parameters
    ----------
    kind
        What objects of pyopencl must be: the name of a class. Numbers must not be of another kind as far as is known:
        platforms, devices, and all that this process has a reference to through us.
    code, gone
        The code for what is no handle at all, and for a number that is none of a living object.
    """
    kinds = type(given).__mro__
    if kinds[0].__module__.startswith("pyopencl") and kind not in {one.__name__ for one in kinds}:
        raise QnnError(gone or code, what, f"{given!r} is no {kind}")
    handle = given if isinstance(given, int) else _index(given)
    if handle < 0 or isinstance(given, bool):
        raise QnnError(code, what, f"{given!r} is neither an object of OpenCL nor its handle")
    known = platforms()
    if kinds_of(handle) - {kind} or handle in known or any(_is_device(handle, platform) for platform in known):
        raise QnnError(gone or code, what, f"{handle:#x} is an object of OpenCL, but no {kind}")
    word = _first_word(handle)
    if word is None or word not in {_first_word(platform) for platform in known}:
        raise QnnError(gone or code, what, f"{handle:#x} is not an object of OpenCL, or was released")
    return handle


def _index(given: Any) -> int:
    """Ask a client's object for its handle; -1 where it has none."""
    try:
        return operator.index(getattr(given, "int_ptr", given))
    except QnnError:
        raise
    except Exception as problem:
        # Objects of pyopencl raise its own errors; anything else comes from a signal's handler.
        if type(given).__module__.startswith("pyopencl") and not type(problem).__module__.startswith("pyopencl"):
            raise
        return -1


def _is_device(handle: int, platform: int) -> bool:
    try:
        return handle in device_handles(platform)
    except QnnError:
        # A platform that does not tell.
        return False


def _first_word(address: int) -> int | None:
    """What stands at an address, wherever that leads; None where nothing can be read."""
    if address <= 0 or address % 8 or address >= 1 << 63:
        return None
    with own_fd(os.open, "/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC) as memory:
        try:
            content = os.pread(memory.fileno(), 8, address)
        except OSError:
            return None
    return int.from_bytes(content, "little") if len(content) == 8 else None


class MemoryFacts:
    """What OpenCL tells of a memory object.

    Parameters
    ----------
    handle
        One that is valid.
    """

    def __init__(self, handle: int, what: str) -> None:
        found = library()

        def number(which: int, kind: Any) -> int:
            return found.number(what, "clGetMemObjectInfo", handle, which, kind=kind)

        self.handle = handle
        self.is_buffer = number(numbers.MEM_TYPE, c_uint32) == numbers.MEM_OBJECT_BUFFER
        self.flags = number(numbers.MEM_FLAGS, c_uint64)
        self.nbytes = number(numbers.MEM_SIZE, c_size_t)
        self.context = number(numbers.MEM_CONTEXT, c_void_p)
        self.parent = number(numbers.MEM_ASSOCIATED_MEMOBJECT, c_void_p)
        self.offset = number(numbers.MEM_OFFSET, c_size_t) if self.parent else 0
        self.host_address = number(numbers.MEM_HOST_PTR, c_void_p) if self.flags & numbers.MEM_USE_HOST_PTR else 0
        """Where the host memory is that it was made of, if it was."""
        if self.parent:
            # Of its memory a sub-buffer says nothing itself.
            parent = MemoryFacts(self.parent, what)
            self.flags |= parent.flags & (numbers.MEM_USE_HOST_PTR | numbers.MEM_ALLOC_HOST_PTR)
            self.host_address = parent.host_address + self.offset if parent.host_address else 0

    @property
    def is_of_host(self) -> bool:
        """Whether it was made in memory of the host, or to be seen by it."""
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
    """How often a memory object is mapped at this moment."""
    return library().number(
        "OpenCL buffer", "clGetMemObjectInfo", handle, numbers.MEM_MAP_COUNT, kind=c_uint32
    )


def references(handle: int) -> int:
    """How many references to a memory object there are, for tests and reports."""
    return library().number(
        "OpenCL buffer", "clGetMemObjectInfo", handle, numbers.MEM_REFERENCE_COUNT, kind=c_uint32
    )
