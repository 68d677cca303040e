"""Execution of a graph on a backend, as often as needed, on arrays in the graph's own form.

In an isolated graph every operation is alone: it reads values that are given, and what it computes is an output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus import qnn
from isthmus.graph import Graph, Node, Tensor, TensorType
from isthmus.prepare.planner import rewritten
from isthmus.qnn.profile import median_times
from isthmus.system.shield import shielded


class GraphRunner:
    """A graph with memory on a backend.

    - `graph`: the graph; the runner owns it from then on.
    """

    @shielded(release=lambda runner: runner.close())
    def __init__(self, graph: Graph, backend: str, config: Any = None, threads: int = 1) -> None:
        self._backend = qnn.Backend(backend, config)
        try:
            handle = self._backend.create_context().add_graph(graph)
            handle.set_config(qnn.GraphConfig.THREADS, threads)
            self._memory = handle.allocate()
        except Exception:
            self._backend.free()
            raise

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Execute once on stored elements of the inputs; return copies of the outputs' stored elements."""
        for name, view in self._memory.inputs.items():
            np.copyto(view, feeds[name])
        self._memory.binding.execute()
        return {name: view.copy() for name, view in self._memory.outputs.items()}

    def __enter__(self) -> GraphRunner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def operation_times(self, feeds: Mapping[str, np.ndarray], runs: int) -> dict[str, float]:
        """Execute several times and return the median time of each operation in microseconds, by its name."""
        with qnn.Profile(self._backend, qnn.ProfileLevel.DETAILED) as profile:
            for _ in range(runs):
                for name, view in self._memory.inputs.items():
                    np.copyto(view, feeds[name])
                self._memory.binding.execute(profile)
            return median_times(profile.get_events())

    @shielded
    def close(self) -> None:
        """Free the graph and its memory."""
        self._backend.free()
        self._memory.close()


def tensors_after_fusion(graph: Graph) -> set[str]:
    """Return the names of the tensors that the steps of a prepared graph write; the others exist only inside a step."""
    written = (tensor for step in rewritten(graph).steps for tensor in step.outputs)
    return {tensor.name for tensor in written if graph.tensors.get(tensor.name) is tensor}


def keep(graph: Graph, names: Iterable[str]) -> None:
    """Turn intermediate tensors of a finalized graph into outputs, so that an execution returns them."""
    for name in names:
        tensor = graph.tensors[name]
        if tensor.type is TensorType.NATIVE:
            tensor.type = TensorType.APP_READ


def to_stored(array: np.ndarray, tensor: Tensor) -> np.ndarray:
    """Convert numbers, or elements that are stored already, to the stored elements of a tensor."""
    if array.dtype == tensor.dtype.numpy:
        return array
    if tensor.dtype.is_fixed_point and array.dtype.kind == "f":
        assert tensor.quantization is not None
        return tensor.quantization.quantize(array, tensor.dtype.numpy)
    return tensor.dtype.encode(array)


@dataclass(frozen=True)
class Group:
    """The nodes that compute one tensor of a graph from tensors whose values are given.

    - `nodes`: the nodes in order; the last one writes the target.
    - `sources`: the tensors that they read and none of them computes: graph inputs, states, and tensors with given
      values.
    """

    target: Tensor
    nodes: tuple[Node, ...]
    sources: tuple[Tensor, ...]


@dataclass(frozen=True)
class IsolatedGraph:
    """A graph of groups that do not read each other's results.

    - `inputs`, `outputs`: its inputs and outputs, by the names that sources and targets have in the whole graph.
    """

    graph: Graph
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def groups(graph: Graph, targets: Iterable[str], given: set[str]) -> list[Group]:
    """Collect, for each of a graph's tensors, the nodes that compute it from tensors with given values.

    - `targets`: the names of the tensors, each written by a node.
    - `given`: the names of the graph's tensors that have a value.
    """
    writers = {tensor: node for node in graph.nodes for tensor in node.outputs}
    return [_group(graph, graph.tensors[name], given, writers) for name in targets]


def _group(graph: Graph, target: Tensor, given: set[str], writers: Mapping[Tensor, Node]) -> Group:
    """Collect the nodes of one group; `writers` has the node that computes each tensor."""
    nodes: dict[str, Node] = {}
    sources: dict[Tensor, None] = {}
    pending = [writers[target]]
    while pending:
        node = pending.pop()
        if node.name in nodes:
            continue
        nodes[node.name] = node
        for tensor in node.inputs:
            if tensor is None or tensor.is_static:
                continue
            is_given = tensor.name in given and graph.tensors.get(tensor.name) is tensor
            if is_given or tensor not in writers:
                sources[tensor] = None
            else:
                pending.append(writers[tensor])
    return Group(target, tuple(node for node in graph.nodes if node.name in nodes), tuple(sources))


def isolate(
    graph: Graph, groups: Iterable[Group], constant: Callable[[Tensor], np.ndarray | None] = lambda tensor: tensor.data
) -> IsolatedGraph:
    """Compose a graph of groups, each of which reads its sources as graph inputs.

    `constant` returns the elements of a constant, by default those that it has.
    """
    alone = Graph(f"{graph.name}/alone")
    alone.numerics = graph.numerics
    inputs: dict[Tensor, Tensor] = {}
    constants: dict[Tensor, Tensor] = {}
    outputs: dict[str, str] = {}

    def copy(tensor: Tensor, type: TensorType) -> Tensor:
        data = constant(tensor) if type is TensorType.STATIC else None
        return alone.create_tensor(alone.fresh(tensor.name), type, tensor.dtype, tensor.dims, tensor.quantization, data)

    for each in groups:
        copies: dict[Tensor, Tensor] = {}
        for node in each.nodes:
            operands: list[Tensor | None] = []
            for tensor in node.inputs:
                if tensor is None or tensor in copies:
                    operands.append(tensor and copies[tensor])
                elif tensor.is_static:
                    if tensor not in constants:
                        constants[tensor] = copy(tensor, TensorType.STATIC)
                    operands.append(constants[tensor])
                else:
                    if tensor not in inputs:
                        inputs[tensor] = copy(tensor, TensorType.APP_WRITE)
                    operands.append(inputs[tensor])
            for tensor in node.outputs:
                copies[tensor] = copy(tensor, TensorType.APP_READ if tensor is each.target else TensorType.NATIVE)
            params = {name: value for name, value in node.params.items() if value is not None}
            alone.add_node(alone.fresh_node(node.name), node.op, operands, [copies[t] for t in node.outputs], params)
        outputs[each.target.name] = copies[each.target].name
    alone.finalize()
    return IsolatedGraph(alone, {source.name: made.name for source, made in inputs.items()}, outputs)
