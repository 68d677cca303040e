/* Calls of a client of QNN, as MADE_BY recorded them. Compile it with QNN's headers, link it with the
 * library of a backend, and start it in the folder of its data file, which has the bytes of the tensors. It ends with
 * the first error; that a call is not supported (1000) is none. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "QnnInterface.h"

static QNN_INTERFACE_VER_TYPE qnn;
static FILE *data;
static Qnn_ErrorHandle_t failure;

static void answered(Qnn_ErrorHandle_t error, const char *call) {
  if (error == QNN_SUCCESS || error == QNN_COMMON_ERROR_NOT_SUPPORTED) return;
  failure = error;
  fprintf(stderr, "%s: %llu\n", call, (unsigned long long)error);
}
#define CALL(name, ...) answered(qnn.name(__VA_ARGS__), #name)

static void *stored(long offset, size_t bytes) {
  void *memory = malloc(bytes ? bytes : 1);
  if (memory && !fseek(data, offset, SEEK_SET) && fread(memory, 1, bytes, data) == bytes) return memory;
  fputs("the bytes of a tensor cannot be read\n", stderr);
  exit(1);
}

RECORDED_CALLS

static void (*const calls[])(void) = {CALL_NAMES};

int main(void) {
  const QnnInterface_t **providers = NULL;
  uint32_t count = 0;
  (void)stored; /* no call may need it */
  data = fopen(DATA_FILE, "rb");
  if (!data) return perror(DATA_FILE), 1;
  if (QnnInterface_getProviders(&providers, &count) || !count) return fputs("no provider\n", stderr), 1;
  qnn = providers[0]->QNN_INTERFACE_VER_NAME;
  for (size_t i = 0; i < sizeof calls / sizeof *calls && !failure; i++)
    if (calls[i]) calls[i]();
  fclose(data);
  return failure ? 1 : 0;
}
