"""Whatever a client brings becomes a window by one set of checks: each kind is taken, each mistake refused in words."""

import array
import ctypes
import mmap
import os
import resource
import sys

import numpy as np
import pytest

from isthmus import Code, QnnError, memory
from isthmus.memory import SharedFd

PAGE = mmap.PAGESIZE


def refused(rule, code=Code.COMMON_INVALID_ARGUMENT):
    return pytest.raises(QnnError, match=rf"^\[{int(code)} {code.name}\] buffer.*: .*{rule}")


@pytest.fixture
def pages():
    """Three pages of which the middle one may be neither read nor written until `allow` says so."""
    whole = mmap.mmap(-1, 3 * PAGE)
    array = np.frombuffer(whole, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect

    def allow(access):
        assert protect(ctypes.c_void_p(array.ctypes.data + PAGE), ctypes.c_size_t(PAGE), access) == 0

    allow(0)
    yield array.ctypes.data, allow
    allow(mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        (0, "its address is null"),
        (-128, "its address -128 is negative"),
        (1 << 64, "beyond the address space"),
        ((1 << 64) - 10, "beyond the address space"),
        (1 << 70, "beyond the address space"),
        ((1 << 64) - 128, "are not memory of this process"),
        (PAGE, "are not memory of this process"),
    ],
)
def test_an_address_that_is_no_memory_is_refused(address, rule) -> None:
    with refused(rule):
        memory.window(address, nbytes=64)


def test_an_address_needs_a_size() -> None:
    with refused("comes without a size"):
        memory.window(memory.host(64).address)


def test_an_address_may_be_one_of_numpys_numbers() -> None:
    with memory.host(64) as buffer:
        window = memory.window(np.uint64(buffer.address), nbytes=np.int32(64))
        window.view(np.uint8, (64,))[:] = 5
        assert (buffer.array == 5).all()


def test_a_range_with_a_gap_or_without_rights_is_refused(pages) -> None:
    start, allow = pages
    with refused("cannot be read"):
        memory.window(start, nbytes=2 * PAGE)
    allow(mmap.PROT_READ)
    with refused("cannot be written"):
        memory.window(start, nbytes=2 * PAGE)
    assert memory.window(start, nbytes=2 * PAGE, writable=False).nbytes == 2 * PAGE
    assert memory.window(start, nbytes=PAGE).nbytes == PAGE


@pytest.mark.parametrize(
    ("nbytes", "rule"),
    [(-1, "its size -1 is negative"), (1.5, "1.5 is not an integer"), (65, "said to have 65 bytes, .* has 64")],
)
def test_a_size_that_cannot_be_meant_is_refused(nbytes, rule) -> None:
    with pytest.raises(QnnError, match=rule):
        memory.window(memory.host(64), nbytes=nbytes)


def released():
    view = memoryview(bytearray(8))
    view.release()
    return view


def closed(what):
    what.close()
    return what


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: bytes(8), "read-only"),
        (lambda: memoryview(bytearray(8)).toreadonly(), "read-only"),
        (lambda: mmap.mmap(-1, 64, prot=mmap.PROT_READ), "read-only"),
        (lambda: np.broadcast_to(np.zeros(1), (4,)), "not contiguous"),
        (lambda: np.zeros((4, 4))[:, ::2], "not contiguous"),
        (lambda: np.asfortranarray(np.zeros((4, 4))), "not contiguous"),
        (lambda: memoryview(bytearray(8))[::2], "not contiguous"),
        (lambda: np.array([None]), "holds Python objects"),
        (lambda: ctypes.c_void_p(4096), "a c_void_p is a pointer"),
        (lambda: ctypes.c_char_p(b"text"), "a c_char_p is a pointer"),
        (lambda: ctypes.pointer(ctypes.c_int(3)), "a LP_c_int is a pointer"),
        (lambda: ctypes.byref(ctypes.c_int(3)), "exposes no memory"),
        (lambda: object(), "a object exposes no memory"),
        (lambda: "text", "a str exposes no memory"),
        (lambda: [1, 2], "a list exposes no memory"),
        (lambda: None, "a NoneType exposes no memory"),
        (lambda: True, "a bool exposes no memory"),
        (lambda: 1.5, "a float exposes no memory"),
        (released, "exposes no memory"),
        (lambda: closed(mmap.mmap(-1, 64)), "exposes no memory"),
    ],
)
def test_what_cannot_be_memory_to_work_in_is_refused(make, rule) -> None:
    with refused(rule):
        memory.window(make())


def test_a_closed_buffer_and_its_windows_are_refused() -> None:
    buffer = memory.host(64)
    window = buffer.window()
    buffer.close()
    for gone in (buffer, window):
        with pytest.raises(QnnError, match="it is closed"):
            memory.window(gone)


def test_the_pointer_hint_says_what_to_pass_instead() -> None:
    with pytest.raises(QnnError) as refusal:
        memory.window(ctypes.c_void_p(1), "tensor 'y'", code=Code.GRAPH_INVALID_TENSOR)
    assert refusal.value.code is Code.GRAPH_INVALID_TENSOR
    assert refusal.value.what == "tensor 'y'"
    assert "address as an integer together with a size" in refusal.value.hint


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(64),
        lambda: array.array("b", bytes(64)),
        lambda: np.zeros(16, np.float32),
        lambda: np.zeros((2, 4, 2), np.complex64)[1:],
        lambda: memoryview(bytearray(128))[64:],
        lambda: mmap.mmap(-1, 64),
        lambda: (ctypes.c_uint8 * 64)(),
        lambda: memory.host(64),
        lambda: memory.host(128).window(64),
        lambda: memory.rpcmem.alloc(25, 1, 64),
        lambda: np.from_dlpack(memory.host(64)),
    ],
)
def test_every_kind_of_memory_is_used_in_place(make) -> None:
    owner = make()
    window = memory.window(owner)
    assert window.nbytes == 64
    window.view(np.uint8, (64,))[:] = np.arange(64)
    seen = owner.view(np.uint8, (64,)) if isinstance(owner, memory.Window) else np.frombuffer(owner, np.uint8)
    assert np.array_equal(seen, np.arange(64))


def test_read_only_memory_may_be_read() -> None:
    assert memory.window(b"input", writable=False).view(np.uint8, (5,)).tobytes() == b"input"


def test_a_view_of_a_buffer_is_a_window_of_that_buffer() -> None:
    pool = memory.tcm.TcmPool()
    for make in (memory.host, lambda nbytes: memory.host(nbytes, 1 << 16), memory.rpcmem.share, pool.allocate):
        buffer = make(256)
        for view in (buffer.array[64:128], memoryview(buffer)[64:128], buffer.view(np.float32, (16,), 64)):
            window = memory.window(view)
            assert (window.buffer, window.offset, window.nbytes) == (buffer, 64, 64)


def test_a_window_keeps_its_memory_alive() -> None:
    window = memory.window(np.full(1000, 7, np.uint8))
    assert (window.view(np.uint8, (1000,)) == 7).all()


def test_a_window_inside_a_window_stays_inside() -> None:
    window = memory.host(256).window(64, 128)
    part = window.part(32, 16)
    assert (part.offset, part.nbytes, part.address) == (96, 16, window.address + 32)
    for offset, nbytes in ((-1, 8), (0, 129), (120, 9), (0, -1)):
        with pytest.raises(QnnError, match="outside a window of 128 bytes"):
            window.part(offset, nbytes)


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, None), (65, None), (0, 65), (1.5, None), ("a", None), (0, 1.5)])
def test_a_window_outside_its_buffer_is_refused(offset, nbytes) -> None:
    with pytest.raises(QnnError, match=r"are outside|is not an integer"):
        memory.host(64).window(offset, nbytes)


def test_a_check_names_what_is_too_short_or_misaligned() -> None:
    window = memory.host(128, 64).window(1, 100)
    with pytest.raises(QnnError, match="scratch memory: has 100 bytes, 101 are needed"):
        window.check("scratch memory", 101)
    with pytest.raises(QnnError, match=r"scratch memory: starts at .* not a multiple of 2"):
        window.check("scratch memory", 100, alignment=2)


def test_empty_memory_is_a_window_of_nothing() -> None:
    for owner in (memory.host(0), bytearray(), np.zeros(0, np.float32), memory.host(64).window(8, 0)):
        assert memory.window(owner).nbytes == 0
    assert memory.window(0, nbytes=0).nbytes == 0


def test_shared_memory_is_named_by_descriptor_offset_and_size() -> None:
    with memory.rpcmem.alloc(25, 1, 256) as buffer:
        window = memory.window(SharedFd(buffer.fd, 64, 128))
        assert (window.buffer, window.offset, window.nbytes) == (buffer, 64, 128)


@pytest.mark.parametrize(
    ("offset", "nbytes", "code"),
    [
        (0, 257, Code.MEM_INVALID_SHAPE),
        (256, 1, Code.MEM_INVALID_SHAPE),
        (-1, 8, Code.MEM_INVALID_SHAPE),
        (0, -1, Code.MEM_INVALID_SHAPE),
        ("0", 8, Code.MEM_INVALID_ARGUMENT),
        (0, 1.5, Code.MEM_INVALID_ARGUMENT),
    ],
)
def test_bytes_outside_shared_memory_are_refused(offset, nbytes, code) -> None:
    with memory.rpcmem.alloc(25, 1, 256) as buffer, pytest.raises(QnnError) as refusal:
        memory.window(SharedFd(buffer.fd, offset, nbytes))
    assert refusal.value.code is code


def test_a_foreign_descriptor_is_mapped_once_and_may_be_closed() -> None:
    fd = os.memfd_create("foreign", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE)
    first, second = memory.window(SharedFd(fd, 0, 64)), memory.window(SharedFd(fd, 64, 64))
    assert first.buffer is second.buffer
    os.close(fd)
    first.view(np.uint8, (64,))[:] = 9
    assert (first.buffer.array[:64] == 9).all()


def test_a_file_that_has_grown_is_mapped_again() -> None:
    fd = os.memfd_create("growing", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, PAGE)
        first = memory.window(SharedFd(fd, 0, PAGE))
        os.ftruncate(fd, 2 * PAGE)
        second = memory.window(SharedFd(fd, PAGE, PAGE))
        second.view(np.uint8, (PAGE,))[:] = 3
        assert first.buffer.identity == second.buffer.identity
    finally:
        os.close(fd)


def test_further_kinds_of_memory_can_be_adopted(monkeypatch) -> None:
    class Device:
        def __init__(self):
            self.buffer = memory.host(64)

    monkeypatch.setattr(sys.modules["isthmus.memory.adopt"], "_adopters", [])
    memory.adopt(lambda thing: thing.buffer if isinstance(thing, Device) else None)
    device = Device()
    assert memory.window(device).buffer is device.buffer
    device.buffer.close()
    with pytest.raises(QnnError, match="it is closed"):
        memory.window(device)


def test_an_address_in_a_process_without_descriptors_is_refused_with_a_code() -> None:
    buffer = memory.host(64)
    address = buffer.address
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        with pytest.raises(QnnError) as refusal:
            memory.window(address, nbytes=64)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert refusal.value.code is Code.COMMON_SYSTEM


def test_an_adoption_can_be_ended_and_others_stay(monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["isthmus.memory.adopt"], "_adopters", [])

    class Thing:
        buffer = memory.host(64)

    def read(owner):
        return owner.buffer if isinstance(owner, Thing) else None

    first, second = memory.adopt(read), memory.adopt(read)
    first()
    first()
    assert memory.window(Thing()).nbytes == 64
    second()
    with pytest.raises(QnnError, match="exposes no memory"):
        memory.window(Thing())
