"""Shared memory is one memory under many views, has a descriptor, cannot shrink, and is not freed while in use."""

import ctypes
import gc
import mmap
import os
import re
import struct

import numpy as np
import pytest
from support.processes import descriptors, opened_since
from support.suites import LONG

from isthmus import Code, QnnError
from isthmus.memory import holds, rpcmem, shareable, window
from isthmus.memory.shareable import SharedFd, map_whole, shared_file


def alloc(size):
    return rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, size)


def test_all_views_of_a_buffer_are_the_same_memory() -> None:
    with alloc(64) as buffer:
        memoryview(buffer)[0] = 1
        np.asarray(buffer)[1] = 2
        np.from_dlpack(buffer)[2] = 3
        buffer.array[3] = 4
        buffer.view(np.uint8, (2,), offset=4)[:] = 5, 6
        with mmap.mmap(rpcmem.to_fd(buffer), 64) as other:
            assert other[:6] == bytes([1, 2, 3, 4, 5, 6])
            other[6] = 7
        assert buffer.array[6] == 7
        assert window(buffer).address == buffer.array.ctypes.data


def test_memory_is_page_aligned_zeroed_and_faulted_in() -> None:
    with alloc(3 * mmap.PAGESIZE) as buffer:
        assert buffer.address % mmap.PAGESIZE == 0
        assert not buffer.array.any()
        resident = (ctypes.c_ubyte * 3)()
        address = ctypes.c_void_p(buffer.address)
        assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(buffer.nbytes), resident) == 0
        assert all(page & 1 for page in resident)


def test_the_size_cannot_be_changed() -> None:
    with alloc(100) as buffer:
        for size in (50, 200):
            with pytest.raises(OSError, match="not permitted"):
                os.ftruncate(buffer.fd, size)


def test_freeing_ends_the_descriptor_and_is_safe_to_repeat() -> None:
    before = descriptors()
    buffer = alloc(100)
    fd = buffer.fd
    rpcmem.free(buffer)
    rpcmem.free(buffer)
    assert rpcmem.to_fd(buffer) == -1
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    with pytest.raises(QnnError, match="it is closed"):
        _ = buffer.address
    assert not opened_since(before)


def test_what_is_no_buffer_is_ignored_when_freed() -> None:
    for thing in (None, 0, 0x1234, np.zeros(3)):
        rpcmem.free(thing)
        assert rpcmem.to_fd(thing) == -1


def test_a_view_outlives_its_buffer_and_nothing_leaks() -> None:
    before = descriptors()
    buffer = alloc(100)
    view = buffer.array
    view[:] = 7
    buffer.close()
    assert (view == 7).all()
    del buffer, view
    assert not opened_since(before)


def test_a_buffer_that_is_forgotten_is_freed() -> None:
    before = descriptors()
    alloc(100)
    assert not opened_since(before)


def test_memory_in_use_is_not_freed_and_its_users_are_named() -> None:
    buffer = alloc(100)
    uses = [holds.use(buffer.window(), f"memory of handle {n}", lambda: True) for n in (1, 2)]
    with pytest.raises(QnnError, match=r"the memory of handle 1, the memory of handle 2") as refusal:
        rpcmem.free(buffer)
    assert refusal.value.code is Code.COMMON_OPERATION_NOT_PERMITTED
    buffer.array[0] = 1
    for use in uses:
        use.release()
    rpcmem.free(buffer)


def test_alloc_ends_at_two_gibibytes() -> None:
    with pytest.raises(QnnError, match="rpcmem_alloc2 takes 64 bits") as refusal:
        alloc(1 << 31)
    assert refusal.value.code is Code.COMMON_MEM_ALLOC


@LONG
def test_alloc2_does_not_end_at_two_gibibytes() -> None:
    with rpcmem.alloc2(25, 1, (1 << 31) + 4096) as buffer:
        buffer.array[-1] = 9
        assert buffer.nbytes == (1 << 31) + 4096


@pytest.mark.parametrize("size", [0, -1, 1.5, None, True, 1 << 62, 1 << 70])
def test_impossible_sizes_are_refused(size) -> None:
    before = descriptors()
    with pytest.raises(QnnError) as refusal:
        rpcmem.alloc2(25, 1, size)
    assert refusal.value.code is Code.COMMON_MEM_ALLOC
    assert not opened_since(before)


@pytest.mark.parametrize(("heap", "flags"), [(-1, 1), (25, -1), ("x", 1), (25, 1 << 32)])
def test_invalid_heaps_and_flags_are_refused(heap, flags) -> None:
    with pytest.raises(QnnError, match=r"flags less than 2\*\*32"):
        rpcmem.alloc(heap, flags, 10)


def test_views_stay_inside() -> None:
    with alloc(100) as buffer:
        for shape, offset in (((26,), 0), ((1,), 97), ((1,), -4)):
            with pytest.raises(QnnError, match="outside"):
                buffer.view(np.float32, shape, offset)


def test_a_duplicate_of_the_descriptor_leads_to_the_buffer() -> None:
    with alloc(100) as buffer:
        twin = os.dup(buffer.fd)
        try:
            assert window(SharedFd(twin, 0, 100)).buffer is buffer
        finally:
            os.close(twin)


def test_a_source_that_the_machine_lacks_is_refused(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("ISTHMUS_RPCMEM", str(tmp_path / "libcdsprpc.so"))
    with pytest.raises(QnnError, match="cannot be used") as refusal:
        alloc(100)
    assert refusal.value.code is Code.COMMON_PLATFORM_NOT_SUPPORTED
    if not os.path.exists("/dev/dma_heap/system"):
        monkeypatch.setenv("ISTHMUS_RPCMEM", "dma_heap")
        with pytest.raises(QnnError, match="dma_heap") as refusal:
            alloc(100)
        assert refusal.value.code is Code.COMMON_MEM_ALLOC


@pytest.mark.parametrize("size", [1, mmap.PAGESIZE, mmap.PAGESIZE + 1])
def test_memory_of_a_dma_heap_is_asked_for_in_pages_and_shared_by_the_answered_descriptor(
    monkeypatch, tmp_path, size
) -> None:
    heap, asked = tmp_path / "heap", []
    heap.touch()

    def ioctl(fd, code, request):
        length, nothing, flags, heap_flags = struct.unpack("=QIIQ", request)
        asked.append((os.readlink(f"/proc/self/fd/{fd}"), code, length, nothing, flags, heap_flags))
        made = os.memfd_create("heap")
        os.ftruncate(made, length)
        struct.pack_into("=I", request, 8, made)
        return 0

    monkeypatch.setattr(rpcmem, "_DMA_HEAP", str(heap))
    monkeypatch.setattr(rpcmem.fcntl, "ioctl", ioctl)
    monkeypatch.setenv("ISTHMUS_RPCMEM", "dma_heap")
    before = descriptors()
    with alloc(size) as buffer:
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        assert asked == [(str(heap), 0xC0184800, pages, 0, os.O_RDWR | os.O_CLOEXEC, 0)]
        assert (buffer.nbytes, os.fstat(buffer.fd).st_size) == (size, pages)
        buffer.array[-1] = 7
        with mmap.mmap(rpcmem.to_fd(buffer), 0) as other:
            assert other[size - 1] == 7
    assert not opened_since(before)


class DeviceLibrary:
    """What a device's rpcmem library does, with a memfd in its place."""

    def __init__(self):
        self.fds = {}

    def rpcmem_alloc2(self, heap_id, flags, size):
        fd = os.memfd_create("device")
        os.ftruncate(fd, size)
        self.fds[1000 + fd] = fd
        return 1000 + fd

    def rpcmem_to_fd(self, pointer):
        return self.fds[pointer]

    def rpcmem_free(self, pointer):
        os.close(self.fds.pop(pointer))


def test_a_device_library_allocates_memory_and_frees_it() -> None:
    library = DeviceLibrary()
    with rpcmem.Library(library).allocate(25, 1, 100) as buffer:
        buffer.array[:] = 3
        assert os.pread(next(iter(library.fds.values())), 100, 0) == bytes([3]) * 100
    assert not library.fds


def test_descriptors_of_anything_but_shared_memory_are_refused(tmp_path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    file = os.open(tmp_path / "file", os.O_RDWR)
    pipe = os.pipe()
    folder = os.open(tmp_path, os.O_RDONLY)
    closed = os.dup(file)
    os.close(closed)
    try:
        for fd in (file, *pipe, folder, closed, -1, None, "3", True, 1 << 40):
            with pytest.raises(QnnError) as refusal:
                shared_file(fd, "memory")
            assert refusal.value.code is Code.MEM_INVALID_ARGUMENT
    finally:
        for fd in (file, *pipe, folder):
            os.close(fd)


def test_memory_that_cannot_be_mapped_is_refused() -> None:
    fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    try:
        with pytest.raises(QnnError) as refusal:
            map_whole(fd, 1 << 62, "memory")
        assert refusal.value.code is Code.MEM_MAPPING
    finally:
        os.close(fd)


@pytest.mark.parametrize("where", ["shared_file", "remember"])
def test_an_interrupt_on_the_way_to_a_buffer_closes_its_descriptor_once(where, monkeypatch) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*arguments):
        raise Interrupted

    module = rpcmem if where == "remember" else shareable
    monkeypatch.setattr(module, where, interrupt)
    before = descriptors()
    with pytest.raises(Interrupted) as problem:
        rpcmem.alloc(25, 1, 64)
    # Whoever opens the next descriptor gets the same number, and keeps it when the buffer that was not made goes.
    fd = os.open("/dev/null", os.O_RDONLY)
    del problem
    gc.collect()
    os.fstat(fd)
    os.close(fd)
    assert not opened_since(before)


def test_an_interrupt_while_foreign_memory_is_mapped_leaks_no_descriptor(monkeypatch) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*arguments):
        raise Interrupted

    fd = os.memfd_create("theirs", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    monkeypatch.setattr(shareable.MappedBuffer, "__init__", interrupt)
    before = descriptors()
    with pytest.raises(Interrupted):
        window(SharedFd(fd, 0, 64))
    gc.collect()
    assert not opened_since(before)
    os.close(fd)


@pytest.mark.parametrize("descriptor", [-1, 1 << 31, (1 << 32) - 1, 1 << 70, 1.5, True, None, "3"])
def test_what_can_be_no_descriptor_is_refused_by_its_value(descriptor) -> None:
    with pytest.raises(QnnError, match=re.escape(f"file descriptor {descriptor!r} is not one")) as refusal:
        shared_file(descriptor, "memory")
    assert refusal.value.code is Code.MEM_INVALID_ARGUMENT


def test_the_largest_descriptor_is_looked_up() -> None:
    with pytest.raises(QnnError, match=f"file descriptor {(1 << 31) - 1} cannot be used: Bad file descriptor"):
        shared_file((1 << 31) - 1, "memory")
