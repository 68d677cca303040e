/* A client that brings an op package: y = relu(Affine(x + x)), then a node that crashes, then the first graph again.
 *
 *     op_package_client FOLDER PACKAGE */
#include "qnn_client.h"

enum { ELEMENTS = 8 };
static QNN_INTERFACE_VER_TYPE qnn;
static uint32_t dims[2] = {1, ELEMENTS}, length[1] = {ELEMENTS};
static float shift[ELEMENTS] = {0, 1, 2, 3, 4, 5, 6, 7};

static Qnn_GraphHandle_t composed(Qnn_ContextHandle_t context, const char *type, Qnn_Tensor_t *x, Qnn_Tensor_t *y) {
  Qnn_GraphHandle_t graph = NULL;
  CHECK(qnn.graphCreate(context, type, NULL, &graph));
  Qnn_Tensor_t a = described("a", QNN_TENSOR_TYPE_NATIVE, QNN_DATATYPE_FLOAT_32, 2, dims);
  Qnn_Tensor_t b = described("b", QNN_TENSOR_TYPE_NATIVE, QNN_DATATYPE_FLOAT_32, 2, dims);
  *x = described("x", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, dims);
  *y = described("y", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, dims);
  CHECK(qnn.tensorCreateGraphTensor(graph, x));
  CHECK(qnn.tensorCreateGraphTensor(graph, y));
  CHECK(qnn.tensorCreateGraphTensor(graph, &a));
  CHECK(qnn.tensorCreateGraphTensor(graph, &b));
  Qnn_Param_t params[3];
  memset(params, 0, sizeof params);
  params[0].paramType = params[2].paramType = QNN_PARAMTYPE_SCALAR, params[1].paramType = QNN_PARAMTYPE_TENSOR;
  params[0].name = "scale", params[1].name = "shift", params[2].name = "mode";
  params[0].scalarParam.dataType = QNN_DATATYPE_FLOAT_32, params[0].scalarParam.floatValue = 3;
  params[1].tensorParam = described("shift", QNN_TENSOR_TYPE_STATIC, QNN_DATATYPE_FLOAT_32, 1, length);
  params[1].tensorParam.v1.clientBuf.data = shift, params[1].tensorParam.v1.clientBuf.dataSize = sizeof shift;
  params[2].scalarParam.dataType = QNN_DATATYPE_STRING, params[2].scalarParam.stringValue = "plain";
  Qnn_Tensor_t both[2];
  both[0] = both[1] = *x;
  Qnn_OpConfig_t middle = operation("middle", type, 1, &a, 1, &b);
  middle.v1.packageName = "test.ops", middle.v1.numOfParams = 3, middle.v1.params = params;
  CHECK(qnn.graphAddNode(graph, operation("twice", "ElementWiseAdd", 2, both, 1, &a)));
  CHECK(qnn.graphAddNode(graph, middle));
  CHECK(qnn.graphAddNode(graph, operation("relu", "Relu", 1, &b, 1, y)));
  CHECK(qnn.graphFinalize(graph, NULL, NULL));
  return graph;
}

static Qnn_ErrorHandle_t executed(Qnn_GraphHandle_t graph, Qnn_Tensor_t x, Qnn_Tensor_t y, float *in, float *out) {
  x.v1.clientBuf.data = in, y.v1.clientBuf.data = out;
  x.v1.clientBuf.dataSize = y.v1.clientBuf.dataSize = ELEMENTS * sizeof(float);
  return qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL);
}

int main(int count, char **arguments) {
  REQUIRE(count == 3);
  qnn = table_of(arguments[1], "libQnnCpu.so");
  Qnn_BackendHandle_t backend = NULL;
  Qnn_ContextHandle_t context = NULL;
  Qnn_Tensor_t x, y, bad_x, bad_y;
  float in[ELEMENTS], out[ELEMENTS];
  CHECK(qnn.backendCreate(NULL, NULL, &backend));
  CHECK(qnn.backendRegisterOpPackage(backend, arguments[2], "plain", "CPU"));
  CHECK(qnn.contextCreate(backend, NULL, NULL, &context));
  Qnn_GraphHandle_t good = composed(context, "Affine", &x, &y), bad = composed(context, "Crash", &bad_x, &bad_y);
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < ELEMENTS; i++) in[i] = (float)(i - 4), out[i] = -1;
    CHECK(executed(good, x, y, in, out));
    for (int i = 0; i < ELEMENTS; i++) REQUIRE(out[i] == (7 * i > 24 ? (float)(7 * i - 24) : 0.0f));
    /* The package crashes in its own process; this one goes on. */
    REQUIRE(QNN_GET_ERROR_CODE(executed(bad, bad_x, bad_y, in, out)) == QNN_COMMON_ERROR_SYSTEM_COMMUNICATION);
  }
  CHECK(qnn.backendFree(backend));
  printf("done\n");
  return 0;
}
