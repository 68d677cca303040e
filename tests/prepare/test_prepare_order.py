"""The order of steps: as good as the best of all orders where all can be tried, and never worse than the given one."""

import random

import pytest
from prepare_interpreter import Builder

from isthmus import prepare
from isthmus.prepare.order import Flow, _State, choose, peak


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
def test_the_order_found_is_a_best_one_on_small_graphs(seed):
    flow = random_flow(seed, 4 + seed % 9)
    given = list(range(len(flow.after)))
    order, saved = choose(flow)
    assert sorted(order) == given
    assert all(before in order[: order.index(step)] for step in given for before in flow.after[step])
    assert peak(flow, order) == best_peak(flow)
    assert saved == peak(flow, given) - peak(flow, order)


@pytest.mark.parametrize("seed", range(6))
def test_a_long_graph_gets_a_valid_order_that_is_never_worse(seed):
    flow = random_flow(seed, 150)
    order, saved = choose(flow)
    assert saved >= 0
    assert peak(flow, order) == peak(flow, range(150)) - saved
    assert choose(flow) == (order, saved)


def test_branches_that_are_listed_side_by_side_are_computed_one_after_the_other():
    b = Builder()
    x = b.input(1, 64)
    starts = [b.op("ElementWiseSin", b.op("ElementWiseAdd", x, float(i))) for i in range(4)]
    branches = [b.op("Tile", start, multiples=[8, 1]) for start in starts]
    small = [b.op("ReduceSum", branch, axes=[0]) for branch in branches]
    total = small[0]
    for part in small[1:]:
        total = b.op("ElementWiseAdd", total, part)
    graph = b.finish(total)
    given = prepare.schedule(graph, work_bytes=lambda step: 0, optimize_order=False)
    ordered = prepare.schedule(graph, work_bytes=lambda step: 0)
    one_branch = 8 * 64 * 4
    assert given.scratch_bytes > 3 * one_branch
    assert ordered.scratch_bytes < 2 * one_branch
    assert ordered.plan.order_saved_bytes >= 2 * one_branch
