/* How soon a client is ready: a convolution, a relu, a sum and a fully connected layer, in floats or in 8 bits.
 *
 *     ready LIBRARY_FOLDER LIBRARY float|fixed [validate]
 *
 * Prints the seconds from the start of the program to the end of each step, and the bytes of the result. With
 * "validate" it asks only whether the operations are supported. */
#include "qnn_client.h"

#include <time.h>

enum { SIDE = 8, CHANNELS = 3, FILTERS = 8, TAPS = 3, CLASSES = 10, FLAT = SIDE * SIDE * FILTERS };
static QNN_INTERFACE_VER_TYPE qnn;
static struct timespec began;

static void reached(const char *step) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  printf("%s %.4f\n", step, (double)(now.tv_sec - began.tv_sec) + 1e-9 * (double)(now.tv_nsec - began.tv_nsec));
  fflush(stdout);
}

/* A tensor in floats, or in unsigned bytes with a scale; `data` makes it static. */
static Qnn_Tensor_t tensor(int fixed, const char *name, Qnn_TensorType_t type, uint32_t rank, uint32_t *dims,
                           void *data) {
  Qnn_Tensor_t made = described(name, type, fixed ? QNN_DATATYPE_UFIXED_POINT_8 : QNN_DATATYPE_FLOAT_32, rank, dims);
  if (fixed) {
    made.v1.quantizeParams.encodingDefinition = QNN_DEFINITION_DEFINED;
    made.v1.quantizeParams.quantizationEncoding = QNN_QUANTIZATION_ENCODING_SCALE_OFFSET;
    made.v1.quantizeParams.scaleOffsetEncoding.scale = 0.05f;
    made.v1.quantizeParams.scaleOffsetEncoding.offset = -128;
  }
  if (data) {
    made.v1.clientBuf.data = data;
    made.v1.clientBuf.dataSize = (uint32_t)tensor_bytes(&made);
  }
  return made;
}

/* Weights that are neither all alike nor large, in floats or in bytes around their zero point. */
static void *weights(int fixed, size_t count) {
  void *made = malloc(count * sizeof(float));
  for (size_t i = 0; i < count; i++) {
    int value = (int)(i * 7 % 11) - 5;
    if (fixed) ((uint8_t *)made)[i] = (uint8_t)(128 + value);
    else ((float *)made)[i] = 0.05f * (float)value;
  }
  return made;
}

int main(int argc, char **argv) {
  REQUIRE(argc >= 4);
  int fixed = !strcmp(argv[3], "fixed"), validate = argc > 4;
  clock_gettime(CLOCK_MONOTONIC, &began);
  qnn = table_of(argv[1], argv[2]);
  reached("loaded");
  Qnn_BackendHandle_t backend = NULL;
  Qnn_ContextHandle_t context = NULL;
  Qnn_GraphHandle_t graph = NULL;
  CHECK(qnn.backendCreate(NULL, NULL, &backend));
  reached("backend");

  uint32_t image[4] = {1, SIDE, SIDE, CHANNELS}, filter[4] = {TAPS, TAPS, CHANNELS, FILTERS}, two[1] = {2};
  uint32_t maps[4] = {1, SIDE, SIDE, FILTERS}, matrix[2] = {CLASSES, FLAT}, scores[2] = {1, CLASSES}, four[2] = {2, 2};
  uint32_t strides[2] = {1, 1}, margins[4] = {1, 1, 1, 1};
  Qnn_Tensor_t x = tensor(fixed, "x", QNN_TENSOR_TYPE_APP_WRITE, 4, image, NULL);
  Qnn_Tensor_t taps = tensor(fixed, "taps", QNN_TENSOR_TYPE_STATIC, 4, filter,
                             weights(fixed, TAPS * TAPS * CHANNELS * FILTERS));
  Qnn_Tensor_t convolved = tensor(fixed, "convolved", QNN_TENSOR_TYPE_NATIVE, 4, maps, NULL);
  Qnn_Tensor_t positive = tensor(fixed, "positive", QNN_TENSOR_TYPE_NATIVE, 4, maps, NULL);
  Qnn_Tensor_t summed = tensor(fixed, "summed", QNN_TENSOR_TYPE_NATIVE, 4, maps, NULL);
  Qnn_Tensor_t layer = tensor(fixed, "layer", QNN_TENSOR_TYPE_STATIC, 2, matrix, weights(fixed, CLASSES * FLAT));
  Qnn_Tensor_t y = tensor(fixed, "y", QNN_TENSOR_TYPE_APP_READ, 2, scores, NULL);
  Qnn_Param_t params[2];
  memset(params, 0, sizeof params);
  params[0].paramType = params[1].paramType = QNN_PARAMTYPE_TENSOR;
  params[0].name = "stride";
  params[0].tensorParam = described("strides", QNN_TENSOR_TYPE_STATIC, QNN_DATATYPE_UINT_32, 1, two);
  params[0].tensorParam.v1.clientBuf.data = strides;
  params[0].tensorParam.v1.clientBuf.dataSize = sizeof strides;
  params[1].name = "pad_amount";
  params[1].tensorParam = described("margins", QNN_TENSOR_TYPE_STATIC, QNN_DATATYPE_UINT_32, 2, four);
  params[1].tensorParam.v1.clientBuf.data = margins;
  params[1].tensorParam.v1.clientBuf.dataSize = sizeof margins;
  Qnn_Tensor_t into_convolution[2] = {x, taps}, into_sum[2] = {convolved, positive}, into_layer[2] = {summed, layer};
  Qnn_OpConfig_t nodes[4] = {
      operation("convolution", "Conv2d", 2, into_convolution, 1, &convolved),
      operation("relu", "Relu", 1, &convolved, 1, &positive),
      operation("sum", "ElementWiseAdd", 2, into_sum, 1, &summed),
      operation("layer", "FullyConnected", 2, into_layer, 1, &y),
  };
  nodes[0].v1.numOfParams = 2;
  nodes[0].v1.params = params;
  for (int i = 0; i < 4; i++) CHECK(qnn.backendValidateOpConfig(backend, nodes[i]));
  reached("validated");
  if (validate) return 0;

  CHECK(qnn.contextCreate(backend, NULL, NULL, &context));
  reached("context");
  CHECK(qnn.graphCreate(context, "small", NULL, &graph));
  Qnn_Tensor_t *tensors[7] = {&x, &taps, &convolved, &positive, &summed, &layer, &y};
  for (int i = 0; i < 7; i++) CHECK(qnn.tensorCreateGraphTensor(graph, tensors[i]));
  into_convolution[0] = x, into_convolution[1] = taps;
  into_sum[0] = convolved, into_sum[1] = positive;
  into_layer[0] = summed, into_layer[1] = layer;
  for (int i = 0; i < 4; i++) CHECK(qnn.graphAddNode(graph, nodes[i]));
  reached("added");
  CHECK(qnn.graphFinalize(graph, NULL, NULL));
  reached("finalized");

  unsigned char input[SIDE * SIDE * CHANNELS * sizeof(float)], output[CLASSES * sizeof(float)];
  for (int i = 0; i < SIDE * SIDE * CHANNELS; i++) {
    if (fixed) input[i] = (unsigned char)(i % 64 + 96);
    else ((float *)input)[i] = 0.05f * (float)(i % 64 - 32);
  }
  x.v1.clientBuf.data = input;
  x.v1.clientBuf.dataSize = (uint32_t)tensor_bytes(&x);
  y.v1.clientBuf.data = output;
  y.v1.clientBuf.dataSize = (uint32_t)tensor_bytes(&y);
  CHECK(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL));
  reached("executed");
  printf("result ");
  for (size_t i = 0; i < tensor_bytes(&y); i++) printf("%02x", output[i]);
  printf("\n");
  CHECK(qnn.contextFree(context, NULL));
  CHECK(qnn.backendFree(backend));
  return 0;
}
