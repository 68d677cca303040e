"""HTP in C: its structures as QNN's headers declare them, and their meaning here.

Most options concern hardware that this machine does not have (clocks, caches): they are logged and change nothing.
Binaries state on-chip memory, vector threads and the like. Option numbers that HTP's own library accepts without a
public name are ignored with a warning.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import c_uint32
from enum import IntEnum
from typing import Any

from isthmus.backends.htp import BACKEND_ID, INTERFACE_VERSION, exclusions, headers, without_effect
from isthmus.backends.htp.blobs import blobs
from isthmus.backends.htp.chips import chip_of
from isthmus.backends.htp.headers import HtpDeviceOption
from isthmus.backends.htp.native_kv import NATIVE_FORMAT, refuse_native
from isthmus.backends.htp.options import (
    DEFAULT_ARCHITECTURE,
    HtpContextConfigOption,
    HtpContextOption,
    HtpContextProperty,
    HtpDescriptor,
    HtpDeviceConfigOption,
    HtpGraphConfigOption,
    HtpGraphOption,
    HtpMemType,
    HtpOptimization,
    is_architecture,
    is_soc,
)
from isthmus.backends.htp.spill_fill_groups import GroupRegistration
from isthmus.backends.seam import config as keys
from isthmus.backends.seam.facets import CFacet, LogFunction, option_of, show_number
from isthmus.cabi.client import BadPointer, read, write_number
from isthmus.cabi.types import SCALAR_FIELDS, UNDEFINED
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel

VTCM_MB = 8
"""The on-chip memory of a device without a known chip, in megabytes. It is our choice."""
MAX_SOC_MODEL = 4095
"""The largest number that may be a chip's. Remains of an address in a structure's padding are larger numbers."""
# The graph options of the kinds of optimization that compress tensors.
_DLBC = {
    HtpOptimization.ENABLE_DLBC: HtpGraphConfigOption.DLBC,
    HtpOptimization.ENABLE_DLBC_WEIGHTS: HtpGraphConfigOption.DLBC_WEIGHTS,
}
# A context option that HTP's own library accepts and whose name is not public.
_UNNAMED_CONTEXT_OPTION = 26
# What the memory of a concurrent deserialization is limited to.
_MAX_EXTRA_KB = 102400


class HtpPowerOption(IntEnum):
    """QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_*."""

    DCVS_V3 = 1
    RPC_CONTROL_LATENCY = 2
    RPC_POLLING_TIME = 3
    HMX_TIMEOUT_INTERVAL_US = 4


# The readers of values, for the log.
_DEVICE_VALUES: dict[IntEnum, Callable[[Any], Any]] = {
    HtpDeviceOption.SIGNEDPD: lambda c: c.useSignedProcessDomain.useSignedProcessDomain,
    HtpDeviceOption.HTP_EXTENSION: lambda c: "a structure without a public name",
}
# The options of a device that are refused, as by the vendor's library: the code and its words.
_DEVICE_REFUSALS: dict[IntEnum, tuple[Code, str]] = {
    HtpDeviceOption.SECUREPD: (Code.DEVICE_INVALID_CONFIG, "Unsupported config option 3"),
    HtpDeviceOption.ASYNC_EXECUTE: (Code.DEVICE_INVALID_CONFIG, "Unsupported config option 4"),
    HtpDeviceOption.DYNAMIC_PARTITIONING: (Code.DEVICE_INVALID_CONFIG, "Unsupported config option 5"),
    HtpDeviceOption.APP_UID: (Code.COMMON_NOT_SUPPORTED, "UID is not supported for this device"),
}


def _memory(address: int) -> HtpDescriptor:
    """Read a custom memory descriptor; an unknown memory type remains a number, which the registration refuses."""
    structure = read(address, headers.MEM_DESCRIPTOR)
    place = structure.sharedBufferConfig
    kind = next((each for each in HtpMemType if each == structure.type), structure.type)
    return HtpDescriptor(structure.size, place.fd, place.offset, kind)


def _graph(address: int, log: LogFunction) -> dict[Any, Any]:
    """Read and log a custom config of a graph."""
    config = read(address, headers.GRAPH_CONFIG)
    if config.option not in list(HtpGraphOption) and config.option != UNDEFINED:
        # HTP's own library accepts graph options with any number.
        return _warn_unknown("graph", config.option, log)
    option = option_of(HtpGraphOption, config.option, "HTP graph", Code.GRAPH_INVALID_ARGUMENT)
    assert isinstance(option, HtpGraphOption)
    if option.refusal:
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"HTP graph option {option.name}", option.refusal)
    if option is HtpGraphOption.OPTIMIZATION:
        return _optimization(config.optimizationOption, log)
    # By its name: the number of one is that of a priority.
    own = HtpGraphConfigOption.__members__.get(option.name)
    if own is None:
        if option is HtpGraphOption.FINALIZE_CONFIG and config.finalizeConfig.value.dataType not in SCALAR_FIELDS:
            rule = f"Invalid scalar data type passed: {config.finalizeConfig.value.dataType}; there is no such type"
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"HTP graph option {option.name}", rule)
        said = f"graph option {option.name} = {option.show(config)}"
        return _log_unused(said, log, without_effect.GRAPH.get(option.name, ""))
    kind = type(own.default)
    value = option.read(config, kind)
    if issubclass(kind, IntEnum):
        value = option_of(kind, value, f"HTP {option.name.lower()}", Code.GRAPH_INVALID_ARGUMENT)
    log(LogLevel.INFO, f"HTP graph option {option.name} = {getattr(value, 'name', value)}")
    return {own: value}


def _optimization(config: Any, log: LogFunction) -> dict[Any, Any]:
    """Read one kind of optimization. Levels that do not exist become level 2, as with the vendor's library."""
    if config.type not in list(HtpOptimization) or config.type == HtpOptimization.FINALIZE_RETRIES:
        rule = f"its type {show_number(HtpOptimization, config.type)} cannot be set"
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, "HTP graph option OPTIMIZATION", rule)
    kind, value = HtpOptimization(config.type), config.floatValue
    text = f"graph option OPTIMIZATION, {kind.name} = {value:g}"
    if kind is HtpOptimization.FINALIZE_OPTIMIZATION_FLAG:
        log(LogLevel.INFO, f"HTP {text}")
        return {HtpGraphConfigOption.OPTIMIZATION_LEVEL: int(value) if value in (1, 2, 3) else 2}
    if kind in _DLBC:
        log(LogLevel.INFO, f"HTP {text}")
        return {_DLBC[kind]: bool(value)}
    return _log_unused(text, log, without_effect.OPTIMIZATION.get(kind.name, ""))


def _context(address: int, log: LogFunction) -> dict[Any, Any]:
    """Read and log a custom config of a context; refuse values that have no meaning."""
    number = read(address, c_uint32).value
    if number == _UNNAMED_CONTEXT_OPTION:
        return _warn_unknown("context", number, log)
    option = option_of(HtpContextOption, number, "HTP context", Code.CONTEXT_INVALID_CONFIG)
    assert isinstance(option, HtpContextOption)
    config = _context_config(address, option)
    value = getattr(config, option.field)
    wrong = _CONTEXT_RULES.get(option, lambda value: "")(value)
    if wrong:
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, f"HTP context option {option.name}", wrong)
    if option in list(HtpContextConfigOption):
        log(LogLevel.INFO, f"HTP context option {option.name} = {option.show(config)}")
        return {HtpContextConfigOption(option): option.read(config, GroupRegistration)}
    if option is HtpContextOption.CONCURRENT_DESERIALIZATION_EXTRA_SIZE:
        setattr(config, option.field, min(value, _MAX_EXTRA_KB))
    said = f"context option {option.name} = {option.show(config)}"
    return _log_unused(said, log, without_effect.CONTEXT.get(option.name, ""))


def _context_config(address: int, option: HtpContextOption) -> Any:
    """Read a config of a context: no more than its value, since earlier headers have a smaller structure."""
    kind = headers.CONTEXT_CONFIG
    place = getattr(kind, option.field)
    content = bytearray(ctypes.sizeof(kind))
    content[: ctypes.sizeof(c_uint32)] = bytes(c_uint32(option))
    value = read(address + place.offset, ctypes.c_ubyte * place.size)
    content[place.offset : place.offset + place.size] = bytes(value)
    return kind.from_buffer_copy(content)


def _group_rule(group: Any) -> str:
    """Return why the first context of a group cannot be registered; empty if it can."""
    if group.firstGroupHandle or group.maxSpillFillBuffer:
        return ""
    return "the first context of a group gives the size of its spill-fill buffer, which cannot be 0"


# What is wrong with a value of an option, by option; empty if nothing is.
_CONTEXT_RULES: dict[HtpContextOption, Callable[[Any], str]] = {
    HtpContextOption.REGISTER_MULTI_CONTEXTS: _group_rule,
    HtpContextOption.REGISTER_CONCURRENT_RESOURCE_SHARING: _group_rule,
    HtpContextOption.SHARE_RESOURCES_OPTIMIZATION_TYPE: lambda value: f"there is no type {value}" * (value > 2),
    HtpContextOption.PARALLEL_WEIGHT_LOADING: lambda value: f"there is no mode {value.mode}" * (value.mode > 2),
}


def _device(address: int, log: LogFunction) -> dict[Any, Any]:
    """Read and log a custom config of a device."""
    number = read(address, c_uint32).value
    option = option_of(HtpDeviceOption, number, "HTP device", Code.DEVICE_INVALID_CONFIG)
    if option in _DEVICE_REFUSALS:
        code, words = _DEVICE_REFUSALS[option]
        raise QnnError(code, f"HTP device option {option.name}", words)
    config = _device_config(address, option)
    if option not in list(HtpDeviceConfigOption):
        return _log_unused(f"device option {option.name} = {_DEVICE_VALUES[option](config)}", log)
    is_soc_option = option is HtpDeviceOption.SOC
    value = config.socModel if is_soc_option else config.arch.arch
    if not (is_soc(value) if is_soc_option else is_architecture(value) or value == 0):
        raise QnnError(Code.DEVICE_INVALID_CONFIG, f"HTP device option {option.name}", f"there is no chip of {value}")
    text = value if is_soc_option else f"v{value} of device {config.arch.deviceId}"
    log(LogLevel.INFO, f"HTP device option {option.name} = {text}")
    return {HtpDeviceConfigOption(option): value} if value else {}


def _device_config(address: int, option: IntEnum) -> Any:
    """Read a config of a device in the layout that its value shows."""
    # Both layouts have at least 12 bytes, so these are read first. A value that is sensible in the earlier layout
    # decides for it, unless the later layout's padding may happen to hold that value. If the memory ends after the 12
    # bytes, it is the earlier layout, which has three options.
    if option > HtpDeviceOption.SIGNEDPD:
        return read(address, headers.DEVICE_CONFIG)
    earlier = read(address, headers.EARLIER_DEVICE_CONFIG)
    # The third word, with which the later layout begins its value.
    following = earlier.arch.arch
    if option is HtpDeviceOption.SOC:
        is_earlier = 0 < earlier.socModel <= MAX_SOC_MODEL and not 0 < following <= MAX_SOC_MODEL
    elif option is HtpDeviceOption.ARCH:
        # A client numbers its devices from 0, so that no number of a device looks like an architecture.
        is_earlier = is_architecture(following)
    else:
        is_earlier = earlier.useSignedProcessDomain.deviceId == 0 and following & 0xFF == 1
    try:
        return earlier if is_earlier else read(address, headers.DEVICE_CONFIG)
    except BadPointer:
        return earlier


def _log_unused(option: str, log: LogFunction, reason: str = "") -> dict[Any, Any]:
    """Log an option that has no effect; return its settings, which are empty."""
    log(LogLevel.INFO, keys.without_effect(f"HTP {option}", reason))
    return {}


def _warn_unknown(noun: str, option: int, log: LogFunction) -> dict[Any, Any]:
    """Warn of an option without a public name; return its settings, which are empty."""
    log(LogLevel.WARN, f"HTP {noun} option {option} is unknown here and ignored")
    return {}


def _device_info(soc: int, arch: int) -> ctypes.Structure:
    """Describe a device of HTP: on its chip, if that is known."""
    chip = chip_of(soc)
    vtcm = (chip.vtcm_mb if chip is not None else 0) or VTCM_MB
    info: ctypes.Structure = headers.DEVICE_INFO()
    chip_info = info.onChipDevice
    chip_info.vtcmSize, chip_info.socModel, chip_info.arch = vtcm, soc, arch or DEFAULT_ARCHITECTURE
    return info


def _write_property(get: Callable[[int], Any], address: int, _refusal: Callable[[str], QnnError]) -> None:
    """Write a property of a context where the client's structure has room for it (`CFacet.write_property`)."""
    request = read(address, headers.CONTEXT_PROPERTY)
    value = address + headers.CONTEXT_PROPERTY.value.offset
    write_number(value, 0)
    if request.option not in list(HtpContextProperty):
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "HTP context", f"it has no property {request.option}")
    write_number(value, get(request.option))


def _features(kind: str, address: int) -> Mapping[str, int]:
    """Return what a config turns on, for validation (`CFacet.features`)."""
    if kind != "device":
        return exclusions.features(kind, address)
    is_chip = read(address, c_uint32).value == HtpDeviceOption.SOC
    return {exclusions.CHIP: _device_config(address, HtpDeviceOption.SOC).socModel} if is_chip else {}


FACET = CFacet(
    BACKEND_ID,
    INTERFACE_VERSION,
    # Memory limits, binary compatibility, properties of contexts, deferred graphs, data callbacks; memory handles of
    # all kinds, device infrastructure.
    capabilities=frozenset({207, 209, 215, 217, 220, 312, 502, 1101, 1102, 1103, 1104, 1502}),
    memory=_memory,
    write_property=_write_property,
    configs={"graph": _graph, "context": _context, "device": _device},
    without_effect={
        "graph": {
            each: without_effect.GRAPH.get(each.name, "")
            for each in HtpGraphOption
            if not each.refusal
            and each is not HtpGraphOption.OPTIMIZATION
            and each.name not in HtpGraphConfigOption.__members__
        },
        "graph (kinds of OPTIMIZATION)": {
            each: without_effect.OPTIMIZATION[each.name]
            for each in HtpOptimization
            if each.name in without_effect.OPTIMIZATION
        },
        "context": {
            each: without_effect.CONTEXT.get(each.name, "")
            for each in HtpContextOption
            if each not in list(HtpContextConfigOption)
        },
    },
    device_info=_device_info,
    blobs=blobs,
    power_options=HtpPowerOption,
    features=_features,
    combine=exclusions.combine,
    exclusions=exclusions.EXCLUSIONS,
    alone=exclusions.ALONE,
    sole=(exclusions.CORES,),
    alike=exclusions.ALIKE,
    limits=exclusions.LIMITS,
    single=(exclusions.WEIGHTS_BUFFER,),
    reused=exclusions.REUSED_IO,
    formats={NATIVE_FORMAT: refuse_native},
    binaries_of_composed=True,
    headers=headers.HEADERS,
)
