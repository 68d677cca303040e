"""A program for an OpenCL device: everything that an inference needs, as plain data without OpenCL objects.

It consists of units of source to build, launches in order, constants and the sizes of pools. It holds no handles and no
addresses; each pool gets a memory object when it is loaded. Launches run in order, as in an in-order queue, and each
may read what earlier ones wrote. All arguments of a launch are known once pools, inputs and outputs have memory, so
they are set once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from isthmus.backends.gpu.compile.traits import DeviceTraits, FloatStorage
from isthmus.graph import GraphInfo, MemoryNeeds, TensorInfo
from isthmus.prepare.schedule import Schedule


class KernelPool(IntEnum):
    """The pool that a buffer reference points into."""

    CONSTANTS = 1
    SCRATCH = 2
    STATE = 3
    INPUT = 4
    OUTPUT = 5


@dataclass(frozen=True)
class Unit:
    """One OpenCL C program to build: its source, and options for the compiler."""

    source: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class BufferRef:
    """Memory that is passed to a kernel as two arguments: the memory object, and `offset` as a ``long``.

    - `index`: The number of the input or output if the pool is INPUT or OUTPUT, else 0.
    - `offset`: The first byte, counted from the start of the pool. If a tensor is bound inside a larger memory object,
      the tensor's offset in that object is added.
    - `nbytes`: The number of bytes from there on that the kernel may access.
    - `writes`: Whether the kernel writes there.
    """

    pool: KernelPool
    index: int
    offset: int
    nbytes: int
    writes: bool


Scalar = np.int32 | np.float32 | np.int64
Argument = BufferRef | Scalar


@dataclass(frozen=True)
class Launch:
    """One kernel to enqueue.

    - `unit`: Index of the unit that contains the kernel.
    - `arguments`: Arguments in the order of the kernel's parameters. A `BufferRef` takes two parameters, any other
      argument takes one.
    - `global_size`, `local_size`: Sizes with the same number of dimensions; each of the first is a multiple of the
      second's.
    - `step`: Index of the label in the program's `steps`.
    """

    unit: int
    kernel: str
    arguments: tuple[Argument, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    step: int


@dataclass(frozen=True)
class KernelProgram:
    """An executable graph.

    - `traits`, `precision`: The device traits and the storage of floats that it was lowered for.
    - `steps`: Labels that launches refer to, for profiles.
    - `constants`: The contents of the pool of constants.
    - `large_constants`: The offset and the size of each large constant there, in order.
    - `scratch_bytes`: The size of the scratch pool; its contents mean nothing between executions.
    - `state_offsets`: The offset of each state in state memory.
    - `schedule`: The schedule that it was lowered from. A context binary holds the schedule and is lowered again for
      the current device, so that neither source nor launches are taken from a file.
    """

    name: str
    traits: DeviceTraits
    precision: FloatStorage
    units: tuple[Unit, ...]
    """The source of all kernels; launches refer to units by their index."""
    launches: tuple[Launch, ...]
    steps: tuple[str, ...]
    constants: np.ndarray
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    states: tuple[TensorInfo, ...]
    state_offsets: tuple[int, ...]
    scratch_bytes: int
    alignment: int
    schedule: Schedule
    large_constants: tuple[tuple[int, int], ...] = ()

    @property
    def state_bytes(self) -> int:
        """Bytes of state memory."""
        return self.schedule.state_bytes

    def state_initial(self) -> np.ndarray:
        """Return the contents of state memory before the first execution, as a new array."""
        content = np.zeros(self.state_bytes, np.uint8)
        for tensor, offset in zip(self.schedule.states, self.state_offsets, strict=True):
            content[offset : offset + tensor.nbytes] = np.ascontiguousarray(tensor.initial()).reshape(-1).view(np.uint8)
        return content

    @property
    def constant_bytes(self) -> int:
        """Bytes of constants."""
        return int(self.constants.nbytes)

    @property
    def info(self) -> GraphInfo:
        """The description of the graph for clients."""
        needs = MemoryNeeds(self.scratch_bytes, self.state_bytes, self.constant_bytes, self.alignment)
        return GraphInfo(self.name, self.inputs, self.outputs, needs, f"opencl-{self.traits.kind}")
