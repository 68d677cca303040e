/* QNN's TFLite delegate: what libQnnTFLiteDelegate.so exports, with the layout of QNN's delegate API 0.20.
 *
 * TfLiteDelegate is TFLite's own structure (tensorflow/lite/c/common.h); here only its address is handed around. */
#ifndef ISTHMUS_QNN_TFLITE_DELEGATE_H
#define ISTHMUS_QNN_TFLITE_DELEGATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QNN_DELEGATE_API_VERSION_MAJOR 0
#define QNN_DELEGATE_API_VERSION_MINOR 20
#define QNN_DELEGATE_API_VERSION_PATCH 0

typedef struct TfLiteDelegate TfLiteDelegate;
typedef struct { uint32_t major, minor, patch; } QnnDelegateApiVersion;

/* LPAI and CPU are this project's own. */
typedef enum TfLiteQnnDelegateBackendType {
  kUndefinedBackend = 0, kGpuBackend = 1, kHtpBackend = 2, kDspBackend = 3, kLpaiBackend = 100, kCpuBackend = 101
} TfLiteQnnDelegateBackendType;
typedef enum TfLiteQnnDelegateLogLevel {
  kLogOff = 0, kLogLevelError, kLogLevelWarn, kLogLevelInfo, kLogLevelVerbose, kLogLevelDebug
} TfLiteQnnDelegateLogLevel;
typedef enum TfLiteQnnDelegateGraphPriority {
  kQnnPriorityDefault = 0, kQnnPriorityLow, kQnnPriorityNormal, kQnnPriorityNormalHigh, kQnnPriorityHigh,
  kQnnPriorityUndefined
} TfLiteQnnDelegateGraphPriority;
typedef enum TfLiteQnnDelegateProfilingOptions {
  kProfilingOff = 0, kBasicProfiling, kPerOpProfiling
} TfLiteQnnDelegateProfilingOptions;

typedef enum TfLiteQnnDelegateGpuPrecision {
  kGpuUserProvided = 0, kGpuFp32, kGpuFp16, kGpuHybrid
} TfLiteQnnDelegateGpuPrecision;
typedef enum TfLiteQnnDelegateGpuPerformanceMode {
  kGpuDefault = 0, kGpuHigh, kGpuNormal, kGpuLow
} TfLiteQnnDelegateGpuPerformanceMode;
typedef struct {
  TfLiteQnnDelegateGpuPrecision precision;
  TfLiteQnnDelegateGpuPerformanceMode performance_mode;
  const char *kernel_repo_dir;
} TfLiteQnnDelegateGpuBackendOptions;

typedef enum TfLiteQnnDelegateHtpPerformanceMode {
  kHtpDefault = 0, kHtpSustainedHighPerformance, kHtpBurst, kHtpHighPerformance, kHtpPowerSaver, kHtpLowPowerSaver,
  kHtpHighPowerSaver, kHtpLowBalanced, kHtpBalanced, kHtpExtremePowerSaver
} TfLiteQnnDelegateHtpPerformanceMode;
typedef enum TfLiteQnnDelegateHtpPerfCtrlStrategy {
  kHtpPerfCtrlManual = 0, kHtpPerfCtrlAuto
} TfLiteQnnDelegateHtpPerfCtrlStrategy;
typedef enum TfLiteQnnDelegateHtpPrecision { kHtpQuantized = 0, kHtpFp16 } TfLiteQnnDelegateHtpPrecision;
typedef enum TfLiteQnnDelegateHtpPdSession { kHtpUnsignedPd = 0, kHtpSignedPd } TfLiteQnnDelegateHtpPdSession;
typedef enum TfLiteQnnDelegateHtpOptimizationStrategy {
  kHtpOptimizeForInference = 0, kHtpOptimizeForPrepare
} TfLiteQnnDelegateHtpOptimizationStrategy;
typedef struct {
  TfLiteQnnDelegateHtpPerformanceMode performance_mode;
  TfLiteQnnDelegateHtpPerfCtrlStrategy perf_ctrl_strategy;
  TfLiteQnnDelegateHtpPrecision precision;
  TfLiteQnnDelegateHtpPdSession pd_session;
  TfLiteQnnDelegateHtpOptimizationStrategy optimization_strategy;
  bool useConvHmx, useFoldRelu;
  uint32_t vtcm_size, num_hvx_threads;
} TfLiteQnnDelegateHtpBackendOptions;

typedef enum TfLiteQnnDelegateDspPerformanceMode { kDspDefault = 0 } TfLiteQnnDelegateDspPerformanceMode;
typedef enum TfLiteQnnDelegateDspPerfCtrlStrategy { kDspPerfCtrlManual = 0 } TfLiteQnnDelegateDspPerfCtrlStrategy;
typedef enum TfLiteQnnDelegateDspPdSession { kDspUnsignedPd = 0 } TfLiteQnnDelegateDspPdSession;
typedef enum TfLiteQnnDelegateDspEncoding { kDspStatic = 0 } TfLiteQnnDelegateDspEncoding;
typedef struct {
  TfLiteQnnDelegateDspPerformanceMode performance_mode;
  TfLiteQnnDelegateDspPerfCtrlStrategy perf_ctrl_strategy;
  TfLiteQnnDelegateDspPdSession pd_session;
  TfLiteQnnDelegateDspEncoding encoding;
} TfLiteQnnDelegateDspBackendOptions;

typedef struct { const char *custom_op_name, *qnn_op_type_name; } TfLiteQnnDelegateOpPackageOpMap;
typedef struct {
  const char *op_package_name, *op_package_path, *interface_provider, *target;
  int num_ops_map;
  TfLiteQnnDelegateOpPackageOpMap *ops_map;
} TfLiteQnnDelegateOpPackageInfo;
typedef struct {
  int num_op_package_infos;
  TfLiteQnnDelegateOpPackageInfo *op_package_infos;
} TfLiteQnnDelegateOpPackageOptions;

typedef struct {
  const int *skip_delegate_ops;
  uint32_t skip_delegate_ops_nr;
  const int *skip_delegate_node_ids;
  uint32_t skip_delegate_node_ids_nr;
} TfLiteQnnDelegateSkipOption;

typedef struct {
  TfLiteQnnDelegateBackendType backend_type;
  const char *library_path, *skel_library_dir;
  TfLiteQnnDelegateGpuBackendOptions gpu_options;
  TfLiteQnnDelegateHtpBackendOptions htp_options;
  TfLiteQnnDelegateDspBackendOptions dsp_options;
  TfLiteQnnDelegateLogLevel log_level;
  TfLiteQnnDelegateProfilingOptions profiling;
  TfLiteQnnDelegateOpPackageOptions op_package_options;
  const char *tensor_dump_output_path, *cache_dir, *model_token;
  TfLiteQnnDelegateSkipOption skip_options;
  TfLiteQnnDelegateGraphPriority graph_priority;
} TfLiteQnnDelegateOptions;

typedef enum TfLiteQnnDelegatePerformanceAction {
  kPerformanceVote = 0, kPerformanceRelease
} TfLiteQnnDelegatePerformanceAction;
typedef enum TfLiteQnnDelegateCapability {
  kCapHtpRuntimeQuant = 0, kCapHtpRuntimeFp16, kCapGpuRuntime, kCapDspRuntime
} TfLiteQnnDelegateCapability;
typedef int32_t TfLiteQnnDelegateCapabilityStatus;
typedef struct { const uint8_t *buffer; uint32_t buffer_length; } TfLiteQnnDelegateProfilingResult;

TfLiteQnnDelegateOptions TfLiteQnnDelegateOptionsDefault(void);
TfLiteDelegate *TfLiteQnnDelegateCreate(const TfLiteQnnDelegateOptions *options);
void TfLiteQnnDelegateDelete(TfLiteDelegate *delegate);
void *TfLiteQnnDelegateAllocCustomMem(size_t bytes, size_t alignment);
void TfLiteQnnDelegateFreeCustomMem(void *buffer_ptr);
bool TfLiteQnnDelegateSetPerf(TfLiteDelegate *delegate, TfLiteQnnDelegatePerformanceAction action);
bool TfLiteQnnDelegateUpdateHtpPerfMode(TfLiteDelegate *delegate, TfLiteQnnDelegateHtpPerformanceMode mode);
bool TfLiteQnnDelegateUpdateDspPerfMode(TfLiteDelegate *delegate, TfLiteQnnDelegateDspPerformanceMode mode);
TfLiteQnnDelegateCapabilityStatus TfLiteQnnDelegateHasCapability(TfLiteQnnDelegateCapability capability);
QnnDelegateApiVersion TfLiteQnnDelegateGetApiVersion(void);
TfLiteQnnDelegateProfilingResult TfLiteQnnDelegateGetProfilingResult(TfLiteDelegate *delegate);
void TfLiteQnnDelegateClearProfilingResult(TfLiteDelegate *delegate);

/* TFLite's interface for delegates that are loaded by name and told their options as texts. */
TfLiteDelegate *tflite_plugin_create_delegate(const char *const *keys, const char *const *values, size_t count,
                                              void (*report_error)(const char *));
void tflite_plugin_destroy_delegate(TfLiteDelegate *delegate);

#ifdef __cplusplus
}
#endif
#endif
