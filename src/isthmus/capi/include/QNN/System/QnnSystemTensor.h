/* Sizes of tensors.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_SYSTEM_TENSOR_H
#define QNN_SYSTEM_TENSOR_H

#include "../QnnTypes.h"
#include "QnnSystemCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemTensor_getMemoryFootprint(Qnn_Tensor_t tensor, uint64_t *footprint);

#ifdef __cplusplus
}
#endif
#endif
