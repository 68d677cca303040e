/* A DLC composed by the system library on a back end's table, finalized and executed; and looked at without either.
 *
 *     dlc_compose FOLDER LIBRARY FILE.dlc        the graph "net" of the tests: a convolution and a ReLU
 *
 * It is given twice, out of a file and out of memory, and both answer the same. */
#include "qnn_client.h"

enum { INPUTS = 1 * 6 * 6 * 2, OUTPUTS = 1 * 6 * 6 * 4 };
static QNN_SYSTEM_INTERFACE_VER_TYPE sys;
static QnnInterface_t provider;

static QnnInterface_t provider_of(const char *folder, const char *file) {
  QnnInterface_getProvidersFn_t ask =
      (QnnInterface_getProvidersFn_t)dlsym(loaded(folder, file), "QnnInterface_getProviders");
  const QnnInterface_t **providers = NULL;
  uint32_t count = 0;
  REQUIRE(ask);
  CHECK(ask(&providers, &count));
  return *providers[0];
}

/* What the file says of its graph. */
static void look_at(QnnSystemDlc_Handle_t dlc) {
  QnnSystemDlc_GraphInfoHandle_t *graphs = NULL;
  QnnSystemDlc_TensorInfoHandle_t tensor = NULL;
  QnnSystemDlc_QuantParamsHandle_t quantization = NULL;
  const char *name = NULL;
  uint32_t count = 0, rank = 0, dims[8];
  Qnn_DataType_t type;
  Qnn_Definition_t defined;
  float scale = 0;
  CHECK(sys.systemDlcGetComposableGraphInfoHandles(dlc, &graphs, &count));
  REQUIRE(count == 1);
  CHECK(sys.systemDlcGetComposableGraphInfoGraphName(graphs[0], &name));
  REQUIRE(!strcmp(name, "net"));
  CHECK(sys.systemDlcGetComposableGraphInfoNumInputTensors(graphs[0], &count));
  REQUIRE(count == 1);
  CHECK(sys.systemDlcGetGraphInfoInputTensorInfo(graphs[0], 0, &tensor));
  CHECK(sys.systemDlcGetTensorInfoName(tensor, &name));
  CHECK(sys.systemDlcGetTensorInfoRank(tensor, &rank));
  CHECK(sys.systemDlcGetTensorInfoDimensions(tensor, dims));
  CHECK(sys.systemDlcGetTensorInfoDataType(tensor, &type));
  REQUIRE(!strcmp(name, "in/x:0") && rank == 4 && dims[1] == 6 && dims[3] == 2 && type == QNN_DATATYPE_FLOAT_32);
  CHECK(sys.systemDlcGetTensorInfoQuantParams(tensor, &quantization));
  CHECK(sys.systemDlcGetQuantParamsEncodingDefinition(quantization, &defined));
  REQUIRE(defined == QNN_DEFINITION_UNDEFINED);
  REQUIRE(sys.systemDlcGetQuantParamsScaleOffsetScale(quantization, &scale) == QNN_COMMON_ERROR_INVALID_ARGUMENT);
  REQUIRE(sys.systemDlcGetGraphInfoInputTensorInfo(graphs[0], 1, &tensor) == QNN_COMMON_ERROR_INVALID_ARGUMENT);

  QnnSystemDlc_RecordHandle_t *records = NULL, model = NULL;
  const uint8_t *data = NULL;
  uint64_t size = 0, told = 0;
  CHECK(sys.systemDlcGetRecordsByType(dlc, QNN_SYSTEM_DLC_RECORD_MODEL, 0, &records, &count));
  REQUIRE(count == 1);
  CHECK(sys.systemDlcReadRecordDataMemoryMapped(records[0], &data, &size));
  CHECK(sys.systemDlcGetRecordDataSize(records[0], &told));
  REQUIRE(size == told && size > 16 && data[0] == 0xD5 && data[1] == 0x0A);
  CHECK(sys.systemDlcGetRecordByName(dlc, "model", &model));
  CHECK(sys.systemDlcFreeRecord(model));
  REQUIRE(sys.systemDlcFreeRecord(model) == QNN_SYSTEM_COMMON_ERROR_INVALID_HANDLE);
}

/* Everything in an answer is the client's own, made by malloc. */
static void free_tensors(Qnn_Tensor_t *tensors, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) free((void *)tensors[i].v2.name), free(tensors[i].v2.dimensions);
  free(tensors);
}

static float run(QnnSystemDlc_Handle_t dlc) {
  QNN_INTERFACE_VER_TYPE qnn = provider.QNN_INTERFACE_VER_NAME;
  Qnn_BackendHandle_t backend = NULL;
  Qnn_ContextHandle_t context = NULL;
  Qnn_GraphHandle_t graph = NULL;
  QnnSystemContext_GraphInfo_t *graphs = NULL;
  uint32_t count = 0;
  CHECK(qnn.backendCreate(NULL, NULL, &backend));
  CHECK(qnn.contextCreate(backend, NULL, NULL, &context));

  QnnGraph_Config_t low;
  memset(&low, 0, sizeof low);
  low.option = QNN_GRAPH_CONFIG_OPTION_PRIORITY;
  low.priority = QNN_PRIORITY_LOW;
  QnnGraph_Config_t *configs[] = {&low};
  QnnSystemDlc_GraphConfigInfo_t config = {QNN_SYSTEM_DLC_GRAPH_CONFIG_INFO_VERSION_1, "net", configs, 1};
  const QnnSystemDlc_GraphConfigInfo_t *all[] = {&config};
  CHECK(sys.systemDlcComposeGraphs(dlc, all, 1, backend, context, provider,
                                   QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_1, &graphs, &count));
  REQUIRE(count == 1 && graphs[0].version == 1 && !strcmp(graphs[0].graphInfoV1.graphName, "net"));
  QnnSystemContext_GraphInfoV1_t info = graphs[0].graphInfoV1;
  REQUIRE(info.numGraphInputs == 1 && info.numGraphOutputs == 1);

  float x[INPUTS], y[OUTPUTS], sum = 0;
  for (int i = 0; i < INPUTS; i++) x[i] = 1.0f;
  CHECK(qnn.graphRetrieve(context, "net", &graph));
  CHECK(qnn.graphFinalize(graph, NULL, NULL));
  info.graphInputs[0].v2.clientBuf.data = x, info.graphInputs[0].v2.clientBuf.dataSize = sizeof x;
  info.graphOutputs[0].v2.clientBuf.data = y, info.graphOutputs[0].v2.clientBuf.dataSize = sizeof y;
  CHECK(qnn.graphExecute(graph, info.graphInputs, 1, info.graphOutputs, 1, NULL, NULL));
  for (int i = 0; i < OUTPUTS; i++) sum += y[i];

  /* The context has that graph already: the reason is in the log. */
  QnnSystemContext_GraphInfo_t *again = NULL;
  REQUIRE(sys.systemDlcComposeGraphs(dlc, NULL, 0, backend, context, provider,
                                     QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_1, &again, &count));
  REQUIRE(!again && !count);
  free_tensors(info.graphInputs, 1);
  free_tensors(info.graphOutputs, 1);
  free((void *)info.graphName);
  free(graphs);
  CHECK(qnn.contextFree(context, NULL));
  CHECK(qnn.backendFree(backend));
  return sum;
}

int main(int argc, char **argv) {
  Qnn_LogHandle_t log = NULL;
  QnnSystemDlc_Handle_t file = NULL, memory = NULL, none = NULL;
  uint64_t size = 0, written = 0;
  REQUIRE(argc == 4);
  sys = system_table_of(argv[1]);
  provider = provider_of(argv[1], argv[2]);
  CHECK(sys.systemLogCreate(log_line, QNN_LOG_LEVEL_ERROR, &log));
  REQUIRE(sys.systemDlcCreateFromFile(log, "/nowhere/model.dlc", &none) && !none);
  REQUIRE(sys.systemDlcCreateFromBinary(log, (const uint8_t *)"no archive", 10, &none) && !none);
  CHECK(sys.systemDlcCreateFromFile(log, argv[3], &file));
  look_at(file);
  CHECK(sys.systemDlcGetBinarySize(file, &size));
  uint8_t *bytes = (uint8_t *)malloc(size);
  REQUIRE(bytes && sys.systemDlcGetBinary(file, bytes, size - 1, &written) == QNN_COMMON_ERROR_INVALID_ARGUMENT);
  CHECK(sys.systemDlcGetBinary(file, bytes, size, &written));
  REQUIRE(written == size);
  CHECK(sys.systemDlcCreateFromBinary(log, bytes, size, &memory));
  memset(bytes, 0, size);
  free(bytes);
  const float one = run(file), two = run(memory);
  REQUIRE(one == two);
  printf("sum %.4f\n", (double)one);
  CHECK(sys.systemDlcFree(file));
  CHECK(sys.systemDlcFree(memory));
  REQUIRE(sys.systemDlcFree(file) == QNN_SYSTEM_COMMON_ERROR_INVALID_HANDLE);
  CHECK(sys.systemLogFree(log));
  return 0;
}
