/* The shared libraries that clients of QNN load: libQnnHtp.so and its like, libQnnSystem.so, libcdsprpc.so.
 *
 * One source, compiled once for each library, with LIBRARY_NAME as its name. QNN's functions are implemented in Python
 * (isthmus.capi.serve), in the interpreter that interpreter.h finds or starts. Here are the function tables, the calls
 * of Python, and a cache of executions: one that repeats the memory of an earlier one skips most of the Python code.
 *
 * With ISTHMUS_QNN_FORWARD set to the path of another library of this kind, calls go there and Python only checks them.
 * With ISTHMUS_QNN_VALIDATE set to 1, Python also checks the calls that this library serves itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "QNN/HTP/QnnHtpDevice.h"
#include "QNN/System/QnnSystemInterface.h"
#include "interpreter.h"
#include "rpcmem.h"

typedef Qnn_ErrorHandle_t E;

/* -- the client's memory ------------------------------------------------------------------------------------------- */

/* Return whether 8 bytes can be read, without the fault of a plain access. The kernel copies the second argument of
 * rt_sigprocmask, or returns EFAULT, before it refuses the invalid first one. Valgrind reports such a call and
 * uninitialised bytes, so under valgrind the bytes are copied by process_vm_readv. */
static int is_there(uintptr_t at) {
  static _Atomic int copies = -1;
  if (atomic_load_explicit(&copies, memory_order_relaxed) < 0) atomic_store(&copies, on_valgrind());
  if (!atomic_load_explicit(&copies, memory_order_relaxed))
    return !(syscall(SYS_rt_sigprocmask, ~0, at, NULL, 8) && errno == EFAULT);
  char copy[8];
  struct iovec ours = {copy, sizeof copy}, theirs = {(void *)at, sizeof copy};
  return process_vm_readv(getpid(), &ours, 1, &theirs, 1, 0) >= 0 || errno != EFAULT;
}

/* Return whether all bytes can be read. `page` is the last address of a page that was checked before, which is not
 * checked again; it is set to the last page checked here. */
__attribute__((unused)) static int readable(const void *memory, size_t bytes, uintptr_t *page) {
  const uintptr_t smallest = 4095;
  uintptr_t first = (uintptr_t)memory & ~(uintptr_t)7, last = ((uintptr_t)memory + bytes - 1) & ~(uintptr_t)7;
  if (!first || last < first) return 0; /* for a null pointer the kernel copies nothing and reports no error */
  for (uintptr_t at = first; at <= last; at = (at | smallest) + 1) {
    if ((at | smallest) == *page) continue;
    if (!is_there(at)) return 0;
    *page = at | smallest;
  }
  return 1;
}

/* Write to the client's memory, and return whether that was possible. The kernel writes first and reports an invalid
 * address. The plain write after it is for valgrind and sanitizers, which do not see the kernel's. If the system does
 * not allow the kernel's write, only the plain one is made. */
__attribute__((unused)) static int put(void *memory, const void *value, size_t bytes) {
  struct iovec ours = {(void *)value, bytes}, theirs = {memory, bytes};
  ssize_t done = process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0);
  if (done != (ssize_t)bytes && (done >= 0 || errno == EFAULT)) return 0;
  memcpy(memory, value, bytes);
  return 1;
}

/* -- calls of Python ---------------------------------------------------------------------------------------------- */

/* Where in the client's code the call in progress of this thread returns to. Audits name that line. */
static __thread void *return_address;
#define CALLED return_address = __builtin_return_address(0);
static uintptr_t native_return_address(void) { return (uintptr_t)return_address; }

static void forget_executions(void);

/* Call the client's callbacks. If one ends its thread (pthread_exit), the cleanup handler informs the server: Python
 * itself would take that thread for one that still runs. */
static void thread_ends(void *nothing);
static void native_say(QnnLog_Callback_t callback, QnnLog_Level_t level, uint64_t timestamp, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_cleanup_push(thread_ends, NULL);
  callback(format, level, timestamp, arguments);
  pthread_cleanup_pop(0);
  va_end(arguments);
}

static void native_notify(Qnn_NotifyFn_t callback, void *parameter, Qnn_ErrorHandle_t error) {
  const Qnn_NotifyStatus_t status = {error};
  pthread_cleanup_push(thread_ends, NULL);
  callback(parameter, status);
  pthread_cleanup_pop(0);
}

/* Called by the server when Python ends: from then on, Python is not called. */
static void native_leave(void) {
  forget_executions();
  atomic_store(&state, LEFT);
}

/* Tell the server that the process ends, in a program without its own Python, which would do that. */
static void leave(void) {
  if (atomic_load(&state) != OPEN || !py.IsInitialized()) return;
  int held = py.GILState_Ensure();
  PyObject *method = py.GetAttrString(server, "leave");
  PyObject *done = method ? py.CallObject(method, NULL) : NULL;
  if (!done) py.Clear();
  if (method) py.DecRef(method);
  if (done) py.DecRef(done);
  py.GILState_Release(held);
}

/* Return the server of this library, the same for every thread: a new reference, or NULL on failure. */
static PyObject *opened_server(void) {
  PyObject *open = opener(), *arguments = open ? py.TupleNew(6) : NULL, *made = NULL;
  if (arguments) {
    py.TupleSetItem(arguments, 0, py.TextFrom(NAME));
    py.TupleSetItem(arguments, 1, py.LongFrom((uintptr_t)native_say));
    py.TupleSetItem(arguments, 2, py.LongFrom((uintptr_t)native_notify));
    py.TupleSetItem(arguments, 3, py.LongFrom((uintptr_t)forget_executions));
    py.TupleSetItem(arguments, 4, py.LongFrom((uintptr_t)native_leave));
    py.TupleSetItem(arguments, 5, py.LongFrom((uintptr_t)native_return_address));
    made = py.CallObject(open, arguments);
    py.DecRef(arguments);
  }
  return made;
}

/* Find or start Python, and get this library's server from it; `state` says whether that succeeded. */
static void open_library(void) {
  if (!has_python()) return;
  int held = py.GILState_Ensure();
  if (atomic_load(&state) == UNOPENED) {
    /* Python may switch threads meanwhile, so another thread may do the same. The first that returns sets the state. */
    PyObject *made = opened_server();
    if (!made && py.Matches(*py.KeyboardInterrupt)) {
      py.Clear();
      py.SetInterrupt(); /* raise it again in the caller of the library; the next call opens the library */
    } else if (atomic_load(&state) != UNOPENED) {
      if (made) py.DecRef(made);
      else py.Clear();
    } else if (made) {
      server = made;
      if (atomic_load(&process->python) == OURS) atexit(leave);
      atomic_store(&state, OPEN);
    } else {
      complain_of_exception("its package cannot be imported: ", MENDED);
      atomic_store(&state, UNUSABLE);
    }
  }
  py.GILState_Release(held);
}

/* Return whether the server can be called, after opening the library if needed. */
static int usable(void) {
  if (atomic_load_explicit(&state, memory_order_acquire) == UNOPENED) open_library();
  return atomic_load_explicit(&state, memory_order_acquire) == OPEN;
}

/* Call a method of the server with numbers, holding the GIL. Return a new reference, or NULL on failure. The method is
 * looked up once and stored in `*method`. */
static PyObject *call(PyObject **method, const char *name, int count, const uint64_t *values) {
  if (!*method && !(*method = py.GetAttrString(server, name))) return NULL;
  PyObject *arguments = py.TupleNew(count), *answer = NULL;
  for (int i = 0; arguments && i < count; i++) {
    PyObject *number = py.LongFrom(values[i]);
    if (!number || py.TupleSetItem(arguments, i, number)) {
      py.DecRef(arguments);
      arguments = NULL;
    }
  }
  if (arguments) {
    answer = py.CallObject(*method, arguments);
    py.DecRef(arguments);
  }
  return answer;
}

/* Return the number that a method returned, and drop the reference. On an exception, return `*failure` or, if that is
 * NULL, an error code. Ctrl-C is raised again in the caller of the library. */
static long long number(PyObject *answer, const long long *failure) {
  long long value = answer ? py.LongAs(answer) : 0;
  if (answer) py.DecRef(answer);
  if (!py.Occurred()) return value;
  int interrupted = py.Matches(*py.KeyboardInterrupt);
  py.Clear();
  if (interrupted) py.SetInterrupt();
  return failure ? *failure : interrupted ? QNN_COMMON_ERROR_SYSTEM : QNN_COMMON_ERROR_GENERAL;
}

/* Call a method of the server from any thread. Return `otherwise` if Python cannot be called; `failure` is as above. */
static long long crossed(PyObject **method, const char *name, long long otherwise, const long long *failure, int count,
                         const uint64_t *values) {
  if (!usable()) return otherwise;
  int held = py.GILState_Ensure();
  long long answer = atomic_load(&state) == OPEN ? number(call(method, name, count, values), failure) : otherwise;
  py.GILState_Release(held);
  return answer;
}

/* Inform the server that a client's callback ends this thread. */
static void thread_ends(void *nothing) {
  static PyObject *method;
  (void)nothing;
  crossed(&method, "thread_ends", 0, NULL, 0, NULL);
}

/* `cross` is for functions that return error codes, `cross_for` for those with another value on failure. */
__attribute__((unused)) static long long cross(PyObject **method, const char *name, long long otherwise, int count,
                                               const uint64_t *values) {
  return crossed(method, name, otherwise, NULL, count, values);
}
__attribute__((unused)) static long long cross_for(PyObject **method, const char *name, long long failure, int count,
                                                   const uint64_t *values) {
  return crossed(method, name, failure, &failure, count, values);
}

/* The result of a call after the interpreter has ended: everything is freed already, other calls are impossible. */
#define UNABLE(freeing) (atomic_load(&state) == LEFT && (freeing) ? QNN_SUCCESS : QNN_COMMON_ERROR_SYSTEM)
/* A pointer or number, as Python gets it; and the number of the arguments in `values`. */
#define V(value) (uint64_t)(uintptr_t)(value)
#define COUNT (int)(sizeof values / sizeof *values)
#define CALLS_PYTHON(freeing, name, parameters, arguments, ...)                            \
  static E name parameters {                                                               \
    static PyObject *method;                                                               \
    const uint64_t values[] = {__VA_ARGS__};                                               \
    CALLED                                                                                 \
    FORWARDED(name, arguments)                                                             \
    usable();                                                                              \
    LOOKED(#name, (E)cross(&method, #name, (long long)UNABLE(freeing), COUNT, values))     \
  }

/* Have a function logged that no library here implements, and return the error. */
__attribute__((unused)) static E refused(const char *name) {
  static PyObject *method;
  const uint64_t values[] = {V(name)};
  return (E)cross(&method, "notOffered", QNN_COMMON_ERROR_NOT_SUPPORTED, 1, values);
}

/* The kinds of functions in functions.h: SERVED calls Python, FREEING also frees something, NOT_OFFERED is not
 * implemented here but may be in a library that calls are forwarded to, NATIVE is written by hand below. */
#define SERVED(...) CALLS_PYTHON(0, __VA_ARGS__)
#define FREEING(...) CALLS_PYTHON(1, __VA_ARGS__)
#define NOT_OFFERED(name, parameters, arguments, ...)  \
  static E name parameters {                           \
    const uint64_t values[] = {__VA_ARGS__};           \
    FORWARDED(name, arguments)                         \
    LOOKED(#name, refused(#name))                      \
  }
#define NATIVE(...)

/* -- forwarding --------------------------------------------------------------------------------------------------- */

/* Return the path of the library that calls are forwarded to; NULL if they are not. */
__attribute__((unused)) static const char *forward_path(void) {
  const char *path = getenv("ISTHMUS_QNN_FORWARD");
  return path && *path ? path : NULL;
}

#ifdef SERVES_BACKEND
static const QNN_INTERFACE_VER_TYPE *forward; /* the table that calls are forwarded to; NULL if they are not */
static int validating;                        /* whether Python checks the calls that are served here */
static int cannot_serve(void);

/* Let Python check a call before it is made, or record its result (isthmus.capi.validation). */
static void look(int is_after, const char *name, E error, int count, const uint64_t *values) {
  static PyObject *methods[2];
  uint64_t all[16] = {V(name), error};
  memcpy(all + 2, values, (size_t)count * sizeof *values);
  cross(&methods[is_after], is_after ? "validationAfter" : "validationBefore", 0, count + 2, all);
}

/* The parts of every function: forward the call if calls are forwarded, else return `answer`; Python checks both. */
#define FORWARDED(name, arguments)                              \
  if (cannot_serve()) return QNN_COMMON_ERROR_LOADING_BINARIES; \
  if (forward) {                                                \
    look(0, #name, 0, COUNT, values);                           \
    E error = forward->name arguments;                          \
    look(1, #name, error, COUNT, values);                       \
    return error;                                               \
  }
#define LOOKED(name, answer)                \
  if (!validating) return answer;           \
  look(0, name, 0, COUNT, values);          \
  E answered = answer;                      \
  look(1, name, answered, COUNT, values);   \
  return answered;
#elif defined SERVES_SYSTEM
/* Python does not check the calls of the system library. */
static const QNN_SYSTEM_INTERFACE_VER_TYPE *forwarding(E *error);
#define FORWARDED(name, arguments)                                         \
  {                                                                        \
    E error = QNN_SUCCESS;                                                 \
    const QNN_SYSTEM_INTERFACE_VER_TYPE *forward = forwarding(&error);     \
    if (forward && !forward->name) return QNN_COMMON_ERROR_NOT_SUPPORTED;  \
    if (forward || error) return forward ? forward->name arguments : error; \
  }
#define LOOKED(name, answer) return answer;
#endif

/* Write the list of tables, with its one entry, for getProviders. */
__attribute__((unused)) static E provided(void *list, const void *tables, uint32_t *count) {
  const uint32_t one = 1;
  int there = put(list, &tables, sizeof tables) && put(count, &one, sizeof one);
  return there ? QNN_SUCCESS : QNN_COMMON_ERROR_INVALID_ARGUMENT;
}

__attribute__((unused)) static E not_offered(void) { return QNN_COMMON_ERROR_NOT_SUPPORTED; }

/* -- a backend's functions ---------------------------------------------------------------------------------------- */

#ifdef SERVES_BACKEND

#define FUNCTION(kind, name, exported, ...) kind(name, __VA_ARGS__)
#include "functions.h"
#undef FUNCTION

static QnnHtpDevice_Infrastructure_t infrastructure;
static E deviceGetInfrastructure(const QnnDevice_Infrastructure_t *answer) {
  const uint64_t values[] = {V(answer)};
  FORWARDED(deviceGetInfrastructure, (answer))
  const QnnHtpDevice_Infrastructure_t *offered = &infrastructure;
  LOOKED("deviceGetInfrastructure",
         strcmp(NAME, "QnnHtp") && strcmp(NAME, "QnnSaver")   ? QNN_COMMON_ERROR_NOT_SUPPORTED
         : put((void *)answer, &offered, sizeof offered)      ? QNN_SUCCESS
                                                              : QNN_COMMON_ERROR_INVALID_ARGUMENT)
}

/* HTP's functions for clocks and voltages: checked and logged, but without effect. They are never forwarded: a library
 * that calls are forwarded to gives the client its own. */
#undef FORWARDED
#undef LOOKED
#define FORWARDED(name, arguments)
#define LOOKED(name, answer) return answer;
SERVED(createPowerConfigId, (uint32_t device, uint32_t core, uint32_t *id), , device, core, V(id))
FREEING(destroyPowerConfigId, (uint32_t id), , id)
SERVED(setPowerConfig, (uint32_t id, const QnnHtpPerfInfrastructure_PowerConfig_t **config), , id, V(config))
SERVED(setMemoryConfig, (uint32_t device, uint32_t core, const QnnHtpPerfInfrastructure_MemoryConfig_t **config), ,
       device, core, V(config))

static QnnHtpDevice_Infrastructure_t infrastructure = {
    0, {{createPowerConfigId, destroyPowerConfigId, setPowerConfig, setMemoryConfig}}};

/* -- executions --------------------------------------------------------------------------------------------------- */

/* A cache of executions: `words` are the graph, the tensors and their memory, and `run` is the Python function that
 * repeats the execution. It is accessed with the GIL held. */
enum { REMEMBERED = 32, MAX_TENSORS = 64, MAX_DIMS = 8, WORDS = 4 + MAX_DIMS / 2 };
typedef struct { uint64_t words[2 + WORDS * MAX_TENSORS]; size_t bytes; PyObject *run; } Execution;
static Execution executions[REMEMBERED];
static int newest;

/* Clear the cache, so that graphs and memory can be freed. */
static void forget_executions(void) {
  for (int i = 0; i < REMEMBERED; i++)
    if (executions[i].run) {
      PyObject *run = executions[i].run;
      executions[i].run = NULL;
      executions[i].bytes = 0;
      py.DecRef(run);
    }
}

/* Write the words that identify these tensors and their memory; return the end of the words, or NULL if a tensor cannot
 * be read. `pages` are pages that can be read (see `readable`): one for tensors, and one for dimensions, which most
 * clients keep elsewhere. */
static uint64_t *described(uint64_t *words, const Qnn_Tensor_t *tensors, uint32_t count, uintptr_t pages[2]) {
  if (!words || (count && !readable(tensors, count * sizeof *tensors, &pages[0]))) return NULL;
  for (uint32_t i = 0; i < count; i++) {
    const Qnn_TensorV1_t *tensor = &tensors[i].v1; /* both versions begin with these fields */
    int raw = tensor->memType == QNN_TENSORMEMTYPE_RAW;
    uint32_t dims = tensor->dimensions ? tensor->rank : 0;
    if (dims > MAX_DIMS || (dims && !readable(tensor->dimensions, dims * sizeof(uint32_t), &pages[1]))) return NULL;
    *words++ = (uint64_t)tensors[i].version << 48 | (uint64_t)tensor->memType << 32 | tensor->id;
    *words++ = V(raw ? tensor->clientBuf.data : tensor->memHandle);
    *words++ = raw ? tensor->clientBuf.dataSize : 0;
    *words++ = (uint64_t)dims << 32 | (uint32_t)tensor->dataType;
    for (uint32_t j = 0; j < dims; j += 2)
      *words++ = (uint64_t)tensor->dimensions[j] << 32 | (j + 1 < dims ? tensor->dimensions[j + 1] : 0);
  }
  return words;
}

/* Return the function that repeats the execution with these words, a borrowed reference; NULL if it is not cached. The
 * newest is compared first. */
static PyObject *remembered(const uint64_t *words, size_t bytes) {
  for (int i = 0; i < REMEMBERED; i++) {
    const Execution *known = &executions[(newest + REMEMBERED - i) % REMEMBERED];
    if (known->bytes == bytes && known->run && !memcmp(known->words, words, bytes)) return known->run;
  }
  return NULL;
}

/* Execute: repeat a cached execution with the same memory, or else call the server with `values`, all arguments as
 * numbers, and cache what it returns. */
static E executed(Qnn_GraphHandle_t graph, const Qnn_Tensor_t *inputs, uint32_t inputs_count, Qnn_Tensor_t *outputs,
                  uint32_t outputs_count, Qnn_ProfileHandle_t profile, Qnn_SignalHandle_t signal,
                  const uint64_t *values) {
  static PyObject *method;
  uint64_t words[2 + WORDS * MAX_TENSORS];
  size_t bytes = 0;
  if (!usable()) return UNABLE(0);
  if (!profile && !signal && inputs && outputs && (uint64_t)inputs_count + outputs_count <= MAX_TENSORS) {
    words[0] = V(graph);
    words[1] = (uint64_t)inputs_count << 32 | outputs_count;
    uintptr_t pages[2] = {0};
    uint64_t *end = described(described(words + 2, inputs, inputs_count, pages), outputs, outputs_count, pages);
    bytes = end ? (size_t)((char *)end - (char *)words) : 0;
  }
  int held = py.GILState_Ensure();
  PyObject *run = bytes ? remembered(words, bytes) : NULL;
  long long error = -1;
  if (run) {
    py.IncRef(run); /* another thread may evict it from the cache meanwhile */
    error = number(py.CallObject(run, NULL), NULL);
    py.DecRef(run);
  }
  if (error < 0) { /* none is cached, or its memory is no longer bound */
    PyObject *answer = call(&method, "graphExecute", 7, values);
    if (answer && py.Callable(answer)) {
      PyObject *dropped = answer; /* the tensors are more than the cache holds */
      if (bytes) {
        newest = (newest + 1) % REMEMBERED;
        dropped = executions[newest].run;
        memcpy(executions[newest].words, words, bytes);
        executions[newest].bytes = bytes;
        executions[newest].run = answer;
      }
      if (dropped) py.DecRef(dropped);
      error = QNN_SUCCESS;
    } else {
      error = number(answer, NULL);
    }
  }
  py.GILState_Release(held);
  return (E)error;
}

static E graphExecute(Qnn_GraphHandle_t graph, const Qnn_Tensor_t *inputs, uint32_t inputs_count, Qnn_Tensor_t *outputs,
                      uint32_t outputs_count, Qnn_ProfileHandle_t profile, Qnn_SignalHandle_t signal) {
  const uint64_t values[] = {V(graph),   V(inputs),  inputs_count, V(outputs),
                             outputs_count, V(profile), V(signal)};
  CALLED
  if (cannot_serve()) return QNN_COMMON_ERROR_LOADING_BINARIES;
  if (!forward && !validating)
    return executed(graph, inputs, inputs_count, outputs, outputs_count, profile, signal, values);
  look(0, "graphExecute", 0, COUNT, values);
  E error = forward ? forward->graphExecute(graph, inputs, inputs_count, outputs, outputs_count, profile, signal)
                    : executed(graph, inputs, inputs_count, outputs, outputs_count, profile, signal, values);
  look(1, "graphExecute", error, COUNT, values);
  return error;
}

/* -- the table ---------------------------------------------------------------------------------------------------- */

static QnnInterface_t interface;
static const QnnInterface_t *interfaces[] = {&interface};

static void fill_table(void) {
  /* Entries that functions.h does not name are not offered. */
  void **entries = (void **)&interface.QNN_INTERFACE_VER_NAME;
  for (int i = 0; i < QNN_TABLE_ENTRIES; i++) entries[i] = (void *)not_offered;
  QNN_INTERFACE_VER_TYPE *table = &interface.QNN_INTERFACE_VER_NAME;
#define FUNCTION(kind, name, ...) table->name = name;
#include "functions.h"
#undef FUNCTION
}

/* Return how many entries the table of a version of QNN has, as far as that is known. */
static int entries_of(Qnn_Version_t core) {
  return core.major != QNN_API_VERSION_MAJOR || core.minor < 32 ? 58 : core.minor < 40 ? 71 : QNN_TABLE_ENTRIES;
}

static pid_t this_thread(void) { return (pid_t)syscall(SYS_gettid); }

/* `is_the_one_behind`: whether ISTHMUS_QNN_FORWARD names this library itself. It then serves calls if another library
 * forwards to it. Without such a library it refuses: serving would hide that nothing is forwarded. `cannot_forward`:
 * whether calls are to be forwarded but the other library cannot be used. */
static int is_the_one_behind, cannot_forward;
static _Atomic int has_forwarder; /* a library that forwards has asked for this one's table */

/* Load the library that calls are forwarded to, and copy its table. Functions that this library does not offer are
 * taken from there. */
static void find_forward(const char *path) {
  static QNN_INTERFACE_VER_TYPE table;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  QnnInterface_getProvidersFn_t ask = NULL;
  const QnnInterface_t **found = NULL;
  uint32_t count = 0;
  if (library) *(void **)&ask = dlsym(library, "QnnInterface_getProviders");
  if (ask == QnnInterface_getProviders) {
    is_the_one_behind = 1;
    return;
  }
  /* The other library may be ours: it then knows by `forwarder` that this is not a client's call. */
  pthread_mutex_lock(&process->forwarding);
  atomic_store(&process->forwarder, this_thread());
  E error = ask ? ask(&found, &count) : QNN_COMMON_ERROR_LOADING_BINARIES;
  atomic_store(&process->forwarder, 0);
  pthread_mutex_unlock(&process->forwarding);
  if (error || !count) {
    complain("cannot forward to ISTHMUS_QNN_FORWARD=", library ? path : dlerror(), "");
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

/* Fill this library's table and find the one to forward to, once. */
static void open_table(void) {
  fill_table();
  interface.backendId = SERVES_BACKEND;
  interface.providerName = PROVIDER_NAME;
  interface.apiVersion = (Qnn_ApiVersion_t){{2, 40, 0}, {PROVIDER_VERSION}};
  const char *wanted = getenv("ISTHMUS_QNN_VALIDATE");
  if (forward_path()) find_forward(forward_path());
  else validating = wanted && *wanted && strcmp(wanted, "0");
  cannot_forward = forward_path() && !forward && !is_the_one_behind;
}
static pthread_once_t table_opened = PTHREAD_ONCE_INIT;

/* Print that ISTHMUS_QNN_FORWARD names this library itself, and return the error. */
static E names_itself(void) {
  complain("ISTHMUS_QNN_FORWARD names this library itself: ", forward_path() ? forward_path() : "it is forwarded to",
           "; name the one to forward to, and load another");
  return QNN_COMMON_ERROR_LOADING_BINARIES;
}

/* Return whether a call is to be forwarded but cannot be. Checked in every call: clients may call functions by name and
 * never get the table. */
static int cannot_serve(void) {
  pthread_once(&table_opened, open_table);
  return cannot_forward || (is_the_one_behind && !atomic_load(&has_forwarder) && names_itself());
}

EXPORTED E QnnInterface_getProviders(const QnnInterface_t ***list, uint32_t *count) {
  if (!list || !count) return QNN_COMMON_ERROR_INVALID_ARGUMENT;
  pthread_once(&table_opened, open_table);
  if (is_the_one_behind) {
    if (atomic_load(&process->forwarder) != this_thread()) return names_itself();
    atomic_store(&has_forwarder, 1);
  }
  return cannot_forward ? QNN_COMMON_ERROR_LOADING_BINARIES : provided(list, interfaces, count);
}

/* Load the libcdsprpc.so beside this library, so that programs that load it by its bare name get this one, unless
 * another of that name is loaded already. */
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

/* systemDlcComposeGraphs takes the backend's table by value, so its size is part of the call: that of our header. */
#define FUNCTION(kind, name, exported, ...) kind(name, __VA_ARGS__)
#include "functions.h"
#undef FUNCTION

static QnnSystemInterface_t interface;
static const QnnSystemInterface_t *interfaces[] = {&interface};

static void fill_table(void) {
  void **entries = (void **)&interface.QNN_SYSTEM_INTERFACE_VER_NAME;
  for (int i = 0; i < QNN_SYSTEM_TABLE_ENTRIES; i++) entries[i] = (void *)not_offered;
  QNN_SYSTEM_INTERFACE_VER_TYPE *table = &interface.QNN_SYSTEM_INTERFACE_VER_NAME;
#define FUNCTION(kind, name, ...) table->name = name;
#include "functions.h"
#undef FUNCTION
}

/* Write the list with this library's own table. */
static E own_providers(const QnnSystemInterface_t ***list, uint32_t *count) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, fill_table);
  interface.backendId = 0;
  interface.providerName = "SYSTEM_ISTHMUS";
  interface.systemApiVersion = (Qnn_Version_t){1, 15, 0};
  return provided(list, interfaces, count);
}

/* Write the list of the system library beside the backend that calls are forwarded to, which knows that backend's
 * binaries. */
static E forwarded_providers(const char *path, const QnnSystemInterface_t ***list, uint32_t *count) {
  char beside_it[PATH_MAX];
  const char *slash = strrchr(path, '/');
  QnnSystemInterface_getProvidersFn_t ask = NULL;
  snprintf(beside_it, sizeof beside_it, "%.*slibQnnSystem.so", slash ? (int)(slash - path + 1) : 0, path);
  void *library = dlopen(beside_it, RTLD_NOW | RTLD_LOCAL);
  if (library) *(void **)&ask = dlsym(library, "QnnSystemInterface_getProviders");
  if (!ask) {
    complain("cannot forward to ", library ? beside_it : dlerror(), "");
    return QNN_COMMON_ERROR_LOADING_BINARIES;
  }
  return ask == QnnSystemInterface_getProviders ? own_providers(list, count) : ask(list, count);
}

EXPORTED E QnnSystemInterface_getProviders(const QnnSystemInterface_t ***list, uint32_t *count) {
  if (!list || !count) return QNN_COMMON_ERROR_INVALID_ARGUMENT;
  return forward_path() ? forwarded_providers(forward_path(), list, count) : own_providers(list, count);
}

/* Return the table that a call by name is forwarded to; NULL if it is served here, or with an error. A table of an
 * earlier version is shorter, by an unknown number of entries, so its functions are not called by name. */
static const QNN_SYSTEM_INTERFACE_VER_TYPE *forwarding(E *error) {
  const QnnSystemInterface_t **found = NULL;
  uint32_t count = 0;
  if (!forward_path()) return NULL;
  *error = forwarded_providers(forward_path(), &found, &count);
  if (*error || found == interfaces) return NULL;
  Qnn_Version_t version = count ? found[0]->systemApiVersion : (Qnn_Version_t){0, 0, 0};
  if (version.major != QNN_SYSTEM_API_VERSION_MAJOR || version.minor < QNN_SYSTEM_API_VERSION_MINOR) {
    *error = QNN_COMMON_ERROR_NOT_SUPPORTED;
    return NULL;
  }
  return &found[0]->QNN_SYSTEM_INTERFACE_VER_NAME;
}

#endif

/* -- the recorder's own function ---------------------------------------------------------------------------------- */

#ifdef SERVES_SAVER
#include "QNN/Saver/QnnSaver.h"

EXPORTED E QnnSaver_initialize(const QnnSaver_Config_t **config) {
  static PyObject *method;
  const uint64_t values[] = {V(config)};
  return (E)cross(&method, "QnnSaver_initialize", QNN_COMMON_ERROR_SYSTEM, 1, values);
}

#endif

/* -- shared memory ------------------------------------------------------------------------------------------------ */

#ifdef SERVES_RPCMEM

/* Allocate shared memory; NULL on failure. */
static void *allocated(int heapid, uint32_t flags, uint64_t size) {
  static PyObject *method;
  const uint64_t values[] = {(uint32_t)heapid, flags, size};
  return (void *)(uintptr_t)cross_for(&method, "rpcmem_alloc", 0, 3, values);
}

EXPORTED void rpcmem_init(void) {}
EXPORTED void rpcmem_deinit(void) {}
EXPORTED void *rpcmem_alloc(int heapid, uint32_t flags, int size) {
  CALLED
  return size > 0 ? allocated(heapid, flags, (uint64_t)size) : NULL;
}
EXPORTED void *rpcmem_alloc2(int heapid, uint32_t flags, size_t size) {
  CALLED
  return allocated(heapid, flags, size);
}
EXPORTED void rpcmem_free(void *memory) {
  static PyObject *method;
  const uint64_t values[] = {V(memory)};
  CALLED
  if (memory) cross(&method, "rpcmem_free", 0, 1, values);
}
EXPORTED int rpcmem_to_fd(void *memory) {
  static PyObject *method;
  const uint64_t values[] = {V(memory)};
  return memory ? (int)cross_for(&method, "rpcmem_to_fd", -1, 1, values) : -1;
}

/* Do nothing: a client tells which descriptor its memory has, which is known here already. */
EXPORTED void remote_register_buf(void *memory, int size, int fd) { (void)memory, (void)size, (void)fd; }
EXPORTED void remote_register_buf_attr(void *memory, int size, int fd, int attributes) {
  (void)memory, (void)size, (void)fd, (void)attributes;
}
EXPORTED void remote_register_buf_attr2(void *memory, size_t size, int fd, int attributes) {
  (void)memory, (void)size, (void)fd, (void)attributes;
}

#endif

/* -- LPAI's backend extensions ------------------------------------------------------------------------------------- */

#ifdef SERVES_LPAI_EXTENSIONS
#include "QNN/LPAI/QnnLpaiNetRunExtensions.h"

EXPORTED void *QnnLpaiNetRunExtensions_allocateBuffer(Qnn_ContextHandle_t context, uint32_t size) {
  static PyObject *method;
  const uint64_t values[] = {V(context), size};
  const char *name = "QnnLpaiNetRunExtensions_allocateBuffer";
  return (void *)(uintptr_t)cross_for(&method, name, 0, 2, values);
}
EXPORTED void QnnLpaiNetRunExtensions_freeBuffer(void *buffer) {
  static PyObject *method;
  const uint64_t values[] = {V(buffer)};
  if (buffer) cross(&method, "QnnLpaiNetRunExtensions_freeBuffer", 0, 1, values);
}

#endif

/* -- HTP's backend extensions -------------------------------------------------------------------------------------- */

#ifdef SERVES_HTP_EXTENSIONS

/* The SDK's tools and Genie ask for an object of a C++ class that no public header declares. They go on without it. */
EXPORTED void *createBackendInterface(void) {
  complain("there are no backend extensions here: ", "QNN's interface for them is not public", "; configs have no effect");
  return NULL;
}
EXPORTED void destroyBackendInterface(void *extensions) { (void)extensions; }

#endif

/* -- the TFLite delegate ------------------------------------------------------------------------------------------ */

#ifdef SERVES_DELEGATE
#include "delegate.c"
#endif

/* -- functions by name -------------------------------------------------------------------------------------------- */

/* Export each function under its C name, as an alias. A program that is linked with several of these libraries gets the
 * first one's functions by name, while each table keeps its own. */
#define EXPORT(exported, name) extern EXPORTED __typeof__(exported) exported __attribute__((alias(#name)));
#define FUNCTION(kind, name, exported, ...) EXPORT(exported, name)
#include "functions.h"
#ifdef SERVES_BACKEND
EXPORT(QnnMem_deregister, memDeRegister)
#endif
