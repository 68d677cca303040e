"""Recurrent layers whose sequences have the batch first, for operations that have the time first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isthmus.graph import Graph, Tensor, TensorType

RECURRENT: Mapping[str, frozenset[str]] = dict.fromkeys(("Gru", "Lstm"), frozenset({"time_major", "hidden_size"}))
"""The operations, each with the parameters that only QNN's own form of it has. The weights tell the hidden size too."""
_TIME_FIRST = {"Gru": True, "Lstm": False}
"""What time_major is where it is not given."""
_SWAPPED = (1, 0, 2)


def is_batch_first(op: str, params: Mapping[str, Any], dims: Sequence[int]) -> bool:
    """Whether a node is a recurrent one whose sequence is [batch, time, features], and that makes a difference.

    Examples
    --------
    >>> is_batch_first("Lstm", {}, (2, 5, 3)), is_batch_first("Lstm", {"time_major": 1}, (2, 5, 3))
    (True, False)
    """
    if op not in RECURRENT or len(dims) != 3 or tuple(dims[:2]) == (1, 1):
        return False
    return not params.get("time_major", _TIME_FIRST[op])


def add_recurrent(
    graph: Graph, name: str, op: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], params: dict[str, Any]
) -> None:
    """Add a recurrent node; one whose sequence is [batch, time, features] stands between two transposes."""
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
    """Add a recurrent node whose sequence is [batch, time, features], between two transposes: all three, or none.

    Parameters
    ----------
    x, outputs
        Such a sequence, and what is written, of which the first is one too.
    others
        The inputs behind the sequence.
    params
        Those of the operation that has the time first.
    add
        What adds a node to the graph.
    """

    def turned(tensor: Tensor, name: str) -> Tensor:
        batch, time, features = tensor.dims
        dims = (time, batch, features)
        return graph.create_tensor(graph.fresh(name), TensorType.NATIVE, tensor.dtype, dims, tensor.quantization)

    with graph.all_or_none(outputs):
        sequence, hidden = turned(x, f"{name}/time_first"), turned(outputs[0], f"{name}/hidden")
        add(graph.fresh_node(f"{name}/time_first"), "Transpose", [x], [sequence], {"perm": _SWAPPED})
        add(name, op, [sequence, *others], [hidden, *outputs[1:]], params)
        add(graph.fresh_node(f"{name}/batch_first"), "Transpose", [hidden], [outputs[0]], {"perm": _SWAPPED})
