"""A flatbuffer writer. A table is a mapping of field numbers to kinds and values; children follow their parents."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from isthmus.frontends.flatbuffer import SCALARS

Field = tuple[str, Any]
"""A kind and a value. Kinds are those of `SCALARS`, "text", "texts", "array", "table" and "tables"."""
TableFields = Mapping[int, Field]

_OFFSET = struct.Struct("<I")


class Behind(int):
    """A reference to a table or vector that is not written here: its offset in content that follows the flatbuffer."""


def flatbuffer(root: TableFields, identifier: bytes, alignment: int = 8) -> bytes:
    """Return a flatbuffer file with this root table and identifier.

    - `alignment`: the alignment of arrays of bytes, which may hold wider elements, and of content that follows.

    >>> from isthmus.frontends.flatbuffer import File
    >>> data = flatbuffer({0: ("text", "net"), 2: ("tables", [{1: ("u32", 7)}])}, b"NETD")
    >>> table = File(memoryview(data), "net.dlc").root(b"NETD")
    >>> table.text(0), [each.integer(1, "u32") for each in table.tables(2, "node")]
    ('net', [7])
    """
    out = bytearray(_OFFSET.size) + identifier
    # Nothing recurses: each object is written behind the reference to it, and lists what it refers to itself.
    pending: list[tuple[int, str, Any]] = [(0, "table", root)]
    behind: list[tuple[int, Behind]] = []
    while pending:
        place, kind, value = pending.pop()
        if isinstance(value, Behind):
            behind.append((place, value))
            continue
        start, children = _table(out, value) if kind == "table" else _vector(out, kind, value, alignment)
        _OFFSET.pack_into(out, place, start - place)
        pending += reversed(children)
    if behind:
        _pad(out, alignment)
    for place, offset in behind:
        _OFFSET.pack_into(out, place, len(out) + offset - place)
    return bytes(out)


def _pad(out: bytearray, alignment: int, before: int = 0) -> None:
    """Append zeros until the position `before` bytes after the end is aligned."""
    out += bytes(-(len(out) + before) % alignment)


def _table(out: bytearray, fields: TableFields) -> tuple[int, list[tuple[int, str, Any]]]:
    """Write a table behind its vtable; return its position, and the references that are still to be filled in."""
    sizes = {number: SCALARS[kind].size if kind in SCALARS else _OFFSET.size for number, (kind, _) in fields.items()}
    count = max(fields, default=-1) + 1
    offsets, at = [0] * count, _OFFSET.size
    # Wide fields come first, so that each is aligned.
    for number in sorted(fields, key=lambda number: -sizes[number]):
        at += -at % sizes[number]
        offsets[number] = at
        at += sizes[number]
    vtable = struct.pack(f"<HH{count}H", 4 + 2 * count, at, *offsets)
    _pad(out, max(_OFFSET.size, *sizes.values(), 0), len(vtable))
    start = len(out) + len(vtable)
    out += vtable + struct.pack("<i", len(vtable)) + bytes(at - _OFFSET.size)
    children = []
    for number, (kind, value) in fields.items():
        if kind in SCALARS:
            SCALARS[kind].pack_into(out, start + offsets[number], value)
        else:
            children.append((start + offsets[number], kind, value))
    return start, children


def _vector(out: bytearray, kind: str, value: Any, alignment: int) -> tuple[int, list[tuple[int, str, Any]]]:
    """Write a text, an array, or a vector of texts or tables; return its position, and what it refers to."""
    width = _OFFSET.size
    if kind == "text":
        content = value.encode()
        count, data = len(content), content + b"\0"
    elif kind == "array":
        array = np.ascontiguousarray(value)
        count, data, width = array.size, array.tobytes(), alignment if array.itemsize == 1 else array.itemsize
    else:
        count, data = len(value), bytes(_OFFSET.size * len(value))
    _pad(out, max(width, _OFFSET.size), _OFFSET.size)
    start = len(out)
    out += _OFFSET.pack(count) + data
    if kind in ("text", "array"):
        return start, []
    places = range(start + _OFFSET.size, len(out), _OFFSET.size)
    return start, [(place, kind[:-1], each) for place, each in zip(places, value, strict=True)]
