"""Operators that move or select data: reshapes, slices, joins, pads, tiles. Axes are those of the stored order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.frontends.onnx.stage import Choices
from isthmus.graph import Tensor
from isthmus.graph.ops.movement import CONSTANT, EDGE, MIRROR_REFLECT

# An index beyond the last element of any axis.
_MAX_INDEX = 2**31 - 1
_SCHEMES = {"constant": CONSTANT, "reflect": MIRROR_REFLECT, "edge": EDGE}


def _reshape(node: OnnxNode) -> OnnxValue:
    """Convert a Reshape to constant dimensions: 0 copies the operand's (unless allowzero is set), -1 takes the rest."""
    x = node.value(0)
    dims = node.ints(1, "shape") or []
    if not node.attr("allowzero", 0):
        dims = [x.dims[i] if d == 0 and i < x.rank else d for i, d in enumerate(dims)]
    if dims.count(-1) == 1:
        rest = math.prod(d for d in dims if d != -1)
        dims[dims.index(-1)] = math.prod(x.dims) // rest if rest else 0
    if any(d < 0 for d in dims):
        node.refuse(f"shape {dims[:8]} leaves dimensions open")
    return node.reshape_to(x, dims)


def _flatten(node: OnnxNode) -> OnnxValue:
    x = node.value(0)
    axis = int(node.attr("axis", 1))
    axis += x.rank if axis < 0 else 0
    return node.reshape_to(x, (math.prod(x.dims[:axis]), math.prod(x.dims[axis:])))


def _squeeze(node: OnnxNode) -> OnnxValue:
    x = node.value(0)
    axes = node.ints(1, "axes")
    dropped = node.axes(axes) if axes is not None else [a for a, d in enumerate(x.dims) if d == 1]
    if any(x.dims[axis] != 1 for axis in dropped):
        node.refuse(f"axes {dropped} of {list(x.dims)} are not all of size 1")
    return node.reshape_to(x, [d for axis, d in enumerate(x.dims) if axis not in dropped])


def _unsqueeze(node: OnnxNode) -> OnnxValue:
    x = node.value(0)
    axes = node.ints(1, "axes") or []
    rank = x.rank + len(axes)
    added = node.axes(axes, rank)
    dims = iter(x.dims)
    return node.reshape_to(x, [1 if axis in added else next(dims) for axis in range(rank)])


def join(node: OnnxNode, values: Sequence[OnnxValue], axis: int, **output: Any) -> OnnxValue:
    """Concatenate values along an axis of ONNX's view; `output` gives the type and quantization of the result."""
    builder = node.builder
    rank = max(v.rank for v in values)
    if any(v.rank != rank for v in values):
        node.refuse("its operands differ in rank")
    non_empty = [v for v in values if v.dims[axis]] or list(values[:1])
    perm = builder.common_perm(non_empty, rank)
    if len(non_empty) == 1 and not output:
        return non_empty[0]
    tensors = [builder.store_as(v, perm) for v in non_empty]
    if not output and any(t.quantization != tensors[0].quantization for t in tensors):
        # To ONNX these are integers, so they are joined as such; fixed-point operands would be converted.
        tensors = [builder.plain(OnnxValue(t, perm)).tensor for t in tensors]
    return OnnxValue(node.emit("Concat", tensors, {"axis": perm[axis]}, **output), perm)


def _concat(node: OnnxNode) -> OnnxValue:
    values = [node.value(index) for index in range(max(len(node.inputs), 1))]
    return join(node, values, node.axis(int(node.attr("axis", 1)), values[0].rank))


def _split(node: OnnxNode) -> list[OnnxValue | None]:
    """Split an axis into parts of given sizes, or into equal parts of which the last may be smaller."""
    x = node.value(0)
    axis = node.axis(int(node.attr("axis", 0)))
    size, count = x.dims[axis], len(node.outputs)
    parts = split_parts(node, size, count)
    if parts is None:
        part_size = -(-size // count)
        parts = [max(min(part_size, size - i * part_size), 0) for i in range(count)]
    if len(parts) != count or sum(parts) != size or any(p < 0 for p in parts):
        node.refuse(f"parts {parts[:8]} do not make up the {size} elements of axis {axis}")
    if count == 1:
        return [x]
    cuts = np.cumsum(parts)[:-1]
    tensors = node.builder.emit("Split", [x.tensor], {"axis": x.perm[axis], "split_index": cuts}, outputs=count)
    return [OnnxValue(tensor, x.perm) for tensor in tensors]


def slice_value(node: OnnxNode, x: OnnxValue, ranges: dict[int, tuple[int, int, int]]) -> OnnxValue:
    """Slice some axes of ONNX's view by (begin, end, step), which are already within bounds."""
    whole = [(0, d, 1) for d in x.tensor.dims]
    stored_ranges = x.by_stored_axis(ranges, whole)
    if stored_ranges == whole:
        return x
    return node.apply("StridedSlice", x, {"ranges": stored_ranges})


def parts_of(node: OnnxNode, x: OnnxValue, axis: int, sizes: Sequence[int]) -> list[OnnxValue]:
    """Return consecutive parts of an axis."""
    ends = np.cumsum(sizes).tolist()
    return [slice_value(node, x, {axis: (end - size, end, 1)}) for size, end in zip(sizes, ends, strict=True)]


def element_of(node: OnnxNode, x: OnnxValue, axis: int, index: int) -> OnnxValue:
    """Return one element along an axis, without the axis."""
    element = slice_value(node, x, {axis: (index, index + 1, 1)})
    return node.reshape_to(element, [d for a, d in enumerate(x.dims) if a != axis])


def stack_values(node: OnnxNode, values: Sequence[OnnxValue], axis: int) -> OnnxValue:
    """Join values of equal shape along a new axis."""
    return join(node, [node.reshape_to(v, (*v.dims[:axis], 1, *v.dims[axis:])) for v in values], axis)


def _slice(node: OnnxNode) -> OnnxValue:
    """Slice axes by Python's rules: negative bounds count from the end, and bounds outside are clamped."""
    x = node.value(0)
    if node.opset >= 10:
        node.need_all(_longest_slice(node))
    starts, ends = node.ints(1, "starts") or [], node.ints(2, "ends") or []
    axes = node.axes(node.ints(3, "axes") or range(len(starts)))
    steps = node.ints(4) or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        node.refuse("starts, ends, axes and steps must be as many, no step 0")
    return slice_value(
        node, x, {a: slice(b, e, s).indices(x.dims[a]) for a, b, e, s in zip(axes, starts, ends, steps, strict=True)}
    )


def _longest_slice(node: OnnxNode) -> dict[int, object]:
    """Return the operands with which a Slice is longest, to plan with; a step that is not known is 1 or -1."""
    operands = [value for index in range(1, 5) if (value := node.optional(index)) is not None]
    if all(node.builder.is_constant(value) for value in operands):
        return {}
    dims, count = node.value(0).dims, node.value(1).tensor.elements

    def elements(index: int) -> list[int | None]:
        value = node.optional(index)
        array = None if value is None else node.builder.array(value)
        return [None] * count if array is None else [int(v) for v in array.reshape(-1)]

    has_steps = node.optional(4) is not None
    axes = elements(3) if node.optional(3) is not None else list(range(count))
    planned = []
    for axis, begin, end, step in zip(axes, elements(1), elements(2), elements(4), strict=True):
        forms = [
            (
                (0 if each > 0 else _MAX_INDEX) if begin is None else begin,
                (_MAX_INDEX if each > 0 else -_MAX_INDEX) if end is None else end,
                each,
            )
            for each in ([step] if step is not None else [1, -1] if has_steps else [1])
        ]
        size = max(dims) if axis is None else dims[node.axis(axis)]
        planned.append(max(forms, key=lambda form: len(range(*slice(*form).indices(size)))))
    begins, ends, steps = (list(each) for each in zip(*planned, strict=True)) if planned else ([], [], [])
    return {1: begins, 2: ends, 3: Choices(map(list, permutations(range(len(dims)), count))), 4: steps}


def split_parts(node: OnnxNode, size: int, count: int) -> list[int] | None:
    """Return the sizes of the parts of an axis, None if absent. Planning lets each part in turn be the whole axis."""
    return node.ints(1, "split", greatest=Choices((size * np.eye(count, dtype=np.int64)).tolist()))


def _pad(node: OnnxNode) -> OnnxValue:
    """Convert a Pad. Negative pads are slices, and wrapping is a concatenation; the rest is one operation."""
    x = node.value(0)
    pads = node.ints(1, "pads") or []
    axes = node.axes(node.ints(3) if node.optional(3) is not None else range(x.rank))  # type: ignore[arg-type]
    if len(pads) != 2 * len(axes):
        node.refuse(f"{len(pads)} pads for {len(axes)} axes")
    mode = node.attr("mode", "constant")
    fill = node.attr("value", 0.0) if node.opset < 11 else node.number(2, 0, greatest=0)
    amounts = {axis: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    slices = {
        axis: (max(-before, 0), x.dims[axis] - max(-after, 0), 1)
        for axis, (before, after) in amounts.items()
        if before < 0 or after < 0
    }
    if any(begin > end for begin, end, _ in slices.values()):
        node.refuse(f"pads {pads[:8]} cut more than there is")
    x = slice_value(node, x, slices)
    amounts = {axis: (max(before, 0), max(after, 0)) for axis, (before, after) in amounts.items()}
    if mode == "wrap":
        for axis, (before, after) in amounts.items():
            x = _wrap(node, x, axis, before, after)
        return x
    if mode not in _SCHEMES:
        node.unsupported(f"mode '{mode}'")
    stored_amounts = x.by_stored_axis(amounts, [(0, 0)] * x.rank)
    if all(amount == (0, 0) for amount in stored_amounts):
        return x
    quantization = x.tensor.quantization
    if quantization is not None:
        # ONNX gives the fill value as a stored integer; the operation needs the real number that it represents.
        fill = (fill + quantization.offset) * quantization.scale
    params = {"scheme": _SCHEMES[mode], "pad_amount": stored_amounts, "pad_constant_value": fill}
    return node.apply("Pad", x, params)


def _wrap(node: OnnxNode, x: OnnxValue, axis: int, before: int, after: int) -> OnnxValue:
    """Pad an axis with elements from its other end."""
    size = x.dims[axis]
    if before > size or after > size:
        node.unsupported("wrapping around more than once")
    parts = [slice_value(node, x, {axis: (size - before, size, 1)})] if before else []
    parts += [x, *([slice_value(node, x, {axis: (0, after, 1)})] if after else [])]
    return join(node, parts, axis)


def _tile(node: OnnxNode) -> OnnxValue:
    x = node.value(0)
    repeats = node.ints(1) or []
    if len(repeats) != x.rank or any(not 0 <= r < 1 << 31 for r in repeats):
        node.refuse(f"repeats {repeats[:8]} do not fit rank {x.rank}: one for each axis, from 0 to {(1 << 31) - 1}")
    return _repeat(node, x, repeats)


def _repeat(node: OnnxNode, x: OnnxValue, repeats: Sequence[int]) -> OnnxValue:
    """Repeat a value along each axis of ONNX's view."""
    if all(r == 1 for r in repeats):
        return x
    multiples = x.by_stored_axis(dict(enumerate(repeats)), [1] * x.rank)
    return node.apply("Tile", x, {"multiples": multiples})


def expand(node: OnnxNode, x: OnnxValue, dims: Sequence[int]) -> OnnxValue:
    """Broadcast a value to the common shape of its dimensions and these."""
    rank = max(x.rank, len(dims))
    x = node.reshape_to(x, (1,) * (rank - x.rank) + x.dims)
    target = (1,) * (rank - len(dims)) + tuple(dims)
    if any(d != w and 1 not in (d, w) for d, w in zip(x.dims, target, strict=True)):
        node.refuse(f"{list(x.dims)} does not stretch to {list(dims)[:8]}")
    return _repeat(node, x, [w if d == 1 else 1 for d, w in zip(x.dims, target, strict=True)])


def _expand(node: OnnxNode) -> OnnxValue:
    dims = node.ints(1) or []
    if any(not 0 <= d < 1 << 31 for d in dims):
        node.refuse(f"shape {dims[:8]} must not be negative, and each size less than {1 << 31}")
    return expand(node, node.value(0), dims)


def _depth_to_space(node: OnnxNode) -> OnnxValue:
    block = int(node.attr("blocksize", 0))
    params = {"block_size": [block, block], "mode": 1 if node.attr("mode", "DCR") == "CRD" else 0}
    return node.apply_channel_last("DepthToSpace", node.value(0), params)


def _space_to_depth(node: OnnxNode) -> OnnxValue:
    block = int(node.attr("blocksize", 0))
    return node.apply_channel_last("SpaceToDepth", node.value(0), {"block_size": [block, block]})


def _trilu(node: OnnxNode) -> OnnxValue:
    """Select the triangle with a constant mask."""
    x = node.value(0)
    if x.rank < 2:
        node.refuse(f"an operand of rank {x.rank} is not a matrix")
    k = int(node.number(1, 0, greatest=0))
    rows, columns = x.dims[-2:]
    offsets = np.arange(columns) - np.arange(rows)[:, None]
    mask = node.literal(offsets >= k if node.attr("upper", 1) else offsets <= k)
    return node.choose(mask, x, 0)


def _reverse_sequence(node: OnnxNode) -> OnnxValue:
    x, lengths = node.value(0), node.value(1)
    batch, time = (node.axis(int(node.attr(f"{n}_axis", d))) for n, d in (("batch", 1), ("time", 0)))
    params = {"batch_axis": x.perm[batch], "time_axis": x.perm[time]}
    operands: list[Tensor] = [x.tensor, node.materialize(lengths)]
    return OnnxValue(node.emit("ReverseSequence", operands, params), x.perm)


CONVERTERS: dict[str, Converter] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Tile": _tile,
    "Expand": _expand,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Trilu": _trilu,
    "ReverseSequence": _reverse_sequence,
}
