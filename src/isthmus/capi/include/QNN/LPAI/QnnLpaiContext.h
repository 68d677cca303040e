/* LPAI's context configs. */
#ifndef QNN_LPAI_CONTEXT_H
#define QNN_LPAI_CONTEXT_H

#include "../QnnContext.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t QnnLpaiContext_SetConfigOption_t;
enum {
  QNN_LPAI_CONTEXT_SET_CFG_MODEL_BUFFER_MEM_TYPE = 1, QNN_LPAI_CONTEXT_SET_CFG_ENABLE_ISLAND = 11,
  QNN_LPAI_CONTEXT_SET_CFG_UNDEFINED = QNN_UNDEFINED
};
typedef struct { QnnLpaiContext_SetConfigOption_t option; void *config; } QnnLpaiContext_CustomConfig_t;
#define QNN_LPAI_CONTEXT_CUSTOM_CONFIG_INIT {QNN_LPAI_CONTEXT_SET_CFG_UNDEFINED, NULL}

#ifdef __cplusplus
}
#endif
#endif
