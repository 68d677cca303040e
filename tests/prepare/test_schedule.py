"""A schedule executed in one piece of memory, at the places it names, gives what the graph gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.plans import plan_graph

from isthmus.backends.gpu.mixed_precision import store_as_fp16
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, Tensor, TensorType
from isthmus.prepare import Pool, Step
from isthmus.prepare.schedule import Schedule
from isthmus.prepare.work import Work
from prepare.interpreter import Builder, Memory, assert_close, random_inputs, run_graph, run_work

CONV = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}


def some_work(step: Step) -> int:
    """Work space that differs from step to step."""
    return len(step.name) * 37 % 200 if step.op != "Reshape" else 0


def check(graph: Graph, executions: int = 2, tolerance: float = 1e-4, **options) -> Schedule:
    """Prepare, execute several times with states carried on, compare with direct evaluation."""
    made = plan_graph(graph, some_work, **options)
    memory = Memory(made)
    kept = {s: s.data for s in graph.states}
    try:
        for seed in range(executions):
            inputs = random_inputs(graph.inputs, seed)
            expected = run_graph(graph, inputs)
            found = memory.run(inputs, some_work)
            for state in graph.states:
                expected.setdefault(f"state {state.name}", state.data)
            assert_close(found, expected, tolerance)
            for state in graph.states:
                state.data = expected[f"state {state.name}"]
    finally:
        for state, data in kept.items():
            state.data = data
    for tensor, place in made.places.items():
        assert place.offset % tensor.dtype.itemsize == 0
    return made


def names(made: Schedule) -> list[str]:
    return [step.op for step in made.steps]


def test_an_unfinished_graph_is_refused() -> None:
    with pytest.raises(QnnError) as refused:
        plan_graph(Graph("g"))
    assert refused.value.code is Code.GRAPH_NOT_FINALIZED


def test_reshapes_slices_and_splits_take_no_step_and_no_memory() -> None:
    b = Builder()
    x = b.op("ElementWiseSin", b.input(4, 6))
    x = b.op("Reshape", x, dims=[2, 12])
    first, second = b.op("Split", x, axis=0, split_index=[1])
    part = b.op("StridedSlice", b.op("Reshape", second, dims=[4, 3]), ranges=[[1, 3, 1], [0, 3, 1]])
    y = b.op("ElementWiseAdd", b.op("Reshape", part, dims=[6]), 1.0)
    made = check(b.finish(y, b.op("ElementWiseExp", first)))
    assert names(made) == ["ElementWiseSin", "ElementWiseAdd", "ElementWiseExp"]
    assert len([r for r in made.plan.rows if "work" not in r.name]) == 1


def test_parts_of_a_join_are_computed_in_place() -> None:
    b = Builder()
    x = b.input(3, 4)
    joined = b.op("Concat", b.op("ElementWiseSin", x), b.op("ElementWiseCos", x), axis=0)
    nested = b.op("Concat", b.op("ElementWiseExp", x), joined, axis=0)
    made = check(b.finish(b.op("ReduceSum", nested, axes=[1])))
    assert sorted(names(made)) == ["ElementWiseCos", "ElementWiseExp", "ElementWiseSin", "ReduceSum"]


def test_a_graph_input_in_a_join_is_copied_there_and_the_rest_computed_there() -> None:
    b = Builder()
    x = b.input(3, 4)
    joined = b.op("Concat", x, b.op("ElementWiseSin", x), x, axis=0)
    made = check(b.finish(b.op("ReduceSum", joined, axes=[1])))
    assert sorted(names(made)) == ["ElementWiseSin", "ReduceSum", "Reshape", "Reshape"]


def test_a_join_along_an_inner_axis_stays_a_step() -> None:
    b = Builder()
    x = b.input(3, 4)
    made = check(b.finish(b.op("Concat", b.op("ElementWiseSin", x), b.op("ElementWiseCos", x), axis=1)))
    assert names(made)[-1] == "Concat"


def test_results_are_written_over_operands_that_die() -> None:
    b = Builder()
    x = b.op("ElementWiseSin", b.input(100))
    for op in ("ElementWiseExp", "Tanh", "ElementWiseAbs", "ElementWiseCos"):
        x = b.op(op, x)
    made = check(b.finish(b.op("ReduceSum", x, axes=[0])))
    assert made.plan.aliased_bytes >= 4 * 400
    assert len([r for r in made.plan.rows if "work" not in r.name]) == 1


def test_an_operand_that_is_read_later_is_not_overwritten() -> None:
    b = Builder()
    x = b.op("ElementWiseSin", b.input(100))
    y = b.op("ElementWiseExp", x)
    check(b.finish(b.op("ElementWiseAdd", y, x)))


def test_slices_of_one_block_that_overlap_are_not_written_over_each_other() -> None:
    b = Builder()
    x = b.op("ElementWiseSin", b.input(10))
    low = b.op("StridedSlice", x, ranges=[[0, 6, 1]])
    high = b.op("StridedSlice", x, ranges=[[4, 10, 1]])
    check(b.finish(b.op("ElementWiseAdd", low, high)))


@pytest.mark.parametrize("rows", [(0, 1), (3, 4)])
@pytest.mark.parametrize("swapped", [False, True])
def test_an_operand_is_not_overwritten_while_a_part_of_it_is_read_again(rows, swapped) -> None:
    b = Builder()
    x = b.op("ElementWiseSin", b.input(4, 6))
    part = b.op("StridedSlice", x, ranges=[[*rows, 1], [0, 6, 1]])
    y = b.op("ElementWiseSubtract", *((part, x) if swapped else (x, part)))
    check(b.finish(b.op("ReduceSum", y, axes=[1])))


def test_a_choice_is_not_written_over_the_row_that_it_chooses_from() -> None:
    b = Builder()
    x = b.op("ElementWiseSin", b.input(4, 6))
    row = b.op("StridedSlice", x, ranges=[[1, 2, 1], [0, 6, 1]])
    positive = b.op("ElementWiseGreater", x, 0.0)
    check(b.finish(b.op("ReduceSum", b.op("ElementWiseSelect", positive, x, row), axes=[1])))


SLICES = {
    "every other row": ((4, 6), [[0, 4, 2], [0, 6, 1]]),
    "every other element of the only row": ((1, 6), [[0, 1, 1], [0, 6, 2]]),
    "rows from the last to the first": ((4, 6), [[3, -1, -1], [0, 6, 1]]),
    "two rows backwards": ((4, 6), [[2, 0, -1], [0, 6, 1]]),
    "elements of the only row backwards": ((1, 6), [[0, 1, 1], [5, -1, -1]]),
    "every other element": ((4, 6), [[0, 4, 1], [0, 6, 2]]),
    "a column": ((4, 6), [[0, 4, 1], [2, 3, 1]]),
    "part of each row": ((4, 6), [[0, 4, 1], [2, 5, 1]]),
}


def steps_of_a_slice(dims, ranges) -> list[str]:
    """Return the steps of a graph that slices a tensor which is also used whole."""
    b = Builder()
    x = b.op("ElementWiseSin", b.input(*dims))
    return names(check(b.finish(b.op("ElementWiseExp", b.op("StridedSlice", x, ranges=ranges)), b.op("Relu", x))))


@pytest.mark.parametrize("case", SLICES)
def test_a_slice_whose_elements_are_apart_or_turned_stays_a_step(case) -> None:
    assert "StridedSlice" in steps_of_a_slice(*SLICES[case])


CONTIGUOUS = {
    "one row": ((4, 6), [[2, 3, 1], [0, 6, 1]]),
    "one row, whatever the step": ((4, 6), [[2, 4, 2], [0, 6, 1]]),
    "part of one row": ((4, 6), [[2, 3, 1], [1, 4, 1]]),
    "one element, backwards": ((4, 6), [[2, 1, -1], [4, 3, -1]]),
}


@pytest.mark.parametrize("case", CONTIGUOUS)
def test_a_slice_whose_elements_lie_side_by_side_takes_no_step(case) -> None:
    assert "StridedSlice" not in steps_of_a_slice(*CONTIGUOUS[case])


def test_an_input_that_is_also_an_output_is_copied() -> None:
    b = Builder()
    x = b.input(2, 3)
    made = check(b.finish(b.op("Reshape", x, dims=[6]), b.op("ElementWiseAbs", x)))
    assert sorted(names(made)) == ["ElementWiseAbs", "Reshape"]


def test_an_output_that_is_read_on_is_read_in_its_own_memory() -> None:
    b = Builder()
    y = b.op("ElementWiseSin", b.input(2, 3))
    z = b.op("ElementWiseExp", b.op("Reshape", y, dims=[6]))
    made = check(b.finish(y, z))
    assert names(made) == ["ElementWiseSin", "ElementWiseExp"]
    assert made.scratch_bytes == made.plan.bytes
    assert all(made.places[t].pool >= Pool.IO for s in made.steps for t in s.outputs)


def test_two_outputs_with_one_value_each_get_it() -> None:
    b = Builder()
    x = b.op("ElementWiseSin", b.input(2, 3))
    made = check(b.finish(b.op("Reshape", x, dims=[6]), b.op("Reshape", x, dims=[3, 2])))
    assert names(made) == ["ElementWiseSin", "Reshape"]


def test_inputs_and_outputs_can_be_planned_into_scratch() -> None:
    b = Builder()
    x = b.input(64, 64)
    y = b.op("ElementWiseExp", b.op("Transpose", b.op("ElementWiseSin", x), perm=[1, 0]))
    made = check(b.finish(y), io_in_scratch=True)
    assert len(made.io_offsets) == 2
    assert made.scratch_bytes < 3 * x.nbytes


def test_a_state_is_written_in_place_when_its_old_value_is_no_longer_needed() -> None:
    b = Builder()
    s = b.state(np.ones(4, np.float32))
    new = b.op("ElementWiseAdd", b.op("ElementWiseMultiply", s, 0.5), b.input(4))
    b.graph.update_state(s, new)
    made = check(b.finish(b.op("ElementWiseExp", new)))
    assert names(made) == ["ElementWiseMultiply", "ElementWiseAdd", "ElementWiseExp"]
    assert made.state_bytes == 64


def test_a_state_may_be_updated_element_by_element() -> None:
    b = Builder()
    s = b.state(np.ones(4, np.float32))
    new = b.op("ElementWiseAdd", s, b.input(4))
    b.graph.update_state(s, new)
    made = check(b.finish(b.op("ElementWiseExp", new)))
    assert names(made) == ["ElementWiseAdd", "ElementWiseExp"]
    assert all(made.places[t].pool == Pool.STATE for t in (made.steps[0].inputs[0], made.steps[0].outputs[0]))


def test_a_state_that_is_read_after_its_new_value_is_known_is_copied() -> None:
    b = Builder()
    s = b.state(np.ones(4, np.float32))
    new = b.op("ElementWiseSin", b.input(4))
    b.graph.update_state(s, new)
    y = b.op("ElementWiseAdd", b.op("ReduceSum", new, axes=[0], keep_dims=True), s)
    made = check(b.finish(y), optimize_order=False)
    assert names(made)[-1] == "Reshape"


def test_a_window_that_slides_over_a_stream() -> None:
    b = Builder()
    s = b.state(np.zeros((1, 3, 2), np.float32))
    window = b.op("Concat", s, b.op("ElementWiseSin", b.input(1, 1, 2)), axis=1)
    b.graph.update_state(s, b.op("StridedSlice", window, ranges=[[0, 1, 1], [1, 4, 1], [0, 2, 1]]))
    check(b.finish(b.op("ReduceSum", window, axes=[1])), executions=5)


def test_a_state_that_nothing_reads_is_written_by_the_first_step_even_if_that_writes_more() -> None:
    b = Builder()
    s = b.state(np.zeros((2, 3), np.float32))
    values, places = b.graph.emit("TopK", [b.input(2, 9)], {"k": 3}, outputs=2)
    b.graph.update_state(s, values)
    assert names(check(b.finish(places))) == ["TopK"]


def test_a_state_that_its_own_step_reads_elsewhere_is_copied() -> None:
    b = Builder()
    s = b.state(np.arange(6, dtype=np.float32))
    turned = b.op("Reverse", s, axes=[0])
    b.graph.update_state(s, turned)
    assert names(check(b.finish(b.op("ElementWiseAbs", turned)))).count("Reshape") == 1


def test_states_exchange_their_values() -> None:
    b = Builder()
    s, t = b.state(np.float32([1, 2]), "s"), b.state(np.float32([3, 4]), "t")
    b.graph.update_state(s, t)
    b.graph.update_state(t, s)
    check(b.finish(b.op("ElementWiseSubtract", s, t)), executions=3)


@pytest.mark.parametrize("kind", ["itself", "input", "constant", "output", "another", "reshaped"])
def test_a_state_may_take_any_value(kind) -> None:
    b = Builder()
    x = b.input(4)
    s, t = b.state(np.float32([1, 2, 3, 4]), "s"), b.state(np.float32([5, 6, 7, 8]), "t")
    y = b.op("ElementWiseAdd", b.op("ElementWiseAdd", x, s), t)
    flipped = b.op("Reshape", b.op("Reshape", t, dims=[2, 2]), dims=[4])
    values = {"itself": s, "input": x, "constant": b.constant(np.float32([9] * 4)), "output": y, "another": t}
    b.graph.update_state(s, values.get(kind, flipped))
    b.graph.update_state(t, b.op("ElementWiseExp", b.op("Tanh", x)))
    check(b.finish(y), executions=3)


def test_two_states_may_take_one_value() -> None:
    b = Builder()
    s, t = b.state(np.float32([1, 2]), "s"), b.state(np.float32([3, 4]), "t")
    new = b.op("ElementWiseSin", b.op("ElementWiseAdd", s, t))
    b.graph.update_state(s, new)
    b.graph.update_state(t, new)
    check(b.finish(b.op("ElementWiseAdd", new, b.input(2))), executions=3)


def test_a_better_order_of_branches_saves_memory() -> None:
    b = Builder()
    x = b.input(8)
    # Breadth first, four large tensors are live at once; depth first, one.
    wide = [b.op("Tile", b.op("ElementWiseMultiply", x, float(i + 2)), multiples=[100]) for i in range(4)]
    sums = [b.op("ReduceSum", w, axes=[0], keep_dims=True) for w in wide]
    graph = b.finish(b.op("Concat", *sums, axis=0))
    ordered, given = check(graph), check(graph, optimize_order=False)
    assert ordered.plan.order_saved_bytes > 0
    assert ordered.scratch_bytes < given.scratch_bytes / 2
    assert given.plan.order_saved_bytes == 0


def test_the_plan_lists_what_is_live_at_its_peak() -> None:
    b = Builder()
    x = b.op("Tile", b.input(8), multiples=[16])
    turned = b.op("Transpose", b.op("Reshape", x, dims=[16, 8]), perm=[1, 0])
    plan = check(b.finish(b.op("ReduceSum", turned, axes=[0]))).plan
    assert plan.lower_bound <= plan.bytes <= plan.greedy_bytes
    assert plan.peak_live
    live = [r for r in plan.rows if r.first <= plan.peak_step <= r.last]
    assert tuple(r.name for r in live) == plan.peak_live
    assert all(r.offset + r.bytes <= plan.bytes for r in plan.rows)


UNARY = ("ElementWiseSin", "ElementWiseAbs", "Tanh", "Relu", "Relu6", "Sigmoid", "ElementWiseNeg")
BINARY = ("ElementWiseAdd", "ElementWiseMultiply", "ElementWiseSubtract", "ElementWiseMaximum")


@st.composite
def graphs(draw) -> Graph:
    """Random graphs of element-wise, movement, join, split and convolution nodes, with states."""
    b = Builder()
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    shapes = st.lists(st.sampled_from([(1, 4, 4, 2), (4, 8), (2, 2, 8)]), min_size=1, max_size=2)
    pool: list[Tensor] = [b.input(*dims) for dims in draw(shapes)]
    states = [b.state(rng.normal(size=32).astype(np.float32)) for _ in range(draw(st.integers(0, 2)))]
    pool += states

    def pick() -> Tensor:
        return pool[draw(st.integers(0, len(pool) - 1))]

    def same_size(like: Tensor) -> Tensor:
        fitting = [t for t in pool if t.elements == like.elements]
        other = fitting[draw(st.integers(0, len(fitting) - 1))]
        return other if other.dims == like.dims else b.op("Reshape", other, dims=like.dims)

    def unary(x):
        return b.op(draw(st.sampled_from(UNARY)), x)

    def binary(x):
        return b.op(draw(st.sampled_from(BINARY)), x, same_size(x))

    def scaled(x):
        return b.op(draw(st.sampled_from(BINARY[:2])), x, rng.normal(size=x.dims[-1]).astype(np.float32))

    def reshape(x):
        shapes = [(x.elements,), (2, x.elements // 2), (1, 1, 1, x.elements)]
        return b.op("Reshape", x, dims=draw(st.sampled_from(shapes)))

    def transpose(x):
        return b.op("Transpose", x, perm=draw(st.permutations(range(x.rank))))

    def split(x):
        axis = draw(st.integers(0, x.rank - 1))
        return b.op("Split", x, axis=axis, split_index=[x.dims[axis] // 2]) if x.dims[axis] % 2 == 0 else x

    def cut(x):
        ranges = [[0, d, 1] for d in x.dims]
        axis = draw(st.integers(0, x.rank - 1))
        if x.dims[axis] % 2 == 0:
            half = x.dims[axis] // 2
            begin = draw(st.integers(0, half))
            ranges[axis] = [begin, begin + half, 1]
        return b.op("StridedSlice", x, ranges=ranges)

    def join(x):
        return b.op("Concat", x, same_size(x), axis=draw(st.integers(0, x.rank - 1)))

    def conv(x):
        image = b.op("Reshape", x, dims=(1, 2, 2, x.elements // 4))
        weights = rng.normal(size=(3, 3, x.elements // 4, 4)).astype(np.float32) * 0.2
        return b.op("Conv2d", image, weights, rng.normal(size=4).astype(np.float32), **CONV)

    kinds = (unary, binary, scaled, reshape, transpose, split, cut, join, conv)
    for _ in range(draw(st.integers(1, 14))):
        x = pick()
        if x.elements < 4 or x.elements > 256 or x.elements % 4:
            continue
        made = draw(st.sampled_from(kinds))(x)
        pool.extend(made if isinstance(made, list) else [made])
    for state in states:
        fitting = [t for t in pool if t.elements == state.elements]
        value = fitting[draw(st.integers(0, len(fitting) - 1))]
        if draw(st.booleans()):
            b.graph.update_state(state, value if value.dims == state.dims else b.op("Reshape", value, dims=state.dims))
    written = [t for n in b.graph.nodes for t in n.outputs]
    if not written:
        written = [b.op("ElementWiseAbs", pool[0])]
    count = draw(st.integers(1, min(3, len(written))))
    chosen = draw(st.permutations(written))[:count]
    return b.finish(*chosen)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(graphs(), st.booleans(), st.booleans())
def test_any_graph_gives_its_own_results_in_planned_memory(graph, io_in_scratch, optimize_order) -> None:
    check(graph, io_in_scratch=io_in_scratch, optimize_order=optimize_order, plan_nodes=1000)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.randoms(use_true_random=False), st.booleans())
def test_any_tensors_may_be_stored_as_fp16_beside_floats(graph, random, optimize_order) -> None:
    inputs, expected = random_inputs(graph.inputs), {}

    def store(work: Work) -> None:
        kept = {*work.updates.values()}
        tensors = dict.fromkeys(t for step in work.ordered() for t in step.outputs if t.type is TensorType.NATIVE)
        fp16 = [t for t in tensors if t.dtype is DataType.FLOAT_32 and t not in kept and random.random() < 0.6]
        store_as_fp16(work, set(fp16))
        expected.update(run_work(work, inputs))

    made = plan_graph(graph, some_work, optimize_order=optimize_order, store=store)
    found = Memory(made).run(inputs, some_work)
    for state in graph.states:
        expected.setdefault(f"state {state.name}", state.data)
    assert_close(found, expected, 1e-6)
    for tensor, place in made.places.items():
        assert place.offset % tensor.itemsize == 0


def test_a_tensor_of_fp16_takes_half_of_the_scratch() -> None:
    b = Builder()
    first = b.op("ElementWiseSin", b.input(1, 64))
    graph = b.finish(b.op("Softmax", first))

    def store(work: Work) -> None:
        store_as_fp16(work, {work.ordered()[0].outputs[0]})

    floats = plan_graph(graph)
    fp16 = plan_graph(graph, store=store)
    assert (floats.scratch_bytes, fp16.scratch_bytes) == (256, 128)
    assert [row.bytes for row in fp16.plan.rows] == [128]


def test_a_half_that_is_joined_with_itself_is_copied_as_a_half() -> None:
    b = Builder()
    first = b.op("ElementWiseSin", b.input(1, 8))
    graph = b.finish(b.op("Softmax", b.op("Concat", first, first, axis=0)))
    inputs, expected = random_inputs(graph.inputs), {}

    def store(work: Work) -> None:
        store_as_fp16(work, {t for step in work.ordered() for t in step.outputs if t.type is TensorType.NATIVE})
        expected.update(run_work(work, inputs))

    made = plan_graph(graph, some_work, store=store)
    # The second of both has a step of its own, between tensors that are stored alike.
    copies = [step for step in made.steps if step.op == "Reshape"]
    assert [(step.inputs[0].itemsize, step.outputs[0].itemsize) for step in copies] == [(2, 2)]
    assert_close(Memory(made).run(inputs, some_work), expected, 1e-6)


def test_data_types_of_different_widths_share_scratch() -> None:
    b = Builder()
    x = b.input(40)
    big = b.op("Cast", b.op("ElementWiseMultiply", x, 9.0), dtype=DataType.INT_32)
    small = b.op("ElementWiseGreater", x, 0.0)
    y = b.op("ElementWiseSelect", small, big, b.op("ElementWiseNeg", big))
    check(b.finish(y))
