/* Configuration of a process. No option of it is public.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_GLOBAL_CONFIG_H
#define QNN_GLOBAL_CONFIG_H

#include "QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

QNN_API Qnn_ErrorHandle_t QnnGlobalConfig_set(const void **config);

#ifdef __cplusplus
}
#endif
#endif
