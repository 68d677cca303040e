/* HTP's device configs, behind QnnDevice_CustomConfig_t.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_HTP_DEVICE_CONFIG_SHARED_H
#define QNN_HTP_DEVICE_CONFIG_SHARED_H

#include <stdbool.h>
#include "../QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_HTP_DEVICE_ARCH_NONE = 0, QNN_HTP_DEVICE_ARCH_V68 = 68, QNN_HTP_DEVICE_ARCH_V69 = 69,
  QNN_HTP_DEVICE_ARCH_V73 = 73, QNN_HTP_DEVICE_ARCH_V75 = 75, QNN_HTP_DEVICE_ARCH_V79 = 79,
  QNN_HTP_DEVICE_ARCH_V81 = 81, QNN_HTP_DEVICE_ARCH_V85 = 85, QNN_HTP_DEVICE_ARCH_V89 = 89,
  QNN_HTP_DEVICE_ARCH_UNKNOWN = QNN_UNDEFINED
} QnnHtpDevice_Arch_t;
typedef struct { uint32_t deviceId; QnnHtpDevice_Arch_t arch; } QnnHtpDevice_Minimum_Arch_t;
QNN_LAYOUT(QnnHtpDevice_Minimum_Arch_t, 8);
typedef struct { uint32_t deviceId; bool useSignedProcessDomain; } QnnHtpDevice_UseSignedProcessDomain_t;
QNN_LAYOUT(QnnHtpDevice_UseSignedProcessDomain_t, 8);
typedef struct { uint32_t deviceId; bool useSecureProcessDomain; } QnnHtpDevice_UseSecureProcessDomain_t;
QNN_LAYOUT(QnnHtpDevice_UseSecureProcessDomain_t, 8);
typedef struct { uint32_t deviceId; bool enableAsyncExecute; } QnnHtpDevice_AsyncExecute_t;
QNN_LAYOUT(QnnHtpDevice_AsyncExecute_t, 8);
typedef enum {
  QNN_HTP_DEVICE_CONFIG_OPTION_SOC = 0, QNN_HTP_DEVICE_CONFIG_OPTION_ARCH = 1,
  QNN_HTP_DEVICE_CONFIG_OPTION_SIGNEDPD = 2, QNN_HTP_DEVICE_CONFIG_OPTION_SECUREPD = 3,
  QNN_HTP_DEVICE_CONFIG_OPTION_ASYNC_EXECUTE = 4, QNN_HTP_DEVICE_CONFIG_OPTION_HTP_EXTENSION = 2147418112,
  QNN_HTP_DEVICE_CONFIG_OPTION_UNKNOWN = QNN_UNDEFINED
} QnnHtpDevice_ConfigOption_t;
typedef struct {
  QnnHtpDevice_ConfigOption_t option;
  union {
    uint32_t socModel; QnnHtpDevice_Minimum_Arch_t arch; QnnHtpDevice_UseSignedProcessDomain_t useSignedProcessDomain;
    QnnHtpDevice_UseSecureProcessDomain_t useSecureProcessDomain; QnnHtpDevice_AsyncExecute_t asyncExecute;
    void *htpExtension;
  };
} QnnHtpDevice_CustomConfig_t;
QNN_LAYOUT(QnnHtpDevice_CustomConfig_t, 16);

#ifdef __cplusplus
}
#endif
#endif
