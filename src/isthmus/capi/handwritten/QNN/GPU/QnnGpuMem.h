/* OpenCL buffers of the client, behind Qnn_MemInfoCustom_t. */
#ifndef QNN_GPU_MEM_H
#define QNN_GPU_MEM_H

#include "../QnnMem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void *QnnGpuMem_Buffer_t;
typedef enum { QNN_GPU_MEM_OPENCL = 0, QNN_GPU_MEM_UNDEFINED = QNN_UNDEFINED } QnnGpu_MemType_t;
typedef struct { QnnGpu_MemType_t memType; union { QnnGpuMem_Buffer_t buffer; }; } QnnGpu_MemInfoCustom_t;
#define QNN_GPU_MEMINFO_CUSTOM_INIT {QNN_GPU_MEM_UNDEFINED, {NULL}}
#define QNN_GPU_MEM_INFO_CUSTOM_INIT QNN_GPU_MEMINFO_CUSTOM_INIT /* as QNN's tutorial spells it */

#ifdef __cplusplus
}
#endif
#endif
