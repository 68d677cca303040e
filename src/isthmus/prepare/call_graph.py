"""A graph of one operation, by which an engine is asked what it would make of that operation alone."""

from __future__ import annotations

import numpy as np

from isthmus.graph import Graph, Tensor, TensorType
from isthmus.graph.operation import Call

_ORDINARY = 3
"""A number that no pass finds special."""


def call_graph(call: Call) -> Graph:
    """A graph of one call, with tensors of its own."""
    graph = Graph(call.node)
    own: dict[int, Tensor] = {}
    given = [t for t in call.inputs if t is not None]
    # What is known in full is folded, as it would be in a larger graph; of a guess there is nothing to fold.
    guessed = all(t.is_static for t in given) and any(t.data is None for t in given)
    for index, tensor in enumerate(given):
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
