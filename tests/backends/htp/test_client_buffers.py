"""Weights and spill-fill in the client's own buffers: where they really are, who may use them, what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from backends.htp.client_memory import (
    PROPERTY,
    SPILL_FILL,
    VTCM_BACKUP,
    WEIGHTS,
    count_elsewhere,
    deferred,
    descriptor,
    inode,
    mapped_by_accelerator,
    register,
)
from backends.htp.harness import doubler, execute_in_turns, kill
from backends.htp.sized import WIDTH, binary_of, chain_of, chip, sizes_of, table_graph
from backends.htp.test_spill_fill_groups import ROWS, anonymous, run
from isthmus import qnn
from isthmus.backends.htp.graph import HtpGraphDriver
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, TensorType
from isthmus.memory import host, rpcmem, statistics
from isthmus.qnn import ClientTensor, htp

TABLE = 3 << 20
"""The bytes of the tables of `tables`, which are more than a unit of the properties."""


@pytest.fixture(scope="module")
def chains() -> list[tuple[bytes, np.ndarray]]:
    return [chain_of(ROWS, seed) for seed in range(3)]


@pytest.fixture
def backend() -> Iterator[qnn.Backend]:
    with qnn.Backend("htp") as opened:
        yield opened


def tables(*values: int, **configs: Any) -> bytes:
    """A binary of graphs that look up four bytes of a table with one value each."""
    with qnn.Backend("htp", {"context": configs}) as backend, backend.create_context() as context:
        for number, value in enumerate(values):
            table_graph(context, f"g{number}", TABLE, value)
        return context.prepare_offline()


def looked_up(context: qnn.Context, name: str = "g0") -> set[int]:
    y = np.zeros((4, 1), np.uint8)
    places = np.array([0, 1, TABLE // 2, TABLE - 1], np.int32)
    context.retrieve(name).execute([ClientTensor("x", places)], [ClientTensor("y", y)])
    return {*y.ravel().tolist()}


def execute(context: qnn.Context, x: np.ndarray) -> np.ndarray:
    y = np.zeros_like(x)
    context.retrieve("chain").execute([ClientTensor("x", x)], [ClientTensor("y", y)])
    return y


# -- where the memory is -----------------------------------------------------------------------------------------------


def test_weights_are_in_the_clients_buffer_and_nowhere_else_in_the_accelerator(backend) -> None:
    with deferred(backend, tables(7)) as context:
        buffer = register(context, WEIGHTS)
        assert count_elsewhere(buffer, 7) == 0, "nothing is loaded yet"
        before = anonymous(backend)
        context.finalize()
        assert count_elsewhere(buffer, 7) >= TABLE
        maps = mapped_by_accelerator(backend)
        assert [nbytes for number, _, nbytes in maps if number == inode(buffer)] == [buffer.nbytes]
        others = sum(nbytes for number, _, nbytes in maps if number != inode(buffer))
        assert max(others, anonymous(backend) - before) < TABLE
        assert looked_up(context) == {7}
        # What the client must not do shows where the accelerator reads: in these pages.
        buffer.array[buffer.array == 7] = 9
        assert looked_up(context) == {9}
    buffer.close()


def test_without_a_buffer_the_accelerator_has_the_weights_itself(backend) -> None:
    with deferred(backend, tables(7)) as context:
        context.finalize()
        assert sum(nbytes for _, _, nbytes in mapped_by_accelerator(backend)) >= TABLE
        assert looked_up(context) == {7}


@pytest.mark.parametrize("shares", [False, True])
def test_weights_of_several_graphs_are_in_one_buffer_and_equal_ones_once(backend, shares) -> None:
    with deferred(backend, tables(7, 8, 7, weight_sharing_enabled=shares)) as context:
        buffer = register(context, WEIGHTS)
        context.finalize()
        assert [looked_up(context, name) for name in ("g0", "g1", "g2")] == [{7}, {8}, {7}]
        assert all(TABLE <= count_elsewhere(buffer, value) < 2 * TABLE for value in (7, 8))


def test_scratch_is_in_the_clients_buffer(backend) -> None:
    content, order = chain_of(1 << 14)
    x = np.random.default_rng(0).standard_normal((1 << 14, WIDTH)).astype(np.float32)
    with deferred(backend, content) as warm:
        warm.finalize()
        execute(warm, x)
    before = anonymous(backend)
    with deferred(backend, content) as context:
        buffer = register(context, SPILL_FILL)
        context.finalize()
        assert not buffer.array.any()
        assert (execute(context, x) == x[:, order]).all()
        assert anonymous(backend) - before < x.nbytes / 4
        assert np.count_nonzero(buffer.array) > x.nbytes / 2
    buffer.close()


def test_the_property_is_enough_also_where_weights_take_more_bytes_than_the_binary_has(backend) -> None:
    """Weights that are stored as fp16 and used as FLOAT_32."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((1024, 800)).astype(np.float16)
    with qnn.Backend("htp") as maker, maker.create_context() as composed:
        graph = composed.create_graph("g")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (8, 1024))
        half = graph.create_tensor("half", TensorType.STATIC, DataType.FLOAT_16, weights.shape, None, weights)
        w = graph.create_tensor("w", TensorType.NATIVE, DataType.FLOAT_32, weights.shape)
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (8, 800))
        graph.add_node("cast", "Cast", [half], [w])
        graph.add_node("product", "MatMul", [x, w], [y])
        content = composed.prepare_offline()
    assert sizes_of(content).weights < 2 << 20, "one unit of the property"
    given = random.standard_normal((8, 1024)).astype(np.float32)
    results = []
    for has_buffer in (False, True):
        with deferred(backend, content) as context:
            assert context.get_property(htp.WEIGHTS_BUFFER_SIZE) % (2 << 20) == 0
            if has_buffer:
                register(context, WEIGHTS)
            context.finalize()
            results.append(np.zeros((8, 800), np.float32))
            context.retrieve("g").execute([ClientTensor("x", given)], [ClientTensor("y", results[-1])])
    assert (results[0] == results[1]).all()
    assert results[0].any()


def test_the_clients_buffer_takes_the_place_of_memory_of_the_backend(backend, chains) -> None:
    content, order = chains[0]
    with statistics("rpcmem") as counted, deferred(backend, content) as context:
        buffers = [register(context, kind) for kind in (WEIGHTS, SPILL_FILL)]
        context.finalize()
        assert run(context, order)
        # The buffers, and the staging memory of input and output.
        assert counted.live_bytes == sum(each.nbytes for each in buffers) + 2 * 4 * ROWS * WIDTH


def test_a_vtcm_backup_buffer_is_taken_though_nothing_is_saved_there(backend, chains) -> None:
    content, order = chains[0]
    with deferred(backend, content) as context:
        assert context.get_property(htp.MAX_VTCMBACKUP_BUFFER_SIZE) == 0
        with rpcmem.share(4096) as buffer:
            context.mem_register([descriptor(VTCM_BACKUP, buffer)])
            context.finalize()
            assert run(context, order)
            assert not buffer.array.any()
            context.free()


# -- several contexts --------------------------------------------------------------------------------------------------


def test_contexts_with_one_spill_fill_buffer_execute_in_turns(chains) -> None:
    """Executions take long enough that they would overlap without a lock of their own."""
    rows = 1 << 15
    longer = [chain_of(rows, seed) for seed in range(3)]
    with qnn.Backend("htp", {"htp": {"units": 4}}) as backend:
        contexts = [deferred(backend, content) for content, _ in longer]
        buffer = None
        for context in contexts:
            buffer = register(context, SPILL_FILL, buffer)
            context.finalize()
        assert buffer is not None
        assert [number for number, _, _ in mapped_by_accelerator(backend)].count(inode(buffer)) == 1
        assert execute_in_turns(contexts, [order for _, order in longer], rows)


def test_a_shared_spill_fill_buffer_outlives_the_context_that_registered_it_first(backend, chains) -> None:
    first, second = (deferred(backend, content) for content, _ in chains[:2])
    buffer = register(first, SPILL_FILL)
    register(second, SPILL_FILL, buffer)
    first.finalize()
    second.finalize()
    first.free()
    assert run(second, chains[1][1])
    second.free()
    buffer.close()


def test_one_spill_fill_buffer_is_not_for_contexts_of_two_devices(backend, chains) -> None:
    """They execute in two processes, which do not wait for each other."""
    devices = [backend.create_device() for _ in range(2)]
    first, second = (
        deferred(backend, content, device=device) for (content, _), device in zip(chains[:2], devices, strict=True)
    )
    buffer = register(first, SPILL_FILL, rpcmem.share(8 << 20))
    with pytest.raises(QnnError, match="SHARED_SPILLFILL_BUFFER of an HTP context") as caught:
        register(second, SPILL_FILL, buffer)
    assert caught.value.code is Code.MEM_ALREADY_REGISTERED
    first.finalize()
    second.finalize()
    assert run(first, chains[0][1])
    assert run(second, chains[1][1])


def test_a_persistent_binary_that_changes_after_its_property_was_asked_is_refused(backend) -> None:
    content = tables(7)
    held = host(len(content), 64).array
    held[:] = np.frombuffer(content, np.uint8)
    for registers in (False, True):
        context = deferred(backend, held.data, persistent=True)
        context.get_property(htp.WEIGHTS_BUFFER_SIZE)
        if registers:
            register(context, WEIGHTS)
        place = content.index(bytes([7] * 1000))
        held[place : place + TABLE - 1000] = 9
        with pytest.raises(QnnError, match="its memory has changed since the context was created") as caught:
            context.finalize()
        assert caught.value.code is Code.CONTEXT_CREATE_FROM_BINARY
        held[:] = np.frombuffer(content, np.uint8)
        context.finalize()
        assert looked_up(context) == {7}
        context.free()


def test_a_weights_buffer_belongs_to_one_context(backend, chains) -> None:
    first, second = (deferred(backend, content) for content, _ in chains[:2])
    buffer = register(first, WEIGHTS)
    with pytest.raises(QnnError, match="WEIGHTS_BUFFER of an HTP context") as caught:
        register(second, WEIGHTS, buffer)
    assert caught.value.code is Code.MEM_ALREADY_REGISTERED
    with pytest.raises(QnnError, match="WEIGHTS_BUFFER of an HTP context"):
        register(second, SPILL_FILL, buffer)
    first.finalize()
    assert run(first, chains[0][1])
    first.free()
    register(second, WEIGHTS, buffer)
    second.finalize()
    assert run(second, chains[1][1])


def test_weights_and_spill_fill_may_be_parts_of_one_buffer(backend, chains) -> None:
    content, order = chains[0]
    with deferred(backend, content) as context:
        weights = context.get_property(htp.WEIGHTS_BUFFER_SIZE)
        buffer = rpcmem.share(weights + context.get_property(htp.MAX_SPILLFILL_BUFFER_SIZE))
        context.mem_register(
            [descriptor(WEIGHTS, buffer, size=weights), descriptor(SPILL_FILL, buffer, offset=weights)]
        )
        context.finalize()
        assert run(context, order)
        assert buffer.array[:weights].any()
        assert buffer.array[weights:].any()


def test_tensors_cannot_be_in_a_buffer_of_a_context(backend, chains) -> None:
    with deferred(backend, chains[0][0]) as context, backend.create_context() as other:
        buffer = register(context, WEIGHTS)
        graph, x = doubler(other), np.zeros((1, 16), np.float32)
        with pytest.raises(QnnError, match="overlaps the WEIGHTS_BUFFER") as caught:
            graph.execute([ClientTensor("x", buffer.view(np.float32, (1, 16), 0))], [ClientTensor("y", x)])
        assert caught.value.code is Code.GRAPH_INVALID_TENSOR


# -- the order of calls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [WEIGHTS, SPILL_FILL, VTCM_BACKUP])
def test_only_a_deferred_context_takes_buffers_and_only_before_it_is_finalized(backend, chains, kind) -> None:
    content, order = chains[0]
    with rpcmem.share(4 << 20) as buffer:
        contexts = [backend.create_context(), backend.create_context_from_binary(content), deferred(backend, content)]
        contexts[2].finalize()
        for context in contexts:
            with pytest.raises(QnnError, match=f"{kind.name} .*finalized") as caught:
                context.mem_register([descriptor(kind, buffer)])
            assert caught.value.code is Code.MEM_UNSUPPORTED_MEMTYPE
        assert all(run(context, order) for context in contexts[1:])


WRONG = {
    "too small": ({"size": (2 << 20) - 1}, Code.MEM_INVALID_ARGUMENT, "has 2097151 bytes, the context needs 2097152"),
    "too small behind its offset": (
        {"offset": 4 << 20, "size": 5 << 20}, Code.MEM_INVALID_ARGUMENT, "has 1048576 bytes",
    ),
    "misaligned": ({"offset": 64, "size": 3 << 20}, Code.MEM_INVALID_ARGUMENT, "begins at 64, .* multiple of 4096"),
    "a size that it has not": ({"size": 16 << 20}, Code.MEM_MAPPING, "said to have 16777216 bytes, it has 8388608"),
    "a negative size": ({"size": -1}, Code.MEM_INVALID_ARGUMENT, "must be an integer and not negative"),
    "no descriptor": ({"fd": -1}, Code.MEM_INVALID_ARGUMENT, "file descriptor -1"),
    "a descriptor of no memory": ({"fd": 0}, Code.MEM_INVALID_ARGUMENT, "file descriptor 0"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", [WEIGHTS, SPILL_FILL])
def test_a_buffer_that_cannot_be_used_is_refused_and_nothing_leaks(backend, chains, kind, wrong) -> None:
    changes, code, why = WRONG[wrong]
    content, order = chains[0]
    other = SPILL_FILL if kind is WEIGHTS else WEIGHTS
    with deferred(backend, content) as context, rpcmem.share(8 << 20) as buffer, rpcmem.share(8 << 20) as good:
        slots = backend.driver.device.accelerator().counts()["memory"]
        with pytest.raises(QnnError, match=why) as caught:
            context.mem_register([descriptor(other, good), descriptor(kind, buffer, **changes)])
        assert (caught.value.code, caught.value.what) == (code, "memory descriptor 1")
        assert backend.driver.device.accelerator().counts()["memory"] == slots
        context.mem_register([descriptor(other, good), descriptor(kind, buffer)])
        context.finalize()
        assert run(context, order)
        context.free()


def test_a_second_buffer_of_a_type_is_refused(backend, chains) -> None:
    with deferred(backend, chains[0][0]) as context:
        register(context, WEIGHTS)
        with pytest.raises(QnnError, match="the context has a WEIGHTS_BUFFER: handle 1") as caught:
            register(context, WEIGHTS)
        assert caught.value.code is Code.MEM_ALREADY_REGISTERED
        buffer = rpcmem.share(8 << 20)
        with pytest.raises(QnnError, match="the context has a SHARED_SPILLFILL_BUFFER"):
            context.mem_register([descriptor(SPILL_FILL, buffer), descriptor(SPILL_FILL, buffer, offset=4 << 20)])
        context.finalize()
        assert run(context, chains[0][1])


def test_of_two_threads_that_finalize_a_context_one_does(backend, chains, monkeypatch) -> None:
    content, order = chains[0]
    with deferred(backend, content) as context:
        restore, entered = context.driver.restore_deferred, threading.Event()
        outcomes: list[Code] = []

        def finalize() -> None:
            try:
                context.finalize()
                outcomes.append(Code.SUCCESS)
            except QnnError as problem:
                outcomes.append(problem.code)

        second = threading.Thread(target=finalize)

        def while_another_waits() -> Any:
            if second.ident is not None:
                entered.set()
                raise AssertionError("both load the graphs")
            second.start()
            assert not entered.wait(0.3)
            return restore()

        monkeypatch.setattr(context.driver, "restore_deferred", while_another_waits)
        finalize()
        second.join()
        assert sorted(outcomes) == [Code.SUCCESS, Code.COMMON_NOT_SUPPORTED]
        assert run(context, order)


def test_a_finalization_that_fails_leaves_nothing_loaded_and_keeps_its_error(backend, monkeypatch) -> None:
    with deferred(backend, tables(7, 8, 9)) as context:
        reserve, unload = HtpGraphDriver._reserve, context.driver.queue.unload
        asked: list[str] = []

        def refuse_second(graph: HtpGraphDriver) -> None:
            asked.append(graph.graph.name)
            if len(asked) == 2:
                raise QnnError(Code.COMMON_MEM_ALLOC, "staging memory", "there is none")
            reserve(graph)

        def complain(number: int) -> None:
            unload(number)
            raise QnnError(Code.COMMON_GENERAL, "unload", "it complains")

        monkeypatch.setattr(HtpGraphDriver, "_reserve", refuse_second)
        monkeypatch.setattr(context.driver.queue, "unload", complain)
        with pytest.raises(QnnError, match="there is none") as caught:
            context.finalize()
        assert caught.value.code is Code.COMMON_MEM_ALLOC
        assert backend.get_property(htp.LOADED_GRAPHS) == ()
        monkeypatch.undo()
        context.finalize()
        assert [looked_up(context, name) for name in ("g0", "g1", "g2")] == [{7}, {8}, {9}]


def test_a_buffer_is_the_contexts_until_it_is_freed_also_without_its_handle(backend, chains) -> None:
    content, order = chains[0]
    context = deferred(backend, content)
    buffers = [rpcmem.share(context.get_property(each)) for each in PROPERTY.values()]
    handles = context.mem_register(map(descriptor, PROPERTY, buffers))
    context.finalize()
    context.mem_deregister(handles)
    assert not any(each.alive for each in handles)
    for each in buffers:
        with pytest.raises(QnnError, match="BUFFER of an HTP context") as caught:
            each.close()
        assert caught.value.code is Code.COMMON_OPERATION_NOT_PERMITTED
    assert run(context, order)
    context.free()
    for each in buffers:
        each.close()
    assert backend.driver.device.accelerator().counts()["memory"] == 0


def test_a_buffer_that_is_deregistered_before_is_not_used(backend, chains) -> None:
    content, order = chains[0]
    with deferred(backend, content) as context:
        buffer = rpcmem.share(context.get_property(htp.WEIGHTS_BUFFER_SIZE))
        context.mem_deregister(context.mem_register([descriptor(WEIGHTS, buffer)]))
        buffer.close()
        context.finalize()
        assert run(context, order)


def test_a_context_that_is_freed_before_it_is_finalized_releases_its_buffers(backend, chains) -> None:
    context = deferred(backend, chains[0][0])
    buffers = [register(context, kind) for kind in PROPERTY]
    context.free()
    for each in buffers:
        each.close()


def test_groups_and_buffers_of_the_client_exclude_each_other(backend, chains) -> None:
    content, order = chains[0]
    group = {htp.REGISTER_MULTI_CONTEXTS: htp.GroupRegistration(None, 1 << 20)}
    with deferred(backend, content, configs=group) as context, rpcmem.share(4 << 20) as buffer:
        with pytest.raises(QnnError, match="in the buffer of the group") as caught:
            context.mem_register([descriptor(SPILL_FILL, buffer)])
        assert caught.value.code is Code.MEM_UNSUPPORTED_MEMTYPE
    settings = {"context": {"group_id": 0, "max_spill_fill_buffer_for_group": 1 << 20}}
    with qnn.Backend("htp", settings) as configured:
        context = deferred(configured, content)
        with pytest.raises(QnnError, match="in the buffer of the group"):
            register(context, WEIGHTS)
    with deferred(backend, content) as context:
        register(context, SPILL_FILL)
        with pytest.raises(QnnError, match="which excludes groups") as caught:
            context.set_config(group)
        assert caught.value.code is Code.CONTEXT_INVALID_CONFIG
        context.finalize()
        assert run(context, order)


@pytest.mark.parametrize("kind", list(PROPERTY))
def test_a_context_that_switches_graphs_takes_no_buffers(backend, chains, kind) -> None:
    content, order = chains[0]
    settings = {"persistent": True, "memory_limit": 1, "deferred": True}
    with backend.create_context_from_binary(content, **settings) as context, rpcmem.share(4 << 20) as buffer:
        with pytest.raises(QnnError, match="a context that switches graphs") as caught:
            context.mem_register([descriptor(kind, buffer)])
        assert caught.value.code is Code.MEM_UNSUPPORTED_MEMTYPE
        context.finalize()
        assert run(context, order)


# -- process domains and failures --------------------------------------------------------------------------------------


def test_buffers_of_the_client_change_nothing_about_process_domains(tmp_path) -> None:
    content = binary_of(5000)
    used = []
    with qnn.Backend("htp", {"htp": {"chip": chip(tmp_path, domains=[0], capacity=100_000)}}) as backend:
        for kinds in ((), (WEIGHTS,), (VTCM_BACKUP,), (WEIGHTS, VTCM_BACKUP)):
            with deferred(backend, content) as context:
                for kind in kinds:
                    register(context, kind, rpcmem.share(2 << 20))
                context.finalize()
                used.append(backend.get_property(htp.PROCESS_DOMAINS)[0][1])
            assert backend.get_property(htp.PROCESS_DOMAINS)[0][1] == 0
    assert used == [5000] * 4


def test_a_finalization_that_fails_leaves_the_buffers_registered(tmp_path) -> None:
    with qnn.Backend("htp", {"htp": {"chip": chip(tmp_path, domains=[0], capacity=TABLE + 100_000)}}) as backend:
        first = backend.create_context_from_binary(tables(3))
        context = deferred(backend, tables(7))
        buffer = register(context, WEIGHTS)
        with pytest.raises(QnnError) as caught:
            context.finalize()
        assert caught.value.code is Code.COMMON_MEM_ALLOC
        with pytest.raises(QnnError, match="the context has a WEIGHTS_BUFFER"):
            register(context, WEIGHTS)
        first.free()
        context.finalize()
        assert looked_up(context) == {7}
        assert count_elsewhere(buffer, 7) >= TABLE


def test_buffers_survive_the_accelerator(backend, chains) -> None:
    content, order = chains[0]
    context = deferred(backend, content)
    buffers = [register(context, kind) for kind in PROPERTY]
    context.finalize()
    kill(backend)
    with pytest.raises(QnnError) as caught:
        run(context, order)
    assert caught.value.code is Code.COMMON_SYSTEM_COMMUNICATION
    context.free()
    with deferred(backend, content) as again:
        for kind, buffer in zip(PROPERTY, buffers, strict=True):
            register(again, kind, buffer)
        again.finalize()
        assert run(again, order)
    for each in buffers:
        each.close()
