/* LPAI's graph properties and configs: scratch and persistent memory, performance, affinity.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_LPAI_GRAPH_H
#define QNN_LPAI_GRAPH_H

#include "../QnnGraph.h"
#include "QnnLpaiMem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE = 1, QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE = 101,
  QNN_LPAI_GRAPH_GET_PROP_UNDEFINED = QNN_UNDEFINED
} QnnLpaiGraph_GetPropertyOption_t;
typedef enum {
  QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM = 1, QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM = 101,
  QNN_LPAI_GRAPH_SET_CFG_PERF_CFG = 201, QNN_LPAI_GRAPH_SET_CFG_CORE_AFFINITY = 301,
  QNN_LPAI_GRAPH_SET_CFG_UNDEFINED = QNN_UNDEFINED
} QnnLpaiGraph_SetConfigOption_t;
#define QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE_DEFAULT 1
#define QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE_DEFAULT 101
#define QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM_DEFAULT 1
#define QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM_DEFAULT 101
#define QNN_LPAI_GRAPH_SET_CFG_PERF_CFG_DEFAULT 201
#define QNN_LPAI_GRAPH_SET_CFG_CORE_AFFINITY_DEFAULT 301
#define QNN_LPAI_GRAPH_SET_CFG_PREPARE_DEFAULT 10001
typedef enum {
  QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_REAL_TIME = 1, QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_NON_REAL_TIME = 2,
  QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_UNDEFINED = QNN_UNDEFINED
} QnnLpaiGraph_ClientPerfType_t;
typedef enum {
  QNN_LPAI_GRAPH_CORE_AFFINITY_SOFT = 1, QNN_LPAI_GRAPH_CORE_AFFINITY_HARD = 2,
  QNN_LPAI_GRAPH_CORE_AFFINITY_UNDEFINED = QNN_UNDEFINED
} QnnLpaiGraph_CoreAffinityType_t;
#define QNN_LPAI_GRAPH_DEFAULT_FPS 1
#define QNN_LPAI_GRAPH_DEFAULT_FTRT_RATIO 10
typedef struct { QnnLpaiMem_MemType_t memType; uint32_t size; void *addr; } QnnLpaiGraph_Mem_t;
QNN_LAYOUT(QnnLpaiGraph_Mem_t, 16);
#define QNN_LPAI_GRAPH_MEM_INIT {QNN_LPAI_MEM_TYPE_UNDEFINED, 0, NULL}
typedef struct { uint32_t fps, ftrtRatio; QnnLpaiGraph_ClientPerfType_t clientType; } QnnLpaiGraph_PerfCfg_t;
QNN_LAYOUT(QnnLpaiGraph_PerfCfg_t, 12);
#define QNN_LPAI_GRAPH_PERF_CFG_INIT \
  {QNN_LPAI_GRAPH_DEFAULT_FPS, QNN_LPAI_GRAPH_DEFAULT_FTRT_RATIO, QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_REAL_TIME}
typedef struct { QnnLpaiGraph_CoreAffinityType_t affinity; uint32_t coreSelection; } QnnLpaiGraph_CoreAffinity_t;
QNN_LAYOUT(QnnLpaiGraph_CoreAffinity_t, 8);
#define QNN_LPAI_GRAPH_CORE_AFFINITY_INIT {QNN_LPAI_GRAPH_CORE_AFFINITY_SOFT, 0}
#define QNN_LPAI_CORE_AFFINITY(core, affinity) {(affinity), 1U << (core)}
typedef struct { uint32_t option; void *config; } QnnLpaiGraph_CustomConfig_t;
QNN_LAYOUT(QnnLpaiGraph_CustomConfig_t, 16);
#define QNN_LPAI_GRAPH_CUSTOM_CONFIG_INIT {QNN_LPAI_GRAPH_SET_CFG_UNDEFINED, NULL}
typedef struct { uint32_t option; void *property; } QnnLpaiGraph_CustomProperty_t;
QNN_LAYOUT(QnnLpaiGraph_CustomProperty_t, 16);
#define QNN_LPAI_GRAPH_CUSTOM_PROPERTY_INIT {QNN_LPAI_GRAPH_GET_PROP_UNDEFINED, NULL}

#ifdef __cplusplus
}
#endif
#endif
