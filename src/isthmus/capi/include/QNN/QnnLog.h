/* Logs: what a backend reports to its client.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_LOG_H
#define QNN_LOG_H

#include <stdarg.h>
#include "QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_LOG_NO_ERROR = 0, QNN_LOG_ERROR_MEM_ALLOC = 1002, QNN_LOG_ERROR_INITIALIZATION = 11002,
  QNN_LOG_ERROR_INVALID_ARGUMENT = 11003, QNN_LOG_ERROR_INVALID_HANDLE = 11004, QNN_LOG_MIN_ERROR = QNN_MIN_ERROR_LOG,
  QNN_LOG_MAX_ERROR = QNN_MAX_ERROR_LOG, QNN_LOG_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnLog_Error_t;
typedef enum {
  QNN_LOG_LEVEL_ERROR = 1, QNN_LOG_LEVEL_WARN = 2, QNN_LOG_LEVEL_INFO = 3, QNN_LOG_LEVEL_VERBOSE = 4,
  QNN_LOG_LEVEL_DEBUG = 5, QNN_LOG_LEVEL_MAX = QNN_UNDEFINED
} QnnLog_Level_t;
typedef void (*QnnLog_Callback_t)(const char *format, QnnLog_Level_t level, uint64_t timestamp, va_list arguments);
QNN_API Qnn_ErrorHandle_t QnnLog_create(
    QnnLog_Callback_t callback, QnnLog_Level_t maxLogLevel, Qnn_LogHandle_t *logger);
QNN_API Qnn_ErrorHandle_t QnnLog_setLogLevel(Qnn_LogHandle_t logger, QnnLog_Level_t maxLogLevel);
QNN_API Qnn_ErrorHandle_t QnnLog_free(Qnn_LogHandle_t logger);

#ifdef __cplusplus
}
#endif
#endif
