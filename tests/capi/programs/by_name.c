/* A Qmem graph by the functions' own names, linked with the library; the hint comes with the node alone.
 *
 *     by_name raw|memhandle|native        what the node says of its input and output; native: of the tensor between */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "QNN/HTP/QnnHtpMem.h"
#include "QNN/QnnInterface.h"
#include "QNN/QnnOpDef.h"
#include "rpcmem.h"

#define CHECK(call)                                                                                   \
  do {                                                                                                \
    unsigned long long error_ = (call);                                                               \
    if (error_) return fprintf(stderr, "line %d: %s answers %llu\n", __LINE__, #call, error_), 1;     \
  } while (0)

static uint32_t dims[] = {1, 1024};

static Qnn_Tensor_t tensor(const char *name, Qnn_TensorType_t type) {
  Qnn_Tensor_t made = QNN_TENSOR_INIT;
  made.v1.name = name;
  made.v1.type = type;
  made.v1.dataType = QNN_DATATYPE_FLOAT_32;
  made.v1.rank = 2;
  made.v1.dimensions = dims;
  made.v1.memType = QNN_TENSORMEMTYPE_RAW;
  return made;
}

/* Print what the latest call reserved for copies. */
static int staging(Qnn_ProfileHandle_t profile) {
  const QnnProfile_EventId_t *events = NULL, *parts = NULL;
  uint32_t count = 0;
  CHECK(QnnProfile_getEvents(profile, &events, &count));
  CHECK(QnnProfile_getSubEvents(events[0], &parts, &count));
  for (uint32_t i = 0; i < count; i++) {
    QnnProfile_EventData_t data = QNN_PROFILE_EVENT_DATA_INIT;
    CHECK(QnnProfile_getEventData(parts[i], &data));
    if (strstr(data.identifier, "staging reserved")) printf("staging reserved %llu\n", (unsigned long long)data.value);
  }
  return 0;
}

int main(int argc, char **argv) {
  const char *how = argc > 1 ? argv[1] : "raw";
  Qnn_BackendHandle_t backend = NULL;
  Qnn_ContextHandle_t context = NULL;
  Qnn_GraphHandle_t graph = NULL;
  Qnn_ProfileHandle_t profile = NULL;
  CHECK(QnnBackend_create(NULL, NULL, &backend));
  CHECK(QnnContext_create(backend, NULL, NULL, &context));
  CHECK(QnnGraph_create(context, "twice", NULL, &graph));
  Qnn_Tensor_t x = tensor("x", QNN_TENSOR_TYPE_APP_WRITE), y = tensor("y", QNN_TENSOR_TYPE_APP_READ);
  Qnn_Tensor_t between = tensor("between", QNN_TENSOR_TYPE_NATIVE);
  CHECK(QnnTensor_createGraphTensor(graph, &x));
  CHECK(QnnTensor_createGraphTensor(graph, &y));
  CHECK(QnnTensor_createGraphTensor(graph, &between));
  if (!strcmp(how, "memhandle")) x.v1.memType = y.v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;
  if (!strcmp(how, "native")) between.v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;
  x.v1.memHandle = y.v1.memHandle = NULL;
  Qnn_Tensor_t twice[] = {x, x};
  Qnn_OpConfig_t add = QNN_OPCONFIG_INIT, relu = QNN_OPCONFIG_INIT;
  add.v1 = (Qnn_OpConfigV1_t){"add", QNN_OP_PACKAGE_NAME_QTI_AISW, QNN_OP_ELEMENT_WISE_ADD, 0, NULL, 2, twice, 1, &between};
  relu.v1 = (Qnn_OpConfigV1_t){"relu", QNN_OP_PACKAGE_NAME_QTI_AISW, QNN_OP_RELU, 0, NULL, 1, &between, 1, &y};
  CHECK(QnnGraph_addNode(graph, add));
  CHECK(QnnGraph_addNode(graph, relu));
  CHECK(QnnProfile_create(backend, QNN_PROFILE_LEVEL_DETAILED, &profile));
  CHECK(QnnGraph_finalize(graph, profile, NULL));
  if (staging(profile)) return 1;

  float *memory = (float *)rpcmem_alloc(RPCMEM_HEAP_ID_SYSTEM, RPCMEM_DEFAULT_FLAGS, 8192);
  Qnn_MemHandle_t handles[2] = {NULL, NULL};
  for (int i = 0; i < 2; i++) {
    QnnMemHtp_Descriptor_t place = {.type = QNN_HTP_MEM_SHARED_BUFFER, .size = 8192};
    place.sharedBufferConfig = (QnnHtpMem_SharedBufferConfig_t){rpcmem_to_fd(memory), (uint64_t)i * 4096};
    Qnn_MemDescriptor_t descriptor = QNN_MEM_DESCRIPTOR_INIT;
    descriptor.memShape = (Qnn_MemShape_t){2, dims, NULL};
    descriptor.dataType = QNN_DATATYPE_FLOAT_32;
    descriptor.memType = QNN_MEM_TYPE_CUSTOM;
    descriptor.customInfo = &place;
    CHECK(QnnMem_register(context, &descriptor, 1, &handles[i]));
  }
  x.v1.memType = y.v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;
  x.v1.memHandle = handles[0];
  y.v1.memHandle = handles[1];
  for (int i = 0; i < 1024; i++) memory[i] = (float)i;
  CHECK(QnnGraph_execute(graph, &x, 1, &y, 1, profile, NULL));
  if (staging(profile)) return 1;
  printf("y %g\n", memory[1024 + 7]);
  CHECK(QnnMem_deRegister(handles, 1));
  CHECK(QnnMem_deregister(handles + 1, 1)); /* the other spelling */
  CHECK(QnnProfile_free(profile));
  CHECK(QnnContext_free(context, NULL));
  CHECK(QnnBackend_free(backend));
  rpcmem_free(memory);
  return 0;
}
