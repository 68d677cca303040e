"""A queue of the accelerator: one doorbell, the graphs that run through it, one execution at a time.

A request whose client has stopped waiting, after an interrupt or a timeout, is aborted: the accelerator ends it after
the current instruction. If it has not ended after a short grace period, the whole accelerator is killed, because it
must not go on writing into memory that the client considers its own again.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

import numpy as np

from isthmus.backends.accelerator.connection import Connection, Request
from isthmus.backends.accelerator.gate import NORMAL, QueueLock
from isthmus.backends.accelerator.page import Page
from isthmus.backends.accelerator.process import SERVING, Accelerator, request
from isthmus.backends.seam.binary import ContextBinary
from isthmus.backends.seam.deadlines import Patience
from isthmus.backends.seam.driver import OperationTime, TimeSpan, Timings
from isthmus.backends.seam.staging import Copy
from isthmus.engine.native import doorbell
from isthmus.engine.native.target import by_name, runnable
from isthmus.engine.native.target import host as host_target
from isthmus.engine.native.timed import CLOCK
from isthmus.errors import Code, QnnError
from isthmus.system import reading
from isthmus.system.channel import MAX_DESCRIPTORS, system_refusal
from isthmus.system.interrupts import FileDescriptor, Finalizer, own_fd, warn_forgotten
from isthmus.system.shield import shielded

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Result = TypeVar("_Result")
_SPINS = doorbell.WORKING_SPINS
# Status codes of failed executions, as `isthmus.engine.native.kernels.doorbell` returns them.
_STATUSES = {
    int(Code.GRAPH_ABORTED): "its execution was aborted",
    int(Code.GRAPH_INVALID_HANDLE): "the accelerator does not know it",
    int(Code.GRAPH_INVALID_TENSOR): "an index in a tensor is out of range, and outputs and states are undefined",
    int(Code.MEM_INVALID_HANDLE): "it cannot run on memory that is not registered",
    int(Code.MEM_INVALID_SHAPE): "it cannot run on memory that is too small",
}


class LoadSlots(TypedDict, total=False):
    """Registered memory for the graphs of a binary, by its slot; the accelerator's own for what is left out or None.

    - `scratch`: For the scratch of all graphs; their state is the accelerator's own.
    - `weights`: For their constants.
    """

    scratch: int | None
    weights: int | None


class SegmentPlace(NamedTuple):
    """A segment in registered memory: its slot, the offset there, and its bytes."""

    slot: int
    offset: int
    nbytes: int


class Queue:
    """The order of a context's executions on an accelerator. A context manager.

    If it is dropped without being closed, the garbage collector closes it, with a `ResourceWarning`.
    """

    @shielded(release=lambda queue: queue.close())
    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._connection = accelerator.connection
        self._open = True
        # The graph and the list of slots that are written in the page; None if they must be written again.
        self._last_request: tuple[int, Sequence[int]] | None = None
        # The number of the last execution, as it was written to the page.
        self._number = 0
        # A control call that was interrupted: the accelerator may not have answered it yet.
        self._unsettled: Request | None = None
        # The thread whose calls are made under the lock of an execution.
        self._held_by = 0
        # The name of the target of each graph, by its number.
        self._targets: dict[int, str] = {}
        if not accelerator.alive:
            raise accelerator.gone("context")
        self._page = page = Page()
        # Members of the page, copied because `execute` is faster with them.
        self._call, self._response, self._status = page.call, page.response, page.status
        self._address, self._span = page.address, page.span
        opening = request("open", [page.fd], "close")
        page.close()
        self._id: int = accelerator.answer(opening)["queue"]
        self._ending = Finalizer(self, _reclaim, self._connection, self._id)
        self._connection.watch_over(self._id, page.hang_up)

    # -- lock ----------------------------------------------------------------------------------------------------------

    def lock(self, priority: int = NORMAL) -> QueueLock:
        """Return this queue's lock, for executions of a priority."""
        return self.accelerator.gate.lock(self, priority)

    def under_lock(self, do: Callable[[], _Result], seconds: float | None = None) -> _Result:
        """Call a function, other than an execution, under this queue's lock."""
        if self._held_by == threading.get_ident():
            return do()
        lock = self.lock()
        try:
            try:
                if not lock.acquire(seconds, unit=False):
                    rule = f"it waited in the queue for more than {seconds:g} s"
                    raise QnnError(Code.GRAPH_TIMED_OUT, "execution", rule)
                return do()
            finally:
                lock.release()
        finally:
            # An interrupt may have come before the lock was released. Releasing it again is harmless.
            lock.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let calls of this thread be made under the lock that an execution of another thread, or its own, holds.

        That execution waits for them. So a thread that a signal handler does not reach can load graphs for it.
        """
        self._held_by = threading.get_ident()
        try:
            yield
        finally:
            self._held_by = 0

    # -- executions ----------------------------------------------------------------------------------------------------

    def execute(
        self,
        graph: int,
        slots: Sequence[int],
        seconds: float | None = None,
        copies_in: Iterable[Copy] = (),
        copies_out: Iterable[Copy] = (),
    ) -> None:
        """Run a graph once on registered memory; the caller holds this queue's lock.

        - `graph`: The graph's number in the accelerator.
        - `slots`: The memory of each input, then each output. The same list object is taken to mean the same slots.
        - `seconds`: The time limit. By default the accelerator's deadline for executions.
        - `copies_in`, `copies_out`: Copies before and after the run.

        Raises GRAPH_TIMED_OUT if it took too long, GRAPH_ABORTED after `abort`, MEM_INVALID_HANDLE for memory that is
        no longer registered, COMMON_SYSTEM_COMMUNICATION if the accelerator has ended.
        """
        last = self._last_request
        if last is None or last[0] != graph or last[1] is not slots:
            self._check_open()
            self._settle()
            self._last_request = None
            if len(slots) > doorbell.MAX_IO:
                rule = f"{len(slots)} inputs and outputs were given, {doorbell.MAX_IO} are the most"
                raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"graph {graph} of the accelerator", rule)
            words = self._page.words
            words[doorbell.GRAPH // 8] = graph
            first = doorbell.SLOTS // 8
            words[first : first + len(slots)] = slots
            self._last_request = (graph, slots)
        # From here on the code is optimised for speed.
        number = self._number
        if self._response.value != number or not self._connection.alive:
            # The last execution was interrupted, or the accelerator has ended.
            number = self._recover()
        for target, source, nbytes in copies_in:
            ctypes.memmove(target, source, nbytes)
        self._number = number = number + 1
        try:
            if seconds is None:
                self._call(self._address, number, _SPINS, self._span)
                if self._response.value != number:
                    self._wait(number, Patience(self.accelerator.deadlines.execution))
            else:
                patience = Patience(seconds)
                self._page.ring(number, seconds)
                self._wait(number, patience)
        except BaseException:
            self._give_up(number)
            raise
        status = self._status.value
        if status:
            raise self._refusal(graph, status)
        for target, source, nbytes in copies_out:
            ctypes.memmove(target, source, nbytes)

    def abort(self) -> None:
        """Abort the running execution, if any; its caller gets GRAPH_ABORTED.

        Any thread may call this. The graph's outputs and states are then undefined: `reset` restores its initial state.
        """
        # A closed queue has no page.
        page: Page | None = vars(self).get("_page")
        if page is not None and not self._connection.forked:
            # Only this execution is aborted: later ones have other numbers.
            page.abort.value = page.request.value

    def abort_now(self) -> None:
        """End the running execution now: abort it, or else kill the whole accelerator."""
        if self._connection.forked or not self._connection.alive:
            return
        self.abort()
        try:
            self.under_lock(lambda: None, seconds=self.accelerator.deadlines.grace)
        except QnnError as problem:
            if problem.code is not Code.GRAPH_TIMED_OUT:
                raise
            self.accelerator.kill("an execution did not end before its context was freed")

    def _refusal(self, graph: int, status: int) -> QnnError:
        """Turn the status of a failed execution into an error; kill the accelerator if the status is unknown."""
        if status not in _STATUSES:
            self.accelerator.kill(f"it answered an execution by the status {status}, which means nothing")
            return self.accelerator.gone("execution")
        return QnnError(Code(status), f"graph {graph} of the accelerator", _STATUSES[status])

    def _wait(self, number: int, patience: Patience) -> None:
        """Wait for a reply that has not come at once."""
        while self._response.value != number:
            if not self._connection.alive:
                raise self.accelerator.gone("execution")
            left = patience.left()
            if left <= 0:
                rule = "it did not end in time and was aborted"
                raise QnnError(Code.GRAPH_TIMED_OUT, "execution", rule)
            self._page.wait(number, left)

    def _give_up(self, number: int) -> None:
        """Abort a request that no caller waits for, and make sure that it has ended."""
        page = self._page
        if page.request.value != number:
            # The request had not been posted.
            self._number = page.request.value
            return
        page.abort.value = number
        patience = Patience(self.accelerator.deadlines.grace)
        try:
            while self._response.value != number and self._connection.alive and patience.left() > 0:
                page.wait(number)
        finally:
            # Reached also if another interrupt ends the wait.
            if self._response.value != number and self._connection.alive:
                self.accelerator.kill("an execution that was aborted did not end")

    def _recover(self) -> int:
        """Ensure that the last request has ended and return its number; an error if the accelerator is gone."""
        if self._connection.alive and self._response.value != self._number:
            self._give_up(self._number)
        if not self._connection.alive:
            raise self.accelerator.gone("execution")
        return self._number

    # -- graphs --------------------------------------------------------------------------------------------------------

    def load(
        self,
        binary: ContextBinary,
        pools: tuple[int, int] | None = None,
        apart: Mapping[str, np.ndarray] | None = None,
        places: Mapping[str, SegmentPlace] | None = None,
        **slots: Unpack[LoadSlots],
    ) -> dict[str, int]:
        """Load the graphs of a binary and return the numbers to run them by.

        - `pools`: Registered memory for scratch and state of its only graph; by default the accelerator's own.
        - `apart`: The segments by name that the graphs share with others of this queue. What the accelerator has
          already is not sent again.
        - `places`: Where segments are that are in registered memory already; the others are sent.
        """
        programs = binary.contents.programs
        for name, program in programs.items():
            target = by_name(program.target)
            if target != host_target() and not runnable(target):
                raise QnnError(
                    Code.COMMON_INCOMPATIBLE_BINARIES,
                    f"graph '{name}'",
                    f"it was prepared for {target.name}, which this machine is not",
                    "Generate the binary again from its model.",
                )
            if len(program.info.tensors) > doorbell.MAX_IO:
                rule = f"has {len(program.info.tensors)} inputs and outputs, {doorbell.MAX_IO} are the most"
                raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, f"graph '{name}'", rule)
            self.accelerator.provide((*program.kernels, *SERVING), target)

        def load() -> dict[str, Any]:
            self._send_segments(apart or {}, places or {})
            return self._control("load", [binary.fd], "unload", queue=self._id, pools=pools, **slots)

        numbers = dict(zip(programs, self.under_lock(load)["graphs"], strict=True))
        self._targets.update((numbers[name], program.target) for name, program in programs.items())
        return numbers

    def _send_segments(self, segments: Mapping[str, np.ndarray], places: Mapping[str, SegmentPlace]) -> None:
        """Send the segments that the accelerator lacks, each in sealed memory that is freed with its last graph.

        Those that have a place are not sent: the accelerator finds them there.
        """
        if not segments:
            return
        absent = self._control("absent", queue=self._id, names=list(segments))["names"]
        placed = [name for name in absent if name in places]
        if placed:
            self._control("place", queue=self._id, names=placed, places=[list(places[name]) for name in placed])
        lacking = [name for name in absent if name not in places]
        for first in range(0, len(lacking), MAX_DESCRIPTORS):
            names = lacking[first : first + MAX_DESCRIPTORS]
            with ExitStack() as opened:
                files = [opened.enter_context(_seal(segments[name])) for name in names]
                self._control("segments", [file.fileno() for file in files], queue=self._id, names=names)

    def unload(self, graph: int) -> None:
        """Unload a graph, after a running execution. The scratch that graphs share stays as large as it is."""
        self.under_lock(lambda: self._control("unload", graphs=[graph]))
        self._targets.pop(graph, None)

    def save_state(self, graph: int, nbytes: int) -> FileDescriptor:
        """Return memory with a graph's state of so many bytes, for `restore_state`; after a running execution."""
        state = _room(nbytes)
        self.under_lock(lambda: self._control("state", [state.fileno()], graph=graph, restore=False))
        return state

    def restore_state(self, graph: int, state: FileDescriptor) -> None:
        """Give a graph a state that was saved."""
        self.under_lock(lambda: self._control("state", [state.fileno()], graph=graph, restore=True))

    def rebind(self, graph: int, scratch: int) -> None:
        """Make a graph use other scratch memory; the caller holds this queue's lock."""
        self._control("rebind", graph=graph, scratch=scratch)

    def reset(self, graph: int) -> None:
        """Write the initial state into a graph's state memory; the caller holds this queue's lock."""
        self._control("reset", graph=graph)

    def execute_timed(
        self,
        graph: int,
        slots: Sequence[int],
        seconds: float | None = None,
        copies_in: Sequence[Copy] = (),
        copies_out: Sequence[Copy] = (),
    ) -> Timings:
        """Run a graph once as `execute` does, and return the times of its steps, and of copies and waiting.

        The caller holds this queue's lock.
        """
        begin = time.perf_counter()
        self.accelerator.provide((CLOCK,), by_name(self._targets[graph]))
        self._control("time", undo="times", graph=graph)
        before = time.perf_counter()
        timed_in, timed_out = _TimedCopies(copies_in), _TimedCopies(copies_out)
        try:
            self.execute(graph, slots, seconds, timed_in, timed_out)
        except BaseException:
            # The error of the execution is the one to report, also if the accelerator has ended.
            with suppress(QnnError):
                self._control("times", graph=graph)
            raise
        after = time.perf_counter()
        answer = self._control("times", graph=graph)
        operations = [OperationTime(*each) for each in answer["times"]]
        spans = [TimeSpan(operations[number].name, start * 1e-9, end * 1e-9) for number, start, end in answer["spans"]]
        microseconds = (time.perf_counter() - after + before - begin) * 1e6
        phases = [TimeSpan("copy", copies.begin, copies.end) for copies in (timed_in, timed_out) if copies.copies]
        phases.append(TimeSpan("wait", timed_in.end, timed_out.begin))
        return Timings(operations, microseconds, spans, self.accelerator.pid, phases)

    def _control(self, name: str, fds: Sequence[int] = (), undo: str = "", **arguments: Any) -> dict[str, Any]:
        """Make a call that changes what this queue's executions use. None of them may start before the reply."""
        self._check_open()
        self._settle()
        self._last_request = None
        self._unsettled = control = request(name, fds, undo, **arguments)
        try:
            return self.accelerator.answer(control)
        finally:
            # An error's traceback would keep the frames of the refused call alive, so the request is dropped.
            if control.answered:
                self._unsettled = None

    def _settle(self, seconds: float | None = None) -> None:
        """Wait for the reply to an interrupted call, and for the call that undoes it."""
        if self._unsettled is not None:
            self.accelerator.settle(self._unsettled, seconds)
            self._unsettled = None

    # -- closing -------------------------------------------------------------------------------------------------------

    @shielded
    def close(self) -> None:
        """Close the queue and unload its graphs, after a running execution. Safe to call again; never blocks forever.

        An execution that does not end within the accelerator's deadline for closing is aborted.
        """
        # It may be closed already, perhaps by its finalizer: if a backend is collected, the finalizers of its queues
        # run before it can free its contexts.
        if self._ending.waits and not self._connection.forked:
            self._close_under_lock()
        self._open, self._last_request, self._unsettled = False, None, None
        self._connection.forget(self._id)
        self._ending.forget()

    def _close_under_lock(self) -> None:
        """Wait for a running execution, then close the queue in the accelerator and release its doorbell."""
        lock = self.lock()
        try:
            if self._acquire_to_close(lock):
                self._close_over_there()
                # A reference to the queue must not keep its doorbell, which has a descriptor.
                for name in ("_call", "_response", "_status", "_page"):
                    vars(self).pop(name, None)
        finally:
            lock.release()

    def _close_over_there(self) -> None:
        """Close the queue in the accelerator, which unloads its graphs; the caller holds this queue's lock."""
        seconds = self.accelerator.deadlines.closing
        try:
            if self._connection.alive:
                self._settle(seconds)
                self._open, self._last_request = False, None
                self.accelerator.call("close", queue=self._id, seconds=seconds)
        except QnnError as problem:
            # Nothing is left to close: the process is gone, or an interrupted earlier attempt has closed the queue.
            if problem.code not in (Code.COMMON_SYSTEM_COMMUNICATION, Code.CONTEXT_INVALID_HANDLE):
                raise

    def _acquire_to_close(self, lock: QueueLock) -> bool:
        """Wait for this queue's lock, and kill the accelerator if it does not come; return whether it came."""
        deadlines = self.accelerator.deadlines
        if lock.acquire(deadlines.closing, unit=False):
            return True
        self._open, self._last_request = False, None
        self.abort()
        if lock.acquire(deadlines.grace, unit=False):
            return True
        self.accelerator.kill("an execution did not end before its context was freed")
        return lock.acquire(deadlines.grace, unit=False)

    def _check_open(self) -> None:
        """Refuse use after the queue was closed or the accelerator has ended."""
        if not self._open:
            raise QnnError(Code.CONTEXT_INVALID_HANDLE, "execution", "its context has been freed")
        if not self._connection.alive:
            raise self.accelerator.gone("execution")

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _seal(segment: np.ndarray) -> FileDescriptor:
    """Return a descriptor of sealed memory with a segment."""
    try:
        return reading.write_sealed("isthmus-weights", lambda file: file.write(segment.data))
    except OSError as problem:
        raise system_refusal(problem, "weights", "they cannot be kept in memory") from None


def _room(nbytes: int) -> FileDescriptor:
    """Return a descriptor of memory for a graph's state."""
    try:
        own = own_fd(os.memfd_create, "isthmus-state", os.MFD_CLOEXEC)
        os.ftruncate(own.fileno(), nbytes)
    except OSError as problem:
        raise system_refusal(problem, "state of a graph", "it cannot be kept in memory") from None
    return own


def _reclaim(connection: Connection, queue: int) -> None:
    """Close a queue that was collected. Called by the garbage collector: does not wait."""
    connection.forget(queue)
    if connection.alive and not connection.forked:
        connection.submit("close", queue=queue)
        warn_forgotten("a context's queue was dropped without being closed")


class _TimedCopies:
    """Copies that note when an execution begins to make them and when it has made all."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self.copies = copies
        self.begin = self.end = 0.0

    def __iter__(self) -> Iterator[Copy]:
        self.begin = time.monotonic()
        yield from self.copies
        self.end = time.monotonic()
