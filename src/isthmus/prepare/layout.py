"""The layout of scratch: blocks and their lifetimes become a planning problem, whose solution gives their offsets.

The first and last tiles of a fused region do mostly the same work as the repeated tile. The planner does not know that
and may place their buffers at other offsets. When these are moved to the offsets of the repeated tile's buffers, the
instructions become identical.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.planning import PlannerBuffer, Problem, Solution, greedy_by_size, solve
from isthmus.prepare.inplace import OverlayBlock
from isthmus.prepare.schedule import Plan, PlanRow, Repeat, Step
from isthmus.prepare.storage import Block, Life
from isthmus.prepare.tiling.region_path import live_bytes

# The bytes of a cache line.
_LINE = 64
PATIENCE = 10.0
"""Seconds after which planning stops in any case. The effective limit is the number of search nodes, which is the same
on every machine.
"""
Pairs = Sequence[tuple[int, int]]
"""Pairs of buffer numbers: the first buffer should be at the offset of the second."""


@dataclass(frozen=True)
class ThreadArenas:
    """Steps `first` to `last`, which several threads execute at once, each in its own arena.

    - `threads`: the number of threads, and so of arenas.
    - `blocks`, `work`: the offsets of blocks, and of the work spaces of steps by their number, within an arena.
    - `bytes`: the size of an arena.
    """

    first: int
    last: int
    threads: int
    blocks: dict[Block, int]
    work: dict[int, int]
    bytes: int


@dataclass(frozen=True)
class Demand:
    """Everything that needs scratch memory.

    - `steps`: the steps in order.
    - `blocks`, `life`: the blocks to place, and the lifetimes of blocks.
    - `work`: the bytes of work space of each step.
    - `arenas`: the ranges of steps that several threads execute at once.
    - `alike`: groups of pairs of blocks, or of steps (for their work spaces): the first should be placed at the offset
      of the second.
    """

    steps: Sequence[Step]
    blocks: Sequence[Block]
    life: Life
    work: Sequence[int]
    arenas: Sequence[ThreadArenas] = ()
    alike: Sequence[Sequence[tuple[Block | int, Block | int]]] = ()


@dataclass(frozen=True)
class Layout:
    """The offsets of blocks and work spaces in scratch, and statistics about them.

    - `blocks`, `work`: the offset of each block, and of the work space of each step; 0 for a step without one.
    - `work_bytes`: the bytes of work space of each step.
    - `plan`: the statistics.
    - `arenas`: for each of `Demand.arenas`, the offset of the first thread's arena and the size of one arena.
    """

    blocks: dict[Block, int]
    work: tuple[int, ...]
    work_bytes: tuple[int, ...]
    plan: Plan
    arenas: tuple[tuple[int, int], ...] = ()


def thread_arenas(
    repeat: Repeat, blocks: Sequence[Block], life: Life, work: Sequence[int], alignment: int, nodes: int
) -> ThreadArenas:
    """Lay out the arena of each thread for repeated steps: these blocks, and the work spaces of the steps.

    - `work`: the bytes of work space of each step.
    - `nodes`: the maximum number of partial layouts that the solver examines.
    """
    users = [index for index in range(repeat.first, repeat.last + 1) if work[index]]
    buffers = [
        *(PlannerBuffer(f"{i}", life.first(b), life.last(b) + 1, b.size, alignment) for i, b in enumerate(blocks)),
        *(PlannerBuffer(f"work {index}", index, index + 1, work[index], alignment) for index in users),
    ]
    offsets, peak, _ = _solve(Problem(tuple(buffers)), nodes)
    # Threads that write next to each other must not share a cache line.
    unit = max(alignment, _LINE)
    size = -(-peak // unit) * unit
    block_offsets = dict(zip(blocks, offsets, strict=False))
    work_offsets = dict(zip(users, offsets[len(blocks) :], strict=True))
    return ThreadArenas(repeat.first, repeat.last, repeat.threads, block_offsets, work_offsets, size)


def lay_out(demand: Demand, alignment: int, nodes: int, overlays: Sequence[OverlayBlock] = ()) -> Layout:
    """Place everything that needs scratch; buffers that are not alive at the same time share memory.

    - `demand`, `alignment`: what to place, and the alignment of all offsets.
    - `nodes`: the maximum number of partial layouts that the solver examines.
    - `overlays`: blocks that already have an offset, because their extent changes over time.
    """
    began = time.perf_counter()
    fixed = {one.block: one.offset for one in overlays}
    blocks = [b for b in demand.blocks if b not in fixed and not any(b in one.blocks for one in demand.arenas)]
    # The steps whose work space is not in an arena.
    users = [i for i, size in enumerate(demand.work) if size and not any(i in one.work for one in demand.arenas)]
    names, buffers = _buffers(demand, blocks, users, overlays, alignment)
    problem = Problem(tuple(buffers))
    offsets, peak, solution = _solve(problem, nodes)
    if demand.alike:
        placed: list[Block | int] = [*blocks, *users]
        numbers = {each: number for number, each in enumerate(placed)}
        groups = [
            [(numbers[a], numbers[b]) for a, b in group if a in numbers and b in numbers and a != b]
            for group in demand.alike
        ]
        offsets = move_together(buffers, offsets, groups, peak)
    # The offsets are in the order of `_buffers`: blocks, work spaces, overlays, arenas.
    places = dict(zip(blocks, offsets, strict=False)) | fixed
    spaces = dict(zip(users, offsets[len(blocks) :], strict=False))
    begins = offsets[len(offsets) - len(demand.arenas) :]
    for arenas, begin in zip(demand.arenas, begins, strict=True):
        places |= {block: begin + offset for block, offset in arenas.blocks.items()}
        spaces |= {index: begin + offset for index, offset in arenas.work.items()}
    work = tuple(spaces.get(index, 0) for index in range(len(demand.steps)))
    rows = (PlanRow(n, b.size, b.start, b.end - 1, o) for n, b, o in zip(names, buffers, offsets, strict=True))
    plan = replace(_plan(demand, list(rows), problem, solution), seconds=time.perf_counter() - began)
    found = tuple((at, one.bytes) for one, at in zip(demand.arenas, begins, strict=True))
    return Layout(places, work, tuple(demand.work), plan, found)


def _plan(demand: Demand, rows: list[PlanRow], problem: Problem, solution: Solution) -> Plan:
    """Collect the statistics of a layout."""
    rows.sort(key=lambda row: (row.first, row.offset))
    peak_step, peak_live = _peak(rows, len(demand.steps))
    ends = (offset + buffer.size for offset, buffer in zip(greedy_by_size(problem), problem.buffers, strict=True))
    return Plan(
        bytes=solution.peak or 0,
        lower_bound=solution.lower_bound,
        status=str(solution.status),
        greedy_bytes=max(ends, default=0),
        unshared_bytes=sum(t.nbytes for block in demand.blocks for t in block.members) + sum(demand.work),
        peak_step=peak_step,
        peak_live=peak_live,
        rows=tuple(rows),
        steps=tuple((step.op, step.name) for step in demand.steps),
    )


def _solve(problem: Problem, nodes: int) -> tuple[Sequence[int], int, Solution]:
    """Return the offsets of buffers, the bytes up to the end of the highest one, and the whole solution."""
    solution = solve(problem, timeout=PATIENCE, node_limit=nodes)
    if solution.offsets is None or solution.peak is None:
        raise QnnError(Code.GRAPH_OPTIMIZATION_FAILED, "scratch", "the planner found no layout")
    return solution.offsets, solution.peak, solution


def _buffers(
    demand: Demand, blocks: Sequence[Block], users: Sequence[int], overlays: Sequence[OverlayBlock], alignment: int
) -> tuple[list[str], list[PlannerBuffer]]:
    """List the buffers of a demand with their names: blocks, work spaces, overlays, thread arenas."""
    life, names, buffers = demand.life, [_name(block) for block in blocks], []
    for i, (block, name) in enumerate(zip(blocks, names, strict=True)):
        buffers.append(PlannerBuffer(f"{i} {name}", life.first(block), life.last(block) + 1, block.size, alignment))
    for index in users:
        names.append(f"{demand.steps[index].name} (work)")
        buffers.append(PlannerBuffer(f"work {index}", index, index + 1, demand.work[index], alignment))
    for number, one in enumerate(overlays):
        for layer in one.layers:
            names.append(_name(one.block))
            where, at = f"{number} {names[-1]} from {layer.low}", one.offset + layer.low
            buffers.append(PlannerBuffer(where, layer.first, layer.last + 1, layer.high - layer.low, alignment, at))
    for number, arenas in enumerate(demand.arenas):
        names.append(f"tiles of {arenas.threads} threads")
        size = arenas.threads * arenas.bytes
        buffers.append(PlannerBuffer(f"arenas {number}", arenas.first, arenas.last + 1, size, alignment))
    return names, buffers


def _name(block: Block) -> str:
    """Return the name of the block's largest tensor; if several are equal, of the last, since models name results."""
    return max(reversed(block.members), key=lambda tensor: tensor.nbytes).name


def most_alive(plan: Plan, alignment: int) -> int:
    """Return the maximum number of bytes alive at any step, each buffer rounded up to the alignment."""
    change: dict[int, int] = {}
    for row in plan.rows:
        size = -(-row.bytes // alignment) * alignment
        change[row.first] = change.get(row.first, 0) + size
        change[row.last + 1] = change.get(row.last + 1, 0) - size
    return max(accumulate(change[moment] for moment in sorted(change)), default=0)


def _peak(rows: Sequence[PlanRow], steps: int) -> tuple[int, tuple[str, ...]]:
    """Return the step with the most live bytes, and the names of the blocks that are live in it."""
    # A block that lives before the first step counts as live in the first one, a block that lives after the last step
    # in the last one. The result is -1 and no names if no block has any bytes.
    final = max(steps - 1, 0)
    lives = [(min(max(row.first, 0), final), min(max(row.last, 0), final), row) for row in rows]
    live = live_bytes(((first, last, row.bytes) for first, last, row in lives), final + 1)
    if not any(live):
        return -1, ()
    step = live.index(max(live))
    return step, tuple(row.name for first, last, row in lives if first <= step <= last)


def move_together(
    buffers: Sequence[PlannerBuffer], offsets: Sequence[int], groups: Sequence[Pairs], most: int
) -> list[int]:
    """Return offsets with as many buffers of each group as possible at the offsets of their partners.

    All buffers of a group are moved at once. Those that would then overlap another buffer stay where they are, and the
    others are tried again.

    - `buffers`, `offsets`: all buffers, and a valid layout.
    - `groups`: the buffers to move, and their partners.
    - `most`: the offset at which a moved buffer must end at the latest.
    """
    at = np.array(offsets, np.int64)
    start, end = (np.array([getattr(b, name) for b in buffers], np.int64) for name in ("start", "end"))
    size = np.array([b.size for b in buffers], np.int64)
    for group in groups:
        goals = {a: int(at[b]) for a, b in group if buffers[a].offset is None and at[b] + size[a] <= most}
        while goals:
            tried = at.copy()
            tried[list(goals)] = list(goals.values())
            colliding = [a for a in goals if _meets(a, tried, start, end, size)]
            if not colliding:
                at = tried
                break
            for a in colliding:
                del goals[a]
    return [int(offset) for offset in at]


def _meets(one: int, at: np.ndarray, start: np.ndarray, end: np.ndarray, size: np.ndarray) -> bool:
    """Return whether a buffer overlaps another one in both memory and time."""
    same_time = (start < end[one]) & (start[one] < end)
    same_bytes = (at < at[one] + size[one]) & (at[one] < at + size)
    return int((same_time & same_bytes).sum()) > 1  # one of them is the buffer itself
