/* The GPU's backend configs, behind QnnBackend_CustomConfig_t.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_GPU_BACKEND_H
#define QNN_GPU_BACKEND_H

#include "../QnnBackend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_GPU_BACKEND_CONFIG_OPTION_ENABLE_TUNING_MODE = 0, QNN_GPU_BACKEND_CONFIG_OPTION_PERFORMANCE_CACHE_DIR = 1,
  QNN_GPU_BACKEND_CONFIG_OPTION_INVALIDATE_PERFORMANCE_CACHE = 2,
  QNN_GPU_BACKEND_CONFIG_OPTION_WEIGHT_SHARING_ENABLED = 3, QNN_GPU_BACKEND_CONFIG_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnGpuBackend_ConfigOption_t;
typedef struct {
  QnnGpuBackend_ConfigOption_t option;
  union {
    uint8_t enableTuningMode; const char *performanceCacheDir; uint8_t invalidatePerformanceCache, weightSharingEnabled;
  };
} QnnGpuBackend_CustomConfig_t;
QNN_LAYOUT(QnnGpuBackend_CustomConfig_t, 16);
#define QNN_GPU_BACKEND_CUSTOM_CONFIG_INIT {QNN_GPU_BACKEND_CONFIG_OPTION_UNDEFINED, {0}}

#ifdef __cplusplus
}
#endif
#endif
