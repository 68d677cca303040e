"""Lowering of selections by index or by order: gathers, scatters, largest and smallest elements.

Indices come from data. Each is limited to its axis before it is used, so that none reaches outside its tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from isthmus.backends.gpu.compile.kernel_source import KernelOperand, KernelSource
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering
from isthmus.backends.gpu.compile.lowering.movement import as_moved, emit_copy, refuses_movement
from isthmus.graph import DataType, Tensor
from isthmus.graph.ops.movement import NONE
from isthmus.prepare.geometry.layout import dense_strides, operand
from isthmus.prepare.geometry.movement import StridedCopy
from isthmus.prepare.schedule import Step

# The types that indices may have.
_INDICES = (DataType.INT_32, DataType.UINT_32, DataType.INT_64)
# The function that limits an index to an axis, in OpenCL C; `from_end` lets negative ones count from the end.
_BOUNDED = """
int bounded(long index, int size, int from_end)
{
  index = index < 0 && from_end ? index + size : index;
  return index < 0 ? 0 : (index >= size ? size - 1 : (int)index);
}
"""


def _no_index(tensor: Tensor) -> str | None:
    """Return why a tensor cannot hold indices, or None."""
    return None if tensor.dtype in _INDICES else f"indices {tensor.describe()} must be 32-bit integers or INT_64"


def _declare_moved(
    e: KernelEmitter, kernel: KernelSource, output: Tensor, x: Tensor
) -> tuple[KernelOperand, KernelOperand]:
    """Declare a result ``y`` and an operand ``x`` whose elements are copied; return both."""
    y, source = as_moved(e.operand("y", output, writes=True), e.operand("x", x))
    kernel.declare(y, source)
    return y, source


def _indices(e: KernelEmitter, kernel: KernelSource, step: Step, tensor: Tensor) -> None:
    """Declare a tensor of indices, and whether negative ones count from the end."""
    kernel.memory("indices", e.at(tensor), e.storage(tensor).c_type)
    kernel.ints(from_end=int(step.params["from_end"]))


def _launch(kernel: KernelSource, name: str, lines: Sequence[str], items: int) -> None:
    """Emit a kernel of this many work-items, numbered ``item`` in its statements."""
    kernel.ints(items=items)
    head = ["  int item = get_global_id(0);", "  if (item >= items) return;"]
    kernel.launch(name, [*head, *lines], (items,), (128,), _BOUNDED)


def _emit_gather(step: Step, e: KernelEmitter) -> None:
    """Emit a gather along an axis: each index selects all elements of the axes behind it."""
    x, indices, output = operand(step), operand(step, 1), step.outputs[0]
    axis, kernel = int(step.params["axis"]) % x.rank, e.kernel()
    y, source = _declare_moved(e, kernel, output, x)
    _indices(e, kernel, step, indices)
    kernel.ints(count=indices.elements, size=x.dims[axis], run=prod(x.dims[axis + 1 :]))
    lines = [
        "  int c = item % run, k = item / run % count, o = item / (run * count);",
        "  int at = (o * size + bounded(indices[k], size, from_end)) * run + c;",
        f"  {y.storage.computed} v = {source.storage.load('x', 'at')};",
        f"  {y.storage.store('y', 'item', 'v')}",
    ]
    _launch(kernel, "gather", lines, output.elements)


def _apart(kernel: KernelSource, dims: Sequence[int], strides: Sequence[int]) -> list[str]:
    """Return statements that split the item's number into indices of `dims`, and add these times strides to ``at``."""
    lines = ["  int rest = item, at = 0;"]
    for level, (size, stride) in enumerate(zip(reversed(dims), reversed(strides), strict=True)):
        kernel.ints(**{f"d{level}": size, f"s{level}": stride})
        lines.append(f"  at += rest % d{level} * s{level}; rest /= d{level};")
    return lines


def _element_strides(x: Tensor, axis: int) -> list[int]:
    """Return the strides of a tensor, but 0 for the axis along which indices select."""
    return [0 if i == axis else s for i, s in enumerate(dense_strides(x.dims))]


def _emit_gather_elements(step: Step, e: KernelEmitter) -> None:
    """Emit a gather with an index for each element: it replaces the element's own index along an axis."""
    x, indices, output = operand(step), operand(step, 1), step.outputs[0]
    axis, kernel = int(step.params["axis"]) % x.rank, e.kernel()
    y, source = _declare_moved(e, kernel, output, x)
    _indices(e, kernel, step, indices)
    kernel.ints(size=x.dims[axis], step=dense_strides(x.dims)[axis])
    lines = [
        *_apart(kernel, indices.dims, _element_strides(x, axis)),
        f"  {y.storage.computed} v = {source.storage.load('x', 'at + bounded(indices[item], size, from_end) * step')};",
        f"  {y.storage.store('y', 'item', 'v')}",
    ]
    _launch(kernel, "gather_elements", lines, output.elements)


def _tuple_lines(kernel: KernelSource, sizes: Sequence[int], strides: Sequence[int]) -> list[str]:
    """Return statements that add the offset of index tuple number ``k`` to ``at``."""
    # A tuple has an index for each of the axes that have these sizes and strides.
    lines = []
    for level, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        kernel.ints(**{f"n{level}": size, f"t{level}": stride})
        lines.append(f"  at += bounded(indices[k * {len(sizes)} + {level}], n{level}, from_end) * t{level};")
    return lines


def _emit_gather_nd(step: Step, e: KernelEmitter) -> None:
    """Emit a gather by tuples of indices, each of which selects all elements of the axes behind its own."""
    x, indices, output = operand(step), operand(step, 1), step.outputs[0]
    # The first `batch` axes are those of data and indices alike; a tuple has `depth` indices.
    batch, depth, kernel = int(step.params["batch_dims"]), indices.dims[-1], e.kernel()
    y, source = _declare_moved(e, kernel, output, x)
    _indices(e, kernel, step, indices)
    run, tuples = prod(x.dims[batch + depth :]), prod(indices.dims[batch:-1])
    kernel.ints(run=run, tuples=tuples, batch=prod(x.dims[batch:]))
    strides = dense_strides(x.dims)[batch : batch + depth]
    lines = [
        "  int c = item % run, k = item / run, at = k / tuples * batch + c;",
        *_tuple_lines(kernel, x.dims[batch : batch + depth], strides),
        f"  {y.storage.computed} v = {source.storage.load('x', 'at')};",
        f"  {y.storage.store('y', 'item', 'v')}",
    ]
    _launch(kernel, "gather_nd", lines, output.elements)


def _emit_scatter(step: Step, e: KernelEmitter) -> None:
    """Emit a scatter in the order of the indices, so that the last of several updates of one element wins."""
    x, indices, updates, output = operand(step), operand(step, 1), operand(step, 2), step.outputs[0]
    if e.at(output) != e.at(x):
        emit_copy(e, StridedCopy(output, x, [x.elements], [1], [1]))
    if not updates.elements:
        return
    kernel = e.kernel()
    y, source = _declare_moved(e, kernel, output, updates)
    _indices(e, kernel, step, indices)
    if step.op == "ScatterNd":
        depth = indices.dims[-1]
        run, tuples = prod(x.dims[depth:]), prod(indices.dims[:-1])
        kernel.ints(run=run, tuples=tuples)
        body = [
            "  for (int k = 0; k < tuples; ++k) {",
            "  int at = item;",
            *_tuple_lines(kernel, x.dims[:depth], dense_strides(x.dims)[:depth]),
            f"  {y.storage.computed} v = {source.storage.load('x', 'k * run + item')};",
            f"  {y.storage.store('y', 'at', 'v')}",
            "  }",
        ]
        _launch(kernel, "scatter", body, run)
        return
    axis = int(step.params["axis"]) % x.rank
    kernel.ints(size=x.dims[axis], step=dense_strides(x.dims)[axis], length=indices.dims[axis])
    # A work-item writes all updates along the axis, in order. Strides are those of the data and of the indices.
    others = [d for i, d in enumerate(indices.dims) if i != axis]
    walks = [[s for i, s in enumerate(dense_strides(t.dims)) if i != axis] for t in (x, indices)]
    lines = ["  int rest = item, base = 0, from = 0;"]
    for level, (size, stride, index_stride) in enumerate(zip(reversed(others), *map(reversed, walks), strict=True)):
        kernel.ints(**{f"d{level}": size, f"s{level}": stride, f"i{level}": index_stride})
        lines.append(f"  base += rest % d{level} * s{level}; from += rest % d{level} * i{level}; rest /= d{level};")
    kernel.ints(index_step=dense_strides(indices.dims)[axis])
    lines += [
        "  for (int k = 0; k < length; ++k) {",
        "    int at = base + bounded(indices[from + k * index_step], size, from_end) * step;",
        f"    {y.storage.computed} v = {source.storage.load('x', 'from + k * index_step')};",
        f"    {y.storage.store('y', 'at', 'v')}",
        "  }",
    ]
    _launch(kernel, "scatter_elements", lines, prod(others))


def _emit_one_hot(step: Step, e: KernelEmitter) -> None:
    """Emit a new axis whose element at the index is the value "on", and all others are "off"."""
    indices, output, kernel = operand(step), step.outputs[0], e.kernel()
    axis = step.params["axis"]
    axis = indices.rank if axis is None else int(axis) % (indices.rank + 1)
    y = e.operand("y", output, writes=True)
    kernel.declare(y)
    _indices(e, kernel, step, indices)
    kernel.ints(depth=int(step.params["depth"]), inner=prod(indices.dims[axis:]))
    kernel.floats(on=float(step.params["on_value"]), off=float(step.params["off_value"]))
    lines = [
        "  int i = item % inner, d = item / inner % depth, o = item / (inner * depth);",
        "  long index = indices[o * inner + i];",
        "  index = index < 0 && from_end ? index + depth : index;",
        f"  {y.storage.computed} v = index == d ? on : off;",
        f"  {y.storage.store('y', 'item', 'v')}",
    ]
    _launch(kernel, "one_hot", lines, output.elements)


def _better(name: str, real: bool) -> str:
    """Return the condition on which an element u replaces the best one so far; a NaN is better than any real."""
    sign = ">" if name == "max" else "<"
    return f"u {sign} best || (u != u && best == best)" if real else f"u {sign} best"


def _emit_argument(step: Step, e: KernelEmitter, name: str) -> None:
    """Emit the index of the first largest or smallest element along an axis ("max" or "min")."""
    x, output, kernel = operand(step), step.outputs[0], e.kernel()
    axis = int(step.params["axis"]) % x.rank
    storage = kernel.tensor("x", x)
    kernel.memory("y", e.at(output, writes=True), e.storage(output).c_type)
    kernel.ints(length=x.dims[axis], inner=prod(x.dims[axis + 1 :]))
    at = "(item / inner * length + k) * inner + item % inner"
    lines = [
        "  int k = 0, found = 0;",
        f"  {storage.computed} best = {storage.load('x', at)};",
        "  for (k = 1; k < length; ++k) {",
        f"    {storage.computed} u = {storage.load('x', at)};",
        f"    if ({_better(name, storage.real)}) {{ best = u; found = k; }}",
        "  }",
        "  y[item] = found;",
    ]
    _launch(kernel, "argument", lines, output.elements)


def _emit_top_k(step: Step, e: KernelEmitter) -> None:
    """Emit a top-k: each result is the best element after the previous one; of equal elements the first comes first."""
    # In the kernel, u is an element, b the previous result, and best the best element so far.
    x, (values, places), kernel = operand(step), step.outputs, e.kernel()
    y, source = _declare_moved(e, kernel, values, x)
    kernel.memory("places", e.at(places, writes=True), e.storage(places).c_type)
    kernel.ints(length=x.dims[-1], k=int(step.params["k"]))
    name = "max" if step.params["largest"] else "min"
    real, computed = source.storage.real, source.storage.computed
    sign = ">" if name == "max" else "<"

    def beats(a: str, b: str) -> str:
        """Return the expression for "a beats b"; a NaN counts as the largest."""
        if not real:
            return f"{a} {sign} {b}"
        # The result if a is a NaN, and if only b is.
        if_a, if_b = (f"{b} == {b}", "0") if name == "max" else ("0", "1")
        return f"({a} != {a} ? {if_a} : ({b} != {b} ? {if_b} : {a} {sign} {b}))"

    lines = [
        "  int last = -1;",
        f"  {computed} b = 0;",
        "  for (int n = 0; n < k; ++n) {",
        "    int found = -1;",
        f"    {computed} best = 0;",
        "    for (int i = 0; i < length; ++i) {",
        f"      {computed} u = {source.storage.load('x', 'item * length + i')};",
        # An element is not yet taken if the last taken one beats it, or is equal to it and comes before it.
        f"      int worse = {beats('b', 'u')}, equal = !worse && !({beats('u', 'b')});",
        "      if (last >= 0 && !(worse || (equal && i > last))) continue;",
        f"      if (found >= 0) {{ {computed} kept = b; b = best; int better = {beats('u', 'b')}; b = kept;",
        "        if (!better) continue; }",
        "      best = u; found = i;",
        "    }",
        "    last = found; b = best;",
        f"    {computed} v = best;",
        f"    {y.storage.store('y', 'item * k + n', 'v')}",
        "    places[item * k + n] = found;",
        "  }",
    ]
    _launch(kernel, "top_k", lines, prod(x.dims[:-1]))


def _emit_reverse_sequence(step: Step, e: KernelEmitter) -> None:
    """Emit the reversal of the first elements along the time axis, whose number each batch element has for itself."""
    x, lengths, output, kernel = operand(step), operand(step, 1), step.outputs[0], e.kernel()
    batch, time = (int(step.params[name]) % x.rank for name in ("batch_axis", "time_axis"))
    strides = dense_strides(x.dims)
    y, source = _declare_moved(e, kernel, output, x)
    kernel.memory("lengths", e.at(lengths), e.storage(lengths).c_type)
    kernel.ints(batches=x.dims[batch], times=x.dims[time], batch_step=strides[batch], time_step=strides[time])
    lines = [
        "  int b = item / batch_step % batches, t = item / time_step % times;",
        "  long length = lengths[b];",
        "  int n = length < 0 ? 0 : (length > times ? times : (int)length);",
        "  int from = t < n ? item + (n - 1 - 2 * t) * time_step : item;",
        f"  {y.storage.computed} v = {source.storage.load('x', 'from')};",
        f"  {y.storage.store('y', 'item', 'v')}",
    ]
    _launch(kernel, "reverse_sequence", lines, x.elements)


def _data_alone(step: Step) -> str | None:
    """Return why the first operand cannot be moved to the first result, or None; indices are of another type."""
    return refuses_movement(Step(step.op, step.name, [operand(step)], step.outputs[:1], step.params, step.clamp))


def _refuses_gather(step: Step) -> str | None:
    """Return why a gather cannot be executed, or None: no index can be limited to an axis without elements."""
    if step.outputs[0].elements and not operand(step).elements:
        return f"{operand(step).describe()} has nothing to pick from"
    return _data_alone(step) or _no_index(operand(step, 1))


def _refuses_scatter(step: Step) -> str | None:
    """Return why a scatter cannot be executed, or None."""
    x, updates = operand(step), operand(step, 2)
    if step.params["reduction"] != NONE:
        return "only a scatter that replaces elements is supported"
    moved = refuses_movement(Step(step.op, step.name, [x, updates], step.outputs, step.params, step.clamp))
    return moved or _no_index(operand(step, 1))


def _refuses_order(step: Step) -> str | None:
    """Return why a selection by order cannot be executed, or None; its last result holds indices."""
    if step.clamp is not None:
        return "a choice by order takes no fused activation"
    if step.outputs[0].elements and not operand(step).elements:
        return f"{operand(step).describe()} has nothing to pick from"
    return _no_index(step.outputs[-1])


LOWERINGS: dict[str, KernelLowering] = {
    "Gather": KernelLowering(_emit_gather, refuses=_refuses_gather),
    "GatherElements": KernelLowering(_emit_gather_elements, refuses=_refuses_gather),
    "GatherNd": KernelLowering(_emit_gather_nd, refuses=_refuses_gather),
    "ScatterNd": KernelLowering(_emit_scatter, refuses=_refuses_scatter),
    "ScatterElements": KernelLowering(_emit_scatter, refuses=_refuses_scatter),
    "OneHot": KernelLowering(_emit_one_hot, refuses=lambda step: _no_index(operand(step))),
    "ReverseSequence": KernelLowering(
        _emit_reverse_sequence, refuses=lambda step: _data_alone(step) or _no_index(operand(step, 1))
    ),
    "Argmax": KernelLowering(lambda step, e: _emit_argument(step, e, "max"), refuses=_refuses_order),
    "Argmin": KernelLowering(lambda step, e: _emit_argument(step, e, "min"), refuses=_refuses_order),
    "TopK": KernelLowering(_emit_top_k, refuses=lambda step: _refuses_order(step) or _data_alone(step)),
}
