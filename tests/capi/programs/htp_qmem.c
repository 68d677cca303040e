/* HTP's Qmem graph (online prepare, then from a binary): tensors prepared as MEMHANDLE, executed in shared memory.
 *
 *     htp_qmem FOLDER [forget]        with "forget" nothing is freed at the end */
#include "QNN/HTP/QnnHtpMem.h"
#include "qnn_client.h"

#include <sys/mman.h>

enum { ELEMENTS = 64 };
static QNN_INTERFACE_VER_TYPE qnn;
static void *(*shared_alloc)(int, uint32_t, int);
static int (*shared_fd)(void *);
static void (*shared_free)(void *);

/* What a profile says of the latest execution: bytes copied, and bytes used in place. It also has its operation. */
static void traffic(Qnn_ProfileHandle_t profile, uint64_t *copied, uint64_t *in_place) {
  const QnnProfile_EventId_t *events = NULL, *parts = NULL;
  uint32_t count = 0, nodes = 0;
  CHECK(qnn.profileGetEvents(profile, &events, &count));
  REQUIRE(count == 1);
  CHECK(qnn.profileGetSubEvents(events[0], &parts, &count));
  *copied = *in_place = 0;
  for (uint32_t i = 0; i < count; i++) {
    QnnProfile_EventData_t data;
    CHECK(qnn.profileGetEventData(parts[i], &data));
    if (strstr(data.identifier, "copied")) *copied += data.value;
    if (strstr(data.identifier, "used in place")) *in_place += data.value;
    if (data.type == QNN_PROFILE_EVENTTYPE_NODE && strstr(data.identifier, "relu")) nodes++;
  }
  REQUIRE(nodes == 1);
}

static Qnn_MemHandle_t registered(Qnn_ContextHandle_t context, void *memory, uint64_t offset, uint64_t size,
                                  uint32_t *dims) {
  QnnMemHtp_Descriptor_t htp;
  memset(&htp, 0, sizeof htp);
  htp.type = QNN_HTP_MEM_SHARED_BUFFER;
  htp.size = size;
  htp.sharedBufferConfig.fd = shared_fd(memory);
  htp.sharedBufferConfig.offset = offset;
  Qnn_MemDescriptor_t descriptor;
  memset(&descriptor, 0, sizeof descriptor);
  descriptor.memShape.numDim = 2;
  descriptor.memShape.dimSize = dims;
  descriptor.dataType = QNN_DATATYPE_FLOAT_32;
  descriptor.memType = QNN_MEM_TYPE_CUSTOM;
  descriptor.customInfo = &htp;
  Qnn_MemHandle_t handle = NULL;
  CHECK(qnn.memRegister(context, &descriptor, 1, &handle));
  REQUIRE(handle);
  return handle;
}

/* Execute in shared memory, to which this process has no access meanwhile, so that a copy of it would end the process;
 * then in raw memory. Both are right, and only one copies. */
static void execute_both(Qnn_ContextHandle_t context, Qnn_GraphHandle_t graph, Qnn_Tensor_t input, Qnn_Tensor_t output,
                         Qnn_ProfileHandle_t profile, uint32_t *dims, int forget) {
  const size_t bytes = ELEMENTS * sizeof(float);
  float *shared = (float *)shared_alloc(RPCMEM_HEAP_ID_SYSTEM, RPCMEM_DEFAULT_FLAGS, (int)(2 * bytes));
  uint64_t copied, in_place;
  REQUIRE(shared && shared_fd(shared) >= 0);
  for (int i = 0; i < ELEMENTS; i++) shared[i] = (float)(i - 32);
  Qnn_MemHandle_t handles[2] = {registered(context, shared, 0, 2 * bytes, dims),
                                registered(context, shared, bytes, 2 * bytes, dims)};
  input.v1.memType = output.v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;
  input.v1.memHandle = handles[0];
  output.v1.memHandle = handles[1];
  REQUIRE(mprotect(shared, 2 * bytes, PROT_NONE) == 0);
  CHECK(qnn.graphExecute(graph, &input, 1, &output, 1, profile, NULL));
  REQUIRE(mprotect(shared, 2 * bytes, PROT_READ | PROT_WRITE) == 0);
  for (int i = 0; i < ELEMENTS; i++) REQUIRE(shared[ELEMENTS + i] == (i < 32 ? 0.0f : (float)(i - 32)));
  traffic(profile, &copied, &in_place);
  REQUIRE(copied == 0 && in_place == 2 * bytes);
  for (int round = 0; round < 3; round++) CHECK(qnn.graphExecute(graph, &input, 1, &output, 1, NULL, NULL));

  float raw_in[ELEMENTS], raw_out[ELEMENTS];
  for (int i = 0; i < ELEMENTS; i++) raw_in[i] = -shared[i], raw_out[i] = 7.0f;
  input.v1.memType = output.v1.memType = QNN_TENSORMEMTYPE_RAW;
  input.v1.clientBuf.data = raw_in;
  output.v1.clientBuf.data = raw_out;
  input.v1.clientBuf.dataSize = output.v1.clientBuf.dataSize = (uint32_t)bytes;
  CHECK(qnn.graphExecute(graph, &input, 1, &output, 1, profile, NULL));
  for (int i = 0; i < ELEMENTS; i++) REQUIRE(raw_out[i] == (i < 32 ? (float)(32 - i) : 0.0f));
  traffic(profile, &copied, &in_place);
  REQUIRE(copied == 2 * bytes && in_place == 0);
  if (forget) return;
  CHECK(qnn.memDeRegister(handles, 2));
  REQUIRE(qnn.memDeRegister(handles, 1) == QNN_MEM_ERROR_INVALID_HANDLE);
  shared_free(shared);
}

int main(int argc, char **argv) {
  const char *folder = argv[1];
  int forget = argc > 2 && !strcmp(argv[2], "forget");
  void *rpcmem = loaded(folder, "libcdsprpc.so");
  *(void **)&shared_alloc = dlsym(rpcmem, "rpcmem_alloc");
  *(void **)&shared_fd = dlsym(rpcmem, "rpcmem_to_fd");
  *(void **)&shared_free = dlsym(rpcmem, "rpcmem_free");
  qnn = table_of(folder, "libQnnHtp.so");

  Qnn_LogHandle_t log = NULL;
  Qnn_BackendHandle_t backend = NULL;
  Qnn_DeviceHandle_t device = NULL;
  Qnn_ContextHandle_t context = NULL, again = NULL;
  Qnn_GraphHandle_t graph = NULL;
  Qnn_ProfileHandle_t profile = NULL;
  CHECK(qnn.logCreate(log_line, QNN_LOG_LEVEL_INFO, &log));
  CHECK(qnn.backendCreate(log, NULL, &backend));
  CHECK(qnn.deviceCreate(log, NULL, &device));
  CHECK(qnn.contextCreate(backend, device, NULL, &context));
  CHECK(qnn.profileCreate(backend, QNN_PROFILE_LEVEL_DETAILED, &profile));
  CHECK(qnn.graphCreate(context, "positive", NULL, &graph));

  uint32_t dims[2] = {1, ELEMENTS};
  Qnn_Tensor_t inputTensor = described("x", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, dims);
  Qnn_Tensor_t outputTensor = described("y", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, dims);
  inputTensor.v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;
  inputTensor.v1.memHandle = NULL;
  outputTensor.v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;
  outputTensor.v1.memHandle = NULL;
  CHECK(qnn.tensorCreateGraphTensor(graph, &inputTensor));
  CHECK(qnn.tensorCreateGraphTensor(graph, &outputTensor));
  Qnn_OpConfig_t opConfig = operation("relu", "Relu", 1, &inputTensor, 1, &outputTensor);
  CHECK(qnn.backendValidateOpConfig(backend, opConfig));
  CHECK(qnn.graphAddNode(graph, opConfig));
  CHECK(qnn.graphFinalize(graph, profile, NULL));
  execute_both(context, graph, inputTensor, outputTensor, profile, dims, forget);

  /* offline: the same graph out of a binary, whose tensors the system library describes */
  Qnn_ContextBinarySize_t size = 0, written = 0;
  CHECK(qnn.contextGetBinarySize(context, &size));
  void *binary = malloc(size);
  CHECK(qnn.contextGetBinary(context, binary, size, &written));
  REQUIRE(written == size);
  QNN_SYSTEM_INTERFACE_VER_TYPE system_functions = system_table_of(folder);
  QnnSystemContext_Handle_t system_context = NULL;
  const QnnSystemContext_BinaryInfo_t *info = NULL;
  Qnn_ContextBinarySize_t info_size = 0;
  CHECK(system_functions.systemContextCreate(&system_context));
  CHECK(system_functions.systemContextGetBinaryInfo(system_context, binary, size, &info, &info_size));
  REQUIRE(info->version == QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3);
  REQUIRE(info->contextBinaryInfoV3.backendId == QNN_BACKEND_ID_HTP && info->contextBinaryInfoV3.numGraphs == 1);
  QnnSystemContext_GraphInfoV1_t told = info->contextBinaryInfoV3.graphs[0].graphInfoV1;
  REQUIRE(!strcmp(told.graphName, "positive") && told.numGraphInputs == 1 && told.numGraphOutputs == 1);
  REQUIRE(told.graphInputs[0].v1.memType == QNN_TENSORMEMTYPE_MEMHANDLE && told.graphInputs[0].v1.dimensions[1] == 64);
  CHECK(qnn.contextCreateFromBinary(backend, device, NULL, binary, size, &again, profile));
  CHECK(qnn.graphRetrieve(again, "positive", &graph));
  execute_both(again, graph, told.graphInputs[0], told.graphOutputs[0], profile, dims, forget);
  printf("done\n");
  if (forget) return 0;

  CHECK(system_functions.systemContextFree(system_context));
  free(binary);
  CHECK(qnn.contextFree(again, NULL));
  CHECK(qnn.contextFree(context, NULL));
  REQUIRE(qnn.contextFree(context, NULL) == QNN_CONTEXT_ERROR_INVALID_HANDLE);
  CHECK(qnn.profileFree(profile));
  CHECK(qnn.deviceFree(device));
  CHECK(qnn.backendFree(backend));
  CHECK(qnn.logFree(log));
  return 0;
}
