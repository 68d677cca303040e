"""An output may be exactly the memory of an input: results are those of memory apart, and copies are counted."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from support import in_place_io
from support.waiting import PATIENCE

import isthmus
from isthmus import Code, QnnError, memory, qnn
from isthmus.backends.seam import native, planned
from isthmus.graph import DataType, TensorType
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor

DIMS = (1, 4, 8)
NBYTES = 128
ARM = {"lpai_backend": {"target_env": "arm"}}
TCM = {
    "lpai_backend": {"target_env": "adsp"},
    "lpai_graph": {"prepare": {"exclude_io": True}, "execute": {"mem_type": "tcm"}},
}
NAMES = ("cpu", "htp", "lpai", "arm")
"""The backends that use memory in place; "arm" is LPAI's core in a process of its own."""
F32, I32 = DataType.FLOAT_32, DataType.INT_32


@pytest.fixture(scope="module")
def backends():
    """A backend of each name, made when it is first asked for."""
    made: dict[str, qnn.Backend] = {}

    def backend(name):
        if name not in made:
            made[name] = qnn.Backend("lpai", ARM) if name == "arm" else qnn.Backend(name)
        return made[name]

    yield backend
    for each in made.values():
        each.free()


@pytest.fixture
def context(backends, request):
    """A context of the backend that the test's parameter names; without one, of the CPU."""
    made = backends(getattr(request, "param", "cpu")).create_context()
    yield made
    made.free()


everywhere = pytest.mark.parametrize("context", NAMES, indirect=True)


# -- graphs and memory -------------------------------------------------------------------------------------------------


class Composer:
    """A graph under construction, with names of its own for tensors."""

    def __init__(self, context):
        self.graph = context.create_graph("graph")

    def input(self, name, dims=DIMS, dtype=F32):
        return self.graph.create_tensor(name, TensorType.APP_WRITE, dtype, dims)

    def output(self, name, dims=DIMS):
        return self.graph.create_tensor(name, TensorType.APP_READ, F32, dims)

    def native(self, name, dims=DIMS):
        return self.graph.create_tensor(name, TensorType.NATIVE, F32, dims)

    def node(self, op, inputs, output, **params):
        self.graph.add_node(f"make {output.name}", op, inputs, [output], params)
        return output

    def ready(self):
        """Finalize the graph; LPAI's also gets its pools."""
        self.graph.pools = self.graph.context.backend.entry.io.pools(self.graph.driver)
        self.graph.finalize()
        return self.graph


def unary(context, op="Relu", **params):
    """A graph of one node, which makes y from x."""
    made = Composer(context)
    made.node(op, [made.input("x")], made.output("y"), **params)
    return made.ready()


def reverse(context):
    """A graph that overwrites what it has not read yet, if x and y are the same memory."""
    return unary(context, "Reverse", axes=[1])


def place(nbytes=NBYTES):
    return rpcmem.alloc(25, 1, -(-nbytes // 128) * 128)


def floats(buffer, dims=DIMS):
    return buffer.view(np.float32, dims)


def fill(buffer):
    """Write numbers of both signs into memory, and return them."""
    floats(buffer)[...] = np.arange(-16, 16, dtype=np.float32).reshape(DIMS)
    return floats(buffer).copy()


def named(context, buffer, *names, dims=DIMS, dtype=F32):
    """Tensors of these names, all in one memory that the device can use in place."""
    if context.backend.name == "cpu":
        return [ClientTensor(name, buffer) for name in names]
    kind, fd, custom = DescriptorType.ION, buffer.fd, None
    if context.backend.name == "lpai":
        kind, fd, custom = DescriptorType.CUSTOM, -1, qnn.lpai.MemInfo(buffer.fd, 0)
    [handle] = context.mem_register([MemDescriptor(dims, dtype, kind, fd=fd, custom=custom)])
    return [ClientTensor(name, mem_handle=handle) for name in names]


def in_place(context, buffer):
    """The inputs and outputs of a binding with x and y in one memory."""
    x, y = named(context, buffer, "x", "y")
    return [x], [y]


@everywhere
def test_a_graph_that_works_element_by_element_needs_no_copy(context) -> None:
    graph, buffer = unary(context), place()
    x = fill(buffer)
    with graph.bind(*in_place(context, buffer)) as binding:
        binding.execute()
        assert np.array_equal(floats(buffer), np.maximum(x, 0))
        assert binding.stats.copied_bytes == 0
        assert sum(binding.stats.in_place_bytes.values()) == 2 * NBYTES


@everywhere
def test_an_input_that_would_be_overwritten_too_early_is_copied_and_counted(context) -> None:
    graph, buffer = reverse(context), place()
    x = fill(buffer)
    with graph.bind(*in_place(context, buffer)) as binding:
        with memory.statistics() as seen:
            for times in range(1, 4):
                binding.execute()
                assert np.array_equal(floats(buffer), x[:, :: (-1) ** times])
        assert seen.allocations == 0, "executions allocate nothing"
        stats = binding.stats
    assert (stats.executions, stats.copied_in_bytes, stats.copied_out_bytes) == (3, 3 * NBYTES, 0)
    assert sum(stats.in_place_bytes.values()) == 3 * NBYTES
    # HTP has reserved memory for raw tensors before, and uses that.
    assert graph.stats.staging_bytes >= NBYTES


@everywhere
@pytest.mark.parametrize("op", ["ScatterNd", "ScatterElements"])
def test_an_update_of_a_cache_in_its_own_memory_copies_nothing(context, op) -> None:
    """A key-value cache: the new rows go into the cache, and what is computed reads the new cache."""
    made = Composer(context)
    cache, new, updates = made.input("cache"), made.output("new"), made.input("updates", (1, 1, 8))
    indices = made.input("indices", (1, 1, 2) if op == "ScatterNd" else (1, 1, 8), I32)
    made.node(op, [cache, indices, updates], new, **({} if op == "ScatterNd" else {"axis": 1}))
    made.node("Softmax", [made.node("ElementWiseMultiply", [new, new], made.native("square"))], made.output("result"))
    graph = made.ready()
    memories = {name: place() for name in ("cache", "updates", "indices", "result")}
    row = memories["indices"].view(np.int32, (2,) if op == "ScatterNd" else (8,))
    x = fill(memories["cache"])
    old, made_in_place = named(context, memories["cache"], "cache", "new")
    [rows] = named(context, memories["updates"], "updates", dims=(1, 1, 8))
    [where] = named(context, memories["indices"], "indices", dims=indices.dims, dtype=I32)
    [result] = named(context, memories["result"], "result")
    with graph.bind([old, rows, where], [made_in_place, result]) as binding:
        for step in range(3):
            row[...] = [0, step] if op == "ScatterNd" else step
            floats(memories["updates"], (8,))[...] = step + 100
            binding.execute()
            x[0, step] = step + 100
            assert np.array_equal(floats(memories["cache"]), x)
            assert np.allclose(floats(memories["result"]).sum(-1), 1)
        assert binding.stats.copied_bytes == 0


@everywhere
@pytest.mark.parametrize("axes", [None, [1]], ids=["at the same position", "elsewhere"])
def test_several_inputs_and_an_output_may_be_in_one_memory(context, axes) -> None:
    made = Composer(context)
    x, z, y = made.input("x"), made.input("z"), made.output("y")
    other = z if axes is None else made.node("Reverse", [z], made.native("turned"), axes=axes)
    made.node("ElementWiseSubtract", [x, other], y)
    graph, buffer = made.ready(), place()
    before = fill(buffer)
    first, second, result = named(context, buffer, "x", "z", "y")
    with graph.bind([first, second], [result]) as binding:
        binding.execute()
        assert np.array_equal(floats(buffer), before - (before if axes is None else before[:, ::-1]))
        # The intermediate result is planned into y's memory, so both inputs are copied before it is written.
        assert binding.stats.copied_bytes == (0 if axes is None else 2 * NBYTES)


@everywhere
def test_an_output_that_is_written_before_an_input_is_read_does_not_change_it(context) -> None:
    made = Composer(context)
    x, early, late = made.input("x"), made.output("early"), made.output("late")
    made.node("ElementWiseNeg", [x], early)
    made.node("ElementWiseAdd", [made.node("Softmax", [early], made.native("soft")), x], late)
    graph, buffer, other = made.ready(), place(), place()
    before = fill(buffer)
    source, goal = named(context, buffer, "x", "early")
    [last] = named(context, other, "late")
    with graph.bind([source], [goal, last]) as binding:
        binding.execute()
        exponents = np.exp(-before - (-before).max(-1, keepdims=True))
        assert np.array_equal(floats(buffer), -before)
        assert np.allclose(floats(other), exponents / exponents.sum(-1, keepdims=True) + before, atol=1e-5)
        assert binding.stats.copied_bytes == NBYTES


@everywhere
def test_an_input_that_is_passed_on_unchanged_may_be_its_own_output(context) -> None:
    made = Composer(context)
    x = made.input("x")
    made.node("Reshape", [x], made.output("y"))
    made.node("Reverse", [x], made.output("z"), axes=[2])
    graph, buffer, other = made.ready(), place(), place()
    before = fill(buffer)
    source, same = named(context, buffer, "x", "y")
    [turned] = named(context, other, "z")
    graph.execute([source], [same, turned])
    assert np.array_equal(floats(buffer), before)
    assert np.array_equal(floats(other), before[..., ::-1])


@everywhere
def test_states_go_on_while_inputs_are_overwritten(context) -> None:
    made = Composer(context)
    x, y = made.input("x"), made.output("y")
    state = made.graph.create_tensor("state", TensorType.APP_READWRITE, F32, DIMS)
    turned = made.node("Reverse", [x], made.native("turned"), axes=[1])
    made.graph.add_node("sum", "ElementWiseAdd", [turned, state], [state])
    made.node("Reshape", [state], y)
    graph, buffer = made.ready(), place()
    value, total = fill(buffer), np.zeros(DIMS, np.float32)
    with graph.bind(*in_place(context, buffer)) as binding:
        for _ in range(3):
            binding.execute()
            total += value[:, ::-1]
            value = total.copy()
            assert np.array_equal(floats(buffer), total)


@everywhere
def test_a_state_that_is_updated_in_part_is_updated_where_it_is(context) -> None:
    made = Composer(context)
    updates, indices, y = made.input("updates", (1, 8)), made.input("indices", (1, 2), I32), made.output("y")
    state = made.graph.create_tensor("state", TensorType.APP_READWRITE, F32, DIMS)
    made.graph.add_node("update", "ScatterNd", [state, indices, updates], [state])
    made.node("Relu", [state], y)
    graph = made.ready()
    assert [op for op, _ in graph.plan.steps] == ["ScatterNd", "Relu"], "the state is not copied"
    sizes, total = {"updates": 32, "indices": 8, "y": NBYTES}, np.zeros(DIMS, np.float32)
    memories = {name: place() for name in sizes}
    given = [ClientTensor(name, memories[name].window(0, nbytes)) for name, nbytes in sizes.items()]
    for step in range(3):
        memories["indices"].view(np.int32, (2,))[...] = [0, step]
        floats(memories["updates"], (8,))[...] = total[0, step] = step + 1
        graph.execute(given[:2], given[2:])
        assert np.array_equal(floats(memories["y"]), total)


# -- ways to name memory, and to execute -------------------------------------------------------------------------------


@everywhere
def test_a_second_mapping_of_the_same_file_is_the_same_memory(context) -> None:
    graph, buffer = reverse(context), place()
    x, again = fill(buffer), mmap.mmap(buffer.fd, buffer.nbytes)
    given = [ClientTensor("x", buffer)], [ClientTensor("y", np.frombuffer(again, np.uint8, NBYTES))]
    for times in (1, 2):
        graph.execute(*given)
        assert np.array_equal(floats(buffer), x[:, :: (-1) ** times])


def test_memory_that_the_system_lists_in_parts_is_still_the_same_memory(context) -> None:
    """A page with other permissions for a while leaves two lines in the table of mappings, or may leave them."""
    graph, room = unary(context), mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = np.frombuffer(room, np.uint8).ctypes.data
    libc = ctypes.CDLL(None, use_errno=True)
    # Left out of a core dump: the system lists the second page on a line of its own.
    assert libc.madvise(ctypes.c_void_p(start + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 16) == 0
    address = start + mmap.PAGESIZE - NBYTES // 2
    across = np.frombuffer(room, np.float32, 32, mmap.PAGESIZE - NBYTES // 2).reshape(DIMS)
    across[...] = -1
    whole = memory.window(address, nbytes=NBYTES)
    assert whole.spans == (memory.Span(whole.spans[0].identity, whole.spans[0].start, NBYTES),)
    graph.execute([ClientTensor("x", across)], [ClientTensor("y", address, nbytes=NBYTES)])
    assert (across == 0).all()


@everywhere
def test_every_way_to_execute_reads_the_input_first(context) -> None:
    graph, buffer = reverse(context), place()
    fill(buffer)
    given = in_place(context, buffer)
    profile = qnn.Profile(context.backend, qnn.ProfileLevel.DETAILED)
    signal = qnn.Signal(context.backend, timeout_us=60_000_000)
    with graph.bind(*given) as binding:
        ways = [
            lambda: graph.execute(*given),
            lambda: graph.execute(*given),
            lambda: binding.execute(profile),
            lambda: binding.execute(signal=signal),
            lambda: binding.execute_async().result(PATIENCE),
            lambda: graph.execute_async(*given).result(PATIENCE),
        ]
        for way in ways:
            before = floats(buffer).copy()
            way()
            assert np.array_equal(floats(buffer), before[:, ::-1])
    assert {event.name: event.value for event in profile.get_events()}["copied in"] == NBYTES


def test_a_graph_of_a_context_binary_knows_what_it_may_overwrite(backends, context) -> None:
    unary(context)
    restored = backends("cpu").create_context_from_binary(context.get_binary())
    graph, buffer = restored.retrieve("graph"), place()
    x = fill(buffer)
    with graph.bind(*in_place(restored, buffer)) as binding:
        binding.execute()
        assert binding.stats.copied_bytes == 0
    assert np.array_equal(floats(buffer), np.maximum(x, 0))
    restored.free()


def test_lpai_copies_within_tcm() -> None:
    with qnn.Backend("lpai", TCM) as backend:
        graph = reverse(backend.create_context())
        buffer = memory.tcm.pool().allocate(NBYTES, 128)
        x = fill(buffer)
        with memory.statistics("tcm", "host") as seen:
            graph.execute([ClientTensor("x", buffer)], [ClientTensor("y", buffer)])
        assert (seen.of("tcm").live_bytes, seen.of("host").allocations) == (NBYTES, 0)
        assert np.array_equal(floats(buffer), x[:, ::-1])
        assert graph.stats.copied_in_bytes == graph.stats.staging_bytes == NBYTES
        graph.context.free()
        assert seen.of("tcm").live_bytes == 0
        buffer.close()


def test_an_audit_says_why_an_input_was_copied(context) -> None:
    graph, buffer = reverse(context), place()
    given = in_place(context, buffer)
    with isthmus.audit() as log:
        graph.execute(*given)
    assert log.copied_bytes == NBYTES
    [copy] = [event for event in log.events if event.action.name == "COPY"]
    assert "an output in the same memory" in str(copy)
    assert "Give the output memory of its own." in str(copy)


# -- what stays refused ------------------------------------------------------------------------------------------------


@everywhere
def test_parts_of_an_input_and_the_memory_of_another_output_are_refused(context) -> None:
    made = Composer(context)
    x = made.input("x")
    made.node("Relu", [x], made.output("y"))
    made.node("ElementWiseNeg", [x], made.output("z"))
    graph, room, other = made.ready(), place(3 * NBYTES), place()

    def at(name, offset):
        return ClientTensor(name, room.window(offset, NBYTES))

    for outputs, overlapped in (
        ([at("y", 128), at("z", 0)], None),
        ([at("y", 256), at("z", 256)], "y"),
        ([at("y", 0), at("z", 0)], "y"),
    ):
        if overlapped is None:
            graph.execute([at("x", 0)], outputs)
            continue
        with pytest.raises(QnnError, match=f"overlaps that of tensor '{overlapped}'") as refused:
            graph.execute([at("x", 0)], outputs)
        assert refused.value.code is Code.GRAPH_INVALID_TENSOR
        assert "exactly the memory of an input" in refused.value.hint
    if context.backend.name != "lpai":
        # LPAI's buffers start at multiples of 128.
        with pytest.raises(QnnError, match="overlaps that of tensor 'x'"):
            graph.execute([at("x", 0)], [at("y", 64), ClientTensor("z", other)])


# -- random graphs -----------------------------------------------------------------------------------------------------

CONFIGURATIONS = [
    (name, threads, limit)
    for name in NAMES
    for threads in ((1, 2) if name in ("cpu", "htp") else (1,))
    for limit in (None, "least")
]
GRAPHS = 1000


@pytest.mark.parametrize(("name", "threads", "limit"), CONFIGURATIONS)
def test_random_graphs_give_the_same_bits_in_place_and_in_separate_memory(backends, name, threads, limit) -> None:
    for seed in range(8):
        assert in_place_io.difference(backends(name), seed, threads, limit) is None, seed


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(("name", "threads", "limit"), CONFIGURATIONS)
def test_a_thousand_random_graphs_give_the_same_bits_in_place_and_in_separate_memory(
    backends, name, threads, limit, part
) -> None:
    for seed in range(part * GRAPHS // 4, (part + 1) * GRAPHS // 4):
        assert in_place_io.difference(backends(name), seed, threads, limit) is None, seed


@pytest.mark.parametrize("name", NAMES)
def test_graphs_that_overwrite_too_early_would_be_noticed(backends, name, monkeypatch) -> None:
    """If all pairs are said to be safe, some of the first graphs differ."""
    every = property(lambda graph: {(i, o) for i, _ in enumerate(graph.info.inputs) for o, _ in
                                    enumerate(graph.info.outputs)})  # fmt: skip
    monkeypatch.setattr(native.CompiledGraph, "shareable_io", every)
    monkeypatch.setattr(planned.PlannedGraph, "shareable_io", every)
    found = [in_place_io.difference(backends(name), seed) for seed in range(16)]
    assert any(found), "no graph reads an input after an output has overwritten it"
