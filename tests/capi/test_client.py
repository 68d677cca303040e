"""The client's memory is copied by the kernel: all of it, in as many pieces as it takes, or the pointer is refused."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capi.qnn_calls import Client, at, doubling, opened
from isthmus.cabi import client as memory
from isthmus.cabi import types
from isthmus.cabi.system import BinaryInfo
from isthmus.errors import Code

PAGE = mmap.PAGESIZE


class Pages:
    """Pages of which one in the middle is not there."""

    def __init__(self, count: int = 3, hole: int = 1) -> None:
        self._mapping = mmap.mmap(-1, count * PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self.nbytes = count * PAGE
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(self.address + hole * PAGE), PAGE, 0)

    def __del__(self) -> None:
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(self.address), self.nbytes, mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.mark.parametrize("write", [False, True])
def test_what_the_kernel_copies_in_pieces_arrives_whole(write: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    copier, calls = memory._COPIERS[write], []

    def in_pieces(pid: int, local: Any, one: int, remote: Any, other: int, flags: int) -> int:
        # 2 GiB less a page is what the kernel copies at once; so small a limit is one that a test can meet.
        local._obj.length = remote._obj.length = min(1000, local._obj.length)
        calls.append(local._obj.length)
        return int(copier(pid, local, one, remote, other, flags))

    monkeypatch.setitem(memory._COPIERS, write, in_pieces)
    theirs = ctypes.create_string_buffer(bytes(range(250)) * 10, 2500)
    if write:
        memory.write_bytes(ctypes.addressof(theirs), bytes(range(250))[::-1] * 10)
        assert theirs.raw == bytes(range(250))[::-1] * 10
    else:
        assert memory.read_bytes(ctypes.addressof(theirs), 2500) == bytes(range(250)) * 10
    assert calls == [1000, 1000, 500]


def test_memory_with_a_hole_is_refused_to_read_and_to_write() -> None:
    pages = Pages()
    for action in (
        lambda: memory.read_bytes(pages.address, pages.nbytes),
        lambda: memory.read_large(pages.address, pages.nbytes),
        lambda: memory.write_bytes(pages.address, bytes(pages.nbytes)),
    ):
        with pytest.raises(memory.BadPointer, match=f"{pages.nbytes} bytes at {pages.address:#x} are not memory"):
            action()


def test_a_binary_with_unreadable_pages_is_answered_with_an_error(client: Client, libraries: Path) -> None:
    backend, _ = opened(client)
    pages, out = Pages(), ctypes.c_void_p()
    restore = client.contextCreateFromBinary
    assert restore(backend, None, None, pages.address, pages.nbytes, ctypes.byref(out), None) == 5000
    assert client.contextValidateBinary(backend, None, None, pages.address, pages.nbytes) == 5000
    # Nor is memory allocated for a size that nothing confirms.
    assert restore(backend, None, None, pages.address, 1 << 39, ctypes.byref(out), None) == 5000
    system = Client(libraries / "libQnnSystem.so")
    handle, info = ctypes.c_void_p(), ctypes.POINTER(BinaryInfo)()
    system.do("systemContextCreate", ctypes.byref(handle))
    answer = system.systemContextGetBinaryInfo(handle, pages.address, pages.nbytes, ctypes.byref(info), None)
    assert answer == Code.COMMON_INVALID_ARGUMENT
    system.do("systemContextFree", handle)
    client.do("backendFree", backend)


def test_a_binary_is_not_written_to_where_there_is_no_memory(client: Client) -> None:
    backend, context = opened(client)
    doubling(client, context)
    size, written = ctypes.c_uint64(), ctypes.c_uint64()
    client.do("contextGetBinarySize", context, ctypes.byref(size))
    pages = Pages(2 + size.value // PAGE, 0)
    assert client.contextGetBinary(context, pages.address, pages.nbytes, ctypes.byref(written)) == 5000
    client.do("backendFree", backend)


@pytest.mark.parametrize("wild", [1, 4, 16, (1 << 64) - 144, None], ids=["1", "4", "16", "last", "forbidden"])
def test_tensors_at_unreadable_addresses_are_answered_with_an_error(client: Client, wild: int | None) -> None:
    pages = Pages(1, 0)
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    given, found = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    tensors = (types.Tensor * 2)(at(x, given), at(y, found))
    right = [ctypes.cast(ctypes.pointer(tensor), ctypes.POINTER(types.Tensor)) for tensor in tensors]
    wrong = ctypes.cast(ctypes.c_void_p(pages.address if wild is None else wild), ctypes.POINTER(types.Tensor))
    for inputs, outputs in ((wrong, right[1]), (right[0], wrong)):
        assert client.graphExecute(graph, inputs, 1, outputs, 1, None, None) == Code.GRAPH_INVALID_ARGUMENT
    client.do("graphExecute", graph, right[0], 1, right[1], 1, None, None)
    assert found.tolist() == [[2.0] * 8]
    client.do("backendFree", backend)


def test_lists_that_end_in_unreadable_memory_are_answered_with_an_error(client: Client) -> None:
    """The first tensor, or the first dimension, can be read, and the next begins on a page that is not there."""
    pages = Pages()
    end = pages.address + PAGE
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    given, found = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    right = [(types.Tensor * 1)(at(x, given)), (types.Tensor * 1)(at(y, found))]
    size, kind = ctypes.sizeof(types.Tensor), ctypes.POINTER(types.Tensor)
    for place in range(2):
        ctypes.memmove(end - size, right[place], size)
        lists: list[Any] = list(right)
        lists[place] = ctypes.cast(ctypes.c_void_p(end - size), kind)
        counts = [1 + (place == 0), 1 + (place == 1)]
        answer = client.graphExecute(graph, lists[0], counts[0], lists[1], counts[1], None, None)
        assert answer == Code.GRAPH_INVALID_ARGUMENT
        dimension = ctypes.c_uint32(1)
        ctypes.memmove(end - 4, ctypes.byref(dimension), 4)
        changed = (types.Tensor * 1)(right[place][0])
        changed[0].v1.dimensions = ctypes.cast(ctypes.c_void_p(end - 4), ctypes.POINTER(ctypes.c_uint32))
        lists[place] = changed
        assert client.graphExecute(graph, lists[0], 1, lists[1], 1, None, None)
    client.do("graphExecute", graph, right[0], 1, right[1], 1, None, None)
    assert found.tolist() == [[2.0] * 8]
    client.do("backendFree", backend)


def test_tables_and_infrastructure_are_not_written_to_where_there_is_no_memory(htp: Client, libraries: Path) -> None:
    wild, count = ctypes.c_void_p(16), ctypes.c_uint32()
    ask = htp.library.QnnInterface_getProviders
    assert ask(wild, ctypes.byref(count)) == Code.COMMON_INVALID_ARGUMENT
    assert htp.deviceGetInfrastructure(ctypes.cast(wild, ctypes.POINTER(ctypes.c_void_p))) == 1004
    system = Client(libraries / "libQnnSystem.so")
    assert system.library.QnnSystemInterface_getProviders(wild, ctypes.byref(count)) == Code.COMMON_INVALID_ARGUMENT
