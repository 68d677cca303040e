"""Bindings: memory for every input and output of a graph, checked at creation and whenever memory has changed hands.

An execution with a binding takes the execution lock, compares one number, and runs. That number (`holds.epoch`)
increases when anything changes that a binding may rely on: a pool, a registration, a hold, a buffer. Then the binding
is checked and rebuilt before it runs, or refused; it never writes into memory that is no longer its own.
"""

from __future__ import annotations

import ctypes
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from isthmus import audit_log
from isthmus.backends.seam.driver import DriverBinding, GraphStats, Memories, TensorMemory, Traffic
from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.backends.seam.staging import Copy, InputStaging
from isthmus.errors import Code, QnnError
from isthmus.graph import TensorInfo
from isthmus.memory import Window, holds

_Result = TypeVar("_Result")


class LockLike(Protocol):
    """What serializes executions: a lock, or a queue of an accelerator.

    Take it by ``with`` only: between the return of an `acquire` and the ``try`` after it, a signal handler may raise,
    and the lock would be held forever. If its release is not a single C call, a handler may also raise before that. So
    call `release_if_held` afterwards, at least if there was an exception.
    """

    def __enter__(self) -> Any:
        """Wait for the lock and take it."""

    def __exit__(self, *exception: Any) -> Any:
        """Release the lock."""

    def release_if_held(self) -> None:
        """Release the lock if this thread still holds it."""


class ExecutionCounts:
    """Statistics of all bindings of a graph, ended ones included. They are updated under the graph's execution lock.

    - `lock`: The graph's execution lock.
    - `total`: The statistics of all executions up to the last call of `settle`.
    - `bindings`: The bindings that have not ended.
    - `counts`: The counts of each binding, also of a collected one until they are in the total.
    """

    def __init__(self, lock: LockLike) -> None:
        self.lock = lock
        self.total = GraphStats()
        # Weak references: a binding that an interrupt took from its caller is collected; its counts stay here.
        self.bindings: weakref.WeakSet[BindingBase] = weakref.WeakSet()
        self.counts: list[_Counts] = []
        self.abandoned: deque[BindingBase] = deque()
        """Bindings without an owner, to be ended under the lock the next time it is taken."""

    def under_lock(self, do: Callable[[], _Result]) -> _Result:
        """Call a function under the execution lock."""
        try:
            with self.lock:
                return do()
        finally:
            self.lock.release_if_held()

    def sweep(self) -> None:
        """End the abandoned bindings; the caller holds the execution lock."""
        while self.abandoned:
            self.abandoned.popleft().end()

    def stats(self) -> GraphStats:
        """Return the statistics so far."""
        return self.under_lock(self._stats)

    def _stats(self) -> GraphStats:
        """Return the statistics; the caller holds the execution lock."""
        self.sweep()
        self.settle()
        return replace(self.total, in_place_bytes=dict(self.total.in_place_bytes))

    def settle(self) -> None:
        """Add the executions since the last call to the total; the caller holds the execution lock."""
        for counts in self.counts:
            executions = counts.runs - counts.settled
            if executions:
                own, total = counts.own.plus(counts.traffic, executions), self.total.plus(counts.traffic, executions)
                # No signal handler runs within one assignment.
                counts.own, counts.settled, self.total = own, counts.settled + executions, total
        self.counts = [counts for counts in self.counts if counts.binding() is not None]

    def close(self) -> None:
        """End all bindings and drop their memory, but keep their counts; the caller holds the execution lock."""
        self.abandoned.clear()
        for binding in list(self.bindings):
            # A thread that waits to execute it finds it closed.
            binding.closed = True
            binding.end()
            binding.memories = ()


class _Counts:
    """The executions of one binding. An execution only increments `runs`; `ExecutionCounts.settle` does the rest.

    - `runs`, `settled`: Number of executions, and how many of them the statistics contain already.
    """

    def __init__(self, binding: BindingBase) -> None:
        self.binding = weakref.ref(binding)
        self.runs = self.settled = 0
        self.traffic = Traffic()
        self.own = GraphStats()


class BindingBase(DriverBinding):
    """The part of a binding that all backends have in common.

    - `memories`: The client's memory.
    - `counts`: Where executions are counted.
    - `_epoch`: The epoch at which the memory was last checked; -1 if it must be checked before it is used.
    - `_running`: Whether an execution is using the memory now.
    - `_windows`: The client's memory, with the names of the tensors.
    - `_uses`: Holds on `_windows`, which count only while `_running` is set.
    - `_made_from`: The value of `_basis` when `_bind` was last called; None if it must be called again.
    - `_copies_first`: The copies of inputs that an execution makes first, because an output overwrites their memory.
    """

    judges_pools = False
    """Whether `_bind` itself refuses memory that belongs to a pool, because it knows its own pools."""

    def __init__(self, what: str, memories: Memories, counts: ExecutionCounts) -> None:
        self.memories: tuple[TensorMemory | None, ...] = tuple(memories)
        self._what = what
        self._lock = counts.lock
        self._graph_counts = counts
        self._epoch = -1
        self._running = False
        self._counts = _Counts(self)
        self._uses: list[holds.Hold] = []
        self._windows: Sequence[tuple[str, Window]] = ()
        self._made_from: object | None = None
        self._copies_first: Sequence[Copy] = ()
        counts.under_lock(self._renew)

    @abstractmethod
    def _bind(self) -> tuple[Traffic, Sequence[tuple[str, Window]]]:
        """Check the memory and prepare it for executions; the caller holds the execution lock.

        Returns the traffic of an execution, and the client's windows with the names of their tensors.
        """

    def _basis(self) -> object:
        """Return what a binding depends on besides the client's memory; while that is equal, it need not be rebuilt."""
        # The default is a new object each time, which equals no other: the binding is rebuilt at every check.
        return object()

    @abstractmethod
    def _run(self) -> None:
        """Execute on the memory; the caller holds the execution lock."""

    def _run_within(self, limit: ExecutionDeadline) -> None:
        """Execute on the memory within a deadline; the caller holds the execution lock."""
        raise QnnError(Code.COMMON_NOT_SUPPORTED, self._what, "this backend cannot end an execution early")

    def execute(self, limit: ExecutionDeadline | None = None) -> None:
        """Run once under the execution lock; first check the memory if any has changed hands since the last check."""
        try:
            with self._lock:
                try:
                    # First, so that any later claim on this memory is refused: it is in use.
                    self._running = True
                    # Memory may change hands during the check, even this memory, which is recorded as in use only at
                    # its end. The epoch has then grown again, and the check is repeated.
                    while self._epoch != holds.epoch:
                        self._renew()
                    for target, source, nbytes in self._copies_first:
                        ctypes.memmove(target, source, nbytes)
                    if limit is None:
                        self._run()
                    else:
                        limit.check(self._what)
                        self._run_within(limit)
                    self._counts.runs += 1
                finally:
                    self._running = False
        except BaseException:
            # An interrupt may have come before the ``with`` could release the lock: see `LockLike`.
            self._lock.release_if_held()
            raise

    def _run_under_lock(self, run: Callable[[], _Result]) -> _Result:
        """Run once by `run` instead of `_run`, with the checks and counts of `execute`."""

        def checked() -> _Result:
            try:
                self._running = True
                while self._epoch != holds.epoch:
                    self._renew()
                for target, source, nbytes in self._copies_first:
                    ctypes.memmove(target, source, nbytes)
                result = run()
                self._counts.runs += 1
                return result
            finally:
                self._running = False

        result = self._graph_counts.under_lock(checked)
        if audit_log.active:
            self._report()
        return result

    def _report(self) -> None:
        """Report an execution and its copies to the audits in progress."""
        traffic = self._counts.traffic
        for copy in traffic.copies:
            reason = "raw memory, which the device cannot access"
            remedy = "Register the memory (mem_register) and pass its handle."
            if copy.overwritten:
                reason = "an output in the same memory, which is written before the input is read completely"
                remedy = "Give the output memory of its own."
            audit_log.note(audit_log.Action.COPY, self._what, copy.nbytes, f"'{copy.tensor}'", reason, remedy)
        in_place = sum(traffic.in_place.values())
        audit_log.note(audit_log.Action.EXECUTE, self._what, in_place + traffic.copied_in + traffic.copied_out)

    def _copy_first(
        self, staging: InputStaging, tensors: Sequence[TensorInfo], windows: Sequence[Window], indices: Collection[int]
    ) -> list[Window]:
        """Make executions first copy the inputs `indices`; return all windows, for these inputs those of the copies."""
        before, used = staging.nbytes, list(windows)
        for index in indices:
            used[index] = staging.buffer(index, tensors[index]).window(0, tensors[index].nbytes)
        self._count_staging(staging.nbytes - before)
        self._copies_first = [(used[i].address, windows[i].address, windows[i].nbytes) for i in indices]
        return used

    def _count_staging(self, nbytes: int) -> None:
        """Count memory that this binding has reserved for copies; the caller holds the execution lock."""
        for stats in (self._graph_counts.total, self._counts.own):
            stats.staging_execute_bytes += nbytes

    def _count_first(self, microseconds: float) -> None:
        """Record the duration of this binding's first execution; it is also the graph's, if the graph has none yet."""
        for stats in (self._graph_counts.total, self._counts.own):
            stats.first_execution_us = stats.first_execution_us or microseconds

    @property
    def stats(self) -> GraphStats:
        return self._graph_counts.under_lock(self._stats)

    def _stats(self) -> GraphStats:
        """Return this binding's statistics; the caller holds the execution lock."""
        self._graph_counts.settle()
        return replace(self._counts.own, in_place_bytes=dict(self._counts.own.in_place_bytes))

    def close(self) -> None:
        self.closed = True
        self._graph_counts.under_lock(self.end)

    def abandon(self) -> None:
        """Close the binding without the execution lock; the next call that takes the lock ends it."""
        self._release_uses()
        # An ended binding must not be queued: it and the counts would keep each other alive. One whose close was
        # interrupted has not ended.
        if self in self._graph_counts.bindings:
            self._graph_counts.abandoned.append(self)

    def end(self) -> None:
        """Close the binding; the caller holds the execution lock."""
        self._graph_counts.settle()
        self._release_uses()
        self._epoch, self._made_from = -1, None
        self._forget()
        # Last: if this is interrupted before, it is repeated.
        self._graph_counts.bindings.discard(self)

    def _forget(self) -> None:
        """Release what `_bind` has made; the caller holds the execution lock. Safe to call again."""

    def _renew(self) -> None:
        """Check the memory, and rebuild the binding if its basis has changed; the caller holds the execution lock."""
        # Read first: a change during the check leads to another check.
        epoch = holds.epoch
        self._epoch = -1
        if self.closed:
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"binding of {self._what}", "it is closed")
        self._graph_counts.sweep()
        self._graph_counts.settle()
        for memory in self.memories:
            if memory is not None:
                memory.check_there(f"memory of {self._what}")
        basis = self._basis()
        if basis != self._made_from:
            self._make()
        if not self.judges_pools:
            for name, window in self._windows:
                holds.refuse_claimed(window, f"tensor '{name}' of {self._what}")
        self._made_from, self._epoch = basis, epoch

    def _make(self) -> None:
        """Build the binding, and record the client's memory as in use during each of its executions."""
        self._made_from = None
        traffic, self._windows = self._bind()
        self._counts.traffic = traffic
        self._graph_counts.bindings.add(self)
        if self._counts not in self._graph_counts.counts:
            self._graph_counts.counts.append(self._counts)
        self._release_uses()
        # The holds must not keep the binding alive.
        reference = weakref.ref(self)

        def running() -> bool:
            binding = reference()
            return binding is not None and binding._running

        for name, window in self._windows:
            holder = f"memory of tensor '{name}' of {self._what}, which is executing,"
            self._uses.append(holds.use(window, holder, running))

    def _release_uses(self) -> None:
        """Release the holds on the client's memory; safe to call again."""
        for use in self._uses:
            use.release()
        self._uses.clear()


_execute = BindingBase.execute


def _execute_and_report(binding: BindingBase, limit: ExecutionDeadline | None = None) -> None:
    """Run a binding once, and report the execution to the audits in progress."""
    _execute(binding, limit)
    binding._report()


@audit_log.when_switched
def _switch(audited: bool) -> None:
    """Choose how bindings execute: executions without an audit pay nothing for audits, not even a comparison."""
    BindingBase.execute = _execute_and_report if audited else _execute  # type: ignore[assignment, method-assign]
