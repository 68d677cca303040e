/* A client that was compiled with earlier headers: it passes fewer entries of a backend's table by value.
 * earlier_table FOLDER MODEL.dlc prints, for each size of the table, the result and the composed graphs. */
#include "qnn_client.h"
#include <sys/mman.h>

#define FORGOTTEN -2
#define SHORTER(N)                                                                                                    \
  typedef struct { char head[40]; void *entries[N]; } Table##N;                                                       \
  typedef Qnn_ErrorHandle_t (*Compose##N)(void *, void *, uint32_t, Qnn_BackendHandle_t, Qnn_ContextHandle_t, Table##N, \
                                          uint32_t, QnnSystemContext_GraphInfo_t **, uint32_t *);                     \
  static void composed##N(void *function, void *dlc, const QnnInterface_t *provider, Qnn_BackendHandle_t backend,     \
                          int replaced, void *entry) {                                                                \
    Table##N table;                                                                                                   \
    Qnn_ContextHandle_t context = NULL;                                                                               \
    QnnSystemContext_GraphInfo_t *graphs = NULL;                                                                      \
    uint32_t count = replaced < 0 ? 7 : 0;                                                                            \
    Compose##N compose;                                                                                               \
    *(void **)&compose = function;                                                                                    \
    memcpy(&table, provider, sizeof table);                                                                           \
    if (replaced == FORGOTTEN) { /* no places for results, and what a stack may have behind them */                    \
      void *behind[] = {NULL, NULL, (void *)composed##N, &graphs, &count};                                            \
      memcpy(&table.entries[N - 5], behind, sizeof behind);                                                           \
    }                                                                                                                 \
    if (replaced > 0) table.entries[replaced] = entry ? entry : (void *)composed##N;                                  \
    Qnn_ErrorHandle_t error = provider->QNN_INTERFACE_VER_NAME.contextCreate(backend, NULL, NULL, &context);          \
    if (!error) error = compose(dlc, NULL, 0, backend, context, table, 1, replaced < 0 ? NULL : &graphs, &count);     \
    printf("%d %d: %llu %u %s\n", N, replaced, (unsigned long long)error, count,                                      \
           count && graphs ? graphs[0].graphInfoV1.graphName : "");                                                   \
  }
SHORTER(48)
SHORTER(58)
SHORTER(69)
SHORTER(71)
SHORTER(74)
SHORTER(75)

int main(int argc, char **argv) {
  char path[4096];
  void *dlc = NULL;
  const QnnInterface_t **providers = NULL;
  uint32_t count = 0;
  if (argc < 3) return 2;
  snprintf(path, sizeof path, "%s/libQnnCpu.so", argv[1]);
  void *cpu = dlopen(path, RTLD_NOW);
  snprintf(path, sizeof path, "%s/libQnnSystem.so", argv[1]);
  void *system_library = dlopen(path, RTLD_NOW);
  if (!cpu || !system_library) return puts(dlerror()), 1;
  QnnInterface_getProvidersFn_t ask;
  Qnn_ErrorHandle_t (*open_dlc)(void *, const char *, void **);
  *(void **)&ask = dlsym(cpu, "QnnInterface_getProviders");
  *(void **)&open_dlc = dlsym(system_library, "QnnSystemDlc_createFromFile");
  void *compose = dlsym(system_library, "QnnSystemDlc_composeGraphs");
  if (ask(&providers, &count) || open_dlc(NULL, argv[2], &dlc)) return 1;
  Qnn_BackendHandle_t backend = NULL;
  if (providers[0]->QNN_INTERFACE_VER_NAME.backendCreate(NULL, NULL, &backend)) return 1;
  composed48(compose, dlc, providers[0], backend, 0, NULL);
  composed58(compose, dlc, providers[0], backend, 0, NULL);
  composed69(compose, dlc, providers[0], backend, 0, NULL);
  composed71(compose, dlc, providers[0], backend, 0, NULL);
  composed74(compose, dlc, providers[0], backend, 0, NULL);
  composed75(compose, dlc, providers[0], backend, 0, NULL);
  composed75(compose, dlc, providers[0], backend, 35, NULL); /* its own memRegister */
  composed75(compose, dlc, providers[0], backend, 74, NULL);
  /* A function that was made at run time, in memory that can be written too; and a null for the graphs. */
  void *function = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (function == MAP_FAILED) return 1;
  memset(function, 0xC3, 16);
  composed75(compose, dlc, providers[0], backend, 74, function);
  printf("%x\n", *(unsigned char *)function);
  composed58(compose, dlc, providers[0], backend, -1, NULL);
  composed71(compose, dlc, providers[0], backend, FORGOTTEN, NULL);
  return providers[0]->QNN_INTERFACE_VER_NAME.backendFree(backend) ? 1 : 0;
}
