"""Declarations of QNN's functions: the position in a table, the C parameters, and what a call does with them.

Everything else about a function is derived from here: ctypes arguments (`tables`), the prototypes in the headers and
the C functions that call Python (`isthmus.capi.headers`), the checks of a client's calls (`isthmus.capi.protocol`). The
order is that of the tables. Functions without declared parameters have parameters that are not public.

A mark after a parameter's name adds to its type: ``?`` it may be null, ``+`` the call stores a handle there that the
client must free, ``~`` the call frees it. No argument of the system library's functions is marked as optional, because
their calls are not checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from isthmus.errors import Code

OPTIONAL, CREATED, FREED = "?", "+", "~"


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function.

    - `type`: The C type, such as ``const QnnGraph_Config_t **``.
    """

    type: str
    name: str
    mark: str = ""

    @property
    def base(self) -> str:
        """Its type without pointers."""
        return self.type.removeprefix("const ").rstrip(" *")

    @property
    def stars(self) -> int:
        """The number of pointer levels above the base type."""
        return self.type.count("*")

    @property
    def declaration(self) -> str:
        """The C declaration of the parameter."""
        return f"{self.type}{'' if self.stars else ' '}{self.name}"


Functions = dict[str, tuple[Parameter, ...] | None]
"""Functions by name, in the order of a table; None if the parameters are not public."""


# Codes whose C names repeat the word: QNN_GRAPH_ERROR_GRAPH_FINALIZED.
_GRAPH_TWICE = (Code.GRAPH_DOES_NOT_EXIST, Code.GRAPH_FINALIZED, Code.GRAPH_NOT_FINALIZED)


def name_of(code: Code) -> str:
    """Name a code as QNN's headers do."""
    if code is Code.SUCCESS:
        return "QNN_SUCCESS"
    group = "OP_PACKAGE" if code is Code.OP_PACKAGE_VALIDATION_FAILURE else code.name.partition("_")[0]
    rest = code.name.removeprefix(f"{group}_")
    if group == "ERROR":
        return f"QNN_ERROR_{rest}"
    return f"QNN_{group}_ERROR_{'GRAPH_' if code in _GRAPH_TWICE else ''}{rest}"


def function_name(entry: str) -> str:
    """Return the name of the C function behind an entry of a table.

    >>> function_name("memDeRegister"), function_name("systemDlcCreateFromFile")
    ('QnnMem_deRegister', 'QnnSystemDlc_createFromFile')
    """
    match = re.fullmatch(r"(system[A-Z][a-z]+|globalConfig|[a-z]+)([A-Z])(\w+)", entry)
    assert match, entry
    group, initial, rest = match.groups()
    return f"Qnn{group[0].upper()}{group[1:]}_{initial.lower()}{rest}"


def _read(text: str) -> Functions:
    """Parse declarations, in order.

    >>> _read("logFree(Qnn_LogHandle_t logger~) reserved72")
    {'logFree': (Parameter(type='Qnn_LogHandle_t', name='logger', mark='~'),), 'reserved72': None}
    """
    functions: Functions = {}
    for name, parameters in re.findall(r"(\w+)(?:\(([^)]*)\))?", text):
        # Type, name and mark of each parameter.
        split = (re.fullmatch(r"\s*(.*[\s*])(\w+)([?+~]?)", each) for each in parameters.split(",") if parameters)
        declared = tuple(Parameter(match[1].strip(), match[2], match[3]) for match in split if match)
        functions[name] = declared or None
    return functions


BACKEND = _read("""
    propertyHasCapability(QnnProperty_Key_t key)
    backendCreate(Qnn_LogHandle_t logger?, const QnnBackend_Config_t **config?, Qnn_BackendHandle_t *backend+)
    backendSetConfig(Qnn_BackendHandle_t backend, const QnnBackend_Config_t **config?)
    backendGetApiVersion(Qnn_ApiVersion_t *version)
    backendGetBuildId(const char **id)
    backendRegisterOpPackage(Qnn_BackendHandle_t backend, const char *packagePath, const char *interfaceProvider,
        const char *target?)
    backendGetSupportedOperations(Qnn_BackendHandle_t backend, uint32_t *numOperations,
        const QnnBackend_OperationName_t **operations)
    backendValidateOpConfig(Qnn_BackendHandle_t backend, Qnn_OpConfig_t opConfig)
    backendFree(Qnn_BackendHandle_t backend~)
    contextCreate(Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device?, const QnnContext_Config_t **config?,
        Qnn_ContextHandle_t *context+)
    contextSetConfig(Qnn_ContextHandle_t context, const QnnContext_Config_t **config?)
    contextGetBinarySize(Qnn_ContextHandle_t context, Qnn_ContextBinarySize_t *binaryBufferSize)
    contextGetBinary(Qnn_ContextHandle_t context, void *binaryBuffer, Qnn_ContextBinarySize_t binaryBufferSize,
        Qnn_ContextBinarySize_t *writtenBufferSize)
    contextCreateFromBinary(Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device?,
        const QnnContext_Config_t **config?, const void *binaryBuffer, Qnn_ContextBinarySize_t binaryBufferSize,
        Qnn_ContextHandle_t *context+, Qnn_ProfileHandle_t profile?)
    contextFree(Qnn_ContextHandle_t context~, Qnn_ProfileHandle_t profile?)
    graphCreate(Qnn_ContextHandle_t context, const char *graphName, const QnnGraph_Config_t **config?,
        Qnn_GraphHandle_t *graph+)
    graphCreateSubgraph(Qnn_GraphHandle_t graph, const char *graphName, Qnn_GraphHandle_t *subgraph+)
    graphSetConfig(Qnn_GraphHandle_t graph, const QnnGraph_Config_t **config?)
    graphAddNode(Qnn_GraphHandle_t graph, Qnn_OpConfig_t opConfig)
    graphFinalize(Qnn_GraphHandle_t graph, Qnn_ProfileHandle_t profile?, Qnn_SignalHandle_t signal?)
    graphRetrieve(Qnn_ContextHandle_t context, const char *graphName, Qnn_GraphHandle_t *graph+)
    graphExecute(Qnn_GraphHandle_t graph, const Qnn_Tensor_t *inputs?, uint32_t numInputs, Qnn_Tensor_t *outputs?,
        uint32_t numOutputs, Qnn_ProfileHandle_t profile?, Qnn_SignalHandle_t signal?)
    graphExecuteAsync(Qnn_GraphHandle_t graph, const Qnn_Tensor_t *inputs?, uint32_t numInputs,
        Qnn_Tensor_t *outputs?, uint32_t numOutputs, Qnn_ProfileHandle_t profile?, Qnn_SignalHandle_t signal?,
        Qnn_NotifyFn_t notifyFn?, void *notifyParam?)
    tensorCreateContextTensor(Qnn_ContextHandle_t context, Qnn_Tensor_t *tensor)
    tensorCreateGraphTensor(Qnn_GraphHandle_t graph, Qnn_Tensor_t *tensor)
    logCreate(QnnLog_Callback_t callback?, QnnLog_Level_t maxLogLevel, Qnn_LogHandle_t *logger+)
    logSetLogLevel(Qnn_LogHandle_t logger, QnnLog_Level_t maxLogLevel)
    logFree(Qnn_LogHandle_t logger~)
    profileCreate(Qnn_BackendHandle_t backend, QnnProfile_Level_t level, Qnn_ProfileHandle_t *profile+)
    profileSetConfig(Qnn_ProfileHandle_t profile, const QnnProfile_Config_t **config?)
    profileGetEvents(Qnn_ProfileHandle_t profile, const QnnProfile_EventId_t **profileEventIds, uint32_t *numEvents)
    profileGetSubEvents(QnnProfile_EventId_t eventId, const QnnProfile_EventId_t **subEventIds,
        uint32_t *numSubEvents)
    profileGetEventData(QnnProfile_EventId_t eventId, QnnProfile_EventData_t *eventData)
    profileGetExtendedEventData(QnnProfile_EventId_t eventId, QnnProfile_ExtendedEventData_t *eventData)
    profileFree(Qnn_ProfileHandle_t profile~)
    memRegister(Qnn_ContextHandle_t context, const Qnn_MemDescriptor_t *memDescriptors, uint32_t numDescriptors,
        Qnn_MemHandle_t *memHandles+)
    memDeRegister(const Qnn_MemHandle_t *memHandles~, uint32_t numHandles)
    deviceGetPlatformInfo(Qnn_LogHandle_t logger?, const QnnDevice_PlatformInfo_t **platformInfo+)
    deviceFreePlatformInfo(Qnn_LogHandle_t logger?, const QnnDevice_PlatformInfo_t *platformInfo~)
    deviceGetInfrastructure(const QnnDevice_Infrastructure_t *deviceInfra)
    deviceCreate(Qnn_LogHandle_t logger?, const QnnDevice_Config_t **config?, Qnn_DeviceHandle_t *device+)
    deviceSetConfig(Qnn_DeviceHandle_t device, const QnnDevice_Config_t **config?)
    deviceGetInfo(Qnn_DeviceHandle_t device, const QnnDevice_PlatformInfo_t **platformInfo)
    deviceFree(Qnn_DeviceHandle_t device~)
    signalCreate(Qnn_BackendHandle_t backend, const QnnSignal_Config_t **config?, Qnn_SignalHandle_t *signal+)
    signalSetConfig(Qnn_SignalHandle_t signal, const QnnSignal_Config_t **config?)
    signalTrigger(Qnn_SignalHandle_t signal)
    signalFree(Qnn_SignalHandle_t signal~)
    errorGetMessage(Qnn_ErrorHandle_t errorHandle, const char **errorMessage)
    errorGetVerboseMessage(Qnn_ErrorHandle_t errorHandle, const char **errorMessage+)
    errorFreeVerboseMessage(const char *errorMessage~)
    graphPrepareExecutionEnvironment(Qnn_GraphHandle_t graph, QnnGraph_ExecuteEnvironment_t **envs, uint32_t envSize)
    graphReleaseExecutionEnvironment(Qnn_GraphHandle_t graph, const QnnGraph_ExecuteEnvironment_t **envs,
        uint32_t envSize)
    graphGetProperty(Qnn_GraphHandle_t graph, QnnGraph_Property_t **properties)
    contextValidateBinary(Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device?,
        const QnnContext_Config_t **config?, const void *binaryBuffer, Qnn_ContextBinarySize_t binaryBufferSize)
    contextCreateFromBinaryWithSignal(Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device?,
        const QnnContext_Config_t **config?, const void *binaryBuffer, Qnn_ContextBinarySize_t binaryBufferSize,
        Qnn_ContextHandle_t *context+, Qnn_ProfileHandle_t profile?, Qnn_SignalHandle_t signal?)
    contextCreateFromBinaryListAsync(Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device?,
        const QnnContext_Params_t **contextParams, const QnnContext_Config_t **listConfig?,
        Qnn_SignalHandle_t signal?)
    tensorUpdateGraphTensors(Qnn_GraphHandle_t graph, const Qnn_Tensor_t **tensors, uint64_t numTensors)
    tensorUpdateContextTensors(Qnn_ContextHandle_t context, const Qnn_Tensor_t **tensors, uint64_t numTensors)
    contextGetBinarySectionSize(Qnn_ContextHandle_t context, Qnn_GraphHandle_t graph?,
        QnnContext_SectionType_t section, Qnn_ContextBinarySize_t *binaryBufferSize)
    contextGetBinarySection(Qnn_ContextHandle_t context, Qnn_GraphHandle_t graph?, QnnContext_SectionType_t section,
        const QnnContext_Buffer_t *binaryBuffer, Qnn_ContextBinarySize_t *writtenBufferSize,
        Qnn_ProfileHandle_t profile?, Qnn_SignalHandle_t signal?)
    contextApplyBinarySection(Qnn_ContextHandle_t context, Qnn_GraphHandle_t graph?, QnnContext_SectionType_t section,
        const QnnContext_Buffer_t *binaryBuffer, Qnn_ProfileHandle_t profile?, Qnn_SignalHandle_t signal?)
    backendGetProperty(Qnn_BackendHandle_t backend, QnnBackend_Property_t **properties)
    contextGetProperty(Qnn_ContextHandle_t context, QnnContext_Property_t **properties)
    contextGetIncrementalBinary(Qnn_ContextHandle_t context, const void **binaryBuffer,
        Qnn_ContextBinarySize_t *startOffset, Qnn_ContextBinarySize_t *writtenBufferSize)
    contextReleaseIncrementalBinary(Qnn_ContextHandle_t context, const void *binaryBuffer,
        Qnn_ContextBinarySize_t startOffset)
    contextFinalize(Qnn_ContextHandle_t context, Qnn_ProfileHandle_t profile?)
    globalConfigSet(const void **config)
    contextCreateFromBinaryWithCallback(Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device?,
        const QnnContext_Config_t **config?, const Qnn_ContextBinaryCallback_t *callback, const void *binaryBuffer,
        Qnn_ContextBinarySize_t binaryBufferSize, Qnn_ContextHandle_t *context+, Qnn_ProfileHandle_t profile?,
        Qnn_SignalHandle_t signal?)
    contextGetBinarySectionUpdate contextFreeBinarySectionUpdate
    contextAddToDlc(Qnn_ContextHandle_t context, Qnn_Handle_t dlc)
    reserved72 reserved73 backendRegisterOpPackageFromBinary
    """)
"""The functions of a backend."""

SYSTEM = _read("""
    systemContextCreate(QnnSystemContext_Handle_t *sysCtx+)
    systemContextGetBinaryInfo(QnnSystemContext_Handle_t sysCtx, void *binaryBuffer, uint64_t binaryBufferSize,
        const QnnSystemContext_BinaryInfo_t **binaryInfo, Qnn_ContextBinarySize_t *binaryInfoSize)
    systemContextGetMetaData(QnnSystemContext_Handle_t sysCtx, const void *binaryBuffer, uint64_t binaryBufferSize,
        const QnnSystemContext_BinaryInfo_t **binaryInfo)
    systemContextFree(QnnSystemContext_Handle_t sysCtx~)
    systemTensorGetMemoryFootprint(Qnn_Tensor_t tensor, uint64_t *footprint)
    systemLogCreate(QnnLog_Callback_t callback, QnnLog_Level_t maxLogLevel, Qnn_LogHandle_t *logger+)
    systemLogSetLogLevel(Qnn_LogHandle_t logger, QnnLog_Level_t maxLogLevel)
    systemLogFree(Qnn_LogHandle_t logger~)
    systemDlcCreateFromFile(Qnn_LogHandle_t logger, const char *path, QnnSystemDlc_Handle_t *dlc+)
    systemDlcCreateFromBinary(Qnn_LogHandle_t logger, const uint8_t *buffer, uint64_t bufferSize,
        QnnSystemDlc_Handle_t *dlc+)
    systemDlcComposeGraphs(QnnSystemDlc_Handle_t dlc, const QnnSystemDlc_GraphConfigInfo_t **graphConfigs,
        uint32_t numGraphConfigs, Qnn_BackendHandle_t backend, Qnn_ContextHandle_t context, QnnInterface_t interface,
        QnnSystemContext_GraphInfoVersion_t graphVersion, QnnSystemContext_GraphInfo_t **graphs, uint32_t *numGraphs)
    systemDlcGetOpMappings(QnnSystemDlc_Handle_t dlc, const Qnn_OpMapping_t **opMappings, uint32_t *numOpMappings)
    systemDlcFree(QnnSystemDlc_Handle_t dlc~)
    systemProfileCreateSerializationTarget(QnnSystemProfile_SerializationTarget_t target,
        QnnSystemProfile_SerializationTargetConfig_t *configs, uint32_t numConfigs,
        QnnSystemProfile_SerializationTargetHandle_t *handle+)
    systemProfileSerializeEventData(QnnSystemProfile_SerializationTargetHandle_t handle,
        const QnnSystemProfile_ProfileData_t **data, uint32_t numData)
    systemProfileFreeSerializationTarget(QnnSystemProfile_SerializationTargetHandle_t handle~)
    systemDlcGetRecordByName(QnnSystemDlc_Handle_t dlc, const char *name, QnnSystemDlc_RecordHandle_t *record+)
    systemDlcGetRecordsByType(QnnSystemDlc_Handle_t dlc, QnnSystemDlc_RecordType_t type, uint8_t bestOnly,
        QnnSystemDlc_RecordHandle_t **records, uint32_t *numRecords)
    systemDlcGetRecordDataSize(QnnSystemDlc_RecordHandle_t record, uint64_t *size)
    systemDlcReadRecordDataMemoryMapped(QnnSystemDlc_RecordHandle_t record, const uint8_t **data, uint64_t *size)
    systemDlcFreeRecord(QnnSystemDlc_RecordHandle_t record~)
    systemDlcSave(QnnSystemDlc_Handle_t dlc, const char *path)
    systemDlcCreateFromFileWithDestinationDir(Qnn_LogHandle_t logger, const char *path, const char *directory,
        QnnSystemDlc_Handle_t *dlc+)
    systemDlcCreateFromBinaryWithDestinationDir(Qnn_LogHandle_t logger, const uint8_t *buffer, uint64_t bufferSize,
        const char *directory, QnnSystemDlc_Handle_t *dlc+)
    systemDlcGetBinarySize(QnnSystemDlc_Handle_t dlc, uint64_t *bufferSize)
    systemDlcGetBinary(QnnSystemDlc_Handle_t dlc, uint8_t *buffer, uint64_t bufferSize, uint64_t *writtenSize)
    systemDlcCreateWithDestinationDir
    systemDlcGetComposableGraphInfoHandles(QnnSystemDlc_Handle_t dlc, QnnSystemDlc_GraphInfoHandle_t **graphs,
        uint32_t *numGraphs)
    systemDlcGetContextBinaryInfoHandles systemDlcGetComposableGraphInfo systemDlcGetContextBinaryInfo
    systemDlcGetComposableGraphInfoGraphName(QnnSystemDlc_GraphInfoHandle_t graph, const char **name)
    systemDlcGetComposableGraphInfoNumInputTensors(QnnSystemDlc_GraphInfoHandle_t graph, uint32_t *count)
    systemDlcGetComposableGraphInfoNumOutputTensors(QnnSystemDlc_GraphInfoHandle_t graph, uint32_t *count)
    systemDlcGetGraphInfoInputTensorInfo(QnnSystemDlc_GraphInfoHandle_t graph, uint32_t index,
        QnnSystemDlc_TensorInfoHandle_t *tensor)
    systemDlcGetGraphInfoOutputTensorInfo(QnnSystemDlc_GraphInfoHandle_t graph, uint32_t index,
        QnnSystemDlc_TensorInfoHandle_t *tensor)
    systemDlcGetTensorInfoName(QnnSystemDlc_TensorInfoHandle_t tensor, const char **name)
    systemDlcGetTensorInfoId(QnnSystemDlc_TensorInfoHandle_t tensor, uint32_t *id)
    systemDlcGetTensorInfoType(QnnSystemDlc_TensorInfoHandle_t tensor, Qnn_TensorType_t *type)
    systemDlcGetTensorInfoDataFormat(QnnSystemDlc_TensorInfoHandle_t tensor, Qnn_TensorDataFormat_t *dataFormat)
    systemDlcGetTensorInfoDataType(QnnSystemDlc_TensorInfoHandle_t tensor, Qnn_DataType_t *dataType)
    systemDlcGetTensorInfoRank(QnnSystemDlc_TensorInfoHandle_t tensor, uint32_t *rank)
    systemDlcGetTensorInfoDimensions(QnnSystemDlc_TensorInfoHandle_t tensor, uint32_t *dimensions)
    systemDlcGetTensorInfoQuantParams(QnnSystemDlc_TensorInfoHandle_t tensor,
        QnnSystemDlc_QuantParamsHandle_t *params)
    systemDlcGetQuantParamsEncodingDefinition(QnnSystemDlc_QuantParamsHandle_t params, Qnn_Definition_t *definition)
    systemDlcGetQuantParamsEncoding(QnnSystemDlc_QuantParamsHandle_t params, Qnn_QuantizationEncoding_t *encoding)
    systemDlcGetQuantParamsScaleOffsetScale(QnnSystemDlc_QuantParamsHandle_t params, float *scale)
    systemDlcGetQuantParamsScaleOffsetOffset(QnnSystemDlc_QuantParamsHandle_t params, int32_t *offset)
    systemDlcGetQuantParamsBwScaleOffsetBitwidth(QnnSystemDlc_QuantParamsHandle_t params, uint32_t *bitwidth)
    systemDlcGetQuantParamsBwScaleOffsetScale(QnnSystemDlc_QuantParamsHandle_t params, float *scale)
    systemDlcGetQuantParamsBwScaleOffsetOffset(QnnSystemDlc_QuantParamsHandle_t params, int32_t *offset)
    systemDlcGetQuantParamsAxisScaleOffsetAxis(QnnSystemDlc_QuantParamsHandle_t params, int32_t *axis)
    systemDlcGetQuantParamsAxisScaleOffsetNumScaleOffsets(QnnSystemDlc_QuantParamsHandle_t params, uint32_t *count)
    systemDlcGetQuantParamsAxisScaleOffsetScaleAtIndex(QnnSystemDlc_QuantParamsHandle_t params, uint32_t index,
        float *scale)
    systemDlcGetQuantParamsAxisScaleOffsetOffsetAtIndex(QnnSystemDlc_QuantParamsHandle_t params, uint32_t index,
        int32_t *offset)
    systemDlcGetQuantParamsBwAxisScaleOffsetBitwidth(QnnSystemDlc_QuantParamsHandle_t params, uint32_t *bitwidth)
    systemDlcGetQuantParamsBwAxisScaleOffsetAxis(QnnSystemDlc_QuantParamsHandle_t params, int32_t *axis)
    systemDlcGetQuantParamsBwAxisScaleOffsetNumElements(QnnSystemDlc_QuantParamsHandle_t params, uint32_t *count)
    systemDlcGetQuantParamsBwAxisScaleOffsetScaleAtIndex(QnnSystemDlc_QuantParamsHandle_t params, uint32_t index,
        float *scale)
    systemDlcGetQuantParamsBwAxisScaleOffsetOffsetAtIndex(QnnSystemDlc_QuantParamsHandle_t params, uint32_t index,
        int32_t *offset)
    systemDlcGetContextBinaryInfoBackendId systemDlcGetContextBinaryInfoBuildId
    systemDlcGetContextBinaryInfoCoreApiVersion systemDlcGetContextBinaryInfoBackendApiVersion
    systemDlcGetContextBinaryInfoSocVersion systemDlcGetContextBinaryInfoHwInfoBlobVersion
    systemDlcGetContextBinaryInfoContextBlobVersion systemDlcGetContextBinaryInfoHwInfoBlobSize
    systemDlcGetContextBinaryInfoHwInfoBlob systemDlcGetContextBinaryInfoContextBlobSize
    systemDlcGetContextBinaryInfoNumContextTensors systemDlcGetContextBinaryInfoContextTensorInfo
    systemDlcGetContextBinaryInfoNumGraphs systemDlcGetContextGraphInfoHandle systemDlcGetContextBinaryInfoSocModel
    systemDlcGetContextBinaryInfoContextMetadataSize systemDlcGetContextBinaryInfoContextMetadata
    systemDlcGetContextGraphInfoGraphName systemDlcGetContextGraphInfoNumInputTensors
    systemDlcGetContextGraphInfoNumOutputTensors systemDlcGetContextGraphInfoNumUpdateableTensors
    systemDlcGetContextGraphInfoGraphBlobInfoSize systemDlcGetContextGraphInfoGraphBlobInfo
    systemDlcGetContextGraphInfoStartOpIndex systemDlcGetContextGraphInfoEndOpIndex
    systemDlcGetContextGraphInfoInputTensorInfo systemDlcGetContextGraphInfoOutputTensorInfo
    systemDlcGetContextGraphInfoUpdateableTensorInfo systemDlcFreeRecordRange reserved89
    """)
"""The functions of the system library."""
