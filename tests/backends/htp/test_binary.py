"""Contexts go into binaries and come back with their graphs, in this process or another, whole or not at all."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
from support import tiny
from support.processes import descriptors, least_growth, opened_since

from backends.htp.harness import DIMS, NBYTES, counter, doubler
from isthmus import Code, QnnError
from isthmus.backends.seam import binary, native
from isthmus.frontends import load
from isthmus.graph import TensorMemType
from isthmus.prepare import Place
from isthmus.qnn import ClientTensor


@pytest.fixture(scope="module")
def content(backend):
    with backend.create_context() as context:
        doubler(context, "double", (TensorMemType.MEMHANDLE, TensorMemType.RAW))
        counter(context, "count")
        made = context.get_binary()
        assert context.get_binary_size() == len(made)
        return made


def run(graph, value):
    x, y = np.full(DIMS, value, np.float32), np.zeros(DIMS, np.float32)
    graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
    return float(y[0, 0])


def test_a_context_is_restored_with_all_its_graphs(backend, content) -> None:
    with backend.create_context_from_binary(content) as context:
        assert run(context.retrieve("double"), 4) == 8
        assert [run(context.retrieve("count"), 1) for _ in range(3)] == [2, 3, 4]


def test_graphs_of_a_binary_are_finalized_and_described(backend, content) -> None:
    with backend.create_context_from_binary(content) as context:
        graph = context.retrieve("double")
        assert graph.finalized
        assert [(info.name, info.dims) for info in (*graph.input_tensors, *graph.output_tensors)] == [
            ("x", DIMS),
            ("y", DIMS),
        ]
        with pytest.raises(QnnError) as refusal:
            graph.finalize()
        assert refusal.value.code is Code.GRAPH_FINALIZED
        with pytest.raises(QnnError) as refusal:
            context.retrieve("nobody")
        assert refusal.value.code is Code.GRAPH_INVALID_NAME


def test_the_memory_types_of_the_preparation_decide_what_is_reserved(backend, content) -> None:
    with backend.create_context_from_binary(content) as context:
        assert context.retrieve("double").stats.staging_prepare_bytes == NBYTES
        assert context.retrieve("count").stats.staging_prepare_bytes == 2 * NBYTES


def test_a_restored_context_makes_the_same_binary(backend, content) -> None:
    with backend.create_context_from_binary(content) as context:
        assert context.get_binary() == content


def test_more_graphs_can_be_added_to_a_restored_context(backend, content) -> None:
    with backend.create_context_from_binary(content) as context:
        more = doubler(context, "more")
        assert (run(more, 1), run(context.retrieve("double"), 2)) == (2, 4)
        assert [graph.name for graph in binary.inspect(context.get_binary()).graphs] == ["double", "count", "more"]


def test_a_graph_that_is_not_finalized_stops_the_binary(backend) -> None:
    with backend.create_context() as context:
        context.create_graph("empty")
        with pytest.raises(QnnError, match=r"'empty'.*not finalized") as refusal:
            context.get_binary()
        assert refusal.value.code is Code.CONTEXT_NOT_FINALIZED


def test_system_context_inspection_needs_no_backend(content, tmp_path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    script = (
        "import sys; from isthmus import qnn; info = qnn.SystemContext().get_binary_info(sys.argv[1]);"
        "print(info.backend, [(g.name, [t.name for t in g.tensors], [t.mem_type.name for t in g.tensors])"
        " for g in info.graphs], 'numba' in sys.modules)"
    )
    reported = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    ).stdout
    assert reported.strip() == (
        "htp [('double', ['x', 'y'], ['MEMHANDLE', 'RAW']), ('count', ['x', 'y'], ['RAW', 'RAW'])] False"
    )


def test_a_file_that_is_cut_or_rewritten_changes_nothing_in_a_context(backend, content, tmp_path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with backend.create_context_from_binary(path) as context:
        path.write_bytes(bytes(len(content)))
        assert run(context.retrieve("double"), 3) == 6
        os.truncate(path, 0)
        assert run(context.retrieve("double"), 4) == 8


def test_what_is_no_binary_is_refused(backend) -> None:
    for nothing in (None, 5, object(), "", b""):
        with pytest.raises(QnnError):
            backend.create_context_from_binary(nothing)


def test_damaged_binaries_leave_the_backend_as_it_was(backend, content, tmp_path) -> None:
    generator = np.random.default_rng(0)
    before = backend.create_context()
    accelerator = before.driver.queue.accelerator
    counts = accelerator.counts()
    for _ in range(20):
        damaged = bytearray(content)
        damaged[generator.integers(len(content))] ^= 1 << int(generator.integers(8))
        for bad in (bytes(damaged), content[: generator.integers(len(content))]):
            with pytest.raises(QnnError) as refusal:
                backend.create_context_from_binary(bad)
            assert refusal.value.code in (Code.CONTEXT_CREATE_FROM_BINARY, Code.CONTEXT_BINARY_VERSION)
    after = accelerator.counts()
    assert (after["queues"], after["graphs"], after["descriptors"]) == (
        counts["queues"],
        counts["graphs"],
        counts["descriptors"],
    )
    before.free()


def test_a_binary_of_another_backend_is_refused(backend, content) -> None:
    other = binary.to_bytes(list(binary.read(content).graphs.values()), "lpai")
    with pytest.raises(QnnError, match="made for backend 'lpai'") as refusal:
        backend.create_context_from_binary(other)
    assert refusal.value.code is Code.CONTEXT_CREATE_FROM_BINARY


@pytest.mark.parametrize("place", [Place(2, 1 << 39), Place(3, 0), Place(9, 0), Place(5, 4)])
def test_a_graph_with_addresses_out_of_range_is_refused_and_others_still_run(backend, content, place) -> None:
    graph = binary.read(content).planned["double"]
    forged = dataclasses.replace(graph.schedule, places={**graph.schedule.places, graph.schedule.outputs[0]: place})
    with pytest.raises(QnnError, match="graph 'double'") as refusal:
        backend.create_context_from_binary(binary.to_bytes([dataclasses.replace(graph, schedule=forged)], "htp"))
    assert refusal.value.code is Code.CONTEXT_CREATE_FROM_BINARY
    with backend.create_context_from_binary(content) as context:
        assert run(context.retrieve("double"), 2) == 4


def test_a_binary_with_a_program_instead_of_a_schedule_is_refused(backend, tmp_path) -> None:
    program = native.prepare(load(tiny.gate(tmp_path / "gate.onnx"))).program
    with pytest.raises(QnnError, match="graph 'gate' is not a schedule") as refusal:
        backend.create_context_from_binary(binary.to_bytes([program], "htp"))
    assert refusal.value.code is Code.CONTEXT_CREATE_FROM_BINARY


def test_many_contexts_from_one_binary_leave_nothing_behind(backend, content) -> None:
    def cycle():
        with backend.create_context_from_binary(content) as context:
            assert run(context.retrieve("double"), 1) == 2
            return context.driver.queue.accelerator

    for _ in range(5):
        accelerator = cycle()
    mine = descriptors()
    grown = least_growth(accelerator.counts, cycle, 50)
    for kind in ("descriptors", "queues", "graphs", "memory"):
        assert grown[kind] == 0, kind
    assert grown["mappings"] <= 4
    assert grown["resident_bytes"] <= 1 << 20
    assert not opened_since(mine)
