"""Lifetimes of memory blocks, in steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isthmus.graph import Tensor
from isthmus.prepare.schedule import Repeat, Step
from isthmus.prepare.storage import Block, Storage

BEFORE = -1
"""The time before the first step, when a client writes the inputs."""


class Life:
    """The first and last step that use each block; -1 is the time before all steps, the number of steps the time after
    them.

    Parameters
    ----------
    steps, storage
        The steps in order, and the blocks of their tensors.
    inputs, outputs
        The tensors that exist before the first step, and those that must exist after the last.
    repeats
        The ranges of steps that are executed several times. What they share with other steps must not change between
        two iterations, so it lives through all of them.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        storage: Storage,
        inputs: Iterable[Tensor] = (),
        outputs: Iterable[Tensor] = (),
        repeats: Iterable[Repeat] = (),
    ) -> None:
        self._spans: dict[Block, tuple[int, int]] = {}
        for tensor in inputs:
            self._touch(storage.block(tensor), BEFORE)
        for index, step in enumerate(steps):
            for operand in (*step.inputs, *step.outputs):
                if operand is not None and not operand.is_static:
                    self._touch(storage.block(operand), index)
        for tensor in outputs:
            self._touch(storage.block(tensor), len(steps))
        for repeat in repeats:
            self._last_through(repeat, steps, storage)

    def _touch(self, block: Block, time: int) -> None:
        """Extend the lifetime of a block to a time at which it is used."""
        first, last = self._spans.get(block, (time, time))
        self._spans[block] = min(first, time), max(last, time)

    def _last_through(self, repeat: Repeat, steps: Sequence[Step], storage: Storage) -> None:
        """Extend blocks that repeated steps share with other steps over the whole repeat."""
        for step in steps[repeat.first : repeat.last + 1]:
            for operand in (*step.inputs, *step.outputs):
                if operand is not None and not operand.is_static:
                    block = storage.block(operand)
                    first, last = self._spans[block]
                    if first < repeat.first or last > repeat.last:
                        self._spans[block] = min(first, repeat.first), max(last, repeat.last)

    def __contains__(self, block: Block) -> bool:
        return block in self._spans

    def first(self, block: Block) -> int:
        """Return the step that first uses a block."""
        return self._spans[block][0]

    def last(self, block: Block) -> int:
        """Return the step that last uses a block."""
        return self._spans[block][1]

    def set(self, block: Block, first: int, last: int) -> None:
        """Set the lifetime of a block that took over another's bytes."""
        self._spans[block] = first, last
