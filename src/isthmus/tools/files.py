"""Files that the commands write: each is there whole or not at all."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from isthmus.errors import Code, QnnError
from isthmus.system.writing import written


def file_name(text: str) -> Path:
    """Take an argument of a command for a file; an empty one would be the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name of the file is empty")
    return Path(text)


@contextmanager
def written_whole(path: Path, what: str) -> Iterator[BinaryIO]:
    """A stream whose content becomes the file at `path` when the block ends well; else that path stays as it was.

    `what` names the file in the error that is raised if it cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with written_whole(folder / "greeting", "greeting") as stream:
    ...     _ = stream.write(b"hello")
    >>> [(file.name, file.read_bytes()) for file in folder.iterdir()]
    [('greeting', b'hello')]
    """
    try:
        if path.exists() and not path.is_file():
            # A device, a pipe (/dev/stdout): it takes what comes and must not be replaced by a file.
            with path.open("wb") as stream:
                yield stream
            return
        with written(Path(os.path.realpath(path))) as stream:
            yield stream
    except OSError as problem:
        raise QnnError(
            Code.COMMON_INVALID_ARGUMENT, what, f"cannot be written: {problem.strerror or problem}"
        ) from None
