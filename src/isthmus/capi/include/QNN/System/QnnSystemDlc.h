/* DLC files: creation, composition, records, and what they describe.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_SYSTEM_DLC_H
#define QNN_SYSTEM_DLC_H

#include "../QnnInterface.h"
#include "QnnSystemContext.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void *QnnSystemDlc_Handle_t, *QnnSystemDlc_RecordHandle_t, *QnnSystemDlc_GraphInfoHandle_t,
    *QnnSystemDlc_TensorInfoHandle_t, *QnnSystemDlc_QuantParamsHandle_t;
typedef enum {
  QNN_SYSTEM_DLC_RECORD_METADATA = 1, QNN_SYSTEM_DLC_RECORD_MODEL = 2, QNN_SYSTEM_DLC_RECORD_PARAMS = 3,
  QNN_SYSTEM_DLC_RECORD_RAW_WEIGHTS = 4, QNN_SYSTEM_DLC_RECORD_HTP_CACHE = 7
} QnnSystemDlc_RecordType_t;
typedef enum { QNN_SYSTEM_DLC_GRAPH_CONFIG_INFO_VERSION_1 = 1 } QnnSystemDlc_GraphConfigInfoVersion_t;
typedef struct {
  QnnSystemDlc_GraphConfigInfoVersion_t version; const char *graphName; QnnGraph_Config_t **graphConfigs;
  uint32_t numGraphConfigs;
} QnnSystemDlc_GraphConfigInfo_t;
QNN_LAYOUT(QnnSystemDlc_GraphConfigInfo_t, 32);
/* The backend's table is passed by value, so its size is part of the call: QnnInterface_t has QNN_TABLE_ENTRIES. */
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_createFromFile(
    Qnn_LogHandle_t logger, const char *path, QnnSystemDlc_Handle_t *dlc);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_createFromBinary(
    Qnn_LogHandle_t logger, const uint8_t *buffer, uint64_t bufferSize, QnnSystemDlc_Handle_t *dlc);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_composeGraphs(
    QnnSystemDlc_Handle_t dlc, const QnnSystemDlc_GraphConfigInfo_t **graphConfigs, uint32_t numGraphConfigs,
    Qnn_BackendHandle_t backend, Qnn_ContextHandle_t context, QnnInterface_t interface,
    QnnSystemContext_GraphInfoVersion_t graphVersion, QnnSystemContext_GraphInfo_t **graphs, uint32_t *numGraphs);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getOpMappings(
    QnnSystemDlc_Handle_t dlc, const Qnn_OpMapping_t **opMappings, uint32_t *numOpMappings);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_free(QnnSystemDlc_Handle_t dlc);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getRecordByName(
    QnnSystemDlc_Handle_t dlc, const char *name, QnnSystemDlc_RecordHandle_t *record);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getRecordsByType(
    QnnSystemDlc_Handle_t dlc, QnnSystemDlc_RecordType_t type, uint8_t bestOnly, QnnSystemDlc_RecordHandle_t **records,
    uint32_t *numRecords);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getRecordDataSize(QnnSystemDlc_RecordHandle_t record, uint64_t *size);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_readRecordDataMemoryMapped(
    QnnSystemDlc_RecordHandle_t record, const uint8_t **data, uint64_t *size);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_freeRecord(QnnSystemDlc_RecordHandle_t record);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_save(QnnSystemDlc_Handle_t dlc, const char *path);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_createFromFileWithDestinationDir(
    Qnn_LogHandle_t logger, const char *path, const char *directory, QnnSystemDlc_Handle_t *dlc);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_createFromBinaryWithDestinationDir(
    Qnn_LogHandle_t logger, const uint8_t *buffer, uint64_t bufferSize, const char *directory,
    QnnSystemDlc_Handle_t *dlc);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getBinarySize(QnnSystemDlc_Handle_t dlc, uint64_t *bufferSize);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getBinary(
    QnnSystemDlc_Handle_t dlc, uint8_t *buffer, uint64_t bufferSize, uint64_t *writtenSize);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getComposableGraphInfoHandles(
    QnnSystemDlc_Handle_t dlc, QnnSystemDlc_GraphInfoHandle_t **graphs, uint32_t *numGraphs);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getComposableGraphInfoGraphName(
    QnnSystemDlc_GraphInfoHandle_t graph, const char **name);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getComposableGraphInfoNumInputTensors(
    QnnSystemDlc_GraphInfoHandle_t graph, uint32_t *count);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getComposableGraphInfoNumOutputTensors(
    QnnSystemDlc_GraphInfoHandle_t graph, uint32_t *count);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getGraphInfoInputTensorInfo(
    QnnSystemDlc_GraphInfoHandle_t graph, uint32_t index, QnnSystemDlc_TensorInfoHandle_t *tensor);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getGraphInfoOutputTensorInfo(
    QnnSystemDlc_GraphInfoHandle_t graph, uint32_t index, QnnSystemDlc_TensorInfoHandle_t *tensor);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getTensorInfoName(
    QnnSystemDlc_TensorInfoHandle_t tensor, const char **name);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getTensorInfoId(QnnSystemDlc_TensorInfoHandle_t tensor, uint32_t *id);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getTensorInfoType(
    QnnSystemDlc_TensorInfoHandle_t tensor, Qnn_TensorType_t *type);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getTensorInfoDataFormat(
    QnnSystemDlc_TensorInfoHandle_t tensor, Qnn_TensorDataFormat_t *dataFormat);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getTensorInfoDataType(
    QnnSystemDlc_TensorInfoHandle_t tensor, Qnn_DataType_t *dataType);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getTensorInfoRank(QnnSystemDlc_TensorInfoHandle_t tensor, uint32_t *rank);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getTensorInfoDimensions(
    QnnSystemDlc_TensorInfoHandle_t tensor, uint32_t *dimensions);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getTensorInfoQuantParams(
    QnnSystemDlc_TensorInfoHandle_t tensor, QnnSystemDlc_QuantParamsHandle_t *params);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsEncodingDefinition(
    QnnSystemDlc_QuantParamsHandle_t params, Qnn_Definition_t *definition);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsEncoding(
    QnnSystemDlc_QuantParamsHandle_t params, Qnn_QuantizationEncoding_t *encoding);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsScaleOffsetScale(
    QnnSystemDlc_QuantParamsHandle_t params, float *scale);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsScaleOffsetOffset(
    QnnSystemDlc_QuantParamsHandle_t params, int32_t *offset);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsBwScaleOffsetBitwidth(
    QnnSystemDlc_QuantParamsHandle_t params, uint32_t *bitwidth);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsBwScaleOffsetScale(
    QnnSystemDlc_QuantParamsHandle_t params, float *scale);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsBwScaleOffsetOffset(
    QnnSystemDlc_QuantParamsHandle_t params, int32_t *offset);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsAxisScaleOffsetAxis(
    QnnSystemDlc_QuantParamsHandle_t params, int32_t *axis);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsAxisScaleOffsetNumScaleOffsets(
    QnnSystemDlc_QuantParamsHandle_t params, uint32_t *count);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsAxisScaleOffsetScaleAtIndex(
    QnnSystemDlc_QuantParamsHandle_t params, uint32_t index, float *scale);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsAxisScaleOffsetOffsetAtIndex(
    QnnSystemDlc_QuantParamsHandle_t params, uint32_t index, int32_t *offset);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsBwAxisScaleOffsetBitwidth(
    QnnSystemDlc_QuantParamsHandle_t params, uint32_t *bitwidth);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsBwAxisScaleOffsetAxis(
    QnnSystemDlc_QuantParamsHandle_t params, int32_t *axis);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsBwAxisScaleOffsetNumElements(
    QnnSystemDlc_QuantParamsHandle_t params, uint32_t *count);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsBwAxisScaleOffsetScaleAtIndex(
    QnnSystemDlc_QuantParamsHandle_t params, uint32_t index, float *scale);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemDlc_getQuantParamsBwAxisScaleOffsetOffsetAtIndex(
    QnnSystemDlc_QuantParamsHandle_t params, uint32_t index, int32_t *offset);

#ifdef __cplusplus
}
#endif
#endif
