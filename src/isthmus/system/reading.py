"""Reading of regular files of bounded size, opened without blocking.

A pipe would wait for its other end, and a device may never end. Every problem is an `OSError` whose `strerror`
describes it. Mapped files are sealed copies: the owner of a file may write or truncate it at any time, and views of it
must neither change nor crash the process that reads them.
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

from isthmus.errors import nearest
from isthmus.system.interrupts import FileDescriptor, own_fd

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Seals that prevent any change to a descriptor's memory."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
PIECE = 1 << 20
"""Bytes that are read at a time where the size is not known."""


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file as a stream.

    >>> open_file("/dev/zero")
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
        # The stream gets its own descriptor in a single C call, as in `own_fd`.
        [file] = map(io.FileIO, map(os.dup, (own.fileno(),)))
        return cast(BinaryIO, io.BufferedReader(file))


def nearest_file(path: str | os.PathLike[str]) -> str:
    """Return a hint with the file whose name is nearest to that of a file that does not exist; empty if none is near.

    >>> nearest_file("/proc/self/environn"), nearest_file("/proc/self/environ")
    ("Did you mean '/proc/self/environ'?", '')
    """
    folder, name = os.path.split(os.fspath(path))
    if os.path.lexists(path):
        return ""
    try:
        with os.scandir(folder or os.curdir) as entries:
            found = nearest(name, [entry.name for entry in entries if entry.is_file()])
    except (OSError, ValueError):
        return ""
    return f"Did you mean '{os.path.join(folder, found)}'?" if found else ""


def beginning(path: str | os.PathLike[str], nbytes: int) -> bytes:
    """Return the first bytes of a regular file, or all if it has fewer; nothing if it cannot be read."""
    try:
        with open_file(path) as stream:
            return stream.read(nbytes)
    except OSError:
        return b""


def begins(path: str | os.PathLike[str], magic: bytes) -> bool:
    """Return whether a regular file can be read and begins with these bytes.

    >>> begins("/proc/self/exe", b"\\x7fELF"), begins("/dev/zero", b"\\0")
    (True, False)
    """
    return beginning(path, len(magic)) == magic


def contents(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the contents of a regular file of at most `most` bytes.

    >>> contents("/proc/self/environ", 0)
    Traceback (most recent call last):
    OSError: [Errno 27] larger than 0 bytes: '/proc/self/environ'
    """
    with open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        content = stream.read(size + 1) if size <= most else b""
        # Some files do not report their size, and a file may grow meanwhile.
        while size <= most and len(content) <= most and (more := stream.read(PIECE)):
            content += more
    if size > most or len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", os.fspath(path))
    return content


def write_sealed(name: str, write: Callable[[BinaryIO], object]) -> FileDescriptor:
    """Return memory that `write` has filled and that is sealed against changes; `name` is only informative."""
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
    """Seal a descriptor's memory against changes for good; an `OSError` if it is mapped writable somewhere."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)


def map_file(path: str | os.PathLike[str], most: int) -> mmap.mmap:
    """Map a sealed copy of a regular file that has at least one and at most `most` bytes.

    >>> map_file("/dev/null", 0)
    Traceback (most recent call last):
    OSError: [Errno 22] a pipe or a device, not a file: '/dev/null'
    """

    def copy(target: BinaryIO) -> None:
        with open_file(path) as stream:
            # Some files do not report their size, and a file may grow meanwhile. One byte too many
            # is copied to notice that.
            to_copy = 0 if os.fstat(stream.fileno()).st_size > most else most + 1
            while to_copy and (piece := stream.read(min(PIECE, to_copy))):
                target.write(piece)
                to_copy -= len(piece)
            if not to_copy:
                raise OSError(errno.EFBIG, f"larger than {most:,} bytes", os.fspath(path))

    with write_sealed("isthmus-file", copy) as own:
        if os.fstat(own.fileno()).st_size == 0:
            raise OSError(errno.ENODATA, "empty", os.fspath(path))
        return mmap.mmap(own.fileno(), 0, prot=mmap.PROT_READ)
