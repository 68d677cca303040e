/* HTP's structures behind custom configs, the device's infrastructure and memory descriptors. */
#ifndef ISTHMUS_QNN_HTP_H
#define ISTHMUS_QNN_HTP_H

#include <stdbool.h>

#include "../QnnTypes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_HTP_GRAPH_CONFIG_OPTION_OPTIMIZATION = 1, QNN_HTP_GRAPH_CONFIG_OPTION_PRECISION,
  QNN_HTP_GRAPH_CONFIG_OPTION_VTCM_SIZE_IN_MB, QNN_HTP_GRAPH_CONFIG_OPTION_FOLD_RELU_ACTIVATION_INTO_CONV_OFF,
  QNN_HTP_GRAPH_CONFIG_OPTION_SHORT_DEPTH_CONV_ON_HMX_OFF, QNN_HTP_GRAPH_CONFIG_OPTION_NUM_HVX_THREADS,
  QNN_HTP_GRAPH_CONFIG_OPTION_FINALIZE_CONFIG, QNN_HTP_GRAPH_CONFIG_OPTION_NUM_CORES,
  QNN_HTP_GRAPH_CONFIG_OPTION_PARALLEL_GRAPH_EXECUTION_CONFIG, QNN_HTP_GRAPH_CONFIG_OPTION_VTCM_SIZE_IN_BYTES,
  QNN_HTP_GRAPH_CONFIG_OPTION_HMX_BOUNDING, QNN_HTP_GRAPH_CONFIG_OPTION_WEIGHTS_PACKING,
  QNN_HTP_GRAPH_CONFIG_OPTION_ASSUME_SAME_QUANT, QNN_HTP_GRAPH_CONFIG_OPTION_SHARE_IO_BUFFER,
  QNN_HTP_GRAPH_CONFIG_OPTION_UNKNOWN = QNN_UNDEFINED
} QnnHtpGraph_ConfigOption_t;
typedef struct { uint32_t type; float floatValue; } QnnHtpGraph_OptimizationOption_t;
typedef struct { const char *key; Qnn_Scalar_t value; } QnnHtpGraph_FinalizeConfig_t;
typedef struct { uint32_t sizeInBytes, offsetInBytes, sizeTotalInBytes, reserved[3]; } QnnHtpGraph_VtcmConfig_t;
typedef struct {
  uint32_t concurrency; QnnHtpGraph_VtcmConfig_t vtcmConfig; uint32_t reserved[4];
} QnnHtpGraph_ParallelGraphExecutionConfig_t;
typedef struct { float targetHmxFreqHz, targetDspCoreFreq; } QnnHtp_HmxBoundingInfo_t;
typedef struct {
  QnnHtpGraph_ConfigOption_t option;
  union {
    QnnHtpGraph_OptimizationOption_t optimizationOption; Qnn_Precision_t precision; uint32_t vtcmSizeInMB;
    bool foldReluActivationIntoConvOff; bool shortDepthConvOnHmxOff; uint64_t numHvxThreads; void *reserved;
    QnnHtpGraph_FinalizeConfig_t finalizeConfig; uint32_t numCores;
    QnnHtpGraph_ParallelGraphExecutionConfig_t parallelGraphExecutionConfig; uint32_t vtcmSizeInBytes;
    QnnHtp_HmxBoundingInfo_t hmxBoundingInfo; bool weightsPacking; bool assumeSameQuant; bool shareIOBuffer;
  };
} QnnHtpGraph_CustomConfig_t;

typedef enum {
  QNN_HTP_CONTEXT_CONFIG_OPTION_WEIGHT_SHARING_ENABLED = 1, QNN_HTP_CONTEXT_CONFIG_OPTION_REGISTER_MULTI_CONTEXTS,
  QNN_HTP_CONTEXT_CONFIG_OPTION_FILE_READ_MEMORY_BUDGET, QNN_HTP_CONTEXT_CONFIG_OPTION_DSP_MEMORY_PROFILING_ENABLED,
  QNN_HTP_CONTEXT_CONFIG_OPTION_SHARE_RESOURCES, QNN_HTP_CONTEXT_CONFIG_OPTION_IO_MEM_ESTIMATION,
  QNN_HTP_CONTEXT_CONFIG_OPTION_PREPARE_ONLY, QNN_HTP_CONTEXT_CONFIG_OPTION_INIT_ACCELERATION,
  QNN_HTP_CONTEXT_CONFIG_OPTION_SKIP_VALIDATION_ON_BINARY_SECTION,
  QNN_HTP_CONTEXT_CONFIG_OPTION_SHARE_RESOURCES_OPTIMIZATION_TYPE, QNN_HTP_CONTEXT_CONFIG_OPTION_USE_EXTENDED_UDMA,
  QNN_HTP_CONTEXT_CONFIG_OPTION_REGISTER_CONCURRENT_RESOURCE_SHARING,
  QNN_HTP_CONTEXT_CONFIG_OPTION_UNKNOWN = QNN_UNDEFINED
} QnnHtpContext_ConfigOption_t;
typedef struct { Qnn_ContextHandle_t firstGroupHandle; uint64_t maxSpillFillBuffer; } QnnHtpContext_GroupRegistration_t;
typedef struct {
  QnnHtpContext_ConfigOption_t option;
  union {
    bool flag; bool weightSharingEnabled; QnnHtpContext_GroupRegistration_t groupRegistration;
    uint64_t fileReadMemoryBudgetInMb; uint32_t shareResOptType;
  };
} QnnHtpContext_CustomConfig_t;

typedef enum {
  QNN_HTP_DEVICE_CONFIG_OPTION_SOC = 0, QNN_HTP_DEVICE_CONFIG_OPTION_ARCH, QNN_HTP_DEVICE_CONFIG_OPTION_SIGNEDPD,
  QNN_HTP_DEVICE_CONFIG_OPTION_UNKNOWN = QNN_UNDEFINED
} QnnHtpDevice_ConfigOption_t;
typedef struct { uint32_t deviceId, arch; } QnnHtpDevice_Minimum_Arch_t;
typedef struct { uint32_t deviceId; bool useSignedProcessDomain; } QnnHtpDevice_UseSignedProcessDomain_t;
typedef struct {
  QnnHtpDevice_ConfigOption_t option;
  union {
    uint32_t socModel; QnnHtpDevice_Minimum_Arch_t arch; QnnHtpDevice_UseSignedProcessDomain_t useSignedProcessDomain;
  };
} QnnHtpDevice_CustomConfig_t;
typedef struct {
  size_t vtcmSize; uint32_t socModel; bool signedPdSupport, dlbcSupport; uint32_t arch;
} QnnHtpDevice_OnChipDeviceInfoExtension_t;
typedef struct {
  uint32_t devType; union { QnnHtpDevice_OnChipDeviceInfoExtension_t onChipDevice; };
} QnnHtpDevice_DeviceInfoExtension_t;

typedef struct {
  uint32_t contextId, setDcvsEnable, dcvsEnable, powerMode, setSleepLatency, sleepLatency, setSleepDisable,
      sleepDisable, setBusParams, busVoltageCornerMin, busVoltageCornerTarget, busVoltageCornerMax, setCoreParams,
      coreVoltageCornerMin, coreVoltageCornerTarget, coreVoltageCornerMax;
} QnnHtpPerfInfrastructure_DcvsV3_t;
typedef struct {
  uint32_t option;
  union {
    QnnHtpPerfInfrastructure_DcvsV3_t dcvsV3Config;
    uint32_t rpcControlLatencyConfig, rpcPollingTimeConfig, hmxTimeoutIntervalUsConfig;
  };
} QnnHtpPerfInfrastructure_PowerConfig_t;
typedef struct {
  Qnn_ErrorHandle_t (*createPowerConfigId)(uint32_t deviceId, uint32_t coreId, uint32_t *powerConfigId);
  Qnn_ErrorHandle_t (*destroyPowerConfigId)(uint32_t powerConfigId);
  Qnn_ErrorHandle_t (*setPowerConfig)(uint32_t powerConfigId, const QnnHtpPerfInfrastructure_PowerConfig_t **);
  Qnn_ErrorHandle_t (*setMemoryConfig)(uint32_t deviceId, uint32_t coreId, const void **);
} QnnHtpDevice_PerfInfrastructure_t;
typedef struct _QnnDevice_Infrastructure_t {
  uint32_t infraType; union { QnnHtpDevice_PerfInfrastructure_t perfInfra; };
} QnnHtpDevice_Infrastructure_t;

typedef enum {
  QNN_HTP_MEM_QURT = 0, QNN_HTP_MEM_SHARED_BUFFER = 1, QNN_HTP_MEM_UNDEFINED = QNN_UNDEFINED
} QnnHtpMem_Type_t;
typedef struct { int32_t fd; uint64_t offset; } QnnHtpMem_SharedBufferConfig_t;
typedef struct {
  QnnHtpMem_Type_t type; uint64_t size;
  union { uint32_t qurtAddress; QnnHtpMem_SharedBufferConfig_t sharedBufferConfig; };
} QnnMemHtp_Descriptor_t;

#ifdef __cplusplus
}
#endif
#endif
