/* What a library of a stranger may not do: each attempt, and how many of them were refused with EPERM. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FORBIDDEN_CALLS = 7 };

static inline int refused_calls(const char *path) {
  char program[] = "/bin/true";
  char *const arguments[] = {program, NULL};
  int count = 0;
  count += socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == EPERM;
  count += execve(program, arguments, NULL) < 0 && errno == EPERM;
  count += ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0 && errno == EPERM;
  count += open(path, O_WRONLY | O_CREAT, 0600) < 0 && errno == EPERM;
  count += unlink(path) < 0 && errno == EPERM;
  count += kill(getppid(), 0) < 0 && errno == EPERM;
  count += fork() < 0 && errno == EPERM;
  return count;
}
