/* A model library as QNN's generator makes them: two graphs, composed through the table that it is handed by value, with
 * weights from a binary that is linked in. The table may be compiled for any version (-DENTRIES=n).
 *
 * Deeds besides, by -DDEED=n: 1 crash, 2 hang, 3 refuse, 4 name a tensor that was not created, 5 leave a process behind,
 * 6 take all memory and refuse when there is no more, 7 reach for what is forbidden and refuse if that is refused,
 * 8 the same and abort. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "QNN/QnnInterface.h"
#include "../backends/foreign/forbidden.h"

#ifndef ENTRIES
#define ENTRIES QNN_TABLE_ENTRIES
#endif
#ifndef DEED
#define DEED 0
#endif
#ifndef TARGET /* a file that it tries to write */
#define TARGET ""
#endif
#ifndef LISTENS /* whether a log callback is taken */
#define LISTENS 0
#endif
#ifndef IO_MEMORY
#define IO_MEMORY QNN_TENSORMEMTYPE_RAW
#endif
#ifndef NODE_MEMORY /* what nodes say of inputs and outputs */
#define NODE_MEMORY IO_MEMORY
#endif
#define EXPORTED __attribute__((visibility("default")))
#define COUNT(list) (sizeof(list) / sizeof(*(list)))

typedef struct { void *entries[ENTRIES]; } Table;
typedef struct {
  Qnn_GraphHandle_t graph; char *graphName; Qnn_Tensor_t *inputTensors; uint32_t numInputTensors;
  Qnn_Tensor_t *outputTensors; uint32_t numOutputTensors;
} GraphInfo_t;
typedef struct { char *graphName; const QnnGraph_Config_t **graphConfigs; } GraphConfigInfo_t;
enum { MODEL_NO_ERROR, MODEL_TENSOR_ERROR, MODEL_PARAMS_ERROR, MODEL_NODES_ERROR, MODEL_GRAPH_ERROR };

/* The linked binary: conv filters [3,3,3,8] and biases, layer weights [5,32] and biases, bytes [4,16], biases [4]. */
extern const char _binary_weights_raw_start[];
#define FLOATS(at) ((void *)(_binary_weights_raw_start + 4 * (at)))
enum { CONV_W = 0, CONV_B = 216, FC_W = 224, FC_B = 384, BYTE_W = 389, BYTE_B = 405 };

static QNN_INTERFACE_VER_TYPE qnn;
static Qnn_BackendHandle_t backend;
int seen_debug; void *seen_callback; uint32_t seen_level; /* what arrived behind the table */

static Qnn_Tensor_t tensor(const char *name, Qnn_TensorType_t type, Qnn_DataType_t dtype, uint32_t rank, uint32_t *dims,
                           void *data, uint32_t size) {
  Qnn_Tensor_t made = {.version = QNN_TENSOR_VERSION_1};
  made.v1.name = name; made.v1.type = type; made.v1.dataType = dtype; made.v1.rank = rank; made.v1.dimensions = dims;
  made.v1.quantizeParams.encodingDefinition = QNN_DEFINITION_UNDEFINED;
  made.v1.quantizeParams.quantizationEncoding = QNN_QUANTIZATION_ENCODING_UNDEFINED;
  made.v1.memType = type == QNN_TENSOR_TYPE_APP_WRITE || type == QNN_TENSOR_TYPE_APP_READ ? IO_MEMORY : QNN_TENSORMEMTYPE_RAW;
  made.v1.clientBuf.data = data; made.v1.clientBuf.dataSize = size;
  return made;
}

static Qnn_Tensor_t scaled(Qnn_Tensor_t made, float scale, int32_t offset) {
  made.v1.quantizeParams.encodingDefinition = QNN_DEFINITION_DEFINED;
  made.v1.quantizeParams.quantizationEncoding = QNN_QUANTIZATION_ENCODING_SCALE_OFFSET;
  made.v1.quantizeParams.scaleOffsetEncoding = (Qnn_ScaleOffset_t){scale, offset};
  return made;
}

static uint32_t add(Qnn_GraphHandle_t graph, const char *name, const char *type, Qnn_Param_t *params, uint32_t count,
                    Qnn_Tensor_t *inputs, uint32_t inputCount, Qnn_Tensor_t *output) {
  for (uint32_t i = 0; i < inputCount; i++)
    if (inputs[i].v1.type == QNN_TENSOR_TYPE_APP_WRITE) inputs[i].v1.memType = NODE_MEMORY;
  if (output->v1.type == QNN_TENSOR_TYPE_APP_READ) output->v1.memType = NODE_MEMORY;
  Qnn_OpConfig_t op = {QNN_OPCONFIG_VERSION_1, {{name, "qti.aisw", type, count, params, inputCount, inputs, 1, output}}};
  if (qnn.backendValidateOpConfig(backend, op)) return MODEL_NODES_ERROR;
  return qnn.graphAddNode(graph, op) ? MODEL_NODES_ERROR : MODEL_NO_ERROR;
}

static uint32_t create(Qnn_GraphHandle_t graph, Qnn_Tensor_t *tensors, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (qnn.tensorCreateGraphTensor(graph, &tensors[i])) return MODEL_TENSOR_ERROR;
  return MODEL_NO_ERROR;
}

static GraphInfo_t *info(Qnn_GraphHandle_t graph, const char *name, Qnn_Tensor_t input, Qnn_Tensor_t output) {
  GraphInfo_t *made = calloc(1, sizeof *made);
  made->graph = graph; made->graphName = strdup(name);
  made->inputTensors = malloc(sizeof input); made->inputTensors[0] = input; made->numInputTensors = 1;
  made->outputTensors = malloc(sizeof output); made->outputTensors[0] = output; made->numOutputTensors = 1;
  return made;
}

static uint32_t two[] = {2}, square[] = {2, 2}, strides[] = {2, 2}, pads[] = {1, 1, 1, 1}, none[] = {0, 0, 0, 0};

/* Convolution, ReLU by its number, pooling, reshape, a layer, softmax; tensors of version 2. */
static uint32_t image(Qnn_ContextHandle_t context, const QnnGraph_Config_t **configs, GraphInfo_t **out) {
  static uint32_t x[] = {1, 8, 8, 3}, w[] = {3, 3, 3, 8}, b[] = {8}, c[] = {1, 4, 4, 8}, p[] = {1, 2, 2, 8}, f[] = {1, 32},
                  fw[] = {5, 32}, fb[] = {5}, y[] = {1, 5};
  const Qnn_DataType_t F = QNN_DATATYPE_FLOAT_32, U = QNN_DATATYPE_UINT_32;
  const Qnn_TensorType_t S = QNN_TENSOR_TYPE_STATIC, N = QNN_TENSOR_TYPE_NATIVE;
  Qnn_GraphHandle_t graph;
  if (qnn.graphCreate(context, "image", configs, &graph)) return MODEL_GRAPH_ERROR;
  Qnn_Tensor_t t[] = {
      tensor("x", QNN_TENSOR_TYPE_APP_WRITE, F, 4, x, NULL, 0), tensor("conv_w", S, F, 4, w, FLOATS(CONV_W), 864),
      tensor("conv_b", S, F, 1, b, FLOATS(CONV_B), 32), tensor("conv", N, F, 4, c, NULL, 0),
      tensor("relu", N, F, 4, c, NULL, 0), tensor("pool", N, F, 4, p, NULL, 0), tensor("flat", N, F, 2, f, NULL, 0),
      tensor("fc_w", S, F, 2, fw, FLOATS(FC_W), 640), tensor("fc_b", S, F, 1, fb, FLOATS(FC_B), 20),
      tensor("logits", N, F, 2, y, NULL, 0), tensor("probabilities", QNN_TENSOR_TYPE_APP_READ, F, 2, y, NULL, 0),
      tensor("conv_stride", S, U, 1, two, strides, 8), tensor("conv_pads", S, U, 2, square, pads, 16),
      tensor("pool_size", S, U, 1, two, strides, 8), tensor("pool_stride", S, U, 1, two, strides, 8),
      tensor("pool_pads", S, U, 2, square, none, 16)};
  for (unsigned i = 0; i < COUNT(t); i++) t[i].version = QNN_TENSOR_VERSION_2;
  if (create(graph, t, COUNT(t))) return MODEL_TENSOR_ERROR;
  Qnn_Tensor_t layer[] = {t[6], t[7], t[8]};
  Qnn_Param_t conv[] = {{QNN_PARAMTYPE_TENSOR, "stride", {.tensorParam = t[11]}},
                        {QNN_PARAMTYPE_TENSOR, "pad_amount", {.tensorParam = t[12]}},
                        {QNN_PARAMTYPE_SCALAR, "group", {.scalarParam = {U, {.uint32Value = 1}}}}};
  Qnn_Param_t relu[] = {{QNN_PARAMTYPE_SCALAR, "operation", {.scalarParam = {U, {.uint32Value = 4}}}}};
  Qnn_Param_t pool[] = {{QNN_PARAMTYPE_TENSOR, "filter_size", {.tensorParam = t[13]}},
                        {QNN_PARAMTYPE_TENSOR, "stride", {.tensorParam = t[14]}},
                        {QNN_PARAMTYPE_TENSOR, "pad_amount", {.tensorParam = t[15]}}};
  Qnn_Param_t softmax[] = {{QNN_PARAMTYPE_SCALAR, "axis", {.scalarParam = {U, {.uint32Value = 1}}}},
                           {QNN_PARAMTYPE_SCALAR, "beta", {.scalarParam = {F, {.floatValue = 1.0f}}}}};
  if (DEED == 4) t[3].v1.id = 4711;
  uint32_t wrong = add(graph, "conv", "Conv2d", conv, 3, t, 3, &t[3]);
  wrong = wrong ? wrong : add(graph, "relu", "ElementWiseNeuron", relu, 1, &t[3], 1, &t[4]);
  wrong = wrong ? wrong : add(graph, "pool", "PoolMax2d", pool, 3, &t[4], 1, &t[5]);
  wrong = wrong ? wrong : add(graph, "flat", "Reshape", NULL, 0, &t[5], 1, &t[6]);
  wrong = wrong ? wrong : add(graph, "fc", "FullyConnected", NULL, 0, layer, 3, &t[9]);
  wrong = wrong ? wrong : add(graph, "softmax", "Softmax", softmax, 2, &t[9], 1, &t[10]);
  if (!wrong) *out = info(graph, "image", t[0], t[10]);
  return wrong;
}

/* A layer of bytes with a scale for each of its outputs. */
static uint32_t bytes(Qnn_ContextHandle_t context, const QnnGraph_Config_t **configs, GraphInfo_t **out) {
  static uint32_t x[] = {1, 16}, w[] = {4, 16}, b[] = {4}, y[] = {1, 4};
  static Qnn_ScaleOffset_t scales[] = {{0.01f, 0}, {0.02f, 0}, {0.03f, 0}, {0.04f, 0}};
  static Qnn_ScaleOffset_t biasScales[] = {{0.0005f, 0}, {0.001f, 0}, {0.0015f, 0}, {0.002f, 0}};
  const Qnn_DataType_t U = QNN_DATATYPE_UFIXED_POINT_8;
  Qnn_GraphHandle_t graph;
  if (qnn.graphCreate(context, "bytes", configs, &graph)) return MODEL_GRAPH_ERROR;
  Qnn_Tensor_t t[] = {
      scaled(tensor("x", QNN_TENSOR_TYPE_APP_WRITE, U, 2, x, NULL, 0), 0.05f, -10),
      tensor("w", QNN_TENSOR_TYPE_STATIC, QNN_DATATYPE_SFIXED_POINT_8, 2, w, FLOATS(BYTE_W), 64),
      tensor("b", QNN_TENSOR_TYPE_STATIC, QNN_DATATYPE_SFIXED_POINT_32, 1, b, FLOATS(BYTE_B), 16),
      scaled(tensor("y", QNN_TENSOR_TYPE_APP_READ, U, 2, y, NULL, 0), 0.5f, -128)};
  for (int i = 1; i <= 2; i++) {
    Qnn_QuantizeParams_t *params = &t[i].v1.quantizeParams;
    params->encodingDefinition = QNN_DEFINITION_DEFINED;
    params->quantizationEncoding = QNN_QUANTIZATION_ENCODING_AXIS_SCALE_OFFSET;
    params->axisScaleOffsetEncoding = (Qnn_AxisScaleOffset_t){0, 4, i == 1 ? scales : biasScales};
  }
  if (create(graph, t, COUNT(t))) return MODEL_TENSOR_ERROR;
  uint32_t wrong = add(graph, "fc", "FullyConnected", NULL, 0, t, 3, &t[3]);
  if (!wrong) *out = info(graph, "bytes", t[0], t[3]);
  return wrong;
}

EXPORTED uint32_t QnnModel_composeGraphs(Qnn_BackendHandle_t backendHandle, Table table, Qnn_ContextHandle_t context,
                                         const GraphConfigInfo_t **configs, const uint32_t numConfigs,
                                         GraphInfo_t ***graphs, uint32_t *numGraphs, bool debug,
                                         QnnLog_Callback_t callback, QnnLog_Level_t level) {
  seen_debug = debug; seen_callback = (void *)callback; seen_level = level;
  memcpy(&qnn, &table, sizeof table < sizeof qnn ? sizeof table : sizeof qnn);
  backend = backendHandle;
  if (debug || (!LISTENS && (callback || level)) || configs || numConfigs) return 8;
  if (DEED == 1) *(volatile int *)16 = 1;
  if (DEED == 2) for (;;) pause();
  if (DEED == 3) return MODEL_PARAMS_ERROR;
  if (DEED >= 7 && refused_calls(TARGET) == FORBIDDEN_CALLS) { if (DEED == 8) abort(); return MODEL_PARAMS_ERROR; }
  if (DEED == 5 && !fork()) for (;;) pause();
  if (DEED == 6) for (size_t size = (size_t)1 << 30;; size *= 2) if (!malloc(size)) return MODEL_TENSOR_ERROR;
  *graphs = malloc(2 * sizeof **graphs);
  uint32_t wrong = image(context, NULL, &(*graphs)[0]);
  wrong = wrong ? wrong : bytes(context, NULL, &(*graphs)[1]);
  *numGraphs = wrong ? 0 : 2;
  return wrong;
}

EXPORTED uint32_t QnnModel_freeGraphsInfo(GraphInfo_t ***graphs, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    free((*graphs)[i]->graphName); free((*graphs)[i]->inputTensors); free((*graphs)[i]->outputTensors); free((*graphs)[i]);
  }
  free(*graphs);
  return MODEL_NO_ERROR;
}
