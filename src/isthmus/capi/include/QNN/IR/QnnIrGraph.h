/* IR's graph config, behind QnnGraph_CustomConfig_t: the file that a graph is written to.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_IR_GRAPH_H
#define QNN_IR_GRAPH_H

#include "../QnnGraph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { QNN_IR_GRAPH_SERIALIZATION_TYPE_FLAT_BUFFER = 1 } QnnIrGraph_SerializationType_t;
typedef enum {
  QNN_IR_GRAPH_CONFIG_OPTION_SERIALIZATION = 1, QNN_IR_GRAPH_CONFIG_OPTION_UNKNOWN = QNN_UNDEFINED
} QnnIrGraph_ConfigOption_t;
typedef struct {
  QnnIrGraph_SerializationType_t serializationType; const char *outputPath;
} QnnIrGraph_SerializationOption_t;
QNN_LAYOUT(QnnIrGraph_SerializationOption_t, 16);
#define QNN_IR_GRAPH_SERIALIZATION_OPTION_INIT {QNN_IR_GRAPH_SERIALIZATION_TYPE_FLAT_BUFFER, ""}
typedef struct {
  QnnIrGraph_ConfigOption_t option;
  union { QnnIrGraph_SerializationOption_t serializationOption; };
} QnnIrGraph_CustomConfig_t;
QNN_LAYOUT(QnnIrGraph_CustomConfig_t, 24);
#define QNN_IR_GRAPH_CUSTOM_CONFIG_INIT \
  {QNN_IR_GRAPH_CONFIG_OPTION_SERIALIZATION, {QNN_IR_GRAPH_SERIALIZATION_OPTION_INIT}}

#ifdef __cplusplus
}
#endif
#endif
