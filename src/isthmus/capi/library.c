/* The shared libraries that clients of QNN load: libQnnHtp.so and its like, libQnnSystem.so, libcdsprpc.so.
 *
 * One source, compiled once for each with LIBRARY_NAME as its name. Everything that QNN does is done in Python, by
 * isthmus.capi.serve; here are the tables, the way across, and the executions that need no way: those that bring the
 * memory of an execution before.
 *
 * In a program that runs Python, that interpreter is used. In any other one is started, by what the file isthmus.conf
 * beside the library says. No header of Python's is needed: the functions are of its stable interface.
 *
 * With ISTHMUS_QNN_FORWARD set to the path of another library of this kind, calls go there and Python only looks on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "GPU/QnnGpu.h"
#include "HTP/QnnHtp.h"
#include "LPAI/QnnLpai.h"
#include "System/QnnSystemInterface.h"
#include "rpcmem.h"

#define QUOTED_(name) #name
#define QUOTED(name) QUOTED_(name)
#define NAME QUOTED(LIBRARY_NAME)
#define EXPORTED __attribute__((visibility("default")))

typedef Qnn_ErrorHandle_t E;
typedef struct PyObject PyObject;

/* -- Python, as far as it is needed ------------------------------------------------------------------------------- */

static struct {
  int (*IsInitialized)(void);
  void (*InitializeEx)(int);
  int (*GILState_Ensure)(void);
  void (*GILState_Release)(int);
  void *(*SaveThread)(void);
  int (*SimpleString)(const char *);
  PyObject *(*ImportModule)(const char *);
  PyObject *(*GetAttrString)(PyObject *, const char *);
  PyObject *(*CallObject)(PyObject *, PyObject *);
  int (*Callable)(PyObject *);
  PyObject *(*TupleNew)(ssize_t);
  int (*TupleSetItem)(PyObject *, ssize_t, PyObject *);
  PyObject *(*LongFrom)(unsigned long long);
  long long (*LongAs)(PyObject *);
  PyObject *(*TextFrom)(const char *);
  PyObject *(*Occurred)(void);
  void (*Print)(void);
  void (*Clear)(void);
  int (*Matches)(PyObject *);
  void (*SetInterrupt)(void);
  PyObject **KeyboardInterrupt;
  void (*IncRef)(PyObject *);
  void (*DecRef)(PyObject *);
} py;

static const struct { void *place; const char *name; } NEEDED[] = {
    {&py.IsInitialized, "Py_IsInitialized"},      {&py.InitializeEx, "Py_InitializeEx"},
    {&py.GILState_Ensure, "PyGILState_Ensure"},   {&py.GILState_Release, "PyGILState_Release"},
    {&py.SaveThread, "PyEval_SaveThread"},        {&py.SimpleString, "PyRun_SimpleString"},
    {&py.ImportModule, "PyImport_ImportModule"},  {&py.GetAttrString, "PyObject_GetAttrString"},
    {&py.CallObject, "PyObject_CallObject"},      {&py.Callable, "PyCallable_Check"},
    {&py.TupleNew, "PyTuple_New"},                {&py.TupleSetItem, "PyTuple_SetItem"},
    {&py.LongFrom, "PyLong_FromUnsignedLongLong"}, {&py.LongAs, "PyLong_AsLongLong"},
    {&py.TextFrom, "PyUnicode_DecodeFSDefault"},  {&py.Occurred, "PyErr_Occurred"},
    {&py.Print, "PyErr_Print"},                   {&py.Clear, "PyErr_Clear"},
    {&py.Matches, "PyErr_ExceptionMatches"},      {&py.SetInterrupt, "PyErr_SetInterrupt"},
    {&py.KeyboardInterrupt, "PyExc_KeyboardInterrupt"},
    {&py.IncRef, "Py_IncRef"},                    {&py.DecRef, "Py_DecRef"},
};

enum { UNOPENED, OPEN, UNUSABLE, LEFT };
static volatile int state = UNOPENED;
static int own_interpreter;
static PyObject *server; /* the isthmus.capi.serve.Server of this library */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static int find_python(void *where) {
  for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED; i++)
    if (!(*(void **)NEEDED[i].place = dlsym(where, NEEDED[i].name))) return 0;
  return 1;
}

static int complain(const char *what, const char *more) {
  fprintf(stderr, "isthmus: lib" NAME ": %s%s\n", what, more);
  return 0;
}

/* -- what `isthmus capi install` has written beside the library --------------------------------------------------- */

static struct { char libpython[PATH_MAX], home[PATH_MAX], bootstrap[4 * PATH_MAX]; } settings;

static int beside(const char *file, char *path) {
  Dl_info info;
  if (!dladdr((void *)beside, &info) || !info.dli_fname || !realpath(info.dli_fname, path)) return 0;
  char *slash = strrchr(path, '/');
  if (!slash || (size_t)(slash - path) + strlen(file) + 2 > PATH_MAX) return 0;
  strcpy(slash + 1, file);
  return 1;
}

static int read_settings(void) {
  char path[PATH_MAX], line[4 * PATH_MAX];
  if (!beside("isthmus.conf", path)) return complain("its own place is not known", "");
  FILE *file = fopen(path, "r");
  if (!file) return complain("run `isthmus capi install DIR` for a program without Python; there is no ", path);
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    char *value = strchr(line, '=');
    if (!value) continue;
    *value++ = 0;
    if (!strcmp(line, "libpython")) snprintf(settings.libpython, sizeof settings.libpython, "%s", value);
    if (!strcmp(line, "home")) snprintf(settings.home, sizeof settings.home, "%s", value);
    if (!strcmp(line, "bootstrap")) snprintf(settings.bootstrap, sizeof settings.bootstrap, "%s", value);
  }
  fclose(file);
  return *settings.libpython ? 1 : complain("no shared libpython was found when it was installed: install one ",
                                            "(python3-dev, or a Python built with --enable-shared)");
}

static int start_python(void) {
  char *before = getenv("PYTHONHOME");
  if (!read_settings()) return 0;
  void *python = dlopen(settings.libpython, RTLD_NOW | RTLD_GLOBAL);
  if (!python) return complain("cannot load Python: ", dlerror());
  if (!find_python(python)) return complain("that Python lacks what is needed: ", settings.libpython);
  if (py.IsInitialized()) return 1; /* another of our libraries has started it */
  before = before ? strdup(before) : NULL;
  setenv("PYTHONHOME", settings.home, 1);
  py.InitializeEx(0);
  if (before) setenv("PYTHONHOME", before, 1);
  else unsetenv("PYTHONHOME");
  free(before);
  own_interpreter = 1;
  int wrong = py.SimpleString(settings.bootstrap);
  py.SaveThread();
  return wrong ? complain("its package cannot be imported", "") : 1;
}

/* -- the way across ----------------------------------------------------------------------------------------------- */

static void forget_executions(void);
static void native_say(QnnLog_Callback_t callback, QnnLog_Level_t level, uint64_t timestamp, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  callback(format, level, timestamp, arguments);
  va_end(arguments);
}

/* Python says that it ends: from here on nothing crosses. */
static void native_leave(void) {
  forget_executions();
  state = LEFT;
}

static void forked(void) {
  /* A child of a program without Python has a copy of the interpreter in the midst of something. */
  if (own_interpreter && state == OPEN) state = LEFT;
}

static void leave(void) {
  if (state != OPEN || !own_interpreter || !py.IsInitialized()) return;
  int held = py.GILState_Ensure();
  PyObject *method = py.GetAttrString(server, "leave");
  PyObject *done = method ? py.CallObject(method, NULL) : NULL;
  if (!done) py.Clear();
  if (method) py.DecRef(method);
  if (done) py.DecRef(done);
  py.GILState_Release(held);
}

static PyObject *opened_server(void) {
  PyObject *module = py.ImportModule("isthmus.capi.serve"), *open = NULL, *arguments = NULL, *made = NULL;
  if (module && (open = py.GetAttrString(module, "open")) && (arguments = py.TupleNew(4))) {
    py.TupleSetItem(arguments, 0, py.TextFrom(NAME));
    py.TupleSetItem(arguments, 1, py.LongFrom((uintptr_t)native_say));
    py.TupleSetItem(arguments, 2, py.LongFrom((uintptr_t)forget_executions));
    py.TupleSetItem(arguments, 3, py.LongFrom((uintptr_t)native_leave));
    made = py.CallObject(open, arguments);
  }
  if (!made) py.Print();
  if (arguments) py.DecRef(arguments);
  if (open) py.DecRef(open);
  if (module) py.DecRef(module);
  return made;
}

static int usable(void) {
  if (state == OPEN) return 1;
  if (state != UNOPENED) return 0;
  pthread_mutex_lock(&opening);
  if (state == UNOPENED) {
    int found = (find_python(RTLD_DEFAULT) && py.IsInitialized()) || start_python();
    if (found) {
      int held = py.GILState_Ensure();
      /* Whoever waits for the lock waits without Python, which may have to run for this to end. */
      server = opened_server();
      py.GILState_Release(held);
    }
    if (found && server) {
      pthread_atfork(NULL, NULL, forked);
      if (own_interpreter) atexit(leave);
    }
    state = found && server ? OPEN : UNUSABLE;
  }
  pthread_mutex_unlock(&opening);
  return state == OPEN;
}

/* The functions of this library that are in Python, by number; each method of the server is looked up once. */
enum { MOST_FUNCTIONS = 128 };
static PyObject *methods[MOST_FUNCTIONS];

/* Call a function with numbers; in the GIL. The answer is a new reference, or NULL after a failure. */
static PyObject *call(int index, const char *name, int count, const uint64_t *values) {
  if (!methods[index] && !(methods[index] = py.GetAttrString(server, name))) return NULL;
  PyObject *arguments = py.TupleNew(count), *answer = NULL;
  for (int i = 0; arguments && i < count; i++) {
    PyObject *number = py.LongFrom(values[i]);
    if (!number || py.TupleSetItem(arguments, i, number)) {
      py.DecRef(arguments);
      arguments = NULL;
    }
  }
  if (arguments) {
    answer = py.CallObject(methods[index], arguments);
    py.DecRef(arguments);
  }
  return answer;
}

/* The number that a function answered. Of an exception that came through it a code is left, or what is given for one;
 * Ctrl-C is meant for whoever called the library, and comes up again there. */
static long long number(PyObject *answer, const long long *failure) {
  long long value = answer ? py.LongAs(answer) : 0;
  if (answer) py.DecRef(answer);
  if (!py.Occurred()) return value;
  int interrupted = py.Matches(*py.KeyboardInterrupt);
  py.Clear();
  if (interrupted) py.SetInterrupt();
  return failure ? *failure : interrupted ? QNN_COMMON_ERROR_SYSTEM : QNN_COMMON_ERROR_GENERAL;
}

static long long crossed(int index, const char *name, long long otherwise, const long long *failure, int count,
                         const uint64_t *values) {
  if (!usable()) return otherwise;
  int held = py.GILState_Ensure();
  long long answer = state == OPEN ? number(call(index, name, count, values), failure) : otherwise;
  py.GILState_Release(held);
  return answer;
}

/* For functions that answer codes, and for those that answer something else. */
static long long cross(int index, const char *name, long long otherwise, int count, const uint64_t *values) {
  return crossed(index, name, otherwise, NULL, count, values);
}
__attribute__((unused)) static long long cross_for(int index, const char *name, long long failure, int count,
                                                   const uint64_t *values) {
  return crossed(index, name, failure, &failure, count, values);
}

/* What is asked after the interpreter has ended: to free is done already, anything else cannot be. */
#define UNABLE(freeing) (state == LEFT && (freeing) ? QNN_SUCCESS : QNN_COMMON_ERROR_SYSTEM)
#define V(value) (uint64_t)(uintptr_t)(value)
#define GOES(freeing, name, arguments, count, ...)                                        \
  {                                                                                       \
    const uint64_t values[] = {__VA_ARGS__};                                              \
    FORWARDED(name, arguments, count)                                                     \
    usable();                                                                             \
    return (E)cross(NUMBER_##name, #name, (long long)UNABLE(freeing), count, values);     \
  }
#define F1(name, A) static E name(A a) GOES(0, name, (a), 1, V(a))
#define FREE1(name, A) static E name(A a) GOES(1, name, (a), 1, V(a))
#define F2(name, A, B) static E name(A a, B b) GOES(0, name, (a, b), 2, V(a), V(b))
#define FREE2(name, A, B) static E name(A a, B b) GOES(1, name, (a, b), 2, V(a), V(b))
#define F3(name, A, B, C) static E name(A a, B b, C c) GOES(0, name, (a, b, c), 3, V(a), V(b), V(c))
#define F4(name, A, B, C, D) static E name(A a, B b, C c, D d) GOES(0, name, (a, b, c, d), 4, V(a), V(b), V(c), V(d))
#define F5(name, A, B, C, D, G) \
  static E name(A a, B b, C c, D d, G g) GOES(0, name, (a, b, c, d, g), 5, V(a), V(b), V(c), V(d), V(g))
#define F7(name, A, B, C, D, G, H, I)             \
  static E name(A a, B b, C c, D d, G g, H h, I i) \
      GOES(0, name, (a, b, c, d, g, h, i), 7, V(a), V(b), V(c), V(d), V(g), V(h), V(i))
#define F8(name, A, B, C, D, G, H, I, J)               \
  static E name(A a, B b, C c, D d, G g, H h, I i, J j) \
      GOES(0, name, (a, b, c, d, g, h, i, j), 8, V(a), V(b), V(c), V(d), V(g), V(h), V(i), V(j))
#define F9(name, A, B, C, D, G, H, I, J, K)                 \
  static E name(A a, B b, C c, D d, G g, H h, I i, J j, K k) \
      GOES(0, name, (a, b, c, d, g, h, i, j, k), 9, V(a), V(b), V(c), V(d), V(g), V(h), V(i), V(j), V(k))

/* -- forwarding --------------------------------------------------------------------------------------------------- */

__attribute__((unused)) static const char *forward_path(void) {
  const char *path = getenv("ISTHMUS_QNN_FORWARD");
  return path && *path ? path : NULL;
}

#ifdef SERVES_BACKEND
enum { NUMBER_before = MOST_FUNCTIONS - 2, NUMBER_after };
static const QNN_INTERFACE_VER_TYPE *forward; /* the table that calls go to, if they do */

/* Have Python look at a call: before it is made, then with its answer. */
static void look(int index, const char *name, E error, int count, const uint64_t *values) {
  uint64_t all[16] = {V(name), error};
  memcpy(all + 2, values, (size_t)count * sizeof *values);
  cross(index, index == NUMBER_before ? "validationBefore" : "validationAfter", 0, count + 2, all);
}

#define FORWARDED(name, arguments, count)                     \
  if (forward) {                                              \
    look(NUMBER_before, #name, 0, count, values);             \
    E error = forward->name arguments;                        \
    look(NUMBER_after, #name, error, count, values);          \
    return error;                                             \
  }
#else
#define FORWARDED(name, arguments, count)
#endif

__attribute__((unused)) static E not_offered(void) { return QNN_COMMON_ERROR_NOT_SUPPORTED; }

/* -- a back end's functions --------------------------------------------------------------------------------------- */

#ifdef SERVES_BACKEND

enum {
  NUMBER_propertyHasCapability, NUMBER_backendCreate, NUMBER_backendSetConfig, NUMBER_backendGetApiVersion,
  NUMBER_backendGetBuildId, NUMBER_backendGetSupportedOperations, NUMBER_backendValidateOpConfig, NUMBER_backendFree,
  NUMBER_contextCreate, NUMBER_contextSetConfig, NUMBER_contextGetBinarySize, NUMBER_contextGetBinary,
  NUMBER_contextCreateFromBinary, NUMBER_contextFree, NUMBER_graphCreate, NUMBER_graphSetConfig, NUMBER_graphAddNode,
  NUMBER_graphFinalize, NUMBER_graphRetrieve, NUMBER_graphExecute, NUMBER_graphExecuteAsync,
  NUMBER_tensorCreateContextTensor, NUMBER_tensorCreateGraphTensor, NUMBER_logCreate, NUMBER_logSetLogLevel,
  NUMBER_logFree, NUMBER_profileCreate, NUMBER_profileSetConfig, NUMBER_profileGetEvents, NUMBER_profileGetSubEvents,
  NUMBER_profileGetEventData, NUMBER_profileGetExtendedEventData, NUMBER_profileFree, NUMBER_memRegister,
  NUMBER_memDeRegister, NUMBER_deviceGetPlatformInfo, NUMBER_deviceFreePlatformInfo, NUMBER_deviceCreate,
  NUMBER_deviceSetConfig, NUMBER_deviceGetInfo, NUMBER_deviceFree, NUMBER_signalCreate, NUMBER_signalSetConfig,
  NUMBER_signalTrigger, NUMBER_signalFree, NUMBER_errorGetMessage, NUMBER_errorGetVerboseMessage,
  NUMBER_errorFreeVerboseMessage, NUMBER_graphPrepareExecutionEnvironment, NUMBER_graphReleaseExecutionEnvironment,
  NUMBER_graphGetProperty, NUMBER_contextValidateBinary,
  NUMBER_contextCreateFromBinaryWithSignal, NUMBER_contextCreateFromBinaryListAsync, NUMBER_backendGetProperty,
  NUMBER_contextGetProperty, NUMBER_contextFinalize, NUMBER_createPowerConfigId, NUMBER_destroyPowerConfigId,
  NUMBER_setPowerConfig, NUMBER_setMemoryConfig, NUMBER_deviceGetInfrastructure
};

F1(propertyHasCapability, QnnProperty_Key_t)
F3(backendCreate, Qnn_LogHandle_t, const QnnBackend_Config_t **, Qnn_BackendHandle_t *)
F2(backendSetConfig, Qnn_BackendHandle_t, const QnnBackend_Config_t **)
F1(backendGetApiVersion, Qnn_ApiVersion_t *)
F1(backendGetBuildId, const char **)
F3(backendGetSupportedOperations, Qnn_BackendHandle_t, uint32_t *, const QnnBackend_OperationName_t **)
static E backendValidateOpConfig(Qnn_BackendHandle_t a, Qnn_OpConfig_t b)
    GOES(0, backendValidateOpConfig, (a, b), 2, V(a), V(&b))
FREE1(backendFree, Qnn_BackendHandle_t)
F4(contextCreate, Qnn_BackendHandle_t, Qnn_DeviceHandle_t, const QnnContext_Config_t **, Qnn_ContextHandle_t *)
F2(contextSetConfig, Qnn_ContextHandle_t, const QnnContext_Config_t **)
F2(contextGetBinarySize, Qnn_ContextHandle_t, Qnn_ContextBinarySize_t *)
F4(contextGetBinary, Qnn_ContextHandle_t, void *, Qnn_ContextBinarySize_t, Qnn_ContextBinarySize_t *)
F7(contextCreateFromBinary, Qnn_BackendHandle_t, Qnn_DeviceHandle_t, const QnnContext_Config_t **, const void *,
   Qnn_ContextBinarySize_t, Qnn_ContextHandle_t *, Qnn_ProfileHandle_t)
FREE2(contextFree, Qnn_ContextHandle_t, Qnn_ProfileHandle_t)
F4(graphCreate, Qnn_ContextHandle_t, const char *, const QnnGraph_Config_t **, Qnn_GraphHandle_t *)
F2(graphSetConfig, Qnn_GraphHandle_t, const QnnGraph_Config_t **)
static E graphAddNode(Qnn_GraphHandle_t a, Qnn_OpConfig_t b) GOES(0, graphAddNode, (a, b), 2, V(a), V(&b))
F3(graphFinalize, Qnn_GraphHandle_t, Qnn_ProfileHandle_t, Qnn_SignalHandle_t)
F3(graphRetrieve, Qnn_ContextHandle_t, const char *, Qnn_GraphHandle_t *)
F9(graphExecuteAsync, Qnn_GraphHandle_t, const Qnn_Tensor_t *, uint32_t, Qnn_Tensor_t *, uint32_t, Qnn_ProfileHandle_t,
   Qnn_SignalHandle_t, Qnn_NotifyFn_t, void *)
F2(tensorCreateContextTensor, Qnn_ContextHandle_t, Qnn_Tensor_t *)
F2(tensorCreateGraphTensor, Qnn_GraphHandle_t, Qnn_Tensor_t *)
F3(logCreate, QnnLog_Callback_t, QnnLog_Level_t, Qnn_LogHandle_t *)
F2(logSetLogLevel, Qnn_LogHandle_t, QnnLog_Level_t)
FREE1(logFree, Qnn_LogHandle_t)
F3(profileCreate, Qnn_BackendHandle_t, QnnProfile_Level_t, Qnn_ProfileHandle_t *)
F2(profileSetConfig, Qnn_ProfileHandle_t, const QnnProfile_Config_t **)
F3(profileGetEvents, Qnn_ProfileHandle_t, const QnnProfile_EventId_t **, uint32_t *)
F3(profileGetSubEvents, QnnProfile_EventId_t, const QnnProfile_EventId_t **, uint32_t *)
F2(profileGetEventData, QnnProfile_EventId_t, QnnProfile_EventData_t *)
F2(profileGetExtendedEventData, QnnProfile_EventId_t, QnnProfile_ExtendedEventData_t *)
FREE1(profileFree, Qnn_ProfileHandle_t)
F4(memRegister, Qnn_ContextHandle_t, const Qnn_MemDescriptor_t *, uint32_t, Qnn_MemHandle_t *)
FREE2(memDeRegister, const Qnn_MemHandle_t *, uint32_t)
F2(deviceGetPlatformInfo, Qnn_LogHandle_t, const QnnDevice_PlatformInfo_t **)
FREE2(deviceFreePlatformInfo, Qnn_LogHandle_t, const QnnDevice_PlatformInfo_t *)
F3(deviceCreate, Qnn_LogHandle_t, const QnnDevice_Config_t **, Qnn_DeviceHandle_t *)
F2(deviceSetConfig, Qnn_DeviceHandle_t, const QnnDevice_Config_t **)
F2(deviceGetInfo, Qnn_DeviceHandle_t, const QnnDevice_PlatformInfo_t **)
FREE1(deviceFree, Qnn_DeviceHandle_t)
F3(signalCreate, Qnn_BackendHandle_t, const QnnSignal_Config_t **, Qnn_SignalHandle_t *)
F2(signalSetConfig, Qnn_SignalHandle_t, const QnnSignal_Config_t **)
F1(signalTrigger, Qnn_SignalHandle_t)
FREE1(signalFree, Qnn_SignalHandle_t)
F2(errorGetMessage, Qnn_ErrorHandle_t, const char **)
F2(errorGetVerboseMessage, Qnn_ErrorHandle_t, const char **)
FREE1(errorFreeVerboseMessage, const char *)
F3(graphPrepareExecutionEnvironment, Qnn_GraphHandle_t, QnnGraph_ExecuteEnvironment_t **, uint32_t)
F3(graphReleaseExecutionEnvironment, Qnn_GraphHandle_t, const QnnGraph_ExecuteEnvironment_t **, uint32_t)
F2(graphGetProperty, Qnn_GraphHandle_t, QnnGraph_Property_t **)
F5(contextValidateBinary, Qnn_BackendHandle_t, Qnn_DeviceHandle_t, const QnnContext_Config_t **, const void *,
   Qnn_ContextBinarySize_t)
F8(contextCreateFromBinaryWithSignal, Qnn_BackendHandle_t, Qnn_DeviceHandle_t, const QnnContext_Config_t **,
   const void *, Qnn_ContextBinarySize_t, Qnn_ContextHandle_t *, Qnn_ProfileHandle_t, Qnn_SignalHandle_t)
F5(contextCreateFromBinaryListAsync, Qnn_BackendHandle_t, Qnn_DeviceHandle_t, const QnnContext_Params_t **,
   const QnnContext_Config_t **, Qnn_SignalHandle_t)
F2(backendGetProperty, Qnn_BackendHandle_t, QnnBackend_Property_t **)
F2(contextGetProperty, Qnn_ContextHandle_t, QnnContext_Property_t **)
F2(contextFinalize, Qnn_ContextHandle_t, Qnn_ProfileHandle_t)

/* What HTP's clients set about clocks and voltages: understood, noted, without effect on a machine that has none. Of
 * a library that calls are forwarded to, the client has its own. */
#undef FORWARDED
#define FORWARDED(name, arguments, count)
F3(createPowerConfigId, uint32_t, uint32_t, uint32_t *)
FREE1(destroyPowerConfigId, uint32_t)
F2(setPowerConfig, uint32_t, const QnnHtpPerfInfrastructure_PowerConfig_t **)
F3(setMemoryConfig, uint32_t, uint32_t, const void **)

static QnnHtpDevice_Infrastructure_t infrastructure = {
    0, {{createPowerConfigId, destroyPowerConfigId, setPowerConfig, setMemoryConfig}}};

static E deviceGetInfrastructure(const QnnDevice_Infrastructure_t *answer) {
  if (forward) return forward->deviceGetInfrastructure(answer);
  if (strcmp(NAME, "QnnHtp")) return QNN_COMMON_ERROR_NOT_SUPPORTED;
  if (!answer) return QNN_COMMON_ERROR_INVALID_ARGUMENT;
  *(QnnDevice_Infrastructure_t *)answer = &infrastructure;
  return QNN_SUCCESS;
}

/* -- executions --------------------------------------------------------------------------------------------------- */

/* An execution that was made: of which graph, with which memory, and what makes it again. Looked at in the GIL. */
enum { REMEMBERED = 32, MOST_TENSORS = 64, WORDS = 3 };
typedef struct { uint64_t words[2 + WORDS * MOST_TENSORS]; size_t bytes; PyObject *run; } Execution;
static Execution executions[REMEMBERED];
static int newest;

static void forget_executions(void) {
  for (int i = 0; i < REMEMBERED; i++)
    if (executions[i].run) {
      PyObject *run = executions[i].run;
      executions[i].run = NULL;
      executions[i].bytes = 0;
      py.DecRef(run);
    }
}

static uint64_t *described(uint64_t *words, const Qnn_Tensor_t *tensors, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    const Qnn_TensorV1_t *tensor = &tensors[i].v1; /* a beginning of both versions */
    int raw = tensor->memType == QNN_TENSORMEMTYPE_RAW;
    *words++ = (uint64_t)tensors[i].version << 48 | (uint64_t)tensor->memType << 32 | tensor->id;
    *words++ = V(raw ? tensor->clientBuf.data : tensor->memHandle);
    *words++ = raw ? tensor->clientBuf.dataSize : 0;
  }
  return words;
}

static PyObject *remembered(const uint64_t *words, size_t bytes) {
  for (int i = 0; i < REMEMBERED; i++) {
    const Execution *known = &executions[(newest + REMEMBERED - i) % REMEMBERED];
    if (known->bytes == bytes && known->run && !memcmp(known->words, words, bytes)) return known->run;
  }
  return NULL;
}

static E graphExecute(Qnn_GraphHandle_t graph, const Qnn_Tensor_t *inputs, uint32_t inputs_count, Qnn_Tensor_t *outputs,
                      uint32_t outputs_count, Qnn_ProfileHandle_t profile, Qnn_SignalHandle_t signal) {
  const uint64_t values[] = {V(graph),   V(inputs),  inputs_count, V(outputs),
                             outputs_count, V(profile), V(signal)};
  uint64_t words[2 + WORDS * MOST_TENSORS];
  size_t bytes = 0;
  if (forward) {
    look(NUMBER_before, "graphExecute", 0, 7, values);
    E error = forward->graphExecute(graph, inputs, inputs_count, outputs, outputs_count, profile, signal);
    look(NUMBER_after, "graphExecute", error, 7, values);
    return error;
  }
  if (!usable()) return UNABLE(0);
  if (!profile && !signal && inputs && outputs && (uint64_t)inputs_count + outputs_count <= MOST_TENSORS) {
    words[0] = V(graph);
    words[1] = (uint64_t)inputs_count << 32 | outputs_count;
    uint64_t *end = described(described(words + 2, inputs, inputs_count), outputs, outputs_count);
    bytes = (size_t)((char *)end - (char *)words);
  }
  int held = py.GILState_Ensure();
  PyObject *run = bytes ? remembered(words, bytes) : NULL;
  long long error = -1;
  if (run) {
    py.IncRef(run); /* other threads execute meanwhile, and remember what they did */
    error = number(py.CallObject(run, NULL), NULL);
    py.DecRef(run);
  }
  if (error < 0) { /* none is known, or what it ran on is no longer bound */
    PyObject *answer = call(NUMBER_graphExecute, "graphExecute", 7, values);
    if (answer && bytes && py.Callable(answer)) {
      newest = (newest + 1) % REMEMBERED;
      PyObject *before = executions[newest].run;
      memcpy(executions[newest].words, words, bytes);
      executions[newest].bytes = bytes;
      executions[newest].run = answer;
      if (before) py.DecRef(before);
      error = QNN_SUCCESS;
    } else {
      error = number(answer, NULL);
    }
  }
  py.GILState_Release(held);
  return (E)error;
}

/* -- the table ---------------------------------------------------------------------------------------------------- */

static QnnInterface_t interface;
static const QnnInterface_t *interfaces[] = {&interface};

static void fill_table(void) {
  /* What is not named below is not offered. */
  void **entries = (void **)&interface.QNN_INTERFACE_VER_NAME;
  for (int i = 0; i < QNN_TABLE_ENTRIES; i++) entries[i] = (void *)not_offered;
  QNN_INTERFACE_VER_TYPE *table = &interface.QNN_INTERFACE_VER_NAME;
#define OFFER(name) table->name = name
  OFFER(propertyHasCapability), OFFER(backendCreate), OFFER(backendSetConfig), OFFER(backendGetApiVersion);
  OFFER(backendGetBuildId), OFFER(backendGetSupportedOperations), OFFER(backendValidateOpConfig), OFFER(backendFree);
  OFFER(contextCreate), OFFER(contextSetConfig), OFFER(contextGetBinarySize), OFFER(contextGetBinary);
  OFFER(contextCreateFromBinary), OFFER(contextFree), OFFER(graphCreate), OFFER(graphSetConfig), OFFER(graphAddNode);
  OFFER(graphFinalize), OFFER(graphRetrieve), OFFER(graphExecute), OFFER(graphExecuteAsync);
  OFFER(tensorCreateContextTensor), OFFER(tensorCreateGraphTensor), OFFER(logCreate), OFFER(logSetLogLevel);
  OFFER(logFree), OFFER(profileCreate), OFFER(profileSetConfig), OFFER(profileGetEvents), OFFER(profileGetSubEvents);
  OFFER(profileGetEventData), OFFER(profileGetExtendedEventData), OFFER(profileFree), OFFER(memRegister);
  OFFER(memDeRegister), OFFER(deviceGetPlatformInfo), OFFER(deviceFreePlatformInfo), OFFER(deviceGetInfrastructure);
  OFFER(deviceCreate), OFFER(deviceSetConfig), OFFER(deviceGetInfo), OFFER(deviceFree), OFFER(signalCreate);
  OFFER(signalSetConfig), OFFER(signalTrigger), OFFER(signalFree), OFFER(errorGetMessage);
  OFFER(errorGetVerboseMessage), OFFER(errorFreeVerboseMessage), OFFER(graphPrepareExecutionEnvironment);
  OFFER(graphReleaseExecutionEnvironment), OFFER(graphGetProperty), OFFER(contextValidateBinary);
  OFFER(contextCreateFromBinaryWithSignal), OFFER(contextCreateFromBinaryListAsync), OFFER(backendGetProperty);
  OFFER(contextGetProperty), OFFER(contextFinalize);
}

/* How many entries the table of a version has, as far as that is known. */
static int entries_of(Qnn_Version_t core) {
  return core.major != QNN_API_VERSION_MAJOR || core.minor < 32 ? 58 : core.minor < 40 ? 71 : QNN_TABLE_ENTRIES;
}

static int serves_itself;

static void find_forward(const char *path) {
  static QNN_INTERFACE_VER_TYPE table;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  QnnInterface_getProvidersFn_t ask = NULL;
  const QnnInterface_t **found = NULL;
  uint32_t count = 0;
  if (library) *(void **)&ask = dlsym(library, "QnnInterface_getProviders");
  if (ask == QnnInterface_getProviders) { /* it is the one that is forwarded to */
    serves_itself = 1;
    return;
  }
  if (!ask || ask(&found, &count) || !count) {
    complain("cannot forward to ISTHMUS_QNN_FORWARD=", library ? path : dlerror());
    return;
  }
  int entries = entries_of(found[0]->apiVersion.coreApiVersion);
  void **mine = (void **)&interface.QNN_INTERFACE_VER_NAME, **kept = (void **)&table;
  void *const *theirs = (void *const *)&found[0]->QNN_INTERFACE_VER_NAME;
  for (int i = 0; i < QNN_TABLE_ENTRIES; i++) {
    kept[i] = i < entries && theirs[i] ? theirs[i] : (void *)not_offered;
    if (mine[i] == (void *)not_offered) mine[i] = kept[i];
  }
  interface.apiVersion = found[0]->apiVersion;
  interface.providerName = found[0]->providerName;
  forward = &table;
}

static void open_table(void) {
  fill_table();
  interface.backendId = SERVES_BACKEND;
  interface.providerName = PROVIDER_NAME;
  interface.apiVersion = (Qnn_ApiVersion_t){{2, 40, 0}, {PROVIDER_VERSION}};
  if (forward_path()) find_forward(forward_path());
}

EXPORTED E QnnInterface_getProviders(const QnnInterface_t ***list, uint32_t *count) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (!list || !count) return QNN_COMMON_ERROR_INVALID_ARGUMENT;
  pthread_once(&once, open_table);
  if (forward_path() && !forward && !serves_itself) return QNN_COMMON_ERROR_LOADING_BINARIES;
  *list = interfaces;
  *count = 1;
  return QNN_SUCCESS;
}

/* Who looks for libcdsprpc.so by its bare name finds the one beside this library, if nothing else has that name. */
__attribute__((constructor)) static void bring_rpcmem(void) {
  char path[PATH_MAX];
  if (!strcmp(NAME, "QnnHtp") && beside("libcdsprpc.so", path) && !access(path, R_OK))
    dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

#else
static void forget_executions(void) {}
#endif

/* -- the system library's functions ------------------------------------------------------------------------------- */

#ifdef SERVES_SYSTEM

enum {
  NUMBER_systemContextCreate, NUMBER_systemContextGetBinaryInfo, NUMBER_systemContextGetMetaData,
  NUMBER_systemContextFree, NUMBER_systemTensorGetMemoryFootprint, NUMBER_systemLogCreate,
  NUMBER_systemLogSetLogLevel, NUMBER_systemLogFree, NUMBER_systemProfileCreateSerializationTarget,
  NUMBER_systemProfileSerializeEventData, NUMBER_systemProfileFreeSerializationTarget
};

F1(systemContextCreate, QnnSystemContext_Handle_t *)
F5(systemContextGetBinaryInfo, QnnSystemContext_Handle_t, void *, uint64_t, const QnnSystemContext_BinaryInfo_t **,
   Qnn_ContextBinarySize_t *)
F4(systemContextGetMetaData, QnnSystemContext_Handle_t, const void *, uint64_t, const QnnSystemContext_BinaryInfo_t **)
FREE1(systemContextFree, QnnSystemContext_Handle_t)
static E systemTensorGetMemoryFootprint(Qnn_Tensor_t a, uint64_t *b)
    GOES(0, systemTensorGetMemoryFootprint, (a, b), 2, V(&a), V(b))
F3(systemLogCreate, QnnLog_Callback_t, QnnLog_Level_t, Qnn_LogHandle_t *)
F2(systemLogSetLogLevel, Qnn_LogHandle_t, QnnLog_Level_t)
FREE1(systemLogFree, Qnn_LogHandle_t)
static E systemProfileCreateSerializationTarget(QnnSystemProfile_SerializationTarget_t a,
                                                QnnSystemProfile_SerializationTargetConfig_t *b, uint32_t c,
                                                QnnSystemProfile_SerializationTargetHandle_t *d)
    GOES(0, systemProfileCreateSerializationTarget, (a, b, c, d), 4, V(&a), V(b), V(c), V(d))
F3(systemProfileSerializeEventData, QnnSystemProfile_SerializationTargetHandle_t,
   const QnnSystemProfile_ProfileData_t **, uint32_t)
FREE1(systemProfileFreeSerializationTarget, QnnSystemProfile_SerializationTargetHandle_t)

static QnnSystemInterface_t interface;
static const QnnSystemInterface_t *interfaces[] = {&interface};

static void fill_table(void) {
  void **entries = (void **)&interface.QNN_SYSTEM_INTERFACE_VER_NAME;
  for (int i = 0; i < QNN_SYSTEM_TABLE_ENTRIES; i++) entries[i] = (void *)not_offered;
  QNN_SYSTEM_INTERFACE_VER_TYPE *table = &interface.QNN_SYSTEM_INTERFACE_VER_NAME;
#define OFFER(name) table->name = name
  OFFER(systemContextCreate), OFFER(systemContextGetBinaryInfo), OFFER(systemContextGetMetaData);
  OFFER(systemContextFree), OFFER(systemTensorGetMemoryFootprint), OFFER(systemLogCreate);
  OFFER(systemLogSetLogLevel), OFFER(systemLogFree), OFFER(systemProfileCreateSerializationTarget);
  OFFER(systemProfileSerializeEventData), OFFER(systemProfileFreeSerializationTarget);
}

static E provided(const QnnSystemInterface_t ***list, uint32_t *count) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, fill_table);
  interface.backendId = 0;
  interface.providerName = "SYSTEM_ISTHMUS";
  interface.systemApiVersion = (Qnn_Version_t){1, 15, 0};
  *list = interfaces;
  *count = 1;
  return QNN_SUCCESS;
}

/* Whoever forwards to another back end wants the system library that knows its binaries: the one beside it. */
static E forwarded_providers(const char *path, const QnnSystemInterface_t ***list, uint32_t *count) {
  char beside_it[PATH_MAX];
  const char *slash = strrchr(path, '/');
  QnnSystemInterface_getProvidersFn_t ask = NULL;
  snprintf(beside_it, sizeof beside_it, "%.*slibQnnSystem.so", slash ? (int)(slash - path + 1) : 0, path);
  void *library = dlopen(beside_it, RTLD_NOW | RTLD_LOCAL);
  if (library) *(void **)&ask = dlsym(library, "QnnSystemInterface_getProviders");
  if (!ask) {
    complain("cannot forward to ", library ? beside_it : dlerror());
    return QNN_COMMON_ERROR_LOADING_BINARIES;
  }
  return ask == QnnSystemInterface_getProviders ? provided(list, count) : ask(list, count);
}

EXPORTED E QnnSystemInterface_getProviders(const QnnSystemInterface_t ***list, uint32_t *count) {
  if (!list || !count) return QNN_COMMON_ERROR_INVALID_ARGUMENT;
  return forward_path() ? forwarded_providers(forward_path(), list, count) : provided(list, count);
}

#endif

/* -- shared memory ------------------------------------------------------------------------------------------------ */

#ifdef SERVES_RPCMEM

enum { NUMBER_alloc, NUMBER_free, NUMBER_to_fd };

static void *allocated(int heapid, uint32_t flags, uint64_t size) {
  const uint64_t values[] = {(uint32_t)heapid, flags, size};
  return (void *)(uintptr_t)cross_for(NUMBER_alloc, "rpcmem_alloc", 0, 3, values);
}

EXPORTED void rpcmem_init(void) {}
EXPORTED void rpcmem_deinit(void) {}
EXPORTED void *rpcmem_alloc(int heapid, uint32_t flags, int size) {
  return size > 0 ? allocated(heapid, flags, (uint64_t)size) : NULL;
}
EXPORTED void *rpcmem_alloc2(int heapid, uint32_t flags, size_t size) { return allocated(heapid, flags, size); }
EXPORTED void rpcmem_free(void *memory) {
  const uint64_t values[] = {V(memory)};
  if (memory) cross(NUMBER_free, "rpcmem_free", 0, 1, values);
}
EXPORTED int rpcmem_to_fd(void *memory) {
  const uint64_t values[] = {V(memory)};
  return memory ? (int)cross_for(NUMBER_to_fd, "rpcmem_to_fd", -1, 1, values) : -1;
}

/* A client announces which descriptor its memory has. Here memory is known by that already. */
EXPORTED void remote_register_buf(void *memory, int size, int fd) { (void)memory, (void)size, (void)fd; }
EXPORTED void remote_register_buf_attr(void *memory, int size, int fd, int attributes) {
  (void)memory, (void)size, (void)fd, (void)attributes;
}
EXPORTED void remote_register_buf_attr2(void *memory, size_t size, int fd, int attributes) {
  (void)memory, (void)size, (void)fd, (void)attributes;
}

#endif
