/* LPAI's options of preparation.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_LPAI_GRAPH_PREPARE_H
#define QNN_LPAI_GRAPH_PREPARE_H

#include "QnnLpaiGraph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { QNN_LPAI_GRAPH_SET_CFG_PREPARE = 10001 } QnnLpaiGraph_ConfigPrepareOption_t;
typedef struct { uint32_t enablePerLayer; char *enableCoreSelection; } QnnLpaiGraph_CustomConfigPrepare_t;
QNN_LAYOUT(QnnLpaiGraph_CustomConfigPrepare_t, 16);
#define QNN_LPAI_GRAPH_CUSTOM_CONFIG_PREPARE_INIT {0, NULL}

#ifdef __cplusplus
}
#endif
#endif
