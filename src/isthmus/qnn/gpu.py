"""The GPU's custom memory structure, properties and configs, under the names of its headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.backends.gpu import options as _options
from isthmus.errors import Code, QnnError

if TYPE_CHECKING:
    from isthmus.backends.gpu.buffers import OpenClBuffer
    from isthmus.qnn.backend import Backend

BackendProperty = _options.GpuBackendProperty
ContextConfig = _options.GpuContextOption
GpuMemInfo = _options.GpuMemInfo
GraphConfig = _options.GpuGraphOption
MemType = _options.GpuMemType
Precision = _options.PrecisionMode

CL_CONTEXT = BackendProperty.CL_CONTEXT
CL_QUEUE = BackendProperty.CL_QUEUE
CL_DEVICE = BackendProperty.CL_DEVICE
KERNEL_REPO_DIR = ContextConfig.KERNEL_REPO_DIR
INVALIDATE_KERNEL_REPO = ContextConfig.INVALIDATE_KERNEL_REPO
PRECISION = GraphConfig.PRECISION
DISABLE_MEMORY_OPTIMIZATIONS = GraphConfig.DISABLE_MEMORY_OPTIMIZATIONS
DISABLE_NODE_OPTIMIZATIONS = GraphConfig.DISABLE_NODE_OPTIMIZATIONS
DISABLE_QUEUE_RECORDING = GraphConfig.DISABLE_QUEUE_RECORDING


def allocate(backend: Backend, nbytes: int) -> OpenClBuffer:
    """Memory of a GPU backend's device, counted and limited as all memory is; ``GpuMemInfo`` takes it."""
    from isthmus.backends.gpu.buffers import device_buffer
    from isthmus.backends.gpu.driver import GpuBackend
    from isthmus.qnn.backend import Backend

    if not isinstance(backend, Backend):
        raise QnnError(Code.BACKEND_INVALID_ARGUMENT, "OpenCL buffer", f"{backend!r} is not a backend")
    backend._check()
    if not isinstance(backend.driver, GpuBackend):
        raise QnnError(Code.BACKEND_INVALID_ARGUMENT, backend._what, "it has no memory of an OpenCL device")
    return device_buffer(backend.driver.opencl(), nbytes)
