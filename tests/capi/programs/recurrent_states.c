/* A recurrent layer composed in C keeps its states between executions.
 *
 *     recurrent_states FOLDER LIBRARY OPERATION VALUES FRAMES     prints what the executions give, twice
 *
 * VALUES has what the layer's inputs hold, FRAMES a sequence for each execution. On LPAI scratch is filled with garbage
 * before each execution, and the states are reset before the second time; elsewhere the graph is made anew. */
#include "QNN/LPAI/QnnLpaiGraph.h"
#include "qnn_client.h"
#include "recurrent_graph.h"

enum { FRAME = TIME * FEATURES, RESULT = TIME * UNITS, RESET_STATE = 20001 };

static QNN_INTERFACE_VER_TYPE qnn;

static float *numbers(const char *path, size_t *count) {
  FILE *file = fopen(path, "rb");
  REQUIRE(file);
  fseek(file, 0, SEEK_END);
  *count = (size_t)ftell(file) / sizeof(float);
  rewind(file);
  float *content = (float *)malloc(*count * sizeof(float));
  REQUIRE(fread(content, sizeof(float), *count, file) == *count);
  fclose(file);
  return content;
}

static Qnn_ErrorHandle_t configure(Qnn_GraphHandle_t graph, uint32_t option, void *value) {
  QnnLpaiGraph_CustomConfig_t custom = {option, value};
  QnnGraph_Config_t config;
  memset(&config, 0, sizeof config);
  config.option = QNN_GRAPH_CONFIG_OPTION_CUSTOM;
  config.customConfig = &custom;
  const QnnGraph_Config_t *configs[] = {&config, NULL};
  return qnn.graphSetConfig(graph, configs);
}

/* Give a pool to a graph, in memory of exactly the size that it asks for. */
static char *pool(Qnn_GraphHandle_t graph, uint32_t size_option, uint32_t option, uint32_t alignment, uint32_t *size) {
  QnnLpaiGraph_CustomProperty_t custom = {size_option, size};
  QnnGraph_Property_t property;
  memset(&property, 0, sizeof property);
  property.option = QNN_GRAPH_PROPERTY_OPTION_CUSTOM;
  property.customProperty = &custom;
  QnnGraph_Property_t *properties[] = {&property, NULL};
  CHECK(qnn.graphGetProperty(graph, properties));
  REQUIRE(*size > 0);
  QnnLpaiGraph_Mem_t memory = {QNN_LPAI_MEM_TYPE_DDR, *size, aligned_alloc(alignment, *size)};
  CHECK(configure(graph, option, &memory));
  return (char *)memory.addr;
}

int main(int argc, char **argv) {
  REQUIRE(argc == 6);
  int on_lpai = !strcmp(argv[2], "libQnnLpai.so");
  qnn = table_of(argv[1], argv[2]);
  size_t count;
  float *values = numbers(argv[4], &count);
  float *frames = numbers(argv[5], &count);
  Qnn_BackendHandle_t backend = NULL;
  CHECK(qnn.backendCreate(NULL, NULL, &backend));
  Qnn_ContextHandle_t context = NULL;
  Qnn_GraphHandle_t graph = NULL;
  Qnn_Tensor_t x, y;
  char *scratch = NULL, *persistent = NULL;
  uint32_t scratch_size = 0, persistent_size = 0;
  for (int time = 0; time < 2; time++) {
    if (time && on_lpai) {
      CHECK(configure(graph, RESET_STATE, NULL));
    } else {
      if (time) CHECK(qnn.contextFree(context, NULL));
      CHECK(qnn.contextCreate(backend, NULL, NULL, &context));
      CHECK(compose_recurrent(&qnn, backend, context, strcmp(argv[3], "Lstm") ? &GRU : &LSTM, values, &graph, &x, &y));
      if (on_lpai) {
        scratch = pool(graph, QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE, QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM, 128,
                       &scratch_size);
        persistent = pool(graph, QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE, QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM,
                          128, &persistent_size);
      }
      CHECK(qnn.graphFinalize(graph, NULL, NULL));
    }
    x.v1.clientBuf.data = aligned_alloc(128, 128);
    y.v1.clientBuf.data = aligned_alloc(128, 128);
    x.v1.clientBuf.dataSize = FRAME * sizeof(float);
    y.v1.clientBuf.dataSize = RESULT * sizeof(float);
    for (float *frame = frames; frame < frames + count; frame += FRAME) {
      memcpy(x.v1.clientBuf.data, frame, FRAME * sizeof(float));
      if (on_lpai) memset(scratch, 0xA5, scratch_size);
      CHECK(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL));
      for (int i = 0; i < RESULT; i++) printf("%.9g\n", ((float *)y.v1.clientBuf.data)[i]);
    }
    free(x.v1.clientBuf.data);
    free(y.v1.clientBuf.data);
  }
  CHECK(qnn.contextFree(context, NULL));
  CHECK(qnn.backendFree(backend));
  free(scratch);
  free(persistent);
  free(values);
  free(frames);
  return 0;
}
