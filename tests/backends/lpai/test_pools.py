"""LPAI's pools: asked for, aligned, set in order, held, replaced, refused by name; after a refusal all still works."""

import gc
import threading

import numpy as np
import pytest
from support.waiting import PATIENCE, eventually

from backends.lpai.harness import count, counter, ddr, pools, ready, running
from isthmus import Code, QnnError, memory, qnn
from isthmus.graph import DataType, TensorType
from isthmus.qnn import lpai


@pytest.fixture
def backend():
    with qnn.Backend("lpai") as backend:
        yield backend


@pytest.fixture
def graph(backend):
    return counter(backend.create_context())


def refused(code, match):
    return pytest.raises(QnnError, match=rf"^\[{int(code)} .*{match}")


def finish(graph, scratch, persistent):
    """Set both pools rightly after a refusal: the graph must work as if nothing had been refused."""
    graph.set_config(lpai.SCRATCH_MEM, ddr(scratch))
    graph.set_config(lpai.PERSISTENT_MEM, ddr(persistent))
    graph.finalize()
    assert [count(graph, 1), count(graph, 1)] == [4, 6]  # twice the state, which begins at 1


@pytest.mark.parametrize(
    ("version", "start", "size"),
    [("v4", 64, 8), ("v5", 64, 64), ("v5.1", 64, 64), ("v6", 128, 128), ("v7", 128, 128)],
)
def test_alignment_is_a_property_of_the_hardware_version(version, start, size) -> None:
    with qnn.Backend("lpai", {"lpai_backend": {"enable_hw_ver": version}}) as backend:
        assert backend.get_property(lpai.ALIGNMENT_REQ) == lpai.BufferAlignmentReq(start, size)


def test_alignment_can_be_set() -> None:
    config = {"lpai_backend": {"start_addr_alignment": 4096, "size_alignment": 512}}
    with running(config) as graph:
        assert graph.context.backend.get_property(lpai.ALIGNMENT_REQ) == lpai.BufferAlignmentReq(4096, 512)
        assert graph.get_property(lpai.PERSISTENT_MEM_SIZE) % 512 == 0
        assert count(graph, 1) == 4


def test_sizes_are_multiples_of_the_size_alignment_and_hold_what_is_needed(graph) -> None:
    scratch, persistent = (graph.get_property(p) for p in (lpai.SCRATCH_MEM_SIZE, lpai.PERSISTENT_MEM_SIZE))
    assert scratch % 128 == persistent % 128 == 0
    assert persistent >= 160, "forty floats of state"
    assert scratch >= 160, "an input of forty floats"


@pytest.mark.parametrize(("version", "one", "two"), [("v4", 192, 256), ("v5", 192, 256), ("v6", 256, 384)])
def test_the_persistent_size_is_that_of_the_states_each_up_to_the_next_aligned_start(version, one, two) -> None:
    with qnn.Backend("lpai", {"lpai_backend": {"enable_hw_ver": version}}) as backend:
        graph = counter(backend.create_context(), width=40)
        assert graph.get_property(lpai.PERSISTENT_MEM_SIZE) == one
        graph = counter(backend.create_context(), width=40)
        state = graph.create_tensor("small", TensorType.APP_READWRITE, DataType.FLOAT_32, (1, 3))
        x = graph.create_tensor("other", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 3))
        total = graph.create_tensor("sum", TensorType.APP_READ, DataType.FLOAT_32, (1, 3))
        graph.add_node("small", "ElementWiseAdd", [x, state], [total])
        graph.update_state(state, total)
        assert graph.get_property(lpai.PERSISTENT_MEM_SIZE) == two


def test_asking_for_a_size_ends_composition(graph) -> None:
    graph.get_property(lpai.SCRATCH_MEM_SIZE)
    with refused(Code.GRAPH_FINALIZED, "ends composition"):
        graph.add_node("late", "Relu", [], [])


@pytest.mark.parametrize("missing", [lpai.SCRATCH_MEM, lpai.PERSISTENT_MEM])
def test_both_pools_must_be_set_before_finalize(backend, graph, missing) -> None:
    scratch, persistent = pools(backend, graph)
    for option, buffer in ((lpai.SCRATCH_MEM, scratch), (lpai.PERSISTENT_MEM, persistent)):
        if option is not missing:
            graph.set_config(option, ddr(buffer))
    name = missing.name.split("_")[0].lower()
    with refused(Code.GRAPH_FINALIZE_FAILED, f"its {name} memory is not set"):
        graph.finalize()
    finish(graph, scratch, persistent)


@pytest.mark.parametrize("option", [lpai.SCRATCH_MEM, lpai.PERSISTENT_MEM])
@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda m: lpai.Mem(m.mem_type, m.size, m.addr[64:]), "not a multiple of 128"),
        (lambda m: lpai.Mem(m.mem_type, m.size + 8, m.addr), "is not a multiple of 128"),
        (lambda m: lpai.Mem(m.mem_type, m.size - 128, m.addr), "are needed"),
        (lambda m: lpai.Mem(m.mem_type, m.size + (1 << 20), m.addr), "its buffer has"),
        (lambda m: lpai.Mem(m.mem_type, m.size, None), "null"),
        (lambda m: lpai.Mem(m.mem_type, m.size, 0), "null"),
        (lambda m: lpai.Mem(m.mem_type, 0, m.addr), "are needed"),
        (lambda m: lpai.Mem(m.mem_type, -128, m.addr), "integer"),
        (lambda m: lpai.Mem(m.mem_type, 1 << 32, m.addr), "32 bits"),
        (lambda m: lpai.Mem(m.mem_type, 1.5, m.addr), "integer"),
        (lambda m: lpai.Mem(lpai.MemType.TCM, m.size, m.addr), "must be in DDR, is given as TCM"),
        (lambda m: lpai.Mem(lpai.MemType.LLC, m.size, m.addr), "must be in DDR"),
        (lambda m: lpai.Mem(lpai.MemType.UNDEFINED, m.size, m.addr), "must be in DDR"),
        (lambda m: "scratch", "takes a Mem"),
        (lambda m: None, "takes a Mem"),
    ],
)
def test_a_pool_that_cannot_be_used_is_refused_by_name(backend, graph, option, change, rule) -> None:
    scratch, persistent = pools(backend, graph)
    buffer = memory.host(4096, 128)
    size = graph.get_property(lpai.SCRATCH_MEM_SIZE if option is lpai.SCRATCH_MEM else lpai.PERSISTENT_MEM_SIZE)
    name = option.name.split("_")[0].lower() if rule != "takes a Mem" else ""
    with refused(Code.GRAPH_INVALID_ARGUMENT, f"{name}.*graph 'counter'.*{rule}"):
        graph.set_config(option, change(lpai.Mem(lpai.MemType.DDR, size, buffer.array)))
    finish(graph, scratch, persistent)
    buffer.close()


@pytest.mark.parametrize("memory_", [bytes(8192), np.zeros((128, 128), np.uint8)[:, ::2], object()])
def test_memory_that_cannot_be_written_is_no_pool(backend, graph, memory_) -> None:
    scratch, persistent = pools(backend, graph)
    with refused(Code.GRAPH_INVALID_ARGUMENT, "scratch memory of graph 'counter'"):
        graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, scratch.nbytes, memory_))
    finish(graph, scratch, persistent)


def test_pools_of_one_graph_must_not_overlap(backend, graph) -> None:
    scratch, persistent = pools(backend, graph)
    both = memory.host(scratch.nbytes + persistent.nbytes, 128)
    graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, scratch.nbytes, both))
    shifted = both.array[scratch.nbytes - 128 :]
    with refused(Code.GRAPH_INVALID_ARGUMENT, "persistent memory .* overlaps the scratch memory of graph 'counter'"):
        graph.set_config(lpai.PERSISTENT_MEM, lpai.Mem(lpai.MemType.DDR, persistent.nbytes, shifted))
    apart = both.array[scratch.nbytes :]
    graph.set_config(lpai.PERSISTENT_MEM, lpai.Mem(lpai.MemType.DDR, persistent.nbytes, apart))
    graph.finalize()
    assert count(graph, 1) == 4


def test_a_bare_address_is_a_pool_too(backend, graph) -> None:
    scratch, persistent = pools(backend, graph)
    graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, scratch.nbytes, scratch.address))
    graph.set_config(lpai.PERSISTENT_MEM, lpai.Mem(lpai.MemType.DDR, persistent.nbytes, persistent.address))
    graph.finalize()
    assert [count(graph, 1), count(graph, 1)] == [4, 6]
    with refused(Code.COMMON_OPERATION_NOT_PERMITTED, "persistent memory of graph 'counter'"):
        persistent.close()


def test_finalize_puts_the_initial_state_into_persistent_memory(backend, graph) -> None:
    scratch, persistent = pools(backend, graph)
    persistent.array[:] = 0xA5
    finish(graph, scratch, persistent)
    assert (persistent.array[:160].view(np.float32) == 3).all(), "1 at first, then two times 1 added"


def test_executing_before_finalize_is_refused(backend, graph) -> None:
    with refused(Code.GRAPH_NOT_FINALIZED, "graph 'counter'"):
        graph.execute()
    finish(graph, *pools(backend, graph))


def test_finalizing_twice_is_refused(backend, graph) -> None:
    ready(backend, graph)
    with refused(Code.GRAPH_FINALIZED, "already"):
        graph.finalize()
    assert count(graph, 1) == 4


def test_scratch_may_be_replaced_between_executions_and_state_is_kept(backend, graph) -> None:
    first, _ = ready(backend, graph)
    assert count(graph, 1) == 4
    second = memory.host(first.nbytes, 128)
    graph.set_config(lpai.SCRATCH_MEM, ddr(second))
    first.array[:] = 0xFF
    first.close()
    assert count(graph, 1) == 6
    assert np.shares_memory(graph.inputs["x"], second.array)


def test_scratch_cannot_be_replaced_by_nothing(backend, graph) -> None:
    ready(backend, graph)
    for nothing in (lpai.Mem(lpai.MemType.DDR, 0, None), lpai.Mem(lpai.MemType.DDR, 0, memory.host(0, 128))):
        with refused(Code.GRAPH_INVALID_ARGUMENT, "scratch memory"):
            graph.set_config(lpai.SCRATCH_MEM, nothing)
    assert count(graph, 1) == 4


def test_scratch_in_use_cannot_be_closed_until_it_is_replaced(backend, graph) -> None:
    scratch, _ = ready(backend, graph)
    with refused(Code.COMMON_OPERATION_NOT_PERMITTED, "scratch memory of graph 'counter' until it is replaced"):
        scratch.close()
    graph.set_config(lpai.SCRATCH_MEM, ddr(memory.host(scratch.nbytes, 128)))
    scratch.close()


@pytest.fixture
def midway(backend, graph):
    """A graph whose execution, on another thread, is under way until the test lets it go on."""
    scratch, persistent = ready(backend, graph)
    began, go_on = threading.Event(), threading.Event()
    real = graph.driver._executor.run

    def slow():
        began.set()
        go_on.wait(PATIENCE)
        real()

    graph.driver._executor.run = slow
    graph.inputs["x"][...] = 1
    thread = threading.Thread(target=graph.execute)
    thread.start()
    assert began.wait(PATIENCE)

    def finish():
        graph.driver._executor.run = real
        go_on.set()
        thread.join()

    yield graph, scratch, persistent, finish
    finish()
    assert count(graph, 1) == 6, "the execution was not disturbed"


def test_a_replacement_of_scratch_waits_for_the_execution_that_runs(midway) -> None:
    graph, scratch, _, finish = midway
    other = memory.host(scratch.nbytes, 128)
    replacing = threading.Thread(target=graph.set_config, args=(lpai.SCRATCH_MEM, ddr(other)))
    replacing.start()
    assert eventually(lambda: graph.driver._lock.is_awaited)
    assert replacing.is_alive()
    with refused(Code.COMMON_OPERATION_NOT_PERMITTED, "scratch memory of graph 'counter'"):
        scratch.close()
    finish()
    replacing.join()
    scratch.close()
    assert np.shares_memory(graph.inputs["x"], other.array)


def test_pools_cannot_be_closed_while_an_execution_runs(midway) -> None:
    _, scratch, persistent, _ = midway
    for buffer in (scratch, persistent):
        with refused(Code.COMMON_OPERATION_NOT_PERMITTED, "graph 'counter'"):
            buffer.close()


def test_persistent_memory_is_held_until_the_context_is_freed(backend, graph) -> None:
    _, persistent = ready(backend, graph)
    with refused(Code.COMMON_OPERATION_NOT_PERMITTED, "persistent memory of graph 'counter' until its context"):
        persistent.close()
    assert count(graph, 1) == 4
    graph.context.free()
    persistent.close()


def test_persistent_memory_cannot_be_replaced_after_finalize(backend, graph) -> None:
    _, persistent = ready(backend, graph)
    with refused(Code.GRAPH_FINALIZED, "persistent memory of graph 'counter'"):
        graph.set_config(lpai.PERSISTENT_MEM, ddr(memory.host(persistent.nbytes, 128)))
    assert count(graph, 1) == 4


@pytest.mark.parametrize("option", [lpai.SCRATCH_MEM, lpai.PERSISTENT_MEM])
def test_persistent_memory_cannot_serve_another_graph_too(backend, graph, option) -> None:
    _, persistent = ready(backend, graph)
    other = counter(backend.create_context(), "other", 4)
    scratch, own = pools(backend, other)
    with refused(Code.GRAPH_INVALID_ARGUMENT, "graph 'other'.* overlaps the persistent memory of graph 'counter'"):
        other.set_config(option, lpai.Mem(lpai.MemType.DDR, 128, persistent.array))
    finish(other, scratch, own)
    assert count(graph, 1) == 4


def test_persistent_memory_given_as_an_array_is_held_too(backend, graph) -> None:
    scratch, _ = pools(backend, graph)
    array = memory.host(256, 128).array
    graph.set_config(lpai.SCRATCH_MEM, ddr(scratch))
    graph.set_config(lpai.PERSISTENT_MEM, lpai.Mem(lpai.MemType.DDR, 256, array))
    graph.finalize()
    other = counter(backend.create_context(), "other")
    with refused(Code.GRAPH_INVALID_ARGUMENT, "persistent memory of graph 'counter' until its context is freed"):
        other.set_config(lpai.PERSISTENT_MEM, lpai.Mem(lpai.MemType.DDR, 256, array))


def test_graphs_of_one_context_may_share_scratch_and_graphs_of_two_may_not(backend) -> None:
    context = backend.create_context()
    one, two = counter(context, "one"), counter(context, "two")
    scratch, _ = ready(backend, one)
    other_scratch, persistent = pools(backend, two)
    two.set_config(lpai.SCRATCH_MEM, ddr(scratch))
    two.set_config(lpai.PERSISTENT_MEM, ddr(persistent))
    two.finalize()
    assert [count(one, 1), count(two, 5), count(one, 1), count(two, 5)] == [4, 12, 6, 22]
    three = counter(backend.create_context(), "three")
    with refused(Code.GRAPH_INVALID_ARGUMENT, "graph 'three'.* overlaps the scratch memory of graph"):
        three.set_config(lpai.SCRATCH_MEM, ddr(scratch))
    finish(three, other_scratch, pools(backend, three)[1])


def test_a_forgotten_backend_lets_go_of_its_pools() -> None:
    backend = qnn.Backend("lpai")
    graph = counter(backend.create_context())
    scratch, persistent = ready(backend, graph)
    count(graph, 1)
    del backend, graph
    gc.collect()
    scratch.close()
    persistent.close()


def test_a_graph_without_state_needs_no_persistent_memory(backend) -> None:
    from isthmus.graph import DataType, TensorType

    graph = backend.create_context().create_graph("relu")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
    graph.add_node("relu", "Relu", [x], [y])
    assert graph.get_property(lpai.PERSISTENT_MEM_SIZE) == 0
    graph.set_config(lpai.SCRATCH_MEM, ddr(pools(backend, graph)[0]))
    graph.set_config(lpai.PERSISTENT_MEM, lpai.Mem(lpai.MemType.DDR, 0, None))
    graph.finalize()
    graph.inputs["x"][...] = -1
    graph.execute()
    assert not graph.outputs["y"].any()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (lpai.PERF_CFG, lpai.PerfCfg(30, 5, lpai.ClientType.NON_REAL_TIME)),
        (lpai.CORE_AFFINITY, lpai.CoreAffinity(lpai.Affinity.HARD, 2)),
    ],
)
def test_performance_and_affinity_are_stored_and_can_be_read(graph, option, value) -> None:
    assert graph.get_property(option) == type(value)()
    graph.set_config(option, value)
    assert graph.get_property(option) == value
    with refused(Code.GRAPH_INVALID_ARGUMENT, type(value).__name__):
        graph.set_config(option, 7)
    assert graph.get_property(option) == value


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: lpai.PerfCfg(fps=0), "fps=0.*1 to 4294967295"),
        (lambda: lpai.PerfCfg(ftrt_ratio=-1), "ftrt_ratio=-1"),
        (lambda: lpai.PerfCfg(client_type=3), "client_type 3.*REAL_TIME 1, NON_REAL_TIME 2"),
        (lambda: lpai.CoreAffinity(affinity=0), "affinity 0.*SOFT 1, HARD 2"),
        (lambda: lpai.CoreAffinity(core_selection=3), "several cores"),
        (lambda: lpai.CoreAffinity(core_selection=1 << 32), "core_selection"),
        (lambda: lpai.Prepare(exclude_io=1), "exclude_io=1"),
    ],
)
def test_values_out_of_range_are_refused(make, rule) -> None:
    with refused(Code.GRAPH_INVALID_ARGUMENT, rule):
        make()


def test_priority_is_checked_and_kept(graph) -> None:
    graph.set_config(qnn.GraphConfig.PRIORITY, qnn.Priority.HIGH)
    assert graph.get_property(qnn.GraphConfig.PRIORITY) is qnn.Priority.HIGH
    with refused(Code.GRAPH_INVALID_ARGUMENT, "priority 7.*LOW 0"):
        graph.set_config(qnn.GraphConfig.PRIORITY, 7)


@pytest.mark.parametrize("option", [2, 999])
def test_unknown_options_are_refused(backend, graph, option) -> None:
    for call, code in (
        (lambda: backend.get_property(option), Code.BACKEND_NOT_SUPPORTED),
        (lambda: backend.set_config(option, 1), Code.BACKEND_NOT_SUPPORTED),
        (lambda: graph.context.get_property(option), Code.CONTEXT_INVALID_ARGUMENT),
        (lambda: graph.context.set_config(option, 1), Code.CONTEXT_INVALID_CONFIG),
        (lambda: graph.get_property(option), Code.GRAPH_INVALID_ARGUMENT),
        (lambda: graph.set_config(option, 1), Code.GRAPH_INVALID_ARGUMENT),
    ):
        with refused(code, str(option)):
            call()


def test_the_backend_says_whether_a_binary_must_outlive_its_context(backend) -> None:
    assert backend.get_property(lpai.REQUIRE_PERSISTENT_BINARY) is False


def test_island_mode_is_stored_and_can_be_read(backend) -> None:
    context = backend.create_context({lpai.ENABLE_ISLAND: True})
    assert context.get_property(lpai.ENABLE_ISLAND) is True
    with refused(Code.CONTEXT_INVALID_CONFIG, "island"):
        backend.create_context({lpai.ENABLE_ISLAND: "yes"})


@pytest.mark.parametrize("start", [64, 128, 512])
def test_everything_in_scratch_and_persistent_memory_is_planned_at_aligned_offsets(start) -> None:
    with running({"lpai_backend": {"start_addr_alignment": start}}) as graph:
        assert graph.plan.rows
        offsets = [row.offset for row in graph.plan.rows] + list(graph.driver.prepared().schedule.state_offsets)
        offsets += graph.get_property(lpai.IO_OFFSETS)
        assert all(offset % start == 0 for offset in offsets)
        assert max(row.offset + row.bytes for row in graph.plan.rows) <= graph.get_property(lpai.SCRATCH_MEM_SIZE)


def test_input_and_output_tensors_state_their_sizes(graph) -> None:
    [x], [y] = graph.input_tensors, graph.output_tensors
    assert (x.name, x.dtype.name, tuple(x.dims), x.nbytes) == ("x", "FLOAT_32", (1, 40), 160)
    assert (y.name, y.nbytes) == ("y", 160)


@pytest.mark.parametrize("option", [lpai.SCRATCH_MEM, lpai.PERSISTENT_MEM])
@pytest.mark.parametrize("address", [-128, 4096, (1 << 64) - 4096, (1 << 64) - 128, 1 << 64, 1 << 70])
def test_an_address_that_is_no_memory_is_no_pool(backend, graph, option, address) -> None:
    scratch, persistent = pools(backend, graph)
    with refused(Code.GRAPH_INVALID_ARGUMENT, "negative|not memory of this process|beyond the address space"):
        graph.set_config(option, lpai.Mem(lpai.MemType.DDR, 4096, address))
    finish(graph, scratch, persistent)


def test_a_truth_value_is_no_memory_type(backend, graph) -> None:
    scratch, _ = pools(backend, graph)
    with refused(Code.GRAPH_INVALID_ARGUMENT, "must be in DDR, is given as True"):
        graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(True, scratch.nbytes, scratch))


def test_numpys_numbers_are_sizes_and_addresses(backend, graph) -> None:
    scratch, persistent = pools(backend, graph)
    for option, pool in ((lpai.SCRATCH_MEM, scratch), (lpai.PERSISTENT_MEM, persistent)):
        graph.set_config(option, lpai.Mem(lpai.MemType.DDR, np.int64(pool.nbytes), np.uint64(pool.address)))
    graph.finalize()
    assert count(graph, 1) == 4
    assert lpai.PerfCfg(np.int32(30)).fps == 30


def test_several_options_are_set_all_or_none(backend, graph) -> None:
    scratch, persistent = pools(backend, graph)
    performance = lpai.PerfCfg(fps=30)
    with refused(Code.GRAPH_INVALID_ARGUMENT, "persistent memory"):
        graph.set_config(
            {
                lpai.PERF_CFG: performance,
                lpai.SCRATCH_MEM: ddr(scratch),
                qnn.GraphConfig.PRIORITY: qnn.Priority.HIGH,
                # Refused: this is the memory that the same call sets as scratch.
                lpai.PERSISTENT_MEM: lpai.Mem(lpai.MemType.DDR, persistent.nbytes, scratch),
            }
        )
    assert graph.get_property(lpai.PERF_CFG) == lpai.PerfCfg()
    assert graph.get_property(lpai.SCRATCH_MEM) is None
    assert graph.get_property(qnn.GraphConfig.PRIORITY) is qnn.Priority.NORMAL
    scratch.close()  # would be refused if the failed call still held it
    scratch, _ = pools(backend, graph)
    graph.set_config({lpai.PERF_CFG: performance, lpai.SCRATCH_MEM: ddr(scratch), lpai.PERSISTENT_MEM: ddr(persistent)})
    assert graph.get_property(lpai.SCRATCH_MEM).addr is scratch
    graph.finalize()
    assert count(graph, 1) == 4  # twice the sum of the state, 1, and the input


def test_a_replacement_that_is_taken_back_leaves_the_first_scratch_in_force(backend, graph) -> None:
    first, _ = ready(backend, graph)
    second = memory.host(first.nbytes, 128)
    with refused(Code.GRAPH_FINALIZED, "persistent memory"):
        graph.set_config({lpai.SCRATCH_MEM: ddr(second), lpai.PERSISTENT_MEM: ddr(memory.host(256, 128))})
    second.close()
    with refused(Code.COMMON_OPERATION_NOT_PERMITTED, "scratch memory"):
        first.close()
    assert np.shares_memory(graph.inputs["x"], first.array)
    assert count(graph, 1) == 4


def test_an_option_is_checked_against_the_other_options_of_the_same_call(backend, graph) -> None:
    inside = graph.get_property(lpai.SCRATCH_MEM_SIZE)
    graph.set_config(lpai.PREPARE, lpai.Prepare(exclude_io=True))
    outside = graph.get_property(lpai.SCRATCH_MEM_SIZE)
    graph.set_config(lpai.PREPARE, lpai.Prepare())
    small = lpai.Mem(lpai.MemType.DDR, outside, memory.host(max(outside, 128), 128))
    with refused(Code.GRAPH_INVALID_ARGUMENT, "are needed"):
        graph.set_config(lpai.SCRATCH_MEM, small)
    graph.set_config({lpai.PREPARE: lpai.Prepare(exclude_io=True), lpai.SCRATCH_MEM: small})
    assert graph.get_property(lpai.SCRATCH_MEM_SIZE) == outside < inside


def test_reset_is_refused_before_finalize_and_takes_no_value(backend, graph) -> None:
    with refused(Code.GRAPH_NOT_FINALIZED, "graph 'counter'"):
        graph.set_config(lpai.RESET_STATE, None)
    with refused(Code.GRAPH_INVALID_ARGUMENT, "RESET_STATE takes None"):
        graph.set_config(lpai.RESET_STATE, 7)


def test_a_binding_uses_scratch_that_replaced_the_one_it_was_created_with(backend, graph) -> None:
    first, _ = ready(backend, graph)
    with graph.bind() as binding:
        graph.inputs["x"][...] = 1
        binding.execute()
        second = memory.host(first.nbytes, 128)
        graph.set_config(lpai.SCRATCH_MEM, ddr(second))
        first.array[:] = 0xFF
        first.close()
        graph.inputs["x"][...] = 1
        binding.execute()
        assert (graph.outputs["y"] == 6).all()
        assert np.shares_memory(graph.outputs["y"], second.array)
        assert binding.stats.executions == 2


def test_a_replacement_that_waits_is_made_before_the_next_execution_of_a_loop(backend, graph) -> None:
    scratch, _ = ready(backend, graph)
    other = memory.host(scratch.nbytes, 128)
    began, go_on, used = threading.Event(), threading.Event(), []
    real = graph.driver._executor.run

    def slow():
        used.append(graph.get_property(lpai.SCRATCH_MEM).addr)
        began.set()
        go_on.wait(PATIENCE)
        real()

    graph.driver._executor.run = slow
    worker = threading.Thread(target=lambda: [graph.execute() for _ in range(3)])
    worker.start()
    assert began.wait(PATIENCE)
    replacing = threading.Thread(target=graph.set_config, args=(lpai.SCRATCH_MEM, ddr(other)))
    replacing.start()
    assert eventually(lambda: graph.driver._lock.is_awaited)
    go_on.set()
    worker.join()
    replacing.join()
    assert used == [scratch, other, other]


def test_scratch_can_be_replaced_during_an_endless_loop_of_executions(backend, graph) -> None:
    first, _ = ready(backend, graph)
    others = [memory.host(first.nbytes, 128) for _ in range(2)]
    stop, failures = threading.Event(), []

    def work():
        try:
            while not stop.is_set():
                graph.execute()
        except BaseException as problem:
            failures.append(problem)

    worker = threading.Thread(target=work)
    worker.start()
    for step in range(100):
        graph.set_config(lpai.SCRATCH_MEM, ddr(others[step % 2]))
    stop.set()
    worker.join()
    assert not failures
    first.close()


def test_every_execution_of_many_threads_is_counted(backend) -> None:
    context = backend.create_context()
    graphs = [counter(context, name) for name in ("one", "two")]
    for graph in graphs:
        ready(backend, graph)
    buffers = [memory.host(256, 128) for _ in range(4)]

    def work(index):
        tensors = [qnn.ClientTensor("x", buffers[index])]
        for _ in range(100):
            graphs[index % 2].execute(tensors)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        assert graphs[0].stats.executions <= 200
        thread.join()
    for graph in graphs:
        assert graph.stats.executions == 200
        assert graph.stats.in_place_bytes == {"raw": 200 * 160, "scratch": 200 * 160}
