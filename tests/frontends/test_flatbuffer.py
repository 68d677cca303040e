"""The flatbuffer reader follows no offset it has not checked."""

import struct

import numpy as np
import pytest

from isthmus.errors import Code, QnnError
from isthmus.frontends.flatbuffer import File, Table


def table_file(*fields: bytes, tail: bytes = b"") -> bytes:
    """A file whose root table has these fields, each of four bytes, at 12, 16, …; `tail` follows the table."""
    size = 4 + 4 * len(fields)
    offsets = b"".join(struct.pack("<H", 4 + 4 * i) for i in range(len(fields)))
    vtable = struct.pack("<HH", 4 + len(offsets), size) + offsets
    start = 8
    at = start + size + len(tail)
    table = struct.pack("<i", start - at) + b"".join(fields)
    return struct.pack("<I", start) + b"TEST" + table + tail + vtable


def root(data: bytes) -> Table:
    return File(memoryview(data), "f").root(b"TEST")


def refused(action) -> QnnError:
    with pytest.raises(QnnError) as caught:
        action()
    assert caught.value.code is Code.COMMON_LOADING_BINARIES
    return caught.value


def test_numbers_are_read_and_absent_ones_take_their_default() -> None:
    table = root(table_file(struct.pack("<i", -7), struct.pack("<f", 0.5)))
    assert table.integer(0, "i32") == -7
    assert table.number(1, "f32") == 0.5
    assert table.number(2, "i32", 42) == 42


def test_vectors_are_views_of_the_file() -> None:
    data = table_file(struct.pack("<I", 4), tail=struct.pack("<I3i", 3, 5, 6, 7))
    array = root(data).array(0, np.int32)
    assert array.tolist() == [5, 6, 7]
    assert not array.flags.owndata
    assert not array.flags.writeable


def test_strings_that_are_not_text_are_still_read() -> None:
    data = table_file(struct.pack("<I", 4), tail=struct.pack("<I", 4) + b"a\xffbc")
    assert root(data).text(0) == "a\ufffdbc"


def test_vector_longer_than_the_file_is_refused_with_its_place() -> None:
    data = table_file(struct.pack("<I", 4), tail=struct.pack("<I", 1 << 30))
    error = refused(lambda: root(data).array(0, np.int64))
    assert "1073741824 elements" in error.rule
    assert "at byte 20" in error.rule


@pytest.mark.parametrize("offset", [0xFFFFFFF0, 0x7FFFFFF0, 1000, 5])
def test_offset_outside_of_the_file_or_misaligned_is_refused(offset: int) -> None:
    data = table_file(struct.pack("<I", offset))
    refused(lambda: root(data).table(0, "a table"))


def test_field_outside_of_its_table_is_refused() -> None:
    data = bytearray(table_file(struct.pack("<i", 1)))
    data[-2:] = struct.pack("<H", 400)
    refused(lambda: root(bytes(data)).integer(0, "i32"))


@pytest.mark.parametrize("size", [0, 3, 5, 0xFFFF])
def test_impossible_vtable_is_refused(size: int) -> None:
    data = bytearray(table_file(struct.pack("<i", 1)))
    data[-6:-4] = struct.pack("<H", size)
    refused(lambda: root(bytes(data)))


def test_vtable_outside_of_the_file_is_refused() -> None:
    for soffset in (9, -(2**31), 2**31 - 1, -1000):
        refused(lambda soffset=soffset: root(struct.pack("<I", 8) + b"TEST" + struct.pack("<i", soffset) + b"\0" * 8))


def test_wrong_identifier_is_refused() -> None:
    error = refused(lambda: File(memoryview(table_file()), "f").root(b"TFL3"))
    assert "b'TEST'" in error.rule


def test_table_of_a_vector_is_checked_when_it_is_asked_for() -> None:
    data = table_file(struct.pack("<I", 4), tail=struct.pack("<II", 1, 0x10000))
    tables = root(data).tables(0, "item")
    assert len(tables) == 1
    refused(lambda: tables[0])
    refused(lambda: tables[1])
