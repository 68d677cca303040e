"""Traits of a device that lowering depends on, and the precision that it lowers for. The backend fills them in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal


class FloatStorage(Enum):
    """The storage of floats between operations. Arithmetic is always in single precision: sums in fp16 lose too much,
    and storing fp16 needs no extension.
    """

    FP32 = "fp32"
    FP16 = "fp16"
    """Constants and intermediates are stored as fp16, except those that would lose too much. Inputs, outputs and state
    keep their declared types.
    """


@dataclass(frozen=True)
class DeviceTraits:
    """The properties of an OpenCL device that kernels depend on.

    - `kind`: "cpu": work-groups are loops over vectors, and local memory is ordinary memory. "gpu": work-groups are
      parallel threads, and local memory is fast.
    - `vector_width`: Floats in a vector register of a CPU.
    - `local_bytes`: Bytes of local memory of a work-group.
    - `max_group`: The largest number of work-items of a work-group.
    - `compute_units`: The number of work-groups that run at a time, or of processors that share them.
    - `alignment`: The alignment of memory objects in bytes (CL_DEVICE_MEM_BASE_ADDR_ALIGN / 8).
    - `largest_allocation`: Bytes of the largest memory object.
    """

    kind: Literal["cpu", "gpu"] = "cpu"
    vector_width: int = 8
    local_bytes: int = 32 << 10
    max_group: int = 256
    compute_units: int = 1
    alignment: int = 128
    largest_allocation: int = 1 << 32
