"""Atomic writing of files: others see all of the new content, or the old content.

The content is written under a unique temporary name and renamed when it is complete. Every problem is an `OSError`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from isthmus.system.interrupts import own_fd

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@contextmanager
def written(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a stream whose content replaces the file at `path` if the block succeeds; otherwise `path` is unchanged.

    Parameters
    ----------
    mode
        Its permissions, reduced by the process's umask. By default those of the file that it replaces, or the usual
        ones.
    """
    # The name comes first: a file that is created at the moment of an interrupt can then be removed.
    temporary = path.with_name(f".writing-{os.urandom(8).hex()}")
    try:
        with (
            own_fd(os.open, temporary, _FLAGS, 0o666 if mode is None else mode) as own,
            os.fdopen(own.fileno(), "wb", closefd=False) as stream,
        ):
            yield stream
        if mode is None and path.exists():
            os.chmod(temporary, stat.S_IMODE(path.stat().st_mode) & 0o777)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def write_whole(path: Path, content: bytes | memoryview, mode: int = 0o600) -> None:
    """Write a file atomically; an error or an interrupt leaves nothing behind.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "greeting"), b"hello")
    ...     [(file.name, file.read_bytes()) for file in Path(folder).iterdir()]
    [('greeting', b'hello')]
    """
    with written(path, mode) as stream:
        stream.write(content)
