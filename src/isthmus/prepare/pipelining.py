"""Pipelining of repeated steps on several threads: the blocks of one iteration, and the order between iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from isthmus.graph import Tensor
from isthmus.prepare.schedule import Place, Pool, Repeat, Step
from isthmus.prepare.storage import Block, Life, Storage


def own_blocks(steps: Sequence[Step], storage: Storage, life: Life, repeat: Repeat) -> list[Block]:
    """Return the blocks that every iteration writes before it reads them, and that no other step uses."""
    # For each block, whether its first use in an iteration is a write.
    written_first: dict[Block, bool] = {}
    for step in steps[repeat.first : repeat.last + 1]:
        for operand in step.operands:
            written_first.setdefault(storage.block(operand), False)
        for result in step.outputs:
            written_first.setdefault(storage.block(result), True)
    return [
        block
        for block, written in written_first.items()
        if written and repeat.first <= life.first(block) and life.last(block) <= repeat.last
    ]


@dataclass(frozen=True)
class _Access:
    """Bytes that a repeated step reads or writes in the first iteration, and their stride per iteration."""

    step: int
    writes: bool
    low: int
    high: int
    stride: int


def awaited_steps(steps: Sequence[Step], repeat: Repeat, places: Mapping[Tensor, Place]) -> tuple[int, ...]:
    """Return for each step the last step that the previous iteration must have completed before it begins.

    Both are relative to the first repeated step. A step always waits for itself in the previous iteration, so only
    later steps can add to that: those that still read what this step is about to write, or write what it reads or
    writes.
    """
    by_pool: dict[int, list[_Access]] = {}
    for pool, access in _accesses(steps, repeat, places):
        by_pool.setdefault(pool, []).append(access)
    last_awaited = list(range(repeat.last - repeat.first + 1))
    for accesses in by_pool.values():
        written = [one for one in accesses if one.writes]
        for one in accesses:
            for other in accesses if one.writes else written:
                if other.step > last_awaited[one.step] and _meet(one, other, repeat):
                    last_awaited[one.step] = other.step
    return tuple(last_awaited)


def _accesses(steps: Sequence[Step], repeat: Repeat, places: Mapping[Tensor, Place]) -> Iterator[tuple[int, _Access]]:
    """Yield the pool and the access of every operand of repeated steps that is not in the threads' own arenas."""
    for number, step in enumerate(steps[repeat.first : repeat.last + 1]):
        for operand, writes in (*((t, False) for t in step.operands), *((t, True) for t in step.outputs)):
            place, stride = places[operand], repeat.advances.get(operand, 0)
            if not stride and _in_arena(place, repeat):
                continue
            yield place.pool, _Access(number, writes, place.offset, place.offset + operand.nbytes, stride)


def _in_arena(place: Place, repeat: Repeat) -> bool:
    """Return whether a tensor is in the arena of a thread."""
    if repeat.arena is None or place.pool != Pool.SCRATCH:
        return False
    offset, bytes_ = repeat.arena
    return offset <= place.offset < offset + bytes_


def _meet(one: _Access, other: _Access, repeat: Repeat) -> bool:
    """Return whether two accesses of iterations that run at the same time touch the same bytes."""
    # `one` belongs to the later iteration; as many iterations as there are threads run at the same time.
    for apart in range(1, min(repeat.threads, repeat.times)):
        # The distance between the two changes by the same amount in every iteration.
        mine, theirs = (one.low + apart * one.stride, one.high + apart * one.stride), (other.low, other.high)
        change = one.stride - other.stride
        if change < 0:
            change, mine, theirs = -change, (-mine[1], -mine[0]), (-theirs[1], -theirs[0])
        # The first iteration in which one access reaches the other.
        behind = theirs[0] - mine[1]
        first = 0 if behind < 0 else behind // change + 1 if change else repeat.times
        if first < repeat.times - apart and mine[0] + first * change < theirs[1]:
            return True
    return False
