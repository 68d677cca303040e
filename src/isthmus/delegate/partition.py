"""One node of a delegate in an interpreter: the nodes it replaces, as a backend graph at the current shapes.

The interpreter prepares it whenever tensors may have another shape or other memory. The graph is created again only
when a shape has changed, from the interpreter's own nodes or from the model cache; memory is checked each time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isthmus import qnn
from isthmus.backends.seam.driver import GraphStats
from isthmus.delegate import cache, custom_memory, structures
from isthmus.delegate.block import NodeBlock
from isthmus.delegate.custom_memory import CustomMemory
from isthmus.delegate.options import DelegateSettings
from isthmus.delegate.runners import BoundRunner, CopyRunner, NativeRunner, NodeRunner, ReadyGraph, TensorSlot
from isthmus.delegate.structures import Allocation
from isthmus.delegate.survey import NodeSet, survey
from isthmus.delegate.view import Nodes, NodesModel, NodesSubgraph
from isthmus.errors import Code, QnnError
from isthmus.frontends import tflite
from isthmus.graph import Graph, TensorInfo, TensorMemType
from isthmus.log import LogLevel
from isthmus.prepare.schedule import Plan
from isthmus.system.shield import shielded

MAX_THREADS = 64


@dataclass(frozen=True)
class PartitionEnvironment:
    """The state that partitions share: their backend, the delegate's settings and log, and the client's profile."""

    backend: qnn.Backend
    settings: DelegateSettings
    log: Callable[[LogLevel, str], None]
    profile: qnn.Profile | None


class Partition:
    """A node that replaces others.

    - `constant_inputs`: Inputs that outside nodes compute from constants and shapes alone, so that they need not be
      passed in.
    """

    def __init__(
        self,
        environment: PartitionEnvironment,
        nodes: Nodes,
        part: NodeSet,
        number: int,
        constant_inputs: frozenset[int],
        block: NodeBlock,
    ) -> None:
        self.nodes = nodes
        self.part = part
        self.name = f"subgraph_{nodes.index}_partition_{number}"
        self.block = block
        self._environment = environment
        self._constant_inputs = constant_inputs
        replaced = frozenset(part.nodes)
        self._operators = [operator for operator in nodes.operators if operator.index in replaced]
        # The tensors that the graph reads, in order; those among them that are variables of the interpreter; and those
        # that only its own nodes use.
        read = [index for index in part.inputs if index >= 0 and not nodes.is_constant(index)]
        self._read = [index for index in read if index not in constant_inputs]
        self._variables = [index for index in self._read if nodes.tensor(index).is_variable]
        written = {index for operator in self._operators for index in operator.outputs}
        self._inner = sorted(written.difference(part.outputs))
        # Inner tensors in custom memory, by number and address, that were warned about.
        self._noted: set[tuple[int, int]] = set()
        # The shapes of inputs that the graph was created for; None if it must be prepared before the next run.
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        self._context: qnn.Context | None = None
        self._runner: NodeRunner | None = None
        # The totals of earlier graphs, and whether they include those of the current runner.
        self._earlier, self._is_counted = GraphStats(), False
        # Whether an interpreter is known to have it.
        self.is_held = False
        calls = [o.options["init_subgraph"] for o in self._operators if o.code == "CALL_ONCE"]
        # The contexts of subgraphs that its nodes run once, at the start.
        self.initializers = frozenset(nodes.called[number].context for number in calls if number in nodes.called)
        # The graph's scratch plan, if the graph was prepared here and the backend reports one.
        self.plan: Plan | None = None

    # -- called by the interpreter -------------------------------------------------------------------------------------

    @shielded
    def prepare(self) -> None:
        """Prepare for the tensors' current shapes and memory, and report the shapes of results."""
        self.block.stop()
        shared = self._custom_memory()
        shapes = tuple(self.nodes.dims(index) for index in (*self._read, *sorted(self._constant_inputs)))
        if shapes != self._shapes:
            self._end()
            self._create_graph(frozenset(shared))
        runner = self._runner
        assert runner is not None
        try:
            self._resize(runner.ready)
            registered = runner.attach(self.nodes, shared)
            self._shapes = shapes
        except Exception:
            self._end()
            raise
        # Tensors that moved to other memory may have been the last users of memory that has been freed.
        custom_memory.end_freed()
        for tensor in registered:
            self._environment.log(LogLevel.INFO, f"Tensor {tensor} is successfully registered to shared memory.")
        self._note_inner()

    def invoke(self) -> None:
        """Run once. If the accelerator has died, this fails, and the next run starts on a new one.

        It is an execution, so it stays in the caller's thread; what it prepares or ends is shielded.
        """
        if self._shapes is None:
            self.prepare()
        assert self._runner is not None
        try:
            self._runner.execute(self.nodes)
        except QnnError as problem:
            if problem.code is Code.COMMON_SYSTEM_COMMUNICATION:
                self._end()
            raise

    def stats(self) -> GraphStats:
        """Return its totals so far."""
        if self._runner is None or self._is_counted:
            return self._earlier
        return self._earlier + self._runner.stats()

    def close(self) -> None:
        """End its graph; safe to call again."""
        self.block.stop()
        self._end()

    # -- memory --------------------------------------------------------------------------------------------------------

    def _custom_memory(self) -> dict[int, CustomMemory]:
        """Return the memory of the inputs and outputs that are in custom memory, by tensor, after checking it."""
        check_memory(self.nodes, self._environment.settings)
        shared = {}
        for index in (*self._read, *self.part.outputs):
            tensor = self.nodes.tensor(index)
            if tensor.allocation_type == Allocation.CUSTOM and tensor.data:
                memory = custom_memory.find(tensor.data)
                if memory is not None:
                    shared[index] = memory
        return shared

    def _note_inner(self) -> None:
        """Warn once about each tensor whose custom memory is unused because it is inside the partition."""
        for index in self._inner:
            tensor = self.nodes.tensor(index)
            place = index, tensor.data or 0
            if tensor.allocation_type != Allocation.CUSTOM or place in self._noted or not custom_memory.find(place[1]):
                continue
            self._noted.add(place)
            text = f"Tensor {index} is inside a partition: it is not registered to shared memory, and never written."
            self._environment.log(LogLevel.WARN, text)

    def _resize(self, ready: ReadyGraph) -> None:
        """Set the shapes of results that the interpreter does not know."""
        context = self.nodes.structure
        for info, slot in zip(ready.infos, ready.places, strict=True):
            if slot.is_variable or slot.tensor not in self.part.outputs or self.nodes.dims(slot.tensor) == info.dims:
                continue
            tensor = ctypes.addressof(context.tensors[slot.tensor])
            if context.resize_tensor(self.nodes.context, tensor, structures.given_array(info.dims)) != structures.OK:
                rule = f"the interpreter does not let it have the shape {list(info.dims)}"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, f"tensor {slot.tensor} ('{info.name}')", rule)

    # -- the graph -----------------------------------------------------------------------------------------------------

    def _create_graph(self, shared: frozenset[int]) -> None:
        """Create the graph for the current shapes, from the model cache if it is there, and its runner."""
        main = NodesSubgraph(self.nodes, self._operators, self._read, self.part.outputs, self._variables)
        model = NodesModel(self.name, main, self._constant_values())
        path = self._cache_path(model, shared)
        try:
            graph = self._restore(path) or self._compose(model, shared, path)
            self._runner, self._is_counted = self._create_runner(ReadyGraph(graph, self._places(graph))), False
        except Exception:
            self._end()
            raise

    def _constant_values(self) -> dict[int, np.ndarray]:
        """Return the contents of `constant_inputs` at the current shapes."""
        if not self._constant_inputs:
            return {}
        values = survey(self.nodes).constant_contents()
        missing = sorted(self._constant_inputs - values.keys())
        if missing:
            rule = f"tensor {missing[0]} no longer follows from constants and shapes alone"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"partition '{self.name}'", rule)
        return {index: values[index] for index in self._constant_inputs}

    def _compose(self, model: NodesModel, shared: frozenset[int], path: Path | None) -> qnn.Graph:
        """Compose the graph from the interpreter's nodes, and store its binary at `path` if there is a cache."""
        composed = tflite.convert(model)
        self._mark_shared(composed, shared)
        self._context = context = self._environment.backend.create_context()
        graph = context.add_graph(composed)
        threads = self._threads()
        if threads > 1:
            graph.set_config(qnn.GraphConfig.THREADS, threads)
        if path is not None:
            self._keep(context, path)
        self.plan = graph.plan
        return graph

    def _cache_path(self, model: NodesModel, shared: frozenset[int]) -> Path | None:
        """Return the path of its binary in the model cache; None without a cache."""
        settings = self._environment.settings
        if settings.cache is None:
            return None
        more = (settings.backend, sorted(settings.config.items()), sorted(shared), self._threads())
        return cache.file(settings.cache, cache.digest(model, more))

    def _keep(self, context: qnn.Context, path: Path) -> None:
        """Store its binary; if that fails, it is made again the next time."""
        try:
            cache.keep(path, context.prepare_offline())
        except QnnError as refusal:
            self._environment.log(LogLevel.WARN, f"Context binary of {self.name} is not kept: {refusal}")
        else:
            self._environment.log(LogLevel.INFO, f"Context binary of {self.name} is kept in {path.name}")

    def _restore(self, path: Path | None) -> qnn.Graph | None:
        """Return the graph from the model cache, if it is there and valid."""
        if path is None:
            return None
        try:
            if not cache.is_there(path):
                return None
            self._context = context = self._environment.backend.create_context_from_binary(path)
            graph = context.retrieve(self.name)
            # Refuses a graph whose inputs and outputs do not fit.
            self._places(graph)
        except QnnError as refusal:
            self._end()
            self._environment.log(LogLevel.WARN, f"Context binary {path.name} is not used: {refusal}")
            return None
        self._environment.log(LogLevel.INFO, f"Context binary of {self.name} is taken from {path.name}")
        self.plan = None
        return graph

    def _mark_shared(self, graph: Graph, shared: frozenset[int]) -> None:
        """Mark the inputs and outputs that will be memory handles, so that no staging is reserved for them."""
        for tensors, indices in ((graph.inputs, self._read), (graph.outputs, self.part.outputs)):
            for tensor, index in zip(tensors, indices, strict=False):
                if index in shared:
                    tensor.mem_type = TensorMemType.MEMHANDLE

    def _threads(self) -> int:
        """Return how many threads the graph uses: the interpreter's number, if the backend has threads."""
        if not self._environment.settings.facet.threads:
            return 1
        return max(1, min(int(self.nodes.structure.recommended_num_threads), MAX_THREADS))

    def _places(self, graph: qnn.Graph) -> tuple[TensorSlot, ...]:
        """Return the interpreter's tensor of each input, then of each output; refuse a graph that does not fit."""
        # After the partition's own results, a graph has an output for the new value of each variable that it changes.
        inputs, outputs = graph.input_tensors, graph.output_tensors
        variables = {tflite.next_value(self.nodes.names[index]): index for index in self._variables}
        results = len(self.part.outputs)
        if len(inputs) != len(self._read) or not 0 <= len(outputs) - results <= len(variables):
            raise self._misfit()
        slots = [TensorSlot(index) for index in (*self._read, *self.part.outputs)]
        for info in outputs[results:]:
            if info.name not in variables:
                raise self._misfit()
            slots.append(TensorSlot(variables[info.name], True))
        # The interpreter knows the shapes of inputs and variables, but perhaps not those of results.
        fixed: Sequence[TensorInfo] = (*inputs, *outputs[results:])
        for info, slot in zip(fixed, (*slots[: len(inputs)], *slots[len(inputs) + results :]), strict=True):
            if info.dims != self.nodes.dims(slot.tensor):
                raise self._misfit()
        return tuple(slots)

    def _misfit(self) -> QnnError:
        """Return the error that a graph from the cache is not that of these nodes."""
        rule = "its inputs and outputs are not those of the interpreter's nodes"
        return QnnError(Code.COMMON_INCOMPATIBLE_BINARIES, f"graph '{self.name}'", rule)

    def _create_runner(self, ready: ReadyGraph) -> NodeRunner:
        """Create the fastest runner that the backend allows; profiling needs a runner in Python."""
        environment, graph = self._environment, ready.graph
        if environment.settings.priority is not None:
            graph.set_config(qnn.GraphConfig.PRIORITY, qnn.Priority(environment.settings.priority))
        if not environment.settings.facet.takes_client_memory:
            return CopyRunner(ready, graph.allocate(), environment.profile)
        if not graph.finalized:
            graph.finalize(environment.profile)
        call = graph.driver.native_call() if environment.profile is None else None
        return BoundRunner(ready, environment.profile) if call is None else NativeRunner(ready, call, self.block)

    @shielded
    def _end(self) -> None:
        """End the graph; safe to call again."""
        self._shapes = None
        runner, context = self._runner, self._context
        if runner is not None:
            if context is not None and context.alive and not self._is_counted:
                self._earlier, self._is_counted = self._earlier + runner.stats(), True
            runner.detach()
        if context is not None:
            context.free()
        if runner is not None:
            runner.close()
        self._runner = self._context = None


def check_memory(nodes: Nodes, settings: DelegateSettings) -> None:
    """Refuse tensors whose custom memory does not fit them, or no longer does."""
    for use in custom_memory.uses_of(nodes.context):
        tensor = nodes.tensor(use.tensor)
        what = f"custom memory of tensor {use.tensor}"
        if tensor.allocation_type == Allocation.DYNAMIC:
            rule = "the tensor is dynamic: its shape is known only when it runs"
            raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, what, rule, "Leave it to the interpreter.")
        if tensor.allocation_type != Allocation.CUSTOM or tensor.data != use.address:
            continue
        settings.check_shares(what, "Leave the tensor to the interpreter.")
        if use.nbytes < tensor.bytes:
            rule = f"it has {use.nbytes} bytes, the tensor now takes {tensor.bytes}"
            raise QnnError(Code.MEM_INVALID_SHAPE, what, rule, "Give the tensor enough memory after a resize.")
