/* The recorder's own function, of the vendor's libQnnSaver.so. No library here has it. */
#ifndef QNN_SAVER_H
#define QNN_SAVER_H

#include "../QnnCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_SAVER_NO_ERROR = 0,
  QNN_SAVER_ERROR_DUMMY_RETVALUE = 4950,
  QNN_SAVER_ERROR_ALREADY_INSTANTIATED = 4951,
  QNN_SAVER_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnSaver_Error_t;
typedef struct { const char *modelFileName, *dataFileName; } QnnSaver_FileConfig_t;
typedef enum {
  QNN_SAVER_CONFIG_OPTION_OUTPUT_DIRECTORY = 0, QNN_SAVER_CONFIG_OPTION_APPEND_TIMESTAMP = 1,
  QNN_SAVER_CONFIG_OPTION_BACKEND_ID = 2, QNN_SAVER_CONFIG_OPTION_FILE_CONFIG = 3,
  QNN_SAVER_CONFIG_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnSaver_ConfigOption_t;
typedef struct {
  QnnSaver_ConfigOption_t option;
  union { const char *outputDirectory; uint32_t appendTimestamp, backendId; QnnSaver_FileConfig_t fileConfig; };
} QnnSaver_Config_t;
#define QNN_SAVER_CONFIG_INIT {QNN_SAVER_CONFIG_OPTION_UNDEFINED, {NULL}}

QNN_API Qnn_ErrorHandle_t QnnSaver_initialize(const QnnSaver_Config_t **config);

#ifdef __cplusplus
}
#endif
#endif
