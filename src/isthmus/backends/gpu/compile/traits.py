"""What lowering wants to know of a device, and the precision that it lowers for. Whoever has a device fills this in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal


class FloatStorage(Enum):
    """How floats are kept between operations. Arithmetic is in single precision in either case: sums in fp16 lose too
    much, and storing fp16 needs no extension."""

    FP32 = "fp32"
    FP16 = "fp16"
    """Constants and intermediates are stored as fp16, but for those that would lose too much; inputs, outputs and
    state keep their declared types."""


@dataclass(frozen=True)
class DeviceTraits:
    """An OpenCL device as far as kernels depend on it.

    Parameters
    ----------
    kind
        "cpu": work-groups are loops over vectors, and local memory is ordinary memory. "gpu": work-groups are threads
        side by side, and local memory is fast.
    vector_width
        Floats in a vector register of a CPU.
    local_bytes
        Local memory of a work-group.
    max_group
        The most work-items of a work-group.
    compute_units
        Work-groups that run at a time, or processors that share them.
    alignment
        What the addresses of memory objects are a multiple of, in bytes (CL_DEVICE_MEM_BASE_ADDR_ALIGN / 8).
    largest_allocation
        Bytes of the largest memory object.
    """

    kind: Literal["cpu", "gpu"] = "cpu"
    vector_width: int = 8
    local_bytes: int = 32 << 10
    max_group: int = 256
    compute_units: int = 1
    alignment: int = 128
    largest_allocation: int = 1 << 32
