"""Asynchronous executions: in the order of the calls, on one thread a context, with a bounded queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from isthmus.errors import Code, QnnError

QUEUE_DEPTH = 64
"""How many executions of a graph may wait."""


class Execution(Future[None]):
    """An execution under way: a future that can also be awaited."""

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.wrap_future(self).__await__()


class ExecutionQueue:
    """The executions that one context has still to do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[object, int] = {}
        self._worker: ThreadPoolExecutor | None = None
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, graph: object, what: str, run: Callable[[], None]) -> Execution:
        """Run after all that was submitted before.

        Raises
        ------
        QnnError
            GRAPH_EXECUTION_ASYNC_FIFO_FULL when too many executions of the graph wait, CONTEXT_INVALID_HANDLE when the
            context is being freed.
        """
        execution = Execution()
        place = [graph]

        def work() -> None:
            if not execution.set_running_or_notify_cancel():
                self._leave(place)
                return
            try:
                run()
            except BaseException as problem:
                # Whoever is told finds room for another.
                self._leave(place)
                execution.set_exception(problem)
            else:
                self._leave(place)
                execution.set_result(None)

        def cancelled(task: Future[None]) -> None:
            if task.cancelled():
                execution.cancel()
                execution.set_running_or_notify_cancel()

        with self._lock:
            waiting = self._waiting.get(graph, 0)
            if waiting >= QUEUE_DEPTH:
                raise QnnError(
                    Code.GRAPH_EXECUTION_ASYNC_FIFO_FULL, what, f"{waiting} executions are waiting already"
                )
            if self._closed:
                raise QnnError(Code.CONTEXT_INVALID_HANDLE, what, "its context is being freed")
            if self._worker is None:
                # The thread must not know the queue: a context that is forgotten would live as long as the thread.
                threads = self._threads
                self._worker = ThreadPoolExecutor(
                    1, "isthmus-executions", lambda: threads.append(threading.current_thread())
                )
            self._waiting[graph] = waiting + 1
            worker = self._worker
        try:
            worker.submit(work).add_done_callback(cancelled)
        except BaseException as problem:
            # Nobody has it, so it does not run, whether or not it was submitted when the interrupt came.
            execution.cancel()
            self._leave(place)
            if isinstance(problem, RuntimeError) and self._closed:
                raise QnnError(Code.CONTEXT_INVALID_HANDLE, what, "its context is being freed") from None
            raise
        return execution

    def close(self) -> None:
        """Finish the execution that runs, cancel the others; safe to call again, also in a callback of an execution."""
        with self._lock:
            self._closed = True
            worker = self._worker
        if worker is not None:
            worker.shutdown(wait=threading.current_thread() not in self._threads, cancel_futures=True)

    def _leave(self, place: list[object]) -> None:
        """Take an execution out of the count, once."""
        with self._lock:
            while place:
                graph = place.pop()
                self._waiting[graph] -= 1
                if not self._waiting[graph]:
                    del self._waiting[graph]
