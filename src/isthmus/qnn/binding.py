"""Bindings: a graph with memory for each input and output, checked once, executed any number of times."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from isthmus import audit_log
from isthmus.backends.seam.driver import DriverBinding, GraphDriver, GraphStats, Memories, TensorMemory, Timings
from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.errors import Code, QnnError
from isthmus.memory.buffer import ClientBuffer
from isthmus.qnn.asynchronous import Execution
from isthmus.qnn.profile import OPERATION, ExecutionSpans, Profile, ProfileLevel, ProfilingEvent
from isthmus.qnn.signal import Reservation, Signal
from isthmus.qnn.tensor import ClientTensor
from isthmus.system.interrupts import Finalizer
from isthmus.system.shield import shielded, unless_exiting

if TYPE_CHECKING:
    from isthmus.qnn.graph import QnnGraph

REMEMBERED = 32
"""How many bindings `QnnGraph.execute` caches; the least recently used is evicted. The same as the number of executions
that ``capi/library.c`` remembers.
"""
REMEMBERED_BYTES = 1 << 25
"""How many bytes the cached bindings other than the last used may keep alive."""
# How many calls are remembered by the very objects that they were given: the fastest lookup.
_RECENT = 4
# How many combinations of addresses and shapes lead to cached bindings.
_MAX_PLACES = 4 * REMEMBERED
# The inputs of one call, or its outputs.
_Tensors = tuple[ClientTensor, ...]


class Binding:
    """A graph bound to memory. Created by `QnnGraph.bind`.

    All checks were made at creation. If something it relies on has changed since (a pool was replaced, or memory was
    deregistered, closed or given to another graph), the next execution checks again and may be refused.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus import qnn
    >>> x, y = np.float32([[-1, 2]]), np.zeros((1, 2), np.float32)
    >>> with qnn.Backend("cpu") as backend:
    ...     graph = backend.create_context().create_graph("positive")
    ...     given = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, x.shape)
    ...     made = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, y.shape)
    ...     graph.add_node("relu", "Relu", [given], [made])
    ...     graph.finalize()
    ...     with graph.bind([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)]) as binding:
    ...         binding.execute()
    ...         binding.stats.in_place_bytes, y.tolist()
    ({'raw': 16}, [[0.0, 2.0]])
    """

    def __init__(self, graph: QnnGraph, driver: DriverBinding) -> None:
        self.graph = graph
        self._driver = driver
        # Closes the driver's binding if this object is collected without `close`. Not needed at exit: the backend has
        # already ended it by then, or the end of the process will.
        self._forgotten = Finalizer(self, driver.abandon)

    def __repr__(self) -> str:
        return f"<Binding: {self.graph.what}{', closed' * self._driver.closed}>"

    def execute(
        self, profile: Profile | None = None, signal: Signal | Reservation | None = None, wait_for: Any = None
    ) -> Any:
        """Run once (QnnGraph_execute).

        Parameters
        ----------
        profile, signal
            Where to record timings, and what may end the execution early.
        wait_for
            Events of the device, if the backend has them. The execution is enqueued, runs after them, and is not waited
            for. The return value is then the event of its end.
        """
        if not self.graph.usable:
            self.graph._check()
        try:
            if profile is None and signal is None and wait_for is None:
                # Looked up at each call, because an audit exchanges the method.
                self._driver.execute()
            elif wait_for is not None:
                return enqueue_after(self._driver.enqueue, wait_for, profile, signal)
            else:
                run_watched(partial(run, self._driver), self.graph.driver, profile, signal)
            return None
        except QnnError as error:
            audit_log.refuse(error)
            # If the graph was freed meanwhile, that is the cause, whatever error the backend reports.
            self.graph._check()
            raise

    def execute_async(
        self,
        notify: Callable[[Execution], object] | None = None,
        profile: Profile | None = None,
        signal: Signal | None = None,
    ) -> Execution:
        """Run once on another thread, in the order of such calls on the context (QnnGraph_executeAsync).

        Parameters
        ----------
        notify
            Called with the execution when it has ended.
        profile, signal
            As for `execute`. The signal's timeout starts now, and the signal is in use until the execution has ended.
        """
        return self.graph._submit(self.execute, notify, profile, signal)

    @property
    def stats(self) -> GraphStats:
        """Totals of this binding: executions, bytes copied, bytes used in place."""
        self.graph._check()
        return self._driver.stats

    @unless_exiting
    @shielded
    def close(self) -> None:
        """Release the binding; safe to call again."""
        if self._forgotten.waits:
            self._driver.close()
            self._forgotten.forget()

    def __enter__(self) -> Binding:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def run(binding: DriverBinding, limit: ExecutionDeadline | None, timed: bool) -> Timings:
    """Run a binding once, and return the time of each operation if `timed`."""
    if timed:
        return binding.execute_timed(limit)
    binding.execute(limit)
    return Timings()


def enqueue_after(
    enqueue: Callable[[Any], Any], wait_for: Any, profile: Profile | None, signal: Signal | Reservation | None
) -> Any:
    """Enqueue an execution on the device, after the events `wait_for`; return the event of its end."""
    if profile is not None or signal is not None:
        rule = "wait_for cannot be combined with a profile or a signal: the call does not wait for the end"
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, "execution", rule)
    return enqueue(wait_for)


def check_kinds(profile: Any, signal: Any) -> None:
    """Refuse arguments that are not a profile and a signal."""
    for argument, kinds in ((profile, (Profile,)), (signal, (Signal, Reservation))):
        if argument is not None and not isinstance(argument, kinds):
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, "execution", f"{argument!r} is no {kinds[0].__name__}")


def run_watched(
    execute: Callable[[ExecutionDeadline | None, bool], Timings],
    graph: GraphDriver,
    profile: Profile | None,
    signal: Signal | Reservation | None,
) -> None:
    """Run once within the limits of a signal, and record timings in a profile.

    - `execute`: Runs once. It takes the deadline and whether to time each operation, and returns the times, as `run`
      does.
    """
    check_kinds(profile, signal)
    if signal is not None:
        with signal.in_use() as limit:
            run_watched(lambda _, timed: execute(limit, timed), graph, profile, None)
        return
    if profile is None:
        execute(None, False)
        return
    before = graph.stats()
    begin = time.perf_counter()
    timings = execute(None, profile.level is ProfileLevel.DETAILED)
    end = time.perf_counter()
    microseconds = (end - begin) * 1e6 - timings.preparation_us
    profile.add(*_events(profile.level, microseconds, before, graph.stats()))
    profile.add(*(ProfilingEvent(OPERATION + each.name, each.microseconds, "us") for each in timings.operations))
    if profile.level is ProfileLevel.DETAILED:
        # The clocks of this module and of the spans are the same one on Linux.
        times = [time for span in (*timings.phases, *timings.spans) for time in (span.begin, span.end)] or [begin, end]
        thread = threading.current_thread().name
        profile.add_spans(ExecutionSpans(graph.graph.name, min(times), max(times), thread, timings))


def _events(level: ProfileLevel, microseconds: float, before: GraphStats, after: GraphStats) -> list[ProfilingEvent]:
    """Return the events of one execution: its time and, in a detailed profile, the growth of the graph's totals."""
    events = [ProfilingEvent("execute", microseconds, "us")]
    if level is ProfileLevel.DETAILED:
        events.append(ProfilingEvent("copied in", after.copied_in_bytes - before.copied_in_bytes, "bytes"))
        events.append(ProfilingEvent("copied out", after.copied_out_bytes - before.copied_out_bytes, "bytes"))
        events.append(ProfilingEvent("staging reserved", after.staging_bytes - before.staging_bytes, "bytes"))
        events += [
            ProfilingEvent(f"used in place: {kind}", nbytes - before.in_place_bytes.get(kind, 0), "bytes")
            for kind, nbytes in after.in_place_bytes.items()
        ]
    return events


@dataclass(eq=False)
class _CachedBinding:
    """A cached binding, the memory it was created from, and when it was last used (a count of uses, not a time)."""

    binding: DriverBinding
    memories: Memories
    used: int = 0

    def kept_bytes(self) -> int:
        """Return how many bytes it keeps alive, not counting bare addresses and open registrations."""
        return sum(memory.window.nbytes for memory in self.memories if memory is not None and _is_kept(memory))


class Bindings:
    """The bindings cached by `QnnGraph.execute`.

    They are looked up in three ways, the fastest first: by the `ClientTensor` objects of the last calls (`_recent`), by
    the addresses and shapes of their memory (`_by_place`), and by the identity of that memory (`_by_memory`), which
    holds every cached binding.

    A binding that is evicted from the cache is closed; a caller that still has it looks it up again.
    """

    def __init__(self, bind: Callable[[Memories, int], DriverBinding]) -> None:
        self._bind = bind
        self._lock = threading.Lock()
        self._clock = itertools.count()
        self._last: _CachedBinding | None = None
        self._recent: tuple[tuple[_Tensors, _Tensors, _CachedBinding], ...] = ()
        self._by_place: dict[Any, _CachedBinding] = {}
        self._by_memory: dict[Any, _CachedBinding] = {}

    def find(self, inputs: _Tensors, outputs: _Tensors) -> DriverBinding | None:
        """Return the binding of exactly these objects, or of other arrays at the same addresses, if cached."""
        cached = self._look_up(inputs, outputs)
        if cached is None:
            return None
        if cached is not self._last:
            self._use(cached)
        return cached.binding

    def _look_up(self, inputs: _Tensors, outputs: _Tensors) -> _CachedBinding | None:
        """Look in `_recent`, then in `_by_place`; without the lock, since each is read in one atomic operation."""
        for recent_inputs, recent_outputs, cached in self._recent:
            if recent_inputs == inputs and recent_outputs == outputs:
                return cached
        # A binding keeps the objects it was created from, so no other object can be at these addresses. The client is
        # responsible for what is at a bare address.
        return self._by_place.get(_places(inputs, outputs))

    def of(self, inputs: _Tensors, outputs: _Tensors, memories: Memories, multiple: int = 1) -> DriverBinding:
        """Return the binding of these memories for a multiple of the batch, creating it if there is none."""
        key = (multiple, *(None if memory is None else _memory_key(memory) for memory in memories))
        with self._lock:
            cached = self._by_memory.get(key)
            if cached is None:
                cached = self._by_memory[key] = _CachedBinding(self._bind(memories, multiple), memories)
            self._use(cached)
            self._recent = ((inputs, outputs, cached), *self._recent[: _RECENT - 1])
            places = _places(inputs, outputs)
            if places is not None:
                if len(self._by_place) >= _MAX_PLACES:
                    # The same memory may be described in many ways, as arrays of different shapes.
                    self._by_place = {}
                self._by_place[places] = cached
            while len(self._by_memory) > REMEMBERED or (
                len(self._by_memory) > 1 and self._kept_bytes() > REMEMBERED_BYTES
            ):
                oldest = min(self._by_memory, key=lambda each: self._by_memory[each].used)
                self._evict(self._by_memory.pop(oldest))
        return cached.binding

    def _use(self, cached: _CachedBinding) -> None:
        """Mark it as the last used."""
        cached.used = next(self._clock)
        self._last = cached

    def clear(self) -> None:
        """Release all memory, after the graph has ended."""
        with self._lock:
            self._recent, self._last = (), None
            self._by_place.clear()
            self._by_memory.clear()

    def _kept_bytes(self) -> int:
        """Return how many bytes all bindings but the last used keep alive."""
        return sum(cached.kept_bytes() for cached in self._by_memory.values() if cached is not self._last)

    def _evict(self, evicted: _CachedBinding) -> None:
        """Close a binding that is no longer in `_by_memory`, and remove it from `_recent` and `_by_place`."""
        self._recent = tuple(entry for entry in self._recent if entry[2] is not evicted)
        self._by_place = {places: cached for places, cached in self._by_place.items() if cached is not evicted}
        evicted.binding.close()


def _places(inputs: _Tensors, outputs: _Tensors) -> tuple[Any, ...] | None:
    """Return `ClientTensor.place` of all inputs and of all outputs, or None unless all are arrays or addresses."""
    try:
        places = tuple([tensor.place for tensor in inputs]), tuple([tensor.place for tensor in outputs])
    except AttributeError:
        # An object that is not a tensor is refused later, when it is resolved.
        return None
    return None if None in places[0] or None in places[1] else places


def _is_kept(memory: TensorMemory) -> bool:
    """Return whether a binding keeps this memory alive: the client may have dropped or deregistered it."""
    if memory.registration is not None:
        return not memory.registration.is_open
    return not isinstance(memory.window.buffer, ClientBuffer) or memory.window.buffer.owner is not None


def _memory_key(memory: TensorMemory) -> tuple[Any, ...]:
    """Return a key of the memory: its identity, its address and its registration."""
    # The same memory may be mapped at two addresses. A binding uses the one it was given: the other mapping may end at
    # any time.
    window = memory.window
    return window.spans, window.address if window.buffer.has_host_view else None, id(memory.registration)


def check_finalized(graph: QnnGraph) -> None:
    """Refuse to execute or bind a graph that is not finalized."""
    if not graph.finalized:
        raise QnnError(
            Code.GRAPH_NOT_FINALIZED, graph._what, "only a finalized graph can be executed", "Call finalize() first."
        )
