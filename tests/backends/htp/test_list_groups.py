"""Lists of binaries whose contexts share resources: one spill-fill buffer, executions in turns, room for I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from backends.htp.harness import execute_in_turns
from backends.htp.sized import binary_of, chain_of, charge_of, chip, sizes_of
from backends.htp.test_provided_weights import Reader
from backends.htp.test_spill_fill_groups import NEED, ROWS, run
from isthmus import qnn
from isthmus.backends.htp.list_groups import shared_by
from isthmus.backends.seam.driver import ListEntry
from isthmus.errors import Code, QnnError
from isthmus.memory import statistics
from isthmus.qnn import htp

SHARED = {htp.SHARE_RESOURCES: True}
IN_TURNS = {**SHARED, htp.SHARE_RESOURCES_OPTIMIZATION_TYPE: 1}


@pytest.fixture(scope="module")
def chains() -> list[tuple[bytes, np.ndarray]]:
    return [chain_of(rows, seed) for seed, rows in enumerate((ROWS // 2, ROWS, ROWS // 4))]


@pytest.fixture
def backend() -> Iterator[qnn.Backend]:
    with qnn.Backend("htp") as opened:
        yield opened


@pytest.mark.parametrize("configs", [SHARED, IN_TURNS], ids=["type 0", "type 1"])
def test_contexts_of_a_list_compute_in_one_buffer_of_the_largest_need(backend, chains, configs) -> None:
    with statistics("rpcmem") as apart:
        contexts = backend.create_contexts_from_binaries([content for content, _ in chains])
        own = apart.live_bytes
        assert {each.driver.group for each in contexts} == {None}
        for each in contexts:
            each.free()
    with statistics("rpcmem") as together:
        contexts = backend.create_contexts_from_binaries([content for content, _ in chains], configs)
        assert together.live_bytes == own + NEED
    [group] = {each.driver.group for each in contexts}
    assert group.nbytes == NEED
    # The chain of this many rows, which is the second.
    assert run(contexts[1], chains[1][1])
    for each in contexts:
        each.free()
    assert backend.driver.device.accelerator().counts()["memory"] == 0


def test_graphs_of_a_list_never_run_at_once() -> None:
    """Executions take long enough that they would overlap without the lock."""
    rows = 1 << 15
    longer = [chain_of(rows, seed) for seed in range(2)]
    with qnn.Backend("htp", {"htp": {"units": 4}}) as backend:
        contexts = backend.create_contexts_from_binaries([content for content, _ in longer], IN_TURNS)
        assert execute_in_turns(contexts, [order for _, order in longer], rows)


@pytest.mark.parametrize("option", [htp.SHARE_RESOURCES, htp.SHARE_RESOURCES_OPTIMIZATION_TYPE])
@pytest.mark.parametrize("value", [0, 1])
def test_options_of_lists_are_refused_for_a_context(backend, chains, option, value) -> None:
    for create in (
        lambda: backend.create_context({option: value}),
        lambda: backend.create_context_from_binary(chains[0][0], {option: value}),
        lambda: backend.create_context().set_config(option, value),
        lambda: backend.create_context().get_property(option),
    ):
        with pytest.raises(QnnError, match=f"HTP Config option: {int(option)} not supported") as refused:
            create()
        assert refused.value.code is Code.CONTEXT_INVALID_CONFIG


@pytest.mark.parametrize("number", [0, 1, 2, 77])
def test_a_type_without_shared_resources_is_ignored(backend, chains, number) -> None:
    configs = {htp.SHARE_RESOURCES: False, htp.SHARE_RESOURCES_OPTIMIZATION_TYPE: number}
    contexts = backend.create_contexts_from_binaries([chains[0][0]] * 2, configs)
    assert {each.driver.group for each in contexts} == {None}


def test_a_type_that_does_not_exist_is_refused(backend, chains) -> None:
    with pytest.raises(QnnError, match="must be one of SEQUENTIAL_WITH_VA_OPTIMIZATION 0") as refused:
        backend.create_contexts_from_binaries([chains[0][0]], {**SHARED, htp.SHARE_RESOURCES_OPTIMIZATION_TYPE: 3})
    assert refused.value.code is Code.CONTEXT_INVALID_CONFIG


def test_a_concurrent_list_needs_a_processor_of_v81(chains) -> None:
    configs = {**SHARED, htp.SHARE_RESOURCES_OPTIMIZATION_TYPE: 2}
    for arch, works in ((79, False), (81, True)):
        with qnn.Backend("htp", {"devices": [{"dsp_arch": f"v{arch}"}]}) as backend:
            if works:
                [group] = {each.driver.group for each in backend.create_contexts_from_binaries([chains[1][0]], configs)}
                assert group.nbytes == NEED
                continue
            with pytest.raises(QnnError, match="from v81 on, the device is v79") as refused:
                backend.create_contexts_from_binaries([chains[0][0]], configs)
            assert refused.value.code is Code.COMMON_NOT_SUPPORTED


def test_contexts_of_a_concurrent_list_share_with_those_of_their_priority(chains) -> None:
    contents = [content for content, _ in chains]
    entries = [
        ListEntry(lambda content=content: content, None, priority)
        for content, priority in zip(contents, (100, 200, 100), strict=True)
    ]
    configs = {**SHARED, htp.SHARE_RESOURCES_OPTIMIZATION_TYPE: 2, htp.IO_MEM_ESTIMATION: True}
    common, [one, two, three] = shared_by(configs, entries, 81)
    assert common == {htp.IO_MEM_ESTIMATION: True}
    assert one is three
    assert (one.nbytes, two.nbytes) == (NEED // 2, NEED)
    _, [one, two, three] = shared_by(IN_TURNS, entries, 79)
    assert one is two is three


def test_only_enabled_graphs_count_for_the_buffer(tmp_path, chains) -> None:
    content, _ = chains[1]
    entries = [ListEntry(lambda: content, frozenset()), ListEntry(lambda: b"no binary")]
    _, [one, two] = shared_by(IN_TURNS, entries, 79)
    assert one is two
    assert one.nbytes == 0
    with qnn.Backend("htp", {"groupContext": {"share_resources": True}}) as backend:
        [group] = {each.driver.group for each in backend.create_contexts_from_binaries([content] * 2)}
        assert group.nbytes == NEED


@pytest.mark.parametrize("kind", ["file", "reader", "mapped"])
def test_the_need_of_a_binary_counts_wherever_its_constants_come_from(tmp_path, chains, kind) -> None:
    """Those of a file from callbacks, and those of a persistent binary, which stays where it is."""
    content, order = chains[1]
    file = tmp_path / "chain.bin"
    file.write_bytes(content)
    settings = {"context_configs": {"is_persistent_binary": kind == "mapped"}}
    with qnn.Backend("htp", settings) as backend:
        source, provider = Reader(content) if kind == "reader" else file, qnn.FileProvider(file)
        binaries, providers = [chains[0][0], source], None if kind == "mapped" else [None, provider]
        contexts = backend.create_contexts_from_binaries(binaries, IN_TURNS, None, providers)
        [group] = {each.driver.group for each in contexts}
        assert group.nbytes == NEED
        assert run(contexts[1], order)


def test_the_priority_of_the_configuration_is_that_of_a_concurrent_list(chains) -> None:
    settings = {"devices": [{"dsp_arch": "v81"}], "context_configs": {"context_priority": "high"}}
    configs = {**SHARED, htp.SHARE_RESOURCES_OPTIMIZATION_TYPE: 2}
    entries: list[ListEntry] = []
    with qnn.Backend("htp", settings) as backend:
        known = backend.open_list
        backend.open_list = lambda configs, given, device: entries.extend(given) or known(configs, given, device)
        backend.create_contexts_from_binaries([chains[0][0]], configs)
    assert [each.priority for each in entries] == [qnn.Priority.HIGH]


@pytest.mark.parametrize(
    ("given", "code", "rule"),
    [
        ({"device": "x"}, Code.CONTEXT_INVALID_ARGUMENT, "'x' is not a device"),
        ({"configs": [1]}, Code.CONTEXT_INVALID_CONFIG, "a mapping of options"),
        ({"configs": 0}, Code.CONTEXT_INVALID_CONFIG, "a mapping of options"),
        ({"providers": 5}, Code.CONTEXT_INVALID_ARGUMENT, "its providers are not a list"),
        ({"binaries": b"one"}, Code.CONTEXT_INVALID_ARGUMENT, "its binaries are not a list"),
        ({"binaries": "file.bin"}, Code.CONTEXT_INVALID_ARGUMENT, "its binaries are not a list"),
        ({"binaries": 5}, Code.CONTEXT_INVALID_ARGUMENT, "its binaries are not a list"),
        ({"binaries": [None]}, Code.CONTEXT_INVALID_ARGUMENT, "neither bytes nor a path"),
    ],
)
def test_what_is_no_list_is_refused(backend, chains, given, code, rule) -> None:
    with pytest.raises(QnnError, match=rule) as refused:
        backend.create_contexts_from_binaries(**{"binaries": [chains[0][0]], **given})
    assert refused.value.code is code


def test_a_list_for_a_device_of_another_backend_is_refused(backend, chains) -> None:
    with qnn.Backend("htp") as other, pytest.raises(QnnError, match="belongs to another backend") as refused:
        backend.create_contexts_from_binaries([chains[0][0]], IN_TURNS, other.create_device())
    assert refused.value.code is Code.CONTEXT_INVALID_ARGUMENT


def test_a_list_of_graphs_without_spill_fill_takes_turns_too(backend) -> None:
    contexts = backend.create_contexts_from_binaries([binary_of(1 << 20)] * 2, IN_TURNS)
    [group] = {each.driver.group for each in contexts}
    assert (group.nbytes, group.charge) == (0, None)


def test_a_list_of_which_one_is_refused_leaves_nothing(backend, chains) -> None:
    with statistics("rpcmem") as counted, pytest.raises(QnnError):
        backend.create_contexts_from_binaries([chains[0][0], chains[1][0][:-1]], IN_TURNS)
    assert counted.live_bytes == 0
    assert backend.driver.device.accelerator().counts()["memory"] == 0
    for binaries, providers in (([], None), ([chains[0][0]], [])):
        with pytest.raises(QnnError, match="it is empty, or there is not one provider") as refused:
            backend.create_contexts_from_binaries(binaries, None, None, providers)
        assert refused.value.code is Code.CONTEXT_INVALID_ARGUMENT


def test_a_context_of_such_a_list_is_in_no_other_group(backend, chains) -> None:
    group = {htp.REGISTER_MULTI_CONTEXTS: htp.GroupRegistration(None, NEED)}
    with pytest.raises(QnnError, match="are in no other group") as refused:
        backend.create_contexts_from_binaries([chains[0][0]], IN_TURNS | group)
    assert refused.value.code is Code.CONTEXT_INVALID_CONFIG


@pytest.mark.parametrize("configs", [SHARED, IN_TURNS], ids=["type 0", "type 1"])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"context": {"max_spill_fill_buffer_for_group": NEED}}, "are in no other group"),
        ({"context_configs": {"is_persistent_binary": True, "memory_limit_hint": 1}}, "switch no graphs"),
    ],
    ids=["group", "switching"],
)
def test_such_a_list_is_refused_with_a_configured_group_and_with_switching(chains, configs, settings, said) -> None:
    with qnn.Backend("htp", settings) as backend:
        with pytest.raises(QnnError, match=said) as refused:
            backend.create_contexts_from_binaries([chains[0][0]] * 2, configs)
        assert refused.value.code is Code.CONTEXT_INVALID_CONFIG
        assert backend.get_property(htp.LOADED_GRAPHS) == ()
        # A list that shares nothing may have both.
        for context in backend.create_contexts_from_binaries([chains[0][0]] * 2):
            assert run(context, chains[0][1])


def test_the_buffer_of_a_list_is_charged_once(tmp_path, chains) -> None:
    own = [charge_of(content) - sizes_of(content).spill_fill for content, _ in chains]
    with qnn.Backend("htp", {"htp": {"chip": chip(tmp_path, domains=[0], capacity=1 << 30)}}) as backend:
        backend.create_contexts_from_binaries([content for content, _ in chains], IN_TURNS)
        assert backend.get_property(htp.PROCESS_DOMAINS)[0][1] == NEED + sum(own)


MIB = 1 << 20
IO = 16 + 4
"""The inputs and outputs of a binary of `binary_of`."""


def placed(tmp_path, capacity: int, configs: dict[Any, Any], sizes: tuple[int, ...]) -> list[int]:
    """Load a list on a chip with two domains; the domain of each context."""
    settings = {"htp": {"chip": chip(tmp_path, domains=[0, 1], capacity=capacity)}}
    with qnn.Backend("htp", settings) as backend:
        contexts = backend.create_contexts_from_binaries([binary_of(size) for size in sizes], configs)
        return [each.driver.charge.use.domain for each in contexts]


@pytest.mark.parametrize(
    ("configs", "spare", "domains"),
    [
        # Without room for I/O, and with it: of one context, of two, of both in a buffer that the list reuses.
        (IN_TURNS, 0, [0, 0]),
        (SHARED, 0, [0, 1]),
        (SHARED, IO, [0, 1]),
        (SHARED, 2 * IO - 1, [0, 1]),
        (SHARED, 2 * IO, [0, 0]),
        ({**SHARED, htp.REUSED_IO_LIMIT: 1}, MIB, [0, 0]),
        ({**SHARED, htp.REUSED_IO_LIMIT: 1}, MIB - 1, [0, 1]),
        ({htp.IO_MEM_ESTIMATION: True, htp.REUSED_IO_LIMIT: 1}, MIB, [0, 0]),
        ({htp.IO_MEM_ESTIMATION: True, htp.REUSED_IO_LIMIT: 1}, MIB - 1, [0, 1]),
    ],
)
def test_a_list_of_type_0_keeps_room_for_inputs_and_outputs(tmp_path, configs, spare, domains) -> None:
    assert placed(tmp_path, 4 * MIB + spare, configs, (2 * MIB, 2 * MIB)) == domains


def test_room_for_the_io_of_a_context_that_was_freed_is_kept_no_longer(tmp_path) -> None:
    settings = {"htp": {"chip": chip(tmp_path, domains=[0], capacity=8 * MIB)}}
    with qnn.Backend("htp", settings) as backend:
        one, two = backend.create_contexts_from_binaries([binary_of(MIB)] * 2, SHARED)
        shared = one.driver.membership.shared
        assert shared is two.driver.membership.shared
        assert shared.io == {0: 2 * IO}
        one.free()
        one.free()
        assert shared.io == {0: IO}
