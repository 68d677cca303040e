/* What a context binary holds.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_SYSTEM_CONTEXT_H
#define QNN_SYSTEM_CONTEXT_H

#include "../QnnDevice.h"
#include "QnnSystemCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_SYSTEM_CONTEXT_NO_ERROR = 0, QNN_SYSTEM_CONTEXT_ERROR_UNSUPPORTED_FEATURE = 1000,
  QNN_SYSTEM_CONTEXT_ERROR_INVALID_HANDLE = 30000, QNN_SYSTEM_CONTEXT_ERROR_INVALID_ARGUMENT = 30001,
  QNN_SYSTEM_CONTEXT_ERROR_OPERATION_FAILED = 30002, QNN_SYSTEM_CONTEXT_ERROR_MALFORMED_BINARY = 30010,
  QNN_SYSTEM_CONTEXT_MIN_ERROR = QNN_MIN_ERROR_SYSTEM, QNN_SYSTEM_CONTEXT_MAX_ERROR = QNN_MAX_ERROR_SYSTEM,
  QNN_SYSTEM_CONTEXT_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnSystemContext_Error_t;
typedef void *QnnSystemContext_Handle_t;
typedef enum {
  QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_1 = 1, QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_2 = 2,
  QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_3 = 3, QNN_SYSTEM_CONTEXT_GRAPH_INFO_UNDEFINED = QNN_UNDEFINED
} QnnSystemContext_GraphInfoVersion_t;
typedef enum {
  QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_1 = 1, QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_2 = 2,
  QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3 = 3, QNN_SYSTEM_CONTEXT_BINARY_INFO_UNDEFINED = QNN_UNDEFINED
} QnnSystemContext_BinaryInfoVersion_t;
/* Version 1 ends after the outputs, version 2 after the updateable tensors. */
typedef struct {
  const char *graphName; uint32_t numGraphInputs; Qnn_Tensor_t *graphInputs; uint32_t numGraphOutputs;
  Qnn_Tensor_t *graphOutputs;
} QnnSystemContext_GraphInfoV1_t;
QNN_LAYOUT(QnnSystemContext_GraphInfoV1_t, 40);
#define QNN_SYSTEM_CONTEXT_GRAPH_INFO_V1_INIT {NULL, 0, NULL, 0, NULL}
typedef struct {
  const char *graphName; uint32_t numGraphInputs; Qnn_Tensor_t *graphInputs; uint32_t numGraphOutputs;
  Qnn_Tensor_t *graphOutputs; uint32_t numUpdateableTensors; Qnn_Tensor_t *updateableTensors;
} QnnSystemContext_GraphInfoV2_t;
QNN_LAYOUT(QnnSystemContext_GraphInfoV2_t, 56);
#define QNN_SYSTEM_CONTEXT_GRAPH_INFO_V2_INIT {NULL, 0, NULL, 0, NULL, 0, NULL}
typedef struct {
  const char *graphName; uint32_t numGraphInputs; Qnn_Tensor_t *graphInputs; uint32_t numGraphOutputs;
  Qnn_Tensor_t *graphOutputs; uint32_t numUpdateableTensors; Qnn_Tensor_t *updateableTensors;
  uint32_t graphBlobInfoSize; void *graphBlobInfo; uint32_t startOpIndex, endOpIndex;
} QnnSystemContext_GraphInfoV3_t;
QNN_LAYOUT(QnnSystemContext_GraphInfoV3_t, 80);
#define QNN_SYSTEM_CONTEXT_GRAPH_INFO_V3_INIT {NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, 0}
typedef struct {
  QnnSystemContext_GraphInfoVersion_t version;
  union {
    QnnSystemContext_GraphInfoV1_t graphInfoV1; QnnSystemContext_GraphInfoV2_t graphInfoV2;
    QnnSystemContext_GraphInfoV3_t graphInfoV3;
  };
} QnnSystemContext_GraphInfo_t;
QNN_LAYOUT(QnnSystemContext_GraphInfo_t, 88);
#define QNN_SYSTEM_CONTEXT_GRAPH_INFO_INIT \
  {QNN_SYSTEM_CONTEXT_GRAPH_INFO_UNDEFINED, {QNN_SYSTEM_CONTEXT_GRAPH_INFO_V1_INIT}}
typedef struct {
  uint32_t backendId; const char *buildId; Qnn_Version_t coreApiVersion, backendApiVersion; const char *socVersion;
  Qnn_Version_t hwInfoBlobVersion, contextBlobVersion; uint32_t hwInfoBlobSize; void *hwInfoBlob;
  uint64_t contextBlobSize; uint32_t numContextTensors; Qnn_Tensor_t *contextTensors; uint32_t numGraphs;
  QnnSystemContext_GraphInfo_t *graphs;
} QnnSystemContext_BinaryInfoV1_t;
QNN_LAYOUT(QnnSystemContext_BinaryInfoV1_t, 128);
#define QNN_SYSTEM_CONTEXT_BINARY_INFO_V1_INIT \
  {0, NULL, QNN_VERSION_INIT, QNN_VERSION_INIT, NULL, QNN_VERSION_INIT, QNN_VERSION_INIT, 0, NULL, 0, 0, NULL, 0, NULL}
typedef struct {
  uint32_t backendId; const char *buildId; Qnn_Version_t coreApiVersion, backendApiVersion; const char *socVersion;
  Qnn_Version_t hwInfoBlobVersion, contextBlobVersion; uint32_t hwInfoBlobSize; void *hwInfoBlob;
  uint64_t contextBlobSize; uint32_t numContextTensors; Qnn_Tensor_t *contextTensors; uint32_t numGraphs;
  QnnSystemContext_GraphInfo_t *graphs; QnnDevice_PlatformInfo_t *platformInfo;
} QnnSystemContext_BinaryInfoV2_t;
QNN_LAYOUT(QnnSystemContext_BinaryInfoV2_t, 136);
typedef struct {
  uint32_t backendId; const char *buildId; Qnn_Version_t coreApiVersion, backendApiVersion; const char *socVersion;
  Qnn_Version_t contextBlobVersion; uint64_t contextBlobSize; uint32_t numContextTensors; Qnn_Tensor_t *contextTensors;
  uint32_t numGraphs; QnnSystemContext_GraphInfo_t *graphs; QnnDevice_PlatformInfo_t *platformInfo;
  uint32_t contextMetadataSize; void *contextMetadata; uint32_t socModel;
} QnnSystemContext_BinaryInfoV3_t;
QNN_LAYOUT(QnnSystemContext_BinaryInfoV3_t, 136);
typedef struct {
  QnnSystemContext_BinaryInfoVersion_t version;
  union {
    QnnSystemContext_BinaryInfoV1_t contextBinaryInfoV1; QnnSystemContext_BinaryInfoV2_t contextBinaryInfoV2;
    QnnSystemContext_BinaryInfoV3_t contextBinaryInfoV3;
  };
} QnnSystemContext_BinaryInfo_t;
QNN_LAYOUT(QnnSystemContext_BinaryInfo_t, 144);
#define QNN_SYSTEM_CONTEXT_BINARY_INFO_INIT \
  {QNN_SYSTEM_CONTEXT_BINARY_INFO_UNDEFINED, {QNN_SYSTEM_CONTEXT_BINARY_INFO_V1_INIT}}
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemContext_create(QnnSystemContext_Handle_t *sysCtx);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemContext_getBinaryInfo(
    QnnSystemContext_Handle_t sysCtx, void *binaryBuffer, uint64_t binaryBufferSize,
    const QnnSystemContext_BinaryInfo_t **binaryInfo, Qnn_ContextBinarySize_t *binaryInfoSize);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemContext_getMetaData(
    QnnSystemContext_Handle_t sysCtx, const void *binaryBuffer, uint64_t binaryBufferSize,
    const QnnSystemContext_BinaryInfo_t **binaryInfo);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemContext_free(QnnSystemContext_Handle_t sysCtx);

#ifdef __cplusplus
}
#endif
#endif
