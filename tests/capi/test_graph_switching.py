"""Graph switching in C: the worked cases, where the binary lies, and codes with the vendor's words."""

from __future__ import annotations

import ctypes
import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends.htp.sized import binary_of
from backends.htp.test_graph_switching import CASES, NAMES, SIZE, Switched
from support.processes import context_copies, run_client

from capi.qnn_calls import Client, at
from capi.test_process_domains import OnChip
from isthmus import qnn
from isthmus.cabi import objects
from isthmus.cabi.objects import ContextOption
from isthmus.capi import serve
from isthmus.errors import Code
from isthmus.graph import DataType, TensorType

Given = dict[ContextOption, Any]
SWITCHING: Given = {ContextOption.PERSISTENT_BINARY: 1, ContextOption.MEMORY_LIMIT_HINT: 64}
FIELDS = {
    ContextOption.PERSISTENT_BINARY: "isPersistentBinary",
    ContextOption.MEMORY_LIMIT_HINT: "memoryLimitHint",
    ContextOption.ENABLE_GRAPHS: "enableGraphs",
    ContextOption.GRAPH_RETENTION_ORDER: "graphRetentionOrder",
}


def configs(client: Client, given: Given) -> Any:
    """A list of configs of a context."""
    made = []
    for option, value in given.items():
        config = client.keep(objects.ContextConfig(option))
        if isinstance(value, (list, tuple)):
            value = client.keep((ctypes.c_char_p * (len(value) + 1))(*map(str.encode, value), None))
        setattr(config, FIELDS[option], value)
        made.append(config)
    return client.keep((ctypes.POINTER(objects.ContextConfig) * (len(made) + 1))(*map(ctypes.pointer, made)))


class Held:
    """A binary in pages of a client's own, which it can change and unmap."""

    def __init__(self, content: bytes) -> None:
        self.nbytes = len(content)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        self.address = self._map(None, 0)
        self.bytes = (ctypes.c_ubyte * len(content)).from_address(self.address)
        ctypes.memmove(self.address, content, len(content))

    def _map(self, address: int | None, fixed: int) -> int:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed
        found = self._libc.mmap(address, self.nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        assert found not in (None, ctypes.c_void_p(-1).value)
        return int(found)

    def unmap(self) -> None:
        """Take the memory away; nothing else may be mapped there meanwhile."""
        assert self._libc.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(self.nbytes), 0) == 0

    def map_again(self) -> None:
        everything = mmap.PROT_READ | mmap.PROT_WRITE
        assert self._libc.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(self.nbytes), everything) == 0

    def free(self) -> None:
        assert self._libc.munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(self.nbytes)) == 0


def backend_of(handle: int) -> qnn.Backend:
    """The backend behind a handle."""
    found = (dict(server.handles.of_kind(qnn.Backend)).get(handle) for server in serve.servers())
    return next(each for each in found if each is not None)


class InC:
    """A client in C on a chip with room for two graphs; `seen` is what its accelerator has."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.chip = OnChip(client, folder, domains=[0], capacity=2 * SIZE + SIZE // 2)
        self.seen = Switched(backend_of(self.chip.backend), [])

    def create(self, held: Held, given: Given) -> tuple[int, int]:
        out = ctypes.c_void_p()
        code = self.client.contextCreateFromBinary(
            self.chip.backend, None, configs(self.client, given), ctypes.c_void_p(held.address), held.nbytes,
            ctypes.byref(out), None,
        )  # fmt: skip
        return int(code), out.value or 0

    def create_context(self, held: Held, given: Given) -> int:
        code, context = self.create(held, given)
        assert code == 0
        return context

    def execute(self, context: int, name: str) -> tuple[int, int]:
        """Execute a graph: the code, and its value."""
        graph = self.client.make("graphRetrieve", context, name.encode())
        x, y = np.zeros(4, np.int32), np.zeros((4, 1), np.uint8)
        tensors = [
            self.client.tensor("x", TensorType.APP_WRITE, DataType.INT_32, x.shape),
            self.client.tensor("y", TensorType.APP_READ, DataType.UINT_8, y.shape),
        ]
        for number, tensor in enumerate(tensors, 1):
            tensor.v1.id = number
        code = self.client.execute(graph, [at(tensors[0], x)], [at(tensors[1], y)])
        return code, int(y[0, 0])

    def right(self, context: int, name: str) -> bool:
        return self.execute(context, name) == (0, 1 + NAMES.index(name))


@pytest.fixture(scope="module")
def four() -> bytes:
    return binary_of(*[SIZE] * 4, names=NAMES)


@pytest.fixture
def held(four: bytes) -> Iterator[Held]:
    memory = Held(four)
    yield memory
    memory.free()


@pytest.fixture
def it(libraries: Path, tmp_path: Path, held: Held) -> Iterator[InC]:
    made = InC(Client(libraries / "libQnnHtp.so"), tmp_path)
    yield made
    made.client.do("backendFree", made.chip.backend)


@pytest.mark.parametrize(("retained", "executed", "loaded"), CASES)
def test_each_step_loads_and_unloads_what_the_documents_say(it: InC, held: Held, retained, executed, loaded) -> None:
    copies = context_copies()
    context = it.create_context(held, SWITCHING | {ContextOption.GRAPH_RETENTION_ORDER: retained})
    assert not context_copies() - copies
    assert it.seen.has("".join(sorted(retained[:2])) or "A")
    for name, expected in zip(executed, loaded.split(), strict=True):
        assert it.right(context, name)
        assert it.seen.has(expected)
    it.client.do("contextFree", context, None)
    assert it.seen.has("")


@pytest.mark.parametrize(
    ("option", "value"), [(ContextOption.PERSISTENT_BINARY, 0), (ContextOption.MEMORY_LIMIT_HINT, 0)]
)
def test_switching_needs_both_a_hint_and_a_persistent_binary(libraries: Path, held: Held, option, value) -> None:
    client = Client(libraries / "libQnnHtp.so")
    backend = client.make("backendCreate", None, None)
    out = ctypes.c_void_p()
    listed = configs(client, SWITCHING | {option: value})
    place = ctypes.c_void_p(held.address)
    client.do("contextCreateFromBinary", backend, None, listed, place, held.nbytes, ctypes.byref(out), None)
    assert sorted(backend_of(backend).get_property(qnn.htp.LOADED_GRAPHS)) == [*NAMES]
    client.do("backendFree", backend)


def test_enabled_graphs_begin_with_the_first_that_is_named(it: InC, held: Held) -> None:
    context = it.create_context(held, SWITCHING | {ContextOption.ENABLE_GRAPHS: ["C", "B"]})
    assert it.seen.has("C")
    assert it.right(context, "B")
    assert it.seen.has("B")


def test_a_new_order_counts_from_the_next_switch_on(it: InC, held: Held) -> None:
    context = it.create_context(held, SWITCHING | {ContextOption.GRAPH_RETENTION_ORDER: ["A", "B"]})
    it.client.do("contextSetConfig", context, configs(it.client, {ContextOption.GRAPH_RETENTION_ORDER: ["C", "D"]}))
    assert it.seen.has("AB")
    for name, loaded in (("A", "AB"), ("C", "C"), ("D", "CD"), ("B", "BC")):
        assert it.right(context, name)
        assert it.seen.has(loaded)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (["A", "nope"], "Graph name nope provided does not exist in the context."),
        (["A", "A"], "Duplicate graph name A provided in the retention list."),
    ],
)
def test_a_wrong_order_is_refused_in_the_vendors_words(it: InC, held: Held, order, said) -> None:
    both = f"{said} Failed to validate graph switching configs. Please provide valid configs."
    wrong = {ContextOption.GRAPH_RETENTION_ORDER: order}
    assert it.create(held, SWITCHING | wrong) == (Code.CONTEXT_INVALID_CONFIG, 0)
    assert both in it.client.reason(Code.CONTEXT_INVALID_CONFIG)
    assert it.seen.has("")
    context = it.create_context(held, SWITCHING)
    assert it.client.contextSetConfig(context, configs(it.client, wrong)) == Code.CONTEXT_INVALID_CONFIG
    assert both in it.client.reason(Code.CONTEXT_INVALID_CONFIG)
    assert it.right(context, "B")


def test_an_order_without_a_hint_warns_in_the_vendors_words(
    it: InC, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "isthmus"):
        order = {ContextOption.ENABLE_GRAPHS: ["A", "B"], ContextOption.GRAPH_RETENTION_ORDER: ["A"]}
        context = it.create_context(held, {ContextOption.PERSISTENT_BINARY: 1} | order)
        assert it.seen.has("AB")
        del order[ContextOption.ENABLE_GRAPHS]
        it.client.do("contextSetConfig", context, configs(it.client, order))
    warning = "Graph retention order set without memory limit hint. Disabling graph switching mode."
    assert [each.message for each in caplog.records] == [warning, warning]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        (ContextOption.MEMORY_LIMIT_HINT, 64, "Setting memory limit hint is not supported"),
        (ContextOption.PERSISTENT_BINARY, 1, "Setting persistent binary is not supported"),
        (ContextOption.ENABLE_GRAPHS, ["A"], "Setting enabled graphs is not supported"),
    ],
)
def test_a_composed_context_refuses_the_options_of_switching(it: InC, option, value, words) -> None:
    client, backend = it.client, it.chip.backend
    listed = configs(client, {option: value})
    out = ctypes.byref(ctypes.c_void_p())
    assert client.contextCreate(backend, None, listed, out) == Code.COMMON_NOT_SUPPORTED
    assert words in client.reason(Code.COMMON_NOT_SUPPORTED)
    context = client.make("contextCreate", backend, None, None)
    assert client.contextSetConfig(context, listed) == Code.COMMON_NOT_SUPPORTED
    assert words in client.reason(Code.COMMON_NOT_SUPPORTED)
    order = configs(client, {ContextOption.GRAPH_RETENTION_ORDER: ["A"]})
    assert client.contextSetConfig(context, order) == Code.CONTEXT_INVALID_CONFIG
    invalid = "Invalid or duplicate graph names provided in graph switching config list. Provide valid graph names."
    assert invalid in client.reason(Code.CONTEXT_INVALID_CONFIG)
    assert client.contextSetConfig(context, configs(client, {ContextOption.GRAPH_RETENTION_ORDER: []})) == 0


def test_a_binary_that_is_gone_or_changed_is_an_error_and_nothing_is_lost(it: InC, held: Held, four: bytes) -> None:
    context = it.create_context(held, SWITCHING | {ContextOption.GRAPH_RETENTION_ORDER: ["A", "B"]})
    held.unmap()
    for _ in range(2):
        assert it.execute(context, "C")[0] == Code.CONTEXT_CREATE_FROM_BINARY
        assert "its memory is not there any more" in it.client.reason(Code.CONTEXT_CREATE_FROM_BINARY)
    assert it.right(context, "A")
    assert it.right(context, "B")
    held.map_again()
    place = four.rindex(bytes([3] * 1000))
    held.bytes[place] = 77
    assert it.execute(context, "C")[0] == Code.CONTEXT_CREATE_FROM_BINARY
    assert "its memory has changed since the context was created" in it.client.reason(Code.CONTEXT_CREATE_FROM_BINARY)
    assert it.seen.has("AB")
    held.bytes[place] = 3
    assert it.right(context, "C")
    # A binary that is not persistent is free after the call.
    it.client.do("contextFree", context, None)
    other = it.create_context(held, {ContextOption.ENABLE_GRAPHS: ["C", "D"]})
    held.unmap()
    assert it.right(other, "D")
    held.map_again()


_PEAK = """
import ctypes, sys
from pathlib import Path
from capi.qnn_calls import Client
from support.processes import forget_peak, peak_bytes
from isthmus.backends.htp.headers import CONTEXT_CONFIG
from isthmus.cabi import objects

library, file, budget = sys.argv[1:]
client = Client(Path(library))
backend = client.make("backendCreate", None, None)
custom = CONTEXT_CONFIG(3)
custom.fileReadMemoryBudgetInMb = int(budget)
chosen = objects.ContextConfig(0), objects.ContextConfig(objects.ContextOption.DEFER_GRAPH_INIT)
chosen[0].customConfig, chosen[1].isGraphInitDeferred = ctypes.addressof(custom), 1
listed = (ctypes.POINTER(objects.ContextConfig) * 3)(*map(ctypes.pointer, chosen))
content = Path(file).read_bytes()
out = ctypes.c_void_p()
for _ in range(2):
    # The first time loads what a process needs once.
    peaks = []
    forget_peak()
    before = peak_bytes()
    client.do("contextCreateFromBinary", backend, None, listed, content, len(content), ctypes.byref(out), None)
    peaks.append(peak_bytes() - before)
    client.do("contextFinalize", out, None)
    peaks.append(peak_bytes() - before)
    client.do("contextFree", out, None)
print(peaks)
"""


def test_a_binary_is_never_read_into_a_buffer_whatever_the_budget(libraries: Path, tmp_path: Path) -> None:
    size = 64 << 20
    file = tmp_path / "large.bin"
    file.write_bytes(binary_of(size, names="A"))
    found = {}
    for budget in (0, 1, 32):
        done = run_client(_PEAK, libraries / "libQnnHtp.so", file, budget)
        assert done.returncode == 0, done.stderr
        found[budget] = json.loads(done.stdout.splitlines()[-1])
    # While it is read there is the mapped copy and nothing else; what else a process allocates is far less than that.
    for reading, all_ in found.values():
        assert size < reading < size + size // 2
        assert abs(all_ - found[0][1]) < size // 4
