"""A binding is checked when it is made, found by the memory that is meant, and never writes what is not its own."""

import gc
import mmap
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
from support.waiting import PATIENCE, run_in_threads

from isthmus import Code, QnnError, memory, qnn
from isthmus.memory import holds, rpcmem
from isthmus.qnn import ClientTensor, DataType, DescriptorType, MemDescriptor, TensorType, binding, lpai
from isthmus.qnn.binding import REMEMBERED

DIMS = (1, 16)
NBYTES = 64


@pytest.fixture
def context():
    with qnn.Backend("cpu") as backend:
        yield backend.create_context()


def doubler(context, name="double"):
    graph = context.create_graph(name)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, DIMS)
    two = graph.create_tensor("two", TensorType.STATIC, DataType.FLOAT_32, (1,), None, np.float32([2]))
    graph.add_node("multiply", "ElementWiseMultiply", [x, two], [y])
    graph.finalize()
    return graph


def arrays():
    return np.arange(16, dtype=np.float32).reshape(DIMS), np.zeros(DIMS, np.float32)


def tensors(x, y):
    return [ClientTensor("x", x)], [ClientTensor("y", y)]


def bound(graph):
    return graph.driver._counts.bindings


@pytest.mark.parametrize("backend", ["cpu", "htp"])
def test_arrays_of_bfloat16_are_memory_of_such_tensors(backend) -> None:
    with qnn.Backend(backend) as opened:
        graph = opened.create_context().create_graph("sum")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.BFLOAT_16, DIMS)
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.BFLOAT_16, DIMS)
        graph.add_node("add", "ElementWiseAdd", [x, x], [y])
        graph.finalize()
        given, result = (np.arange(16).reshape(DIMS).astype(ml_dtypes.bfloat16) for _ in range(2))
        with graph.bind(*tensors(given, result)) as binding:
            binding.execute()
        np.testing.assert_array_equal(result, given + given)
        with pytest.raises(QnnError, match="its array is float16") as refusal:
            graph.bind(*tensors(given, result.view(np.float16)))
        assert refusal.value.code is Code.GRAPH_INVALID_TENSOR


@pytest.mark.parametrize("type", [ml_dtypes.bfloat16, ml_dtypes.int4])
def test_types_without_a_tensor_of_their_own_are_no_memory(context, type) -> None:
    x, y = arrays()
    with pytest.raises(QnnError, match=f"its array is {np.dtype(type).name}"):
        doubler(context).bind(*tensors(x, y.astype(type)))


def test_a_binding_runs_as_often_as_it_is_asked_and_counts(context) -> None:
    graph = doubler(context)
    x, y = arrays()
    with graph.bind(*tensors(x, y)) as binding:
        for value in range(5):
            x[...] = value
            binding.execute()
            assert (y == 2 * value).all()
        assert binding.stats.executions == 5
        assert binding.stats.in_place_bytes == {"raw": 5 * 2 * NBYTES}
        binding.execute_async().result(PATIENCE)
        assert graph.stats.executions == 6


def test_two_bindings_of_a_graph_take_turns_and_count_apart(context) -> None:
    graph = doubler(context)
    (x, y), (u, v) = arrays(), arrays()
    one, other = graph.bind(*tensors(x, y)), graph.bind(*tensors(u, v))
    x[...], u[...] = 1, 2
    for _ in range(3):
        one.execute()
        other.execute()
    assert (y == 2).all()
    assert (v == 4).all()
    assert (one.stats.executions, other.stats.executions, graph.stats.executions) == (3, 3, 6)


def test_fresh_structures_find_the_binding_of_their_memory(context) -> None:
    graph = doubler(context)
    x, y = arrays()
    for _ in range(50):
        graph.execute(*tensors(x, y))
        graph.execute(*tensors(x[:], y.reshape(DIMS)))
        graph.execute([ClientTensor("x", x.ctypes.data, nbytes=NBYTES)], [ClientTensor("y", memoryview(y).cast("B"))])
    assert len(bound(graph)) == 1
    assert graph.stats.executions == 150
    assert np.array_equal(y, 2 * x)


def test_other_memory_is_another_binding_and_few_are_remembered(context) -> None:
    graph = doubler(context)
    x = arrays()[0]
    for value in range(40):
        y = np.zeros(DIMS, np.float32)
        x[...] = value
        graph.execute(*tensors(x, y))
        assert (y == 2 * value).all()
    assert len(bound(graph)) == REMEMBERED
    assert graph.stats.executions == 40


def test_large_memory_of_earlier_executions_is_not_kept(context) -> None:
    graph = context.create_graph("large")
    dims = (1, 4 << 20)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, dims)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, dims)
    graph.add_node("relu", "Relu", [x], [y])
    graph.finalize()
    seen = []
    for _ in range(5):
        given = np.ones(dims, np.float32), np.zeros(dims, np.float32)
        seen += map(weakref.ref, given)
        graph.execute([ClientTensor("x", given[0])], [ClientTensor("y", given[1])])
        del given
    gc.collect()
    assert sum(ref() is not None for ref in seen) <= 4


def test_only_memory_that_a_binding_keeps_alive_counts_as_kept(context, monkeypatch) -> None:
    monkeypatch.setattr(binding, "REMEMBERED_BYTES", 0)
    graph = doubler(context)
    kept = [arrays() for _ in range(3)]
    for x, y in kept:
        graph.execute(*tensors(x, y))
    assert len(bound(graph)) == 1, "the last"
    for x, y in kept:
        graph.execute(*([ClientTensor(name, a.ctypes.data, nbytes=NBYTES)] for name, a in (("x", x), ("y", y))))
    assert len(bound(graph)) == 3, "of the last array, which was bound already, and of two addresses"


def test_an_address_with_a_size_is_memory(context) -> None:
    graph = doubler(context)
    x, y = arrays()
    addresses = [ClientTensor(name, a.ctypes.data, nbytes=NBYTES) for name, a in (("x", x), ("y", y))]
    graph.execute(addresses[:1], addresses[1:])
    assert np.array_equal(y, 2 * x)


@pytest.mark.parametrize(
    ("data", "nbytes", "rule"),
    [
        (0, NBYTES, "null"),
        (-128, NBYTES, "negative"),
        ((1 << 64) - 4, NBYTES, "beyond the address space"),
        (4096, NBYTES, "not memory of this process"),
        (4096, None, "without a size"),
        (np.zeros(DIMS, np.float32), NBYTES + 1, "its buffer has 64"),
        (np.zeros(15, np.uint8), None, "64 are needed"),
    ],
)
def test_memory_that_cannot_be_is_refused_when_it_is_bound(context, data, nbytes, rule) -> None:
    with pytest.raises(QnnError, match=rule):
        doubler(context).bind([ClientTensor("x", data, nbytes=nbytes)], [ClientTensor("y", arrays()[1])])


def test_a_closed_buffer_is_not_written_any_more(context) -> None:
    graph = doubler(context)
    x = arrays()[0]
    buffer = memory.host(NBYTES)
    binding = graph.bind([ClientTensor("x", x)], [ClientTensor("y", buffer)])
    binding.execute()
    buffer.close()
    with pytest.raises(QnnError, match="is closed"):
        binding.execute()
    with pytest.raises(QnnError, match="is closed"):
        graph.execute([ClientTensor("x", x)], [ClientTensor("y", buffer)])
    assert binding.stats.executions == 1


def test_an_output_may_not_lie_over_a_part_of_an_input_by_another_mapping(context) -> None:
    graph = doubler(context)
    with rpcmem.alloc(25, 1, 2 * NBYTES) as buffer:
        alias = np.frombuffer(mmap.mmap(buffer.fd, 2 * NBYTES), np.uint8)
        x = buffer.view(np.float32, DIMS)
        for offset in (4, NBYTES - 1):
            with pytest.raises(QnnError, match="overlaps that of tensor 'x'"):
                graph.bind([ClientTensor("x", x)], [ClientTensor("y", alias[offset : offset + NBYTES])])


def test_a_binding_whose_memory_became_a_pool_of_another_graph_is_refused(context) -> None:
    graph = doubler(context)
    x, y = arrays()
    given = tuple(map(tuple, tensors(x, y)))
    graph.execute(*given)
    claimed = holds.claim(memory.window(y), "test", "persistent memory of another graph")
    y[...] = 7
    with pytest.raises(QnnError, match="overlaps the persistent memory of another graph"):
        graph.execute(*given)
    assert (y == 7).all(), "the pool was not written"
    claimed.release()
    graph.execute(*given)
    assert np.array_equal(y, 2 * x)


def test_a_pool_cannot_be_claimed_while_an_execution_writes_it(context) -> None:
    graph = doubler(context)
    x, y = arrays()
    binding = graph.bind(*tensors(x, y))
    refusals = []
    real = binding._driver._native

    def run():
        try:
            holds.claim(memory.window(y), "pool", "somebody's pool")
        except QnnError as refusal:
            refusals.append(str(refusal))
        real()

    binding._driver._native = run
    binding.execute()
    assert "which is executing" in refusals[0]


def test_deregistered_memory_is_refused_by_a_binding_that_had_it() -> None:
    with qnn.Backend("htp") as backend, rpcmem.alloc(25, 1, 2 * NBYTES) as buffer:
        context = backend.create_context()
        graph = doubler(context)
        descriptors = [
            MemDescriptor(DIMS, DataType.FLOAT_32, DescriptorType.CUSTOM,
                          custom=qnn.htp.Descriptor(buffer.nbytes, buffer.fd, offset))
            for offset in (0, NBYTES)
        ]  # fmt: skip
        handles = context.mem_register(descriptors)
        x, y = (buffer.view(np.float32, DIMS, offset) for offset in (0, NBYTES))
        x[...] = 3
        binding = graph.bind([ClientTensor("x", mem_handle=handles[0])], [ClientTensor("y", mem_handle=handles[1])])
        binding.execute()
        assert (y == 6).all()
        context.mem_deregister(handles[1:])
        y[...] = 0
        with pytest.raises(QnnError) as refusal:
            binding.execute()
        assert refusal.value.code is Code.MEM_INVALID_HANDLE
        assert (y == 0).all()
        context.mem_deregister(handles[:1])


def test_a_freed_graph_refuses_its_bindings(context) -> None:
    binding = doubler(context).bind(*tensors(*arrays()))
    context.free()
    with pytest.raises(QnnError) as refusal:
        binding.execute()
    assert refusal.value.code is Code.GRAPH_INVALID_HANDLE
    binding.close()


def test_executions_of_many_threads_are_all_counted(context) -> None:
    graph = doubler(context)

    def work():
        x, y = arrays()
        binding = graph.bind(*tensors(x, y))
        for _ in range(200):
            binding.execute()
            graph.execute(*tensors(x, y))
        binding.close()

    run_in_threads(lambda _: work(), range(4))
    assert graph.stats.executions == 4 * 400


@pytest.mark.parametrize("given", [(None, None), (5, ()), ((), 1.5), ([5], []), ([None], [])])
def test_what_is_no_list_of_tensors_is_refused(context, given) -> None:
    with pytest.raises(QnnError):
        doubler(context).execute(*given)


def test_a_context_may_be_freed_in_the_callback_of_an_execution(context) -> None:
    graph = doubler(context)
    freed = threading.Event()

    def free(execution):
        context.free()
        freed.set()

    graph.execute_async(notify=free).result(PATIENCE)
    assert freed.wait(PATIENCE)
    with pytest.raises(QnnError):
        graph.execute_async()


def test_lpai_pools_in_two_mappings_of_one_file_are_one_memory() -> None:
    with qnn.Backend("lpai") as backend:
        graph = backend.create_context().create_graph("state")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS)
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, DIMS)
        s = graph.create_tensor("s", TensorType.APP_READWRITE, DataType.FLOAT_32, DIMS, None, np.ones(DIMS, np.float32))
        graph.add_node("add", "ElementWiseAdd", [x, s], [y])
        graph.update_state(s, y)
        sizes = [graph.get_property(size) for size in (lpai.SCRATCH_MEM_SIZE, lpai.PERSISTENT_MEM_SIZE)]
        shared = rpcmem.alloc(25, 1, max(sizes))
        alias = mmap.mmap(shared.fd, max(sizes))
        graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, sizes[0], shared))
        with pytest.raises(QnnError, match="overlaps the scratch memory"):
            graph.set_config(lpai.PERSISTENT_MEM, lpai.Mem(lpai.MemType.DDR, sizes[1], alias))


def test_a_binding_that_is_dropped_during_an_execution_blocks_no_other(context) -> None:
    graph = doubler(context)
    dropped = [graph.bind(*tensors(*arrays()))]
    dropped[0].execute()
    executor = graph.driver.executor()
    real = executor.run
    executor.run = lambda: (dropped.clear(), gc.collect(), real())
    x, y = arrays()
    binding = graph.bind(*tensors(x, y))
    thread = threading.Thread(target=binding.execute, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert graph.stats.executions == 2
    assert len(bound(graph)) == 1


def lend(context, graph, x):
    """An input and an output of the graph, as the context's backend would have them: raw."""
    y = np.zeros(DIMS, np.float32)
    return y, ([ClientTensor("x", x)], [ClientTensor("y", y)])


@pytest.mark.parametrize("name", ["cpu", "htp"])
def test_no_backend_writes_into_memory_that_became_a_pool(name) -> None:
    with qnn.Backend(name) as backend:
        context = backend.create_context()
        graph = doubler(context)
        y, given = lend(context, graph, arrays()[0])
        graph.execute(*given)
        claimed = holds.claim(memory.window(y), "test", "scratch memory of another graph")
        y[...] = 7
        with pytest.raises(QnnError, match="overlaps the scratch memory of another graph"):
            graph.execute(*given)
        assert (y == 7).all()
        claimed.release()


def test_registered_memory_that_is_a_pool_is_not_written_either() -> None:
    with qnn.Backend("htp") as backend, rpcmem.alloc(25, 1, NBYTES) as buffer:
        context = backend.create_context()
        graph = doubler(context)
        claimed = holds.claim(buffer.window(), "test", "scratch memory of another graph")
        [handle] = context.mem_register([MemDescriptor(DIMS, DataType.FLOAT_32, DescriptorType.ION, fd=buffer.fd)])
        with pytest.raises(QnnError, match="overlaps the scratch memory of another graph"):
            graph.execute([ClientTensor("x", arrays()[0])], [ClientTensor("y", mem_handle=handle)])
        claimed.release()
        context.mem_deregister([handle])


@pytest.mark.parametrize("name", ["cpu", "htp"])
def test_an_output_over_a_part_of_an_input_is_refused_whatever_each_of_them_is(name) -> None:
    with qnn.Backend(name) as backend:
        graph = doubler(backend.create_context())
        room = np.zeros(2 * NBYTES, np.uint8)
        with pytest.raises(QnnError, match="overlaps that of tensor 'x'") as refused:
            graph.execute([ClientTensor("x", room[:NBYTES])], [ClientTensor("y", room[4 : 4 + NBYTES])])
        assert "or exactly the memory of an input of its size" in refused.value.hint


@pytest.mark.parametrize("name", ["cpu", "htp"])
def test_a_file_that_is_mapped_elsewhere_is_used_where_it_is_now(name) -> None:
    def at(mapping):
        return np.frombuffer(mapping, np.uint8).ctypes.data

    with qnn.Backend(name) as backend, rpcmem.alloc(25, 1, NBYTES) as buffer:
        graph = doubler(backend.create_context())
        y = np.zeros(DIMS, np.float32)
        first = mmap.mmap(buffer.fd, NBYTES)
        buffer.view(np.float32, DIMS)[...] = 3
        graph.execute([ClientTensor("x", at(first), nbytes=NBYTES)], [ClientTensor("y", y)])
        second = mmap.mmap(buffer.fd, NBYTES)
        first.close()
        graph.execute([ClientTensor("x", at(second), nbytes=NBYTES)], [ClientTensor("y", y)])
        assert (y == 6).all()


def test_a_closed_binding_does_not_execute(context) -> None:
    graph = doubler(context)
    x, y = arrays()
    binding = graph.bind(*tensors(x, y))
    binding.close()
    for _ in range(3):
        with pytest.raises(QnnError, match="it is closed"):
            binding.execute()
    assert not bound(graph)
    graph.execute(*tensors(x, y))
    assert np.array_equal(y, 2 * x)


def test_executions_go_on_while_others_push_their_bindings_out(context) -> None:
    graph = doubler(context)
    problems = []

    def work():
        x = arrays()[0]
        try:
            # Each output is new memory, so its binding pushes out an older one.
            for _ in range(360):
                graph.execute(*tensors(x, np.zeros(DIMS, np.float32)))
        except QnnError as problem:
            problems.append(problem)

    run_in_threads(lambda _: work(), range(4))
    assert not problems
    assert graph.stats.executions == 4 * 360
    assert len(bound(graph)) <= REMEMBERED


@pytest.mark.parametrize("wrong", [np.zeros(DIMS, np.float32), 5, "x", None])
def test_what_is_no_tensor_is_refused_after_an_execution_too(context, wrong) -> None:
    graph = doubler(context)
    graph.execute(*tensors(*arrays()))
    for given in (([wrong], [wrong]), ([ClientTensor([], arrays()[0])], [])):
        with pytest.raises(QnnError):
            graph.execute(*given)


def test_a_kept_binding_keeps_nothing_of_a_backend_that_was_freed() -> None:
    with memory.statistics() as seen:
        with qnn.Backend("cpu") as backend:
            graph = doubler(backend.create_context())
            binding = graph.bind(*tensors(*arrays()))
            binding.execute()
        gc.collect()
        assert seen.live_bytes == 0, seen
        binding.close()


@pytest.mark.parametrize("name", ["cpu", "htp"])
def test_a_change_of_other_memory_does_not_rebuild_a_binding(name, monkeypatch) -> None:
    with qnn.Backend(name) as backend:
        graph = doubler(backend.create_context())
        x, y = arrays()
        binding = graph.bind(*tensors(x, y))
        made = []
        real = binding._driver._bind
        monkeypatch.setattr(binding._driver, "_bind", lambda: (made.append(1), real())[1])
        for value in range(3):
            memory.host(64).close()
            x[...] = value
            binding.execute()
            assert (y == 2 * value).all()
        assert not made


def test_many_descriptions_of_one_memory_are_one_binding_and_are_not_all_kept(context) -> None:
    graph = doubler(context)
    x, y = np.zeros(NBYTES, np.uint8), np.zeros(DIMS, np.float32)
    for length in range(1, 200):
        # Bytes may come in any shape, and more of them than the tensor takes.
        whole = np.zeros(length + NBYTES, np.uint8)
        graph.execute([ClientTensor("x", whole)], [ClientTensor("y", y)])
        graph.execute([ClientTensor("x", x.reshape(1, *[1] * (length % 9), NBYTES))], [ClientTensor("y", y)])
    assert len(bound(graph)) <= REMEMBERED
    assert len(graph._bindings._by_place) <= 4 * REMEMBERED


def test_memory_that_is_used_again_is_not_the_oldest(context) -> None:
    graph = doubler(context)
    often = tensors(*arrays())
    graph.execute(*often)
    binding = graph._bindings.find(*map(tuple, often))
    # By the very objects, by other arrays at the same places, and by the memory alone.
    for n in range(3 * REMEMBERED):
        graph.execute(*tensors(*arrays()))
        again = often if n % 2 else tuple([ClientTensor(t.name, t.data[...]) for t in given] for given in often)
        graph.execute(*again)
        assert graph._bindings.find(*map(tuple, again)) is binding
    assert not binding.closed
    assert len(bound(graph)) <= REMEMBERED
