"""Buffers: memory with an identity, a size, an optional host view, and an explicit end.

Every buffer of every kind derives from `Buffer`. It is a context manager. Where the host can see it, it exports
Python's buffer protocol, numpy's array interface and DLPack. `close` is explicit, safe to repeat, and refused while a
graph holds the memory.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from isthmus import audit_log
from isthmus.errors import Code, QnnError
from isthmus.memory import holds
from isthmus.memory.identity import PRIVATE, Identity, Span
from isthmus.memory.integers import as_int
from isthmus.memory.window import Window
from isthmus.system.interrupts import Finalizer

_Self = TypeVar("_Self", bound="Buffer")


class Buffer:
    """Allocated memory. Subclasses define where it is and how it is released.

    Parameters of `_describe`, which every subclass calls once:

    kind
        Its name in messages and statistics: "host", "rpcmem", "tcm" …
    nbytes
        Its size in bytes.
    address
        Its address in this process; None for device memory that the host cannot see.
    identity, position
        Which memory it is, and the position at which it begins there. By default private memory at its address.
    """

    kind: str
    nbytes: int
    fd: int | None = None
    """A file descriptor that others can map it by, if it has one."""
    is_allocation: bool = True
    """Whether it is a whole allocation; if not, it is the part that a client named, and more may follow it."""
    _address: int | None
    _closed: bool = False

    def _describe(
        self, kind: str, nbytes: int, address: int | None, identity: Identity = PRIVATE, position: int | None = None
    ) -> None:
        """Set the facts about the buffer; the class explains the parameters."""
        self.kind, self.nbytes, self._address = kind, nbytes, address
        self.identity = identity
        self.position = position if position is not None else address or 0
        # The callbacks of `when_gone`.
        self._endings: list[Finalizer] = []

    # -- description ---------------------------------------------------------------------------------------------------

    @property
    def what(self) -> str:
        """The buffer's description in messages."""
        return f"{self.kind} buffer of {self.nbytes} bytes"

    @property
    def is_closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    @property
    def has_host_view(self) -> bool:
        """Whether this process can read and write it."""
        return self._address is not None

    @property
    def address(self) -> int:
        """Its address in this process."""
        self.check_open()
        if self._address is None:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, self.what, "it is in memory that the host cannot access")
        return self._address

    @property
    def array(self) -> np.ndarray:
        """The memory as bytes: a view, never a copy."""
        # This refuses a closed buffer and memory that the host cannot access.
        _ = self.address
        return np.frombuffer(self, np.uint8)  # type: ignore[call-overload]

    def view(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """Return a typed view of a part of the buffer."""
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
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "Python objects cannot be stored in a buffer")
        dims = tuple(as_int(dim, what) for dim in shape)
        start, count = as_int(offset, what), math.prod(dims) * dtype.itemsize
        if start < 0 or any(dim < 0 for dim in dims) or start + count > self.nbytes:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"is outside a {self.what}")
        return self.array[start : start + count].view(dtype).reshape(dims)

    def window(self, offset: int = 0, nbytes: int | None = None) -> Window:
        """Return a window of a part of the buffer, or of all of it."""
        start = as_int(offset, f"offset in a {self.what}")
        size = self.nbytes - start if nbytes is None else as_int(nbytes, f"part of a {self.what}")
        return Window(self, start, size)

    def spans(self, offset: int, nbytes: int) -> tuple[Span, ...]:
        """Return the spans of memory that a part of the buffer occupies."""
        return (Span(self.identity, self.position + offset, nbytes),)

    def check_open(self) -> None:
        """Refuse use after `close`."""
        if self._closed:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, self.what, "it is closed")

    # -- protocols -----------------------------------------------------------------------------------------------------

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

    # -- closing -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the buffer; safe to call again. Existing views stay readable until they are gone too.

        Raises
        ------
        QnnError
            COMMON_OPERATION_NOT_PERMITTED while a graph or a memory handle holds it; the error names the holder.
        """
        # Atomic: a concurrent claim comes either before this, and the buffer stays, or after it, and finds it closed.
        with holds.lock:
            if not self._closed:
                self._refuse_if_held()
                self._closed = True
            # From here on everything is safe to repeat: another `close` continues where an interrupt came.
            holds.record_change()
        for ending in self._endings:
            ending.run()
        self._release()

    def _refuse_if_held(self) -> None:
        """Refuse to close the buffer while it is held; the caller has `holds.lock`."""
        window = self.window()
        try:
            holds.refuse_if_held(window, self.what, "Free its holder first.")
        except QnnError as error:
            audit_log.refuse(error, kind="freed too early", spans=window.spans)
            raise

    def when_gone(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call a function when the buffer is closed or collected; it may run again if it is interrupted."""
        self._endings.append(Finalizer(self, callback, *arguments))

    def _release(self) -> None:
        """Release the underlying memory."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, problem: object, traceback: object) -> None:
        try:
            self.close()
        except QnnError:
            # The caller must see the original error; the memory is released with its holder.
            if problem is None:
                raise


class MappedBuffer(Buffer, mmap.mmap):
    """Memory mapped into this process.

    It is a subclass of `mmap.mmap` because up to Python 3.11 only a subclass of a C type that exports memory can export
    it too.
    """

    def __init__(self, kind: str, nbytes: int, identity: Identity = PRIVATE, position: int | None = None) -> None:
        self._describe(kind, nbytes, np.frombuffer(self, np.uint8).ctypes.data, identity, position)

    def resize(self, nbytes: int) -> None:
        """Refuse to resize: users of the buffer rely on its address and size."""
        raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, self.what, "a buffer keeps its size and its place")

    close = Buffer.close
    __enter__ = Buffer.__enter__
    __exit__ = Buffer.__exit__
    __repr__ = Buffer.__repr__

    def _release(self) -> None:
        try:
            mmap.mmap.close(self)
        except BufferError:
            # A view still exists; the mapping is removed with the last one.
            return


class PartBuffer(Buffer):
    """A part of another buffer, its `parent`, that is itself a buffer; created by `part_of`."""

    parent: Buffer
    offset: int


_Part = TypeVar("_Part", bound=PartBuffer)


def part_of(parent: Buffer, offset: int, nbytes: int, kind: str, cls: type[_Part]) -> _Part:
    """Return a part of a buffer as a buffer of its own, of a subclass of `PartBuffer`."""
    exporting_class: Any = _exporting_class
    part = exporting_class(cls, nbytes).from_buffer(parent, offset)
    part.parent, part.offset = parent, offset
    part._describe(kind, nbytes, parent.address + offset, parent.identity, parent.position + offset)
    return part


@lru_cache(maxsize=256)
def _exporting_class(cls: type[PartBuffer], nbytes: int) -> Any:
    """Return a subclass of `cls` that is also a ctypes array of this size, so that it exports memory."""
    # Besides `mmap`, ctypes arrays are the type that exports memory and can be subclassed. Each size is another type.
    return type(cls.__name__, (cls, ctypes.c_ubyte * nbytes), {"__module__": cls.__module__})


class ClientBuffer(Buffer):
    """Memory that belongs to a client: an array, a pointer or any other exporter, as `window` wraps it.

    - `owner`: The object that keeps the memory alive.
    - `spans`: The spans that it occupies, in the order of addresses: several if its addresses cross mappings. By
      default one private span at its address.
    - `is_allocation`: Whether the client passed the object that owns the memory, rather than a view or a pointer.
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
        parts = []
        # The offset in this buffer at which a span begins.
        begin = 0
        for span in self._spans:
            first, last = max(offset, begin), min(offset + nbytes, begin + span.nbytes)
            if first < last:
                parts.append(Span(span.identity, span.start + first - begin, last - first))
            begin += span.nbytes
        return tuple(parts)
