"""Conversion of the working graph to the final one: only what the outputs need, under the file's own names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isthmus.graph import Graph, Node, Tensor, TensorType


def finish_graph(
    work: Graph, outputs: Sequence[tuple[str, Tensor]], needed_inputs: bool = False
) -> tuple[Graph, dict[str, Tensor]]:
    """Return a finalized graph with the inputs of `work` and these outputs in the given order.

    Also return the tensors of this graph, by the names that they have in `work`.

    A tensor written by a node becomes the output itself. An input, a constant, or a tensor that is used for two outputs
    is copied.

    - `work`: the working graph, which also has nodes that no output needs.
    - `outputs`: the names of the outputs in the file, each with its tensor in the working graph.
    - `needed_inputs`: whether inputs that no output needs are left out.
    """
    graph = Graph(work.name)
    # Round 8-bit results as ONNX Runtime does.
    graph.numerics = "onnxruntime"
    tensors: dict[str, Tensor] = {}
    nodes = _needed_nodes(work, [tensor for _, tensor in outputs])
    read = {tensor.name for node in nodes for tensor in node.inputs if tensor is not None}
    read |= {tensor.name for _, tensor in outputs}
    for tensor in work.inputs if not needed_inputs else [each for each in work.inputs if each.name in read]:
        tensors[tensor.name] = graph.create_tensor(
            tensor.name, TensorType.APP_WRITE, tensor.dtype, tensor.dims, tensor.quantization
        )
    copies: list[tuple[Tensor, Tensor]] = []
    for name, tensor in outputs:
        out = graph.create_tensor(name, TensorType.APP_READ, tensor.dtype, tensor.dims, tensor.quantization)
        if tensor.type is TensorType.NATIVE and tensor.name not in tensors:
            tensors[tensor.name] = out
        else:
            copies.append((tensor, out))
    for node in nodes:
        inputs = [None if t is None else _final_tensor(graph, tensors, t) for t in node.inputs]
        results = [_final_tensor(graph, tensors, t) for t in node.outputs]
        graph.add_node(node.name, node.op, inputs, results, _without_none(node.params))
    for tensor, out in copies:
        graph.add_node(graph.fresh_node(f"{out.name}/copy"), "Reshape", [_final_tensor(graph, tensors, tensor)], [out])
    graph.finalize()
    return graph, tensors


def _without_none(params: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters that are not None, the value of an optional parameter without a default."""
    return {name: value for name, value in params.items() if value is not None}


def _needed_nodes(graph: Graph, outputs: Sequence[Tensor]) -> list[Node]:
    """Return the nodes that the outputs depend on, in execution order."""
    needed_tensors = {tensor.name for tensor in outputs}
    nodes = []
    for node in reversed(graph.nodes):
        if any(tensor.name in needed_tensors for tensor in node.outputs):
            nodes.append(node)
            needed_tensors.update(tensor.name for tensor in node.inputs if tensor is not None)
    return nodes[::-1]


def _final_tensor(graph: Graph, tensors: dict[str, Tensor], tensor: Tensor) -> Tensor:
    """Return the tensor of the final graph that corresponds to one of the working graph; create it if needed."""
    if tensor.name not in tensors:
        tensors[tensor.name] = graph.create_tensor(
            graph.fresh(tensor.name), tensor.type, tensor.dtype, tensor.dims, tensor.quantization, tensor.data
        )
    return tensors[tensor.name]
