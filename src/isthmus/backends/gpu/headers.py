"""The GPU's structures of C, as ``headers.txt`` declares them for C and Python at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isthmus.backends.gpu import options
from isthmus.cabi.notation import declare_headers, type_named


def field(option: options.GpuGraphOption) -> str:
    """Name the field of a graph option in QNN's structure: DISABLE_QUEUE_RECORDING is disableQueueRecording."""
    first, *others = option.name.lower().split("_")
    return first + "".join(map(str.capitalize, others))


_MEMBERS = " ".join(
    f"{'uint8_t' if rule.is_flag else 'QnnGpu_Precision_t'} {field(option)};"
    for option, rule in options.GRAPH_OPTIONS.items()
)
HEADERS = declare_headers(Path(__file__).parent, {**vars(options), "GraphMembers": _MEMBERS})
MEM_INFO: Any = type_named("QnnGpu_MemInfoCustom_t")
BACKEND_CONFIG: Any = type_named("QnnGpuBackend_CustomConfig_t")
CONTEXT_CONFIG: Any = type_named("QnnGpuContext_CustomConfig_t")
GRAPH_CONFIG: Any = type_named("QnnGpuGraph_CustomConfig_t")
