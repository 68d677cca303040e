"""LPAI's "arm" environment runs in the accelerator process: same rules, pools in shared memory, raw IO copied."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from support.processes import stop
from support.waiting import PATIENCE

from backends.lpai.harness import WIDTH, count, counter, ddr, pools, ready
from isthmus import Code, QnnError, memory, qnn
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, lpai

ARM = {"lpai_backend": {"target_env": "arm"}}


@pytest.fixture(scope="module")
def backend():
    with qnn.Backend("lpai", ARM) as made:
        yield made


@pytest.fixture
def graph(backend):
    with backend.create_context() as context:
        yield counter(context)


def test_state_is_in_the_clients_persistent_memory(backend, graph) -> None:
    scratch, persistent = ready(backend, graph)
    assert count(graph, 1) == 4
    assert (persistent.view(np.float32, (1, WIDTH)) == 2).all()
    persistent.view(np.float32, (1, WIDTH))[:] = 10
    scratch.array[:] = 0xAA
    assert count(graph, 1) == 22  # twice the sum of the state, which the client set to 10, and the input
    graph.reset()
    assert count(graph, 1) == 4
    assert graph.stats.copied_bytes == 0, "inputs and outputs lie in shared scratch"


def test_scratch_can_be_replaced(backend, graph) -> None:
    ready(backend, graph)
    count(graph, 1)
    other, _ = pools(backend, graph)
    graph.set_config(lpai.SCRATCH_MEM, ddr(other))
    assert count(graph, 1) == 6


def test_private_pools_are_refused_with_a_hint(backend, graph) -> None:
    assert backend.get_property(lpai.SHARED_POOLS)
    start = backend.get_property(lpai.ALIGNMENT_REQ).start_addr_alignment
    private = memory.host(graph.get_property(lpai.SCRATCH_MEM_SIZE), start)
    _, persistent = pools(backend, graph)
    graph.set_config(lpai.SCRATCH_MEM, ddr(private))
    graph.set_config(lpai.PERSISTENT_MEM, ddr(persistent))
    with pytest.raises(QnnError, match=r"not shared memory.*rpcmem") as refusal:
        graph.finalize()
    assert refusal.value.code is Code.GRAPH_INVALID_ARGUMENT
    scratch, _ = pools(backend, graph)
    graph.set_config(lpai.SCRATCH_MEM, ddr(scratch))
    graph.finalize()
    assert count(graph, 1) == 4


def test_registered_memory_is_used_in_place_by_the_other_process(backend, graph) -> None:
    ready(backend, graph)
    nbytes = 4 * WIDTH
    shared = rpcmem.alloc(25, 1, 2 * 4096)
    values = shared.view(np.float32, (2, 1024))
    values[0, :WIDTH] = 1
    handles = graph.context.mem_register(
        [
            qnn.MemDescriptor(
                (1, WIDTH), qnn.DataType.FLOAT_32, qnn.DescriptorType.CUSTOM, custom=lpai.MemInfo(shared.fd, offset)
            )
            for offset in (0, 4096)
        ]
    )
    x, y = ClientTensor("x", mem_handle=handles[0]), ClientTensor("y", mem_handle=handles[1])
    graph.execute([x], [y])
    assert (values[1, :WIDTH] == 4).all()
    graph.execute([x], [y])
    assert (values[1, :WIDTH] == 6).all()
    assert graph.stats.copied_bytes == 0
    assert graph.stats.in_place_bytes == {"shared": 4 * nbytes}
    graph.context.mem_deregister(handles)
    with pytest.raises(QnnError, match="deregistered") as refusal:
        graph.execute([x], [y])
    assert refusal.value.code is Code.MEM_INVALID_HANDLE


def test_raw_buffers_are_copied_and_counted_and_shared_ones_are_not(backend, graph) -> None:
    ready(backend, graph)
    nbytes = 4 * WIDTH
    align = backend.get_property(lpai.ALIGNMENT_REQ)
    x, y = (memory.host(align.padded(nbytes), align.start_addr_alignment) for _ in range(2))
    for executions, (value, sum_) in enumerate([(1, 2), (3, 5), (-2, 3)], 1):
        x.view(np.float32, (1, WIDTH))[:] = value
        graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
        assert (y.view(np.float32, (1, WIDTH)) == 2 * sum_).all()
        assert (graph.stats.copied_in_bytes, graph.stats.copied_out_bytes) == (executions * nbytes,) * 2
    shared = [rpcmem.alloc(25, 1, align.padded(nbytes)) for _ in range(2)]
    shared[0].view(np.float32, (1, WIDTH))[:] = 1
    graph.execute([ClientTensor("x", shared[0])], [ClientTensor("y", shared[1])])
    assert (shared[1].view(np.float32, (1, WIDTH)) == 8).all()
    assert graph.stats.copied_bytes == 3 * 2 * nbytes, "nothing more was copied"


def test_death_answers_1007_and_the_next_context_works(backend) -> None:
    context = backend.create_context()
    graph = counter(context)
    ready(backend, graph)
    pid = backend.driver.device.accelerator().pid
    os.kill(pid, signal.SIGKILL)
    while backend.driver.device._accelerator.alive:
        pass
    with pytest.raises(QnnError) as refusal:
        count(graph, 1)
    assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION
    context.free()
    with backend.create_context() as fresh:
        again = counter(fresh)
        ready(backend, again)
        assert count(again, 1) == 4


def test_a_refused_replacement_of_scratch_leaves_everything_as_it_was(backend, graph) -> None:
    scratch, _ = ready(backend, graph)
    private = memory.host(scratch.nbytes, 128)
    with pytest.raises(QnnError, match="not shared memory"):
        graph.set_config(lpai.SCRATCH_MEM, ddr(private))
    private.close()
    with pytest.raises(QnnError, match="scratch memory of graph 'counter'"):
        scratch.close()
    assert graph.get_property(lpai.SCRATCH_MEM).addr is scratch
    assert count(graph, 1) == 4


def test_memory_that_is_no_longer_bound_is_taken_from_the_accelerator(backend, graph) -> None:
    ready(backend, graph)
    accelerator = backend.driver.device.accelerator()
    count(graph, 1)
    before = accelerator.counts()["memory"]
    for _ in range(5):
        with graph.bind([ClientTensor("x", rpcmem.share(256))], [ClientTensor("y", rpcmem.share(256))]) as binding:
            binding.execute()
            assert accelerator.counts()["memory"] == before + 2
    other, _ = pools(backend, graph)
    graph.set_config(lpai.SCRATCH_MEM, ddr(other))
    count(graph, 1)
    assert accelerator.counts()["memory"] == before


def test_memory_for_copies_is_reserved_once_and_counted(backend, graph) -> None:
    ready(backend, graph)
    for _ in range(3):
        graph.execute([ClientTensor("x", memory.host(256, 128))], [ClientTensor("y", memory.host(256, 128))])
    assert graph.stats.staging_execute_bytes == 2 * 4 * WIDTH
    assert graph.stats.in_place_bytes == {}


def test_shared_memory_cannot_be_aligned_beyond_a_page() -> None:
    with pytest.raises(QnnError, match="shared memory starts at multiples") as refusal:
        qnn.Backend("lpai", {"lpai_backend": {"target_env": "arm", "start_addr_alignment": 8192}})
    assert refusal.value.code is Code.BACKEND_INVALID_CONFIG


@pytest.fixture
def silent():
    """A graph that another thread executes without end, and a list for the code that the execution is refused with."""
    with qnn.Backend("lpai", ARM) as backend:
        graph = counter(backend.create_context())
        ready(backend, graph)
        count(graph, 1)
        accelerator = backend.driver.device.accelerator()
        accelerator.deadlines = Deadlines(closing=0.3, control=0.3, grace=0.1)
        stop(accelerator.pid)
        codes = []

        def execute():
            with pytest.raises(QnnError) as refusal:
                graph.execute()
            codes.append(refusal.value.code)

        thread = threading.Thread(target=execute)
        thread.start()
        while not accelerator.gate.busy:
            time.sleep(0.001)
        yield graph, codes
        thread.join(PATIENCE)


@pytest.mark.parametrize("which", ["backend", "context"])
def test_what_waits_for_a_silent_accelerator_is_ended_when_it_is_freed(silent, which) -> None:
    graph, codes = silent
    freed = graph.context.backend if which == "backend" else graph.context
    freeing = threading.Thread(target=freed.free, daemon=True)
    freeing.start()
    freeing.join(PATIENCE)
    assert not freeing.is_alive()
    while not codes:
        time.sleep(0.001)
    assert codes == [Code.GRAPH_INVALID_HANDLE]


def test_a_backend_that_was_freed_starts_no_accelerator(monkeypatch) -> None:
    backend = qnn.Backend("lpai", ARM)
    context = backend.create_context()
    graph = counter(context)
    scratch, persistent = pools(backend, graph)
    graph.set_config(lpai.SCRATCH_MEM, ddr(scratch))
    graph.set_config(lpai.PERSISTENT_MEM, ddr(persistent))
    executor = context.driver.executor

    def freed_meanwhile(*arguments):
        freeing = threading.Thread(target=context.driver.backend.close)
        freeing.start()
        freeing.join(PATIENCE)
        return executor(*arguments)

    monkeypatch.setattr(context.driver, "executor", freed_meanwhile)
    with pytest.raises(QnnError, match="freed") as refusal:
        graph.finalize()
    assert refusal.value.code is Code.BACKEND_INVALID_HANDLE
    assert backend.driver.device._accelerator is None
    backend.free()
    with pytest.raises(QnnError, match="freed") as refusal:
        executor(None, None, None)
    assert refusal.value.code is Code.CONTEXT_INVALID_HANDLE


def test_a_shared_buffer_that_is_cut_ends_the_core_and_not_the_client() -> None:
    with qnn.Backend("lpai", ARM) as backend:
        graph = counter(backend.create_context())
        ready(backend, graph)
        [info] = graph.input_tensors
        fd = os.memfd_create("cut")
        os.ftruncate(fd, 1 << 16)
        descriptor = MemDescriptor(info.dims, info.dtype, DescriptorType.CUSTOM, custom=lpai.MemInfo(fd, 0))
        [handle] = graph.context.mem_register([descriptor])
        tensors = [ClientTensor(info.name, mem_handle=handle)]
        graph.execute(tensors)
        os.ftruncate(fd, 0)
        with pytest.raises(QnnError) as refusal:
            graph.execute(tensors)
        assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION
        os.close(fd)
