"""The interface by which a planner asks about the engine that will execute its schedule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

if TYPE_CHECKING:
    from isthmus.prepare.storage import Storage

DEFAULT_ALIGNMENT = 64

Effort = Callable[[np.ndarray], np.ndarray]
"""A function that maps numbers of rows to the times of tiles with that many rows, in any unit."""


class EngineModel(Protocol):
    """An engine as a planner sees it.

    `work_bytes` is all that an engine must provide. The defaults describe an engine that executes every step on one
    thread, stores tensors as they are declared, and needs a nanosecond for each byte of a step, whole or in tiles.

    - `alignment`: the alignment of the offset of every block and state, in bytes.
    - `threads`: the number of threads that execute a step.
    - `sharing`: the cost of dividing a step between threads, in nanoseconds.
    """

    alignment: int = DEFAULT_ALIGNMENT
    threads: int = 1
    sharing: float = 0.0

    @abstractmethod
    def work_bytes(self, step: Step, threads: int) -> int:
        """Return the bytes of scratch that a step needs besides its tensors if `threads` threads execute it."""

    def refusal(self, step: Step) -> str | None:
        """Return why the engine cannot execute a step; None if it can."""
        return None

    def convert(self, work: Work) -> None:
        """Convert types that the engine does not compute with, after all passes and before `refusal` is asked."""
        return

    def store(self, work: Work) -> None:
        """Choose how the tensors of a rewritten graph are stored."""
        return

    def together(self, steps: Sequence[Step], storage: Storage) -> Sequence[tuple[int, int]]:
        """Return the ranges of steps in order that become one, by their first and last index.

        Results of the last one may then be written while operands of the first are read.
        """
        return ()

    def nanoseconds(self, step: Step) -> float:
        """Estimate the time of a step on one thread."""
        return float(sum(t.nbytes for t in (*step.inputs, *step.outputs) if t is not None))

    def can_tile(self, step: Step, axis: int) -> bool:
        """Return whether tiles of a step along an axis of its result have the same bits as the whole step."""
        return True

    def is_shared(self, step: Step) -> bool:
        """Return whether all threads divide a whole step between them."""
        return False

    def effort(self, step: Step, axis: int) -> Effort | None:
        """Return the time of tiles along an axis of the result; None if it is proportional to their rows."""
        return None
