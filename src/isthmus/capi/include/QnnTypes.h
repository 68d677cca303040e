/* QNN's values in C: handles, errors, tensors, operations, configurations, descriptors, profiles.
 *
 * Written for this project from the documented names and the observed layout, for 64-bit machines. Every enumeration is
 * 32 bits wide; an error is 64. isthmus.qnn.interface says the same in Python, and tests compare the two. */
#ifndef ISTHMUS_QNN_TYPES_H
#define ISTHMUS_QNN_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define QNN_LAYOUT(type, size) static_assert(sizeof(type) == (size), #type)
extern "C" {
#else
#define QNN_LAYOUT(type, size) _Static_assert(sizeof(type) == (size), #type)
#endif

#define QNN_UNDEFINED 0x7FFFFFFF

/* -- handles and errors ------------------------------------------------------------------------------------------- */

typedef void *Qnn_BackendHandle_t, *Qnn_ContextHandle_t, *Qnn_DeviceHandle_t, *Qnn_GraphHandle_t, *Qnn_LogHandle_t,
    *Qnn_MemHandle_t, *Qnn_ProfileHandle_t, *Qnn_SignalHandle_t;
typedef uint64_t Qnn_ErrorHandle_t, Qnn_ContextBinarySize_t;

enum {
  QNN_SUCCESS = 0,
  QNN_COMMON_ERROR_NOT_SUPPORTED = 1000,
  QNN_COMMON_ERROR_MEM_ALLOC = 1002,
  QNN_COMMON_ERROR_SYSTEM = 1003,
  QNN_COMMON_ERROR_INVALID_ARGUMENT = 1004,
  QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED = 1005,
  QNN_COMMON_ERROR_PLATFORM_NOT_SUPPORTED = 1006,
  QNN_COMMON_ERROR_SYSTEM_COMMUNICATION = 1007,
  QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES = 1008,
  QNN_COMMON_ERROR_LOADING_BINARIES = 1009,
  QNN_COMMON_ERROR_RESOURCE_UNAVAILABLE = 1010,
  QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL = 1011,
  QNN_COMMON_ERROR_GENERAL = 1100,
  QNN_PROPERTY_SUPPORTED = 0,
  QNN_PROPERTY_NOT_SUPPORTED = 1000,
  QNN_PROPERTY_ERROR_UNKNOWN_KEY = 2000,
  QNN_BACKEND_ERROR_CANNOT_INITIALIZE = 4000,
  QNN_BACKEND_ERROR_INVALID_HANDLE = 4011,
  QNN_CONTEXT_ERROR_INVALID_ARGUMENT = 5000,
  QNN_CONTEXT_ERROR_INVALID_HANDLE = 5002,
  QNN_CONTEXT_ERROR_CREATE_FROM_BINARY = 5005,
  QNN_GRAPH_ERROR_INVALID_ARGUMENT = 6000,
  QNN_GRAPH_ERROR_INVALID_HANDLE = 6001,
  QNN_GRAPH_ERROR_INVALID_TENSOR = 6004,
  QNN_GRAPH_ERROR_INVALID_OP_CONFIG = 6005,
  QNN_GRAPH_ERROR_GRAPH_NOT_FINALIZED = 6023,
  QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM = 7004,
  QNN_MEM_ERROR_INVALID_ARGUMENT = 8000,
  QNN_MEM_ERROR_INVALID_HANDLE = 8001,
  QNN_MEM_ERROR_ALREADY_REGISTERED = 8002,
  QNN_MEM_ERROR_MAPPING = 8003,
  QNN_MEM_ERROR_INVALID_SHAPE = 8004,
  QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE = 8005
};

typedef struct { uint32_t major, minor, patch; } Qnn_Version_t;
typedef struct { Qnn_Version_t coreApiVersion, backendApiVersion; } Qnn_ApiVersion_t;
typedef struct { uint32_t reportingLevel, storageLimit; } Qnn_ErrorReportingConfig_t;

/* -- enumerations ------------------------------------------------------------------------------------------------- */

typedef enum {
  QNN_DATATYPE_INT_8 = 0x0008, QNN_DATATYPE_INT_16 = 0x0016, QNN_DATATYPE_INT_32 = 0x0032, QNN_DATATYPE_INT_64 = 0x0064,
  QNN_DATATYPE_UINT_8 = 0x0108, QNN_DATATYPE_UINT_16 = 0x0116, QNN_DATATYPE_UINT_32 = 0x0132,
  QNN_DATATYPE_UINT_64 = 0x0164,
  QNN_DATATYPE_FLOAT_16 = 0x0216, QNN_DATATYPE_FLOAT_32 = 0x0232, QNN_DATATYPE_FLOAT_64 = 0x0264,
  QNN_DATATYPE_SFIXED_POINT_4 = 0x0304, QNN_DATATYPE_SFIXED_POINT_8 = 0x0308, QNN_DATATYPE_SFIXED_POINT_16 = 0x0316,
  QNN_DATATYPE_SFIXED_POINT_32 = 0x0332,
  QNN_DATATYPE_UFIXED_POINT_4 = 0x0404, QNN_DATATYPE_UFIXED_POINT_8 = 0x0408, QNN_DATATYPE_UFIXED_POINT_16 = 0x0416,
  QNN_DATATYPE_UFIXED_POINT_32 = 0x0432,
  QNN_DATATYPE_BOOL_8 = 0x0508, QNN_DATATYPE_STRING = 0x0608, QNN_DATATYPE_UNDEFINED = QNN_UNDEFINED
} Qnn_DataType_t;

typedef enum {
  QNN_TENSOR_TYPE_APP_WRITE = 0, QNN_TENSOR_TYPE_APP_READ, QNN_TENSOR_TYPE_APP_READWRITE, QNN_TENSOR_TYPE_NATIVE,
  QNN_TENSOR_TYPE_STATIC, QNN_TENSOR_TYPE_NULL, QNN_TENSOR_TYPE_UPDATEABLE_STATIC, QNN_TENSOR_TYPE_UPDATEABLE_NATIVE,
  QNN_TENSOR_TYPE_UPDATEABLE_APP_WRITE, QNN_TENSOR_TYPE_UPDATEABLE_APP_READ, QNN_TENSOR_TYPE_UPDATEABLE_APP_READWRITE,
  QNN_TENSOR_TYPE_OPTIONAL_APP_WRITE, QNN_TENSOR_TYPE_OPTIONAL_APP_READ, QNN_TENSOR_TYPE_OPTIONAL_APP_READWRITE,
  QNN_TENSOR_TYPE_UNDEFINED = QNN_UNDEFINED
} Qnn_TensorType_t;

typedef enum {
  QNN_PARAMTYPE_SCALAR = 0, QNN_PARAMTYPE_TENSOR = 1, QNN_PARAMTYPE_UNDEFINED = QNN_UNDEFINED
} Qnn_ParamType_t;
typedef enum {
  QNN_DEFINITION_IMPL_GENERATED = 0, QNN_DEFINITION_DEFINED = 1, QNN_DEFINITION_UNDEFINED = QNN_UNDEFINED
} Qnn_Definition_t;
typedef enum {
  QNN_PRIORITY_LOW = 0, QNN_PRIORITY_NORMAL = 100, QNN_PRIORITY_DEFAULT = 100, QNN_PRIORITY_NORMAL_HIGH = 150,
  QNN_PRIORITY_HIGH = 200, QNN_PRIORITY_UNDEFINED = QNN_UNDEFINED
} Qnn_Priority_t;
typedef enum {
  QNN_PRECISION_FLOAT32 = 0, QNN_PRECISION_FLOAT16 = 1, QNN_PRECISION_UNDEFINED = QNN_UNDEFINED
} Qnn_Precision_t;
typedef enum {
  QNN_QUANTIZATION_ENCODING_SCALE_OFFSET = 0, QNN_QUANTIZATION_ENCODING_AXIS_SCALE_OFFSET,
  QNN_QUANTIZATION_ENCODING_BW_SCALE_OFFSET, QNN_QUANTIZATION_ENCODING_BW_AXIS_SCALE_OFFSET,
  QNN_QUANTIZATION_ENCODING_BLOCK, QNN_QUANTIZATION_ENCODING_BLOCKWISE_EXPANSION, QNN_QUANTIZATION_ENCODING_VECTOR,
  QNN_QUANTIZATION_ENCODING_UNDEFINED = QNN_UNDEFINED
} Qnn_QuantizationEncoding_t;
typedef enum {
  QNN_TENSORMEMTYPE_RAW = 0, QNN_TENSORMEMTYPE_MEMHANDLE = 1, QNN_TENSORMEMTYPE_RETRIEVE_RAW = 2,
  QNN_TENSORMEMTYPE_UNDEFINED = QNN_UNDEFINED
} Qnn_TensorMemType_t;
typedef enum {
  QNN_TENSOR_VERSION_1 = 1, QNN_TENSOR_VERSION_2 = 2, QNN_TENSOR_VERSION_UNDEFINED = QNN_UNDEFINED
} Qnn_TensorVersion_t;
typedef enum { QNN_OPCONFIG_VERSION_1 = 1, QNN_OPCONFIG_VERSION_UNDEFINED = QNN_UNDEFINED } Qnn_OpConfigVersion_t;
typedef enum {
  QNN_MEM_TYPE_ION = 1, QNN_MEM_TYPE_CUSTOM = 2, QNN_MEM_TYPE_DMA_BUF = 3, QNN_MEM_TYPE_UNDEFINED = QNN_UNDEFINED
} Qnn_MemType_t;
typedef uint32_t Qnn_TensorDataFormat_t;
#define QNN_TENSOR_DATA_FORMAT_DENSE 0
#define QNN_TENSOR_DATA_FORMAT_FLAT_BUFFER 0

/* -- quantization: real = (stored + offset) * scale --------------------------------------------------------------- */

typedef struct { float scale; int32_t offset; } Qnn_ScaleOffset_t;
typedef struct { int32_t axis; uint32_t numScaleOffsets; Qnn_ScaleOffset_t *scaleOffset; } Qnn_AxisScaleOffset_t;
typedef struct { uint32_t bitwidth; float scale; int32_t offset; } Qnn_BwScaleOffset_t;
typedef struct {
  uint32_t bitwidth; int32_t axis; uint32_t numElements; float *scales; int32_t *offsets;
} Qnn_BwAxisScaleOffset_t;
typedef struct { uint32_t *blockSize; Qnn_ScaleOffset_t *scaleOffset; } Qnn_BlockEncoding_t;
typedef struct {
  int32_t axis; Qnn_ScaleOffset_t *scaleOffsets; uint32_t numBlocksPerAxis, blockScaleBitwidth, blockScaleStorageType;
  union { uint8_t *blocksScale8; uint16_t *blocksScale16; };
} Qnn_BlockwiseExpansion_t;
typedef struct {
  Qnn_BwAxisScaleOffset_t bwAxisScaleOffset; uint32_t rowsPerBlock, columnsPerBlock;
  uint8_t vectorDimension, vectorStride, indexBitwidth;
} Qnn_VectorEncoding_t;
typedef struct {
  Qnn_Definition_t encodingDefinition;
  Qnn_QuantizationEncoding_t quantizationEncoding;
  union {
    Qnn_ScaleOffset_t scaleOffsetEncoding;
    Qnn_AxisScaleOffset_t axisScaleOffsetEncoding;
    Qnn_BwScaleOffset_t bwScaleOffsetEncoding;
    Qnn_BwAxisScaleOffset_t bwAxisScaleOffsetEncoding;
    Qnn_BlockEncoding_t blockEncoding;
    Qnn_BlockwiseExpansion_t *blockwiseExpansion;
    Qnn_VectorEncoding_t *vectorEncoding;
  };
} Qnn_QuantizeParams_t;

/* -- tensors ------------------------------------------------------------------------------------------------------ */

typedef struct { void *data; uint32_t dataSize; } Qnn_ClientBuffer_t;
typedef struct {
  Qnn_ErrorHandle_t (*getTensorData)(Qnn_ContextHandle_t, Qnn_GraphHandle_t, uint64_t id, Qnn_ClientBuffer_t *);
  Qnn_ErrorHandle_t (*freeTensorData)(Qnn_ContextHandle_t, Qnn_GraphHandle_t, uint64_t id);
} Qnn_TensorRetrieveRaw_t;
typedef struct {
  uint32_t id; const char *name; Qnn_TensorType_t type; Qnn_TensorDataFormat_t dataFormat; Qnn_DataType_t dataType;
  Qnn_QuantizeParams_t quantizeParams; uint32_t rank; uint32_t *dimensions; Qnn_TensorMemType_t memType;
  union { Qnn_ClientBuffer_t clientBuf; Qnn_MemHandle_t memHandle; Qnn_TensorRetrieveRaw_t *retrieveRaw; };
} Qnn_TensorV1_t;
typedef struct { uint32_t numSpecifiedElements, numSparseDimensions; } Qnn_SparseLayoutHybridCoo_t;
typedef struct { uint32_t type; union { Qnn_SparseLayoutHybridCoo_t hybridCoo; }; } Qnn_SparseParams_t;
typedef struct {
  uint32_t id; const char *name; Qnn_TensorType_t type; Qnn_TensorDataFormat_t dataFormat; Qnn_DataType_t dataType;
  Qnn_QuantizeParams_t quantizeParams; uint32_t rank; uint32_t *dimensions; Qnn_TensorMemType_t memType;
  union { Qnn_ClientBuffer_t clientBuf; Qnn_MemHandle_t memHandle; Qnn_TensorRetrieveRaw_t *retrieveRaw; };
  uint8_t *isDynamicDimensions; Qnn_SparseParams_t sparseParams; uint8_t isProduced;
} Qnn_TensorV2_t;
typedef struct { Qnn_TensorVersion_t version; union { Qnn_TensorV1_t v1; Qnn_TensorV2_t v2; }; } Qnn_Tensor_t;
typedef struct {
  uint32_t numInputs; Qnn_Tensor_t *inputs; uint32_t numOutputs; Qnn_Tensor_t *outputs;
} Qnn_TensorSetV1_t;
typedef struct { uint32_t version; union { Qnn_TensorSetV1_t v1; }; } Qnn_TensorSet_t;

#define QNN_TENSOR_INIT {QNN_TENSOR_VERSION_1, {{0, NULL, QNN_TENSOR_TYPE_UNDEFINED, 0, QNN_DATATYPE_UNDEFINED, \
  {QNN_DEFINITION_UNDEFINED, QNN_QUANTIZATION_ENCODING_UNDEFINED, {{0, 0}}}, 0, NULL, QNN_TENSORMEMTYPE_UNDEFINED, \
  {{NULL, 0}}}}}

/* -- operations --------------------------------------------------------------------------------------------------- */

typedef struct {
  Qnn_DataType_t dataType;
  union {
    float floatValue; double doubleValue; uint64_t uint64Value; int64_t int64Value; uint32_t uint32Value;
    int32_t int32Value; uint16_t uint16Value; int16_t int16Value; uint8_t uint8Value; int8_t int8Value;
    uint8_t bool8Value; const char *stringValue;
  };
} Qnn_Scalar_t;
typedef struct {
  Qnn_ParamType_t paramType; const char *name;
  union { Qnn_Scalar_t scalarParam; Qnn_Tensor_t tensorParam; };
} Qnn_Param_t;
typedef struct {
  const char *name, *packageName, *typeName;
  uint32_t numOfParams; Qnn_Param_t *params;
  uint32_t numOfInputs; Qnn_Tensor_t *inputTensors;
  uint32_t numOfOutputs; Qnn_Tensor_t *outputTensors;
} Qnn_OpConfigV1_t;
typedef struct { Qnn_OpConfigVersion_t version; union { Qnn_OpConfigV1_t v1; }; } Qnn_OpConfig_t;

QNN_LAYOUT(Qnn_QuantizeParams_t, 40);
QNN_LAYOUT(Qnn_Tensor_t, 144);
QNN_LAYOUT(Qnn_Param_t, 160);
QNN_LAYOUT(Qnn_OpConfig_t, 80);

/* -- configurations and properties -------------------------------------------------------------------------------- */

typedef enum {
  QNN_BACKEND_CONFIG_OPTION_CUSTOM = 0, QNN_BACKEND_CONFIG_OPTION_ERROR_REPORTING, QNN_BACKEND_CONFIG_OPTION_PLATFORM,
  QNN_BACKEND_CONFIG_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnBackend_ConfigOption_t;
typedef struct {
  QnnBackend_ConfigOption_t option;
  union { void *customConfig; Qnn_ErrorReportingConfig_t errorConfig; const char *platformOption; };
} QnnBackend_Config_t;
typedef struct { const char *packageName, *name, *target; } QnnBackend_OperationName_t;
typedef enum {
  QNN_BACKEND_PROPERTY_OPTION_CUSTOM = 0, QNN_BACKEND_PROPERTY_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnBackend_PropertyOption_t;
typedef struct { QnnBackend_PropertyOption_t option; union { void *customProperty; }; } QnnBackend_Property_t;

typedef enum {
  QNN_CONTEXT_CONFIG_OPTION_CUSTOM = 0, QNN_CONTEXT_CONFIG_OPTION_PRIORITY, QNN_CONTEXT_CONFIG_OPTION_ERROR_REPORTING,
  QNN_CONTEXT_CONFIG_OPTION_OEM_STRING, QNN_CONTEXT_CONFIG_ASYNC_EXECUTION_QUEUE_DEPTH,
  QNN_CONTEXT_CONFIG_ENABLE_GRAPHS, QNN_CONTEXT_CONFIG_MEMORY_LIMIT_HINT, QNN_CONTEXT_CONFIG_PERSISTENT_BINARY,
  QNN_CONTEXT_CONFIG_BINARY_COMPATIBILITY,
  QNN_CONTEXT_CONFIG_OPTION_DEFER_GRAPH_INIT, QNN_CONTEXT_CONFIG_UNDEFINED = QNN_UNDEFINED
} QnnContext_ConfigOption_t;
typedef struct { uint32_t type, depth; } QnnContext_AsyncExecutionQueueDepth_t;
typedef struct {
  QnnContext_ConfigOption_t option;
  union {
    void *customConfig; Qnn_Priority_t priority; Qnn_ErrorReportingConfig_t errorConfig; const char *oemString;
    QnnContext_AsyncExecutionQueueDepth_t asyncExeQueueDepth; const char *const *enableGraphs;
    uint64_t memoryLimitHint; uint8_t isPersistentBinary; uint32_t binaryCompatibilityType; uint8_t isGraphInitDeferred;
  };
} QnnContext_Config_t;
typedef struct { uint32_t option; union { void *customProperty; }; } QnnContext_Property_t;
typedef struct { void *data; uint64_t dataSize; } Qnn_BinaryBuffer_t;
typedef void (*QnnContext_createFromBinaryNotifyFn_t)(Qnn_ContextHandle_t, Qnn_GraphHandle_t, const char *graphName,
                                                      uint32_t notifyType, void *notifyParam, Qnn_ErrorHandle_t);
typedef struct {
  const QnnContext_Config_t **config; const void *binaryBuffer; uint64_t binaryBufferSize; Qnn_ProfileHandle_t profile;
  QnnContext_createFromBinaryNotifyFn_t notifyFunc; void *notifyParam;
} QnnContext_ParamsV1_t;
typedef struct { uint32_t version; union { QnnContext_ParamsV1_t v1; }; } QnnContext_Params_t;

typedef enum {
  QNN_GRAPH_CONFIG_OPTION_CUSTOM = 0, QNN_GRAPH_CONFIG_OPTION_PRIORITY = 3, QNN_GRAPH_CONFIG_OPTION_PROFILE_HANDLE = 4,
  QNN_GRAPH_CONFIG_OPTION_SET_PROFILING_STATE = 5, QNN_GRAPH_CONFIG_OPTION_SET_PROFILING_NUM_EXECUTIONS = 6,
  QNN_GRAPH_CONFIG_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnGraph_ConfigOption_t;
typedef struct {
  QnnGraph_ConfigOption_t option;
  union {
    void *customConfig; Qnn_Priority_t priority; Qnn_ProfileHandle_t profileHandle; uint32_t profilingState;
    uint32_t numProfilingExecutions;
  };
} QnnGraph_Config_t;
typedef enum {
  QNN_GRAPH_PROPERTY_OPTION_CUSTOM = 0, QNN_GRAPH_PROPERTY_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnGraph_PropertyOption_t;
typedef struct { QnnGraph_PropertyOption_t option; union { void *customProperty; }; } QnnGraph_Property_t;
typedef enum {
  QNN_GRAPH_EXECUTE_ENVIRONMENT_OPTION_BIND_MEM_HANDLES = 0, QNN_GRAPH_EXECUTE_ENVIRONMENT_OPTION_POPULATE_CLIENT_BUFS,
  QNN_GRAPH_EXECUTE_ENVIRONMENT_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnGraph_ExecuteEnvironmentOption_t;
typedef struct {
  QnnGraph_ExecuteEnvironmentOption_t option; union { Qnn_TensorSet_t tensorSet; };
} QnnGraph_ExecuteEnvironment_t;
typedef struct { Qnn_ErrorHandle_t error; } Qnn_NotifyStatus_t;
typedef void (*Qnn_NotifyFn_t)(void *notifyParam, Qnn_NotifyStatus_t);

typedef enum {
  QNN_SIGNAL_CONFIG_OPTION_CUSTOM = 0, QNN_SIGNAL_CONFIG_OPTION_ABORT = 1, QNN_SIGNAL_CONFIG_OPTION_TIMEOUT = 2,
  QNN_SIGNAL_CONFIG_UNDEFINED = QNN_UNDEFINED
} QnnSignal_ConfigOption_t;
typedef struct {
  QnnSignal_ConfigOption_t option; union { void *customConfig; uint64_t timeoutDurationUs; };
} QnnSignal_Config_t;

/* -- memory ------------------------------------------------------------------------------------------------------- */

#define QNN_MEM_INVALID_FD (-1)
typedef struct { uint32_t numDim; uint32_t *dimSize; const char *shapeConfig; } Qnn_MemShape_t;
typedef struct { int32_t fd; } Qnn_MemIonInfo_t;
typedef struct { int32_t fd; void *data; } Qnn_MemDmaBufInfo_t;
typedef void *Qnn_MemInfoCustom_t;
typedef struct {
  Qnn_MemShape_t memShape; Qnn_DataType_t dataType; Qnn_MemType_t memType;
  union { Qnn_MemIonInfo_t ionInfo; Qnn_MemInfoCustom_t customInfo; Qnn_MemDmaBufInfo_t dmaBufInfo; };
} Qnn_MemDescriptor_t;

/* -- devices ------------------------------------------------------------------------------------------------------ */

typedef struct _QnnDevice_Infrastructure_t *QnnDevice_Infrastructure_t;
typedef struct { uint32_t coreId, coreType; void *coreInfoExtension; } QnnDevice_CoreInfoV1_t;
typedef struct { uint32_t version; union { QnnDevice_CoreInfoV1_t v1; }; } QnnDevice_CoreInfo_t;
typedef struct {
  uint32_t deviceId, deviceType, numCores; QnnDevice_CoreInfo_t *cores; void *deviceInfoExtension;
} QnnDevice_HardwareDeviceInfoV1_t;
typedef struct {
  uint32_t version; union { QnnDevice_HardwareDeviceInfoV1_t v1; };
} QnnDevice_HardwareDeviceInfo_t;
typedef struct { uint32_t numHwDevices; QnnDevice_HardwareDeviceInfo_t *hwDevices; } QnnDevice_PlatformInfoV1_t;
typedef struct { uint32_t version; union { QnnDevice_PlatformInfoV1_t v1; }; } QnnDevice_PlatformInfo_t;
typedef enum {
  QNN_DEVICE_CONFIG_OPTION_CUSTOM = 0, QNN_DEVICE_CONFIG_OPTION_PLATFORM_INFO = 1,
  QNN_DEVICE_CONFIG_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnDevice_ConfigOption_t;
typedef struct {
  QnnDevice_ConfigOption_t option; union { void *customConfig; QnnDevice_PlatformInfo_t *hardwareInfo; };
} QnnDevice_Config_t;

/* -- logs, profiles, capabilities --------------------------------------------------------------------------------- */

typedef enum {
  QNN_LOG_LEVEL_ERROR = 1, QNN_LOG_LEVEL_WARN, QNN_LOG_LEVEL_INFO, QNN_LOG_LEVEL_VERBOSE, QNN_LOG_LEVEL_DEBUG,
  QNN_LOG_LEVEL_MAX = QNN_UNDEFINED
} QnnLog_Level_t;
#ifdef __cplusplus
}
#include <cstdarg>
extern "C" {
#else
#include <stdarg.h>
#endif
typedef void (*QnnLog_Callback_t)(const char *format, QnnLog_Level_t, uint64_t timestamp, va_list);

typedef uint32_t QnnProfile_Level_t, QnnProfile_EventType_t, QnnProfile_EventUnit_t;
typedef uint64_t QnnProfile_EventId_t, QnnProfile_EventValue_t;
enum { QNN_PROFILE_LEVEL_BASIC = 1, QNN_PROFILE_LEVEL_DETAILED = 2 };
enum { QNN_PROFILE_EVENTTYPE_INIT = 100, QNN_PROFILE_EVENTTYPE_FINALIZE = 300, QNN_PROFILE_EVENTTYPE_EXECUTE = 400 };
enum { QNN_PROFILE_EVENTUNIT_MICROSEC = 1, QNN_PROFILE_EVENTUNIT_BYTES = 2 };
typedef enum {
  QNN_PROFILE_CONFIG_OPTION_CUSTOM = 0, QNN_PROFILE_CONFIG_OPTION_MAX_EVENTS, QNN_PROFILE_CONFIG_OPTION_ENABLE_OPTRACE,
  QNN_PROFILE_CONFIG_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnProfile_ConfigOption_t;
typedef struct {
  QnnProfile_ConfigOption_t option; union { void *customConfig; uint64_t numMaxEvents; uint8_t enableOptrace; };
} QnnProfile_Config_t;
typedef struct {
  QnnProfile_EventType_t type; QnnProfile_EventUnit_t unit; QnnProfile_EventValue_t value; const char *identifier;
} QnnProfile_EventData_t;
typedef struct { void *data; uint64_t len; const char *fileName; } QnnProfile_BackendOpaqueObject_t;
typedef struct {
  QnnProfile_EventType_t type; QnnProfile_EventUnit_t unit;
  union { Qnn_Scalar_t value; QnnProfile_BackendOpaqueObject_t backendOpaqueObject; };
  uint64_t timestamp; const char *identifier;
} QnnProfile_ExtendedEventDataV1_t;
typedef struct { uint32_t version; union { QnnProfile_ExtendedEventDataV1_t v1; }; } QnnProfile_ExtendedEventData_t;

typedef uint32_t QnnProperty_Key_t;
enum {
  QNN_PROPERTY_GROUP_BACKEND = 101, QNN_PROPERTY_GROUP_CONTEXT = 201, QNN_PROPERTY_GROUP_GRAPH = 301,
  QNN_PROPERTY_GROUP_TENSOR = 501, QNN_PROPERTY_GROUP_MEMORY = 1101, QNN_PROPERTY_GROUP_DEVICE = 1501
};

#ifdef __cplusplus
}
#endif
#endif
