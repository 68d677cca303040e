/* LPAI's memory: alignment, scratch and persistent memory by properties, both set before finalize, then executions.
 *
 *     lpai_pools FOLDER BINARY          a binary with one graph "count": y = x + state, and the state becomes y
 *     lpai_pools FOLDER BINARY tcm      the same in TCM, with the configuration that ISTHMUS_LPAI_CONFIG names */
#include "QNN/LPAI/QnnLpaiBackend.h"
#include "QNN/LPAI/QnnLpaiContext.h"
#include "QNN/LPAI/QnnLpaiGraph.h"
#include "qnn_client.h"

static QNN_INTERFACE_VER_TYPE qnn;
#define QnnBackend_getProperty qnn.backendGetProperty
#define QnnGraph_getProperty qnn.graphGetProperty
#define QnnGraph_setConfig qnn.graphSetConfig

static void alignment(Qnn_BackendHandle_t backendHandle, uint32_t *startAddrAlignment, uint32_t *sizeAlignment) {
  QnnLpaiBackend_BufferAlignmentReq_t bufferAlignmentReq;
  QnnLpaiBackend_CustomProperty_t customBackendProp;
  customBackendProp.option = QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ;
  customBackendProp.property = &bufferAlignmentReq;
  QnnBackend_Property_t backendProp;
  backendProp.option = QNN_BACKEND_PROPERTY_OPTION_CUSTOM;
  backendProp.customProperty = &customBackendProp;
  QnnBackend_Property_t *backendPropPtrs[2] = {0};
  backendPropPtrs[0] = &backendProp;
  CHECK(QnnBackend_getProperty(backendHandle, backendPropPtrs));
  *startAddrAlignment = bufferAlignmentReq.startAddrAlignment;
  *sizeAlignment = bufferAlignmentReq.sizeAlignment;
}

static uint32_t pool_size(Qnn_GraphHandle_t graphHandle, uint32_t option) {
  uint32_t size = 0;
  QnnLpaiGraph_CustomProperty_t customGraphProp;
  customGraphProp.option = option;
  customGraphProp.property = &size;
  QnnGraph_Property_t graphProp;
  graphProp.option = QNN_GRAPH_PROPERTY_OPTION_CUSTOM;
  graphProp.customProperty = &customGraphProp;
  QnnGraph_Property_t *graphPropPtrs[2] = {0};
  graphPropPtrs[0] = &graphProp;
  CHECK(QnnGraph_getProperty(graphHandle, graphPropPtrs));
  return size;
}

static Qnn_ErrorHandle_t give_pool(Qnn_GraphHandle_t graphHandle, uint32_t option, uint32_t size, void *buffer) {
  QnnLpaiGraph_Mem_t lpaiGraphMem;
  lpaiGraphMem.memType = QNN_LPAI_MEM_TYPE_DDR;
  lpaiGraphMem.size = size;
  lpaiGraphMem.addr = buffer;
  QnnLpaiGraph_CustomConfig_t customGraphCfg;
  customGraphCfg.option = option;
  customGraphCfg.config = &lpaiGraphMem;
  QnnGraph_Config_t graphConfig;
  graphConfig.option = QNN_GRAPH_CONFIG_OPTION_CUSTOM;
  graphConfig.customConfig = &customGraphCfg;
  QnnGraph_Config_t *graphCfgPtrs[2] = {0};
  graphCfgPtrs[0] = &graphConfig;
  return QnnGraph_setConfig(graphHandle, (const QnnGraph_Config_t **)graphCfgPtrs);
}

static void *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  REQUIRE(file);
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  void *content = malloc(*size);
  REQUIRE(fread(content, 1, *size, file) == *size);
  fclose(file);
  return content;
}

int main(int argc, char **argv) {
  int tcm = argc > 3 && !strcmp(argv[3], "tcm");
  qnn = table_of(argv[1], "libQnnLpai.so");
  QNN_SYSTEM_INTERFACE_VER_TYPE system_functions = system_table_of(argv[1]);
  size_t binarySize;
  void *contextBinaryBuffer = read_file(argv[2], &binarySize);

  /* inputs and outputs, as the binary describes them */
  QnnSystemContext_Handle_t qnnSystemCtxHandle = NULL;
  const QnnSystemContext_BinaryInfo_t *binaryInfo = NULL;
  Qnn_ContextBinarySize_t binaryInfoSize = 0;
  CHECK(system_functions.systemContextCreate(&qnnSystemCtxHandle));
  CHECK(system_functions.systemContextGetBinaryInfo(qnnSystemCtxHandle, contextBinaryBuffer, binarySize, &binaryInfo,
                                                    &binaryInfoSize));
  QnnSystemContext_GraphInfo_t *graphInfo = &binaryInfo->contextBinaryInfoV1.graphs[0];
  Qnn_Tensor_t input = graphInfo->graphInfoV1.graphInputs[0], output = graphInfo->graphInfoV1.graphOutputs[0];

  Qnn_LogHandle_t log = NULL;
  Qnn_BackendHandle_t backendHandle = NULL;
  Qnn_ContextHandle_t context = NULL;
  Qnn_GraphHandle_t graphHandle = NULL;
  CHECK(qnn.logCreate(log_line, QNN_LOG_LEVEL_INFO, &log));
  CHECK(qnn.backendCreate(log, NULL, &backendHandle));
  uint32_t start = 0, step = 0;
  alignment(backendHandle, &start, &step);
  printf("alignment %u %u\n", start, step);

  QnnLpaiMem_MemType_t memType = QNN_LPAI_MEM_TYPE_TCM;
  QnnLpaiContext_CustomConfig_t customContextCfg;
  customContextCfg.option = QNN_LPAI_CONTEXT_SET_CFG_MODEL_BUFFER_MEM_TYPE;
  customContextCfg.config = &memType;
  QnnContext_Config_t contextConfig;
  contextConfig.option = QNN_CONTEXT_CONFIG_OPTION_CUSTOM;
  contextConfig.customConfig = &customContextCfg;
  const QnnContext_Config_t *contextConfigs[2] = {&contextConfig, NULL};
  CHECK(qnn.contextCreateFromBinary(backendHandle, NULL, tcm ? contextConfigs : NULL, contextBinaryBuffer, binarySize,
                                    &context, NULL));
  CHECK(qnn.graphRetrieve(context, graphInfo->graphInfoV1.graphName, &graphHandle));

  uint32_t scratchSize = pool_size(graphHandle, QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE);
  uint32_t persistentSize = pool_size(graphHandle, QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE);
  printf("scratch %u persistent %u\n", scratchSize, persistentSize);
  REQUIRE(persistentSize > 0 && persistentSize % step == 0);
  REQUIRE(qnn.graphFinalize(graphHandle, NULL, NULL) != QNN_SUCCESS); /* its memory is not set */
  char *scratch = scratchSize ? (char *)aligned_alloc(start, scratchSize + step) : NULL;
  char *persistent = (char *)aligned_alloc(start, persistentSize + step);
  if (scratchSize) {
    REQUIRE(give_pool(graphHandle, QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM, scratchSize, scratch + 1) ==
            QNN_GRAPH_ERROR_INVALID_ARGUMENT); /* not aligned */
    CHECK(give_pool(graphHandle, QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM, scratchSize, scratch));
  }
  CHECK(give_pool(graphHandle, QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM, persistentSize, persistent));
  CHECK(qnn.graphFinalize(graphHandle, NULL, NULL));

  /* inputs and outputs: where the back end has planned them, then in memory of the client's */
  QnnGraph_ExecuteEnvironment_t environment;
  memset(&environment, 0, sizeof environment);
  environment.option = QNN_GRAPH_EXECUTE_ENVIRONMENT_OPTION_POPULATE_CLIENT_BUFS;
  environment.tensorSet.version = QNN_TENSOR_SET_VERSION_1;
  environment.tensorSet.v1.numInputs = environment.tensorSet.v1.numOutputs = 1;
  environment.tensorSet.v1.inputs = &input;
  environment.tensorSet.v1.outputs = &output;
  QnnGraph_ExecuteEnvironment_t *environments[] = {&environment};
  CHECK(qnn.graphPrepareExecutionEnvironment(graphHandle, environments, 1));
  float expected = 0;
  for (int round = 0; round < 3; round++) {
    ((float *)input.v1.clientBuf.data)[0] = 2.0f;
    CHECK(qnn.graphExecute(graphHandle, &input, 1, &output, 1, NULL, NULL));
    expected += 2.0f;
    REQUIRE(((float *)output.v1.clientBuf.data)[0] == expected);
  }
  CHECK(qnn.graphReleaseExecutionEnvironment(graphHandle, (const QnnGraph_ExecuteEnvironment_t **)environments, 1));
  size_t bytes = tensor_bytes(&input);
  size_t padded = (bytes + step - 1) / step * step;
  input.v1.clientBuf.data = aligned_alloc(start, (padded + start - 1) / start * start);
  output.v1.clientBuf.data = aligned_alloc(start, (padded + start - 1) / start * start);
  input.v1.clientBuf.dataSize = output.v1.clientBuf.dataSize = (uint32_t)bytes;
  ((float *)input.v1.clientBuf.data)[0] = 1.0f;
  Qnn_ErrorHandle_t error = qnn.graphExecute(graphHandle, &input, 1, &output, 1, NULL, NULL);
  if (tcm) {
    REQUIRE(error == QNN_GRAPH_ERROR_INVALID_TENSOR); /* memory types cannot be mixed */
  } else {
    CHECK(error);
    REQUIRE(((float *)output.v1.clientBuf.data)[0] == expected + 1.0f);
  }
  CHECK(qnn.contextFree(context, NULL));
  CHECK(qnn.backendFree(backendHandle));
  CHECK(qnn.logFree(log));
  CHECK(system_functions.systemContextFree(qnnSystemCtxHandle));
  free(input.v1.clientBuf.data);
  free(output.v1.clientBuf.data);
  free(scratch);
  free(persistent);
  free(contextBinaryBuffer);
  printf("done\n");
  return 0;
}
