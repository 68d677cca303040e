"""A graph on HTP: it runs in the accelerator, on registered memory in place and on raw memory by copies."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from isthmus.backends.accelerator.remote import RemoteIo
from isthmus.backends.accelerator.staging import SharedStaging
from isthmus.backends.htp.memory import HtpRegistration
from isthmus.backends.htp.options import (
    HtpConfig,
    HtpFloatPrecision,
    HtpGraphConfigOption,
    HtpNumerics,
)
from isthmus.backends.htp.vtcm import is_whole_vtcm, vtcm_bytes
from isthmus.backends.seam import driver as seam
from isthmus.backends.seam.binding import BindingBase, ExecutionCounts
from isthmus.backends.seam.device_record import GraphRecord
from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.backends.seam.native import NativeGraphDriver
from isthmus.backends.seam.planned import GraphOutline, PlannedGraph
from isthmus.backends.seam.planned import plan as plan_for_all
from isthmus.backends.seam.staging import overwritten, require_memory, traffic
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, TensorMemType
from isthmus.graph.rounding import HEXAGON
from isthmus.memory import Window
from isthmus.memory.integers import is_int
from isthmus.prepare import PlanOptions
from isthmus.prepare.tiling import ScratchLimit

if TYPE_CHECKING:
    from isthmus.backends.htp.context import HtpContext


def plan(graph: Graph, threads: int, limit: ScratchLimit | None, config: HtpConfig, shares: bool) -> PlannedGraph:
    """Plan a graph with HTP's settings of its numbers; `shares` is whether it shares weights with others."""
    precision, numerics = config.precision, config.numerics
    follows_chip = numerics is HtpNumerics.HTP
    in_half = follows_chip or precision is HtpFloatPrecision.FLOAT16
    storage = DataType.FLOAT_16 if in_half else DataType.FLOAT_32
    options = PlanOptions(float_storage=storage, numerics=HEXAGON if follows_chip else None, is_uniform=shares)
    return plan_for_all(graph, threads, limit=limit, options=options)


def _check_option(option: IntEnum, value: Any) -> None:
    """Refuse a value that a graph's option cannot have."""
    assert isinstance(option, HtpGraphConfigOption)
    code, largest = Code.GRAPH_INVALID_ARGUMENT, option.largest
    if largest is None:
        seam.check_member(option, value, type(option.default), code)
    elif not is_int(value) or not 0 <= value <= largest:
        raise QnnError(code, f"{option.name.lower()} {value!r}", f"must be a number from 0 to {largest}")


class HtpGraphDriver(NativeGraphDriver[PlannedGraph | GraphOutline]):
    """A graph in the accelerator. It is loaded when it is finalized, or with the context binary that it comes from.

    With graph switching it may be loaded by an execution, and unloaded by that of another graph.
    """

    configs = HtpGraphConfigOption

    def __init__(
        self,
        context: HtpContext,
        graph: Graph,
        prepared: PlannedGraph | GraphOutline | None = None,
        record: GraphRecord | None = None,
    ) -> None:
        super().__init__(graph, prepared, context.config.threads)
        self.context = context
        self._options = context.config.graph_options(graph.name)
        self._record = record
        # It holds the priority, not the graph: that would be a reference cycle.
        self.lock = context.lock(seam.GraphDriver.priority)
        self.counts = ExecutionCounts(self.lock)
        self.staging = SharedStaging(context.queue.accelerator)
        self.number = -1
        """Its number in the accelerator; -1 if it is not loaded."""

    @property
    def priority(self) -> int:
        return self.lock.priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self.lock.priority = priority

    def get_config(self, option: IntEnum) -> Any:
        return self._options[option]

    def set_config(self, option: IntEnum, value: Any) -> seam.Change:
        _check_option(option, value)
        if self._prepared is not None:
            raise QnnError(Code.GRAPH_FINALIZED, self.what, f"it is prepared: its {option.name.lower()} is fixed")
        if option is HtpGraphConfigOption.DLBC_WEIGHTS and value:
            self.context.check_dlbc_weights(self.what)
        return seam.Change.entry(self._options, option, value)

    @property
    def record(self) -> GraphRecord:
        """The options that its binary states; those of the binary that it comes from, if it comes from one."""
        if self._record is not None:
            return self._record
        chosen = {option.name.lower(): value for option, value in self._options.items()}
        vtcm = vtcm_bytes(self._options, self.context.soc, self.context.arch)
        return GraphRecord(
            vtcm, chosen["optimization_level"], chosen["num_hvx_threads"], int(chosen["dlbc"]),
            int(chosen["share_io_buffer"] and self._is_io_shareable),
            int(is_whole_vtcm(self._options, self.context.arch)),
        )  # fmt: skip

    @property
    def _is_io_shareable(self) -> bool:
        """Whether every output may be in the memory of every input."""
        planned = self.planned()
        pairs = len(planned.info.inputs) * len(planned.info.outputs)
        return len(planned.shareable_io) == pairs

    def _prepare(self) -> PlannedGraph:
        """Plan the graph; its numbers are stored and rounded as its precision and the configuration say."""
        threads = self._options[HtpGraphConfigOption.NUM_HVX_THREADS]
        self._options[HtpGraphConfigOption.NUM_HVX_THREADS] = self.context.vector_threads(threads)
        self.context.check_cores(self.what, self._options[HtpGraphConfigOption.NUM_CORES])
        config = replace(self.context.config, precision=self._options[HtpGraphConfigOption.PRECISION])
        return plan(self.graph, self._threads, self._scratch_limit, config, self.context.weight_sharing)

    def planned(self) -> PlannedGraph:
        """Return the graph with its constants; those of a binary that its client keeps are read from there."""
        prepared = self.prepared()
        return prepared if isinstance(prepared, PlannedGraph) else self.context.source.graph(self.graph.name)

    def finalize(self) -> None:
        """Compile the graph, reserve its staging memory and load it into the accelerator; all of it or nothing."""
        self.context.check(self.what)
        self.prepared()
        if self.context.prepare_only:
            self.finalized = True
            return
        # First: if there is no memory for it, the graph is not loaded.
        self._reserve()
        try:
            self.mark_loaded(self.context.load_composed(self))
        except Exception:
            self.staging.close()
            raise

    def mark_loaded(self, number: int) -> None:
        """Record that the accelerator has loaded the graph, under this number."""
        self.number = number
        self._reserve()
        self.counts.total.staging_prepare_bytes = self.staging.nbytes
        self.finalized = True

    def unload(self) -> None:
        """Unload the graph from the accelerator, if it is loaded there; safe to call again."""
        # Forgotten first: a call that is interrupted is completed by the queue, and the number may be another's then.
        number, self.number = self.number, -1
        if number >= 0 and self.context.queue.accelerator.alive:
            self.context.queue.unload(number)

    def _reserve(self) -> None:
        """Reserve staging memory for tensors that were prepared as raw."""
        raw = [index for index, info in enumerate(self.info.tensors) if info.mem_type is TensorMemType.RAW]
        self.staging.reserve(self.info.tensors, raw)

    def bind(self, memories: seam.Memories) -> HtpBinding:
        return HtpBinding(self, memories, self.counts)

    def reset(self) -> None:
        self.context.check(self.what)
        self.counts.under_lock(lambda: self.context.reset(self))

    def stats(self) -> seam.GraphStats:
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

    def __init__(self, graph: HtpGraphDriver, memories: seam.Memories, counts: ExecutionCounts) -> None:
        self._graph = graph
        self._queue = graph.context.queue
        self._begun = 0.0
        super().__init__(graph.what, memories, counts)

    def _basis(self) -> object:
        """Return the graph's number in the accelerator, if it stays; refuse use after the accelerator has died."""
        self._graph.context.check(self._what)
        return -1 if self._graph.context.switch is not None else self._graph.number

    def _bind(self) -> tuple[seam.Traffic, list[tuple[str, Window]]]:
        """Check the memory, and decide which of it is used in place: what is registered. The rest is copied."""
        graph, infos, inputs = self._graph, self._graph.info.tensors, len(self._graph.info.inputs)
        graph.context.check(graph.what)
        if graph.number < 0 and graph.context.switch is None:
            rule, hint = "its context only prepares graphs", "Create a context from its binary."
            raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, graph.what, rule, hint)
        self._begun = time.perf_counter()
        memories = [
            require_memory(graph.what, info, memory, "HTP") for info, memory in zip(infos, self.memories, strict=True)
        ]
        windows = [memory.window.part(0, info.nbytes) for info, memory in zip(infos, memories, strict=True)]
        pairs = seam.check_overlaps(graph.what, infos, inputs, windows)
        registered = {
            index: memory.registration.slot
            for index, memory in enumerate(memories)
            if isinstance(memory.registration, HtpRegistration)
        }
        # A copy that is made anyway, of either tensor, keeps the input as it was.
        shared = [(source, goal) for source, goal in pairs if source in registered and inputs + goal in registered]
        copied = overwritten(shared, graph.prepared().shareable_io)
        before = graph.staging.nbytes
        seen = {index: slot for index, slot in registered.items() if index not in copied}
        self._io = io = RemoteIo(infos, inputs, windows, seen, graph.staging)
        self._count_staging(graph.staging.nbytes - before)
        kinds = [None if index in io.copied else "shared" for index in range(len(infos))]
        named = [(info.name, window) for info, window in zip(infos, windows, strict=True)]
        return traffic(infos, inputs, kinds, copied), named

    def close(self) -> None:
        """Close the binding; in a forked child do nothing, since the queue's lock is the parent's."""
        if not self._queue.accelerator.forked:
            super().close()

    def _be_loaded(self) -> int:
        """Load the graph if it is not loaded, and return its number in the accelerator."""
        graph = self._graph
        if graph.number < 0:
            graph.context.switch_to(graph)
        return graph.number

    def _run_within(self, limit: ExecutionDeadline) -> None:
        self._be_loaded()
        with limit.watched(self._queue.abort):
            self._run(limit.left)

    def execute_timed(self, limit: ExecutionDeadline | None = None) -> seam.Timings:
        def timed() -> seam.Timings:
            if limit is None:
                return self._measure()
            limit.check(self._what)
            self._be_loaded()
            with limit.watched(self._queue.abort):
                return self._measure(limit.left)

        return self._run_under_lock(timed)

    def _measure(self, seconds: float | None = None) -> seam.Timings:
        """Execute as `_run` does, and return the times."""
        io = self._io
        timings = self._queue.execute_timed(self._be_loaded(), io.slots, seconds, io.copies_in, io.copies_out)
        self._end_first()
        return timings

    def _run(self, seconds: float | None = None) -> None:
        """Execute in the accelerator, within a time limit, and measure the first execution."""
        io = self._io
        self._queue.execute(self._be_loaded(), io.slots, seconds, io.copies_in, io.copies_out)
        self._end_first()

    def _end_first(self) -> None:
        """Record the duration of the first execution, once."""
        if self._begun:
            self._count_first((time.perf_counter() - self._begun) * 1e6)
            self._begun = 0.0
