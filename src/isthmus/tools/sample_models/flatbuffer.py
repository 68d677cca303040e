"""A writer of flatbuffers, which TFLite and DLC files consist of: tables first, then what they refer to."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isthmus.frontends.flatbuffer import SCALARS

Field = tuple[str, Any]
Table = Mapping[int, Field]
"""The fields of a table by number, each with its kind and its value. Kinds are scalars ("u32" …), "text", "texts",
"array" (an array of numpy), "table" and "tables"."""
_ALIGNMENT = 16
"""The alignment of an array's elements, which TFLite wants for weights."""


def flatbuffer(root: Table, identifier: bytes) -> bytes:
    """Return the bytes of a flatbuffer with this root table and file identifier."""
    writer = _Writer(identifier)
    writer.refer(0, writer.table(root))
    return bytes(writer.data)


class _Writer:
    """The bytes written so far. Each method that writes something returns its position."""

    def __init__(self, identifier: bytes) -> None:
        self.data = bytearray(bytes(4) + identifier)

    def refer(self, reference: int, target: int) -> None:
        """Fill in a reference: the distance from it to its target."""
        struct.pack_into("<I", self.data, reference, target - reference)

    def table(self, fields: Table) -> int:
        """Write a table, and after it what its fields refer to."""
        # The place of each field in the table, whose first four bytes lead to the list of these places.
        places, size = {}, 4
        for number, (kind, _) in sorted(fields.items()):
            width = SCALARS[kind].size if kind in SCALARS else 4
            places[number] = size + -size % width
            size = places[number] + width
        listed = [places.get(number, 0) for number in range(max(fields, default=-1) + 1)]
        length = 4 + 2 * len(listed)
        self._align(8, length)
        self.data += struct.pack(f"<{2 + len(listed)}H", length, size, *listed)
        start = len(self.data)
        self.data += struct.pack("<i", length) + bytes(size - 4)
        for number, (kind, value) in sorted(fields.items()):
            at = start + places[number]
            if kind in SCALARS:
                SCALARS[kind].pack_into(self.data, at, value)
            else:
                self.refer(at, self._target(kind, value))
        return start

    def _target(self, kind: str, value: Any) -> int:
        """Write what a field of this kind refers to."""
        if kind == "table":
            return self.table(value)
        if kind == "text":
            return self._text(value)
        if kind == "array":
            return self._array(value)
        return self._list(kind, value)

    def _list(self, kind: str, items: Sequence[Any]) -> int:
        """Write a list of references to texts or tables."""
        self._align(4)
        start = len(self.data)
        self.data += struct.pack("<I", len(items)) + bytes(4 * len(items))
        for index, item in enumerate(items):
            self.refer(start + 4 + 4 * index, self._text(item) if kind == "texts" else self.table(item))
        return start

    def _array(self, array: np.ndarray) -> int:
        """Write the elements of an array."""
        self._align(_ALIGNMENT, 4)
        start = len(self.data)
        self.data += struct.pack("<I", array.size) + np.ascontiguousarray(array).tobytes()
        return start

    def _text(self, text: str) -> int:
        """Write a string."""
        self._align(4)
        start = len(self.data)
        content = text.encode()
        self.data += struct.pack("<I", len(content)) + content + b"\0"
        return start

    def _align(self, alignment: int, before: int = 0) -> None:
        """Add zeros, so that what follows after `before` more bytes is aligned."""
        self.data += bytes(-(len(self.data) + before) % alignment)
