/* Memory that an application shares with its accelerator: the functions of libcdsprpc.so. */
#ifndef ISTHMUS_RPCMEM_H
#define ISTHMUS_RPCMEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RPCMEM_HEAP_ID_SYSTEM 25
#define RPCMEM_DEFAULT_FLAGS 1

void rpcmem_init(void);
void rpcmem_deinit(void);
void *rpcmem_alloc(int heapid, uint32_t flags, int size);
void *rpcmem_alloc2(int heapid, uint32_t flags, size_t size);
void rpcmem_free(void *memory);
int rpcmem_to_fd(void *memory);
void remote_register_buf(void *memory, int size, int fd);
void remote_register_buf_attr(void *memory, int size, int fd, int attributes);
void remote_register_buf_attr2(void *memory, size_t size, int fd, int attributes);

#ifdef __cplusplus
}
#endif
#endif
