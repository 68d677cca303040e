"""Conversion of a client's memory to windows. This is the only place for it, with one set of checks.

It takes an array, a memoryview, a mapping, a ctypes array, an address with a size, a file descriptor with an offset, or
a device's own buffer. What cannot be used as memory is refused with an error that says why.
"""

from __future__ import annotations

import array as _array
import ctypes
from _ctypes import CFuncPtr
from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.memory.buffer import Buffer, ClientBuffer
from isthmus.memory.identity import Span, covering
from isthmus.memory.integers import as_int, is_int
from isthmus.memory.shareable import SharedFd, mapped_window
from isthmus.memory.window import Window

ADDRESS_BITS = 64
_POINTERS: tuple[type, ...] = (
    ctypes._Pointer, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p, ctypes.py_object, CFuncPtr,
)  # fmt: skip
# Types that allocate their own memory, so that it cannot be a mapping of a file.
_PRIVATE_OWNERS = (bytes, bytearray, _array.array)
_POINTER_HINT = "Pass the address as an integer together with a size, or the array that the pointer points to."

Adopter = Callable[[Any], Buffer | None]
# The registered functions, each in a list of its own (see `adopt`).
_adopters: list[list[Adopter]] = []


def adopt(adopter: Adopter) -> Callable[[], None]:
    """Register a function that recognizes a further kind of memory, for the whole process.

    Parameters
    ----------
    adopter
        A function that takes an object and returns its `Buffer`, or None if it does not recognize it.

    Returns
    -------
    callable
        A function that removes the registration; safe to call again.

    Examples
    --------
    >>> end = adopt(lambda given: None)
    >>> end()
    """
    if not callable(adopter):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"adopter {adopter!r}", "it cannot be called")
    # A separate entry for each call: one function may be registered twice and removed once.
    entry = [adopter]
    _adopters.append(entry)

    def end() -> None:
        _adopters[:] = [other for other in _adopters if other is not entry]

    return end


def window(
    memory: Any,
    what: str = "buffer",
    *,
    nbytes: int | None = None,
    writable: bool = True,
    code: Code = Code.COMMON_INVALID_ARGUMENT,
) -> Window:
    """Return the window that a client means by `memory`.

    Parameters
    ----------
    memory
        A buffer or window of this package, anything with Python's buffer protocol, an address (with `nbytes`), a
        `SharedFd`, or an object that an adopter recognizes.
    what
        Its purpose, for error messages.
    nbytes
        Number of bytes to use, from the start. By default all of them.
    writable
        Whether it will be written.
    code
        The code of errors.

    Examples
    --------
    >>> window(bytearray(16)).nbytes
    16
    >>> window(0, "scratch memory", nbytes=64)
    Traceback (most recent call last):
    isthmus.errors.QnnError: [1004 COMMON_INVALID_ARGUMENT] scratch memory: its address is null
    """

    def refuse(rule: str, hint: str = "", mistake: str = "") -> QnnError:
        return QnnError(code, what, rule, hint, mistake=mistake)

    if nbytes is not None:
        nbytes = as_int(nbytes, f"size of {what}", code)
        if nbytes < 0:
            raise refuse(f"its size {nbytes} is negative")
    available = _recognize(memory, what, nbytes, writable, refuse)
    if nbytes is None or nbytes == available.nbytes:
        return available
    if nbytes > available.nbytes:
        raise refuse(f"is said to have {nbytes} bytes, its buffer has {available.nbytes}")
    return available.part(0, nbytes)


# Returns the error to raise for a rule, an optional hint, and an optional name of the mistake.
_Refuse = Callable[..., QnnError]


def _recognize(memory: Any, what: str, nbytes: int | None, writable: bool, refuse: _Refuse) -> Window:
    """Return the window of all of `memory`, by the type of that object; only an address needs `nbytes`."""
    if isinstance(memory, Window):
        memory.buffer.check_open()
        return memory
    if isinstance(memory, Buffer):
        memory.check_open()
        return memory.window()
    if isinstance(memory, SharedFd):
        return mapped_window(memory, what)
    for (adopter,) in list(_adopters):
        buffer = adopter(memory)
        if buffer is not None:
            buffer.check_open()
            return buffer.window()
    if is_int(memory):
        return _at_address(int(memory), nbytes, writable, refuse)
    if isinstance(memory, _POINTERS) or (
        isinstance(memory, ctypes.Array) and issubclass(getattr(memory, "_type_", object), _POINTERS)
    ):
        raise refuse(f"a {type(memory).__name__} is a pointer, not the memory it points to", _POINTER_HINT)
    return _export_window(memory, writable, refuse)


def _at_address(address: int, nbytes: int | None, writable: bool, refuse: _Refuse) -> Window:
    """Return the window at an address; refuse it unless all of it is memory of this process."""
    if nbytes is None:
        raise refuse(f"address {address:#x} comes without a size")
    # A tensor without elements needs no memory, so its address may be null.
    if address == 0 and nbytes == 0:
        return Window(ClientBuffer(None, 0, 0), 0, 0)
    if address == 0:
        raise refuse("its address is null")
    if address < 0:
        raise refuse(f"its address {address} is negative")
    if address + nbytes > 1 << ADDRESS_BITS:
        raise refuse(f"{nbytes} bytes at {address:#x} are beyond the address space")
    return Window(ClientBuffer(None, address, nbytes, _spans_at(address, nbytes, writable, refuse)), 0, nbytes)


def _spans_at(address: int, nbytes: int, writable: bool, refuse: _Refuse) -> tuple[Span, ...]:
    """Return the spans at these addresses; refuse them unless this process may use all of them."""
    spans: list[Span] = []
    try:
        # Even an address of no bytes must be in mapped memory.
        mappings = covering(address, max(nbytes, 1))
    except OSError as problem:
        what, rule = f"{nbytes} bytes at {address:#x}", f"the memory there is unknown: {problem.strerror}"
        raise QnnError(Code.COMMON_SYSTEM, what, rule) from None
    if not mappings:
        hint = "Pass memory that is allocated and not yet freed."
        raise refuse(f"{nbytes} bytes at {address:#x} are not memory of this process", hint, "not mapped")
    for mapping in mappings:
        if not mapping.readable or (writable and not mapping.writable):
            lacks = "written" if mapping.readable else "read"
            raise refuse(f"{nbytes} bytes at {address:#x} are memory that cannot be {lacks}")
        first, last = max(address, mapping.start), min(address + nbytes, mapping.end)
        span = Span(mapping.identity, mapping.position + first - mapping.start, max(last - first, 0))
        if spans and (spans[-1].identity, spans[-1].start + spans[-1].nbytes) == (span.identity, span.start):
            # The system lists parts of one memory separately, for example if their permissions once differed.
            span = Span(span.identity, spans[-1].start, spans.pop().nbytes + span.nbytes)
        spans.append(span)
    return tuple(spans)


def _export_window(owner: Any, writable: bool, refuse: _Refuse) -> Window:
    """Return the window of an array or of any object that exports memory."""
    try:
        array = owner if isinstance(owner, np.ndarray) else np.frombuffer(memoryview(owner).cast("B"), np.uint8)
    except (TypeError, ValueError, BufferError) as problem:
        if "contiguous" in str(problem):
            raise refuse("its memory is not contiguous") from None
        raise refuse(f"a {type(owner).__name__} exposes no memory: {problem}") from None
    if array.dtype.hasobject:
        raise refuse("its array holds Python objects")
    if not array.flags.c_contiguous:
        raise refuse("its memory is not contiguous")
    if writable and not array.flags.writeable:
        raise refuse("its memory is read-only")
    address, nbytes = array.ctypes.data, array.nbytes
    root = _root(array)
    if isinstance(root, Buffer) and not root.is_closed and 0 <= address - root.address <= root.nbytes - nbytes:
        return Window(root, address - root.address, nbytes)
    # Other memory may be a mapping of a file, which other addresses name too. The table of mappings tells; reading it
    # takes long, so it is not read where the answer is known.
    private = isinstance(root, _PRIVATE_OWNERS) or (isinstance(root, np.ndarray) and root.flags.owndata)
    spans = () if private or nbytes == 0 else _spans_at(address, nbytes, writable, refuse)
    is_view = isinstance(owner, (np.ndarray, memoryview))
    return Window(ClientBuffer(array, address, nbytes, spans, is_allocation=not is_view), 0, nbytes)


def _root(owner: Any) -> Any:
    """Return the object that owns an array's memory, as far as the chain of views shows."""
    while True:
        below = owner.base if isinstance(owner, np.ndarray) else owner.obj if isinstance(owner, memoryview) else None
        if below is None:
            return owner
        owner = below
