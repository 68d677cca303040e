/* LPAI's kinds of memory, and its descriptor behind Qnn_MemInfoCustom_t.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_LPAI_MEM_H
#define QNN_LPAI_MEM_H

#include "../QnnMem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_LPAI_MEM_TYPE_DDR = 1, QNN_LPAI_MEM_TYPE_LLC = 2, QNN_LPAI_MEM_TYPE_TCM = 3,
  QNN_LPAI_MEM_TYPE_UNDEFINED = QNN_UNDEFINED
} QnnLpaiMem_MemType_t;
typedef struct { int32_t fd; uint32_t offset; } QnnLpaiMem_MemInfoCustom_t;
QNN_LAYOUT(QnnLpaiMem_MemInfoCustom_t, 8);

#ifdef __cplusplus
}
#endif
#endif
