"""The front part that changes a TFLite file: a new root, new tables, and references into the old content.

The old content stays byte for byte, because references in a flatbuffer are relative. Only offsets that count from the
beginning of the file are adjusted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence, Set

from isthmus.frontends.flatbuffer import Table
from isthmus.frontends.tflite.model import ModelFile
from isthmus.frontends.tflite.schema import IDENTIFIER, BufferField, ModelField, OperatorField, SubgraphField

ALIGNMENT = 16
"""The alignment of a buffer's bytes in the file."""
MAX_FILE_BYTES = 1 << 31
"""The limit of a flatbuffer's size."""

_NOWHERE = 1  # writers that fill in offsets later leave this value for "no bytes outside of the flatbuffer"


class Front:
    """A growing front part of a file.

    A reference is a four-byte field with the distance to its target. References point forward, so each is filled in
    when its target is written. References into the old content are filled in when the front is complete and its length
    is known. Methods that write something take the position of the reference to it.

    Attributes
    ----------
    data
        The bytes written so far.
    """

    def __init__(self) -> None:
        self.data = bytearray(bytes(4) + IDENTIFIER)
        # Positions of references and the offsets in the old content that they refer to.
        self._into_old: list[tuple[int, int]] = []

    def put(self, at: int, value: int) -> None:
        """Write a four-byte field."""
        struct.pack_into("<I", self.data, at, value & 0xFFFFFFFF)

    def into_old(self, reference: int, target: int) -> None:
        """Make a reference point to an offset in the old content."""
        self._into_old.append((reference, target))

    def table(self, present: Set[int], reference: int) -> dict[int, int]:
        """Write a table with these four-byte fields, all still 0; return the position of each field."""
        fields = sorted(int(field) for field in present)
        length = 4 + 2 * (fields[-1] + 1)
        offsets = [4 + 4 * fields.index(f) if f in fields else 0 for f in range(fields[-1] + 1)]
        self.data += bytes(-(len(self.data) + length) % 4)
        self.data += struct.pack(f"<{2 + len(offsets)}H", length, 4 + 4 * len(fields), *offsets)
        start = self._arrive(reference)
        self.data += struct.pack("<i", length) + bytes(4 * len(fields))
        return {field: start + offsets[field] for field in fields}

    def scalars(self, values: Mapping[int, int], reference: int) -> None:
        """Write a table of integers of at most four bytes, by field."""
        for field, at in self.table(set(values), reference).items():
            self.put(at, values[field])

    def vector(self, content: bytes, count: int, reference: int) -> int:
        """Write a vector of `count` elements with these bytes; return the position of its first element."""
        start = self._arrive(reference) + 4
        self.data += struct.pack("<I", count) + content
        return start

    def text(self, text: str, reference: int) -> None:
        """Write a string."""
        content = text.encode()
        self.vector(content + b"\0", len(content), reference)

    def buffer(self, content: bytes, reference: int) -> None:
        """Write a buffer with these bytes, aligned."""
        holder = self.table({BufferField.DATA}, reference)
        self.data += bytes(-(len(self.data) + 4) % ALIGNMENT)
        self.vector(content, len(content), holder[BufferField.DATA])

    def references(self, old: Sequence[int | None], reference: int) -> list[int]:
        """Write a vector of references to old offsets; return the positions of those that are None and still open."""
        start = self.vector(bytes(4 * len(old)), len(old), reference)
        self._into_old += [(start + 4 * i, target) for i, target in enumerate(old) if target is not None]
        return [start + 4 * i for i, target in enumerate(old) if target is None]

    def before(self, model: ModelFile) -> bytes:
        """Return the front followed by the old content."""
        self.data += bytes(-len(self.data) % ALIGNMENT)
        for at, target in self._into_old:
            self.put(at, len(self.data) + target - at)
        if len(self.data) + len(model.file.data) >= MAX_FILE_BYTES:
            model.file.refuse("it would become too large for a flatbuffer")
        content = bytearray(model.file.data)
        for at in _absolute_offsets(model):
            (offset,) = struct.unpack_from("<Q", content, at)
            struct.pack_into("<Q", content, at, offset + len(self.data))
        return bytes(self.data) + bytes(content)

    def _arrive(self, reference: int) -> int:
        """Align the end of the front and make a reference point to it; return that position."""
        self.data += bytes(-len(self.data) % 4)
        self.put(reference, len(self.data) - reference)
        return len(self.data)


def old_references(table: Table, fields: Sequence[int]) -> dict[int, int]:
    """Return the reference fields that a table has, each with the offset that it refers to."""
    places = {int(field): table.place(field, 4) for field in fields}
    return {
        field: table.file.follow(at, f"field {field} of {table.what}") for field, at in places.items() if at is not None
    }


def check_root(model: ModelFile) -> None:
    """Refuse a file whose root table has fields that a new one would lose."""
    if any(model.root.place(field, 1) is not None for field in range(len(ModelField), model.root.fields)):
        model.file.refuse("the root table has fields that this format does not know")


def _absolute_offsets(model: ModelFile) -> set[int]:
    """Return the positions of numbers that count from the beginning of the file and are in use."""
    positions = set()
    for buffer in model.root.tables(ModelField.BUFFERS, "buffer"):
        positions |= _position_in_use(buffer, BufferField.OFFSET)
    for subgraph in model.root.tables(ModelField.SUBGRAPHS, "subgraph"):
        for operator in subgraph.tables(SubgraphField.OPERATORS, "operator"):
            positions |= _position_in_use(operator, OperatorField.LARGE_CUSTOM_OPTIONS_OFFSET)
    return positions


def _position_in_use(table: Table, field: int) -> set[int]:
    """Return a set with the position of an eight-byte field; empty if it is absent or means nowhere."""
    at = table.place(field, 8)
    return set() if at is None or table.integer(field, "u64") <= _NOWHERE else {at}
