/* A recurrent layer whose states are APP_READWRITE tensors: read as its initial states, written as its last ones.
 * `tests/support/recurrent_states.py` has the same layer with a reference. */
#ifndef RECURRENT_GRAPH_H
#define RECURRENT_GRAPH_H

#include <stdint.h>
#include <string.h>

#include "QnnInterface.h"

enum { TIME = 2, FEATURES = 3, UNITS = 4, MAX_INPUTS = 25 };
enum { LSTM_VALUES = 4 * UNITS * (FEATURES + UNITS + 1) + 2 * UNITS }; /* how many numbers an Lstm takes */

typedef struct {
  const char *op;
  const char *form;           /* the inputs behind the sequence: weights, recurrent weights, biases, states, absent ones */
  uint32_t outputs;           /* the sequence, then states */
  uint32_t states[2];         /* the inputs whose next values the outputs behind the sequence are */
} Layer;

static const Layer LSTM = {"Lstm", "WWWRRRBBBSS----WR---B---", 3, {11, 10}};
static const Layer GRU = {"Gru", "WWWRRRBBBBBBS-", 2, {13, 0}};

static Qnn_Tensor_t recurrent_tensor(const char *name, Qnn_TensorType_t type, uint32_t rank, uint32_t *dims) {
  Qnn_Tensor_t made;
  memset(&made, 0, sizeof made);
  made.version = QNN_TENSOR_VERSION_1;
  made.v1.name = name;
  made.v1.type = type;
  made.v1.dataType = QNN_DATATYPE_FLOAT_32;
  made.v1.quantizeParams.encodingDefinition = QNN_DEFINITION_UNDEFINED;
  made.v1.quantizeParams.quantizationEncoding = QNN_QUANTIZATION_ENCODING_UNDEFINED;
  made.v1.rank = rank;
  made.v1.dimensions = dims;
  made.v1.memType = QNN_TENSORMEMTYPE_RAW;
  return made;
}

/* Compose the layer; `values` has what all inputs behind the sequence hold, in their order. */
static Qnn_ErrorHandle_t compose_recurrent(const QNN_INTERFACE_VER_TYPE *qnn, Qnn_BackendHandle_t backend,
                                           Qnn_ContextHandle_t context, const Layer *layer, const float *values,
                                           Qnn_GraphHandle_t *graph, Qnn_Tensor_t *x, Qnn_Tensor_t *y) {
  static uint32_t sequence[] = {TIME, 1, FEATURES}, hidden[] = {TIME, 1, UNITS}, weights[] = {UNITS, FEATURES},
                  recurrent[] = {UNITS, UNITS}, bias[] = {UNITS}, state[] = {1, 1, UNITS};
  static char names[MAX_INPUTS][8];
  Qnn_Tensor_t inputs[MAX_INPUTS], outputs[3];
  uint32_t is_lstm = layer->outputs == 3, count = (uint32_t)strlen(layer->form) + 1;
  Qnn_ErrorHandle_t error = qnn->graphCreate(context, layer->op, NULL, graph);
  *x = recurrent_tensor("x", QNN_TENSOR_TYPE_APP_WRITE, 3, sequence);
  *y = recurrent_tensor("y", QNN_TENSOR_TYPE_APP_READ, 3, hidden);
  if (!error) error = qnn->tensorCreateGraphTensor(*graph, x);
  if (!error) error = qnn->tensorCreateGraphTensor(*graph, y);
  inputs[0] = *x;
  for (uint32_t i = 1; i < count && !error; i++) {
    char kind = layer->form[i - 1];
    names[i][0] = kind;
    names[i][1] = (char)('a' + i);
    if (kind == '-') {
      inputs[i] = recurrent_tensor("", QNN_TENSOR_TYPE_NULL, 0, NULL);
      continue;
    }
    if (kind == 'W') inputs[i] = recurrent_tensor(names[i], QNN_TENSOR_TYPE_STATIC, 2, weights);
    if (kind == 'R') inputs[i] = recurrent_tensor(names[i], QNN_TENSOR_TYPE_STATIC, 2, recurrent);
    if (kind == 'B') inputs[i] = recurrent_tensor(names[i], QNN_TENSOR_TYPE_STATIC, 1, bias);
    if (kind == 'S') inputs[i] = recurrent_tensor(names[i], QNN_TENSOR_TYPE_APP_READWRITE, 3 - is_lstm, state + is_lstm);
    uint32_t elements = kind == 'W' ? UNITS * FEATURES : kind == 'R' ? UNITS * UNITS : UNITS;
    inputs[i].v1.clientBuf.data = (void *)values;
    inputs[i].v1.clientBuf.dataSize = 4 * elements;
    values += elements;
    error = qnn->tensorCreateGraphTensor(*graph, &inputs[i]);
  }
  if (error) return error;
  outputs[0] = *y;
  for (uint32_t i = 1; i < layer->outputs; i++) outputs[i] = inputs[layer->states[i - 1]];
  Qnn_Param_t time_major;
  memset(&time_major, 0, sizeof time_major);
  time_major.paramType = QNN_PARAMTYPE_SCALAR;
  time_major.name = "time_major";
  time_major.scalarParam.dataType = QNN_DATATYPE_BOOL_8;
  time_major.scalarParam.bool8Value = 1;
  Qnn_OpConfig_t config;
  memset(&config, 0, sizeof config);
  config.version = QNN_OPCONFIG_VERSION_1;
  config.v1.name = "layer";
  config.v1.packageName = "qti.aisw";
  config.v1.typeName = layer->op;
  config.v1.numOfParams = is_lstm;
  config.v1.params = &time_major;
  config.v1.numOfInputs = count;
  config.v1.inputTensors = inputs;
  config.v1.numOfOutputs = layer->outputs;
  config.v1.outputTensors = outputs;
  error = qnn->backendValidateOpConfig(backend, config);
  return error ? error : qnn->graphAddNode(*graph, config);
}

#endif
