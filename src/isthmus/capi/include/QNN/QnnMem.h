/* Memory of the client that a backend is to use in place.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_MEM_H
#define QNN_MEM_H

#include "QnnTypes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_MEM_NO_ERROR = 0, QNN_MEM_ERROR_NOT_SUPPORTED = 1000, QNN_MEM_ERROR_INVALID_ARGUMENT = 8000,
  QNN_MEM_ERROR_INVALID_HANDLE = 8001, QNN_MEM_ERROR_ALREADY_REGISTERED = 8002, QNN_MEM_ERROR_MAPPING = 8003,
  QNN_MEM_ERROR_INVALID_SHAPE = 8004, QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE = 8005, QNN_MEM_MIN_ERROR = QNN_MIN_ERROR_MEM,
  QNN_MEM_MAX_ERROR = QNN_MAX_ERROR_MEM, QNN_MEM_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnMem_Error_t;
#define QNN_MEM_INVALID_FD (-1)
typedef enum {
  QNN_MEM_TYPE_ION = 1, QNN_MEM_TYPE_CUSTOM = 2, QNN_MEM_TYPE_DMA_BUF = 3, QNN_MEM_TYPE_UNDEFINED = QNN_UNDEFINED
} Qnn_MemType_t;
typedef struct { uint32_t numDim; uint32_t *dimSize; const char *shapeConfig; } Qnn_MemShape_t;
QNN_LAYOUT(Qnn_MemShape_t, 24);
#define QNN_MEM_SHAPE_INIT {0, NULL, NULL}
typedef struct { int32_t fd; } Qnn_MemIonInfo_t;
QNN_LAYOUT(Qnn_MemIonInfo_t, 4);
#define QNN_MEM_ION_INFO_INIT {QNN_MEM_INVALID_FD}
typedef struct { int32_t fd; void *data; } Qnn_MemDmaBufInfo_t;
QNN_LAYOUT(Qnn_MemDmaBufInfo_t, 16);
#define QNN_MEM_DMA_BUF_INFO_INIT {QNN_MEM_INVALID_FD, NULL}
typedef void *Qnn_MemInfoCustom_t;
typedef struct {
  Qnn_MemShape_t memShape; Qnn_DataType_t dataType; Qnn_MemType_t memType;
  union { Qnn_MemIonInfo_t ionInfo; Qnn_MemInfoCustom_t customInfo; Qnn_MemDmaBufInfo_t dmaBufInfo; };
} Qnn_MemDescriptor_t;
QNN_LAYOUT(Qnn_MemDescriptor_t, 48);
#define QNN_MEM_DESCRIPTOR_INIT \
  {QNN_MEM_SHAPE_INIT, QNN_DATATYPE_UNDEFINED, QNN_MEM_TYPE_UNDEFINED, {QNN_MEM_ION_INFO_INIT}}
QNN_API Qnn_ErrorHandle_t QnnMem_register(
    Qnn_ContextHandle_t context, const Qnn_MemDescriptor_t *memDescriptors, uint32_t numDescriptors,
    Qnn_MemHandle_t *memHandles);
QNN_API Qnn_ErrorHandle_t QnnMem_deRegister(const Qnn_MemHandle_t *memHandles, uint32_t numHandles);
QNN_API Qnn_ErrorHandle_t QnnMem_deregister(const Qnn_MemHandle_t *memHandles, uint32_t numHandles); /* the same */

#ifdef __cplusplus
}
#endif
#endif
