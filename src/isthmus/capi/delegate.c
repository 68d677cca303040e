/* libQnnTFLiteDelegate.so: the functions of QNN's delegate header. Included by library.c, which calls
 * Python.
 *
 * A delegate is TFLite's structure of that name: its address is the handle, and TFLite calls the functions in it. */
#include "QNN/TFLiteDelegate/QnnTFLiteDelegate.h"

/* Call a method of the server with numbers, and return its number; 0 on failure, in all functions here. */
#define ASK(name, ...)                                                              \
  ({                                                                                \
    static PyObject *method;                                                        \
    const uint64_t values[] = {__VA_ARGS__};                                        \
    (uint64_t)cross_for(&method, #name, 0, COUNT, values);                          \
  })
#define AT(address) (void *)(uintptr_t)(address)

EXPORTED TfLiteQnnDelegateOptions TfLiteQnnDelegateOptionsDefault(void) {
  TfLiteQnnDelegateOptions options;
  memset(&options, 0, sizeof options);
  options.library_path = options.skel_library_dir = options.tensor_dump_output_path = "";
  options.cache_dir = options.model_token = options.gpu_options.kernel_repo_dir = "";
  options.gpu_options.precision = kGpuFp16;
  options.htp_options.useConvHmx = true;
  return options;
}

EXPORTED TfLiteDelegate *TfLiteQnnDelegateCreate(const TfLiteQnnDelegateOptions *options) {
  return (TfLiteDelegate *)AT(ASK(TfLiteQnnDelegateCreate, V(options)));
}
EXPORTED void TfLiteQnnDelegateDelete(TfLiteDelegate *delegate) {
  if (delegate) ASK(TfLiteQnnDelegateDelete, V(delegate));
}
EXPORTED void *TfLiteQnnDelegateAllocCustomMem(size_t bytes, size_t alignment) {
  return AT(ASK(TfLiteQnnDelegateAllocCustomMem, bytes, alignment));
}
EXPORTED void TfLiteQnnDelegateFreeCustomMem(void *memory) {
  if (memory) ASK(TfLiteQnnDelegateFreeCustomMem, V(memory));
}
EXPORTED bool TfLiteQnnDelegateSetPerf(TfLiteDelegate *delegate, TfLiteQnnDelegatePerformanceAction action) {
  return ASK(TfLiteQnnDelegateSetPerf, V(delegate), (uint32_t)action) == 1;
}
EXPORTED bool TfLiteQnnDelegateUpdateHtpPerfMode(TfLiteDelegate *delegate, TfLiteQnnDelegateHtpPerformanceMode mode) {
  return ASK(TfLiteQnnDelegateUpdateHtpPerfMode, V(delegate), (uint32_t)mode) == 1;
}
EXPORTED bool TfLiteQnnDelegateUpdateDspPerfMode(TfLiteDelegate *delegate, TfLiteQnnDelegateDspPerformanceMode mode) {
  (void)delegate, (void)mode;
  return false; /* there is no DSP backend here */
}
EXPORTED TfLiteQnnDelegateCapabilityStatus TfLiteQnnDelegateHasCapability(TfLiteQnnDelegateCapability capability) {
  return ASK(TfLiteQnnDelegateHasCapability, (uint32_t)capability) == 1;
}
EXPORTED QnnDelegateApiVersion TfLiteQnnDelegateGetApiVersion(void) {
  return (QnnDelegateApiVersion){QNN_DELEGATE_API_VERSION_MAJOR, QNN_DELEGATE_API_VERSION_MINOR,
                                 QNN_DELEGATE_API_VERSION_PATCH};
}
EXPORTED TfLiteQnnDelegateProfilingResult TfLiteQnnDelegateGetProfilingResult(TfLiteDelegate *delegate) {
  TfLiteQnnDelegateProfilingResult result = {NULL, 0};
  ASK(TfLiteQnnDelegateGetProfilingResult, V(delegate), V(&result));
  return result;
}
EXPORTED void TfLiteQnnDelegateClearProfilingResult(TfLiteDelegate *delegate) {
  ASK(TfLiteQnnDelegateClearProfilingResult, V(delegate));
}

EXPORTED TfLiteDelegate *tflite_plugin_create_delegate(const char *const *keys, const char *const *texts, size_t count,
                                                       void (*report_error)(const char *)) {
  return (TfLiteDelegate *)AT(ASK(tflite_plugin_create_delegate, V(keys), V(texts), count, V(report_error)));
}
EXPORTED void tflite_plugin_destroy_delegate(TfLiteDelegate *delegate) { TfLiteQnnDelegateDelete(delegate); }
