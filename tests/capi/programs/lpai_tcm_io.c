/* A client in C brings inputs and outputs in TCM, from LPAI's backend extensions.
 *
 *     lpai_tcm_io FOLDER          with a configuration that ISTHMUS_LPAI_CONFIG names: exclude_io, and a memory type */
#include "QNN/LPAI/QnnLpaiGraph.h"
#include "QNN/LPAI/QnnLpaiNetRunExtensions.h"
#include "qnn_client.h"

enum { ELEMENTS = 40, BYTES = ELEMENTS * 4, PADDED = 256, MAX_BUFFERS = 32 };

static QNN_INTERFACE_VER_TYPE qnn;
typedef void *(*Allocate)(Qnn_ContextHandle_t, uint32_t);
typedef void (*Free)(void *);

static void *pool(Qnn_GraphHandle_t graph, uint32_t size_option, uint32_t option) {
  uint32_t size = 0;
  QnnLpaiGraph_CustomProperty_t asked = {size_option, &size};
  QnnGraph_Property_t property;
  memset(&property, 0, sizeof property);
  property.option = QNN_GRAPH_PROPERTY_OPTION_CUSTOM;
  property.customProperty = &asked;
  QnnGraph_Property_t *properties[] = {&property, NULL};
  CHECK(qnn.graphGetProperty(graph, properties));
  QnnLpaiGraph_Mem_t memory = {QNN_LPAI_MEM_TYPE_DDR, size, size ? aligned_alloc(128, size) : NULL};
  QnnLpaiGraph_CustomConfig_t custom = {option, &memory};
  QnnGraph_Config_t config;
  memset(&config, 0, sizeof config);
  config.option = QNN_GRAPH_CONFIG_OPTION_CUSTOM;
  config.customConfig = &custom;
  const QnnGraph_Config_t *configs[] = {&config, NULL};
  CHECK(qnn.graphSetConfig(graph, configs));
  return memory.addr;
}

int main(int argc, char **argv) {
  REQUIRE(argc == 2);
  uint32_t dims[] = {1, ELEMENTS};
  qnn = table_of(argv[1], "libQnnLpai.so");
  void *extensions = loaded(argv[1], "libQnnLpaiNetRunExtensions.so");
  Allocate allocate = (Allocate)dlsym(extensions, "QnnLpaiNetRunExtensions_allocateBuffer");
  Free release = (Free)dlsym(extensions, "QnnLpaiNetRunExtensions_freeBuffer");
  REQUIRE(allocate && release);
  Qnn_LogHandle_t log = NULL;
  Qnn_BackendHandle_t backend = NULL;
  Qnn_ContextHandle_t context = NULL;
  Qnn_GraphHandle_t graph = NULL;
  CHECK(qnn.logCreate(log_line, QNN_LOG_LEVEL_INFO, &log));
  CHECK(qnn.backendCreate(log, NULL, &backend));
  CHECK(qnn.contextCreate(backend, NULL, NULL, &context));
  CHECK(qnn.graphCreate(context, "twice", NULL, &graph));
  Qnn_Tensor_t x = described("x", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, dims);
  Qnn_Tensor_t y = described("y", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, dims);
  add_double(&qnn, graph, &x, &y);
  void *scratch = pool(graph, QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE, QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM);
  void *persistent = pool(graph, QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE, QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM);
  Qnn_ErrorHandle_t error = qnn.graphFinalize(graph, NULL, NULL);
  printf("finalize %llu\n", (unsigned long long)error);

  REQUIRE(!allocate(NULL, BYTES));
  REQUIRE(!allocate((Qnn_ContextHandle_t)backend, BYTES));
  x.v1.clientBuf.dataSize = y.v1.clientBuf.dataSize = BYTES;
  /* More often than there are buffers: what is freed can be allocated again. */
  for (int round = 0; round < 2 * MAX_BUFFERS; round++) {
    float *in = (float *)allocate(context, BYTES), *out = (float *)allocate(context, BYTES);
    if (!in || !out) {
      REQUIRE(round == 0);
      printf("no buffers\n");
      break;
    }
    REQUIRE((uintptr_t)in % 128 == 0 && (uintptr_t)out % 128 == 0);
    for (int i = 0; i < ELEMENTS; i++) in[i] = (float)(round + i);
    x.v1.clientBuf.data = in;
    y.v1.clientBuf.data = out;
    CHECK(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL));
    for (int i = 0; i < ELEMENTS; i++) REQUIRE(out[i] == 2.0f * (float)(round + i));
    release(in);
    release(out);
  }
  x.v1.clientBuf.data = aligned_alloc(128, PADDED);
  y.v1.clientBuf.data = aligned_alloc(128, PADDED);
  printf("own memory %llu\n", (unsigned long long)qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL));

  void *all[MAX_BUFFERS + 1];
  int count = 0;
  while (count <= MAX_BUFFERS && (all[count] = allocate(context, BYTES))) count++;
  printf("allocated %d\n", count);
  for (int i = 0; i < count; i++) release(all[i]);
  release(NULL);
  release(&count);
  CHECK(qnn.contextFree(context, NULL));
  CHECK(qnn.backendFree(backend));
  CHECK(qnn.logFree(log));
  free(x.v1.clientBuf.data);
  free(y.v1.clientBuf.data);
  free(scratch);
  free(persistent);
  printf("done\n");
  return 0;
}
