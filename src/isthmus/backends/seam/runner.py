"""Runners: programs in memory that they were given. A graph has one runner for all its bindings.

Before a run, a binding gives the runner its memory, unless the runner still has it.
"""

from __future__ import annotations

import _thread
import ctypes
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from isthmus.backends.seam.binding import BindingBase, ExecutionCounts, LockLike
from isthmus.backends.seam.driver import GraphStats, Memories, OperationTime, TimeSpan, Timings
from isthmus.backends.seam.execution_deadline import ExecutionDeadline, abort_error
from isthmus.backends.seam.native import NativeGraphDriver, Prepared
from isthmus.backends.seam.staging import InputStaging
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.timed import TimedExecutor
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph


class Runner(Protocol):
    """A program in memory, in this process or in an accelerator."""

    @property
    def run(self) -> Callable[[], int | None]:
        """Runs once. A true result is a failure, which `check` raises."""

    def bind_all_io(self, io: Any) -> None:
        """Use this memory for inputs and outputs from the next run on."""

    def check(self, what: str) -> None:
        """Raise an error if the last run failed."""

    def run_until(self, limit: ExecutionDeadline, what: str) -> None:
        """Run once within a deadline."""

    def measure(self, limit: ExecutionDeadline | None, what: str) -> Timings:
        """Run once, within a deadline if there is one, and return the time of each step."""

    def reset(self) -> None:
        """Write the initial state into state memory."""

    def close(self) -> None:
        """Release everything; safe to call again."""


class HostRunner(Executor):
    """A program in this process."""

    staging_bytes = 0

    def run_until(self, limit: ExecutionDeadline, what: str) -> None:
        """Run once within a deadline."""
        run_within(self, limit, what)

    def measure(self, limit: ExecutionDeadline | None, what: str) -> Timings:
        """Run once, within a deadline if there is one, and return the time of each step."""
        begin = time.perf_counter()
        timed = TimedExecutor(self)
        preparation = time.perf_counter() - begin
        try:
            if limit is not None:
                limit.check(what)
                run_within(timed, limit, what)
            elif timed.run():
                timed.check(what)
            spans = [TimeSpan(name, begin * 1e-9, end * 1e-9) for name, begin, end in timed.spans()]
            return Timings([OperationTime(*each) for each in timed.times()], preparation * 1e6, spans)
        finally:
            timed.close()


_Runner = TypeVar("_Runner", bound=Runner)


class Abortable(Protocol):
    """A program, or several, bound to memory."""

    def run_abortable(self, word: ctypes.c_int64) -> bool:
        """Run once, or until 1 is written into `word`; return whether the run was not aborted."""

    def check(self, what: str) -> None:
        """Raise an error if the last run failed."""


def run_within(executor: Abortable, limit: ExecutionDeadline, what: str) -> None:
    """Run a program within a deadline; it can end between any two instructions."""
    seconds = limit.left
    # The program stops before its next instruction once this is not 0.
    abort_word = ctypes.c_int64(0)
    # Locked until the program has ended.
    running = _thread.allocate_lock()
    # Has an element if the program was aborted because its time was over.
    timed_out: list[bool] = []

    def abort() -> None:
        abort_word.value = 1

    def time_out() -> None:
        if not running.acquire(timeout=max(seconds or 0, 0)):
            timed_out.append(True)
            abort()

    running.acquire()
    try:
        with limit.watched(abort):
            if seconds is not None:
                # A single C call, which cannot be interrupted halfway, unlike the start of a `Timer`.
                _thread.start_new_thread(time_out, ())
            completed = executor.run_abortable(abort_word)
    except RuntimeError as problem:
        rule = f"its time limit needs a thread, and the system starts no more: {problem}"
        raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, what, rule) from None
    finally:
        running.release()
    if not completed:
        raise limit.timeout_error(what) if timed_out else abort_error(what)
    executor.check(what)


class RunnerGraphDriver(NativeGraphDriver[Prepared], Generic[Prepared, _Runner]):
    """A graph with a runner, from `finalize` to `close`.

    - `lock`: Its execution lock.
    - `staging`: Its memory for copies of inputs.
    """

    def __init__(self, graph: Graph, prepared: Prepared | None, lock: LockLike, staging: InputStaging) -> None:
        super().__init__(graph, prepared)
        self._lock, self.staging = lock, staging
        self._counts = ExecutionCounts(lock)
        self._executor: _Runner | None = None
        self.current_binding: RunnerBinding | None = None
        """The binding whose memory the runner currently has."""

    def executor(self) -> _Runner:
        """Return the graph's runner."""
        if self._executor is None:
            raise QnnError(Code.GRAPH_NOT_FINALIZED, self.what, "only a finalized graph can be executed")
        return self._executor

    def renew_runner(self) -> None:
        """Prepare the runner for another binding; nothing by default."""

    def reset(self) -> None:
        with self._lock:
            self.executor().reset()

    def stats(self) -> GraphStats:
        return self._counts.stats()

    def close(self) -> None:
        """End all bindings and release runner and memory; safe to call again."""
        with self._lock:
            self._counts.close()
            if self._executor is not None:
                self._executor.close()
                self._executor = self.current_binding = None
            self._release()
            self.staging.close()
            super().close()

    def _release(self) -> None:
        """Release what the graph has beside its runner; safe to call again."""


def _not_bound() -> None:
    """Stand in for the native call of a binding that has no memory."""
    raise AssertionError("a binding that has ended is made again before it runs")


class RunnerBinding(BindingBase):
    """Memory for a graph with a runner.

    - `_io`: The memory of inputs and outputs, in the form that the runner takes.
    - `_native`: The runner's `run`, called directly because an execution is faster so.
    """

    def __init__(self, graph: RunnerGraphDriver[Any, Any], memories: Memories, counts: ExecutionCounts) -> None:
        self._graph: Any = graph
        self._io: Any = None
        self._native: Callable[[], int | None] = _not_bound
        super().__init__(graph.what, memories, counts)

    def _run(self) -> None:
        if self._graph.current_binding is not self:
            self._take_over()
        if self._native():
            self._graph.executor().check(self._what)

    def _run_within(self, limit: ExecutionDeadline) -> None:
        self._take_over()
        self._graph.executor().run_until(limit, self._what)

    def execute_timed(self, limit: ExecutionDeadline | None = None) -> Timings:
        def run() -> Timings:
            self._take_over()
            timings: Timings = self._graph.executor().measure(limit, self._what)
            return timings

        return self._run_under_lock(run)

    def _take_over(self) -> None:
        """Make the graph's runner use this binding's memory."""
        # Unbound until the new binding is complete: an interrupt may come in between.
        self._graph.current_binding = None
        self._graph.renew_runner()
        self._graph.executor().bind_all_io(self._io)
        self._graph.current_binding = self

    def _forget(self) -> None:
        if self._graph.current_binding is self:
            self._graph.current_binding = None
        # The native call keeps alive what it touches.
        self._io, self._native = None, _not_bound
