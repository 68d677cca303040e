"""Wrong and unusual sequences of calls about backends, devices, logs, contexts, binaries, memory, signals, profiles."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_uint32, c_uint64, c_void_p
from typing import Any

from differential.calls import F32, READ, U8, UNKNOWN, WRITE, Calls
from differential.client import Node
from isthmus.backends.htp.headers import DEVICE_CONFIG, GRAPH_CONFIG
from isthmus.cabi import objects


def twice(q: Calls, function: str, handle: int, *more: Any) -> list[int]:
    """Call a function twice on one handle."""
    return [q.code(function, handle, *more), q.code(function, handle, *more)]


def chip(q: Calls, number: int, option: int = 0) -> int:
    """Create a device for a chip."""
    config = DEVICE_CONFIG()
    config.option, config.socModel = option, number
    return q.making("deviceCreate", None, q.configs(objects.DeviceConfig, (0, "customConfig", config)))


def graph_option(q: Calls, option: int, **fields: Any) -> int:
    """Create a graph with one of HTP's own options."""
    config = GRAPH_CONFIG()
    config.option = option
    for name, value in fields.items():
        setattr(config, name, value)
    return q.graph_with(0, "customConfig", config)


def optimization(q: Calls, type: int, value: float) -> int:
    """Create a graph with an optimization option."""
    config = GRAPH_CONFIG()
    config.option, config.optimizationOption.type, config.optimizationOption.floatValue = 1, type, value
    return q.graph_with(0, "customConfig", config)


def short_binary(q: Calls, missing: int) -> int:
    """Get a binary into a buffer that is too small."""
    q.ready()
    size, written = c_uint64(), c_uint64()
    q.must("contextGetBinarySize", q.context, byref(size))
    room = q.keep(ctypes.create_string_buffer(size.value))
    return q.code("contextGetBinary", q.context, room, size.value - missing, byref(written))


def flipped(binary: bytes) -> bytes:
    """Return the binary with one bit changed in the middle."""
    middle = len(binary) // 2
    return binary[:middle] + bytes([binary[middle] ^ 1]) + binary[middle + 1 :]


def binary_of(q: Calls) -> bytes:
    """Return the binary of a context with one finalized graph."""
    q.ready()
    return q.binary()


def retrieved(q: Calls, name: bytes = b"g", execute: bool = True) -> list[int]:
    """Restore a context from its binary, retrieve its graph, and execute it."""
    codes = [q.restored(binary_of(q))]
    graph = c_void_p()
    codes.append(q.code("graphRetrieve", q.loaded, name, byref(graph)))
    return [*codes, q.run(graph.value or 0, [q.x], [q.y])] if execute else codes


def operations(q: Calls) -> list[Any]:
    """Ask for the supported operations."""
    count, listed = c_uint32(), POINTER(objects.OperationName)()
    code = q.code("backendGetSupportedOperations", q.backend, byref(count), byref(listed))
    return [code, count.value > 100, (listed[0].packageName or b"").decode() if count.value else ""]


def enabled(q: Calls, *names: bytes) -> int:
    """Restore a context from its binary with some graphs enabled."""
    binary = binary_of(q)
    texts = q.keep((c_char_p * (len(names) + 1))(*names))
    config = q.keep(objects.ContextConfig())
    config.option, config.enableGraphs = 5, ctypes.cast(texts, POINTER(c_char_p))
    configs = q.keep((POINTER(objects.ContextConfig) * 2)(ctypes.pointer(config)))
    room = q.keep(ctypes.create_string_buffer(binary, len(binary)))
    return q.making_with_profile("contextCreateFromBinary", q.backend, q.device, configs, room, len(binary))


def two_contexts(q: Calls) -> tuple[int, int]:
    """Return two contexts on one backend."""
    return q.context, q.make("contextCreate", q.backend, q.device, None)


def registered_twice(q: Calls) -> list[int]:
    """Register and deregister memory twice."""
    return [q.registering(1), q.code("memDeRegister", byref(q.registered), 1),
            q.code("memDeRegister", byref(q.registered), 1)]  # fmt: skip


def levels(q: Calls) -> list[int]:
    """Create a log at each level."""
    return [q.making("logCreate", None, level) for level in range(7)]


def event_data(q: Calls, function: str, kind: Any) -> list[Any]:
    """Execute with a profile, and read its first event."""
    graph, profile = q.ready(), q.profile()
    code = q.run(graph, [q.x], [q.y], profile)
    listed, count = POINTER(c_uint64)(), c_uint32()
    q.code("profileGetEvents", profile, byref(listed), byref(count))
    return [code, count.value > 0, q.code(function, listed[0], byref(q.keep(kind()))) if count.value else None]


def free_log_first(q: Calls) -> list[int]:
    """Free a log before the backend that uses it."""
    log = q.make("logCreate", None, 1)
    backend = q.make("backendCreate", log, None)
    return [q.code("logFree", log), q.code("backendFree", backend)]


def second_backend(q: Calls) -> list[int]:
    """Free one of two backends, and use the other."""
    other = q.make("backendCreate", None, None)
    return [q.code("backendFree", other), q.run(q.ready(), [q.x], [q.y]), q.code("backendFree", q.backend)]


SEQUENCES: dict[str, Callable[[Calls], Any]] = {
    # Backends
    "backend: create without a place for the handle": lambda q: q.code("backendCreate", None, None, None),
    "backend: create twice": lambda q: [q.making("backendCreate", None, None), q.making("backendCreate", None, None)],
    "backend: create with an unknown log": lambda q: q.making("backendCreate", UNKNOWN, None),
    "backend: free null": lambda q: q.code("backendFree", None),
    "backend: free an unknown handle": lambda q: q.code("backendFree", UNKNOWN),
    "backend: free twice": lambda q: twice(q, "backendFree", q.make("backendCreate", None, None)),
    "backend: free before its context": lambda q: [
        q.code("backendFree", q.backend), q.code("contextFree", q.context, None)],
    "backend: unknown config": lambda q: q.making("backendCreate", None, q.configs(objects.BackendConfig, (77, "", 0))),
    "backend: custom config without a structure": lambda q: q.making(
        "backendCreate", None, q.configs(objects.BackendConfig, (0, "customConfig", None))),
    "backend: error reporting": lambda q: q.making("backendCreate", None, q.configs(objects.BackendConfig, (1, "", 0))),
    "backend: unknown platform option": lambda q: q.making(
        "backendCreate", None, q.configs(objects.BackendConfig, (2, "platformOption", b"colour:red"))),
    "backend: platform option that is null": lambda q: q.making(
        "backendCreate", None, q.configs(objects.BackendConfig, (2, "platformOption", None))),
    "backend: empty list of configs": lambda q: q.making("backendCreate", None, q.configs(objects.BackendConfig)),
    "backend: set no config": lambda q: q.code("backendSetConfig", q.backend, None),
    "backend: set an unknown config": lambda q: q.code(
        "backendSetConfig", q.backend, q.configs(objects.BackendConfig, (77, "", 0))),
    "backend: build id without a place": lambda q: q.code("backendGetBuildId", None),
    "backend: version without a place": lambda q: q.code("backendGetApiVersion", None),
    "backend: operations without a place": lambda q: q.code("backendGetSupportedOperations", q.backend, None, None),
    "backend: operations of an unknown handle": lambda q: q.code(
        "backendGetSupportedOperations", UNKNOWN, byref(c_uint32()), byref(POINTER(objects.OperationName)())),
    "backend: operations": operations,
    "backend: op package that is not there": lambda q: q.code(
        "backendRegisterOpPackage", q.backend, b"/nowhere.so", b"provider", None),
    "backend: op package without a path": lambda q: q.code(
        "backendRegisterOpPackage", q.backend, None, b"provider", None),
    "backend: op package without a provider": lambda q: q.code(
        "backendRegisterOpPackage", q.backend, b"/nowhere.so", None, None),
    "backend: op package of an unknown backend": lambda q: q.code(
        "backendRegisterOpPackage", UNKNOWN, b"/nowhere.so", b"provider", None),
    "backend: a second one is freed": second_backend,
    "backend: property without a place": lambda q: q.property("backendGetProperty", q.backend),
    "backend: unknown property": lambda q: q.property("backendGetProperty", q.backend, 77),
    # Devices
    "device: create without a place": lambda q: q.code("deviceCreate", None, None, None),
    "device: create twice": lambda q: [q.making("deviceCreate", None, None), q.making("deviceCreate", None, None)],
    "device: create with an unknown log": lambda q: q.making("deviceCreate", UNKNOWN, None),
    "device: free an unknown handle": lambda q: q.code("deviceFree", UNKNOWN),
    "device: free null": lambda q: q.code("deviceFree", None),
    "device: free twice": lambda q: twice(q, "deviceFree", q.make("deviceCreate", None, None)),
    "device: free before its context": lambda q: [
        q.code("deviceFree", q.device), q.code("contextFree", q.context, None)],
    "device: free after its context": lambda q: [
        q.code("contextFree", q.context, None), q.code("deviceFree", q.device)],
    "device: free after its backend": lambda q: [q.code("backendFree", q.backend), q.code("deviceFree", q.device)],
    "device: infrastructure without a place": lambda q: q.code("deviceGetInfrastructure", None),
    "device: platform without a place": lambda q: q.code("deviceGetPlatformInfo", None, None),
    "device: free a platform that is none": lambda q: q.code("deviceFreePlatformInfo", None, None),
    "device: info of an unknown handle": lambda q: q.code(
        "deviceGetInfo", UNKNOWN, byref(POINTER(objects.PlatformInfo)())),
    "device: info without a place": lambda q: q.code("deviceGetInfo", q.device, None),
    "device: a known chip": lambda q: chip(q, 69),
    "device: an unknown chip": lambda q: chip(q, 4000),
    "device: an unknown option of the chip": lambda q: chip(q, 69, 77),
    "device: unknown config": lambda q: q.making("deviceCreate", None, q.configs(objects.DeviceConfig, (77, "", 0))),
    "device: custom config without a structure": lambda q: q.making(
        "deviceCreate", None, q.configs(objects.DeviceConfig, (0, "customConfig", None))),
    "device: set a config of an unknown handle": lambda q: q.code("deviceSetConfig", UNKNOWN, None),
    "device: set no config": lambda q: q.code("deviceSetConfig", q.device, None),
    # Logs and errors
    "log: create without a place": lambda q: q.code("logCreate", None, 1, None),
    "log: unknown level": lambda q: q.making("logCreate", None, 99),
    "log: every level": levels,
    "log: free twice": lambda q: twice(q, "logFree", q.make("logCreate", None, 1)),
    "log: free null": lambda q: q.code("logFree", None),
    "log: free an unknown handle": lambda q: q.code("logFree", UNKNOWN),
    "log: level of null": lambda q: q.code("logSetLogLevel", None, 1),
    "log: level of an unknown handle": lambda q: q.code("logSetLogLevel", UNKNOWN, 1),
    "log: set an unknown level": lambda q: q.code("logSetLogLevel", q.make("logCreate", None, 1), 99),
    "log: free before its backend": free_log_first,
    "capability: unknown": lambda q: q.code("propertyHasCapability", 999999),
    "capability: zero": lambda q: q.code("propertyHasCapability", 0),
    "error: message without a place": lambda q: q.code("errorGetMessage", 1002, None),
    "error: message of an unknown code": lambda q: q.message(999999),
    "error: message of success": lambda q: q.message(0),
    "error: verbose message without a place": lambda q: q.code("errorGetVerboseMessage", 1002, None),
    "error: free a verbose message that is none": lambda q: q.code("errorFreeVerboseMessage", None),
    **{f"error: message of {code}": lambda q, code=code: q.message(code) for code in (
        1000, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010, 1100, 3110, 4000, 4004, 4005, 4011, 5000, 5002,
        5003, 5005, 5007, 5010, 6000, 6001, 6002, 6003, 6004, 6005, 6007, 6020, 6022, 6023, 6024, 6031, 7001, 7003,
        7004, 7005, 8000, 8001, 8004, 8005, 11003, 11004, 12000, 14000, 14001, 14003)},
    # Contexts
    "context: create on null": lambda q: q.making("contextCreate", None, None, None),
    "context: create on an unknown backend": lambda q: q.making("contextCreate", UNKNOWN, None, None),
    "context: create on an unknown device": lambda q: q.making("contextCreate", q.backend, UNKNOWN, None),
    "context: create without a device": lambda q: q.making("contextCreate", q.backend, None, None),
    "context: create without a place": lambda q: q.code("contextCreate", q.backend, None, None, None),
    "context: create on a freed backend": lambda q: [
        q.code("backendFree", q.backend), q.making("contextCreate", q.backend, q.device, None)],
    "context: unknown config": lambda q: q.context_with(77),
    "context: unknown priority": lambda q: q.context_with(1, "priority", 7),
    "context: low priority": lambda q: q.context_with(1, "priority", 0),
    "context: high priority": lambda q: q.context_with(1, "priority", 200),
    "context: custom config without a structure": lambda q: q.context_with(0, "customConfig", None),
    "context: depth of the queue": lambda q: q.context_with(4, "asyncExeQueueDepth", objects.QueueDepth(1, 4)),
    "context: memory limit": lambda q: q.context_with(6, "memoryLimitHint", 1 << 20),
    "context: empty list of configs": lambda q: q.making(
        "contextCreate", q.backend, q.device, q.configs(objects.ContextConfig)),
    "context: free null": lambda q: q.code("contextFree", None, None),
    "context: free an unknown handle": lambda q: q.code("contextFree", UNKNOWN, None),
    "context: free twice": lambda q: twice(q, "contextFree", q.context, None),
    "context: free a backend's handle": lambda q: q.code("contextFree", q.backend, None),
    "context: free with an unknown profile": lambda q: q.code("contextFree", q.context, UNKNOWN),
    "context: free one of two and use the other": lambda q: [
        q.code("contextFree", two_contexts(q)[1], None), q.run(q.ready(), [q.x], [q.y])],
    "context: free in the order of creation": lambda q: [q.code("contextFree", each, None) for each in two_contexts(q)],
    "context: the same graph name in two": lambda q: [
        q.making("graphCreate", each, b"g", None) for each in two_contexts(q)],
    "context: set no config": lambda q: q.code("contextSetConfig", q.context, None),
    "context: set a priority": lambda q: q.code(
        "contextSetConfig", q.context, q.configs(objects.ContextConfig, (1, "priority", 200))),
    "context: set an unknown config": lambda q: q.code(
        "contextSetConfig", q.context, q.configs(objects.ContextConfig, (77, "", 0))),
    "context: property without a place": lambda q: [q.ready() > 0, q.property("contextGetProperty", q.context)][1],
    "context: unknown property": lambda q: q.property("contextGetProperty", q.context, 77),
    "context: finalize": lambda q: q.code("contextFinalize", q.context, None),
    # Binaries
    "binary: size of an empty context": lambda q: q.sized(),
    "binary: size before finalize": lambda q: [q.built(), q.sized()][1],
    "binary: size without a place": lambda q: [q.ready(), q.code("contextGetBinarySize", q.context, None)][1],
    "binary: size of an unknown context": lambda q: q.code("contextGetBinarySize", UNKNOWN, byref(c_uint64())),
    "binary: a buffer that is too small": lambda q: short_binary(q, 1),
    "binary: a buffer of no size": lambda q: [q.ready(), q.sized(), q.code(
        "contextGetBinary", q.context, ctypes.create_string_buffer(8), 0, byref(c_uint64()))][2],
    "binary: no buffer": lambda q: [q.ready(), q.sized(), q.code(
        "contextGetBinary", q.context, None, 1 << 22, byref(c_uint64()))][2],
    "binary: no place for the size": lambda q: [q.ready(), q.sized(), q.code(
        "contextGetBinary", q.context, ctypes.create_string_buffer(1 << 22), 1 << 22, None)][2],
    "binary: get without asking for the size": lambda q: [q.ready(), q.code(
        "contextGetBinary", q.context, ctypes.create_string_buffer(1 << 22), 1 << 22, byref(c_uint64()))][1],
    "binary: get twice": lambda q: [q.ready() > 0, len(q.binary()) > 0, len(q.binary()) > 0],
    "binary: of zeros": lambda q: q.restored(bytes(4096)),
    "binary: of one byte": lambda q: q.restored(b"\0"),
    "binary: null": lambda q: q.restored(None),
    "binary: null with a size": lambda q: q.restored(None, 4096),
    "binary: truncated": lambda q: q.restored(binary_of(q)[:-100]),
    "binary: half of it": lambda q: q.restored((lambda all: all[: len(all) // 2])(binary_of(q))),
    "binary: with a wrong bit": lambda q: q.restored(flipped(binary_of(q))),
    "binary: with bytes after its end": lambda q: q.restored(binary_of(q) + bytes(100)),
    "binary: restored, retrieved, executed": retrieved,
    "binary: restored twice": lambda q: (lambda all: [q.restored(all), q.restored(all)])(binary_of(q)),
    "binary: restored without a graph of that name": lambda q: retrieved(q, b"other", execute=False),
    "binary: graph that is enabled": lambda q: enabled(q, b"g"),
    "binary: graph that is enabled and not there": lambda q: enabled(q, b"other"),
    "binary: a graph is added to a restored context": lambda q: [
        q.restored(binary_of(q)), q.making("graphCreate", q.loaded, b"more", None)],
    "binary: a restored graph is finalized": lambda q: [
        q.restored(binary_of(q)), q.code("graphRetrieve", q.loaded, b"g", byref(q.loaded)),
        q.code("graphFinalize", q.loaded, None, None)],
    "binary: size of a restored context": lambda q: [
        q.restored(binary_of(q)), q.code("contextGetBinarySize", q.loaded, byref(c_uint64()))],
    "binary: validate zeros": lambda q: q.restored(bytes(4096), function="contextValidateBinary"),
    "binary: validate": lambda q: q.restored(binary_of(q), function="contextValidateBinary"),
    "binary: on an unknown backend": lambda q: q.making_with_profile(
        "contextCreateFromBinary", UNKNOWN, None, None, ctypes.create_string_buffer(8), 8),
    # Memory
    "memory: ION": lambda q: q.registering(1),
    "memory: DMA_BUF": lambda q: q.registering(3),
    "memory: shared buffer": lambda q: q.registering(2),
    "memory: no descriptor": lambda q: q.registering(1, -1),
    "memory: unknown type": lambda q: q.registering(9, 3),
    "memory: unknown context": lambda q: q.registering(1, context=UNKNOWN),
    "memory: null": lambda q: q.code("memRegister", q.context, None, 1, byref(c_void_p())),
    "memory: none": lambda q: q.registering(1, count=0),
    "memory: deregister an unknown handle": lambda q: q.code("memDeRegister", byref(c_void_p(UNKNOWN)), 1),
    "memory: deregister null": lambda q: q.code("memDeRegister", None, 1),
    "memory: deregister twice": registered_twice,
    # Signals
    "signal: create": lambda q: q.signal()[0],
    "signal: timeout": lambda q: q.signal(2)[0],
    "signal: unknown config": lambda q: q.signal(77)[0],
    "signal: create without a place": lambda q: q.code("signalCreate", q.backend, None, None),
    "signal: trigger one that is not used": lambda q: q.code("signalTrigger", q.signal()[1]),
    "signal: trigger null": lambda q: q.code("signalTrigger", None),
    "signal: free an unknown handle": lambda q: q.code("signalFree", UNKNOWN),
    "signal: free twice": lambda q: twice(q, "signalFree", q.signal()[1]),
    # Profiles
    "profile: unknown level": lambda q: q.making("profileCreate", q.backend, 99),
    "profile: every level": lambda q: [q.making("profileCreate", q.backend, level) for level in (0, 1, 2, 3)],
    "profile: of null": lambda q: q.making("profileCreate", None, 1),
    "profile: of an unknown backend": lambda q: q.making("profileCreate", UNKNOWN, 1),
    "profile: create without a place": lambda q: q.code("profileCreate", q.backend, 1, None),
    "profile: free null": lambda q: q.code("profileFree", None),
    "profile: free an unknown handle": lambda q: q.code("profileFree", UNKNOWN),
    "profile: free twice": lambda q: twice(q, "profileFree", q.profile()),
    "profile: events of an unknown handle": lambda q: q.events(UNKNOWN)[0],
    "profile: events of a new one": lambda q: q.events(q.profile()),
    "profile: events without a place": lambda q: q.code("profileGetEvents", q.profile(), None, None),
    "profile: events of a finalize": lambda q: (lambda profile, graph: [
        q.code("graphFinalize", graph, profile, None), *q.events(profile)])(q.profile(), q.built()),
    "profile: events of an execution": lambda q: (lambda profile, graph: [
        q.run(graph, [q.x], [q.y], profile), *q.events(profile)])(q.profile(), q.ready()),
    "profile: an execution with one that is freed": lambda q: (lambda profile, graph: [
        q.code("profileFree", profile), q.run(graph, [q.x], [q.y], profile)])(q.profile(), q.ready()),
    "profile: data of an event": lambda q: event_data(q, "profileGetEventData", objects.EventData),
    "profile: extended data of an event": lambda q: event_data(
        q, "profileGetExtendedEventData", objects.ExtendedEventData),
    "profile: data of an unknown event": lambda q: q.code("profileGetEventData", UNKNOWN, byref(objects.EventData())),
    "profile: sub-events of an unknown event": lambda q: q.code(
        "profileGetSubEvents", UNKNOWN, byref(POINTER(c_uint64)()), byref(c_uint32())),
    "profile: set no config": lambda q: q.code("profileSetConfig", q.profile(), None),
    "profile: most events": lambda q: q.code(
        "profileSetConfig", q.profile(), q.configs(objects.ProfileConfig, (1, "numMaxEvents", 4))),
    "profile: unknown config": lambda q: q.code(
        "profileSetConfig", q.profile(), q.configs(objects.ProfileConfig, (77, "", 0))),
    "profile: freed with its backend": lambda q: (lambda profile: [
        q.code("backendFree", q.backend), q.code("profileFree", profile)])(q.profile()),
    # Options of HTP's graphs
    "option: unknown config of a graph": lambda q: q.graph_with(77),
    "option: custom config without a structure": lambda q: q.graph_with(0, "customConfig", None),
    "option: priority of a graph": lambda q: q.graph_with(3, "priority", 200),
    "option: unknown priority of a graph": lambda q: q.graph_with(3, "priority", 7),
    "option: 4000 MB of VTCM": lambda q: graph_option(q, 3, vtcmSizeInMB=4000),
    "option: no VTCM": lambda q: graph_option(q, 3, vtcmSizeInMB=0),
    "option: precision": lambda q: graph_option(q, 2, precision=1),
    "option: unknown precision": lambda q: graph_option(q, 2, precision=9),
    "option: vector threads": lambda q: graph_option(q, 6, numHvxThreads=4),
    "option: 99 vector threads": lambda q: graph_option(q, 6, numHvxThreads=99),
    "option: two cores": lambda q: graph_option(q, 8, numCores=2),
    "option: optimization 3": lambda q: optimization(q, 3, 3.0),
    "option: optimization 9": lambda q: optimization(q, 3, 9.0),
    "option: unknown optimization": lambda q: optimization(q, 99, 1.0),
    "option: DLBC": lambda q: optimization(q, 4, 1.0),
    "option: one without a public name": lambda q: graph_option(q, 66),
    # Graphs of other operations, as a sanity check of the comparison itself
    "graph: a float graph runs": lambda q: (lambda x, y: [
        q.finalized([Node("Relu", [x], [y])]) > 0])(q.value("a", WRITE, F32), q.value("b", READ, F32)),
    "graph: a constant as an input of a node runs": lambda q: (lambda x, y: [
        q.finalized([Node("ElementWiseAdd", [x, x], [y])]) > 0])(q.value("a", WRITE, U8), q.value("b", READ, U8)),
}  # fmt: skip
