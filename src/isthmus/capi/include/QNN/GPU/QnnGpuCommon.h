/* Which backend GPU is.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_GPU_COMMON_H
#define QNN_GPU_COMMON_H

#include "../QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QNN_BACKEND_ID_GPU 4
#define QNN_GPU_API_VERSION_MAJOR 3
#define QNN_GPU_API_VERSION_MINOR 15
#define QNN_GPU_API_VERSION_PATCH 0
#define QNN_GPU_API_VERSION_INIT \
  {{QNN_API_VERSION_MAJOR, QNN_API_VERSION_MINOR, QNN_API_VERSION_PATCH}, \
   {QNN_GPU_API_VERSION_MAJOR, QNN_GPU_API_VERSION_MINOR, QNN_GPU_API_VERSION_PATCH}}

#ifdef __cplusplus
}
#endif
#endif
