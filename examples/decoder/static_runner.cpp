/* A decoder in the memory of ExecuTorch's static runner: one rpcmem buffer for the cache, the prompt and the token.
 *
 *     g++ -std=c++17 -I"$(isthmus capi include)" static_runner.cpp -o static_runner
 *     static_runner LIBRARIES DECODER.bin PROMPT_GRAPH TOKEN_GRAPH[,TOKEN_GRAPH...] COUNT TOKEN...
 *
 * The decoder computes in a16w8 or in float16. Where a sentence becomes too long for the context of a graph for tokens, the
 * next one takes over, in the same memory.
 *
 * The buffer is divided by a running offset without alignment. A piece is registered on its first execution, with the
 * buffer's descriptor and the piece's offset, and found again by address, shape and type. The runner itself copies each
 * token's new columns into the cache, where the mask then shows them.
 *
 * It prints the tokens, and what they took: all but the first of each graph, for which pieces are registered. Memory that
 * is requested is counted in `malloc`. During an execution this process has no access to the buffer, so a copy would end
 * it. */
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "QNN/HTP/QnnHtpMem.h"
#include "QNN/QnnInterface.h"
#include "QNN/System/QnnSystemInterface.h"
#include "rpcmem.h"

#define CHECK(call)                                                                                      \
  do {                                                                                                   \
    if (unsigned long long error = (call)) {                                                             \
      fprintf(stderr, "%s:%d: %s answers %llu\n", __FILE__, __LINE__, #call, error);                     \
      exit(1);                                                                                           \
    }                                                                                                    \
  } while (0)

/* The bytes that this process, with all its libraries, has asked for. */
static std::atomic<uint64_t> requested{0};
extern "C" {
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *malloc(size_t bytes) { return requested += bytes, __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return requested += count * bytes, __libc_calloc(count, bytes); }
void *realloc(void *old, size_t bytes) { return requested += bytes, __libc_realloc(old, bytes); }
}

namespace {

constexpr double ROPE_THETA = 10000, HIDDEN = -1000;
QNN_INTERFACE_VER_TYPE qnn;

void *loaded(const std::string &path) {
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror()), exit(1);
  return library;
}

/* The bits of a float16 number, rounded to the nearest. */
uint16_t float16_of(double real) {
  int exponent = 0;
  if (std::frexp(real, &exponent) == 0) exponent = -13;
  const int step = std::max(exponent, -13) - 11;
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(std::fabs(real), -step)));
  return static_cast<uint16_t>((std::signbit(real) ? 0x8000 : 0) | (steps + (static_cast<uint32_t>(step + 24) << 10)));
}

template <typename Function>
Function found(void *library, const char *name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

size_t element_bytes(const Qnn_Tensor_t &tensor) {
  return tensor.v1.dataType == QNN_DATATYPE_INT_32 ? 4 : (tensor.v1.dataType & 0xff) == 0x08 ? 1 : 2;
}

size_t bytes_of(const Qnn_Tensor_t &tensor) {
  size_t bytes = element_bytes(tensor);
  for (uint32_t i = 0; i < tensor.v1.rank; i++) bytes *= tensor.v1.dimensions[i];
  return bytes;
}

/* The buffer, and what is registered of it. */
struct SharedBuffer {
  char *base = nullptr;
  size_t size = 0, used = 0;
  int fd = -1;
  std::map<std::tuple<size_t, std::vector<uint32_t>, Qnn_DataType_t>, Qnn_MemHandle_t> handles;

  char *piece(size_t bytes) {
    used += bytes;
    return base + used - bytes;
  }

  /* Give a tensor the handle of its piece. A place is registered for one shape at a time: the prompt's cache ends where
   * the token's begins. */
  void provide(Qnn_ContextHandle_t context, Qnn_Tensor_t &tensor, const char *at) {
    const size_t offset = static_cast<size_t>(at - base);
    const std::vector<uint32_t> shape(tensor.v1.dimensions, tensor.v1.dimensions + tensor.v1.rank);
    for (auto other = handles.begin(); other != handles.end();)
      if (std::get<0>(other->first) == offset && std::get<1>(other->first) != shape) {
        CHECK(qnn.memDeRegister(&other->second, 1));
        other = handles.erase(other);
      } else {
        ++other;
      }
    Qnn_MemHandle_t &handle = handles[{offset, shape, tensor.v1.dataType}];
    if (!handle) {
      QnnMemHtp_Descriptor_t custom{};
      custom.type = QNN_HTP_MEM_SHARED_BUFFER, custom.size = size;
      custom.sharedBufferConfig.fd = fd, custom.sharedBufferConfig.offset = offset;
      Qnn_MemDescriptor_t descriptor{};
      descriptor.memShape.numDim = tensor.v1.rank, descriptor.memShape.dimSize = tensor.v1.dimensions;
      descriptor.dataType = tensor.v1.dataType;
      descriptor.memType = QNN_MEM_TYPE_CUSTOM, descriptor.customInfo = &custom;
      CHECK(qnn.memRegister(context, &descriptor, 1, &handle));
    }
    tensor.v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE, tensor.v1.memHandle = handle;
  }
};

/* A tensor's piece, and for a cache its rows and the bytes of a column: keys have columns along the last axis, values
 * along the one before it. */
struct Piece {
  Qnn_Tensor_t *tensor = nullptr;
  char *at = nullptr;
  size_t rows = 0, column = 0;

  bool is_float16() const { return tensor->v1.dataType == QNN_DATATYPE_FLOAT_16; }

  /* Store a real number: as float16, or quantized as the tensor is, rounded down as by Genie. */
  void store(size_t index, double real) const {
    if (is_float16()) {
      reinterpret_cast<uint16_t *>(at)[index] = float16_of(real);
      return;
    }
    const auto &encoding = tensor->v1.quantizeParams.scaleOffsetEncoding;
    const double step = std::floor(static_cast<float>(real) / encoding.scale) - encoding.offset;
    reinterpret_cast<uint16_t *>(at)[index] = static_cast<uint16_t>(std::fmin(std::fmax(step, 0), 65535));
  }

  /* A number that is larger for larger elements. */
  int rank(size_t index) const {
    const int bits = reinterpret_cast<const uint16_t *>(at)[index];
    return is_float16() && bits & 0x8000 ? 0x8000 - bits : bits;
  }
};

/* A graph for a number of tokens at once, with the pieces of its tensors. */
struct Graph {
  Qnn_GraphHandle_t handle = nullptr;
  std::vector<Qnn_Tensor_t> inputs, outputs;
  Piece ids, mask, cosines, sines, logits;
  std::vector<std::pair<Piece, Piece>> caches; /* what it reads, and the new columns that it writes */
  uint32_t tokens = 0, context = 0, past = 0;

  Piece piece(const std::string &name) {
    for (auto *side : {&inputs, &outputs})
      for (auto &each : *side) {
        if (name != each.v1.name) continue;
        const uint32_t *dims = each.v1.dimensions;
        const size_t element = element_bytes(each);
        if (name.find("key") != std::string::npos) return {&each, nullptr, size_t{dims[0]} * dims[2], element};
        return {&each, nullptr, dims[0], dims[3] * element};
      }
    fprintf(stderr, "the graph has no tensor %s\n", name.c_str());
    exit(1);
  }

  void find_pieces() {
    ids = piece("input_ids"), mask = piece("attention_mask"), logits = piece("logits");
    cosines = piece("position_ids_cos"), sines = piece("position_ids_sin");
    for (const auto &each : inputs)
      if (!strncmp(each.v1.name, "past", 4)) {
        const std::string name(each.v1.name, strlen(each.v1.name) - 3);
        caches.emplace_back(piece(name + "_in"), piece(name + "_out"));
      }
    tokens = mask.tensor->v1.dimensions[2], context = mask.tensor->v1.dimensions[3], past = context - tokens;
  }
};

struct Runner {
  Qnn_ContextHandle_t context = nullptr;
  SharedBuffer buffer;
  std::vector<Graph> graphs; /* that of the prompt, then those of tokens, from the shortest context */
  uint32_t position = 0;

  /* One after the other: for each cache the columns of the longest context and the new ones of all graphs, then the other
   * tensors of each. */
  void lay_out(decltype(&rpcmem_alloc) alloc, decltype(&rpcmem_to_fd) to_fd) {
    for (const Graph &graph : graphs)
      for (const auto *side : {&graph.inputs, &graph.outputs})
        for (const auto &each : *side) buffer.size += bytes_of(each);
    const int bytes = static_cast<int>(buffer.size);
    buffer.base = static_cast<char *>(alloc(RPCMEM_HEAP_ID_SYSTEM, RPCMEM_DEFAULT_FLAGS, bytes));
    buffer.fd = to_fd(buffer.base);
    for (size_t i = 0; i < graphs[0].caches.size(); i++) {
      size_t most = 0;
      for (const Graph &graph : graphs) most = std::max(most, bytes_of(*graph.caches[i].first.tensor));
      char *columns = buffer.piece(most);
      for (Graph &graph : graphs) {
        graph.caches[i].first.at = columns;
        graph.caches[i].second.at = buffer.piece(bytes_of(*graph.caches[i].second.tensor));
      }
    }
    for (Graph &graph : graphs)
      for (Piece *each : {&graph.ids, &graph.mask, &graph.cosines, &graph.sines, &graph.logits})
        each->at = buffer.piece(bytes_of(*each->tensor));
  }

  /* Register the pieces of a graph: on its first execution. */
  void register_pieces(Graph &graph) {
    for (Piece *each : {&graph.ids, &graph.mask, &graph.cosines, &graph.sines, &graph.logits})
      buffer.provide(context, *each->tensor, each->at);
    for (auto &[old, fresh] : graph.caches)
      buffer.provide(context, *old.tensor, old.at), buffer.provide(context, *fresh.tensor, fresh.at);
  }

  /* Make room in each row of the caches for the columns that a graph with more of them has. */
  void rearrange(const Graph &from, const Graph &to) {
    for (const auto &[cache, fresh] : to.caches)
      for (size_t row = cache.rows; row-- > 0;)
        memmove(cache.at + row * to.past * cache.column, cache.at + row * from.past * cache.column,
                position * cache.column);
  }

  /* Compute some tokens behind those so far, and return the likeliest next one. */
  uint32_t step(Graph &graph, const uint32_t *tokens, uint32_t count) {
    memcpy(graph.ids.at, tokens, 4 * count);
    const uint32_t half = graph.cosines.tensor->v1.dimensions[3];
    for (uint32_t row = 0; row < count; row++) {
      for (uint32_t i = 0; i < half; i++) {
        const double angle = (position + row) / std::pow(ROPE_THETA, static_cast<double>(i) / half);
        graph.cosines.store(row * half + i, std::cos(angle));
        graph.sines.store(row * half + i, std::sin(angle));
      }
      for (uint32_t i = 0; i < graph.context; i++)
        graph.mask.store(row * graph.context + i, (i < graph.past ? i < position : i <= graph.past + row) ? 0 : HIDDEN);
    }
    if (!graph.ids.tensor->v1.memHandle) register_pieces(graph);
    CHECK(mprotect(buffer.base, buffer.size, PROT_NONE));
    CHECK(qnn.graphExecute(graph.handle, graph.inputs.data(), static_cast<uint32_t>(graph.inputs.size()),
                           graph.outputs.data(), static_cast<uint32_t>(graph.outputs.size()), nullptr, nullptr));
    CHECK(mprotect(buffer.base, buffer.size, PROT_READ | PROT_WRITE));
    for (const auto &[cache, fresh] : graph.caches)
      for (size_t row = 0; row < cache.rows; row++)
        memcpy(cache.at + (row * graph.past + position) * cache.column,
               fresh.at + row * graph.tokens * cache.column, count * cache.column);
    position += count;
    const uint32_t vocabulary = graph.logits.tensor->v1.dimensions[2];
    const size_t first = size_t{count - 1} * vocabulary;
    uint32_t likeliest = 0;
    for (uint32_t i = 1; i < vocabulary; i++)
      if (graph.logits.rank(first + i) > graph.logits.rank(first + likeliest)) likeliest = i;
    return likeliest;
  }
};

/* The places of all mappings of this process, as one number; nothing is allocated for it. */
uint64_t mappings() {
  static char text[1 << 20];
  const int file = open("/proc/self/maps", O_RDONLY);
  uint64_t sum = 0;
  for (ssize_t count; (count = read(file, text, sizeof text)) > 0;)
    for (ssize_t i = 0; i < count; i++) sum = sum * 31 + static_cast<unsigned char>(text[i]);
  close(file);
  return sum;
}

}  // namespace

int main(int count, char **arguments) {
  if (count < 7) {
    fprintf(stderr, "static_runner LIBRARIES DECODER.bin PROMPT_GRAPH TOKEN_GRAPH[,TOKEN_GRAPH...] COUNT TOKEN...\n");
    return 2;
  }
  const std::string libraries = arguments[1];
  std::ifstream file(arguments[2], std::ios::binary);
  std::vector<char> binary((std::istreambuf_iterator<char>(file)), {});
  void *rpcmem = loaded(libraries + "/libcdsprpc.so"), *htp = loaded(libraries + "/libQnnHtp.so");
  void *library = loaded(libraries + "/libQnnSystem.so");
  uint32_t number = 0;
  const QnnInterface_t **tables = nullptr;
  CHECK(found<QnnInterface_getProvidersFn_t>(htp, "QnnInterface_getProviders")(&tables, &number));
  qnn = tables[0]->QNN_INTERFACE_VER_NAME;
  const QnnSystemInterface_t **systems = nullptr;
  CHECK(found<QnnSystemInterface_getProvidersFn_t>(library, "QnnSystemInterface_getProviders")(&systems, &number));
  const auto system = systems[0]->QNN_SYSTEM_INTERFACE_VER_NAME;

  Runner runner;
  Qnn_BackendHandle_t backend = nullptr;
  CHECK(qnn.backendCreate(nullptr, nullptr, &backend));
  CHECK(qnn.contextCreateFromBinary(backend, nullptr, nullptr, binary.data(), binary.size(), &runner.context, nullptr));
  QnnSystemContext_Handle_t description = nullptr;
  const QnnSystemContext_BinaryInfo_t *info = nullptr;
  Qnn_ContextBinarySize_t info_size = 0;
  CHECK(system.systemContextCreate(&description));
  CHECK(system.systemContextGetBinaryInfo(description, binary.data(), binary.size(), &info, &info_size));
  const auto &v3 = info->contextBinaryInfoV3;
  std::stringstream names(std::string(arguments[3]) + "," + arguments[4]);
  for (std::string name; std::getline(names, name, ',');) {
    Graph graph;
    for (uint32_t i = 0; i < v3.numGraphs; i++) {
      const auto &each = v3.graphs[i].graphInfoV3;
      if (name != each.graphName) continue;
      graph.inputs.assign(each.graphInputs, each.graphInputs + each.numGraphInputs);
      graph.outputs.assign(each.graphOutputs, each.graphOutputs + each.numGraphOutputs);
    }
    CHECK(qnn.graphRetrieve(runner.context, name.c_str(), &graph.handle));
    runner.graphs.push_back(std::move(graph));
  }
  for (Graph &graph : runner.graphs) graph.find_pieces();
  runner.lay_out(found<decltype(&rpcmem_alloc)>(rpcmem, "rpcmem_alloc"),
                 found<decltype(&rpcmem_to_fd)>(rpcmem, "rpcmem_to_fd"));

  std::vector<uint32_t> words;
  for (int i = 6; i < count; i++) words.push_back(static_cast<uint32_t>(atoi(arguments[i])));
  const size_t wanted = static_cast<size_t>(atoi(arguments[5]));
  std::vector<uint32_t> answer;
  answer.reserve(wanted);
  Graph &prompt = runner.graphs[0];
  uint32_t next = 0;
  for (size_t begin = 0; begin < words.size(); begin += prompt.tokens)
    next = runner.step(prompt, &words[begin], std::min<uint32_t>(prompt.tokens, words.size() - begin));
  size_t chosen = 0, counted = 0, moves = 0;
  uint64_t bytes = 0, places = 0;
  for (answer.push_back(next); answer.size() < wanted; answer.push_back(next)) {
    const bool first = !chosen || runner.position >= runner.graphs[chosen].past;
    if (first) {
      if (chosen + 1 == runner.graphs.size()) return fprintf(stderr, "the sentence is too long for all graphs\n"), 1;
      chosen++, runner.rearrange(runner.graphs[chosen - 1], runner.graphs[chosen]);
    }
    const uint64_t before = requested;
    next = runner.step(runner.graphs[chosen], &next, 1);
    if (first)
      places = mappings();
    else
      bytes += requested - before, counted++, moves += places != mappings();
  }
  printf("{\"answer\": [");
  for (size_t i = 0; i < answer.size(); i++) printf("%s%u", i ? ", " : "", answer[i]);
  printf("], \"requested_bytes\": %llu, \"requested_in_all\": %llu, \"tokens_counted\": %zu, \"moves\": %zu}\n",
         static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(requested.load()), counted, moves);
  for (auto &each : runner.buffer.handles) CHECK(qnn.memDeRegister(&each.second, 1));
  CHECK(system.systemContextFree(description));
  CHECK(qnn.contextFree(runner.context, nullptr));
  CHECK(qnn.backendFree(backend));
  found<decltype(&rpcmem_free)>(rpcmem, "rpcmem_free")(runner.buffer.base);
}
