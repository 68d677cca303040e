"""A graph on LPAI: prepared, given its pools, finalized, bound to memory, run under its context's execution lock."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from isthmus.backends.accelerator.remote import RemoteExecutor, RemoteIo, is_shared
from isthmus.backends.lpai.memory import GraphPool, PoolMemory, io_window, plan_pools
from isthmus.backends.lpai.model import Allocator, LpaiModel, ModelBinary
from isthmus.backends.lpai.options import (
    GRAPH_STRUCTURES,
    UINT32_MAX,
    BufferAlignmentReq,
    GraphProperty,
    LpaiGraphOption,
    LpaiMemType,
    Mem,
    Prepare,
)
from isthmus.backends.seam import driver as seam
from isthmus.backends.seam import native
from isthmus.backends.seam.binary import to_bytes
from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.backends.seam.planned import PlannedGraph
from isthmus.backends.seam.runner import HostRunner, RunnerBinding, RunnerGraphDriver
from isthmus.backends.seam.staging import InputStaging, overwritten, traffic
from isthmus.engine.native.executor import BoundIo
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph
from isthmus.memory import Window, holds
from isthmus.prepare.tiling import ScratchLimit

if TYPE_CHECKING:
    from isthmus.backends.lpai.driver import LpaiContext


class LpaiGraphDriver(RunnerGraphDriver[PlannedGraph, "HostRunner | RemoteRunner"]):
    """A graph and its pools.

    - `graph`: The graph, composed or still to be composed.
    - `prepared`, `program`, `model_binary`: For a graph of a context binary: its plan, its program for this machine,
      and the binary with all graphs of the context.
    - `_model`: The program where it is executed, with its own IO memory; None until the graph is finalized.
    """

    properties = GraphProperty
    configs = LpaiGraphOption

    def __init__(
        self,
        context: LpaiContext,
        graph: Graph,
        prepared: PlannedGraph | None = None,
        program: Program | None = None,
        model_binary: ModelBinary | None = None,
    ) -> None:
        # The function must not refer to this object, which would then live until the collector runs.
        what = f"graph '{graph.name}'"
        staging = InputStaging(
            lambda info: context.allocator.allocate(f"copy of tensor '{info.name}' of {what}", info.nbytes)
        )
        super().__init__(graph, prepared, context.lock, staging)
        self.context = context
        self._program = program
        self._model_binary = model_binary
        config = context.backend.config
        # The values of options that are set by one structure each; pools are in `_scratch` and `_persistent`.
        self._settings: dict[IntEnum, Any] = {
            **{option: row.kind() for option, row in GRAPH_STRUCTURES.items()},
            LpaiGraphOption.PERF_CFG: config.performance,
            LpaiGraphOption.CORE_AFFINITY: config.affinity,
            LpaiGraphOption.PREPARE: config.prepare,
        }
        # The graphs of a context execute one at a time, so their scratch may be the same memory.
        self._scratch = GraphPool(
            "scratch memory",
            "until it is replaced or the context is freed",
            LpaiGraphOption.SCRATCH_MEM,
            self.what,
            group=context.lock,
        )
        self._persistent = GraphPool(
            "persistent memory", "until its context is freed", LpaiGraphOption.PERSISTENT_MEM, self.what
        )
        self._model: LpaiModel | None = None
        # The scratch that the executor currently has; None if that is unknown because of an interrupt.
        self._executor_scratch: PoolMemory | None = None

    @property
    def alignment(self) -> BufferAlignmentReq:
        """The required alignment of its memory."""
        return self.context.backend.config.alignment

    @property
    def allocator(self) -> Allocator:
        """The allocator of its IO buffers and model binary."""
        return self.context.allocator

    @property
    def _exclude_io(self) -> bool:
        """Whether inputs and outputs are planned outside scratch."""
        return bool(self._settings[LpaiGraphOption.PREPARE].exclude_io)

    def _prepare(self) -> PlannedGraph:
        """Plan the graph. Inputs and outputs are planned into scratch, unless they are excluded or in TCM."""
        in_scratch = not self._exclude_io and self.context.mem_type is not LpaiMemType.TCM
        return plan_pools(self.graph, self.alignment, in_scratch, self.scratch_limit)

    @property
    def scratch_limit(self) -> ScratchLimit | None:
        limit: ScratchLimit | None = self._settings[LpaiGraphOption.PREPARE].scratch_limit
        return limit

    def set_scratch_limit(self, limit: ScratchLimit | None) -> seam.Change:
        return self._set_prepare(replace(self._settings[LpaiGraphOption.PREPARE], scratch_limit=limit))

    def set_threads(self, threads: int) -> seam.Change:
        # Not as `NativeGraphDriver` does: LPAI runs a graph on one thread.
        return seam.GraphDriver.set_threads(self, threads)

    # -- properties and configs ----------------------------------------------------------------------------------------

    def get_property(self, option: IntEnum) -> Any:
        if option is GraphProperty.SCRATCH_MEM_SIZE:
            return self.required_bytes(self._scratch)
        if option is GraphProperty.PERSISTENT_MEM_SIZE:
            return self.required_bytes(self._persistent)
        if option is GraphProperty.IO_OFFSETS:
            return self.prepared().io_offsets
        return super().get_property(option)

    def get_config(self, option: IntEnum) -> Any:
        """Return the memory of a pool, a structure, or None for RESET_STATE, which has no value."""
        pools: dict[IntEnum, Any] = {pool.option: pool.present.memory for pool in self.pools}
        return {**self._settings, **pools, LpaiGraphOption.RESET_STATE: None}[option]

    def set_config(self, option: IntEnum, value: Any) -> seam.Change:
        if option is LpaiGraphOption.RESET_STATE:
            return self._set_reset(value)
        is_prepare = option is LpaiGraphOption.PREPARE
        kind: type[Any] = Prepare if is_prepare else GRAPH_STRUCTURES[LpaiGraphOption(option)].kind
        if not isinstance(value, kind):
            rule = f"this config takes a {kind.__name__}, got {value!r}"
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, self.what, rule)
        for pool in self.pools:
            if pool.option is option:
                return self._set_pool(pool, value)
        return self._set_prepare(value) if is_prepare else seam.Change.entry(self._settings, option, value)

    def _set_prepare(self, value: Prepare) -> seam.Change:
        """Set the options of preparation; a graph that is compiled but not finalized will be compiled again."""
        if self.finalized:
            raise QnnError(Code.GRAPH_FINALIZED, self.what, "it is prepared and finalized")
        if self._restored:
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, self.what, "it came prepared out of a context binary")
        change, prepared = seam.Change.entry(self._settings, LpaiGraphOption.PREPARE, value), self._prepared
        self._prepared = None

        def undo() -> None:
            change.undo()
            self._prepared = prepared

        return seam.Change(undo=undo)

    def _set_reset(self, value: Any) -> seam.Change:
        """Check a request to reset the state; it is reset when all configs that are set with it are accepted."""
        if value is not None:
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, self.what, f"RESET_STATE takes None, got {value!r}")
        self.executor()
        return seam.Change(keep=self.reset)

    # -- pools ---------------------------------------------------------------------------------------------------------

    @property
    def pools(self) -> tuple[GraphPool, GraphPool]:
        """Its scratch and its persistent memory."""
        return self._scratch, self._persistent

    def required_bytes(self, pool: GraphPool) -> int:
        """Return the required size of a pool in bytes."""
        needs = self.prepared().schedule
        nbytes = self.alignment.padded(needs.scratch_bytes if pool is self._scratch else needs.state_bytes)
        if nbytes > UINT32_MAX:
            rule = f"needs {nbytes} bytes of {pool.name}, over 32 bits"
            raise QnnError(Code.GRAPH_OPTIMIZATION_FAILED, self.what, rule)
        return nbytes

    def _set_pool(self, pool: GraphPool, memory: Mem) -> seam.Change:
        """Set a pool of the graph, after a running execution; the previous memory is held until the change is final."""
        required_bytes = self.required_bytes(pool)
        with self._lock:
            if pool is self._persistent and self.finalized:
                raise QnnError(
                    Code.GRAPH_FINALIZED,
                    pool.what,
                    "it holds the state of a finalized graph and cannot be replaced",
                    "It is the graph's until the context is freed.",
                )
            before = pool.present
            taken = pool.take(memory, required_bytes, self.alignment)
            try:
                if self._executor is not None:
                    # The graph is finalized, so the pool is scratch.
                    self._bring(taken)
            except Exception:
                taken.release()
                raise
            # Bindings know where inputs and outputs are in scratch, so they must check again. They are told before the
            # pool changes, since an interrupt may come in between.
            holds.record_change()
            pool.present = taken

        def undo() -> None:
            with self._lock:
                if pool.present is taken:
                    if self._executor is not None:
                        self._bring(before)
                    holds.record_change()
                    pool.present = before
                else:
                    # Another call has replaced the memory since, and its memory stays; both earlier ones are released.
                    before.release()
                taken.release()
                holds.record_change()

        return seam.Change(before.release, undo)

    def renew_runner(self) -> None:
        """Ensure that the executor has the scratch that is set; it has another if setting it was interrupted."""
        if self._executor_scratch is not self._scratch.present:
            self._bring(self._scratch.present)

    def _bring(self, scratch: PoolMemory) -> None:
        """Give the executor this scratch; inputs and outputs must be bound again, since they may be in it."""
        executor = self.executor()
        self.current_binding = self._executor_scratch = None
        executor.bind_scratch(scratch.window)
        self._executor_scratch = scratch

    def _pool_window(self, pool: GraphPool) -> Window | None:
        """Return the window of a pool, checked again against what the graph needs now."""
        required_bytes, present = self.required_bytes(pool), pool.present
        if present.window is None and required_bytes == 0:
            return None
        hint = f"Call set_config({pool.option.name}, Mem(MemType.DDR, {required_bytes}, buffer)) before finalize()."
        if present.window is None:
            raise QnnError(Code.GRAPH_FINALIZE_FAILED, self.what, f"its {pool.name} is not set", hint)
        if present.window.nbytes < required_bytes:
            rule = f"its {pool.name} has {present.window.nbytes} bytes, {required_bytes} are needed"
            raise QnnError(Code.GRAPH_FINALIZE_FAILED, self.what, rule, hint)
        return present.window

    # -- finalize and execute ------------------------------------------------------------------------------------------

    def finalize(self) -> None:
        """Plan the graph, place it in its memory type, bind it to its pools and write its initial state there."""
        planned = self.prepared()
        with self._lock:
            if self.finalized:
                raise QnnError(Code.GRAPH_FINALIZED, self.what, "it is finalized already")
            scratch, persistent = self._pool_window(self._scratch), self._pool_window(self._persistent)
            model = self.allocator.place(planned.info, self._binary_to_place, self.what, with_io=not self._exclude_io)
            executor: HostRunner | RemoteRunner | None = None
            try:
                program, self._program = self._program or self.context.segments.share(native.lowered(planned)), None
                executor = self.context.executor(program, scratch, persistent)
                executor.reset()
            except Exception:
                if executor is not None:
                    executor.close()
                model.close()
                raise
            self._executor, self._model, self._executor_scratch = executor, model, self._scratch.present
            self.inputs_survive = bool(model.io) or not self.prepared().io_offsets
            self.finalized = True

    def _binary_to_place(self) -> ModelBinary:
        """Return the binary that its context was created from, or else a binary of this graph alone."""
        if self._model_binary is not None:
            return self._model_binary
        return ModelBinary(to_bytes([self.prepared()], "lpai"), f"model binary of {self.what}")

    def place(self, index: int) -> Window | None:
        """Return the place that was planned for an input or output: in TCM, or in scratch; None if there is none."""
        if self._model is None:
            # Not finalized yet.
            return None
        if self._model.io:
            return self._model.io[index]
        offsets, scratch = self.prepared().io_offsets, self._scratch.present.window
        if not offsets or scratch is None:
            return None
        return scratch.part(offsets[index], self.info.tensors[index].nbytes)

    def bind(self, memories: seam.Memories) -> LpaiBinding:
        return LpaiBinding(self, memories, self._counts)

    def check_io(self, index: int, memory: seam.TensorMemory | None) -> tuple[Window, str]:
        """Return the memory of an input or output, checked, and its kind: "tcm", "scratch", "raw" or "shared".

        - `memory`: The client's memory. By default the place that was planned for the tensor, which the client may also
          pass.
        """
        info, own, in_tcm = self.info.tensors[index], self.place(index), self.context.mem_type is LpaiMemType.TCM
        what = f"tensor '{info.name}' of {self.what}"
        own_kind = "tcm" if in_tcm else "scratch"
        if memory is None:
            if own is None:
                rule = "needs a buffer: its IO is planned out of scratch (exclude_io)"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule)
            return own, own_kind
        tcm_bytes = self.allocator.tcm_bytes if in_tcm else None
        window = io_window(what, memory.window, info.nbytes, self.alignment, tcm_bytes)
        if own is not None and own.spans == window.spans:
            return own, own_kind
        holds.refuse_claimed(window, what)
        if in_tcm:
            return window, own_kind
        return window, "raw" if memory.registration is None else "shared"

    def stats(self) -> seam.GraphStats:
        """Return the statistics so far; staging is what copies of inputs and the runner have reserved now."""
        executor = self._executor
        staging = self.staging.nbytes + (0 if executor is None else executor.staging_bytes)
        return replace(super().stats(), staging_execute_bytes=staging)

    def _release(self) -> None:
        self._executor_scratch = self._program = None
        if self._model is not None:
            self._model.close()
            self._model = None
        if self._model_binary is not None:
            # An interrupt may have lost the model that would have released it.
            self._model_binary.release(self.graph.name)
        for pool in self.pools:
            pool.release()


class RemoteRunner(RemoteExecutor):
    """A program in the accelerator. A run that fails raises its error itself."""

    def check(self, what: str) -> None:
        """Do nothing: a run that failed has raised its error."""

    def run_until(self, limit: ExecutionDeadline, what: str) -> None:
        """Run once within a deadline."""
        with limit.watched(self.abort):
            self.run(limit.left)

    def measure(self, limit: ExecutionDeadline | None, what: str) -> seam.Timings:
        """Run once, within a deadline if there is one, and return the time of each step."""
        if limit is None:
            return self.run_timed()
        limit.check(what)
        with limit.watched(self.abort):
            return self.run_timed(limit.left)


class LpaiBinding(RunnerBinding):
    """Memory for a graph on LPAI: used in place, or copied if the core cannot see it."""

    judges_pools = True
    _graph: LpaiGraphDriver

    def _bind(self) -> tuple[seam.Traffic, list[tuple[str, Window]]]:
        """Check the memory of each input and output, and prepare it for the runner."""
        graph, infos, inputs = self._graph, self._graph.info.tensors, len(self._graph.info.inputs)
        executor = graph.executor()
        places = [graph.check_io(index, memory) for index, memory in enumerate(self.memories)]
        windows = [window for window, _ in places]
        # Within scratch, the plan decides which tensors may overlap.
        outside = [None if kind == "scratch" else window for window, kind in places]
        pairs = seam.check_overlaps(graph.what, infos, inputs, outside)
        copied = first = overwritten(pairs, graph.prepared().shareable_io)
        io: BoundIo | RemoteIo
        if isinstance(executor, RemoteRunner):
            # Memory that the core cannot see is copied anyway.
            first = frozenset(index for index in first if is_shared(windows[index]))
            io = executor.bound(windows, first)
            copied = io.copied
        else:
            io = BoundIo(executor.program, self._copy_first(graph.staging, infos, windows, first))
        self._forget()
        self._io, self._native = io, executor.run
        kinds = [None if index in copied else kind for index, (_, kind) in enumerate(places)]
        named = zip((info.name for info in infos), outside, strict=True)
        return traffic(infos, inputs, kinds, first), [(name, window) for name, window in named if window is not None]

    def _forget(self) -> None:
        if isinstance(self._io, RemoteIo):
            self._io.close()
        super()._forget()
