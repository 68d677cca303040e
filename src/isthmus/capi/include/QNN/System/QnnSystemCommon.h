/* What the system library's headers share. System API 1.15. */
#ifndef QNN_SYSTEM_COMMON_H
#define QNN_SYSTEM_COMMON_H

#include "../QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef QNN_SYSTEM_API
#define QNN_SYSTEM_API
#endif

#define QNN_SYSTEM_API_VERSION_MAJOR 1
#define QNN_SYSTEM_API_VERSION_MINOR 15
#define QNN_SYSTEM_API_VERSION_PATCH 0

typedef enum {
  QNN_SYSTEM_COMMON_ERROR_INVALID_HANDLE = 30000, QNN_SYSTEM_COMMON_ERROR_MALFORMED_BINARY = 30010
} QnnSystemCommon_Error_t;

#ifdef __cplusplus
}
#endif
#endif
