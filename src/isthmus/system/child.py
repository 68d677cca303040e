"""Child processes that run modules of this package: their start, their end, and what they said last."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from isthmus.system import isolated
from isthmus.system.interrupts import own_fd
from isthmus.system.shield import PIECE, check

# Number of bytes to read of a process's error output.
_MAX_WORDS = 1 << 16


class Child(subprocess.Popen[bytes]):
    """A process that runs a module of ours, isolated and in a session of its own.

    An interrupt from the terminal does not reach it: this process responds to that.

    - `module`, `arguments`: The module, and its arguments after the numbers of its descriptors.
    - `folder`: Its working folder; None for that of this process.
    - `variables`: Variables of its environment, besides those that every child gets.
    - `stdout`, `stderr`: As for `subprocess.Popen`.

    Raises `OSError` if it cannot be started.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        descriptors: Sequence[int] = (),
        folder: str | None = "/",
        variables: Mapping[str, str] | None = None,
        stdout: int | None = subprocess.DEVNULL,
        stderr: int | None = subprocess.DEVNULL,
    ) -> None:
        self._owner = os.getpid()
        duplicates: dict[int, int] = {}
        try:
            # The child has its own standard descriptors, so others with these numbers are passed as duplicates.
            for fd in descriptors:
                if fd <= isolated.STANDARD:
                    duplicates[fd] = isolated.passable(fd)
            numbers = [duplicates.get(fd, fd) for fd in descriptors]
            super().__init__(
                isolated.command(module, *map(str, numbers), *arguments),
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=numbers,
                cwd=folder,
                # Numpy's linear algebra would start threads that are not needed there.
                env=isolated.environment() | {"OPENBLAS_NUM_THREADS": "1"} | dict(variables or {}),
                start_new_session=True,
            )
        finally:
            for fd in duplicates.values():
                os.close(fd)

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end, and return whether it came in time. It is not reaped: its id stays its own."""
        limit = time.monotonic() + seconds
        with own_fd(os.pidfd_open, self.pid) as own:
            while (remaining := limit - time.monotonic()) > 0:
                check()
                if select.select([own], [], [], min(remaining, PIECE))[0]:
                    return True
        return False

    def kill_group(self) -> None:
        """Kill it and whatever it has started, unless it is the child of another process; safe to repeat."""
        if self.returncode is None and self._owner == os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it and whatever it has started, and wait for its end; safe to repeat."""
        self.kill_group()
        if self._owner == os.getpid():
            self.wait()

    def last_words(self) -> str:
        """Return the last line that it has left in the pipe of its error output, and close the pipe."""
        assert self.stderr is not None
        with self.stderr as pipe:
            # Do not wait for the pipe's end: another forked process may still hold its other end.
            os.set_blocking(pipe.fileno(), False)
            return last_line(pipe.read(_MAX_WORDS) or b"")


def last_line(content: bytes) -> str:
    """Return the last line of a text that is not blank; empty if there is none.

    >>> last_line(b"first\\nlast\\n\\n")
    'last'
    """
    lines = content.decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")


def describe_status(status: int) -> str:
    """Return how a process ended, by its status: the name of a signal, or the status.

    >>> describe_status(-11), describe_status(3), describe_status(-60)
    ('SIGSEGV', 'status 3', 'signal 60')
    """
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
