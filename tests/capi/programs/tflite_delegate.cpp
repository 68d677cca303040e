/* The shared-memory tutorial of QNN's TFLite delegate, line by line, in C++ and inside TFLite's own interpreter.
 *
 *     tflite_delegate FOLDER LIBPYTHON LITERT_LIBRARY MODEL INPUT_INDEX INPUT_FLOATS OUTPUT_INDEX OUTPUT_FLOATS
 *         [forget | fork]
 *
 * Input and output are floats. The same model runs on TFLite's own kernels first, in ordinary memory: what both
 * compute is compared. With "forget" nothing is freed and nothing deleted. With "fork" a child tries all of it. */
#include "QNN/TFLiteDelegate/QnnTFLiteDelegate.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "litert_client.h"

namespace {

constexpr size_t kDefaultTensorAlignment = 64;
template <typename Function>
Function found(void *library, const char *name) {
  Function function = reinterpret_cast<Function>(dlsym(library, name));
  REQUIRE(function);
  return function;
}

struct Delegate {
  explicit Delegate(const char *folder) : library(loaded(folder, "libQnnTFLiteDelegate.so")) {}
  void *library;
#define NAMED(name) decltype(&::name) name = found<decltype(&::name)>(library, #name)
  NAMED(TfLiteQnnDelegateOptionsDefault);
  NAMED(TfLiteQnnDelegateCreate);
  NAMED(TfLiteQnnDelegateDelete);
  NAMED(TfLiteQnnDelegateAllocCustomMem);
  NAMED(TfLiteQnnDelegateFreeCustomMem);
  NAMED(TfLiteQnnDelegateSetPerf);
  NAMED(TfLiteQnnDelegateHasCapability);
  NAMED(TfLiteQnnDelegateGetApiVersion);
  NAMED(TfLiteQnnDelegateGetProfilingResult);
  NAMED(TfLiteQnnDelegateClearProfilingResult);
};

void fill(float *memory, size_t count) {
  for (size_t i = 0; i < count; i++) memory[i] = static_cast<float>(i % 13) / 6.0f - 1.0f;
}

/* A forked child has copies of its parent's interpreters: their nodes fail, and can be freed. */
void in_child(const Delegate &qnn, const litert::Library &tflite, const char *model, TfLiteDelegate *delegate,
              litert::Interpreter *interpreters[2], float *memory) {
  TfLiteQnnDelegateOptions options = qnn.TfLiteQnnDelegateOptionsDefault();
  options.backend_type = kCpuBackend;
  REQUIRE(!qnn.TfLiteQnnDelegateCreate(&options) && !qnn.TfLiteQnnDelegateAllocCustomMem(64, kDefaultTensorAlignment));
  for (int i = 0; i < 2; i++)
    for (int again = 0; again < 3; again++) REQUIRE(interpreters[i]->Invoke() != kTfLiteOk);
  litert::Interpreter another(tflite, model);
  REQUIRE(another.AllocateTensors() == kTfLiteOk);
  REQUIRE(another.ModifyGraphWithDelegate(delegate) != kTfLiteOk);
  for (int i = 0; i < 2; i++) delete interpreters[i];
  qnn.TfLiteQnnDelegateFreeCustomMem(memory);
  qnn.TfLiteQnnDelegateDelete(delegate);
}

}  // namespace

int main(int argc, char **argv) {
  const Delegate qnn(argv[1]);
  const litert::Library tflite(argv[2], argv[3]);
  const char *model = argv[4];
  const int index[2] = {atoi(argv[5]), atoi(argv[7])};
  const size_t count[2] = {strtoul(argv[6], nullptr, 10), strtoul(argv[8], nullptr, 10)};
  const bool forget = argc > 9 && !strcmp(argv[9], "forget"), forks = argc > 9 && !strcmp(argv[9], "fork");

  /* What TFLite itself computes, in memory of this program's own. */
  float *plain[2];
  {
    litert::Interpreter interpreter(tflite, model);
    for (int i = 0; i < 2; i++) {
      const size_t bytes = (count[i] * sizeof(float) + 63) / 64 * 64;
      plain[i] = static_cast<float *>(aligned_alloc(kDefaultTensorAlignment, bytes));
      REQUIRE(interpreter.SetCustomAllocationForTensor(index[i], {plain[i], bytes}) == kTfLiteOk);
    }
    REQUIRE(interpreter.AllocateTensors() == kTfLiteOk);
    fill(plain[0], count[0]);
    REQUIRE(interpreter.Invoke() == kTfLiteOk);
  }

  /* Setup interpreter with .tflite model. */
  auto *interpreter_ = new litert::Interpreter(tflite, model);

  /* Create QNN Delegate options structure, and set the mandatory backend_type option as HTP. */
  TfLiteQnnDelegateOptions options = qnn.TfLiteQnnDelegateOptionsDefault();
  REQUIRE(!qnn.TfLiteQnnDelegateCreate(&options) && !qnn.TfLiteQnnDelegateCreate(nullptr));
  options.backend_type = kHtpBackend;
  options.htp_options.performance_mode = kHtpBurst;
  options.profiling = kPerOpProfiling;
  if (forget) options.log_level = kLogLevelInfo;
  REQUIRE(qnn.TfLiteQnnDelegateGetApiVersion().minor == QNN_DELEGATE_API_VERSION_MINOR);
  REQUIRE(qnn.TfLiteQnnDelegateHasCapability(kCapHtpRuntimeQuant) && !qnn.TfLiteQnnDelegateHasCapability(kCapDspRuntime));

  /* Instantiate delegate. Must not be freed until interpreter is freed. */
  TfLiteDelegate *delegate = qnn.TfLiteQnnDelegateCreate(&options);
  REQUIRE(delegate && qnn.TfLiteQnnDelegateSetPerf(delegate, kPerformanceVote));

  /* Allocate enough memory space on shared memory, and assign it to the tensors. */
  REQUIRE(!qnn.TfLiteQnnDelegateAllocCustomMem(0, kDefaultTensorAlignment));
  float *custom_ptr[2];
  for (int i = 0; i < 2; i++) {
    const size_t num_bytes = count[i] * sizeof(float);
    custom_ptr[i] = static_cast<float *>(qnn.TfLiteQnnDelegateAllocCustomMem(num_bytes, kDefaultTensorAlignment));
    REQUIRE(custom_ptr[i]);
    TfLiteCustomAllocation tensor_alloc = {custom_ptr[i], num_bytes};
    REQUIRE(interpreter_->SetCustomAllocationForTensor(index[i], tensor_alloc) == kTfLiteOk);
  }
  REQUIRE(interpreter_->AllocateTensors() == kTfLiteOk);

  /* Register QNN Delegate with TfLite interpreter to automatically delegate nodes. */
  REQUIRE(interpreter_->ModifyGraphWithDelegate(delegate) == kTfLiteOk);

  /* Perform inference with interpreter as usual. This process has no access to the memory meanwhile: a copy ends it. */
  for (int round = 0; round < 3; round++) {
    fill(custom_ptr[0], count[0]);
    memset(custom_ptr[1], 0, count[1] * sizeof(float));
    for (int i = 0; i < 2; i++) REQUIRE(mprotect(custom_ptr[i], count[i] * sizeof(float), PROT_NONE) == 0);
    REQUIRE(interpreter_->Invoke() == kTfLiteOk);
    for (int i = 0; i < 2; i++)
      REQUIRE(mprotect(custom_ptr[i], count[i] * sizeof(float), PROT_READ | PROT_WRITE) == 0);
    for (size_t i = 0; i < count[1]; i++) REQUIRE(std::fabs(custom_ptr[1][i] - plain[1][i]) < 1e-4f);
  }
  if (forks) {
    options.backend_type = kCpuBackend;
    options.profiling = kProfilingOff; /* so that nodes run without Python */
    TfLiteDelegate *cpu = qnn.TfLiteQnnDelegateCreate(&options);
    auto *on_cpu = new litert::Interpreter(tflite, model);
    REQUIRE(cpu && on_cpu->AllocateTensors() == kTfLiteOk && on_cpu->ModifyGraphWithDelegate(cpu) == kTfLiteOk);
    REQUIRE(on_cpu->Invoke() == kTfLiteOk);
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      litert::Interpreter *interpreters[2] = {interpreter_, on_cpu};
      in_child(qnn, tflite, model, delegate, interpreters, custom_ptr[0]);
      exit(0);
    }
    int status = -1;
    for (int round = 0; round < 100; round++) {
      memset(custom_ptr[1], 0, count[1] * sizeof(float));
      REQUIRE(interpreter_->Invoke() == kTfLiteOk && on_cpu->Invoke() == kTfLiteOk);
      for (size_t i = 0; i < count[1]; i++) REQUIRE(std::fabs(custom_ptr[1][i] - plain[1][i]) < 1e-4f);
    }
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    REQUIRE(interpreter_->Invoke() == kTfLiteOk && on_cpu->Invoke() == kTfLiteOk);
    delete on_cpu;
    qnn.TfLiteQnnDelegateDelete(cpu);
  }
  const TfLiteQnnDelegateProfilingResult profile = qnn.TfLiteQnnDelegateGetProfilingResult(delegate);
  REQUIRE(profile.buffer && profile.buffer_length > 2 && profile.buffer[0] == '[');
  printf("%.*s\n", static_cast<int>(profile.buffer_length), reinterpret_cast<const char *>(profile.buffer));
  qnn.TfLiteQnnDelegateClearProfilingResult(delegate);
  printf("done\n");
  if (forget) return 0;

  /* A delegate outlives its interpreters: this is refused, and said. */
  qnn.TfLiteQnnDelegateDelete(delegate);
  REQUIRE(interpreter_->Invoke() == kTfLiteOk);

  /* User is responsible to free the allocated memory. The interpreter has it still: it goes when that has ended. */
  for (float *memory : custom_ptr) qnn.TfLiteQnnDelegateFreeCustomMem(memory);
  REQUIRE(interpreter_->Invoke() == kTfLiteOk);

  /* Delete delegate after interpreter no longer needed. */
  delete interpreter_;
  qnn.TfLiteQnnDelegateDelete(delegate);

  /* Both are gone: these two are mistakes, and are said. */
  qnn.TfLiteQnnDelegateDelete(delegate);
  qnn.TfLiteQnnDelegateFreeCustomMem(custom_ptr[0]);

  /* No node of a delegate has this one: nobody knows of it, and it goes at once. The second time is a mistake. */
  litert::Interpreter alone(tflite, model);
  void *unknown = qnn.TfLiteQnnDelegateAllocCustomMem(count[0] * sizeof(float), kDefaultTensorAlignment);
  REQUIRE(alone.SetCustomAllocationForTensor(index[0], {unknown, count[0] * sizeof(float)}) == kTfLiteOk);
  for (int i = 0; i < 2; i++) qnn.TfLiteQnnDelegateFreeCustomMem(unknown);
  for (float *memory : plain) free(memory);
  return 0;
}
