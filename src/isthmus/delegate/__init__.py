"""A TFLite delegate: it runs nodes of a LiteRT interpreter on QNN's backends, in memory shared with the accelerator.

It needs LiteRT (``pip install isthmus[delegate]``). `c_names` has the functions of QNN's header.
"""

from isthmus.backends.gpu.delegate import GpuOptions, GpuPerformanceMode, GpuPrecision
from isthmus.backends.htp.delegate import HtpOptions, HtpPerformanceMode, HtpPrecision
from isthmus.delegate.custom_memory import CustomMemory
from isthmus.delegate.delegate import Delegation, QnnDelegate
from isthmus.delegate.interpreter import CustomAllocation, modify_graph_with_delegate, set_custom_allocation
from isthmus.delegate.options import BackendType, DelegateLogLevel, GraphPriority, Options, Profiling, SkipOptions
from isthmus.delegate.structures import DEFAULT_TENSOR_ALIGNMENT

__all__ = [
    "DEFAULT_TENSOR_ALIGNMENT",
    "BackendType",
    "CustomAllocation",
    "CustomMemory",
    "DelegateLogLevel",
    "Delegation",
    "GpuOptions",
    "GpuPerformanceMode",
    "GpuPrecision",
    "GraphPriority",
    "HtpOptions",
    "HtpPerformanceMode",
    "HtpPrecision",
    "Options",
    "Profiling",
    "QnnDelegate",
    "SkipOptions",
    "modify_graph_with_delegate",
    "set_custom_allocation",
]
