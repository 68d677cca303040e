"""Operators that read or write by index: gathers, scatters, one-hot codes, compression."""

from __future__ import annotations

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.movement import element_of, expand, join, slice_value
from isthmus.frontends.onnx.node import Converter, OnnxNode
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
    return node.literal(np.where(constant < 0, constant + size, constant).astype(np.int32))


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
            if not constant.ndim:
                return element_of(node, x, axis, int(flat[0]))
            return slice_value(node, x, {axis: (int(flat[0]), int(flat[-1]) + 1, 1)})
    # The axes of the indices replace the gathered one, in the stored order and in ONNX's view.
    stored_axis = x.perm[axis]
    tensor = node.emit("Gather", [x.tensor, node.materialize(indices)], {"axis": stored_axis})
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
    operands = [x.tensor, node.builder.store_as(indices, x.perm)]
    return OnnxValue(node.emit("GatherElements", operands, {"axis": x.perm[axis]}), x.perm)


def _positions(node: OnnxNode, index: int, dims: tuple[int, ...], batch: int) -> Tensor:
    """Fetch tuples of indices, the last axis of an operand; constant ones are checked and made non-negative."""
    # They index an operand with `dims`, of which the first `batch` axes are not indexed.
    value = _integers(node, node.value(index))
    constant = node.builder.array(value)
    if constant is not None and constant.ndim:
        sizes = np.array(dims[batch : batch + constant.shape[-1]], np.int64)
        if constant.size and ((constant < -sizes) | (constant >= sizes)).any():
            node.refuse(f"indices are outside dimensions {list(dims)}")
        value = node.literal(np.where(constant < 0, constant + sizes, constant).astype(np.int32))
    return node.materialize(value)


def _gather_nd(node: OnnxNode) -> OnnxValue:
    x, batch = node.value(0), int(node.attr("batch_dims", 0))
    operands = [node.materialize(x), _positions(node, 1, x.dims, batch)]
    return OnnxValue.of(node.emit("GatherNd", operands, {"batch_dims": batch}))


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
    operands = [x.tensor, *(node.builder.store_as(v, x.perm) for v in (indices, node.value(2)))]
    params = {"axis": x.perm[axis], "reduction": _reduction(node)}
    return OnnxValue(node.emit("ScatterElements", operands, params), x.perm)


def _scatter_nd(node: OnnxNode) -> OnnxValue:
    x = node.value(0)
    operands = [
        node.materialize(x), _positions(node, 1, x.dims, 0), node.materialize(node.value(2)),
    ]  # fmt: skip
    return OnnxValue.of(node.emit("ScatterNd", operands, {"reduction": _reduction(node)}))


def _tensor_scatter(node: OnnxNode) -> OnnxValue:
    """Convert to a ScatterElements along the sequence, from the position that each sample of the batch begins at."""
    cache, update = node.value(0), node.value(1)
    axis = node.axis(int(node.attr("axis", -2)))
    if axis == 0 or update.rank != cache.rank:
        node.refuse(f"an update of {list(update.dims)} does not fit axis {axis} of {list(cache.dims)}")
    steps = np.arange(update.dims[axis]).reshape([-1 if a == axis else 1 for a in range(cache.rank)])
    positions = node.literal(np.broadcast_to(steps, (cache.dims[0], *steps.shape[1:])))
    begins = node.optional(2)
    if begins is not None:
        begins = node.reshape_to(node.cast(begins, DataType.INT_64), (cache.dims[0], *[1] * (cache.rank - 1)))
        positions = node.plus(positions, begins)
    if node.attr("mode", "linear") == "circular":
        positions = node.elementwise("ElementWiseMod", positions, cache.dims[axis])
    positions = expand(node, positions, update.dims)
    operands = [cache.tensor, *(node.builder.store_as(v, cache.perm) for v in (positions, update))]
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
    hot = node.choose(negative, node.plus(hot, depth), hot)
    hot = node.reshape_to(hot, (*hot.dims[:axis], 1, *hot.dims[axis:]))
    positions = np.arange(depth).reshape([-1 if a == axis else 1 for a in range(rank)])
    is_hot = node.elementwise("ElementWiseEqual", hot, node.literal(positions))
    off, on = (element_of(node, values, 0, index) for index in (0, 1))
    return node.choose(is_hot, on, off)


def _compress(node: OnnxNode) -> OnnxValue:
    """Convert to a Gather of the positions where the condition is true; without an axis, of flat data."""
    # If the condition is known only at run time, the positions are those of a NonZero.
    x, condition = node.value(0), node.value(1)
    if node.attr("axis") is None:
        x = node.reshape_to(x, (x.tensor.elements,))
    axis = node.axis(int(node.attr("axis", 0)), x.rank)
    array = node.builder.array(condition)
    if array is not None:
        positions = np.flatnonzero(array)
        if positions.size and positions[-1] >= x.dims[axis]:
            node.refuse("its condition is longer than its data")
        indices = node.builder.constant(positions.astype(np.int32))
    else:
        if node.stage is None:
            node.need_stages("input 1 is not a constant")
        if condition.rank != 1 or condition.dims[0] > x.dims[axis]:
            node.refuse("its condition must be a list, not longer than its data")
        dims, flags = [(condition.dims[0], 1)], node.materialize(condition)
        rows = node.rows("NonZero", [flags], (0, 1), is_result=False, dims=dims, dtypes=[DataType.INT_64])
        indices = node.materialize(node.reshape_to(rows, (rows.dims[0],)))
    return node.apply("Gather", x, {"axis": x.perm[axis]}, indices)


def _unique(node: OnnxNode) -> list[OnnxValue | None]:
    """Sort the elements, and take those that differ from the one before; the number of them is known at run time."""
    # Results are the distinct elements, the position where each occurs first, for each element which of them it is, and
    # how often each occurs.
    if node.attr("axis") is not None:
        node.unsupported("axis: distinct slices")
    count = node.value(0).tensor.elements
    if node.stage is None and not node.builder.is_constant(node.value(0)):
        node.need_stages("how many elements differ is known only at run time")
    x = node.materialize(node.reshape_to(node.value(0), (count,)))
    ordered, places = (OnnxValue.of(tensor) for tensor in _sort(node, x))
    first = node.literal(np.ones(min(count, 1), bool))
    others = [slice_value(node, ordered, {0: bounds}) for bounds in ((1, count, 1), (0, max(count - 1, 0), 1))]
    flags = join(node, [first, node.elementwise("ElementWiseNotEqual", *others)], 0) if count > 1 else first
    rows = node.rows("NonZero", [flags.tensor], (0, 1), is_result=False, dims=[(count, 1)], dtypes=[DataType.INT_64])
    starts = node.reshape_to(rows, (rows.dims[0],))
    end = node.literal(np.array([count], np.int64))
    ends = join(node, [slice_value(node, starts, {0: (1, rows.dims[0], 1)}), end], 0)
    groups = node.emit("CumulativeSum", [node.cast(flags, DataType.INT_64).tensor], {"axis": 0})
    numbers = node.minus(OnnxValue.of(groups), 1)
    results = [
        rows_at(node, ordered, starts), rows_at(node, places, starts),
        node.minus(ends, starts),
    ]  # fmt: skip
    if not node.attr("sorted", 1):
        # In the order in which they occur first.
        order = OnnxValue.of(_sort(node, results[1].tensor)[1])
        results = [rows_at(node, result, order) for result in results]
        numbers = rows_at(node, OnnxValue.of(_sort(node, order.tensor)[1]), numbers)
    nothing = node.builder.constant(np.zeros(count, np.int64))
    inverse = node.emit("ScatterElements", [nothing, places.tensor, numbers.tensor], {"axis": 0})
    return [results[0], results[1], OnnxValue.of(inverse), results[2]]


def _sort(node: OnnxNode, x: Tensor) -> list[Tensor]:
    """Return the elements of a list in ascending order, and their positions; equal ones stay in their order."""
    params = {"k": x.elements, "largest": False}
    return node.builder.emit("TopK", [x], params, dtypes=[x.dtype, DataType.INT_64], outputs=2)


def rows_at(node: OnnxNode, table: OnnxValue, indices: OnnxValue) -> OnnxValue:
    """Return the rows of a table, or the elements of a list, at indices."""
    return OnnxValue.of(node.emit("Gather", [node.materialize(table), node.materialize(indices)], {"axis": 0}))


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
