"""Recurrent layers whose sequences have the batch first, for operations that have the time first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    permutation = {"perm": _SWAPPED}
    turned = graph.emit("Transpose", [x], permutation, name=f"{name}/time_first")[0]
    time, batch, features = y.dims[1], y.dims[0], y.dims[2]
    hidden = graph.create_tensor(
        graph.fresh(f"{name}/hidden"), TensorType.NATIVE, y.dtype, (time, batch, features), y.quantization
    )
    graph.add_node(name, op, [turned, *inputs[1:]], [hidden, *outputs[1:]], params)
    graph.add_node(graph.fresh_node(f"{name}/batch_first"), "Transpose", [hidden], [y], permutation)
