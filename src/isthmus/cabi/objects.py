"""C structures of QNN's configurations, properties, memory descriptors, devices and profiles."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_uint32, c_uint64, c_void_p
from enum import IntEnum

from isthmus.cabi.notation import CStructure


class BackendOption(IntEnum):
    """QNN_BACKEND_CONFIG_OPTION_*."""

    CUSTOM = 0
    ERROR_REPORTING = 1
    PLATFORM = 2


class ContextOption(IntEnum):
    """QNN_CONTEXT_CONFIG_*."""

    CUSTOM = 0
    PRIORITY = 1
    ERROR_REPORTING = 2
    OEM_STRING = 3
    ASYNC_EXECUTION_QUEUE_DEPTH = 4
    ENABLE_GRAPHS = 5
    MEMORY_LIMIT_HINT = 6
    PERSISTENT_BINARY = 7
    BINARY_COMPATIBILITY = 8
    DEFER_GRAPH_INIT = 9
    GRAPH_RETENTION_ORDER = 10


class ErrorReportingLevel(IntEnum):
    """QNN_ERROR_REPORTING_LEVEL_*."""

    BRIEF = 0
    DETAILED = 1


class BinaryCompatibility(IntEnum):
    """QNN_CONTEXT_BINARY_COMPATIBILITY_*."""

    PERMISSIVE = 0
    STRICT = 1


class GraphOption(IntEnum):
    """QNN_GRAPH_CONFIG_OPTION_*."""

    CUSTOM = 0
    PRIORITY = 3
    PROFILE_HANDLE = 4
    SET_PROFILING_STATE = 5
    SET_PROFILING_NUM_EXECUTIONS = 6


class DeviceOption(IntEnum):
    """QNN_DEVICE_CONFIG_OPTION_*."""

    CUSTOM = 0
    PLATFORM_INFO = 1


class ProfileOption(IntEnum):
    """QNN_PROFILE_CONFIG_OPTION_*."""

    CUSTOM = 0
    MAX_EVENTS = 1
    ENABLE_OPTRACE = 2


class SignalOption(IntEnum):
    """QNN_SIGNAL_CONFIG_OPTION_*, with the numbers of QNN's headers."""

    CUSTOM = 0
    ABORT = 1
    TIMEOUT = 2


class EventType(IntEnum):
    """QNN_PROFILE_EVENTTYPE_*."""

    INIT = 100
    FINALIZE = 300
    EXECUTE = 400
    NODE = 404
    EXECUTE_QUEUE_WAIT = 405
    EXECUTE_PREPROCESS = 406
    EXECUTE_DEVICE = 407
    EXECUTE_POSTPROCESS = 408
    DEINIT = 500
    TRACE = 600
    BACKEND = 1000


class EventUnit(IntEnum):
    """QNN_PROFILE_EVENTUNIT_*."""

    MICROSEC = 1
    BYTES = 2
    CYCLES = 3
    COUNT = 4
    OBJECT = 5


class PropertyAnswer(IntEnum):
    """The return values of propertyHasCapability."""

    SUPPORTED = 0
    NOT_SUPPORTED = 1000
    UNKNOWN_KEY = 2000


PROPERTY_GROUPS = {
    "core": 1,
    "backend": 101,
    "context": 201,
    "graph": 301,
    "op_package": 401,
    "tensor": 501,
    "error": 1001,
    "memory": 1101,
    "signal": 1201,
    "log": 1301,
    "profile": 1401,
    "device": 1501,
    "global_config": 1601,
}
"""The first key of each group of capabilities; the keys of its members follow."""
PROPERTY_TENSOR_SUPPORT_RETRIEVE_RAW = 516
"""The capability to fetch a tensor's data by a callback."""


class BackendConfig(CStructure, declares="QnnBackend_Config_t"):
    """QnnBackend_Config_t."""


class OperationName(CStructure, declares="QnnBackend_OperationName_t"):
    """QnnBackend_OperationName_t."""


class QueueDepth(CStructure, declares="QnnContext_AsyncExecutionQueueDepth_t"):
    """QnnContext_AsyncExecutionQueueDepth_t."""


class ContextConfig(CStructure, declares="QnnContext_Config_t"):
    """QnnContext_Config_t."""


class GraphConfig(CStructure, declares="QnnGraph_Config_t"):
    """QnnGraph_Config_t."""


class EnvironmentOption(IntEnum):
    """QNN_GRAPH_EXECUTE_ENVIRONMENT_OPTION_*."""

    BIND_MEM_HANDLES = 0
    POPULATE_CLIENT_BUFS = 1


class ExecuteEnvironment(CStructure, declares="QnnGraph_ExecuteEnvironment_t"):
    """QnnGraph_ExecuteEnvironment_t."""


class Property(CStructure, declares="QnnBackend_Property_t QnnGraph_Property_t"):
    """QnnBackend_Property_t and QnnGraph_Property_t: their only option is a custom property, 0."""


class ContextProperty(CStructure, declares="QnnContext_Property_t"):
    """QnnContext_Property_t."""


class MemShape(CStructure, declares="Qnn_MemShape_t"):
    """Qnn_MemShape_t."""


class MemDescriptor(CStructure, declares="Qnn_MemDescriptor_t"):
    """Qnn_MemDescriptor_t."""


class CoreInfoV1(CStructure, declares="QnnDevice_CoreInfoV1_t"):
    """QnnDevice_CoreInfoV1_t."""


class CoreInfo(CStructure, declares="QnnDevice_CoreInfo_t"):
    """QnnDevice_CoreInfo_t."""


class HardwareDeviceInfoV1(CStructure, declares="QnnDevice_HardwareDeviceInfoV1_t"):
    """QnnDevice_HardwareDeviceInfoV1_t."""


class HardwareDeviceInfo(CStructure, declares="QnnDevice_HardwareDeviceInfo_t"):
    """QnnDevice_HardwareDeviceInfo_t."""


class PlatformInfoV1(CStructure, declares="QnnDevice_PlatformInfoV1_t"):
    """QnnDevice_PlatformInfoV1_t."""


class PlatformInfo(CStructure, declares="QnnDevice_PlatformInfo_t"):
    """QnnDevice_PlatformInfo_t."""


class DeviceConfig(CStructure, declares="QnnDevice_Config_t"):
    """QnnDevice_Config_t."""


class ProfileConfig(CStructure, declares="QnnProfile_Config_t"):
    """QnnProfile_Config_t."""


class EventData(CStructure, declares="QnnProfile_EventData_t"):
    """QnnProfile_EventData_t."""


class ExtendedEventData(CStructure, declares="QnnProfile_ExtendedEventData_t"):
    """QnnProfile_ExtendedEventData_t."""


class SignalConfig(CStructure, declares="QnnSignal_Config_t"):
    """QnnSignal_Config_t."""


class ContextParamsV1(CStructure, declares="QnnContext_ParamsV1_t"):
    """QnnContext_ParamsV1_t: one of several binaries to load, and its callback."""


class BinaryDataRequest(CStructure, declares="Qnn_ContextBinaryDataRequest_t"):
    """Qnn_ContextBinaryDataRequest_t: a section of a binary that a callback brings."""


class DmaDataResponse(CStructure, declares="Qnn_ContextBinaryDmaDataResponse_t"):
    """Qnn_ContextBinaryDmaDataResponse_t: the buffer with the section."""


class DmaDataMem(CStructure, declares="Qnn_ContextBinaryDmaDataMem_t"):
    """Qnn_ContextBinaryDmaDataMem_t: a buffer that is no longer used."""


class BinaryCallback(CStructure, declares="Qnn_ContextBinaryCallback_t"):
    """Qnn_ContextBinaryCallback_t: the callbacks that bring the data of a binary and take its buffers back."""


class ContextParamsV2(CStructure, declares="QnnContext_ParamsV2_t"):
    """QnnContext_ParamsV2_t: the same as version 1, with callbacks for the binary's data."""


class ContextParams(CStructure, declares="QnnContext_Params_t"):
    """QnnContext_Params_t."""


NOTIFY = ctypes.CFUNCTYPE(None, c_void_p, c_uint64)
"""Qnn_NotifyFn_t: the client's parameter, and the error (Qnn_NotifyStatus_t by value)."""
CONTEXT_NOTIFY = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_char_p, c_uint32, c_void_p, c_uint64)
"""QnnContext_createFromBinaryNotifyFn_t: context, graph, its name, 0 for a graph or 1 for a context, the client's
parameter, error.
"""
PROVIDE_DATA = ctypes.CFUNCTYPE(c_uint64, BinaryDataRequest, c_void_p, c_void_p)
"""Qnn_ContextBinaryDmaDataProviderFn_t: the section, where the buffer is written to, the client's parameter."""
RELEASE_DATA = ctypes.CFUNCTYPE(c_uint64, DmaDataMem, c_void_p)
"""Qnn_ContextBinaryDmaDataReleaseFn_t: the buffer and the client's parameter."""
