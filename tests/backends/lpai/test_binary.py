"""Offline preparation: a context binary gives the same pools and results as the graph it was made of."""

from dataclasses import replace

import numpy as np
import pytest

from backends.lpai.harness import IN_TCM, count, counter, pools, ready
from isthmus import Code, QnnError, memory, qnn
from isthmus.backends.seam import binary as context_binary
from isthmus.graph import DataType, TensorType
from isthmus.qnn import ClientTensor, lpai


def refused(code, match):
    return pytest.raises(QnnError, match=rf"^\[{int(code)} .*{match}")


@pytest.fixture
def binary():
    with qnn.Backend("lpai") as backend:
        context = backend.create_context()
        for name in ("first", "second"):
            ready(backend, counter(context, name))
        return context.get_binary()


@pytest.mark.parametrize("as_file", [True, False])
def test_graphs_are_retrieved_sized_and_run(binary, tmp_path, as_file) -> None:
    source = binary
    if as_file:
        source = tmp_path / "model.serialized.bin"
        source.write_bytes(binary)
    with qnn.Backend("lpai") as backend:
        fresh = counter(backend.create_context())
        graph = backend.create_context_from_binary(source).retrieve("second")
        assert [b.nbytes for b in pools(backend, graph)] == [b.nbytes for b in pools(backend, fresh)]
        with refused(Code.GRAPH_FINALIZE_FAILED, "is not set"):
            graph.finalize()
        ready(backend, graph)
        assert [count(graph, 1), count(graph, 1)] == [4, 6]


def test_what_io_needs_can_be_asked_of_the_binary_alone(binary) -> None:
    info = qnn.SystemContext().get_binary_info(binary)
    assert [graph.name for graph in info.graphs] == ["first", "second"]
    x, y = info.graphs[0].tensors
    assert [(t.name, t.dtype.name, tuple(t.dims), t.nbytes) for t in (x, y)] == [
        ("x", "FLOAT_32", (1, 40), 160),
        ("y", "FLOAT_32", (1, 40), 160),
    ]


def test_a_binary_runs_from_tcm(binary, fresh_tcm) -> None:
    pool = fresh_tcm
    with qnn.Backend("lpai", IN_TCM) as backend:
        graph = backend.create_context_from_binary(binary).retrieve("first")
        ready(backend, graph)
        assert pool.allocations == 3
        assert count(graph, 1) == 4
    assert pool.allocations == 0


def test_io_that_was_excluded_from_scratch_stays_excluded_in_a_restored_graph() -> None:
    with qnn.Backend("lpai", {"lpai_graph": {"prepare": {"exclude_io": True}}}) as backend:
        context = backend.create_context()
        ready(backend, counter(context))
        binary = context.get_binary()
    with qnn.Backend("lpai") as backend:
        graph = backend.create_context_from_binary(binary).retrieve("counter")
        ready(backend, graph)
        with refused(Code.GRAPH_INVALID_TENSOR, "needs a buffer"):
            graph.execute()
        x, y = memory.host(256, 128), memory.host(256, 128)
        x.view(np.float32, (40,))[:] = 1
        graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
        assert (y.view(np.float32, (40,)) == 4).all()


def test_a_restored_graph_cannot_be_prepared_again(binary) -> None:
    with qnn.Backend("lpai") as backend:
        graph = backend.create_context_from_binary(binary).retrieve("first")
        with refused(Code.GRAPH_INVALID_ARGUMENT, "out of a context binary"):
            graph.set_config(lpai.PREPARE, lpai.Prepare(exclude_io=True))
        assert graph.plan is None, "a binary holds the result of planning only"


def test_a_binary_for_stricter_alignment_is_refused(binary) -> None:
    with (
        qnn.Backend("lpai", {"lpai_backend": {"enable_hw_ver": "v5"}}) as backend,
        refused(Code.COMMON_INCOMPATIBLE_BINARIES, "multiples of 128, the backend asks for 64"),
    ):
        backend.create_context_from_binary(binary)


def test_an_output_over_the_work_space_of_an_instruction_is_refused() -> None:
    """A convolution keeps addresses in its work space: an output there would overwrite them while it runs."""
    with qnn.Backend("lpai") as backend:
        context = backend.create_context()
        graph = context.create_graph("g")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 32, 32, 8))
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 32, 32, 16))
        weights = np.ones((3, 3, 8, 16), np.float32)
        w = graph.create_tensor("w", TensorType.STATIC, DataType.FLOAT_32, weights.shape, None, weights)
        graph.add_node("c", "Conv2d", [x, w], [y], {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]})
        ready(backend, graph)
        raw = context.get_binary()
    with context_binary.ContextBinary(raw) as honest:
        made = honest.contents.planned["g"]
        schedule = made.schedule
        over = min(schedule.work[0], schedule.scratch_bytes - schedule.outputs[0].nbytes) // 64 * 64
        moved = replace(schedule, io_offsets=(schedule.io_offsets[0], over))
        forged = bytes(context_binary.to_bytes([replace(made, schedule=moved)], "lpai"))
    with qnn.Backend("lpai") as backend, refused(Code.CONTEXT_CREATE_FROM_BINARY, "written into work space"):
        backend.create_context_from_binary(forged)
