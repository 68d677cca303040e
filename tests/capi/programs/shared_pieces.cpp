/* A client that keeps the memory of a decoder as ExecuTorch's static llama runner does: one rpcmem buffer for cache,
 * prompt and token, divided by a running offset without alignment. A piece is registered on its first execution and
 * found again by address, position, bytes, shape and type. The column that an execution writes is then copied into the
 * input by the client, which is the only copy there is.
 *
 *     shared_pieces FOLDER */
#include <sys/mman.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "QNN/HTP/QnnHtpMem.h"
#include "qnn_client.h"

namespace {

constexpr size_t ALIGNMENT = 64;
QNN_INTERFACE_VER_TYPE qnn;

/* The buffer: rpcmem by dlopen and dlsym, as the runner loads it. */
struct SharedBuffer {
  decltype(&rpcmem_alloc) alloc;
  decltype(&rpcmem_to_fd) to_fd;
  decltype(&rpcmem_free) free;
  char *base = nullptr, *aligned = nullptr;
  size_t size = 0, used = 0;

  explicit SharedBuffer(const char *folder) {
    void *library = loaded(folder, "libcdsprpc.so");
    alloc = reinterpret_cast<decltype(alloc)>(dlsym(library, "rpcmem_alloc"));
    to_fd = reinterpret_cast<decltype(to_fd)>(dlsym(library, "rpcmem_to_fd"));
    free = reinterpret_cast<decltype(free)>(dlsym(library, "rpcmem_free"));
    REQUIRE(alloc && to_fd && free);
  }
  void allocate(size_t bytes) {
    size = bytes + ALIGNMENT;
    base = static_cast<char *>(alloc(RPCMEM_HEAP_ID_SYSTEM, RPCMEM_DEFAULT_FLAGS, static_cast<int>(size)));
    REQUIRE(base);
    aligned = base + (ALIGNMENT - reinterpret_cast<uintptr_t>(base) % ALIGNMENT) % ALIGNMENT;
  }
  char *piece(size_t bytes) {
    char *at = aligned + used;
    used += bytes;
    REQUIRE(aligned + used <= base + size);
    return at;
  }
};

/* What a registration is found by. */
using Key = std::tuple<void *, void *, size_t, size_t, std::vector<uint32_t>, Qnn_DataType_t>;
std::map<Key, Qnn_MemHandle_t> registrations;

Qnn_MemHandle_t handle_of(Qnn_ContextHandle_t context, const SharedBuffer &buffer, const Qnn_Tensor_t &tensor, char *at) {
  const size_t offset = static_cast<size_t>(at - buffer.base);
  std::vector<uint32_t> shape(tensor.v1.dimensions, tensor.v1.dimensions + tensor.v1.rank);
  const Key key{at, buffer.base, offset, tensor_bytes(&tensor), shape, tensor.v1.dataType};
  if (auto known = registrations.find(key); known != registrations.end()) return known->second;
  QnnMemHtp_Descriptor_t custom{};
  custom.type = QNN_HTP_MEM_SHARED_BUFFER;
  custom.size = buffer.size;
  custom.sharedBufferConfig.fd = buffer.to_fd(buffer.base);
  custom.sharedBufferConfig.offset = offset;
  Qnn_MemDescriptor_t descriptor{};
  descriptor.memShape.numDim = tensor.v1.rank, descriptor.memShape.dimSize = tensor.v1.dimensions;
  descriptor.dataType = tensor.v1.dataType, descriptor.memType = QNN_MEM_TYPE_CUSTOM, descriptor.customInfo = &custom;
  Qnn_MemHandle_t handle = nullptr;
  CHECK(qnn.memRegister(context, &descriptor, 1, &handle));
  return registrations[key] = handle;
}

/* A graph of one step: the cache is shifted by the input, which is also its output of one column. */
struct Step {
  std::string name;
  uint32_t cache_dims[2], input_dims[2];
  Qnn_GraphHandle_t graph = nullptr;
  Qnn_Tensor_t cache, input, sum, column;

  Step(Qnn_ContextHandle_t context, const char *given, uint32_t rows, uint32_t columns)
      : name(given), cache_dims{rows, columns}, input_dims{1, columns} {
    CHECK(qnn.graphCreate(context, given, nullptr, &graph));
    cache = described("cache_in", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, cache_dims);
    input = described("x", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, input_dims);
    sum = described("sum", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, cache_dims);
    column = described("column_out", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, input_dims);
    for (Qnn_Tensor_t *tensor : {&cache, &input, &sum, &column}) {
      tensor->v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;
      CHECK(qnn.tensorCreateGraphTensor(graph, tensor));
    }
    Qnn_Tensor_t both[] = {cache, input}, twice[] = {input, input};
    CHECK(qnn.graphAddNode(graph, operation("shift", "ElementWiseAdd", 2, both, 1, &sum)));
    CHECK(qnn.graphAddNode(graph, operation("double", "ElementWiseAdd", 2, twice, 1, &column)));
    CHECK(qnn.graphFinalize(graph, nullptr, nullptr));
  }
};

/* What a detailed profile says of the latest execution: bytes copied, bytes used in place. */
std::pair<uint64_t, uint64_t> traffic(Qnn_ProfileHandle_t profile) {
  const QnnProfile_EventId_t *events = nullptr, *parts = nullptr;
  uint32_t count = 0;
  std::pair<uint64_t, uint64_t> found{0, 0};
  CHECK(qnn.profileGetEvents(profile, &events, &count));
  REQUIRE(count == 1);
  CHECK(qnn.profileGetSubEvents(events[0], &parts, &count));
  for (uint32_t i = 0; i < count; i++) {
    QnnProfile_EventData_t data;
    CHECK(qnn.profileGetEventData(parts[i], &data));
    if (strstr(data.identifier, "copied")) found.first += data.value;
    if (strstr(data.identifier, "used in place")) found.second += data.value;
  }
  return found;
}

}  // namespace

int main(int, char **arguments) {
  SharedBuffer buffer(arguments[1]);
  qnn = table_of(arguments[1], "libQnnHtp.so");
  Qnn_BackendHandle_t backend = nullptr;
  Qnn_ContextHandle_t context = nullptr;
  Qnn_ProfileHandle_t profile = nullptr;
  CHECK(qnn.backendCreate(nullptr, nullptr, &backend));
  CHECK(qnn.contextCreate(backend, nullptr, nullptr, &context));
  CHECK(qnn.profileCreate(backend, QNN_PROFILE_LEVEL_DETAILED, &profile));

  /* Odd sizes: no piece but the first is aligned to more than a float. */
  constexpr uint32_t COLUMNS = 7, ROWS = 5;
  Step prompt(context, "prompt", ROWS, COLUMNS), token(context, "token", ROWS, COLUMNS);
  size_t total = 0;
  for (const Step *step : {&prompt, &token})
    total += 2 * tensor_bytes(&step->cache) + 2 * tensor_bytes(&step->input);
  buffer.allocate(total);
  uint64_t copied = 0, in_place = 0, executions = 0;
  bool unaligned = false;
  for (Step *step : {&prompt, &token}) {
    Qnn_Tensor_t *tensors[] = {&step->cache, &step->input, &step->sum, &step->column};
    float *pieces[4];
    for (int i = 0; i < 4; i++) {
      pieces[i] = reinterpret_cast<float *>(buffer.piece(tensor_bytes(tensors[i])));
      unaligned = unaligned || reinterpret_cast<uintptr_t>(pieces[i]) % ALIGNMENT != 0;
    }
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++) pieces[0][i] = static_cast<float>(i);
    for (int round = 0; round < 4; round++) {
      for (uint32_t i = 0; i < COLUMNS; i++) pieces[1][i] = static_cast<float>(100 * round) + static_cast<float>(i);
      std::vector<float> wanted(ROWS * COLUMNS);
      for (uint32_t i = 0; i < ROWS * COLUMNS; i++) wanted[i] = pieces[0][i] + pieces[1][i % COLUMNS];
      for (int i = 0; i < 4; i++)
        tensors[i]->v1.memHandle = handle_of(context, buffer, *tensors[i], reinterpret_cast<char *>(pieces[i]));
      Qnn_Tensor_t inputs[] = {step->cache, step->input}, outputs[] = {step->sum, step->column};
      /* Nobody in this process can touch the buffer meanwhile: a copy would end it by a signal. */
      REQUIRE(mprotect(buffer.base, buffer.size, PROT_NONE) == 0);
      CHECK(qnn.graphExecute(step->graph, inputs, 2, outputs, 2, profile, nullptr));
      REQUIRE(mprotect(buffer.base, buffer.size, PROT_READ | PROT_WRITE) == 0);
      const auto [bytes_copied, bytes_in_place] = traffic(profile);
      copied += bytes_copied, in_place += bytes_in_place, executions += 1;
      REQUIRE(memcmp(pieces[2], wanted.data(), wanted.size() * sizeof(float)) == 0);
      for (uint32_t i = 0; i < COLUMNS; i++) REQUIRE(pieces[3][i] == 2 * pieces[1][i]);
      /* The new column goes into the cache for the next execution. */
      memcpy(pieces[0] + (round % ROWS) * COLUMNS, pieces[3], COLUMNS * sizeof(float));
    }
  }
  REQUIRE(unaligned && registrations.size() == 8);
  printf("%llu executions, %llu bytes copied, %llu in place, %zu registrations\n",
         static_cast<unsigned long long>(executions), static_cast<unsigned long long>(copied),
         static_cast<unsigned long long>(in_place), registrations.size());
  for (auto &each : registrations) CHECK(qnn.memDeRegister(&each.second, 1));
  CHECK(qnn.profileFree(profile));
  CHECK(qnn.contextFree(context, nullptr));
  CHECK(qnn.backendFree(backend));
  buffer.free(buffer.base);
}
