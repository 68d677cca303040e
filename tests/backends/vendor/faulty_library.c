/* A library of HTP that passes everything on to ours (OURS, a path), but for one function, which FAULT chooses. */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "QnnInterface.h"

enum { ENDS = 1, HANGS = 2, REGISTERS_NOTHING = 3, REFUSES = 4 };

static Qnn_ErrorHandle_t finalize(Qnn_GraphHandle_t graph, Qnn_ProfileHandle_t profile, Qnn_SignalHandle_t signal) {
  (void)graph, (void)profile, (void)signal;
  if (FAULT == ENDS) abort();
  while (FAULT == HANGS) pause();
  return 1002;
}

static Qnn_ErrorHandle_t register_memory(Qnn_ContextHandle_t context, const Qnn_MemDescriptor_t *descriptors,
                                         uint32_t count, Qnn_MemHandle_t *handles) {
  (void)context, (void)descriptors, (void)count, (void)handles;
  return 1000;
}

QNN_API Qnn_ErrorHandle_t QnnInterface_getProviders(const QnnInterface_t ***providers, uint32_t *count) {
  static QnnInterface_t changed;
  static const QnnInterface_t *listed[1] = {&changed};
  void *library = dlopen(OURS, RTLD_NOW | RTLD_LOCAL);
  QnnInterface_getProvidersFn_t get = library ? (QnnInterface_getProvidersFn_t)dlsym(library, "QnnInterface_getProviders") : NULL;
  const QnnInterface_t **known;
  if (get == NULL || get(&known, count) != 0) return 1009;
  changed = *known[0];
  if (FAULT == REGISTERS_NOTHING)
    changed.QNN_INTERFACE_VER_NAME.memRegister = register_memory;
  else
    changed.QNN_INTERFACE_VER_NAME.graphFinalize = finalize;
  *providers = listed;
  *count = 1;
  return 0;
}
