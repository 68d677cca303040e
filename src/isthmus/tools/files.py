"""Files that the commands write, each atomically. Of a file that an option names, a line says that it is written."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from isthmus.errors import QnnError, invalid_argument, one_line
from isthmus.system import reading
from isthmus.system.progress import above
from isthmus.system.writing import rewrite, write_files_together

# Maximum number of characters of a file name in a message.
_MAX_NAME = 120


def file_name(text: str) -> Path:
    """Convert an argument to a path; refuse an empty one, which would mean the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name of the file is empty")
    return Path(text)


def refuse_overwrite(what: str, output: Path | None, *inputs: Path | None) -> None:
    """Refuse an output that is the same file as one of the inputs, also by a link.

    `what` names the output in the error. Paths are None for options that are not given.
    """
    for source in inputs:
        same = False
        # Files that do not exist, or cannot be seen, are reported when they are read or written.
        with suppress(OSError):
            same = output is not None and source is not None and output.samefile(source)
        if same:
            raise invalid_argument(what, f"would overwrite '{source}'", "Name another file.")


def refuse_shared(outputs: Mapping[str, Path | None]) -> None:
    """Refuse two outputs in the same file, of which the second would replace the first; a device takes both.

    `outputs` has the path of each option, None if it is not given.
    """
    seen: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None or (os.path.exists(path) and not os.path.isfile(path)):
            continue
        other = seen.setdefault(os.path.realpath(path), option)
        if other != option:
            raise invalid_argument(f"{option} {path}", f"{other} names the same file", "Name another file.")


@contextmanager
def refuse_unreadable(what: str, path: Path) -> Iterator[None]:
    """Turn errors of the system inside the block into one that says what cannot be read, and names a near file."""
    try:
        yield
    except OSError as problem:
        raise invalid_argument(what, f"cannot be read: {problem.strerror}", reading.nearest_file(path)) from None


def refuse_unwritable(what: str, path: Path | None) -> None:
    """Refuse a file that could not be written, before the work for it begins; `path` is None if it is not given.

    The attempt leaves nothing behind. `what` names the file in the error.
    """
    if path is None:
        return
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            # A device or a pipe: opening a pipe would wait for its reader.
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent):
            pass
    except OSError as problem:
        raise _unwritable(what, path, problem) from None


def refuse_unwritable_folder(what: str, folder: Path) -> None:
    """Refuse a folder in which no file could be written; it need not exist. Nothing is created."""
    try:
        if not (folder.is_dir() or not os.path.lexists(folder)):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as problem:
        raise _unwritable(what, folder, problem) from None


@contextmanager
def rewrite_whole(path: Path, what: str) -> Iterator[BinaryIO]:
    """Yield a stream whose content replaces the file at `path` if the block succeeds; otherwise `path` is unchanged.

    `what` names the file in the error that is raised if it cannot be written. The line about it goes to standard error:
    standard output may be JSON.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with rewrite_whole(folder / "greeting", "greeting") as stream:
    ...     _ = stream.write(b"hello")
    >>> [(file.name, file.read_bytes()) for file in folder.iterdir()]
    [('greeting', b'hello')]
    """
    try:
        with rewrite(path) as stream:
            yield stream
    except OSError as problem:
        raise _unwritable(what, path, problem) from None
    if path.is_file():  # not a device or a pipe, such as /dev/stdout
        _report_written(path)


def write_whole(path: Path, what: str, content: bytes) -> None:
    """Write a file as `rewrite_whole` does."""
    with rewrite_whole(path, what) as stream:
        stream.write(content)


def write_together(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write files with these names and contents below a folder; folders that do not exist are created.

    If one cannot be written, none is: files that were there before stay as they were, and new folders are removed.
    The caller reports what was written, which may be hundreds of files.
    """
    created: list[Path] = []
    path = folder
    try:
        _create(folder, created)
        with write_files_together() as write:
            for name, content in files:
                path = folder / name
                _create(path.parent, created)
                write(path, content)
    except BaseException as problem:
        # A folder that cannot be removed must not hide the error.
        for new in reversed(created):
            with suppress(OSError):
                new.rmdir()
        if isinstance(problem, OSError):
            raise _unwritable(f"'{path}'", path, problem) from None
        raise


def write_file(path: Path, content: bytes) -> None:
    """Write a file as `write_together` does, and report it as `rewrite_whole` does."""
    write_together(Path(), [(str(path), content)])
    if path.is_file():
        _report_written(path)


def _report_written(path: Path) -> None:
    """Print that a file is written."""
    with above():
        print(one_line(f"written: {path}"), file=sys.stderr)


def _create(folder: Path, created: list[Path]) -> None:
    """Create a folder and those above it that do not exist; append each of them to `created` before."""
    if folder.exists() and not folder.is_dir():
        raise OSError(errno.ENOTDIR, f"'{folder}' is a file, not a folder")
    for each in reversed((folder, *folder.parents)):
        if not each.exists():
            created.append(each)
            each.mkdir(exist_ok=True)


def _unwritable(what: str, path: Path, problem: OSError) -> QnnError:
    """Return the error for a file that cannot be written; of a long name it shows the end."""
    rule = f"cannot be written: {problem.strerror or problem}"
    if problem.errno == errno.ENAMETOOLONG:
        rule += f" ({len(os.fsencode(path.name))} bytes)"
    return invalid_argument(what if len(what) <= _MAX_NAME else f"...{what[-_MAX_NAME:]}", rule)
