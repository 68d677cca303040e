"""Reductions, arg-max and arg-min, sorting and softmax. Axes are mapped to their stored positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue, renumber
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.graph import DataType

Finish = Callable[[OnnxNode, OnnxValue], OnnxValue]
"""An elementwise function that is applied before or after a reduction."""


def reduce_value(node: OnnxNode, op: str, x: OnnxValue, axes: Sequence[int], keep: bool) -> OnnxValue:
    """Emit a reduction over axes of ONNX's view; if `keep`, they stay with size 1.

    The largest of no elements is the lowest number, and the smallest the highest.
    """
    if op in ("ReduceMax", "ReduceMin") and any(x.dims[axis] == 0 for axis in axes):
        dims = [1 if axis in axes else d for axis, d in enumerate(x.dims) if keep or axis not in axes]
        dtype = x.tensor.dtype.numpy
        ends = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return node.literal(np.full(dims, ends[op == "ReduceMin"], dtype))
    stored = sorted(x.perm[axis] for axis in axes)
    tensor = node.emit(op, [x.tensor], {"axes": stored, "keep_dims": keep})
    return OnnxValue(tensor, x.perm if keep else renumber([p for axis, p in enumerate(x.perm) if axis not in axes]))


def _axes(node: OnnxNode, x: OnnxValue) -> list[int] | None:
    """Return the axes to reduce; None if there are none and the node says that this means no reduction."""
    axes = node.ints(1, "axes")
    if axes:
        return node.axes(axes)
    return None if node.attr("noop_with_empty_axes", 0) else list(range(x.rank))


def _reduction(op: str, before: Finish | None = None, after: Finish | None = None) -> Converter:
    """Convert to a reduction, with a function before and after it; the result has the operand's type."""

    def convert(node: OnnxNode) -> OnnxValue:
        x = node.value(0)
        axes = _axes(node, x)
        dtype = x.tensor.dtype
        if dtype is DataType.BOOL_8:
            x = node.cast(x, DataType.UINT_8)
        if before is not None:
            x = before(node, x)
        if axes is not None:
            x = reduce_value(node, op, x, axes, bool(node.attr("keepdims", 1)))
        if after is not None:
            x = after(node, x)
        return node.cast(x, dtype)

    return convert


def _square(node: OnnxNode, x: OnnxValue) -> OnnxValue:
    return node.times(x, x)


def _root(node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Emit a square root; integers are rounded down."""
    if x.tensor.dtype.is_float:
        return node.elementwise("ElementWiseSquareRoot", x)
    real = node.elementwise("ElementWiseSquareRoot", node.cast(x, DataType.FLOAT_32))
    return node.cast(real, x.tensor.dtype)


def _log(node: OnnxNode, x: OnnxValue) -> OnnxValue:
    return node.elementwise("ElementWiseLog", x)


def _log_sum_exp(node: OnnxNode) -> OnnxValue:
    """Compute it after subtracting the largest element, if that is finite, so that no exponential overflows."""
    x = node.value(0)
    axes = _axes(node, x)
    if axes is None:
        return x
    top = reduce_value(node, "ReduceMax", x, axes, True)
    # An infinity minus itself is NaN.
    shift = node.choose(node.elementwise("IsInf", top), 0, top)
    shifted = node.elementwise("ElementWiseExp", node.minus(x, shift))
    total = _log(node, reduce_value(node, "ReduceSum", shifted, axes, True))
    result = node.plus(total, shift)
    if node.attr("keepdims", 1):
        return result
    return node.reshape_to(result, [d for axis, d in enumerate(result.dims) if axis not in axes])


def _argument(node: OnnxNode, op: str) -> OnnxValue:
    """Convert to Argmax or Argmin. The last of equal elements is the first of the reversed axis."""
    x = node.value(0)
    axis = node.axis(int(node.attr("axis", 0)))
    keep = bool(node.attr("keepdims", 1))
    stored = x.perm[axis]
    last = bool(node.attr("select_last_index", 0))
    tensor = node.emit("Reverse", [x.tensor], {"axes": [stored]}) if last else x.tensor
    index = node.emit(op, [tensor], {"axis": stored, "keep_dims": keep}, dtypes=[DataType.INT_64])
    perm = x.perm if keep else renumber([p for a, p in enumerate(x.perm) if a != axis])
    result = OnnxValue(index, perm)
    if not last:
        return result
    end = node.scalar(x.dims[axis] - 1, DataType.INT_64)
    return node.minus(end, result)


def _top_k(node: OnnxNode) -> list[OnnxValue | None]:
    x = node.value(0)
    axis = node.axis(int(node.attr("axis", -1)))
    k = int(node.attr("k", 0)) if node.opset < 10 else int(node.number(1, greatest=node.value(0).dims[axis]))
    # The operation sorts along the last stored axis.
    perm = x.perm_with_last(axis)
    tensor = node.builder.store_as(x, perm)
    values, indices = node.builder.emit(
        "TopK", [tensor], {"k": k, "largest": bool(node.attr("largest", 1))},
        dtypes=[tensor.dtype, DataType.INT_64], outputs=2,
    )  # fmt: skip
    return [OnnxValue(values, perm), OnnxValue(indices, perm)]


def cumulative_sum(node: OnnxNode) -> OnnxValue:
    """Emit a CumSum along a constant axis."""
    x = node.value(0)
    axis = node.axis(int(node.number(1)))
    params = {"axis": x.perm[axis], "exclusive": node.attr("exclusive", 0), "reverse": node.attr("reverse", 0)}
    return node.apply("CumulativeSum", x, params)


def _cumulative_product(node: OnnxNode) -> OnnxValue:
    """Multiply, for each element along a constant axis, those before it; the others are replaced by 1."""
    x = node.value(0)
    axis = node.axis(int(node.number(1)))
    size, last = x.dims[axis], x.rank
    order = (*(a for a in range(x.rank) if a != axis), axis)
    rows = x.permute(order)
    rows = node.reshape_to(rows, (*rows.dims[:-1], 1, size))
    result, factor = np.arange(size)[:, None], np.arange(size)
    if node.attr("reverse", 0):
        result, factor = -result, -factor
    is_factor = factor < result if node.attr("exclusive", 0) else factor <= result
    factors = node.choose(node.literal(is_factor), rows, 1)
    products = reduce_value(node, "ReduceProd", factors, [last], False)
    return products.permute([order.index(a) for a in range(x.rank)])


def softmax(node: OnnxNode, x: OnnxValue, op: str, **output: Any) -> OnnxValue:
    """Emit Softmax or LogSoftmax. Before operator set 13, all axes from `axis` on are normalized together.

    `output` gives the data type and quantization of a quantized result.
    """
    modern = int(node.attr("opset", node.opset)) >= 13
    axis = node.axis(int(node.attr("axis", -1 if modern else 1)), x.rank) if x.rank else 0
    if x.rank == 0:
        return node.reshape_to(softmax(node, node.reshape_to(x, (1,)), op, **output), ())
    together = [a for a in range(axis, x.rank) if x.dims[a] != 1]
    if modern or len(together) <= 1:
        return softmax_along(node, x, op, axis if modern or not together else together[0], **output)
    if x.tensor.dtype is DataType.FLOAT_64:
        return _double_softmax(node, x, together, is_log=op == "LogSoftmax")
    rows = math.prod(x.dims[:axis])
    flat = node.reshape_to(x, (rows, x.tensor.elements // max(rows, 1)))
    result = OnnxValue(node.emit(op, [flat.tensor], {"axis": flat.perm[1]}, **output), flat.perm)
    return node.reshape_to(result, x.dims)


def softmax_along(node: OnnxNode, x: OnnxValue, op: str, axis: int, **output: Any) -> OnnxValue:
    """Emit Softmax or LogSoftmax along one axis of ONNX's view; `output` is that of `softmax`."""
    if x.tensor.dtype is DataType.FLOAT_64:
        return _double_softmax(node, x, [axis], is_log=op == "LogSoftmax")
    return node.apply(op, x, {"axis": x.perm[axis]}, **output)


def _double_softmax(node: OnnxNode, x: OnnxValue, axes: Sequence[int], is_log: bool) -> OnnxValue:
    """Compute Softmax or LogSoftmax in doubles, from its definition."""
    shifted = node.minus(x, reduce_value(node, "ReduceMax", x, axes, True))
    powers = node.elementwise("ElementWiseExp", shifted)
    total = reduce_value(node, "ReduceSum", powers, axes, True)
    if is_log:
        return node.minus(shifted, _log(node, total))
    return node.over(powers, total)


def _hardmax(node: OnnxNode) -> OnnxValue:
    """Emit one at the first largest element, zero elsewhere."""
    x = node.value(0)
    axis = node.axis(int(node.attr("axis", -1 if node.opset >= 13 else 1)))
    dims = x.dims
    if node.opset < 13:
        x = node.reshape_to(x, (math.prod(dims[:axis]), math.prod(dims[axis:])))
        axis = 1
    index = node.emit("Argmax", [x.tensor], {"axis": x.perm[axis], "keep_dims": True}, dtypes=[DataType.INT_32])
    positions = np.arange(x.dims[axis], dtype=np.int32).reshape([-1 if a == axis else 1 for a in range(x.rank)])
    is_largest = node.elementwise("ElementWiseEqual", OnnxValue(index, x.perm), node.literal(positions))
    return node.reshape_to(node.cast(is_largest, x.tensor.dtype), dims)


CONVERTERS: dict[str, Converter] = {
    "ReduceMean": _reduction("ReduceMean"),
    "ReduceSum": _reduction("ReduceSum"),
    "ReduceMax": _reduction("ReduceMax"),
    "ReduceMin": _reduction("ReduceMin"),
    "ReduceProd": _reduction("ReduceProd"),
    "ReduceL1": _reduction("ReduceSum", before=lambda node, x: node.elementwise("ElementWiseAbs", x)),
    "ReduceL2": _reduction("ReduceSum", before=_square, after=_root),
    "ReduceSumSquare": _reduction("ReduceSum", before=_square),
    "ReduceLogSum": _reduction("ReduceSum", after=_log),
    "ReduceLogSumExp": _log_sum_exp,
    "ArgMax": partial(_argument, op="Argmax"),
    "ArgMin": partial(_argument, op="Argmin"),
    "TopK": _top_k,
    "CumSum": cumulative_sum,
    "CumProd": _cumulative_product,
    "Softmax": lambda node: softmax(node, node.value(0), "Softmax"),
    "LogSoftmax": lambda node: softmax(node, node.value(0), "LogSoftmax"),
    "Hardmax": _hardmax,
}
