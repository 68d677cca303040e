/* What HTP adds to the description of a binary. Binaries made here have none of it. */
#ifndef QNN_HTP_SYSTEM_CONTEXT_H
#define QNN_HTP_SYSTEM_CONTEXT_H

#include "../System/QnnSystemContext.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_SYSTEM_CONTEXT_HTP_HW_INFO_BLOB_VERSION_V1 = 1, QNN_SYSTEM_CONTEXT_HTP_HW_INFO_BLOB_UNDEFINED = QNN_UNDEFINED
} QnnHtpSystemContext_HwInfoBlobVersion_t;
typedef enum {
  QNN_SYSTEM_CONTEXT_HTP_GRAPH_INFO_BLOB_VERSION_V1 = 1, QNN_SYSTEM_CONTEXT_HTP_GRAPH_INFO_BLOB_VERSION_V2 = 2,
  QNN_SYSTEM_CONTEXT_HTP_GRAPH_INFO_BLOB_UNDEFINED = QNN_UNDEFINED
} QnnHtpSystemContext_GraphInfoBlobVersion_t;
typedef struct { uint32_t graphListIndex; uint64_t spillFillBufferSize; } QnnHtpSystemContext_HwBlobInfoV1_t;
typedef struct {
  QnnHtpSystemContext_HwInfoBlobVersion_t version;
  union { QnnHtpSystemContext_HwBlobInfoV1_t contextBinaryHwInfoBlobV1_t; };
} QnnHtpSystemContext_HwBlobInfo_t;
typedef struct {
  uint64_t spillFillBufferSize; uint32_t vtcmSize, optimizationLevel; uint8_t htpDlbc; uint64_t numHvxThreads;
} QnnHtpSystemContext_GraphBlobInfoV1_t;
typedef struct {
  QnnHtpSystemContext_GraphInfoBlobVersion_t version;
  union { QnnHtpSystemContext_GraphBlobInfoV1_t contextBinaryGraphBlobInfoV1; };
} QnnHtpSystemContext_GraphBlobInfo_t;

#ifdef __cplusplus
}
#endif
#endif
