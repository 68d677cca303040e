/* Libraries are used for the first time by several threads at once, while the program forks again and again.
 *
 *     opening FOLDER [FORKS] */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "qnn_client.h"

enum { LIBRARIES = 3, THREADS = 7 };
static const char *const FILES[LIBRARIES] = {"libQnnCpu.so", "libQnnLpai.so", "libQnnGpu.so"};
static QNN_INTERFACE_VER_TYPE tables[LIBRARIES];
static void *(*alloc_shared)(int, uint32_t, int);
static pthread_barrier_t together;

static void *use(void *argument) {
  long number = (long)argument;
  pthread_barrier_wait(&together);
  if (number == THREADS - 1) REQUIRE(alloc_shared(25, 1, 4096));
  else CHECK(tables[number % LIBRARIES].propertyHasCapability(302));
  return NULL;
}

static void use_in_child(void) {
  pid_t child = fork();
  if (child == 0) {
    alarm(60); /* whoever waits for a lock of a thread that is not here waits for ever */
    Qnn_BackendHandle_t backend = NULL;
    Qnn_ErrorHandle_t answer = tables[0].backendCreate(NULL, NULL, &backend);
    /* Before anything has begun the child has a program's whole freedom; later it is answered. */
    _exit(answer == QNN_SUCCESS || (answer == QNN_COMMON_ERROR_SYSTEM && !tables[0].backendFree(backend)) ? 0 : 3);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
  int forks = argc > 2 ? atoi(argv[2]) : 0;
  for (int i = 0; i < LIBRARIES; i++) tables[i] = table_of(argv[1], FILES[i]);
  *(void **)&alloc_shared = dlsym(loaded(argv[1], "libcdsprpc.so"), "rpcmem_alloc");
  REQUIRE(alloc_shared);
  pthread_t threads[THREADS];
  pthread_barrier_init(&together, NULL, THREADS + 1);
  for (long i = 0; i < THREADS; i++) REQUIRE(!pthread_create(&threads[i], NULL, use, (void *)i));
  pthread_barrier_wait(&together);
  for (int i = 0; i < forks; i++) {
    usleep(15000);
    use_in_child();
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  printf("done\n");
  return 0;
}
