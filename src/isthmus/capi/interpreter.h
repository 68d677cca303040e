/* The Python interpreter behind the libraries: it is found in the program, or started.
 *
 * In a program that runs Python, that interpreter is used. In any other program one is started, as the file
 * isthmus.conf beside the library says. Python's headers are not needed: all functions but those of the start are of
 * its stable interface.
 *
 * All of our libraries in a process, from one folder or several, share one `Process`: a symbol that the dynamic linker
 * resolves to the same address for all of them.
 *
 * Locks, in the order in which a thread may take them. A thread that holds one never waits for an earlier one:
 *   1. process->starting: held while an interpreter starts. Only a thread that knows of no interpreter takes it, so no
 *      thread that has the GIL does.
 *   2. the GIL. It guards everything that is not atomic, and all objects of Python.
 *   3. Python's own locks, that of the opener below and those of imports: a thread that waits for one releases the GIL
 *      meanwhile.
 *   4. naming: held while functions are looked up; its holder waits for nothing else.
 * A fork takes none of them but the opener's, if Python forks. The child has one thread, so its locks are initialised
 * again. Of an interpreter that one of our libraries started, or was starting, the child has a copy in an unknown
 * state, which is not used. */
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
  UNKNOWN,  /* no library has looked for one yet, or none could start one */
  STARTING, /* one of our libraries is starting it */
  HOSTS,    /* the program's own */
  OURS,     /* one of our libraries has started it */
  BROKEN,   /* it failed to start; there is no second attempt in a process */
  FORKED    /* a copy of one that was OURS, STARTING or BROKEN, in a forked child */
};

typedef struct {
  pthread_mutex_t starting;
  pthread_mutex_t forwarding; /* held while a library asks another one for its table (see library.c) */
  _Atomic pid_t forwarder;    /* the thread that asks; 0 if none does */
  _Atomic int python;         /* the state of the interpreter, see above */
  void *_Atomic functions;    /* the dlopen handle to look up Python's functions in, once `python` is HOSTS or OURS */
  void *_Atomic opener;       /* the Python function that opens libraries, once one was opened */
} Process;

/* All zeros at first, which on Linux means a free mutex, UNKNOWN and RTLD_DEFAULT. C cannot declare a unique symbol, so
 * it is defined in assembly. The number in its name changes with the layout: libraries of two versions then have a
 * Process each. */
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

/* LEFT: the interpreter has ended, or belongs to the parent of this process. */
enum { UNOPENED, OPEN, UNUSABLE, LEFT };
static _Atomic int state = UNOPENED;
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;
static PyObject *server; /* the isthmus.capi.serve.LibraryServer of this library, set when it is OPEN */

/* Print an error; return 0, which callers return for a failure. */
static int complain(const char *what, const char *more, const char *then) {
  fprintf(stderr, "isthmus: lib" NAME ": %s%s%s\n", what, more, then);
  return 0;
}

/* In a forked child: initialise the locks again, and do not use an interpreter that one of our libraries started. */
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

/* -- Python's functions ------------------------------------------------------------------------------------------- */

typedef struct { int type; const char *function, *message; int code; } PyStatus;
typedef struct { _Alignas(16) unsigned char bytes[4096]; } PyConfig; /* opaque; larger than in any version */
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

/* Look up Python's functions in a library, once; return whether all were found. */
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

/* Clear the current exception and print it in one line, holding the GIL. Return 0. */
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

/* -- the settings that `isthmus capi install` wrote beside the library -------------------------------------------- */

static struct { char file[PATH_MAX], libpython[PATH_MAX], executable[PATH_MAX], bootstrap[4 * PATH_MAX]; } settings;

/* Write the path of a file in this library's folder; return whether that folder is known. */
static int beside(const char *file, char *path) {
  Dl_info info;
  if (!dladdr((void *)beside, &info) || !info.dli_fname || !realpath(info.dli_fname, path)) return 0;
  char *slash = strrchr(path, '/');
  if (!slash || (size_t)(slash - path) + strlen(file) + 2 > PATH_MAX) return 0;
  strcpy(slash + 1, file);
  return 1;
}

/* Open a regular file for reading. Other files are refused: opening a pipe, say, could wait forever. */
static FILE *opened(const char *path) {
  struct stat status;
  errno = 0;
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return NULL;
  FILE *file = !fstat(descriptor, &status) && S_ISREG(status.st_mode) ? fdopen(descriptor, "r") : NULL;
  if (!file) close(descriptor);
  return file;
}

/* Read the settings; print an error and return 0 if they are missing, or the Python that they name is. */
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

/* -- starting an interpreter -------------------------------------------------------------------------------------- */

/* Initialize Python in isolation: it ignores the program's environment variables and the user's folders, and changes
 * neither signal handlers nor the locale. It finds its standard library from the path of the executable, as that
 * executable does. */
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

/* Run Python source with a dictionary of global names, holding the GIL; return whether it succeeded. */
static int run(const char *text, PyObject *names) {
  PyObject *code = names ? py.Compile(text, "isthmus", 257 /* Py_file_input */) : NULL;
  PyObject *done = code ? py.Evaluate(code, names, names) : NULL;
  if (code) py.DecRef(code);
  if (done) py.DecRef(done);
  return done != NULL;
}

/* Run the settings' code, which imports our package; print an exception and return 0 on failure. */
static int bootstrapped(void) {
  PyObject *main = py.AddModule("__main__");
  return run(settings.bootstrap, main ? py.ModuleDict(main) : NULL) ||
         complain_of_exception("its package cannot be imported: ", MENDED);
}

/* Start Python, holding process->starting; return its new state. */
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
  if (py.IsInitialized()) return HOSTS; /* the program runs Python, but loaded it without making its symbols global */
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

/* Return whether the program runs a Python whose symbols are global. */
static int host_has_python(void) {
  int (*is_initialized)(void) = NULL;
  *(void **)&is_initialized = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
  return is_initialized && is_initialized();
}

/* Find an interpreter, or start one; return whether there is one to call. */
static int has_python(void) {
  int unknown = UNKNOWN, python = atomic_load(&process->python);
  if (python == UNKNOWN && host_has_python())
    /* This fails if another thread has begun to start Python. */
    atomic_compare_exchange_strong(&process->python, &unknown, HOSTS);
  python = atomic_load(&process->python);
  if (python == UNKNOWN || python == STARTING) {
    pthread_mutex_lock(&process->starting);
    unknown = UNKNOWN;
    if (atomic_load(&state) == UNOPENED && atomic_compare_exchange_strong(&process->python, &unknown, STARTING)) {
      python = start_python();
      if (python == UNKNOWN) atomic_store(&state, UNUSABLE); /* a library in another folder may have better settings */
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

/* Python code that defines `opened`, which opens a library. One thread at a time imports our package and opens a
 * library, and Python does not fork meanwhile: a child would wait forever for the import locks of another thread. */
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

/* Return the Python function that opens libraries, a borrowed reference, holding the GIL; NULL on failure. */
static PyObject *opener(void) {
  void *none = NULL;
  if (!atomic_load(&process->opener)) {
    PyObject *names = py.DictNew(), *made = run(OPENER, names) ? py.DictItem(names, "opened") : NULL;
    if (made) py.IncRef(made);
    if (names) py.DecRef(names);
    /* If two threads create one at the same time, the first is used. */
    if (made && !atomic_compare_exchange_strong(&process->opener, &none, made)) py.DecRef(made);
  }
  return atomic_load(&process->opener);
}

#endif
