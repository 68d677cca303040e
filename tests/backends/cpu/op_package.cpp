/* An op package of the CPU backend, well behaved by two interfaces, and ill behaved by many others. */
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "CPU/QnnCpuOpPackage.h"
#include "../foreign/forbidden.h"

namespace {

QnnLog_Callback_t logCallback;
decltype(_QnnOpPackage_GlobalInfrastructure_t::reportMessage) report;

void log(QnnLog_Level_t level, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (logCallback != nullptr) logCallback(format, level, 0, arguments);
  va_end(arguments);
}

const char *operations[] = {"Affine", "Pair", "Count", "Fail", "Crash", "Hang", "Exit", "Abort", "Reach", "NullImpl", "NoFunction"};
const char *twice[] = {"Affine", "Affine"};
const char *nameless[] = {"Affine", nullptr};
QnnOpPackage_Info_t info = QNN_OP_PACKAGE_INFO_INIT;
int live = 0;

struct Implementation {
  QnnCpuOpPackage_OpImpl_t base;
  double scale = 0;
  unsigned calls = 0;
  char type[16] = "";
  QnnCpuOpPackage_Tensor_t *shift = nullptr, *in[2] = {nullptr, nullptr}, *out[2] = {nullptr, nullptr};
};

size_t elements(const QnnCpuOpPackage_Tensor_t *tensor) {
  size_t count = 1;
  for (uint32_t axis = 0; axis < tensor->rank; ++axis) count *= tensor->currentDimensions[axis];
  return count;
}

Qnn_ErrorHandle_t execute(void *data) {
  auto *self = static_cast<Implementation *>(data);
  self->calls += 1;
  if (strcmp(self->type, "Fail") == 0) return QNN_OP_PACKAGE_ERROR_GENERAL;
  if (strcmp(self->type, "Crash") == 0) raise(SIGSEGV);
  if (strcmp(self->type, "Abort") == 0) abort();
  if (strcmp(self->type, "Exit") == 0) exit(3);
  if (strcmp(self->type, "Reach") == 0) {
    if (refused_calls("/tmp/isthmus-op-package") != FORBIDDEN_CALLS) return QNN_SUCCESS;
    abort();
  }
  if (strcmp(self->type, "Hang") == 0)
    for (;;) sleep(1);
  const auto *x = static_cast<const float *>(self->in[0]->data);
  auto *y = static_cast<float *>(self->out[0]->data);
  for (size_t i = 0; i < elements(self->out[0]); ++i) {
    if (strcmp(self->type, "Count") == 0) y[i] = static_cast<float>(self->calls);
    if (strcmp(self->type, "Affine") == 0) {
      const auto *shift = static_cast<const float *>(self->shift->data);
      y[i] = static_cast<float>(self->scale) * x[i] + shift[i % elements(self->shift)];
    }
    if (strcmp(self->type, "Pair") == 0) {
      const auto *other = static_cast<const float *>(self->in[1]->data);
      y[i] = x[i] + other[i];
      static_cast<float *>(self->out[1]->data)[i] = x[i] - other[i];
    }
  }
  return QNN_SUCCESS;
}

Qnn_ErrorHandle_t init(QnnOpPackage_GlobalInfrastructure_t infrastructure) {
  if (infrastructure == nullptr || infrastructure->reportMessage == nullptr) return QNN_OP_PACKAGE_ERROR_GENERAL;
  infrastructure->reportMessage(QNN_CPU_MSG_ERROR, "%s begins with %d, %.2f and %lu", "it", -1, 2.5, 1UL << 40);
  report = infrastructure->reportMessage;
  infrastructure->profile(QNN_CPU_PROFILE_BASIC, 1.5);
  return QNN_SUCCESS;
}
Qnn_ErrorHandle_t terminate() {
  // The test looks for a message that says whether all implementations were freed.
  report(QNN_CPU_MSG_ERROR, "it ends with %d", live);
  return QNN_SUCCESS;
}
Qnn_ErrorHandle_t getInfo(const QnnOpPackage_Info_t **out) {
  info.packageName = "test.ops", info.operationNames = operations;
  info.numOperations = sizeof operations / sizeof *operations;
  *out = &info;
  return QNN_SUCCESS;
}
Qnn_ErrorHandle_t validate(Qnn_OpConfig_t config) {
  const Qnn_OpConfigV1_t &node = config.v1;
  if (config.version != QNN_OPCONFIG_VERSION_1 || strcmp(node.packageName, "test.ops") != 0)
    return QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE;
  if (strcmp(node.typeName, "Affine") != 0) return QNN_SUCCESS;
  log(QNN_LOG_LEVEL_WARN, "validating %s of %d inputs", node.name, static_cast<int>(node.numOfInputs));
  bool right = node.numOfInputs == 1 && node.numOfOutputs == 1 && node.numOfParams == 3;
  right = right && node.inputTensors[0].v1.dataType == QNN_DATATYPE_FLOAT_32;
  right = right && node.params[0].paramType == QNN_PARAMTYPE_SCALAR && strcmp(node.params[0].name, "scale") == 0;
  right = right && node.params[0].scalarParam.dataType == QNN_DATATYPE_FLOAT_32;
  right = right && node.params[1].paramType == QNN_PARAMTYPE_TENSOR && node.params[1].tensorParam.v1.clientBuf.data;
  right = right && node.params[2].scalarParam.dataType == QNN_DATATYPE_STRING;
  right = right && strcmp(node.params[2].scalarParam.stringValue, "plain") == 0;
  return right ? QNN_SUCCESS : QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE;
}
Qnn_ErrorHandle_t createImpl(QnnOpPackage_GraphInfrastructure_t, QnnOpPackage_Node_t described,
                             QnnOpPackage_OpImpl_t *out) {
  auto *node = reinterpret_cast<QnnCpuOpPackage_Node_t *>(described);
  if (strcmp(node->typeName, "NullImpl") == 0) return QNN_SUCCESS;
  auto *made = new Implementation;
  made->base = {execute, made};
  if (strcmp(node->typeName, "NoFunction") == 0) made->base.opImplFn = nullptr;
  strncpy(made->type, node->typeName, sizeof made->type - 1);
  for (uint32_t i = 0; i < node->numOfInputs && i < 2; ++i) made->in[i] = node->inputs[i];
  for (uint32_t i = 0; i < node->numOfOutputs && i < 2; ++i) made->out[i] = node->outputs[i];
  for (uint32_t i = 0; i < node->numOfParams; ++i) {
    const QnnCpuOpPackage_Param_t *param = node->params[i];
    if (param->type == QNN_CPU_PARAMTYPE_SCALAR) made->scale = param->scalarParam;
    if (param->type == QNN_CPU_PARAMTYPE_TENSOR) made->shift = param->tensorParam;
  }
  live += 1;
  *out = reinterpret_cast<QnnOpPackage_OpImpl_t>(made);
  return QNN_SUCCESS;
}
Qnn_ErrorHandle_t freeImpl(QnnOpPackage_OpImpl_t implementation) {
  live -= 1;
  delete reinterpret_cast<Implementation *>(implementation);
  return QNN_SUCCESS;
}
Qnn_ErrorHandle_t logInitialize(QnnLog_Callback_t callback, QnnLog_Level_t) {
  logCallback = callback;
  return QNN_SUCCESS;
}
Qnn_ErrorHandle_t logSetLevel(QnnLog_Level_t) { return QNN_SUCCESS; }
Qnn_ErrorHandle_t logTerminate() { return QNN_SUCCESS; }

int handle;
const Qnn_ErrorHandle_t STRANGE = QNN_OP_PACKAGE_ERROR_INVALID_HANDLE;
bool known(Qnn_OpPackageHandle_t given) { return given == reinterpret_cast<Qnn_OpPackageHandle_t>(&handle); }

Qnn_ErrorHandle_t create2(QnnOpPackage_GlobalInfrastructure_t infrastructure, QnnLog_Callback_t callback, QnnLog_Level_t,
                          Qnn_OpPackageHandle_t *out) {
  logCallback = callback;
  *out = reinterpret_cast<Qnn_OpPackageHandle_t>(&handle);
  return init(infrastructure);
}
Qnn_ErrorHandle_t validate2(Qnn_OpPackageHandle_t given, Qnn_OpConfig_t config) {
  return known(given) ? validate(config) : STRANGE;
}
Qnn_ErrorHandle_t createImpl2(Qnn_OpPackageHandle_t given, QnnOpPackage_GraphInfrastructure_t graph,
                              QnnOpPackage_Node_t node, QnnOpPackage_OpImpl_t *out) {
  return known(given) ? createImpl(graph, node, out) : STRANGE;
}
Qnn_ErrorHandle_t freeImpl2(Qnn_OpPackageHandle_t given, QnnOpPackage_OpImpl_t implementation) {
  return known(given) ? freeImpl(implementation) : STRANGE;
}
Qnn_ErrorHandle_t logSetLevel2(Qnn_OpPackageHandle_t, QnnLog_Level_t) { return QNN_SUCCESS; }
Qnn_ErrorHandle_t free2(Qnn_OpPackageHandle_t given) {
  return known(given) ? terminate() : STRANGE;
}

Qnn_ErrorHandle_t crash(QnnOpPackage_GlobalInfrastructure_t) { return raise(SIGSEGV); }
Qnn_ErrorHandle_t hang(QnnOpPackage_GlobalInfrastructure_t) {
  for (;;) sleep(1);
}
Qnn_ErrorHandle_t fail(QnnOpPackage_GlobalInfrastructure_t) { return QNN_OP_PACKAGE_ERROR_INVALID_INFRASTRUCTURE; }
Qnn_ErrorHandle_t nullInfo(const QnnOpPackage_Info_t **) { return QNN_SUCCESS; }
template <int KIND> Qnn_ErrorHandle_t lyingInfo(const QnnOpPackage_Info_t **out) {
  getInfo(out);
  if (KIND == 0) info.numOperations = 4000000000U;
  if (KIND == 1) info.numOperations = 4000;
  if (KIND == 2) info.operationNames = twice, info.numOperations = 2;
  if (KIND == 3) info.operationNames = nameless, info.numOperations = 2;
  if (KIND == 4) info.packageName = "";
  if (KIND == 5) info.numOperations = 0;
  if (KIND == 6) info.packageName = "qti.aisw";
  if (KIND == 7) info.packageName = reinterpret_cast<const char *>(8);
  return QNN_SUCCESS;
}

}  // namespace

#define PROVIDER(NAME) \
  extern "C" __attribute__((visibility("default"))) Qnn_ErrorHandle_t NAME(QnnOpPackage_Interface_t *out)
#define VARIANT(NAME, CHANGE) \
  PROVIDER(NAME) {            \
    plain(out);               \
    CHANGE;                   \
    return QNN_SUCCESS;       \
  }

PROVIDER(plain) {
  *out = {QNN_OP_PACKAGE_API_VERSION_1_4_0,
          {{init, terminate, getInfo, validate, createImpl, freeImpl, logInitialize, logSetLevel, logTerminate}}};
  return QNN_SUCCESS;
}
PROVIDER(second) {
  out->interfaceVersion = QNN_OP_PACKAGE_API_VERSION_2_0_0;
  out->v2_0 = {create2, getInfo, validate2, createImpl2, freeImpl2, logSetLevel2, free2};
  return QNN_SUCCESS;
}
PROVIDER(refusing) { return out == nullptr ? 0U : 1100U; }
VARIANT(without_log, out->v1_4.logInitialize = nullptr; out->v1_4.logSetLevel = nullptr; out->v1_4.logTerminate = nullptr)
VARIANT(null_function, out->v1_4.createOpImpl = nullptr)
VARIANT(wrong_version, out->interfaceVersion.major = 3)
VARIANT(crash_in_init, out->v1_4.init = crash)
VARIANT(hang_in_init, out->v1_4.init = hang)
VARIANT(fail_in_init, out->v1_4.init = fail)
VARIANT(null_info, out->v1_4.getInfo = nullInfo)
VARIANT(huge_count, out->v1_4.getInfo = lyingInfo<0>)
VARIANT(wrong_count, out->v1_4.getInfo = lyingInfo<1>)
VARIANT(same_names, out->v1_4.getInfo = lyingInfo<2>)
VARIANT(null_name, out->v1_4.getInfo = lyingInfo<3>)
VARIANT(nameless_package, out->v1_4.getInfo = lyingInfo<4>)
VARIANT(no_operations, out->v1_4.getInfo = lyingInfo<5>)
VARIANT(name_of_qnn, out->v1_4.getInfo = lyingInfo<6>)
VARIANT(wild_name, out->v1_4.getInfo = lyingInfo<7>)
