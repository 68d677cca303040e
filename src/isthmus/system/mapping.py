"""Read-only mappings of files that keep no descriptor open, so that a process can have thousands of them."""

from __future__ import annotations

import ctypes
import mmap
import os

from isthmus.system.interrupts import Finalizer

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.fstatfs.argtypes = [ctypes.c_int, ctypes.c_void_p]
_FAILED = ctypes.c_void_p(-1).value
# The numbers of NFS, SMB (three), Ceph, AFS (two), Lustre, GPFS, 9P, the shared folders of virtual machines (two), and
# FUSE, which may be anything.
_REMOTE = {
    0x6969, 0x517B, 0xFF534D42, 0xFE534D42, 0x00C36400, 0x5346414F, 0x6B414653, 0x0BD00BD0, 0x47504653, 0x01021997,
    0x6A656A63, 0x786F4256, 0x65735546,
}  # fmt: skip


class MappedFile:
    """The first bytes of an open file, mapped; the file may be closed and removed.

    They are mapped until `pages` and every view of it are gone. Nothing may shorten the file until then: an access to
    what was cut off ends the process.

    >>> with open("/proc/self/exe", "rb") as file:
    ...     mapped = MappedFile(file.fileno(), 4)
    >>> bytes(mapped.pages), mapped.is_in_memory(), mapped.pages.readonly
    (b'\\x7fELF', True, True)
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        address = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address in (None, _FAILED):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        owner = (ctypes.c_uint8 * nbytes).from_address(address)
        Finalizer(owner, _unmap, [(address, nbytes)])
        self._address, self._nbytes = address, nbytes
        self.pages = memoryview(owner).cast("B").toreadonly()

    def is_in_memory(self) -> bool:
        """Return whether nearly all pages can be read without waiting for a disk."""
        pages = -(-self._nbytes // mmap.PAGESIZE)
        resident = (ctypes.c_uint8 * pages)()
        return _libc.mincore(self._address, self._nbytes, resident) != 0 or bytes(resident).count(0) <= pages // 8


def is_remote(fd: int) -> bool:
    """Return whether a file is on another machine, which may remove it while it is mapped here."""
    status = (ctypes.c_long * 32)()
    return _libc.fstatfs(fd, status) == 0 and status[0] & 0xFFFFFFFF in _REMOTE


def _unmap(ranges: list[tuple[int, int]]) -> None:
    # If it is repeated, the addresses may be in use again.
    if ranges:
        _libc.munmap(*ranges.pop())
