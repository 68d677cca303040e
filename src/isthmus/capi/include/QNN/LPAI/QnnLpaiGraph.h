/* LPAI's graph properties and configs: scratch and persistent memory, performance, affinity. */
#ifndef QNN_LPAI_GRAPH_H
#define QNN_LPAI_GRAPH_H

#include "../QnnGraph.h"
#include "QnnLpaiMem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t QnnLpaiGraph_GetPropertyOption_t, QnnLpaiGraph_SetConfigOption_t;
enum {
  QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE = 1, QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE = 101,
  QNN_LPAI_GRAPH_GET_PROP_UNDEFINED = QNN_UNDEFINED
};
enum {
  QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM = 1, QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM = 101,
  QNN_LPAI_GRAPH_SET_CFG_PERF_CFG = 201, QNN_LPAI_GRAPH_SET_CFG_CORE_AFFINITY = 301,
  QNN_LPAI_GRAPH_SET_CFG_PREPARE = 10001, QNN_LPAI_GRAPH_SET_CFG_UNDEFINED = QNN_UNDEFINED
};
typedef uint32_t QnnLpaiGraph_ClientPerfType_t, QnnLpaiGraph_CoreAffinityType_t;
enum {
  QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_REAL_TIME = 1, QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_NON_REAL_TIME = 2,
  QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_UNDEFINED = QNN_UNDEFINED
};
enum {
  QNN_LPAI_GRAPH_CORE_AFFINITY_SOFT = 1, QNN_LPAI_GRAPH_CORE_AFFINITY_HARD = 2,
  QNN_LPAI_GRAPH_CORE_AFFINITY_UNDEFINED = QNN_UNDEFINED
};
typedef struct { QnnLpaiMem_MemType_t memType; uint32_t size; void *addr; } QnnLpaiGraph_Mem_t;
#define QNN_LPAI_GRAPH_MEM_INIT {QNN_LPAI_MEM_TYPE_UNDEFINED, 0, NULL}
typedef struct { uint32_t fps, ftrtRatio; QnnLpaiGraph_ClientPerfType_t clientType; } QnnLpaiGraph_PerfCfg_t;
#define QNN_LPAI_GRAPH_PERF_CFG_INIT {1, 10, QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_REAL_TIME}
typedef struct { QnnLpaiGraph_CoreAffinityType_t affinity; uint32_t coreSelection; } QnnLpaiGraph_CoreAffinity_t;
#define QNN_LPAI_GRAPH_CORE_AFFINITY_INIT {QNN_LPAI_GRAPH_CORE_AFFINITY_SOFT, 0}
typedef struct {
  uint32_t enableLayerFusion, enableBatchnormFold, enableChannelAlign, enablePadSplit, excludeIo, enablePerLayer;
} QnnLpaiGraph_CustomConfigPrepare_t;
typedef struct { QnnLpaiGraph_SetConfigOption_t option; void *config; } QnnLpaiGraph_CustomConfig_t;
#define QNN_LPAI_GRAPH_CUSTOM_CONFIG_INIT {QNN_LPAI_GRAPH_SET_CFG_UNDEFINED, NULL}
typedef struct { QnnLpaiGraph_GetPropertyOption_t option; void *property; } QnnLpaiGraph_CustomProperty_t;
#define QNN_LPAI_GRAPH_CUSTOM_PROPERTY_INIT {QNN_LPAI_GRAPH_GET_PROP_UNDEFINED, NULL}

#ifdef __cplusplus
}
#endif
#endif
