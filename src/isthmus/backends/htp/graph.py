"""A graph on HTP: it runs in the accelerator, on registered memory in place and on raw memory by copies."""

from __future__ import annotations

import time
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from isthmus.backends.accelerator.remote import RemoteIo
from isthmus.backends.accelerator.staging import SharedStaging
from isthmus.backends.htp.memory import HtpRegistration
from isthmus.backends.htp.options import HtpFloatPrecision, HtpGraphConfigOption, HtpNumerics
from isthmus.backends.seam.binding import BindingBase, ExecutionCounts
from isthmus.backends.seam.driver import (
    Change,
    GraphDriver,
    GraphStats,
    Memories,
    Timings,
    Traffic,
    check_member,
    check_overlaps,
)
from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.backends.seam.native import NativeGraphDriver
from isthmus.backends.seam.planned import PlannedGraph
from isthmus.backends.seam.planned import plan as plan_for_all
from isthmus.backends.seam.staging import overwritten, require_memory, traffic
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, TensorMemType
from isthmus.graph.rounding import HEXAGON
from isthmus.memory import Window
from isthmus.prepare.tiling import ScratchLimit

if TYPE_CHECKING:
    from isthmus.backends.htp.driver import HtpContext


def plan(
    graph: Graph, threads: int, limit: ScratchLimit | None, precision: HtpFloatPrecision, numerics: HtpNumerics
) -> PlannedGraph:
    """Plan a graph with HTP's settings of its numbers."""
    follows_chip = numerics is HtpNumerics.HTP
    in_half = follows_chip or precision is HtpFloatPrecision.FLOAT16
    storage = DataType.FLOAT_16 if in_half else DataType.FLOAT_32
    return plan_for_all(graph, threads, limit=limit, float_storage=storage, numerics=HEXAGON if follows_chip else None)


class HtpGraphDriver(NativeGraphDriver[PlannedGraph]):
    """A graph in the accelerator. It is loaded when it is finalized, or with the context binary that it comes from."""

    configs = HtpGraphConfigOption

    def __init__(self, context: HtpContext, graph: Graph, prepared: PlannedGraph | None = None) -> None:
        super().__init__(graph, prepared, context.config.threads)
        self.context = context
        self._options: dict[IntEnum, Any] = {
            option: getattr(context.config, option.name.lower()) for option in HtpGraphConfigOption
        }
        # It holds the priority, not the graph: that would be a reference cycle.
        self.lock = context.queue.lock(GraphDriver.priority)
        self.counts = ExecutionCounts(self.lock)
        self.staging = SharedStaging(context.queue.accelerator)
        self.number = -1
        """Its number in the accelerator."""

    @property
    def priority(self) -> int:
        return self.lock.priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self.lock.priority = priority

    def get_config(self, option: IntEnum) -> Any:
        return self._options[option]

    def set_config(self, option: IntEnum, value: Any) -> Change:
        check_member(option, value, type(self._options[option]), Code.GRAPH_INVALID_ARGUMENT)
        if self._prepared is not None:
            raise QnnError(Code.GRAPH_FINALIZED, self.what, f"it is prepared: its {option.name.lower()} is fixed")
        return Change.entry(self._options, option, value)

    def _prepare(self) -> PlannedGraph:
        """Plan the graph; its numbers are stored and rounded as its precision and the configuration say."""
        precision, numerics = self._options[HtpGraphConfigOption.PRECISION], self.context.config.numerics
        return plan(self.graph, self._threads, self._scratch_limit, precision, numerics)

    def finalize(self) -> None:
        """Compile the graph, reserve its staging memory and load it into the accelerator; all of it or nothing."""
        self.context.check(self.what)
        planned = self.prepared()
        # First: if there is no memory for it, the graph is not loaded.
        self._reserve()
        try:
            self.loaded(self.context.load([planned])[self.graph.name])
        except Exception:
            self.staging.close()
            raise

    def loaded(self, number: int) -> None:
        """Record that the accelerator has loaded the graph, under this number."""
        self.number = number
        self._reserve()
        self.counts.total.staging_prepare_bytes = self.staging.nbytes
        self.finalized = True

    def _reserve(self) -> None:
        """Reserve staging memory for tensors that were prepared as raw."""
        raw = [index for index, info in enumerate(self.info.tensors) if info.mem_type is TensorMemType.RAW]
        self.staging.reserve(self.info.tensors, raw)

    def bind(self, memories: Memories) -> HtpBinding:
        return HtpBinding(self, memories, self.counts)

    def reset(self) -> None:
        self.context.check(self.what)
        self.counts.under_lock(lambda: self.context.queue.reset(self.number))

    def stats(self) -> GraphStats:
        return self.counts.stats()

    def close(self) -> None:
        """End all bindings and release staging memory and program; safe to call again."""
        # The queue is closed, and a thread that still holds its lock releases it soon; in a forked process no thread
        # holds it.
        if self.context.queue.accelerator.forked:
            self.counts.close()
        else:
            self.context.queue.under_lock(self.counts.close)
        self.staging.close()
        super().close()


class HtpBinding(BindingBase):
    """Memory for a graph in the accelerator: registered memory by its slot there, raw memory by a copy.

    - `_begun`: The time at which the memory was bound, until the first execution after that; then 0. The first
      execution is measured from there, with what it had to reserve.
    """

    def __init__(self, graph: HtpGraphDriver, memories: Memories, counts: ExecutionCounts) -> None:
        self._graph = graph
        self._queue = graph.context.queue
        self._begun = 0.0
        super().__init__(graph.what, memories, counts)

    def _basis(self) -> object:
        """Return the graph's number in the accelerator; refuse use after the accelerator has died."""
        self._graph.context.check(self._what)
        return self._graph.number

    def _bind(self) -> tuple[Traffic, list[tuple[str, Window]]]:
        """Check the memory, and decide which of it is used in place: what is registered. The rest is copied."""
        graph, infos, inputs = self._graph, self._graph.info.tensors, len(self._graph.info.inputs)
        graph.context.check(graph.what)
        self._begun = time.perf_counter()
        memories = [
            require_memory(graph.what, info, memory, "HTP") for info, memory in zip(infos, self.memories, strict=True)
        ]
        windows = [memory.window.part(0, info.nbytes) for info, memory in zip(infos, memories, strict=True)]
        pairs = check_overlaps(graph.what, infos, inputs, windows)
        known = {
            index: memory.registration.slot
            for index, memory in enumerate(memories)
            if isinstance(memory.registration, HtpRegistration)
        }
        # A copy that is made anyway, of either tensor, keeps the input as it was.
        shared = [(source, goal) for source, goal in pairs if source in known and inputs + goal in known]
        copied = overwritten(shared, graph.prepared().shareable_io)
        before = graph.staging.nbytes
        seen = {index: slot for index, slot in known.items() if index not in copied}
        self._io = io = RemoteIo(infos, inputs, windows, seen, graph.staging)
        self._count_staging(graph.staging.nbytes - before)
        kinds = [None if index in io.copied else "shared" for index in range(len(infos))]
        named = [(info.name, window) for info, window in zip(infos, windows, strict=True)]
        return traffic(infos, inputs, kinds, copied), named

    def close(self) -> None:
        """Close the binding; in a forked child do nothing, since the queue's lock is the parent's."""
        if not self._queue.accelerator.forked:
            super().close()

    def _run_within(self, limit: ExecutionDeadline) -> None:
        with limit.watched(self._queue.abort):
            self._run(limit.left)

    def execute_timed(self, limit: ExecutionDeadline | None = None) -> Timings:
        def timed() -> Timings:
            if limit is None:
                return self._measure()
            limit.check(self._what)
            with limit.watched(self._queue.abort):
                return self._measure(limit.left)

        return self._run_under_lock(timed)

    def _measure(self, seconds: float | None = None) -> Timings:
        """Execute as `_run` does, and return the times."""
        io = self._io
        timings = self._queue.timed(self._graph.number, io.slots, seconds, io.copies_in, io.copies_out)
        self._end_first()
        return timings

    def _run(self, seconds: float | None = None) -> None:
        """Execute in the accelerator, within a time limit, and measure the first execution."""
        io = self._io
        self._queue.execute(self._graph.number, io.slots, seconds, io.copies_in, io.copies_out)
        self._end_first()

    def _end_first(self) -> None:
        """Record the duration of the first execution, once."""
        if self._begun:
            self._count_first((time.perf_counter() - self._begun) * 1e6)
            self._begun = 0.0
