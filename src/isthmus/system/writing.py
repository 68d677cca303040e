"""Atomic writing of files: others see all of the new content, or the old content.

The content is written under a unique temporary name and renamed when it is complete. A device or a pipe is written to
directly, and never replaced by a file; a link stays a link. Every problem is an `OSError`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
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
    path = Path(os.path.realpath(path))
    if _is_special(path):
        with path.open("wb") as stream:
            yield stream
        return
    # The name comes first: a file that is created at the moment of an interrupt can then be removed.
    temporary = _temporary(path)
    try:
        with _created(temporary, 0o666 if mode is None else mode) as stream:
            yield stream
        _replace(temporary, path, mode is None)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def written_together() -> Iterator[Callable[[Path, bytes], None]]:
    """Yield a function that writes a file; if the block succeeds, all files are renamed to their paths.

    Otherwise the files at these paths are unchanged.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with written_together() as write:
    ...     write(folder / "greeting", b"hello")
    ...     (folder / "greeting").exists()
    False
    >>> [(file.name, file.read_bytes()) for file in folder.iterdir()]
    [('greeting', b'hello')]
    """
    temporaries: dict[Path, Path] = {}

    def write(path: Path, content: bytes) -> None:
        path = Path(os.path.realpath(path))
        if _is_special(path):
            path.write_bytes(content)
            return
        temporary = _temporary(path)
        temporaries[temporary] = path
        with _created(temporary, 0o666) as stream:
            stream.write(content)

    try:
        yield write
        for temporary, path in temporaries.items():
            _replace(temporary, path, keep_mode=True)
    except BaseException:
        for temporary in temporaries:
            with suppress(OSError):
                os.unlink(temporary)
        raise


def _is_special(path: Path) -> bool:
    """Return whether something other than a file is at a path; writing to a folder then fails."""
    return path.exists() and not path.is_file()


def _temporary(path: Path) -> Path:
    """Return a unique name in the folder of a file."""
    return path.with_name(f".writing-{os.urandom(8).hex()}")


@contextmanager
def _created(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Create a file and yield a stream that writes to it."""
    with own_fd(os.open, path, _FLAGS, mode) as own, os.fdopen(own.fileno(), "wb", closefd=False) as stream:
        yield stream


def _replace(temporary: Path, path: Path, keep_mode: bool) -> None:
    """Rename a complete file to its path; with `keep_mode` it takes the permissions of the file that it replaces."""
    if keep_mode and path.exists():
        os.chmod(temporary, stat.S_IMODE(path.stat().st_mode) & 0o777)
    os.replace(temporary, path)


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
