/* GPU's structures behind custom configs and memory descriptors. */
#ifndef ISTHMUS_QNN_GPU_H
#define ISTHMUS_QNN_GPU_H

#include "../QnnTypes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void *QnnGpuMem_Buffer_t;
typedef enum { QNN_GPU_MEM_OPENCL = 0, QNN_GPU_MEM_UNDEFINED = QNN_UNDEFINED } QnnGpu_MemType_t;
typedef struct { QnnGpu_MemType_t memType; union { QnnGpuMem_Buffer_t buffer; }; } QnnGpu_MemInfoCustom_t;
typedef enum {
  QNN_GPU_PRECISION_FP32 = 0,
  QNN_GPU_PRECISION_FP16 = 1,
  QNN_GPU_PRECISION_HYBRID = 2,
  QNN_GPU_PRECISION_USER_PROVIDED = 3
} QnnGpu_Precision_t;
typedef struct {
  QnnGpu_Precision_t precision; uint8_t disableMemoryOptimizations, disableNodeOptimizations, disableQueueRecording;
} QnnGpuGraph_CustomConfig_t;

#ifdef __cplusplus
}
#endif
#endif
