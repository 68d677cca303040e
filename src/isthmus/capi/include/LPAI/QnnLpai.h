/* LPAI's structures behind custom configs, properties and memory descriptors. */
#ifndef ISTHMUS_QNN_LPAI_H
#define ISTHMUS_QNN_LPAI_H

#include "../QnnTypes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_LPAI_MEM_TYPE_DDR = 1, QNN_LPAI_MEM_TYPE_LLC = 2, QNN_LPAI_MEM_TYPE_TCM = 3,
  QNN_LPAI_MEM_TYPE_UNDEFINED = QNN_UNDEFINED
} QnnLpaiMem_MemType_t;
typedef struct { int32_t fd; uint32_t offset; } QnnLpaiMem_MemInfoCustom_t;

enum {
  QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ = 0, QNN_LPAI_BACKEND_GET_PROP_REQUIRE_PERSISTENT_BINARY = 1,
  QNN_LPAI_BACKEND_GET_PROP_UNDEFINED = QNN_UNDEFINED
};
typedef struct { uint32_t startAddrAlignment, sizeAlignment; } QnnLpaiBackend_BufferAlignmentReq_t;
typedef struct { uint32_t option; void *property; } QnnLpaiBackend_CustomProperty_t;

enum {
  QNN_LPAI_CONTEXT_SET_CFG_MODEL_BUFFER_MEM_TYPE = 1, QNN_LPAI_CONTEXT_SET_CFG_ENABLE_ISLAND = 11,
  QNN_LPAI_CONTEXT_SET_CFG_UNDEFINED = QNN_UNDEFINED
};
typedef struct { uint32_t option; void *config; } QnnLpaiContext_CustomConfig_t;

enum {
  QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE = 1, QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE = 101,
  QNN_LPAI_GRAPH_GET_PROP_UNDEFINED = QNN_UNDEFINED
};
enum {
  QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM = 1, QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM = 101,
  QNN_LPAI_GRAPH_SET_CFG_PERF_CFG = 201, QNN_LPAI_GRAPH_SET_CFG_CORE_AFFINITY = 301,
  QNN_LPAI_GRAPH_SET_CFG_PREPARE = 10001, QNN_LPAI_GRAPH_SET_CFG_UNDEFINED = QNN_UNDEFINED
};
enum { QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_REAL_TIME = 1, QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_NON_REAL_TIME = 2 };
enum { QNN_LPAI_GRAPH_CORE_AFFINITY_SOFT = 1, QNN_LPAI_GRAPH_CORE_AFFINITY_HARD = 2 };
typedef struct { QnnLpaiMem_MemType_t memType; uint32_t size; void *addr; } QnnLpaiGraph_Mem_t;
typedef struct { uint32_t fps, ftrtRatio, clientType; } QnnLpaiGraph_PerfCfg_t;
typedef struct { uint32_t affinity, coreSelection; } QnnLpaiGraph_CoreAffinity_t;
typedef struct {
  uint32_t enableLayerFusion, enableBatchnormFold, enableChannelAlign, enablePadSplit, excludeIo, enablePerLayer;
} QnnLpaiGraph_CustomConfigPrepare_t;
typedef struct { uint32_t option; void *config; } QnnLpaiGraph_CustomConfig_t;
typedef struct { uint32_t option; void *property; } QnnLpaiGraph_CustomProperty_t;

#ifdef __cplusplus
}
#endif
#endif
