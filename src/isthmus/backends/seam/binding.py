"""A binding: memory for every input and output of a graph, checked when it is made and whenever memory changed hands.

An execution with a binding costs a turn, a look at one number, and the run. That number (`holds.epoch`) moves when
anything changes that a binding may rely on: a pool, a registration, a hold, a buffer. Then the binding is checked and
made again before it runs, or refused; it never writes into memory that is no longer its own.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from isthmus.backends.seam.driver import DriverBinding, GraphStats, Memories, TensorMemory, Traffic
from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.errors import Code, QnnError
from isthmus.memory import Window, holds

_Result = TypeVar("_Result")


class Turn(Protocol):
    """What executions take in turn: a lock, or a lane to an accelerator.

    It is taken by ``with`` and by nothing else: between the return of an `acquire` and the ``try`` after it, the
    handler of a signal may raise, and the turn would be nobody's for ever. Where its end is not one call of C, the
    handler may also raise before that; so whoever meets an exception forsakes the turn.
    """

    def __enter__(self) -> Any:
        """Wait for the turn."""

    def __exit__(self, *exception: Any) -> Any:
        """End it."""

    def forsake(self) -> None:
        """End it if this thread has it still."""


class ExecutionCounts:
    """What all bindings of a graph did, the ended ones too. Counted in the graph's turn.

    Parameters
    ----------
    turn
        The turn in which the graph executes.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.total = GraphStats()
        # Whoever has a binding keeps it, and nobody has one that an interrupt took away; what it counted stays here.
        self.bindings: weakref.WeakSet[BindingBase] = weakref.WeakSet()
        self.counts: list[_Counts] = []
        self.abandoned: deque[BindingBase] = deque()
        """Bindings that nobody has any more, to be ended in the next turn."""

    def in_turn(self, do: Callable[[], _Result]) -> _Result:
        """Do something in a turn."""
        try:
            with self.turn:
                return do()
        except BaseException:
            self.turn.forsake()
            raise

    def sweep(self) -> None:
        """End what was abandoned, in a turn."""
        while self.abandoned:
            self.abandoned.popleft().end()

    def stats(self) -> GraphStats:
        """What happened so far."""
        return self.in_turn(self._stats)

    def _stats(self) -> GraphStats:
        self.sweep()
        self.settle()
        return replace(self.total, in_place_bytes=dict(self.total.in_place_bytes))

    def settle(self) -> None:
        """Add what was executed since the last time to the total, in a turn."""
        for counts in self.counts:
            executions = counts.runs - counts.settled
            if executions:
                own, total = counts.own.plus(counts.traffic, executions), self.total.plus(counts.traffic, executions)
                # No handler of a signal runs within one assignment.
                counts.own, counts.settled, self.total = own, counts.settled + executions, total
        self.counts = [counts for counts in self.counts if counts.binding() is not None]

    def close(self) -> None:
        """Forget all bindings and their memory, in a turn; what they counted stays."""
        self.abandoned.clear()
        for binding in list(self.bindings):
            # Whoever waits for a turn with it finds it closed.
            binding.closed = True
            binding.end()
            binding.memories = ()


class _Counts:
    """What one binding did: how often it ran, how much of that is in the totals, and what each run moves."""

    def __init__(self, binding: BindingBase) -> None:
        self.binding = weakref.ref(binding)
        self.runs = self.settled = 0
        self.traffic = Traffic()
        self.own = GraphStats()


class BindingBase(DriverBinding):
    """The part of a binding that all backends have in common.

    Parameters
    ----------
    what
        The graph, for messages.
    memories
        What the client gave.
    ledger
        Where executions are counted.
    """

    judges_pools = False
    """Whether `_bind` itself refuses memory that is somebody's pool, since it knows which of them are its own."""

    def __init__(self, what: str, memories: Memories, ledger: ExecutionCounts) -> None:
        self.memories: tuple[TensorMemory | None, ...] = tuple(memories)
        self._what = what
        self._turn = ledger.turn
        self._ledger = ledger
        self._epoch = -1
        self._running = False
        self._counts = _Counts(self)
        self._uses: list[holds.Hold] = []
        self._windows: Sequence[tuple[str, Window]] = ()
        self._made_from: object | None = None
        ledger.in_turn(self._renew)

    @abstractmethod
    def _bind(self) -> tuple[Traffic, Sequence[tuple[str, Window]]]:
        """Check the memory and make it ready to run on, in a turn.

        The answer is what an execution will do with it, and the client's windows with the names of their tensors.
        """

    def _basis(self) -> object:
        """What a binding is made from besides the client's memory; while it is equal, it need not be made again."""
        return object()

    @abstractmethod
    def _run(self) -> None:
        """Execute on the memory, in a turn."""

    def _run_within(self, limit: ExecutionDeadline) -> None:
        """The same, within a limit."""
        raise QnnError(Code.COMMON_NOT_SUPPORTED, self._what, "this backend cannot end an execution early")

    def execute(self, limit: ExecutionDeadline | None = None) -> None:
        try:
            with self._turn:
                try:
                    # First, so that whoever claims this memory from now on finds it in use.
                    self._running = True
                    # Until nothing changes meanwhile: what was checked is recorded as in use only in the end.
                    while self._epoch != holds.epoch:
                        self._renew()
                    if limit is None:
                        self._run()
                    else:
                        limit.check(self._what)
                        self._run_within(limit)
                    self._counts.runs += 1
                finally:
                    self._running = False
        except BaseException:
            self._turn.forsake()
            raise

    def _in_turn(self, run: Callable[[], _Result]) -> _Result:
        """Run once in another way than `execute` does, with the same checks and counts."""

        def checked() -> _Result:
            try:
                self._running = True
                while self._epoch != holds.epoch:
                    self._renew()
                answer = run()
                self._counts.runs += 1
                return answer
            finally:
                self._running = False

        return self._ledger.in_turn(checked)

    @property
    def stats(self) -> GraphStats:
        return self._ledger.in_turn(self._stats)

    def _stats(self) -> GraphStats:
        self._ledger.settle()
        return replace(self._counts.own, in_place_bytes=dict(self._counts.own.in_place_bytes))

    def close(self) -> None:
        self.closed = True
        self._ledger.in_turn(self.end)

    def abandon(self) -> None:
        self._release_uses()
        # What has ended is not swept any more: it and the ledger would keep each other alive. What was closed has not,
        # where that was interrupted.
        if self in self._ledger.bindings:
            self._ledger.abandoned.append(self)

    def end(self) -> None:
        """Close, in a turn."""
        self._ledger.settle()
        self._release_uses()
        self._epoch, self._made_from = -1, None
        self._forget()
        # Last: an end that is interrupted before is made again.
        self._ledger.bindings.discard(self)

    def _forget(self) -> None:
        """Give back what `_bind` has made, in a turn; safe to call again."""

    def _renew(self) -> None:
        # Read first: what changes while the memory is checked is checked the next time.
        epoch = holds.epoch
        self._epoch = -1
        if self.closed:
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"binding of {self._what}", "it is closed")
        self._ledger.sweep()
        self._ledger.settle()
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
        self._made_from = None
        traffic, self._windows = self._bind()
        self._counts.traffic = traffic
        self._ledger.bindings.add(self)
        if self._counts not in self._ledger.counts:
            self._ledger.counts.append(self._counts)
        self._release_uses()
        alive = weakref.ref(self)

        def running() -> bool:
            binding = alive()
            return binding is not None and binding._running

        for name, window in self._windows:
            holder = f"memory of tensor '{name}' of {self._what}, which is executing,"
            self._uses.append(holds.use(window, holder, running))

    def _release_uses(self) -> None:
        for use in self._uses:
            use.release()
        self._uses.clear()
