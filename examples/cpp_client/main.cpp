// A graph on HTP, executed in memory that is shared with the accelerator; the profile says that nothing was copied.
//
// Libraries are loaded at run time, as on a device: the folder that holds them is the only argument.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "HTP/QnnHtpMem.h"
#include "QnnInterface.h"
#include "QnnOpDef.h"

namespace {

QNN_INTERFACE_VER_TYPE qnn;

/// Turns QNN's code into an exception that has the library's own reason.
void check(Qnn_ErrorHandle_t error, const char *what) {
  if (error == QNN_SUCCESS) return;
  const char *reason = nullptr;
  qnn.errorGetVerboseMessage(error, &reason);
  throw std::runtime_error(std::string(what) + ": " + (reason ? reason : std::to_string(error)));
}

/// A library, for as long as the program runs.
class Library {
 public:
  explicit Library(const std::string &path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) throw std::runtime_error(dlerror());
  }
  template <typename Function>
  Function find(const char *name) const {
    void *found = dlsym(handle_, name);
    if (!found) throw std::runtime_error(std::string("no ") + name);
    return reinterpret_cast<Function>(found);
  }

 private:
  void *handle_;
};

/// A handle of QNN's, freed by its own function.
template <typename Handle>
using Owned = std::unique_ptr<void, void (*)(Handle)>;

Owned<Qnn_BackendHandle_t> create_backend() {
  Qnn_BackendHandle_t made = nullptr;
  check(qnn.backendCreate(nullptr, nullptr, &made), "backendCreate");
  return {made, [](Qnn_BackendHandle_t handle) { qnn.backendFree(handle); }};
}

Owned<Qnn_ContextHandle_t> create_context(Qnn_BackendHandle_t backend) {
  Qnn_ContextHandle_t made = nullptr;
  check(qnn.contextCreate(backend, nullptr, nullptr, &made), "contextCreate");
  return {made, [](Qnn_ContextHandle_t handle) { qnn.contextFree(handle, nullptr); }};
}

Owned<Qnn_ProfileHandle_t> create_profile(Qnn_BackendHandle_t backend) {
  Qnn_ProfileHandle_t made = nullptr;
  check(qnn.profileCreate(backend, QNN_PROFILE_LEVEL_DETAILED, &made), "profileCreate");
  return {made, [](Qnn_ProfileHandle_t handle) { qnn.profileFree(handle); }};
}

/// Returns the name of a profile's unit.
const char *unit_name(QnnProfile_EventUnit_t unit) {
  switch (unit) {
    case QNN_PROFILE_EVENTUNIT_MICROSEC: return "us";
    case QNN_PROFILE_EVENTUNIT_BYTES: return "bytes";
    case QNN_PROFILE_EVENTUNIT_CYCLES: return "cycles";
    case QNN_PROFILE_EVENTUNIT_COUNT: return "times";
    default: return "(another unit)";
  }
}

Qnn_Tensor_t tensor(const char *name, Qnn_TensorType_t type, std::vector<uint32_t> &dims) {
  Qnn_Tensor_t made = QNN_TENSOR_INIT;
  made.v1.name = name;
  made.v1.type = type;
  made.v1.dataType = QNN_DATATYPE_FLOAT_32;
  made.v1.rank = static_cast<uint32_t>(dims.size());
  made.v1.dimensions = dims.data();
  made.v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;  // a hint: it will be shared memory
  made.v1.memHandle = nullptr;
  return made;
}

Qnn_MemHandle_t register_part(Qnn_ContextHandle_t context, int fd, uint64_t size, uint64_t offset,
                              std::vector<uint32_t> &dims) {
  QnnMemHtp_Descriptor_t place{};
  place.type = QNN_HTP_MEM_SHARED_BUFFER;
  place.size = size;
  place.sharedBufferConfig = {fd, offset};
  Qnn_MemDescriptor_t descriptor = QNN_MEM_DESCRIPTOR_INIT;
  descriptor.memShape = {static_cast<uint32_t>(dims.size()), dims.data(), nullptr};
  descriptor.dataType = QNN_DATATYPE_FLOAT_32;
  descriptor.memType = QNN_MEM_TYPE_CUSTOM;
  descriptor.customInfo = &place;
  Qnn_MemHandle_t made = nullptr;
  check(qnn.memRegister(context, &descriptor, 1, &made), "memRegister");
  return made;
}

void run(const std::string &folder) {
  Library rpcmem(folder + "/libcdsprpc.so"), htp(folder + "/libQnnHtp.so");
  const QnnInterface_t **providers = nullptr;
  uint32_t count = 0;
  const auto error = htp.find<QnnInterface_getProvidersFn_t>("QnnInterface_getProviders")(&providers, &count);
  if (error != QNN_SUCCESS || count == 0) throw std::runtime_error("no provider, error " + std::to_string(error));
  qnn = providers[0]->QNN_INTERFACE_VER_NAME;
  std::printf("%s, core API %u.%u\n", providers[0]->providerName, providers[0]->apiVersion.coreApiVersion.major,
              providers[0]->apiVersion.coreApiVersion.minor);

  auto backend = create_backend();
  auto context = create_context(backend.get());
  Qnn_GraphHandle_t graph = nullptr;
  check(qnn.graphCreate(context.get(), "twice", nullptr, &graph), "graphCreate");
  std::vector<uint32_t> dims{1, 256};
  Qnn_Tensor_t x = tensor("x", QNN_TENSOR_TYPE_APP_WRITE, dims), y = tensor("y", QNN_TENSOR_TYPE_APP_READ, dims);
  check(qnn.tensorCreateGraphTensor(graph, &x), "tensorCreateGraphTensor");
  check(qnn.tensorCreateGraphTensor(graph, &y), "tensorCreateGraphTensor");
  Qnn_Tensor_t operands[] = {x, x};
  Qnn_OpConfig_t add = QNN_OPCONFIG_INIT;
  add.v1 = {"add", QNN_OP_PACKAGE_NAME_QTI_AISW, QNN_OP_ELEMENT_WISE_ADD, 0, nullptr, 2, operands, 1, &y};
  check(qnn.graphAddNode(graph, add), "graphAddNode");
  check(qnn.graphFinalize(graph, nullptr, nullptr), "graphFinalize");

  const size_t bytes = 256 * sizeof(float);
  auto *shared = static_cast<float *>(rpcmem.find<void *(*)(int, uint32_t, int)>("rpcmem_alloc")(25, 1, 2 * bytes));
  if (!shared) throw std::runtime_error("no shared memory");
  const int fd = rpcmem.find<int (*)(void *)>("rpcmem_to_fd")(shared);
  Qnn_MemHandle_t handles[] = {register_part(context.get(), fd, 2 * bytes, 0, dims),
                               register_part(context.get(), fd, 2 * bytes, bytes, dims)};
  x.v1.memHandle = handles[0];
  y.v1.memHandle = handles[1];
  for (int i = 0; i < 256; i++) shared[i] = static_cast<float>(i);

  auto profile = create_profile(backend.get());
  check(qnn.graphExecute(graph, &x, 1, &y, 1, profile.get(), nullptr), "graphExecute");
  const QnnProfile_EventId_t *events = nullptr, *parts = nullptr;
  check(qnn.profileGetEvents(profile.get(), &events, &count), "profileGetEvents");
  check(qnn.profileGetSubEvents(events[0], &parts, &count), "profileGetSubEvents");
  for (uint32_t i = 0; i < count; i++) {
    QnnProfile_EventData_t data{};
    check(qnn.profileGetEventData(parts[i], &data), "profileGetEventData");
    std::printf("%-24s %6llu %s\n", data.identifier, static_cast<unsigned long long>(data.value), unit_name(data.unit));
  }
  std::printf("y[255] = %g\n", shared[511]);
  check(qnn.memDeRegister(handles, 2), "memDeRegister");
  rpcmem.find<void (*)(void *)>("rpcmem_free")(shared);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]), 2;
  try {
    run(argv[1]);
  } catch (const std::exception &problem) {
    return std::fprintf(stderr, "%s\n", problem.what()), 1;
  }
  return 0;
}
