"""Memory through C: descriptors of one call are registered all or none, and their handles are written in order."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capi.qnn_calls import Client, doubling, in_handle, opened
from isthmus.cabi import objects
from isthmus.errors import Code
from isthmus.graph import DataType
from isthmus.memory import RpcBuffer, rpcmem
from isthmus.qnn import DescriptorType

SHAPE = (1, 8)
MARK = 0xA5A5A5A5


@pytest.fixture
def buffers() -> Iterator[list[RpcBuffer]]:
    made = [rpcmem.alloc(25, 1, 4096) for _ in range(2)]
    yield made
    for buffer in made:
        buffer.close()


def descriptors(*fds: int) -> Any:
    """Describe shared memory of the tensors of `doubling`, by its file descriptors."""
    made = (objects.MemDescriptor * len(fds))()
    dims = (ctypes.c_uint32 * len(SHAPE))(*SHAPE)
    for each, fd in zip(made, fds, strict=True):
        each.memShape = objects.MemShape(len(SHAPE), dims, None)
        each.dataType, each.memType, each.ionInfo.fd = DataType.FLOAT_32, DescriptorType.ION, fd
    made.kept = dims
    return made


def framed(count: int) -> tuple[Any, Any]:
    """Return room for handles with a marked number on each side, and where the handles begin."""
    room = (ctypes.c_uint64 * (count + 2))(*[MARK] * (count + 2))
    return room, ctypes.cast(ctypes.addressof(room) + 8, ctypes.POINTER(ctypes.c_void_p))


def test_handles_are_those_of_the_descriptors_in_their_order(htp: Client, buffers: list[RpcBuffer]) -> None:
    backend, context = opened(htp)
    graph, x, y = doubling(htp, context)
    room, out = framed(2)
    htp.do("memRegister", context, descriptors(*(each.fd for each in buffers)), 2, out)
    before, first, second, after = room
    assert (before, after) == (MARK, MARK)
    given, found = (each.view(np.float32, SHAPE) for each in buffers)
    given[...] = 3
    assert htp.execute(graph, [in_handle(x, first)], [in_handle(y, second)]) == 0
    assert (found == 6).all()
    htp.do("memDeRegister", out, 2)
    htp.do("backendFree", backend)


def test_where_one_cannot_be_registered_none_is_and_every_handle_is_null(htp: Client, buffers: list[RpcBuffer]) -> None:
    backend, context = opened(htp)
    room, out = framed(3)
    fds = buffers[0].fd, buffers[1].fd, -1
    assert htp.memRegister(context, descriptors(*fds), 3, out) == Code.MEM_INVALID_ARGUMENT
    assert list(room) == [MARK, 0, 0, 0, MARK]
    htp.do("memRegister", context, descriptors(*fds[:2]), 2, out)
    htp.do("backendFree", backend)


def test_every_valid_handle_of_a_list_is_deregistered_and_the_others_are_refused(
    htp: Client, buffers: list[RpcBuffer]
) -> None:
    backend, context = opened(htp)
    room, out = framed(3)
    given = descriptors(*(each.fd for each in buffers))
    htp.do("memRegister", context, given, 2, out)
    room[2], room[3] = MARK, room[2]
    assert htp.memDeRegister(out, 3) == Code.MEM_INVALID_HANDLE
    htp.do("memRegister", context, given, 2, out)
    htp.do("backendFree", backend)


@pytest.mark.parametrize("count", [0, (1 << 16) + 1])
def test_a_number_of_descriptors_or_handles_that_cannot_be_is_refused_and_nothing_is_written(
    htp: Client, buffers: list[RpcBuffer], count: int
) -> None:
    backend, context = opened(htp)
    room, out = framed(1)
    given = descriptors(buffers[0].fd)
    assert htp.memRegister(context, given, count, out) == Code.MEM_INVALID_ARGUMENT
    assert list(room) == [MARK] * 3
    htp.do("memRegister", context, given, 1, out)
    assert htp.memDeRegister(out, count) == Code.MEM_INVALID_ARGUMENT
    htp.do("memDeRegister", out, 1)
    htp.do("backendFree", backend)


# -- rpcmem ------------------------------------------------------------------------------------------------------------


def test_shared_memory_is_asked_for_with_all_bits_that_a_client_gives(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ctypes.CDLL(str(libraries / "libcdsprpc.so"))
    whole = {"rpcmem_alloc": ctypes.c_int, "rpcmem_alloc2": ctypes.c_size_t}
    for name, size in whole.items():
        function = getattr(library, name)
        function.argtypes, function.restype = (ctypes.c_int, ctypes.c_uint32, size), ctypes.c_void_p
    library.rpcmem_to_fd.argtypes = library.rpcmem_free.argtypes = (ctypes.c_void_p,)
    asked: list[tuple[int, ...]] = []
    alloc = rpcmem.alloc2

    def noted(*arguments: int) -> RpcBuffer:
        asked.append(arguments)
        return alloc(25, 1, 4096)

    monkeypatch.setattr(rpcmem, "alloc2", noted)
    addresses = [library.rpcmem_alloc(25, 1, (1 << 31) - 1), library.rpcmem_alloc2(7, 0xFFFFFFFE, 5 << 32)]
    assert asked == [(25, 1, (1 << 31) - 1), (7, 0xFFFFFFFE, 5 << 32)]
    assert not any(library.rpcmem_alloc(25, 1, size) for size in (0, -1))
    assert len(asked) == 2
    fds = [library.rpcmem_to_fd(address) for address in addresses]
    assert len(set(fds)) == 2
    assert all(os.fstat(fd).st_size == 4096 for fd in fds)
    for address in addresses:
        library.rpcmem_free(address)
        assert library.rpcmem_to_fd(address) == -1
    assert [library.rpcmem_to_fd(address) for address in (None, 16)] == [-1, -1]
