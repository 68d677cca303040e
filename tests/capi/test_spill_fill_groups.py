"""Groups of contexts in C, as Genie and ExecuTorch make them: the size is read from the binaries before they load."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends.htp.sized import WIDTH, chain_of, charge_of, chip

from capi.qnn_calls import Client, at
from capi.test_binary_information import Described
from capi.test_custom_configs import context_config
from capi.test_process_domains import OnChip
from isthmus.backends.htp.headers import GRAPH_BLOB
from isthmus.backends.htp.options import HtpContextOption
from isthmus.errors import Code
from isthmus.graph import DataType, TensorType

ROWS = (96, 256, 192)
"""The rows of the tensors of three binaries: the second needs most spill-fill."""
NEED = 2 * 4 * max(ROWS) * WIDTH


@pytest.fixture(scope="module")
def chains() -> list[tuple[bytes, np.ndarray]]:
    return [chain_of(rows, seed) for seed, rows in enumerate(ROWS)]


@pytest.fixture
def htp(libraries: Path) -> Client:
    return Client(libraries / "libQnnHtp.so")


@pytest.fixture
def open_chip(htp: Client, tmp_path: Path) -> Iterator[Any]:
    """Makes a backend on a chip with one domain of a capacity."""
    opened: list[OnChip] = []

    def make(capacity: int) -> OnChip:
        opened.append(OnChip(htp, tmp_path, domains=[0], capacity=capacity))
        return opened[-1]

    yield make
    for each in opened:
        htp.do("backendFree", each.backend)


def spill_fill(libraries: Path, content: bytes) -> int:
    """The spill-fill of a binary's first graph, as clients read it from graph information in version 3."""
    described = Described(libraries, content)
    blob = described.fields.graphs[0].graphInfoV3.graphBlobInfo
    need = GRAPH_BLOB.from_address(blob).contextBinaryGraphBlobInfoV1.spillFillBufferSize
    described.free()
    return int(need)


def group(client: Client, first: int, nbytes: int) -> Any:
    value = {"firstGroupHandle": first or None, "maxSpillFillBuffer": nbytes}
    return context_config(client, HtpContextOption.REGISTER_MULTI_CONTEXTS, groupRegistration=value)


def right(client: Client, context: int, rows: int, order: np.ndarray) -> bool:
    """Execute a chain; whether its results are right."""
    graph = ctypes.c_void_p()
    client.do("graphRetrieve", context, b"chain", ctypes.byref(graph))
    x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)
    y = np.zeros_like(x)
    tensors = [
        client.tensor(name, kind, DataType.FLOAT_32, x.shape)
        for name, kind in (("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ))
    ]
    # As a binary numbers its inputs and outputs.
    for number, tensor in enumerate(tensors, 1):
        tensor.v1.id = number
    assert client.execute(graph.value or 0, [at(tensors[0], x)], [at(tensors[1], y)]) == 0
    return bool((y == x[:, order]).all())


def test_two_binaries_run_in_a_group_and_a_third_without_room_gets_1002(
    open_chip: Any, libraries: Path, chains: list[tuple[bytes, np.ndarray]]
) -> None:
    """Genie passes the first context's handle and the group's size with each; the size is the largest of all."""
    needs = [spill_fill(libraries, content) for content, _ in chains]
    assert needs == [2 * 4 * rows * WIDTH for rows in ROWS]
    own = [charge_of(content) - need for (content, _), need in zip(chains, needs, strict=True)]
    it = open_chip(max(needs) + sum(own[:2]))
    code, first = it.load(chains[0][0], group(it.client, 0, max(needs)))
    assert code == 0
    code, second = it.load(chains[1][0], group(it.client, first, max(needs)))
    assert code == 0
    for context, rows, (_, order) in zip((first, second), ROWS, chains, strict=False):
        assert right(it.client, context, rows, order)
    code, _ = it.load(chains[2][0], group(it.client, first, max(needs)))
    assert code == Code.COMMON_MEM_ALLOC
    reason = it.client.reason(code)
    assert f"spill-fill of the group {max(needs):,}" in reason
    assert f"domain 0 has 0 of {max(needs) + sum(own[:2]):,} bytes free" in reason
    # Without a group not even two of them fit.
    it.free(first, second)
    assert it.load(chains[0][0])[0] == 0
    assert it.load(chains[1][0])[0] == Code.COMMON_MEM_ALLOC


def test_later_members_may_state_no_size_and_the_largest_need_must_come_first(
    open_chip: Any, chains: list[tuple[bytes, np.ndarray]]
) -> None:
    """ONNX Runtime and ExecuTorch load the context with the largest need first."""
    it = open_chip(1 << 30)
    code, small = it.load(chains[0][0], group(it.client, 0, 2 * 4 * ROWS[0] * WIDTH))
    assert code == 0
    assert it.load(chains[1][0], group(it.client, small, NEED))[0] == Code.CONTEXT_CREATE_FROM_BINARY
    line = f"Shared spill-fill size {2 * 4 * ROWS[0] * WIDTH} is smaller than required spill-fill size {NEED}"
    assert line in it.client.reason(Code.CONTEXT_CREATE_FROM_BINARY)
    code, large = it.load(chains[1][0], group(it.client, 0, NEED))
    assert code == 0
    members = [it.load(content, group(it.client, large, 0)) for content, _ in chains]
    assert [code for code, _ in members] == [0] * 3
    assert all(
        right(it.client, context, rows, order)
        for (_, context), rows, (_, order) in zip(members, ROWS, chains, strict=True)
    )


def test_a_handle_of_no_group_is_refused(open_chip: Any, chains: list[tuple[bytes, np.ndarray]], caplog: Any) -> None:
    it = open_chip(1 << 30)
    for first in (0x1234, it.backend, it.load(chains[0][0])[1]):
        assert it.load(chains[0][0], group(it.client, first, NEED))[0] == Code.CONTEXT_CREATE_FROM_BINARY
        assert "does not exist!" in it.client.reason(Code.CONTEXT_CREATE_FROM_BINARY)
    assert f"Failed to register spill-fill buffer for groupId {0x1234}, contextId " in caplog.text
    assert it.load(chains[0][0], group(it.client, 0, 0))[0] == Code.CONTEXT_INVALID_CONFIG


def test_a_config_file_makes_the_group(libraries: Path, tmp_path: Path, chains: list[tuple[bytes, np.ndarray]]) -> None:
    client = Client(libraries / "libQnnHtp.so")
    own = [charge_of(content) - 2 * 4 * rows * WIDTH for (content, _), rows in zip(chains, ROWS, strict=True)]
    it = OnChip(client, tmp_path)
    client.do("backendFree", it.backend)
    context = [{"group_id": 0, "max_spill_fill_buffer_for_group": NEED}]
    device = {"chip": chip(tmp_path, domains=[0], capacity=NEED + sum(own))}
    it.backend = it.open_backend(tmp_path, {"htp": device, "context": context})
    assert [it.load(content)[0] for content, _ in chains] == [0] * 3
    client.do("backendFree", it.backend)
