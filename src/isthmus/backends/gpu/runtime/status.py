"""Conversion of OpenCL errors to QNN errors, in one function."""

from __future__ import annotations

from isthmus.backends.gpu.runtime import numbers
from isthmus.errors import Code, QnnError

# Statuses of a lack of memory.
_MEMORY = (
    numbers.MEM_OBJECT_ALLOCATION_FAILURE,
    numbers.OUT_OF_RESOURCES,
    numbers.OUT_OF_HOST_MEMORY,
    numbers.INVALID_BUFFER_SIZE,
)
# Statuses after which drivers refuse everything else in the same context.
_LOST = (
    numbers.DEVICE_NOT_AVAILABLE,
    numbers.INVALID_COMMAND_QUEUE,
    numbers.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST,
    numbers.NVIDIA_ILLEGAL_ACCESS,
)
# Statuses of a device or driver that is not there.
_ABSENT = (numbers.DEVICE_NOT_FOUND, numbers.PLATFORM_NOT_FOUND_KHR, numbers.COMPILER_NOT_AVAILABLE)


def is_loss(status: int) -> bool:
    """Return whether a status means that the device, or our objects on it, are lost."""
    return status in _LOST


def refusal(status: int, what: str, function: str) -> QnnError:
    """Return the error for the status that an OpenCL function returned.

    - `what`: The object that the call was made for.
    - `function`: The function's name in OpenCL's headers.

    >>> print(refusal(-4, "OpenCL buffer of 64 bytes", "clCreateBuffer"))
    [1002 COMMON_MEM_ALLOC] OpenCL buffer of 64 bytes: clCreateBuffer answers MEM_OBJECT_ALLOCATION_FAILURE (-4)
    """
    rule = f"{function} answers {numbers.STATUS_NAMES.get(status, 'an unknown status')} ({status})"
    if status in _MEMORY:
        return QnnError(Code.COMMON_MEM_ALLOC, what, rule)
    if status in _LOST:
        hint = "The device is lost; create a new context."
        return QnnError(Code.COMMON_SYSTEM_COMMUNICATION, what, rule, hint)
    if status in _ABSENT:
        return QnnError(Code.DEVICE_HARDWARE_UNAVAILABLE, what, rule)
    return QnnError(Code.COMMON_SYSTEM, what, rule)


def check(status: int, what: str, function: str) -> None:
    """Raise the error that a status stands for, if it is one."""
    if status != numbers.SUCCESS:
        raise refusal(status, what, function)
