"""Validation names memory that a client takes from a context too early, and calls that do not wait."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from capi.qnn_calls import doubling, opened
from capi.seen_calls import DEFERRED, FROM_BINARY, GROUP, LIST, SWITCHING, Calls, buffer, under_way
from capi.test_call_rules import Watched
from capi.test_exclusions import excluded
from isthmus.backends.htp import exclusions as htp
from isthmus.backends.htp.options import HtpMemType
from isthmus.backends.seam.facets import Feature
from isthmus.cabi import objects
from isthmus.cabi.objects import ContextOption
from isthmus.capi.lifetimes import PART

PERSISTENT = (ContextOption.PERSISTENT_BINARY, 1)
BUFFERS = (
    HtpMemType.WEIGHTS_BUFFER,
    HtpMemType.SHARED_SPILLFILL_BUFFER,
    HtpMemType.SHARED_VTCMBACKUP_BUFFER,
)


@pytest.fixture
def calls() -> Calls:
    return Calls()


def mapped(nbytes: int) -> tuple[mmap.mmap, int]:
    """Pages of the client's, and their address."""
    pages = mmap.mmap(-1, nbytes)
    pages.write(bytes(range(256)) * (nbytes // 256))
    return pages, ctypes.addressof(ctypes.c_char.from_buffer(pages))


# -- binaries and sections ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [SWITCHING, (PERSISTENT,), ()], ids=["switching", "persistent", "plain"])
@pytest.mark.parametrize("place", [0, PART + 77, 3 * PART - 1])
def test_a_persistent_binary_is_as_it_was_to_its_last_byte_when_its_context_is_freed(
    calls: Calls, settings, place: int
) -> None:
    content = calls.keep(ctypes.create_string_buffer(3 * PART))
    context = calls.context(FROM_BINARY, *settings, binary=(ctypes.addressof(content), len(content)))
    content[place] = b"y"
    changed = f"context {context:#x}: its persistent binary has changed; it must stay as it was until contextFree"
    assert calls.call("contextFree", context, 0) == [changed] * bool(settings)


def test_a_change_of_a_persistent_binary_shows_within_as_many_executions_as_it_has_parts(calls: Calls) -> None:
    content = calls.keep(ctypes.create_string_buffer(3 * PART))
    context = calls.context(FROM_BINARY, *SWITCHING, binary=(ctypes.addressof(content), len(content)))
    graph = calls.retrieved(context)
    for how in ("graphExecute", "graphExecuteAsync"):
        assert [calls.execute(graph, how=how) for _ in range(4)] == [[]] * 4
        content[PART] = b"y"
        assert sum(len(calls.execute(graph, how=how)) for _ in range(3)) == 1
        content[PART] = b"\0"
    assert calls.call("contextFree", context, 0) == []


def test_a_persistent_binary_that_is_unmapped_is_named(calls: Calls) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 4)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = libc.mmap(None, 8192, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    context = calls.context(FROM_BINARY, PERSISTENT, binary=(address, 8192))
    graph = calls.retrieved(context)
    assert calls.execute(graph) == []
    assert libc.munmap(address, 8192) == 0
    gone = f"context {context:#x}: its persistent binary is no longer memory of this process; it must stay"
    [rule] = calls.execute(graph)
    assert rule.startswith(gone)


@pytest.mark.parametrize("is_persistent", [True, False])
def test_a_section_stays_with_a_persistent_binary_until_another_one_is_applied(
    calls: Calls, is_persistent: bool
) -> None:
    def apply(content: ctypes.Array[ctypes.c_char], graph: int, kind: int = 0) -> list[str]:
        words = (1, kind, ctypes.addressof(content), len(content))
        place = ctypes.addressof(calls.keep((ctypes.c_uint64 * 4)(*words)))
        return calls.call("contextApplyBinarySection", context, graph, 1, place, 0, 0)

    context = calls.context(FROM_BINARY, *[PERSISTENT] * is_persistent)
    graph, other = calls.retrieved(context), calls.retrieved(context)
    sections = [calls.keep(ctypes.create_string_buffer(b"adapter", 100)) for _ in range(3)]
    for content, target in zip(sections, (graph, other, graph), strict=True):
        assert apply(content, target) == []
    # It was replaced.
    sections[0][5] = b"!"
    assert calls.execute(graph) == []
    sections[1][5] = b"!"
    name = f"context {context:#x}: the binary section that was applied"
    changed = f"{name} has changed; it must stay as it was until contextFree"
    assert calls.execute(graph) == [changed] * is_persistent
    assert apply(sections[1], other) == []
    assert calls.execute(graph) == []
    # Registered memory takes its place, which is looked at as such.
    assert apply(sections[1], other, kind=1) == []
    sections[1][5] = b"?"
    assert calls.execute(graph) == []


def test_a_client_that_changes_its_persistent_binary_gets_a_report(libraries: Path) -> None:
    client = Watched(libraries / "libQnnHtp.so")
    backend, composed = opened(client)
    doubling(client, composed)
    binary, out = client.binary(composed), ctypes.c_void_p()
    config = objects.ContextConfig(ContextOption.PERSISTENT_BINARY)
    config.isPersistentBinary = 1
    configs = (ctypes.POINTER(objects.ContextConfig) * 2)(ctypes.pointer(config))
    client.do("contextCreateFromBinary", backend, None, configs, binary, len(binary), ctypes.byref(out), None)
    client.make("graphRetrieve", out, b"twice")
    assert client.rules() == []
    binary[len(binary) // 2] = bytes([binary[len(binary) // 2][0] ^ 1])
    client.do("contextFree", out, None)
    assert any("its persistent binary has changed" in rule for rule in client.rules())
    client.do("backendFree", backend)


# -- buffers of the client's -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_buffer_of_the_clients_stays_registered_until_its_context_is_freed(calls: Calls, kind: HtpMemType) -> None:
    with buffer() as fd:
        context = calls.context(FROM_BINARY, DEFERRED)
        assert calls.register(context, kind, fd) == []
        handle = calls.handles[0]
        calls.call("contextFinalize", context, 0)
        assert calls.execute(calls.retrieved(context)) == []
        [rule] = calls.deregister()
        assert (
            rule
            == f"memory handle {handle:#x}: it is a buffer of the client's, which stays registered until contextFree"
        )
        assert calls.register(context, HtpMemType.SHARED_BUFFER, fd) == []
        assert calls.deregister() == []


def test_a_buffer_that_is_deregistered_before_its_context_uses_it_is_the_clients_again(calls: Calls) -> None:
    context, other = (calls.context(FROM_BINARY, DEFERRED) for _ in range(2))
    with buffer() as fd:
        assert calls.register(context, HtpMemType.WEIGHTS_BUFFER, fd) == []
        assert calls.deregister() == []
        assert calls.register(other, HtpMemType.WEIGHTS_BUFFER, fd) == []
        assert calls.deregister() == []
    for each in (context, other):
        assert calls.call("contextFinalize", each, 0) == []
        assert calls.execute(calls.retrieved(each)) == []
        assert calls.call("contextFree", each, 0) == []


def test_a_context_has_the_buffers_that_are_left_when_one_is_deregistered(calls: Calls) -> None:
    context, other = (calls.context(FROM_BINARY, DEFERRED) for _ in range(2))
    with buffer() as weights, buffer() as spill_fill:
        assert calls.register(context, HtpMemType.WEIGHTS_BUFFER, weights) == []
        assert calls.register(context, HtpMemType.SHARED_SPILLFILL_BUFFER, spill_fill) == []
        assert calls.deregister() == []
        group = excluded(htp.GROUP, Feature.BUFFERS), excluded(Feature.BUFFERS, htp.GROUP)
        [rule] = calls.call("contextSetConfig", context, calls.configs((GROUP,)))
        assert rule in group
        [rule] = calls.register(other, HtpMemType.WEIGHTS_BUFFER, weights)
        assert "serves one context" in rule
    # The last one: nothing is left.
    plain = calls.context(FROM_BINARY, DEFERRED)
    with buffer() as weights:
        assert calls.register(plain, HtpMemType.WEIGHTS_BUFFER, weights) == []
        assert calls.deregister() == []
        assert calls.call("contextSetConfig", plain, calls.configs((GROUP,))) == []


def test_a_descriptor_of_a_buffer_may_be_closed_while_another_context_has_its_own(calls: Calls) -> None:
    first, second = (calls.context(FROM_BINARY, DEFERRED) for _ in range(2))
    with buffer() as fd:
        copy = os.dup(fd)
        pages = mmap.mmap(fd, 8192)
        for context, own in ((first, copy), (second, fd)):
            assert calls.register(context, HtpMemType.SHARED_SPILLFILL_BUFFER, own) == []
            assert calls.call("contextFinalize", context, 0) == []
        assert calls.call("contextFree", first, 0) == []
        third = calls.context(FROM_BINARY, DEFERRED)
        assert calls.register(third, HtpMemType.SHARED_SPILLFILL_BUFFER, copy) == []
        assert calls.call("contextFinalize", third, 0) == []
        os.close(copy)
        assert calls.execute(calls.retrieved(second)) == []
        [rule] = calls.call("contextFree", third, 0)
        assert f"(descriptor {copy}) was closed" in rule
        # Where the client has mapped it is known from the first registration.
        pages.close()
        [rule] = calls.call("contextFree", second, 0)
        assert f"(descriptor {fd}) was unmapped" in rule


def test_a_context_is_freed_with_the_clients_buffers_and_not_with_other_memory(calls: Calls) -> None:
    with buffer() as fd, buffer() as other:
        first, second = (calls.context(FROM_BINARY, DEFERRED) for _ in range(2))
        for context in (first, second):
            assert calls.register(context, HtpMemType.SHARED_SPILLFILL_BUFFER, fd) == []
        assert calls.call("contextFree", first, 0) == []
        assert calls.register(second, HtpMemType.SHARED_BUFFER, other) == []
        [rule] = calls.call("contextFree", second, 0)
        assert "of it is registered still" in rule


def test_a_buffer_of_the_clients_that_is_closed_or_unmapped_too_early_is_named(calls: Calls) -> None:
    fd = os.memfd_create("buffer")
    os.truncate(fd, 8192)
    pages = mmap.mmap(fd, 8192)
    context = calls.context(FROM_BINARY, DEFERRED)
    assert calls.register(context, HtpMemType.WEIGHTS_BUFFER, fd) == []
    # The library's own mapping does not take the place of the client's.
    again = mmap.mmap(fd, 8192)
    graph = calls.retrieved(context)
    assert calls.call("contextFinalize", context, 0) == []
    assert calls.execute(graph) == []
    pages.close()
    [rule] = calls.call("contextFree", context, 0)
    name = f"context {context:#x}: a buffer of the client's (descriptor {fd})"
    assert rule == f"{name} was unmapped; it must stay until contextFree"

    later = calls.context(FROM_BINARY, DEFERRED)
    assert calls.register(later, HtpMemType.WEIGHTS_BUFFER, fd) == []
    assert calls.call("contextFinalize", later, 0) == []
    graph = calls.retrieved(later)
    assert calls.execute(graph) == []
    os.close(fd)
    closed = [
        f"context {later:#x}: a buffer of the client's (descriptor {fd}) was closed; it must stay until contextFree"
    ]
    assert calls.execute(graph) == closed
    # Another file takes the number.
    with buffer() as other:
        assert other == fd
        assert calls.execute(graph) == closed
        assert calls.call("contextFree", later, 0) == closed
    again.close()


def test_a_mapping_of_the_librarys_own_may_end_at_any_time(calls: Calls) -> None:
    with buffer() as fd:
        context = calls.context(FROM_BINARY, DEFERRED)
        pages: list[mmap.mmap] = []
        calls.meanwhile = lambda: pages.append(mmap.mmap(fd, 8192))
        assert calls.register(context, HtpMemType.WEIGHTS_BUFFER, fd) == []
        calls.meanwhile = lambda: None
        calls.call("contextFinalize", context, 0)
        pages[0].close()
        assert calls.call("contextFree", context, 0) == []


def test_buffers_that_a_client_has_not_mapped_need_no_mapping(calls: Calls) -> None:
    with buffer() as fd:
        contexts = [calls.context(FROM_BINARY, DEFERRED) for _ in range(2)]
        for context in contexts:
            assert calls.register(context, HtpMemType.SHARED_SPILLFILL_BUFFER, fd) == []
            calls.call("contextFinalize", context, 0)
        assert [calls.call("contextFree", context, 0) for context in contexts] == [[], []]


# -- calls that wait ---------------------------------------------------------------------------------------------------


def test_no_call_is_made_while_a_list_is_loaded(calls: Calls) -> None:
    """Not by another thread, and not in a notification."""
    context = calls.context(FROM_BINARY)
    signal = calls.create("signalCreate", lambda out: (calls.backend, 0, out))
    values = (calls.backend, 0, calls.params(), 0, signal)
    with under_way(calls, LIST, *values):
        [rule] = calls.call("contextSetConfig", context, 0)
        assert rule.endswith("(contextCreateFromBinaryListAsync) has not returned, and a list of binaries is loaded "
                             "without other calls")  # fmt: skip
        assert calls.call("signalTrigger", signal) == []
    assert calls.call("contextSetConfig", context, 0) == []
    calls.seen.before(LIST, values)
    [rule] = calls.call("contextSetConfig", context, 0)
    assert "has not returned" in rule
    calls.seen.after(LIST, 0, values)


def test_a_list_is_not_loaded_while_another_call_is_made(calls: Calls) -> None:
    graph = calls.retrieved(calls.context(FROM_BINARY))
    with under_way(calls, "graphExecute", graph, 0, 0, 0, 0, 0, 0):
        [rule] = calls.call(LIST, calls.backend, 0, calls.params(), 0, 0)
        assert "(graphExecute) has not returned" in rule
    assert calls.call(LIST, calls.backend, 0, calls.params(), 0, 0) == []
