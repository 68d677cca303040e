"""The CPU backend: a graph prepared for this machine's instruction set and run in the caller's process.

Scratch and state belong to the backend. Inputs and outputs are the client's, at any address, or the backend's own if
the client brings none. It registers no memory.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from isthmus.backends.cpu import packaged
from isthmus.backends.cpu.config import KEYS, CpuConfig, read_config
from isthmus.backends.cpu.op_package import TARGET, OpPackage, check_name
from isthmus.backends.cpu.packaged import PackagedExecutor, PackagedGraph
from isthmus.backends.seam import driver as seam
from isthmus.backends.seam import native
from isthmus.backends.seam.binary import ContextBinary, Source, inspect, to_bytes, unshared
from isthmus.backends.seam.entry import BackendEntry, IoPolicy, PlanReport, PlanRequest
from isthmus.backends.seam.execution_lock import ExecutionLock
from isthmus.backends.seam.facets import DelegateFacet
from isthmus.backends.seam.native import CompiledGraph
from isthmus.backends.seam.runner import HostRunner, RunnerBinding, RunnerGraphDriver
from isthmus.backends.seam.shared_segments import SharedSegments
from isthmus.backends.seam.staging import InputStaging, overwritten, traffic
from isthmus.engine.native.executor import BoundIo, Executor
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import named
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph
from isthmus.graph.operation import Call, Operation
from isthmus.graph.ops import OPERATIONS
from isthmus.log import Log
from isthmus.memory import Buffer, Window, host
from isthmus.prepare import PlanOptions
from isthmus.prepare.schedule import Pool

# The alignment of inputs and outputs that the backend allocates.
_IO_ALIGNMENT = 64


class CpuBackend(seam.BackendDriver):
    """The CPU backend, with the op packages that its client has registered."""

    def __init__(self, config: CpuConfig, log: Log) -> None:
        self._config, self._log = config, log
        self._packages: dict[str, OpPackage] = {}
        self._package_operations: dict[str, Operation] = {}
        self.definitions = ChainMap(self._package_operations, OPERATIONS)

    def create_context(self, device: seam.DeviceDriver | None = None) -> CpuContext:
        return CpuContext(self._packages, self._config)

    def supports(self, call: Call) -> str | None:
        # A package has said itself whether it takes a node.
        return None if call.op in self._package_operations else native.supports(call)

    def operations(self) -> Collection[str]:
        return (*native.operations(), *self._package_operations)

    def register_op_package(self, path: str, provider: str, target: str | None) -> None:
        if target not in (None, TARGET):
            rule = f"its target '{target}' is not {TARGET}"
            raise QnnError(Code.BACKEND_INVALID_ARGUMENT, f"op package '{path}'", rule)
        package = OpPackage(path, provider, self._log)
        try:
            check_name(package, self._packages)
        except QnnError:
            package.close()
            raise
        self._packages[package.name] = package
        self._package_operations.update(package.definitions())

    def close(self) -> None:
        for package in self._packages.values():
            package.close()


class CpuContext(seam.GraphsContext["CpuGraphDriver"]):
    """A context on the CPU."""

    def __init__(self, packages: Mapping[str, OpPackage], config: CpuConfig) -> None:
        super().__init__()
        self._packages, self._config = packages, config
        self._scratch_owner: CpuGraphDriver | None = None
        self._segments = SharedSegments()
        native.anticipate_graphs()

    def _new_graph(self, graph: Graph) -> CpuGraphDriver:
        driver = CpuGraphDriver(graph, packages=self._packages, scratch_owner=self._scratch_owner)
        driver.winograd, driver.segments = self._config.winograd, self._segments
        driver.weight_sharing = self._config.weight_sharing
        return driver

    def share_scratch(self, graph: seam.GraphDriver) -> None:
        assert isinstance(graph, CpuGraphDriver)
        graph.has_own_io = graph.finalized
        self._scratch_owner = graph

    def get_binary(self) -> bytes:
        return to_bytes([graph.program for graph in self._graphs], "cpu")

    def restore(self, binary: Source) -> Sequence[CpuGraphDriver]:
        # All graphs are checked before the first is added.
        with ContextBinary(binary, "cpu") as content:
            restored = [native.restore_program(program) for program in content.contents.programs.values()]
        for prepared in restored:
            self._graphs.append(CpuGraphDriver(seam.outline(prepared.info), prepared))
            self._graphs[-1].finalize()
        return list(self._graphs)

    def close(self) -> None:
        self._close_graphs()


class CpuGraphDriver(RunnerGraphDriver[CompiledGraph | PackagedGraph, HostRunner | PackagedExecutor]):
    """A graph on the CPU, with its own scratch and state.

    - `packages`: The op packages of its backend by name.
    - `scratch_owner`: A graph whose scratch is used instead. Inputs and outputs then have no memory of the backend's
      own either.
    - `has_own_io`: Whether the backend allocates memory for inputs and outputs, for clients that bring none.
    """

    def __init__(
        self,
        graph: Graph,
        prepared: CompiledGraph | None = None,
        packages: Mapping[str, OpPackage] | None = None,
        scratch_owner: CpuGraphDriver | None = None,
    ) -> None:
        # Graphs with one scratch never run at once.
        lock = ExecutionLock() if scratch_owner is None else scratch_owner._lock
        super().__init__(graph, prepared, lock, InputStaging(lambda info: host(info.nbytes, _IO_ALIGNMENT)))
        self._packages = {} if packages is None else packages
        self._scratch_owner = scratch_owner
        self.has_own_io = scratch_owner is None
        self.winograd, self.weight_sharing = True, False
        self.segments: SharedSegments | None = None
        """The segments of the context, which its programs share."""
        # All memory of the graph from `finalize` to `close`, and of that the memory for each input, then each output.
        self._buffers: list[Buffer] = []
        self._own_io: list[Window] = []

    @property
    def program(self) -> Program:
        """Its executable form."""
        prepared = self.prepared()
        if isinstance(prepared, PackagedGraph):
            names = ", ".join(dict.fromkeys(node.op for node in prepared.nodes))
            rule = f"it has nodes of op packages, whose code a context binary of this backend cannot have: {names}"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, self.what, rule, "Compose the graph where it is executed.")
        return prepared.program

    def _prepare(self) -> CompiledGraph | PackagedGraph:
        if packaged.has_package_nodes(self.graph):
            return packaged.prepare(self.graph, self._threads, self._scratch_limit, self.winograd)
        options = PlanOptions(winograd=self.winograd, is_uniform=self.weight_sharing)
        prepared = native.prepare(self.graph, self._threads, limit=self._scratch_limit, options=options)
        return prepared if self.segments is None else replace(prepared, program=self.segments.share(prepared.program))

    def set_winograd(self, allowed: bool) -> seam.Change:
        if self._prepared is not None:
            raise QnnError(Code.GRAPH_FINALIZED, self.what, "it is prepared: its kernels are chosen")
        return seam.Change.attribute(self, "winograd", allowed)

    def finalize(self) -> None:
        prepared = self.prepared()
        if isinstance(prepared, PackagedGraph):
            parts = PackagedExecutor(prepared, self._packages)
            parts.reset()
            self._executor, self._own_io, self._buffers = parts, parts.io, parts.buffers
            self.finalized = True
            return
        program = prepared.program
        sizes = program.scratch_bytes, program.state_bytes
        # A graph that uses the scratch of another one allocates none; below, `shared` is that scratch.
        owner = self._scratch_owner
        if owner is not None:
            sizes = 0, program.state_bytes
        scratch, state = (host(nbytes, program.alignment) if nbytes else None for nbytes in sizes)
        own = [host(info.nbytes, _IO_ALIGNMENT) for info in self.info.tensors if self.has_own_io]
        windows = [buffer.window() for buffer in own]
        holder = None if owner is None else owner.executor()
        shared = holder.bound.get(Pool.SCRATCH) if isinstance(holder, Executor) and program.scratch_bytes else None
        executor = HostRunner(
            program,
            scratch.window() if scratch else shared,
            state.window() if state else None,
            windows if self.has_own_io else [None] * len(self.info.tensors),
        )
        # This gives the state its initial values.
        executor.reset()
        self._executor, self._own_io = executor, windows
        self._buffers = [buffer for buffer in (scratch, state, *own) if buffer is not None]
        self.finalized = True

    def bind(self, memories: seam.Memories) -> CpuBinding:
        return CpuBinding(self, memories, self._counts)

    def place(self, index: int) -> Window | None:
        """Return the backend's own memory for an input or output; None unless the graph is finalized."""
        return self._own_io[index] if self._own_io else None

    def native_call(self) -> seam.NativeCall | None:
        with self._lock:
            executor = self.executor()
            if not isinstance(executor, Executor):
                return None
            # The foreign code stores other addresses in the executor.
            self.current_binding = None
            return seam.NativeCall(
                executor.entry, executor.control, executor.io_addresses, self.threads, executor, executor.check
            )

    def _release(self) -> None:
        for buffer in self._buffers:
            buffer.close()
        self._buffers, self._own_io = [], []


class CpuBinding(RunnerBinding):
    """Memory for a graph on the CPU: all of it is used in place, except inputs that an output overwrites too early."""

    _graph: CpuGraphDriver

    def _basis(self) -> object:
        """Return the executor: with another one the binding must be rebuilt."""
        return self._graph.executor()

    def _bind(self) -> tuple[seam.Traffic, list[tuple[str, Window]]]:
        """Check the memory of each tensor, the backend's own where the client brings none, and keep it for a run."""
        graph, infos = self._graph, self._graph.info.tensors
        executor = graph.executor()
        self._native = executor.run
        windows = []
        for index, (info, memory) in enumerate(zip(infos, self.memories, strict=True)):
            window = graph.place(index) if memory is None else memory.window
            assert window is not None
            what = f"memory of tensor '{info.name}' of {graph.what}"
            window.check(what, info.nbytes, code=Code.GRAPH_INVALID_TENSOR)
            windows.append(window.part(0, info.nbytes))
        inputs, kinds = len(graph.info.inputs), list[str | None](["raw"] * len(infos))
        pairs = seam.check_overlaps(graph.what, infos, inputs, windows)
        if isinstance(executor, PackagedExecutor):
            kinds = executor.kinds(windows)
            # A copy that is made anyway, of either tensor, keeps the input as it was.
            pairs = [(source, goal) for source, goal in pairs if kinds[source] and kinds[inputs + goal]]
            executor.check_unshared(pairs, windows)
        copied = overwritten(pairs, graph.prepared().shareable_io)
        self._io = BoundIo(graph.info, self._copy_first(graph.staging, infos, windows, copied))
        # The executor may still have this binding's earlier memory.
        graph.current_binding = None
        named = [(info.name, window) for info, window in zip(infos, windows, strict=True)]
        return traffic(infos, inputs, kinds, copied), named


def _plan(graph: Graph, config: CpuConfig, request: PlanRequest) -> PlanReport:
    options = PlanOptions(winograd=config.winograd)
    return native.preparation(native.prepare(graph, request.threads, named(request.target), request.limit, options))


ENTRY = BackendEntry(
    name="cpu",
    library="libQnnCpu.so",
    driver=CpuBackend,
    read_config=read_config,
    keys=KEYS,
    io=IoPolicy(),
    prepare=_plan,
    inspect=inspect,
    unshared=unshared,
    c="isthmus.backends.cpu.c:FACET",
    delegate=DelegateFacet(number=101, threads=True),
    accepted=native.ACCEPTED,
)
