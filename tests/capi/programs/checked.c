/* A program that a checker of memory is to find nothing wrong with: it uses whatever it is answered, and frees all.
 *
 *     checked FOLDER LIBRARY            providers, a graph, executions, a binary, a profile
 *     checked FOLDER LIBRARY table      providers only
 *     checked FOLDER LIBRARY lose       all of it, and 4711 bytes of its own are lost */
#include "qnn_client.h"

static QNN_INTERFACE_VER_TYPE qnn;

static void use_graph(Qnn_BackendHandle_t backend, Qnn_ContextHandle_t context) {
  Qnn_GraphHandle_t graph;
  Qnn_ProfileHandle_t profile;
  uint32_t dims[] = {1, 64}, count;
  Qnn_Tensor_t x = described("x", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, dims);
  Qnn_Tensor_t y = described("y", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, dims);
  CHECK(qnn.profileCreate(backend, QNN_PROFILE_LEVEL_DETAILED, &profile));
  CHECK(qnn.graphCreate(context, "positive", NULL, &graph));
  CHECK(qnn.tensorCreateGraphTensor(graph, &x));
  CHECK(qnn.tensorCreateGraphTensor(graph, &y));
  CHECK(qnn.graphAddNode(graph, operation("relu", "Relu", 1, &x, 1, &y)));
  CHECK(qnn.graphFinalize(graph, profile, NULL));
  float *in = (float *)malloc(256), *out = (float *)malloc(256), sum = 0;
  for (int i = 0; i < 64; i++) in[i] = (float)(i - 32);
  x.v1.clientBuf.data = in;
  y.v1.clientBuf.data = out;
  x.v1.clientBuf.dataSize = y.v1.clientBuf.dataSize = 256;
  for (int round = 0; round < 3; round++) CHECK(qnn.graphExecute(graph, &x, 1, &y, 1, round ? NULL : profile, NULL));
  for (int i = 0; i < 64; i++) sum += out[i];
  REQUIRE(sum == 496);
  const QnnProfile_EventId_t *events;
  QnnProfile_EventData_t data;
  CHECK(qnn.profileGetEvents(profile, &events, &count));
  CHECK(qnn.profileGetEventData(events[0], &data));
  REQUIRE(count && strlen(data.identifier) && data.value);
  CHECK(qnn.profileFree(profile));
  free(in);
  free(out);
}

static void use_binary(Qnn_BackendHandle_t backend, Qnn_ContextHandle_t context) {
  Qnn_ContextBinarySize_t size, written, sum = 0;
  Qnn_ContextHandle_t again;
  Qnn_GraphHandle_t graph;
  CHECK(qnn.contextGetBinarySize(context, &size));
  unsigned char *binary = (unsigned char *)malloc(size);
  CHECK(qnn.contextGetBinary(context, binary, size, &written));
  for (uint64_t i = 0; i < written; i++) sum += binary[i];
  REQUIRE(sum > 0);
  CHECK(qnn.contextCreateFromBinary(backend, NULL, NULL, binary, written, &again, NULL));
  CHECK(qnn.graphRetrieve(again, "positive", &graph));
  REQUIRE(graph);
  CHECK(qnn.contextFree(again, NULL));
  free(binary);
}

int main(int argc, char **argv) {
  const char *how = argc > 3 ? argv[3] : "";
  qnn = table_of(argv[1], argv[2]);
  if (strcmp(how, "table")) {
    Qnn_LogHandle_t log;
    Qnn_BackendHandle_t backend;
    Qnn_ContextHandle_t context;
    const char *reason;
    CHECK(qnn.logCreate(log_line, QNN_LOG_LEVEL_ERROR, &log));
    CHECK(qnn.backendCreate(log, NULL, &backend));
    CHECK(qnn.contextCreate(backend, NULL, NULL, &context));
    use_graph(backend, context);
    use_binary(backend, context);
    CHECK(qnn.contextFree(context, NULL));
    REQUIRE(qnn.contextFree(context, NULL) == QNN_CONTEXT_ERROR_INVALID_HANDLE);
    CHECK(qnn.errorGetVerboseMessage(QNN_CONTEXT_ERROR_INVALID_HANDLE, &reason));
    REQUIRE(strlen(reason));
    CHECK(qnn.errorFreeVerboseMessage(reason));
    CHECK(qnn.backendFree(backend));
    CHECK(qnn.logFree(log));
  }
  if (!strcmp(how, "lose")) {
    char *volatile lost = (char *)malloc(4711);
    lost = NULL;
    (void)lost;
  }
  printf("done\n");
  return 0;
}
