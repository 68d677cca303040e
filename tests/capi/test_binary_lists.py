"""Contexts out of a list of binaries: what the client is notified of, and what it may do within a notification."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from backends.htp.sized import binary_of, chain_of, charge_of, sizes_of

from capi.qnn_calls import Client, doubling, opened
from capi.test_custom_configs import context_config
from capi.test_process_domains import OnChip
from isthmus.backends.htp.options import HtpContextOption
from isthmus.cabi import objects
from isthmus.errors import Code

GRAPH, CONTEXT = 0, 1


@dataclass(frozen=True)
class Notification:
    """What the client is told of one context or graph; `number` is the client's own."""

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
    made = client.binary(context)
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
    def notify(*reported: int) -> None:
        seen.append(Notification(*reported))
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

    def free(reported: Notification) -> None:
        if reported.kind == CONTEXT:
            freed.append(client.contextFree(reported.context, None))

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

    def free(reported: Notification) -> None:
        if reported.kind == kind and not freed:
            freed.append(client.backendFree(backend))

    error, seen = load(client, backend, binary, [len(binary)] * 3, free)
    assert (error, freed) == (0, [0])
    ended = [each for each in seen if each.kind == CONTEXT]
    assert [each.error for each in ended] == [0, Code.CONTEXT_INVALID_HANDLE, Code.CONTEXT_INVALID_HANDLE]
    assert client.contextFree(ended[0].context, None) == Code.CONTEXT_INVALID_HANDLE


def test_a_binary_without_memory_or_size_is_refused_before_any_is_loaded(
    client: Client, binary: ctypes.Array[ctypes.c_char]
) -> None:
    backend = client.make("backendCreate", None, None)
    assert load(client, backend, binary, [len(binary), 0]) == (Code.CONTEXT_INVALID_ARGUMENT, [])
    params = objects.ContextParams(1)
    params.v1.notifyFunc, params.v1.binaryBufferSize = 1, 10
    listed = (ctypes.POINTER(objects.ContextParams) * 2)(ctypes.pointer(params))
    assert client.contextCreateFromBinaryListAsync(backend, None, listed, None, None) == Code.CONTEXT_INVALID_ARGUMENT
    client.do("backendFree", backend)


# -- configs and chips of HTP ------------------------------------------------------------------------------------------


class List:
    """A list of binaries for a library, each with its own configs."""

    def __init__(self, client: Client, backend: int) -> None:
        self.client, self.backend = client, backend
        self.seen: list[Notification] = []
        self._notify = client.keep(objects.CONTEXT_NOTIFY(lambda *reported: self.seen.append(Notification(*reported))))

    def load(self, *entries: tuple[bytes, Any], common: Any = None, device: int | None = None) -> list[Notification]:
        """Load binaries with their configs; what is told of the contexts."""
        self.seen.clear()
        all_params = [objects.ContextParams(1) for _ in entries]
        for each, (content, own) in zip(all_params, entries, strict=True):
            held = self.client.keep(ctypes.create_string_buffer(content, len(content)))
            each.v1.binaryBuffer, each.v1.binaryBufferSize = ctypes.addressof(held), len(content)
            each.v1.notifyFunc = ctypes.cast(self._notify, ctypes.c_void_p).value
            if own is not None:
                each.v1.config = ctypes.cast(own, type(each.v1.config))
        listed = (ctypes.POINTER(objects.ContextParams) * (len(entries) + 1))(*map(ctypes.pointer, all_params))
        error = self.client.contextCreateFromBinaryListAsync(self.backend, device, listed, common, None)
        assert error == 0, self.client.reason(error)
        return [each for each in self.seen if each.kind == CONTEXT]


def configs(client: Client, *made: Any) -> Any:
    """One list of the configs of several lists."""
    pointers = [each[0] for each in made]
    return client.keep((ctypes.POINTER(objects.ContextConfig) * (len(made) + 1))(*pointers))


def enabled(client: Client, *names: bytes) -> Any:
    made = objects.ContextConfig(objects.ContextOption.ENABLE_GRAPHS)
    listed = client.keep((ctypes.c_char_p * (len(names) + 1))(*names, None))
    made.enableGraphs = ctypes.cast(listed, type(made.enableGraphs))
    return client.keep((ctypes.POINTER(objects.ContextConfig) * 2)(ctypes.pointer(client.keep(made))))


@pytest.fixture
def htp(libraries: Path) -> Client:
    return Client(libraries / "libQnnHtp.so")


def test_a_config_of_the_list_wins_over_that_of_a_binary(htp: Client) -> None:
    backend = htp.make("backendCreate", None, None)
    listed, content = List(htp, backend), binary_of(5000, 5000, 5000)
    reported = listed.load((content, enabled(htp, b"a")), (content, None), common=enabled(htp, b"b", b"c"))
    assert [each.error for each in reported] == [0, 0]
    assert [each.name for each in listed.seen if each.kind == GRAPH] == [b"b", b"c"] * 2
    listed.load((content, enabled(htp, b"a")), (content, None))
    assert [each.name for each in listed.seen if each.kind == GRAPH] == [b"a", b"a", b"b", b"c"]
    htp.do("backendFree", backend)


def test_custom_configs_of_the_list_win_one_by_one(htp: Client, tmp_path: Path) -> None:
    """The limit of the list is 1 MB, which has room; that of a binary is more than there is."""
    content = binary_of(1 << 20)
    it = OnChip(htp, tmp_path, domains=[0], capacity=3 << 20)
    listed = List(htp, it.backend)

    def limit(mb: int) -> Any:
        return context_config(htp, HtpContextOption.REUSED_IO_LIMIT, reusedIoLimitInMb=mb)

    estimation = context_config(htp, HtpContextOption.IO_MEM_ESTIMATION, ioMemEstimation=True)
    own = configs(htp, estimation, limit(5))
    assert [each.error for each in listed.load((content, own))] == [Code.COMMON_MEM_ALLOC]
    reported = listed.load((content, own), (content, own), common=limit(1))
    assert [each.error for each in reported] == [0, 0]
    it.free(*(each.context for each in reported))
    reported = listed.load((content, own), common=limit(3))
    assert [each.error for each in reported] == [Code.COMMON_MEM_ALLOC]
    htp.do("backendFree", it.backend)


def test_options_of_lists_are_for_lists(htp: Client) -> None:
    backend = htp.make("backendCreate", None, None)
    listed, content = List(htp, backend), binary_of(5000)
    sharing = context_config(htp, HtpContextOption.SHARE_RESOURCES, shareResources=True)
    out = ctypes.c_void_p()
    assert htp.contextCreate(backend, None, sharing, ctypes.byref(out)) == Code.CONTEXT_INVALID_CONFIG
    assert "HTP Config option: 5 not supported" in htp.reason(Code.CONTEXT_INVALID_CONFIG)
    error = htp.contextCreateFromBinary(backend, None, sharing, content, len(content), ctypes.byref(out), None)
    assert error == Code.CONTEXT_INVALID_CONFIG
    assert [each.error for each in listed.load((content, sharing), (content, None))] == [Code.CONTEXT_INVALID_CONFIG, 0]
    reported = listed.load((content, sharing), (content, None), common=sharing)
    assert [each.error for each in reported] == [0, 0]
    assert htp.contextSetConfig(reported[0].context, sharing) == Code.CONTEXT_INVALID_CONFIG
    htp.do("backendFree", backend)


def test_contexts_of_a_list_share_one_spill_fill_buffer(htp: Client, tmp_path: Path) -> None:
    contents = [chain_of(rows, rows)[0] for rows in (96, 256)]
    needs = [sizes_of(content).spill_fill for content in contents]
    capacity = sum(map(charge_of, contents)) - min(needs)
    it = OnChip(htp, tmp_path, domains=[0], capacity=capacity)
    listed = List(htp, it.backend)
    entries = [(content, None) for content in contents]
    reported = listed.load(*entries)
    assert [each.error for each in reported] == [0, Code.COMMON_MEM_ALLOC]
    it.free(reported[0].context)
    sharing = context_config(htp, HtpContextOption.SHARE_RESOURCES, shareResources=True)
    kind = context_config(htp, HtpContextOption.SHARE_RESOURCES_OPTIMIZATION_TYPE, shareResOptType=1)
    reported = listed.load(*entries, common=configs(htp, sharing, kind))
    assert [each.error for each in reported] == [0, 0]
    # The domain is full.
    assert it.load(binary_of(5000))[0] == Code.COMMON_MEM_ALLOC
    it.free(*(each.context for each in reported))
    htp.do("backendFree", it.backend)


@pytest.mark.parametrize(
    ("settings", "own", "shares"),
    [({}, 100, True), ({}, 200, False), ({"context_priority": "high"}, 200, True),
     ({"context_priority": "high"}, 100, False)],
)  # fmt: skip
def test_the_priority_of_the_configuration_is_that_of_a_binary_without_one(
    htp: Client, tmp_path: Path, settings: dict[str, Any], own: int, shares: bool
) -> None:
    """Contexts of equal priority share in a list of type 2; on its chip there is room for one buffer."""
    content = chain_of(256)[0]
    it = OnChip(htp, tmp_path, domains=[0], capacity=2 * charge_of(content) - sizes_of(content).spill_fill)
    htp.do("backendFree", it.backend)
    devices = [{"dsp_arch": "v81"}]
    chip = {"htp": {"chip": str(tmp_path / "chip.json")}, "devices": devices, "context_configs": settings}
    backend = it.open_backend(tmp_path, chip)
    priority = objects.ContextConfig(objects.ContextOption.PRIORITY)
    priority.priority = own
    one = htp.keep((ctypes.POINTER(objects.ContextConfig) * 2)(ctypes.pointer(htp.keep(priority))))
    sharing = context_config(htp, HtpContextOption.SHARE_RESOURCES, shareResources=True)
    kind = context_config(htp, HtpContextOption.SHARE_RESOURCES_OPTIMIZATION_TYPE, shareResOptType=2)
    reported = List(htp, backend).load((content, None), (content, one), common=configs(htp, sharing, kind))
    assert [each.error for each in reported] == [0, 0 if shares else Code.COMMON_MEM_ALLOC]
    htp.do("backendFree", backend)


def test_only_the_graphs_that_the_configuration_enables_count_for_the_buffer(htp: Client, tmp_path: Path) -> None:
    """The second binary has no graph of that name; its own would take more than there is."""
    small, large = chain_of(96)[0], chain_of(256, name="other")[0]
    it = OnChip(htp, tmp_path, domains=[0], capacity=charge_of(small))
    htp.do("backendFree", it.backend)
    settings = {"htp": {"chip": str(tmp_path / "chip.json")}, "context_configs": {"enable_graphs": ["chain"]}}
    backend = it.open_backend(tmp_path, settings)
    sharing = context_config(htp, HtpContextOption.SHARE_RESOURCES, shareResources=True)
    kind = context_config(htp, HtpContextOption.SHARE_RESOURCES_OPTIMIZATION_TYPE, shareResOptType=1)
    reported = List(htp, backend).load((small, None), (large, None), common=configs(htp, sharing, kind))
    assert [each.error for each in reported] == [0, Code.CONTEXT_INVALID_CONFIG]
    htp.do("backendFree", backend)


def test_contexts_get_the_same_domains_from_every_call(htp: Client, tmp_path: Path) -> None:
    """The example of Qualcomm's documents in thousandths: 1.5, 1.5, 1, 1 and 0.25 GB in domains of 3.75 GB."""
    contents = [binary_of(size) for size in (15_000, 15_000, 10_000, 10_000, 2_500)]
    it = OnChip(htp, tmp_path, domains=[0, 1], capacity=37_500)

    def one(content: bytes) -> int:
        return it.load(content)[1]

    def with_signal(content: bytes) -> int:
        signal, out = htp.make("signalCreate", it.backend, None), ctypes.c_void_p()
        htp.do(
            "contextCreateFromBinaryWithSignal", it.backend, None, None, content, len(content), ctypes.byref(out), None,
            signal,
        )  # fmt: skip
        return out.value or 0

    def listed(content: bytes) -> int:
        return int(List(htp, it.backend).load((content, None))[0].context or 0)

    def room() -> list[bool]:
        """Return whether a context of these sizes has room now."""
        made = [it.load(content) for content in (binary_of(17_000), binary_of(5_000))]
        it.free(*(handle for code, handle in made if not code))
        return [code == 0 for code, _ in made]

    for create in (one, with_signal, listed):
        contexts = [create(content) for content in contents]
        # 32,500 bytes in the first domain, 20,000 in the second.
        assert all(contexts)
        assert room() == [True, True]
        extra = create(binary_of(17_000))
        assert room() == [False, True]
        it.free(*contexts, extra)
    reported = List(htp, it.backend).load(*((content, None) for content in contents))
    assert [each.error for each in reported] == [0] * 5
    assert room() == [True, True]
    htp.do("backendFree", it.backend)
