"""A buffer: memory with an identity, a size, a view from this process or none, and an end.

Every buffer of every kind is one of these. It is a context manager, exports Python's buffer protocol, numpy's array
interface and DLPack where the host can see it, and `close` is explicit, safe to repeat and refused while a graph holds
the memory.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.memory import holds
from isthmus.memory.identity import PRIVATE, Identity, Span
from isthmus.memory.integers import as_int
from isthmus.memory.window import Window
from isthmus.system.interrupts import Finalizer

_Self = TypeVar("_Self", bound="Buffer")


class Buffer:
    """Memory that somebody allocated. Subclasses say where it is and how it ends.

    Parameters of `_describe`, which every subclass calls once:

    kind
        What it is called in messages and statistics: "host", "rpcmem", "tcm" …
    nbytes
        Its size.
    address
        Where this process sees it; None for memory of a device that the host does not see.
    identity, position
        What memory it is, and where in that it begins; private memory at its address without it.
    """

    kind: str
    nbytes: int
    fd: int | None = None
    """A file descriptor that others can map it by, where it has one."""
    is_allocation: bool = True
    """Whether it is a whole allocation; else it is what a client names of one, and more may follow behind it."""
    _address: int | None
    _closed: bool = False

    def _describe(
        self, kind: str, nbytes: int, address: int | None, identity: Identity = PRIVATE, position: int | None = None
    ) -> None:
        self.kind, self.nbytes, self._address = kind, nbytes, address
        self.identity = identity
        self.position = position if position is not None else address or 0
        self._endings: list[Finalizer] = []

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def what(self) -> str:
        """The buffer as messages call it."""
        return f"{self.kind} buffer of {self.nbytes} bytes"

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    @property
    def has_host_view(self) -> bool:
        """Whether this process can read and write it."""
        return self._address is not None

    @property
    def address(self) -> int:
        """Where this process sees it."""
        self.check_open()
        if self._address is None:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, self.what, "it lies in memory that the host does not see")
        return self._address

    @property
    def array(self) -> np.ndarray:
        """The memory as bytes: a view, never a copy."""
        _ = self.address
        return np.frombuffer(self, np.uint8)  # type: ignore[call-overload]

    def view(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """A typed view of part of it."""
        if not isinstance(shape, Iterable) or isinstance(shape, str | bytes):
            rule = f"{shape!r} is not a shape such as (2, 3)"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"view of a {self.what}", rule)
        shape = tuple(shape)
        what = f"view of {dtype}{list(shape)} at offset {offset}"
        try:
            dtype = np.dtype(dtype)
        except TypeError as problem:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, str(problem)) from None
        if dtype.hasobject:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "Python objects cannot lie in a buffer")
        dims = tuple(as_int(dim, what) for dim in shape)
        start, count = as_int(offset, what), math.prod(dims) * dtype.itemsize
        if start < 0 or any(dim < 0 for dim in dims) or start + count > self.nbytes:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"lies outside a {self.what}")
        return self.array[start : start + count].view(dtype).reshape(dims)

    def window(self, offset: int = 0, nbytes: int | None = None) -> Window:
        """A part of it, or all."""
        start = as_int(offset, f"offset in a {self.what}")
        size = self.nbytes - start if nbytes is None else as_int(nbytes, f"part of a {self.what}")
        return Window(self, start, size)

    def spans(self, offset: int, nbytes: int) -> tuple[Span, ...]:
        """Which bytes of which memory a part of it is."""
        return (Span(self.identity, self.position + offset, nbytes),)

    def check_open(self) -> None:
        """Refuse use after its end."""
        if self._closed:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, self.what, "it is closed")

    # -- how others see it ---------------------------------------------------------------------------------------------

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.array.__array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        state = "closed" if self._closed else "no host view" if self._address is None else f"at {self._address:#x}"
        return f"<{self.what}, {state}>"

    # -- how it ends ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End it; safe to call again. Views that were taken stay readable until they go too.

        Raises
        ------
        QnnError
            COMMON_OPERATION_NOT_PERMITTED while a graph or a memory handle holds it, with the holder named.
        """
        # In one move: whoever claims it at this moment comes before, and it stays, or after, and finds it closed.
        with holds.lock:
            if not self._closed:
                holds.refuse_if_held(self.window(), self.what, "Free its holder first.")
                self._closed = True
            # From here on all is safe to repeat: whoever closes again goes on where an interrupt came.
            holds.changed()
        for ending in self._endings:
            ending.run()
        self._release()

    def when_gone(self, tell: Callable[..., object], *arguments: Any) -> None:
        """Have something called when the buffer is closed or forgotten; more than once, if that is interrupted."""
        self._endings.append(Finalizer(self, tell, *arguments))

    def _release(self) -> None:
        """Give back what lies below."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, problem: object, traceback: object) -> None:
        try:
            self.close()
        except QnnError:
            # What went wrong before is what the caller must see; the memory goes with its holder.
            if problem is None:
                raise


class MappedBuffer(Buffer, mmap.mmap):
    """Memory mapped into this process. Only a subclass of a type that exports memory can export it in every Python."""

    def __init__(self, kind: str, nbytes: int, identity: Identity = PRIVATE, position: int | None = None) -> None:
        self._describe(kind, nbytes, np.frombuffer(self, np.uint8).ctypes.data, identity, position)

    def resize(self, nbytes: int) -> None:
        """Never: whoever works in it has its address and its size."""
        raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, self.what, "a buffer keeps its size and its place")

    close = Buffer.close
    __enter__ = Buffer.__enter__
    __exit__ = Buffer.__exit__
    __repr__ = Buffer.__repr__

    def _release(self) -> None:
        try:
            mmap.mmap.close(self)
        except BufferError:
            # A view is still out; the mapping goes with the last one.
            return


class PartBuffer(Buffer):
    """A part of another buffer that is a buffer itself; made by `part_of`."""

    parent: Buffer
    offset: int


_Part = TypeVar("_Part", bound=PartBuffer)


def part_of(parent: Buffer, offset: int, nbytes: int, kind: str, made: type[_Part]) -> _Part:
    """Bytes of a buffer as a buffer of their own, of a subclass of `PartBuffer`."""
    exporting: Any = _exporting
    part = exporting(made, nbytes).from_buffer(parent, offset)
    part.parent, part.offset = parent, offset
    part._describe(kind, nbytes, parent.address + offset, parent.identity, parent.position + offset)
    return part


@lru_cache(maxsize=256)
def _exporting(made: type[PartBuffer], nbytes: int) -> Any:
    # ctypes has the other type that can be subclassed and exports memory; its size is part of the type.
    return type(made.__name__, (made, ctypes.c_ubyte * nbytes), {"__module__": made.__module__})


class ClientBuffer(Buffer):
    """Memory that a client brought and keeps: what `window` makes of an array, a pointer or any other exporter.

    Parameters
    ----------
    owner
        What keeps the memory alive.
    spans
        Which memory it is, where that is more than one; a private range at its address without it.
    is_allocation
        Whether the client handed over the object that has the memory, and not a view or a pointer.
    """

    def __init__(
        self, owner: Any, address: int, nbytes: int, spans: tuple[Span, ...] = (), is_allocation: bool = False
    ) -> None:
        self.owner, self.is_allocation = owner, is_allocation
        first = spans[0] if spans else Span(PRIVATE, address, nbytes)
        self._describe("client", nbytes, address, first.identity, first.start)
        self._spans = spans or (first,)

    @property
    def array(self) -> np.ndarray:
        if isinstance(self.owner, np.ndarray):
            return self.owner.reshape(-1).view(np.uint8)
        return np.ctypeslib.as_array((ctypes.c_ubyte * self.nbytes).from_address(self.address))

    def spans(self, offset: int, nbytes: int) -> tuple[Span, ...]:
        found = []
        position = 0
        for span in self._spans:
            first, last = max(offset, position), min(offset + nbytes, position + span.nbytes)
            if first < last:
                found.append(Span(span.identity, span.start + first - position, last - first))
            position += span.nbytes
        return tuple(found)
