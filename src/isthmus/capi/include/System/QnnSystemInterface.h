/* QNN's system functions: what context binaries and DLC files hold. System API 1.15. */
#ifndef ISTHMUS_QNN_SYSTEM_INTERFACE_H
#define ISTHMUS_QNN_SYSTEM_INTERFACE_H

#include "../QnnInterface.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QNN_SYSTEM_API_VERSION_MAJOR 1
#define QNN_SYSTEM_API_VERSION_MINOR 15
#define QNN_SYSTEM_API_VERSION_PATCH 0

typedef void *QnnSystemContext_Handle_t, *QnnSystemDlc_Handle_t, *QnnSystemDlc_RecordHandle_t;
typedef void *QnnSystemDlc_GraphInfoHandle_t, *QnnSystemDlc_TensorInfoHandle_t, *QnnSystemDlc_QuantParamsHandle_t;
enum {
  QNN_SYSTEM_DLC_RECORD_METADATA = 1, QNN_SYSTEM_DLC_RECORD_MODEL = 2, QNN_SYSTEM_DLC_RECORD_PARAMS = 3,
  QNN_SYSTEM_DLC_RECORD_RAW_WEIGHTS = 4, QNN_SYSTEM_DLC_RECORD_HTP_CACHE = 7
};
enum { QNN_SYSTEM_COMMON_ERROR_INVALID_HANDLE = 30000, QNN_SYSTEM_COMMON_ERROR_MALFORMED_BINARY = 30010 };

/* Version 1 ends after the outputs, version 2 after the updateable tensors. */
#define QNN_SYSTEM_GRAPH_INFO_V1 \
  const char *graphName; uint32_t numGraphInputs; Qnn_Tensor_t *graphInputs; uint32_t numGraphOutputs; \
  Qnn_Tensor_t *graphOutputs;
typedef struct { QNN_SYSTEM_GRAPH_INFO_V1 } QnnSystemContext_GraphInfoV1_t;
typedef struct {
  QNN_SYSTEM_GRAPH_INFO_V1 uint32_t numUpdateableTensors; Qnn_Tensor_t *updateableTensors;
} QnnSystemContext_GraphInfoV2_t;
typedef struct {
  QNN_SYSTEM_GRAPH_INFO_V1 uint32_t numUpdateableTensors; Qnn_Tensor_t *updateableTensors; uint32_t graphBlobInfoSize;
  void *graphBlobInfo; uint32_t startOpIndex, endOpIndex;
} QnnSystemContext_GraphInfoV3_t;
typedef struct {
  uint32_t version;
  union {
    QnnSystemContext_GraphInfoV1_t graphInfoV1;
    QnnSystemContext_GraphInfoV2_t graphInfoV2;
    QnnSystemContext_GraphInfoV3_t graphInfoV3;
  };
} QnnSystemContext_GraphInfo_t;

#define QNN_SYSTEM_BINARY_INFO_V1 \
  uint32_t backendId; const char *buildId; Qnn_Version_t coreApiVersion, backendApiVersion; const char *socVersion; \
  Qnn_Version_t hwInfoBlobVersion, contextBlobVersion; uint32_t hwInfoBlobSize; void *hwInfoBlob; \
  uint64_t contextBlobSize; uint32_t numContextTensors; Qnn_Tensor_t *contextTensors; uint32_t numGraphs; \
  QnnSystemContext_GraphInfo_t *graphs;
typedef struct { QNN_SYSTEM_BINARY_INFO_V1 } QnnSystemContext_BinaryInfoV1_t;
typedef struct { QNN_SYSTEM_BINARY_INFO_V1 QnnDevice_PlatformInfo_t *platformInfo; } QnnSystemContext_BinaryInfoV2_t;
typedef struct {
  uint32_t backendId; const char *buildId; Qnn_Version_t coreApiVersion, backendApiVersion; const char *socVersion;
  Qnn_Version_t contextBlobVersion; uint64_t contextBlobSize; uint32_t numContextTensors; Qnn_Tensor_t *contextTensors;
  uint32_t numGraphs; QnnSystemContext_GraphInfo_t *graphs; QnnDevice_PlatformInfo_t *platformInfo;
  uint32_t contextMetadataSize; void *contextMetadata; uint32_t socModel;
} QnnSystemContext_BinaryInfoV3_t;
enum {
  QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_1 = 1, QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_2 = 2,
  QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3 = 3
};
typedef struct {
  uint32_t version;
  union {
    QnnSystemContext_BinaryInfoV1_t contextBinaryInfoV1;
    QnnSystemContext_BinaryInfoV2_t contextBinaryInfoV2;
    QnnSystemContext_BinaryInfoV3_t contextBinaryInfoV3;
  };
} QnnSystemContext_BinaryInfo_t;

typedef struct {
  uint32_t version; const char *graphName; QnnGraph_Config_t **graphConfigs; uint32_t numGraphConfigs;
} QnnSystemDlc_GraphConfigInfo_t;

/* Profiles in files. */
typedef void *QnnSystemProfile_SerializationTargetHandle_t;
typedef struct { const char *fileName, *fileDirectory; } QnnSystemProfile_SerializationTargetFile_t;
typedef struct {
  uint32_t type; union { QnnSystemProfile_SerializationTargetFile_t file; };
} QnnSystemProfile_SerializationTarget_t;
typedef struct { const char *appName, *appVersion, *backendVersion; } QnnSystemProfile_SerializationFileHeader_t;
typedef struct {
  uint32_t type;
  union { uint32_t maxNumMessages; QnnSystemProfile_SerializationFileHeader_t serializationHeader; };
} QnnSystemProfile_SerializationTargetConfig_t;
typedef struct QnnSystemProfile_ProfileEventV1_t {
  uint32_t type; union { QnnProfile_EventData_t eventData; QnnProfile_ExtendedEventData_t extendedEventData; };
  struct QnnSystemProfile_ProfileEventV1_t *profileSubEventData; uint32_t numSubEvents;
} QnnSystemProfile_ProfileEventV1_t;
typedef struct {
  uint64_t startTime, stopTime, startMem, stopMem; uint32_t methodType, visibility; const char *graphName;
} QnnSystemProfile_HeaderV1_t;
typedef struct {
  QnnSystemProfile_HeaderV1_t header; QnnSystemProfile_ProfileEventV1_t *profilingEvents; uint32_t numProfilingEvents;
} QnnSystemProfile_ProfileDataV1_t;
typedef struct { uint32_t version; union { QnnSystemProfile_ProfileDataV1_t v1; }; } QnnSystemProfile_ProfileData_t;

/* The names of functions stand in the order of the table. Nothing may come between. */
typedef struct {
  Qnn_ErrorHandle_t (*systemContextCreate)(QnnSystemContext_Handle_t *);
  Qnn_ErrorHandle_t (*systemContextGetBinaryInfo)(QnnSystemContext_Handle_t, void *, uint64_t,
                                                  const QnnSystemContext_BinaryInfo_t **, Qnn_ContextBinarySize_t *);
  Qnn_ErrorHandle_t (*systemContextGetMetaData)(QnnSystemContext_Handle_t, const void *, uint64_t,
                                                const QnnSystemContext_BinaryInfo_t **);
  Qnn_ErrorHandle_t (*systemContextFree)(QnnSystemContext_Handle_t);
  Qnn_ErrorHandle_t (*systemTensorGetMemoryFootprint)(Qnn_Tensor_t, uint64_t *);
  Qnn_ErrorHandle_t (*systemLogCreate)(QnnLog_Callback_t, QnnLog_Level_t, Qnn_LogHandle_t *);
  Qnn_ErrorHandle_t (*systemLogSetLogLevel)(Qnn_LogHandle_t, QnnLog_Level_t);
  Qnn_ErrorHandle_t (*systemLogFree)(Qnn_LogHandle_t);
  Qnn_ErrorHandle_t (*systemDlcCreateFromFile)(Qnn_LogHandle_t, const char *, QnnSystemDlc_Handle_t *);
  Qnn_ErrorHandle_t (*systemDlcCreateFromBinary)(Qnn_LogHandle_t, const uint8_t *, uint64_t, QnnSystemDlc_Handle_t *);
  Qnn_ErrorHandle_t (*systemDlcComposeGraphs)(QnnSystemDlc_Handle_t, const QnnSystemDlc_GraphConfigInfo_t **, uint32_t,
                                              Qnn_BackendHandle_t, Qnn_ContextHandle_t, QnnInterface_t,
                                              uint32_t version, QnnSystemContext_GraphInfo_t **, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetOpMappings)(QnnSystemDlc_Handle_t, const void **, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcFree)(QnnSystemDlc_Handle_t);
  Qnn_ErrorHandle_t (*systemProfileCreateSerializationTarget)(QnnSystemProfile_SerializationTarget_t,
                                                              QnnSystemProfile_SerializationTargetConfig_t *, uint32_t,
                                                              QnnSystemProfile_SerializationTargetHandle_t *);
  Qnn_ErrorHandle_t (*systemProfileSerializeEventData)(QnnSystemProfile_SerializationTargetHandle_t,
                                                       const QnnSystemProfile_ProfileData_t **, uint32_t);
  Qnn_ErrorHandle_t (*systemProfileFreeSerializationTarget)(QnnSystemProfile_SerializationTargetHandle_t);
  Qnn_ErrorHandle_t (*systemDlcGetRecordByName)(QnnSystemDlc_Handle_t, const char *, QnnSystemDlc_RecordHandle_t *);
  Qnn_ErrorHandle_t (*systemDlcGetRecordsByType)(
      QnnSystemDlc_Handle_t, uint32_t, uint8_t, QnnSystemDlc_RecordHandle_t **, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetRecordDataSize)(QnnSystemDlc_RecordHandle_t, uint64_t *);
  Qnn_ErrorHandle_t (*systemDlcReadRecordDataMemoryMapped)(QnnSystemDlc_RecordHandle_t, const uint8_t **, uint64_t *);
  Qnn_ErrorHandle_t (*systemDlcFreeRecord)(QnnSystemDlc_RecordHandle_t);
  Qnn_ErrorHandle_t (*systemDlcSave)(QnnSystemDlc_Handle_t, const char *);
  Qnn_ErrorHandle_t (*systemDlcCreateFromFileWithDestinationDir)(
      Qnn_LogHandle_t, const char *, const char *, QnnSystemDlc_Handle_t *);
  Qnn_ErrorHandle_t (*systemDlcCreateFromBinaryWithDestinationDir)(
      Qnn_LogHandle_t, const uint8_t *, uint64_t, const char *, QnnSystemDlc_Handle_t *);
  Qnn_ErrorHandle_t (*systemDlcGetBinarySize)(QnnSystemDlc_Handle_t, uint64_t *);
  Qnn_ErrorHandle_t (*systemDlcGetBinary)(QnnSystemDlc_Handle_t, uint8_t *, uint64_t, uint64_t *);
  Qnn_NotOffered_t systemDlcCreateWithDestinationDir;
  Qnn_ErrorHandle_t (*systemDlcGetComposableGraphInfoHandles)(
      QnnSystemDlc_Handle_t, QnnSystemDlc_GraphInfoHandle_t **, uint32_t *);
  Qnn_NotOffered_t systemDlcGetContextBinaryInfoHandles, systemDlcGetComposableGraphInfo,
      systemDlcGetContextBinaryInfo;
  Qnn_ErrorHandle_t (*systemDlcGetComposableGraphInfoGraphName)(QnnSystemDlc_GraphInfoHandle_t, const char **);
  Qnn_ErrorHandle_t (*systemDlcGetComposableGraphInfoNumInputTensors)(QnnSystemDlc_GraphInfoHandle_t, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetComposableGraphInfoNumOutputTensors)(QnnSystemDlc_GraphInfoHandle_t, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetGraphInfoInputTensorInfo)(
      QnnSystemDlc_GraphInfoHandle_t, uint32_t, QnnSystemDlc_TensorInfoHandle_t *);
  Qnn_ErrorHandle_t (*systemDlcGetGraphInfoOutputTensorInfo)(
      QnnSystemDlc_GraphInfoHandle_t, uint32_t, QnnSystemDlc_TensorInfoHandle_t *);
  Qnn_ErrorHandle_t (*systemDlcGetTensorInfoName)(QnnSystemDlc_TensorInfoHandle_t, const char **);
  Qnn_ErrorHandle_t (*systemDlcGetTensorInfoId)(QnnSystemDlc_TensorInfoHandle_t, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetTensorInfoType)(QnnSystemDlc_TensorInfoHandle_t, Qnn_TensorType_t *);
  Qnn_ErrorHandle_t (*systemDlcGetTensorInfoDataFormat)(QnnSystemDlc_TensorInfoHandle_t, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetTensorInfoDataType)(QnnSystemDlc_TensorInfoHandle_t, Qnn_DataType_t *);
  Qnn_ErrorHandle_t (*systemDlcGetTensorInfoRank)(QnnSystemDlc_TensorInfoHandle_t, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetTensorInfoDimensions)(QnnSystemDlc_TensorInfoHandle_t, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetTensorInfoQuantParams)(
      QnnSystemDlc_TensorInfoHandle_t, QnnSystemDlc_QuantParamsHandle_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsEncodingDefinition)(
      QnnSystemDlc_QuantParamsHandle_t, Qnn_Definition_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsEncoding)(
      QnnSystemDlc_QuantParamsHandle_t, Qnn_QuantizationEncoding_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsScaleOffsetScale)(QnnSystemDlc_QuantParamsHandle_t, float *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsScaleOffsetOffset)(QnnSystemDlc_QuantParamsHandle_t, int32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsBwScaleOffsetBitwidth)(QnnSystemDlc_QuantParamsHandle_t, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsBwScaleOffsetScale)(QnnSystemDlc_QuantParamsHandle_t, float *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsBwScaleOffsetOffset)(QnnSystemDlc_QuantParamsHandle_t, int32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsAxisScaleOffsetAxis)(QnnSystemDlc_QuantParamsHandle_t, int32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsAxisScaleOffsetNumScaleOffsets)(
      QnnSystemDlc_QuantParamsHandle_t, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsAxisScaleOffsetScaleAtIndex)(
      QnnSystemDlc_QuantParamsHandle_t, uint32_t, float *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsAxisScaleOffsetOffsetAtIndex)(
      QnnSystemDlc_QuantParamsHandle_t, uint32_t, int32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsBwAxisScaleOffsetBitwidth)(QnnSystemDlc_QuantParamsHandle_t, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsBwAxisScaleOffsetAxis)(QnnSystemDlc_QuantParamsHandle_t, int32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsBwAxisScaleOffsetNumElements)(
      QnnSystemDlc_QuantParamsHandle_t, uint32_t *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsBwAxisScaleOffsetScaleAtIndex)(
      QnnSystemDlc_QuantParamsHandle_t, uint32_t, float *);
  Qnn_ErrorHandle_t (*systemDlcGetQuantParamsBwAxisScaleOffsetOffsetAtIndex)(
      QnnSystemDlc_QuantParamsHandle_t, uint32_t, int32_t *);
  Qnn_NotOffered_t systemDlcGetContextBinaryInfoBackendId, systemDlcGetContextBinaryInfoBuildId,
      systemDlcGetContextBinaryInfoCoreApiVersion, systemDlcGetContextBinaryInfoBackendApiVersion,
      systemDlcGetContextBinaryInfoSocVersion, systemDlcGetContextBinaryInfoHwInfoBlobVersion,
      systemDlcGetContextBinaryInfoContextBlobVersion, systemDlcGetContextBinaryInfoHwInfoBlobSize,
      systemDlcGetContextBinaryInfoHwInfoBlob, systemDlcGetContextBinaryInfoContextBlobSize,
      systemDlcGetContextBinaryInfoNumContextTensors, systemDlcGetContextBinaryInfoContextTensorInfo,
      systemDlcGetContextBinaryInfoNumGraphs, systemDlcGetContextGraphInfoHandle,
      systemDlcGetContextBinaryInfoSocModel, systemDlcGetContextBinaryInfoContextMetadataSize,
      systemDlcGetContextBinaryInfoContextMetadata, systemDlcGetContextGraphInfoGraphName,
      systemDlcGetContextGraphInfoNumInputTensors, systemDlcGetContextGraphInfoNumOutputTensors,
      systemDlcGetContextGraphInfoNumUpdateableTensors, systemDlcGetContextGraphInfoGraphBlobInfoSize,
      systemDlcGetContextGraphInfoGraphBlobInfo, systemDlcGetContextGraphInfoStartOpIndex,
      systemDlcGetContextGraphInfoEndOpIndex, systemDlcGetContextGraphInfoInputTensorInfo,
      systemDlcGetContextGraphInfoOutputTensorInfo, systemDlcGetContextGraphInfoUpdateableTensorInfo,
      systemDlcFreeRecordRange, reserved89;
} QnnSystemInterface_ImplementationV1_15_t;

#define QNN_SYSTEM_TABLE_ENTRIES 90
#define QNN_SYSTEM_INTERFACE_VER_TYPE QnnSystemInterface_ImplementationV1_15_t
#define QNN_SYSTEM_INTERFACE_VER_NAME v1_15
QNN_LAYOUT(QNN_SYSTEM_INTERFACE_VER_TYPE, 8 * QNN_SYSTEM_TABLE_ENTRIES);

typedef struct {
  uint32_t backendId;
  const char *providerName;
  Qnn_Version_t systemApiVersion;
  union { QNN_SYSTEM_INTERFACE_VER_TYPE QNN_SYSTEM_INTERFACE_VER_NAME; };
} QnnSystemInterface_t;
QNN_LAYOUT(QnnSystemInterface_t, 32 + 8 * QNN_SYSTEM_TABLE_ENTRIES);

Qnn_ErrorHandle_t QnnSystemInterface_getProviders(const QnnSystemInterface_t ***providerList, uint32_t *numProviders);
typedef Qnn_ErrorHandle_t (*QnnSystemInterface_getProvidersFn_t)(const QnnSystemInterface_t ***, uint32_t *);

#ifdef __cplusplus
}
#endif
#endif
