"""QNN's two function tables: the names of their entries in order, what each takes, and how a client sees them.

Entries were only ever added at the end: a table of an older version is a beginning of this one. Where a table is passed
by value (`QnnSystemDlc_composeGraphs`, `QnnModel_composeGraphs`) its size is part of the call.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

from isthmus.cabi.objects import (
    BackendConfig,
    ContextConfig,
    ContextProperty,
    DeviceConfig,
    EventData,
    ExecuteEnvironment,
    ExtendedEventData,
    GraphConfig,
    MemDescriptor,
    OperationName,
    PlatformInfo,
    ProfileConfig,
    Property,
    SignalConfig,
)
from isthmus.cabi.system import (
    BinaryInfo,
    DlcGraphConfigInfo,
    GraphInfo,
    ProfileData,
    SerializationTarget,
)
from isthmus.cabi.types import OpConfig, Tensor, Version
from isthmus.errors import Code, QnnError

CORE_VERSION = (2, 40, 0)
"""The core API whose table this is."""
SYSTEM_VERSION = (1, 15, 0)
"""The system API whose table this is."""
COMPOSING_ENTRIES = 25
"""How many entries from the first a library that composes graphs calls: up to tensorCreateGraphTensor."""

_BACKEND = """
    propertyHasCapability
    backendCreate backendSetConfig backendGetApiVersion backendGetBuildId backendRegisterOpPackage
    backendGetSupportedOperations backendValidateOpConfig backendFree
    contextCreate contextSetConfig contextGetBinarySize contextGetBinary contextCreateFromBinary contextFree
    graphCreate graphCreateSubgraph graphSetConfig graphAddNode graphFinalize graphRetrieve graphExecute
    graphExecuteAsync
    tensorCreateContextTensor tensorCreateGraphTensor
    logCreate logSetLogLevel logFree
    profileCreate profileSetConfig profileGetEvents profileGetSubEvents profileGetEventData
    profileGetExtendedEventData profileFree
    memRegister memDeRegister
    deviceGetPlatformInfo deviceFreePlatformInfo deviceGetInfrastructure deviceCreate deviceSetConfig deviceGetInfo
    deviceFree
    signalCreate signalSetConfig signalTrigger signalFree
    errorGetMessage errorGetVerboseMessage errorFreeVerboseMessage
    graphPrepareExecutionEnvironment graphReleaseExecutionEnvironment graphGetProperty
    contextValidateBinary contextCreateFromBinaryWithSignal contextCreateFromBinaryListAsync
    tensorUpdateGraphTensors tensorUpdateContextTensors
    contextGetBinarySectionSize contextGetBinarySection contextApplyBinarySection
    backendGetProperty contextGetProperty
    contextGetIncrementalBinary contextReleaseIncrementalBinary contextFinalize
    globalConfigSet
    contextCreateFromBinaryWithCallback contextGetBinarySectionUpdate contextFreeBinarySectionUpdate contextAddToDlc
    reserved72 reserved73
    backendRegisterOpPackageFromBinary
    """
BACKEND_FUNCTIONS = tuple(_BACKEND.split())

_SYSTEM = """
    systemContextCreate systemContextGetBinaryInfo systemContextGetMetaData systemContextFree
    systemTensorGetMemoryFootprint
    systemLogCreate systemLogSetLogLevel systemLogFree
    systemDlcCreateFromFile systemDlcCreateFromBinary systemDlcComposeGraphs systemDlcGetOpMappings systemDlcFree
    systemProfileCreateSerializationTarget systemProfileSerializeEventData systemProfileFreeSerializationTarget
    systemDlcGetRecordByName systemDlcGetRecordsByType systemDlcGetRecordDataSize
    systemDlcReadRecordDataMemoryMapped systemDlcFreeRecord systemDlcSave
    systemDlcCreateFromFileWithDestinationDir systemDlcCreateFromBinaryWithDestinationDir
    systemDlcGetBinarySize systemDlcGetBinary systemDlcCreateWithDestinationDir
    systemDlcGetComposableGraphInfoHandles systemDlcGetContextBinaryInfoHandles
    systemDlcGetComposableGraphInfo systemDlcGetContextBinaryInfo
    systemDlcGetComposableGraphInfoGraphName systemDlcGetComposableGraphInfoNumInputTensors
    systemDlcGetComposableGraphInfoNumOutputTensors
    systemDlcGetGraphInfoInputTensorInfo systemDlcGetGraphInfoOutputTensorInfo
    systemDlcGetTensorInfoName systemDlcGetTensorInfoId systemDlcGetTensorInfoType systemDlcGetTensorInfoDataFormat
    systemDlcGetTensorInfoDataType systemDlcGetTensorInfoRank systemDlcGetTensorInfoDimensions
    systemDlcGetTensorInfoQuantParams
    systemDlcGetQuantParamsEncodingDefinition systemDlcGetQuantParamsEncoding
    systemDlcGetQuantParamsScaleOffsetScale systemDlcGetQuantParamsScaleOffsetOffset
    systemDlcGetQuantParamsBwScaleOffsetBitwidth systemDlcGetQuantParamsBwScaleOffsetScale
    systemDlcGetQuantParamsBwScaleOffsetOffset
    systemDlcGetQuantParamsAxisScaleOffsetAxis systemDlcGetQuantParamsAxisScaleOffsetNumScaleOffsets
    systemDlcGetQuantParamsAxisScaleOffsetScaleAtIndex systemDlcGetQuantParamsAxisScaleOffsetOffsetAtIndex
    systemDlcGetQuantParamsBwAxisScaleOffsetBitwidth systemDlcGetQuantParamsBwAxisScaleOffsetAxis
    systemDlcGetQuantParamsBwAxisScaleOffsetNumElements systemDlcGetQuantParamsBwAxisScaleOffsetScaleAtIndex
    systemDlcGetQuantParamsBwAxisScaleOffsetOffsetAtIndex
    systemDlcGetContextBinaryInfoBackendId systemDlcGetContextBinaryInfoBuildId
    systemDlcGetContextBinaryInfoCoreApiVersion systemDlcGetContextBinaryInfoBackendApiVersion
    systemDlcGetContextBinaryInfoSocVersion systemDlcGetContextBinaryInfoHwInfoBlobVersion
    systemDlcGetContextBinaryInfoContextBlobVersion systemDlcGetContextBinaryInfoHwInfoBlobSize
    systemDlcGetContextBinaryInfoHwInfoBlob systemDlcGetContextBinaryInfoContextBlobSize
    systemDlcGetContextBinaryInfoNumContextTensors systemDlcGetContextBinaryInfoContextTensorInfo
    systemDlcGetContextBinaryInfoNumGraphs systemDlcGetContextGraphInfoHandle
    systemDlcGetContextBinaryInfoSocModel systemDlcGetContextBinaryInfoContextMetadataSize
    systemDlcGetContextBinaryInfoContextMetadata
    systemDlcGetContextGraphInfoGraphName systemDlcGetContextGraphInfoNumInputTensors
    systemDlcGetContextGraphInfoNumOutputTensors systemDlcGetContextGraphInfoNumUpdateableTensors
    systemDlcGetContextGraphInfoGraphBlobInfoSize systemDlcGetContextGraphInfoGraphBlobInfo
    systemDlcGetContextGraphInfoStartOpIndex systemDlcGetContextGraphInfoEndOpIndex
    systemDlcGetContextGraphInfoInputTensorInfo systemDlcGetContextGraphInfoOutputTensorInfo
    systemDlcGetContextGraphInfoUpdateableTensorInfo
    systemDlcFreeRecordRange reserved89
    """
SYSTEM_FUNCTIONS = tuple(_SYSTEM.split())

_HANDLE, _OUT = c_void_p, POINTER(c_void_p)
_TEXT, _TEXTS = c_char_p, POINTER(c_char_p)
_CONFIGS = {kind: POINTER(POINTER(kind)) for kind in (
    BackendConfig, ContextConfig, DeviceConfig, GraphConfig, ProfileConfig, SignalConfig, Property, ContextProperty,
)}  # fmt: skip
_TENSORS, _IDS = POINTER(Tensor), POINTER(POINTER(c_uint64))
_U32, _I32, _REAL = POINTER(c_uint32), POINTER(c_int32), POINTER(c_float)

ARGUMENTS: dict[str, list[Any]] = {
    "propertyHasCapability": [c_uint32],
    "backendCreate": [_HANDLE, _CONFIGS[BackendConfig], _OUT],
    "backendSetConfig": [_HANDLE, _CONFIGS[BackendConfig]],
    "backendGetApiVersion": [POINTER(Version * 2)],
    "backendGetBuildId": [_TEXTS],
    "backendRegisterOpPackage": [_HANDLE, _TEXT, _TEXT, _TEXT],
    "backendGetSupportedOperations": [_HANDLE, POINTER(c_uint32), POINTER(POINTER(OperationName))],
    "backendValidateOpConfig": [_HANDLE, OpConfig],
    "backendFree": [_HANDLE],
    "contextCreate": [_HANDLE, _HANDLE, _CONFIGS[ContextConfig], _OUT],
    "contextSetConfig": [_HANDLE, _CONFIGS[ContextConfig]],
    "contextGetBinarySize": [_HANDLE, POINTER(c_uint64)],
    "contextGetBinary": [_HANDLE, c_void_p, c_uint64, POINTER(c_uint64)],
    "contextCreateFromBinary": [_HANDLE, _HANDLE, _CONFIGS[ContextConfig], c_void_p, c_uint64, _OUT, _HANDLE],
    "contextFree": [_HANDLE, _HANDLE],
    "graphCreate": [_HANDLE, _TEXT, _CONFIGS[GraphConfig], _OUT],
    "graphCreateSubgraph": [_HANDLE, _TEXT, _OUT],
    "graphSetConfig": [_HANDLE, _CONFIGS[GraphConfig]],
    "graphAddNode": [_HANDLE, OpConfig],
    "graphFinalize": [_HANDLE, _HANDLE, _HANDLE],
    "graphRetrieve": [_HANDLE, _TEXT, _OUT],
    "graphExecute": [_HANDLE, _TENSORS, c_uint32, _TENSORS, c_uint32, _HANDLE, _HANDLE],
    "graphExecuteAsync": [
        _HANDLE, _TENSORS, c_uint32, _TENSORS, c_uint32, _HANDLE, _HANDLE, c_void_p, c_void_p,
    ],
    "tensorCreateContextTensor": [_HANDLE, _TENSORS],
    "tensorCreateGraphTensor": [_HANDLE, _TENSORS],
    "logCreate": [c_void_p, c_uint32, _OUT],
    "logSetLogLevel": [_HANDLE, c_uint32],
    "logFree": [_HANDLE],
    "profileCreate": [_HANDLE, c_uint32, _OUT],
    "profileSetConfig": [_HANDLE, _CONFIGS[ProfileConfig]],
    "profileGetEvents": [_HANDLE, _IDS, POINTER(c_uint32)],
    "profileGetSubEvents": [c_uint64, _IDS, POINTER(c_uint32)],
    "profileGetEventData": [c_uint64, POINTER(EventData)],
    "profileGetExtendedEventData": [c_uint64, POINTER(ExtendedEventData)],
    "profileFree": [_HANDLE],
    "memRegister": [_HANDLE, POINTER(MemDescriptor), c_uint32, _OUT],
    "memDeRegister": [_OUT, c_uint32],
    "deviceGetPlatformInfo": [_HANDLE, POINTER(POINTER(PlatformInfo))],
    "deviceFreePlatformInfo": [_HANDLE, POINTER(PlatformInfo)],
    "deviceGetInfrastructure": [_OUT],
    "deviceCreate": [_HANDLE, _CONFIGS[DeviceConfig], _OUT],
    "deviceSetConfig": [_HANDLE, _CONFIGS[DeviceConfig]],
    "deviceGetInfo": [_HANDLE, POINTER(POINTER(PlatformInfo))],
    "deviceFree": [_HANDLE],
    "signalCreate": [_HANDLE, _CONFIGS[SignalConfig], _OUT],
    "signalSetConfig": [_HANDLE, _CONFIGS[SignalConfig]],
    "signalTrigger": [_HANDLE],
    "signalFree": [_HANDLE],
    "errorGetMessage": [c_uint64, _TEXTS],
    "errorGetVerboseMessage": [c_uint64, _TEXTS],
    "errorFreeVerboseMessage": [c_void_p],
    "graphPrepareExecutionEnvironment": [_HANDLE, POINTER(POINTER(ExecuteEnvironment)), c_uint32],
    "graphReleaseExecutionEnvironment": [_HANDLE, POINTER(POINTER(ExecuteEnvironment)), c_uint32],
    "graphGetProperty": [_HANDLE, _CONFIGS[Property]],
    "contextValidateBinary": [_HANDLE, _HANDLE, _CONFIGS[ContextConfig], c_void_p, c_uint64],
    "contextCreateFromBinaryWithSignal": [
        _HANDLE, _HANDLE, _CONFIGS[ContextConfig], c_void_p, c_uint64, _OUT, _HANDLE, _HANDLE,
    ],
    "contextCreateFromBinaryListAsync": [_HANDLE, _HANDLE, c_void_p, _CONFIGS[ContextConfig], _HANDLE],
    "tensorUpdateGraphTensors": [_HANDLE, POINTER(_TENSORS), c_uint64],
    "tensorUpdateContextTensors": [_HANDLE, POINTER(_TENSORS), c_uint64],
    "contextGetBinarySectionSize": [_HANDLE, _HANDLE, c_uint32, POINTER(c_uint64)],
    "contextGetBinarySection": [_HANDLE, _HANDLE, c_uint32, c_void_p, POINTER(c_uint64), _HANDLE, _HANDLE],
    "contextApplyBinarySection": [_HANDLE, _HANDLE, c_uint32, c_void_p, _HANDLE, _HANDLE],
    "backendGetProperty": [_HANDLE, _CONFIGS[Property]],
    "contextGetProperty": [_HANDLE, _CONFIGS[ContextProperty]],
    "contextGetIncrementalBinary": [_HANDLE, _OUT, POINTER(c_uint64), POINTER(c_uint64)],
    "contextReleaseIncrementalBinary": [_HANDLE, c_void_p, c_uint64],
    "contextFinalize": [_HANDLE, _HANDLE],
    "globalConfigSet": [c_void_p],
    "contextAddToDlc": [_HANDLE, _HANDLE],
    "systemContextCreate": [_OUT],
    "systemContextGetBinaryInfo": [
        _HANDLE, c_void_p, c_uint64, POINTER(POINTER(BinaryInfo)), POINTER(c_uint64),
    ],
    "systemContextGetMetaData": [_HANDLE, c_void_p, c_uint64, POINTER(POINTER(BinaryInfo))],
    "systemContextFree": [_HANDLE],
    "systemTensorGetMemoryFootprint": [Tensor, POINTER(c_uint64)],
    "systemLogCreate": [c_void_p, c_uint32, _OUT],
    "systemLogSetLogLevel": [_HANDLE, c_uint32],
    "systemLogFree": [_HANDLE],
    "systemProfileCreateSerializationTarget": [SerializationTarget, c_void_p, c_uint32, _OUT],
    "systemProfileSerializeEventData": [_HANDLE, POINTER(POINTER(ProfileData)), c_uint32],
    "systemProfileFreeSerializationTarget": [_HANDLE],
    "systemDlcCreateFromFile": [_HANDLE, _TEXT, _OUT],
    "systemDlcCreateFromBinary": [_HANDLE, c_void_p, c_uint64, _OUT],
    "systemDlcGetOpMappings": [_HANDLE, _OUT, POINTER(c_uint32)],
    "systemDlcFree": [_HANDLE],
    "systemDlcGetRecordsByType": [_HANDLE, c_uint32, c_uint8, POINTER(_OUT), POINTER(c_uint32)],
    "systemDlcGetRecordDataSize": [_HANDLE, POINTER(c_uint64)],
    "systemDlcReadRecordDataMemoryMapped": [_HANDLE, _OUT, POINTER(c_uint64)],
    "systemDlcSave": [_HANDLE, _TEXT],
    "systemDlcGetRecordByName": [_HANDLE, _TEXT, _OUT],
    "systemDlcFreeRecord": [_HANDLE],
    "systemDlcCreateFromFileWithDestinationDir": [_HANDLE, _TEXT, _TEXT, _OUT],
    "systemDlcCreateFromBinaryWithDestinationDir": [_HANDLE, c_void_p, c_uint64, _TEXT, _OUT],
    "systemDlcGetBinarySize": [_HANDLE, POINTER(c_uint64)],
    "systemDlcGetBinary": [_HANDLE, c_void_p, c_uint64, POINTER(c_uint64)],
    "systemDlcGetComposableGraphInfoHandles": [_HANDLE, POINTER(_OUT), _U32],
    "systemDlcGetComposableGraphInfoGraphName": [_HANDLE, _TEXTS],
    "systemDlcGetComposableGraphInfoNumInputTensors": [_HANDLE, _U32],
    "systemDlcGetComposableGraphInfoNumOutputTensors": [_HANDLE, _U32],
    "systemDlcGetGraphInfoInputTensorInfo": [_HANDLE, c_uint32, _OUT],
    "systemDlcGetGraphInfoOutputTensorInfo": [_HANDLE, c_uint32, _OUT],
    "systemDlcGetTensorInfoName": [_HANDLE, _TEXTS],
    "systemDlcGetTensorInfoId": [_HANDLE, _U32],
    "systemDlcGetTensorInfoType": [_HANDLE, _U32],
    "systemDlcGetTensorInfoDataFormat": [_HANDLE, _U32],
    "systemDlcGetTensorInfoDataType": [_HANDLE, _U32],
    "systemDlcGetTensorInfoRank": [_HANDLE, _U32],
    "systemDlcGetTensorInfoDimensions": [_HANDLE, _U32],
    "systemDlcGetTensorInfoQuantParams": [_HANDLE, _OUT],
    "systemDlcGetQuantParamsEncodingDefinition": [_HANDLE, _U32],
    "systemDlcGetQuantParamsEncoding": [_HANDLE, _U32],
    "systemDlcGetQuantParamsScaleOffsetScale": [_HANDLE, _REAL],
    "systemDlcGetQuantParamsScaleOffsetOffset": [_HANDLE, _I32],
    "systemDlcGetQuantParamsBwScaleOffsetBitwidth": [_HANDLE, _U32],
    "systemDlcGetQuantParamsBwScaleOffsetScale": [_HANDLE, _REAL],
    "systemDlcGetQuantParamsBwScaleOffsetOffset": [_HANDLE, _I32],
    "systemDlcGetQuantParamsAxisScaleOffsetAxis": [_HANDLE, _I32],
    "systemDlcGetQuantParamsAxisScaleOffsetNumScaleOffsets": [_HANDLE, _U32],
    "systemDlcGetQuantParamsAxisScaleOffsetScaleAtIndex": [_HANDLE, c_uint32, _REAL],
    "systemDlcGetQuantParamsAxisScaleOffsetOffsetAtIndex": [_HANDLE, c_uint32, _I32],
    "systemDlcGetQuantParamsBwAxisScaleOffsetBitwidth": [_HANDLE, _U32],
    "systemDlcGetQuantParamsBwAxisScaleOffsetAxis": [_HANDLE, _I32],
    "systemDlcGetQuantParamsBwAxisScaleOffsetNumElements": [_HANDLE, _U32],
    "systemDlcGetQuantParamsBwAxisScaleOffsetScaleAtIndex": [_HANDLE, c_uint32, _REAL],
    "systemDlcGetQuantParamsBwAxisScaleOffsetOffsetAtIndex": [_HANDLE, c_uint32, _I32],
}  # fmt: skip
"""What functions take, by name; each answers a 64-bit error. Those that are missing here take what is not public."""


class FunctionTable(ctypes.Structure):
    """The back end's functions (QNN_INTERFACE_VER_TYPE)."""

    _fields_ = [(name, c_void_p) for name in BACKEND_FUNCTIONS]


class SystemFunctionTable(ctypes.Structure):
    """The system library's functions (QNN_SYSTEM_INTERFACE_VER_TYPE)."""

    _fields_ = [(name, c_void_p) for name in SYSTEM_FUNCTIONS]


class Interface(ctypes.Structure):
    """What a back end's library provides (QnnInterface_t)."""

    _fields_ = [
        ("backendId", c_uint32),
        ("providerName", c_char_p),
        ("coreApiVersion", Version),
        ("backendApiVersion", Version),
        ("table", FunctionTable),
    ]


class SystemInterface(ctypes.Structure):
    """What the system library provides (QnnSystemInterface_t)."""

    _fields_ = [
        ("backendId", c_uint32),
        ("providerName", c_char_p),
        ("systemApiVersion", Version),
        ("table", SystemFunctionTable),
    ]


ARGUMENTS["systemDlcComposeGraphs"] = [
    _HANDLE, POINTER(POINTER(DlcGraphConfigInfo)), c_uint32, _HANDLE, _HANDLE, Interface, c_uint32,
    POINTER(POINTER(GraphInfo)), POINTER(c_uint32),
]  # fmt: skip


class ComposingTable(ctypes.Structure):
    """A table to hand to a library that composes graphs, whichever version it was built for.

    Such a library takes its table by value, with further arguments behind it on the stack. It calls nothing beyond the
    first entries; what it reads as its further arguments is zero in any version: no debugging, no callback, no level.
    """

    _fields_ = [("entries", c_void_p * COMPOSING_ENTRIES), ("zeros", c_void_p * 150)]

    @classmethod
    def of(cls, table: FunctionTable) -> ComposingTable:
        """The beginning of a table."""
        made = cls()
        for index, name in enumerate(BACKEND_FUNCTIONS[:COMPOSING_ENTRIES]):
            made.entries[index] = getattr(table, name)
        return made


LOG_CALLBACK = ctypes.CFUNCTYPE(None, c_char_p, c_uint32, c_uint64, c_void_p)
"""QnnLog_Callback_t: a format, a level, nanoseconds, and a va_list."""


def function(table: FunctionTable | SystemFunctionTable, name: str) -> Any:
    """A function of a table, ready to be called.

    Raises
    ------
    QnnError
        COMMON_INVALID_ARGUMENT if the table has none of that name, or it is not public what it takes.
    """
    known = name in BACKEND_FUNCTIONS if isinstance(table, FunctionTable) else name in SYSTEM_FUNCTIONS
    address, arguments = getattr(table, name) if known else None, ARGUMENTS.get(name)
    if address is None or arguments is None:
        rule = "the table has none of that name" if address is None else "it is not public what it takes"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"function {name!r}", rule)
    return ctypes.CFUNCTYPE(c_uint64, *arguments)(address)


def providers(library: ctypes.CDLL) -> list[Interface]:
    """What a back end's library provides (QnnInterface_getProviders).

    Raises
    ------
    QnnError
        COMMON_LOADING_BINARIES if it is no such library, or answers an error or no provider.
    """
    return _providers(library, "QnnInterface_getProviders", Interface)


def system_providers(library: ctypes.CDLL) -> list[SystemInterface]:
    """What a system library provides (QnnSystemInterface_getProviders); see `providers`."""
    return _providers(library, "QnnSystemInterface_getProviders", SystemInterface)


def _providers(library: ctypes.CDLL, name: str, kind: Any) -> list[Any]:
    def refuse(rule: str) -> QnnError:
        return QnnError(Code.COMMON_LOADING_BINARIES, f"library '{library._name}'", rule)

    ask = getattr(library, name, None)
    if ask is None:
        raise refuse(f"it has no {name}")
    listed, count = POINTER(POINTER(kind))(), c_uint32()
    ask.argtypes, ask.restype = [c_void_p, c_void_p], c_uint64
    error = ask(ctypes.byref(listed), ctypes.byref(count))
    if error:
        raise refuse(f"it answers {error} when it is asked for its providers")
    if not count.value or not listed:
        raise refuse("it has no provider")
    return [listed[index].contents for index in range(count.value)]
