"""Files that are read: regular ones, of bounded size, opened without waiting.

A pipe would wait for its other end, a device may never end. Whatever is wrong is an `OSError` whose `strerror` says it.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

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
        fd = os.open(name, _FLAGS)
    except ValueError as problem:
        raise OSError(errno.EINVAL, str(problem), name) from None
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            number, kind = (errno.EISDIR, "a directory") if stat.S_ISDIR(mode) else (errno.EINVAL, "a pipe or a device")
            raise OSError(number, f"{kind}, not a file", name)
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


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
