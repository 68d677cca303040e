/* HTP's memory, behind Qnn_MemInfoCustom_t: several tensors in one buffer, and buffers of a deferred context. */
#ifndef QNN_HTP_MEM_H
#define QNN_HTP_MEM_H

#include "../QnnMem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number of QNN_HTP_MEM_SHARED_VTCMBACKUP_BUFFER is this project's; QNN's is not public. */
typedef enum {
  QNN_HTP_MEM_QURT = 0, QNN_HTP_MEM_SHARED_BUFFER = 1, QNN_HTP_MEM_WEIGHTS_BUFFER = 2,
  QNN_HTP_MEM_SHARED_SPILLFILL_BUFFER = 3, QNN_HTP_MEM_SHARED_VTCMBACKUP_BUFFER = 4,
  QNN_HTP_MEM_UNDEFINED = QNN_UNDEFINED
} QnnHtpMem_Type_t;
typedef uint32_t QnnHtpMem_QurtAddress_t;
typedef struct { int32_t fd; uint64_t offset; } QnnHtpMem_SharedBufferConfig_t;
typedef struct {
  QnnHtpMem_Type_t type; uint64_t size;
  union { QnnHtpMem_QurtAddress_t qurtAddress; QnnHtpMem_SharedBufferConfig_t sharedBufferConfig; };
} QnnMemHtp_Descriptor_t;

#ifdef __cplusplus
}
#endif
#endif
