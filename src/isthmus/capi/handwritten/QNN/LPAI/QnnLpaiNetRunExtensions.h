/* Buffers for inputs and outputs of graphs on LPAI: the functions of libQnnLpaiNetRunExtensions.so.
 * Their names are this project's own: QNN's library of that name has no public interface. */
#ifndef QNN_LPAI_NET_RUN_EXTENSIONS_H
#define QNN_LPAI_NET_RUN_EXTENSIONS_H

#include "../QnnTypes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A buffer in the memory type of a context (DDR, or TCM in direct mode), aligned as its backend asks and with its size
 * rounded up. NULL where there is none; the log of the backend says why. It must be freed. */
void *QnnLpaiNetRunExtensions_allocateBuffer(Qnn_ContextHandle_t context, uint32_t size);

/* Free a buffer. While an execution may still use it, it is freed when its context is. */
void QnnLpaiNetRunExtensions_freeBuffer(void *buffer);

#ifdef __cplusplus
}
#endif
#endif
