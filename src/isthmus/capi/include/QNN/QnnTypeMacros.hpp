/* Accessors of tensors and operations, for C++.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_TYPE_MACROS_HPP
#define QNN_TYPE_MACROS_HPP

#include "QnnTypes.h"

namespace isthmus_qnn {
inline Qnn_Tensor_t &at(Qnn_Tensor_t &object) { return object; }
inline Qnn_Tensor_t &at(Qnn_Tensor_t *object) { return *object; }
inline const Qnn_Tensor_t &at(const Qnn_Tensor_t &object) { return object; }
inline const Qnn_Tensor_t &at(const Qnn_Tensor_t *object) { return *object; }
inline Qnn_OpConfig_t &at(Qnn_OpConfig_t &object) { return object; }
inline Qnn_OpConfig_t &at(Qnn_OpConfig_t *object) { return *object; }
inline const Qnn_OpConfig_t &at(const Qnn_OpConfig_t &object) { return object; }
inline const Qnn_OpConfig_t &at(const Qnn_OpConfig_t *object) { return *object; }

inline void set_params(Qnn_OpConfigV1_t &op, uint32_t count, Qnn_Param_t *list) {
  op.numOfParams = count, op.params = list;
}
inline void set_inputs(Qnn_OpConfigV1_t &op, uint32_t count, Qnn_Tensor_t *list) {
  op.numOfInputs = count, op.inputTensors = list;
}
inline void set_outputs(Qnn_OpConfigV1_t &op, uint32_t count, Qnn_Tensor_t *list) {
  op.numOfOutputs = count, op.outputTensors = list;
}

/* Fields that version 1 of a tensor has not: read as those of an empty tensor, and not written. */
inline bool has_second(const Qnn_Tensor_t &tensor) { return tensor.version == QNN_TENSOR_VERSION_2; }
inline Qnn_TensorV2_t second(const Qnn_Tensor_t &tensor) {
  const Qnn_TensorV2_t empty = QNN_TENSOR_V2_INIT;
  return has_second(tensor) ? tensor.v2 : empty;
}

inline Qnn_Tensor_t create_tensor(Qnn_TensorVersion_t version) {
  Qnn_Tensor_t made = QNN_TENSOR_INIT;
  made.version = version;
  if (has_second(made)) made.v2 = QNN_TENSOR_V2_INIT;
  return made;
}
inline Qnn_OpConfig_t create_op(Qnn_OpConfigVersion_t version) {
  Qnn_OpConfig_t made = QNN_OPCONFIG_INIT;
  made.version = version;
  return made;
}
}  // namespace isthmus_qnn

inline bool validateTensorVersion(Qnn_Tensor_t tensor) {
  return tensor.version == QNN_TENSOR_VERSION_1 || tensor.version == QNN_TENSOR_VERSION_2;
}
inline bool validateOpConfigVersion(Qnn_OpConfig_t op) { return op.version == QNN_OPCONFIG_VERSION_1; }

#define QNN_TENSOR_CREATE(version) isthmus_qnn::create_tensor(version)
/* Version 1 of a tensor is the beginning of version 2. */
#define QNN_TENSOR_GET_ID(object) (isthmus_qnn::at(object).v1.id)
#define QNN_TENSOR_SET_ID(object, value) (isthmus_qnn::at(object).v1.id = (value))
#define QNN_TENSOR_GET_NAME(object) (isthmus_qnn::at(object).v1.name)
#define QNN_TENSOR_SET_NAME(object, value) (isthmus_qnn::at(object).v1.name = (value))
#define QNN_TENSOR_GET_TYPE(object) (isthmus_qnn::at(object).v1.type)
#define QNN_TENSOR_SET_TYPE(object, value) (isthmus_qnn::at(object).v1.type = (value))
#define QNN_TENSOR_GET_DATA_FORMAT(object) (isthmus_qnn::at(object).v1.dataFormat)
#define QNN_TENSOR_SET_DATA_FORMAT(object, value) (isthmus_qnn::at(object).v1.dataFormat = (value))
#define QNN_TENSOR_GET_DATA_TYPE(object) (isthmus_qnn::at(object).v1.dataType)
#define QNN_TENSOR_SET_DATA_TYPE(object, value) (isthmus_qnn::at(object).v1.dataType = (value))
#define QNN_TENSOR_GET_QUANT_PARAMS(object) (isthmus_qnn::at(object).v1.quantizeParams)
#define QNN_TENSOR_SET_QUANT_PARAMS(object, value) (isthmus_qnn::at(object).v1.quantizeParams = (value))
#define QNN_TENSOR_GET_RANK(object) (isthmus_qnn::at(object).v1.rank)
#define QNN_TENSOR_SET_RANK(object, value) (isthmus_qnn::at(object).v1.rank = (value))
#define QNN_TENSOR_GET_DIMENSIONS(object) (isthmus_qnn::at(object).v1.dimensions)
#define QNN_TENSOR_SET_DIMENSIONS(object, value) (isthmus_qnn::at(object).v1.dimensions = (value))
#define QNN_TENSOR_GET_MEM_TYPE(object) (isthmus_qnn::at(object).v1.memType)
#define QNN_TENSOR_SET_MEM_TYPE(object, value) (isthmus_qnn::at(object).v1.memType = (value))
#define QNN_TENSOR_GET_CLIENT_BUF(object) (isthmus_qnn::at(object).v1.clientBuf)
#define QNN_TENSOR_SET_CLIENT_BUF(object, value) (isthmus_qnn::at(object).v1.clientBuf = (value))
#define QNN_TENSOR_GET_MEM_HANDLE(object) (isthmus_qnn::at(object).v1.memHandle)
#define QNN_TENSOR_SET_MEM_HANDLE(object, value) (isthmus_qnn::at(object).v1.memHandle = (value))
#define QNN_TENSOR_GET_CLIENT_BUF_RETRIEVE(object) (isthmus_qnn::at(object).v1.retrieveRaw)
#define QNN_TENSOR_SET_CLIENT_BUF_RETRIEVE(object, value) (isthmus_qnn::at(object).v1.retrieveRaw = (value))
#define QNN_TENSOR_GET_IS_DYNAMIC_DIMENSIONS(object) (isthmus_qnn::second(isthmus_qnn::at(object)).isDynamicDimensions)
#define QNN_TENSOR_SET_IS_DYNAMIC_DIMENSIONS(object, value) \
  (isthmus_qnn::has_second(isthmus_qnn::at(object)) \
       ? void(isthmus_qnn::at(object).v2.isDynamicDimensions = (value)) : void())
#define QNN_TENSOR_GET_SPARSE_PARAMS(object) (isthmus_qnn::second(isthmus_qnn::at(object)).sparseParams)
#define QNN_TENSOR_SET_SPARSE_PARAMS(object, value) \
  (isthmus_qnn::has_second(isthmus_qnn::at(object)) \
       ? void(isthmus_qnn::at(object).v2.sparseParams = (value)) : void())

#define QNN_OP_CFG_CREATE(version) isthmus_qnn::create_op(version)
#define QNN_OP_CFG_VALID(object) validateOpConfigVersion(isthmus_qnn::at(object))
#define QNN_OP_CFG_GET_NAME(object) (isthmus_qnn::at(object).v1.name)
#define QNN_OP_CFG_SET_NAME(object, value) (isthmus_qnn::at(object).v1.name = (value))
#define QNN_OP_CFG_GET_PACKAGE_NAME(object) (isthmus_qnn::at(object).v1.packageName)
#define QNN_OP_CFG_SET_PACKAGE_NAME(object, value) (isthmus_qnn::at(object).v1.packageName = (value))
#define QNN_OP_CFG_GET_TYPE_NAME(object) (isthmus_qnn::at(object).v1.typeName)
#define QNN_OP_CFG_SET_TYPE_NAME(object, value) (isthmus_qnn::at(object).v1.typeName = (value))
#define QNN_OP_CFG_GET_NUM_PARAMS(object) (isthmus_qnn::at(object).v1.numOfParams)
#define QNN_OP_CFG_GET_PARAMS(object) (isthmus_qnn::at(object).v1.params)
#define QNN_OP_CFG_SET_PARAMS(object, count, value) \
  isthmus_qnn::set_params(isthmus_qnn::at(object).v1, count, value)
#define QNN_OP_CFG_GET_NUM_INPUTS(object) (isthmus_qnn::at(object).v1.numOfInputs)
#define QNN_OP_CFG_GET_INPUTS(object) (isthmus_qnn::at(object).v1.inputTensors)
#define QNN_OP_CFG_SET_INPUTS(object, count, value) \
  isthmus_qnn::set_inputs(isthmus_qnn::at(object).v1, count, value)
#define QNN_OP_CFG_GET_NUM_OUTPUTS(object) (isthmus_qnn::at(object).v1.numOfOutputs)
#define QNN_OP_CFG_GET_OUTPUTS(object) (isthmus_qnn::at(object).v1.outputTensors)
#define QNN_OP_CFG_SET_OUTPUTS(object, count, value) \
  isthmus_qnn::set_outputs(isthmus_qnn::at(object).v1, count, value)

#endif
