"""Operators that read or write by index: gathers, scatters, one-hot codes, compression.

Functions in `CONVERTERS` take a node, emit operations, and return the node's results (see `Converter`).
"""

from __future__ import annotations

import numpy as np

from isthmus.errors import Code
from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.movement import expand, join, slice_value
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.frontends.unsupported import NeedsStages
from isthmus.graph import DataType, Tensor

# Values of a scatter's reduction parameter, by ONNX's names.
_REDUCTIONS = {"none": 0, "add": 1, "mul": 2, "max": 3, "min": 4}


def _indices(node: OnnxNode, index: int, size: int) -> OnnxValue:
    """Fetch indices along an axis of `size`; constant ones are checked and made non-negative."""
    value = node.value(index)
    constant = node.builder.array(value)
    if constant is None:
        return _integers(node, value)
    if constant.size and not (-size <= constant.min() and constant.max() < size):
        node.refuse(f"indices {constant.min()} to {constant.max()} are not within {size} elements")
    return node.builder.literal(np.where(constant < 0, constant + size, constant).astype(np.int32))


def _integers(node: OnnxNode, value: OnnxValue) -> OnnxValue:
    """Return indices in a type that operations take."""
    return value if value.tensor.dtype in (DataType.INT_32, DataType.INT_64) else node.cast(value, DataType.INT_32)


def _gather(node: OnnxNode) -> OnnxValue:
    """Convert to a slice if the indices are constant and consecutive, otherwise to a Gather along the stored axis."""
    x = node.value(0)
    axis = node.axis(int(node.attr("axis", 0)))
    indices = _indices(node, 1, x.dims[axis])
    constant = node.builder.array(indices)
    if constant is not None and not x.is_static and constant.ndim <= 1 and constant.size:
        flat = constant.reshape(-1)
        if (np.diff(flat) == 1).all():
            part = slice_value(node, x, {axis: (int(flat[0]), int(flat[-1]) + 1, 1)})
            if constant.ndim:
                return part
            return node.builder.reshaped(part, [d for a, d in enumerate(x.dims) if a != axis])
    # The axes of the indices replace the gathered one, in the stored order and in ONNX's view.
    stored_axis = x.perm[axis]
    tensor = node.emit("Gather", [x.tensor, node.builder.materialized(indices)], {"axis": stored_axis})
    added_axes = indices.rank - 1
    perm: list[int] = []
    for a, p in enumerate(x.perm):
        if a == axis:
            perm.extend(range(stored_axis, stored_axis + indices.rank))
        else:
            perm.append(p + added_axes if p > stored_axis else p)
    return OnnxValue(tensor, tuple(perm))


def _gather_elements(node: OnnxNode) -> OnnxValue:
    """Convert to a GatherElements, with the indices stored in the operand's order."""
    x = node.value(0)
    axis = node.axis(int(node.attr("axis", 0)))
    indices = _indices(node, 1, x.dims[axis])
    operands = [x.tensor, node.builder.stored(indices, x.perm)]
    return OnnxValue(node.emit("GatherElements", operands, {"axis": x.perm[axis]}), x.perm)


def _positions(node: OnnxNode, index: int, dims: tuple[int, ...], batch: int) -> Tensor:
    """Fetch tuples of indices; constant ones are checked, and their negative coordinates made non-negative.

    Parameters
    ----------
    index
        The input that holds the indices; their last axis is a tuple.
    dims
        The dimensions of the operand that is indexed.
    batch
        The number of its leading axes that are not indexed.
    """
    value = _integers(node, node.value(index))
    constant = node.builder.array(value)
    if constant is not None and constant.ndim:
        sizes = np.array(dims[batch : batch + constant.shape[-1]], np.int64)
        if constant.size and ((constant < -sizes) | (constant >= sizes)).any():
            node.refuse(f"indices are outside dimensions {list(dims)}")
        value = node.builder.literal(np.where(constant < 0, constant + sizes, constant).astype(np.int32))
    return node.builder.materialized(value)


def _gather_nd(node: OnnxNode) -> OnnxValue:
    x, batch = node.value(0), int(node.attr("batch_dims", 0))
    operands = [node.builder.materialized(x), _positions(node, 1, x.dims, batch)]
    return node.unmoved(node.emit("GatherNd", operands, {"batch_dims": batch}))


def _reduction(node: OnnxNode) -> int:
    name = node.attr("reduction", "none")
    if name not in _REDUCTIONS:
        node.unsupported(f"reduction '{name}'")
    return _REDUCTIONS[name]


def _scatter_elements(node: OnnxNode) -> OnnxValue:
    """Convert to a ScatterElements, with indices and updates stored in the operand's order."""
    x = node.value(0)
    axis = node.axis(int(node.attr("axis", 0)))
    indices = _indices(node, 1, x.dims[axis])
    operands = [x.tensor, *(node.builder.stored(v, x.perm) for v in (indices, node.value(2)))]
    params = {"axis": x.perm[axis], "reduction": _reduction(node)}
    return OnnxValue(node.emit("ScatterElements", operands, params), x.perm)


def _scatter_nd(node: OnnxNode) -> OnnxValue:
    x = node.value(0)
    operands = [
        node.builder.materialized(x), _positions(node, 1, x.dims, 0), node.builder.materialized(node.value(2)),
    ]  # fmt: skip
    return node.unmoved(node.emit("ScatterNd", operands, {"reduction": _reduction(node)}))


def _tensor_scatter(node: OnnxNode) -> OnnxValue:
    """Convert to a ScatterElements along the sequence, from the position that each sample of the batch begins at."""
    cache, update = node.value(0), node.value(1)
    axis = node.axis(int(node.attr("axis", -2)))
    if axis == 0 or update.rank != cache.rank:
        node.refuse(f"an update of {list(update.dims)} does not fit axis {axis} of {list(cache.dims)}")
    steps = np.arange(update.dims[axis]).reshape([-1 if a == axis else 1 for a in range(cache.rank)])
    positions = node.builder.literal(np.broadcast_to(steps, (cache.dims[0], *steps.shape[1:])))
    begins = node.optional(2)
    if begins is not None:
        begins = node.builder.reshaped(node.cast(begins, DataType.INT_64), (cache.dims[0], *[1] * (cache.rank - 1)))
        positions = node.elementwise("ElementWiseAdd", positions, begins)
    if node.attr("mode", "linear") == "circular":
        positions = node.elementwise("ElementWiseMod", positions, cache.dims[axis])
    positions = expand(node, positions, update.dims)
    operands = [cache.tensor, *(node.builder.stored(v, cache.perm) for v in (positions, update))]
    return OnnxValue(node.emit("ScatterElements", operands, {"axis": cache.perm[axis]}), cache.perm)


def _one_hot(node: OnnxNode) -> OnnxValue:
    """Compare indices with 0..depth-1 along a new axis, then select the on or the off value."""
    indices, depth = node.value(0), int(node.number(1))
    values = node.value(2)
    rank = indices.rank + 1
    axis = node.axis(int(node.attr("axis", -1)), rank)
    if not 0 < depth < 1 << 24 or values.dims != (2,):
        node.refuse(f"depth {depth} and values of dimensions {list(values.dims)} make no code")
    hot = node.cast(indices, DataType.INT_64)
    negative = node.elementwise("ElementWiseLess", hot, 0)
    hot = node.elementwise("ElementWiseSelect", negative, node.elementwise("ElementWiseAdd", hot, depth), hot)
    hot = node.builder.reshaped(hot, (*hot.dims[:axis], 1, *hot.dims[axis:]))
    positions = np.arange(depth).reshape([-1 if a == axis else 1 for a in range(rank)])
    is_hot = node.elementwise("ElementWiseEqual", hot, node.builder.literal(positions))
    off, on = (node.builder.reshaped(slice_value(node, values, {0: (i, i + 1, 1)}), ()) for i in (0, 1))
    return node.elementwise("ElementWiseSelect", is_hot, on, off)


def _compress(node: OnnxNode) -> OnnxValue:
    """Convert to a Gather of the positions where the condition is true; without an axis, of flat data.

    If the condition is known only at run time, the positions are those of a NonZero.
    """
    x, condition = node.value(0), node.value(1)
    if node.attr("axis") is None:
        x = node.builder.reshaped(x, (x.tensor.elements,))
    axis = node.axis(int(node.attr("axis", 0)), x.rank)
    array = node.builder.array(condition)
    if array is not None:
        positions = np.flatnonzero(array)
        if positions.size and positions[-1] >= x.dims[axis]:
            node.refuse("its condition is longer than its data")
        indices = node.builder.constant(positions.astype(np.int32))
    else:
        if node.stage is None:
            rule = "input 1 is not a constant"
            raise NeedsStages(Code.COMMON_NOT_SUPPORTED, node.what, rule)
        if condition.rank != 1 or condition.dims[0] > x.dims[axis]:
            node.refuse("its condition must be a list, not longer than its data")
        dims, flags = [(condition.dims[0], 1)], node.builder.materialized(condition)
        rows = node.rows("NonZero", [flags], (0, 1), is_result=False, dims=dims, dtypes=[DataType.INT_64])
        indices = node.builder.materialized(node.builder.reshaped(rows, (rows.dims[0],)))
    return OnnxValue(node.emit("Gather", [x.tensor, indices], {"axis": x.perm[axis]}), x.perm)


def _unique(node: OnnxNode) -> list[OnnxValue | None]:
    """Sort the elements, and take those that differ from the one before; the number of them is known at run time.

    Results are the distinct elements, the position where each occurs first, for each element which of them it is, and
    how often each occurs.
    """
    if node.attr("axis") is not None:
        node.unsupported("axis: distinct slices")
    count = node.value(0).tensor.elements
    if node.stage is None and not node.builder.is_constant(node.value(0)):
        raise NeedsStages(Code.COMMON_NOT_SUPPORTED, node.what, "how many elements differ is known only at run time")
    x = node.builder.materialized(node.builder.reshaped(node.value(0), (count,)))
    ordered, places = (node.unmoved(tensor) for tensor in _sorted(node, x))
    first = node.builder.literal(np.ones(min(count, 1), bool))
    others = [slice_value(node, ordered, {0: bounds}) for bounds in ((1, count, 1), (0, max(count - 1, 0), 1))]
    flags = join(node, [first, node.elementwise("ElementWiseNotEqual", *others)], 0) if count > 1 else first
    rows = node.rows("NonZero", [flags.tensor], (0, 1), is_result=False, dims=[(count, 1)], dtypes=[DataType.INT_64])
    starts = node.builder.reshaped(rows, (rows.dims[0],))
    end = node.builder.literal(np.array([count], np.int64))
    ends = join(node, [slice_value(node, starts, {0: (1, rows.dims[0], 1)}), end], 0)
    groups = node.emit("CumulativeSum", [node.cast(flags, DataType.INT_64).tensor], {"axis": 0})
    numbers = node.elementwise("ElementWiseSubtract", node.unmoved(groups), 1)
    results = [
        _taken(node, ordered, starts), _taken(node, places, starts),
        node.elementwise("ElementWiseSubtract", ends, starts),
    ]  # fmt: skip
    if not node.attr("sorted", 1):
        # In the order in which they occur first.
        order = node.unmoved(_sorted(node, results[1].tensor)[1])
        results = [_taken(node, result, order) for result in results]
        numbers = _taken(node, node.unmoved(_sorted(node, order.tensor)[1]), numbers)
    nothing = node.builder.constant(np.zeros(count, np.int64))
    inverse = node.emit("ScatterElements", [nothing, places.tensor, numbers.tensor], {"axis": 0})
    return [results[0], results[1], node.unmoved(inverse), results[2]]


def _sorted(node: OnnxNode, x: Tensor) -> list[Tensor]:
    """Return the elements of a list in ascending order, and their positions; equal ones stay in their order."""
    params = {"k": x.elements, "largest": False}
    return node.builder.emit("TopK", [x], params, dtypes=[x.dtype, DataType.INT_64], outputs=2)


def _taken(node: OnnxNode, x: OnnxValue, indices: OnnxValue) -> OnnxValue:
    """Return the elements of a list at indices."""
    return node.unmoved(node.emit("Gather", [x.tensor, node.builder.materialized(indices)], {"axis": 0}))


CONVERTERS: dict[str, Converter] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "OneHot": _one_hot,
    "Compress": _compress,
    "Unique": _unique,
}
