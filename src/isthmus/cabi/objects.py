"""C structures of QNN's configurations, properties, memory descriptors, devices and profiles."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_uint32, c_uint64, c_void_p
from enum import IntEnum

from isthmus.cabi.notation import declared


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


@declared("QnnBackend_Config_t")
class BackendConfig(ctypes.Structure):
    """QnnBackend_Config_t."""


@declared("QnnBackend_OperationName_t")
class OperationName(ctypes.Structure):
    """QnnBackend_OperationName_t."""


@declared("QnnContext_AsyncExecutionQueueDepth_t")
class QueueDepth(ctypes.Structure):
    """QnnContext_AsyncExecutionQueueDepth_t."""


@declared("QnnContext_Config_t")
class ContextConfig(ctypes.Structure):
    """QnnContext_Config_t."""


@declared("QnnGraph_Config_t")
class GraphConfig(ctypes.Structure):
    """QnnGraph_Config_t."""


class EnvironmentOption(IntEnum):
    """QNN_GRAPH_EXECUTE_ENVIRONMENT_OPTION_*."""

    BIND_MEM_HANDLES = 0
    POPULATE_CLIENT_BUFS = 1


@declared("QnnGraph_ExecuteEnvironment_t")
class ExecuteEnvironment(ctypes.Structure):
    """QnnGraph_ExecuteEnvironment_t."""


@declared("QnnBackend_Property_t", "QnnGraph_Property_t")
class Property(ctypes.Structure):
    """QnnBackend_Property_t and QnnGraph_Property_t: their only option is a custom property, 0."""


@declared("QnnContext_Property_t")
class ContextProperty(ctypes.Structure):
    """QnnContext_Property_t."""


@declared("Qnn_MemShape_t")
class MemShape(ctypes.Structure):
    """Qnn_MemShape_t."""


@declared("Qnn_MemDescriptor_t")
class MemDescriptor(ctypes.Structure):
    """Qnn_MemDescriptor_t."""


@declared("QnnDevice_CoreInfoV1_t")
class CoreInfoV1(ctypes.Structure):
    """QnnDevice_CoreInfoV1_t."""


@declared("QnnDevice_CoreInfo_t")
class CoreInfo(ctypes.Structure):
    """QnnDevice_CoreInfo_t."""


@declared("QnnDevice_HardwareDeviceInfoV1_t")
class HardwareDeviceInfoV1(ctypes.Structure):
    """QnnDevice_HardwareDeviceInfoV1_t."""


@declared("QnnDevice_HardwareDeviceInfo_t")
class HardwareDeviceInfo(ctypes.Structure):
    """QnnDevice_HardwareDeviceInfo_t."""


@declared("QnnDevice_PlatformInfoV1_t")
class PlatformInfoV1(ctypes.Structure):
    """QnnDevice_PlatformInfoV1_t."""


@declared("QnnDevice_PlatformInfo_t")
class PlatformInfo(ctypes.Structure):
    """QnnDevice_PlatformInfo_t."""


@declared("QnnDevice_Config_t")
class DeviceConfig(ctypes.Structure):
    """QnnDevice_Config_t."""


@declared("QnnProfile_Config_t")
class ProfileConfig(ctypes.Structure):
    """QnnProfile_Config_t."""


@declared("QnnProfile_EventData_t")
class EventData(ctypes.Structure):
    """QnnProfile_EventData_t."""


@declared("QnnProfile_ExtendedEventData_t")
class ExtendedEventData(ctypes.Structure):
    """QnnProfile_ExtendedEventData_t."""


@declared("QnnSignal_Config_t")
class SignalConfig(ctypes.Structure):
    """QnnSignal_Config_t."""


@declared("QnnContext_ParamsV1_t")
class ContextParamsV1(ctypes.Structure):
    """QnnContext_ParamsV1_t: one of several binaries to load, and its callback."""


@declared("Qnn_ContextBinaryDataRequest_t")
class BinaryDataRequest(ctypes.Structure):
    """Qnn_ContextBinaryDataRequest_t: a section of a binary that a callback brings."""


@declared("Qnn_ContextBinaryDmaDataResponse_t")
class DmaDataResponse(ctypes.Structure):
    """Qnn_ContextBinaryDmaDataResponse_t: the buffer with the section."""


@declared("Qnn_ContextBinaryDmaDataMem_t")
class DmaDataMem(ctypes.Structure):
    """Qnn_ContextBinaryDmaDataMem_t: a buffer that is no longer used."""


@declared("Qnn_ContextBinaryCallback_t")
class BinaryCallback(ctypes.Structure):
    """Qnn_ContextBinaryCallback_t: the callbacks that bring the data of a binary and take its buffers back."""


@declared("QnnContext_ParamsV2_t")
class ContextParamsV2(ctypes.Structure):
    """QnnContext_ParamsV2_t: the same as version 1, with callbacks for the binary's data."""


@declared("QnnContext_Params_t")
class ContextParams(ctypes.Structure):
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
