"""What brings the constants of a context binary that is created with data callbacks."""

from __future__ import annotations

import mmap
import os

import numpy as np

from isthmus.backends.seam.provider import BinaryProvider, BinarySection, ProvidedBuffer
from isthmus.errors import Code, QnnError, code_of
from isthmus.memory import rpcmem
from isthmus.system import reading


class FileProvider(BinaryProvider):
    """A provider that reads a file into shared memory, a buffer for each section.

    Parameters
    ----------
    path
        The file of the binary.

    Examples
    --------
    >>> import tempfile
    >>> from isthmus import qnn
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     size = file.write(bytes(8192))
    ...     file.flush()
    ...     provider = qnn.FileProvider(file.name)
    ...     buffer = provider.provide(qnn.BinarySection(4096, 100))
    ...     provider.release(buffer)
    >>> buffer.nbytes, buffer.start
    (4096, 0)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def provide(self, section: BinarySection) -> ProvidedBuffer:
        buffer = rpcmem.share(-(-section.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        assert buffer.fd is not None
        try:
            with reading.open_file(self._path) as stream:
                target = buffer.window(0, section.nbytes).view(np.uint8, (section.nbytes,)).data
                # A single call reads 2 GiB at most.
                count = 0
                while read := os.preadv(stream.fileno(), [target[count:]], section.offset + count):
                    count += read
        except OSError as problem:
            buffer.close()
            rule = f"it cannot be read: {problem.strerror}"
            raise QnnError(code_of(problem, Code.CONTEXT_INVALID_ARGUMENT), "context binary", rule) from None
        if count < section.nbytes:
            buffer.close()
            rule = f"it ends before byte {section.offset + section.nbytes}"
            raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, "context binary", rule)
        return ProvidedBuffer(buffer.fd, buffer.nbytes, 0, buffer)

    def release(self, buffer: ProvidedBuffer) -> None:
        buffer.memory.close()
