"""References to OpenCL objects that have an owner from their creation to their release.

A reference is stored in a cell of its owner, and the owner's `Finalizer` is recorded before the reference exists.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import c_int32, c_void_p
from typing import Any

from isthmus.backends.gpu.runtime.cells import give_back, store, store_retained
from isthmus.backends.gpu.runtime.library import ClLibrary, library
from isthmus.backends.gpu.runtime.status import check
from isthmus.errors import Code, QnnError
from isthmus.system.interrupts import Finalizer

# Kinds of objects by the names of pyopencl's classes, with their names in OpenCL's functions.
_NAMES = {
    "Context": "Context", "CommandQueue": "CommandQueue", "MemoryObject": "MemObject", "Program": "Program",
    "Kernel": "Kernel", "Event": "Event",
}  # fmt: skip
# The kinds of objects that OpenCL's functions create.
_CREATED_BY = {
    "clCreateContext": "Context", "clCreateCommandQueue": "CommandQueue", "clCreateBuffer": "MemoryObject",
    "clCreateProgramWithSource": "Program", "clCreateProgramWithBinary": "Program", "clCreateKernel": "Kernel",
}  # fmt: skip
# Handles that have an owner, each with the address of its cell and its kind.
_living: set[tuple[int, int, str]] = set()


def kinds_of(handle: int) -> set[str]:
    """Return the kinds of the objects with this handle, among those that we hold a reference to."""
    return {kind for number, _, kind in tuple(_living) if number == handle}


class Owned:
    """An OpenCL object that we hold a reference to. It is released once, when this is closed or collected.

    - `kind`: The kind of object, by the name of pyopencl's class.
    - `release`: The function that releases it; by default that of its kind.
    """

    def __init__(self, kind: str, release: Callable[[int], int] | None = None) -> None:
        self.kind = kind
        self._cell = (c_void_p * 1)()
        # At exit the driver may be unloaded before us; the system frees everything.
        self._end = Finalizer(self, _end, library(), kind, release, self._cell)

    @staticmethod
    def make(what: str, name: str, *arguments: Any) -> Owned:
        """Own the object that an OpenCL function creates.

        - `arguments`: Its arguments, without the last one, to which it writes its status.

        Raises `QnnError`: the error that the status stands for.
        """
        owned, status = Owned(_CREATED_BY[name]), c_int32()
        owned.fill(library().functions[name], *arguments, ctypes.byref(status))
        check(status.value, what, name)
        return owned

    @staticmethod
    def keep(what: str, kind: str, handle: int) -> Owned:
        """Take another reference to a client's object; `what` names it in an error, `kind` is that of `Owned`."""
        owned, name = Owned(kind), f"clRetain{_NAMES[kind]}"
        store_retained(owned._cell, 0, library().functions[name], handle)
        if not owned.handle:
            raise QnnError(Code.COMMON_SYSTEM, what, f"{name} does not take it")
        owned.note()
        return owned

    def fill(self, function: Callable[..., int | None], *arguments: Any) -> None:
        """Own the object that a function returns. The call also stores it, so that no signal handler can lose it."""
        store(self._cell, 0, map(function, *((argument,) for argument in arguments)))
        self.note()

    def note(self) -> None:
        """Record the kind of object that the handle refers to, for `kinds_of`."""
        if self.handle:
            _living.add((self.handle, self.address, self.kind))

    @property
    def handle(self) -> int:
        """The handle; 0 before there is one and after its release."""
        return self._cell[0] or 0

    @property
    def address(self) -> int:
        """The address of the handle, for native code to write to."""
        return ctypes.addressof(self._cell)

    @property
    def is_closed(self) -> bool:
        """Whether the reference was released."""
        return not self._end.waits

    def close(self) -> None:
        """Release the reference; safe to call again."""
        self._end.run()


def _end(opencl: ClLibrary, kind: str, release: Callable[[int], int] | None, cell: Any) -> None:
    """Release the object in a cell, unless the library may not be called: in a forked child, and at exit."""
    _living.discard((cell[0] or 0, ctypes.addressof(cell), kind))
    if not opencl.is_inherited and not sys.is_finalizing():
        give_back(cell, 0, opencl.functions[f"clRelease{_NAMES[kind]}"] if release is None else release)
