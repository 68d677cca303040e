"""HTP in C: its structures as QNN's headers declare them, and their meaning here.

Most options concern hardware that this machine does not have (clocks, on-chip memory, vector threads): they are logged
and change nothing. Option numbers that HTP's own library accepts without a public name are ignored with a warning.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_bool, c_int32, c_size_t, c_uint32, c_uint64
from enum import IntEnum
from typing import Any

from isthmus.backends.htp import BACKEND_ID, INTERFACE_VERSION
from isthmus.backends.htp.headers import DEVICE_CONFIG, EARLIER_DEVICE_CONFIG, GRAPH_CONFIG, HEADERS, HtpDeviceOption
from isthmus.backends.htp.options import HtpConfig, HtpDescriptor, HtpGraphConfigOption, HtpGraphOption, HtpMemType
from isthmus.backends.seam.facets import CFacet, LogFunction, option_of
from isthmus.cabi.client import BadPointer, read
from isthmus.cabi.types import UNDEFINED
from isthmus.errors import Code
from isthmus.log import LogLevel

ARCHITECTURE = 73
"""The Hexagon version that the device reports. It is our choice and has no effect."""
VTCM_MB = 8
"""The on-chip memory that the device reports, in megabytes. It is our choice and has no effect."""
MAX_SOC_MODEL = 4095
"""The limit of numbers that may be a chip's. What is left of an address in the gap of a structure is larger."""
MIN_ARCHITECTURE, MAX_ARCHITECTURE = 60, 255
"""The limits of numbers that may be a Hexagon version."""
# Context options that HTP's own library accepts and whose names are not public.
_UNNAMED_CONTEXT_OPTIONS = frozenset((13, 18, 20, 23, 26))


class HtpContextOption(IntEnum):
    """QNN_HTP_CONTEXT_CONFIG_OPTION_*."""

    WEIGHT_SHARING_ENABLED = 1
    REGISTER_MULTI_CONTEXTS = 2
    FILE_READ_MEMORY_BUDGET = 3
    DSP_MEMORY_PROFILING_ENABLED = 4
    SHARE_RESOURCES = 5
    IO_MEM_ESTIMATION = 6
    PREPARE_ONLY = 7
    INIT_ACCELERATION = 8
    SKIP_VALIDATION_ON_BINARY_SECTION = 9
    SHARE_RESOURCES_OPTIMIZATION_TYPE = 10
    USE_EXTENDED_UDMA = 11
    REGISTER_CONCURRENT_RESOURCE_SHARING = 12
    REUSED_IO_LIMIT = 17
    GRAPH_SPLITTING_CONFIGS = 22


class HtpPowerOption(IntEnum):
    """QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_*."""

    DCVS_V3 = 1
    RPC_CONTROL_LATENCY = 2
    RPC_POLLING_TIME = 3
    HMX_TIMEOUT_INTERVAL_US = 4


HtpGraphConfig: Any = GRAPH_CONFIG.ctype
"""QnnHtpGraph_CustomConfig_t."""
HtpDeviceConfig: Any = DEVICE_CONFIG.ctype
"""QnnHtpDevice_CustomConfig_t."""
EarlierHtpDeviceConfig: Any = EARLIER_DEVICE_CONFIG.ctype
"""The same in earlier headers, shorter by 4 bytes."""


class HtpOnChipDevice(ctypes.Structure):
    """QnnHtpDevice_OnChipDeviceInfoExtension_t."""

    _fields_ = [
        ("vtcmSize", c_size_t),
        ("socModel", c_uint32),
        ("signedPdSupport", c_bool),
        ("dlbcSupport", c_bool),
        ("arch", c_uint32),
    ]


class HtpDeviceInfoExtension(ctypes.Structure):
    """QnnHtpDevice_DeviceInfoExtension_t."""

    _fields_ = [("devType", c_uint32), ("onChipDevice", HtpOnChipDevice)]


class HtpSharedBuffer(ctypes.Structure):
    """QnnHtpMem_SharedBufferConfig_t."""

    _fields_ = [("fd", c_int32), ("offset", c_uint64)]


class HtpMemUnion(ctypes.Union):
    """The location of HTP's memory."""

    _fields_ = [("qurtAddress", c_uint32), ("sharedBufferConfig", HtpSharedBuffer)]


class HtpMemDescriptor(ctypes.Structure):
    """QnnMemHtp_Descriptor_t."""

    _anonymous_ = ("place",)
    _fields_ = [("type", c_uint32), ("size", c_uint64), ("place", HtpMemUnion)]


# The readers of values, for the log.
_DEVICE_VALUES: dict[IntEnum, Callable[[Any], Any]] = {
    HtpDeviceOption.SOC: lambda c: c.socModel,
    HtpDeviceOption.ARCH: lambda c: f"v{c.arch.arch} of device {c.arch.deviceId}",
    HtpDeviceOption.SIGNEDPD: lambda c: c.useSignedProcessDomain.useSignedProcessDomain,
    HtpDeviceOption.SECUREPD: lambda c: c.useSecureProcessDomain.useSecureProcessDomain,
    HtpDeviceOption.ASYNC_EXECUTE: lambda c: c.asyncExecute.enableAsyncExecute,
    HtpDeviceOption.HTP_EXTENSION: lambda c: "a structure without a public name",
}


def _memory(address: int) -> HtpDescriptor:
    """Read a custom memory descriptor; an unknown memory type remains a number, which the registration refuses."""
    structure = read(address, HtpMemDescriptor)
    place = structure.sharedBufferConfig
    kind = next((known for known in HtpMemType if known == structure.type), structure.type)
    return HtpDescriptor(structure.size, place.fd, place.offset, kind)


def _graph(address: int, log: LogFunction) -> dict[Any, Any]:
    """Read and log a custom config of a graph. Like those of contexts and devices, it results in no settings."""
    config = read(address, HtpGraphConfig)
    if config.option not in list(HtpGraphOption) and config.option != UNDEFINED:
        # HTP's own library accepts graph options with any number.
        return _warn_unknown("graph", config.option, log)
    option = option_of(HtpGraphOption, config.option, "HTP graph", Code.GRAPH_INVALID_ARGUMENT)
    assert isinstance(option, HtpGraphOption)
    if option in list(HtpGraphConfigOption):
        default = getattr(HtpConfig, option.name.lower())
        noun, number = f"HTP {option.name.lower()}", getattr(config, option.field)
        value = option_of(type(default), number, noun, Code.GRAPH_INVALID_ARGUMENT)
        log(LogLevel.INFO, f"HTP graph option {option.name} = {value.name}")
        return {HtpGraphConfigOption(option): value}
    return _log_unused(f"graph option {option.name} = {option.show(config)}", log)


def _context(address: int, log: LogFunction) -> dict[Any, Any]:
    """Read and log a custom config of a context."""
    number = read(address, c_uint32).value  # QnnHtpContext_CustomConfig_t begins with its option
    if number in _UNNAMED_CONTEXT_OPTIONS:
        return _warn_unknown("context", number, log)
    option = option_of(HtpContextOption, number, "HTP context", Code.CONTEXT_INVALID_CONFIG)
    return _log_unused(f"context option {option.name}", log)


def _device(address: int, log: LogFunction) -> dict[Any, Any]:
    """Read and log a custom config of a device."""
    number = read(address, c_uint32).value
    option = option_of(HtpDeviceOption, number, "HTP device", Code.DEVICE_INVALID_CONFIG)
    value = _DEVICE_VALUES[option](_device_config(address, option))
    return _log_unused(f"device option {option.name} = {value}", log)


def _device_config(address: int, option: IntEnum) -> Any:
    """Read a config of a device in the layout that its value shows.

    Both layouts have 12 bytes, so these are read first. A value that is sensible in the earlier layout decides for it,
    unless it may be what happens to be in the gap of the later one. If the memory ends there, it is the earlier one,
    which has three options.
    """
    if option > HtpDeviceOption.SIGNEDPD:
        return read(address, HtpDeviceConfig)
    earlier = read(address, EarlierHtpDeviceConfig)
    # The second word, as the later layout begins its value with it.
    following = earlier.arch.arch
    if option is HtpDeviceOption.SOC:
        is_earlier = 0 < earlier.socModel <= MAX_SOC_MODEL and not 0 < following <= MAX_SOC_MODEL
    elif option is HtpDeviceOption.ARCH:
        # A client numbers its devices from 0, so that no number of a device looks like an architecture.
        is_earlier = MIN_ARCHITECTURE <= following <= MAX_ARCHITECTURE
    else:
        is_earlier = earlier.useSignedProcessDomain.deviceId == 0 and following & 0xFF == 1
    try:
        return earlier if is_earlier else read(address, HtpDeviceConfig)
    except BadPointer:
        return earlier


def _log_unused(option: str, log: LogFunction) -> dict[Any, Any]:
    """Log an option that has no effect; return its settings: none."""
    log(LogLevel.INFO, f"HTP {option}: accepted, but without effect here")
    return {}


def _warn_unknown(noun: str, option: int, log: LogFunction) -> dict[Any, Any]:
    """Warn of an option without a public name; return its settings: none."""
    log(LogLevel.WARN, f"HTP {noun} option {option} is unknown here and ignored")
    return {}


FACET = CFacet(
    BACKEND_ID,
    INTERFACE_VERSION,
    capabilities=frozenset({502, 1101, 1102, 1103, 1104, 1502}),  # memory handles of all kinds, device infrastructure
    memory=_memory,
    configs={"graph": _graph, "context": _context, "device": _device},
    device_info=lambda: HtpDeviceInfoExtension(0, HtpOnChipDevice(VTCM_MB, 0, False, False, ARCHITECTURE)),
    power_options=HtpPowerOption,
    headers={header.file: header.text for header in HEADERS},
)
