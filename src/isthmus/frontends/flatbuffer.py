"""A flatbuffer reader for untrusted files: every offset is checked before it is followed.

Tables, strings and vectors are views of the file. Nothing is copied or allocated in proportion to sizes that the file
claims. Nothing recurses, because the caller requests each table separately.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from isthmus.errors import Code, QnnError

_FORMATS = {
    "bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
    "f32": "f", "f64": "d",
}  # fmt: skip
SCALARS = {kind: struct.Struct(f"<{code}") for kind, code in _FORMATS.items()}
"""The scalar kinds of the flatbuffer format."""

MAX_TEXT = 1024
"""The most bytes of a string that are read, because many tables may point to one long string."""

_U16, _I32, _U32 = SCALARS["u16"], SCALARS["i32"], SCALARS["u32"]
_OFFSET = 4  # bytes of an offset, and of a vector's length; both are aligned to their size


@dataclass(frozen=True)
class File:
    """The bytes of a flatbuffer file; `name` appears in messages."""

    data: memoryview
    name: str

    def refuse(self, rule: str, at: int | None = None) -> NoReturn:
        """Refuse the file and name the location of the fault."""
        where = "" if at is None else f" at byte {at}"
        rule = f"{rule}{where} (the file has {len(self.data)} bytes)"
        hint = "The file is damaged, or it is neither a TFLite file nor a DLC."
        raise QnnError(Code.COMMON_LOADING_BINARIES, f"file '{self.name}'", rule, hint)

    def check(self, at: int, size: int, what: str, align: int = 1) -> None:
        """Refuse a range that is not entirely inside the file or not aligned."""
        if at < 0 or size < 0 or at + size > len(self.data):
            self.refuse(f"{what} of {size} bytes is outside the file", at)
        if at % align:
            self.refuse(f"{what} is not aligned to {align} bytes", at)

    def scalar(self, at: int, kind: struct.Struct, what: str) -> int | float | bool:
        """Read one number at an offset in the file."""
        self.check(at, kind.size, what)
        value: int | float | bool = kind.unpack_from(self.data, at)[0]
        return value

    def follow(self, at: int, what: str) -> int:
        """Return the position that the offset stored at `at` points to."""
        target = at + int(self.scalar(at, _U32, f"the offset of {what}"))
        self.check(target, _OFFSET, what, align=_OFFSET)
        return target

    def root(self, identifier: bytes) -> Table:
        """Return the root table of a file that must carry this identifier."""
        if len(self.data) < 2 * _OFFSET:
            self.refuse("too short for a flatbuffer")
        actual = bytes(self.data[_OFFSET : _OFFSET + len(identifier)])
        if actual != identifier:
            self.refuse(f"the identifier is {actual!r}, expected {identifier!r}", _OFFSET)
        return Table.at(self, self.follow(0, "the root table"), "the root table")


@dataclass(frozen=True)
class Table:
    """A table: fields by number, each optional.

    A table begins with the distance back to its vtable. A vtable is a list of 16-bit numbers: its own size, the size of
    the table, and the offset of each field in the table, 0 for an absent one.

    - `start`, `size`: the table's offset in the file and its size in bytes.
    - `vtable`, `fields`: the vtable's offset in the file and the number of fields that it lists.
    """

    file: File
    start: int
    vtable: int
    fields: int
    size: int
    what: str

    @staticmethod
    def at(file: File, start: int, what: str) -> Table:
        """Return the table at an offset in the file, after checking its vtable."""
        file.check(start, _OFFSET, what, align=_OFFSET)
        vtable = start - int(file.scalar(start, _I32, what))
        file.check(vtable, 4, f"the vtable of {what}", align=2)
        length = int(file.scalar(vtable, _U16, what))
        size = int(file.scalar(vtable + 2, _U16, what))
        if length < 4 or length % 2:
            file.refuse(f"the vtable of {what} has the impossible size {length}", vtable)
        file.check(vtable, length, f"the vtable of {what}")
        if size < _OFFSET:
            file.refuse(f"{what} has the impossible size {size}", start)
        file.check(start, size, what)
        return Table(file, start, vtable, (length - 4) // 2, size, what)

    def refuse(self, rule: str) -> NoReturn:
        """Refuse the file because of this table."""
        self.file.refuse(rule, self.start)

    def place(self, field: int, size: int) -> int | None:
        """Return the position in the file of a field of `size` bytes, or None if the field is absent."""
        if field >= self.fields:
            return None
        offset = int(self.file.scalar(self.vtable + 4 + 2 * field, _U16, self.what))
        if offset == 0:
            return None
        if offset < _OFFSET or offset + size > self.size:
            self.refuse(f"field {field} of {self.what} is outside its table")
        return self.start + offset

    def room(self, field: int) -> int:
        """Return the bytes available for a field, up to the next field or the table's end; 0 if it is absent."""
        positions = [at for other in range(self.fields) if (at := self.place(other, 1)) is not None]
        own = self.place(field, 1)
        if own is None:
            return 0
        return min((at for at in positions if at > own), default=self.start + self.size) - own

    def number(self, field: int, kind: str, default: int | float | bool = 0) -> int | float | bool:
        """Return a scalar field, or its default."""
        scalar = SCALARS[kind]
        at = self.place(field, scalar.size)
        return default if at is None else self.file.scalar(at, scalar, self.what)

    def integer(self, field: int, kind: str, default: int = 0) -> int:
        """Return an integer field, or its default."""
        return int(self.number(field, kind, default))

    def text(self, field: int) -> str | None:
        """Return a string field, cut at `MAX_TEXT` bytes; bytes that are not UTF-8 are replaced."""
        span = self._vector(field, 1)
        if span is None:
            return None
        return self._text(*span)

    def texts(self, field: int) -> list[str]:
        """Return a vector of strings, each cut as by `text`. A string that the file stores once is read once."""
        span = self._vector(field, _OFFSET)
        if span is None:
            return []
        what = f"field {field} of {self.what}"
        texts_by_start: dict[int, str] = {}
        texts = []
        for index in range(span[1]):
            start = self.file.follow(span[0] + _OFFSET * index, what)
            if start not in texts_by_start:
                count = int(self.file.scalar(start, _U32, what))
                self.file.check(start + _OFFSET, count, f"{what}, a string of {count} bytes,")
                texts_by_start[start] = self._text(start + _OFFSET, count)
            texts.append(texts_by_start[start])
        return texts

    def blob(self, field: int) -> memoryview | None:
        """Return a vector of bytes, as a view of the file."""
        span = self._vector(field, 1)
        return None if span is None else self.file.data[span[0] : span[0] + span[1]]

    def table(self, field: int, what: str) -> Table | None:
        """Return a table field, or the value of a union (whose type is a separate field)."""
        at = self.place(field, _OFFSET)
        return None if at is None else Table.at(self.file, self.file.follow(at, what), what)

    def array(self, field: int, dtype: np.dtype | type) -> np.ndarray | None:
        """Return a vector of numbers, as a read-only view of the file."""
        element = np.dtype(dtype).newbyteorder("<")
        span = self._vector(field, element.itemsize)
        if span is None:
            return None
        array = np.frombuffer(self.file.data, element, span[1], span[0])
        array.flags.writeable = False
        return array

    def tables(self, field: int, what: str) -> Tables:
        """Return a vector of tables, each checked when it is accessed. An absent vector is empty."""
        span = self._vector(field, _OFFSET)
        return Tables(self.file, 0, 0, what) if span is None else Tables(self.file, *span, what)

    def _text(self, start: int, count: int) -> str:
        """Return a string of `count` bytes, cut at `MAX_TEXT`."""
        return str(self.file.data[start : start + min(count, MAX_TEXT)], "utf-8", "replace")

    def _vector(self, field: int, itemsize: int) -> tuple[int, int] | None:
        """Return where the elements of a vector field start and how many there are; None if it is absent."""
        at = self.place(field, _OFFSET)
        if at is None:
            return None
        what = f"field {field} of {self.what}"
        start = self.file.follow(at, what)
        count = int(self.file.scalar(start, _U32, what))
        self.file.check(start + _OFFSET, count * itemsize, f"{what}, a vector of {count} elements,")
        return start + _OFFSET, count


@dataclass(frozen=True)
class Tables:
    """A vector of tables.

    - `start`, `count`: the offset in the file of the first element, and the number of elements. Each element is the
      offset of a table.
    """

    file: File
    start: int
    count: int
    what: str

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Table:
        if not 0 <= index < self.count:
            self.file.refuse(f"there is no {self.what} {index}, only {self.count}")
        what = f"{self.what} {index}"
        return Table.at(self.file, self.file.follow(self.start + _OFFSET * index, what), what)

    def __iter__(self) -> Iterator[Table]:
        return (self[index] for index in range(self.count))

    def column(self, field: int, dtype: np.dtype | type) -> np.ndarray:
        """Return one scalar field of all tables as an array, 0 where it is absent; fast for thousands of tables."""
        element = np.dtype(dtype).newbyteorder("<")
        data = np.frombuffer(self.file.data, np.uint8)
        elements = self.start + _OFFSET * np.arange(self.count, dtype=np.int64)
        starts = elements + self._gather(data, elements, np.dtype("<u4"))
        vtables = starts - self._gather(data, starts, np.dtype("<i4"))
        values = np.zeros(self.count, element)
        # Tables with the same fields share a vtable, which is checked once, with the first of these tables.
        order = np.argsort(vtables, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(vtables[order])) + 1) if self.count else ():
            first = self[int(group[0])]
            position = first.place(field, element.itemsize)
            if position is not None:
                values[group] = self._gather(data, starts[group] + (position - first.start), element)
        return values

    def _gather(self, data: np.ndarray, offsets: np.ndarray, element: np.dtype) -> np.ndarray:
        """Read a scalar of type `element` at each of many offsets in the file, whose bytes are `data`."""
        if len(offsets) and (offsets.min() < 0 or offsets.max() + element.itemsize > len(data)):
            self.file.refuse(f"a {self.what} is outside the file")
        scalars = data[offsets[:, None] + np.arange(element.itemsize)]
        return np.ascontiguousarray(scalars).view(element).reshape(-1).astype(element.newbyteorder("="))
