"""The CPU backend: a graph prepared for this machine's instruction set and run in the caller's process.

Scratch and state belong to the backend. Inputs and outputs are the client's, at any address, or the backend's own if
the client brings none. It has no custom options and registers no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from isthmus.backends.cpu import BACKEND_ID, INTERFACE_VERSION
from isthmus.backends.seam import native, registry
from isthmus.backends.seam.binary import ContextBinary, Source, inspect, to_bytes
from isthmus.backends.seam.binding import BindingBase, ExecutionCounts
from isthmus.backends.seam.driver import (
    BackendDriver,
    ContextDriver,
    DeviceDriver,
    GraphStats,
    Memories,
    NativeCall,
    Timings,
    Traffic,
    check_apart,
)
from isthmus.backends.seam.entry import BackendEntry, IoPolicy, PlanReport, PlanRequest
from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.backends.seam.execution_lock import ExecutionLock
from isthmus.backends.seam.facets import CFacet, DelegateFacet
from isthmus.backends.seam.native import CompiledGraph, NativeGraphDriver
from isthmus.engine.native.executor import BoundIo, Executor
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import named
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph
from isthmus.graph.operation import Call
from isthmus.log import Log
from isthmus.memory import Buffer, Window, host

_IO_ALIGNMENT = 64
"""The alignment of inputs and outputs that the backend allocates."""


class CpuBackend(BackendDriver):
    """The CPU backend."""

    def __init__(self, config: None, log: Log) -> None:
        """Do nothing: there is no configuration."""

    def create_context(self, device: DeviceDriver | None = None) -> CpuContext:
        return CpuContext()

    def supports(self, call: Call) -> str | None:
        return native.supports(call)

    def operations(self) -> Collection[str]:
        return native.operations()


class CpuContext(ContextDriver):
    """A context on the CPU."""

    def __init__(self) -> None:
        self._graphs: list[CpuGraphDriver] = []

    def create_graph(self, graph: Graph) -> CpuGraphDriver:
        driver = CpuGraphDriver(graph)
        self._graphs.append(driver)
        return driver

    def drop_graph(self, graph: Graph) -> None:
        self._graphs = [driver for driver in self._graphs if driver.graph is not graph]

    def get_binary(self) -> bytes:
        return to_bytes([graph.program for graph in self._graphs], "cpu")

    def restore(self, binary: Source) -> Sequence[CpuGraphDriver]:
        # All graphs are checked before the first is added.
        with ContextBinary(binary, "cpu") as content:
            restored = [native.restored_program(program) for program in content.contents.programs.values()]
        for prepared in restored:
            self._graphs.append(CpuGraphDriver(native.outline(prepared.info), prepared))
            self._graphs[-1].finalize()
        return list(self._graphs)

    def close(self) -> None:
        for graph in self._graphs:
            graph.close()
        self._graphs.clear()


class CpuGraphDriver(NativeGraphDriver[CompiledGraph]):
    """A graph on the CPU, with its own scratch and state."""

    def __init__(self, graph: Graph, prepared: CompiledGraph | None = None) -> None:
        super().__init__(graph, prepared)
        # A binding may be closed while another one of the graph executes.
        self._lock = ExecutionLock()
        self._counts = ExecutionCounts(self._lock)
        # These exist from `finalize` to `close`: the executor, all memory of the graph, and of that the memory for
        # each input, then each output.
        self._executor: Executor | None = None
        self._buffers: list[Buffer] = []
        self._own_io: list[Window] = []
        self.current_binding: CpuBinding | None = None
        """The binding whose memory the executor currently has."""

    @property
    def program(self) -> Program:
        """Its executable form."""
        return self.prepared().program

    def _prepare(self) -> CompiledGraph:
        return native.prepare(self.graph, self._threads, limit=self._scratch_limit)

    def finalize(self) -> None:
        program = self.program
        sizes = program.scratch_bytes, program.state_bytes
        scratch, state = (host(nbytes, program.alignment) if nbytes else None for nbytes in sizes)
        own = [host(info.nbytes, _IO_ALIGNMENT) for info in self.info.tensors]
        executor = Executor(
            program,
            scratch.window() if scratch else None,
            state.window() if state else None,
            [buffer.window() for buffer in own],
        )
        # This gives the state its initial values.
        executor.reset()
        self._executor, self._own_io = executor, [buffer.window() for buffer in own]
        self._buffers = [buffer for buffer in (scratch, state, *own) if buffer is not None]
        self.finalized = True

    def bind(self, memories: Memories) -> CpuBinding:
        return CpuBinding(self, memories, self._counts)

    def place(self, index: int) -> Window | None:
        """Return the backend's own memory for an input or output; None unless the graph is finalized."""
        return self._own_io[index] if self._own_io else None

    def executor(self) -> Executor:
        """Return the graph's executor."""
        if self._executor is None:
            raise QnnError(Code.GRAPH_NOT_FINALIZED, self.what, "only a finalized graph can be executed")
        return self._executor

    def native_call(self) -> NativeCall:
        with self._lock:
            executor = self.executor()
            # The foreign code stores other addresses in the executor.
            self.current_binding = None
            return NativeCall(
                executor.entry, executor.control, executor.io_addresses, self.threads, executor, executor.check
            )

    def reset(self) -> None:
        with self._lock:
            self.executor().reset()

    def stats(self) -> GraphStats:
        return self._counts.stats()

    def close(self) -> None:
        with self._lock:
            self._counts.close()
            if self._executor is not None:
                self._executor.close()
                self._executor = self.current_binding = None
            for buffer in self._buffers:
                buffer.close()
            self._buffers, self._own_io = [], []
            super().close()


def _not_bound() -> int:
    """Stand in for the native call of a binding that has ended."""
    raise AssertionError("a binding that has ended is made again before it runs")


class CpuBinding(BindingBase):
    """Memory for a graph on the CPU: all of it is used in place.

    All bindings of a graph share its executor, which has the addresses of one of them (`current_binding`).
    """

    def __init__(self, graph: CpuGraphDriver, memories: Memories, counts: ExecutionCounts) -> None:
        self._graph = graph
        # The checked memory, and the native call that runs the program; both exist while it is bound.
        self._io: BoundIo | None = None
        self._native: Callable[[], int] = _not_bound
        super().__init__(graph.what, memories, counts)

    def _basis(self) -> object:
        """Return the executor: with another one the binding must be rebuilt."""
        return self._graph.executor()

    def _bind(self) -> tuple[Traffic, list[tuple[str, Window]]]:
        """Check the memory of each tensor, the backend's own where the client brings none, and keep it for a run."""
        graph, infos = self._graph, self._graph.info.tensors
        self._native = graph.executor().run
        windows = []
        for index, (info, memory) in enumerate(zip(infos, self.memories, strict=True)):
            window = graph.place(index) if memory is None else memory.window
            assert window is not None
            what = f"memory of tensor '{info.name}' of {graph.what}"
            window.check(what, info.nbytes, code=Code.GRAPH_INVALID_TENSOR)
            windows.append(window.part(0, info.nbytes))
        check_apart(graph.what, infos, len(graph.info.inputs), windows)
        self._io = BoundIo(graph.program, windows)
        # The executor may still have this binding's earlier memory.
        graph.current_binding = None
        names = [info.name for info in infos]
        return Traffic(in_place={"raw": graph.info.io_bytes}), list(zip(names, windows, strict=True))

    def _run(self) -> None:
        if self._graph.current_binding is not self:
            self._take_over()
        # It returns 0 unless the run has failed.
        if self._native():
            self._graph.executor().check(self._what)

    def _forget(self) -> None:
        """Release the client's memory."""
        # The native call keeps alive all that it touches; an ended binding is rebuilt before it runs.
        self._native, self._io = _not_bound, None
        if self._graph.current_binding is self:
            self._graph.current_binding = None

    def _run_within(self, limit: ExecutionDeadline) -> None:
        self._take_over()
        native.run_within(self._graph.executor(), limit, self._what)

    def execute_timed(self, limit: ExecutionDeadline | None = None) -> Timings:
        def run() -> Timings:
            self._take_over()
            return native.run_timed(self._graph.executor(), limit, self._what)

        return self._run_under_lock(run)

    def _take_over(self) -> None:
        """Make the graph's executor use this binding's memory."""
        assert self._io is not None
        # Unbound until the new binding is complete: an interrupt may come in between.
        self._graph.current_binding = None
        self._graph.executor().bind_all_io(self._io)
        self._graph.current_binding = self


def _read_config(config: Any, log: Log) -> None:
    """Refuse any configuration."""
    if config:
        hint = f"These backends have one: {', '.join(each.name for each in registry.usable() if each.keys)}."
        raise QnnError(Code.BACKEND_INVALID_CONFIG, "backend 'cpu'", "it has no configuration", hint)


def _plan(graph: Graph, config: None, request: PlanRequest) -> PlanReport:
    return native.preparation(native.prepare(graph, request.threads, named(request.target), request.limit))


ENTRY = BackendEntry(
    name="cpu",
    library="libQnnCpu.so",
    driver=CpuBackend,
    read_config=_read_config,
    io=IoPolicy(),
    prepare=_plan,
    inspect=inspect,
    c=CFacet(BACKEND_ID, INTERFACE_VERSION),
    delegate=DelegateFacet(number=101, threads=True),
    accepted=native.ACCEPTED,
)
