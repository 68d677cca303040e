"""Headers of QNN's backends that execute nothing here: DSP, IR, which writes DLC files, and Saver, which records calls.

Sources of clients name their structures and numbers beside those of the backends that they use.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum

from isthmus.cabi.layout import Enumeration, Functions, Header, Macros, Numbers, Prototype, Structure, api_header

IR, SAVER, DSP = (9, (0, 1, 0)), (2, (1, 1, 0)), (5, (5, 0, 1))
"""The numbers of these backends, and the versions of their interfaces."""


class SaverOption(IntEnum):
    """QNN_SAVER_CONFIG_OPTION_*."""

    OUTPUT_DIRECTORY = 0
    APPEND_TIMESTAMP = 1
    BACKEND_ID = 2
    FILE_CONFIG = 3


_IR_TYPE = Enumeration(
    "QnnIrGraph_SerializationType_t", "QNN_IR_GRAPH_SERIALIZATION_TYPE", {"FLAT_BUFFER": 1}, undefined=""
)
_IR_OPTION = Enumeration(
    "QnnIrGraph_ConfigOption_t", "QNN_IR_GRAPH_CONFIG_OPTION", {"SERIALIZATION": 1}, undefined="UNKNOWN"
)
IR_SERIALIZATION = Structure(
    "QnnIrGraph_SerializationOption_t",
    "QnnIrGraph_SerializationType_t serializationType; const char *outputPath;",
    '{QNN_IR_GRAPH_SERIALIZATION_TYPE_FLAT_BUFFER, ""}',
)
IR_GRAPH_CONFIG = Structure(
    "QnnIrGraph_CustomConfig_t",
    "QnnIrGraph_ConfigOption_t option; union { QnnIrGraph_SerializationOption_t serializationOption; };",
    "{QNN_IR_GRAPH_CONFIG_OPTION_SERIALIZATION, {QNN_IR_GRAPH_SERIALIZATION_OPTION_INIT}}",
)
_IR_GRAPH = Header(
    "IR/QnnIrGraph.h",
    "IR's graph config, behind QnnGraph_CustomConfig_t: the file that a graph is written to.",
    ("../QnnGraph.h",),
    (
        _IR_TYPE,
        _IR_OPTION,
        IR_SERIALIZATION,
        IR_GRAPH_CONFIG,
    ),
)

SAVER_FILES = Structure("QnnSaver_FileConfig_t", "const char *modelFileName; const char *dataFileName;")
_SAVER_OPTION = Enumeration("QnnSaver_ConfigOption_t", "QNN_SAVER_CONFIG_OPTION", SaverOption)
SAVER_CONFIG = Structure(
    "QnnSaver_Config_t",
    "QnnSaver_ConfigOption_t option; union { const char *outputDirectory; uint32_t appendTimestamp;"
    " uint32_t backendId; QnnSaver_FileConfig_t fileConfig; };",
    "{QNN_SAVER_CONFIG_OPTION_UNDEFINED, {NULL}}",
)
_SAVER = Header(
    "Saver/QnnSaver.h",
    "The recorder's own function, of libQnnSaver.so.",
    ("../QnnCommon.h",),
    (
        Enumeration(
            "QnnSaver_Error_t", "QNN_SAVER",
            {"NO_ERROR": 0, "ERROR_DUMMY_RETVALUE": 4950, "ERROR_ALREADY_INSTANTIATED": 4951, "MIN_ERROR": 4950,
             "MAX_ERROR": 4998},
            "ERROR_UNDEFINED",
        ),
        SAVER_FILES,
        _SAVER_OPTION,
        SAVER_CONFIG,
        Prototype("QnnSaver_initialize", "const QnnSaver_Config_t **config"),
    ),
)  # fmt: skip

_CORNERS = {
    "CORNER_DISABLE": 0x10, "VCORNER_MIN_VOLTAGE_CORNER": 0x20, "VCORNER_SVS2": 0x30, "VCORNER_SVS": 0x40,
    "VCORNER_SVS_PLUS": 0x50, "VCORNER_NOM": 0x60, "VCORNER_NOM_PLUS": 0x70, "VCORNER_TURBO": 0x80,
    "VCORNER_TURBO_PLUS": 0x90, "VCORNER_MAX_VOLTAGE_CORNER": 0xA0,
}  # fmt: skip
_PERF, _MACRO = "QnnDspPerfInfrastructure", "QNN_DSP_PERF_INFRASTRUCTURE"
_CORNER_CONFIGS = " ".join(
    f"{_PERF}_VoltageCorner_t {domain}VoltageCorner{end}Config;"
    for domain in ("dcvs", "bus", "core")
    for end in ("Min", "Target", "Max")
)


def _dsp_options(noun: str, members: dict[str, int]) -> Enumeration:
    """Return the options of a kind of the DSP's settings."""
    return Enumeration(f"{_PERF}_{noun}ConfigOption_t", f"{_MACRO}_{noun.upper()}_CONFIGOPTION", members, "UNKNOWN")


def _dsp_config(noun: str, values: str) -> Structure:
    """Return the structure with one setting of a kind: its option, and a union of values."""
    unknown = f"{{{_MACRO}_{noun.upper()}_CONFIGOPTION_UNKNOWN, {{0}}}}"
    option = f"{_PERF}_{noun}ConfigOption_t config;"
    return Structure(
        f"{_PERF}_{noun}Config_t", f"{option} union {{ {values} }};", unknown, f"{_MACRO}_{noun.upper()}_CONFIG"
    )


_DSP_PERF = Header(
    "DSP/QnnDspPerfInfrastructure.h",
    "The DSP's clocks, voltages, memory and threads, which a client can ask for. QnnHtpPerfInfrastructure.h has other\n"
    " * declarations under some of these names: a source includes one of the two.",
    ("../QnnCommon.h",),
    (
        Macros({f"{_MACRO}_POWER_CONFIG_MAX_RPC_POLLING_TIME": 9999}),
        Enumeration(
            f"{_PERF}_Error_t", _MACRO,
            {"NO_ERROR": 0, "MIN_ERROR": 13000, "ERROR_INVALID_HANDLE_PTR": 13000, "ERROR_INVALID_INPUT": 13001,
             "ERROR_UNSUPPORTED_CONFIG": 13002, "ERROR_TRANSPORT": 13003, "ERROR_UNSUPPORTED": 13004,
             "ERROR_FAILED": 13005, "MAX_ERROR": 13999},
            "ERROR_UNDEFINED",
        ),
        Enumeration(f"{_PERF}_VoltageCorner_t", "DCVS_VOLTAGE", _CORNERS, "VCORNER_UNKNOWN"),
        Enumeration(
            f"{_PERF}_PowerMode_t", f"{_MACRO}_POWERMODE",
            {"ADJUST_UP_DOWN": 1, "ADJUST_ONLY_UP": 2, "POWER_SAVER_MODE": 4, "POWER_SAVER_AGGRESSIVE_MODE": 8,
             "PERFORMANCE_MODE": 16, "DUTY_CYCLE_MODE": 32},
            "UNKNOWN",
        ),
        Enumeration(f"{_PERF}_VtcmUsageFactor_t", f"{_MACRO}_VTCM_USE", {"FULL": 1, "MIN": 2}, "UNKNOWN"),
        _dsp_options("Power", {
            "DCVS_ENABLE": 1, "SLEEP_LATENCY": 2, "SLEEP_DISABLE": 3, "DCVS_POWER_MODE": 4, "DCVS_VOLTAGE_CORNER": 5,
            "BUS_VOLTAGE_CORNER": 6, "CORE_VOLTAGE_CORNER": 7, "RPC_CONTROL_LATENCY": 9, "RPC_POLLING_TIME": 10,
            "HMX_TIMEOUT_INTERVAL_US": 11,
        }),
        _dsp_options("Memory", {"GROW_SIZE": 1, "VTCM_SIZE": 2, "VTCM_USAGE_FACTOR": 3}),
        _dsp_options("Thread", {"NUMBER_OF_HVX_THREADS": 1}),
        Numbers(tuple(
            f"{_PERF}_{noun}_t"
            for noun in (
                "DcvsEnable", "SleepLatency", "SleepDisable", "MemGrowSize", "VtcmSize", "HvxThreadNumber",
                "RpcControlLatency", "RpcPollingTime", "HmxTimeoutIntervalUs",
            )
        )),
        _dsp_config(
            "Power",
            f"{_PERF}_DcvsEnable_t dcvsEnableConfig; {_PERF}_SleepLatency_t sleepLatencyConfig;"
            f" {_PERF}_SleepDisable_t sleepDisableConfig; {_PERF}_PowerMode_t dcvsPowerModeConfig; {_CORNER_CONFIGS}"
            f" {_PERF}_RpcControlLatency_t rpcControlLatencyConfig; {_PERF}_RpcPollingTime_t rpcPollingTimeConfig;"
            f" {_PERF}_HmxTimeoutIntervalUs_t hmxTimeoutIntervalUsConfig;",
        ),
        _dsp_config(
            "Memory",
            f"{_PERF}_MemGrowSize_t memGrowSizeConfig; {_PERF}_VtcmSize_t vtcmSizeInMB;"
            f" {_PERF}_VtcmUsageFactor_t vtcmUsageConfig;",
        ),
        _dsp_config("Thread", f"{_PERF}_HvxThreadNumber_t numHvxThreads;"),
        Functions({
            f"{_PERF}_CreatePowerConfigIdFn_t": "uint32_t *powerConfigId",
            f"{_PERF}_DestroyPowerConfigIdFn_t": "uint32_t powerConfigId",
            f"{_PERF}_SetPowerConfigFn_t": f"uint32_t powerConfigId, const {_PERF}_PowerConfig_t **config",
            f"{_PERF}_SetMemoryConfigFn_t": f"const {_PERF}_MemoryConfig_t **config",
            f"{_PERF}_SetThreadConfigFn_t": f"const {_PERF}_ThreadConfig_t **config",
        }),
    ),
)  # fmt: skip

_FUNCTIONS = ("createPowerConfigId", "destroyPowerConfigId", "setPowerConfig", "setMemoryConfig", "setThreadConfig")
_DSP_DEVICE = Header(
    "DSP/QnnDspDevice.h",
    "The DSP's infrastructure.",
    ("../QnnDevice.h", "QnnDspPerfInfrastructure.h"),
    (
        Structure(
            "QnnDspDevice_Infrastructure_t",
            " ".join(f"{_PERF}_{name[0].upper()}{name[1:]}Fn_t {name};" for name in _FUNCTIONS),
            f"{{{', '.join(['NULL'] * len(_FUNCTIONS))}}}",
            tag="_QnnDevice_Infrastructure_t",
        ),
    ),
)

HEADERS = (
    api_header("IR", *IR),
    _IR_GRAPH,
    api_header("DSP", *DSP),
    _DSP_PERF,
    _DSP_DEVICE,
    replace(api_header("SAVER", *SAVER), file="Saver/QnnSaverCommon.h"),
    _SAVER,
)
