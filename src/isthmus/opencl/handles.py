"""Handles of OpenCL: those that we own and give back, and those that a client brings."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.opencl import numbers
from isthmus.opencl.library import Library, library, platforms


class Owned:
    """An object of OpenCL that we hold a reference to.

    Parameters
    ----------
    handle
        The reference; it is given back once, when this is closed or forgotten.
    release
        The function that takes it: a name, or one of an extension.
    """

    def __init__(self, handle: int, release: str | Callable[[int], int]) -> None:
        self.handle = handle
        self._end = weakref.finalize(self, _give_back, library(), release, handle)
        # At exit the driver may have gone before us; the system takes everything.
        self._end.atexit = False

    @property
    def is_closed(self) -> bool:
        """Whether the reference was given back."""
        return not self._end.alive

    def close(self) -> None:
        """Give the reference back; safe to call again."""
        self._end()


def _give_back(found: Library, release: str | Callable[[int], int], handle: int) -> None:
    if not found.is_inherited:
        (found.functions[release] if isinstance(release, str) else release)(handle)


def handle_of(given: Any, kind: str, what: str, code: Code, gone: Code | None = None) -> int:
    """The handle that a client means: a number, or an object of pyopencl.

    A handle is an address, and OpenCL must not be asked about one that is none of its objects or was released. Every
    object begins with the address of its driver's functions, and ceases to when its memory is given back: that is
    looked at first.

    Parameters
    ----------
    kind
        What objects of pyopencl must be: the name of a class. Of numbers the kind cannot be told.
    code, gone
        The code for what is no handle at all, and for a number that is none of a living object.
    """
    kinds = type(given).__mro__
    if kinds[0].__module__.startswith("pyopencl") and kind not in {one.__name__ for one in kinds}:
        raise QnnError(gone or code, what, f"{given!r} is no {kind}")
    handle = getattr(given, "int_ptr", given)
    if isinstance(handle, bool) or not isinstance(handle, int):
        raise QnnError(code, what, f"{given!r} is neither an object of OpenCL nor its handle")
    word = _first_word(handle)
    if word is None or word not in {_first_word(platform) for platform in platforms()}:
        raise QnnError(gone or code, what, f"{handle:#x} is no object of OpenCL, or was released")
    return handle


def _first_word(address: int) -> int | None:
    """What stands at an address, wherever that leads; None where nothing can be read."""
    if address <= 0 or address % 8 or address >= 1 << 63:
        return None
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.pread(memory, 8, address)
    except OSError:
        return None
    finally:
        os.close(memory)
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
