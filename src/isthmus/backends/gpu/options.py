"""Option numbers and structures for the GPU's memory and configs, as QNN's GPU headers name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from isthmus.backends.seam.driver import member
from isthmus.errors import Code, QnnError
from isthmus.memory.integers import is_int


class GpuMemType(IntEnum):
    """QNN_GPU_MEM_*: what a custom descriptor points to."""

    OPENCL = 0
    UNDEFINED = 0x7FFFFFF


@dataclass(frozen=True)
class GpuMemInfo:
    """The client's own memory for a tensor (QnnGpu_MemInfoCustom_t).

    - `mem_type`: The type of `buffer`; only OPENCL is supported.
    - `buffer`: An OpenCL buffer: a pyopencl object, or the ``cl_mem`` as a number.
    """

    mem_type: GpuMemType = GpuMemType.UNDEFINED
    buffer: Any = None


class PrecisionMode(IntEnum):
    """QNN_GPU_PRECISION_*: how floats are stored and computed with."""

    FP32 = 0
    FP16 = 1
    """The same as HYBRID, because sums in fp16 would lose too much."""
    HYBRID = 2
    """Storage as fp16 between operations, computation in single precision."""
    USER_PROVIDED = 3
    """The precision of the graph's tensors: fp16 if its inputs and outputs are fp16."""


class GpuGraphOption(IntEnum):
    """The fields of QnnGpuGraph_CustomConfig_t, to be set before the graph is finalized.

    Numbers from 20001 on are this project's own. The structure has no option numbers, and the numbers that later QNN
    headers give its fields belong to general options here.
    """

    PRECISION = 20001
    """A `PrecisionMode`."""
    DISABLE_MEMORY_OPTIMIZATIONS = 20002
    """Whether every tensor gets its own memory."""
    DISABLE_NODE_OPTIMIZATIONS = 20003
    """Whether operations that could be one kernel stay separate."""
    DISABLE_QUEUE_RECORDING = 20004
    """Whether commands are enqueued one by one even if the driver could record them."""


class GpuBackendOption(IntEnum):
    """QNN_GPU_BACKEND_CONFIG_OPTION_*. Clients in C may set them; none has an effect here."""

    ENABLE_TUNING_MODE = 0
    PERFORMANCE_CACHE_DIR = 1
    INVALIDATE_PERFORMANCE_CACHE = 2
    WEIGHT_SHARING_ENABLED = 3


class PerfHint(IntEnum):
    """QNN_GPU_CONTEXT_PERF_HINT_*."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class GpuContextOption(IntEnum):
    """QNN_GPU_CONTEXT_CONFIG_OPTION_*."""

    PERF_HINT = 0
    """A `PerfHint`. It has no effect here."""
    USE_GL_BUFFERS = 1
    """Whether OpenGL buffers are used; only false is supported."""
    KERNEL_REPO_DIR = 2
    """The folder for built kernels."""
    INVALIDATE_KERNEL_REPO = 3
    """Whether the kernels in that folder are built again and replaced."""


class GpuBackendProperty(IntEnum):
    """Custom properties of the backend; numbers from 20001 on are this project's own."""

    CL_CONTEXT = 20001
    """The OpenCL context that the backend works in, as a pyopencl object."""
    CL_QUEUE = 20002
    """The queue that executions are enqueued in, as a pyopencl object."""
    CL_DEVICE = 20003
    """The device, as a pyopencl object."""


def truth(option: IntEnum, value: Any, code: Code) -> bool:
    """Check and return the value of a boolean option; an error has the code that the caller's function may return."""
    if not isinstance(value, bool) and not (is_int(value) and value in (0, 1)):
        raise QnnError(code, f"{option.name} = {value!r}", "must be true or false")
    return bool(value)


def precision(option: IntEnum, value: Any, code: Code) -> PrecisionMode:
    """Check and return the precision that a graph is set to, given as a `PrecisionMode` or its number."""
    return member(value, PrecisionMode, "precision", code)


def perf_hint(option: IntEnum, value: Any, code: Code) -> PerfHint:
    """Check and return a hint for performance, given as a `PerfHint` or its number."""
    return member(value, PerfHint, f"{option.name} =", code)


class GraphOptionRule(NamedTuple):
    """How a graph option is named in configuration files, what it is by default, and how a value is checked.

    - `key`: The name in configuration files.
    - `check`: Returns a value as the backend uses it, given the option, the client's value and the code for an error.
    """

    key: str
    default: Any
    check: Callable[[IntEnum, Any, Code], Any]

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false."""
        return self.check is truth


GRAPH_OPTIONS = {
    GpuGraphOption.PRECISION: GraphOptionRule("precision_mode", PrecisionMode.USER_PROVIDED, precision),
    GpuGraphOption.DISABLE_MEMORY_OPTIMIZATIONS: GraphOptionRule("disable_memory_optimizations", False, truth),
    GpuGraphOption.DISABLE_NODE_OPTIMIZATIONS: GraphOptionRule("disable_node_optimizations", False, truth),
    GpuGraphOption.DISABLE_QUEUE_RECORDING: GraphOptionRule("disable_queue_recording", False, truth),
}
"""The graph options in the order of QNN's structure. Configuration files, C and Python all read them from here."""
