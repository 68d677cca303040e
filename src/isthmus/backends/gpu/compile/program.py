"""A program for an OpenCL device: everything an inference needs as pure data, and nothing of OpenCL itself.

Units of source to build, launches in order, constants, the sizes of pools. It holds no handle and no address; whoever
runs it gives each pool a memory object. Launches run in their order, as in an in-order queue: each may read what any
before it wrote. All arguments of a launch are known when pools and IO have their memory, so they are set once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from isthmus.backends.gpu.compile.traits import DeviceTraits, FloatStorage
from isthmus.graph import GraphInfo, MemoryNeeds, TensorInfo
from isthmus.prepare.schedule import Schedule


class KernelPool(IntEnum):
    """The memory object that a place lies in."""

    CONSTANTS = 1
    SCRATCH = 2
    STATE = 3
    INPUT = 4
    OUTPUT = 5


@dataclass(frozen=True)
class Unit:
    """One OpenCL C program to build: its text, and options for the compiler."""

    source: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class BufferRef:
    """Memory that a kernel is given. It takes two kernel arguments: the memory object, and `offset` as a ``long``.

    Parameters
    ----------
    index
        Which input or output, where the pool is INPUT or OUTPUT; else 0.
    offset
        The first byte, counted from the start of the pool. Where a tensor is bound inside a larger memory object, the
        place of the tensor in it is added.
    nbytes
        How many bytes from there on the kernel may touch.
    writes
        Whether it writes there.
    """

    pool: KernelPool
    index: int
    offset: int
    nbytes: int
    writes: bool


@dataclass(frozen=True)
class Local:
    """Local memory of a work-group, as an argument without a value."""

    nbytes: int


Scalar = np.int32 | np.float32 | np.int64
Argument = BufferRef | Local | Scalar


@dataclass(frozen=True)
class Launch:
    """One kernel to enqueue.

    Parameters
    ----------
    unit
        Index of the unit that has the kernel.
    arguments
        In the order of the kernel's parameters. A place is two of them, any other argument is one.
    global_size, local_size
        As many dimensions each, the first a multiple of the second.
    step
        Index of the label in the program's `steps`.
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

    Parameters
    ----------
    traits, precision
        What it was lowered for.
    steps
        Labels that launches refer to, for profiles.
    constants
        The contents of the pool of constants.
    scratch_bytes
        The size of the pool of intermediates; its contents mean nothing between executions.
    state_offsets
        Where each state lies in state memory.
    schedule
        What it was lowered from. A context binary holds the schedule and is lowered again for the device at hand, so
        that neither source nor launches are taken from a file.
    """

    name: str
    traits: DeviceTraits
    precision: FloatStorage
    units: tuple[Unit, ...]
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

    @property
    def state_bytes(self) -> int:
        """Bytes of state memory."""
        return self.schedule.state_bytes

    def state_initial(self) -> np.ndarray:
        """The contents of state memory before the first execution; made anew, for whoever has that memory."""
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
        """What a client may know of it."""
        needs = MemoryNeeds(self.scratch_bytes, self.state_bytes, self.constant_bytes, self.alignment)
        return GraphInfo(self.name, self.inputs, self.outputs, needs, f"opencl-{self.traits.kind}")
