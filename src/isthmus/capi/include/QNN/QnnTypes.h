/* Values of QNN: versions, data types, quantization, tensors, parameters, operations.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_TYPES_H
#define QNN_TYPES_H

#include "QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t Qnn_ContextBinarySize_t;
typedef struct { uint32_t major, minor, patch; } Qnn_Version_t;
QNN_LAYOUT(Qnn_Version_t, 12);
#define QNN_VERSION_INIT {0, 0, 0}
typedef struct { Qnn_Version_t coreApiVersion, backendApiVersion; } Qnn_ApiVersion_t;
QNN_LAYOUT(Qnn_ApiVersion_t, 24);
#define QNN_API_VERSION_INIT {{QNN_API_VERSION_MAJOR, QNN_API_VERSION_MINOR, QNN_API_VERSION_PATCH}, QNN_VERSION_INIT}
typedef enum {
  QNN_ERROR_REPORTING_LEVEL_BRIEF = 0, QNN_ERROR_REPORTING_LEVEL_DETAILED = 1,
  QNN_ERROR_REPORTING_LEVEL_UNDEFINED = QNN_UNDEFINED
} Qnn_ErrorReportingLevel_t;
typedef struct { Qnn_ErrorReportingLevel_t reportingLevel; uint32_t storageLimit; } Qnn_ErrorReportingConfig_t;
QNN_LAYOUT(Qnn_ErrorReportingConfig_t, 8);
#define QNN_ERROR_REPORTING_CONFIG_INIT {QNN_ERROR_REPORTING_LEVEL_UNDEFINED, 0}
typedef enum {
  QNN_DATATYPE_INT_8 = 0x0008, QNN_DATATYPE_INT_16 = 0x0016, QNN_DATATYPE_INT_32 = 0x0032, QNN_DATATYPE_INT_64 = 0x0064,
  QNN_DATATYPE_UINT_8 = 0x0108, QNN_DATATYPE_UINT_16 = 0x0116, QNN_DATATYPE_UINT_32 = 0x0132,
  QNN_DATATYPE_UINT_64 = 0x0164, QNN_DATATYPE_FLOAT_16 = 0x0216, QNN_DATATYPE_BFLOAT_16 = 0x0226,
  QNN_DATATYPE_FLOAT_32 = 0x0232, QNN_DATATYPE_FLOAT_64 = 0x0264, QNN_DATATYPE_SFIXED_POINT_4 = 0x0304,
  QNN_DATATYPE_SFIXED_POINT_8 = 0x0308, QNN_DATATYPE_SFIXED_POINT_16 = 0x0316, QNN_DATATYPE_SFIXED_POINT_32 = 0x0332,
  QNN_DATATYPE_UFIXED_POINT_4 = 0x0404, QNN_DATATYPE_UFIXED_POINT_8 = 0x0408, QNN_DATATYPE_UFIXED_POINT_16 = 0x0416,
  QNN_DATATYPE_UFIXED_POINT_32 = 0x0432, QNN_DATATYPE_BOOL_8 = 0x0508, QNN_DATATYPE_STRING = 0x0608,
  QNN_DATATYPE_UNDEFINED = QNN_UNDEFINED
} Qnn_DataType_t;
typedef enum {
  QNN_TENSOR_TYPE_APP_WRITE = 0, QNN_TENSOR_TYPE_APP_READ = 1, QNN_TENSOR_TYPE_APP_READWRITE = 2,
  QNN_TENSOR_TYPE_NATIVE = 3, QNN_TENSOR_TYPE_STATIC = 4, QNN_TENSOR_TYPE_NULL = 5,
  QNN_TENSOR_TYPE_UPDATEABLE_STATIC = 6, QNN_TENSOR_TYPE_UPDATEABLE_NATIVE = 7,
  QNN_TENSOR_TYPE_UPDATEABLE_APP_WRITE = 8, QNN_TENSOR_TYPE_UPDATEABLE_APP_READ = 9,
  QNN_TENSOR_TYPE_UPDATEABLE_APP_READWRITE = 10, QNN_TENSOR_TYPE_OPTIONAL_APP_WRITE = 11,
  QNN_TENSOR_TYPE_OPTIONAL_APP_READ = 12, QNN_TENSOR_TYPE_OPTIONAL_APP_READWRITE = 13,
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
  QNN_QUANTIZATION_ENCODING_SCALE_OFFSET = 0, QNN_QUANTIZATION_ENCODING_AXIS_SCALE_OFFSET = 1,
  QNN_QUANTIZATION_ENCODING_BW_SCALE_OFFSET = 2, QNN_QUANTIZATION_ENCODING_BW_AXIS_SCALE_OFFSET = 3,
  QNN_QUANTIZATION_ENCODING_BLOCK = 4, QNN_QUANTIZATION_ENCODING_BLOCKWISE_EXPANSION = 5,
  QNN_QUANTIZATION_ENCODING_VECTOR = 6, QNN_QUANTIZATION_ENCODING_UNDEFINED = QNN_UNDEFINED
} Qnn_QuantizationEncoding_t;
typedef enum {
  QNN_TENSORMEMTYPE_RAW = 0, QNN_TENSORMEMTYPE_MEMHANDLE = 1, QNN_TENSORMEMTYPE_RETRIEVE_RAW = 2,
  QNN_TENSORMEMTYPE_UNDEFINED = QNN_UNDEFINED
} Qnn_TensorMemType_t;
typedef enum {
  QNN_TENSOR_VERSION_1 = 1, QNN_TENSOR_VERSION_2 = 2, QNN_TENSOR_VERSION_UNDEFINED = QNN_UNDEFINED
} Qnn_TensorVersion_t;
typedef enum { QNN_OPCONFIG_VERSION_1 = 1, QNN_OPCONFIG_VERSION_UNDEFINED = QNN_UNDEFINED } Qnn_OpConfigVersion_t;
typedef uint32_t Qnn_TensorDataFormat_t;
#define QNN_TENSOR_DATA_FORMAT_DENSE 0
#define QNN_TENSOR_DATA_FORMAT_FLAT_BUFFER QNN_TENSOR_DATA_FORMAT_DENSE
#define QNN_TENSOR_DATA_FORMAT_SPARSE 1
#define QNN_TENSOR_DATA_FORMAT_CODEBOOK 2
#define QNN_TENSOR_DATA_FORMAT_MX 3
typedef struct { float scale; int32_t offset; } Qnn_ScaleOffset_t;
QNN_LAYOUT(Qnn_ScaleOffset_t, 8);
#define QNN_SCALE_OFFSET_INIT {0, 0}
typedef struct { int32_t axis; uint32_t numScaleOffsets; Qnn_ScaleOffset_t *scaleOffset; } Qnn_AxisScaleOffset_t;
QNN_LAYOUT(Qnn_AxisScaleOffset_t, 16);
#define QNN_AXIS_SCALE_OFFSET_INIT {0, 0, NULL}
typedef struct { uint32_t bitwidth; float scale; int32_t offset; } Qnn_BwScaleOffset_t;
QNN_LAYOUT(Qnn_BwScaleOffset_t, 12);
#define QNN_BW_SCALE_OFFSET_INIT {0, 0, 0}
typedef struct {
  uint32_t bitwidth; int32_t axis; uint32_t numElements; float *scales; int32_t *offsets;
} Qnn_BwAxisScaleOffset_t;
QNN_LAYOUT(Qnn_BwAxisScaleOffset_t, 32);
#define QNN_BW_AXIS_SCALE_OFFSET_INIT {0, 0, 0, NULL, NULL}
typedef struct { uint32_t *blockSize; Qnn_ScaleOffset_t *scaleOffset; } Qnn_BlockEncoding_t;
QNN_LAYOUT(Qnn_BlockEncoding_t, 16);
#define QNN_BLOCK_ENCODING_INIT {NULL, NULL}
typedef enum {
  QNN_BLOCKWISE_EXPANSION_BITWIDTH_SCALE_STORAGE_8 = 0, QNN_BLOCKWISE_EXPANSION_BITWIDTH_SCALE_STORAGE_16 = 1,
  QNN_BLOCKWISE_EXPANSION_BITWIDTH_SCALE_STORAGE_UNDEFINED = QNN_UNDEFINED
} Qnn_BlockwiseExpansionBlockScaleStorageType_t;
typedef struct {
  int32_t axis; Qnn_ScaleOffset_t *scaleOffsets; uint32_t numBlocksPerAxis, blockScaleBitwidth;
  Qnn_BlockwiseExpansionBlockScaleStorageType_t blockScaleStorageType;
  union { uint8_t *blocksScale8; uint16_t *blocksScale16; };
} Qnn_BlockwiseExpansion_t;
QNN_LAYOUT(Qnn_BlockwiseExpansion_t, 40);
#define QNN_BLOCKWISE_EXPANSION_INIT {0, NULL, 0, 0, QNN_BLOCKWISE_EXPANSION_BITWIDTH_SCALE_STORAGE_UNDEFINED, {NULL}}
typedef struct {
  Qnn_BwAxisScaleOffset_t bwAxisScaleOffset; uint32_t rowsPerBlock, columnsPerBlock;
  uint8_t vectorDimension, vectorStride, indexBitwidth;
} Qnn_VectorEncoding_t;
QNN_LAYOUT(Qnn_VectorEncoding_t, 48);
#define QNN_VECTOR_ENCODING_INIT {QNN_BW_AXIS_SCALE_OFFSET_INIT, 0, 0, 0, 0, 0}
typedef struct {
  Qnn_Definition_t encodingDefinition; Qnn_QuantizationEncoding_t quantizationEncoding;
  union {
    Qnn_ScaleOffset_t scaleOffsetEncoding; Qnn_AxisScaleOffset_t axisScaleOffsetEncoding;
    Qnn_BwScaleOffset_t bwScaleOffsetEncoding; Qnn_BwAxisScaleOffset_t bwAxisScaleOffsetEncoding;
    Qnn_BlockEncoding_t blockEncoding; Qnn_BlockwiseExpansion_t *blockwiseExpansion;
    Qnn_VectorEncoding_t *vectorEncoding;
  };
} Qnn_QuantizeParams_t;
QNN_LAYOUT(Qnn_QuantizeParams_t, 40);
#define QNN_QUANTIZE_PARAMS_INIT \
  {QNN_DEFINITION_UNDEFINED, QNN_QUANTIZATION_ENCODING_UNDEFINED, {QNN_SCALE_OFFSET_INIT}}
typedef struct { void *data; uint32_t dataSize; } Qnn_ClientBuffer_t;
QNN_LAYOUT(Qnn_ClientBuffer_t, 16);
#define QNN_CLIENT_BUFFER_INIT {NULL, 0}
typedef struct { void *data; uint64_t len; } Qnn_OpaqueObject_t;
QNN_LAYOUT(Qnn_OpaqueObject_t, 16);
#define QNN_OPAQUE_OBJECT_INIT {NULL, 0}
typedef Qnn_ErrorHandle_t (*Qnn_GetTensorRawDataFn_t)(
    Qnn_ContextHandle_t context, Qnn_GraphHandle_t graph, uint64_t id, Qnn_ClientBuffer_t *clientBuf);
typedef Qnn_ErrorHandle_t (*Qnn_FreeTensorRawDataFn_t)(
    Qnn_ContextHandle_t context, Qnn_GraphHandle_t graph, uint64_t id);
typedef struct {
  Qnn_GetTensorRawDataFn_t getTensorData; Qnn_FreeTensorRawDataFn_t freeTensorData;
} Qnn_TensorRetrieveRaw_t;
QNN_LAYOUT(Qnn_TensorRetrieveRaw_t, 16);
#define QNN_TENSOR_RETRIEVE_RAW_INIT {NULL, NULL}
typedef struct {
  uint32_t id; const char *name; Qnn_TensorType_t type; Qnn_TensorDataFormat_t dataFormat; Qnn_DataType_t dataType;
  Qnn_QuantizeParams_t quantizeParams; uint32_t rank; uint32_t *dimensions; Qnn_TensorMemType_t memType;
  union { Qnn_ClientBuffer_t clientBuf; Qnn_MemHandle_t memHandle; Qnn_TensorRetrieveRaw_t *retrieveRaw; };
} Qnn_TensorV1_t;
QNN_LAYOUT(Qnn_TensorV1_t, 112);
#define QNN_TENSOR_V1_INIT \
  {0, NULL, QNN_TENSOR_TYPE_UNDEFINED, QNN_TENSOR_DATA_FORMAT_DENSE, QNN_DATATYPE_UNDEFINED, QNN_QUANTIZE_PARAMS_INIT, \
   0, NULL, QNN_TENSORMEMTYPE_UNDEFINED, {QNN_CLIENT_BUFFER_INIT}}
typedef enum { QNN_SPARSE_LAYOUT_HYBRID_COO = 0, QNN_SPARSE_LAYOUT_UNDEFINED = QNN_UNDEFINED } Qnn_SparseLayoutType_t;
typedef struct { uint32_t numSpecifiedElements, numSparseDimensions; } Qnn_SparseLayoutHybridCoo_t;
QNN_LAYOUT(Qnn_SparseLayoutHybridCoo_t, 8);
#define QNN_SPARSE_LAYOUT_HYBRID_COO_INIT {0, 0}
typedef struct { Qnn_SparseLayoutType_t type; union { Qnn_SparseLayoutHybridCoo_t hybridCoo; }; } Qnn_SparseParams_t;
QNN_LAYOUT(Qnn_SparseParams_t, 12);
#define QNN_SPARSE_PARAMS_INIT {QNN_SPARSE_LAYOUT_UNDEFINED, {QNN_SPARSE_LAYOUT_HYBRID_COO_INIT}}
typedef struct {
  uint32_t id; const char *name; Qnn_TensorType_t type; Qnn_TensorDataFormat_t dataFormat; Qnn_DataType_t dataType;
  Qnn_QuantizeParams_t quantizeParams; uint32_t rank; uint32_t *dimensions; Qnn_TensorMemType_t memType;
  union { Qnn_ClientBuffer_t clientBuf; Qnn_MemHandle_t memHandle; Qnn_TensorRetrieveRaw_t *retrieveRaw; };
  uint8_t *isDynamicDimensions; Qnn_SparseParams_t sparseParams; uint8_t isProduced;
} Qnn_TensorV2_t;
QNN_LAYOUT(Qnn_TensorV2_t, 136);
#define QNN_TENSOR_V2_INIT \
  {0, NULL, QNN_TENSOR_TYPE_UNDEFINED, QNN_TENSOR_DATA_FORMAT_DENSE, QNN_DATATYPE_UNDEFINED, QNN_QUANTIZE_PARAMS_INIT, \
   0, NULL, QNN_TENSORMEMTYPE_UNDEFINED, {QNN_CLIENT_BUFFER_INIT}, NULL, QNN_SPARSE_PARAMS_INIT, 0}
typedef struct { Qnn_TensorVersion_t version; union { Qnn_TensorV1_t v1; Qnn_TensorV2_t v2; }; } Qnn_Tensor_t;
QNN_LAYOUT(Qnn_Tensor_t, 144);
#define QNN_TENSOR_INIT {QNN_TENSOR_VERSION_1, {QNN_TENSOR_V1_INIT}}
typedef struct {
  uint32_t numInputs; Qnn_Tensor_t *inputs; uint32_t numOutputs; Qnn_Tensor_t *outputs;
} Qnn_TensorSetV1_t;
QNN_LAYOUT(Qnn_TensorSetV1_t, 32);
#define QNN_TENSOR_SET_V1_INIT {0, NULL, 0, NULL}
typedef enum { QNN_TENSOR_SET_VERSION_1 = 1, QNN_TENSOR_SET_VERSION_UNDEFINED = QNN_UNDEFINED } Qnn_TensorSetVersion_t;
typedef struct { Qnn_TensorSetVersion_t version; union { Qnn_TensorSetV1_t v1; }; } Qnn_TensorSet_t;
QNN_LAYOUT(Qnn_TensorSet_t, 40);
#define QNN_TENSOR_SET_INIT {QNN_TENSOR_SET_VERSION_1, {QNN_TENSOR_SET_V1_INIT}}
typedef struct {
  Qnn_DataType_t dataType;
  union {
    float floatValue; double doubleValue; uint64_t uint64Value; int64_t int64Value; uint32_t uint32Value;
    int32_t int32Value; uint16_t uint16Value; int16_t int16Value; uint8_t uint8Value; int8_t int8Value;
    uint8_t bool8Value; const char *stringValue;
  };
} Qnn_Scalar_t;
QNN_LAYOUT(Qnn_Scalar_t, 16);
#define QNN_SCALAR_INIT {QNN_DATATYPE_UNDEFINED, {0}}
typedef struct {
  Qnn_ParamType_t paramType; const char *name;
  union { Qnn_Scalar_t scalarParam; Qnn_Tensor_t tensorParam; };
} Qnn_Param_t;
QNN_LAYOUT(Qnn_Param_t, 160);
#define QNN_PARAM_INIT {QNN_PARAMTYPE_UNDEFINED, NULL, {QNN_SCALAR_INIT}}
typedef struct {
  const char *name, *packageName, *typeName; uint32_t numOfParams; Qnn_Param_t *params; uint32_t numOfInputs;
  Qnn_Tensor_t *inputTensors; uint32_t numOfOutputs; Qnn_Tensor_t *outputTensors;
} Qnn_OpConfigV1_t;
QNN_LAYOUT(Qnn_OpConfigV1_t, 72);
#define QNN_OPCONFIG_V1_INIT {NULL, NULL, NULL, 0, NULL, 0, NULL, 0, NULL}
typedef struct { Qnn_OpConfigVersion_t version; union { Qnn_OpConfigV1_t v1; }; } Qnn_OpConfig_t;
QNN_LAYOUT(Qnn_OpConfig_t, 80);
#define QNN_OPCONFIG_INIT {QNN_OPCONFIG_VERSION_1, {QNN_OPCONFIG_V1_INIT}}
#define QNN_OP_CONFIG_INIT QNN_OPCONFIG_INIT /* as some documents spell it */
/* Which operation or tensor of a model's source became which of QNN's. */
typedef enum { QNN_OP_MAPPING_TYPE_TENSOR = 0, QNN_OP_MAPPING_TYPE_OP = 1 } Qnn_MappingType_t;
typedef struct { const char *name; Qnn_MappingType_t type; } Qnn_OpMappingPair_t;
QNN_LAYOUT(Qnn_OpMappingPair_t, 16);
typedef struct { const char *name; Qnn_OpMappingPair_t *pair; uint32_t numPairs; } Qnn_Mapping_t;
QNN_LAYOUT(Qnn_Mapping_t, 24);
typedef struct {
  const char *graphName; Qnn_Mapping_t *opMappings; uint32_t numOpMappings; Qnn_Mapping_t *tensorMappings;
  uint32_t numTensorMappings;
} Qnn_OpMappingV1_t;
QNN_LAYOUT(Qnn_OpMappingV1_t, 40);
#define QNN_OP_MAPPING_V1_INIT {NULL, NULL, 0, NULL, 0}
typedef enum { QNN_OP_MAPPING_VERSION_1 = 1 } Qnn_OpMappingVersion_t;
typedef struct { Qnn_OpMappingVersion_t version; union { Qnn_OpMappingV1_t *v1; }; } Qnn_OpMapping_t;
QNN_LAYOUT(Qnn_OpMapping_t, 16);
#define QNN_OP_MAPPING_INIT {QNN_OP_MAPPING_VERSION_1, {NULL}}
typedef enum {
  QNN_SOC_MODEL_UNKNOWN = 0, QNN_SOC_MODEL_SM8350 = 30, QNN_SOC_MODEL_SM7350 = 32, QNN_SOC_MODEL_SM8325 = 34,
  QNN_SOC_MODEL_SM7325 = 35, QNN_SOC_MODEL_SM8450 = 36, QNN_SOC_MODEL_SC8280X = 37, QNN_SOC_MODEL_SM7315 = 38,
  QNN_SOC_MODEL_SA8295 = 39, QNN_SOC_MODEL_SM7450 = 41, QNN_SOC_MODEL_SM8475 = 42, QNN_SOC_MODEL_SM8550 = 43,
  QNN_SOC_MODEL_SM6450 = 50, QNN_SOC_MODEL_SA8255 = 52, QNN_SOC_MODEL_SM7475 = 54, QNN_SOC_MODEL_SM4450 = 59
} Qnn_SocModel_t;

#ifdef __cplusplus
}
#endif
#endif
