"""Devices, memory, messages, logs, profiles and properties: what a client reads of them, and what is refused."""

from __future__ import annotations

import ctypes
import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capi.qnn_calls import at
from capi.served import UNREADABLE, Served
from isthmus import qnn
from isthmus.backends.htp import headers as htp_headers
from isthmus.backends.lpai import headers as lpai_headers
from isthmus.cabi import objects, system
from isthmus.capi import records, serialization
from isthmus.capi.device import ClientDevice
from isthmus.errors import Code
from isthmus.graph import DataType
from isthmus.log import LogLevel

NOT_MEMORY = "are not memory of this process"

# -- devices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["QnnCpu", "QnnGpu", "QnnHtp", "QnnLpai"])
def test_a_platform_has_one_device_with_one_core(library: str) -> None:
    served = Served(library)
    described = [served.make("deviceGetPlatformInfo", 0) for _ in range(4)]
    device = served.make("deviceCreate", 0, 0)
    described += [served.make("deviceGetInfo", device) for _ in range(2)]
    gc.collect()
    extensions = []
    for address in described:
        info = objects.PlatformInfo.from_address(address)
        assert (info.version, info.v1.numHwDevices) == (1, 1)
        hardware = info.v1.hwDevices[0]
        assert (hardware.version, hardware.v1.deviceId, hardware.v1.deviceType, hardware.v1.numCores) == (1, 0, 0, 1)
        core = hardware.v1.cores[0]
        assert (core.version, core.v1.coreId, core.v1.coreType, core.v1.coreInfoExtension) == (1, 0, 0, None)
        extensions.append(hardware.v1.deviceInfoExtension)
    assert described[4] == described[5], "a device has one description"
    if library != "QnnHtp":
        assert extensions == [None] * 6
    else:
        assert len(set(extensions)) == 5, "each description has its own"
        for each in extensions:
            extension = htp_headers.DEVICE_INFO.from_address(each or 0)
            chip = extension.onChipDevice
            assert (extension.devType, chip.vtcmSize, chip.socModel, chip.arch) == (0, 8, 0, 73)
            assert (chip.signedPdSupport, chip.dlbcSupport) == (False, False)
    served.do("deviceFreePlatformInfo", 0, described[0])
    what = f"platform information at {described[0]:#x}: it does not belong to this library"
    assert served.refused("deviceFreePlatformInfo", 0, described[0]) == (Code.COMMON_INVALID_ARGUMENT, what)
    assert served.refused("deviceGetPlatformInfo", 0, 0) == (
        Code.COMMON_INVALID_ARGUMENT, "its arguments: a pointer is null",
    )  # fmt: skip
    assert served.refused("deviceGetInfo", device, 0)[1] == "its arguments: a pointer is null"


def test_only_a_platforms_description_is_freed_as_one() -> None:
    served = Served("QnnCpu")
    message = served.make("errorGetVerboseMessage", 1000)
    assert served.call("deviceFreePlatformInfo", 0, message) == Code.COMMON_INVALID_ARGUMENT
    served.do("errorFreeVerboseMessage", message)


def test_configs_of_a_device_are_logged_or_refused() -> None:
    served = Served("QnnCpu")
    custom = served.configs(objects.DeviceConfig, 0, customConfig=1)
    platform = served.configs(objects.DeviceConfig, 1)
    for name, more in (("deviceCreate", [ctypes.c_uint64()]), ("deviceSetConfig", [])):
        first = [0] if more else [served.make("deviceCreate", 0, 0)]
        served.logged.clear()
        served.do(name, *first, custom, *more)
        served.do(name, *first, platform, *more)
        assert served.logged == [
            (LogLevel.INFO, "a custom config of a device: it has no effect here"),
            (LogLevel.INFO, "the platform of a device: accepted, but without effect here"),
        ]
        for config, rule in (
            (served.configs(objects.DeviceConfig, 0), "device: its custom config is null"),
            (served.configs(objects.DeviceConfig, 2), "device: it has no config 2"),
        ):
            assert served.refused(name, *first, config, *more) == (Code.DEVICE_INVALID_CONFIG, rule)


def test_a_device_is_one_on_each_backend_and_is_not_freed_in_use() -> None:
    served = Served("QnnCpu")
    device = served.make("deviceCreate", 0, 0)
    one, two = (served.make("backendCreate", 0, 0) for _ in range(2))
    contexts = [served.make("contextCreate", backend, device, 0) for backend in (one, one, two)]
    assert served.call("deviceFree", device) == Code.DEVICE_ASSOCIATED_TO_CONTEXT
    for context in contexts:
        served.do("contextFree", context, 0)
    served.do("backendFree", one)
    served.do("backendFree", two)
    served.do("deviceFree", device)
    assert served.call("deviceFree", device) == Code.DEVICE_INVALID_HANDLE


def test_a_device_on_a_backend_is_made_once_and_again_when_it_has_ended() -> None:
    client_device = ClientDevice({})
    with qnn.Backend("cpu") as backend:
        device = client_device.on(backend)
        assert client_device.on(backend) is device
        device.free()
        again = client_device.on(backend)
        assert again is not device
        assert again.alive
        client_device.free()
        assert not again.alive


def test_votes_for_clocks_have_ids_that_are_numbers_of_32_bits() -> None:
    served = Served("QnnHtp")
    out = (ctypes.c_uint32 * 2)(0, 0xABCD)
    served.do("createPowerConfigId", 0, 0, out)
    first = out[0]
    served.do("createPowerConfigId", 0, 0, out)
    assert out[0] == first + 1
    assert out[1] == 0xABCD
    options = [served.client.keep(ctypes.c_uint32(number)) for number in (1, 2, 3, 4)]
    served.do("setPowerConfig", first, served.listed(*options))
    names = ("DCVS_V3", "RPC_CONTROL_LATENCY", "RPC_POLLING_TIME", "HMX_TIMEOUT_INTERVAL_US")
    assert served.logged == [
        (LogLevel.VERBOSE, f"power option {name}: accepted, but without effect here") for name in names
    ]
    assert served.refused("setPowerConfig", first, served.listed(ctypes.c_uint32(5))) == (
        Code.COMMON_INVALID_ARGUMENT, "power config: there is no option 5",
    )  # fmt: skip
    served.do("destroyPowerConfigId", first)
    unknown = (Code.COMMON_INVALID_ARGUMENT, f"power config id {first}: unknown handle")
    assert served.refused("destroyPowerConfigId", first) == unknown
    assert served.refused("setPowerConfig", first, 0) == unknown
    served.do("setPowerConfig", out[0], 0)
    served.do("destroyPowerConfigId", out[0])
    served.do("setMemoryConfig", 0, 0, 0)
    served.do("setMemoryConfig", 0, 0, served.listed(ctypes.c_uint32(1)))
    assert served.refused("setMemoryConfig", 0, 0, UNREADABLE)[1] == f"its arguments: 8 bytes at 0x10 {NOT_MEMORY}"


# -- memory ------------------------------------------------------------------------------------------------------------


def descriptor(served: Served, kind: int, *dims: int, rank: int | None = None) -> Any:
    made = objects.MemDescriptor()
    made.memShape.numDim = len(dims) if rank is None else rank
    made.memShape.dimSize = served.client.keep((ctypes.c_uint32 * len(dims))(*dims)) if dims else None
    made.dataType, made.memType = int(DataType.FLOAT_32), kind
    return made


def test_descriptors_of_memory_that_cannot_be_registered_are_refused() -> None:
    served = Served("QnnCpu")
    _, context = served.opened()
    everywhere = (1 << 64) - 1
    out = (ctypes.c_uint64 * 2)(everywhere, everywhere)
    for given, code, rule in (
        (descriptor(served, 1, *[1] * 9), Code.MEM_INVALID_SHAPE, "memory descriptor 0: its rank is 9"),
        (descriptor(served, 2, 1), Code.MEM_UNSUPPORTED_MEMTYPE,
         "memory descriptor 0: this back end has no custom memory"),
        (descriptor(served, 1, rank=1), Code.MEM_INVALID_ARGUMENT, "its arguments: a pointer is null"),
        (0, Code.MEM_INVALID_ARGUMENT, "its arguments: a pointer is null"),
    ):  # fmt: skip
        out[0] = everywhere
        assert served.refused("memRegister", context, given, 1, out) == (code, rule)
        assert list(out) == [0, everywhere]
    given = (objects.MemDescriptor * 2)(descriptor(served, 1, 1), descriptor(served, 1, *[1] * 9))
    assert served.refused("memRegister", context, given, 2, out)[1] == "memory descriptor 1: its rank is 9"
    assert list(out) == [0, 0]
    for count, rule in (
        (0, "0 descriptors: there must be 1 to 65536"),
        (65537, "65537 descriptors: there must be 1 to 65536"),
    ):
        assert served.refused("memRegister", context, given, count, out) == (
            Code.MEM_INVALID_ARGUMENT, f"memory registration: {rule}",
        )  # fmt: skip
    for count in (0, 65537):
        assert served.refused("memDeRegister", out, count) == (
            Code.MEM_INVALID_ARGUMENT, f"memory handles: {count} handles: there must be 1 to 65536",
        )  # fmt: skip
    assert served.refused("memDeRegister", 0, 1)[1] == "its arguments: a pointer is null"
    assert served.refused("memRegister", context, given, 1, 0)[1] == "its arguments: a pointer is null"


def test_a_descriptor_says_where_memory_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind has its own fields."""
    served = Served("QnnHtp")
    ion, dma, custom = (descriptor(served, kind, 2, 3) for kind in (1, 3, 2))
    ion.ionInfo.fd, dma.dmaBufInfo.fd, dma.dmaBufInfo.data = 5, 6, 0x7000
    place = served.client.keep(htp_headers.MEM_DESCRIPTOR(1, 4096))
    place.sharedBufferConfig.fd, place.sharedBufferConfig.offset = 8, 64
    custom.customInfo = ctypes.addressof(place)
    read: list[qnn.MemDescriptor] = []
    monkeypatch.setattr(qnn.Context, "mem_register", lambda context, given: read.extend(given) or [])
    _, context = served.opened()
    out = (ctypes.c_uint64 * 3)()
    served.do("memRegister", context, (objects.MemDescriptor * 3)(ion, dma, custom), 3, out)
    dma.dmaBufInfo.data = None
    served.do("memRegister", context, dma, 1, out)
    assert [(each.dims, int(each.dtype), int(each.mem_type)) for each in read] == [
        ((2, 3), 0x232, 1), ((2, 3), 0x232, 3), ((2, 3), 0x232, 2), ((2, 3), 0x232, 3),
    ]  # fmt: skip
    assert (read[0].fd, read[1].fd, read[1].address, read[3].address) == (5, 6, 0x7000, 0)
    assert (read[2].custom.size, read[2].custom.fd, read[2].custom.offset) == (4096, 8, 64)
    custom.customInfo = None
    assert served.refused("memRegister", context, custom, 1, out)[1] == "its arguments: a pointer is null"


def test_shared_memory_is_allocated_described_and_freed() -> None:
    served = Served("cdsprpc")
    address = served.call("rpcmem_alloc", 25, 1, 4096)
    assert address % 4096 == 0
    ctypes.memset(address, 7, 4096)
    fd = served.call("rpcmem_to_fd", address)
    assert fd >= 0
    assert served.call("rpcmem_to_fd", address + 1) == -1
    served.do("rpcmem_free", address + 1)
    assert served.call("rpcmem_to_fd", address) == fd
    served.do("rpcmem_free", address)
    assert served.call("rpcmem_to_fd", address) == -1
    assert served.call("rpcmem_alloc", 25, 1, 0) == 0
    ((level, text),) = served.logged
    assert level == LogLevel.ERROR
    assert text.startswith("rpcmem_alloc: [")


# -- messages ----------------------------------------------------------------------------------------------------------


def text_at(address: int) -> str:
    return ctypes.string_at(address).decode()


def test_messages_are_the_clients_until_it_frees_them() -> None:
    served = Served("QnnCpu")
    served.call("graphFinalize", 0x99, 0, 0)
    code = int(Code.GRAPH_INVALID_HANDLE)
    one, two = (served.make("errorGetVerboseMessage", code) for _ in range(2))
    assert one != two
    reason = "graphFinalize: [6022 GRAPH_INVALID_HANDLE] graph handle 0x99: unknown handle. It may have been freed."
    assert text_at(one) == text_at(two) == reason.replace("6022", str(code))
    # The upper bits of an error belong to the backend.
    assert text_at(served.make("errorGetVerboseMessage", code | 0xAB0000)) == text_at(one)
    assert text_at(served.make("errorGetMessage", code | 0xAB0000)).startswith("QNN_GRAPH_ERROR_INVALID_HANDLE: ")
    never = text_at(served.make("errorGetVerboseMessage", 1002))
    assert never == "QNN_COMMON_ERROR_MEM_ALLOC: memory could not be allocated"
    served.do("errorFreeVerboseMessage", one)
    assert served.refused("errorFreeVerboseMessage", one) == (
        Code.ERROR_INVALID_ARGUMENT, f"message at {one:#x}: it does not belong to this library",
    )  # fmt: skip
    out = ctypes.c_uint64(7)
    assert served.refused("errorGetMessage", 4711, out) == (
        Code.ERROR_INVALID_ERROR_HANDLE, "error 4711: no function returns it",
    )  # fmt: skip
    assert out.value == 0
    assert served.make("errorGetMessage", 1000) == served.make("errorGetMessage", 1000)


def test_a_function_that_no_library_has_is_reported_by_name() -> None:
    served = Served("QnnCpu")
    assert served.call("notOffered", b"someFunction") == Code.COMMON_NOT_SUPPORTED
    assert served.logged == [
        (LogLevel.ERROR, "someFunction: [1000 COMMON_NOT_SUPPORTED] function: no library here implements it")
    ]


# -- logs, profiles, signals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["log", "systemLog"])
def test_a_log_has_a_level_that_can_be_changed(prefix: str) -> None:
    served = Served("QnnCpu")
    create, change, free = (f"{prefix}{each}" for each in ("Create", "SetLogLevel", "Free"))
    handle = served.make(create, 0, 2)
    log = served.server.handles.get(handle, records.ClientLog, Code.LOG_INVALID_ARGUMENT, "log")
    assert log.level == 2
    served.do(change, handle, 4)
    assert log.level == 4
    rule = "must be one of ERROR 1, WARN 2, INFO 3, VERBOSE 4, DEBUG 5"
    for level in (0, 6):
        expected = (Code.LOG_INVALID_ARGUMENT, f"log level {level}: {rule}")
        assert served.refused(change, handle, level) == expected
        assert served.refused(create, 0, level, ctypes.c_uint64()) == expected
    served.do(free, handle)
    assert served.refused(free, handle)[0] == Code.LOG_INVALID_ARGUMENT


def test_a_profile_holds_as_many_events_as_its_config_allows() -> None:
    served = Served("QnnCpu")
    backend, context = served.opened()
    profile = served.make("profileCreate", backend, 2)
    known = served.server.handles.get(profile, records.ClientProfile, Code.PROFILE_INVALID_HANDLE, "profile")
    assert known.most == 1 << 20
    graph, x, y = served.ready(context)
    given, made = np.ones(8, np.float32), np.zeros(8, np.float32)

    def run() -> int:
        before = time.monotonic_ns() // 1000
        assert served.call("graphExecute", graph, at(x, given), 1, at(y, made), 1, profile, 0) == 0
        events, count = ctypes.c_uint64(), (ctypes.c_uint32 * 2)(0, 0xABCD)
        served.do("profileGetEvents", profile, events, count)
        assert count[1] == 0xABCD
        for number in (ctypes.c_uint64 * count[0]).from_address(events.value) if count[0] else ():
            data, extended = objects.EventData(), objects.ExtendedEventData()
            served.do("profileGetEventData", number, data)
            served.do("profileGetExtendedEventData", number, extended)
            assert (extended.version, extended.v1.type, extended.v1.unit) == (1, data.type, data.unit)
            assert (extended.v1.value.dataType, extended.v1.value.uint64Value) == (0x164, data.value)
            assert extended.v1.identifier == data.identifier
            assert before <= extended.v1.timestamp <= time.monotonic_ns() // 1000
            inner, inner_count = ctypes.c_uint64(), (ctypes.c_uint32 * 2)(0, 0xABCD)
            served.do("profileGetSubEvents", number, inner, inner_count)
            assert inner_count[1] == 0xABCD
            event = served.server.handles.get(number, records.ClientEvent, Code.COMMON_GENERAL, "event")
            assert inner_count[0] == len(event.inner)
        return int(count[0])

    assert run() >= 1
    before = len(served.server.handles.of_kind(records.ClientEvent))
    run()
    assert len(served.server.handles.of_kind(records.ClientEvent)) == before, "the earlier ones have ended"
    served.do("profileSetConfig", profile, served.configs(objects.ProfileConfig, 1, numMaxEvents=0))
    assert known.most == 0
    assert run() == 0
    served.logged.clear()
    served.do("profileSetConfig", profile, served.configs(objects.ProfileConfig, 0, 2))
    assert served.logged == [
        (LogLevel.INFO, f"profile option {name}: accepted, but without effect here")
        for name in ("CUSTOM", "ENABLE_OPTRACE")
    ]
    both = served.configs(objects.ProfileConfig, 1, 3, numMaxEvents=9)
    assert served.refused("profileSetConfig", profile, both) == (
        Code.COMMON_INVALID_ARGUMENT, "profile: it has no config 3",
    )  # fmt: skip
    assert known.most == 0, "all or none"
    served.do("profileFree", profile)
    assert served.call("profileGetEvents", profile, ctypes.c_uint64(), ctypes.c_uint32()) == Code.PROFILE_INVALID_HANDLE
    assert not known.handle.alive


def test_a_freed_context_and_one_out_of_a_binary_are_events() -> None:
    served = Served("QnnCpu")
    backend, context = served.opened()
    served.ready(context)
    size = ctypes.c_uint64()
    served.do("contextGetBinarySize", context, size)
    binary = np.zeros(size.value, np.uint8)
    served.do("contextGetBinary", context, binary, len(binary), size)
    profile, again = served.make("profileCreate", backend, 1), ctypes.c_uint64()

    def latest() -> tuple[int, int, bytes]:
        events, count, data = ctypes.c_uint64(), ctypes.c_uint32(), objects.ExtendedEventData()
        served.do("profileGetEvents", profile, events, count)
        assert count.value == 1
        served.do("profileGetExtendedEventData", ctypes.c_uint64.from_address(events.value).value, data)
        assert 0 <= time.monotonic_ns() // 1000 - data.v1.timestamp < 60_000_000
        assert data.v1.value.uint64Value < 60_000_000
        return data.v1.type, data.v1.unit, data.v1.identifier

    for name, more in (("contextCreateFromBinary", ()), ("contextCreateFromBinaryWithSignal", (0,))):
        before = time.monotonic_ns()
        served.do(name, backend, 0, 0, binary, len(binary), again, profile, *more)
        assert latest() == (100, 1, b"context created from binary")
        served.do("contextFree", again.value, profile)
        assert latest() == (500, 1, b"context freed")
        assert time.monotonic_ns() > before


def test_signals_take_their_configs_all_or_none() -> None:
    served = Served("QnnCpu")
    backend, _ = served.opened()
    served.do("signalSetConfig", served.make("signalCreate", backend, 0), served.configs(objects.SignalConfig, 0))
    assert served.logged == [(LogLevel.INFO, "a custom config of a signal: it has no effect here")]
    wrong = served.configs(objects.SignalConfig, 1, 3)
    rule = (Code.COMMON_INVALID_ARGUMENT, "signal: it has no config 3")
    before = len(served.server.handles.of_kind(object))
    assert served.refused("signalCreate", backend, wrong, ctypes.c_uint64()) == rule
    assert len(served.server.handles.of_kind(object)) == before
    signal = served.make("signalCreate", backend, served.configs(objects.SignalConfig, 2, timeoutDurationUs=5))
    assert served.refused("signalSetConfig", signal, wrong) == rule
    served.do("signalSetConfig", signal, served.configs(objects.SignalConfig, 1))
    served.do("signalFree", signal)
    assert served.call("signalFree", signal) != 0


# -- properties --------------------------------------------------------------------------------------------------------


def test_properties_that_are_objects_of_python_are_not_there_in_c() -> None:
    served, backend = Served("QnnGpu"), ctypes.c_uint64()
    if served.call("backendCreate", 0, 0, backend):
        pytest.skip("needs OpenCL")
    request = served.configs(objects.Property, 0, customProperty=16)
    refusal = (Code.BACKEND_NOT_SUPPORTED, "backend 'gpu': it has no custom properties")
    assert served.refused("backendGetProperty", backend.value, request) == refusal
    served.do("backendFree", backend.value)


def test_properties_that_are_not_there_are_refused_by_the_code_of_their_object() -> None:
    for library in ("QnnCpu", "QnnLpai"):
        served = Served(library)
        backend, context = served.opened()
        graph = served.composed(context)[0]
        for name, handle, noun, missing, unknown, invalid in (
            ("backendGetProperty", backend, "backend", Code.BACKEND_NOT_SUPPORTED, Code.BACKEND_NOT_SUPPORTED,
             Code.BACKEND_INVALID_ARGUMENT),
            ("contextGetProperty", context, "context", Code.COMMON_NOT_SUPPORTED, Code.COMMON_NOT_SUPPORTED,
             Code.CONTEXT_INVALID_ARGUMENT),
            ("graphGetProperty", graph, "graph 'twice'", Code.COMMON_NOT_SUPPORTED, Code.GRAPH_INVALID_ARGUMENT,
             Code.GRAPH_INVALID_ARGUMENT),
        ):  # fmt: skip
            code, rule = served.refused(name, handle, served.configs(objects.Property, 1))
            assert (code, rule.rpartition(": ")[2]) == (unknown, "it has no property 1")
            assert noun in rule or library == "QnnLpai"
            code, rule = served.refused(name, handle, served.configs(objects.Property, 0))
            if library == "QnnCpu" or noun == "context":
                assert (code, rule.rpartition(": ")[2]) == (missing, "it has no custom properties")
            else:
                assert (code, rule) == (invalid, "its arguments: a pointer is null")
            assert served.refused(name, handle, 0) == (invalid, "its arguments: a pointer is null")


# -- profiles in files -------------------------------------------------------------------------------------------------


def test_a_file_of_profiles_has_all_that_a_client_says(tmp_path: Path) -> None:
    served = Served("QnnSystem")
    target = system.SerializationTarget(1)
    target.file.fileName, target.file.fileDirectory = b"profile", str(tmp_path).encode()
    configs = (system.SerializationConfig * 2)()
    configs[0].type, configs[0].maxNumMessages = 0, 5
    configs[1].type = 1
    header = configs[1].serializationHeader
    header.appName, header.appVersion, header.backendVersion = b"app", b"1.2", b"3.4"
    handle = served.make("systemProfileCreateSerializationTarget", target, configs, 2)
    part, whole = (system.ProfileEvent * 1)(), (system.ProfileEvent * 2)()
    part[0].type = 1
    inner = part[0].extendedEventData.v1
    inner.type, inner.unit, inner.identifier, inner.value.uint64Value = 404, 3, b"part", 9
    whole[0].eventData.type, whole[0].eventData.unit, whole[0].eventData.value = 400, 1, 7
    whole[0].eventData.identifier = b"whole"
    whole[0].profileSubEventData, whole[0].numSubEvents = ctypes.addressof(part), 1
    whole[1].eventData.type, whole[1].eventData.unit = 4711, 77
    data = system.ProfileData(1)
    data.v1.header.graphName, data.v1.header.methodType = b"net", 2
    data.v1.header.startTime, data.v1.header.stopTime = 10, 20
    data.v1.profilingEvents, data.v1.numProfilingEvents = whole, 2
    empty = system.ProfileData(1)
    served.do("systemProfileSerializeEventData", handle, served.listed(data, empty, end=False), 2)
    served.do("systemProfileSerializeEventData", handle, served.listed(empty, end=False), 1)
    lines = [json.loads(line) for line in (tmp_path / "profile").read_text().splitlines()]
    nothing = {"graph": None, "method": 0, "start_us": 0, "stop_us": 0, "events": []}
    assert lines == [
        {"format": "isthmus-profile", "application": "app", "version": "1.2", "backend": "3.4"},
        {"graph": "net", "method": 2, "start_us": 10, "stop_us": 20, "events": [
            {"type": "EXECUTE", "unit": "MICROSEC", "value": 7, "name": "whole", "parts": [
                {"type": "NODE", "unit": "CYCLES", "value": 9, "name": "part", "parts": []}]},
            {"type": 4711, "unit": 77, "value": 0, "name": None, "parts": []}]},
        nothing, nothing,
    ]  # fmt: skip
    served.do("systemProfileFreeSerializationTarget", handle)


def test_files_and_events_of_profiles_that_cannot_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served("QnnSystem")
    monkeypatch.chdir(tmp_path)
    out = ctypes.c_uint64()

    def target(kind: int = 1, name: bytes | None = b"profile", folder: bytes | None = None) -> Any:
        made = system.SerializationTarget(kind)
        made.file.fileName, made.file.fileDirectory = name, folder
        return made

    create = "systemProfileCreateSerializationTarget"
    invalid = Code.COMMON_INVALID_ARGUMENT
    assert served.refused(create, target(2), 0, 0, out) == (invalid, "profile target: its type 2 is not a file")
    assert served.refused(create, target(name=None), 0, 0, out) == (invalid, "its arguments: a pointer is null")
    assert served.refused(create, target(), 0, 1, out) == (invalid, "its arguments: a pointer is null")
    code, rule = served.refused(create, target(folder=b"/nowhere"), 0, 0, out)
    assert (code, rule) == (
        invalid, "profile file '/nowhere/profile': [Errno 2] No such file or directory: '/nowhere/profile'",
    )  # fmt: skip
    assert served.refused(create, target(name=b""), 0, 0, out)[1].startswith("profile file '.': ")
    monkeypatch.setattr(serialization, "MAX_EVENTS", 3)
    configs = (system.SerializationConfig * 4)()
    assert served.refused(create, target(), configs, 4, out) == (invalid, "profile configs: they are 4, more than 3")
    handle = served.make(create, target(), configs, 3)
    assert (tmp_path / "profile").read_text() == '{"format": "isthmus-profile"}\n'
    events = (system.ProfileEvent * 4)()

    def serialize(count: int, calls: int = 1) -> Any:
        data = system.ProfileData(1)
        data.v1.profilingEvents, data.v1.numProfilingEvents = events, count
        return handle, served.listed(*[data] * calls, end=False), calls

    name = "systemProfileSerializeEventData"
    served.do(name, *serialize(3))
    many = "profile events: they are more than 3 with their parts, or have no end"
    assert served.refused(name, *serialize(4)) == (invalid, many)
    assert served.refused(name, *serialize(2, 2)) == (invalid, many), "of all calls together"
    events[0].profileSubEventData, events[0].numSubEvents = ctypes.addressof(events[1]), 2
    assert served.refused(name, *serialize(2)) == (invalid, many), "with their parts"
    served.do(name, *serialize(1))
    assert served.refused(name, handle, 0, 1) == (invalid, "its arguments: a pointer is null")
    assert served.refused(name, *serialize(0, 4))[1] == "profiled calls: they are 4, more than 3"


# -- configs that name nothing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noun", "option"), [("backend", 0), ("graph", 10001), ("graph", 1), ("context", 1)],
)  # fmt: skip
def test_a_config_of_lpai_without_its_value_is_refused(noun: str, option: int) -> None:
    served = Served("QnnLpai")
    custom = served.client.keep(lpai_headers.CUSTOM())
    custom.option, custom.config = option, None
    kind = {"backend": objects.BackendConfig, "graph": objects.GraphConfig, "context": objects.ContextConfig}[noun]
    configs = served.configs(kind, 0, customConfig=ctypes.addressof(custom))
    out = ctypes.c_uint64()
    if noun == "backend":
        refused = served.refused("backendCreate", 0, configs, out)
    else:
        backend, context = served.opened()
        more = (backend, 0) if noun == "context" else (context, b"net")
        refused = served.refused(f"{noun}Create", *more, configs, out)
    assert refused[1] == "its arguments: a pointer is null"


SOC, ARCH, SIGNED = 0, 1, 2


@pytest.mark.parametrize(
    ("option", "words", "reported"),
    [
        # A later structure has its value after a gap of four bytes, in which anything may be.
        (SOC, (0, 57, 0), "57"), (SOC, (4095, 0, 0), "4095"), (SOC, (4096, 57, 0), "57"), (SOC, (1, 4096, 0), "1"),
        (SOC, (0, 4095, 0), "4095"), (SOC, (69, 1, 0), "1"), (SOC, (69, 4095, 0), "4095"),
        (ARCH, (0, 60, 0), "v60 of device 0"), (ARCH, (7, 255, 0), "v255 of device 7"),
        (ARCH, (0, 59, 73), "v73 of device 59"), (ARCH, (0, 256, 73), "v73 of device 256"),
        (SIGNED, (0, 1, 0), "True"), (SIGNED, (1, 1, 1), "True"), (SIGNED, (0, 0x101, 0), "True"),
        (SIGNED, (0, 0, 0), "False"), (SIGNED, (1, 1, 0), "False"), (SIGNED, (0, 2, 1), "True"),
        (SIGNED, (0, 3, 0), "False"),
    ],
)  # fmt: skip
def test_a_config_of_htps_device_is_read_in_the_layout_that_its_value_shows(
    option: int, words: tuple[int, int, int], reported: str
) -> None:
    served = Served("QnnHtp")
    config = (ctypes.c_uint32 * 4)(option, *words)
    custom = served.configs(objects.DeviceConfig, 0, customConfig=served.number(config))
    name = ("SOC", "ARCH", "SIGNEDPD")[option]
    if reported == "4095":
        rule = f"HTP device option {name}: there is no chip of {reported}"
        assert served.refused("deviceCreate", 0, custom, ctypes.c_uint64()) == (Code.DEVICE_INVALID_CONFIG, rule)
        return
    served.make("deviceCreate", 0, custom)
    suffix = ": accepted, but without effect here" if option == SIGNED else ""
    assert served.logged == [(LogLevel.INFO, f"HTP device option {name} = {reported}{suffix}")]
