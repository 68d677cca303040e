/* Which backend HTP is.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_HTP_COMMON_H
#define QNN_HTP_COMMON_H

#include "../QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QNN_BACKEND_ID_HTP 6
#define QNN_HTP_API_VERSION_MAJOR 5
#define QNN_HTP_API_VERSION_MINOR 51
#define QNN_HTP_API_VERSION_PATCH 0
#define QNN_HTP_API_VERSION_INIT \
  {{QNN_API_VERSION_MAJOR, QNN_API_VERSION_MINOR, QNN_API_VERSION_PATCH}, \
   {QNN_HTP_API_VERSION_MAJOR, QNN_HTP_API_VERSION_MINOR, QNN_HTP_API_VERSION_PATCH}}

#ifdef __cplusplus
}
#endif
#endif
