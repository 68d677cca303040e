"""Runs a program through pyopencl, every tensor and pool between guard zones: enough for tests, and no more."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.engine.opencl.program import Local, Place, Pool, Program, Unit
from isthmus.engine.opencl.traits import DeviceTraits

os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
os.environ.setdefault("POCL_CACHE_DIR", str(Path(__file__).parents[3] / ".cache" / "pocl"))
Path(os.environ["POCL_CACHE_DIR"]).mkdir(parents=True, exist_ok=True)
cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed", exc_type=ImportError)
GUARD = 4096
_FENCE = 0xA5


@functools.cache
def queue() -> Any:
    """A queue on the first device there is."""
    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.LogicError as problem:
        pytest.skip(f"no OpenCL platform: {problem}")
    return cl.CommandQueue(cl.Context(devices[:1]))


@functools.cache
def traits() -> DeviceTraits:
    """What that device is."""
    device = queue().device
    return DeviceTraits(
        kind="cpu" if device.type & cl.device_type.CPU else "gpu",
        vector_width=device.native_vector_width_float,
        local_bytes=device.local_mem_size,
        max_group=device.max_work_group_size,
        compute_units=device.max_compute_units,
        alignment=device.mem_base_addr_align // 8,
    )


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

    def __init__(self, program: Program) -> None:
        self.program = program
        scratch = np.full(program.scratch_bytes, 0xFF, np.uint8)  # a float of such bytes is NaN
        self.pools = {
            (Pool.CONSTANTS, 0): Memory(program.constants),
            (Pool.SCRATCH, 0): Memory(scratch),
            (Pool.STATE, 0): Memory(program.state_initial()),
        }
        for pool, infos in ((Pool.INPUT, program.inputs), (Pool.OUTPUT, program.outputs)):
            for index, info in enumerate(infos):
                self.pools[pool, index] = Memory(np.full(info.nbytes, 0xFF, np.uint8))
        self.kernels = []
        for launch in program.launches:
            kernel = cl.Kernel(built(program.units[launch.unit]), launch.kernel)
            values: list[Any] = []
            for argument in launch.arguments:
                if isinstance(argument, Place):
                    memory = self.pools[argument.pool, argument.index]
                    assert argument.offset >= 0
                    assert argument.offset + argument.nbytes <= memory.nbytes
                    values += [memory.buffer, np.int64(argument.offset + GUARD)]
                else:
                    values.append(cl.LocalMemory(argument.nbytes) if isinstance(argument, Local) else argument)
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
                cl.enqueue_copy(queue(), self.pools[Pool.INPUT, index].buffer, fed, dst_offset=GUARD)
        self.enqueue()
        queue().finish()
        for memory in self.pools.values():
            memory.read()
        return {
            info.name: self.pools[Pool.OUTPUT, index].read().view(info.dtype.numpy).reshape(info.dims)
            for index, info in enumerate(self.program.outputs)
        }
