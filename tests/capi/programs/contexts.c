/* Contexts with large weights, one after the other. What the process has while one lives, and after it is freed:
 *
 *     contexts FOLDER LIBRARY ROUNDS WIDTH      prints "live|freed RESIDENT_KIB DESCRIPTORS" for each context */
#include <dirent.h>
#include <unistd.h>

#include "qnn_client.h"

static void tell(const char *when) {
  long pages = 0;
  int descriptors = 0;
  FILE *statm = fopen("/proc/self/statm", "r");
  REQUIRE(statm && fscanf(statm, "%*s %ld", &pages) == 1);
  fclose(statm);
  DIR *folder = opendir("/proc/self/fd");
  REQUIRE(folder);
  while (readdir(folder)) descriptors++;
  closedir(folder);
  printf("%s %ld %d\n", when, pages * (sysconf(_SC_PAGESIZE) >> 10), descriptors);
}

int main(int argc, char **argv) {
  REQUIRE(argc == 5);
  QNN_INTERFACE_VER_TYPE qnn = table_of(argv[1], argv[2]);
  int rounds = atoi(argv[3]);
  uint32_t width = (uint32_t)atoi(argv[4]), row[2] = {1, width}, square[2] = {width, width};
  Qnn_BackendHandle_t backend = NULL;
  CHECK(qnn.backendCreate(NULL, NULL, &backend));
  float *weights = (float *)malloc(4ul * width * width), *x = (float *)malloc(4ul * width), *y = (float *)malloc(4ul * width);
  REQUIRE(weights && x && y);
  for (size_t i = 0; i < (size_t)width * width; i++) weights[i] = 1;
  for (uint32_t i = 0; i < width; i++) x[i] = 1;
  for (int round = 0; round < rounds; round++) {
    Qnn_ContextHandle_t context = NULL;
    Qnn_GraphHandle_t graph = NULL;
    CHECK(qnn.contextCreate(backend, NULL, NULL, &context));
    CHECK(qnn.graphCreate(context, "sums", NULL, &graph));
    Qnn_Tensor_t given[2] = {described("x", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, row),
                             described("w", QNN_TENSOR_TYPE_STATIC, QNN_DATATYPE_FLOAT_32, 2, square)};
    Qnn_Tensor_t made = described("y", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, row);
    given[1].v1.clientBuf.data = weights;
    given[1].v1.clientBuf.dataSize = 4 * width * width;
    CHECK(qnn.tensorCreateGraphTensor(graph, &given[0]));
    CHECK(qnn.tensorCreateGraphTensor(graph, &given[1]));
    CHECK(qnn.tensorCreateGraphTensor(graph, &made));
    CHECK(qnn.graphAddNode(graph, operation("all", "FullyConnected", 2, given, 1, &made)));
    CHECK(qnn.graphFinalize(graph, NULL, NULL));
    given[0].v1.clientBuf.data = x;
    made.v1.clientBuf.data = y;
    given[0].v1.clientBuf.dataSize = made.v1.clientBuf.dataSize = 4 * width;
    y[0] = 0;
    CHECK(qnn.graphExecute(graph, given, 1, &made, 1, NULL, NULL));
    REQUIRE(y[0] == (float)width);
    tell("live");
    CHECK(qnn.contextFree(context, NULL));
    tell("freed");
  }
  CHECK(qnn.backendFree(backend));
  return 0;
}
