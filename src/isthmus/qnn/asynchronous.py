"""Asynchronous executions: in the order of the calls, on one thread a context, with a bounded queue."""

from __future__ import annotations

import asyncio
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

QUEUE_DEPTH = 64
"""How many executions of a graph may wait."""
_A_WAIT = 0.1
"""Seconds after which a wait looks whether another thread has taken the place of the one that it is for."""


class _Condition(RLock):  # type: ignore[misc]
    """What a future locks itself by: a lock of the system, whose ``with`` no handler of a signal can divide.

    That of `threading.Condition` can be: an interrupt there would leave the future locked, and whoever is to end it
    waiting for ever.
    """

    def wait(self, timeout: float | None = None) -> bool:
        """Not here: an `Execution` waits by itself."""
        return False

    def notify_all(self) -> None:
        """Nobody waits here."""


class Execution(Future[None]):
    """An execution under way: a future that can also be awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._condition: Any = _Condition()  # type: ignore[assignment]
        self._over = threading.Lock()
        self._over.acquire()
        self.add_done_callback(lambda ended: ended._over.release())  # type: ignore[attr-defined]

    def result(self, timeout: float | None = None) -> None:
        """Wait for its end, at most so many seconds; raises what it has raised."""
        self._wait(timeout)
        super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for its end, at most so many seconds; what it has raised."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        seconds = -1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
        if not self.done() and self._over.acquire(timeout=seconds):
            self._over.release()

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.wrap_future(self).__await__()


class ExecutionQueue:
    """The executions that one context has still to do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[object, int] = {}
        self._closed = False
        # The thread must not know the queue: a context that is forgotten would live as long as the thread.
        self._work = _Work()
        Finalizer(self, self._work.tasks.put, None)

    def submit(
        self, graph: object, what: str, run: Callable[[], object], notify: Callable[[Execution], object] | None = None
    ) -> Execution:
        """Run after all that was submitted before, and have `notify` called with the execution at its end.

        Raises
        ------
        QnnError
            GRAPH_EXECUTION_ASYNC_FIFO_FULL when too many executions of the graph wait, CONTEXT_INVALID_HANDLE when the
            context is being freed.
        """
        execution = Execution()
        if notify is not None:
            # Before anybody else knows of it: a future that is interrupted while it takes a callback stays locked.
            execution.add_done_callback(notify)  # type: ignore[arg-type]
        with self._lock:
            waiting = self._waiting.get(graph, 0)
            if waiting >= QUEUE_DEPTH:
                raise QnnError(
                    Code.GRAPH_EXECUTION_ASYNC_FIFO_FULL, what, f"{waiting} executions are waiting already"
                )
            if self._closed:
                raise QnnError(Code.CONTEXT_INVALID_HANDLE, what, "its context is being freed")
            try:
                self._work.begin()
            except RuntimeError as problem:
                rule = f"it needs a thread, and the system starts no more: {problem}"
                raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, what, rule) from None
            task = _Task(execution, run, [graph], self._leave)
            self._waiting[graph] = waiting + 1
            try:
                self._work.tasks.put(task)
            except BaseException:
                # Nobody has it, so it does not run.
                if task.execution.cancel():
                    self._count_out(task.place)
                raise
        return execution

    def close(self, seconds: float | None = None) -> bool:
        """Finish the execution that runs, cancel the others; safe to call again, also in a callback of an execution.

        A callback waits for no thread of executions: the callback that runs there may wait for this one's.

        Parameters
        ----------
        seconds
            How long to wait for the execution that runs; as long as it takes without it.

        Returns
        -------
        bool
            Whether that is over, as far as this thread may wait for it.
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

    def _leave(self, place: list[object]) -> None:
        with self._lock:
            self._count_out(place)

    def _count_out(self, place: list[object]) -> None:
        """Take an execution out of the count, once."""
        while place:
            graph = place.pop()
            self._waiting[graph] -= 1
            if not self._waiting[graph]:
                del self._waiting[graph]


@dataclass(eq=False)
class _Task:
    """An execution that waits: what it does, and its place in the count."""

    execution: Execution
    run: Callable[[], object]
    place: list[object]
    leave: Callable[[list[object]], None]

    def work(self) -> None:
        """Do it. Whoever is told of its end finds room for another."""
        if not self.execution.set_running_or_notify_cancel():
            self.leave(self.place)
            return
        try:
            self.run()
        except BaseException as problem:
            self.leave(self.place)
            self.execution.set_exception(problem)
        else:
            self.leave(self.place)
            self.execution.set_result(None)

    def cancel(self) -> None:
        """Never do it."""
        self.leave(self.place)
        self.execution.cancel()
        self.execution.set_running_or_notify_cancel()


class _Work:
    """The tasks of a queue, and the one thread that does them."""

    def __init__(self) -> None:
        # Its `put` is one step that nothing can interrupt, which an executor's `submit` is not.
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread: _Executions | None = None
        self._starting = threading.Lock()

    def begin(self) -> None:
        """Start the thread, unless that has been done; `RuntimeError` if the system starts no more."""
        with self._starting:
            if self._thread is None or self._thread.ident is None:
                self._start()

    def replace(self) -> None:
        """Start a thread in the place of the one that calls this."""
        # Where the system starts none, the next execution that is submitted tries again.
        with self._starting, suppress(RuntimeError):
            self._start()

    def _start(self) -> None:
        self._thread = _Executions(self)
        start(self._thread)

    def join(self, seconds: float | None) -> bool:
        """Wait for the end of the thread, or of the one that has taken its place; whether there is none."""
        limit = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            with self._starting:
                thread = self._thread
            if thread is None or not thread.is_alive():
                return True
            check()
            left = limit - time.monotonic()
            if left <= 0:
                return False
            thread.join(min(left, _A_WAIT))


class _Executions(threading.Thread):
    """A thread that executions and their callbacks run on."""

    def __init__(self, work: _Work) -> None:
        super().__init__(name="isthmus-executions", daemon=True)
        self.work: _Work | None = work

    def run(self) -> None:
        """Do the tasks until there is none in the place of one."""
        assert self.work is not None
        tasks = self.work.tasks
        while (task := tasks.get()) is not None:
            task.work()
            del task
        # The work knows this thread: neither is to keep the other.
        self.work = None


def replace_thread() -> None:
    """Have another thread go on, if this is one of executions: a callback in C is about to end it (pthread_exit).

    Python learns nothing of such an end. Executions that wait would never be done, and whoever joins the thread would
    wait for ever.
    """
    thread = threading.current_thread()
    if isinstance(thread, _Executions) and thread.work is not None:
        work, thread.work = thread.work, None
        work.replace()
