"""The words of the GPU's memory and configs: option numbers and structures, as QNN's GPU headers name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from isthmus.errors import Code, QnnError
from isthmus.memory.integers import is_int


class GpuMemType(IntEnum):
    """QNN_GPU_MEM_*: what a custom descriptor points to."""

    OPENCL = 0
    UNDEFINED = 0x7FFFFFF


@dataclass(frozen=True)
class GpuMemInfo:
    """The client's own memory for a tensor (QnnGpu_MemInfoCustom_t).

    Parameters
    ----------
    mem_type
        What `buffer` is; OPENCL is all there is.
    buffer
        An OpenCL buffer: an object of pyopencl, or the ``cl_mem`` as a number.
    """

    mem_type: GpuMemType = GpuMemType.UNDEFINED
    buffer: Any = None


class PrecisionMode(IntEnum):
    """QNN_GPU_PRECISION_*: how floats are kept and computed with."""

    FP32 = 0
    FP16 = 1
    """As HYBRID: sums in fp16 would lose too much."""
    HYBRID = 2
    """Stored as fp16 between operations, computed in single precision."""
    USER_PROVIDED = 3
    """As the tensors of the graph say: fp16 where its inputs and outputs are fp16."""


class GpuGraphOption(IntEnum):
    """The fields of QnnGpuGraph_CustomConfig_t, to be set before the graph is finalized.

    Numbers from 20001 on are this project's own: a structure has none, and those that QNN's later headers have for its
    fields are those of general options here.
    """

    PRECISION = 20001
    """A `PrecisionMode`."""
    DISABLE_MEMORY_OPTIMIZATIONS = 20002
    """Whether every tensor has memory of its own."""
    DISABLE_NODE_OPTIMIZATIONS = 20003
    """Whether operations stay apart that could be one kernel."""
    DISABLE_QUEUE_RECORDING = 20004
    """Whether commands are enqueued one by one where the driver could record them."""


class GpuContextOption(IntEnum):
    """QNN_GPU_CONTEXT_CONFIG_OPTION_*."""

    KERNEL_REPO_DIR = 2
    """The folder that built kernels are kept in."""
    INVALIDATE_KERNEL_REPO = 3
    """Whether what lies there is built again and replaced."""


class GpuBackendProperty(IntEnum):
    """Custom properties of the backend; numbers from 20001 on are this project's own."""

    CL_CONTEXT = 20001
    """The OpenCL context that it works in, as pyopencl has contexts."""
    CL_QUEUE = 20002
    """The queue that executions go into, as pyopencl has queues."""
    CL_DEVICE = 20003
    """The device, as pyopencl has devices."""


def truth(option: IntEnum, value: Any, code: Code) -> bool:
    """What an option that is on or off is set to."""
    if not isinstance(value, bool) and not (is_int(value) and value in (0, 1)):
        raise QnnError(code, f"{option.name} = {value!r}", "must be true or false")
    return bool(value)


def precision(option: IntEnum, value: Any, code: Code) -> PrecisionMode:
    """Check the precision that a graph is set to."""
    if isinstance(value, PrecisionMode) or (type(value) is int and value in {int(known) for known in PrecisionMode}):
        return PrecisionMode(value)
    known = ", ".join(f"{each.name} {int(each)}" for each in PrecisionMode)
    raise QnnError(code, f"precision {value!r}", f"must be one of {known}")


class GraphOptionRule(NamedTuple):
    """How a graph option is named in configuration files, what it is by default, and how a value is checked."""

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
