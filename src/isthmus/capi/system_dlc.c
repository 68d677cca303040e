/* The system library's functions for DLC files. A part of library.c, which has the way to Python. */
enum {
  NUMBER_systemDlcCreateFromFile = 32, NUMBER_systemDlcCreateFromBinary, NUMBER_systemDlcComposeGraphs,
  NUMBER_systemDlcGetOpMappings, NUMBER_systemDlcFree, NUMBER_systemDlcGetRecordByName,
  NUMBER_systemDlcGetRecordsByType, NUMBER_systemDlcGetRecordDataSize, NUMBER_systemDlcReadRecordDataMemoryMapped,
  NUMBER_systemDlcFreeRecord, NUMBER_systemDlcSave, NUMBER_systemDlcCreateFromFileWithDestinationDir,
  NUMBER_systemDlcCreateFromBinaryWithDestinationDir, NUMBER_systemDlcGetBinarySize, NUMBER_systemDlcGetBinary,
  NUMBER_systemDlcGetComposableGraphInfoHandles, NUMBER_systemDlcGetComposableGraphInfoGraphName,
  NUMBER_systemDlcGetComposableGraphInfoNumInputTensors, NUMBER_systemDlcGetComposableGraphInfoNumOutputTensors,
  NUMBER_systemDlcGetGraphInfoInputTensorInfo, NUMBER_systemDlcGetGraphInfoOutputTensorInfo,
  NUMBER_systemDlcGetTensorInfoName, NUMBER_systemDlcGetTensorInfoId, NUMBER_systemDlcGetTensorInfoType,
  NUMBER_systemDlcGetTensorInfoDataFormat, NUMBER_systemDlcGetTensorInfoDataType, NUMBER_systemDlcGetTensorInfoRank,
  NUMBER_systemDlcGetTensorInfoDimensions, NUMBER_systemDlcGetTensorInfoQuantParams,
  NUMBER_systemDlcGetQuantParamsEncodingDefinition, NUMBER_systemDlcGetQuantParamsEncoding,
  NUMBER_systemDlcGetQuantParamsScaleOffsetScale, NUMBER_systemDlcGetQuantParamsScaleOffsetOffset,
  NUMBER_systemDlcGetQuantParamsBwScaleOffsetBitwidth, NUMBER_systemDlcGetQuantParamsBwScaleOffsetScale,
  NUMBER_systemDlcGetQuantParamsBwScaleOffsetOffset, NUMBER_systemDlcGetQuantParamsAxisScaleOffsetAxis,
  NUMBER_systemDlcGetQuantParamsAxisScaleOffsetNumScaleOffsets,
  NUMBER_systemDlcGetQuantParamsAxisScaleOffsetScaleAtIndex,
  NUMBER_systemDlcGetQuantParamsAxisScaleOffsetOffsetAtIndex,
  NUMBER_systemDlcGetQuantParamsBwAxisScaleOffsetBitwidth, NUMBER_systemDlcGetQuantParamsBwAxisScaleOffsetAxis,
  NUMBER_systemDlcGetQuantParamsBwAxisScaleOffsetNumElements,
  NUMBER_systemDlcGetQuantParamsBwAxisScaleOffsetScaleAtIndex,
  NUMBER_systemDlcGetQuantParamsBwAxisScaleOffsetOffsetAtIndex
};

F3(systemDlcCreateFromFile, Qnn_LogHandle_t, const char *, QnnSystemDlc_Handle_t *)
F4(systemDlcCreateFromBinary, Qnn_LogHandle_t, const uint8_t *, uint64_t, QnnSystemDlc_Handle_t *)
/* The back end's table comes by value, so its size is part of the call: it has the entries of our header. */
static E systemDlcComposeGraphs(QnnSystemDlc_Handle_t a, const QnnSystemDlc_GraphConfigInfo_t **b, uint32_t c,
                                Qnn_BackendHandle_t d, Qnn_ContextHandle_t e, QnnInterface_t f, uint32_t g,
                                QnnSystemContext_GraphInfo_t **h, uint32_t *i)
    GOES(0, systemDlcComposeGraphs, (a, b, c, d, e, f, g, h, i), 9, V(a), V(b), V(c), V(d), V(e), V(&f), V(g), V(h), V(i))
F3(systemDlcGetOpMappings, QnnSystemDlc_Handle_t, const Qnn_OpMapping_t **, uint32_t *)
FREE1(systemDlcFree, QnnSystemDlc_Handle_t)
F3(systemDlcGetRecordByName, QnnSystemDlc_Handle_t, const char *, QnnSystemDlc_RecordHandle_t *)
F5(systemDlcGetRecordsByType, QnnSystemDlc_Handle_t, uint32_t, uint8_t, QnnSystemDlc_RecordHandle_t **, uint32_t *)
F2(systemDlcGetRecordDataSize, QnnSystemDlc_RecordHandle_t, uint64_t *)
F3(systemDlcReadRecordDataMemoryMapped, QnnSystemDlc_RecordHandle_t, const uint8_t **, uint64_t *)
FREE1(systemDlcFreeRecord, QnnSystemDlc_RecordHandle_t)
F2(systemDlcSave, QnnSystemDlc_Handle_t, const char *)
F4(systemDlcCreateFromFileWithDestinationDir, Qnn_LogHandle_t, const char *, const char *, QnnSystemDlc_Handle_t *)
F5(systemDlcCreateFromBinaryWithDestinationDir, Qnn_LogHandle_t, const uint8_t *, uint64_t, const char *,
   QnnSystemDlc_Handle_t *)
F2(systemDlcGetBinarySize, QnnSystemDlc_Handle_t, uint64_t *)
F4(systemDlcGetBinary, QnnSystemDlc_Handle_t, uint8_t *, uint64_t, uint64_t *)
F3(systemDlcGetComposableGraphInfoHandles, QnnSystemDlc_Handle_t, QnnSystemDlc_GraphInfoHandle_t **, uint32_t *)
F2(systemDlcGetComposableGraphInfoGraphName, QnnSystemDlc_GraphInfoHandle_t, const char **)
F2(systemDlcGetComposableGraphInfoNumInputTensors, QnnSystemDlc_GraphInfoHandle_t, uint32_t *)
F2(systemDlcGetComposableGraphInfoNumOutputTensors, QnnSystemDlc_GraphInfoHandle_t, uint32_t *)
F3(systemDlcGetGraphInfoInputTensorInfo, QnnSystemDlc_GraphInfoHandle_t, uint32_t, QnnSystemDlc_TensorInfoHandle_t *)
F3(systemDlcGetGraphInfoOutputTensorInfo, QnnSystemDlc_GraphInfoHandle_t, uint32_t, QnnSystemDlc_TensorInfoHandle_t *)
F2(systemDlcGetTensorInfoName, QnnSystemDlc_TensorInfoHandle_t, const char **)
F2(systemDlcGetTensorInfoId, QnnSystemDlc_TensorInfoHandle_t, uint32_t *)
F2(systemDlcGetTensorInfoType, QnnSystemDlc_TensorInfoHandle_t, Qnn_TensorType_t *)
F2(systemDlcGetTensorInfoDataFormat, QnnSystemDlc_TensorInfoHandle_t, uint32_t *)
F2(systemDlcGetTensorInfoDataType, QnnSystemDlc_TensorInfoHandle_t, Qnn_DataType_t *)
F2(systemDlcGetTensorInfoRank, QnnSystemDlc_TensorInfoHandle_t, uint32_t *)
F2(systemDlcGetTensorInfoDimensions, QnnSystemDlc_TensorInfoHandle_t, uint32_t *)
F2(systemDlcGetTensorInfoQuantParams, QnnSystemDlc_TensorInfoHandle_t, QnnSystemDlc_QuantParamsHandle_t *)
F2(systemDlcGetQuantParamsEncodingDefinition, QnnSystemDlc_QuantParamsHandle_t, Qnn_Definition_t *)
F2(systemDlcGetQuantParamsEncoding, QnnSystemDlc_QuantParamsHandle_t, Qnn_QuantizationEncoding_t *)
F2(systemDlcGetQuantParamsScaleOffsetScale, QnnSystemDlc_QuantParamsHandle_t, float *)
F2(systemDlcGetQuantParamsScaleOffsetOffset, QnnSystemDlc_QuantParamsHandle_t, int32_t *)
F2(systemDlcGetQuantParamsBwScaleOffsetBitwidth, QnnSystemDlc_QuantParamsHandle_t, uint32_t *)
F2(systemDlcGetQuantParamsBwScaleOffsetScale, QnnSystemDlc_QuantParamsHandle_t, float *)
F2(systemDlcGetQuantParamsBwScaleOffsetOffset, QnnSystemDlc_QuantParamsHandle_t, int32_t *)
F2(systemDlcGetQuantParamsAxisScaleOffsetAxis, QnnSystemDlc_QuantParamsHandle_t, int32_t *)
F2(systemDlcGetQuantParamsAxisScaleOffsetNumScaleOffsets, QnnSystemDlc_QuantParamsHandle_t, uint32_t *)
F3(systemDlcGetQuantParamsAxisScaleOffsetScaleAtIndex, QnnSystemDlc_QuantParamsHandle_t, uint32_t, float *)
F3(systemDlcGetQuantParamsAxisScaleOffsetOffsetAtIndex, QnnSystemDlc_QuantParamsHandle_t, uint32_t, int32_t *)
F2(systemDlcGetQuantParamsBwAxisScaleOffsetBitwidth, QnnSystemDlc_QuantParamsHandle_t, uint32_t *)
F2(systemDlcGetQuantParamsBwAxisScaleOffsetAxis, QnnSystemDlc_QuantParamsHandle_t, int32_t *)
F2(systemDlcGetQuantParamsBwAxisScaleOffsetNumElements, QnnSystemDlc_QuantParamsHandle_t, uint32_t *)
F3(systemDlcGetQuantParamsBwAxisScaleOffsetScaleAtIndex, QnnSystemDlc_QuantParamsHandle_t, uint32_t, float *)
F3(systemDlcGetQuantParamsBwAxisScaleOffsetOffsetAtIndex, QnnSystemDlc_QuantParamsHandle_t, uint32_t, int32_t *)

static void offer_dlc(QNN_SYSTEM_INTERFACE_VER_TYPE *table) {
#define OFFER_DLC(name) table->name = name
  OFFER_DLC(systemDlcCreateFromFile), OFFER_DLC(systemDlcCreateFromBinary), OFFER_DLC(systemDlcComposeGraphs),
  OFFER_DLC(systemDlcGetOpMappings), OFFER_DLC(systemDlcFree), OFFER_DLC(systemDlcGetRecordByName),
  OFFER_DLC(systemDlcGetRecordsByType), OFFER_DLC(systemDlcGetRecordDataSize),
  OFFER_DLC(systemDlcReadRecordDataMemoryMapped), OFFER_DLC(systemDlcFreeRecord), OFFER_DLC(systemDlcSave),
  OFFER_DLC(systemDlcCreateFromFileWithDestinationDir), OFFER_DLC(systemDlcCreateFromBinaryWithDestinationDir),
  OFFER_DLC(systemDlcGetBinarySize), OFFER_DLC(systemDlcGetBinary),
  OFFER_DLC(systemDlcGetComposableGraphInfoHandles), OFFER_DLC(systemDlcGetComposableGraphInfoGraphName),
  OFFER_DLC(systemDlcGetComposableGraphInfoNumInputTensors),
  OFFER_DLC(systemDlcGetComposableGraphInfoNumOutputTensors), OFFER_DLC(systemDlcGetGraphInfoInputTensorInfo),
  OFFER_DLC(systemDlcGetGraphInfoOutputTensorInfo), OFFER_DLC(systemDlcGetTensorInfoName),
  OFFER_DLC(systemDlcGetTensorInfoId), OFFER_DLC(systemDlcGetTensorInfoType),
  OFFER_DLC(systemDlcGetTensorInfoDataFormat), OFFER_DLC(systemDlcGetTensorInfoDataType),
  OFFER_DLC(systemDlcGetTensorInfoRank), OFFER_DLC(systemDlcGetTensorInfoDimensions),
  OFFER_DLC(systemDlcGetTensorInfoQuantParams), OFFER_DLC(systemDlcGetQuantParamsEncodingDefinition),
  OFFER_DLC(systemDlcGetQuantParamsEncoding), OFFER_DLC(systemDlcGetQuantParamsScaleOffsetScale),
  OFFER_DLC(systemDlcGetQuantParamsScaleOffsetOffset), OFFER_DLC(systemDlcGetQuantParamsBwScaleOffsetBitwidth),
  OFFER_DLC(systemDlcGetQuantParamsBwScaleOffsetScale), OFFER_DLC(systemDlcGetQuantParamsBwScaleOffsetOffset),
  OFFER_DLC(systemDlcGetQuantParamsAxisScaleOffsetAxis),
  OFFER_DLC(systemDlcGetQuantParamsAxisScaleOffsetNumScaleOffsets),
  OFFER_DLC(systemDlcGetQuantParamsAxisScaleOffsetScaleAtIndex),
  OFFER_DLC(systemDlcGetQuantParamsAxisScaleOffsetOffsetAtIndex),
  OFFER_DLC(systemDlcGetQuantParamsBwAxisScaleOffsetBitwidth),
  OFFER_DLC(systemDlcGetQuantParamsBwAxisScaleOffsetAxis),
  OFFER_DLC(systemDlcGetQuantParamsBwAxisScaleOffsetNumElements),
  OFFER_DLC(systemDlcGetQuantParamsBwAxisScaleOffsetScaleAtIndex),
  OFFER_DLC(systemDlcGetQuantParamsBwAxisScaleOffsetOffsetAtIndex);
}
