/* Tensors of graphs and contexts: creation and updates.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_TENSOR_H
#define QNN_TENSOR_H

#include "QnnTypes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_TENSOR_NO_ERROR = 0, QNN_TENSOR_ERROR_UNSUPPORTED_FEATURE = 1000, QNN_TENSOR_ERROR_MEM_ALLOC = 1002,
  QNN_TENSOR_ERROR_INVALID_HANDLE = 7001, QNN_TENSOR_ERROR_DOES_NOT_EXIST = 7002,
  QNN_TENSOR_ERROR_ALREADY_EXISTS = 7003, QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM = 7004,
  QNN_TENSOR_ERROR_UNSUPPORTED_TENSOR_PARAM = 7005, QNN_TENSOR_ERROR_NAME_HASH_COLLISION = 7006,
  QNN_TENSOR_ERROR_INCOMPATIBLE_TENSOR_UPDATE = 7007, QNN_TENSOR_MIN_ERROR = QNN_MIN_ERROR_TENSOR,
  QNN_TENSOR_MAX_ERROR = QNN_MAX_ERROR_TENSOR, QNN_TENSOR_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnTensor_Error_t;
QNN_API Qnn_ErrorHandle_t QnnTensor_createContextTensor(Qnn_ContextHandle_t context, Qnn_Tensor_t *tensor);
QNN_API Qnn_ErrorHandle_t QnnTensor_createGraphTensor(Qnn_GraphHandle_t graph, Qnn_Tensor_t *tensor);
QNN_API Qnn_ErrorHandle_t QnnTensor_updateGraphTensors(
    Qnn_GraphHandle_t graph, const Qnn_Tensor_t **tensors, uint64_t numTensors);
QNN_API Qnn_ErrorHandle_t QnnTensor_updateContextTensors(
    Qnn_ContextHandle_t context, const Qnn_Tensor_t **tensors, uint64_t numTensors);

#ifdef __cplusplus
}
#endif
#endif
