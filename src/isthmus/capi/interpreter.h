/* The interpreter behind the libraries: which one it is, whether it lives, and how one is started.
 *
 * In a program that runs Python, that interpreter is used. In any other one is started, by what the file isthmus.conf
 * beside the library says. No header of Python's is needed: all but the start is of its stable interface.
 *
 * There is one truth in a process, whichever of our libraries are loaded, from one folder or from several: `Process`,
 * a symbol that the dynamic linker resolves to the same place for all of them.
 *
 * Locks, in the order in which a thread may take them; what is named later is never held while one before it is wanted:
 *   1. process->starting: held while an interpreter starts. Only a thread that knows of none takes it, so none that
 *      has the GIL does.
 *   2. the GIL. It guards everything that is not atomic, and whatever belongs to Python.
 *   3. Python's own locks, that of the opener below and those of imports: whoever waits for one gives the GIL up
 *      meanwhile.
 *   4. naming: within it functions are looked up, and nothing else is waited for.
 * A fork takes none of them but the opener's, if Python makes it. In the child there is one thread, so locks are made
 * anew; of an interpreter that a library of ours has started, or was starting, the child has a copy in the midst of
 * something, which is left alone. */
#ifndef ISTHMUS_INTERPRETER_H
#define ISTHMUS_INTERPRETER_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "python_memory.h"

#define QUOTED_(name) #name
#define QUOTED(name) QUOTED_(name)
#define NAME QUOTED(LIBRARY_NAME)
#define EXPORTED __attribute__((visibility("default")))
#define MENDED "; run `isthmus capi install DIR` again"

typedef struct PyObject PyObject;

/* -- what all libraries of ours in a process share ---------------------------------------------------------------- */

enum {
  UNKNOWN,  /* nobody has looked yet, or nobody could start one */
  STARTING, /* one of our libraries is at it */
  HOSTS,    /* the program's own */
  OURS,     /* one of our libraries has started it */
  BROKEN,   /* one that did not start; there is no second attempt in a process */
  FORKED    /* a copy, in a forked child */
};

typedef struct {
  pthread_mutex_t starting;
  pthread_mutex_t forwarding; /* held while a library asks another one for its table (see library.c) */
  _Atomic pid_t forwarder;    /* the thread that does */
  _Atomic int python;
  void *_Atomic functions;    /* where Python's functions are looked up, once `python` is HOSTS or OURS */
  void *_Atomic opener;       /* what opens libraries in Python, once one was opened */
} Process;

/* All zeros at first, which on Linux is a free mutex, UNKNOWN and RTLD_DEFAULT. C has no word for a symbol of this kind.
 * The number moves on when the layout does: libraries of two versions then have a Process each. */
extern EXPORTED Process isthmus_process_1;
_Static_assert(sizeof(Process) <= 256 && !UNKNOWN, "its place below, and what zeros mean");
__asm__(".pushsection .data\n"
        ".balign 64\n"
        ".type isthmus_process_1, \"gnu_unique_object\"\n"
        ".size isthmus_process_1, 256\n"
        "isthmus_process_1: .zero 256\n"
        ".popsection\n");
#define process (&isthmus_process_1)

/* -- this library ------------------------------------------------------------------------------------------------- */

enum { UNOPENED, OPEN, UNUSABLE, LEFT };
static _Atomic int state = UNOPENED;
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;
static PyObject *server; /* the isthmus.capi.serve.Server of this library; there when it is OPEN */

static int complain(const char *what, const char *more, const char *then) {
  fprintf(stderr, "isthmus: lib" NAME ": %s%s%s\n", what, more, then);
  return 0;
}

static void after_fork(void) {
  int python = atomic_load(&process->python);
  pthread_mutex_init(&process->starting, NULL);
  pthread_mutex_init(&process->forwarding, NULL);
  pthread_mutex_init(&naming, NULL);
  atomic_store(&process->forwarder, 0);
  if (python == STARTING || python == OURS || python == BROKEN) atomic_store(&process->python, python = FORKED);
  if (python == FORKED) atomic_store(&state, LEFT);
}

__attribute__((constructor)) static void expect_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

/* -- Python, as far as it is needed ------------------------------------------------------------------------------- */

typedef struct { int type; const char *function, *message; int code; } PyStatus;
typedef struct { _Alignas(16) unsigned char bytes[4096]; } PyConfig; /* opaque, and larger than any version of it */
typedef struct {
  int kind, parse_argv, isolated, use_environment, configure_locale, coerce_c_locale, coerce_c_locale_warn, utf8_mode,
      dev_mode, allocator, reserved[16];
} PyPreConfig;

static struct {
  int (*IsInitialized)(void);
  void (*PreConfig_Isolated)(PyPreConfig *);
  PyStatus (*PreInitialize)(const PyPreConfig *);
  void (*Config_Isolated)(PyConfig *);
  PyStatus (*Config_SetArgv)(PyConfig *, ssize_t, char *const *);
  PyStatus (*Initialize)(const PyConfig *);
  void (*Config_Clear)(PyConfig *);
  int (*GILState_Ensure)(void);
  void (*GILState_Release)(int);
  void *(*SaveThread)(void);
  PyObject *(*AddModule)(const char *);
  PyObject *(*ModuleDict)(PyObject *);
  PyObject *(*DictNew)(void);
  PyObject *(*DictItem)(PyObject *, const char *);
  PyObject *(*Compile)(const char *, const char *, int);
  PyObject *(*Evaluate)(PyObject *, PyObject *, PyObject *);
  PyObject *(*GetAttrString)(PyObject *, const char *);
  PyObject *(*CallObject)(PyObject *, PyObject *);
  int (*Callable)(PyObject *);
  PyObject *(*TupleNew)(ssize_t);
  int (*TupleSetItem)(PyObject *, ssize_t, PyObject *);
  PyObject *(*LongFrom)(unsigned long long);
  long long (*LongAs)(PyObject *);
  PyObject *(*TextFrom)(const char *);
  PyObject *(*Text)(PyObject *);
  PyObject *(*TextBytes)(PyObject *);
  char *(*Bytes)(PyObject *);
  PyObject *(*Occurred)(void);
  void (*Fetch)(PyObject **, PyObject **, PyObject **);
  void (*Clear)(void);
  int (*Matches)(PyObject *);
  void (*SetInterrupt)(void);
  PyObject **KeyboardInterrupt;
  void (*IncRef)(PyObject *);
  void (*DecRef)(PyObject *);
} py;

static const struct { void *place; const char *name; } NEEDED[] = {
    {&py.IsInitialized, "Py_IsInitialized"},      {&py.PreConfig_Isolated, "PyPreConfig_InitIsolatedConfig"},
    {&py.PreInitialize, "Py_PreInitialize"},      {&py.Config_Isolated, "PyConfig_InitIsolatedConfig"},
    {&py.Config_SetArgv, "PyConfig_SetBytesArgv"}, {&py.Initialize, "Py_InitializeFromConfig"},
    {&py.Config_Clear, "PyConfig_Clear"},         {&py.GILState_Ensure, "PyGILState_Ensure"},
    {&py.GILState_Release, "PyGILState_Release"}, {&py.SaveThread, "PyEval_SaveThread"},
    {&py.AddModule, "PyImport_AddModule"},        {&py.ModuleDict, "PyModule_GetDict"},
    {&py.DictNew, "PyDict_New"},                  {&py.DictItem, "PyDict_GetItemString"},
    {&py.Compile, "Py_CompileString"},            {&py.Evaluate, "PyEval_EvalCode"},
    {&py.GetAttrString, "PyObject_GetAttrString"}, {&py.CallObject, "PyObject_CallObject"},
    {&py.Callable, "PyCallable_Check"},
    {&py.TupleNew, "PyTuple_New"},                {&py.TupleSetItem, "PyTuple_SetItem"},
    {&py.LongFrom, "PyLong_FromUnsignedLongLong"}, {&py.LongAs, "PyLong_AsLongLong"},
    {&py.TextFrom, "PyUnicode_DecodeFSDefault"},  {&py.Text, "PyObject_Str"},
    {&py.TextBytes, "PyUnicode_AsUTF8String"},    {&py.Bytes, "PyBytes_AsString"},
    {&py.Occurred, "PyErr_Occurred"},             {&py.Fetch, "PyErr_Fetch"},
    {&py.Clear, "PyErr_Clear"},                   {&py.Matches, "PyErr_ExceptionMatches"},
    {&py.SetInterrupt, "PyErr_SetInterrupt"},     {&py.KeyboardInterrupt, "PyExc_KeyboardInterrupt"},
    {&py.IncRef, "Py_IncRef"},                    {&py.DecRef, "Py_DecRef"},
};

/* Whether all functions are there. Once they are, they stay; half-way is the same as not at all. */
static int find_functions(void *where) {
  static _Atomic int found;
  if (atomic_load(&found)) return 1;
  int all = 1;
  pthread_mutex_lock(&naming);
  if (!atomic_load(&found)) {
    for (size_t i = 0; all && i < sizeof NEEDED / sizeof *NEEDED; i++)
      all = (*(void **)NEEDED[i].place = dlsym(where, NEEDED[i].name)) != NULL;
    if (all) atomic_store(&found, 1);
  }
  pthread_mutex_unlock(&naming);
  return all;
}

/* Take the exception that has come up, and say it in one line. In the GIL. */
static int complain_of_exception(const char *what, const char *then) {
  PyObject *type = NULL, *value = NULL, *trace = NULL, *text = NULL, *bytes = NULL;
  py.Fetch(&type, &value, &trace);
  char line[512] = "an exception without a text";
  if (value && (text = py.Text(value)) && (bytes = py.TextBytes(text))) snprintf(line, sizeof line, "%s", py.Bytes(bytes));
  py.Clear();
  line[strcspn(line, "\n")] = 0;
  PyObject *all[] = {type, value, trace, text, bytes};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]) py.DecRef(all[i]);
  return complain(what, line, then);
}

/* -- what `isthmus capi install` has written beside the library --------------------------------------------------- */

static struct { char file[PATH_MAX], libpython[PATH_MAX], executable[PATH_MAX], bootstrap[4 * PATH_MAX]; } settings;

static int beside(const char *file, char *path) {
  Dl_info info;
  if (!dladdr((void *)beside, &info) || !info.dli_fname || !realpath(info.dli_fname, path)) return 0;
  char *slash = strrchr(path, '/');
  if (!slash || (size_t)(slash - path) + strlen(file) + 2 > PATH_MAX) return 0;
  strcpy(slash + 1, file);
  return 1;
}

/* A regular file, opened without waiting for anybody. */
static FILE *opened(const char *path) {
  struct stat status;
  errno = 0;
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return NULL;
  FILE *file = !fstat(descriptor, &status) && S_ISREG(status.st_mode) ? fdopen(descriptor, "r") : NULL;
  if (!file) close(descriptor);
  return file;
}

static int read_settings(void) {
  char line[4 * PATH_MAX];
  if (!beside("isthmus.conf", settings.file)) return complain("its own place is not known", "", "");
  FILE *file = opened(settings.file);
  if (!file && errno == EACCES) return complain("permission denied: ", settings.file, "");
  if (!file) return complain("run `isthmus capi install DIR` for a program without Python; there is no ", settings.file, "");
  *settings.libpython = *settings.executable = *settings.bootstrap = 0;
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    char *value = strchr(line, '=');
    if (!value) continue;
    *value++ = 0;
    if (!strcmp(line, "libpython")) snprintf(settings.libpython, sizeof settings.libpython, "%s", value);
    if (!strcmp(line, "executable")) snprintf(settings.executable, sizeof settings.executable, "%s", value);
    if (!strcmp(line, "bootstrap")) snprintf(settings.bootstrap, sizeof settings.bootstrap, "%s", value);
  }
  fclose(file);
  if (!*settings.executable || !*settings.bootstrap) return complain("there is no Python in ", settings.file, MENDED);
  if (!*settings.libpython)
    return complain("no shared libpython was found when it was installed: install one ",
                    "(python3-dev, or a Python built with --enable-shared)", MENDED);
  if (access(settings.executable, X_OK) && errno == EACCES)
    return complain("permission denied: the Python that it was installed with, ", settings.executable, MENDED);
  if (access(settings.executable, X_OK))
    return complain("the Python that it was installed with is gone: ", settings.executable, MENDED);
  return 1;
}

/* -- an interpreter of ours --------------------------------------------------------------------------------------- */

/* Isolated: no variable of the program's, no folder of its user's, no signal and no locale of its own is touched. The
 * interpreter finds its library from the executable that it is told to be, as that one does. */
static PyStatus initialized(void) {
  static PyConfig config;
  PyPreConfig before;
  char *arguments[] = {settings.executable};
  memset(&before, 0, sizeof before);
  py.PreConfig_Isolated(&before);
  before.utf8_mode = 1;
  PyStatus status = py.PreInitialize(&before);
  if (status.type) return status;
  separate_python_memory(atomic_load(&process->functions));
  py.Config_Isolated(&config);
  status = py.Config_SetArgv(&config, 1, arguments);
  if (!status.type) status = py.Initialize(&config);
  py.Config_Clear(&config);
  return status;
}

/* Run a text as a file, with names of its own; whether it ends well. In the GIL. */
static int run(const char *text, PyObject *names) {
  PyObject *code = names ? py.Compile(text, "isthmus", 257 /* a file */) : NULL;
  PyObject *done = code ? py.Evaluate(code, names, names) : NULL;
  if (code) py.DecRef(code);
  if (done) py.DecRef(done);
  return done != NULL;
}

static int bootstrapped(void) {
  PyObject *main = py.AddModule("__main__");
  return run(settings.bootstrap, main ? py.ModuleDict(main) : NULL) ||
         complain_of_exception("its package cannot be imported: ", MENDED);
}

/* Start Python, holding process->starting; what it is afterwards. */
static int start_python(void) {
  if (!read_settings()) return UNKNOWN;
  void *python = dlopen(settings.libpython, RTLD_NOW | RTLD_GLOBAL);
  if (!python) {
    complain("cannot load Python: ", dlerror(), MENDED);
    return UNKNOWN;
  }
  if (!find_functions(python)) {
    complain("that Python lacks what is needed: ", settings.libpython, MENDED);
    return UNKNOWN;
  }
  atomic_store(&process->functions, python);
  if (py.IsInitialized()) return HOSTS; /* the program has it from where it is not seen by all */
  PyStatus status = initialized();
  if (status.type) {
    complain("Python cannot be started: ", status.message ? status.message : settings.libpython, MENDED);
    return BROKEN;
  }
  int well = bootstrapped();
  py.SaveThread();
  if (!well) atomic_store(&state, UNUSABLE);
  return OURS;
}

/* Whether the program runs a Python that all of it sees. */
static int host_has_python(void) {
  int (*is_initialized)(void) = NULL;
  *(void **)&is_initialized = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
  return is_initialized && is_initialized();
}

/* Whether there is an interpreter to call, after one was looked for and, if need be, started. */
static int has_python(void) {
  int unknown = UNKNOWN, python = atomic_load(&process->python);
  if (python == UNKNOWN && host_has_python())
    /* Not if another thread is starting it just now. */
    atomic_compare_exchange_strong(&process->python, &unknown, HOSTS);
  python = atomic_load(&process->python);
  if (python == UNKNOWN || python == STARTING) {
    pthread_mutex_lock(&process->starting);
    unknown = UNKNOWN;
    if (atomic_load(&state) == UNOPENED && atomic_compare_exchange_strong(&process->python, &unknown, STARTING)) {
      python = start_python();
      if (python == UNKNOWN) atomic_store(&state, UNUSABLE); /* another library may know better */
      atomic_store(&process->python, python);
    }
    pthread_mutex_unlock(&process->starting);
    python = atomic_load(&process->python);
  }
  if (python == FORKED) atomic_store(&state, LEFT);
  if (python == BROKEN) atomic_store(&state, UNUSABLE);
  if (python != HOSTS && python != OURS) return 0;
  if (find_functions(atomic_load(&process->functions))) return 1;
  atomic_store(&state, UNUSABLE);
  return complain("the Python of this program lacks what is needed", "", "");
}

/* -- the opener ---------------------------------------------------------------------------------------------------- */

/* One thread at a time imports our package and opens a library, and Python does not fork meanwhile: a child would wait
 * for ever for the locks of modules that another thread was importing. */
static const char OPENER[] =
    "import _thread, os\n"
    "def made():\n"
    "    lock = _thread.RLock()\n"
    "    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)\n"
    "    def opened(*arguments):\n"
    "        with lock:\n"
    "            from isthmus.capi.serve import open\n"
    "            return open(*arguments)\n"
    "    return opened\n"
    "opened = made()\n";

/* What opens libraries; NULL after a failure. In the GIL. */
static PyObject *opener(void) {
  void *none = NULL;
  if (!atomic_load(&process->opener)) {
    PyObject *names = py.DictNew(), *made = run(OPENER, names) ? py.DictItem(names, "opened") : NULL;
    if (made) py.IncRef(made);
    if (names) py.DecRef(names);
    /* Of two that were made at once, one is used. */
    if (made && !atomic_compare_exchange_strong(&process->opener, &none, made)) py.DecRef(made);
  }
  return atomic_load(&process->opener);
}

#endif
