"""Contexts out of a list of binaries: what the client is notified of, and what it may do within a notification."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from capi.qnn_calls import Client, doubling, opened
from isthmus.cabi import objects
from isthmus.errors import Code

GRAPH, CONTEXT = 0, 1


@dataclass(frozen=True)
class Notification:
    """One of them, with the client's own number."""

    context: int | None
    graph: int | None
    name: bytes | None
    kind: int
    number: int
    error: int


@pytest.fixture
def binary(client: Client) -> ctypes.Array[ctypes.c_char]:
    """A binary with two graphs."""
    backend, context = opened(client)
    for name in ("first", "second"):
        doubling(client, context, name)
    size = ctypes.c_uint64()
    client.do("contextGetBinarySize", context, ctypes.byref(size))
    made = ctypes.create_string_buffer(size.value)
    client.do("contextGetBinary", context, made, len(made), ctypes.byref(size))
    client.do("backendFree", backend)
    return made


def load(
    client: Client,
    backend: int,
    binary: ctypes.Array[ctypes.c_char],
    sizes: list[int],
    within: Callable[[Notification], object] = lambda notification: None,
) -> tuple[int, list[Notification]]:
    """Load a list of binaries, each as long as is said; the answer, and all notifications."""
    seen: list[Notification] = []

    @objects.CONTEXT_NOTIFY
    def notify(*told: int) -> None:
        seen.append(Notification(*told))
        within(seen[-1])

    params = []
    for number, size in enumerate(sizes, 1):
        each = objects.ContextParams(1)
        each.v1.binaryBuffer, each.v1.binaryBufferSize = ctypes.addressof(binary), size
        each.v1.notifyFunc, each.v1.notifyParam = ctypes.cast(notify, ctypes.c_void_p).value, number
        params.append(each)
    listed = (ctypes.POINTER(objects.ContextParams) * (len(params) + 1))(*map(ctypes.pointer, params))
    return client.contextCreateFromBinaryListAsync(backend, None, listed, None, None), seen


def test_an_empty_list_and_none_are_refused(client: Client) -> None:
    backend = client.make("backendCreate", None, None)
    for params in ((ctypes.POINTER(objects.ContextParams) * 1)(), None):
        assert client.contextCreateFromBinaryListAsync(backend, None, params, None, None) == (
            Code.CONTEXT_INVALID_ARGUMENT
        )
    client.do("backendFree", backend)


def test_a_notification_of_a_graph_names_no_context(client: Client, binary: ctypes.Array[ctypes.c_char]) -> None:
    backend = client.make("backendCreate", None, None)
    error, seen = load(client, backend, binary, [len(binary)] * 2)
    assert error == 0
    assert [(each.kind, each.name, each.number, each.error) for each in seen] == [
        (kind, name, number, 0)
        for number in (1, 2)
        for kind, name in ((GRAPH, b"first"), (GRAPH, b"second"), (CONTEXT, None))
    ]
    for each in seen:
        assert (each.context is None, each.graph is None) == (each.kind == GRAPH, each.kind == CONTEXT)
    # Each context is told of once, and is the client's to free once.
    contexts = [each.context for each in seen if each.kind == CONTEXT]
    retrieved = [client.make("graphRetrieve", context, b"second") for context in contexts]
    assert retrieved == [each.graph for each in seen if each.name == b"second"]
    for context in contexts:
        client.do("contextFree", context, None)
    client.do("backendFree", backend)


def test_the_client_is_notified_of_a_damaged_binary_and_the_others_are_loaded(
    client: Client, binary: ctypes.Array[ctypes.c_char]
) -> None:
    backend = client.make("backendCreate", None, None)
    error, seen = load(client, backend, binary, [len(binary), len(binary) // 2, len(binary)])
    assert error == 0
    assert [each.error for each in seen if each.kind == CONTEXT] == [0, Code.CONTEXT_CREATE_FROM_BINARY, 0]
    assert [each.number for each in seen if each.kind == GRAPH] == [1, 1, 3, 3]
    client.do("backendFree", backend)


def test_a_context_that_is_freed_within_its_notification_ends_no_list(
    client: Client, binary: ctypes.Array[ctypes.c_char]
) -> None:
    backend = client.make("backendCreate", None, None)
    freed: list[int] = []

    def free(told: Notification) -> None:
        if told.kind == CONTEXT:
            freed.append(client.contextFree(told.context, None))

    error, seen = load(client, backend, binary, [len(binary)] * 3, free)
    assert (error, freed) == (0, [0, 0, 0])
    assert [each.number for each in seen if each.kind == CONTEXT] == [1, 2, 3]
    client.do("backendFree", backend)


@pytest.mark.parametrize("kind", [GRAPH, CONTEXT], ids=["graph", "context"])
def test_a_backend_that_is_freed_within_a_notification_fails_what_is_left(
    client: Client, binary: ctypes.Array[ctypes.c_char], kind: int
) -> None:
    backend = client.make("backendCreate", None, None)
    freed: list[int] = []

    def free(told: Notification) -> None:
        if told.kind == kind and not freed:
            freed.append(client.backendFree(backend))

    error, seen = load(client, backend, binary, [len(binary)] * 3, free)
    assert (error, freed) == (0, [0])
    ended = [each for each in seen if each.kind == CONTEXT]
    assert [each.error for each in ended] == [0, Code.CONTEXT_INVALID_HANDLE, Code.CONTEXT_INVALID_HANDLE]
    assert client.contextFree(ended[0].context, None) == Code.CONTEXT_INVALID_HANDLE
