"""A flatbuffer writer. A table is a mapping of field numbers to kinds and values; children follow their parents."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from isthmus.frontends.flatbuffer import SCALARS

Field = tuple[str, Any]
"""A kind and a value. Kinds are those of `SCALARS`, "text", "texts", "array", "table" and "tables"."""
TableFields = Mapping[int, Field]

_OFFSET = struct.Struct("<I")
_ALIGNMENT = 8
"""The alignment of tables and of the elements of arrays, in bytes: that of the widest scalar."""


def flatbuffer(root: TableFields, identifier: bytes) -> bytes:
    """Return a flatbuffer file with this root table and identifier.

    Examples
    --------
    >>> from isthmus.frontends.flatbuffer import File
    >>> data = flatbuffer({0: ("text", "net"), 2: ("tables", [{1: ("u32", 7)}])}, b"NETD")
    >>> table = File(memoryview(data), "net.dlc").root(b"NETD")
    >>> table.text(0), [each.integer(1, "u32") for each in table.tables(2, "node")]
    ('net', [7])
    """
    out = bytearray(_OFFSET.size) + identifier
    # Nothing recurses: each entry writes one object and lists the objects that it refers to.
    pending: list[tuple[int, Callable[[bytearray], Any]]] = [(0, lambda data: _table(data, root))]
    while pending:
        place, write = pending.pop()
        target, children = write(out)
        _OFFSET.pack_into(out, place, target - place)
        pending += reversed(children)
    return bytes(out)


def _pad(out: bytearray, before: int = 0) -> None:
    """Fill up to a position from which the alignment is met `before` bytes later."""
    out += bytes(-(len(out) + before) % _ALIGNMENT)


def _table(out: bytearray, fields: TableFields) -> Any:
    """Write a table behind its vtable; return its position, and what it refers to."""
    # Wide fields come first, so that each is aligned.
    order = sorted(fields, key=lambda number: -_size(fields[number][0]))
    count = max(fields, default=-1) + 1
    offsets, at = [0] * count, _OFFSET.size
    for number in order:
        size = _size(fields[number][0])
        at += -at % size
        offsets[number] = at
        at += size
    vtable = struct.pack(f"<HH{count}H", 4 + 2 * count, at, *offsets)
    _pad(out, len(vtable))
    start = len(out) + len(vtable)
    out += vtable + struct.pack("<i", len(vtable)) + bytes(at - _OFFSET.size)
    children = []
    for number, (kind, value) in fields.items():
        place = start + offsets[number]
        if kind in SCALARS:
            SCALARS[kind].pack_into(out, place, value)
        else:
            children.append((place, _writer(kind, value)))
    return start, children


def _size(kind: str) -> int:
    """Return the bytes of a field in its table."""
    return SCALARS[kind].size if kind in SCALARS else _OFFSET.size


def _writer(kind: str, value: Any) -> Callable[[bytearray], Any]:
    """Return the function that writes what a field refers to."""
    if kind == "table":
        return lambda out: _table(out, value)
    if kind in ("texts", "tables"):
        return lambda out: _references(out, kind[:-1], value)
    data = value.encode() if kind == "text" else np.ascontiguousarray(value).tobytes()
    return lambda out: _vector(out, data, len(data) if kind == "text" else np.size(value), b"\0" * (kind == "text"))


def _vector(out: bytearray, data: bytes, count: int, end: bytes) -> Any:
    """Write a vector of scalars or the bytes of a text; return its position. It refers to nothing."""
    _pad(out, _OFFSET.size)
    start = len(out)
    out += _OFFSET.pack(count) + data + end
    return start, []


def _references(out: bytearray, kind: str, values: Any) -> Any:
    """Write a vector of tables or texts; return its position, and what it refers to."""
    start, _ = _vector(out, bytes(_OFFSET.size * len(values)), len(values), b"")
    places = range(start + _OFFSET.size, len(out), _OFFSET.size)
    return start, [(place, _writer(kind, value)) for place, value in zip(places, values, strict=True)]
