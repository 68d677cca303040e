/* Devices: what a platform has, and handles of it.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_DEVICE_H
#define QNN_DEVICE_H

#include "QnnTypes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_DEVICE_NO_ERROR = 0, QNN_DEVICE_ERROR_UNSUPPORTED_FEATURE = 1000, QNN_DEVICE_ERROR_MEM_ALLOC = 1002,
  QNN_DEVICE_ERROR_INVALID_ARGUMENT = 1004, QNN_DEVICE_ERROR_INVALID_HANDLE = 14000,
  QNN_DEVICE_ERROR_INVALID_CONFIG = 14001, QNN_DEVICE_ERROR_HARDWARE_UNAVAILABLE = 14002,
  QNN_DEVICE_ERROR_ASSOCIATED_TO_CONTEXT = 14003, QNN_DEVICE_MIN_ERROR = QNN_MIN_ERROR_DEVICE,
  QNN_DEVICE_MAX_ERROR = QNN_MAX_ERROR_DEVICE, QNN_DEVICE_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnDevice_Error_t;
#define QNN_DEVICE_DEFAULT_DEVICE_ID 0xFFFFFFFFu
#define QNN_DEVICE_DEFAULT_CORE_ID 0xFFFFFFFFu
/* What a backend adds to these is declared in its own headers. */
typedef struct _QnnDevice_Infrastructure_t *QnnDevice_Infrastructure_t;
typedef struct _QnnDevice_DeviceInfoExtension_t *QnnDevice_DeviceInfoExtension_t;
typedef struct _QnnDevice_CoreInfoExtension_t *QnnDevice_CoreInfoExtension_t;
typedef void *QnnDevice_CustomConfig_t;
typedef struct { uint32_t coreId, coreType; QnnDevice_CoreInfoExtension_t coreInfoExtension; } QnnDevice_CoreInfoV1_t;
QNN_LAYOUT(QnnDevice_CoreInfoV1_t, 16);
#define QNN_DEVICE_CORE_INFO_V1_INIT {QNN_DEVICE_DEFAULT_CORE_ID, 0, NULL}
typedef enum {
  QNN_DEVICE_CORE_INFO_VERSION_1 = 1, QNN_DEVICE_CORE_INFO_VERSION_UNDEFINED = QNN_UNDEFINED
} QnnDevice_CoreInfoVersion_t;
typedef struct { QnnDevice_CoreInfoVersion_t version; union { QnnDevice_CoreInfoV1_t v1; }; } QnnDevice_CoreInfo_t;
QNN_LAYOUT(QnnDevice_CoreInfo_t, 24);
#define QNN_DEVICE_CORE_INFO_INIT {QNN_DEVICE_CORE_INFO_VERSION_1, {QNN_DEVICE_CORE_INFO_V1_INIT}}
typedef struct {
  uint32_t deviceId, deviceType, numCores; QnnDevice_CoreInfo_t *cores;
  QnnDevice_DeviceInfoExtension_t deviceInfoExtension;
} QnnDevice_HardwareDeviceInfoV1_t;
QNN_LAYOUT(QnnDevice_HardwareDeviceInfoV1_t, 32);
#define QNN_DEVICE_HARDWARE_DEVICE_INFO_V1_INIT {QNN_DEVICE_DEFAULT_DEVICE_ID, 0, 0, NULL, NULL}
typedef enum {
  QNN_DEVICE_HARDWARE_DEVICE_INFO_VERSION_1 = 1, QNN_DEVICE_HARDWARE_DEVICE_INFO_VERSION_UNDEFINED = QNN_UNDEFINED
} QnnDevice_HardwareDeviceInfoVersion_t;
typedef struct {
  QnnDevice_HardwareDeviceInfoVersion_t version;
  union { QnnDevice_HardwareDeviceInfoV1_t v1; };
} QnnDevice_HardwareDeviceInfo_t;
QNN_LAYOUT(QnnDevice_HardwareDeviceInfo_t, 40);
#define QNN_DEVICE_HARDWARE_DEVICE_INFO_INIT \
  {QNN_DEVICE_HARDWARE_DEVICE_INFO_VERSION_1, {QNN_DEVICE_HARDWARE_DEVICE_INFO_V1_INIT}}
typedef struct { uint32_t numHwDevices; QnnDevice_HardwareDeviceInfo_t *hwDevices; } QnnDevice_PlatformInfoV1_t;
QNN_LAYOUT(QnnDevice_PlatformInfoV1_t, 16);
#define QNN_DEVICE_PLATFORM_INFO_V1_INIT {0, NULL}
typedef enum {
  QNN_DEVICE_PLATFORM_INFO_VERSION_1 = 1, QNN_DEVICE_PLATFORM_INFO_VERSION_UNDEFINED = QNN_UNDEFINED
} QnnDevice_PlatformInfoVersion_t;
typedef struct {
  QnnDevice_PlatformInfoVersion_t version;
  union { QnnDevice_PlatformInfoV1_t v1; };
} QnnDevice_PlatformInfo_t;
QNN_LAYOUT(QnnDevice_PlatformInfo_t, 24);
#define QNN_DEVICE_PLATFORM_INFO_INIT {QNN_DEVICE_PLATFORM_INFO_VERSION_1, {QNN_DEVICE_PLATFORM_INFO_V1_INIT}}
typedef enum {
  QNN_DEVICE_CONFIG_OPTION_CUSTOM = 0, QNN_DEVICE_CONFIG_OPTION_PLATFORM_INFO = 1,
  QNN_DEVICE_CONFIG_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnDevice_ConfigOption_t;
typedef struct {
  QnnDevice_ConfigOption_t option;
  union { QnnDevice_CustomConfig_t customConfig; QnnDevice_PlatformInfo_t *hardwareInfo; };
} QnnDevice_Config_t;
QNN_LAYOUT(QnnDevice_Config_t, 16);
#define QNN_DEVICE_CONFIG_INIT {QNN_DEVICE_CONFIG_OPTION_UNDEFINED, {NULL}}
QNN_API Qnn_ErrorHandle_t QnnDevice_getPlatformInfo(
    Qnn_LogHandle_t logger, const QnnDevice_PlatformInfo_t **platformInfo);
QNN_API Qnn_ErrorHandle_t QnnDevice_freePlatformInfo(
    Qnn_LogHandle_t logger, const QnnDevice_PlatformInfo_t *platformInfo);
QNN_API Qnn_ErrorHandle_t QnnDevice_getInfrastructure(const QnnDevice_Infrastructure_t *deviceInfra);
QNN_API Qnn_ErrorHandle_t QnnDevice_create(
    Qnn_LogHandle_t logger, const QnnDevice_Config_t **config, Qnn_DeviceHandle_t *device);
QNN_API Qnn_ErrorHandle_t QnnDevice_setConfig(Qnn_DeviceHandle_t device, const QnnDevice_Config_t **config);
QNN_API Qnn_ErrorHandle_t QnnDevice_getInfo(Qnn_DeviceHandle_t device, const QnnDevice_PlatformInfo_t **platformInfo);
QNN_API Qnn_ErrorHandle_t QnnDevice_free(Qnn_DeviceHandle_t device);

#ifdef __cplusplus
}
#endif
#endif
