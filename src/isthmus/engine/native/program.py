"""A program: everything an inference needs, as pure data: instructions, packed constants, tensor descriptions, sizes.

It holds no address and no executable Python object, so it can be stored in a file, checked and sent to another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from isthmus.graph import GraphInfo, MemoryNeeds, TensorInfo
from isthmus.prepare.schedule import Pool

SEGMENT_BYTES = 1 << 14
"""The size from which a packed constant is a segment of its own, which graphs can share."""
MAX_SEGMENTS = 1 << 13
"""The largest number of segments; further constants are not shared."""
CURSORS = 33
"""The pool numbers after inputs and outputs that are reserved for cursors; segments have the numbers after these."""
OPERAND_BITS = 48
"""An operand word holds a pool number above this bit and a byte offset below it."""


class Operand(int):
    """A word that means "byte `offset` of `pool`", distinguished from numbers by its type; 0 is an absent operand."""

    @staticmethod
    def at(pool: int, offset: int) -> Operand:
        """Return the operand at an offset in a pool."""
        return Operand(int(pool) << OPERAND_BITS | offset)

    @property
    def pool(self) -> int:
        """The number of the pool."""
        return self >> OPERAND_BITS

    @property
    def offset(self) -> int:
        """The byte offset in the pool."""
        return self & ((1 << OPERAND_BITS) - 1)


ABSENT = Operand(0)
REPEAT = "tiles:repeat"
"""The kernel whose instruction repeats the instructions after it, one iteration at a time."""
PIPELINE = "pipelining:take"
"""The same, with several iterations in progress at a time, each on a thread of its own."""
BRANCHES = "pipelining:branches"
"""The kernel whose instruction lets threads share several instructions after it without waiting in between."""
MAX_SHARES = 128
"""The largest number of shares of such instructions together."""
VARY = "tiles:vary"
"""The kernel whose instruction changes words of later ones, so that instructions of several tiles share their words."""

NARROW = np.dtype(np.int32)
"""The type of the numbers in the table of a tiled program, which has many rows; any other table has 64-bit numbers."""


@dataclass(frozen=True)
class Program:
    """An executable graph.

    Parameters
    ----------
    target, threads
        The target and number of threads for which it was lowered.
    kernels
        Names of the kernels; `table` refers to them by index.
    table
        One row per instruction: kernel number, index of its first word in `words`, number of shares into which
        threads divide it.
    words
        The instructions' operands and parameters, encoded by the kernels' signatures.
    labels
        One label per instruction, for profiles and errors: operation and name of its step.
    constants
        The constants that are no segments, packed for the kernels; their address must be aligned to 64.
    segments
        Large packed constants, each a pool of its own, so that several programs can use the same memory.
    state_initial
        The contents of state memory before the first execution.
    state_offsets
        The offset of each state in state memory.
    alignment
        The required alignment of the addresses of scratch and state, in bytes.
    shareable_io
        The pairs of an input and an output, by number, that may be the same memory.
    """

    name: str
    target: str
    threads: int
    kernels: tuple[str, ...]
    table: np.ndarray
    words: np.ndarray
    labels: tuple[str, ...]
    constants: np.ndarray
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    states: tuple[TensorInfo, ...]
    state_offsets: tuple[int, ...]
    state_initial: np.ndarray
    scratch_bytes: int
    alignment: int
    shareable_io: frozenset[tuple[int, int]] = frozenset()
    segments: tuple[np.ndarray, ...] = ()

    @property
    def first_segment(self) -> int:
        """The pool number of the first segment."""
        return Pool.IO + len(self.inputs) + len(self.outputs) + CURSORS

    @cached_property
    def repeats(self) -> list[int]:
        """The indices of the instructions that repeat those after them, one iteration at a time."""
        return self._instructions_of(REPEAT)

    @cached_property
    def pipelines(self) -> list[int]:
        """The indices of the instructions that repeat those after them, with iterations pipelined on threads."""
        return self._instructions_of(PIPELINE)

    @cached_property
    def branches(self) -> list[int]:
        """The indices of the instructions that let threads share several of those after them together."""
        return self._instructions_of(BRANCHES)

    @cached_property
    def varies(self) -> list[int]:
        """The indices of the instructions that change words of others."""
        return self._instructions_of(VARY)

    def _instructions_of(self, kernel: str) -> list[int]:
        """Return the indices of the instructions of a kernel."""
        number = self.kernels.index(kernel) if kernel in self.kernels else -1
        return [int(index) for index in np.flatnonzero(self.table[:, 0] == number)]

    @property
    def state_bytes(self) -> int:
        """The size of state memory in bytes."""
        return int(self.state_initial.nbytes)

    @property
    def constant_bytes(self) -> int:
        """The size of the constants in bytes, with segments."""
        return int(self.constants.nbytes) + sum(int(segment.nbytes) for segment in self.segments)

    @property
    def info(self) -> GraphInfo:
        """The description of the graph for clients."""
        needs = MemoryNeeds(self.scratch_bytes, self.state_bytes, self.constant_bytes, self.alignment)
        return GraphInfo(self.name, self.inputs, self.outputs, needs, self.target)
