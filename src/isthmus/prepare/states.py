"""Locations of new state values: directly in the state's memory if the old value is no longer needed.

A value that cannot be computed there is copied by an additional step, as soon as the old value has been read for the
last time. A value that is itself in state memory is copied to scratch first, so that states may exchange values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isthmus.graph import Tensor
from isthmus.prepare.inplace import may_overwrite
from isthmus.prepare.schedule import Pool, Step
from isthmus.prepare.storage import Block, Storage
from isthmus.prepare.work import Work


def settle(work: Work, steps: list[Step], storage: Storage, offsets: Mapping[Tensor, int]) -> list[Step]:
    """Return the steps with copies of new state values into state memory; values that need none are placed there.

    - `work`, `storage`: the graph, whose `updates` map each state to its new value, and the blocks of its tensors.
    - `steps`: the steps in their final order.
    - `offsets`: the offset of each state in state memory.
    """
    updates = {state: value for state, value in work.updates.items() if not _is_itself(storage, state, value)}
    steps = list(steps)
    for state, value in updates.items():
        if not value.is_static and storage.block(value).pool == Pool.STATE:
            saved = work.native(value.name, value.dims, value.dtype, value.quantization)
            steps.append(Step("Reshape", saved.name, [value], [saved]))
            updates[state] = saved
    touched = _Touches(steps, storage)
    copies: list[tuple[int, Step]] = []
    for state, value in updates.items():
        if not _write_directly(steps, storage, touched, state, value, offsets[state]):
            inside = work.native(state.name, state.dims, state.dtype, state.quantization)
            storage.bind(inside, Pool.STATE, offsets[state])
            ready = max(touched.last_read(storage.block(state)), touched.last_write(storage, value))
            copies.append((ready + 1, Step("Reshape", inside.name, [value], [inside])))
    # Insert the last copies first, so that the other positions stay valid.
    for position, copy in sorted(copies, key=lambda entry: entry[0], reverse=True):
        steps.insert(position, copy)
    return steps


def _is_itself(storage: Storage, state: Tensor, value: Tensor) -> bool:
    """Return whether the new value of a state is the same bytes as the old one, so that nothing is to be done."""
    return not value.is_static and storage.span(state) == storage.span(value)


class _Touches:
    """The numbers of the steps that read and write each block."""

    def __init__(self, steps: Iterable[Step], storage: Storage) -> None:
        self._reads: dict[Block, list[int]] = {}
        self._writes: dict[Block, list[int]] = {}
        for index, step in enumerate(steps):
            for tensor in step.operands:
                self._reads.setdefault(storage.block(tensor), []).append(index)
            for tensor in step.outputs:
                self._writes.setdefault(storage.block(tensor), []).append(index)

    def last_read(self, block: Block) -> int:
        """Return the last step that reads a block; -1 if none does."""
        return max(self._reads.get(block, ()), default=-1)

    def first_write(self, block: Block) -> int | None:
        """Return the first step that writes a block; None if none does."""
        return min(self._writes.get(block, ()), default=None)

    def last_write(self, storage: Storage, value: Tensor) -> int:
        """Return the last step that writes the block of a value; -1 if none does, as for a constant."""
        return -1 if value.is_static else max(self._writes.get(storage.block(value), ()), default=-1)


def _write_directly(
    steps: list[Step], storage: Storage, touched: _Touches, state: Tensor, value: Tensor, offset: int
) -> bool:
    """Move a state's new value to its memory, if nothing reads the old one any more; otherwise it must be copied."""
    if value.is_static or not storage.fills_block(value):
        return False
    block, old = storage.block(value), storage.block(state)
    first_write, last_read = touched.first_write(block), touched.last_read(old)
    if first_write is None or last_read > first_write:
        return False
    if last_read == first_write and not _overwrites(steps[first_write], storage, state, value):
        return False
    # A block's lowest byte has the coordinate `low`, which need not be 0.
    block.pool, block.base = Pool.STATE, offset - block.low
    return True


def _overwrites(step: Step, storage: Storage, state: Tensor, value: Tensor) -> bool:
    """Return whether the step that computes the new value may write it over the old one, element by element."""
    # Every input that shares memory with the old value must then be exactly that value.
    old = storage.span(state)
    old_block = old[0]
    if len(step.outputs) != 1 or storage.span(step.outputs[0]) != storage.span(value):
        return False
    shared = [tensor for tensor in step.operands if storage.block(tensor) is old_block]
    return all(storage.span(tensor) == old and may_overwrite(step, tensor) for tensor in shared)
