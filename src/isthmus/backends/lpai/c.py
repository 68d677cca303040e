"""LPAI in C: its structures as QNN's headers declare them, and their meaning here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int32, c_uint8, c_uint32, c_void_p
from enum import IntEnum
from typing import Any

from isthmus.backends.lpai import BACKEND_ID, INTERFACE_VERSION, options
from isthmus.backends.lpai.options import LpaiContextOption, LpaiGraphOption
from isthmus.backends.seam.facets import CFacet, LogFunction, option_of
from isthmus.cabi.client import checked, pointer, read, text, write, write_number
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel


class LpaiCustom(ctypes.Structure):
    """QnnLpai*_CustomConfig_t and QnnLpai*_CustomProperty_t: an option, and the address of its value."""

    _fields_ = [("option", c_uint32), ("value", c_void_p)]


class LpaiAlignment(ctypes.Structure):
    """QnnLpaiBackend_BufferAlignmentReq_t."""

    _fields_ = [("startAddrAlignment", c_uint32), ("sizeAlignment", c_uint32)]


class LpaiMem(ctypes.Structure):
    """QnnLpaiGraph_Mem_t."""

    _fields_ = [("memType", c_uint32), ("size", c_uint32), ("addr", c_void_p)]


class LpaiPerfCfg(ctypes.Structure):
    """QnnLpaiGraph_PerfCfg_t."""

    _fields_ = [("fps", c_uint32), ("ftrtRatio", c_uint32), ("clientType", c_uint32)]


class LpaiCoreAffinity(ctypes.Structure):
    """QnnLpaiGraph_CoreAffinity_t."""

    _fields_ = [("affinity", c_uint32), ("coreSelection", c_uint32)]


class LpaiPrepare(ctypes.Structure):
    """QnnLpaiGraph_CustomConfigPrepare_t in its first version; later versions append members."""

    _fields_ = [
        ("enableLayerFusion", c_uint32),
        ("enableBatchnormFold", c_uint32),
        ("enableChannelAlign", c_uint32),
        ("enablePadSplit", c_uint32),
        ("excludeIo", c_uint32),
        ("enablePerLayer", c_uint32),
    ]


class LpaiMemInfo(ctypes.Structure):
    """QnnLpaiMem_MemInfoCustom_t."""

    _fields_ = [("fd", c_int32), ("offset", c_uint32)]


def _memory(address: int) -> options.MemInfo:
    """Read a custom memory descriptor."""
    structure = read(address, LpaiMemInfo)
    return options.MemInfo(structure.fd, structure.offset)


# The structure that each option of a graph points to, and how it becomes the option's value.
_GRAPH_VALUES: dict[IntEnum, tuple[type[ctypes.Structure], Callable[[Any], Any]]] = {
    LpaiGraphOption.SCRATCH_MEM: (LpaiMem, lambda c: options.Mem(c.memType, c.size, c.addr or 0)),
    LpaiGraphOption.PERSISTENT_MEM: (LpaiMem, lambda c: options.Mem(c.memType, c.size, c.addr or 0)),
    LpaiGraphOption.PERF_CFG: (LpaiPerfCfg, lambda c: options.PerfCfg(c.fps, c.ftrtRatio, c.clientType)),
    LpaiGraphOption.CORE_AFFINITY: (LpaiCoreAffinity, lambda c: options.CoreAffinity(c.affinity, c.coreSelection)),
    LpaiGraphOption.PREPARE: (LpaiPrepare, lambda c: options.Prepare(bool(c.enableBatchnormFold), bool(c.excludeIo))),
}


def _graph(address: int, log: LogFunction) -> dict[Any, Any]:
    """Read a custom config of a graph; return its option with its value."""
    config = read(address, LpaiCustom)
    option = option_of(LpaiGraphOption, config.option, "LPAI graph", Code.GRAPH_INVALID_ARGUMENT)
    if option is LpaiGraphOption.RESET_STATE:
        return {option: None}
    structure, convert = _GRAPH_VALUES[option]
    return {option: convert(read(config.value or 0, structure))}


def _context(address: int, log: LogFunction) -> dict[Any, Any]:
    """Read a custom config of a context; return its option with its value."""
    config = read(address, LpaiCustom)
    option = option_of(LpaiContextOption, config.option, "LPAI context", Code.CONTEXT_INVALID_CONFIG)
    if option is LpaiContextOption.MODEL_BUFFER_MEM_TYPE:
        return {option: read(config.value or 0, c_uint32).value}
    # The value of ENABLE_ISLAND is the name of a graph.
    graph_name = text(config.value or 0)
    if graph_name is not None:
        log(LogLevel.INFO, f"graph '{graph_name}' is to run in an island: so do all of its context")
    return {option: True}


def _write_property(get: Callable[[int], Any], address: int, refusal: Callable[[str], QnnError]) -> None:
    """Write a custom property where the client's structure points to. The parameters are those of
    `CFacet.write_property`.
    """
    request = read(address, LpaiCustom)
    value = get(int(request.option))
    where = checked(pointer(request, "value"))
    if isinstance(value, options.BufferAlignmentReq):
        write(where, LpaiAlignment(value.start_addr_alignment, value.size_alignment))
    elif isinstance(value, int):
        write_number(where, value, c_uint8 if isinstance(value, bool) else c_uint32)
    else:
        raise refusal(f"property {request.option} cannot be answered in C")


FACET = CFacet(
    BACKEND_ID,
    INTERFACE_VERSION,
    # Custom properties, buffers of the backend, finalization; memory handles of all kinds.
    capabilities=frozenset({108, 318, 319, 320, 502, 1101, 1102, 1103, 1104}),
    memory=_memory,
    configs={"graph": _graph, "context": _context},
    write_property=_write_property,
    allocate=lambda context, what, size: context.allocator.allocate(what, size),
    hints=(
        (r"\bset_config\((\w+), Mem\(MemType\.DDR, (\d+), buffer\)\) before finalize\(\)",
         r"graphSetConfig with QNN_LPAI_GRAPH_SET_CFG_\1 and \2 bytes of QNN_LPAI_MEM_TYPE_DDR before graphFinalize"),
        (r"\bMemType\.(DDR|TCM)\b", r"QNN_LPAI_MEM_TYPE_\1"),
    ),
)  # fmt: skip
