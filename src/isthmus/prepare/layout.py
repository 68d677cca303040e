"""The plan of scratch: blocks with their lives become a planning problem, and its solution their places."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from isthmus.errors import Code, QnnError
from isthmus.planning import PlannerBuffer, Problem, greedy_by_size, solve
from isthmus.prepare.alike import moved_together
from isthmus.prepare.liveness import Life
from isthmus.prepare.overlays import OverlayBlock
from isthmus.prepare.schedule import Plan, PlanRow, Step
from isthmus.prepare.storage import Block

_LINE = 64
PATIENCE = 10.0
"""Seconds after which planning stops in any case: the limit that counts is one of work, the same on every machine."""


@dataclass(frozen=True)
class Layout:
    """Where blocks and work spaces lie in scratch, and the facts about it.

    Parameters
    ----------
    lanes
        Where the first lane of each of `ThreadArenas` begins, and how many bytes a lane is.
    """

    blocks: dict[Block, int]
    work: tuple[int, ...]
    plan: Plan
    lanes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ThreadArenas:
    """Steps `first` to `last` that several threads execute at once, and the blocks of which each has its own."""

    first: int
    last: int
    threads: int
    blocks: Sequence[Block]


def lay_out(
    steps: Sequence[Step],
    blocks: Sequence[Block],
    life: Life,
    work: Sequence[int],
    *,
    alignment: int,
    nodes: int,
    order_saved: int,
    aliased: int,
    reuse: bool = True,
    layered: Sequence[OverlayBlock] = (),
    lanes: Sequence[ThreadArenas] = (),
    alike: Sequence[Sequence[tuple[int, int]]] = (),
    made_in: Callable[[Step], Block | None] = lambda step: None,
) -> Layout:
    """Place blocks, and a work space for each step that wants one; blocks share memory over time unless told not to."""
    began = time.perf_counter()
    fixed = {one.block: one.offset for one in layered}
    own = [_lane(one, life, work, alignment, nodes) for one in lanes]
    every = list(blocks)
    blocks = [block for block in blocks if block not in fixed and not any(block in one.blocks for one in own)]
    names = [_name(block) for block in blocks]
    first, last = min(map(life.first, blocks), default=0), max(map(life.last, blocks), default=0)
    buffers = [
        PlannerBuffer(
            f"{i} {name}",
            life.first(block) if reuse else min(first, 0),
            life.last(block) + 1 if reuse else max(last + 1, len(steps)),
            block.size,
            alignment,
        )
        for i, (block, name) in enumerate(zip(blocks, names, strict=True))
    ]
    users = [index for index, size in enumerate(work) if size and not any(index in one.work for one in own)]
    for index in users:
        names.append(f"{steps[index].name} (work)")
        buffers.append(PlannerBuffer(f"work {index}", index, index + 1, work[index], alignment))
    for number, one in enumerate(layered):
        for layer in one.layers:
            names.append(_name(one.block))
            where = f"{number} {names[-1]} from {layer.low}"
            at = one.offset + layer.low
            buffers.append(PlannerBuffer(where, layer.first, layer.last + 1, layer.high - layer.low, alignment, at))
    for number, (several, lane) in enumerate(zip(lanes, own, strict=True)):
        names.append(f"strips of {several.threads} threads")
        size = several.threads * lane.bytes
        buffers.append(PlannerBuffer(f"lanes {number}", several.first, several.last + 1, size, alignment))
    problem = Problem(tuple(buffers))
    solution = solve(problem, timeout=PATIENCE, node_limit=nodes)
    if solution.offsets is None or solution.peak is None:
        raise QnnError(Code.GRAPH_OPTIMIZATION_FAILED, "scratch", "the planner found no layout")
    offsets: Sequence[int] = solution.offsets
    if alike:
        numbers: dict[object, int] = {block: index for index, block in enumerate(blocks)}
        numbers |= {index: len(blocks) + place for place, index in enumerate(users)}
        groups = [_buffers_alike(group, steps, numbers, made_in) for group in alike]
        offsets = moved_together(buffers, offsets, groups, solution.peak)
    rows = sorted(
        (PlanRow(n, b.size, b.start, b.end - 1, o) for n, b, o in zip(names, buffers, offsets, strict=True)),
        key=lambda row: (row.first, row.offset),
    )
    greedy = greedy_by_size(problem)
    peak_step, peak_live = _peak(rows, len(steps))
    plan = Plan(
        bytes=solution.peak,
        lower_bound=solution.lower_bound,
        status=str(solution.status),
        greedy_bytes=max((o + b.size for o, b in zip(greedy, buffers, strict=True)), default=0),
        unshared_bytes=sum(t.nbytes for block in every for t in block.members) + sum(work),
        peak_step=peak_step,
        peak_live=peak_live,
        rows=tuple(rows),
        steps=tuple((step.op, step.name) for step in steps),
        order_saved_bytes=order_saved,
        aliased_bytes=aliased,
        seconds=time.perf_counter() - began,
    )
    places = dict(zip(blocks, offsets, strict=False)) | fixed
    spaces = [0] * len(steps)
    for index, offset in zip(users, offsets[len(blocks) :], strict=False):
        spaces[index] = offset
    begins = offsets[len(offsets) - len(own) :]
    for lane, begin in zip(own, begins, strict=True):
        places |= {block: begin + offset for block, offset in lane.blocks.items()}
        for index, offset in lane.work.items():
            spaces[index] = begin + offset
    found = tuple((begin, lane.bytes) for lane, begin in zip(own, begins, strict=True))
    return Layout(places, tuple(spaces), plan, found)


@dataclass(frozen=True)
class _Lane:
    """What one thread has for itself: where blocks and work spaces lie in its lane, and how many bytes that is."""

    blocks: dict[Block, int]
    work: dict[int, int]
    bytes: int


def _lane(lanes: ThreadArenas, life: Life, work: Sequence[int], alignment: int, nodes: int) -> _Lane:
    blocks = lanes.blocks
    users = [index for index in range(lanes.first, lanes.last + 1) if work[index]]
    buffers = [
        *(PlannerBuffer(f"{i}", life.first(b), life.last(b) + 1, b.size, alignment) for i, b in enumerate(blocks)),
        *(PlannerBuffer(f"work {index}", index, index + 1, work[index], alignment) for index in users),
    ]
    solution = solve(Problem(tuple(buffers)), timeout=PATIENCE, node_limit=nodes)
    if solution.offsets is None or solution.peak is None:
        raise QnnError(Code.GRAPH_OPTIMIZATION_FAILED, "scratch", "the planner found no layout")
    # Threads that write beside each other share no cache line.
    unit = max(alignment, _LINE)
    work_places = dict(zip(users, solution.offsets[len(blocks) :], strict=True))
    return _Lane(dict(zip(blocks, solution.offsets, strict=False)), work_places, -(-solution.peak // unit) * unit)


def _buffers_alike(
    group: Sequence[tuple[int, int]], steps: Sequence[Step], number: dict[object, int],
    made_in: Callable[[Step], Block | None],
) -> list[tuple[int, int]]:  # fmt: skip
    """The results and work spaces of steps that do the same, as numbers of buffers."""
    found = []
    for one, other in group:
        for mine, theirs in ((made_in(steps[one]), made_in(steps[other])), (one, other)):
            if mine in number and theirs in number and mine != theirs:
                found.append((number[mine], number[theirs]))
    return found


def _name(block: Block) -> str:
    """The block's largest tensor; of equals the one written last, as models name results."""
    return max(reversed(block.members), key=lambda tensor: tensor.nbytes).name


def most_alive(plan: Plan, alignment: int) -> int:
    """The most bytes alive at any step, in whole units of alignment."""
    change: dict[int, int] = {}
    for row in plan.rows:
        size = -(-row.bytes // alignment) * alignment
        change[row.first] = change.get(row.first, 0) + size
        change[row.last + 1] = change.get(row.last + 1, 0) - size
    return max(accumulate(change[moment] for moment in sorted(change)), default=0)


def _peak(rows: Sequence[PlanRow], steps: int) -> tuple[int, tuple[str, ...]]:
    """The step with the most live bytes, and what is live there; the times before and after count to the nearest."""
    change: dict[int, int] = {}
    for row in rows:
        first, end = min(max(row.first, 0), max(steps - 1, 0)), min(max(row.last, 0) + 1, max(steps, 1))
        change[first] = change.get(first, 0) + row.bytes
        change[end] = change.get(end, 0) - row.bytes
    live = most = 0
    step = -1
    for moment in sorted(change):
        live += change[moment]
        if live > most:
            most, step = live, moment
    if not most:
        return -1, ()
    return step, tuple(row.name for row in rows if row.first <= step <= row.last)
