/* Callbacks of the client's end the thread that they are called on: other executions are done, and every free returns.
 *
 *     ended_threads FOLDER LIBRARY notification|log|free|list */
#include <pthread.h>

#include "qnn_client.h"

enum { EXECUTIONS = 48, ELEMENTS = 32 };
static QNN_INTERFACE_VER_TYPE qnn;
static Qnn_BackendHandle_t backend;
static Qnn_ContextHandle_t context;
static Qnn_GraphHandle_t graph;
static Qnn_Tensor_t input, output;
static float given[ELEMENTS], made[EXECUTIONS][ELEMENTS];
static pthread_t first;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t counted = PTHREAD_COND_INITIALIZER;
static int ended;
static const char *place;

static void end_here(void) {
  pthread_mutex_lock(&counting);
  ended++;
  pthread_cond_signal(&counted);
  pthread_mutex_unlock(&counting);
  pthread_exit(NULL);
}

static void await(int count) {
  pthread_mutex_lock(&counting);
  while (ended < count) pthread_cond_wait(&counted, &counting);
  pthread_mutex_unlock(&counting);
}

static void say(const char *format, QnnLog_Level_t level, uint64_t timestamp, va_list arguments) {
  (void)format, (void)level, (void)timestamp, (void)arguments;
  if (!strcmp(place, "log") && !pthread_equal(pthread_self(), first)) end_here();
}

static void notified(void *parameter, Qnn_NotifyStatus_t status) {
  (void)parameter;
  REQUIRE(!status.error);
  if (!strcmp(place, "free")) CHECK(qnn.contextFree(context, NULL));
  end_here();
}

static void loaded_one(Qnn_ContextHandle_t made_context, Qnn_GraphHandle_t made_graph, const char *name,
                       QnnContext_createFromBinaryAsyncNotifyType_t type, void *parameter, Qnn_ErrorHandle_t error) {
  (void)made_context, (void)made_graph, (void)name, (void)type, (void)parameter;
  REQUIRE(!error);
  end_here();
}

static void *load_list(void *params) {
  const QnnContext_Params_t *list[2] = {(const QnnContext_Params_t *)params, NULL};
  qnn.contextCreateFromBinaryListAsync(backend, NULL, list, NULL, NULL);
  REQUIRE(!"the notification has ended this thread");
  return NULL;
}

static void compose(void) {
  uint32_t dims[2] = {1, ELEMENTS};
  CHECK(qnn.contextCreate(backend, NULL, NULL, &context));
  CHECK(qnn.graphCreate(context, "twice", NULL, &graph));
  input = described("x", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, dims);
  output = described("y", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, dims);
  add_double(&qnn, graph, &input, &output);
  CHECK(qnn.graphFinalize(graph, NULL, NULL));
  input.v1.dimensions = output.v1.dimensions = NULL;
  input.v1.clientBuf.data = given;
  input.v1.clientBuf.dataSize = output.v1.clientBuf.dataSize = sizeof given;
}

static void execute(int number, Qnn_SignalHandle_t signal) {
  Qnn_Tensor_t y = output;
  y.v1.clientBuf.data = made[number];
  CHECK(qnn.graphExecuteAsync(graph, &input, 1, &y, 1, NULL, signal, notified, NULL));
}

static void end_in_list(void) {
  Qnn_ContextBinarySize_t bytes = 0;
  CHECK(qnn.contextGetBinarySize(context, &bytes));
  void *binary = malloc(bytes);
  CHECK(qnn.contextGetBinary(context, binary, bytes, &bytes));
  QnnContext_Params_t params;
  memset(&params, 0, sizeof params);
  params.version = QNN_CONTEXT_PARAMS_VERSION_1;
  params.v1.binaryBuffer = binary;
  params.v1.binaryBufferSize = bytes;
  params.v1.notifyFunc = loaded_one;
  pthread_t thread;
  REQUIRE(!pthread_create(&thread, NULL, load_list, &params));
  REQUIRE(!pthread_join(thread, NULL));
  free(binary);
}

/* An execution that is over before it begins: there is a message about it, on the thread that was to do it. */
static void end_in_log(void) {
  Qnn_SignalHandle_t signal = NULL;
  QnnSignal_Config_t config;
  memset(&config, 0, sizeof config);
  config.option = QNN_SIGNAL_CONFIG_OPTION_TIMEOUT;
  config.timeoutDurationUs = 1;
  const QnnSignal_Config_t *configs[2] = {&config, NULL};
  CHECK(qnn.signalCreate(backend, configs, &signal));
  execute(0, signal);
  await(1);
}

int main(int argc, char **argv) {
  REQUIRE(argc == 4);
  qnn = table_of(argv[1], argv[2]);
  place = argv[3];
  first = pthread_self();
  Qnn_LogHandle_t log = NULL;
  CHECK(qnn.logCreate(say, QNN_LOG_LEVEL_ERROR, &log));
  CHECK(qnn.backendCreate(log, NULL, &backend));
  for (int i = 0; i < ELEMENTS; i++) given[i] = (float)i;
  compose();
  int executions = !strcmp(place, "free") ? 1 : EXECUTIONS, before = strcmp(place, "log") ? 0 : 1;
  if (!strcmp(place, "list")) end_in_list(), before = 1;
  if (!strcmp(place, "log")) end_in_log();
  for (int i = 0; i < executions; i++) execute(i, NULL);
  await(before + executions);
  for (int i = 0; i < executions; i++)
    for (int k = 0; k < ELEMENTS; k++) REQUIRE(made[i][k] == 2 * given[k]);
  printf("contextFree %llu\n", (unsigned long long)qnn.contextFree(context, NULL));
  CHECK(qnn.backendFree(backend));
  printf("done\n");
  return 0;
}
