"""Operation order: among all orders that the data dependencies allow, find one with fewer live bytes.

This is a beam search. It is limited by the number of steps evaluated rather than by time, so that the same graph always
gets the same order. If neither the beam width nor that limit cuts anything off, the order found is optimal.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from isthmus.graph import Tensor
from isthmus.prepare.inplace import may_overwrite
from isthmus.prepare.schedule import Step
from isthmus.prepare.storage import Block, Storage

EFFORT = 6000
"""Partial orders to keep in total: the beam width times the number of steps."""
MAX_BEAM = 64
"""Partial orders to keep after each step at most."""
WEIGHED = 120_000
"""Total number of candidate steps to evaluate."""
MAX_STEPS = 8000
"""Graphs with more steps keep the given order."""


@dataclass(frozen=True)
class Flow:
    """Dependencies between steps, and the blocks that they use.

    - `after`: for each step, the steps that it must come after.
    - `before`: for each step, the steps that it must come before.
    - `writes`, `reads`: the blocks that each step writes and reads, as indices into `sizes`.
    - `touches`: the blocks that each step reads or writes, each with a count: 2 if it does both, else 1.
    - `sizes`: bytes of each block; 0 for blocks outside scratch.
    - `held`: blocks that live to the end.
    - `initial`: blocks that live from the beginning.
    - `work`: bytes of work space that each step needs.
    - `in_place`: whether each step may overwrite an operand.
    """

    after: list[set[int]]
    before: list[list[int]]
    writes: list[list[int]]
    reads: list[list[int]]
    touches: list[list[tuple[int, int]]]
    sizes: list[int]
    held: set[int]
    initial: set[int]
    work: list[int]
    in_place: list[bool]


def dependencies(steps: Sequence[Step], storage: Storage) -> list[set[int]]:
    """Return for each step the steps that write bytes it reads; a tensor may be written in parts."""
    # For each block, the ranges of bytes that steps write, with the number of the step.
    writers: dict[Block, list[tuple[int, int, int]]] = {}
    for index, step in enumerate(steps):
        for tensor in step.outputs:
            block, low, high = storage.span(tensor)
            if low < high:
                writers.setdefault(block, []).append((low, high, index))
    # For a search by bisection: the starts of these ranges in order, and the highest end up to each of them.
    lows: dict[Block, list[int]] = {}
    highs: dict[Block, list[int]] = {}
    for block, written in writers.items():
        written.sort()
        lows[block] = [low for low, _, _ in written]
        highs[block] = list(accumulate((high for _, high, _ in written), max))
    after: list[set[int]] = []
    for index, step in enumerate(steps):
        needed: set[int] = set()
        for block, low, high in map(storage.span, step.operands):
            if block in writers:
                near = slice(bisect_right(highs[block], low), bisect_left(lows[block], high))
                needed.update(writer for _, end, writer in writers[block][near] if low < end)
        needed.discard(index)
        after.append(needed)
    return after


def flow(
    steps: Sequence[Step],
    storage: Storage,
    work_bytes: Callable[[Step], int],
    final: Sequence[Tensor],
    given: Sequence[Tensor],
    alignment: int,
    planned: Callable[[Block], bool],
) -> Flow:
    """Return the flow of a list of steps.

    - `steps`, `storage`: the steps, and the blocks of their tensors.
    - `work_bytes`: a function that returns the bytes of work space of a step.
    - `final`, `given`: the tensors that live to the end, and those that live from the beginning.
    - `alignment`: what all sizes are rounded up to.
    - `planned`: a function that returns whether a block is in scratch.
    """
    numbers: dict[Block, int] = {}
    sizes: list[int] = []

    def number(tensor: Tensor) -> int:
        """Return the number of a tensor's block, and give it one if it has none."""
        block = storage.block(tensor)
        if block not in numbers:
            numbers[block] = len(sizes)
            sizes.append(-(-block.size // alignment) * alignment if planned(block) else 0)
        return numbers[block]

    after = dependencies(steps, storage)
    before: list[list[int]] = [[] for _ in steps]
    for index, needed in enumerate(after):
        for other in sorted(needed):
            before[other].append(index)
    writes = [list(dict.fromkeys(number(t) for t in s.outputs)) for s in steps]
    reads = [list(dict.fromkeys(number(t) for t in s.operands)) for s in steps]
    return Flow(
        after,
        before,
        writes,
        reads,
        [[(b, (b in r) + (b in w)) for b in dict.fromkeys((*r, *w))] for r, w in zip(reads, writes, strict=True)],
        sizes,
        {number(t) for t in final},
        {number(t) for t in given},
        [-(-work_bytes(s) // alignment) * alignment for s in steps],
        [any(may_overwrite(s, t) for t in s.inputs) for s in steps],
    )


class _State:
    """A partial order: some steps, in the order in which they are executed.

    - `graph`: the flow of all steps; no step is in the new partial order.
    - `waiting`: for each step, how many of the steps that must come before it are missing.
    - `left`: for each block, how often it is still read or written; it is freed at 0.
    - `born`: for each block, 1 once it was written or if it lives from the beginning.
    - `ready`: the steps that may come next, the one that became ready first at the front.
    - `path`: the last step, with the path before it: (path, step); None if there are no steps.
    - `live`, `peak`: the live bytes after the last step, and the maximum so far.
    - `done`: the set of steps, as the bits of a number.
    """

    __slots__ = ("born", "done", "left", "live", "path", "peak", "ready", "waiting")

    def __init__(self, graph: Flow) -> None:
        self.waiting = array("q", (len(a) for a in graph.after))
        self.left = array("q", bytes(8 * len(graph.sizes)))
        for touched in graph.touches:
            for block, count in touched:
                self.left[block] += count
        for block in graph.held:
            self.left[block] += 1
        self.born = bytearray(len(graph.sizes))
        self.ready = [i for i, count in enumerate(self.waiting) if count == 0]
        self.path: tuple[Any, ...] | None = None
        self.live = 0
        for block in graph.initial:
            self.born[block] = 1
            self.live += graph.sizes[block]
        self.peak = self.live
        self.done = 0

    def cost(self, graph: Flow, step: int) -> tuple[int, int]:
        """Return the live bytes during a step and after it.

        During the step, a new block does not count if it may overwrite an operand of its size that is last used here.
        """
        left, born, sizes = self.left, self.born, graph.sizes
        new = largest = freed = overwritten = 0
        for block in graph.writes[step]:
            if not born[block]:
                new += sizes[block]
                largest = sizes[block]
        for block, touches in graph.touches[step]:
            if left[block] == touches:
                freed += sizes[block]
                if sizes[block] == largest and born[block] and graph.in_place[step]:
                    overwritten = largest
        return self.live + new + graph.work[step] - overwritten, self.live + new - freed

    def advance(self, graph: Flow, step: int) -> None:
        """Record that a step has used its blocks."""
        for block in graph.writes[step]:
            self.born[block] = 1
        for block, touches in graph.touches[step]:
            self.left[block] -= touches

    def take(self, graph: Flow, step: int) -> _State:
        """Return this partial order extended by one step."""
        during, after = self.cost(graph, step)
        state = object.__new__(_State)
        state.peak, state.live = max(self.peak, during), after
        state.waiting, state.left, state.born = self.waiting[:], self.left[:], self.born[:]
        state.advance(graph, step)
        state.ready = self.ready[:]
        state.ready.remove(step)
        for other in graph.before[step]:
            state.waiting[other] -= 1
            if state.waiting[other] == 0:
                state.ready.append(other)
        state.path = (self.path, step)
        state.done = self.done | 1 << step
        return state

    def order(self) -> list[int]:
        """Return the steps of this partial order."""
        steps: list[int] = []
        path = self.path
        while path is not None:
            path, step = path
            steps.append(step)
        return steps[::-1]


def peak(graph: Flow, order: Sequence[int]) -> int:
    """Return the maximum number of live bytes in an order."""
    state = _State(graph)
    highest = state.live
    for step in order:
        during, after = state.cost(graph, step)
        highest = max(highest, during)
        state.advance(graph, step)
        state.live = after
    return highest


def _bytes_needed(graph: Flow) -> int:
    """Return the bytes that the largest step needs in any order: for its reads, writes and work space."""
    most = 0
    for step, work in enumerate(graph.work):
        reads = {b: graph.sizes[b] for b in graph.reads[step]}
        writes = {b: graph.sizes[b] for b in graph.writes[step] if b not in reads}
        overwriting = max(writes.values(), default=0) if graph.in_place[step] else 0
        most = max(most, sum(reads.values()) + sum(writes.values()) - overwriting + work)
    return most


def choose(graph: Flow) -> tuple[list[int], int]:
    """Return an order of the steps, and the bytes by which its peak is below that of their present order."""
    count = len(graph.after)
    present_order = list(range(count))
    if count > MAX_STEPS:
        return present_order, 0
    before, needed = peak(graph, present_order), _bytes_needed(graph)
    if count < 2 or before <= needed:
        return present_order, 0
    start = _State(graph)
    # No order is better than `needed`, so partial orders below it count as equal.
    start.peak = max(start.peak, needed)
    beam = [start]
    width = max(1, min(MAX_BEAM, EFFORT // count))
    budget = WEIGHED
    for remaining in range(count, 0, -1):
        # The candidates that may be evaluated for this position.
        share = max(1, budget // remaining)
        # For each set of steps, the best partial order of them: its rank, and the order and step that it consists of.
        # What follows depends only on the set, so all others can be dropped.
        extended: dict[int, tuple[tuple[int, int, int], _State, int]] = {}
        for state in beam:
            if not share:
                break
            ready = _ends(state.ready, share)
            share -= len(ready)
            budget -= len(ready)
            for rank in _candidates(graph, state, ready):
                done = state.done | 1 << rank[2]
                if rank[0] < before and (done not in extended or rank < extended[done][0]):
                    extended[done] = (rank, state, rank[2])
        if not extended:
            return present_order, 0
        best = sorted(extended.values(), key=lambda entry: entry[0])[:width]
        beam = [state.take(graph, step) for _, state, step in best]
    order = beam[0].order()
    return order, before - peak(graph, order)


def _ends(ready: list[int], most: int) -> list[int]:
    """Return at most `most` ready steps: those ready for longest, and those that became ready last."""
    if len(ready) <= most:
        return ready
    oldest = (most + 1) // 2
    return [*ready[:oldest], *ready[len(ready) - (most - oldest) :]]


def _candidates(graph: Flow, state: _State, ready: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the ready steps that may come next, each as (peak so far, live bytes after it, step)."""
    # If a step increases neither the peak nor the live bytes, it is the only candidate. In any other order it could be
    # moved here, which would remove bytes from the steps in between and add none.
    ranks = []
    for step in ready:
        during, after = state.cost(graph, step)
        if during <= state.peak and after <= state.live:
            return [(state.peak, after, step)]
        ranks.append((max(state.peak, during), after, step))
    return ranks
