"""A program: everything an inference needs as pure data. Instructions, packed constants, tensor descriptions, sizes.

It holds no address and no Python object that executes, so it can be kept in a file, checked and sent to another
process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from isthmus.graph import GraphInfo, MemoryNeeds, TensorInfo

OPERAND_BITS = 48
"""An operand word holds a pool number above this bit and a byte offset below it."""


class Operand(int):
    """The word that says "byte `offset` of `pool`", told from numbers by its type; 0 is an absent one."""

    @staticmethod
    def at(pool: int, offset: int) -> Operand:
        """The operand at an offset in a pool."""
        return Operand(int(pool) << OPERAND_BITS | offset)

    @property
    def pool(self) -> int:
        """The number of the pool."""
        return self >> OPERAND_BITS

    @property
    def offset(self) -> int:
        """The byte in it."""
        return self & ((1 << OPERAND_BITS) - 1)


ABSENT = Operand(0)
REPEAT = "strips:repeat"
"""The kernel whose instruction says how often those after it are executed."""
TURNS = "turns:take"
"""The same, where threads take turns at it."""
VARY = "strips:vary"
"""The kernel whose instruction changes words of others."""

NARROW = np.dtype(np.int32)
"""The numbers in the table of a program by strips, which has many rows; they have 64 bits in others."""


@dataclass(frozen=True)
class Program:
    """An executable graph.

    Parameters
    ----------
    target, threads
        What it was lowered for.
    kernels
        Names of the kernels, in the order that `table` numbers them.
    table
        One row an instruction: kernel number, index of its first word in `words`, into how many shares it is split.
    words
        The instructions' operands and parameters.
    labels
        One label an instruction, for profiles.
    constants
        All constants, packed for the kernels; to be placed at an address aligned to 64.
    state_initial
        The contents of state memory before the first execution.
    state_offsets
        Where each state lies in state memory.
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

    @cached_property
    def repeats(self) -> list[int]:
        """The instructions that repeat those after them."""
        return self._of(REPEAT)

    @cached_property
    def turns(self) -> list[int]:
        """The instructions that repeat those after them on several threads."""
        return self._of(TURNS)

    @cached_property
    def varies(self) -> list[int]:
        """The instructions that change words of others."""
        return self._of(VARY)

    def _of(self, kernel: str) -> list[int]:
        number = self.kernels.index(kernel) if kernel in self.kernels else -1
        return [int(index) for index in np.flatnonzero(self.table[:, 0] == number)]

    @property
    def state_bytes(self) -> int:
        """Bytes of state memory."""
        return int(self.state_initial.nbytes)

    @property
    def constant_bytes(self) -> int:
        """Bytes of constants."""
        return int(self.constants.nbytes)

    @property
    def info(self) -> GraphInfo:
        """What a client may know of it."""
        needs = MemoryNeeds(self.scratch_bytes, self.state_bytes, self.constant_bytes, self.alignment)
        return GraphInfo(self.name, self.inputs, self.outputs, needs, self.target)
