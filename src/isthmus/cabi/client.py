"""Safe access to the client's memory: an invalid pointer raises an error, where a plain access would end the process.

The kernel copies (process_vm_readv and process_vm_writev) and reports invalid addresses. Where these calls are not
allowed, plain accesses are used. Bytes written by the kernel are written again by a plain access, so that valgrind and
sanitizers see the write. They do not see the kernel's, and would report the client's results as uninitialised.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

MAX_TEXT = 1 << 16
"""Maximum length of a name, path or option."""
MAX_CONFIGS = 256
"""Maximum length of a list of configs; an unterminated list is refused at this length."""
# Texts are read up to the end of a page at a time: the next page may not exist.
_PAGE = 4096

_Kind = TypeVar("_Kind", bound=Any)


class BadPointer(Exception):
    """The error that a client's pointer is invalid. The function then returns its code for invalid arguments."""


class _Span(ctypes.Structure):
    """Linux's struct iovec: a range of memory."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)
# The kernel's functions for writing (True) and reading; None if the C library lacks them.
_COPIERS = {True: getattr(_libc, "process_vm_writev", None), False: getattr(_libc, "process_vm_readv", None)}
for _copier in _COPIERS.values():
    if _copier is not None:
        _copier.restype = ctypes.c_ssize_t
        _copier.argtypes = (
            ctypes.c_int, ctypes.POINTER(_Span), ctypes.c_ulong, ctypes.POINTER(_Span), ctypes.c_ulong, ctypes.c_ulong,
        )  # fmt: skip


def _copy(ours: int, theirs: int, nbytes: int, write: bool) -> None:
    """Copy bytes between our memory and the client's: to the client's if `write`, otherwise from it."""
    copier, done = _COPIERS[write], 0
    while copier is not None and done < nbytes:
        # One call copies at most 2 GiB, and stops at the first page that does not exist.
        local, remote = _Span(ours + done, nbytes - done), _Span(theirs + done, nbytes - done)
        copied = copier(os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if copied == 0 or (copied < 0 and ctypes.get_errno() == errno.EFAULT):
            raise BadPointer(f"{nbytes} bytes at {theirs:#x} are not memory of this process")
        if copied < 0:
            # The system does not allow this call: a plain access does the rest.
            break
        done += copied
    if write:
        ctypes.memmove(theirs, ours, nbytes)
    elif done < nbytes:
        ctypes.memmove(ours + done, theirs + done, nbytes - done)


def read_into(target: int, address: int, nbytes: int) -> None:
    """Copy the client's bytes to one of our addresses."""
    if nbytes:
        _copy(target, checked(address), nbytes, write=False)


def checked(address: int | None) -> int:
    """Return a pointer after checking that it is not null; ctypes has None for null."""
    if not address:
        raise BadPointer("a pointer is null")
    return address


def read(address: int | None, kind: type[_Kind], index: int = 0) -> _Kind:
    """Return a copy of a client's structure, or of one in an array."""
    value: _Kind = kind()
    size = ctypes.sizeof(kind)
    read_into(ctypes.addressof(value), checked(address) + index * size, size)
    return value


def read_bytes(address: int, nbytes: int) -> bytes:
    """Return a copy of the client's bytes."""
    value = ctypes.create_string_buffer(nbytes)
    read_into(ctypes.addressof(value), address, nbytes)
    return value.raw


def read_large(address: int, nbytes: int) -> memoryview:
    """Copy many of the client's bytes into separate pages, which are released with the last view.

    Only existing bytes are copied, and only they use memory: the client may declare any size.
    """
    # Refuse a wrong size before memory is mapped for it.
    read_bytes(address + nbytes - 1, 1)
    pages = mmap.mmap(-1, nbytes)
    read_into(ctypes.addressof(ctypes.c_char.from_buffer(pages)), address, nbytes)
    return memoryview(pages).toreadonly()


def read_array(address: int, dtype: Any, dims: tuple[int, ...]) -> np.ndarray:
    """Return a copy of the client's numbers, as an array of this type and shape."""
    array = np.empty(dims, dtype)
    if array.size:
        read_into(array.ctypes.data, address, array.nbytes)
    return array


def pointer(structure: Any, field: str) -> int:
    """Return the address in a structure's pointer field, 0 for null; ctypes itself would return what it points to."""
    offset = getattr(type(structure), field).offset
    return ctypes.c_uint64.from_address(ctypes.addressof(structure) + offset).value


def text(address: int | None) -> str | None:
    """Return the client's text; None for a null pointer."""
    if not address:
        return None
    content = b""
    while len(content) < MAX_TEXT:
        part = read_bytes(address + len(content), _PAGE - (address + len(content)) % _PAGE)
        end = part.find(b"\0")
        if end >= 0:
            return (content + part[:end]).decode(errors="backslashreplace")
        content += part
    raise BadPointer(f"the text at {address:#x} does not end within {MAX_TEXT} bytes")


def listed(address: int, kind: type[_Kind]) -> Iterator[_Kind]:
    """Yield copies of the structures in a null-terminated list of pointers; none for a null list."""
    if not address:
        return
    for index in range(MAX_CONFIGS):
        each = read(address, ctypes.c_uint64, index).value
        if not each:
            return
        yield read(each, kind)
    raise BadPointer(f"the list at {address:#x} has no null pointer among its first {MAX_CONFIGS} entries")


def listed_all(address: int, kind: type[_Kind], count: int) -> list[_Kind]:
    """Return copies of the structures that `count` pointers point to."""
    return [read(read(address, ctypes.c_uint64, index).value, kind) for index in range(count)]


def write(address: int, value: Any) -> None:
    """Write a ctypes value to the client's memory."""
    _copy(ctypes.addressof(value), checked(address), ctypes.sizeof(value), write=True)


def write_bytes(address: int, content: bytes | memoryview) -> None:
    """Write bytes to the client's memory without an intermediate copy."""
    source = np.frombuffer(content, np.uint8) if len(content) else np.empty(0, np.uint8)
    _copy(source.ctypes.data, checked(address), source.nbytes, write=True)


def write_number(address: int, value: int, kind: type = ctypes.c_uint64) -> None:
    """Write a number to the client's memory, as 64 bits or as the ctypes type `kind`."""
    write(address, kind(value))
