"""The client's side of the accelerator: the calls to it and their time limits."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from isthmus.backends.accelerator.connection import Connection, Request
from isthmus.backends.accelerator.gate import Gate
from isthmus.backends.accelerator.page import RINGING
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.engine.native import loader
from isthmus.engine.native.target import Target
from isthmus.engine.native.target import host as host_target
from isthmus.errors import Code, QnnError
from isthmus.log import log_message
from isthmus.memory.shareable import shared_file
from isthmus.system import reading
from isthmus.system.channel import MAX_DESCRIPTORS, system_refusal
from isthmus.system.interrupts import Finalizer, own_fd, warn_forgotten
from isthmus.system.shield import shielded

SERVING = ("doorbell:serve", "doorbell:end", "doorbell:publish", "executor:run", "executor:work", "executor:stop")
"""The kernels that the accelerator needs to serve queues and to run any program."""
# How long to wait for a closed process to end by itself.
_SECONDS_TO_END = 2.0


class Accelerator:
    """A running accelerator process; a context manager.

    If it is dropped without being closed, its process ends too, with a `ResourceWarning`.

    - `units`: Maximum number of concurrent executions. By default one for each processor.
    - `deadlines`: How long to wait for it. By default the standard values, with ``ISTHMUS_TIMEOUT``.
    - `gate`: The order in which its queues execute.
    - `connection`: The process and its channel.
    """

    @shielded(release=lambda accelerator: accelerator.close())
    def __init__(self, units: int | None = None, deadlines: Deadlines | None = None) -> None:
        self.deadlines = Deadlines.from_environment() if deadlines is None else deadlines
        # The kernels that were sent to the accelerator, each with its target.
        self._sent: set[tuple[str, str]] = set()
        target = host_target()
        self.connection = Connection()
        self.gate = Gate(units or len(os.sched_getaffinity(0)), self.connection)
        self._ending = Finalizer(self, _reclaim, self.connection)
        try:
            self.connection.start(self.deadlines.starting)
            # Code is compiled while the process starts; its time limit begins afterwards.
            loader.ensure((*SERVING, *RINGING), target)
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
            log_message(logging.WARNING, text)

    @property
    def alive(self) -> bool:
        """Whether the process is running and belongs to this process."""
        return self.connection.alive

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the accelerator's owner."""
        return self.connection.forked

    def gone(self, what: str) -> QnnError:
        """Return the error for a use while it is not `alive`: that it has ended and why, or whose it is."""
        return self.connection.gone(what)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        fds: Sequence[int] = (),
        *,
        undo: str = "",
        seconds: float | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Make a call to the other side, with descriptors `fds`, and wait for the reply.

        After an interrupt everything stays usable: what the call has done is undone, by the call `undo`. If the reply
        does not come in time, by default the accelerator's deadline for control calls, the process is killed.
        """
        return self.answer(request(name, fds, undo, **arguments), seconds)

    @shielded
    def answer(self, request: Request, seconds: float | None = None) -> dict[str, Any]:
        """Send a request and return the reply; raise its error, if it has one. `seconds` as for `call`."""
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
        """Wait until a request is answered, and kill a process that does not reply; return whether it was answered.

        There is one deadline, which nothing extends: the seconds of this request and of all earlier ones that others
        wait for. Requests without a waiting caller, such as interrupted ones, add no time.
        """
        request.seconds = self.deadlines.control if seconds is None else seconds
        total_seconds = self.connection.seconds_to_wait(request)
        # An interrupted request may or may not have been posted before.
        if not self.connection.post(request):
            return request.answered
        if not request.wait(total_seconds):
            self.kill(f"it did not answer the call '{request.name}' within {request.seconds:g} s")
        return request.answered

    @shielded
    def register(self, windows: Sequence[tuple[int, int, int]]) -> Slots:
        """Make memory, given as (descriptor, offset, bytes), visible to the accelerator: all or none.

        Returns the slots (numbers) by which the accelerator knows the memory; they are never reused for other memory.
        """
        for fd in {fd for fd, _, _ in windows}:
            # Checked here, because the accelerator's process cannot read the names of files.
            shared_file(fd, "shared buffer")
        # A message has a limited number of descriptors.
        parts = [windows[first : first + MAX_DESCRIPTORS] for first in range(0, len(windows), MAX_DESCRIPTORS)]
        requests: list[Request] = []
        try:
            for part in parts:
                spans = [list(span) for _, *span in part]
                requests.append(request("register", [fd for fd, _, _ in part], undo="deregister", spans=spans))
                self.answer(requests[-1])
            return Slots(self.connection, [slot for done in requests if done.answer for slot in done.answer["slots"]])
        except Exception:
            for done in requests:
                self.connection.abandon(done)
            raise

    @shielded
    def deregister(self, slots: Iterable[int]) -> None:
        """Remove memory from the accelerator. A process that has died has none.

        Later executions that use it are refused. A running execution keeps it until its end; to know that it has ended,
        close its queue or wait for the queue's lock.
        """
        try:
            if slots and self.alive:
                self.call("deregister", slots=list(slots))
        except QnnError as problem:
            if problem.code is not Code.COMMON_SYSTEM_COMMUNICATION:
                raise
        if isinstance(slots, Slots):
            slots.mark_ended()

    @shielded
    def provide(self, kernels: Iterable[str], target: Target) -> None:
        """Send the code of kernels that the accelerator lacks: it opens no files and compiles nothing."""
        missing = [kernel for kernel in dict.fromkeys(kernels) if (kernel, target.name) not in self._sent]
        if not missing:
            return
        objects = loader.objects(missing, target)
        sizes = [[kernel, len(code)] for kernel, code in objects.items()]
        try:
            content = reading.write_sealed("isthmus-kernels", lambda file: file.write(b"".join(objects.values())))
        except OSError as problem:
            raise system_refusal(problem, "code of kernels", "it cannot be kept in memory") from None
        with content as descriptor:
            self.call("kernels", [descriptor.fileno()], target=target.name, sizes=sizes)
        self._sent.update((kernel, target.name) for kernel in missing)

    def counts(self) -> dict[str, int]:
        """Return the resources of the other side: descriptors, mappings, resident bytes, queues, graphs, memory.

        "mapped_bytes" are what it has mapped for these.
        """
        counted = self.call("counts")
        system = Path(f"/proc/{self.pid}")
        resident = int((system / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        return {
            "descriptors": len(os.listdir(system / "fd")),
            "mappings": len((system / "maps").read_text().splitlines()),
            "resident_bytes": resident,
            **counted,
        }

    def loaded(self) -> tuple[str, ...]:
        """Return the names of the graphs that are loaded, as the other side has them."""
        return tuple(self.call("loaded")["names"])

    # -- closing -------------------------------------------------------------------------------------------------------

    @shielded
    def close(self) -> None:
        """End the process, whatever it computes; safe to call again, and never blocks forever."""
        if not self.forked:
            self.connection.end()
            if not self.connection.join(min(_SECONDS_TO_END, self.deadlines.closing)):
                self.connection.kill_and_join("it was closed")
        self._ending.forget()

    def kill(self, reason: str) -> None:
        """Kill the process and wait until it can no longer write anything."""
        if not self.forked:
            self.connection.kill_and_join(reason)

    def __enter__(self) -> Accelerator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Slots(list[int]):
    """The slots by which the accelerator knows memory. Collecting them deregisters it, if it still is registered."""

    def __init__(self, connection: Connection, slots: Iterable[int] = ()) -> None:
        super().__init__(slots)
        self._ending = Finalizer(self, _forget, connection, list(self))

    def mark_ended(self) -> None:
        """Record that the slots are deregistered."""
        self._ending.forget()


def _forget(connection: Connection, slots: list[int]) -> None:
    """Deregister memory whose slots were collected. Called by the garbage collector: does not wait."""
    if slots and connection.alive and not connection.forked:
        connection.submit("deregister", slots=slots)


def request(name: str, fds: Sequence[int] = (), undo: str = "", **arguments: Any) -> Request:
    """Return a request for a call, with duplicates of the descriptors; `undo` is the call that undoes it."""
    result = Request(name, arguments, undo)
    try:
        for fd in fds:
            result.descriptors.append(own_fd(os.dup, fd))
    except OSError as problem:
        result.close()
        raise system_refusal(problem, f"call '{name}'", "a file descriptor cannot be sent") from None
    return result


def _reclaim(connection: Connection) -> None:
    """Kill the process of an accelerator that was collected. Called by the garbage collector: does not wait."""
    if not connection.forked and connection.alive:
        connection.kill("it was dropped")
        warn_forgotten("an accelerator was dropped without being closed")
