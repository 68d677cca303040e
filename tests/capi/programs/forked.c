/* A program forks after it has used a library: the child's calls are answered, the parent's go on.
 *
 *     forked FOLDER */
#include <sys/wait.h>
#include <unistd.h>

#include "qnn_client.h"

int main(int argc, char **argv) {
  REQUIRE(argc == 2);
  QNN_INTERFACE_VER_TYPE qnn = table_of(argv[1], "libQnnCpu.so");
  Qnn_BackendHandle_t backend = NULL, another = NULL;
  CHECK(qnn.backendCreate(NULL, NULL, &backend));
  pid_t child = fork();
  if (child == 0) {
    REQUIRE(qnn.backendCreate(NULL, NULL, &another) == QNN_COMMON_ERROR_SYSTEM);
    CHECK(qnn.backendFree(backend)); /* it is the parent's: nothing happens */
    exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(qnn.backendCreate(NULL, NULL, &another));
  CHECK(qnn.backendFree(another));
  CHECK(qnn.backendFree(backend));
  printf("done\n");
  return 0;
}
