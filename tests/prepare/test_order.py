"""The order of steps: as good as the best of all orders where all can be tried, and never worse than the given one."""

import random

import pytest
from support.plans import plan_graph

from isthmus.graph import DataType
from isthmus.planning import solve
from isthmus.prepare import layout
from isthmus.prepare import order as ordering
from isthmus.prepare.inplace import may_overwrite
from isthmus.prepare.order import Flow, _State, choose, dependencies, peak
from isthmus.prepare.schedule import Step
from isthmus.prepare.storage import Storage
from prepare.interpreter import Builder


def random_flow(seed: int, steps: int) -> Flow:
    """A graph of steps that each read some of the results before them, with work space and results in place."""
    chance = random.Random(seed)
    reads: list[list[int]] = []
    for step in range(steps):
        near = range(max(0, step - 6), step)
        reads.append(sorted(chance.sample(near, min(len(near), chance.choice((1, 1, 1, 2, 2, 3))))))
    after = [set(r) for r in reads]
    writes = [[step] for step in range(steps)]
    return Flow(
        after,
        [[later for later in range(steps) if step in after[later]] for step in range(steps)],
        writes,
        reads,
        [[(block, 1) for block in (*r, *w)] for r, w in zip(reads, writes, strict=True)],
        [64 * chance.randint(1, 16) for _ in range(steps)],
        {step for step in range(steps) if not any(step in r for r in reads)},
        set(),
        [64 * chance.randint(0, 3) for _ in range(steps)],
        [chance.random() < 0.4 for _ in range(steps)],
    )


def best_peak(flow: Flow) -> int:
    """The lowest peak of all orders: for every set of steps done, the lowest way to get there."""
    layer = {0: _State(flow)}
    for _ in flow.after:
        wider: dict[int, _State] = {}
        for state in layer.values():
            for step in state.ready:
                reached = state.take(flow, step)
                if reached.done not in wider or reached.peak < wider[reached.done].peak:
                    wider[reached.done] = reached
        layer = wider
    return next(iter(layer.values())).peak


@pytest.mark.parametrize("seed", range(60))
def test_the_order_found_is_a_best_one_on_small_graphs(seed) -> None:
    flow = random_flow(seed, 4 + seed % 9)
    given = list(range(len(flow.after)))
    order, saved = choose(flow)
    assert sorted(order) == given
    assert all(before in order[: order.index(step)] for step in given for before in flow.after[step])
    assert peak(flow, order) == best_peak(flow)
    assert saved == peak(flow, given) - peak(flow, order)


@pytest.mark.parametrize("seed", range(6))
def test_a_long_graph_gets_a_valid_order_that_is_never_worse(seed) -> None:
    flow = random_flow(seed, 150)
    order, saved = choose(flow)
    assert saved >= 0
    assert peak(flow, order) == peak(flow, range(150)) - saved
    assert choose(flow) == (order, saved)


def test_branches_that_are_listed_side_by_side_are_computed_one_after_the_other() -> None:
    b = Builder()
    x = b.input(1, 64)
    starts = [b.op("ElementWiseSin", b.op("ElementWiseAdd", x, float(i))) for i in range(4)]
    branches = [b.op("Tile", start, multiples=[8, 1]) for start in starts]
    small = [b.op("ReduceSum", branch, axes=[0]) for branch in branches]
    total = small[0]
    for part in small[1:]:
        total = b.op("ElementWiseAdd", total, part)
    graph = b.finish(total)
    given = plan_graph(graph, optimize_order=False)
    ordered = plan_graph(graph)
    one_branch = 8 * 64 * 4
    assert given.scratch_bytes > 3 * one_branch
    assert ordered.scratch_bytes < 2 * one_branch
    assert ordered.plan.order_saved_bytes >= 2 * one_branch


def side_by_side(branches: int) -> Flow:
    """Branches of two steps that are all ready at once, with a sum that takes them up one by one."""
    starts, ends = range(branches), range(branches, 2 * branches)
    reads = [*([] for _ in starts), *([i] for i in starts), [ends[0], ends[1]]]
    reads += [[2 * branches + i - 2, ends[i]] for i in range(2, branches)]
    steps = len(reads)
    before: list[list[int]] = [[] for _ in range(steps)]
    for step, needed in enumerate(reads):
        for other in needed:
            before[other].append(step)
    return Flow(
        [set(r) for r in reads],
        before,
        [[step] for step in range(steps)],
        reads,
        [[(block, 1) for block in (*r, step)] for step, r in enumerate(reads)],
        [64] * steps,
        {steps - 1},
        set(),
        [0] * steps,
        [False] * steps,
    )


@pytest.mark.parametrize("branches", [30, 500, 2000])
def test_the_work_of_the_search_is_bounded_however_many_steps_are_ready(branches, monkeypatch) -> None:
    weighed = 0
    real = _State.cost

    def counted(state, graph, step):
        nonlocal weighed
        weighed += 1
        return real(state, graph, step)

    monkeypatch.setattr(_State, "cost", counted)
    flow = side_by_side(branches)
    steps = len(flow.after)
    order, saved = choose(flow)
    assert weighed <= ordering.WEIGHED + max(ordering.EFFORT, steps) + 3 * steps
    assert sorted(order) == list(range(steps))
    assert saved > 0.9 * 64 * branches - 4 * 64, "branches are finished one by one even so"


def test_a_graph_beyond_the_longest_keeps_its_order(monkeypatch) -> None:
    flow = side_by_side(8)
    assert choose(flow)[1] > 0
    monkeypatch.setattr(ordering, "MAX_STEPS", len(flow.after) - 1)
    assert choose(flow) == (list(range(len(flow.after))), 0)


def test_each_step_waits_for_those_that_write_the_bytes_it_reads() -> None:
    b = Builder()
    whole, parts, middle = b.input(8, 4), [b.input(2, 4) for _ in range(4)], b.input(3, 4)
    storage = Storage()
    for i, part in enumerate(parts):
        assert storage.join(whole, part, i * part.nbytes)
    assert storage.join(whole, middle, parts[0].nbytes + 16)
    writers = [Step("Relu", f"writer {i}", [], [parts[i]]) for i in (2, 0, 3, 1)]
    readers = [Step("Relu", "reader", [tensor], [b.input(1)]) for tensor in (whole, middle, parts[3], b.input(1))]
    assert dependencies([*writers, *readers], storage)[4:] == [{0, 1, 2, 3}, {3, 0}, {2}, set()]


def test_planning_is_limited_by_work_and_not_by_the_clock(monkeypatch) -> None:
    limits = []

    def noted(problem, **options):
        limits.append(options)
        return solve(problem, **options)

    monkeypatch.setattr(layout, "solve", noted)
    b = Builder()
    graph = b.finish(b.op("Transpose", b.op("ElementWiseSin", b.input(4, 4)), perm=[1, 0]))
    plan_graph(graph, plan_nodes=7)
    assert limits == [{"timeout": layout.PATIENCE, "node_limit": 7}]
    assert layout.PATIENCE >= 10, "the clock is only there for safety"


def test_a_result_may_lie_over_an_operand_of_its_size_that_is_no_constant() -> None:
    b = Builder()
    x, constant = b.input(4, 6), b.constant([[1.0] * 6] * 4)
    result = b.graph.emit("ElementWiseAdd", [x, constant])[0]
    step = Step("ElementWiseAdd", "sum", [x, constant], [result], {})
    assert may_overwrite(step, x)
    assert not may_overwrite(step, constant)
    assert not may_overwrite(step, None)
    assert not may_overwrite(step, b.input(6))
    assert not may_overwrite(step, b.input(4, 6, dtype=DataType.FLOAT_16))
    assert not may_overwrite(Step("Softmax", "no", [x], [result], {}), x)
