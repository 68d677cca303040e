"""Launches that a driver records (cl_khr_command_buffer) and that are enqueued as one command."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_uint64, c_void_p

from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.commands import Command
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.library import library
from isthmus.backends.gpu.runtime.owned import Owned
from isthmus.backends.gpu.runtime.status import check


def record(context: ClContext, launches: Sequence[Command], what: str) -> Owned:
    """Record launches with the driver, for the context's queue; the driver must have cl_khr_command_buffer.

    Parameters
    ----------
    launches
        Commands of kind LAUNCH.
    what
        The owner of the launches, for an error.

    Returns
    -------
    Owned
        OpenCL's command buffer, which a command of kind REPLAY enqueues.
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
