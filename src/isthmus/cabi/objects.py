"""C structures of QNN's configurations, properties, memory descriptors, devices and profiles."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from enum import IntEnum

from isthmus.cabi.types import Scalar, TensorSet


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


class ErrorReporting(ctypes.Structure):
    """Qnn_ErrorReportingConfig_t."""

    _fields_ = [("reportingLevel", c_uint32), ("storageLimit", c_uint32)]


class BackendConfigUnion(ctypes.Union):
    """The value of a backend's config."""

    _fields_ = [("customConfig", c_void_p), ("errorConfig", ErrorReporting), ("platformOption", c_char_p)]


class BackendConfig(ctypes.Structure):
    """QnnBackend_Config_t."""

    _anonymous_ = ("value",)
    _fields_ = [("option", c_uint32), ("value", BackendConfigUnion)]


class OperationName(ctypes.Structure):
    """QnnBackend_OperationName_t."""

    _fields_ = [("packageName", c_char_p), ("name", c_char_p), ("target", c_char_p)]


class QueueDepth(ctypes.Structure):
    """QnnContext_AsyncExecutionQueueDepth_t."""

    _fields_ = [("type", c_uint32), ("depth", c_uint32)]


class ContextConfigUnion(ctypes.Union):
    """The value of a context's config."""

    _fields_ = [
        ("customConfig", c_void_p),
        ("priority", c_uint32),
        ("errorConfig", ErrorReporting),
        ("oemString", c_char_p),
        ("asyncExeQueueDepth", QueueDepth),
        ("enableGraphs", POINTER(c_char_p)),
        ("memoryLimitHint", c_uint64),
        ("isPersistentBinary", c_uint8),
        ("binaryCompatibilityType", c_uint32),
        ("isGraphInitDeferred", c_uint8),
        ("graphRetentionOrder", POINTER(c_char_p)),
    ]


class ContextConfig(ctypes.Structure):
    """QnnContext_Config_t."""

    _anonymous_ = ("value",)
    _fields_ = [("option", c_uint32), ("value", ContextConfigUnion)]


class GraphConfigUnion(ctypes.Union):
    """The value of a graph's config."""

    _fields_ = [
        ("customConfig", c_void_p),
        ("priority", c_uint32),
        ("profileHandle", c_void_p),
        ("profilingState", c_uint32),
        ("numProfilingExecutions", c_uint32),
    ]


class GraphConfig(ctypes.Structure):
    """QnnGraph_Config_t."""

    _anonymous_ = ("value",)
    _fields_ = [("option", c_uint32), ("value", GraphConfigUnion)]


class EnvironmentOption(IntEnum):
    """QNN_GRAPH_EXECUTE_ENVIRONMENT_OPTION_*."""

    BIND_MEM_HANDLES = 0
    POPULATE_CLIENT_BUFS = 1


class ExecuteEnvironment(ctypes.Structure):
    """QnnGraph_ExecuteEnvironment_t."""

    _fields_ = [("option", c_uint32), ("tensorSet", TensorSet)]


class Property(ctypes.Structure):
    """QnnBackend_Property_t and QnnGraph_Property_t: their only option is a custom property, 0."""

    _fields_ = [("option", c_uint32), ("customProperty", c_void_p)]


class ContextProperty(Property):
    """QnnContext_Property_t."""


class MemShape(ctypes.Structure):
    """Qnn_MemShape_t."""

    _fields_ = [("numDim", c_uint32), ("dimSize", POINTER(c_uint32)), ("shapeConfig", c_char_p)]


class MemIonInfo(ctypes.Structure):
    """Qnn_MemIonInfo_t."""

    _fields_ = [("fd", c_int32)]


class MemDmaBufInfo(ctypes.Structure):
    """Qnn_MemDmaBufInfo_t."""

    _fields_ = [("fd", c_int32), ("data", c_void_p)]


class MemUnion(ctypes.Union):
    """The target of a memory descriptor."""

    _fields_ = [("ionInfo", MemIonInfo), ("customInfo", c_void_p), ("dmaBufInfo", MemDmaBufInfo)]


class MemDescriptor(ctypes.Structure):
    """Qnn_MemDescriptor_t."""

    _anonymous_ = ("info",)
    _fields_ = [("memShape", MemShape), ("dataType", c_uint32), ("memType", c_uint32), ("info", MemUnion)]


class CoreInfoV1(ctypes.Structure):
    """QnnDevice_CoreInfoV1_t."""

    _fields_ = [("coreId", c_uint32), ("coreType", c_uint32), ("coreInfoExtension", c_void_p)]


class CoreInfo(ctypes.Structure):
    """QnnDevice_CoreInfo_t."""

    _fields_ = [("version", c_uint32), ("v1", CoreInfoV1)]


class HardwareDeviceInfoV1(ctypes.Structure):
    """QnnDevice_HardwareDeviceInfoV1_t."""

    _fields_ = [
        ("deviceId", c_uint32),
        ("deviceType", c_uint32),
        ("numCores", c_uint32),
        ("cores", POINTER(CoreInfo)),
        ("deviceInfoExtension", c_void_p),
    ]


class HardwareDeviceInfo(ctypes.Structure):
    """QnnDevice_HardwareDeviceInfo_t."""

    _fields_ = [("version", c_uint32), ("v1", HardwareDeviceInfoV1)]


class PlatformInfoV1(ctypes.Structure):
    """QnnDevice_PlatformInfoV1_t."""

    _fields_ = [("numHwDevices", c_uint32), ("hwDevices", POINTER(HardwareDeviceInfo))]


class PlatformInfo(ctypes.Structure):
    """QnnDevice_PlatformInfo_t."""

    _fields_ = [("version", c_uint32), ("v1", PlatformInfoV1)]


class DeviceConfigUnion(ctypes.Union):
    """The value of a device's config."""

    _fields_ = [("customConfig", c_void_p), ("hardwareInfo", POINTER(PlatformInfo))]


class DeviceConfig(ctypes.Structure):
    """QnnDevice_Config_t."""

    _anonymous_ = ("value",)
    _fields_ = [("option", c_uint32), ("value", DeviceConfigUnion)]


class ProfileConfigUnion(ctypes.Union):
    """The value of a profile's config."""

    _fields_ = [("customConfig", c_void_p), ("numMaxEvents", c_uint64), ("enableOptrace", c_uint8)]


class ProfileConfig(ctypes.Structure):
    """QnnProfile_Config_t."""

    _anonymous_ = ("value",)
    _fields_ = [("option", c_uint32), ("value", ProfileConfigUnion)]


class EventData(ctypes.Structure):
    """QnnProfile_EventData_t."""

    _fields_ = [("type", c_uint32), ("unit", c_uint32), ("value", c_uint64), ("identifier", c_char_p)]


class BackendOpaqueObject(ctypes.Structure):
    """QnnProfile_BackendOpaqueObject_t."""

    _fields_ = [("data", c_void_p), ("len", c_uint64), ("fileName", c_char_p)]


class EventValue(ctypes.Union):
    """The value of an event, by its unit."""

    _fields_ = [("value", Scalar), ("backendOpaqueObject", BackendOpaqueObject)]


class ExtendedEventDataV1(ctypes.Structure):
    """QnnProfile_ExtendedEventDataV1_t."""

    _anonymous_ = ("what",)
    _fields_ = [
        ("type", c_uint32),
        ("unit", c_uint32),
        ("what", EventValue),
        ("timestamp", c_uint64),
        ("identifier", c_char_p),
    ]


class ExtendedEventData(ctypes.Structure):
    """QnnProfile_ExtendedEventData_t."""

    _fields_ = [("version", c_uint32), ("v1", ExtendedEventDataV1)]


class SignalConfigUnion(ctypes.Union):
    """The value of a signal's config."""

    _fields_ = [("customConfig", c_void_p), ("timeoutDurationUs", c_uint64)]


class SignalConfig(ctypes.Structure):
    """QnnSignal_Config_t."""

    _anonymous_ = ("value",)
    _fields_ = [("option", c_uint32), ("value", SignalConfigUnion)]


class BinaryBuffer(ctypes.Structure):
    """Qnn_BinaryBuffer_t."""

    _fields_ = [("data", c_void_p), ("dataSize", c_uint64)]


class ContextParamsV1(ctypes.Structure):
    """QnnContext_ParamsV1_t: one of several binaries to load, and its callback."""

    _fields_ = [
        ("config", POINTER(POINTER(ContextConfig))),
        ("binaryBuffer", c_void_p),
        ("binaryBufferSize", c_uint64),
        ("profile", c_void_p),
        ("notifyFunc", c_void_p),
        ("notifyParam", c_void_p),
    ]


class ContextParams(ctypes.Structure):
    """QnnContext_Params_t."""

    _fields_ = [("version", c_uint32), ("v1", ContextParamsV1)]


NOTIFY = ctypes.CFUNCTYPE(None, c_void_p, c_uint64)
"""Qnn_NotifyFn_t: the client's parameter, and the error (Qnn_NotifyStatus_t by value)."""
CONTEXT_NOTIFY = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_char_p, c_uint32, c_void_p, c_uint64)
"""QnnContext_createFromBinaryNotifyFn_t: context, graph, its name, 0 for a graph or 1 for a context, the client's
parameter, error.
"""
