/* LPAI's backend properties. */
#ifndef QNN_LPAI_BACKEND_H
#define QNN_LPAI_BACKEND_H

#include "../QnnBackend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t QnnLpaiBackend_GetPropertyOption_t;
enum {
  QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ = 0, QNN_LPAI_BACKEND_GET_PROP_REQUIRE_PERSISTENT_BINARY = 1,
  QNN_LPAI_BACKEND_GET_PROP_UNDEFINED = QNN_UNDEFINED
};
typedef struct { uint32_t startAddrAlignment, sizeAlignment; } QnnLpaiBackend_BufferAlignmentReq_t;
#define QNN_LPAI_BACKEND_ALIGNMENT_REQ_INIT {0, 0}
typedef struct { QnnLpaiBackend_GetPropertyOption_t option; void *property; } QnnLpaiBackend_CustomProperty_t;
#define QNN_LPAI_BACKEND_CUSTOM_PROPERTY_INIT {QNN_LPAI_BACKEND_GET_PROP_UNDEFINED, NULL}

#ifdef __cplusplus
}
#endif
#endif
