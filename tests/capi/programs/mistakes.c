/* A client that makes mistakes, one after the other, and goes on.
 *
 *     mistakes FOLDER LIBRARY */
#include "qnn_client.h"

int main(int argc, char **argv) {
  REQUIRE(argc == 3);
  QNN_INTERFACE_VER_TYPE qnn = table_of(argv[1], argv[2]);
  Qnn_BackendHandle_t backend = NULL;
  Qnn_ContextHandle_t context = NULL, other = NULL;
  Qnn_GraphHandle_t graph = NULL;
  CHECK(qnn.backendCreate(NULL, NULL, &backend));
  CHECK(qnn.contextCreate(backend, NULL, NULL, &context));
  CHECK(qnn.contextCreate(backend, NULL, NULL, &other));
  CHECK(qnn.graphCreate(context, "positive", NULL, &graph));
  uint32_t dims[2] = {1, 8}, wrong_dims[2] = {2, 4};
  Qnn_Tensor_t x = described("x", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, dims);
  Qnn_Tensor_t y = described("y", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, dims);
  CHECK(qnn.tensorCreateGraphTensor(graph, &x));
  CHECK(qnn.tensorCreateGraphTensor(graph, &y));
  REQUIRE(qnn.tensorCreateGraphTensor(graph, &y)); /* a name twice */
  Qnn_Tensor_t stranger = x, other_shape = x;
  stranger.v1.id = 77;
  other_shape.v1.dimensions = wrong_dims;
  REQUIRE(qnn.graphAddNode(graph, operation("relu", "Relu", 1, &stranger, 1, &y))); /* an id that nobody has */
  REQUIRE(qnn.graphAddNode(graph, operation("relu", "Relu", 1, &other_shape, 1, &y))); /* another shape than created */
  CHECK(qnn.graphAddNode(graph, operation("relu", "Relu", 1, &x, 1, &y)));
  REQUIRE(qnn.graphAddNode(graph, operation("again", "Relu", 1, &x, 1, &y))); /* an output that another node writes */
  float given[8] = {1, -1}, made[8];
  x.v1.clientBuf.data = given;
  y.v1.clientBuf.data = made;
  x.v1.clientBuf.dataSize = y.v1.clientBuf.dataSize = sizeof given;
  REQUIRE(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL)); /* not finalized */
  CHECK(qnn.graphFinalize(graph, NULL, NULL));
  REQUIRE(qnn.graphFinalize(graph, NULL, NULL)); /* twice */
  CHECK(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL));
  REQUIRE(made[0] == 1.0f && made[1] == 0.0f);
  x.v1.dimensions = wrong_dims;
  REQUIRE(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL)); /* other dimensions than created */
  x.v1.dimensions = dims;
  x.v1.dataType = QNN_DATATYPE_INT_8;
  REQUIRE(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL)); /* another data type than created */
  x.v1.dataType = QNN_DATATYPE_FLOAT_32;
  y.v1.clientBuf.dataSize = 4;
  REQUIRE(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL)); /* too small */
  y.v1.clientBuf.dataSize = sizeof made;
  y.v1.clientBuf.data = given + 1;
  REQUIRE(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL)); /* over a part of its input */
  y.v1.clientBuf.data = given;
  CHECK(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL)); /* exactly in its input: no mistake */
  REQUIRE(given[0] == 1.0f && given[1] == 0.0f);
  y.v1.clientBuf.data = made;
  REQUIRE(qnn.graphExecute(graph, &x, 1, &y, 0, NULL, NULL)); /* an output is missing */
  REQUIRE(qnn.graphCreate(context, "without a place for the handle", NULL, NULL));
  Qnn_LogHandle_t log = NULL;
  CHECK(qnn.logCreate(NULL, QNN_LOG_LEVEL_ERROR, &log));
  CHECK(qnn.logFree(log)); /* while a back end may speak to it; libraries take it */
  CHECK(qnn.contextFree(context, NULL));
  REQUIRE(qnn.contextFree(context, NULL)); /* twice */
  REQUIRE(qnn.graphExecute(graph, &x, 1, &y, 1, NULL, NULL)); /* its context has ended */
  REQUIRE(qnn.contextFree(backend, NULL)); /* another kind of handle */
  printf("done\n");
  return 0; /* the other context and the back end are left */
}
