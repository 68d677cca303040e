"""Models whose shapes are known only at run time: a graph for each combination of shapes, in memory for the greatest.

A `DynamicModel` converts a model stage by stage (`isthmus.frontends.onnx.stage`). Each stage becomes a graph for the
shapes and values of one run, which is kept for later runs with the same ones. All graphs use the scratch of the
largest, and all inputs, outputs and values between stages have memory for their greatest shapes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isthmus.backends.seam import registry
from isthmus.backends.seam.driver import GraphStats, TensorMemory
from isthmus.backends.seam.entry import IoMemory
from isthmus.errors import Code, DoesNotFit, QnnError
from isthmus.frontends import SELECTING, ModelSource, staged_model
from isthmus.frontends.onnx.stage import ModelStage, StageProgress, StoredValue, first_filled
from isthmus.frontends.onnx.tensors import data_type
from isthmus.graph import DataType, Graph, GraphInfo, MemoryNeeds, TensorInfo, TensorMemType
from isthmus.memory import Buffer, holds, host
from isthmus.prepare.schedule import Plan
from isthmus.prepare.tiling import ScratchLimit
from isthmus.qnn.backend import Backend
from isthmus.qnn.binding import Binding
from isthmus.qnn.context import Context
from isthmus.qnn.graph import GraphConfig, QnnGraph
from isthmus.qnn.memory import GraphMemory
from isthmus.qnn.profile import Profile
from isthmus.qnn.signal import Signal
from isthmus.system.shield import shielded

MAX_GRAPHS = 64
"""How many graphs are kept; the least recently used one is released for another."""
MAX_COPIES = 4
"""The bytes of constants that all graphs may have, as a multiple of those of the graphs for the greatest shapes."""
KEPT_BYTES = 16 << 20
"""The bytes of constants that all graphs may have even if `MAX_COPIES` allows fewer."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class GraphSettings:
    """How all graphs of a model are prepared.

    - `limit`: The limit on scratch. A share ("25%") is one of what the stage that needs most scratch would need.
    - `mem_type`: The memory type that inputs and outputs are prepared for.
    """

    threads: int
    limit: ScratchLimit | None
    mem_type: TensorMemType | None

    def compose(self, context: Context, graph: Graph, limit: ScratchLimit | None) -> QnnGraph:
        """Add a graph to a context and plan it, with a limit on its scratch; nothing is left of one that is refused."""
        if self.mem_type is not None:
            for tensor in (*graph.inputs, *graph.outputs):
                tensor.mem_type = self.mem_type
        composed = context.add_graph(graph)
        try:
            composed.set_config(GraphConfig.THREADS, self.threads)
            if limit is not None:
                composed.set_config(GraphConfig.SCRATCH_LIMIT, limit)
            _ = composed.info
        except Exception:
            context.release_graph(composed)
            raise
        return composed


@dataclass(frozen=True)
class PlannedStage:
    """A stage for the greatest shapes.

    - `plan`: The plan of its scratch, if the backend reports one.
    - `waits_for`: What the next stage waits for: the names of values, and of rows whose number depends on the data.
    """

    info: GraphInfo
    plan: Plan | None
    waits_for: tuple[str, ...]


class Specialization:
    """A stage for given shapes and values, ready to run.

    - `graphs`, `bindings`: Its graphs, in order, and the graphs on their memory.
    - `pools`: Memory of the graphs, if the backend takes it from its caller.
    """

    def __init__(self, stage: ModelStage) -> None:
        self.stage = stage
        self.bindings: list[Binding] = []
        self.graphs: list[QnnGraph] = []
        self.pools: list[Buffer] = []

    def close(self) -> None:
        """Release the graphs."""
        for binding in self.bindings:
            binding.close()
        for graph in self.graphs:
            graph.context.release_graph(graph)
        for buffer in self.pools:
            buffer.close()


class DynamicModel:
    """An ONNX model whose shapes are known only at run time, in memory for the greatest shapes.

    - `context`: The context of its graphs; without `whole`, it is freed if the model cannot be prepared.
    - `bounds`: The greatest values, by name, of values that decide shapes.
    - `whole`: The memory of the model as one graph at the greatest shapes, if it can be one.
    - `info`: The description of the model: inputs and outputs at their greatest shapes, and the memory of all stages.
    """

    @shielded(release=lambda model: model.close())
    def __init__(
        self,
        context: Context,
        source: ModelSource,
        settings: GraphSettings,
        bounds: Mapping[str, Any] | None = None,
        io: str | None = None,
        whole: GraphMemory | None = None,
    ) -> None:
        self._context, self._settings = context, settings
        operations = context.backend.driver.operations()
        selects = all(op in operations for op in SELECTING)
        self._model = staged_model(source, bounds, selects)
        # The context for selecting rows if the backend cannot, and its backend.
        self._host: Context | None = None
        self._host_backend: Backend | None = None
        self._specializations: OrderedDict[Hashable, Specialization] = OrderedDict()
        self._serial = 0
        self._buffers: list[Buffer] = []
        self._memories: dict[str, TensorMemory] = {}
        # The memories that were allocated here, not adopted.
        self._own_memories: list[TensorMemory] = []
        self._infos: dict[str, TensorInfo] = {}
        # The bytes of scratch that the graphs of each context share, and of the constants of the graphs that own it.
        self._scratch_bytes: dict[Context, int] = {}
        self._owned_constants = 0
        # The totals of the graphs that have been released.
        self._released = GraphStats()
        self.stages: list[PlannedStage] = []
        try:
            if whole is None:
                self._plan(io)
            else:
                self._adopt(whole)
        except Exception:
            if whole is None:
                # A graph that is composed holds the memory that it was given.
                context.free()
            self.close()
            raise
        self.inputs_survive = True

    @property
    def greatest(self) -> dict[str, tuple[int, ...]]:
        """The greatest shapes of the inputs."""
        return {each.name: tuple(each.dims) for each in self._model.inputs}

    # -- memory ------------------------------------------------------------------------------------------------------

    def _adopt(self, whole: GraphMemory) -> None:
        """Use the memory of the model as one graph. Inputs and outputs inside its scratch get memory of their own."""
        graph = whole.binding.graph
        for info, memory in zip(graph.info.tensors, whole.memories, strict=True):
            self._infos[info.name] = info
            if any(hold.is_claim for hold in holds.holders(memory.window)):
                provision = self._context.backend.entry.io.io(graph.driver, None, [info])
                self._buffers += provision.buffers
                [taken] = provision.memories
                assert taken is not None
                self._own_memories.append(taken)
                self._memories[info.name] = taken
            else:
                self._memories[info.name] = memory
        self._scratch_bytes[self._context] = graph.info.memory.scratch_bytes
        self._owned_constants += graph.info.memory.constant_bytes
        self._context.driver.share_scratch(graph.driver)
        self.info = graph.info

    def _plan(self, io: str | None) -> None:
        """Plan all stages at the greatest shapes, and allocate memory for them."""
        composed: list[QnnGraph] = []
        selections: list[QnnGraph] = []
        waits_for: list[tuple[str, ...]] = []
        greatest: dict[str, TensorInfo] = {}
        # Outputs that are views of a value between stages, in the same memory.
        aliases: dict[str, TensorInfo] = {}

        def note(name: str, value: StoredValue) -> None:
            kind = self._settings.mem_type or TensorMemType.RAW
            info = TensorInfo(name, value.dtype, value.dims, value.quantization, value.nbytes, kind)
            if name not in greatest or greatest[name].nbytes < info.nbytes:
                greatest[name] = info

        for each in self._model.inputs:
            note(each.name, StoredValue(data_type(each.dtype), each.dims, None, ()))
        for stage in self._model.greatest():
            for name, value in stage.stored.items():
                note(name, value)
            for name, array in stage.constants.items():
                note(name, StoredValue(DataType.of(array.dtype), array.shape, None, ()))
            for name, path in stage.aliases.items():
                aliases[name] = replace(greatest[path], name=name)
            if stage.graph is not None:
                graph = self._compose(stage.graph, self._context)
                composed.append(graph)
                waits_for.append((*stage.needed, *stage.rows))
                for info in graph.info.inputs:
                    # The types of fixed-point inputs are known only now.
                    if greatest[info.name].nbytes == info.nbytes:
                        greatest[info.name] = info
            if stage.selection is not None:
                selections.append(self._compose(stage.selection, self._host_context()))
        self._infos = greatest
        composed = self._limit_of(composed)
        self.stages = [
            PlannedStage(graph.info, graph.plan, names) for graph, names in zip(composed, waits_for, strict=True)
        ]
        infos = [graph.info for graph in composed]
        total = MemoryNeeds(
            max((info.memory.scratch_bytes for info in infos), default=0),
            max((info.memory.state_bytes for info in infos), default=0),
            sum(info.memory.constant_bytes for info in infos),
            max((info.memory.alignment for info in infos), default=1),
        )
        inputs = tuple(greatest[each.name] for each in self._model.inputs)
        outputs = tuple(greatest.get(name) or aliases[name] for name in self._model.output_names)
        self.info = GraphInfo(self._model.name, inputs, outputs, total, infos[0].target if infos else "")
        owners = [self._share_scratch(graphs) for graphs in (composed, selections) if graphs]
        tensors = [info for info in greatest.values() if info.nbytes]
        if composed:
            provision = self._context.backend.entry.io.io(owners[0].driver, io, tensors)
        else:
            # No stage has a graph for the backend, so host memory will do.
            buffers = [host(info.nbytes) for info in tensors]
            provision = IoMemory([TensorMemory(buffer.window()) for buffer in buffers], buffers)
        self._buffers += provision.buffers
        for info, memory in zip(tensors, provision.memories, strict=True):
            assert memory is not None
            self._own_memories.append(memory)
            self._memories[info.name] = memory

    def _limit_of(self, graphs: Sequence[QnnGraph]) -> list[QnnGraph]:
        """Return the graphs of all stages within the limit on scratch, if there is one."""
        limit = self._settings.limit
        if limit is None:
            return list(graphs)
        if limit.share is not None:
            most = max((graph.info.memory.scratch_bytes for graph in graphs), default=0)
            limit = ScratchLimit(limit.bytes_of(most), slower=limit.slower)
        limited = []
        for graph in graphs:
            composed = graph.driver.graph
            self._context.release_graph(graph)
            whole = self._compose_whole(composed, self._context, limit)
            limited.append(whole or self._compose(composed, self._context, limit))
        return limited

    def _share_scratch(self, graphs: Sequence[QnnGraph]) -> QnnGraph:
        """Finalize the graph of a context that needs most scratch, for all others to use, and return it."""
        # The others are released: graphs for the true shapes take their places.
        owner = max(graphs, key=lambda graph: graph.info.memory.scratch_bytes)
        context = owner.context
        for graph in graphs:
            if graph is not owner:
                context.release_graph(graph)
        context.driver.share_scratch(owner.driver)
        self._buffers += context.backend.entry.io.pools(owner.driver)
        owner.finalize()
        self._scratch_bytes[context] = owner.info.memory.scratch_bytes
        self._owned_constants += owner.info.memory.constant_bytes
        return owner

    @property
    def between_bytes(self) -> int:
        """Bytes of the values between stages."""
        ends = {info.name for info in self.info.tensors}
        return sum(info.nbytes for name, info in self._infos.items() if name not in ends)

    def view(self, name: str, value: StoredValue) -> np.ndarray:
        """Return a view of the memory of an input, output or stored value, at its true shape."""
        if 0 in value.dims:
            return np.zeros(value.dims, value.dtype.numpy)
        window = self._memory(name, value.nbytes).window
        return window.part(0, value.nbytes).view(value.dtype.numpy, value.dims)

    def input_view(self, name: str, dims: tuple[int, ...]) -> np.ndarray:
        """Return a view of the memory of an input at a shape."""
        dtype = next(each.dtype for each in self.info.inputs if each.name == name)
        return self.view(name, StoredValue(dtype, dims, None, ()))

    def _memory(self, name: str, nbytes: int) -> TensorMemory:
        """Return the memory of a value; refuse one that is larger than it was planned for."""
        memory = self._memories.get(name)
        planned = self._infos[name].nbytes if memory is not None else 0
        if memory is None or nbytes > planned:
            rule = f"it has {nbytes:,} bytes in this run, and memory was planned for {planned:,}"
            raise QnnError(Code.COMMON_MEM_ALLOC, f"'{name}' of model '{self._model.name}'", rule, _LARGER)
        return memory

    # -- graphs ------------------------------------------------------------------------------------------------------

    def _compose(self, graph: Graph, context: Context, limit: ScratchLimit | None = None) -> QnnGraph:
        """Add a graph to a context, under a name of its own, and plan it; nothing is left of one that is refused."""
        self._serial += 1
        graph.name = f"{self._model.name}.{self._serial}"
        return self._settings.compose(context, graph, limit)

    def _compose_whole(self, graph: Graph, context: Context, limit: ScratchLimit) -> QnnGraph | None:
        """Add a graph to a context if it keeps the limit without tiles; return None if it does not."""
        composed = self._compose(graph, context)
        needed = composed.info.memory.scratch_bytes
        if limit.bytes is not None and needed <= limit.bytes:
            return composed
        context.release_graph(composed)
        return None

    def _planned_graph(self, graph: Graph, context: Context) -> QnnGraph:
        """Add a graph that fits into the scratch that was planned, in tiles if it must be."""
        planned = self._scratch_bytes.get(context, 0)
        limit = ScratchLimit(bytes=planned)
        whole = self._compose_whole(graph, context, limit)
        if whole is not None:
            return whole
        try:
            return self._compose(graph, context, limit)
        except QnnError as error:
            # No plan keeps the limit, or the backend takes no limits.
            if not isinstance(error, DoesNotFit) and error.code is not Code.GRAPH_INVALID_ARGUMENT:
                raise
            rule = f"it needs more than the {planned:,} bytes of scratch that were planned ({error.rule})"
            raise QnnError(Code.COMMON_MEM_ALLOC, f"model '{self._model.name}'", rule, _LARGER) from None

    def _add(self, owner: Specialization, composed: Graph, context: Context) -> None:
        """Add a graph to a stage: prepare it, and bind it to the memory of its inputs and outputs."""
        graph = self._planned_graph(composed, context)
        owner.graphs.append(graph)
        memories = [self._memory(each.name, each.nbytes) for each in graph.info.tensors]
        owner.pools += context.backend.entry.io.pools(graph.driver)
        graph.finalize()
        if context is not self._context:
            memories = [TensorMemory(memory.window) for memory in memories]
        owner.bindings.append(Binding(graph, graph.driver.bind(memories)))

    def _specialization(self, key: Hashable, shapes: Shapes, progress: StageProgress) -> Specialization:
        """Return the next stage for these shapes and the values known so far (`progress`); prepare it if it is new."""
        ready = self._specializations.get(key)
        if ready is not None:
            self._specializations.move_to_end(key)
            return ready
        return self._specialize(key, shapes, progress)

    @shielded
    def _specialize(self, key: Hashable, shapes: Shapes, progress: StageProgress) -> Specialization:
        """Prepare a stage for shapes. Apart from `_specialization`, since only this slow part needs a shield."""
        new = Specialization(self._model.stage(shapes, progress))
        try:
            if new.stage.graph is not None:
                self._add(new, new.stage.graph, self._context)
            if new.stage.selection is not None:
                self._add(new, new.stage.selection, self._host_context())
        except Exception:
            new.close()
            raise
        self._specializations[key] = new
        self._evict()
        return new

    def _evict(self) -> None:
        """Release graphs, the least recently used first, until few enough are left."""
        most = max(MAX_COPIES * self.info.memory.constant_bytes, KEPT_BYTES)
        while len(self._specializations) > 1:
            graphs = [graph for each in self._specializations.values() for graph in each.graphs]
            held = self._owned_constants + sum(graph.info.memory.constant_bytes for graph in graphs)
            if len(graphs) <= MAX_GRAPHS and held <= most:
                return
            oldest = self._specializations.popitem(last=False)[1]
            for graph in oldest.graphs:
                # Staging memory that the graph reserved is free again.
                self._released += replace(graph.stats, staging_prepare_bytes=0, staging_execute_bytes=0)
            oldest.close()

    def _host_context(self) -> Context:
        """Return the context of graphs that select rows on the host."""
        if self._host is None:
            self._host_backend = Backend(registry.DEFAULT)
            self._host = self._host_backend.create_context()
        return self._host

    # -- runs --------------------------------------------------------------------------------------------------------

    def run(
        self, shapes: Shapes, profile: Profile | None = None, signal: Signal | None = None
    ) -> dict[str, np.ndarray]:
        """Run once on the contents of the inputs' memory at these shapes; return views of the outputs."""
        progress = StageProgress()
        key: tuple[Hashable, ...] = (tuple(sorted(shapes.items())),)
        outputs: dict[str, np.ndarray] = {}
        while True:
            current = self._specialization(key, shapes, progress)
            stage = current.stage
            for binding in current.bindings:
                on_device = binding.graph.context is self._context
                binding.execute(profile if on_device else None, signal if on_device else None)
            for name in stage.outputs:
                outputs[name] = self._output(name, stage)
            if stage.is_last:
                return {name: outputs[name] for name in self._model.output_names}
            counts = {path: first_filled(self.view(path, stage.stored[path])) for path in stage.rows}
            values = {
                path: np.array(self.view(path, need.value).transpose(need.value.perm))
                for path, need in stage.needed.items()
            }
            progress = stage.next(counts, values)
            key = (*key, *counts.items(), *((path, value.tobytes()) for path, value in values.items()))

    def _output(self, name: str, stage: ModelStage) -> np.ndarray:
        """Return a view of an output that a stage has completed."""
        if name in stage.constants:
            array = stage.constants[name]
            view = self.view(name, StoredValue(DataType.of(array.dtype), array.shape, None, ()))
            np.copyto(view, array)
            return view
        path = stage.aliases.get(name)
        return self.view(name, stage.stored[name]) if path is None else self.view(path, stage.progress.stored[path])

    def stats(self, others: GraphStats) -> GraphStats:
        """Return the totals of all graphs, also of those that are no longer kept, added to `others`."""
        graphs = (graph for each in self._specializations.values() for graph in each.graphs)
        return sum((graph.stats for graph in graphs), others + self._released)

    def close(self) -> None:
        """Free the memory, after the context; safe to call again. Existing views stay readable."""
        if self._context.is_inherited:
            # In a forked child: the parent's graphs hold the memory.
            return
        if self._host_backend is not None:
            self._host_backend.free()
        for each in self._specializations.values():
            for buffer in each.pools:
                buffer.close()
        self._specializations.clear()
        for memory in self._own_memories:
            if memory.registration is not None:
                memory.registration.close()
        self._memories.clear()
        self._own_memories.clear()
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()


_LARGER = "Give greater shapes or bounds, or run a smaller input."
