"""References to objects of OpenCL, with an owner from the moment there is one until it is given back.

A reference stands in a cell of its owner's, which is on record before there is one (`Finalizer`).
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

_NAMES = {
    "Context": "Context", "CommandQueue": "CommandQueue", "MemoryObject": "MemObject", "Program": "Program",
    "Kernel": "Kernel", "Event": "Event",
}  # fmt: skip
"""Kinds of objects under the names of pyopencl's classes, and what OpenCL's functions call them."""
_MADE_BY = {
    "clCreateContext": "Context", "clCreateCommandQueue": "CommandQueue", "clCreateBuffer": "MemoryObject",
    "clCreateProgramWithSource": "Program", "clCreateProgramWithBinary": "Program", "clCreateKernel": "Kernel",
}  # fmt: skip
_living: set[tuple[int, int, str]] = set()
"""Handles that have an owner, each with the address of its cell and its kind."""


def kinds_of(handle: int) -> set[str]:
    """What a number is the handle of, as far as we have a reference to it."""
    return {kind for number, _, kind in tuple(_living) if number == handle}


class Owned:
    """An object of OpenCL that we hold a reference to. It is given back once, when this is closed or forgotten.

    Parameters
    ----------
    kind
        What it is, by the name of pyopencl's class.
    release
        The function that takes it back; that of its kind without it.
    """

    def __init__(self, kind: str, release: Callable[[int], int] | None = None) -> None:
        self.kind = kind
        self._cell = (c_void_p * 1)()
        # At exit the driver may have gone before us; the system takes everything.
        self._end = Finalizer(self, _end, library(), kind, release, self._cell)

    @staticmethod
    def make(what: str, name: str, *arguments: Any) -> Owned:
        """What a function of OpenCL makes that writes its status where the last argument points.

        Raises
        ------
        QnnError
            What the status stands for.
        """
        made, status = Owned(_MADE_BY[name]), c_int32()
        made.fill(library().functions[name], *arguments, ctypes.byref(status))
        check(status.value, what, name)
        return made

    @staticmethod
    def keep(what: str, kind: str, handle: int) -> Owned:
        """A further reference to a client's object."""
        kept, name = Owned(kind), f"clRetain{_NAMES[kind]}"
        store_retained(kept._cell, 0, library().functions[name], handle)
        if not kept.handle:
            raise QnnError(Code.COMMON_SYSTEM, what, f"{name} does not take it")
        kept.note()
        return kept

    def fill(self, function: Callable[..., int | None], *arguments: Any) -> None:
        """Own what a function answers."""
        store(self._cell, 0, map(function, *((argument,) for argument in arguments)))
        self.note()

    def note(self) -> None:
        """Have it known what its handle is a handle of."""
        if self.handle:
            _living.add((self.handle, self.address, self.kind))

    @property
    def handle(self) -> int:
        """The object; 0 while there is none, or none any more."""
        return self._cell[0] or 0

    @property
    def address(self) -> int:
        """Where the handle stands, for native code to write it there."""
        return ctypes.addressof(self._cell)

    @property
    def is_closed(self) -> bool:
        """Whether the reference was given back."""
        return not self._end.waits

    def close(self) -> None:
        """Give the reference back; safe to call again."""
        self._end.run()


def _end(found: ClLibrary, kind: str, release: Callable[[int], int] | None, cell: Any) -> None:
    _living.discard((cell[0] or 0, ctypes.addressof(cell), kind))
    if not found.is_inherited and not sys.is_finalizing():
        give_back(cell, 0, found.functions[f"clRelease{_NAMES[kind]}"] if release is None else release)
