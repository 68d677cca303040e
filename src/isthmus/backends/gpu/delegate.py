"""The GPU backend for the TFLite delegate: its options under the names of QNN's header."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from isthmus.backends.seam.facets import BackendOptions, DelegateFacet


class GpuPerformanceMode(IntEnum):
    """TfLiteQnnDelegateGpuPerformanceMode."""

    DEFAULT = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


class GpuPrecision(IntEnum):
    """TfLiteQnnDelegateGpuPrecision."""

    USER_PROVIDED = 0
    FP32 = 1
    FP16 = 2
    HYBRID = 3


@dataclass
class GpuOptions(BackendOptions):
    """TfLiteQnnDelegateGpuBackendOptions, with the defaults of QNN's header."""

    performance_mode: GpuPerformanceMode = GpuPerformanceMode.DEFAULT
    precision: GpuPrecision = GpuPrecision.FP16


FACET = DelegateFacet(
    number=1,
    config=lambda options: {"precision_mode": options.precision.name.lower()},
    without_effect={"performance_mode": "OpenCL has no clocks to set"},
    capabilities=(2,),  # kCapGpuRuntime
)
