/* The GPU's graph config, behind QnnGraph_CustomConfig_t.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_GPU_GRAPH_H
#define QNN_GPU_GRAPH_H

#include "../QnnGraph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_GPU_PRECISION_FP32 = 0, QNN_GPU_PRECISION_FP16 = 1, QNN_GPU_PRECISION_HYBRID = 2,
  QNN_GPU_PRECISION_USER_PROVIDED = 3
} QnnGpu_Precision_t;
typedef struct {
  QnnGpu_Precision_t precision; uint8_t disableMemoryOptimizations; uint8_t disableNodeOptimizations;
  uint8_t disableQueueRecording;
} QnnGpuGraph_CustomConfig_t;
QNN_LAYOUT(QnnGpuGraph_CustomConfig_t, 8);
#define QNN_GPU_GRAPH_CUSTOM_CONFIG_INIT {QNN_GPU_PRECISION_USER_PROVIDED, 0, 0, 0}

#ifdef __cplusplus
}
#endif
#endif
