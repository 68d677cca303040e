/* Contexts: creation, configuration, properties, and their binaries.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_CONTEXT_H
#define QNN_CONTEXT_H

#include "QnnTypes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_CONTEXT_NO_ERROR = 0, QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE = 1000, QNN_CONTEXT_ERROR_MEM_ALLOC = 1002,
  QNN_CONTEXT_ERROR_INVALID_ARGUMENT = 5000, QNN_CONTEXT_ERROR_CTX_DOES_NOT_EXIST = 5001,
  QNN_CONTEXT_ERROR_INVALID_HANDLE = 5002, QNN_CONTEXT_ERROR_NOT_FINALIZED = 5003,
  QNN_CONTEXT_ERROR_BINARY_VERSION = 5004, QNN_CONTEXT_ERROR_CREATE_FROM_BINARY = 5005,
  QNN_CONTEXT_ERROR_GET_BINARY_SIZE_FAILED = 5006, QNN_CONTEXT_ERROR_GET_BINARY_FAILED = 5007,
  QNN_CONTEXT_ERROR_BINARY_CONFIGURATION = 5008, QNN_CONTEXT_ERROR_SET_PROFILE = 5009,
  QNN_CONTEXT_ERROR_INVALID_CONFIG = 5010, QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL = 5011, QNN_CONTEXT_ERROR_ABORTED = 5012,
  QNN_CONTEXT_ERROR_TIMED_OUT = 5013, QNN_CONTEXT_MIN_ERROR = QNN_MIN_ERROR_CONTEXT,
  QNN_CONTEXT_MAX_ERROR = QNN_MAX_ERROR_CONTEXT, QNN_CONTEXT_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnContext_Error_t;
typedef void *QnnContext_CustomConfig_t, *QnnContext_CustomProperty_t;
typedef enum {
  QNN_CONTEXT_CONFIG_OPTION_CUSTOM = 0, QNN_CONTEXT_CONFIG_OPTION_PRIORITY = 1,
  QNN_CONTEXT_CONFIG_OPTION_ERROR_REPORTING = 2, QNN_CONTEXT_CONFIG_OPTION_OEM_STRING = 3,
  QNN_CONTEXT_CONFIG_ASYNC_EXECUTION_QUEUE_DEPTH = 4, QNN_CONTEXT_CONFIG_ENABLE_GRAPHS = 5,
  QNN_CONTEXT_CONFIG_MEMORY_LIMIT_HINT = 6, QNN_CONTEXT_CONFIG_PERSISTENT_BINARY = 7,
  QNN_CONTEXT_CONFIG_BINARY_COMPATIBILITY = 8, QNN_CONTEXT_CONFIG_OPTION_DEFER_GRAPH_INIT = 9,
  QNN_CONTEXT_CONFIG_OPTION_GRAPH_RETENTION_ORDER = 10, QNN_CONTEXT_CONFIG_UNDEFINED = QNN_UNDEFINED
} QnnContext_ConfigOption_t;
typedef enum {
  QNN_CONTEXT_ASYNC_EXECUTION_QUEUE_DEPTH_TYPE_NUMERIC = 0,
  QNN_CONTEXT_ASYNC_EXECUTION_QUEUE_DEPTH_TYPE_UNDEFINED = QNN_UNDEFINED
} QnnContext_AsyncExecutionQueueDepthType_t;
typedef struct {
  QnnContext_AsyncExecutionQueueDepthType_t type;
  union { uint32_t depth; };
} QnnContext_AsyncExecutionQueueDepth_t;
QNN_LAYOUT(QnnContext_AsyncExecutionQueueDepth_t, 8);
#define QNN_CONTEXT_ASYNC_EXECUTION_QUEUE_DEPTH_INIT {QNN_CONTEXT_ASYNC_EXECUTION_QUEUE_DEPTH_TYPE_UNDEFINED, {0}}
typedef enum {
  QNN_CONTEXT_BINARY_COMPATIBILITY_PERMISSIVE = 0, QNN_CONTEXT_BINARY_COMPATIBILITY_STRICT = 1,
  QNN_CONTEXT_BINARY_COMPATIBILITY_TYPE_UNDEFINED = QNN_UNDEFINED
} QnnContext_BinaryCompatibilityType_t;
typedef struct {
  QnnContext_ConfigOption_t option;
  union {
    QnnContext_CustomConfig_t customConfig; Qnn_Priority_t priority; Qnn_ErrorReportingConfig_t errorConfig;
    const char *oemString; QnnContext_AsyncExecutionQueueDepth_t asyncExeQueueDepth; const char *const *enableGraphs;
    uint64_t memoryLimitHint; uint8_t isPersistentBinary; QnnContext_BinaryCompatibilityType_t binaryCompatibilityType;
    uint8_t isGraphInitDeferred; const char *const *graphRetentionOrder;
  };
} QnnContext_Config_t;
QNN_LAYOUT(QnnContext_Config_t, 16);
#define QNN_CONTEXT_CONFIG_INIT {QNN_CONTEXT_CONFIG_UNDEFINED, {NULL}}
typedef enum {
  QNN_CONTEXT_PROPERTY_OPTION_CUSTOM = 0, QNN_CONTEXT_PROPERTY_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnContext_PropertyOption_t;
typedef struct {
  QnnContext_PropertyOption_t option;
  union { QnnContext_CustomProperty_t customProperty; };
} QnnContext_Property_t;
QNN_LAYOUT(QnnContext_Property_t, 16);
#define QNN_CONTEXT_PROPERTY_INIT {QNN_CONTEXT_PROPERTY_OPTION_UNDEFINED, {NULL}}
typedef enum {
  QNN_CONTEXT_NOTIFY_TYPE_GRAPH_INIT = 0, QNN_CONTEXT_NOTIFY_TYPE_CONTEXT_INIT = 1,
  QNN_CONTEXT_NOTIFY_TYPE_UNDEFINED = QNN_UNDEFINED
} QnnContext_createFromBinaryAsyncNotifyType_t;
typedef void (*QnnContext_createFromBinaryNotifyFn_t)(
    Qnn_ContextHandle_t context, Qnn_GraphHandle_t graph, const char *graphName,
    QnnContext_createFromBinaryAsyncNotifyType_t notifyType, void *notifyParam, Qnn_ErrorHandle_t status);
typedef struct {
  const QnnContext_Config_t **config; const void *binaryBuffer; Qnn_ContextBinarySize_t binaryBufferSize;
  Qnn_ProfileHandle_t profile; QnnContext_createFromBinaryNotifyFn_t notifyFunc; void *notifyParam;
} QnnContext_ParamsV1_t;
QNN_LAYOUT(QnnContext_ParamsV1_t, 48);
typedef enum {
  QNN_CONTEXT_PARAMS_VERSION_1 = 1, QNN_CONTEXT_PARAMS_VERSION_UNDEFINED = QNN_UNDEFINED
} QnnContext_ParamsVersion_t;
typedef struct { QnnContext_ParamsVersion_t version; union { QnnContext_ParamsV1_t v1; }; } QnnContext_Params_t;
QNN_LAYOUT(QnnContext_Params_t, 56);
/* Parts of a binary; the functions that take them answer 1000 here. */
typedef enum {
  QNN_CONTEXT_SECTION_UPDATABLE = 1, QNN_CONTEXT_SECTION_UNDEFINED = QNN_UNDEFINED
} QnnContext_SectionType_t;
typedef struct { void *data; Qnn_ContextBinarySize_t dataSize; } Qnn_BinaryBuffer_t;
QNN_LAYOUT(Qnn_BinaryBuffer_t, 16);
typedef enum {
  QNN_CONTEXTMEMTYPE_RAW = 0, QNN_CONTEXTMEMTYPE_MEMHANDLE = 1, QNN_CONTEXTMEMTYPE_UNDEFINED = QNN_UNDEFINED
} QnnContext_MemType_t;
typedef struct {
  QnnContext_MemType_t memType;
  union { Qnn_BinaryBuffer_t binaryBuf; Qnn_MemHandle_t memHandle; };
} QnnContext_BufferV1_t;
QNN_LAYOUT(QnnContext_BufferV1_t, 24);
typedef enum {
  QNN_CONTEXT_BUFFER_VERSION_1 = 1, QNN_CONTEXT_BUFFER_VERSION_UNDEFINED = QNN_UNDEFINED
} QnnContext_BufferVersion_t;
typedef struct { QnnContext_BufferVersion_t version; union { QnnContext_BufferV1_t v1; }; } QnnContext_Buffer_t;
QNN_LAYOUT(QnnContext_Buffer_t, 32);
QNN_API Qnn_ErrorHandle_t QnnContext_create(
    Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device, const QnnContext_Config_t **config,
    Qnn_ContextHandle_t *context);
QNN_API Qnn_ErrorHandle_t QnnContext_setConfig(Qnn_ContextHandle_t context, const QnnContext_Config_t **config);
QNN_API Qnn_ErrorHandle_t QnnContext_getBinarySize(
    Qnn_ContextHandle_t context, Qnn_ContextBinarySize_t *binaryBufferSize);
QNN_API Qnn_ErrorHandle_t QnnContext_getBinary(
    Qnn_ContextHandle_t context, void *binaryBuffer, Qnn_ContextBinarySize_t binaryBufferSize,
    Qnn_ContextBinarySize_t *writtenBufferSize);
QNN_API Qnn_ErrorHandle_t QnnContext_createFromBinary(
    Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device, const QnnContext_Config_t **config,
    const void *binaryBuffer, Qnn_ContextBinarySize_t binaryBufferSize, Qnn_ContextHandle_t *context,
    Qnn_ProfileHandle_t profile);
QNN_API Qnn_ErrorHandle_t QnnContext_free(Qnn_ContextHandle_t context, Qnn_ProfileHandle_t profile);
QNN_API Qnn_ErrorHandle_t QnnContext_validateBinary(
    Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device, const QnnContext_Config_t **config,
    const void *binaryBuffer, Qnn_ContextBinarySize_t binaryBufferSize);
QNN_API Qnn_ErrorHandle_t QnnContext_createFromBinaryWithSignal(
    Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device, const QnnContext_Config_t **config,
    const void *binaryBuffer, Qnn_ContextBinarySize_t binaryBufferSize, Qnn_ContextHandle_t *context,
    Qnn_ProfileHandle_t profile, Qnn_SignalHandle_t signal);
QNN_API Qnn_ErrorHandle_t QnnContext_createFromBinaryListAsync(
    Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device, const QnnContext_Params_t **contextParams,
    const QnnContext_Config_t **listConfig, Qnn_SignalHandle_t signal);
QNN_API Qnn_ErrorHandle_t QnnContext_getBinarySectionSize(
    Qnn_ContextHandle_t context, Qnn_GraphHandle_t graph, QnnContext_SectionType_t section,
    Qnn_ContextBinarySize_t *binaryBufferSize);
QNN_API Qnn_ErrorHandle_t QnnContext_getBinarySection(
    Qnn_ContextHandle_t context, Qnn_GraphHandle_t graph, QnnContext_SectionType_t section,
    const QnnContext_Buffer_t *binaryBuffer, Qnn_ContextBinarySize_t *writtenBufferSize, Qnn_ProfileHandle_t profile,
    Qnn_SignalHandle_t signal);
QNN_API Qnn_ErrorHandle_t QnnContext_applyBinarySection(
    Qnn_ContextHandle_t context, Qnn_GraphHandle_t graph, QnnContext_SectionType_t section,
    const QnnContext_Buffer_t *binaryBuffer, Qnn_ProfileHandle_t profile, Qnn_SignalHandle_t signal);
QNN_API Qnn_ErrorHandle_t QnnContext_getProperty(Qnn_ContextHandle_t context, QnnContext_Property_t **properties);
QNN_API Qnn_ErrorHandle_t QnnContext_getIncrementalBinary(
    Qnn_ContextHandle_t context, const void **binaryBuffer, Qnn_ContextBinarySize_t *startOffset,
    Qnn_ContextBinarySize_t *writtenBufferSize);
QNN_API Qnn_ErrorHandle_t QnnContext_releaseIncrementalBinary(
    Qnn_ContextHandle_t context, const void *binaryBuffer, Qnn_ContextBinarySize_t startOffset);
QNN_API Qnn_ErrorHandle_t QnnContext_finalize(Qnn_ContextHandle_t context, Qnn_ProfileHandle_t profile);
QNN_API Qnn_ErrorHandle_t QnnContext_addToDlc(Qnn_ContextHandle_t context, Qnn_Handle_t dlc);

#ifdef __cplusplus
}
#endif
#endif
