"""The functions of QNN's delegate header under their C names, so that a listing in C or C++ translates line by line.

A delegate stands for its pointer, memory for its address. Where C answers NULL, None is answered; where C has no way to
say what is wrong, a `QnnError` does.
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
    """Options with their defaults; the backend type is yet to be set."""
    return Options()


def TfLiteQnnDelegateCreate(options: Options | None, log: Any = None) -> QnnDelegate:
    """A delegate."""
    if options is None:
        raise QnnError(Code.BACKEND_INVALID_ARGUMENT, "options", "they are null")
    return QnnDelegate(options, log)


def TfLiteQnnDelegateDelete(delegate: QnnDelegate | None) -> None:
    """End a delegate, after its interpreters."""
    if delegate is not None:
        if not isinstance(delegate, QnnDelegate):
            rule = f"must be a QnnDelegate, is a {type(delegate).__name__}"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "delegate", rule)
        delegate.close()


_lock = Lock()
_allocated: dict[int, custom_memory.CustomMemory] = {}
"""An address keeps nothing alive: what was allocated by these names stays until it is freed."""


def TfLiteQnnDelegateAllocCustomMem(bytes: int, alignment: int) -> int | None:
    """The address of new shared memory, or None."""
    probe.check()
    # An address that is free is soon another's.
    with _lock:
        memory = custom_memory.allocate(bytes, alignment)
        if memory is None:
            return None
        _allocated[memory.address] = memory
        return memory.address


def TfLiteQnnDelegateFreeCustomMem(buffer_ptr: int | None) -> None:
    """Free shared memory; where an interpreter has a tensor there, it ends with that."""
    with _lock:
        custom_memory.free(buffer_ptr)
        if buffer_ptr is not None:
            _allocated.pop(int(buffer_ptr), None)
