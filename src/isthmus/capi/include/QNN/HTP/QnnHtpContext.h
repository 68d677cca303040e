/* HTP's context configs, behind QnnContext_CustomConfig_t. */
#ifndef QNN_HTP_CONTEXT_H
#define QNN_HTP_CONTEXT_H

#include <stdbool.h>

#include "../QnnContext.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_HTP_CONTEXT_CONFIG_OPTION_WEIGHT_SHARING_ENABLED = 1, QNN_HTP_CONTEXT_CONFIG_OPTION_REGISTER_MULTI_CONTEXTS,
  QNN_HTP_CONTEXT_CONFIG_OPTION_FILE_READ_MEMORY_BUDGET, QNN_HTP_CONTEXT_CONFIG_OPTION_DSP_MEMORY_PROFILING_ENABLED,
  QNN_HTP_CONTEXT_CONFIG_OPTION_SHARE_RESOURCES, QNN_HTP_CONTEXT_CONFIG_OPTION_IO_MEM_ESTIMATION,
  QNN_HTP_CONTEXT_CONFIG_OPTION_PREPARE_ONLY, QNN_HTP_CONTEXT_CONFIG_OPTION_INIT_ACCELERATION,
  QNN_HTP_CONTEXT_CONFIG_OPTION_SKIP_VALIDATION_ON_BINARY_SECTION,
  QNN_HTP_CONTEXT_CONFIG_OPTION_SHARE_RESOURCES_OPTIMIZATION_TYPE, QNN_HTP_CONTEXT_CONFIG_OPTION_USE_EXTENDED_UDMA,
  QNN_HTP_CONTEXT_CONFIG_OPTION_REGISTER_CONCURRENT_RESOURCE_SHARING,
  QNN_HTP_CONTEXT_CONFIG_OPTION_REUSED_IO_LIMIT = 17, QNN_HTP_CONTEXT_CONFIG_OPTION_GRAPH_SPLITTING_CONFIGS = 22,
  QNN_HTP_CONTEXT_CONFIG_OPTION_UNKNOWN = QNN_UNDEFINED
} QnnHtpContext_ConfigOption_t;
typedef struct { Qnn_ContextHandle_t firstGroupHandle; uint64_t maxSpillFillBuffer; } QnnHtpContext_GroupRegistration_t;
typedef enum {
  SEQUENTIAL_WITH_VA_OPTIMIZATION = 0, SEQUENTIAL_WITHOUT_VA_OPTIMIZATION = 1, CONCURRENT_OPTIMIZATION = 2
} QnnHtpContext_ShareResourcesOptimizationType_t;
typedef struct {
  QnnHtpContext_ConfigOption_t option;
  union {
    bool flag, weightSharingEnabled, dspMemoryProfilingEnabled, shareResources, ioMemEstimation, isPrepareOnly,
        initAcceleration, skipValidationOnBinarySection, useExtendedUdma;
    QnnHtpContext_GroupRegistration_t groupRegistration; uint64_t fileReadMemoryBudgetInMb;
    QnnHtpContext_ShareResourcesOptimizationType_t shareResOptType;
  };
} QnnHtpContext_CustomConfig_t;
#define QNN_HTP_CONTEXT_CUSTOM_CONFIG_INIT {QNN_HTP_CONTEXT_CONFIG_OPTION_UNKNOWN, {false}}

#ifdef __cplusplus
}
#endif
#endif
