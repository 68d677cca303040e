"""Object files in this process: linked, placed in memory and made executable."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from functools import cache

from isthmus.compiled.linking import link
from isthmus.errors import Code, QnnError


def load(objects: Iterable[bytes], symbols: Iterable[str]) -> dict[str, int]:
    """Load object files and return the addresses of the named functions. The files may call each other.

    References in an object file reach at most 2 GiB, so the files of one call become one piece of memory, even if
    drivers occupy large parts of the address space. It is never writable and executable at the same time. Linux makes
    the instructions visible to all processors when it makes the pages executable.

    The code stays until the process ends: threads and other runtimes may still call it while the interpreter exits.
    """
    code, offsets = link(objects, _address)
    block = mmap.mmap(-1, len(code), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    if _libraries()[0].mprotect(address, len(code), mmap.PROT_READ | mmap.PROT_EXEC):
        reason = os.strerror(ctypes.get_errno())
        raise QnnError(Code.COMMON_SYSTEM, "compiled code", f"its memory cannot be made executable: {reason}")
    # A reference that is never dropped.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(block))
    return {symbol: address + offsets[symbol] for symbol in symbols}


def prepare() -> None:
    """Open what loading code needs: this process may be unable to open files later."""
    _libraries()


@cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """Return the libraries whose functions compiled code calls: this process's own, and that of mathematics."""
    process = ctypes.CDLL(None, use_errno=True)
    process.mprotect.argtypes = ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int
    return process, ctypes.CDLL("libm.so.6")


def _address(name: str) -> int:
    """Return the address of a function of the C library."""
    for library in _libraries():
        try:
            return ctypes.cast(library[name], ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise QnnError(Code.COMMON_LOADING_BINARIES, f"compiled code that calls '{name}'", "the C library lacks it")
