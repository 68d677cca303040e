"""Files that are read: regular ones, of bounded size, opened without waiting.

A pipe would wait for its other end, a device may never end. Whatever is wrong is an `OSError` whose `strerror` says it.
What is mapped is a sealed copy: whoever owns a file may write or cut it at any time, and views of it must not change,
nor end the process that reads them.
"""

from __future__ import annotations

import errno
import fcntl
import io
import mmap
import os
import stat
from collections.abc import Callable
from typing import BinaryIO, cast

from isthmus.system.interrupts import FileDescriptor, own_fd

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""What keeps everybody from changing a descriptor's memory."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PIECE = 1 << 20


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """A stream of a regular file.

    Examples
    --------
    >>> opened("/dev/zero")
    Traceback (most recent call last):
    OSError: [Errno 22] a pipe or a device, not a file: '/dev/zero'
    """
    name = os.fspath(path)
    try:
        own = own_fd(os.open, name, _FLAGS)
    except ValueError as problem:
        raise OSError(errno.EINVAL, str(problem), name) from None
    with own:
        mode = os.fstat(own.fileno()).st_mode
        if not stat.S_ISREG(mode):
            number, kind = (errno.EISDIR, "a directory") if stat.S_ISDIR(mode) else (errno.EINVAL, "a pipe or a device")
            raise OSError(number, f"{kind}, not a file", name)
        # The stream has a descriptor of its own, as `own_fd` has: in one call of C.
        [file] = map(io.FileIO, map(os.dup, (own.fileno(),)))
        return cast(BinaryIO, io.BufferedReader(file))


def beginning(path: str | os.PathLike[str], nbytes: int) -> bytes:
    """The first bytes of a regular file, or all that it has; none of one that cannot be read."""
    try:
        with opened(path) as stream:
            return stream.read(nbytes)
    except OSError:
        return b""


def begins(path: str | os.PathLike[str], magic: bytes) -> bool:
    """Whether a regular file can be read and begins with these bytes.

    Examples
    --------
    >>> begins("/proc/self/exe", b"\\x7fELF"), begins("/dev/zero", b"\\0")
    (True, False)
    """
    return beginning(path, len(magic)) == magic


def contents(path: str | os.PathLike[str], most: int) -> bytes:
    """All of a regular file that has at most so many bytes.

    Examples
    --------
    >>> contents("/proc/self/environ", 0)
    Traceback (most recent call last):
    OSError: [Errno 27] larger than 0 bytes: '/proc/self/environ'
    """
    with opened(path) as stream:
        told = os.fstat(stream.fileno()).st_size
        content = stream.read(told + 1) if told <= most else b""
        # Not every file tells its size beforehand, and it may grow meanwhile.
        while told <= most and len(content) <= most and (more := stream.read(_PIECE)):
            content += more
    if told > most or len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", os.fspath(path))
    return content


def sealed(name: str, write: Callable[[BinaryIO], object]) -> FileDescriptor:
    """Memory that `write` has filled and that nobody can change any more; `name` is for the curious."""
    own = own_fd(os.memfd_create, name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(own.fileno(), "wb", closefd=False) as stream:
            write(stream)
        seal(own.fileno())
    except Exception:
        own.close()
        raise
    return own


def seal(fd: int) -> None:
    """Keep everybody from changing a descriptor's memory, for good; an `OSError` if somebody has it mapped to write."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)


def mapped(path: str | os.PathLike[str], most: int) -> mmap.mmap:
    """All of a regular file that has at most so many bytes and at least one, copied once, sealed and mapped.

    Examples
    --------
    >>> mapped("/dev/null", 0)
    Traceback (most recent call last):
    OSError: [Errno 22] a pipe or a device, not a file: '/dev/null'
    """

    def copy(kept: BinaryIO) -> None:
        with opened(path) as stream:
            # Not every file tells its size beforehand, and it may grow meanwhile.
            left = 0 if os.fstat(stream.fileno()).st_size > most else most + 1
            while left and (piece := stream.read(min(_PIECE, left))):
                kept.write(piece)
                left -= len(piece)
            if not left:
                raise OSError(errno.EFBIG, f"larger than {most:,} bytes", os.fspath(path))

    with sealed("isthmus-file", copy) as own:
        if os.fstat(own.fileno()).st_size == 0:
            raise OSError(errno.ENODATA, "empty", os.fspath(path))
        return mmap.mmap(own.fileno(), 0, prot=mmap.PROT_READ)
