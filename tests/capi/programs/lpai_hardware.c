/* LPAI's hardware named in the call that creates a backend, and its graph's hints, as compilers of models name them.
 *
 *     lpai_hardware FOLDER TARGET VERSION          prints what the backend answers, and the alignment of its memory */
#include "QNN/LPAI/QnnLpaiBackend.h"
#include "QNN/LPAI/QnnLpaiGraphPrepare.h"
#include "qnn_client.h"

static QNN_INTERFACE_VER_TYPE qnn = QNN_INTERFACE_VER_TYPE_INIT;

static void hear(const char *format, QnnLog_Level_t level, uint64_t time, va_list values) {
  (void)time;
  printf("log %d: ", (int)level);
  vprintf(format, values);
  printf("\n");
}

/* The answer to a graph config whose value is one of LPAI's structures. */
static Qnn_ErrorHandle_t configured(Qnn_GraphHandle_t graph, uint32_t option, void *value) {
  QnnLpaiGraph_CustomConfig_t custom = QNN_LPAI_GRAPH_CUSTOM_CONFIG_INIT;
  QnnGraph_Config_t config = QNN_GRAPH_CONFIG_INIT;
  const QnnGraph_Config_t *configs[] = {&config, NULL};
  custom.option = option;
  custom.config = value;
  config.option = QNN_GRAPH_CONFIG_OPTION_CUSTOM;
  config.customConfig = &custom;
  return qnn.graphSetConfig(graph, configs);
}

int main(int count, char **arguments) {
  REQUIRE(count == 4);
  qnn = table_of(arguments[1], "libQnnLpai.so");

  QnnLpaiBackend_CustomConfigHwInfo_t hardware = QNN_LPAI_BACKEND_CUSTOM_CONFIG_HW_INFO_INIT;
  hardware.lpaiTarget = (QnnLpaiBackend_Target_t)strtoul(arguments[2], NULL, 0);
  hardware.hwVersion = (QnnLpaiBackend_HwVersion_t)strtoul(arguments[3], NULL, 0);
  QnnLpaiBackend_CustomConfig_t custom = QNN_LPAI_BACKEND_CUSTOM_CONFIG_INIT;
  custom.option = QNN_LPAI_BACKEND_CUSTOM_CFG_HW_INFO;
  custom.config = &hardware;
  QnnBackend_Config_t config = QNN_BACKEND_CONFIG_INIT;
  config.option = QNN_BACKEND_CONFIG_OPTION_CUSTOM;
  config.customConfig = &custom;
  const QnnBackend_Config_t *configs[] = {&config, NULL};
  Qnn_LogHandle_t log = NULL;
  CHECK(qnn.logCreate(hear, QNN_LOG_LEVEL_INFO, &log));
  Qnn_BackendHandle_t backend = NULL;
  Qnn_ErrorHandle_t error = qnn.backendCreate(log, configs, &backend);
  printf("created %d\n", (int)error);
  if (error) return 0;

  QnnLpaiBackend_BufferAlignmentReq_t alignment = QNN_LPAI_BACKEND_ALIGNMENT_REQ_INIT;
  QnnLpaiBackend_CustomProperty_t wanted = QNN_LPAI_BACKEND_CUSTOM_PROPERTY_INIT;
  wanted.option = QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ_DEFAULT;
  wanted.property = &alignment;
  QnnBackend_Property_t property = QNN_BACKEND_PROPERTY_INIT, *properties[] = {&property, NULL};
  property.option = QNN_BACKEND_PROPERTY_OPTION_CUSTOM;
  property.customProperty = &wanted;
  CHECK(qnn.backendGetProperty(backend, properties));
  printf("alignment %u %u\n", alignment.startAddrAlignment, alignment.sizeAlignment);

  Qnn_ContextHandle_t context = NULL;
  Qnn_GraphHandle_t graph = NULL;
  CHECK(qnn.contextCreate(backend, NULL, NULL, &context));
  CHECK(qnn.graphCreate(context, "graph", NULL, &graph));
  char cores[] = "0,1";
  QnnLpaiGraph_CustomConfigPrepare_t prepare = QNN_LPAI_GRAPH_CUSTOM_CONFIG_PREPARE_INIT;
  prepare.enableCoreSelection = cores;
  QnnLpaiGraph_PerfCfg_t performance = QNN_LPAI_GRAPH_PERF_CFG_INIT;
  QnnLpaiGraph_CoreAffinity_t affinity = QNN_LPAI_CORE_AFFINITY(1, QNN_LPAI_GRAPH_CORE_AFFINITY_HARD);
  CHECK(configured(graph, QNN_LPAI_GRAPH_SET_CFG_PREPARE, &prepare));
  CHECK(configured(graph, QNN_LPAI_GRAPH_SET_CFG_PERF_CFG, &performance));
  CHECK(configured(graph, QNN_LPAI_GRAPH_SET_CFG_CORE_AFFINITY, &affinity));
  affinity.coreSelection = 3;
  REQUIRE(configured(graph, QNN_LPAI_GRAPH_SET_CFG_CORE_AFFINITY_DEFAULT, &affinity));
  CHECK(qnn.backendFree(backend));
  return 0;
}
