"""A program on a device: its built kernels, its constants, and memory for scratch and state.

Launches are created for each binding. Each has its own kernel objects, so that arguments are set once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.backends.gpu.buffers import OpenClBuffer, device_buffer
from isthmus.backends.gpu.compile.program import Argument, BufferRef, KernelPool, KernelProgram, Launch
from isthmus.backends.gpu.constants import DeviceConstants, SharedConstants
from isthmus.backends.gpu.runtime import commands
from isthmus.backends.gpu.runtime.commands import Command
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.execution import Commands
from isthmus.backends.gpu.runtime.library import library
from isthmus.backends.gpu.runtime.owned import Owned
from isthmus.backends.gpu.runtime.program import Repository, build_each, kernel
from isthmus.errors import Code, QnnError


@dataclass(frozen=True)
class IoPlace:
    """The location of an input or output: the handle of a memory object, and the first byte in it."""

    handle: int
    offset: int = 0


class DeviceProgram:
    """A program that a device can run.

    - `context`: The OpenCL context to load it into.
    - `program`: The program, which was lowered for the context's device.
    - `repository`: The repository of built kernels.
    - `patience`: Seconds that the device may take for one operation.
    - `constants`: The large constants of the graphs that share them with it.
    - `shared`: A program whose scratch, which is large enough, is used instead of its own.
    """

    def __init__(
        self,
        context: ClContext,
        program: KernelProgram,
        repository: Repository,
        patience: float,
        what: str,
        constants: SharedConstants,
        shared: DeviceProgram | None = None,
    ) -> None:
        self.context, self.program, self.patience, self.what = context, program, patience, what
        # Memory for each pool that is not empty; inputs and outputs get theirs from a binding.
        self._pools: dict[KernelPool, OpenClBuffer] = {}
        self._shared = shared
        self._constants: DeviceConstants | None = None
        try:
            sources = [(unit.source, unit.options) for unit in program.units]
            # The built OpenCL programs, in the order of the program's units.
            self._units = build_each(context, sources, repository, what)
            for pool, nbytes in (
                (KernelPool.SCRATCH, program.scratch_bytes),
                (KernelPool.STATE, program.state_bytes),
            ):
                if nbytes and pool is KernelPool.SCRATCH and shared is not None:
                    self._pools[pool] = shared._pools[pool]
                elif nbytes:
                    self._pools[pool] = device_buffer(context, nbytes)
            # The commands are kept, because state is written again at each reset; constants are written once.
            state = self._pools.get(KernelPool.STATE)
            self._reset = None if state is None else self._filling(state, program.state_initial(), "state")
            self._constants = DeviceConstants(context, program, constants, self._write_constants)
            self.reset()
        except MemoryError:
            self.close()
            rule = "the host has no memory for what its state begins with"
            raise QnnError(Code.COMMON_MEM_ALLOC, what, rule) from None
        except Exception:
            self.close()
            raise

    def reset(self) -> None:
        """Write the initial state to state memory."""
        if self._reset is not None:
            self._reset.run()

    def launches(self, io: Sequence[IoPlace]) -> list[Command]:
        """Return all launches with their arguments set, given the location of each input and then each output."""
        launches = []
        for launch in self.program.launches:
            object_ = kernel(self._units[launch.unit], launch.kernel, f"kernel '{launch.kernel}' of {self.what}")
            self._set_arguments(object_, launch, io)
            label = self.program.steps[launch.step]
            launches.append(commands.launch(object_, launch.global_size, launch.local_size, label))
        return launches

    def reads(self, output: int) -> bool:
        """Return whether kernels read what they wrote to the output of this number."""
        return any(
            isinstance(argument, BufferRef)
            and argument.pool is KernelPool.OUTPUT
            and argument.index == output
            and not argument.writes
            for launch in self.program.launches
            for argument in launch.arguments
        )

    def close(self) -> None:
        """Release everything; safe to call again."""
        if self._constants is not None:
            self._constants.close()
        for pool, buffer in self._pools.items():
            if self._shared is None or pool is not KernelPool.SCRATCH:
                buffer.close()
        # There are no units if they did not build.
        for unit in getattr(self, "_units", ()):
            unit.close()

    def _filling(self, buffer: OpenClBuffer, content: np.ndarray, label: str) -> Commands:
        """Return commands that write contents to a buffer."""
        write = commands.write(buffer.handle, 0, content.nbytes, content.ctypes.data, label)
        return Commands(self.context, [write], self.what, self.patience, may_record=False, keeps=content)

    def _write_constants(self, buffer: OpenClBuffer, content: np.ndarray) -> None:
        """Write constants to a buffer."""
        self._filling(buffer, content, "constants").run()

    def _set_arguments(self, object_: Owned, launch: Launch, io: Sequence[IoPlace]) -> None:
        """Set the arguments of a kernel object for a launch; an argument of a launch is one or two of a kernel."""
        opencl, what = library(), f"kernel '{launch.kernel}' of {self.what}"
        index = 0
        for argument in launch.arguments:
            for value in self._values(argument, io):
                place = ctypes.byref(value)
                opencl.call(what, "clSetKernelArg", object_.handle, index, ctypes.sizeof(value), place)
                index += 1

    def _values(self, argument: Argument, io: Sequence[IoPlace]) -> list[ctypes._SimpleCData[Any]]:
        """Return the values of the one or two kernel arguments that one argument of a launch stands for."""
        if isinstance(argument, BufferRef):
            handle, offset = self._place(argument, io)
            return [ctypes.c_void_p(handle), ctypes.c_int64(offset)]
        return [np.ctypeslib.as_ctypes_type(argument.dtype)(argument.item())]

    def _place(self, reference: BufferRef, io: Sequence[IoPlace]) -> tuple[int, int]:
        """Return the handle of the memory object that a reference is in, and its first byte there."""
        if reference.pool in (KernelPool.INPUT, KernelPool.OUTPUT):
            first = 0 if reference.pool is KernelPool.INPUT else len(self.program.inputs)
            place = io[first + reference.index]
            return place.handle, place.offset + reference.offset
        if reference.pool is KernelPool.CONSTANTS:
            assert self._constants is not None
            return self._constants.place(reference.offset)
        return self._pools[reference.pool].handle, reference.offset
