"""Bounds of values that are known only at run time, from the operations that compute them.

A count of true elements is at most their number, the smaller of two values is at most either of them, and so on.
Results of operations without such a rule are unbounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from isthmus.graph import DataType, Graph, Node, Tensor

MAX_ELEMENTS = 1 << 20
"""The most elements of a tensor that is looked at."""

# The least and the greatest value of each element; infinite if unknown.
_Range = tuple[np.ndarray, np.ndarray]

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


def _range(tensor: Tensor, writers: Mapping[str, Node], ranges_of: dict[str, _Range]) -> _Range:
    """Return the range of a tensor's elements, without recursion, since a chain of nodes may be long."""
    stack = [tensor]
    while stack:
        current = stack[-1]
        if current.name in ranges_of:
            stack.pop()
            continue
        node = writers.get(current.name)
        inputs = [] if node is None or _by_itself(current) else [t for t in node.inputs if t is not None]
        unknown = [t for t in inputs if t.name not in ranges_of and t.elements <= MAX_ELEMENTS]
        if unknown:
            stack += unknown
            continue
        ranges_of[current.name] = _compute(current, node, [ranges_of.get(t.name) or _anything(t) for t in inputs])
        stack.pop()
    return ranges_of[tensor.name]


def _by_itself(tensor: Tensor) -> bool:
    """Return whether the bounds of a tensor do not depend on the node that writes it."""
    return tensor.dtype is DataType.BOOL_8 or tensor.is_static


def _anything(tensor: Tensor) -> _Range:
    """Return the range of a tensor that nothing is known of."""
    return np.broadcast_to(-np.inf, tensor.dims), np.broadcast_to(np.inf, tensor.dims)


def _compute(tensor: Tensor, node: Node | None, ranges: list[_Range]) -> _Range:
    """Return the range of a node's result from those of its operands, in the dimensions of the result."""
    ends = [np.asarray(end) for end in _ends(tensor, node, ranges)]
    low, high = (end.reshape(tensor.dims) if end.size == tensor.elements else end for end in ends)
    return np.broadcast_to(low, tensor.dims), np.broadcast_to(high, tensor.dims)


def _both(function: Callable[..., np.ndarray], *ranges: _Range) -> _Range:
    """Apply a function to the least values of operands, and to the greatest."""
    low, high = (function(*(each[end] for each in ranges)) for end in (0, 1))
    return low, high


def _ends(tensor: Tensor, node: Node | None, ranges: list[_Range]) -> tuple[Any, Any]:
    """Return the least and the greatest values of a node's result, each one number or one for each element."""
    if tensor.is_static and tensor.data is not None:
        return tensor.data.astype(np.float64), tensor.data.astype(np.float64)
    if tensor.dtype is DataType.BOOL_8:
        return 0.0, 1.0
    if node is None or tensor.quantization is not None:
        return -np.inf, np.inf
    op, params = node.op, node.params
    if op in _MONOTONOUS:
        return _both(_MONOTONOUS[op], *ranges)
    if op in _REDUCTIONS:
        axes = tuple(int(a) for a in np.atleast_1d(params["axes"]))
        return _both(lambda x: _REDUCTIONS[op](x, axis=axes), ranges[0])
    if op == "ElementWiseSubtract":
        (a_low, a_high), (b_low, b_high) = ranges
        return a_low - b_high, a_high - b_low
    if op == "ElementWiseMultiply":
        products = [np.broadcast_to(a * b, tensor.dims) for a in ranges[0] for b in ranges[1]]
        unknown = np.isnan(products).any(axis=0)
        return np.where(unknown, -np.inf, np.min(products, axis=0)), np.where(unknown, np.inf, np.max(products, axis=0))
    if op == "ElementWiseSelect":
        return np.minimum(ranges[1][0], ranges[2][0]), np.maximum(ranges[1][1], ranges[2][1])
    if op == "Sigmoid":
        return 0.0, 1.0
    if op in ("Argmax", "Argmin"):
        return 0.0, float(node.inputs[0].dims[int(params["axis"])] - 1) if node.inputs[0] is not None else 0.0
    if op == "Cast" and not tensor.dtype.is_float:
        return _both(np.trunc, ranges[0])
    if op in ("Cast", "Reshape"):
        return ranges[0]
    if op == "Concat":
        return _both(lambda *parts: np.concatenate(parts, int(params["axis"])), *ranges)
    if op == "StridedSlice" and not any(params.get(name) for name in ("begin_mask", "end_mask", "shrink_axes")):
        places = tuple(slice(*map(int, bounds)) for bounds in params["ranges"])
        low, high = _both(lambda x: x[places], ranges[0])
        return (low, high) if low.shape == tensor.dims else _anything(tensor)
    return -np.inf, np.inf
