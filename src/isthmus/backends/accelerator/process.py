"""The client's side of the accelerator: the calls that cross to it, and what may be waited for how long."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from isthmus.backends.accelerator.channel import MAX_FDS, encoded, refused_by_the_system
from isthmus.backends.accelerator.connection import Connection, Request, Undo
from isthmus.backends.accelerator.gate import Gate
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.engine.native import loader
from isthmus.engine.native.target import Target
from isthmus.engine.native.target import host as host_target
from isthmus.errors import Code, QnnError
from isthmus.log import tell
from isthmus.memory.shareable import shared_file
from isthmus.system.interrupts import FileDescriptor, Finalizer, own_fd, warn_forgotten
from isthmus.system.shield import shielded

SERVING = ("doorbell:serve", "doorbell:end", "doorbell:publish", "executor:run", "executor:work", "executor:stop")
_SECONDS_TO_END = 2.0
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Accelerator:
    """A running accelerator process; a context manager.

    One that is dropped without being closed takes its process with it, with a `ResourceWarning`.

    Parameters
    ----------
    units
        How many executions may run at a time; one for each processor without it.
    deadlines
        How long to wait for it; without them the defaults, and what ``ISTHMUS_TIMEOUT`` says.
    """

    @shielded(release=lambda accelerator: accelerator.close())
    def __init__(self, units: int | None = None, deadlines: Deadlines | None = None) -> None:
        self.deadlines = Deadlines.from_environment() if deadlines is None else deadlines
        self.gate = Gate(units or len(os.sched_getaffinity(0)))
        self._sent: set[tuple[str, str]] = set()
        target = host_target()
        loader.ensure(SERVING, target)
        self.connection = Connection()
        self._ending = Finalizer(self, _reclaim, self.connection)
        try:
            self.connection.start(self.deadlines.starting)
            hello = self.call("hello", seconds=self.deadlines.starting)
            self.pid: int = hello["pid"]
            self.unconfined: tuple[str, ...] = tuple(hello["unconfined"])
            """What the system did not let it give up of its rights."""
            self.provide(SERVING, target)
        except Exception:
            self.kill("it was not wanted any more")
            raise
        for right in self.unconfined:
            text = f"The accelerator process {self.pid} keeps rights that it does not need: {right}"
            tell(logging.WARNING, text)

    @property
    def alive(self) -> bool:
        """Whether the process is there, and is this process's own."""
        return self.connection.alive

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that the accelerator belongs to."""
        return self.connection.forked

    def gone(self, what: str) -> QnnError:
        """The answer to whoever needs it when it is not `alive`: that it has ended and why, or whose it is."""
        return self.connection.gone(what)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        fds: Sequence[int] = (),
        *,
        undo: Undo | None = None,
        seconds: float | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Have something done on the other side, and wait for the answer.

        One that is interrupted leaves everything usable: what was done after all is undone. One that is not answered in
        time ends the process.
        """
        return self.answer(request(name, fds, undo, **arguments), seconds)

    @shielded
    def answer(self, request: Request, seconds: float | None = None) -> dict[str, Any]:
        """Have a request done, and wait for the answer."""
        try:
            if not self.settle(request, seconds):
                raise self.gone(f"call '{request.name}'")
        except Exception:
            self.connection.abandon(request)
            raise
        if request.refusal is not None:
            raise request.refusal
        assert request.answer is not None
        return request.answer

    def settle(self, request: Request, seconds: float | None = None) -> bool:
        """Wait until a request is answered, and end a process that does not answer; whether it has been answered.

        There is one deadline, which nothing extends: the seconds of this request, and those of all before it that
        others wait for. Nobody waits for the rest, such as one that was interrupted, so it gives no time.
        """
        request.seconds = self.deadlines.control if seconds is None else seconds
        patience = self.connection.seconds_to_wait(request)
        # One that was interrupted may have been posted before, or not.
        if not self.connection.post(request):
            return request.answered
        if not request.wait(patience):
            self.kill(f"it did not answer the call '{request.name}' within {request.seconds:g} s")
        return request.answered

    @shielded
    def register(self, windows: Sequence[tuple[int, int, int]]) -> Slots:
        """Let the accelerator see memory, given as (descriptor, offset, bytes): all or none.

        The answer are the slots that it knows the memory by. A slot never comes to mean other memory.
        """
        for fd in {fd for fd, _, _ in windows}:
            # Only this side can tell: the other may not look at the names of files.
            shared_file(fd, "shared buffer")
        parts = [windows[first : first + MAX_FDS] for first in range(0, len(windows), MAX_FDS)]
        requests: list[Request] = []
        try:
            for part in parts:
                spans = [list(span) for _, *span in part]
                requests.append(request("register", [fd for fd, _, _ in part], _deregistration, spans=spans))
                self.answer(requests[-1])
            return Slots(self.connection, [slot for done in requests if done.answer for slot in done.answer["slots"]])
        except Exception:
            for done in requests:
                self.connection.abandon(done)
            raise

    @shielded
    def deregister(self, slots: Iterable[int]) -> None:
        """Take memory away from it. A process that has died has none any more.

        Executions that are requested later are refused. One that is under way keeps the memory until it ends: close the
        lane or wait for its turn to be sure of that.
        """
        try:
            if slots and self.alive:
                self.call("deregister", slots=list(slots))
        except QnnError as problem:
            if problem.code is not Code.COMMON_SYSTEM_COMMUNICATION:
                raise
        if isinstance(slots, Slots):
            slots.ended()

    @shielded
    def provide(self, kernels: Iterable[str], target: Target) -> None:
        """Send it the code of kernels that it does not have yet: it opens no files and compiles nothing."""
        wanted = [kernel for kernel in sorted(set(kernels)) if (kernel, target.name) not in self._sent]
        if not wanted:
            return
        objects = loader.objects(wanted, target)
        sizes = [[kernel, len(code)] for kernel, code in objects.items()]
        with _sealed(b"".join(objects.values())) as own:
            self.call("kernels", [own.fileno()], target=target.name, sizes=sizes)
        self._sent.update((kernel, target.name) for kernel in wanted)

    def counts(self) -> dict[str, int]:
        """What the other side holds: descriptors, mappings, resident bytes, lanes, graphs, memory."""
        counted = self.call("counts")
        system = Path(f"/proc/{self.pid}")
        resident = int((system / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        return {
            "descriptors": len(os.listdir(system / "fd")),
            "mappings": len((system / "maps").read_text().splitlines()),
            "resident_bytes": resident,
            **counted,
        }

    # -- end -----------------------------------------------------------------------------------------------------------

    @shielded
    def close(self) -> None:
        """End the process, whatever it computes; safe to call again, and always ends itself."""
        if not self.forked:
            self.connection.end()
            if not self.connection.join(min(_SECONDS_TO_END, self.deadlines.closing)):
                self.connection.kill_and_join("it was closed")
        self._ending.forget()

    def kill(self, reason: str) -> None:
        """End the process by force, and wait until it can write nothing any more."""
        if not self.forked:
            self.connection.kill_and_join(reason)

    def __enter__(self) -> Accelerator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _deregistration(answer: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "deregister", {"slots": answer["slots"]}


class Slots(list[int]):
    """What the accelerator knows memory by. When they are forgotten it is deregistered, as far as nobody has done it.

    Parameters
    ----------
    connection
        The way to the accelerator.
    """

    def __init__(self, connection: Connection, slots: Iterable[int] = ()) -> None:
        super().__init__(slots)
        self._ending = Finalizer(self, _forget, connection, list(self))

    def ended(self) -> None:
        """They are deregistered."""
        self._ending.forget()


def _forget(connection: Connection, slots: list[int]) -> None:
    """Take away memory whose slots nobody has any more. Called by the garbage collector: does not wait."""
    if slots and connection.alive and not connection.forked:
        connection.submit("deregister", slots=slots)


def request(name: str, fds: Sequence[int] = (), undo: Undo | None = None, **arguments: Any) -> Request:
    """A call that is to be made, with descriptors of its own."""
    made = Request(name, encoded({"call": name, **arguments}), undo)
    try:
        for fd in fds:
            made.descriptors.append(own_fd(os.dup, fd))
    except OSError as problem:
        made.close()
        raise refused_by_the_system(problem, f"call '{name}'", "a file descriptor cannot be sent") from None
    return made


def _reclaim(connection: Connection) -> None:
    """End the process of an accelerator that nobody has any more. Called by the garbage collector: does not wait."""
    if not connection.forked and connection.alive:
        connection.kill("it was dropped")
        warn_forgotten("an accelerator was dropped without being closed")


def _sealed(content: bytes) -> FileDescriptor:
    """A descriptor of memory with these contents, which nobody can change."""
    try:
        own = own_fd(os.memfd_create, "isthmus-kernels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as problem:
        raise refused_by_the_system(problem, "code of kernels", "memory to send it in cannot be made") from None
    try:
        with open(own.fileno(), "wb", closefd=False) as file:
            file.write(content)
        fcntl.fcntl(own.fileno(), fcntl.F_ADD_SEALS, _SEALS)
    except OSError as problem:
        own.close()
        raise refused_by_the_system(problem, "code of kernels", "it cannot be kept in memory") from None
    return own
