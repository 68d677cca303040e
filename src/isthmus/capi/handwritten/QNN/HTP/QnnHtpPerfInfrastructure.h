/* HTP's clocks, voltages and memory, which a client can ask for: understood here, without effect. */
#ifndef QNN_HTP_PERF_INFRASTRUCTURE_H
#define QNN_HTP_PERF_INFRASTRUCTURE_H

#include "../QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_HTP_PERF_INFRASTRUCTURE_NO_ERROR = 0,
  QNN_HTP_PERF_INFRASTRUCTURE_MIN_ERROR = QNN_MIN_ERROR_PERF_INFRASTRUCTURE,
  QNN_HTP_PERF_INFRASTRUCTURE_MAX_ERROR = QNN_MAX_ERROR_PERF_INFRASTRUCTURE,
  QNN_HTP_PERF_INFRASTRUCTURE_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnHtpPerfInfrastructure_Error_t;

typedef enum {
  DCVS_VOLTAGE_CORNER_DISABLE = 0x10, DCVS_VOLTAGE_VCORNER_MIN_VOLTAGE_CORNER = 0x20, DCVS_VOLTAGE_VCORNER_SVS2 = 0x30,
  DCVS_VOLTAGE_VCORNER_SVS = 0x40, DCVS_VOLTAGE_VCORNER_SVS_PLUS = 0x50, DCVS_VOLTAGE_VCORNER_NOM = 0x60,
  DCVS_VOLTAGE_VCORNER_NOM_PLUS = 0x70, DCVS_VOLTAGE_VCORNER_TURBO = 0x80, DCVS_VOLTAGE_VCORNER_TURBO_PLUS = 0x90,
  DCVS_VOLTAGE_VCORNER_TURBO_L2 = 0x92, DCVS_VOLTAGE_VCORNER_TURBO_L3 = 0x93,
  DCVS_VOLTAGE_VCORNER_MAX_VOLTAGE_CORNER = 0xA0, DCVS_VOLTAGE_VCORNER_UNKNOWN = QNN_UNDEFINED
} QnnHtpPerfInfrastructure_VoltageCorner_t;
typedef enum {
  QNN_HTP_PERF_INFRASTRUCTURE_POWERMODE_ADJUST_UP_DOWN = 0x1,
  QNN_HTP_PERF_INFRASTRUCTURE_POWERMODE_ADJUST_ONLY_UP = 0x2,
  QNN_HTP_PERF_INFRASTRUCTURE_POWERMODE_POWER_SAVER_MODE = 0x4,
  QNN_HTP_PERF_INFRASTRUCTURE_POWERMODE_POWER_SAVER_AGGRESSIVE_MODE = 0x8,
  QNN_HTP_PERF_INFRASTRUCTURE_POWERMODE_PERFORMANCE_MODE = 0x10,
  QNN_HTP_PERF_INFRASTRUCTURE_POWERMODE_DUTY_CYCLE_MODE = 0x20,
  QNN_HTP_PERF_INFRASTRUCTURE_POWERMODE_UNKNOWN = QNN_UNDEFINED
} QnnHtpPerfInfrastructure_PowerMode_t;
typedef enum {
  QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_DCVS_V3 = 1,
  QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_RPC_CONTROL_LATENCY = 2,
  QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_RPC_POLLING_TIME = 3,
  QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_HMX_TIMEOUT_INTERVAL_US = 4,
  QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_UNKNOWN = QNN_UNDEFINED
} QnnHtpPerfInfrastructure_PowerConfigOption_t;
#define QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIG_MAX_RPC_POLLING_TIME 9999
typedef struct {
  uint32_t contextId, setDcvsEnable, dcvsEnable; QnnHtpPerfInfrastructure_PowerMode_t powerMode;
  uint32_t setSleepLatency, sleepLatency, setSleepDisable, sleepDisable, setBusParams;
  QnnHtpPerfInfrastructure_VoltageCorner_t busVoltageCornerMin, busVoltageCornerTarget, busVoltageCornerMax;
  uint32_t setCoreParams;
  QnnHtpPerfInfrastructure_VoltageCorner_t coreVoltageCornerMin, coreVoltageCornerTarget, coreVoltageCornerMax;
} QnnHtpPerfInfrastructure_DcvsV3_t;
typedef struct {
  QnnHtpPerfInfrastructure_PowerConfigOption_t option;
  union {
    QnnHtpPerfInfrastructure_DcvsV3_t dcvsV3Config;
    uint32_t rpcControlLatencyConfig, rpcPollingTimeConfig, hmxTimeoutIntervalUsConfig;
  };
} QnnHtpPerfInfrastructure_PowerConfig_t;
#define QNN_HTP_PERF_INFRASTRUCTURE_NO_CORNER ((QnnHtpPerfInfrastructure_VoltageCorner_t)0)
#define QNN_HTP_PERF_INFRASTRUCTURE_NO_CORNERS \
  QNN_HTP_PERF_INFRASTRUCTURE_NO_CORNER, QNN_HTP_PERF_INFRASTRUCTURE_NO_CORNER, QNN_HTP_PERF_INFRASTRUCTURE_NO_CORNER
#define QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIG_INIT \
  {QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_UNKNOWN, \
   {{0, 0, 0, (QnnHtpPerfInfrastructure_PowerMode_t)0, 0, 0, 0, 0, 0, QNN_HTP_PERF_INFRASTRUCTURE_NO_CORNERS, 0, \
     QNN_HTP_PERF_INFRASTRUCTURE_NO_CORNERS}}}
typedef enum {
  QNN_HTP_PERF_INFRASTRUCTURE_MEMORY_CONFIGOPTION_GROW_SIZE = 1,
  QNN_HTP_PERF_INFRASTRUCTURE_MEMORY_CONFIGOPTION_UNKNOWN = QNN_UNDEFINED
} QnnHtpPerfInfrastructure_MemoryConfigOption_t;
typedef struct {
  QnnHtpPerfInfrastructure_MemoryConfigOption_t option; union { uint32_t memGrowSizeConfig; };
} QnnHtpPerfInfrastructure_MemoryConfig_t;
#define QNN_HTP_PERF_INFRASTRUCTURE_MEMORY_CONFIG_INIT {QNN_HTP_PERF_INFRASTRUCTURE_MEMORY_CONFIGOPTION_UNKNOWN, {0}}

typedef Qnn_ErrorHandle_t (*QnnHtpPerfInfrastructure_CreatePowerConfigIdFn_t)(uint32_t deviceId, uint32_t coreId,
                                                                              uint32_t *powerConfigId);
typedef Qnn_ErrorHandle_t (*QnnHtpPerfInfrastructure_DestroyPowerConfigIdFn_t)(uint32_t powerConfigId);
typedef Qnn_ErrorHandle_t (*QnnHtpPerfInfrastructure_SetPowerConfigFn_t)(
    uint32_t powerConfigId, const QnnHtpPerfInfrastructure_PowerConfig_t **config);
typedef Qnn_ErrorHandle_t (*QnnHtpPerfInfrastructure_SetMemoryConfigFn_t)(
    uint32_t deviceId, uint32_t coreId, const QnnHtpPerfInfrastructure_MemoryConfig_t **config);

#ifdef __cplusplus
}
#endif
#endif
