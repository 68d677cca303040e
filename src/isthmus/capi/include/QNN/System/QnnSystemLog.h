/* Logs of the system library.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_SYSTEM_LOG_H
#define QNN_SYSTEM_LOG_H

#include "../QnnLog.h"
#include "QnnSystemCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemLog_create(
    QnnLog_Callback_t callback, QnnLog_Level_t maxLogLevel, Qnn_LogHandle_t *logger);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemLog_setLogLevel(Qnn_LogHandle_t logger, QnnLog_Level_t maxLogLevel);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemLog_free(Qnn_LogHandle_t logger);

#ifdef __cplusplus
}
#endif
#endif
