/* A program for the audit: HTP with shared memory.
 *
 *     audited FOLDER [wrong]        with "wrong" it makes the mistakes that comments name, each on its line */
#include "QNN/HTP/QnnHtpMem.h"
#include "qnn_client.h"

enum { ELEMENTS = 16, BYTES = ELEMENTS * sizeof(float) };
static QNN_INTERFACE_VER_TYPE qnn;
static uint32_t dims[2] = {1, ELEMENTS};

/* A graph in a context of its own, with its tensors, prepared for memory handles. */
typedef struct {
  Qnn_ContextHandle_t context;
  Qnn_GraphHandle_t graph;
  Qnn_Tensor_t x, y;
} Positive;

static Positive composed(Qnn_BackendHandle_t backend) {
  Positive made = {NULL, NULL, described("x", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, dims),
                   described("y", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, dims)};
  made.x.v1.memType = made.y.v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;
  made.x.v1.memHandle = made.y.v1.memHandle = NULL;
  CHECK(qnn.contextCreate(backend, NULL, NULL, &made.context));
  CHECK(qnn.graphCreate(made.context, "positive", NULL, &made.graph));
  CHECK(qnn.tensorCreateGraphTensor(made.graph, &made.x));
  CHECK(qnn.tensorCreateGraphTensor(made.graph, &made.y));
  CHECK(qnn.graphAddNode(made.graph, operation("relu", "Relu", 1, &made.x, 1, &made.y)));
  CHECK(qnn.graphFinalize(made.graph, NULL, NULL));
  return made;
}

static Qnn_MemDescriptor_t part(QnnMemHtp_Descriptor_t *htp, int fd, uint64_t offset) {
  Qnn_MemDescriptor_t descriptor;
  memset(htp, 0, sizeof *htp);
  htp->type = QNN_HTP_MEM_SHARED_BUFFER;
  htp->size = 4 * BYTES;
  htp->sharedBufferConfig.fd = fd;
  htp->sharedBufferConfig.offset = offset;
  memset(&descriptor, 0, sizeof descriptor);
  descriptor.memShape.numDim = 2;
  descriptor.memShape.dimSize = dims;
  descriptor.dataType = QNN_DATATYPE_FLOAT_32;
  descriptor.memType = QNN_MEM_TYPE_CUSTOM;
  descriptor.customInfo = htp;
  return descriptor;
}

int main(int argc, char **argv) {
  int wrong = argc > 2 && !strcmp(argv[2], "wrong");
  void *rpcmem = loaded(argv[1], "libcdsprpc.so");
  void *(*alloc)(int, uint32_t, int);
  int (*to_fd)(void *);
  void (*release)(void *);
  *(void **)&alloc = dlsym(rpcmem, "rpcmem_alloc");
  *(void **)&to_fd = dlsym(rpcmem, "rpcmem_to_fd");
  *(void **)&release = dlsym(rpcmem, "rpcmem_free");
  qnn = table_of(argv[1], "libQnnHtp.so");

  Qnn_BackendHandle_t backend = NULL;
  CHECK(qnn.backendCreate(NULL, NULL, &backend));
  Positive mine = composed(backend), other = composed(backend);
  void *shared = alloc(RPCMEM_HEAP_ID_SYSTEM, RPCMEM_DEFAULT_FLAGS, 4 * BYTES);
  QnnMemHtp_Descriptor_t htp[2];
  Qnn_MemDescriptor_t both[2] = {part(&htp[0], to_fd(shared), 0), part(&htp[1], to_fd(shared), BYTES)};
  Qnn_MemHandle_t handles[2] = {NULL, NULL}, none = NULL;
  CHECK(qnn.memRegister(mine.context, both, 2, handles)); /* leaked */
  Qnn_Tensor_t x = mine.x, y = mine.y;
  x.v1.memHandle = handles[0];
  y.v1.memHandle = handles[1];
  for (int i = 0; i < 3; i++) CHECK(qnn.graphExecute(mine.graph, &x, 1, &y, 1, NULL, NULL));

  if (wrong) {
    float raw[ELEMENTS] = {0};
    QnnMemHtp_Descriptor_t odd_htp;
    Qnn_MemDescriptor_t odd = part(&odd_htp, to_fd(shared), 2 * BYTES + 2);
    REQUIRE(qnn.memRegister(mine.context, both, 1, &none)); /* twice */
    REQUIRE(qnn.memRegister(mine.context, &odd, 1, &none)); /* misaligned */
    Qnn_Tensor_t their_x = other.x, their_y = other.y;
    their_x.v1.memHandle = handles[0];
    their_y.v1.memHandle = handles[1];
    REQUIRE(qnn.graphExecute(other.graph, &their_x, 1, &their_y, 1, NULL, NULL)); /* wrong context */
    x.v1.memType = QNN_TENSORMEMTYPE_RAW;
    x.v1.clientBuf.data = (void *)4096;
    x.v1.clientBuf.dataSize = BYTES;
    REQUIRE(qnn.graphExecute(mine.graph, &x, 1, &y, 1, NULL, NULL)); /* unmapped */
    x.v1.clientBuf.data = raw;
    CHECK(qnn.graphExecute(mine.graph, &x, 1, &y, 1, NULL, NULL)); /* raw */
    release(shared); /* too early */
    void *kept = alloc(RPCMEM_HEAP_ID_SYSTEM, RPCMEM_DEFAULT_FLAGS, 4 * BYTES); /* never freed */
    Qnn_MemDescriptor_t whole = part(&odd_htp, to_fd(kept), 0);
    CHECK(qnn.memRegister(mine.context, &whole, 1, &none));
    CHECK(qnn.memDeRegister(&none, 1));
  } else {
    CHECK(qnn.memDeRegister(handles, 2));
    release(shared);
  }
  CHECK(qnn.contextFree(other.context, NULL));
  CHECK(qnn.contextFree(mine.context, NULL));
  CHECK(qnn.backendFree(backend));
  return 0;
}
