"""Concurrent groups (REGISTER_CONCURRENT_RESOURCE_SHARING): one buffer and one priority for contexts from binaries."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from backends.htp.client_memory import SPILL_FILL, deferred, register
from backends.htp.sized import WIDTH, chain_of, sizes_of
from backends.htp.test_spill_fill_groups import NEED, ROWS, run
from isthmus import qnn
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel
from isthmus.qnn import ClientTensor, GraphConfig, Priority, htp

OPTION = htp.REGISTER_CONCURRENT_RESOURCE_SHARING
V81 = {"devices": [{"dsp_arch": "v81"}]}


@pytest.fixture(scope="module")
def chains() -> list[tuple[bytes, np.ndarray]]:
    return [chain_of(ROWS, seed) for seed in range(3)]


@pytest.fixture
def backend() -> Iterator[qnn.Backend]:
    with qnn.Backend("htp", V81) as opened:
        yield opened


def concurrent(
    backend: qnn.Backend, content: bytes, first: Any = None, nbytes: int = NEED, priority: int | None = None
) -> qnn.Context:
    return backend.create_context_from_binary(
        content, {OPTION: htp.GroupRegistration(first, nbytes)}, priority=priority
    )


def priority_of(context: qnn.Context) -> Priority:
    return context.retrieve("chain").get_property(GraphConfig.PRIORITY)


def test_members_have_one_buffer_and_right_results(backend, chains) -> None:
    first = concurrent(backend, chains[0][0])
    slots = backend.driver.device.accelerator().counts()["memory"]
    members = [first, *(concurrent(backend, content, first, 0) for content, _ in chains[1:])]
    # The staging memory of the input and the output of each.
    assert backend.driver.device.accelerator().counts()["memory"] == slots + 4
    assert {each.driver.group for each in members} == {first.driver.group}
    assert all(run(context, order) for context, (_, order) in zip(members, chains, strict=True))
    assert {priority_of(each) for each in members} == {Priority.NORMAL}


@pytest.mark.parametrize("settings", [{}, {"devices": [{"dsp_arch": "v79"}]}, {"devices": [{"soc_model": 57}]}])
def test_other_chips_refuse_it_with_the_vendors_line(chains, settings) -> None:
    content, order = chains[0]
    with qnn.Backend("htp", settings) as backend:
        for create in (lambda: concurrent(backend, content), lambda: backend.create_context({OPTION: _founding()})):
            with pytest.raises(QnnError, match="Concurrent resource sharing config is not supported") as caught:
                create()
            assert caught.value.code is Code.COMMON_NOT_SUPPORTED
        assert run(backend.create_context_from_binary(content), order)


@pytest.mark.parametrize("arch", ["v81", "v85"])
def test_chips_from_v81_on_have_such_groups_by_a_registration_and_in_a_list(chains, arch) -> None:
    content, order = chains[0]
    shared = {htp.SHARE_RESOURCES: True, htp.SHARE_RESOURCES_OPTIMIZATION_TYPE: 2}
    with qnn.Backend("htp", {"devices": [{"dsp_arch": arch}]}) as backend:
        contexts = [concurrent(backend, content), *backend.create_contexts_from_binaries([content] * 2, shared)]
        assert [each.driver.group.nbytes for each in contexts] == [NEED] * 3
        assert all(run(each, order) for each in contexts)


def _founding() -> htp.GroupRegistration:
    return htp.GroupRegistration(None, NEED)


@pytest.mark.parametrize("option", [OPTION, htp.REGISTER_MULTI_CONTEXTS])
def test_a_group_for_a_context_that_has_graphs_changes_nothing_and_is_logged(chains, option) -> None:
    logged: list[str] = []
    with qnn.Backend("htp", V81, Log(lambda level, text: logged.append(text), LogLevel.INFO)) as backend:
        context = backend.create_context_from_binary(chains[0][0])
        context.set_config(option, _founding())
        assert (context.driver.group, context.get_property(option)) == (None, None)
        assert f"HTP context option {option.name}: without effect, the context has graphs" in logged
        context.retrieve("chain").set_config(GraphConfig.PRIORITY, Priority.HIGH)
        assert priority_of(context) is Priority.HIGH
        assert run(context, chains[0][1])


def test_a_composed_context_is_in_no_concurrent_group(backend) -> None:
    with backend.create_context({OPTION: _founding()}) as context:
        with pytest.raises(QnnError, match="its graphs must come from a binary") as caught:
            context.create_graph("g")
        assert caught.value.code is Code.COMMON_NOT_SUPPORTED


@pytest.mark.parametrize("priority", [Priority.LOW, Priority.NORMAL_HIGH, Priority.HIGH])
def test_a_member_of_another_priority_is_refused_with_the_rule(backend, chains, priority) -> None:
    first = concurrent(backend, chains[0][0])
    high = concurrent(backend, chains[1][0], priority=priority)
    assert priority_of(high) == priority
    with pytest.raises(QnnError, match=f"have priority 100, not {priority.value}") as caught:
        concurrent(backend, chains[2][0], first, priority=priority)
    assert caught.value.code is Code.CONTEXT_CREATE_FROM_BINARY
    member = concurrent(backend, chains[2][0], high, 0, priority)
    assert member.driver.group is high.driver.group is not first.driver.group
    assert all(run(each, order) for each, (_, order) in zip((first, high, member), chains, strict=True))


def test_graphs_of_one_context_with_different_priorities_are_refused(backend, chains) -> None:
    with qnn.Backend("htp") as maker, maker.create_context() as composed:
        for name in ("one", "two"):
            graph = composed.create_graph(name)
            x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (4,))
            y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (4,))
            graph.add_node("n", "Relu", [x], [y])
        content = composed.prepare_offline()
    settings = {**V81, "graph_configs": [{"graph_name": "two", "graph_priority": "high"}]}
    with qnn.Backend("htp", settings) as configured:
        with pytest.raises(QnnError, match="must have one priority, they have 100, 200"):
            concurrent(configured, content)
        # Without a group they may differ, and a context's own priority is that of all its graphs.
        apart = configured.create_context_from_binary(content)
        assert [apart.retrieve(each).get_property(GraphConfig.PRIORITY) for each in ("one", "two")] == [100, 200]
        assert concurrent(configured, content, priority=Priority.HIGH).driver.group.priority == Priority.HIGH


def test_the_priority_of_a_member_cannot_be_changed(backend, chains) -> None:
    content, order = chains[0]
    first = concurrent(backend, content)
    for value in Priority:
        with pytest.raises(QnnError, match="keep the priority") as caught:
            first.retrieve("chain").set_config(GraphConfig.PRIORITY, value)
        assert caught.value.code is Code.COMMON_NOT_SUPPORTED
    assert priority_of(first) == Priority.NORMAL
    assert run(first, order)
    # Contexts in no group or one of the other kind may change it.
    lone = backend.create_context_from_binary(content)
    multi = backend.create_context_from_binary(content, {htp.REGISTER_MULTI_CONTEXTS: _founding()})
    for each in (lone, multi):
        each.retrieve("chain").set_config(GraphConfig.PRIORITY, Priority.HIGH)
        assert priority_of(each) == Priority.HIGH


def test_the_two_kinds_of_groups_do_not_mix(backend, chains) -> None:
    multi = backend.create_context_from_binary(chains[0][0], {htp.REGISTER_MULTI_CONTEXTS: _founding()})
    first = concurrent(backend, chains[0][0])
    with pytest.raises(QnnError, match="does not exist"):
        concurrent(backend, chains[1][0], multi)
    with pytest.raises(QnnError, match="does not exist"):
        backend.create_context_from_binary(
            chains[1][0], {htp.REGISTER_MULTI_CONTEXTS: htp.GroupRegistration(first, NEED)}
        )
    with pytest.raises(QnnError, match="a context is in one group") as caught:
        backend.create_context_from_binary(
            chains[1][0], {htp.REGISTER_MULTI_CONTEXTS: _founding(), OPTION: _founding()}
        )
    assert caught.value.code is Code.CONTEXT_INVALID_CONFIG


def test_the_vendors_line_names_the_priority(chains) -> None:
    logged: list[str] = []
    log = Log(lambda level, text: logged.append(text), LogLevel.ERROR)
    with qnn.Backend("htp", V81, log) as backend, pytest.raises(QnnError, match="does not exist"):
        concurrent(backend, chains[0][0], 7, 4096, Priority.HIGH)
    assert "Failed to register spill-fill buffer for groupId 7, contextId " in logged[0]
    assert logged[0].endswith("buffer size 4096, priority 200")


def test_a_deferred_context_joins_when_it_is_finalized_and_takes_no_buffers_of_the_client(backend, chains) -> None:
    content, order = chains[1]
    first = concurrent(backend, chains[0][0])
    member = deferred(backend, content, configs={OPTION: htp.GroupRegistration(first)})
    with pytest.raises(QnnError, match="in the buffer of the group"):
        register(member, SPILL_FILL)
    member.finalize()
    assert member.driver.group is first.driver.group
    assert run(member, order)


def test_members_execute_in_turns_and_groups_side_by_side(chains) -> None:
    """Each group has its own buffer, so executions of two groups may overlap and results are right anyway."""
    rows, times = 1 << 14, 6
    longer = [chain_of(rows, seed) for seed in range(4)]
    x = np.random.default_rng(1).standard_normal((rows, WIDTH)).astype(np.float32)
    right: list[bool] = []
    with qnn.Backend("htp", {**V81, "htp": {"units": 4}}) as backend:
        need = sizes_of(longer[0][0]).spill_fill
        one, other = (concurrent(backend, content, None, need) for content, _ in longer[:2])
        contexts = [one, other, concurrent(backend, longer[2][0], one), concurrent(backend, longer[3][0], other)]
        assert one.driver.group is not other.driver.group
        profiles = [qnn.Profile(backend, qnn.ProfileLevel.DETAILED) for _ in range(2)]

        def go(number: int) -> None:
            y, (_, order) = np.zeros_like(x), longer[number]
            for _ in range(times):
                graph = contexts[number].retrieve("chain")
                graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)], profiles[number % 2])
                right.append(bool((y == x[:, order]).all()))
                y[...] = 0

        threads = [threading.Thread(target=go, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        executions = [[each.timings.spans for each in profile.get_spans()] for profile in profiles]
    assert right == [True] * 4 * times
    for found in executions:
        spans = sorted((min(each.begin for each in steps), max(each.end for each in steps)) for steps in found)
        assert len(spans) == 2 * times
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
