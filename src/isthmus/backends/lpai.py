"""The LPAI backend: a low-power AI core that runs graphs in memory the client provides, by rules shown whole here.

Three pools. Scratch holds intermediates and may be replaced between executions. Persistent memory holds state and is
the graph's until its context is freed. IO lies inside scratch unless it is planned out of it or the client brings
buffers. In ADSP direct mode IO and the model binary may lie in TCM instead. All pools are aligned as the backend asks,
no two of them overlap, and both must be there before a graph is finalized.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from isthmus.accelerator import Accelerator, Lane, RemoteExecutor
from isthmus.backends import lpai_rules
from isthmus.backends.driver import (
    BackendDriver,
    ContextDriver,
    DeviceDriver,
    GraphDriver,
    GraphStats,
    MemDescriptor,
    Registration,
    TensorMemory,
    check_apart,
    outline,
    unknown_option,
)
from isthmus.backends.lpai_config import LpaiConfig, read
from isthmus.backends.lpai_model import Allocator, Model, Prepared, prepare, restored
from isthmus.backends.lpai_options import (
    UINT32_MAX,
    BackendProperty,
    BufferAlignmentReq,
    ContextConfig,
    CoreAffinity,
    GraphConfig,
    GraphProperty,
    Mem,
    MemType,
    PerfCfg,
    Prepare,
)
from isthmus.backends.lpai_report import describe_pools
from isthmus.backends.lpai_shared import SharedBuffers
from isthmus.binary import ContextBinary, GraphBinary
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph
from isthmus.log import Log, LogLevel
from isthmus.memory import Region, holds
from isthmus.prepare.schedule import Plan

__all__ = ["LpaiBackend", "LpaiContext", "LpaiGraph", "describe_pools"]

SCRATCH, PERSISTENT = "scratch memory", "persistent memory"
_COPIED_IN, _COPIED_OUT = "copied in", "copied out"


class _Kept:
    """What a graph holds of the client's and of TCM, let go together, also when the graph is forgotten unfreed."""

    def __init__(self) -> None:
        self.pools: dict[str, holds.Hold] = {}
        self.io: list[holds.Hold] = []
        self.model: Model | None = None
        self.running = False

    def use_io(self, region: Region, holder: str) -> None:
        self.io.append(holds.use(region, holder, lambda: self.running))

    def release_io(self) -> None:
        for hold in self.io:
            hold.release()
        self.io.clear()

    def release(self) -> None:
        self.release_io()
        for hold in self.pools.values():
            hold.release()
        self.pools.clear()
        if self.model is not None:
            self.model.close()
            self.model = None


class LpaiBackend(BackendDriver):
    """The backend, created with a configuration."""

    name = "lpai"

    def __init__(self, config: Any, log: Log) -> None:
        self.log = log
        self.config: LpaiConfig = read(config, log)
        self.check_mem_type(self.config.mem_type)
        self._accelerator: Accelerator | None = None
        self._starting = threading.Lock()

    def accelerator(self) -> Accelerator:
        """The process that plays the core in the "arm" environment, started when it is first needed or has died."""
        with self._starting:
            if self._accelerator is None or not self._accelerator.alive:
                self._accelerator = Accelerator()
            return self._accelerator

    def close(self) -> None:
        if self._accelerator is not None:
            self._accelerator.close()

    def get_property(self, option: int) -> Any:
        if option == BackendProperty.ALIGNMENT_REQ:
            return self.config.alignment
        if option == BackendProperty.REQUIRE_PERSISTENT_BINARY:
            # The contents of a context binary are copied once, when the context is created.
            return False
        if option == BackendProperty.SHARED_POOLS:
            return self.config.target_env == "arm"
        raise unknown_option(Code.BACKEND_NOT_SUPPORTED, "backend 'lpai'", "property", option)

    def create_context(self, configs: Mapping[int, Any], device: DeviceDriver | None = None) -> LpaiContext:
        context = LpaiContext(self)
        for option, value in configs.items():
            context.set_config(option, value)
        return context

    def check_mem_type(self, mem_type: MemType) -> None:
        """Refuse TCM where there is none. There is no fallback to DDR."""
        if mem_type is MemType.TCM and self.config.target_env != "adsp":
            raise QnnError(
                Code.COMMON_PLATFORM_NOT_SUPPORTED,
                self.config.source,
                f"TCM is only available in ADSP direct mode, the target environment is {self.config.target_env}",
                'Set lpai_backend.target_env to "adsp", or lpai_graph.execute.mem_type to "ddr".',
            )
        if mem_type is MemType.TCM and self.config.hw_ver < "v6":
            self.log(LogLevel.WARN, f"TCM is documented from v6 on; the configuration names {self.config.hw_ver}")


class LpaiContext(ContextDriver):
    """A context: its graphs execute one after the other and may share scratch."""

    def __init__(self, backend: LpaiBackend) -> None:
        self.backend = backend
        self.mem_type = backend.config.mem_type
        self.island = False
        self.turn = threading.Lock()
        self._graphs: list[LpaiGraph] = []
        self._shared = SharedBuffers()
        self._lane: Lane | None = None

    def get_property(self, option: int) -> Any:
        if option == ContextConfig.MODEL_BUFFER_MEM_TYPE:
            return self.mem_type
        if option == ContextConfig.ENABLE_ISLAND:
            return self.island
        raise unknown_option(Code.CONTEXT_INVALID_ARGUMENT, "LPAI context", "property", option)

    def set_config(self, option: int, value: Any) -> None:
        if option == ContextConfig.MODEL_BUFFER_MEM_TYPE:
            if isinstance(value, bool) or value not in (MemType.DDR, MemType.TCM, MemType.UNDEFINED):
                raise QnnError(
                    Code.CONTEXT_INVALID_CONFIG, f"model memory type {value!r}", "must be MemType.DDR or MemType.TCM"
                )
            if self._graphs:
                raise QnnError(
                    Code.CONTEXT_INVALID_CONFIG, "model memory type", "must be set before the context has graphs"
                )
            self.backend.check_mem_type(MemType(value))
            self.mem_type = MemType(value)
        elif option == ContextConfig.ENABLE_ISLAND:
            if not isinstance(value, bool):
                raise QnnError(Code.CONTEXT_INVALID_CONFIG, f"island {value!r}", "must be true or false")
            self.island = value
        else:
            raise unknown_option(Code.CONTEXT_INVALID_CONFIG, "LPAI context", "config", option)

    def create_graph(self, graph: Graph) -> LpaiGraph:
        driver = LpaiGraph(self, graph)
        self._graphs.append(driver)
        return driver

    def graph_binaries(self) -> list[GraphBinary]:
        return [graph.binary() for graph in self._graphs]

    def restore(self, binary: ContextBinary) -> list[GraphDriver]:
        start = self.backend.config.alignment.start_addr_alignment
        found = [(outline(entry), restored(entry, start)) for entry in binary.graphs.values()]
        drivers = [LpaiGraph(self, graph, prepared) for graph, prepared in found]
        self._graphs += drivers
        return list(drivers)

    def register(self, descriptors: Sequence[MemDescriptor]) -> list[Registration]:
        return self._shared.register(descriptors)

    def executor(self, program: Program, scratch: Region, persistent: Region) -> Executor | RemoteExecutor:
        """What runs a program in these pools: this process, or in the "arm" environment the accelerator."""
        # The client may still choose its IO memory, execution by execution.
        unbound = [Region(0, info.nbytes, None) for info in (*program.inputs, *program.outputs)]
        if self.backend.config.target_env != "arm":
            return Executor(program, scratch, persistent, unbound)
        if self._lane is None:
            self._lane = Lane(self.backend.accelerator())
        return RemoteExecutor(self._lane, program, scratch, persistent)

    def close(self) -> None:
        for graph in self._graphs:
            graph.close()
        self._shared.close()
        if self._lane is not None:
            self._lane.close()


class LpaiGraph(GraphDriver):
    """A graph and the pools it was given."""

    def __init__(self, context: LpaiContext, graph: Graph, prepared: Prepared | None = None) -> None:
        self.graph = graph
        self._restored = prepared is not None
        self._context = context
        config = context.backend.config
        self._prepare, self._performance, self._affinity = config.prepare, config.performance, config.affinity
        self._prepared = prepared
        self._plan: Plan | None = None
        self._allocator = Allocator(context.mem_type, config.alignment, config.source, context.backend.log)
        self._kept = _Kept()
        self._finalizer = weakref.finalize(self, self._kept.release)
        self._executor: Executor | RemoteExecutor | None = None
        self._own_io: list[Region | None] = []
        self._bound: Sequence[TensorMemory | None] | None = None
        self._stats = GraphStats()
        self._per_execution: dict[str, int] = {}
        self._counted = 0

    # -- properties ----------------------------------------------------------------------------------------------------

    def get_property(self, option: int) -> Any:
        if option in (GraphProperty.SCRATCH_MEM_SIZE, GraphProperty.PERSISTENT_MEM_SIZE):
            return self._required(SCRATCH if option == GraphProperty.SCRATCH_MEM_SIZE else PERSISTENT)
        if option == GraphProperty.PERF_CFG:
            return self._performance
        if option == GraphProperty.CORE_AFFINITY:
            return self._affinity
        if option == GraphProperty.IO_OFFSETS:
            return self._ready().io_offsets
        raise unknown_option(Code.GRAPH_INVALID_ARGUMENT, self._what, "property", option)

    @property
    def program(self) -> Program:
        return self._ready().program

    @property
    def plan(self) -> Plan:
        self._ready()
        if self._plan is None:
            raise QnnError(Code.COMMON_NOT_SUPPORTED, self._what, "a context binary holds no plan, only its result")
        return self._plan

    def binary(self) -> GraphBinary:
        """The graph as a context binary holds it."""
        mem_types = tuple(tensor.mem_type for tensor in (*self.graph.inputs, *self.graph.outputs))
        return GraphBinary(self.program, mem_types, self._ready().io_offsets)

    @property
    def _what(self) -> str:
        return f"graph '{self.graph.name}'"

    @property
    def _alignment(self) -> BufferAlignmentReq:
        return self._context.backend.config.alignment

    def _ready(self) -> Prepared:
        """The prepared graph. To ask for a size ends composition: sizes are those of a complete graph."""
        if self._prepared is None:
            if not self.graph.finalized:
                self.graph.finalize()
            exclude_io = self._prepare.exclude_io or self._context.mem_type is MemType.TCM
            self._prepared, self._plan = prepare(self.graph, self._alignment.start_addr_alignment, exclude_io)
        return self._prepared

    def _required(self, pool: str) -> int:
        program = self._ready().program
        nbytes = self._alignment.padded(program.scratch_bytes if pool == SCRATCH else program.state_bytes)
        if nbytes > UINT32_MAX:
            raise QnnError(Code.GRAPH_OPTIMIZATION_FAILED, self._what, f"needs {nbytes} bytes of {pool}, over 32 bits")
        return nbytes

    # -- configs -------------------------------------------------------------------------------------------------------

    def set_config(self, option: int, value: Any) -> None:
        setters: Mapping[int, Callable[[Any], None]] = {
            GraphConfig.SCRATCH_MEM: self._set_scratch,
            GraphConfig.PERSISTENT_MEM: self._set_persistent,
            GraphConfig.PERF_CFG: self._set_performance,
            GraphConfig.CORE_AFFINITY: self._set_affinity,
            GraphConfig.PREPARE: self._set_prepare,
            GraphConfig.RESET_STATE: lambda _: self.reset(),
        }
        if option not in setters:
            raise unknown_option(Code.GRAPH_INVALID_ARGUMENT, self._what, "config", option)
        setters[option](value)

    def _set_scratch(self, memory: Mem) -> None:
        region = self._checked(SCRATCH, memory)
        turn = self._context.turn
        if not turn.acquire(blocking=False):
            if self._kept.running:
                raise QnnError(
                    Code.COMMON_OPERATION_NOT_PERMITTED,
                    f"scratch memory of {self._what}",
                    "it cannot be replaced while an execution runs",
                    "Replace it between executions.",
                )
            turn.acquire()
        try:
            self._hold(SCRATCH, region, f"scratch memory of {self._what} until it is replaced or the context is freed")
            if self._executor is not None:
                self._executor.bind_scratch(region)
                self._own_io = self._planned_io(region)
                self._bound = None
        finally:
            turn.release()

    def _set_persistent(self, memory: Mem) -> None:
        if self._executor is not None:
            raise QnnError(
                Code.GRAPH_FINALIZED,
                f"persistent memory of {self._what}",
                "it holds the state of a finalized graph and cannot be replaced",
                "It is the graph's until the context is freed.",
            )
        region = self._checked(PERSISTENT, memory)
        self._hold(PERSISTENT, region, f"persistent memory of {self._what} until its context is freed")

    def _set_performance(self, value: PerfCfg) -> None:
        self._performance = self._structure(value, PerfCfg)

    def _set_affinity(self, value: CoreAffinity) -> None:
        self._affinity = self._structure(value, CoreAffinity)

    def _set_prepare(self, value: Prepare) -> None:
        if self._executor is not None:
            raise QnnError(Code.GRAPH_FINALIZED, self._what, "it is prepared and finalized")
        if self._restored:
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, self._what, "it came prepared out of a context binary")
        self._prepare = self._structure(value, Prepare)
        self._prepared = None

    def _structure(self, value: Any, kind: type) -> Any:
        if not isinstance(value, kind):
            raise QnnError(
                Code.GRAPH_INVALID_ARGUMENT, self._what, f"this config takes a {kind.__name__}, got {value!r}"
            )
        return value

    # -- pools ---------------------------------------------------------------------------------------------------------

    def _checked(self, pool: str, memory: Mem) -> Region:
        what = f"{pool} of {self._what}"
        return lpai_rules.pool_region(what, self._structure(memory, Mem), self._required(pool), self._alignment)

    def _hold(self, pool: str, region: Region, holder: str) -> None:
        self._kept.pools[pool] = holds.claim(
            region,
            f"{pool} of {self._what}",
            holder,
            # One context's graphs take turns, so their scratch may be the same memory.
            group=self._context.turn if pool == SCRATCH else None,
            replacing=self._kept.pools.get(pool),
            code=Code.GRAPH_INVALID_ARGUMENT,
        )

    def _pool(self, pool: str) -> Region:
        """A pool as set, checked once more against what the graph needs now."""
        required = self._required(pool)
        hold = self._kept.pools.get(pool)
        if hold is None and required == 0:
            return Region(0, 0, None)
        option = GraphConfig.SCRATCH_MEM if pool == SCRATCH else GraphConfig.PERSISTENT_MEM
        hint = f"Call set_config({option.name}, Mem(MemType.DDR, {required}, buffer)) before finalize()."
        if hold is None:
            raise QnnError(Code.GRAPH_FINALIZE_FAILED, self._what, f"its {pool} is not set", hint)
        if hold.region.nbytes < required:
            rule = f"its {pool} has {hold.region.nbytes} bytes, {required} are needed"
            raise QnnError(Code.GRAPH_FINALIZE_FAILED, self._what, rule, hint)
        return hold.region

    # -- finalize ------------------------------------------------------------------------------------------------------

    def finalize(self) -> None:
        scratch, persistent = self._pool(SCRATCH), self._pool(PERSISTENT)
        model = self._allocator.place(self.program, self._what, with_io=not self._prepare.exclude_io)
        try:
            executor = self._context.executor(model.program, scratch, persistent)
        except BaseException:
            model.close()
            raise
        executor.reset()
        self._executor, self._kept.model = executor, model
        self._own_io = self._planned_io(scratch)

    def _planned_io(self, scratch: Region) -> list[Region | None]:
        """The graph's own memory for each input and output, if it has any."""
        if self._kept.model is not None and self._kept.model.io:
            return list(self._kept.model.io)
        offsets = self._ready().io_offsets
        if not offsets:
            return [None] * len(self.tensors)
        return [
            Region(scratch.address + offset, info.nbytes, scratch.owner)
            for offset, info in zip(offsets, self.tensors, strict=True)
        ]

    # -- execute -------------------------------------------------------------------------------------------------------

    def execute(self, memories: Sequence[TensorMemory | None]) -> None:
        with self._context.turn:
            executor = self._finalized()
            if memories is not self._bound:
                self._bind(executor, memories)
            self._kept.running = True
            try:
                executor.run()
            finally:
                self._kept.running = False
            self._stats.executions += 1

    def place(self, index: int) -> Region | None:
        self._finalized()
        return self._own_io[index]

    def reset(self) -> None:
        with self._context.turn:
            self._finalized().reset()

    def stats(self) -> GraphStats:
        self._count()
        return replace(self._stats, in_place_bytes=dict(self._stats.in_place_bytes))

    def close(self) -> None:
        with self._context.turn:
            if self._executor is not None:
                self._executor.close()
                self._executor = None
            self._kept.release()
            self._own_io, self._bound = [], None

    def _finalized(self) -> Executor | RemoteExecutor:
        if self._executor is None:
            raise QnnError(Code.GRAPH_NOT_FINALIZED, self._what, "only a finalized graph can be executed")
        return self._executor

    def _bind(self, executor: Executor | RemoteExecutor, memories: Sequence[TensorMemory | None]) -> None:
        """Use these memories from now on; checked as a whole first."""
        places = [self._checked_io(index, memory) for index, memory in enumerate(memories)]
        brought = [None if kind == "scratch" else region for region, kind in places]
        check_apart(self._what, self.tensors, len(self.program.inputs), brought)
        self._count()
        self._kept.release_io()
        self._per_execution.clear()
        for index, (region, kind) in enumerate(places):
            executor.bind_io(index, region)
            if isinstance(executor, RemoteExecutor) and executor.copies(index):
                kind = _COPIED_IN if index < len(self.program.inputs) else _COPIED_OUT
            self._per_execution[kind] = self._per_execution.get(kind, 0) + self.tensors[index].nbytes
            if memories[index] is not None:
                holder = f"memory of tensor '{self.tensors[index].name}' of {self._what}, which is executing,"
                self._kept.use_io(region, holder)
        self._bound = memories

    def _checked_io(self, index: int, memory: TensorMemory | None) -> tuple[Region, str]:
        info, own, direct = self.tensors[index], self._own_io[index], self._context.mem_type is MemType.TCM
        what = f"tensor '{info.name}' of {self._what}"
        if memory is None:
            if own is None:
                raise QnnError(
                    Code.GRAPH_INVALID_TENSOR, what, "needs a buffer: its IO is planned out of scratch (exclude_io)"
                )
            return own, "tcm" if direct else "scratch"
        region = lpai_rules.io_region(what, memory.region, info.nbytes, self._alignment, direct)
        at_home = own is not None and (own.address, own.nbytes) == (region.address, region.nbytes)
        lpai_rules.check_free(what, region, self._kept.pools.get(SCRATCH) if at_home else None)
        if direct or at_home:
            return region, "tcm" if direct else "scratch"
        return region, "raw" if memory.registration is None else "shared"

    def _count(self) -> None:
        """Add what was executed with the present binding to the totals."""
        executions = self._stats.executions - self._counted
        for kind, nbytes in self._per_execution.items():
            if kind == _COPIED_IN:
                self._stats.copied_in_bytes += executions * nbytes
            elif kind == _COPIED_OUT:
                self._stats.copied_out_bytes += executions * nbytes
            else:
                self._stats.in_place_bytes[kind] = self._stats.in_place_bytes.get(kind, 0) + executions * nbytes
        self._counted = self._stats.executions
