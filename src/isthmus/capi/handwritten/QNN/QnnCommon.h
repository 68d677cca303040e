/* Handles, error codes and versions that all of QNN's headers share. Core API 2.40.
 *
 * The headers in this folder are written for this project from QNN's public names and the observed layout, for 64-bit
 * machines. Every enumeration is 32 bits wide, an error 64. isthmus.cabi declares the same layouts for Python,
 * and tests compare the two. */
#ifndef QNN_COMMON_H
#define QNN_COMMON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define QNN_LAYOUT(type, size) static_assert(sizeof(type) == (size), #type)
extern "C" {
#else
#define QNN_LAYOUT(type, size) _Static_assert(sizeof(type) == (size), #type)
#endif

#ifndef QNN_API
#define QNN_API
#endif

#define QNN_API_VERSION_MAJOR 2
#define QNN_API_VERSION_MINOR 40
#define QNN_API_VERSION_PATCH 0

#define QNN_UNDEFINED 0x7FFFFFFF
#define QNN_SUCCESS 0
#define QNN_GET_ERROR_CODE(error) ((error) & 0xFFFF)
#define QNN_BACKEND_ID_NULL 0

/* -- the ranges of error codes ------------------------------------------------------------------------------------- */

#define QNN_MIN_ERROR_COMMON 1000
#define QNN_MAX_ERROR_COMMON 1999
#define QNN_MIN_ERROR_PROPERTY 2000
#define QNN_MAX_ERROR_PROPERTY 2999
#define QNN_MIN_ERROR_OP_PACKAGE 3000
#define QNN_MAX_ERROR_OP_PACKAGE 3999
#define QNN_MIN_ERROR_BACKEND 4000
#define QNN_MAX_ERROR_BACKEND 4999
#define QNN_MIN_ERROR_BACKEND_SAVER 4950
#define QNN_MAX_ERROR_BACKEND_SAVER 4998
#define QNN_MIN_ERROR_CONTEXT 5000
#define QNN_MAX_ERROR_CONTEXT 5999
#define QNN_MIN_ERROR_GRAPH 6000
#define QNN_MAX_ERROR_GRAPH 6999
#define QNN_MIN_ERROR_TENSOR 7000
#define QNN_MAX_ERROR_TENSOR 7999
#define QNN_MIN_ERROR_MEM 8000
#define QNN_MAX_ERROR_MEM 8999
#define QNN_MIN_ERROR_SIGNAL 9000
#define QNN_MAX_ERROR_SIGNAL 9999
#define QNN_MIN_ERROR_ERROR 10000
#define QNN_MAX_ERROR_ERROR 10999
#define QNN_MIN_ERROR_LOG 11000
#define QNN_MAX_ERROR_LOG 11999
#define QNN_MIN_ERROR_PROFILE 12000
#define QNN_MAX_ERROR_PROFILE 12999
#define QNN_MIN_ERROR_PERF_INFRASTRUCTURE 13000
#define QNN_MAX_ERROR_PERF_INFRASTRUCTURE 13999
#define QNN_MIN_ERROR_DEVICE 14000
#define QNN_MAX_ERROR_DEVICE 14999
#define QNN_MIN_ERROR_SYSTEM 30000
#define QNN_MAX_ERROR_SYSTEM 49999
#define QNN_MIN_ERROR_INTERFACE 60000
#define QNN_MAX_ERROR_INTERFACE 60999

typedef uint64_t Qnn_ErrorHandle_t;
typedef enum {
  QNN_COMMON_ERROR_NOT_SUPPORTED = 1000,
  QNN_COMMON_ERROR_MEM_ALLOC = 1002,
  QNN_COMMON_ERROR_SYSTEM = 1003,
  QNN_COMMON_ERROR_INVALID_ARGUMENT = 1004,
  QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED = 1005,
  QNN_COMMON_ERROR_PLATFORM_NOT_SUPPORTED = 1006,
  QNN_COMMON_ERROR_SYSTEM_COMMUNICATION = 1007,
  QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES = 1008,
  QNN_COMMON_ERROR_LOADING_BINARIES = 1009,
  QNN_COMMON_ERROR_RESOURCE_UNAVAILABLE = 1010,
  QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL = 1011,
  QNN_COMMON_ERROR_GENERAL = 1100,
  QNN_COMMON_MIN_ERROR = QNN_MIN_ERROR_COMMON,
  QNN_COMMON_MAX_ERROR = QNN_MAX_ERROR_COMMON,
  QNN_COMMON_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnCommon_Error_t;

/* -- handles ------------------------------------------------------------------------------------------------------- */

typedef void *Qnn_Handle_t;
typedef Qnn_Handle_t Qnn_BackendHandle_t, Qnn_ContextHandle_t, Qnn_DeviceHandle_t, Qnn_GraphHandle_t, Qnn_LogHandle_t,
    Qnn_MemHandle_t, Qnn_OpPackageHandle_t, Qnn_ProfileHandle_t, Qnn_SignalHandle_t;

#ifdef __cplusplus
}
#endif
#endif
