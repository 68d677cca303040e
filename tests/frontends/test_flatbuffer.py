"""The flatbuffer reader follows no offset it has not checked."""

import contextlib
import struct

import numpy as np
import pytest
from support import dlc_write

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


def written(root: dlc_write.Table) -> Table:
    return File(memoryview(dlc_write.flatbuffer(root, b"TEST")), "f").root(b"TEST")


def test_texts_are_read_in_their_order_and_those_stored_once_are_read_once() -> None:
    texts = written({0: ("texts", ["a", "b", "a", ""])}).texts(0)
    assert texts == ["a", "b", "a", ""]
    assert texts[0] is texts[2]
    assert written({0: ("texts", [])}).texts(0) == []
    assert written({1: ("u8", 1)}).texts(0) == []


def test_a_text_longer_than_the_file_is_refused() -> None:
    data = bytearray(dlc_write.flatbuffer({0: ("texts", ["first", "second"])}, b"TEST"))
    place = data.index(b"second") - 4
    for length, right in ((6, True), (len(data) - place - 4, True), (len(data) - place - 3, False), (1 << 31, False)):
        data[place : place + 4] = struct.pack("<I", length)
        table = File(memoryview(bytes(data)), "f").root(b"TEST")
        if right:
            assert table.texts(0)[1][:6] == "second"
        else:
            assert f"a string of {length} bytes" in refused(lambda table=table: table.texts(0)).rule


def test_bytes_are_a_view_of_the_file() -> None:
    table = written({0: ("bytes", b"12345")})
    assert table.blob(0).obj is table.file.data.obj
    assert bytes(table.blob(0)) == b"12345"
    assert table.blob(1) is None


def test_the_room_of_a_field_ends_where_the_next_begins() -> None:
    table = written({0: ("u32", 1), 1: ("i64", 2), 2: ("u8", 3)})
    assert table.room(1) >= 8
    assert table.room(0) >= 4
    assert table.room(3) == 0
    assert written({0: ("u32", 1), 1: ("i32", 2)}).room(1) == 4


def test_a_field_read_of_many_tables_is_that_of_each_table() -> None:
    rows = [{0: ("u32", i)} if i % 3 else {0: ("u32", i), 2: ("f32", i / 2)} for i in range(50)]
    tables = written({0: ("tables", rows)}).tables(0, "row")
    assert tables.column(0, np.uint32).tolist() == [table.integer(0, "u32") for table in tables] == list(range(50))
    assert tables.column(2, np.float32).tolist() == [table.number(2, "f32") for table in tables]
    assert tables.column(9, np.float32).tolist() == [0.0] * 50
    assert written({0: ("tables", [])}).tables(0, "row").column(0, np.uint32).tolist() == []


def test_a_column_never_leaves_the_file() -> None:
    rows = [{0: ("u32", i)} for i in range(5)]
    data = dlc_write.flatbuffer({0: ("tables", rows)}, b"TEST")
    rng = np.random.default_rng(0)
    for _ in range(2000):
        damaged = bytearray(data)
        damaged[rng.integers(8, len(data))] = rng.integers(256)
        with contextlib.suppress(QnnError):
            File(memoryview(damaged), "f").root(b"TEST").tables(0, "row").column(0, np.uint32)
