"""A graph of one operation, used to ask an engine what it would do with that operation alone."""

from __future__ import annotations

import numpy as np

from isthmus.graph import Graph, Tensor, TensorType
from isthmus.graph.operation import Call

# A constant's value that no pass treats specially.
_ORDINARY = 3


def call_graph(call: Call) -> Graph:
    """Return a graph of one call, with its own tensors."""
    graph = Graph(call.node)
    # The tensors of this graph, by the ids of the call's inputs.
    own: dict[int, Tensor] = {}
    inputs = [t for t in call.inputs if t is not None]
    # If the data of all inputs is known, the call is folded as in a larger graph. If some data is unknown, it must not
    # be folded, so its first input is not a constant here.
    guessed = all(t.is_static for t in inputs) and any(t.data is None for t in inputs)
    for index, tensor in enumerate(inputs):
        constant = tensor.is_static and not (guessed and index == 0)
        data = tensor.data if constant else None
        if constant and data is None:
            data = np.broadcast_to(np.full((), _ORDINARY, tensor.dtype.numpy), tensor.dims)
        kind = TensorType.STATIC if constant else TensorType.APP_WRITE
        if id(tensor) not in own:
            own[id(tensor)] = graph.create_tensor(
                graph.fresh(tensor.name), kind, tensor.dtype, tensor.dims, tensor.quantization, data
            )
    results = [
        graph.create_tensor(graph.fresh(t.name), TensorType.APP_READ, t.dtype, t.dims, t.quantization)
        for t in call.declared or ()
    ]
    graph.add_node(call.node, call.op, [None if t is None else own[id(t)] for t in call.inputs], results, call.params)
    graph.finalize()
    return graph
