/* The recorder's own function, of libQnnSaver.so.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_SAVER_H
#define QNN_SAVER_H

#include "../QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_SAVER_NO_ERROR = 0, QNN_SAVER_ERROR_DUMMY_RETVALUE = 4950, QNN_SAVER_ERROR_ALREADY_INSTANTIATED = 4951,
  QNN_SAVER_MIN_ERROR = 4950, QNN_SAVER_MAX_ERROR = 4998, QNN_SAVER_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnSaver_Error_t;
typedef struct { const char *modelFileName; const char *dataFileName; } QnnSaver_FileConfig_t;
QNN_LAYOUT(QnnSaver_FileConfig_t, 16);
typedef enum {
  QNN_SAVER_CONFIG_OPTION_OUTPUT_DIRECTORY = 0, QNN_SAVER_CONFIG_OPTION_APPEND_TIMESTAMP = 1,
  QNN_SAVER_CONFIG_OPTION_BACKEND_ID = 2, QNN_SAVER_CONFIG_OPTION_FILE_CONFIG = 3,
  QNN_SAVER_CONFIG_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnSaver_ConfigOption_t;
typedef struct {
  QnnSaver_ConfigOption_t option;
  union {
    const char *outputDirectory; uint32_t appendTimestamp; uint32_t backendId; QnnSaver_FileConfig_t fileConfig;
  };
} QnnSaver_Config_t;
QNN_LAYOUT(QnnSaver_Config_t, 24);
#define QNN_SAVER_CONFIG_INIT {QNN_SAVER_CONFIG_OPTION_UNDEFINED, {NULL}}
QNN_API Qnn_ErrorHandle_t QnnSaver_initialize(const QnnSaver_Config_t **config);

#ifdef __cplusplus
}
#endif
#endif
