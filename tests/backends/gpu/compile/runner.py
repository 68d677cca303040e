"""Runs a program through pyopencl, every tensor and pool between guard zones: enough for tests, and no more."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from support.opencl_device import cl, client_context

from isthmus.backends.gpu.compile.program import BufferRef, KernelPool, KernelProgram, Unit

GUARD = 4096
_FENCE = 0xA5


@functools.cache
def queue() -> Any:
    """A queue on the device that tests run on."""
    return cl.CommandQueue(client_context())


@functools.cache
def built(unit: Unit) -> Any:
    """The built program of a unit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cl.Program(queue().context, unit.source).build(options=list(unit.options))


class Memory:
    """A memory object with fences around what a pool has."""

    def __init__(self, content: np.ndarray) -> None:
        self.nbytes = content.nbytes
        fenced = np.full(self.nbytes + 2 * GUARD, _FENCE, np.uint8)
        fenced[GUARD : GUARD + self.nbytes] = content.reshape(-1).view(np.uint8)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self.buffer = cl.Buffer(queue().context, flags, hostbuf=fenced)

    def read(self) -> np.ndarray:
        """The content; what lies around it must be as it was."""
        fenced = np.empty(self.nbytes + 2 * GUARD, np.uint8)
        cl.enqueue_copy(queue(), fenced, self.buffer)
        assert (fenced[:GUARD] == _FENCE).all(), "something was written before a pool"
        assert (fenced[GUARD + self.nbytes :] == _FENCE).all(), "something was written behind a pool"
        return fenced[GUARD : GUARD + self.nbytes]


class Runner:
    """A program with memory of its own."""

    def __init__(self, program: KernelProgram) -> None:
        self.program = program
        scratch = np.full(program.scratch_bytes, 0xFF, np.uint8)  # a float of such bytes is NaN
        self.pools = {
            (KernelPool.CONSTANTS, 0): Memory(program.constants),
            (KernelPool.SCRATCH, 0): Memory(scratch),
            (KernelPool.STATE, 0): Memory(program.state_initial()),
        }
        for pool, infos in ((KernelPool.INPUT, program.inputs), (KernelPool.OUTPUT, program.outputs)):
            for index, info in enumerate(infos):
                self.pools[pool, index] = Memory(np.full(info.nbytes, 0xFF, np.uint8))
        self.kernels = []
        for launch in program.launches:
            kernel = cl.Kernel(built(program.units[launch.unit]), launch.kernel)
            values: list[Any] = []
            for argument in launch.arguments:
                if isinstance(argument, BufferRef):
                    memory = self.pools[argument.pool, argument.index]
                    assert argument.offset >= 0
                    assert argument.offset + argument.nbytes <= memory.nbytes
                    values += [memory.buffer, np.int64(argument.offset + GUARD)]
                else:
                    values.append(argument)
            kernel.set_args(*values)
            self.kernels.append((kernel, launch.global_size, launch.local_size))

    def enqueue(self) -> None:
        """Enqueue all launches."""
        for kernel, global_size, local_size in self.kernels:
            cl.enqueue_nd_range_kernel(queue(), kernel, global_size, local_size)

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        for index, info in enumerate(self.program.inputs):
            array = np.ascontiguousarray(feeds[info.name], info.dtype.numpy)
            assert array.nbytes == info.nbytes
            if array.nbytes:
                fed = array.reshape(-1).view(np.uint8)
                cl.enqueue_copy(queue(), self.pools[KernelPool.INPUT, index].buffer, fed, dst_offset=GUARD)
        self.enqueue()
        queue().finish()
        for memory in self.pools.values():
            memory.read()
        return {
            info.name: self.pools[KernelPool.OUTPUT, index].read().view(info.dtype.numpy).reshape(info.dims)
            for index, info in enumerate(self.program.outputs)
        }
