"""Atomic writing of files: others see all of the new content, or the old content.

The content is written under a unique temporary name and renamed when it is complete. A device or a pipe is written to
directly, and never replaced by a file; a link stays a link. Every problem is an `OSError`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from isthmus.system.interrupts import own_fd

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@contextmanager
def rewrite(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a stream whose content replaces the file at `path` if the block succeeds; otherwise `path` is unchanged.

    - `mode`: Its permissions, reduced by the process's umask. By default those of the file that it replaces, or the
      usual ones.
    """
    with _replace_together() as create, create(path, mode) as stream:
        yield stream


@contextmanager
def write_files_together() -> Iterator[Callable[[Path, bytes], None]]:
    """Yield a function that writes a file; if the block succeeds, all files are renamed to their paths.

    Otherwise the files at these paths are unchanged.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with write_files_together() as write:
    ...     write(folder / "greeting", b"hello")
    ...     (folder / "greeting").exists()
    False
    >>> [(file.name, file.read_bytes()) for file in folder.iterdir()]
    [('greeting', b'hello')]
    """
    with _replace_together() as create:

        def write(path: Path, content: bytes) -> None:
            with create(path, None) as stream:
                stream.write(content)

        yield write


@contextmanager
def _replace_together() -> Iterator[Callable[[Path, int | None], AbstractContextManager[BinaryIO]]]:
    """Yield a function that creates a stream for a path; if the block succeeds, all their files are renamed."""
    temporaries: dict[Path, tuple[Path, int | None]] = {}

    @contextmanager
    def create(path: Path, mode: int | None) -> Iterator[BinaryIO]:
        path = Path(os.path.realpath(path))
        # Something other than a file; writing to a folder then fails.
        if path.exists() and not path.is_file():
            with path.open("wb") as stream:
                yield stream
            return
        # The name comes first: a file that is created at the moment of an interrupt can then be removed.
        temporary = path.with_name(f".writing-{os.urandom(8).hex()}")
        temporaries[temporary] = path, mode
        permissions = 0o666 if mode is None else mode
        with (
            own_fd(os.open, temporary, _FLAGS, permissions) as own,
            os.fdopen(own.fileno(), "wb", closefd=False) as stream,
        ):
            yield stream

    try:
        yield create
        for temporary, (path, mode) in temporaries.items():
            if mode is None and path.exists():
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode) & 0o777)
            os.replace(temporary, path)
    finally:
        # The temporary files that are left; the others have been renamed.
        for temporary in temporaries:
            with suppress(OSError):
                os.unlink(temporary)


def write_whole(path: Path, content: bytes | memoryview, mode: int = 0o600) -> None:
    """Write a file atomically; an error or an interrupt leaves nothing behind.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "greeting"), b"hello")
    ...     [(file.name, file.read_bytes()) for file in Path(folder).iterdir()]
    [('greeting', b'hello')]
    """
    with rewrite(path, mode) as stream:
        stream.write(content)
