"""Commands that can be enqueued on a device.

Every launch has its own kernel object, whose arguments were set before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_uint64, c_void_p
from dataclasses import dataclass

from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.library import library
from isthmus.backends.gpu.runtime.loop import CommandKind
from isthmus.backends.gpu.runtime.owned import Owned
from isthmus.backends.gpu.runtime.status import check


@dataclass(frozen=True)
class Command:
    """One command.

    - `operands`: The operands A, B, ... that `CommandKind` lists for the kind.
    - `label`: The purpose of the command, for messages.
    - `kernel`: The kernel that it launches, which is kept alive; None if it is no launch.
    - `global_size`, `local_size`: The work items of a launch and of one work group, along each dimension; empty if it
      is no launch, or if the driver chooses the local size.
    """

    kind: CommandKind
    operands: tuple[int, ...]
    label: str = ""
    kernel: Owned | None = None
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] = ()


def launch(kernel: Owned, global_size: Sequence[int], local_size: Sequence[int], label: str) -> Command:
    """Return a command that runs a kernel whose arguments are set; without a local size the driver chooses one."""
    operands = (kernel.handle, len(global_size), int(bool(local_size)))
    return Command(CommandKind.LAUNCH, operands, label, kernel, tuple(global_size), tuple(local_size))


def write(memory: int, offset: int, nbytes: int, address: int, label: str) -> Command:
    """Return a command that transfers host memory at `address` to a memory object of the device, from `offset` on."""
    return Command(CommandKind.WRITE, (memory, offset, nbytes, address), label)


def read(memory: int, offset: int, nbytes: int, address: int, label: str) -> Command:
    """Return a command that transfers a memory object of the device, from `offset` on, to host memory at `address`."""
    return Command(CommandKind.READ, (memory, offset, nbytes, address), label)


def map_at(memory: int, nbytes: int, address: int, label: str) -> Command:
    """Return a command that hands memory over to the host by mapping it, which must give the same address as before."""
    return Command(CommandKind.MAP, (memory, 0, nbytes, numbers.MAP_READ | numbers.MAP_WRITE, address), label)


def unmap(memory: int, address: int, label: str) -> Command:
    """Return a command that hands memory over to the device by ending its mapping at an address."""
    return Command(CommandKind.UNMAP, (memory, 0, 0, address), label)


def refuse_mapped(memory: int, label: str) -> Command:
    """Return a command that refuses the execution if the memory is mapped: a kernel must not use it meanwhile."""
    return Command(CommandKind.UNMAPPED, (memory,), label)


def record(context: ClContext, launches: Sequence[Command], what: str) -> Owned:
    """Record launches with the driver, which must have cl_khr_command_buffer, for the context's queue.

    Returns OpenCL's command buffer, which a command of kind REPLAY enqueues. `what` owns the launches, for an error.
    """
    extension = library().extension(context.device.platform)
    assert extension is not None
    queues, status = (c_void_p * 1)(context.queue), c_int32()
    flags = numbers.COMMAND_BUFFER_SIMULTANEOUS_USE_KHR if context.device.simultaneous else 0
    properties = (c_uint64 * 3)(numbers.COMMAND_BUFFER_FLAGS_KHR, flags, 0)
    recording = Owned("CommandBuffer", extension["clReleaseCommandBufferKHR"])
    recording.fill(extension["clCreateCommandBufferKHR"], 1, queues, properties, ctypes.byref(status))
    check(status.value, what, "clCreateCommandBufferKHR")
    handle = recording.handle
    for command in launches:
        kernel, dims, has_local = command.operands
        sizes = (ctypes.c_size_t * dims)(*command.global_size)
        groups = (ctypes.c_size_t * dims)(*command.local_size) if has_local else None
        launched = extension["clCommandNDRangeKernelKHR"](
            handle, None, None, kernel, dims, None, sizes, groups, 0, None, None, None
        )
        check(launched, what, "clCommandNDRangeKernelKHR")
    check(extension["clFinalizeCommandBufferKHR"](handle), what, "clFinalizeCommandBufferKHR")
    return recording
