/* Accessors of tensors and operations, for C++. */
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
GENERATED(tensor_accessors)

#define QNN_OP_CFG_CREATE(version) isthmus_qnn::create_op(version)
#define QNN_OP_CFG_VALID(object) validateOpConfigVersion(isthmus_qnn::at(object))
GENERATED(operation_accessors)

#endif
