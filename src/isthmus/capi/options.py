"""Custom configs and properties of the back ends: what clients in C pass, and what it means in Python.

What has a meaning here is set. What has none on a machine without the accelerator (clocks, on-chip memory, vector
threads) is understood and said in the log. What HTP's own library takes under a number whose name is not public is
ignored, with a warning; what no back end knows is refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from isthmus import qnn
from isthmus.cabi.client import checked, pointer, read, text, write, write_number
from isthmus.cabi.custom import (
    GpuGraphConfig,
    HtpContextConfig,
    HtpContextOption,
    HtpDeviceConfig,
    HtpDeviceOption,
    HtpGraphConfig,
    HtpGraphOption,
    LpaiAlignment,
    LpaiCoreAffinity,
    LpaiCustom,
    LpaiMem,
    LpaiPerfCfg,
    LpaiPrepare,
)
from isthmus.cabi.objects import Property
from isthmus.cabi.types import UNDEFINED
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel
from isthmus.qnn import gpu, lpai

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

_CUSTOM = 0
Settings = dict[Any, Any]


def _member(kind: type[IntEnum], number: int, noun: str, code: Code) -> IntEnum:
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{each.name} {int(each)}" for each in kind)
        raise QnnError(code, noun, f"it has no option {number}; it has {known}") from None


# -- graphs ------------------------------------------------------------------------------------------------------------


def graph_settings(server: LibraryServer, custom: int) -> Settings:
    """What a custom config of a graph sets."""
    return _GRAPH.get(server.backend_name, _nothing)(server, checked(custom))


def _nothing(server: LibraryServer, custom: int) -> Settings:
    server.say(LogLevel.INFO, "a custom config of a graph: it means nothing here")
    return {}


_FIELDS = {
    HtpGraphOption.OPTIMIZATION: lambda c: f"{c.optimizationOption.type} = {c.optimizationOption.floatValue:g}",
    HtpGraphOption.PRECISION: lambda c: {0: "FLOAT32", 1: "FLOAT16"}.get(c.precision, c.precision),
    HtpGraphOption.VTCM_SIZE_IN_MB: lambda c: c.vtcmSizeInMB,
    HtpGraphOption.NUM_HVX_THREADS: lambda c: c.numHvxThreads,
    HtpGraphOption.NUM_CORES: lambda c: c.numCores,
    HtpGraphOption.VTCM_SIZE_IN_BYTES: lambda c: c.vtcmSizeInBytes,
}


def _htp_graph(server: LibraryServer, custom: int) -> Settings:
    config = read(custom, HtpGraphConfig)
    if config.option not in list(HtpGraphOption) and config.option != UNDEFINED:
        # HTP's own library takes graph options of any number.
        return _ignored(server, "graph", config.option)
    option = _member(HtpGraphOption, config.option, "HTP graph", Code.GRAPH_INVALID_ARGUMENT)
    shown = _FIELDS.get(option, lambda c: c.foldReluActivationIntoConvOff)(config)  # type: ignore[call-overload]
    server.say(LogLevel.INFO, f"HTP graph option {option.name} = {shown}: understood, and without effect here")
    return {}


def _ignored(server: LibraryServer, noun: str, option: int) -> Settings:
    server.say(LogLevel.WARN, f"HTP {noun} option {option} is not known here, and ignored")
    return {}


def _lpai_mem(address: int) -> lpai.Mem:
    given = read(address, LpaiMem)
    return lpai.Mem(given.memType, given.size, given.addr or 0)


def _lpai_perf(address: int) -> lpai.PerfCfg:
    given = read(address, LpaiPerfCfg)
    return lpai.PerfCfg(given.fps, given.ftrtRatio, given.clientType)


def _lpai_affinity(address: int) -> lpai.CoreAffinity:
    given = read(address, LpaiCoreAffinity)
    return lpai.CoreAffinity(given.affinity, given.coreSelection)


def _lpai_prepare(address: int) -> lpai.Prepare:
    given = read(address, LpaiPrepare)
    return lpai.Prepare(bool(given.enableBatchnormFold), bool(given.excludeIo))


_LPAI_GRAPH: dict[IntEnum, Callable[[int], Any]] = {
    lpai.GraphConfig.SCRATCH_MEM: _lpai_mem,
    lpai.GraphConfig.PERSISTENT_MEM: _lpai_mem,
    lpai.GraphConfig.PERF_CFG: _lpai_perf,
    lpai.GraphConfig.CORE_AFFINITY: _lpai_affinity,
    lpai.GraphConfig.PREPARE: _lpai_prepare,
    lpai.GraphConfig.RESET_STATE: lambda address: None,
}


def _lpai_graph(server: LibraryServer, custom: int) -> Settings:
    config = read(custom, LpaiCustom)
    option = _member(lpai.GraphConfig, config.option, "LPAI graph", Code.GRAPH_INVALID_ARGUMENT)
    return {option: _LPAI_GRAPH[option](config.value or 0)}


def _gpu_graph(server: LibraryServer, custom: int) -> Settings:
    config = read(custom, GpuGraphConfig)
    return {
        gpu.GraphConfig.PRECISION: config.precision,
        gpu.GraphConfig.DISABLE_MEMORY_OPTIMIZATIONS: config.disableMemoryOptimizations,
        gpu.GraphConfig.DISABLE_NODE_OPTIMIZATIONS: config.disableNodeOptimizations,
        gpu.GraphConfig.DISABLE_QUEUE_RECORDING: config.disableQueueRecording,
    }


_GRAPH: dict[str, Callable[[LibraryServer, int], Settings]] = {
    "gpu": _gpu_graph, "htp": _htp_graph, "lpai": _lpai_graph,
}  # fmt: skip


# -- contexts and devices ----------------------------------------------------------------------------------------------


_UNNAMED_CONTEXT_OPTIONS = frozenset((13, 18, 20, 23, 26))
"""Options of contexts that HTP's own library takes, and whose names are not public."""


def context_settings(server: LibraryServer, custom: int) -> Settings:
    """What a custom config of a context sets."""
    address = checked(custom)
    if server.backend_name == "htp":
        config = read(address, HtpContextConfig)
        if config.option in _UNNAMED_CONTEXT_OPTIONS:
            return _ignored(server, "context", config.option)
        option = _member(HtpContextOption, config.option, "HTP context", Code.CONTEXT_INVALID_CONFIG)
        server.say(LogLevel.INFO, f"HTP context option {option.name}: understood, and without effect here")
        return {}
    if server.backend_name == "lpai":
        given = read(address, LpaiCustom)
        known = _member(lpai.ContextConfig, given.option, "LPAI context", Code.CONTEXT_INVALID_CONFIG)
        if known == lpai.ENABLE_ISLAND:
            named = text(given.value or 0)
            if named is not None:
                server.say(LogLevel.INFO, f"graph '{named}' is to run in an island: so do all of its context")
            return {lpai.ENABLE_ISLAND: True}
        return {lpai.MODEL_BUFFER_MEM_TYPE: read(given.value or 0, ctypes.c_uint32).value}
    server.say(LogLevel.INFO, "a custom config of a context: it means nothing here")
    return {}


_DEVICE_FIELDS: dict[IntEnum, Callable[[HtpDeviceConfig], Any]] = {
    HtpDeviceOption.SOC: lambda c: c.socModel,
    HtpDeviceOption.ARCH: lambda c: f"v{c.arch.arch} of device {c.arch.deviceId}",
    HtpDeviceOption.SIGNEDPD: lambda c: c.useSignedProcessDomain.useSignedProcessDomain,
}


def note_device_config(server: LibraryServer, custom: int) -> None:
    """Say what a client wants of a device that this is not."""
    if server.backend_name != "htp":
        server.say(LogLevel.INFO, "a custom config of a device: it means nothing here")
        return
    config = read(checked(custom), HtpDeviceConfig)
    option = _member(HtpDeviceOption, config.option, "HTP device", Code.DEVICE_INVALID_CONFIG)
    shown = _DEVICE_FIELDS[option](config)
    server.say(LogLevel.INFO, f"HTP device option {option.name} = {shown}: understood, and without effect here")


# -- properties --------------------------------------------------------------------------------------------------------


def get_property(server: LibraryServer, owner: Any, given: Property) -> None:
    """Answer a custom property of a back end, a context or a graph, where the client wants it."""
    code = {qnn.Backend: Code.BACKEND_NOT_SUPPORTED, qnn.Context: Code.CONTEXT_INVALID_ARGUMENT}.get(
        type(owner), Code.GRAPH_INVALID_ARGUMENT
    )
    if given.option != _CUSTOM:
        raise QnnError(code, owner._what, f"it has no property {given.option}")
    if server.backend_name != "lpai":
        raise QnnError(code, owner._what, "it has no custom properties")
    asked = read(checked(given.customProperty or 0), LpaiCustom)
    value = owner.get_property(int(asked.option))
    where = checked(pointer(asked, "value"))
    if isinstance(value, lpai.BufferAlignmentReq):
        write(where, LpaiAlignment(value.start_addr_alignment, value.size_alignment))
    elif isinstance(value, bool):
        write_number(where, value, ctypes.c_uint8)
    elif isinstance(value, int):
        write_number(where, value, ctypes.c_uint32)
    else:
        raise QnnError(code, owner._what, f"property {asked.option} cannot be answered in C")
