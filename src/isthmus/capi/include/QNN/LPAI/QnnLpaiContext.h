/* LPAI's context configs.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_LPAI_CONTEXT_H
#define QNN_LPAI_CONTEXT_H

#include "../QnnContext.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_LPAI_CONTEXT_SET_CFG_MODEL_BUFFER_MEM_TYPE = 1, QNN_LPAI_CONTEXT_SET_CFG_ENABLE_ISLAND = 11,
  QNN_LPAI_CONTEXT_SET_CFG_UNDEFINED = QNN_UNDEFINED
} QnnLpaiContext_SetConfigOption_t;
#define QNN_LPAI_CONTEXT_SET_CFG_MODEL_BUFFER_MEM_TYPE_DEFAULT 1
#define QNN_LPAI_CONTEXT_SET_CFG_ENABLE_ISLAND_DEFAULT 11
typedef struct { uint32_t option; void *config; } QnnLpaiContext_CustomConfig_t;
QNN_LAYOUT(QnnLpaiContext_CustomConfig_t, 16);
#define QNN_LPAI_CONTEXT_CUSTOM_CONFIG_INIT {QNN_LPAI_CONTEXT_SET_CFG_UNDEFINED, NULL}

#ifdef __cplusplus
}
#endif
#endif
