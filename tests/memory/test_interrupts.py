"""An interrupt at any place of an allocation or of its end loses no memory, no descriptor, no count and no hold."""

import os

import pytest
from support.interruption import Alarm, Interrupt, account, check_every_interrupt, everywhere, left, twice_everywhere
from support.suites import long

from isthmus import memory
from isthmus.memory import holds, resource, rpcmem, tcm
from isthmus.system import reading

BOTH = pytest.mark.parametrize("by", [Interrupt, long(Alarm)])


@BOTH
def test_allocating_shared_memory_may_be_interrupted_anywhere(by) -> None:
    assert check_every_interrupt(lambda: rpcmem.alloc(25, 1, 4096).close(), by=by) > 100


def test_allocating_and_forgetting_shared_memory_may_be_interrupted_anywhere() -> None:
    assert check_every_interrupt(lambda: rpcmem.alloc(25, 1, 4096)) > 100


def test_the_end_of_shared_memory_may_be_interrupted_twice() -> None:
    def action():
        buffer = rpcmem.alloc(25, 1, 4096)
        try:
            buffer.close()
        except Alarm:
            buffer.close()
            raise

    action()
    before, places = account(), 0
    for where in twice_everywhere(action, by=Alarm, step=11):
        more = left(before)
        assert not more, f"{more}: interrupted at {where}"
        places += 1
    assert places > 50


def test_mapping_memory_of_others_may_be_interrupted_anywhere() -> None:
    with rpcmem.alloc(25, 1, 4096) as shared:
        copy = os.memfd_create("of another", os.MFD_ALLOW_SEALING)
        os.ftruncate(copy, 4096)
        check_every_interrupt(lambda: memory.window(memory.SharedFd(copy, 0, 64)))
        os.close(copy)
        check_every_interrupt(lambda: memory.window(memory.SharedFd(shared.fd, 0, 64)))


class Library:
    """A device's library that counts."""

    def __init__(self):
        self.there = set()
        self.rpcmem_alloc2 = self.Function(self)

    class Function:
        def __init__(self, library):
            self.library = library

        def __call__(self, heap, flags, size):
            fd = os.memfd_create("library")
            os.ftruncate(fd, size)
            self.library.there.add(fd + 1)
            return fd + 1

    def rpcmem_to_fd(self, pointer):
        return pointer - 1

    def rpcmem_free(self, pointer):
        self.there.remove(pointer)
        os.close(pointer - 1)


def test_allocating_memory_of_a_library_may_be_interrupted_anywhere() -> None:
    library = Library()

    def check(where):
        assert not library.there, where

    check_every_interrupt(lambda: rpcmem.Library(library).allocate(25, 1, 4096).close(), check, outside=(__file__,))


def test_allocating_tcm_may_be_interrupted_anywhere() -> None:
    pool = tcm.pool()

    def check(where):
        assert pool.free_bytes == tcm.POOL_BYTES, where

    check_every_interrupt(lambda: pool.allocate(100), check)
    check_every_interrupt(lambda: pool.allocate(100).close(), check)


def test_a_buffer_whose_close_was_interrupted_is_closed_by_the_next() -> None:
    made = []

    def action():
        made.append(rpcmem.alloc(25, 1, 4096))
        made[-1].close()

    for where in everywhere(action):
        if made:
            buffer = made.pop()
            buffer.close()
            with pytest.raises(OSError, match="Bad file"):
                os.fstat(buffer.fd)
            assert buffer.is_closed, where
        made.clear()


@BOTH
def test_counting_by_adaptors_may_be_interrupted_anywhere(by) -> None:
    seen = []

    def action():
        with memory.statistics() as counted, memory.audit() as record, memory.limit(1 << 20, "host") as _:
            seen[:] = counted, record, resource.current("host")
            memory.host(100).close()
            memory.host(100)

    plain = [resource.current(kind) for kind in resource.kinds()]

    def check(where):
        assert [resource.current(kind) for kind in resource.kinds()] == plain, f"an adaptor is left: {where}"
        if len(seen) == 3:
            counted, record, outermost = seen
            assert (counted.live_bytes, counted.live_allocations, counted.of("host").live_bytes) == (0, 0, 0), where
            assert not record.live, where
            limits = [outermost] if hasattr(outermost, "_live") else []
            assert [limit._live for limit in limits] == [0] * len(limits), where
        seen.clear()

    assert check_every_interrupt(action, check, by=by, most=4000) > 200


def test_a_hold_that_its_holder_never_got_holds_nothing() -> None:
    with memory.host(4096) as buffer:

        def action():
            holds.claim(buffer.window(), "pool", "pool of a test").release()
            holds.keep(buffer.window(), "memory of a handle").release()

        for where in everywhere(action):
            assert not holds.holders(buffer.window()), where


def test_reading_files_may_be_interrupted_anywhere(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    check_every_interrupt(lambda: reading.contents(path, 100))
    check_every_interrupt(lambda: reading.open_file(path).close())
