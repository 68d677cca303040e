/* A program has variables that are meant for a Python of its user's; a library that starts one leaves them as they are.
 *
 *     variables FOLDER */
#include "qnn_client.h"

int main(int argc, char **argv) {
  REQUIRE(argc == 2);
  const char *home = getenv("PYTHONHOME"), *path = getenv("PYTHONPATH");
  QNN_INTERFACE_VER_TYPE qnn = table_of(argv[1], "libQnnCpu.so");
  CHECK(qnn.propertyHasCapability(302));
  REQUIRE(getenv("PYTHONHOME") == home && getenv("PYTHONPATH") == path); /* another thread may be reading them */
  printf("%s\n", home);
  return 0;
}
