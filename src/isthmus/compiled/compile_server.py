"""The compile server: a child process that loads numba once and forks workers, which compile one job at a time.

``isthmus.compiled.compile_server SOCKET`` is started isolated by `isthmus.compiled.children`. A request has a module,
arguments and a job; its answer has the job, and the key and the code or an error. A worker calls ``compile_job(job,
*arguments)`` of the module, which returns a key and the code. Workers import the sources of what they compile; an empty
message ends them, so that later jobs see sources that were edited since. The server ends when its client does, and when
it has had no job for a while.
"""

from __future__ import annotations

import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress

from isthmus.errors import QnnError
from isthmus.system.channel import Channel, ChannelClosed, Message
from isthmus.system.child import describe_status
from isthmus.system.isolated import end_with

IDLE_SECONDS = 10.0
"""How long the server waits for another job. A client creates a context, adds nodes and finalizes within that time."""
# The garbage collector would take a fifth of the time if it looked as often as usual: few objects become garbage.
_OBJECTS_BETWEEN_COLLECTIONS = 200_000


class _Worker:
    """A forked process that compiles, and the server's end of the connection to it."""

    # The worker closes the descriptors `inherited` from the server. It is idle if `job` is None.

    def __init__(self, inherited: list[int]) -> None:
        self.channel, theirs = Channel.pair()
        self.job: str | None = None
        self.alive = True
        server = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                end_with(server)
                for fd in (self.channel.fileno(), *inherited):
                    os.close(fd)
                _work(Channel(theirs))
            finally:
                os._exit(0)
        theirs.close()

    def give(self, request: Message) -> None:
        """Give it a job."""
        self.job = request.header["job"]
        with suppress(ChannelClosed, QnnError):  # if it has died, that is its answer
            self.channel.send(request)

    def answer(self) -> Message:
        """Return its answer to the job that it has, or why there is none; an empty one if it has no job."""
        job, self.job = self.job, None
        with suppress(ChannelClosed, QnnError):
            return self.channel.receive()
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self.alive = False
        error = f"ended ({describe_status(status)}) while at {job}"
        return Message({"job": job, "error": error} if job is not None else {})

    def end(self) -> None:
        """End the process, whatever it does."""
        if self.alive:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        self.channel.close()


def _work(channel: Channel) -> None:
    """Compile the jobs that arrive, in a worker."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    while True:
        request = channel.receive().header
        answer = Message({"job": request["job"]})
        try:
            module = importlib.import_module(request["module"])
            answer.header["key"], code = module.compile_job(request["job"], *request["arguments"])
            answer.sections = {"code": code}
        except QnnError as refusal:
            answer.header["error"] = str(refusal)
        except Exception as problem:
            lines = "".join(traceback.format_exception_only(problem)).strip().splitlines()
            answer.header["error"] = lines[-1]
        channel.send(answer)


def serve(channel: Channel) -> None:
    """Have the jobs that arrive compiled, until the client has ended or has needed nothing for a while."""
    workers: list[_Worker] = []
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            is_busy = any(worker.job is not None for worker in workers)
            ready = selector.select(None if is_busy else IDLE_SECONDS)
            if not ready:
                return
            for key, _ in ready:
                if key.data is not None:
                    answer = key.data.answer()
                    if answer.header:
                        channel.send(answer)
                    if not key.data.alive:
                        selector.unregister(key.data.channel)
                        workers.remove(key.data)
                        key.data.end()
                    continue
                request = channel.receive()
                if not request.header:
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
                idle[0].give(request)


def main(arguments: list[str]) -> int:
    """Serve the client at the other end of a socket, whose descriptor is the only argument."""
    # The client responds to an interrupt from the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    gc.disable()
    from isthmus.compiled import objects

    objects.warm_up()
    # Forked workers share what is there, and their garbage collectors do not look at it.
    gc.freeze()
    gc.enable()
    with suppress(ChannelClosed):  # the client has ended
        serve(channel)
    # Workers end with this process.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
