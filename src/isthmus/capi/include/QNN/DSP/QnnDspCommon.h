/* Which backend DSP is.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_DSP_COMMON_H
#define QNN_DSP_COMMON_H

#include "../QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QNN_BACKEND_ID_DSP 5
#define QNN_DSP_API_VERSION_MAJOR 5
#define QNN_DSP_API_VERSION_MINOR 0
#define QNN_DSP_API_VERSION_PATCH 1
#define QNN_DSP_API_VERSION_INIT \
  {{QNN_API_VERSION_MAJOR, QNN_API_VERSION_MINOR, QNN_API_VERSION_PATCH}, \
   {QNN_DSP_API_VERSION_MAJOR, QNN_DSP_API_VERSION_MINOR, QNN_DSP_API_VERSION_PATCH}}

#ifdef __cplusplus
}
#endif
#endif
