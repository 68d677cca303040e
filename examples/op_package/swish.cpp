// An op package of QNN's CPU backend with one operation: Swish, y = x / (1 + exp(-beta x)), on FLOAT_32.
//
//     g++ -shared -fPIC -O2 -I"$(isthmus capi include)/QNN" swish.cpp -o libSwish.so
#include <cmath>
#include <cstring>

#include "CPU/QnnCpuOpPackage.h"

namespace {

const char *operations[] = {"Swish"};

// What an execution needs. The backend gets `base`, whose userData leads back here.
struct Swish {
  QnnCpuOpPackage_OpImpl_t base;
  QnnCpuOpPackage_Tensor_t *x, *y;
  float beta;
};

Qnn_ErrorHandle_t execute(void *data) {
  const auto *self = static_cast<const Swish *>(data);
  const auto *x = static_cast<const float *>(self->x->data);
  auto *y = static_cast<float *>(self->y->data);
  size_t count = 1;
  for (uint32_t axis = 0; axis < self->y->rank; ++axis) count *= self->y->currentDimensions[axis];
  for (size_t i = 0; i < count; ++i) y[i] = x[i] / (1.0F + std::exp(-self->beta * x[i]));
  return QNN_SUCCESS;
}

Qnn_ErrorHandle_t init(QnnOpPackage_GlobalInfrastructure_t) { return QNN_SUCCESS; }
Qnn_ErrorHandle_t terminate() { return QNN_SUCCESS; }

Qnn_ErrorHandle_t getInfo(const QnnOpPackage_Info_t **out) {
  static QnnOpPackage_Info_t info = QNN_OP_PACKAGE_INFO_INIT;
  info.packageName = "examples.swish", info.operationNames = operations, info.numOperations = 1;
  *out = &info;
  return QNN_SUCCESS;
}

Qnn_ErrorHandle_t validate(Qnn_OpConfig_t config) {
  const Qnn_OpConfigV1_t &node = config.v1;
  const bool right = node.numOfInputs == 1 && node.numOfOutputs == 1 && node.numOfParams == 1 &&
                     std::strcmp(node.params[0].name, "beta") == 0 &&
                     node.inputTensors[0].v1.dataType == QNN_DATATYPE_FLOAT_32 &&
                     node.outputTensors[0].v1.dataType == QNN_DATATYPE_FLOAT_32;
  if (!right) return QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE;
  return QNN_SUCCESS;
}

Qnn_ErrorHandle_t create(QnnOpPackage_GraphInfrastructure_t, QnnOpPackage_Node_t node, QnnOpPackage_OpImpl_t *out) {
  auto *made = new Swish{{execute, nullptr}, node->inputs[0], node->outputs[0], 1.0F};
  made->base.userData = made;
  made->beta = static_cast<float>(node->params[0]->scalarParam);
  *out = &made->base;
  return QNN_SUCCESS;
}

Qnn_ErrorHandle_t release(QnnOpPackage_OpImpl_t implementation) {
  delete static_cast<Swish *>(implementation->userData);
  return QNN_SUCCESS;
}

}  // namespace

// The function that a client names when it registers the package.
extern "C" __attribute__((visibility("default"))) Qnn_ErrorHandle_t SwishInterface(QnnOpPackage_Interface_t *out) {
  *out = {QNN_OP_PACKAGE_API_VERSION_1_4_0,
          {{init, terminate, getInfo, validate, create, release, nullptr, nullptr, nullptr}}};
  return QNN_SUCCESS;
}
