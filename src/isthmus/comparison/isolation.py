"""A graph in which every operation is alone: it reads values that are given, and what it computes is an output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from isthmus.graph import Graph, Node, Tensor, TensorType


@dataclass(frozen=True)
class Group:
    """The nodes that compute one tensor of a graph from tensors whose values are given.

    - `target`: the graph's tensor.
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

    - `graph`: the finalized graph.
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
            known = tensor.name in given and graph.tensors.get(tensor.name) is tensor
            if known or tensor not in writers:
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
