/* A model library with two recurrent layers that keep their states; what their inputs hold is linked in. */
#include <stdbool.h>
#include <stdlib.h>

#include "recurrent_graph.h"

#define EXPORTED __attribute__((visibility("default")))

typedef struct {
  Qnn_GraphHandle_t graph; char *graphName; Qnn_Tensor_t *inputTensors; uint32_t numInputTensors;
  Qnn_Tensor_t *outputTensors; uint32_t numOutputTensors;
} GraphInfo_t;
typedef struct { char *graphName; const QnnGraph_Config_t **graphConfigs; } GraphConfigInfo_t;

extern const char _binary_weights_raw_start[];

EXPORTED uint32_t QnnModel_composeGraphs(Qnn_BackendHandle_t backend, QNN_INTERFACE_VER_TYPE qnn,
                                         Qnn_ContextHandle_t context, const GraphConfigInfo_t **configs,
                                         const uint32_t numConfigs, GraphInfo_t ***graphs, uint32_t *numGraphs,
                                         bool debug, QnnLog_Callback_t callback, QnnLog_Level_t level) {
  static GraphInfo_t infos[2], *found[2];
  static Qnn_Tensor_t inputs[2], outputs[2];
  const Layer *layers[] = {&LSTM, &GRU};
  const float *values = (const float *)_binary_weights_raw_start;
  (void)configs, (void)numConfigs, (void)debug, (void)callback, (void)level;
  for (int i = 0; i < 2; i++) {
    if (compose_recurrent(&qnn, backend, context, layers[i], values + i * LSTM_VALUES, &infos[i].graph, &inputs[i],
                          &outputs[i])) return 1;
    infos[i].graphName = (char *)layers[i]->op;
    infos[i].inputTensors = &inputs[i]; infos[i].numInputTensors = 1;
    infos[i].outputTensors = &outputs[i]; infos[i].numOutputTensors = 1;
    found[i] = &infos[i];
  }
  *graphs = found;
  *numGraphs = 2;
  return 0;
}

EXPORTED uint32_t QnnModel_freeGraphsInfo(GraphInfo_t ***graphs, uint32_t count) {
  (void)graphs, (void)count;
  return 0;
}
