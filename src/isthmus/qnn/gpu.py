"""The GPU's custom memory structure, properties and configs, with the names used in QNN's headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isthmus.backends.gpu import options as _options
from isthmus.errors import Code, QnnError

if TYPE_CHECKING:
    from isthmus.backends.gpu.buffers import OpenClBuffer
    from isthmus.qnn.backend import Backend

    def __getattr__(name: str) -> Any: ...


BackendConfig = _options.GpuBackendOption
BackendProperty = _options.GpuBackendProperty
ContextConfig = _options.GpuContextOption
GpuMemInfo = _options.GpuMemInfo
GraphConfig = _options.GpuGraphOption
MemType = _options.GpuMemType
PerfHint = _options.PerfHint
Precision = _options.PrecisionMode

# Properties and options are names of this module too, as in C.
globals().update({each.name: each for kind in (BackendProperty, ContextConfig, GraphConfig) for each in kind})


def allocate(backend: Backend, nbytes: int) -> OpenClBuffer:
    """Allocate memory on a GPU backend's device, counted and limited like all memory, for use in ``GpuMemInfo``."""
    from isthmus.backends.gpu.buffers import device_buffer
    from isthmus.backends.gpu.driver import GpuBackend
    from isthmus.qnn.backend import Backend

    if not isinstance(backend, Backend):
        raise QnnError(Code.BACKEND_INVALID_ARGUMENT, "OpenCL buffer", f"{backend!r} is not a backend")
    backend._check()
    if not isinstance(backend.driver, GpuBackend):
        raise QnnError(Code.BACKEND_INVALID_ARGUMENT, backend._what, "it has no memory of an OpenCL device")
    return device_buffer(backend.driver.opencl(), nbytes)
