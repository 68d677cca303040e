"""The compile server: a child process that loads numba once and forks workers, which compile one job at a time.

``isthmus.compiled.compile_server SOCKET`` is started isolated by `isthmus.compiled.children`. It reads jobs as lines of
JSON, ``[module, arguments, job]``, and answers each with a line of JSON and the code. A worker calls ``compile_job(job,
*arguments)`` of the module, which returns a key and the code. Workers import the sources of what they compile; the line
``null`` ends them, so that later jobs see sources that were edited since. The server ends when its client does, and
when it has had no job for a while.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any

from isthmus.errors import QnnError
from isthmus.system.isolated import end_with

IDLE_SECONDS = 10.0
"""How long the server waits for another job. A client creates a context, adds nodes and finalizes within that time."""
_OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""The garbage collector would take a fifth of the time if it looked as often as usual: few objects become garbage."""


class Lines:
    """Lines that arrive in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, content: bytes) -> list[bytes]:
        """Add a piece and return the lines that are complete now."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        return lines


class _Worker:
    """A forked process that compiles, and the server's end of the connection to it.

    Parameters
    ----------
    inherited
        The descriptors that the fork must not keep.

    Attributes
    ----------
    job
        What it compiles now; None if it has nothing to do.
    alive
        Whether the process was running when it was last asked for an answer.
    """

    def __init__(self, inherited: list[int]) -> None:
        self.channel, theirs = socket.socketpair()
        self.job: str | None = None
        self.alive = True
        server = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                end_with(server)
                for fd in (self.channel.fileno(), *inherited):
                    os.close(fd)
                _work(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self._answers = self.channel.makefile("rb")

    def give(self, line: bytes) -> None:
        """Give it a job."""
        self.job = json.loads(line)[2]
        with suppress(OSError):  # if it has died, that is its answer
            self.channel.sendall(line + b"\n")

    def answer(self) -> bytes:
        """Return its answer to the job that it has, or why there is none; nothing if it has no job."""
        job, self.job = self.job, None
        try:
            header = self._answers.readline()
            size = json.loads(header)["bytes"] if header else 0
            content = self._answers.read(size)
            if header and len(content) == size:
                return header + content
        except (OSError, ValueError):  # it ended, perhaps within its first line
            pass
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self.alive = False
        end = f"by signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"with status {status}"
        return _header(job, error=f"ended {end} while at {job}") if job is not None else b""

    def end(self) -> None:
        """End the process, whatever it does."""
        if self.alive:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        self._answers.close()
        self.channel.close()


def _header(job: str | None, **fields: Any) -> bytes:
    """Return the first line of an answer."""
    return json.dumps({"job": job, "bytes": 0, **fields}).encode() + b"\n"


def _work(channel: socket.socket) -> None:
    """Compile the jobs that arrive, in a worker."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    for line in channel.makefile("rb"):
        module, arguments, job = json.loads(line)
        try:
            key, code = importlib.import_module(module).compile_job(job, *arguments)
            answer = _header(job, key=key, bytes=len(code)) + code
        except QnnError as refusal:
            answer = _header(job, error=str(refusal))
        except Exception as problem:
            lines = "".join(traceback.format_exception_only(problem)).strip().splitlines()
            answer = _header(job, error=lines[-1])
        channel.sendall(answer)


def serve(channel: socket.socket) -> None:
    """Have the jobs that arrive compiled, until the client has ended or has needed nothing for a while."""
    workers: list[_Worker] = []
    lines = Lines()
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            is_busy = any(worker.job is not None for worker in workers)
            ready = selector.select(None if is_busy else IDLE_SECONDS)
            if not ready:
                return
            for key, _ in ready:
                if key.data is not None:
                    channel.sendall(key.data.answer())
                    if not key.data.alive:
                        selector.unregister(key.data.channel)
                        workers.remove(key.data)
                        key.data.end()
                    continue
                content = channel.recv(1 << 16)
                if not content:
                    return
                for line in lines.add(content):
                    if line == b"null":
                        for worker in workers:
                            selector.unregister(worker.channel)
                            worker.end()
                        workers.clear()
                        continue
                    idle = [worker for worker in workers if worker.job is None]
                    if not idle:
                        others = [worker.channel.fileno() for worker in workers]
                        idle = [_Worker([channel.fileno(), *others])]
                        selector.register(idle[0].channel, selectors.EVENT_READ, idle[0])
                        workers += idle
                    idle[0].give(line)


def main(arguments: list[str]) -> int:
    """Serve the client at the other end of a socket, whose descriptor is the only argument."""
    # The client responds to an interrupt from the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(arguments[0]))
    gc.disable()
    from isthmus.compiled import objects

    objects.warm_up()
    # Forked workers share what is there, and their garbage collectors do not look at it.
    gc.freeze()
    gc.enable()
    with suppress(BrokenPipeError, ConnectionResetError):  # the client has ended
        serve(channel)
    # Workers end with this process.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
