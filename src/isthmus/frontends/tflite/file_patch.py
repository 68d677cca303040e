"""A changed TFLite file: a new root and new tables, which refer to the old content behind them.

The old content stays byte for byte, because references in a flatbuffer are relative. Only offsets that count from the
beginning of the file are adjusted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from isthmus.frontends.flatbuffer import Table
from isthmus.frontends.flatbuffer_writer import Behind, Field, TableFields, flatbuffer
from isthmus.frontends.tflite.model import ModelFile
from isthmus.frontends.tflite.schema import IDENTIFIER, BufferField, ModelField, OperatorField, SubgraphField

ALIGNMENT = 16
"""The alignment of a buffer's bytes in the file."""
MAX_FILE_BYTES = 1 << 31
"""The limit of a flatbuffer's size."""

_NOWHERE = 1  # writers that fill in offsets later leave this value for "no bytes outside of the flatbuffer"


def put_before(model: ModelFile, root: TableFields) -> bytes:
    """Return a file with a new root table, followed by the old content, to which the new tables may refer.

    Raises `QnnError`: COMMON_LOADING_BINARIES if the file would become too large.
    """
    front = flatbuffer(root, IDENTIFIER, ALIGNMENT)
    if len(front) + len(model.file.data) >= MAX_FILE_BYTES:
        model.file.refuse("it would become too large for a flatbuffer")
    content = bytearray(model.file.data)
    for at in _absolute_offsets(model):
        (offset,) = struct.unpack_from("<Q", content, at)
        struct.pack_into("<Q", content, at, offset + len(front))
    return front + bytes(content)


def old_tables(tables: Iterable[Table]) -> list[Any]:
    """Return references to tables of the old content."""
    return [Behind(table.start) for table in tables]


def old_references(table: Table, fields: Iterable[int]) -> dict[int, Field]:
    """Return those of these fields that a table of the old content has, each as a reference to what it refers to."""
    places = {int(field): table.place(field, 4) for field in fields}
    return {
        field: ("table", Behind(table.file.follow(at, f"field {field} of {table.what}")))
        for field, at in places.items()
        if at is not None
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
