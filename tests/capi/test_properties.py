"""Custom properties through C: all that a client lists are answered, each in the fields of its structure."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from capi.qnn_calls import Client
from isthmus.backends.lpai import headers
from isthmus.backends.lpai.options import LpaiTarget
from isthmus.cabi import objects
from isthmus.errors import Code
from isthmus.qnn import lpai

FILL = 0xA5A5A5A5
"""The contents of a client's memory before the call."""


class Alignment(ctypes.Structure):
    """QnnLpaiBackend_BufferAlignmentReq_t as QNN's header has it: first of the start address, then of the size."""

    _fields_ = [("startAddrAlignment", ctypes.c_uint32), ("sizeAlignment", ctypes.c_uint32)]


@pytest.fixture
def client(libraries: Path) -> Client:
    return Client(libraries / "libQnnLpai.so")


def requests(*expected: tuple[int, Any], kind: Any = objects.Property) -> Any:
    """List requests for custom properties, of these options, to be written into these objects; null ends the list."""
    custom = [headers.CUSTOM(option, ctypes.addressof(into)) for option, into in expected]
    made = [kind(0, ctypes.addressof(each)) for each in custom]
    pointers = (ctypes.POINTER(kind) * (len(made) + 1))(*map(ctypes.pointer, made))
    pointers.kept = custom, made
    return pointers


def backend_of(client: Client, version: int) -> int:
    """Create a backend for a version of the hardware."""
    hardware = headers.HW_INFO()
    hardware.lpaiTarget, hardware.hwVersion = LpaiTarget.X86, version
    custom = headers.CUSTOM(lpai.BackendConfig.HW_INFO, ctypes.addressof(hardware))
    config = objects.BackendConfig()
    config.customConfig = ctypes.addressof(custom)
    return client.make("backendCreate", None, (ctypes.POINTER(objects.BackendConfig) * 2)(ctypes.pointer(config)))


def numbers(count: int) -> list[ctypes.c_uint32]:
    return [ctypes.c_uint32(FILL) for _ in range(count)]


@pytest.mark.parametrize(("version", "start", "size"), [(4, 64, 8), (5, 64, 64), (6, 128, 128)])
def test_the_alignment_of_the_start_comes_before_that_of_the_size(
    client: Client, version: int, start: int, size: int
) -> None:
    backend, answer = backend_of(client, version), Alignment(FILL, FILL)
    client.do("backendGetProperty", backend, requests((lpai.ALIGNMENT_REQ, answer)))
    assert (answer.startAddrAlignment, answer.sizeAlignment) == (start, size)
    client.do("backendFree", backend)


def test_every_property_that_is_listed_is_answered_of_a_backend_and_of_a_graph(client: Client, counting: Path) -> None:
    backend, first, last = backend_of(client, 6), Alignment(FILL, FILL), Alignment(FILL, FILL)
    kept = (ctypes.c_uint8 * 4)(*[0xA5] * 4)
    client.do(
        "backendGetProperty", backend,
        requests((lpai.ALIGNMENT_REQ, first), (lpai.REQUIRE_PERSISTENT_BINARY, kept), (lpai.ALIGNMENT_REQ, last)),
    )  # fmt: skip
    assert bytes(first) == bytes(last) == bytes(Alignment(128, 128))
    assert list(kept) == [0, 0xA5, 0xA5, 0xA5], "a boolean is one byte"

    graph = graph_of(client, backend, counting)
    scratch, persistent, again = numbers(3)
    expected = (
        (lpai.PERSISTENT_MEM_SIZE, persistent),
        (lpai.SCRATCH_MEM_SIZE, scratch),
        (lpai.PERSISTENT_MEM_SIZE, again),
    )
    client.do("graphGetProperty", graph, requests(*expected))
    assert (scratch.value, persistent.value, again.value) == (512, 256, 256)
    client.do("backendFree", backend)


def test_a_property_that_is_unknown_ends_a_list_and_those_before_it_are_answered(
    client: Client, counting: Path
) -> None:
    backend = backend_of(client, 6)
    graph = graph_of(client, backend, counting)
    before, unknown, after = numbers(3)
    expected = requests((lpai.SCRATCH_MEM_SIZE, before), (4711, unknown), (lpai.PERSISTENT_MEM_SIZE, after))
    assert client.graphGetProperty(graph, expected) == Code.GRAPH_INVALID_ARGUMENT
    assert (before.value, unknown.value, after.value) == (512, FILL, FILL)
    client.do("backendFree", backend)


def graph_of(client: Client, backend: int, binary: Path) -> int:
    """Retrieve the graph of a context binary."""
    content, context = binary.read_bytes(), ctypes.c_void_p()
    client.do(
        "contextCreateFromBinary", backend, None, None, client.keep(content), len(content), ctypes.byref(context), None
    )
    return client.make("graphRetrieve", context, b"count")
