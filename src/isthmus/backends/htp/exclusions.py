"""What custom configs turn on, and what excludes what by Qualcomm's documents: for the validation of calls."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

from isthmus.backends.htp.headers import CONTEXT_CONFIG, GRAPH_CONFIG
from isthmus.backends.htp.options import (
    DEFAULT_VTCM_MB,
    HtpContextOption,
    HtpGraphOption,
    HtpMemType,
    HtpOptimization,
)
from isthmus.backends.seam.facets import Feature
from isthmus.cabi.client import read

GROUP = "a group with one spill-fill buffer (REGISTER_MULTI_CONTEXTS)"
CONCURRENT = "a concurrent group (REGISTER_CONCURRENT_RESOURCE_SHARING)"
RESOURCES = "shared resources (SHARE_RESOURCES)"
_TYPE = "SHARE_RESOURCES_OPTIMIZATION_TYPE"
SEQUENTIAL = f"shared resources with optimized addresses ({_TYPE} 0)"
IN_TURN = f"shared resources of graphs that take turns ({_TYPE} 0 or 1)"
AT_ONCE = f"shared resources of concurrent graphs ({_TYPE} 2)"
SHARED_WEIGHTS = "shared weights (WEIGHT_SHARING_ENABLED)"
ESTIMATION = "an estimate with I/O (IO_MEM_ESTIMATION)"
REUSED_IO = "a limit of I/O (REUSED_IO_LIMIT)"
PARALLEL_LOADING = "parallel loading of weights (PARALLEL_WEIGHT_LOADING)"
UDMA = "extended UDMA (USE_EXTENDED_UDMA)"
DLBC = "DLBC of activations"
DLBC_WEIGHTS = "DLBC of weights"
CORES = "several cores (NUM_CORES)"
PARALLEL_GRAPHS = "parallel graphs (PARALLEL_GRAPH_EXECUTION_CONFIG)"
VTCM = "bytes of VTCM"
CHIP = "chip"
LINTING = "a profile of the level linting"
WEIGHTS_BUFFER = "a weights buffer of the client's"
SPILL_FILL_BUFFER = "a spill-fill buffer of the client's"
MAX_DLBC = 32
"""How many graphs of a context may have DLBC; half as many where each has both kinds."""
# QNN_HTP_PROFILE_LEVEL_LINTING.
_LINTING_LEVEL = 7001
_MB = 1 << 20
# The options of contexts that are on or off.
_OF_CONTEXTS: dict[int, str] = {
    HtpContextOption.SHARE_RESOURCES: RESOURCES,
    HtpContextOption.WEIGHT_SHARING_ENABLED: SHARED_WEIGHTS,
    HtpContextOption.IO_MEM_ESTIMATION: ESTIMATION,
    HtpContextOption.USE_EXTENDED_UDMA: UDMA,
}
_OF_OPTIMIZATIONS: dict[int, str] = {
    HtpOptimization.ENABLE_DLBC: DLBC,
    HtpOptimization.ENABLE_DLBC_WEIGHTS: DLBC_WEIGHTS,
}
# The buffers of the client's, by kind of memory.
_CLIENTS: dict[int, str] = {
    HtpMemType.WEIGHTS_BUFFER: WEIGHTS_BUFFER,
    HtpMemType.SHARED_SPILLFILL_BUFFER: SPILL_FILL_BUFFER,
    # Graphs may share it and execute at once.
    HtpMemType.SHARED_VTCMBACKUP_BUFFER: "",
}
EXCLUSIONS: tuple[tuple[str, str], ...] = (
    *((RESOURCES, each) for each in (Feature.SWITCHING, Feature.RETENTION, GROUP, CONCURRENT, Feature.BATCH)),
    *((RESOURCES, each) for each in (Feature.COMPOSED, Feature.SINGLE)),
    *((Feature.LIST, each) for each in (Feature.SWITCHING, Feature.RETENTION, GROUP, CONCURRENT, Feature.BATCH)),
    *((Feature.CALLBACKS, each) for each in (Feature.DEFERRED, Feature.SWITCHING, UDMA, SEQUENTIAL)),
    *((Feature.BUFFERS, each) for each in (GROUP, Feature.SWITCHING, UDMA)),
    *((GROUP, each) for each in (Feature.COMPOSED, DLBC, CORES)),
    *((CONCURRENT, each) for each in (Feature.COMPOSED, DLBC, CORES, Feature.OTHER_PRIORITY)),
    *((SHARED_WEIGHTS, each) for each in (DLBC_WEIGHTS, CORES)),
    *((CORES, each) for each in (Feature.SWITCHING, Feature.ENABLED, Feature.SIGNAL, LINTING)),
    *((PARALLEL_GRAPHS, each) for each in (CORES, GROUP, CONCURRENT)),
    (AT_ONCE, CORES),
    (ESTIMATION, PARALLEL_LOADING),
)
"""Pairs that exclude each other, where the calls of a client show both."""
ALONE = (GROUP, IN_TURN, WEIGHTS_BUFFER, SPILL_FILL_BUFFER)
"""What graphs that execute at once must not have in common."""
ALIKE = ((SHARED_WEIGHTS, VTCM, DEFAULT_VTCM_MB * _MB), (SHARED_WEIGHTS, CHIP, 0))
"""What graphs must have in common."""
LIMITS = (((DLBC, DLBC_WEIGHTS), MAX_DLBC),)


def features(kind: str, address: int) -> Mapping[str, int]:
    """Return what a custom config, a custom memory descriptor or a level of profiling turns on (`CFacet`)."""
    if kind == "profile":
        return {LINTING: 1} if address == _LINTING_LEVEL else {}
    if kind == "memory":
        return _of_memory(address)
    option = read(address, ctypes.c_uint32).value
    return _of_context(option, address) if kind == "context" else _of_graph(option, address)


def combine(found: Mapping[str, int]) -> Mapping[str, int]:
    """Return features with what a type of sharing means: the type is 0 by default, and nothing without sharing."""
    rest = {name: value for name, value in found.items() if name != _TYPE}
    if RESOURCES not in found:
        return rest
    kind = found.get(_TYPE, 0)
    names = (SEQUENTIAL,) * (kind == 0) + ((IN_TURN,) if kind in (0, 1) else (AT_ONCE,))
    return rest | dict.fromkeys(names, found[RESOURCES])


def _of_memory(address: int) -> Mapping[str, int]:
    # The descriptor begins with its kind; the buffer's file descriptor is at 16. Its file tells buffers apart.
    kind = read(address, ctypes.c_uint32).value
    if kind not in _CLIENTS:
        return {}
    try:
        file = os.fstat(read(address + 16, ctypes.c_int32).value).st_ino
    except OSError:
        file = 0
    return {Feature.BUFFERS: 1} | ({_CLIENTS[kind]: file} if _CLIENTS[kind] else {})


def _of_context(option: int, address: int) -> Mapping[str, int]:
    value = address + CONTEXT_CONFIG.weightSharingEnabled.offset
    if option in _OF_CONTEXTS:
        return {_OF_CONTEXTS[option]: 1} if read(value, ctypes.c_uint8).value else {}
    if option in (HtpContextOption.REGISTER_MULTI_CONTEXTS, HtpContextOption.REGISTER_CONCURRENT_RESOURCE_SHARING):
        name = GROUP if option == HtpContextOption.REGISTER_MULTI_CONTEXTS else CONCURRENT
        return {name: read(value, ctypes.c_uint64).value}
    if option == HtpContextOption.REUSED_IO_LIMIT:
        limit = read(value, ctypes.c_uint64).value
        return {REUSED_IO: limit * _MB} if limit else {}
    number = read(value, ctypes.c_uint32).value
    if option == HtpContextOption.SHARE_RESOURCES_OPTIMIZATION_TYPE:
        return {_TYPE: number}
    # The mode 2 is off.
    return {PARALLEL_LOADING: 1} if option == HtpContextOption.PARALLEL_WEIGHT_LOADING and number != 2 else {}


def _of_graph(option: int, address: int) -> Mapping[str, int]:
    config = read(address, GRAPH_CONFIG)
    if option == HtpGraphOption.NUM_CORES:
        return {CORES: 1} if config.numCores > 1 else {}
    if option == HtpGraphOption.PARALLEL_GRAPH_EXECUTION_CONFIG:
        return {PARALLEL_GRAPHS: 1} if config.parallelGraphExecutionConfig.concurrency else {}
    if option in (HtpGraphOption.VTCM_SIZE_IN_MB, HtpGraphOption.VTCM_SIZE_IN_BYTES):
        is_bytes = option == HtpGraphOption.VTCM_SIZE_IN_BYTES
        return {VTCM: config.vtcmSizeInBytes if is_bytes else config.vtcmSizeInMB * _MB}
    kind, value = config.optimizationOption.type, config.optimizationOption.floatValue
    is_on = option == HtpGraphOption.OPTIMIZATION and value and kind in _OF_OPTIMIZATIONS
    return {_OF_OPTIMIZATIONS[kind]: 1} if is_on else {}
