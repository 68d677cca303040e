"""Bounds of values that are known only at run time, from the operations that compute them.

A count of true elements is at most their number, the smaller of two values is at most either of them, and so on. What
is known of no operand is unbounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from isthmus.graph import DataType, Graph, Node, Tensor

MAX_ELEMENTS = 1 << 20
"""The most elements of a tensor that is looked at."""

_Range = tuple[np.ndarray, np.ndarray]
"""The least and the greatest value of each element; infinite if unknown."""

_MONOTONOUS: Mapping[str, Callable[..., np.ndarray]] = {
    "ElementWiseAdd": np.add,
    "ElementWiseMinimum": np.minimum,
    "ElementWiseMaximum": np.maximum,
    "ElementWiseFloor": np.floor,
    "ElementWiseCeil": np.ceil,
    "ElementWiseRound": np.rint,
    "Relu": lambda x: np.maximum(x, 0),
}
_REDUCTIONS: Mapping[str, Callable[..., np.ndarray]] = {"ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}


def extremes(graph: Graph, tensor: Tensor) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the least and the greatest values that the elements of a tensor can have; None for unbounded ones."""
    writers = {output.name: node for node in graph.nodes for output in node.outputs}
    with np.errstate(all="ignore"):
        low, high = _range(tensor, writers, {})
    return low if np.isfinite(low).all() else None, high if np.isfinite(high).all() else None


def _range(tensor: Tensor, writers: Mapping[str, Node], known: dict[str, _Range]) -> _Range:
    """Return the range of a tensor's elements. A loop over the nodes: a chain of them may be long."""
    stack = [tensor]
    while stack:
        current = stack[-1]
        if current.name in known:
            stack.pop()
            continue
        node = writers.get(current.name)
        inputs = [] if node is None or _by_itself(current) else [t for t in node.inputs if t is not None]
        unknown = [t for t in inputs if t.name not in known and t.elements <= MAX_ELEMENTS]
        if unknown:
            stack += unknown
            continue
        known[current.name] = _computed(current, node, [known.get(t.name) or _anything(t) for t in inputs])
        stack.pop()
    return known[tensor.name]


def _by_itself(tensor: Tensor) -> bool:
    """Return whether a tensor has bounds without the node that writes it."""
    return tensor.dtype is DataType.BOOL_8 or tensor.is_static


def _anything(tensor: Tensor) -> _Range:
    return np.broadcast_to(-np.inf, tensor.dims), np.broadcast_to(np.inf, tensor.dims)


def _computed(tensor: Tensor, node: Node | None, ranges: list[_Range]) -> _Range:
    """Return the range of a node's result from those of its operands."""
    dims = tensor.dims
    if tensor.is_static and tensor.data is not None:
        return tensor.data.astype(np.float64), tensor.data.astype(np.float64)
    if tensor.dtype is DataType.BOOL_8:
        return np.broadcast_to(0.0, dims), np.broadcast_to(1.0, dims)
    if node is None or tensor.quantization is not None:
        return _anything(tensor)
    op, params = node.op, node.params
    if op in _MONOTONOUS:
        low, high = (_MONOTONOUS[op](*(each[end] for each in ranges)) for end in (0, 1))
        return np.broadcast_to(low, dims), np.broadcast_to(high, dims)
    if op in _REDUCTIONS:
        axes, keep = tuple(int(a) for a in np.atleast_1d(params["axes"])), bool(params.get("keep_dims"))
        low, high = (_REDUCTIONS[op](ranges[0][end], axis=axes, keepdims=keep) for end in (0, 1))
        return np.asarray(low).reshape(dims), np.asarray(high).reshape(dims)
    if op == "ElementWiseSubtract":
        (a_low, a_high), (b_low, b_high) = ranges
        return np.broadcast_to(a_low - b_high, dims), np.broadcast_to(a_high - b_low, dims)
    if op == "ElementWiseMultiply":
        products = [np.broadcast_to(a * b, dims) for a in ranges[0] for b in ranges[1]]
        unknown = np.isnan(products).any(axis=0)
        return np.where(unknown, -np.inf, np.min(products, axis=0)), np.where(unknown, np.inf, np.max(products, axis=0))
    if op == "ElementWiseSelect":
        return np.broadcast_to(np.minimum(ranges[1][0], ranges[2][0]), dims), np.broadcast_to(
            np.maximum(ranges[1][1], ranges[2][1]), dims
        )
    if op == "Sigmoid":
        return np.broadcast_to(0.0, dims), np.broadcast_to(1.0, dims)
    if op in ("Argmax", "Argmin"):
        size = node.inputs[0].dims[int(params["axis"])] if node.inputs[0] is not None else 1
        return np.broadcast_to(0.0, dims), np.broadcast_to(float(size - 1), dims)
    if op == "Cast" and not tensor.dtype.is_float:
        return np.trunc(ranges[0][0]), np.trunc(ranges[0][1])
    if op in ("Cast", "Reshape"):
        return ranges[0][0].reshape(dims), ranges[0][1].reshape(dims)
    if op == "Concat":
        axis = int(params["axis"])
        low, high = (np.concatenate([each[end] for each in ranges], axis) for end in (0, 1))
        return low, high
    if op == "StridedSlice" and not any(params.get(name) for name in ("begin_mask", "end_mask", "shrink_axes")):
        places = tuple(slice(*map(int, bounds)) for bounds in params["ranges"])
        low, high = (ranges[0][end][places] for end in (0, 1))
        return (low, high) if low.shape == dims else _anything(tensor)
    return _anything(tensor)
