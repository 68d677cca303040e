"""File descriptors of memory that two processes, or a process and an accelerator, can both map."""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass

from isthmus.errors import Code, QnnError

_SHAREABLE = ("/memfd:", "/dmabuf", "anon_inode:dmabuf", "/dev/shm/")
"""What the link in /proc/self/fd begins with for such memory."""


@dataclass(frozen=True)
class SharedFile:
    """What an open file descriptor refers to.

    Parameters
    ----------
    identity
        The same for every descriptor of the same memory, in every process.
    nbytes
        Its size.
    """

    identity: tuple[int, int]
    nbytes: int


def shared_file(fd: object, what: str) -> SharedFile:
    """What `fd` refers to, if it is memory that can be shared.

    Raises
    ------
    QnnError
        MEM_INVALID_ARGUMENT for what is no open descriptor, or one of a file, a folder, a pipe or a socket.
    """
    if isinstance(fd, bool) or not isinstance(fd, int) or not 0 <= fd < 1 << 31:
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"file descriptor {fd!r} is not one")
    try:
        status, link = os.fstat(fd), os.readlink(f"/proc/self/fd/{fd}")
    except OSError as problem:
        rule = f"file descriptor {fd} cannot be used: {problem.strerror}"
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, rule) from None
    if not link.startswith(_SHAREABLE) or stat.S_ISDIR(status.st_mode):
        raise QnnError(
            Code.MEM_INVALID_ARGUMENT,
            what,
            f"file descriptor {fd} is no shared memory ({link})",
            "isthmus.memory.rpcmem.alloc() makes such memory.",
        )
    # A DMA buffer tells its size only to a seek.
    return SharedFile((status.st_dev, status.st_ino), status.st_size or os.lseek(fd, 0, os.SEEK_END))


def map_whole(fd: int, nbytes: int, what: str, writable: bool = True) -> mmap.mmap:
    """Map the first `nbytes` of shared memory, with its pages faulted in.

    Raises
    ------
    QnnError
        MEM_MAPPING if the system refuses.
    """
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        return mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=access)
    except (OSError, ValueError, OverflowError) as problem:
        raise QnnError(Code.MEM_MAPPING, what, f"file descriptor {fd} cannot be mapped: {problem}") from None
