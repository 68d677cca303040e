"""Groups of contexts with one spill-fill buffer: who founds and joins one, what it costs; members take turns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.htp.harness import execute_in_turns, kill
from backends.htp.sized import WIDTH, binary_of, chain_of, charge_of, chip, sizes_of
from isthmus import qnn
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel
from isthmus.memory import statistics
from isthmus.qnn import ClientTensor, htp

ROWS = 256
NEED = 2 * 4 * ROWS * WIDTH
"""The spill-fill of a chain with these rows: two of its tensors at a time."""


@pytest.fixture(scope="module")
def chains() -> list[tuple[bytes, np.ndarray]]:
    return [chain_of(ROWS, seed) for seed in range(3)]


@pytest.fixture
def backend() -> Iterator[qnn.Backend]:
    with qnn.Backend("htp") as opened:
        yield opened


def grouped(backend: qnn.Backend, content: bytes, first: Any = None, nbytes: int = 0) -> qnn.Context:
    return backend.create_context_from_binary(
        content, {htp.REGISTER_MULTI_CONTEXTS: htp.GroupRegistration(first, nbytes)}
    )


def run(context: qnn.Context, order: np.ndarray, seed: int = 0) -> bool:
    """Execute a chain; whether its results are right."""
    x = np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(np.float32)
    y = np.zeros_like(x)
    context.retrieve("chain").execute([ClientTensor("x", x)], [ClientTensor("y", y)])
    return bool((y == x[:, order]).all())


def anonymous(backend: qnn.Backend) -> int:
    """The accelerator's private memory in bytes, as the system counts it."""
    text = Path(f"/proc/{backend.get_property(htp.ACCELERATOR_PID)}/smaps_rollup").read_text()
    return int(re.search(r"^Anonymous: +(\d+) kB", text, re.MULTILINE)[1]) << 10


def test_the_need_of_a_binary_is_its_scratch(chains) -> None:
    assert {sizes_of(content).spill_fill for content, _ in chains} == {NEED}


def test_the_contexts_of_the_table(backend) -> None:
    """Sizes and needs of the table, divided by 1000."""
    one, two, three = (chain_of(rows)[0] for rows in (39, 58, 60))
    needs = [sizes_of(each).spill_fill for each in (one, two, three)]
    assert needs == [19_968, 29_696, 30_720]
    first = grouped(backend, one, None, 30_081)
    assert first.driver.group.nbytes == 30_081
    members = [grouped(backend, two, first, nbytes) for nbytes in (30_081, 0)]
    with pytest.raises(QnnError) as caught:
        grouped(backend, three, first, 99_000)
    assert caught.value.code is Code.CONTEXT_CREATE_FROM_BINARY
    assert "Shared spill-fill size 30081 is smaller than required spill-fill size 30720" in str(caught.value)
    assert first.driver.group.nbytes == 30_081
    with pytest.raises(QnnError, match="must state the size of its spill-fill buffer, states 0"):
        grouped(backend, one, None, 0)
    second = grouped(backend, three, None, 30_720)
    assert second.driver.group.number == first.driver.group.number + 1
    assert {each.driver.group for each in members} == {first.driver.group}


def test_a_group_that_does_not_exist_is_named_with_the_vendors_lines(chains) -> None:
    logged: list[str] = []
    log = Log(lambda level, text: logged.append(text), LogLevel.ERROR)
    with qnn.Backend("htp", None, log) as backend, qnn.Backend("htp") as other:
        lone = backend.create_context_from_binary(chains[0][0])
        elsewhere = grouped(other, chains[0][0], None, NEED)
        freed = grouped(backend, chains[0][0], None, NEED)
        freed.free()
        for first in (7, lone, elsewhere, freed):
            with pytest.raises(QnnError, match=r"Context group \d+ does not exist!") as caught:
                grouped(backend, chains[0][0], first, 964_689_920)
            assert caught.value.code is Code.CONTEXT_CREATE_FROM_BINARY
        assert re.fullmatch(
            r"Failed to register spill-fill buffer for groupId 7, contextId \d+, buffer size 964689920, priority "
            "2147483647",
            logged[0],
        )


def test_members_compute_in_one_buffer(backend, chains) -> None:
    with statistics("rpcmem") as counted:
        first = grouped(backend, chains[0][0], None, NEED)
        one = counted.live_bytes
        second = grouped(backend, chains[1][0], first)
        assert all(run(context, order) for context, (_, order) in zip((first, second), chains, strict=False))
        member = counted.live_bytes - one
    # The staging memory of its own input and output, and nothing for its scratch.
    assert one >= NEED + 2 * 4 * ROWS * WIDTH
    assert member == one - NEED


def test_the_accelerator_has_no_other_memory_for_members(backend) -> None:
    content, _ = chain_of(1 << 14)
    need = sizes_of(content).spill_fill
    x = np.zeros((1 << 14, WIDTH), np.float32)

    def executed(context: qnn.Context) -> qnn.Context:
        context.retrieve("chain").execute([ClientTensor("x", x)], [ClientTensor("y", np.zeros_like(x))])
        return context

    executed(grouped(backend, content, None, need)).free()
    before = anonymous(backend)
    executed(grouped(backend, content, executed(grouped(backend, content, None, need))))
    members = anonymous(backend) - before
    executed(backend.create_context_from_binary(content))
    alone = anonymous(backend) - before - members
    assert members < need / 4 < need <= alone


def test_graphs_of_a_group_never_run_at_once() -> None:
    """Executions take long enough that they would overlap without the group's lock."""
    rows = 1 << 15
    longer = [chain_of(rows, seed) for seed in range(3)]
    with qnn.Backend("htp", {"htp": {"units": 4}}) as backend:
        first = grouped(backend, longer[0][0], None, sizes_of(longer[0][0]).spill_fill)
        contexts = [first, *(grouped(backend, content, first) for content, _ in longer[1:])]
        assert execute_in_turns(contexts, [order for _, order in longer], rows)


def test_the_buffer_outlives_its_founder_and_none_joins_any_more(backend, chains) -> None:
    first = grouped(backend, chains[0][0], None, NEED)
    second = grouped(backend, chains[1][0], first)
    slots = backend.driver.device.accelerator().counts()["memory"]
    first.free()
    assert run(second, chains[1][1])
    with pytest.raises(QnnError, match="does not exist"):
        grouped(backend, chains[2][0], first)
    second.free()
    # The group's buffer, and two tensors of each context.
    assert backend.driver.device.accelerator().counts()["memory"] == slots - 5 == 0


def test_a_founder_that_is_refused_founds_nothing(backend, chains) -> None:
    with pytest.raises(QnnError, match="smaller than required"):
        grouped(backend, chains[0][0], None, NEED - 1)
    assert backend.driver.device.accelerator().counts()["memory"] == 0


def test_a_group_is_charged_once_and_its_members_nothing_for_it(tmp_path, chains) -> None:
    own = [charge_of(content) - NEED for content, _ in chains]
    capacity = NEED + sum(own) - 1
    with qnn.Backend("htp", {"htp": {"chip": chip(tmp_path, domains=[0], capacity=capacity)}}) as backend:

        def used() -> int:
            return backend.get_property(htp.PROCESS_DOMAINS)[0][1]

        first = grouped(backend, chains[0][0], None, NEED)
        second = grouped(backend, chains[1][0], first)
        assert used() == NEED + own[0] + own[1]
        with pytest.raises(QnnError, match="in one process domain") as caught:
            grouped(backend, chains[2][0], first)
        assert caught.value.code is Code.COMMON_MEM_ALLOC
        assert f"spill-fill of the group {NEED:,}" in str(caught.value)
        first.free()
        assert used() == NEED + own[1]
        second.free()
        assert used() == 0


def test_a_configuration_makes_one_group_of_all_contexts(chains) -> None:
    settings = {"context": {"group_id": 0, "max_spill_fill_buffer_for_group": NEED}}
    with qnn.Backend("htp", settings) as backend:
        contexts = [backend.create_context_from_binary(content) for content, _ in chains]
        assert len({each.driver.group for each in contexts}) == 1
        assert all(run(context, order) for context, (_, order) in zip(contexts, chains, strict=True))
        contexts[0].free()
        # The group has members, so others join it.
        assert backend.create_context_from_binary(chains[0][0]).driver.group is contexts[1].driver.group


def test_the_size_of_a_group_is_for_group_0() -> None:
    with pytest.raises(QnnError, match="group_id must be set to 0 when max_spill_fill_buffer_for_group is set"):
        qnn.Backend("htp", {"context": {"group_id": 1, "max_spill_fill_buffer_for_group": 4096}})


def test_a_composed_context_joins_no_group(chains) -> None:
    logged: list[str] = []
    log = Log(lambda level, text: logged.append(text), LogLevel.WARN)
    with qnn.Backend("htp", None, log) as backend:
        context = backend.create_context({htp.REGISTER_MULTI_CONTEXTS: htp.GroupRegistration(None, NEED)})
        context.create_graph("g")
        assert logged == ["This option (2) is only for offline prepare case."]
        assert context.driver.group is None


def test_after_the_accelerator_has_died_a_group_is_founded_again(backend, chains) -> None:
    first = grouped(backend, chains[0][0], None, NEED)
    kill(backend)
    with pytest.raises(QnnError, match="does not exist"):
        grouped(backend, chains[1][0], first)
    first.free()
    again = grouped(backend, chains[0][0], None, NEED)
    assert run(grouped(backend, chains[1][0], again), chains[1][1])


def test_a_deferred_context_joins_when_it_is_finalized(backend, chains) -> None:
    first = grouped(backend, chains[0][0], None, NEED)
    configs = {htp.REGISTER_MULTI_CONTEXTS: htp.GroupRegistration(first)}
    deferred = backend.create_context_from_binary(chains[1][0], configs, deferred=True)
    assert deferred.driver.group is None
    deferred.finalize()
    assert deferred.driver.group is first.driver.group
    assert run(deferred, chains[1][1])


def test_a_binary_without_spill_fill_may_join(backend) -> None:
    first = grouped(backend, binary_of(5000), None, 4096)
    assert grouped(backend, binary_of(5000), first).driver.group is first.driver.group
