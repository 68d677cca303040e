"""Files that the commands write: each is there whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from isthmus.errors import Code, QnnError


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
        target = os.path.realpath(path)
        # The name first: a file that is opened in the moment of an interrupt is known by it.
        name = os.path.join(os.path.dirname(target), f".writing-{os.urandom(8).hex()}")
        try:
            with open(name, "xb", opener=_private) as stream:
                yield stream
            os.chmod(name, _mode(target))
            os.replace(name, target)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise
    except OSError as problem:
        raise QnnError(
            Code.COMMON_INVALID_ARGUMENT, what, f"cannot be written: {problem.strerror or problem}"
        ) from None


_private = partial(os.open, mode=0o600)


def _mode(path: str) -> int:
    """The permissions that a file has, or would have if it were made the usual way."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode) & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
