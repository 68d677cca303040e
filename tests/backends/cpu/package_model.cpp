/* A model library with one graph: y = relu(Affine(x + x)), Affine of the test's op package. */
#include <cstring>
#include <initializer_list>

#include "QnnInterface.h"

struct GraphInfo_t {
  Qnn_GraphHandle_t graph; char *graphName; Qnn_Tensor_t *inputTensors; uint32_t numInputTensors;
  Qnn_Tensor_t *outputTensors; uint32_t numOutputTensors;
};

static Qnn_Tensor_t tensor(const char *name, Qnn_TensorType_t type, uint32_t *dims) {
  Qnn_Tensor_t made = QNN_TENSOR_INIT;
  made.version = QNN_TENSOR_VERSION_1;
  made.v1 = QNN_TENSOR_V1_INIT;
  made.v1.name = name, made.v1.type = type, made.v1.dataType = QNN_DATATYPE_FLOAT_32;
  made.v1.rank = 2, made.v1.dimensions = dims, made.v1.memType = QNN_TENSORMEMTYPE_RAW;
  return made;
}

static Qnn_OpConfig_t node(const char *name, const char *package, const char *type, uint32_t count, Qnn_Param_t *params,
                           uint32_t inputs, Qnn_Tensor_t *in, Qnn_Tensor_t *out) {
  Qnn_OpConfig_t made = QNN_OPCONFIG_INIT;
  made.version = QNN_OPCONFIG_VERSION_1;
  made.v1 = {name, package, type, count, params, inputs, in, 1, out};
  return made;
}

extern "C" uint32_t QnnModel_composeGraphs(Qnn_BackendHandle_t, QNN_INTERFACE_VER_TYPE qnn, Qnn_ContextHandle_t context,
                                           const void **, uint32_t, GraphInfo_t ***infos, uint32_t *count, bool,
                                           QnnLog_Callback_t, QnnLog_Level_t) {
  static GraphInfo_t info;
  static GraphInfo_t *listed = &info;
  static uint32_t dims[] = {1, 8}, length[] = {8};
  static float shift[] = {0, 1, 2, 3, 4, 5, 6, 7};
  static char name[] = "affine";
  if (qnn.graphCreate(context, name, nullptr, &info.graph) != QNN_SUCCESS) return 4;
  Qnn_Tensor_t x = tensor("x", QNN_TENSOR_TYPE_APP_WRITE, dims), a = tensor("a", QNN_TENSOR_TYPE_NATIVE, dims),
               b = tensor("b", QNN_TENSOR_TYPE_NATIVE, dims), y = tensor("y", QNN_TENSOR_TYPE_APP_READ, dims);
  for (Qnn_Tensor_t *each : {&x, &a, &b, &y})
    if (qnn.tensorCreateGraphTensor(info.graph, each) != QNN_SUCCESS) return 1;
  Qnn_Param_t params[3];
  memset(params, 0, sizeof params);
  params[0].paramType = params[2].paramType = QNN_PARAMTYPE_SCALAR, params[1].paramType = QNN_PARAMTYPE_TENSOR;
  params[0].name = "scale", params[1].name = "shift", params[2].name = "mode";
  params[0].scalarParam.dataType = QNN_DATATYPE_FLOAT_32, params[0].scalarParam.floatValue = 3;
  params[1].tensorParam = tensor("shift", QNN_TENSOR_TYPE_STATIC, length);
  params[1].tensorParam.v1.rank = 1, params[1].tensorParam.v1.clientBuf = {shift, sizeof shift};
  params[2].scalarParam.dataType = QNN_DATATYPE_STRING, params[2].scalarParam.stringValue = "plain";
  Qnn_Tensor_t both[] = {x, x};
  if (qnn.graphAddNode(info.graph, node("twice", "qti.aisw", "ElementWiseAdd", 0, nullptr, 2, both, &a)) ||
      qnn.graphAddNode(info.graph, node("middle", "test.ops", "Affine", 3, params, 1, &a, &b)) ||
      qnn.graphAddNode(info.graph, node("relu", "qti.aisw", "Relu", 0, nullptr, 1, &b, &y)))
    return 3;
  info.graphName = name;
  *infos = &listed, *count = 1;
  return 0;
}
extern "C" uint32_t QnnModel_freeGraphsInfo(GraphInfo_t ***, uint32_t) { return 0; }
