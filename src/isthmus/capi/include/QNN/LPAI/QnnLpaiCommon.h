/* Which backend LPAI is.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_LPAI_COMMON_H
#define QNN_LPAI_COMMON_H

#include "../QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QNN_BACKEND_ID_LPAI 12
#define QNN_LPAI_API_VERSION_MAJOR 2
#define QNN_LPAI_API_VERSION_MINOR 5
#define QNN_LPAI_API_VERSION_PATCH 0
#define QNN_LPAI_API_VERSION_INIT \
  {{QNN_API_VERSION_MAJOR, QNN_API_VERSION_MINOR, QNN_API_VERSION_PATCH}, \
   {QNN_LPAI_API_VERSION_MAJOR, QNN_LPAI_API_VERSION_MINOR, QNN_LPAI_API_VERSION_PATCH}}

#ifdef __cplusplus
}
#endif
#endif
