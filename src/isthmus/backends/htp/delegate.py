"""HTP for the TFLite delegate: its options under the names of QNN's header, and how it uses an interpreter's memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from isthmus.backends.htp.options import HtpDescriptor
from isthmus.backends.seam.facets import BackendOptions, DelegateFacet


class HtpPerformanceMode(IntEnum):
    """TfLiteQnnDelegateHtpPerformanceMode."""

    DEFAULT = 0
    SUSTAINED_HIGH_PERFORMANCE = 1
    BURST = 2
    HIGH_PERFORMANCE = 3
    POWER_SAVER = 4
    LOW_POWER_SAVER = 5
    HIGH_POWER_SAVER = 6
    LOW_BALANCED = 7
    BALANCED = 8
    EXTREME_POWER_SAVER = 9


class HtpPrecision(IntEnum):
    """TfLiteQnnDelegateHtpPrecision."""

    QUANTIZED = 0
    FP16 = 1


@dataclass
class HtpOptions(BackendOptions):
    """TfLiteQnnDelegateHtpBackendOptions."""

    performance_mode: HtpPerformanceMode = HtpPerformanceMode.DEFAULT
    precision: HtpPrecision = HtpPrecision.QUANTIZED


FACET = DelegateFacet(
    number=2,
    shared_memory=lambda buffer, offset: HtpDescriptor(buffer.nbytes, buffer.fd or -1, offset),
    priority=True,
    config=lambda options: {"htp": {"precision": "float16"}} if options.precision is HtpPrecision.FP16 else {},
    without_effect={
        "performance_mode": "the accelerator here is a process, and has no clocks to set",
    },
    performance_modes=HtpPerformanceMode,
    capabilities=(0, 1),  # kCapHtpRuntimeQuant, kCapHtpRuntimeFp16
)
