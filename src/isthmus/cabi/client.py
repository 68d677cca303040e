"""The client's memory, read and written with care: a wild pointer is refused, where a plain access ends the process.

The kernel copies, by process_vm_readv and its counterpart, and tells when there is nothing to copy. Where it is not
allowed to, a plain access is all there is. What it has written is written again by a plain access, which valgrind and
sanitizers see: of the kernel's they know nothing, and would call the client's answers uninitialised.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

LONGEST_TEXT = 1 << 16
"""What no name, path or option exceeds."""
MOST_CONFIGS = 256
"""What no list of configs exceeds; one without its end is refused here at the latest."""
_PAGE = 4096

_Kind = TypeVar("_Kind", bound=Any)


class BadPointer(Exception):
    """The client's pointer does not lead to memory. The answer is the code that the function has for its arguments."""


class _Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)
_COPIERS = {True: getattr(_libc, "process_vm_writev", None), False: getattr(_libc, "process_vm_readv", None)}
for _copier in _COPIERS.values():
    if _copier is not None:
        _copier.restype = ctypes.c_ssize_t
        _copier.argtypes = (
            ctypes.c_int, ctypes.POINTER(_Span), ctypes.c_ulong, ctypes.POINTER(_Span), ctypes.c_ulong, ctypes.c_ulong,
        )  # fmt: skip


def _copy(ours: int, theirs: int, nbytes: int, write: bool) -> None:
    copier, done = _COPIERS[write], 0
    while copier is not None and done < nbytes:
        # One call copies 2 GiB at most, and no further than to the first page that is not there.
        local, remote = _Span(ours + done, nbytes - done), _Span(theirs + done, nbytes - done)
        copied = copier(os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if copied == 0 or (copied < 0 and ctypes.get_errno() == errno.EFAULT):
            raise BadPointer(f"{nbytes} bytes at {theirs:#x} are not memory of this process")
        if copied < 0:
            break
        done += copied
    if write:
        ctypes.memmove(theirs, ours, nbytes)
    elif done < nbytes:
        ctypes.memmove(ours + done, theirs + done, nbytes - done)


def read_into(target: int, address: int, nbytes: int) -> None:
    """Copy the client's bytes to an address of ours."""
    if nbytes:
        _copy(target, checked(address), nbytes, write=False)


def checked(address: int) -> int:
    """A pointer that must not be null."""
    if not address:
        raise BadPointer("a pointer is null")
    return address


def read(address: int, kind: type[_Kind], index: int = 0) -> _Kind:
    """A copy of a structure of the client's, or of one in an array of them."""
    value = kind()
    size = ctypes.sizeof(kind)
    read_into(ctypes.addressof(value), checked(address) + index * size, size)
    return value


def read_bytes(address: int, nbytes: int) -> bytes:
    """A copy of the client's bytes."""
    value = ctypes.create_string_buffer(nbytes)
    read_into(ctypes.addressof(value), address, nbytes)
    return value.raw


def read_large(address: int, nbytes: int) -> memoryview:
    """A copy of so many of the client's bytes that they deserve pages of their own, given back with the last view.

    Only what is there is copied, and only for that is memory used: the client may say any size.
    """
    read_bytes(address + nbytes - 1, 1)
    pages = mmap.mmap(-1, nbytes)
    read_into(ctypes.addressof(ctypes.c_char.from_buffer(pages)), address, nbytes)
    return memoryview(pages).toreadonly()


def read_array(address: int, dtype: Any, dims: tuple[int, ...]) -> np.ndarray:
    """A copy of the client's numbers."""
    array = np.empty(dims, dtype)
    if array.size:
        read_into(array.ctypes.data, address, array.nbytes)
    return array


def pointer(structure: Any, field: str) -> int:
    """Where a pointer in a structure points, 0 for nowhere; what ctypes answers is what lies there."""
    offset = getattr(type(structure), field).offset
    return ctypes.c_uint64.from_address(ctypes.addressof(structure) + offset).value


def text(address: int) -> str | None:
    """The client's text; None for a null pointer."""
    if not address:
        return None
    found = b""
    while len(found) < LONGEST_TEXT:
        part = read_bytes(address + len(found), _PAGE - (address + len(found)) % _PAGE)
        end = part.find(b"\0")
        if end >= 0:
            return (found + part[:end]).decode(errors="backslashreplace")
        found += part
    raise BadPointer(f"the text at {address:#x} has no end")


def listed(address: int, kind: type[_Kind]) -> Iterator[_Kind]:
    """Copies of the structures that a list of pointers, with a null one at its end, leads to; none for no list."""
    if not address:
        return
    for index in range(MOST_CONFIGS):
        each = read(address, ctypes.c_uint64, index).value
        if not each:
            return
        yield read(each, kind)
    raise BadPointer(f"the list at {address:#x} has no end")


def listed_all(address: int, kind: type[_Kind], count: int) -> list[_Kind]:
    """Copies of the structures that so many pointers lead to."""
    return [read(read(address, ctypes.c_uint64, index).value, kind) for index in range(count)]


def write(address: int, value: Any) -> None:
    """Write a value of ctypes to the client's memory."""
    _copy(ctypes.addressof(value), checked(address), ctypes.sizeof(value), write=True)


def write_bytes(address: int, content: bytes | memoryview) -> None:
    """Write bytes to the client's memory, straight from where they are."""
    source = np.frombuffer(content, np.uint8) if len(content) else np.empty(0, np.uint8)
    _copy(source.ctypes.data, checked(address), source.nbytes, write=True)


def write_number(address: int, value: int, kind: type = ctypes.c_uint64) -> None:
    """Write a number, 64 bits wide unless said otherwise."""
    write(address, kind(value))
