"""Tables of numbers as clients see them: capabilities, codes of unknown handles, options, limits, what calls do."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from cabi.test_writer import ENCODINGS

from capi.qnn_calls import Client
from capi.served import Served
from isthmus.backends.htp import c as htp_c
from isthmus.backends.htp import options as htp_options
from isthmus.backends.lpai import headers as lpai_headers
from isthmus.backends.lpai.options import LpaiContextOption
from isthmus.backends.seam import config as seam_config
from isthmus.cabi import objects, op_package, tensors
from isthmus.cabi.declarations import BACKEND, SYSTEM, Parameter
from isthmus.capi import (
    context,
    delegate,
    dlc,
    dlc_descriptions,
    execution,
    handles,
    memory,
    protocol,
    records,
    rules,
    serialization,
    validation,
    values,
)  # fmt: skip
from isthmus.capi.functions import HANDLE_TYPES, TABLE
from isthmus.errors import Code
from isthmus.frontends.composed.entries import ComposedTensor
from isthmus.log import LogLevel

# -- capabilities ------------------------------------------------------------------------------------------------------

EVERYWHERE = {
    106, 107, 202, 205, 206, 208, 210, 211, 212, 221, 302, 304, 306, 308, 311, 313, 322, 509, 510, 511, 512, 513, 514,
    1201, 1202, 1203, 1301, 1302, 1401, 1404, 1405, 1501,
}  # fmt: skip
CAPABILITIES = {
    "QnnCpu": {105, 402, 403}, "QnnGpu": {502, 1101, 1103},
    "QnnHtp": {207, 209, 215, 217, 220, 312, 502, 1101, 1102, 1103, 1104, 1502},
    "QnnLpai": {108, 318, 319, 320, 502, 1101, 1102, 1103, 1104}, "QnnIr": set(), "QnnSaver": set(), "QnnDsp": set(),
}  # fmt: skip
NO_CAPABILITIES = {201, 203, 204, *range(223, 261)}
"""Numbers of the group of contexts that QNN has not given to a capability."""
GROUPS = (1, 101, 201, 301, 401, 501, 1001, 1101, 1201, 1301, 1401, 1501, 1601)


@pytest.mark.parametrize("library", CAPABILITIES)
def test_every_capability_is_answered(library: str) -> None:
    served = Served(library)
    answers = {key: served.call("propertyHasCapability", key) for key in range(2101)}
    assert {key for key, answer in answers.items() if answer == 0} == EVERYWHERE | CAPABILITIES[library]
    known = {key for first in GROUPS for key in range(first, first + 60)} - NO_CAPABILITIES
    assert {key for key, answer in answers.items() if answer == 2000} == set(answers) - known
    assert set(answers.values()) == {0, 1000, 2000}


def test_libraries_have_the_versions_of_their_interfaces(libraries: Path) -> None:
    found = {
        name: str(Client(libraries / f"libQnn{name}.so").provider.backendApiVersion)
        for name in ("Cpu", "Dsp", "Gpu", "Htp", "Ir", "Lpai", "Saver")
    }
    assert {name: found[name] for name in ("Dsp", "Ir", "Saver")} == {"Dsp": "5.0.1", "Ir": "0.1.0", "Saver": "1.1.0"}
    for name, version in found.items():
        served, versions = Served(f"Qnn{name}"), (ctypes.c_uint32 * 6)()
        served.do("backendGetApiVersion", versions)
        assert ".".join(map(str, versions[:3])) == "2.40.0"
        assert ".".join(map(str, versions[3:])) == version


# -- handles -----------------------------------------------------------------------------------------------------------

UNKNOWN = {
    1004: "profileGetSubEvents.eventId profileGetEventData.eventId profileGetExtendedEventData.eventId "
          "deviceFreePlatformInfo.logger signalSetConfig.signal signalTrigger.signal signalFree.signal "
          "systemDlcCreateFromFile.logger systemDlcCreateFromBinary.logger systemProfileSerializeEventData.handle "
          "systemProfileFreeSerializationTarget.handle systemDlcCreateFromFileWithDestinationDir.logger "
          "systemDlcCreateFromBinaryWithDestinationDir.logger",
    4004: "backendCreate.logger",
    4011: "backendSetConfig.backend backendRegisterOpPackage.backend backendGetSupportedOperations.backend "
          "backendValidateOpConfig.backend backendFree.backend signalCreate.backend backendGetProperty.backend",
    5000: "contextFree.profile contextCreateFromBinaryListAsync.backend contextCreateFromBinaryListAsync.device "
          "contextCreateFromBinaryListAsync.signal contextFinalize.profile",
    5002: "contextCreate.backend contextCreate.device contextSetConfig.context contextGetBinarySize.context "
          "contextGetBinary.context contextCreateFromBinary.backend contextCreateFromBinary.device "
          "contextFree.context graphRetrieve.context memRegister.context contextValidateBinary.backend "
          "contextValidateBinary.device contextCreateFromBinaryWithSignal.backend "
          "contextCreateFromBinaryWithSignal.device contextCreateFromBinaryWithCallback.backend "
          "contextCreateFromBinaryWithCallback.device contextGetProperty.context contextFinalize.context",
    5009: "contextCreateFromBinary.profile contextCreateFromBinaryWithSignal.profile "
          "contextCreateFromBinaryWithCallback.profile",
    6000: "graphCreate.context graphFinalize.profile graphFinalize.signal graphExecute.profile graphExecute.signal "
          "graphExecuteAsync.profile graphExecuteAsync.signal contextCreateFromBinaryWithSignal.signal "
          "contextCreateFromBinaryWithCallback.signal",
    6001: "graphSetConfig.graph graphAddNode.graph graphFinalize.graph graphExecute.graph graphExecuteAsync.graph "
          "graphPrepareExecutionEnvironment.graph graphReleaseExecutionEnvironment.graph graphGetProperty.graph",
    7001: "tensorCreateContextTensor.context tensorCreateGraphTensor.graph",
    11003: "logSetLogLevel.logger logFree.logger deviceGetPlatformInfo.logger deviceCreate.logger "
           "systemLogSetLogLevel.logger systemLogFree.logger",
    12000: "profileCreate.backend profileSetConfig.profile profileGetEvents.profile profileFree.profile",
    14000: "deviceSetConfig.device deviceGetInfo.device deviceFree.device",
}  # fmt: skip
"""The codes for an unknown handle by function and parameter; of the others of the system library, it is 30000."""


@pytest.mark.parametrize(("library", "table"), [("QnnCpu", BACKEND), ("QnnSystem", SYSTEM)], ids=["cpu", "system"])
def test_an_unknown_handle_has_the_code_of_its_function(library: str, table: Any) -> None:
    expected = {argument: code for code, arguments in UNKNOWN.items() for argument in arguments.split()}
    served = Served(library)
    valid: dict[str, int] = {}
    if library == "QnnCpu":
        backend, context = served.opened()
        valid = {
            "Qnn_BackendHandle_t": backend, "Qnn_ContextHandle_t": context,
            "Qnn_GraphHandle_t": served.ready(context)[0],
        }  # fmt: skip
    room, found = (ctypes.c_uint64 * 8)(), {}
    for name, parameters in table.items():
        for parameter in parameters or ():
            if name not in TABLE or parameter.base not in HANDLE_TYPES or parameter.stars:
                continue

            def argument(other: Parameter, asked: Parameter = parameter) -> Any:
                if other is asked:
                    return 0x999
                if other.stars:
                    return room if other.mark == "+" else 0
                return 0 if other.mark == "?" else valid.get(other.base, 0)

            found[f"{name}.{parameter.name}"] = served.call(name, *map(argument, parameters))
    assert len(found) > 50
    assert found == {each: expected.get(each, 30000) for each in found}


def test_handles_look_like_aligned_pointers() -> None:
    made = handles.Handles()
    assert [made.add(object()) for _ in range(3)] == [0x10000, 0x10010, 0x10020]
    parent = made.add(object())
    child = made.add(object(), parent)
    other = made.add(object(), parent)
    grandchild = made.add(object(), child)
    kept = made.of_kind(object)
    assert [number for number, _ in kept][-4:] == [parent, child, other, grandchild]
    made.remove(other)
    assert len(made.remove(parent)) == 3
    assert [number for number, _ in made.of_kind(object)] == [0x10000, 0x10010, 0x10020]
    assert made.number_of(object()) == 0


KINDS = {
    "Qnn_BackendHandle_t": "backend", "Qnn_ContextHandle_t": "context", "Qnn_DeviceHandle_t": "device",
    "Qnn_GraphHandle_t": "graph", "Qnn_LogHandle_t": "log", "Qnn_ProfileHandle_t": "profile",
    "Qnn_SignalHandle_t": "signal", "Qnn_MemHandle_t": "memory handle", "const char *": "message",
    "const QnnDevice_PlatformInfo_t *": "platform information",
}  # fmt: skip


def test_what_calls_do_with_their_arguments_is_what_their_declarations_mark() -> None:
    """Each argument by itself; the owner of what is created is the first handle that is not a log."""
    for name, parameters in BACKEND.items():
        found: dict[str, list[Any]] = {"handles": [], "creates": [], "frees": [], "needed": []}
        configs = None
        for index, each in enumerate(parameters or ()):
            is_text = each.type in ("const char *", "const QnnDevice_PlatformInfo_t *")
            if each.type in KINDS and (each.mark == "~" or not is_text):
                found["handles"].append((index, KINDS[each.type], each.mark == "?"))
                found["frees"] += [(index, KINDS[each.type])] * (each.mark == "~")
            elif "*" in each.type and each.mark != "?":
                found["needed"].append(index)
            if each.mark == "+":
                owners = [place for place, kind, _ in found["handles"] if kind != "log"]
                kind = KINDS[each.type[:-1].rstrip()]
                found["creates"].append((index, kind, owners[0] if owners else None))
            if each.type.endswith("_Config_t **"):
                configs = index
        assert protocol.HANDLES.get(name, []) == found["handles"], name
        assert protocol.CREATES.get(name, []) == found["creates"], name
        assert protocol.FREES.get(name, []) == found["frees"], name
        assert protocol.NEEDED.get(name, []) == found["needed"], name
        assert (protocol.CONFIGS.get(name) or (None,))[0] == configs, name


# -- options -----------------------------------------------------------------------------------------------------------

WITHOUT_EFFECT = ": accepted, but without effect here"
HTP_CONTEXT_OPTIONS = {
    # What is logged of each whose value is 0.
    1: "WEIGHT_SHARING_ENABLED = False", 3: f"FILE_READ_MEMORY_BUDGET = 0{WITHOUT_EFFECT}",
    4: "DSP_MEMORY_PROFILING_ENABLED = False",
    6: "IO_MEM_ESTIMATION = False", 7: "PREPARE_ONLY = False",
    8: f"INIT_ACCELERATION = False{WITHOUT_EFFECT}", 9: f"SKIP_VALIDATION_ON_BINARY_SECTION = False{WITHOUT_EFFECT}",
    11: "USE_EXTENDED_UDMA = False",
    13: f"LORA_WEIGHT_SHARING_ENABLED = False{WITHOUT_EFFECT}",
    16: f"LORA_WEIGHT_SHARING_RAM_PRELOAD_ENABLED = False{WITHOUT_EFFECT}", 17: "REUSED_IO_LIMIT = 0",
    18: "REFERENCE_WEIGHT_SHARING_ENABLED = False", 19: f"CONCURRENT_DESERIALIZATION_EXTRA_SIZE = 0{WITHOUT_EFFECT}",
    20: f"GRAPH_SPLITTING_ENABLED = False{WITHOUT_EFFECT}", 21: f"CONCURRENT_DESERIALIZATION_PATCH = 0{WITHOUT_EFFECT}",
    22: f"GRAPH_SPLITTING_CONFIGS = isEnabled 0{WITHOUT_EFFECT}",
    23: f"LORA_PRELOAD_BUFFER_GROUPS = numGroups 0{WITHOUT_EFFECT}",
    25: f"PARALLEL_WEIGHT_LOADING = mode 0, thresholdInMbOverride 0{WITHOUT_EFFECT}",
    26: "26 is unknown here and ignored",
}  # fmt: skip


def test_each_number_of_a_context_option_of_htp_is_known_ignored_or_refused() -> None:
    """Also refused: the options of groups (2 and 12), whose first context must give a size, and those of lists."""
    served = Served("QnnHtp")
    _, made = served.opened()
    found = {}
    for number in range(32):
        config = served.number((ctypes.c_uint32 * 8)(number))
        served.logged.clear()
        code = served.call("contextSetConfig", made, served.configs(objects.ContextConfig, 0, customConfig=config))
        if code:
            assert code == Code.CONTEXT_INVALID_CONFIG
        else:
            [(level, reported)] = served.logged
            assert level == (LogLevel.WARN if "unknown" in reported else LogLevel.INFO)
            # The reason of an option without effect is looked at elsewhere.
            message = reported.removeprefix("HTP context option ")
            found[number] = message.partition(WITHOUT_EFFECT)[0] + WITHOUT_EFFECT * (WITHOUT_EFFECT in message)
    assert found == HTP_CONTEXT_OPTIONS


def test_an_island_of_lpai_may_have_no_name() -> None:
    served = Served("QnnLpai")
    backend, _ = served.opened()
    custom = served.client.keep(lpai_headers.CUSTOM())
    custom.option, custom.config = int(LpaiContextOption.ENABLE_ISLAND), None
    configs = served.configs(objects.ContextConfig, 0, customConfig=ctypes.addressof(custom))
    assert served.make("contextCreate", backend, 0, configs)
    assert served.logged == []
    custom.config = served.number(b"net")
    assert served.make("contextCreate", backend, 0, configs)
    assert served.logged == [(LogLevel.INFO, "graph 'net' is to run in an island: so do all of its context")]


# -- limits ------------------------------------------------------------------------------------------------------------


def test_limits_have_these_values() -> None:
    """What exceeds a limit is refused or cut, with a message that has the number."""
    served = Served("QnnCpu")
    backend, _ = served.opened()
    handle = served.make("profileCreate", backend, 1)
    profile = served.server.handles.get(handle, records.ClientProfile, Code.PROFILE_INVALID_HANDLE, "profile")
    assert {
        "rank": tensors.MAX_RANK, "scales": tensors.MAX_SCALES, "operands": values.MAX_OPERANDS,
        "bytes of a tensor": values.MAX_BYTES, "tensors": execution.MAX_TENSORS,
        "descriptors": memory.MAX_DESCRIPTORS, "bytes of a binary": context.MAX_BINARY_BYTES,
        "names of graphs": context._MAX_NAMES, "priority": seam_config.DEFAULT_PRIORITY,
        "depth of a queue": seam_config.MAX_QUEUE_DEPTH,
        "configs of a DLC": dlc.MAX_CONFIGS, "bytes of a DLC": dlc.MAX_BYTES,
        "events in a file": serialization.MAX_EVENTS, "levels of events": serialization.MAX_DEPTH,
        "skipped nodes": delegate.MAX_SKIPPED,
        "options as texts": delegate.MAX_OPTIONS, "checked tensors": rules.MAX_TENSORS,
        "checked handles": rules.MAX_HANDLES, "checked events": rules.MAX_EVENTS,
        "mistakes": validation.MAX_MISTAKES, "created handles": validation.MAX_LISTED,
        "events of a profile": profile.most,
        "soc model": htp_c.MAX_SOC_MODEL, "architecture": (htp_options.MIN_ARCHITECTURE, htp_options.MAX_ARCHITECTURE),
    } == {
        "rank": 8, "scales": 1 << 24, "operands": 1 << 14, "bytes of a tensor": 1 << 62, "tensors": 4096,
        "descriptors": 1 << 16, "bytes of a binary": 1 << 40, "names of graphs": 1024, "priority": 100,
        "depth of a queue": 300,
        "configs of a DLC": 4096, "bytes of a DLC": 1 << 36, "events in a file": 1 << 16, "levels of events": 8,
        "skipped nodes": 1 << 16, "options as texts": 256, "checked tensors": 4096, "checked handles": 1 << 16,
        "checked events": 1 << 16, "mistakes": 1000, "created handles": 1 << 16, "events of a profile": 1 << 20,
        "soc model": 4095, "architecture": (60, 255),
    }  # fmt: skip


def test_functions_of_op_packages_have_these_arguments() -> None:
    """Given as the names of types in ctypes; a handle is a number of 64 bits."""
    number, place = ctypes.c_uint64.__name__, "c_void_p"
    found = {
        version: {name: [each.__name__ for each in arguments] for name, arguments in functions.items()}
        for version, functions in op_package.VERSIONS.items()
    }
    assert found == {
        (1, 4): {
            "init": [place], "terminate": [], "getInfo": ["LP_c_void_p"], "validateOpConfig": ["OpConfig"],
            "createOpImpl": [place, place, "LP_c_void_p"], "freeOpImpl": [place],
            "logInitialize": [place, ctypes.c_uint32.__name__], "logSetLevel": [ctypes.c_uint32.__name__],
            "logTerminate": [],
        },
        (2, 0): {
            "create": [place, place, ctypes.c_uint32.__name__, f"LP_{number}"], "getInfo": ["LP_c_void_p"],
            "validateOpConfig": [number, "OpConfig"], "createOpImpl": [number, place, place, "LP_c_void_p"],
            "freeOpImpl": [number, place], "logSetLevel": [number, ctypes.c_uint32.__name__], "free": [number],
        },
    }  # fmt: skip


# -- descriptions of DLCs ----------------------------------------------------------------------------------------------

FACTS = {
    "one scale": {"ScaleOffsetScale": 0.5, "ScaleOffsetOffset": -3},
    "an axis": {"AxisScaleOffsetAxis": 1, "AxisScaleOffsetNumScaleOffsets": 3},
    "bits": {"BwScaleOffsetBitwidth": 4, "BwScaleOffsetScale": 0.125, "BwScaleOffsetOffset": 5},
    "an axis and bits": {"BwAxisScaleOffsetBitwidth": 6, "BwAxisScaleOffsetAxis": 1, "BwAxisScaleOffsetNumElements": 3},
    "blocks": {}, "factors": {}, "wide factors": {},
}  # fmt: skip
LISTS = {"an axis": "AxisScaleOffset", "an axis and bits": "BwAxisScaleOffset"}
NUMBERS = {"Scale": ctypes.c_float, "Offset": ctypes.c_int32, "Axis": ctypes.c_int32}


@pytest.mark.parametrize("case", [*ENCODINGS, "none"])
def test_an_encoding_of_a_dlc_is_described_by_the_fields_that_it_has(case: str) -> None:
    served = Served("QnnSystem")
    entry = ENCODINGS.get(case)
    number = served.server.handles.add(dlc_descriptions.QuantDescription(entry))

    def asked(name: str, kind: Any, *index: int) -> Any:
        out = (kind * 2)()
        ctypes.memset(out, 0xAB, ctypes.sizeof(out))
        guard = bytes(out)[ctypes.sizeof(kind) :]
        code = served.call(f"systemDlcGetQuantParams{name}", number, *index, out)
        assert bytes(out)[ctypes.sizeof(kind) :] == guard, "no more is written than a number has"
        return out[0] if code == 0 else code

    undefined = 0x7FFFFFFF
    assert asked("EncodingDefinition", ctypes.c_uint32) == (undefined if entry is None else 1)
    assert asked("Encoding", ctypes.c_uint32) == (undefined if entry is None else entry.kind)
    for name in {name for facts in FACTS.values() for name in facts}:
        kind = next((kind for end, kind in NUMBERS.items() if name.endswith(end)), ctypes.c_uint32)
        assert asked(name, kind) == FACTS.get(case, {}).get(name, Code.COMMON_INVALID_ARGUMENT), name
    for prefix in LISTS.values():
        has_it = LISTS.get(case) == prefix
        for end, expected in (("Scale", [0.5, 0.25, 2.0]), ("Offset", [-3, 0, 7])):
            found = [asked(f"{prefix}{end}AtIndex", NUMBERS[end], index) for index in range(4)]
            refused = int(Code.COMMON_INVALID_ARGUMENT)
            assert found == ([*expected, refused] if has_it else [refused] * 4)
    if case == "an axis":
        out = ctypes.c_float()
        assert served.refused("systemDlcGetQuantParamsAxisScaleOffsetScaleAtIndex", number, 3, out)[1].endswith(
            f" {number:#x}: index 3 is out of range: it has 3"
        )
    elif case != "one scale":
        assert served.refused("systemDlcGetQuantParamsScaleOffsetScale", number, ctypes.c_float())[1] == (
            "quantization: its encoding is of another form"
        )


def test_a_tensor_and_a_graph_of_a_dlc_are_described() -> None:
    served = Served("QnnSystem")
    known = dlc.Dlc(memoryview(b""), {}, (), ())
    entry = ComposedTensor("t", 1, 0x308, (2, 3, 4))
    tensor = served.server.handles.add(dlc_descriptions.TensorDescription(known, entry, 17, 0x55))
    graph = served.server.handles.add(dlc_descriptions.GraphDescription(known, "net", [0x10, 0x20], [0x30]))

    def asked(name: str, handle: int, kind: Any = ctypes.c_uint32, *index: int) -> Any:
        out = (kind * 2)()
        served.do(f"systemDlcGet{name}", handle, *index, out)
        assert out[1] == 0
        return out[0]

    assert ctypes.string_at(asked("TensorInfoName", tensor, ctypes.c_uint64)) == b"t"
    for name, value in (("Id", 17), ("Type", 1), ("DataFormat", 0), ("DataType", 0x308), ("Rank", 3)):
        assert asked(f"TensorInfo{name}", tensor) == value
    assert asked("TensorInfoQuantParams", tensor, ctypes.c_uint64) == 0x55
    dims = (ctypes.c_uint32 * 4)(9, 9, 9, 9)
    served.do("systemDlcGetTensorInfoDimensions", tensor, dims)
    assert list(dims) == [2, 3, 4, 9]
    scalar = dlc_descriptions.TensorDescription(known, ComposedTensor("s", 1, 0x308, ()), 1, 0)
    served.do("systemDlcGetTensorInfoDimensions", served.server.handles.add(scalar), 0)
    assert ctypes.string_at(asked("ComposableGraphInfoGraphName", graph, ctypes.c_uint64)) == b"net"
    assert asked("ComposableGraphInfoNumInputTensors", graph) == 2
    assert asked("ComposableGraphInfoNumOutputTensors", graph) == 1
    found = [asked("GraphInfoInputTensorInfo", graph, ctypes.c_uint64, index) for index in range(2)]
    assert found == [0x10, 0x20]
    assert asked("GraphInfoOutputTensorInfo", graph, ctypes.c_uint64, 0) == 0x30
    for side, index in (("Input", 2), ("Output", 1)):
        code, rule = served.refused(f"systemDlcGetGraphInfo{side}TensorInfo", graph, index, ctypes.c_uint64())
        assert (code, rule) == (1004, f"graph {graph:#x}: index {index} is out of range: it has {index}")
