/* Four threads, each with memory of its own, execute one graph a thousand times; one frees nothing at the end.
 *
 *     threads FOLDER LIBRARY [ROUNDS] */
#include <pthread.h>

#include "qnn_client.h"

enum { THREADS = 4, ELEMENTS = 32 };
static QNN_INTERFACE_VER_TYPE qnn;
static Qnn_GraphHandle_t graph;
static Qnn_Tensor_t input, output;
static int rounds = 1000;

static void *execute(void *argument) {
  float given[ELEMENTS], made[ELEMENTS];
  Qnn_Tensor_t x = input, y = output;
  x.v1.clientBuf.data = given;
  y.v1.clientBuf.data = made;
  x.v1.clientBuf.dataSize = y.v1.clientBuf.dataSize = sizeof given;
  for (int round = 0; round < rounds; round++) {
    for (int i = 0; i < ELEMENTS; i++) given[i] = (float)((long)argument * 1000 + round + i), made[i] = -1;
    CHECK(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL));
    for (int i = 0; i < ELEMENTS; i++) REQUIRE(made[i] == 2 * given[i]);
  }
  return NULL;
}

int main(int argc, char **argv) {
  if (argc > 3) rounds = atoi(argv[3]);
  qnn = table_of(argv[1], argv[2]);
  Qnn_BackendHandle_t backend = NULL;
  Qnn_ContextHandle_t context = NULL;
  CHECK(qnn.backendCreate(NULL, NULL, &backend));
  CHECK(qnn.contextCreate(backend, NULL, NULL, &context));
  CHECK(qnn.graphCreate(context, "twice", NULL, &graph));
  uint32_t dims[2] = {1, ELEMENTS};
  input = described("x", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, dims);
  output = described("y", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, dims);
  add_double(&qnn, graph, &input, &output);
  CHECK(qnn.graphFinalize(graph, NULL, NULL));
  pthread_t threads[THREADS];
  for (long i = 0; i < THREADS; i++) REQUIRE(!pthread_create(&threads[i], NULL, execute, (void *)i));
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  printf("done\n");
  return 0;
}
