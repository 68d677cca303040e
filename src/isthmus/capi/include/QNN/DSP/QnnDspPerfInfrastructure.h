/* The DSP's clocks, voltages, memory and threads, which a client can ask for. QnnHtpPerfInfrastructure.h has other
 * declarations under some of these names: a source includes one of the two.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_DSP_PERF_INFRASTRUCTURE_H
#define QNN_DSP_PERF_INFRASTRUCTURE_H

#include "../QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIG_MAX_RPC_POLLING_TIME 9999
typedef enum {
  QNN_DSP_PERF_INFRASTRUCTURE_NO_ERROR = 0, QNN_DSP_PERF_INFRASTRUCTURE_MIN_ERROR = 13000,
  QNN_DSP_PERF_INFRASTRUCTURE_ERROR_INVALID_HANDLE_PTR = 13000, QNN_DSP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT = 13001,
  QNN_DSP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED_CONFIG = 13002, QNN_DSP_PERF_INFRASTRUCTURE_ERROR_TRANSPORT = 13003,
  QNN_DSP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED = 13004, QNN_DSP_PERF_INFRASTRUCTURE_ERROR_FAILED = 13005,
  QNN_DSP_PERF_INFRASTRUCTURE_MAX_ERROR = 13999, QNN_DSP_PERF_INFRASTRUCTURE_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnDspPerfInfrastructure_Error_t;
typedef enum {
  DCVS_VOLTAGE_CORNER_DISABLE = 16, DCVS_VOLTAGE_VCORNER_MIN_VOLTAGE_CORNER = 32, DCVS_VOLTAGE_VCORNER_SVS2 = 48,
  DCVS_VOLTAGE_VCORNER_SVS = 64, DCVS_VOLTAGE_VCORNER_SVS_PLUS = 80, DCVS_VOLTAGE_VCORNER_NOM = 96,
  DCVS_VOLTAGE_VCORNER_NOM_PLUS = 112, DCVS_VOLTAGE_VCORNER_TURBO = 128, DCVS_VOLTAGE_VCORNER_TURBO_PLUS = 144,
  DCVS_VOLTAGE_VCORNER_MAX_VOLTAGE_CORNER = 160, DCVS_VOLTAGE_VCORNER_UNKNOWN = QNN_UNDEFINED
} QnnDspPerfInfrastructure_VoltageCorner_t;
typedef enum {
  QNN_DSP_PERF_INFRASTRUCTURE_POWERMODE_ADJUST_UP_DOWN = 1, QNN_DSP_PERF_INFRASTRUCTURE_POWERMODE_ADJUST_ONLY_UP = 2,
  QNN_DSP_PERF_INFRASTRUCTURE_POWERMODE_POWER_SAVER_MODE = 4,
  QNN_DSP_PERF_INFRASTRUCTURE_POWERMODE_POWER_SAVER_AGGRESSIVE_MODE = 8,
  QNN_DSP_PERF_INFRASTRUCTURE_POWERMODE_PERFORMANCE_MODE = 16,
  QNN_DSP_PERF_INFRASTRUCTURE_POWERMODE_DUTY_CYCLE_MODE = 32,
  QNN_DSP_PERF_INFRASTRUCTURE_POWERMODE_UNKNOWN = QNN_UNDEFINED
} QnnDspPerfInfrastructure_PowerMode_t;
typedef enum {
  QNN_DSP_PERF_INFRASTRUCTURE_VTCM_USE_FULL = 1, QNN_DSP_PERF_INFRASTRUCTURE_VTCM_USE_MIN = 2,
  QNN_DSP_PERF_INFRASTRUCTURE_VTCM_USE_UNKNOWN = QNN_UNDEFINED
} QnnDspPerfInfrastructure_VtcmUsageFactor_t;
typedef enum {
  QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_DCVS_ENABLE = 1,
  QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_SLEEP_LATENCY = 2,
  QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_SLEEP_DISABLE = 3,
  QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_DCVS_POWER_MODE = 4,
  QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_DCVS_VOLTAGE_CORNER = 5,
  QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_BUS_VOLTAGE_CORNER = 6,
  QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_CORE_VOLTAGE_CORNER = 7,
  QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_RPC_CONTROL_LATENCY = 9,
  QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_RPC_POLLING_TIME = 10,
  QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_HMX_TIMEOUT_INTERVAL_US = 11,
  QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_UNKNOWN = QNN_UNDEFINED
} QnnDspPerfInfrastructure_PowerConfigOption_t;
typedef enum {
  QNN_DSP_PERF_INFRASTRUCTURE_MEMORY_CONFIGOPTION_GROW_SIZE = 1,
  QNN_DSP_PERF_INFRASTRUCTURE_MEMORY_CONFIGOPTION_VTCM_SIZE = 2,
  QNN_DSP_PERF_INFRASTRUCTURE_MEMORY_CONFIGOPTION_VTCM_USAGE_FACTOR = 3,
  QNN_DSP_PERF_INFRASTRUCTURE_MEMORY_CONFIGOPTION_UNKNOWN = QNN_UNDEFINED
} QnnDspPerfInfrastructure_MemoryConfigOption_t;
typedef enum {
  QNN_DSP_PERF_INFRASTRUCTURE_THREAD_CONFIGOPTION_NUMBER_OF_HVX_THREADS = 1,
  QNN_DSP_PERF_INFRASTRUCTURE_THREAD_CONFIGOPTION_UNKNOWN = QNN_UNDEFINED
} QnnDspPerfInfrastructure_ThreadConfigOption_t;
typedef uint32_t QnnDspPerfInfrastructure_DcvsEnable_t, QnnDspPerfInfrastructure_SleepLatency_t,
    QnnDspPerfInfrastructure_SleepDisable_t, QnnDspPerfInfrastructure_MemGrowSize_t,
    QnnDspPerfInfrastructure_VtcmSize_t, QnnDspPerfInfrastructure_HvxThreadNumber_t,
    QnnDspPerfInfrastructure_RpcControlLatency_t, QnnDspPerfInfrastructure_RpcPollingTime_t,
    QnnDspPerfInfrastructure_HmxTimeoutIntervalUs_t;
typedef struct {
  QnnDspPerfInfrastructure_PowerConfigOption_t config;
  union {
    QnnDspPerfInfrastructure_DcvsEnable_t dcvsEnableConfig; QnnDspPerfInfrastructure_SleepLatency_t sleepLatencyConfig;
    QnnDspPerfInfrastructure_SleepDisable_t sleepDisableConfig;
    QnnDspPerfInfrastructure_PowerMode_t dcvsPowerModeConfig;
    QnnDspPerfInfrastructure_VoltageCorner_t dcvsVoltageCornerMinConfig;
    QnnDspPerfInfrastructure_VoltageCorner_t dcvsVoltageCornerTargetConfig;
    QnnDspPerfInfrastructure_VoltageCorner_t dcvsVoltageCornerMaxConfig;
    QnnDspPerfInfrastructure_VoltageCorner_t busVoltageCornerMinConfig;
    QnnDspPerfInfrastructure_VoltageCorner_t busVoltageCornerTargetConfig;
    QnnDspPerfInfrastructure_VoltageCorner_t busVoltageCornerMaxConfig;
    QnnDspPerfInfrastructure_VoltageCorner_t coreVoltageCornerMinConfig;
    QnnDspPerfInfrastructure_VoltageCorner_t coreVoltageCornerTargetConfig;
    QnnDspPerfInfrastructure_VoltageCorner_t coreVoltageCornerMaxConfig;
    QnnDspPerfInfrastructure_RpcControlLatency_t rpcControlLatencyConfig;
    QnnDspPerfInfrastructure_RpcPollingTime_t rpcPollingTimeConfig;
    QnnDspPerfInfrastructure_HmxTimeoutIntervalUs_t hmxTimeoutIntervalUsConfig;
  };
} QnnDspPerfInfrastructure_PowerConfig_t;
QNN_LAYOUT(QnnDspPerfInfrastructure_PowerConfig_t, 8);
#define QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIG_INIT {QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_UNKNOWN, {0}}
typedef struct {
  QnnDspPerfInfrastructure_MemoryConfigOption_t config;
  union {
    QnnDspPerfInfrastructure_MemGrowSize_t memGrowSizeConfig; QnnDspPerfInfrastructure_VtcmSize_t vtcmSizeInMB;
    QnnDspPerfInfrastructure_VtcmUsageFactor_t vtcmUsageConfig;
  };
} QnnDspPerfInfrastructure_MemoryConfig_t;
QNN_LAYOUT(QnnDspPerfInfrastructure_MemoryConfig_t, 8);
#define QNN_DSP_PERF_INFRASTRUCTURE_MEMORY_CONFIG_INIT {QNN_DSP_PERF_INFRASTRUCTURE_MEMORY_CONFIGOPTION_UNKNOWN, {0}}
typedef struct {
  QnnDspPerfInfrastructure_ThreadConfigOption_t config;
  union { QnnDspPerfInfrastructure_HvxThreadNumber_t numHvxThreads; };
} QnnDspPerfInfrastructure_ThreadConfig_t;
QNN_LAYOUT(QnnDspPerfInfrastructure_ThreadConfig_t, 8);
#define QNN_DSP_PERF_INFRASTRUCTURE_THREAD_CONFIG_INIT {QNN_DSP_PERF_INFRASTRUCTURE_THREAD_CONFIGOPTION_UNKNOWN, {0}}
typedef Qnn_ErrorHandle_t (*QnnDspPerfInfrastructure_CreatePowerConfigIdFn_t)(uint32_t *powerConfigId);
typedef Qnn_ErrorHandle_t (*QnnDspPerfInfrastructure_DestroyPowerConfigIdFn_t)(uint32_t powerConfigId);
typedef Qnn_ErrorHandle_t (*QnnDspPerfInfrastructure_SetPowerConfigFn_t)(
    uint32_t powerConfigId, const QnnDspPerfInfrastructure_PowerConfig_t **config);
typedef Qnn_ErrorHandle_t (*QnnDspPerfInfrastructure_SetMemoryConfigFn_t)(
    const QnnDspPerfInfrastructure_MemoryConfig_t **config);
typedef Qnn_ErrorHandle_t (*QnnDspPerfInfrastructure_SetThreadConfigFn_t)(
    const QnnDspPerfInfrastructure_ThreadConfig_t **config);

#ifdef __cplusplus
}
#endif
#endif
