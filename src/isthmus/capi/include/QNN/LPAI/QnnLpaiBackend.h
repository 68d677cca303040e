/* LPAI's backend configs and properties.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_LPAI_BACKEND_H
#define QNN_LPAI_BACKEND_H

#include "../QnnBackend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_LPAI_BACKEND_CUSTOM_CFG_HW_INFO = 0, QNN_LPAI_BACKEND_CUSTOM_CFG_UNDEFINED = QNN_UNDEFINED
} QnnLpaiBackend_CustomConfigOption_t;
typedef enum {
  QNN_LPAI_BACKEND_TARGET_X86 = 0, QNN_LPAI_BACKEND_TARGET_ARM = 1, QNN_LPAI_BACKEND_TARGET_ADSP = 2,
  QNN_LPAI_BACKEND_TARGET_TENSILICA = 3, QNN_LPAI_BACKEND_TARGET_UNKNOWN = QNN_UNDEFINED
} QnnLpaiBackend_Target_t;
typedef enum {
  QNN_LPAI_BACKEND_HW_VERSION_NA = 0, QNN_LPAI_BACKEND_HW_VERSION_V1 = 1, QNN_LPAI_BACKEND_HW_VERSION_V2 = 2,
  QNN_LPAI_BACKEND_HW_VERSION_V3 = 3, QNN_LPAI_BACKEND_HW_VERSION_V4 = 4, QNN_LPAI_BACKEND_HW_VERSION_V5 = 5,
  QNN_LPAI_BACKEND_HW_VERSION_V5_1 = 65541, QNN_LPAI_BACKEND_HW_VERSION_V6 = 6, QNN_LPAI_BACKEND_HW_VERSION_V7 = 7,
  QNN_LPAI_BACKEND_HW_VERSION_DEFAULT = 5, QNN_LPAI_BACKEND_HW_VERSION_UNKNOWN = QNN_UNDEFINED
} QnnLpaiBackend_HwVersion_t;
typedef struct {
  QnnLpaiBackend_Target_t lpaiTarget; QnnLpaiBackend_HwVersion_t hwVersion;
} QnnLpaiBackend_CustomConfigHwInfo_t;
QNN_LAYOUT(QnnLpaiBackend_CustomConfigHwInfo_t, 8);
#define QNN_LPAI_BACKEND_CUSTOM_CONFIG_HW_INFO_INIT {QNN_LPAI_BACKEND_TARGET_ADSP, QNN_LPAI_BACKEND_HW_VERSION_DEFAULT}
typedef struct { uint32_t option; void *config; } QnnLpaiBackend_CustomConfig_t;
QNN_LAYOUT(QnnLpaiBackend_CustomConfig_t, 16);
#define QNN_LPAI_BACKEND_CUSTOM_CONFIG_INIT {QNN_LPAI_BACKEND_CUSTOM_CFG_UNDEFINED, NULL}
typedef enum {
  QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ = 0, QNN_LPAI_BACKEND_GET_PROP_REQUIRE_PERSISTENT_BINARY = 1,
  QNN_LPAI_BACKEND_GET_PROP_UNDEFINED = QNN_UNDEFINED
} QnnLpaiBackend_GetPropertyOption_t;
#define QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ_DEFAULT 0
#define QNN_LPAI_BACKEND_GET_PROP_REQUIRE_PERSISTENT_BINARY_DEFAULT 1
typedef struct { uint32_t startAddrAlignment, sizeAlignment; } QnnLpaiBackend_BufferAlignmentReq_t;
QNN_LAYOUT(QnnLpaiBackend_BufferAlignmentReq_t, 8);
#define QNN_LPAI_BACKEND_ALIGNMENT_REQ_INIT {0, 0}
typedef struct { uint32_t option; void *property; } QnnLpaiBackend_CustomProperty_t;
QNN_LAYOUT(QnnLpaiBackend_CustomProperty_t, 16);
#define QNN_LPAI_BACKEND_CUSTOM_PROPERTY_INIT {QNN_LPAI_BACKEND_GET_PROP_UNDEFINED, NULL}

#ifdef __cplusplus
}
#endif
#endif
