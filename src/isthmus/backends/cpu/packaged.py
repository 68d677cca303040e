"""Graphs with nodes of op packages: parts for the native engine, and nodes for the packages' processes, in turns.

What passes from one part to another is in one piece of memory that all processes share, where the engine and the
packages use it in place. So are the backend's own inputs and outputs. Inputs and outputs in a client's memory are
copied if a package uses them, and counted.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.backends.cpu.op_package import OpPackage, PackageNodes
from isthmus.backends.seam import native
from isthmus.backends.seam.driver import OperationTime, TimeSpan, Timings
from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.backends.seam.native import CompiledGraph
from isthmus.backends.seam.runner import run_within
from isthmus.engine.native.executor import BoundIo, Executor
from isthmus.engine.native.timed import TimedExecutor
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, GraphInfo, MemoryNeeds, Node, Tensor, TensorInfo, TensorType
from isthmus.graph.package import PackageOperation
from isthmus.memory import Buffer, Window, host, rpcmem
from isthmus.prepare import Plan, PlanOptions
from isthmus.prepare.schedule import Pool
from isthmus.prepare.tiling import ScratchLimit

# The alignment of tensors in shared memory.
_ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class NativePart:
    """Nodes of the native engine that run together.

    - `compiled`: Their program.
    - `inputs`, `outputs`: The whole graph's tensors that are its inputs and outputs, in order.
    """

    compiled: CompiledGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class PackagedGraph:
    """A graph in parts, in the order in which they run.

    - `graph`: The whole graph.
    - `parts`: Parts for the engine, and nodes of packages.
    """

    graph: Graph
    parts: tuple[NativePart | Node, ...]
    threads: int

    @property
    def plan(self) -> Plan | None:
        """None: each part has a plan of its own."""
        return None

    @property
    def info(self) -> GraphInfo:
        """Its description for clients. All parts use the same scratch, one after the other."""
        graph, programs = self.graph, [part.compiled.program for part in self.parts if isinstance(part, NativePart)]
        states = sum(state.nbytes for state in graph.states)
        needs = MemoryNeeds(
            max((program.scratch_bytes for program in programs), default=0),
            states,
            sum(program.constant_bytes for program in programs) + sum(tensor.nbytes for tensor in self.constants),
            max((program.alignment for program in programs), default=1),
        )
        inputs, outputs = (tuple(map(TensorInfo.of, side)) for side in (graph.inputs, graph.outputs))
        return GraphInfo(graph.name, inputs, outputs, needs, programs[0].target if programs else native.target_key())

    @property
    def shareable_io(self) -> frozenset[tuple[int, int]]:
        """No pair of an input and an output: what the parts do together is not known."""
        return frozenset()

    @property
    def nodes(self) -> list[Node]:
        """The nodes of packages."""
        return [part for part in self.parts if isinstance(part, Node)]

    @property
    def constants(self) -> list[Tensor]:
        """The constants that packages read, also those of parameters."""
        read = [tensor for node in self.nodes for tensor in (*node.inputs, *node.params.values())]
        return list(dict.fromkeys(each for each in read if isinstance(each, Tensor) and each.is_static))


def has_package_nodes(graph: Graph) -> bool:
    """Return whether a graph has nodes of op packages."""
    return any(_is_packaged(graph, node) for node in graph.nodes)


def _is_packaged(graph: Graph, node: Node) -> bool:
    return isinstance(graph.operations[node.op], PackageOperation)


def prepare(graph: Graph, threads: int, limit: ScratchLimit | None, winograd: bool) -> PackagedGraph:
    """Divide a complete graph into parts, and compile those for the engine."""
    parts: list[NativePart | Node] = []
    pending = list(graph.nodes)
    while pending:
        for packaged in (False, True):
            chosen, pending = _ready(graph, pending, packaged)
            if chosen:
                parts += chosen if packaged else [_native_part(graph, chosen, (threads, limit, winograd))]
    return PackagedGraph(graph, tuple(parts), native.check_threads(threads))


def _ready(graph: Graph, nodes: Sequence[Node], packaged: bool) -> tuple[list[Node], list[Node]]:
    """Divide `nodes`, which are in order: those of one kind that can run before all of the other kind, and the rest."""
    # `packaged` is the kind: nodes of op packages, or of the engine.
    chosen: list[Node] = []
    others: list[Node] = []
    missing: set[Tensor] = set()
    for node in nodes:
        if _is_packaged(graph, node) == packaged and missing.isdisjoint(t for t in node.inputs if t is not None):
            chosen.append(node)
        else:
            others.append(node)
            missing.update(node.outputs)
    return chosen, others


def _native_part(graph: Graph, nodes: Sequence[Node], settings: tuple[int, ScratchLimit | None, bool]) -> NativePart:
    """Compile some nodes of a graph as a graph of their own; `settings` are those of `prepare`."""
    part = Graph(graph.name)
    part.numerics = graph.numerics
    inside = set(nodes)
    needed = {tensor for node in graph.nodes if node not in inside for tensor in node.inputs if tensor is not None}
    needed |= {*graph.outputs, *graph.state_updates.values()}
    copies: dict[Tensor, Tensor] = {}
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def copy(tensor: Tensor, type: TensorType) -> Tensor:
        data = tensor.data if type is TensorType.STATIC else None
        copies[tensor] = part.create_tensor(
            part.fresh(tensor.name), type, tensor.dtype, tensor.dims, tensor.quantization, data
        )
        return copies[tensor]

    for node in nodes:
        for tensor in node.inputs:
            if tensor is not None and tensor not in copies:
                copy(tensor, TensorType.STATIC if tensor.is_static else TensorType.APP_WRITE)
                inputs += [] if tensor.is_static else [tensor]
        for tensor in node.outputs:
            copy(tensor, TensorType.APP_READ if tensor in needed else TensorType.NATIVE)
            outputs += [tensor] if tensor in needed else []
        params = {name: value for name, value in node.params.items() if value is not None}
        operands = [None if tensor is None else copies[tensor] for tensor in node.inputs]
        part.add_node(part.fresh_node(node.name), node.op, operands, [copies[each] for each in node.outputs], params)
    part.finalize()
    threads, limit, winograd = settings
    prepared = native.prepare(part, threads, limit=limit, options=PlanOptions(winograd=winograd))
    return NativePart(prepared, tuple(inputs), tuple(outputs))


class PackagedExecutor:
    """A graph in parts, in its memory.

    - `prepared`: The graph.
    - `packages`: The packages by name.
    - `io`: The backend's own memory for each input, then each output: shared memory.
    - `buffers`: All memory that it has allocated.
    """

    def __init__(self, prepared: PackagedGraph, packages: Mapping[str, OpPackage]) -> None:
        graph = prepared.graph
        self._graph, self._parts = graph, prepared.parts
        self._tensors = [*graph.inputs, *graph.outputs]
        scratch_bytes = prepared.info.memory.scratch_bytes
        shared = [*self._tensors, *graph.states, *prepared.constants]
        for part in prepared.parts:
            shared += [*part.inputs, *part.outputs] if isinstance(part, NativePart) else part.outputs
        self._offsets: dict[Tensor, int] = {}
        nbytes = 0
        for tensor in dict.fromkeys(shared):
            self._offsets[tensor] = nbytes
            nbytes += -(-max(tensor.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        self._shared = rpcmem.alloc2(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, nbytes)
        self.buffers: list[Buffer] = [self._shared]
        self._executors: dict[NativePart, Executor] = {}
        self._packages: dict[str, PackageNodes] = {}
        self._running: Executor | None = None
        try:
            scratch = host(scratch_bytes, prepared.info.memory.alignment) if scratch_bytes else None
            self.buffers += [scratch] if scratch else []
            for part in (part for part in prepared.parts if isinstance(part, NativePart)):
                program = part.compiled.program
                places = [self._place(tensor) for tensor in (*part.inputs, *part.outputs)]
                part_scratch = scratch.window() if scratch and program.scratch_bytes else None
                self._executors[part] = Executor(program, part_scratch, None, places)
            for tensor in prepared.constants:
                self._view(tensor)[...] = tensor.data
            self._create(prepared.nodes, packages)
        except Exception:
            self.close()
            for buffer in self.buffers:
                buffer.close()
            raise
        self.io = [self._place(tensor) for tensor in self._tensors]
        used = {tensor for node in prepared.nodes for tensor in (*node.inputs, *node.outputs)}
        self._used = [tensor in used for tensor in self._tensors]
        # The client's memory by the index of the input or output that is copied from or to it.
        self._copied: dict[int, Window] = {}
        # Where inputs and outputs are in an execution, and when each node of a package ran in the last one.
        self._places: dict[Tensor, Window] = {}
        self._spans: dict[Node, TimeSpan] = {}

    def _create(self, nodes: Sequence[Node], packages: Mapping[str, OpPackage]) -> None:
        """Have all packages implement their nodes."""
        by_package: dict[str, list[Node]] = {}
        for node in nodes:
            by_package.setdefault(self._graph.operations[node.op].package, []).append(node)
        fd = self._shared.fd
        assert fd is not None
        for name, own in by_package.items():
            made = PackageNodes(packages[name], own, fd, self._shared.nbytes, self._offsets.__getitem__)
            self._packages[name] = made
            try:
                made.create()
            except QnnError as problem:
                what = f"graph '{self._graph.name}'"
                rule = f"{problem.what}: {problem.rule}"
                raise QnnError(Code.GRAPH_FINALIZE_FAILED, what, rule, problem.hint) from None

    def _place(self, tensor: Tensor) -> Window:
        """Return a tensor's place in shared memory."""
        return self._shared.window(self._offsets[tensor], tensor.nbytes)

    def _view(self, tensor: Tensor) -> np.ndarray:
        return self._place(tensor).view(tensor.dtype.numpy, tensor.dims)

    def kinds(self, windows: Sequence[Window]) -> list[str | None]:
        """Return the kind of memory of each input, then each output; None for a tensor that is copied."""
        return [None if self._is_copied(index, window) else "raw" for index, window in enumerate(windows)]

    def check_unshared(self, pairs: Iterable[tuple[int, int]], windows: Sequence[Window]) -> None:
        """Refuse an output in the backend's own memory of an input that a package uses: the package reads it there.

        `pairs` are inputs and outputs, by number, that are the same memory.
        """
        for source, goal in pairs:
            if self._used[source] and windows[source].address == self.io[source].address:
                what = f"tensor '{self._tensors[len(self._graph.inputs) + goal].name}' of graph '{self._graph.name}'"
                rule = f"its buffer is the backend's own memory of tensor '{self._tensors[source].name}'"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, "Give one of them memory of your own.")

    def _is_copied(self, index: int, window: Window) -> bool:
        """Return whether an input or output is copied: a package uses it, and cannot see the client's memory."""
        return self._used[index] and window.address != self.io[index].address

    def bind_all_io(self, io: BoundIo) -> None:
        """Use all memory in `io` from the next run on."""
        windows = [io.windows[Pool.IO + index] for index in range(len(self._tensors))]
        self._copied = {index: window for index, window in enumerate(windows) if self._is_copied(index, window)}
        places = {
            tensor: self.io[index] if index in self._copied else windows[index]
            for index, tensor in enumerate(self._tensors)
        }
        for part, executor in self._executors.items():
            for index, tensor in enumerate((*part.inputs, *part.outputs)):
                if tensor in places:
                    executor.bind_io(index, places[tensor])
        self._places = places

    def run(self) -> int:
        """Run once. It returns 0 unless a part of the engine failed; `check` says why. A package's error is raised."""
        return 0 if self._run_parts(None, lambda executor: not executor.run()) else 1

    def run_abortable(self, word: ctypes.c_int64) -> bool:
        """Run once, or until 1 is written into `word`; return whether the run was not aborted."""
        self._running = None
        try:
            self._run_parts(word, lambda executor: executor.run_abortable(word))
        except QnnError as problem:
            if problem.code is not Code.GRAPH_ABORTED:
                raise
        return word.value != 1

    def _run_parts(self, word: ctypes.c_int64 | None, run: Callable[[Executor], bool]) -> bool:
        """Run all parts, those of the engine by `run`, until `run` returns False; return whether it never did."""
        count = len(self._graph.inputs)
        for index, window in self._copied.items():
            if index < count:
                _copy(window, self.io[index])
        stop = None if word is None else lambda: word.value == 1
        for part in self._parts:
            if isinstance(part, NativePart):
                self._running = self._executors[part]
                if not run(self._running):
                    return False
            else:
                begin = time.monotonic()
                self._packages[self._graph.operations[part.op].package].execute(part, stop)
                self._spans[part] = TimeSpan(f"{part.op} {part.name}", begin, time.monotonic())
        # Before outputs are copied: one may go to the memory of an input that is the next value of a state.
        self._update_states()
        for index, window in self._copied.items():
            if index >= count:
                _copy(self.io[index], window)
        return True

    def _update_states(self) -> None:
        """Give the states the values that they have after an execution."""
        updates = {self._graph.tensors[name]: value for name, value in self._graph.state_updates.items()}
        # A value may be another state, so all are read before one is written.
        values = [self._value(value) for value in updates.values()]
        for state, value in zip(updates, values, strict=True):
            self._view(state)[...] = value

    def _value(self, tensor: Tensor) -> np.ndarray:
        """Return a copy of a tensor's value after an execution."""
        if tensor.is_static:
            assert tensor.data is not None
            return tensor.data
        place = self._places.get(tensor) or self._place(tensor)
        return place.view(tensor.dtype.numpy, tensor.dims).copy()

    def check(self, what: str) -> None:
        """Raise the error of the part that failed in the last run."""
        if self._running is not None:
            self._running.check(what)

    def reset(self) -> None:
        """Write the initial values of the states."""
        for state in self._graph.states:
            self._view(state)[...] = state.initial()

    def run_until(self, limit: ExecutionDeadline, what: str) -> None:
        """Run once within a deadline."""
        run_within(self, limit, what)

    def measure(self, limit: ExecutionDeadline | None, what: str) -> Timings:
        """Run once, within a deadline if there is one, and return the time of each step."""
        begin = time.perf_counter()
        plain = self._executors
        timed = {part: TimedExecutor(executor) for part, executor in plain.items()}
        preparation = time.perf_counter() - begin
        try:
            self._executors = dict(timed)
            if limit is not None:
                limit.check(what)
                run_within(self, limit, what)
            elif self.run():
                self.check(what)
        finally:
            self._executors = plain
            for executor in timed.values():
                executor.close()
        times: list[OperationTime] = []
        spans: list[TimeSpan] = []
        for part in self._parts:
            if isinstance(part, NativePart):
                times += [OperationTime(*each) for each in timed[part].times()]
                spans += [TimeSpan(name, first * 1e-9, last * 1e-9) for name, first, last in timed[part].spans()]
            else:
                spans.append(self._spans[part])
                times.append(OperationTime(spans[-1].name, (spans[-1].end - spans[-1].begin) * 1e6))
        return Timings(times, preparation * 1e6, spans)

    def close(self) -> None:
        """Have the packages free their implementations, and stop all threads; safe to call again."""
        for nodes in self._packages.values():
            nodes.close()
        for executor in self._executors.values():
            executor.close()


def _copy(source: Window, destination: Window) -> None:
    ctypes.memmove(destination.address, source.address, destination.nbytes)
