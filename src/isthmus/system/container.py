"""Containers: a JSON header and named sections of bytes, in one file that is mapped, not parsed.

All files of programs and graphs have this form, which docs/context-binary.md describes. A `ContainerFormat` states how
a kind of file differs. Nothing that is read is trusted: prefix, lengths, checksum and gaps are checked before a section
is handed out, and there is no pickle in it. The reader of header and sections checks their meaning.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from isthmus.errors import Code, QnnError

MAX_HEADER = 1 << 26
"""Maximum size of a header in bytes. Parsed JSON takes about ten times as much memory."""
MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, MemoryError)
"""Exceptions that reading a header raises if it does not have the expected form."""
# The first bytes of a file: magic, version, bytes of the header, bytes of the file.
_FIELDS = struct.Struct("<8sIIQ")
# Where the header begins: after these fields and the checksum.
_START = _FIELDS.size + hashlib.sha256().digest_size


@dataclass(frozen=True)
class ContainerFormat:
    """A kind of container.

    - `magic`: The 8 bytes that the file begins with.
    - `version`: The version that is written, and the only one that can be read.
    - `alignment`: The alignment of each section, counted from the start of the file.
    - `damaged`, `other_version`: The codes of the errors for a damaged file and for a file of another version.
    - `is_hashed`: Whether the checksum covers the sections as well as the header.
    """

    magic: bytes
    version: int
    alignment: int
    what: str
    damaged: Code
    other_version: Code
    is_hashed: bool

    def pack(self, header: Mapping[str, Any], sections: Mapping[str, bytes | memoryview]) -> list[bytes | memoryview]:
        """Return the pieces of a file, to be joined or written in order; sections are not copied.

        >>> form = ContainerFormat(b"EXAMPLES", 1, 64, "example", Code.COMMON_GENERAL, Code.COMMON_GENERAL, True)
        >>> form.unpack(b"".join(form.pack({"unit": "m"}, {"a": b"12", "b": b"345"})))
        ({'unit': 'm'}, {'a': <memory at 0x...>, 'b': <memory at 0x...>})
        """
        sizes = {name: len(data) for name, data in sections.items()}
        text = json.dumps({**header, "sections": sizes}, separators=(",", ":")).encode()
        if len(text) > MAX_HEADER:
            rule = f"its header would take {len(text)} bytes, more than {MAX_HEADER}"
            raise self.refusal(rule, Code.COMMON_INVALID_ARGUMENT)
        # The padding before each section, and the section.
        body: list[bytes | memoryview] = []
        total = _START + len(text)
        for data in sections.values():
            body += (bytes(-total % self.alignment), data)
            total += len(body[-2]) + len(data)
        fields = _FIELDS.pack(self.magic, self.version, len(text), total)
        return [fields, _digest((fields, text, *(body if self.is_hashed else ()))), text, *body]

    def unpack(
        self, content: bytes | bytearray | memoryview | mmap.mmap, verify: bool = True
    ) -> tuple[dict[str, Any], dict[str, memoryview]]:
        """Return the header and the sections, which are views of `content`.

        - `verify`: Whether to compute the checksum if it covers the sections. Everything else is always checked.

        Raises `QnnError`: `other_version` for a file of another version, `damaged` for everything else.
        """
        view = memoryview(content).cast("B")
        if view[: len(self.magic)] != self.magic:
            raise self.refusal("it does not begin as one does")
        if len(view) < _START:
            raise self.refusal(f"{len(view)} bytes are too few for one")
        _, version, length, total = _FIELDS.unpack_from(view)
        if version != self.version:
            raise self.outdated(f"it was written by format version {version}, this version reads {self.version}")
        if total != len(view):
            raise self.refusal(f"it says that it has {total} bytes, it has {len(view)}")
        end = _START + length
        if length > MAX_HEADER or end > total:
            raise self.refusal("its header is longer than itself")
        covered = view[_START : total if self.is_hashed else end]
        # A checksum of the header alone takes no time worth saving.
        if (verify or not self.is_hashed) and view[_FIELDS.size : _START] != _digest((view[: _FIELDS.size], covered)):
            raise self.refusal("its checksum is wrong: it is damaged")
        try:
            header = json.loads(bytes(view[_START:end]))
            sizes = [(name, as_size(nbytes)) for name, nbytes in header.pop("sections").items()]
        except MALFORMED as problem:
            raise self.malformed(problem) from None
        sections = {}
        for name, nbytes in sizes:
            start = end + -end % self.alignment
            if start + nbytes > total:
                raise self.refusal(f"section '{name}' is outside it")
            if any(view[end:start]):
                raise self.refusal(f"there are bytes before section '{name}' that belong to nothing")
            end = start + nbytes
            sections[name] = view[start:end]
        if end != total:
            raise self.refusal("there are unused bytes at its end")
        return header, sections

    def first_section(self, read: Callable[[int, int], bytes]) -> tuple[int, int]:
        """Return where the first section of a file begins and ends, as its header says; `unpack` checks all of it.

        - `read`: Returns the bytes at an offset, given their number. Nothing but the header is read.
        """
        fields = read(0, _START)
        if len(fields) < _START or fields[: len(self.magic)] != self.magic:
            return 0, 0
        length = min(_FIELDS.unpack_from(fields)[2], MAX_HEADER)
        begin = _START + length + -(_START + length) % self.alignment
        try:
            sizes = list(json.loads(read(_START, length))["sections"].values())
            return begin, begin + as_size(sizes[0])
        except MALFORMED:
            return 0, 0

    @staticmethod
    def header_bytes(content: bytes | memoryview) -> int:
        """Return how many bytes of a container are before its sections; it was unpacked before."""
        return _START + int(_FIELDS.unpack_from(content)[2])

    def refusal(self, rule: str, code: Code | None = None, hint: str = "") -> QnnError:
        """Return the error for a file that is damaged, or that breaks a rule with its own code."""
        return QnnError(code or self.damaged, self.what, rule, hint)

    def malformed(self, problem: Exception) -> QnnError:
        """Return the error for a header that does not have the expected form."""
        return self.refusal(f"its header is not well-formed: {problem}")

    def outdated(self, rule: str) -> QnnError:
        """Return the error for a file of another version of this software."""
        return QnnError(self.other_version, self.what, rule, "Generate it again.")


def as_size(value: object, most: int = (1 << 63) - 1) -> int:
    """Return a header's size, offset or index, an integer from 0 to `most`; otherwise raise a ValueError."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is not a number from 0 to {most}")
    return value


def as_text(value: object) -> str:
    """Return a header's string; otherwise raise a ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def as_name(value: object) -> str:
    """Return a header's name of a graph or tensor, which a program in C can be told; otherwise raise a ValueError."""
    # A character that UTF-8 cannot encode raises a UnicodeEncodeError, which is a ValueError.
    if b"\0" in as_text(value).encode() or not value:
        raise ValueError(f"{value!r} is no name")
    return as_text(value)


def _digest(pieces: Iterable[bytes | memoryview]) -> bytes:
    """Return the SHA-256 of the pieces, as if they were joined."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
