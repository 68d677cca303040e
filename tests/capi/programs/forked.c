/* A program forks after it has used a library: the child's calls are answered, the parent's go on. So are those to
 * libraries that the parent has not used, and to ones that only the child loads.
 *
 *     forked FOLDER [rpcmem] */
#include <sys/wait.h>
#include <unistd.h>

#include "qnn_client.h"

static void in_child(const char *folder, QNN_INTERFACE_VER_TYPE used, QNN_INTERFACE_VER_TYPE unused,
                     Qnn_BackendHandle_t backend) {
  QNN_INTERFACE_VER_TYPE tables[3] = {used, unused, table_of(folder, "libQnnLpai.so")};
  for (int i = 0; i < 3; i++) {
    Qnn_BackendHandle_t another = NULL;
    REQUIRE(tables[i].backendCreate(NULL, NULL, &another) == QNN_COMMON_ERROR_SYSTEM);
    CHECK(tables[i].backendFree(backend)); /* it is the parent's: nothing happens */
  }
  exit(0);
}

int main(int argc, char **argv) {
  REQUIRE(argc == 2 || argc == 3);
  QNN_INTERFACE_VER_TYPE qnn = table_of(argv[1], "libQnnCpu.so"), unused = table_of(argv[1], "libQnnGpu.so");
  void *(*alloc_shared)(int, uint32_t, int) = NULL;
  *(void **)&alloc_shared = dlsym(loaded(argv[1], "libcdsprpc.so"), "rpcmem_alloc");
  if (argc == 3) REQUIRE(alloc_shared(25, 1, 4096)); /* the one that starts Python */
  Qnn_BackendHandle_t backend = NULL, another = NULL;
  CHECK(qnn.backendCreate(NULL, NULL, &backend));
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    REQUIRE(!alloc_shared(25, 1, 4096));
    in_child(argv[1], qnn, unused, backend);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  REQUIRE(alloc_shared(25, 1, 4096));
  CHECK(qnn.backendCreate(NULL, NULL, &another));
  CHECK(qnn.backendFree(another));
  CHECK(qnn.backendFree(backend));
  printf("done\n");
  return 0;
}
