"""The GPU backend in C: its structures as QNN's headers declare them, and what they mean here."""

from __future__ import annotations

import ctypes
from ctypes import c_uint8, c_uint32, c_void_p
from typing import Any

from isthmus.backends.gpu import BACKEND_ID, INTERFACE_VERSION, options
from isthmus.backends.gpu.options import GRAPH_OPTIONS, GpuGraphOption, GpuMemType
from isthmus.backends.seam.facets import CFacet, LogFunction
from isthmus.cabi.client import read


class GpuMemInfo(ctypes.Structure):
    """QnnGpu_MemInfoCustom_t: OpenCL (0) is the only kind."""

    _fields_ = [("memType", c_uint32), ("buffer", c_void_p)]


def _field(option: GpuGraphOption) -> str:
    """Name the field of an option in QNN's structure: DISABLE_QUEUE_RECORDING is disableQueueRecording."""
    first, *others = option.name.lower().split("_")
    return first + "".join(map(str.capitalize, others))


class GpuGraphConfig(ctypes.Structure):
    """QnnGpuGraph_CustomConfig_t."""

    _fields_ = [(_field(option), c_uint8 if rule.is_flag else c_uint32) for option, rule in GRAPH_OPTIONS.items()]


def _memory(address: int) -> options.GpuMemInfo:
    """Convert the structure at an address; a type that QNN does not define stays a number, and is refused later."""
    structure = read(address, GpuMemInfo)
    kind = next((known for known in GpuMemType if known == structure.memType), structure.memType)
    return options.GpuMemInfo(kind, structure.buffer)


def _graph(address: int, log: LogFunction) -> dict[Any, Any]:
    """Return the values of all graph options from the structure at an address; nothing is logged."""
    config = read(address, GpuGraphConfig)
    return {option: getattr(config, _field(option)) for option in GRAPH_OPTIONS}


FACET = CFacet(
    BACKEND_ID,
    INTERFACE_VERSION,
    capabilities=frozenset({502, 1101, 1103}),  # custom memory handles
    # Only a client's buffers tell which OpenCL context they belong to.
    config={"gpu": {"follow_client": True}},
    memory=_memory,
    configs={"graph": _graph},
    hints=((r"\bqnn\.gpu\.allocate makes it for a backend", "clCreateBuffer makes it, in the context of the others"),),
)
