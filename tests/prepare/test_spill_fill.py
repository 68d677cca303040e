"""Spill-fill of a schedule: its figures agree with counts by hand and over steps, and with a stored schedule's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tile_networks import of_one_size

from isthmus.backends.seam import planned
from isthmus.graph import DataType, Graph, TensorType
from isthmus.planning.spill import union
from isthmus.prepare import spill_fill
from isthmus.prepare.schedule import Schedule
from isthmus.prepare.spill_fill import UNIT, SpillFill, spill_fill_of
from isthmus.prepare.tiling import ScratchLimit

KIB = 1 << 10
LARGE = 1 << 40
"""More fast memory than any schedule needs."""


def chain(*widths: int, reads_first_again: bool = False) -> Graph:
    """A chain of tensors of so many KiB, each the result of a step; the last step may also read the first of them."""
    graph = Graph("chain")
    tensors = [graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, widths[0] * 256))]
    for number, width in enumerate(widths[1:]):
        made = graph.emit("ReduceSum", tensors[-1:], {"axes": [1], "keep_dims": True}, name=f"sum {number}")
        tensors += graph.emit("Tile", made, {"multiples": [1, width * 256]}, name=f"t{number}")
    inputs = [tensors[-1], tensors[1]] if reads_first_again else tensors[-1:]
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, widths[-1] * 256))
    graph.add_node("y", "ElementWiseAdd" if reads_first_again else "Relu", inputs, [y])
    graph.finalize()
    return graph


def spill_fill_at(graph: Graph, vtcm: int) -> SpillFill:
    return spill_fill_of(planned.plan(graph).schedule, vtcm)


def test_what_fits_moves_inputs_and_outputs_only() -> None:
    found = spill_fill_at(chain(64, 128, 64), LARGE)
    assert (found.read, found.written, found.spill_fill, found.tensors) == (64 * KIB, 64 * KIB, 0, ())
    assert (found.status, found.lower_bound, found.traffic) == ("optimal", 128 * KIB, 128 * KIB)


def test_a_tensor_that_waits_without_room_is_spilled_once_and_filled_once() -> None:
    graph = chain(256, 256, 384, 256, reads_first_again=True)
    roomy = spill_fill_at(graph, LARGE)
    assert roomy.spill_fill == 0
    assert spill_fill_at(graph, roomy.enough).spill_fill == 0
    tight = spill_fill_at(graph, 512 * KIB)
    [tensor] = tight.tensors
    assert (tensor.name, tensor.bytes, tensor.kind) == ("t0", 256 * KIB, "intermediate")
    assert (tensor.spilled, tensor.filled) == (256 * KIB, 256 * KIB) == (tight.spilled, tight.filled)
    assert tight.spill_fill == 256 * KIB
    assert (tight.read - roomy.read, tight.written - roomy.written) == (256 * KIB, 256 * KIB)


def test_spill_fill_memory_is_a_multiple_of_64_kib() -> None:
    found = spill_fill_at(chain(16, 100, 16), 32 * KIB)
    assert found.spilled == found.filled == 100 * KIB
    assert found.spill_fill == 128 * KIB
    assert found.spill_fill % UNIT == 0


def test_what_does_not_fit_by_itself_is_named_with_the_steps_that_use_it() -> None:
    found = spill_fill_at(chain(16, 512, 16), 256 * KIB)
    [tensor] = found.tensors
    plan = planned.plan(chain(16, 512, 16)).plan
    assert plan is not None
    assert [plan.steps[step][1] for step in (tensor.first, tensor.last)] == ["t0", "sum 1"]


def expected_without_fast_memory(schedule: Schedule) -> tuple[int, int]:
    """Count what steps read and write, if nothing stays; what one step reads twice moves once."""
    read = written = 0
    for step in schedule.steps:
        ranges: dict[int, list[tuple[int, int]]] = {}
        for tensor in step.operands:
            place = schedule.places[tensor]
            ranges.setdefault(place.pool, []).append((place.offset, place.offset + tensor.nbytes))
        read += sum(high - low for each in ranges.values() for low, high in union(each))
        written += sum(tensor.nbytes for tensor in step.outputs)
    return read, written


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_figures_of_random_networks_agree_with_counts_over_their_steps(seed) -> None:
    graph = of_one_size(seed)
    made = planned.plan(graph)
    schedule = made.schedule
    nothing, everything = spill_fill_of(schedule, 0), spill_fill_of(schedule, LARGE)
    read, written = expected_without_fast_memory(schedule)
    # A result that no step reads is not moved.
    assert nothing.read == read
    assert nothing.written <= written
    assert everything.read <= sum(tensor.nbytes for tensor in schedule.inputs)
    assert everything.written == sum(tensor.nbytes for tensor in schedule.outputs)
    before = nothing.traffic
    for part in (8, 4, 2, 1):
        found = spill_fill_of(schedule, everything.enough // part)
        assert found.lower_bound <= found.traffic <= min(before, found.largest_first)
        assert found.traffic - everything.traffic == sum(tensor.traffic for tensor in found.tensors)
        before = found.traffic
    assert before == everything.traffic


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_a_stored_schedule_has_the_figures_of_the_one_that_was_planned(seed) -> None:
    made = planned.plan(of_one_size(seed))
    found = spill_fill_of(made.schedule, 4 * KIB)
    stored = spill_fill_of(planned.from_bytes(made.to_bytes()).schedule, 4 * KIB)
    # Names of intermediate tensors are not stored.
    named = [replace(tensor, name="") for tensor in found.tensors]
    assert replace(stored, tensors=()) == replace(found, tensors=())
    assert sorted(map(repr, (replace(tensor, name="") for tensor in stored.tensors))) == sorted(map(repr, named))


def convolutions(layers: int = 4, size: int = 48) -> Graph:
    """Convolutions in a row, which can be computed in tiles."""
    graph = Graph("convolutions")
    image = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, size, size, 8))
    weights = graph.constant("w", np.ones((3, 3, 8, 8), np.float32))
    for number in range(layers):
        params = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}
        [image] = graph.emit("Conv2d", [image, weights], params, name=f"conv {number}")
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, size, size, 8))
    graph.add_node("y", "Relu", [image], [y])
    graph.finalize()
    return graph


def test_tiles_are_counted_iteration_by_iteration(monkeypatch) -> None:
    graph = convolutions()
    whole, tiled = planned.plan(graph).schedule, planned.plan(graph, limit=ScratchLimit(48 * KIB)).schedule
    assert tiled.repeats
    nbytes = graph.inputs[0].nbytes
    assert spill_fill_of(whole, 64 * KIB).spilled > 2 * nbytes
    found = spill_fill_of(tiled, 64 * KIB)
    assert (found.spilled, found.filled, found.spill_fill) == (0, 0, 0)
    # Rows of the input that two tiles need are read twice, since the input does not fit.
    assert nbytes < found.read < 1.5 * nbytes
    assert found.written == nbytes
    monkeypatch.setattr(spill_fill, "MAX_EXECUTED", 0)
    assert spill_fill_of(tiled, LARGE).read == nbytes


@pytest.mark.parametrize("times", [1 << 40, 1 << 48])
def test_a_stored_schedule_with_endless_repeats_is_bounded_work(times) -> None:
    tiled = planned.plan(convolutions(), limit=ScratchLimit(48 * KIB)).schedule
    endless = replace(tiled, repeats=tuple(replace(each, times=times) for each in tiled.repeats))
    assert spill_fill_of(endless, 64 * KIB).traffic >= 0


def test_states_are_read_and_written_without_spill_fill_memory() -> None:
    graph = Graph("state")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 256))
    state = graph.create_tensor("s", TensorType.APP_READWRITE, DataType.FLOAT_32, (1, 256))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 256))
    graph.add_node("next", "ElementWiseAdd", [x, state], [state])
    graph.add_node("y", "Relu", [state], [y])
    graph.finalize()
    found = spill_fill_at(graph, LARGE)
    assert (found.read, found.written, found.spill_fill) == (2 * KIB, 2 * KIB, 0)
