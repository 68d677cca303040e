"""Context binaries that are read without their constants.

A client brings these section by section (`provider`), or they do not matter yet.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Sequence
from typing import Any

from isthmus.backends.seam.binary import BinaryContents, UnpackedBinary, contents_of, open_binary
from isthmus.backends.seam.program_binary import FORMAT
from isthmus.backends.seam.provider import BinaryReader, BinarySection
from isthmus.errors import Code, code_of
from isthmus.system import reading
from isthmus.system.container import MALFORMED, as_size
from isthmus.system.contents import unpack_graphs

# The alignment of sections in the file.
_PAGE = 4096


class ProvidedBinary:
    """A context binary without its constants.

    - `source`: A file, or a reader.
    - `backend`: The backend that it must have been made for.
    """

    def __init__(self, source: Any, backend: str) -> None:
        self._backend = backend
        if isinstance(source, BinaryReader):
            self._content, self._begin = _without_constants(source)
        elif isinstance(source, (str, os.PathLike)):
            with _FileReader(source) as file:
                self._content, self._begin = _without_constants(file)
        else:
            rule = "data that callbacks bring is that of a file, and it is none"
            raise FORMAT.refusal(rule, Code.COMMON_NOT_SUPPORTED, "Pass its path, or create the context without them.")
        self._header, self._arrays, self._graphs = unpack_graphs(FORMAT, self._content, verify=False)
        try:
            shared = as_size(self._header.get("shared", 0), len(self._arrays))
        except MALFORMED as problem:
            raise FORMAT.malformed(problem) from None
        # The part that graphs share, and the rest; of these, those that have bytes.
        self._parts = [(first, end) for first, end in ((0, shared), (shared, len(self._arrays))) if first < end]

    @property
    def sections(self) -> tuple[BinarySection, ...]:
        """What the client brings: constants that graphs share, and those of single graphs. Each begins on a page."""
        return tuple(
            BinarySection(self._begin + first - self._lead(first), end - first + self._lead(first))
            for first, end in self._parts
        )

    def _lead(self, first: int) -> int:
        """Return how many bytes of its page are before a part."""
        return (self._begin + first) % _PAGE

    @property
    def scratch(self) -> dict[str, int]:
        """How many bytes of scratch each graph needs, which its constants do not change."""
        unpacked = UnpackedBinary(self._header, self._graphs, (self._arrays,), len(self._content))
        graphs = contents_of(unpacked, verify=False, backend=self._backend).info.graphs
        return {each.name: each.memory.scratch_bytes for each in graphs}

    def contents(self, sections: Sequence[memoryview]) -> BinaryContents:
        """Return the contents of the binary, whose constants are views of the sections that the client has brought.

        Errors: CONTEXT_CREATE_FROM_BINARY if these are not the binary's.
        """
        digest, pieces = hashlib.sha256(), []
        for (first, end), section in zip(self._parts, sections, strict=True):
            pieces.append(section[self._lead(first) : self._lead(first) + end - first])
            digest.update(pieces[-1])
        if self._header.get("arrays") != digest.hexdigest():
            raise FORMAT.refusal("the checksum of its arrays is wrong: the callbacks have brought other data")
        unpacked = UnpackedBinary(self._header, self._graphs, tuple(pieces), len(self._content))
        return contents_of(unpacked, backend=self._backend)


def scratch_of(source: Any, backend: str) -> dict[str, int]:
    """Return how many bytes of scratch each graph of a binary needs; its constants are not read.

    - `source`: A file, its contents, or a reader.
    - `backend`: The backend that it must have been made for.
    """
    if isinstance(source, (str, os.PathLike, BinaryReader)):
        return ProvidedBinary(source, backend).scratch
    try:
        view = memoryview(source).cast("B")
    except (TypeError, ValueError) as problem:
        raise FORMAT.refusal(str(problem), Code.CONTEXT_INVALID_ARGUMENT) from None
    return ProvidedBinary(_MemoryReader(view), backend).scratch


class _MemoryReader(BinaryReader):
    """A reader of memory, by system calls: what is not there any more is an error."""

    def __init__(self, view: memoryview) -> None:
        self._view, self.nbytes = view, view.nbytes

    def read(self, offset: int, nbytes: int) -> bytes:
        part = self._view[offset : offset + nbytes]
        try:
            # Not by the stream, which would copy few bytes itself.
            with reading.write_sealed("isthmus-part", lambda stream: os.write(stream.fileno(), part)) as copy:
                return os.pread(copy.fileno(), part.nbytes, 0)
        except OSError as problem:
            code = code_of(problem, Code.CONTEXT_INVALID_ARGUMENT)
            raise FORMAT.refusal(f"it cannot be read: {problem.strerror}", code) from None


class _FileReader(BinaryReader):
    """A reader of a file; a context manager."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._stream = open_binary(path)
        self.nbytes = os.fstat(self._stream.fileno()).st_size

    def read(self, offset: int, nbytes: int) -> bytes:
        try:
            return os.pread(self._stream.fileno(), nbytes, offset)
        except OSError as problem:
            code = code_of(problem, Code.CONTEXT_INVALID_ARGUMENT)
            raise FORMAT.refusal(f"it cannot be read: {problem.strerror}", code) from None

    def __enter__(self) -> _FileReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()


def _without_constants(reader: BinaryReader) -> tuple[mmap.mmap, int]:
    """Return a copy of a binary whose constants are zeros that take no memory, and where they begin."""
    if not reader.nbytes:
        raise FORMAT.refusal("it is empty")
    try:
        pages = mmap.mmap(-1, reader.nbytes)
    except (OSError, ValueError, OverflowError) as problem:
        raise FORMAT.refusal(f"it cannot be kept: {problem}", Code.COMMON_MEM_ALLOC) from None
    begin, end = FORMAT.first_section(reader.read)
    for first, last in ((0, min(begin, reader.nbytes)), (end, reader.nbytes)):
        for position in range(first, last, reading.PIECE):
            piece = reader.read(position, min(reading.PIECE, last - position))
            pages[position : position + len(piece)] = piece
    return pages, begin
