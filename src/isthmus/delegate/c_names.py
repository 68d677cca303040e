"""The functions of QNN's delegate header under their C names, so that a C or C++ listing translates line by line.

A delegate is used in place of its pointer, and memory is given by its address. Where C returns NULL, these functions
return None; where C cannot report an error, they raise a `QnnError`.
"""

from __future__ import annotations

from typing import Any

from isthmus.delegate import custom_memory, probe
from isthmus.delegate.delegate import QnnDelegate
from isthmus.delegate.interpreter import CustomAllocation as TfLiteCustomAllocation
from isthmus.delegate.options import BackendType, Options
from isthmus.delegate.structures import DEFAULT_TENSOR_ALIGNMENT as kDefaultTensorAlignment
from isthmus.errors import Code, QnnError
from isthmus.system.lock import Lock

TfLiteQnnDelegateOptions = Options
kUndefinedBackend, kGpuBackend, kHtpBackend = BackendType.UNDEFINED, BackendType.GPU, BackendType.HTP
kLpaiBackend, kCpuBackend = BackendType.LPAI, BackendType.CPU

__all__ = [
    "TfLiteCustomAllocation",
    "TfLiteQnnDelegateAllocCustomMem",
    "TfLiteQnnDelegateCreate",
    "TfLiteQnnDelegateDelete",
    "TfLiteQnnDelegateFreeCustomMem",
    "TfLiteQnnDelegateOptions",
    "TfLiteQnnDelegateOptionsDefault",
    "kCpuBackend",
    "kDefaultTensorAlignment",
    "kGpuBackend",
    "kHtpBackend",
    "kLpaiBackend",
    "kUndefinedBackend",
]


def TfLiteQnnDelegateOptionsDefault() -> Options:
    """Return options with their defaults; the backend type must still be set."""
    return Options()


def TfLiteQnnDelegateCreate(options: Options | None, log: Any = None) -> QnnDelegate:
    """Create a delegate."""
    if options is None:
        raise QnnError(Code.BACKEND_INVALID_ARGUMENT, "options", "they are null")
    return QnnDelegate(options, log)


def TfLiteQnnDelegateDelete(delegate: QnnDelegate | None) -> None:
    """Delete a delegate, after its interpreters."""
    if delegate is not None:
        if not isinstance(delegate, QnnDelegate):
            rule = f"must be a QnnDelegate, is a {type(delegate).__name__}"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "delegate", rule)
        delegate.close()


_lock = Lock()
# Memory allocated by these functions: an address keeps nothing alive, so it is kept here until freed.
_allocated: dict[int, custom_memory.CustomMemory] = {}


def TfLiteQnnDelegateAllocCustomMem(bytes: int, alignment: int) -> int | None:
    """Allocate shared memory and return its address, or None."""
    probe.check()
    # Under the lock: a freed address may be allocated again before its old entry is removed.
    with _lock:
        memory = custom_memory.allocate(bytes, alignment)
        if memory is None:
            return None
        _allocated[memory.address] = memory
        return memory.address


def TfLiteQnnDelegateFreeCustomMem(buffer_ptr: int | None) -> None:
    """Free shared memory; if an interpreter has a tensor there, it is released with the interpreter."""
    with _lock:
        custom_memory.free(buffer_ptr)
        if buffer_ptr is not None:
            _allocated.pop(int(buffer_ptr), None)
