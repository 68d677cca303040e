"""What memory is goes before where it is mapped: aliases of one memory are seen, and neighbours are told apart."""

import mmap
import os

import numpy as np
import pytest

from isthmus import QnnError, memory
from isthmus.memory import SharedFd, holds
from isthmus.memory.identity import PRIVATE, Span, covering, file_identity, mappings

PAGE = mmap.PAGESIZE


@pytest.fixture
def twice():
    """Two mappings of one memory, and its descriptor."""
    fd = os.memfd_create("twice", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 2 * PAGE)
    yield mmap.mmap(fd, 2 * PAGE), mmap.mmap(fd, 2 * PAGE), fd
    os.close(fd)


def test_two_mappings_of_one_file_are_the_same_memory(twice) -> None:
    one, other, fd = twice
    first, second = memory.window(one), memory.window(other)
    assert first.address != second.address
    assert first.spans == second.spans
    assert holds.overlap(first, second)
    assert holds.overlap(first.part(0, 64), memory.window(memoryview(other)[32:96]))
    assert not holds.overlap(first.part(0, 64), memory.window(memoryview(other)[64:128]))
    assert holds.overlap(first, memory.window(SharedFd(fd, PAGE, 8)))


def test_a_mapping_from_the_middle_of_a_file_knows_its_position(twice) -> None:
    one, _, fd = twice
    tail = mmap.mmap(fd, PAGE, offset=PAGE)
    [span] = memory.window(tail).spans
    assert (span.start, span.nbytes) == (PAGE, PAGE)
    assert holds.overlap(memory.window(memoryview(one)[PAGE : PAGE + 1]), memory.window(tail))
    assert not holds.overlap(memory.window(memoryview(one)[:PAGE]), memory.window(tail))


def test_a_bare_address_a_view_and_the_descriptor_are_the_same_memory(twice) -> None:
    one, other, fd = twice
    address = np.frombuffer(one, np.uint8).ctypes.data
    by_address, by_view = memory.window(address, nbytes=64), memory.window(memoryview(other)[:64])
    assert by_address.spans == by_view.spans == memory.window(SharedFd(fd, 0, 64)).spans


def test_memory_that_is_held_under_one_mapping_is_refused_under_another(twice) -> None:
    one, other, _ = twice
    hold = holds.claim(memory.window(one), "pool", "pool of a test")
    with pytest.raises(QnnError, match="overlaps the pool of a test"):
        holds.claim(memory.window(other), "pool", "another pool")
    with pytest.raises(QnnError, match="its buffer overlaps the pool of a test"):
        holds.refuse_claimed(memory.window(memoryview(other)[8:16]), "tensor 'y'")
    hold.release()


def test_a_buffer_is_not_freed_while_it_is_held_by_another_mapping() -> None:
    buffer = memory.rpcmem.alloc(25, 1, PAGE)
    mine = mmap.mmap(buffer.fd, PAGE)
    hold = holds.claim(memory.window(mine), "pool", "pool of a test")
    with pytest.raises(QnnError, match="pool of a test"):
        buffer.close()
    hold.release()
    buffer.close()


def test_private_memory_is_distinguished_by_address() -> None:
    one, other = memory.host(PAGE), memory.host(PAGE)
    assert one.identity is other.identity is PRIVATE
    assert not holds.overlap(one.window(), other.window())
    assert holds.overlap(one.window(), memory.window(one.address + 64, nbytes=8))


def test_two_files_are_two_memories() -> None:
    one, other = memory.rpcmem.alloc(25, 1, 64), memory.rpcmem.alloc(25, 1, 64)
    assert one.identity != other.identity
    assert not holds.overlap(one.window(), other.window())


def test_a_range_over_two_mappings_has_a_span_of_each(twice) -> None:
    one, _, _ = twice
    start = np.frombuffer(one, np.uint8).ctypes.data
    found = covering(start, 2 * PAGE)
    assert sum(min(mapping.end, start + 2 * PAGE) - max(mapping.start, start) for mapping in found) == 2 * PAGE


def test_spans_overlap_only_in_bytes_of_the_same_memory() -> None:
    here, there = file_identity(1, 2), file_identity(1, 3)
    assert Span(here, 0, 10).overlaps(Span(here, 9, 1))
    assert not Span(here, 0, 10).overlaps(Span(here, 10, 1))
    assert not Span(here, 0, 10).overlaps(Span(there, 0, 10))
    assert not Span(here, 0, 10).overlaps(Span(here, 5, 0))


def test_the_systems_table_is_read_line_by_line(tmp_path) -> None:
    table = tmp_path / "maps"
    table.write_text(
        "00400000-00401000 r-xp 00000000 fd:01 77   /usr/bin/with a space\n"
        "7f0000000000-7f0000002000 rw-s 00001000 00:01 1234   /memfd:x (deleted)\n"
        "7f0000002000-7f0000003000 ---p 00000000 00:00 0 \n"
        "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0   [vsyscall]\n"
    )
    code, shared, hole, _ = mappings(table)
    assert (code.identity, code.position, code.writable) == (PRIVATE, 0x400000, False)
    assert (shared.identity, shared.position) == (file_identity(1, 1234), 0x1000)
    assert (hole.readable, hole.writable) == (False, False)
