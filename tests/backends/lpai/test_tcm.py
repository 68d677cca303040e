"""TCM: in ADSP direct mode only, for IO and the model binary alike, up to the last byte; messages to the letter."""

import logging
import threading

import numpy as np
import pytest
from support import zoo
from support.interruption import everywhere
from support.waiting import run_in_threads

from backends.lpai.harness import DIRECT, IN_TCM, count, counter, ddr, pools, ready
from isthmus import Code, QnnError, memory, qnn
from isthmus.backends.lpai.model import ModelBinary
from isthmus.graph import DataType, TensorType
from isthmus.qnn import ClientTensor, LogLevel, lpai

POOL = 2_035_712


@pytest.fixture(autouse=True)
def fresh_pool(fresh_tcm):
    """A pool that nothing was allocated from yet."""
    return fresh_tcm


class LogMessages(list):
    """A log callback that remembers."""

    def __call__(self, level, text):
        self.append((level, text))


def refused(code, match):
    return pytest.raises(QnnError, match=rf"^\[{int(code)} .*{match}")


def padded(nbytes):
    return -(-nbytes // 128) * 128


def holds(pool, content):
    """Return whether the pool's memory holds these bytes at an aligned place."""
    place = pool._memory.array.tobytes().find(content)
    return place >= 0 and place % 128 == 0


def test_io_and_binary_are_in_tcm_scratch_and_state_in_ddr(fresh_pool) -> None:
    messages = LogMessages()
    with qnn.Backend("lpai", IN_TCM, messages) as backend:
        graph = counter(backend.create_context())
        scratch, persistent = ready(backend, graph)
        assert holds(fresh_pool, graph.context.get_binary())
        for view in (*graph.inputs.values(), *graph.outputs.values()):
            assert fresh_pool.encloses(memory.window(view))
        for buffer in (scratch, persistent):
            assert not fresh_pool.touches(buffer.window())
        assert [count(graph, 1), count(graph, 1)] == [4, 6]
        assert graph.stats.in_place_bytes == {"tcm": 2 * 2 * 160}
        assert graph.stats.copied_bytes == 0
        binary = padded(len(graph.context.get_binary()))
    assert messages == [
        (LogLevel.INFO, "TCM pool current size: 0 max_size: 2035712"),
        (LogLevel.INFO, f"Allocate size {binary} from tcm pool 0"),
        (LogLevel.INFO, "Allocate size 256 from tcm pool 0"),
        (LogLevel.INFO, "Allocate size 256 from tcm pool 0"),
    ]


def test_the_pool_is_registered_once_and_each_allocation_is_logged() -> None:
    messages = LogMessages()
    for _ in range(2):
        with qnn.Backend("lpai", IN_TCM, messages) as backend:
            ready(backend, counter(backend.create_context()))
    assert [text.split(" ")[0] for _, text in messages] == ["TCM"] + 6 * ["Allocate"]


def test_messages_reach_pythons_logging_too(caplog) -> None:
    with caplog.at_level(logging.DEBUG, "isthmus"), qnn.Backend("lpai", IN_TCM) as backend:
        ready(backend, counter(backend.create_context()))
    assert (caplog.records[0].levelno, caplog.messages[0]) == (
        logging.INFO,
        "TCM pool current size: 0 max_size: 2035712",
    )


@pytest.mark.parametrize("environment", ["x86", "arm"])
def test_tcm_is_refused_outside_adsp_direct_mode_without_a_fallback(environment) -> None:
    config = {**IN_TCM, "lpai_backend": {"target_env": environment}}
    with qnn.Backend("lpai", config) as backend:
        graph = counter(backend.create_context())
        with refused(Code.COMMON_PLATFORM_NOT_SUPPORTED, f"only available in ADSP direct mode.* {environment}"):
            ready(backend, graph)
        assert not graph.finalized
    with qnn.Backend("lpai", {"lpai_backend": {"target_env": environment}}) as backend:
        direct = counter(backend.create_context({lpai.MODEL_BUFFER_MEM_TYPE: lpai.MemType.TCM}))
        with refused(Code.COMMON_PLATFORM_NOT_SUPPORTED, "ADSP direct mode"):
            ready(backend, direct)
        graph = counter(backend.create_context())
        ready(backend, graph)
        assert count(graph, 1) == 4


def test_ddr_is_the_default_in_direct_mode_too(fresh_pool) -> None:
    with qnn.Backend("lpai", DIRECT) as backend:
        graph = counter(backend.create_context())
        ready(backend, graph)
        assert count(graph, 1) == 4
        assert fresh_pool.allocations == 0


def test_a_context_may_choose_tcm_by_itself(fresh_pool) -> None:
    with qnn.Backend("lpai", DIRECT) as backend:
        context = backend.create_context({lpai.MODEL_BUFFER_MEM_TYPE: lpai.MemType.TCM})
        ready(backend, counter(context))
        assert fresh_pool.allocations == 3
        with refused(Code.CONTEXT_INVALID_CONFIG, "before the context has graphs"):
            context.set_config(lpai.MODEL_BUFFER_MEM_TYPE, lpai.MemType.DDR)
        with refused(Code.CONTEXT_INVALID_CONFIG, "must be MemType.DDR or MemType.TCM"):
            backend.create_context({lpai.MODEL_BUFFER_MEM_TYPE: lpai.MemType.LLC})


def test_an_unknown_memory_type_fails_as_documented(tmp_path) -> None:
    messages = LogMessages()
    path = tmp_path / "eaiParams_direct.conf"
    path.write_text('{"lpai_graph": {"execute": {"mem_type": "vtcm"}}}')
    with qnn.Backend("lpai", [path, DIRECT], messages) as backend:
        assert messages == [(LogLevel.ERROR, "Invalid memory type")]
        context = backend.create_context()
        assert context.get_property(lpai.MODEL_BUFFER_MEM_TYPE) is lpai.MemType.UNDEFINED
        graph = counter(context)
        with refused(Code.COMMON_MEM_ALLOC, "binary of graph 'counter'.*_direct.conf.*mem_type to 'ddr' or 'tcm'"):
            ready(backend, graph)
        assert messages[1:] == [(LogLevel.ERROR, "Memory type only supports DDR & TCM")]
        fixed = counter(backend.create_context({lpai.MODEL_BUFFER_MEM_TYPE: lpai.MemType.DDR}), "fixed")
        ready(backend, fixed)
        assert count(fixed, 1) == 4


@pytest.mark.parametrize("config", [IN_TCM, DIRECT])
def test_memory_types_of_io_and_binary_cannot_be_mixed(config, fresh_pool) -> None:
    with qnn.Backend("lpai", config) as backend:
        graph = counter(backend.create_context())
        ready(backend, graph)
        if config is IN_TCM:
            wrong, places = memory.host(256, 128), "DDR.*TCM"
        else:
            wrong, places = fresh_pool.allocate(256, 128), "TCM.*DDR"
        with refused(Code.GRAPH_INVALID_TENSOR, f"tensor 'x' .*{places}; memory types cannot be mixed"):
            graph.execute([ClientTensor("x", wrong)])
        assert count(graph, 1) == 4
        wrong.close()


def test_excluded_io_may_be_brought_in_tcm(fresh_pool) -> None:
    config = {**DIRECT, "lpai_graph": {"prepare": {"exclude_io": True}, "execute": {"mem_type": "tcm"}}}
    with qnn.Backend("lpai", config) as backend:
        graph = counter(backend.create_context())
        ready(backend, graph)
        x, y = (fresh_pool.allocate(256, 128) for _ in range(2))
        x.array[:160].view(np.float32)[:] = 1
        graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
        assert (y.array[:160].view(np.float32) == 4).all()
        backend.free()
        x.close()
        y.close()


def test_pools_cannot_lie_in_tcm(fresh_pool) -> None:
    with qnn.Backend("lpai", IN_TCM) as backend:
        graph = counter(backend.create_context())
        scratch, _ = pools(backend, graph)
        fast = fresh_pool.allocate(max(scratch.nbytes, 128), 128)
        with refused(Code.GRAPH_INVALID_ARGUMENT, "scratch memory .*must be in DDR, is in TCM"):
            graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, fast.nbytes, fast))
        fast.close()
        ready(backend, graph)


def picker(context, extra):
    """A graph with about 1.2 MB of weights whose input is `extra` bytes long; it adds the weights to part of it."""
    graph = context.create_graph("picker")
    weights = np.arange(1_200_000 // 4, dtype=np.int32)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.UINT_8, (extra,))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.INT_32, (64,))
    first = graph.create_tensor("first", TensorType.NATIVE, DataType.UINT_8, (64,))
    table = graph.create_tensor("table", TensorType.STATIC, DataType.INT_32, weights.shape, None, weights)
    index = graph.create_tensor("index", TensorType.NATIVE, DataType.INT_32, (64,))
    ranges = np.array([[0, 64, 1]], np.int32)
    graph.add_node("slice", "StridedSlice", [x], [first], {"ranges": ranges})
    graph.add_node("cast", "Cast", [first], [index])
    graph.add_node("gather", "Gather", [table, index], [y], {"axis": 0})
    return graph


def needed(extra):
    """The bytes of TCM that a picker takes for its binary, input and output."""
    with qnn.Backend("lpai", IN_TCM) as backend:
        graph = picker(backend.create_context(), extra)
        return padded(len(graph.context.prepare_offline())) + padded(extra) + padded(256)


def test_exactly_the_whole_pool_fits_and_one_byte_more_does_not(fresh_pool) -> None:
    extra = 700_032
    extra += POOL - needed(extra)
    assert needed(extra) == POOL
    messages = LogMessages()
    with qnn.Backend("lpai", IN_TCM, messages) as backend:
        graph = picker(backend.create_context(), extra)
        ready(backend, graph)
        assert fresh_pool.free_bytes == 0
        graph.inputs["x"][:64] = np.arange(64)
        graph.execute()
        assert np.array_equal(graph.outputs["y"], np.arange(64))
    assert not [text for level, text in messages if level is LogLevel.ERROR]

    messages.clear()
    with qnn.Backend("lpai", IN_TCM, messages) as backend:
        graph = picker(backend.create_context(), extra + 1)
        with refused(Code.COMMON_MEM_ALLOC, "graph 'picker'.*are left.*ddr"):
            ready(backend, graph)
        assert messages[-1][0] is LogLevel.ERROR
        assert messages[-1][1].startswith("TCM memory allocation failure: required size: ")
        assert fresh_pool.free_bytes == POOL, "nothing half-initialised stays behind"
        smaller = picker(backend.create_context(), extra)
        ready(backend, smaller)
        smaller.execute()


def test_the_failing_line_names_the_size_that_was_asked_for() -> None:
    messages = LogMessages()
    with qnn.Backend("lpai", IN_TCM, messages) as backend, refused(Code.COMMON_MEM_ALLOC, "buffer of tensor 'x'"):
        ready(backend, picker(backend.create_context(), 2_000_000))
    assert messages[-1] == (LogLevel.ERROR, f"TCM memory allocation failure: required size: {padded(2_000_000)}")


def test_a_model_of_too_many_tensors_is_a_fatal_error(fresh_pool) -> None:
    messages = LogMessages()
    with qnn.Backend("lpai", IN_TCM, messages) as backend:
        graph = backend.create_context().create_graph("many")
        for i in range(16):
            x = graph.create_tensor(f"x{i}", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
            y = graph.create_tensor(f"y{i}", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
            graph.add_node(f"relu{i}", "Relu", [x], [y])
        with refused(Code.COMMON_SYSTEM_COMMUNICATION_FATAL, "32 individual buffers"):
            ready(backend, graph)
        assert fresh_pool.allocations == 0
    assert messages[-1] == (LogLevel.ERROR, "TCM system fatal error: more than 32 buffers")


@pytest.mark.parametrize("version", ["v4", "v5"])
def test_hardware_before_v6_has_no_tcm(version, fresh_pool) -> None:
    before = {"lpai_backend": {"target_env": "adsp", "enable_hw_ver": version}}
    in_tcm = {lpai.MODEL_BUFFER_MEM_TYPE: lpai.MemType.TCM}
    with qnn.Backend("lpai", before) as backend:
        graph = counter(backend.create_context(in_tcm))
        with refused(Code.COMMON_PLATFORM_NOT_SUPPORTED, f"TCM needs v6 or later, the hardware version is {version}"):
            ready(backend, graph)
        assert fresh_pool.allocations == 0
        graph = counter(backend.create_context())
        ready(backend, graph)
        assert count(graph, 1) == 4


def test_a_binary_of_several_graphs_is_in_tcm_once(fresh_pool) -> None:
    messages = LogMessages()
    with qnn.Backend("lpai", IN_TCM, messages) as backend:
        context = backend.create_context()
        for name in ("first", "second"):
            counter(context, name)
        binary = context.prepare_offline()
        context = backend.create_context_from_binary(binary)
        graphs = [context.retrieve(name) for name in ("first", "second")]
        for graph in graphs:
            ready(backend, graph)
        sizes = [int(text.split()[2]) for _, text in messages[1:]]
        assert sizes == [padded(len(binary)), *4 * [256]]
        assert holds(fresh_pool, binary)
        assert [count(graphs[i], value) for i, value in ((0, 1), (1, 10), (0, 1))] == [4, 22, 6]
        context.free()
        assert fresh_pool.allocations == 0


def test_a_graph_that_does_not_fit_leaves_the_binary_to_the_others(fresh_pool) -> None:
    with qnn.Backend("lpai", IN_TCM) as backend:
        context = backend.create_context()
        counter(context, "small")
        counter(context, "large", width=100_000)
        context = backend.create_context_from_binary(context.prepare_offline())
        small, large = (context.retrieve(name) for name in ("small", "large"))
        taken = fresh_pool.allocate(1_100_032, 128)
        with refused(Code.COMMON_MEM_ALLOC, "tensor 'y' of graph 'large'"):
            ready(backend, large)
        assert fresh_pool.allocations == 1
        ready(backend, small)
        with refused(Code.COMMON_MEM_ALLOC, "tensor 'y' of graph 'large'"):
            large.finalize()
        assert fresh_pool.allocations == 4, "the binary is still there, and the small graph's buffers"
        assert count(small, 1) == 4
        taken.close()
        large.finalize()
        assert [count(graph, 1) for graph in (small, large)] == [6, 4]


def test_the_wake_word_runs_from_tcm() -> None:
    try:
        path = zoo.path("okay_nabu")
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    from backends.lpai.test_state import DATA

    features, expected = np.load(DATA / "okay_nabu_in_int8.npy"), np.load(DATA / "okay_nabu_out_uint8_litert.npy")
    with qnn.Backend("lpai", IN_TCM) as backend:
        graph = backend.create_context().compose(path)
        ready(backend, graph)
        [x], [y] = graph.inputs.values(), graph.outputs.values()
        answers = []
        for step in range(len(expected.reshape(-1))):
            x[...] = features[3 * step : 3 * step + 3]
            graph.execute()
            answers.append(int(y[0, 0]))
    assert np.array_equal(answers, expected.reshape(-1))


def tcm_view(pool, address, nbytes):
    """Bytes of TCM by their address, as a client may still know them from a buffer it gave back."""
    return memory.window(address, nbytes=nbytes).view(np.uint8, (nbytes,))


def test_nothing_may_be_written_over_a_model_binary(fresh_pool) -> None:
    with qnn.Backend("lpai", IN_TCM) as backend:
        earlier = fresh_pool.allocate(1024, 128)
        stale, start = earlier.array, earlier.address
        earlier.close()
        graph, other = counter(backend.create_context()), counter(backend.create_context(), "other")
        ready(backend, graph)
        ready(backend, other)
        for brought in (stale[:256], tcm_view(fresh_pool, start + 128, 256)):
            for either in (graph, other):
                with refused(Code.GRAPH_INVALID_TENSOR, "tensor 'y' .*overlaps the model binary of graph 'counter'"):
                    either.execute([], [ClientTensor("y", brought)])
        assert count(graph, 1) == count(other, 1) == 4


def test_the_tcm_buffer_of_one_tensor_is_not_taken_for_another(fresh_pool) -> None:
    with qnn.Backend("lpai", IN_TCM) as backend:
        graph = counter(backend.create_context())
        ready(backend, graph)
        x = graph.inputs["x"]
        with refused(Code.GRAPH_INVALID_TENSOR, "tensor 'y' .*overlaps the buffer of tensor 'x' of graph 'counter'"):
            graph.execute([], [ClientTensor("y", x)])
        graph.inputs["x"][...] = 1
        graph.execute([ClientTensor("x", x)], [ClientTensor("y", graph.outputs["y"])])
        assert (graph.outputs["y"] == 4).all()


def test_memory_that_straddles_the_end_of_tcm_is_neither_a_pool_nor_io(fresh_pool) -> None:
    with qnn.Backend("lpai", IN_TCM) as backend:
        graph = counter(backend.create_context())
        ready(backend, graph)
        end = graph.inputs["x"].ctypes.data // (1 << 16) * (1 << 16) + POOL
        assert fresh_pool.touches(memory.window(end - 1, nbytes=1))
        assert not fresh_pool.touches(memory.window(end, nbytes=1))
        start = (end - 1) // 128 * 128
        with refused(Code.GRAPH_INVALID_ARGUMENT, "scratch memory .*must be in DDR, is in TCM"):
            graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, 4096, start))
        with refused(Code.GRAPH_INVALID_TENSOR, "memory types cannot be mixed"):
            graph.execute([], [ClientTensor("y", start, nbytes=256)])


@pytest.mark.parametrize("alignment", [4096, 8192, 1 << 16])
def test_io_in_tcm_is_as_aligned_as_the_backend_asks(alignment) -> None:
    config = {**IN_TCM, "lpai_backend": {"target_env": "adsp", "start_addr_alignment": alignment}}
    with qnn.Backend("lpai", config) as backend:
        graph = counter(backend.create_context())
        ready(backend, graph)
        x, y = graph.inputs["x"], graph.outputs["y"]
        assert x.ctypes.data % alignment == y.ctypes.data % alignment == 0
        x[...] = 1
        graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
        assert (y == 4).all()


def test_of_many_threads_that_finalize_one_graph_one_does(fresh_pool) -> None:
    with qnn.Backend("lpai", IN_TCM) as backend:
        graph = counter(backend.create_context())
        scratch, persistent = pools(backend, graph)
        graph.set_config({lpai.SCRATCH_MEM: ddr(scratch), lpai.PERSISTENT_MEM: ddr(persistent)})
        begin, ends = threading.Barrier(4), []

        def finalize():
            begin.wait()
            try:
                graph.finalize()
                ends.append("finalized")
            except QnnError as problem:
                ends.append(problem.name)

        run_in_threads(lambda _: finalize(), range(4))
        assert sorted(ends) == ["GRAPH_FINALIZED"] * 3 + ["finalized"]
        assert fresh_pool.allocations == 3
        assert count(graph, 1) == 4


@pytest.mark.parametrize("config", [IN_TCM, {"lpai_graph": {"execute": {"mem_type": "tcm"}}}])
def test_offline_preparation_needs_neither_tcm_nor_pools(fresh_pool, config) -> None:
    messages = LogMessages()
    with qnn.Backend("lpai", config, messages) as backend:
        context = backend.create_context()
        counter(context)
        binary = context.prepare_offline()
    assert (fresh_pool.allocations, messages) == (0, [])
    with qnn.Backend("lpai", IN_TCM) as backend:
        graph = backend.create_context_from_binary(binary).retrieve("counter")
        ready(backend, graph)
        assert count(graph, 1) == 4


def test_a_pool_that_is_too_small_by_fragments_says_so(fresh_pool) -> None:
    held = [fresh_pool.allocate(POOL // 4 // 128 * 128, 128) for _ in range(4)]
    held[0].close()
    held[2].close()
    with pytest.raises(QnnError, match="in one piece"):
        fresh_pool.allocate(POOL // 2 - 1024, 128)
    held[1].close()
    held[3].close()


def test_a_binary_is_in_tcm_whole_or_not_at_all_wherever_an_interrupt_comes(fresh_pool) -> None:
    with qnn.Backend("lpai", IN_TCM) as backend:
        context = backend.create_context()
        graph = counter(context)
        content, allocator = context.prepare_offline(), context.driver.allocator
        model = ModelBinary(content, "model binary")

        def place():
            return allocator.place(graph.driver.info, lambda: model, "graph 'counter'", with_io=True)

        for where in everywhere(lambda: place().close(), most=100):
            # As a graph does when it ends.
            model.release("counter")
            assert fresh_pool.allocations == 0, where
            placed = place()
            assert holds(fresh_pool, content), where
            placed.close()
