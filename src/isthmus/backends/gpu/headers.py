"""The GPU's headers for C: its options, structures and their initial values, each declared once."""

from __future__ import annotations

from isthmus.backends.gpu import options
from isthmus.backends.gpu.options import GRAPH_OPTIONS, GpuGraphOption
from isthmus.cabi.layout import Enumeration, Header, Structure


def field(option: GpuGraphOption) -> str:
    """Name the field of a graph option in QNN's structure: DISABLE_QUEUE_RECORDING is disableQueueRecording."""
    first, *others = option.name.lower().split("_")
    return first + "".join(map(str.capitalize, others))


_BACKEND_OPTIONS = Enumeration(
    "QnnGpuBackend_ConfigOption_t", "QNN_GPU_BACKEND_CONFIG_OPTION", options.GpuBackendOption
)
BACKEND_CONFIG = Structure(
    "QnnGpuBackend_CustomConfig_t",
    "QnnGpuBackend_ConfigOption_t option; union { uint8_t enableTuningMode; const char *performanceCacheDir;"
    " uint8_t invalidatePerformanceCache, weightSharingEnabled; };",
    "{QNN_GPU_BACKEND_CONFIG_OPTION_UNDEFINED, {0}}",
)
_BACKEND = Header(
    "GPU/QnnGpuBackend.h",
    "The GPU's backend configs, behind QnnBackend_CustomConfig_t.",
    ("../QnnBackend.h",),
    (_BACKEND_OPTIONS, BACKEND_CONFIG),
)

_CONTEXT_OPTIONS = Enumeration(
    "QnnGpuContext_ConfigOption_t", "QNN_GPU_CONTEXT_CONFIG_OPTION", options.GpuContextOption
)
_PERF_HINTS = Enumeration("QnnGpuContext_PerfHint_t", "QNN_GPU_CONTEXT_PERF_HINT", options.PerfHint, undefined="")
CONTEXT_CONFIG = Structure(
    "QnnGpuContext_CustomConfig_t",
    "QnnGpuContext_ConfigOption_t option; union { QnnGpuContext_PerfHint_t perfHint; uint8_t useGLBuffers;"
    " const char *kernelRepoDir; uint8_t invalidateKernelRepo; };",
    "{QNN_GPU_CONTEXT_CONFIG_OPTION_UNDEFINED, {QNN_GPU_CONTEXT_PERF_HINT_HIGH}}",
)
_CONTEXT = Header(
    "GPU/QnnGpuContext.h",
    "The GPU's context configs, behind QnnContext_CustomConfig_t.",
    ("../QnnContext.h",),
    (_CONTEXT_OPTIONS, _PERF_HINTS, CONTEXT_CONFIG),
)

_PRECISIONS = Enumeration("QnnGpu_Precision_t", "QNN_GPU_PRECISION", options.PrecisionMode, undefined="")
GRAPH_CONFIG = Structure(
    "QnnGpuGraph_CustomConfig_t",
    " ".join(
        f"{'uint8_t' if rule.is_flag else _PRECISIONS.name} {field(option)};" for option, rule in GRAPH_OPTIONS.items()
    ),
    "{QNN_GPU_PRECISION_USER_PROVIDED, 0, 0, 0}",
)
_GRAPH = Header(
    "GPU/QnnGpuGraph.h",
    "The GPU's graph config, behind QnnGraph_CustomConfig_t.",
    ("../QnnGraph.h",),
    (_PRECISIONS, GRAPH_CONFIG),
)

HEADERS = (_BACKEND, _CONTEXT, _GRAPH)
