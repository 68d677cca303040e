"""Asynchronous executions: in call order, on one thread per context, with a bounded queue."""

from __future__ import annotations

import math
import threading
import time
from _thread import RLock
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.system.interrupts import Finalizer, start
from isthmus.system.shield import check

QUEUE_DEPTH = 10
"""How many executions of a context may wait or run, unless it asks for another number."""
# Seconds between checks whether the thread being joined has been replaced by another.
_JOIN_SECONDS = 0.1


class _Condition(RLock):  # type: ignore[misc]
    """The lock of a future: an `RLock`, whose ``with`` a signal handler cannot interrupt halfway.

    The ``with`` of a `threading.Condition` can be interrupted. The future would then stay locked, and the thread that
    completes it would wait forever.
    """

    def wait(self, timeout: float | None = None) -> bool:
        """Return False: an `Execution` does its own waiting."""
        return False

    def notify_all(self) -> None:
        """Do nothing: no thread waits on this condition."""


class Execution(Future[None]):
    """An execution in progress: a future that can also be awaited."""

    def __init__(self) -> None:
        super().__init__()
        # Replaces the `threading.Condition` that `Future.__init__` has created.
        self._condition: Any = _Condition()
        # Locked until the execution has ended: waiting for the end is acquiring this lock.
        self._in_progress = threading.Lock()
        self._in_progress.acquire()
        self.add_done_callback(lambda execution: execution._in_progress.release())  # type: ignore[attr-defined]

    def result(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds for the end, and raise the execution's exception if it failed."""
        self.wait_for_end(timeout)
        super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait at most `timeout` seconds for the end, and return the execution's exception."""
        self.wait_for_end(timeout)
        return super().exception(0)

    def wait_for_end(self, timeout: float | None) -> None:
        """Wait for the end, or until the timeout: the caller's ``super()`` call then raises `TimeoutError`."""
        seconds = -1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
        if not self.done() and self._in_progress.acquire(timeout=seconds):
            self._in_progress.release()

    def __await__(self) -> Generator[Any, None, None]:
        import asyncio  # here, since it takes a tenth of the time of a process's start, and few processes await

        return asyncio.wrap_future(self).__await__()


class ExecutionQueue:
    """The pending executions of one context: at most `depth`."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._lock = threading.Lock()
        # The executions that are waiting or running, the oldest first.
        self._waiting: dict[Execution, None] = {}
        self._closed = False
        # The thread must not refer to the queue: an unreferenced context would otherwise live as long as the thread.
        self._work = _Work()
        # None tells the thread to end.
        Finalizer(self, self._work.tasks.put, None)

    def submit(
        self, what: str, run: Callable[[], object], notify: Callable[[Execution], object] | None = None
    ) -> Execution:
        """Run after everything submitted before, and call `notify` with the execution when it has ended.

        A full queue makes the caller wait until an execution ends. A notification cannot wait, since executions end on
        its thread: it is refused.
        """
        execution = Execution()
        if notify is not None:
            # Do this before sharing the execution: a future that is interrupted while adding a callback stays locked.
            execution.add_done_callback(notify)  # type: ignore[arg-type]
        while (oldest := self._enter(execution, what, run)) is not None:
            check()
            oldest.wait_for_end(_JOIN_SECONDS)
        return execution

    def _enter(self, execution: Execution, what: str, run: Callable[[], object]) -> Execution | None:
        """Queue an execution; return the oldest one instead if the queue is full."""
        with self._lock:
            if self._closed:
                raise QnnError(Code.CONTEXT_INVALID_HANDLE, what, "its context is being freed")
            if len(self._waiting) >= self.depth:
                if isinstance(threading.current_thread(), _Executions):
                    rule = f"{len(self._waiting)} executions are waiting already, and a notification cannot wait"
                    raise QnnError(Code.GRAPH_EXECUTION_ASYNC_FIFO_FULL, what, rule)
                return next(iter(self._waiting))
            try:
                self._work.begin()
            except RuntimeError as problem:
                rule = f"it needs a thread, and the system starts no more: {problem}"
                raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, what, rule) from None
            task = _Task(execution, run, self._leave)
            self._waiting[execution] = None
            try:
                self._work.tasks.put(task)
            except BaseException:
                # It was not queued, so it will never run.
                if task.execution.cancel():
                    self._waiting.pop(execution, None)
                raise
        return None

    def close(self, seconds: float | None = None) -> bool:
        """Finish the running execution, within `seconds` if given, and cancel the others; return whether it has ended.

        Safe to call again. From a callback it returns True without waiting, also for another context's execution: two
        callbacks that free each other's context would wait forever.
        """
        with self._lock:
            self._closed = True
        while True:
            try:
                task = self._work.tasks.get_nowait()
            except Empty:
                break
            if task is not None:
                task.cancel()
        self._work.tasks.put(None)
        return isinstance(threading.current_thread(), _Executions) or self._work.join(seconds)

    def _leave(self, execution: Execution) -> None:
        """Remove an execution from those that are waiting or running; a second call does nothing."""
        with self._lock:
            self._waiting.pop(execution, None)


@dataclass(eq=False)
class _Task:
    """A waiting execution.

    - `leave`: Removes the execution from the queue's count.
    """

    execution: Execution
    run: Callable[[], object]
    leave: Callable[[Execution], None]

    def work(self) -> None:
        """Run it. It is removed from the count before its end is announced, so that a client that waits for the end
        can submit another at once.
        """
        if not self.execution.set_running_or_notify_cancel():
            self.leave(self.execution)
            return
        try:
            self.run()
        except BaseException as problem:
            self.leave(self.execution)
            self.execution.set_exception(problem)
        else:
            self.leave(self.execution)
            self.execution.set_result(None)

    def cancel(self) -> None:
        """Cancel it without running it."""
        self.leave(self.execution)
        self.execution.cancel()
        # `concurrent.futures.wait` sees a cancelled future only after this call.
        self.execution.set_running_or_notify_cancel()


class _Work:
    """The tasks of a queue, and the one thread that runs them."""

    def __init__(self) -> None:
        # Its `put` is atomic with respect to interrupts; an executor's `submit` is not.
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread: _Executions | None = None
        # Guards `_thread`.
        self._starting = threading.Lock()

    def begin(self) -> None:
        """Start the thread if it is not running yet; raise `RuntimeError` if the system cannot start one."""
        with self._starting:
            # A thread without an identifier was created, but its start failed or was interrupted.
            if self._thread is None or self._thread.ident is None:
                self._start()

    def replace(self) -> None:
        """Start a thread to replace the calling one."""
        # If the system cannot start a thread, the next submitted execution tries again.
        with self._starting, suppress(RuntimeError):
            self._start()

    def _start(self) -> None:
        self._thread = _Executions(self)
        start(self._thread)

    def join(self, seconds: float | None) -> bool:
        """Wait for the end of the thread or of its replacement; return whether none is running."""
        limit = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            with self._starting:
                thread = self._thread
            if thread is None or not thread.is_alive():
                return True
            check()
            remaining = limit - time.monotonic()
            if remaining <= 0:
                return False
            thread.join(min(remaining, _JOIN_SECONDS))


class _Executions(threading.Thread):
    """A thread that runs executions and their callbacks, until its `work` is None: it has ended, or was replaced."""

    def __init__(self, work: _Work) -> None:
        super().__init__(name="isthmus-executions", daemon=True)
        self.work: _Work | None = work

    def run(self) -> None:
        """Run tasks until the queue yields None."""
        assert self.work is not None
        tasks = self.work.tasks
        while (task := tasks.get()) is not None:
            task.work()
            del task
        # `work` refers to this thread: break the reference cycle.
        self.work = None


def replace_thread() -> None:
    """Start a replacement if this is an execution thread: a C callback is about to end it (pthread_exit).

    Python does not notice such an end. Waiting executions would never run, and joining the thread would never return.
    """
    thread = threading.current_thread()
    if isinstance(thread, _Executions) and thread.work is not None:
        work, thread.work = thread.work, None
        work.replace()
