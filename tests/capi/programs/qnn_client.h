/* What every client of QNN does first: load a library, take its table, describe tensors. For C and for C++. */
#ifndef QNN_CLIENT_H
#define QNN_CLIENT_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "QNN/QnnInterface.h"
#include "QNN/System/QnnSystemInterface.h"
#include "rpcmem.h"

#define CHECK(what)                                                                              \
  do {                                                                                           \
    unsigned long long error_ = (what);                                                          \
    if (error_) {                                                                                \
      fprintf(stderr, "%s:%d: %s answers %llu\n", __FILE__, __LINE__, #what, error_);            \
      exit(1);                                                                                   \
    }                                                                                            \
  } while (0)
#define REQUIRE(condition)                                                                       \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);              \
      exit(1);                                                                                   \
    }                                                                                            \
  } while (0)

static inline void *loaded(const char *folder, const char *file) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, file);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  REQUIRE(library);
  return library;
}

static inline QNN_INTERFACE_VER_TYPE table_of(const char *folder, const char *file) {
  void *library = loaded(folder, file);
  QnnInterface_getProvidersFn_t ask = (QnnInterface_getProvidersFn_t)dlsym(library, "QnnInterface_getProviders");
  const QnnInterface_t **providers = NULL;
  uint32_t count = 0;
  REQUIRE(ask);
  CHECK(ask(&providers, &count));
  REQUIRE(count == 1 && providers[0]->apiVersion.coreApiVersion.major == QNN_API_VERSION_MAJOR);
  return providers[0]->QNN_INTERFACE_VER_NAME;
}

static inline QNN_SYSTEM_INTERFACE_VER_TYPE system_table_of(const char *folder) {
  void *library = loaded(folder, "libQnnSystem.so");
  QnnSystemInterface_getProvidersFn_t ask =
      (QnnSystemInterface_getProvidersFn_t)dlsym(library, "QnnSystemInterface_getProviders");
  const QnnSystemInterface_t **providers = NULL;
  uint32_t count = 0;
  REQUIRE(ask);
  CHECK(ask(&providers, &count));
  REQUIRE(count == 1);
  return providers[0]->QNN_SYSTEM_INTERFACE_VER_NAME;
}

static inline Qnn_Tensor_t described(const char *name, Qnn_TensorType_t type, Qnn_DataType_t data_type, uint32_t rank,
                                     uint32_t *dims) {
  Qnn_Tensor_t tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.version = QNN_TENSOR_VERSION_1;
  tensor.v1.name = name;
  tensor.v1.type = type;
  tensor.v1.dataType = data_type;
  tensor.v1.quantizeParams.encodingDefinition = QNN_DEFINITION_UNDEFINED;
  tensor.v1.quantizeParams.quantizationEncoding = QNN_QUANTIZATION_ENCODING_UNDEFINED;
  tensor.v1.rank = rank;
  tensor.v1.dimensions = dims;
  tensor.v1.memType = QNN_TENSORMEMTYPE_RAW;
  return tensor;
}

static inline Qnn_OpConfig_t operation(const char *name, const char *type, uint32_t inputs_count, Qnn_Tensor_t *inputs,
                                       uint32_t outputs_count, Qnn_Tensor_t *outputs) {
  Qnn_OpConfig_t config;
  memset(&config, 0, sizeof config);
  config.version = QNN_OPCONFIG_VERSION_1;
  config.v1.name = name;
  config.v1.packageName = "qti.aisw";
  config.v1.typeName = type;
  config.v1.numOfInputs = inputs_count;
  config.v1.inputTensors = inputs;
  config.v1.numOfOutputs = outputs_count;
  config.v1.outputTensors = outputs;
  return config;
}

/* Adds both tensors to a graph, and the node that computes y = x + x. */
static inline void add_double(const QNN_INTERFACE_VER_TYPE *qnn, Qnn_GraphHandle_t graph, Qnn_Tensor_t *x,
                              Qnn_Tensor_t *y) {
  CHECK(qnn->tensorCreateGraphTensor(graph, x));
  CHECK(qnn->tensorCreateGraphTensor(graph, y));
  Qnn_Tensor_t both[2] = {*x, *x};
  CHECK(qnn->graphAddNode(graph, operation("add", "ElementWiseAdd", 2, both, 1, y)));
}

static inline size_t tensor_bytes(const Qnn_Tensor_t *tensor) {
  size_t bytes = (tensor->v1.dataType & 0xff) == 0x08 ? 1 : (tensor->v1.dataType & 0xff) == 0x16 ? 2 : 4;
  for (uint32_t i = 0; i < tensor->v1.rank; i++) bytes *= tensor->v1.dimensions[i];
  return bytes;
}

static inline void log_line(const char *format, QnnLog_Level_t level, uint64_t timestamp, va_list arguments) {
  (void)timestamp;
  printf("log %d: ", (int)level);
  vprintf(format, arguments); /* a message ends its line */
}

#endif
