"""From when to when each block of memory is in use, in steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isthmus.graph import Tensor
from isthmus.prepare.schedule import Repeat, Step
from isthmus.prepare.storage import Block, Storage

BEFORE = -1
"""The time before the first step, when a client writes the inputs."""


class Life:
    """First and last step that touch each block; the time before all steps is -1, after them their number."""

    def __init__(
        self,
        steps: Sequence[Step],
        storage: Storage,
        given: Iterable[Tensor] = (),
        kept: Iterable[Tensor] = (),
        repeats: Iterable[Repeat] = (),
    ) -> None:
        self._spans: dict[Block, tuple[int, int]] = {}
        for tensor in given:
            self._touch(storage.block(tensor), BEFORE)
        for index, step in enumerate(steps):
            for operand in (*step.inputs, *step.outputs):
                if operand is not None and not operand.is_static:
                    self._touch(storage.block(operand), index)
        for tensor in kept:
            self._touch(storage.block(tensor), len(steps))
        for repeat in repeats:
            self._last_through(repeat, steps, storage)

    def _touch(self, block: Block, time: int) -> None:
        first, last = self._spans.get(block, (time, time))
        self._spans[block] = min(first, time), max(last, time)

    def _last_through(self, repeat: Repeat, steps: Sequence[Step], storage: Storage) -> None:
        """What repeated steps share with others lasts from the first time to the last."""
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
        """The step that first touches a block."""
        return self._spans[block][0]

    def last(self, block: Block) -> int:
        """The step that last touches a block."""
        return self._spans[block][1]

    def set(self, block: Block, first: int, last: int) -> None:
        """Set the life of a block that took over another's bytes."""
        self._spans[block] = first, last
