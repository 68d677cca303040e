"""The Qmem graph: four ways to prepare and execute, what each reserves and copies, and when."""

import numpy as np
import pytest

from backends.htp.harness import DIMS, NBYTES, alloc, counter, doubler, ion
from isthmus import Code, QnnError, qnn
from isthmus.graph import TensorMemType
from isthmus.qnn import ClientTensor

RAW, MEMHANDLE = TensorMemType.RAW, TensorMemType.MEMHANDLE


def tensors(context, kinds):
    """Memory of these kinds for x and y, and arrays to look at it."""
    made, arrays = [], []
    for name, kind in zip("xy", kinds, strict=True):
        if kind is RAW:
            arrays.append(np.zeros(DIMS, np.float32))
            made.append(ClientTensor(name, arrays[-1]))
        else:
            buffer = alloc()
            arrays.append(buffer.view(np.float32, DIMS))
            made.append(ClientTensor(name, mem_handle=context.mem_register([ion(buffer)])[0]))
    return (made[:1], made[1:]), arrays


@pytest.mark.parametrize(
    ("prepared", "executed", "at_prepare", "at_execute", "copied"),
    [
        (RAW, RAW, 2 * NBYTES, 0, NBYTES),
        (RAW, MEMHANDLE, 2 * NBYTES, 0, 0),
        (MEMHANDLE, RAW, 0, 2 * NBYTES, NBYTES),
        (MEMHANDLE, MEMHANDLE, 0, 0, 0),
    ],
)
def test_staging_and_copies_are_those_of_the_documents_table(
    context, prepared, executed, at_prepare, at_execute, copied
) -> None:
    graph = doubler(context, prepared=(prepared, prepared))
    stats = graph.stats
    assert (stats.staging_prepare_bytes, stats.staging_execute_bytes) == (at_prepare, 0)
    given, (x, y) = tensors(context, (executed, executed))
    for round_ in range(1, 4):
        x[:] = round_
        graph.execute(*given)
        assert (y == 2 * round_).all()
        stats = graph.stats
        assert (stats.staging_prepare_bytes, stats.staging_execute_bytes) == (at_prepare, at_execute)
        assert (stats.copied_in_bytes, stats.copied_out_bytes) == (round_ * copied, round_ * copied)
        assert stats.executions == round_
    assert stats.first_execution_us > 0


@pytest.mark.parametrize("executed", [(RAW, MEMHANDLE), (MEMHANDLE, RAW)])
@pytest.mark.parametrize("prepared", [(RAW, MEMHANDLE), (MEMHANDLE, RAW)])
def test_tensors_may_differ_at_prepare_and_at_execution(context, prepared, executed) -> None:
    graph = doubler(context, prepared=prepared)
    assert graph.stats.staging_prepare_bytes == NBYTES
    given, (x, y) = tensors(context, executed)
    x[:] = 6
    graph.execute(*given)
    assert (y == 12).all()
    stats = graph.stats
    assert stats.copied_in_bytes == (NBYTES if executed[0] is RAW else 0)
    assert stats.copied_out_bytes == (NBYTES if executed[1] is RAW else 0)
    assert stats.staging_execute_bytes == (0 if prepared == executed else NBYTES)
    assert stats.in_place_bytes == {"shared": NBYTES}


def test_one_graph_may_alternate_between_raw_and_registered_memory(context) -> None:
    graph = doubler(context, prepared=(MEMHANDLE, MEMHANDLE))
    ways = [tensors(context, kinds) for kinds in ((RAW, RAW), (MEMHANDLE, MEMHANDLE), (RAW, MEMHANDLE))]
    for round_ in range(6):
        given, (x, y) = ways[round_ % 3]
        x[:] = round_
        graph.execute(*given)
        assert (y == 2 * round_).all()
    stats = graph.stats
    assert stats.staging_execute_bytes == 2 * NBYTES, "staging is allocated once"
    assert (stats.copied_in_bytes, stats.copied_out_bytes) == (4 * NBYTES, 2 * NBYTES)


def test_profiles_report_staging_and_copies(backend, context) -> None:
    graph = doubler(context, prepared=(MEMHANDLE, MEMHANDLE))
    given, _ = tensors(context, (RAW, RAW))
    with qnn.Profile(backend, qnn.ProfileLevel.DETAILED) as profile:
        graph.execute(*given, profile=profile)
        first = {event.name: event.value for event in profile.get_events()}
        graph.execute(*given, profile=profile)
        second = {event.name: event.value for event in profile.get_events()[len(first) :]}
    assert (first["copied in"], first["copied out"], first["staging reserved"]) == (NBYTES, NBYTES, 2 * NBYTES)
    assert (second["copied in"], second["copied out"], second["staging reserved"]) == (NBYTES, NBYTES, 0)


def test_a_profile_of_finalize_reports_what_was_reserved(backend, context) -> None:
    graph = context.create_graph("late")
    from isthmus.graph import DataType, TensorType

    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, DIMS)
    graph.add_node("relu", "Relu", [x], [y])
    with qnn.Profile(backend, qnn.ProfileLevel.DETAILED) as profile:
        graph.finalize(profile)
        assert {e.name: e.value for e in profile.get_events()}["staging reserved"] == 2 * NBYTES


def test_every_tensor_needs_memory(context) -> None:
    graph = doubler(context)
    with pytest.raises(QnnError, match="none of its own") as refusal:
        graph.execute()
    assert refusal.value.code is Code.GRAPH_INVALID_TENSOR


def test_state_stays_in_the_accelerator_until_it_is_reset(context) -> None:
    one, two = counter(context, "one"), counter(context, "two")
    x, y = np.ones(DIMS, np.float32), np.zeros(DIMS, np.float32)

    def step(graph):
        graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
        return float(y[0, 0])

    assert [step(one) for _ in range(3)] == [2, 3, 4]
    assert step(two) == 2
    one.reset()
    assert [step(one), step(two)] == [2, 3]


def test_graphs_of_one_context_with_scratch_of_different_sizes_all_compute_right(context) -> None:
    graphs = [doubler(context, f"g{n}", dims=(1, 2 ** (n + 3))) for n in range(5)]
    for graph in (*graphs, *reversed(graphs)):
        info = graph.input_tensors[0]
        x, y = np.full(info.dims, 3, np.float32), np.zeros(info.dims, np.float32)
        graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
        assert (y == 6).all()


def test_a_binding_reports_its_own_staging_and_first_execution(context) -> None:
    graph = doubler(context, prepared=(MEMHANDLE, MEMHANDLE))
    (inputs, outputs), _ = tensors(context, (RAW, RAW))
    with graph.bind(inputs, outputs) as binding, graph.bind(inputs, outputs) as later:
        binding.execute()
        assert binding.stats.staging_execute_bytes == graph.stats.staging_execute_bytes == 2 * NBYTES
        assert binding.stats.first_execution_us == graph.stats.first_execution_us > 0
        assert (later.stats.staging_execute_bytes, later.stats.first_execution_us) == (0, 0.0)
        later.execute()
        assert later.stats.first_execution_us > 0
        assert graph.stats.first_execution_us == binding.stats.first_execution_us
