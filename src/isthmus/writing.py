"""Files that are written whole: others see all of the new content, or what was there before.

The content is written under another name, which no other writer has, and takes the right one when it is complete.
Whatever is wrong is an `OSError`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from isthmus.interrupts import owned

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_whole(path: Path, content: bytes | memoryview, mode: int = 0o600) -> None:
    """Write a file; an error or an interrupt leaves nothing of it.

    Parameters
    ----------
    mode
        Its permissions, less those that the process withholds from its files.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "greeting"), b"hello")
    ...     [(file.name, file.read_bytes()) for file in Path(folder).iterdir()]
    [('greeting', b'hello')]
    """
    # The name first: a file that is opened in the moment of an interrupt is known by it.
    name = path.with_name(f".writing-{os.urandom(8).hex()}")
    try:
        with (
            owned(os.open, name, _FLAGS, mode) as own,
            os.fdopen(own.fileno(), "wb", closefd=False) as stream,
        ):
            stream.write(content)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
