"""A client's memory is read and written where it is, and an address where none is raises an error."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from isthmus.cabi import client
from isthmus.cabi.client import BadPointer

PAGE = mmap.PAGESIZE
NOT_MEMORY = r"^\d+ bytes at 0x[0-9a-f]+ are not memory of this process$"


class Pages:
    """Two pages, of which the second cannot be accessed."""

    def __init__(self) -> None:
        mapping = mmap.mmap(-1, 2 * PAGE)
        self.bytes = (ctypes.c_char * (2 * PAGE)).from_buffer(mapping)
        self.address = ctypes.addressof(self.bytes)
        self.end = self.address + PAGE
        self._protect(0)

    def _protect(self, access: int) -> None:
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(self.end), PAGE, access) == 0

    def close(self) -> None:
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.fixture
def pages() -> Iterator[Pages]:
    made = Pages()
    yield made
    made.close()


@pytest.fixture(params=["the kernel", "plain accesses"])
def copier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how memory is copied: where a system lacks the kernel's calls, by plain accesses."""
    if request.param != "the kernel":
        monkeypatch.setattr(client, "_COPIERS", {True: None, False: None})
    return str(request.param)


@pytest.mark.usefixtures("copier")
def test_memory_is_copied_to_its_last_byte(pages: Pages) -> None:
    content = bytes(range(1, 101))
    client.write_bytes(pages.end - 100, content)
    assert client.read_bytes(pages.end - 100, 100) == content
    assert client.read_bytes(pages.end - 101, 2) == b"\0\1"
    assert bytes(client.read_large(pages.end - 100, 100)) == content
    assert client.read_array(pages.end - 100, np.uint8, (10, 10)).tobytes() == content
    assert client.read(pages.end - 8, ctypes.c_uint32, 1).value == int.from_bytes(content[-4:], "little")
    client.write_number(pages.end - 4, 0x01020304, ctypes.c_uint32)
    assert client.read_bytes(pages.end - 5, 5) == bytes([96, 4, 3, 2, 1])
    client.write_number(pages.end - 8, 5)
    assert client.read_bytes(pages.end - 8, 8) == b"\5" + bytes(7)
    client.write(pages.end - 2, ctypes.c_uint16(0x0102))
    assert client.read_bytes(pages.end - 2, 2) == b"\2\1"
    target = ctypes.create_string_buffer(4)
    client.read_into(ctypes.addressof(target) + 1, pages.end - 2, 2)
    assert target.raw == b"\0\2\1\0"


def test_memory_that_is_not_there_is_an_error(pages: Pages) -> None:
    for call in (
        lambda: client.read_bytes(pages.end - 1, 2), lambda: client.read_bytes(pages.end, 1),
        lambda: client.read_large(pages.end - 1, 2), lambda: client.read_large(pages.end - 1, 1 << 46),
        lambda: client.read_array(pages.end - 3, np.uint32, (1,)), lambda: client.read(pages.end - 7, ctypes.c_uint64),
        lambda: client.read(pages.end - 8, ctypes.c_uint64, 1), lambda: client.write_bytes(pages.end - 1, b"ab"),
        lambda: client.write_number(pages.end - 7, 1), lambda: client.write(pages.end - 3, ctypes.c_uint32(1)),
    ):  # fmt: skip
        with pytest.raises(BadPointer, match=NOT_MEMORY):
            call()
    for call in (
        lambda: client.read_bytes(0, 1), lambda: client.read(0, ctypes.c_uint64), lambda: client.write_number(0, 1),
        lambda: client.write_bytes(0, b"a"), lambda: client.write_bytes(0, b""), lambda: client.checked(0),
        lambda: client.read_array(0, np.uint8, (1,)),
    ):  # fmt: skip
        with pytest.raises(BadPointer, match=r"^a pointer is null$"):
            call()


def test_the_last_byte_of_large_memory_is_read_first(pages: Pages) -> None:
    """No memory is mapped for a size that is wrong."""
    with pytest.raises(BadPointer, match=rf"^1 bytes at {pages.end:#x} are not memory of this process$"):
        client.read_large(pages.end - 1, 2)


def test_partly_mapped_memory_is_an_error(pages: Pages) -> None:
    """The kernel copies up to the end of the memory, and says how much that was."""
    with pytest.raises(BadPointer, match=NOT_MEMORY):
        client.read_bytes(pages.address, PAGE + 1)
    with pytest.raises(BadPointer, match=NOT_MEMORY):
        client.write_bytes(pages.address, bytes(PAGE + 1))


def test_reading_no_bytes_touches_no_memory() -> None:
    assert client.read_bytes(0x10, 0) == b""
    assert client.read_array(0, np.uint32, (0,)).shape == (0,)
    assert client.read_array(0x10, np.uint32, (3, 0)).shape == (3, 0)


def test_an_empty_text_writes_nothing(pages: Pages) -> None:
    client.write_bytes(pages.end - 1, b"")
    client.write_bytes(pages.end - 1, memoryview(b"x"))
    assert client.read_bytes(pages.end - 1, 1) == b"x"


def limited(monkeypatch: pytest.MonkeyPatch, most: int, refuses: bool) -> list[int]:
    """Have the kernel copy so many bytes in a call, and refuse every other call; how many bytes each was to copy."""
    kernel, calls = dict(client._COPIERS), []

    def copying(write: bool) -> Callable[..., int]:
        def copy(process: int, *arguments: Any) -> int:
            local, one, remote, other, flags = arguments
            assert (one, other, flags) == (1, 1, 0)
            assert local._obj.length == remote._obj.length
            calls.append(local._obj.length)
            if refuses and len(calls) % 2 == 0:
                ctypes.set_errno(1)
                return -1
            for span in (local, remote):
                span._obj.length = min(span._obj.length, most)
            return int(kernel[write](process, *arguments))

        return copy

    monkeypatch.setattr(client, "_COPIERS", {True: copying(True), False: copying(False)})
    return calls


def test_where_the_kernel_refuses_the_rest_is_copied_plainly(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = limited(monkeypatch, 2, refuses=True)
    client.write_bytes(pages.end - 6, b"abcdef")
    assert pages.bytes[PAGE - 6 : PAGE] == b"abcdef"
    assert client.read_bytes(pages.end - 6, 6) == b"abcdef"
    assert calls == [6, 4, 6, 4]


def test_what_the_kernel_copies_in_parts_is_whole(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = limited(monkeypatch, 4, refuses=False)
    client.write_bytes(pages.end - 10, b"abcdefghij")
    assert client.read_bytes(pages.end - 10, 10) == b"abcdefghij"
    assert calls == [10, 6, 2] * 2


def test_texts_end_within_a_page_or_in_the_next(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    pages.bytes[PAGE - 6 : PAGE] = b"hello\0"
    assert client.text(pages.end - 6) == "hello"
    assert client.text(pages.end - 1) == ""
    assert client.text(0) is None
    pages.bytes[PAGE - 1 : PAGE] = b"!"
    with pytest.raises(BadPointer, match=NOT_MEMORY):
        client.text(pages.end - 6)
    long = ctypes.create_string_buffer(b"x" * (2 * PAGE) + b"\xff")
    assert client.text(ctypes.addressof(long)) == "x" * (2 * PAGE) + "\\xff"
    monkeypatch.setattr(client, "MAX_TEXT", 2 * PAGE)
    endless = mmap.mmap(-1, 4 * PAGE)
    endless.write(b"x" * (4 * PAGE))
    place = ctypes.addressof(ctypes.c_char.from_buffer(endless))
    with pytest.raises(BadPointer, match=rf"^the text at {place:#x} does not end within {2 * PAGE} bytes$"):
        client.text(place)
    endless[2 * PAGE - 1] = 0
    assert client.text(place) == "x" * (2 * PAGE - 1)


def test_lists_of_pointers_end_with_a_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_CONFIGS", 3)
    numbers = [ctypes.c_uint32(number) for number in (5, 6, 7)]
    listed = (ctypes.c_uint64 * 4)(*map(ctypes.addressof, numbers))
    place = ctypes.addressof(listed)
    rule = rf"^the list at {place:#x} has no null pointer among its first 3 entries$"
    with pytest.raises(BadPointer, match=rule):
        list(client.listed(place, ctypes.c_uint32))
    listed[2] = 0
    assert [each.value for each in client.listed(place, ctypes.c_uint32)] == [5, 6]
    assert list(client.listed(0, ctypes.c_uint32)) == []
    assert [each.value for each in client.listed_all(place, ctypes.c_uint32, 2)] == [5, 6]
    assert client.listed_all(place, ctypes.c_uint32, 0) == []
    with pytest.raises(BadPointer, match=r"^a pointer is null$"):
        client.listed_all(place, ctypes.c_uint32, 3)


def test_the_limits_of_texts_and_lists_are_those_of_the_documents() -> None:
    assert (client.MAX_TEXT, client.MAX_CONFIGS) == (65536, 256)


def test_a_pointer_field_is_an_address() -> None:
    class Pointing(ctypes.Structure):
        _fields_ = [("number", ctypes.c_uint32), ("text", ctypes.c_char_p), ("other", ctypes.POINTER(ctypes.c_int))]

    number = ctypes.c_int(5)
    made = Pointing(1, None, ctypes.pointer(number))
    assert client.pointer(made, "text") == 0
    assert client.pointer(made, "other") == ctypes.addressof(number)


def test_large_memory_is_a_copy_that_cannot_be_written(pages: Pages) -> None:
    view = client.read_large(pages.address, PAGE)
    pages.bytes[:1] = b"z"
    assert (view.readonly, view.nbytes, view[0]) == (True, PAGE, 0)
