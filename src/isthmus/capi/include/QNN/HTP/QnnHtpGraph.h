/* HTP's graph configs, behind QnnGraph_CustomConfig_t.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_HTP_GRAPH_H
#define QNN_HTP_GRAPH_H

#include <stdbool.h>
#include "../QnnGraph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_HTP_GRAPH_CONFIG_OPTION_OPTIMIZATION = 1, QNN_HTP_GRAPH_CONFIG_OPTION_PRECISION = 2,
  QNN_HTP_GRAPH_CONFIG_OPTION_VTCM_SIZE_IN_MB = 3, QNN_HTP_GRAPH_CONFIG_OPTION_FOLD_RELU_ACTIVATION_INTO_CONV_OFF = 4,
  QNN_HTP_GRAPH_CONFIG_OPTION_SHORT_DEPTH_CONV_ON_HMX_OFF = 5, QNN_HTP_GRAPH_CONFIG_OPTION_NUM_HVX_THREADS = 6,
  QNN_HTP_GRAPH_CONFIG_OPTION_FINALIZE_CONFIG = 7, QNN_HTP_GRAPH_CONFIG_OPTION_NUM_CORES = 8,
  QNN_HTP_GRAPH_CONFIG_OPTION_PARALLEL_GRAPH_EXECUTION_CONFIG = 9, QNN_HTP_GRAPH_CONFIG_OPTION_VTCM_SIZE_IN_BYTES = 10,
  QNN_HTP_GRAPH_CONFIG_OPTION_HMX_BOUNDING = 11, QNN_HTP_GRAPH_CONFIG_OPTION_WEIGHTS_PACKING = 12,
  QNN_HTP_GRAPH_CONFIG_OPTION_ASSUME_SAME_QUANT = 13, QNN_HTP_GRAPH_CONFIG_OPTION_SHARE_IO_BUFFER = 14,
  QNN_HTP_GRAPH_CONFIG_OPTION_ADVANCED_ACTIVATION_FUSION = 15, QNN_HTP_GRAPH_CONFIG_OPTION_MONOLITHIC_LSTM = 17,
  QNN_HTP_GRAPH_CONFIG_OPTION_PRECISION_COMPENSATION = 18, QNN_HTP_GRAPH_CONFIG_OPTION_FP16_CLAMP_OVERFLOW = 20,
  QNN_HTP_GRAPH_CONFIG_OPTION_UNKNOWN = QNN_UNDEFINED
} QnnHtpGraph_ConfigOption_t;
#define QNN_HTP_GRAPH_CONFIG_OPTION_VTCM_SIZE QNN_HTP_GRAPH_CONFIG_OPTION_VTCM_SIZE_IN_MB
#define QNN_HTP_GRAPH_CONFIG_OPTION_MAX 0
typedef enum {
  QNN_HTP_GRAPH_OPTIMIZATION_TYPE_SCHEDULE_THRESHOLD = 1, QNN_HTP_GRAPH_OPTIMIZATION_TYPE_FINALIZE_RETRIES = 2,
  QNN_HTP_GRAPH_OPTIMIZATION_TYPE_FINALIZE_OPTIMIZATION_FLAG = 3, QNN_HTP_GRAPH_OPTIMIZATION_TYPE_ENABLE_DLBC = 4,
  QNN_HTP_GRAPH_OPTIMIZATION_TYPE_ENABLE_DLBC_WEIGHTS = 5,
  QNN_HTP_GRAPH_OPTIMIZATION_TYPE_ENABLE_SPARSE_WEIGHTS_COMPRESSION = 6,
  QNN_HTP_GRAPH_OPTIMIZATION_TYPE_ENABLE_SLC_ALLOCATOR = 7, QNN_HTP_GRAPH_OPTIMIZATION_TYPE_UNKNOWN = QNN_UNDEFINED
} QnnHtpGraph_OptimizationType_t;
typedef struct { uint32_t sizeInBytes, offsetInBytes, sizeTotalInBytes, reserved[3]; } QnnHtpGraph_VtcmConfig_t;
QNN_LAYOUT(QnnHtpGraph_VtcmConfig_t, 24);
typedef struct { QnnHtpGraph_OptimizationType_t type; float floatValue; } QnnHtpGraph_OptimizationOption_t;
QNN_LAYOUT(QnnHtpGraph_OptimizationOption_t, 8);
typedef struct { const char *key; Qnn_Scalar_t value; } QnnHtpGraph_FinalizeConfig_t;
QNN_LAYOUT(QnnHtpGraph_FinalizeConfig_t, 24);
typedef struct {
  uint32_t concurrency; QnnHtpGraph_VtcmConfig_t vtcmConfig; uint32_t reserved[4];
} QnnHtpGraph_ParallelGraphExecutionConfig_t;
QNN_LAYOUT(QnnHtpGraph_ParallelGraphExecutionConfig_t, 44);
typedef struct { float targetHmxFreqHz, targetDspCoreFreq; } QnnHtp_HmxBoundingInfo_t;
QNN_LAYOUT(QnnHtp_HmxBoundingInfo_t, 8);
#define QNN_HTP_GRAPH_OPTIMIZATION_OPTION_INIT {QNN_HTP_GRAPH_OPTIMIZATION_TYPE_UNKNOWN, 0}
typedef struct {
  QnnHtpGraph_ConfigOption_t option;
  union {
    QnnHtpGraph_OptimizationOption_t optimizationOption; Qnn_Precision_t precision; uint32_t vtcmSizeInMB;
    bool foldReluActivationIntoConvOff; bool shortDepthConvOnHmxOff; uint64_t numHvxThreads;
    QnnHtpGraph_FinalizeConfig_t finalizeConfig; uint32_t numCores;
    QnnHtpGraph_ParallelGraphExecutionConfig_t parallelGraphExecutionConfig; uint32_t vtcmSizeInBytes;
    QnnHtp_HmxBoundingInfo_t hmxBoundingInfo; bool weightsPacking; bool assumeSameQuant; bool shareIOBuffer;
    bool advancedActivationFusion; bool monolithicLstm; bool precisionCompensation; bool fp16ClampOverflow;
    void *reserved;
  };
} QnnHtpGraph_CustomConfig_t;
QNN_LAYOUT(QnnHtpGraph_CustomConfig_t, 56);
#define QNN_HTP_GRAPH_CUSTOM_CONFIG_INIT {QNN_HTP_GRAPH_CONFIG_OPTION_UNKNOWN, {QNN_HTP_GRAPH_OPTIMIZATION_OPTION_INIT}}

#ifdef __cplusplus
}
#endif
#endif
