"""Lowering of data movement: transposes, slices, joins, blocks, tiles and padding, nearly all as one strided walk.

Elements change their storage on the way where the two ends differ: floats to halves, or one quantization to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from isthmus.backends.gpu.compile.lowering.elementwise import unknown_types
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering
from isthmus.backends.gpu.compile.lowering.walk import WalkOperand, emit_walk, operand_of
from isthmus.backends.gpu.compile.storage import OperandStorage
from isthmus.graph import Tensor
from isthmus.graph.ops.movement import CONSTANT
from isthmus.prepare.geometry.border import border
from isthmus.prepare.geometry.layout import axis_of, dense_strides, operand, permutation
from isthmus.prepare.schedule import Step


def as_moved(*operands: WalkOperand) -> tuple[WalkOperand, ...]:
    """Operands of one quantization, or of none, as plain stored numbers: nothing is rounded on the way."""
    first = operands[0]
    if all(
        (o.storage.kind, o.scale, o.zero) == (first.storage.kind, first.scale, first.zero) for o in operands
    ) and first.storage.kind not in ("f32", "f16"):
        return tuple(replace(o, storage=OperandStorage(o.storage.kind, real=False)) for o in operands)
    return operands


def emit_copy(
    e: KernelEmitter,
    goal: Tensor,
    source: Tensor,
    dims: Sequence[int],
    goal_strides: Sequence[int],
    source_strides: Sequence[int],
    goal_start: int = 0,
    source_start: int = 0,
) -> None:
    """Copy between two strided walks; starts and strides in elements."""
    if not prod(dims):
        return
    y = operand_of(e, "y", goal, goal_strides, goal_start, writes=True)
    backwards = min(source_strides, default=0) < 0
    x = operand_of(e, "x", source, source_strides, 0 if backwards else source_start)
    if backwards:
        x = replace(x, start=source_start)
    y, x = as_moved(y, x)

    def compute(width: int, loaded: dict[str, str]) -> list[str]:
        wide = "" if width == 1 else str(width)
        return [f"{y.storage.computed}{wide} v = {loaded['x']};"]

    emit_walk(e, "copy", dims, y, [x], compute)


def _emit_reshape(step: Step, e: KernelEmitter) -> None:
    x = operand(step)
    emit_copy(e, step.outputs[0], x, [x.elements], [1], [1])


def _emit_permuted(step: Step, e: KernelEmitter) -> None:
    """The input, seen with other dimensions and its axes in another order, fills the output densely."""
    in_dims, perm = permutation(step)
    strides, dims = dense_strides(in_dims), [in_dims[p] for p in perm]
    emit_copy(e, step.outputs[0], operand(step), dims, dense_strides(dims), [strides[p] for p in perm])


def _emit_strided_slice(step: Step, e: KernelEmitter) -> None:
    x = operand(step)
    ranges = np.asarray(step.params["ranges"]).reshape(-1, 3).tolist()
    dense = dense_strides(x.dims)
    counts = [max(0, -((begin - end) // stride)) for begin, end, stride in ranges]
    start = sum(begin * s for (begin, _, _), s in zip(ranges, dense, strict=True))
    strides = [stride * s for (_, _, stride), s in zip(ranges, dense, strict=True)]
    emit_copy(e, step.outputs[0], x, counts, dense_strides(counts), strides, 0, start)


def _emit_pieces(e: KernelEmitter, whole: Tensor, pieces: Sequence[Tensor], axis: int, joining: bool) -> None:
    """Copy between a tensor and its consecutive pieces along an axis."""
    strides, start = dense_strides(whole.dims), 0
    for piece in pieces:
        width = piece.dims[axis] if piece.rank == whole.rank else 1
        dims = (*whole.dims[:axis], width, *whole.dims[axis + 1 :])
        if joining:
            emit_copy(e, whole, piece, dims, strides, dense_strides(dims), start * strides[axis])
        else:
            emit_copy(e, piece, whole, dims, dense_strides(dims), strides, 0, start * strides[axis])
        start += width


def _emit_concat(step: Step, e: KernelEmitter) -> None:
    _emit_pieces(e, step.outputs[0], [t for t in step.inputs if t is not None], axis_of(step), True)


def _emit_pack(step: Step, e: KernelEmitter) -> None:
    axis = int(step.params["axis"]) % step.outputs[0].rank
    _emit_pieces(e, step.outputs[0], [t for t in step.inputs if t is not None], axis, True)


def _emit_split(step: Step, e: KernelEmitter) -> None:
    _emit_pieces(e, operand(step), step.outputs, axis_of(step), False)


def _emit_tile(step: Step, e: KernelEmitter) -> None:
    x = operand(step)
    multiples = [int(m) for m in step.params["multiples"]]
    dims = [v for pair in zip(multiples, x.dims, strict=True) for v in pair]
    walk = [v for s in dense_strides(x.dims) for v in (0, s)]
    emit_copy(e, step.outputs[0], x, dims, dense_strides(dims), walk)


def _emit_reverse(step: Step, e: KernelEmitter) -> None:
    x = operand(step)
    axes, dense = {int(a) % x.rank for a in step.params["axes"]}, dense_strides(x.dims)
    start = sum((x.dims[a] - 1) * dense[a] for a in axes)
    walk = [-s if i in axes else s for i, s in enumerate(dense)]
    emit_copy(e, step.outputs[0], x, x.dims, dense, walk, 0, start)


def _emit_batch_to_space(step: Step, e: KernelEmitter) -> None:
    x, output = operand(step), step.outputs[0]
    n, height, width, c = output.dims
    bh, bw = (int(v) for v in step.params["block_size"])
    crops = np.asarray(step.params["crops"]).reshape(2, 2)
    row, column = (np.arange(size) + int(crops[axis, 0]) for axis, size in enumerate((height, width)))
    _, in_height, in_width, _ = x.dims
    # Where each line and pixel of the result comes from, blocks being batches of the operand.
    lines = (row % bh * bw) * n * in_height * in_width * c + row // bh * in_width * c
    pixels = (column % bw) * n * in_height * in_width * c + column // bw * c
    emit_remap(e, output, x, [np.arange(n) * in_height * in_width * c, lines, pixels], c)


def _emit_pad(step: Step, e: KernelEmitter) -> None:
    x, output = operand(step), step.outputs[0]
    pads = np.asarray(step.params["pad_amount"]).reshape(-1, 2)
    scheme = int(step.params["scheme"])
    if not output.elements:
        return
    if scheme != CONSTANT:
        strides = dense_strides(x.dims)
        tables = [
            border(scheme, size, *map(int, pad)) * stride
            for size, pad, stride in zip(x.dims, pads, strides, strict=True)
        ]
        emit_remap(e, output, x, tables, 1)
        return
    emit_padded(e, output, x, pads.tolist(), float(step.params["pad_constant_value"]))


def _emit_space_to_batch(step: Step, e: KernelEmitter) -> None:
    x, output = operand(step), step.outputs[0]
    n, height, width, c = x.dims
    bh, bw = (int(v) for v in step.params["block_size"])
    pads = np.asarray(step.params["pad_amount"]).reshape(2, 2)
    batch = np.arange(output.dims[0])
    row = np.arange(output.dims[1]) * bh - int(pads[0, 0])
    column = np.arange(output.dims[2]) * bw - int(pads[1, 0])
    block = batch // n
    lines = row[None, :] + (block // bw)[:, None]
    pixels = column[None, :] + (block % bw)[:, None]
    inside = ((lines >= 0) & (lines < height))[:, :, None] & ((pixels >= 0) & (pixels < width))[:, None, :]
    places = ((batch % n)[:, None, None] * height + lines[:, :, None]) * width + pixels[:, None, :]
    emit_remap(e, output, x, [np.where(inside, places * c, -1).reshape(-1)], c)


def emit_remap(e: KernelEmitter, goal: Tensor, source: Tensor, tables: Sequence[np.ndarray], run: int) -> None:
    """Fill a dense tensor with runs of elements: run [i, j, …] comes from element ``tables[0][i] + tables[1][j] + …``.

    A single table may hold -1 for runs of zeros.
    """
    if not goal.elements:
        return
    tables = [np.asarray(t) for t in tables]
    # Two innermost tables at most, so that the kernel has one form.
    while len(tables) > 2 or (len(tables) == 2 and tables[1].size < 64 and tables[0].size * tables[1].size <= 1 << 16):
        tables[-2:] = [(tables[-2][:, None] + tables[-1][None, :]).reshape(-1)]
    outer, inner = tables if len(tables) == 2 else (np.zeros(1, np.int64), tables[0])
    draft = e.draft()
    y, x = as_moved(operand_of(e, "y", goal, [1], writes=True), operand_of(e, "x", source, [1]))
    for each in (x, y):
        draft.operand(each.name, each.place, each.storage, each.scale, each.zero)
    draft.memory("outer", e.constant(outer.astype(np.int32)), "int")
    draft.memory("inner", e.constant(inner.astype(np.int32)), "int")
    draft.ints(inners=inner.size, run=run, runs=outer.size * inner.size, nothing=0 if y.storage.real else y.zero)
    computed = y.storage.computed
    lines = [
        "  int item = get_global_id(0), c0 = 0, c1 = run;",
        *(["  c0 = item % run; c1 = c0 + 1; item /= run;"] if e.gpu else []),
        "  if (item >= runs) return;",
        "  int far = inner[item % inners], at = outer[item / inners] + far;",
        "  for (int c = c0; c < c1; ++c) {",
        f"    {computed} v = far < 0 ? ({computed})nothing : {x.storage.load('x', 'at + c')};",
        f"    {y.storage.store('y', 'item * run + c', 'v')}",
        "  }",
    ]
    items = outer.size * inner.size
    e.launch("remap", draft, "\n".join(lines), (items * run,) if e.gpu else (items,), (128,) if e.gpu else (1,))


def emit_padded(e: KernelEmitter, goal: Tensor, source: Tensor, pads: Sequence[Sequence[int]], value: float) -> None:
    """Fill a tensor with another and a constant around it."""
    # An axis without padding belongs to the one before it: (elements, before, after) of what is left.
    merged: list[tuple[int, int, int]] = []
    for length, (before, after) in zip(source.dims, pads, strict=True):
        if merged and before == after == 0:
            merged[-1] = (merged[-1][0] * length, merged[-1][1] * length, merged[-1][2] * length)
        elif merged and merged[-1][1:] == (0, 0) and merged[-1][0] == 1:
            merged[-1] = (length, before, after)
        else:
            merged.append((length, before, after))
    merged = merged or [(1, 0, 0)]
    *outer, (kept, before, after) = merged
    draft = e.draft()
    y, x = as_moved(operand_of(e, "y", goal, [1], writes=True), operand_of(e, "x", source, [1]))
    for each in (x, y):
        draft.operand(each.name, each.place, each.storage, each.scale, each.zero)
    if y.storage.real:
        draft.floats(value=value)
    elif goal.quantization is not None and goal.dtype.is_fixed_point:
        draft.longs(value=int(goal.quantization.quantize(np.array([value], np.float32), goal.dtype.numpy)[0]))
    else:
        draft.longs(value=int(value))
    rows, inner = prod(length + first + last for length, first, last in outer), kept + before + after
    draft.ints(rows=rows, inner=inner, before=before, kept=kept)
    computed = y.storage.computed
    lines = [
        "  int row = get_global_id(1), i0 = get_global_id(0);",
        "  if (row >= rows || i0 >= inner) return;",
        "  int rest = row, from = 0, inside = 1, index;",
    ]
    strides = dense_strides([length for length, _, _ in merged])
    for level, ((length, first, last), stride) in enumerate(zip(outer[::-1], strides[-2::-1], strict=True)):
        draft.ints(**{f"d{level}": length + first + last, f"f{level}": first, f"l{level}": length, f"s{level}": stride})
        lines.append(f"  index = rest % d{level} - f{level}; rest /= d{level};")
        lines.append(f"  inside = inside && (uint)index < (uint)l{level}; from += index * s{level};")
    load = x.storage.load("x", "from + i - before")
    end = "i0 + 1" if e.gpu else "inner"
    lines += [
        f"  for (int i = i0; i < {end}; ++i) {{",
        f"    {computed} v = inside && (uint)(i - before) < (uint)kept ? ({computed})({load}) : ({computed})value;",
        f"    {y.storage.store('y', 'row * inner + i', 'v')}",
        "  }",
    ]
    e.launch("pad", draft, "\n".join(lines), (inner if e.gpu else 1, rows), (64, 2) if e.gpu else (1, 1))


def _emit_constant(e: KernelEmitter, output: Tensor, content: np.ndarray) -> None:
    still = Tensor(output.name, output.type.STATIC, output.dtype, content.shape, output.quantization, content)
    strides = [0] if content.size == 1 else [1]
    emit_copy(e, output, still, [output.elements], [1], strides)


def _emit_constant_of_shape(step: Step, e: KernelEmitter) -> None:
    output = step.outputs[0]
    value = np.asarray([step.params["value"]])
    if output.dtype.is_fixed_point and output.quantization is not None:
        value = output.quantization.quantize(value.astype(np.float32), output.dtype.numpy)
    _emit_constant(e, output, value.astype(output.dtype.numpy))


def _emit_shape(step: Step, e: KernelEmitter) -> None:
    output, start = step.outputs[0], int(step.params["start"])
    if output.elements:
        _emit_constant(e, output, np.array(operand(step).dims[start : start + output.elements], output.dtype.numpy))


def refuses_movement(step: Step) -> str | None:
    """Why the elements of a step's operands and results cannot be moved."""
    unknown = unknown_types(step)
    if unknown is not None:
        return unknown
    tensors = [t for t in (*step.inputs, *step.outputs) if t is not None]
    for tensor in tensors[1:]:
        both = tensor.dtype.is_fixed_point and tensors[0].dtype.is_fixed_point
        if tensor.dtype is not tensors[0].dtype and not both:
            return f"{tensors[0].describe()} and {tensor.describe()} have elements of different types"
    return None if step.clamp is None else "data movement takes no fused activation"


LOWERINGS: dict[str, KernelLowering] = {
    op: KernelLowering(emit, refuses=refuses_movement)
    for op, emit in {
        "Reshape": _emit_reshape,
        "Squeeze": _emit_reshape,
        "ExpandDims": _emit_reshape,
        "Transpose": _emit_permuted,
        "DepthToSpace": _emit_permuted,
        "SpaceToDepth": _emit_permuted,
        "SpaceToBatch": _emit_space_to_batch,
        "BatchToSpace": _emit_batch_to_space,
        "ChannelShuffle": _emit_permuted,
        "StridedSlice": _emit_strided_slice,
        "Concat": _emit_concat,
        "Pack": _emit_pack,
        "Split": _emit_split,
        "UnPack": _emit_split,
        "Tile": _emit_tile,
        "Reverse": _emit_reverse,
        "Pad": _emit_pad,
    }.items()
} | {
    "ConstantOfShape": KernelLowering(_emit_constant_of_shape, refuses=lambda step: unknown_types(step)),
    "Shape": KernelLowering(_emit_shape, refuses=lambda step: unknown_types(step)),
}
