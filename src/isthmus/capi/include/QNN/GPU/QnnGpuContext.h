/* The GPU's context configs, behind QnnContext_CustomConfig_t.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_GPU_CONTEXT_H
#define QNN_GPU_CONTEXT_H

#include "../QnnContext.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_GPU_CONTEXT_CONFIG_OPTION_PERF_HINT = 0, QNN_GPU_CONTEXT_CONFIG_OPTION_USE_GL_BUFFERS = 1,
  QNN_GPU_CONTEXT_CONFIG_OPTION_KERNEL_REPO_DIR = 2, QNN_GPU_CONTEXT_CONFIG_OPTION_INVALIDATE_KERNEL_REPO = 3,
  QNN_GPU_CONTEXT_CONFIG_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnGpuContext_ConfigOption_t;
typedef enum {
  QNN_GPU_CONTEXT_PERF_HINT_HIGH = 0, QNN_GPU_CONTEXT_PERF_HINT_NORMAL = 1, QNN_GPU_CONTEXT_PERF_HINT_LOW = 2
} QnnGpuContext_PerfHint_t;
typedef struct {
  QnnGpuContext_ConfigOption_t option;
  union {
    QnnGpuContext_PerfHint_t perfHint; uint8_t useGLBuffers; const char *kernelRepoDir; uint8_t invalidateKernelRepo;
  };
} QnnGpuContext_CustomConfig_t;
QNN_LAYOUT(QnnGpuContext_CustomConfig_t, 16);
#define QNN_GPU_CONTEXT_CUSTOM_CONFIG_INIT {QNN_GPU_CONTEXT_CONFIG_OPTION_UNDEFINED, {QNN_GPU_CONTEXT_PERF_HINT_HIGH}}

#ifdef __cplusplus
}
#endif
#endif
