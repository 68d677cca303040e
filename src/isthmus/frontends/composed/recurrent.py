"""Recurrent layers with batch-first sequences, converted to operations that expect time-first sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isthmus.graph import Graph, Tensor, TensorType

RECURRENT: Mapping[str, frozenset[str]] = dict.fromkeys(("Gru", "Lstm"), frozenset({"time_major", "hidden_size"}))
"""The recurrent operations, each with the parameters that only QNN's form has. The hidden size also follows from the
weights.
"""
# The default of time_major for each operation.
_TIME_FIRST = {"Gru": True, "Lstm": False}
# The permutation that exchanges batch and time.
_SWAPPED = (1, 0, 2)


def is_batch_first(op: str, params: Mapping[str, Any], dims: Sequence[int]) -> bool:
    """Return whether a recurrent node's sequence is [batch, time, features] and this order makes a difference.

    >>> is_batch_first("Lstm", {}, (2, 5, 3)), is_batch_first("Lstm", {"time_major": 1}, (2, 5, 3))
    (True, False)
    """
    if op not in RECURRENT or len(dims) != 3 or tuple(dims[:2]) == (1, 1):
        return False
    return not params.get("time_major", _TIME_FIRST[op])


def add_recurrent(
    graph: Graph, name: str, op: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], params: dict[str, Any]
) -> None:
    """Add a recurrent node; if its sequence is [batch, time, features], put it between two transposes."""
    time_first = bool(params.get("time_major", _TIME_FIRST[op]))
    params = {key: value for key, value in params.items() if key not in RECURRENT[op]}
    x, y = inputs[0] if inputs else None, outputs[0] if outputs else None
    if time_first or x is None or y is None or x.rank != 3 or y.rank != 3:
        graph.add_node(name, op, inputs, outputs, params)
        return
    add_batch_first(graph, name, op, x, inputs[1:], outputs, params, graph.add_node)


def add_batch_first(
    graph: Graph,
    name: str,
    op: str,
    x: Tensor,
    others: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    params: dict[str, Any],
    add: Callable[[str, str, Sequence[Tensor | None], Sequence[Tensor], dict[str, Any]], object],
) -> None:
    """Add a recurrent node with a [batch, time, features] sequence between two transposes; on failure add none.

    - `x`, `outputs`: the sequence, and the outputs, of which the first is also a [batch, time, features] sequence.
    - `params`: parameters of the time-first operation.
    """

    def time_first(tensor: Tensor, name: str) -> Tensor:
        """Create a tensor for the same sequence as [time, batch, features]."""
        batch, time, features = tensor.dims
        dims = (time, batch, features)
        return graph.create_tensor(graph.fresh(name), TensorType.NATIVE, tensor.dtype, dims, tensor.quantization)

    with graph.all_or_none(outputs):
        sequence, hidden = time_first(x, f"{name}/time_first"), time_first(outputs[0], f"{name}/hidden")
        add(graph.fresh_node(f"{name}/time_first"), "Transpose", [x], [sequence], {"perm": _SWAPPED})
        add(name, op, [sequence, *others], [hidden, *outputs[1:]], params)
        add(graph.fresh_node(f"{name}/batch_first"), "Transpose", [hidden], [outputs[0]], {"perm": _SWAPPED})
