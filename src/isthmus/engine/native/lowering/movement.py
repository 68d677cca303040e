"""Lowering of data movement: transposes, slices, joins, blocks, tiles and padding, nearly all as one strided copy."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.program import Operand
from isthmus.graph import DataType, Tensor
from isthmus.graph.datatypes import to_bfloat16
from isthmus.graph.ops.movement import CONSTANT
from isthmus.prepare.geometry.border import border
from isthmus.prepare.geometry.layout import axis_of, collapse, dense_strides, operand, permutation
from isthmus.prepare.schedule import Step

_WIDER = (2, 4, 8)
_INTERLEAVED = (2, 3, 4)
_LONG_ENOUGH = 8


def differing(step: Step, *tensors: Tensor) -> str | None:
    """Why stored values cannot be moved between tensors: they mean different things there."""
    first = tensors[0]
    for tensor in tensors[1:]:
        if tensor.dtype.itemsize != first.dtype.itemsize:
            return f"{first.describe()} and {tensor.describe()} have elements of different sizes"
        if tensor.quantization != first.quantization:
            return f"'{first.name}' and '{tensor.name}' are quantized differently"
    return None if step.clamp is None else "data movement takes no fused activation"


def refuses_movement(step: Step) -> str | None:
    """Why the elements of a step's operands and results cannot be moved as they are."""
    return differing(step, *(t for t in step.inputs if t is not None), *step.outputs)


def refuses_selection(step: Step) -> str | None:
    """The same where in[0] alone is data."""
    return differing(step, operand(step), *step.outputs)


def emit_copy(
    e: Emitter,
    goal: Operand,
    source: Operand,
    dims: Sequence[int],
    goal_strides: Sequence[int],
    source_strides: Sequence[int],
    size: int,
) -> None:
    """Copy elements of `size` bytes between two strided walks; strides in elements, operands already at the start."""
    if not prod(dims):
        return
    sizes, (to, frm) = collapse(dims, [goal_strides, source_strides])
    # A short dense run is one wider element.
    if len(sizes) > 1 and to[-1] == frm[-1] == 1 and size * sizes[-1] in _WIDER:
        run = sizes[-1]
        if all(s % run == 0 for s in (*to[:-1], *frm[:-1])):
            sizes, to, frm = sizes[:-1], [s // run for s in to[:-1]], [s // run for s in frm[:-1]]
            size *= run
    to, frm = [s * size for s in to], [s * size for s in frm]
    axis = next((i for i in range(len(sizes) - 1) if frm[i] == size), None)
    if to[-1] == size and frm[-1] != size and axis is not None:
        _emit_transpose(e, goal, source, sizes, to, frm, size, axis)
        return
    outer = [list(reversed(each[:-1])) for each in (sizes, to, frm)]
    e.emit(
        f"movement:copy.{size}", destination=goal, source=source, elements=prod(sizes), inner=sizes[-1],
        to_step=to[-1], from_step=frm[-1], dims=outer[0], to_strides=outer[1], from_strides=outer[2],
    )  # fmt: skip


def _emit_transpose(
    e: Emitter, goal: Operand, source: Operand, sizes: list[int], to: list[int], frm: list[int], size: int, axis: int
) -> None:
    """The destination is dense along its last axis, the source along `axis`."""
    rows, columns = sizes[axis], sizes[-1]
    rest = [i for i in range(len(sizes) - 1) if i != axis]
    if len(rest) <= 1:
        outer = [(sizes[i], to[i], frm[i]) for i in rest] or [(1, 0, 0)]
        count, to_outer, from_outer = outer[0]
        if columns in _INTERLEAVED and to[axis] == columns * size and rows >= _LONG_ENOUGH:
            e.emit(
                f"movement:interleave.join_{size}_{columns}", dense=goal, rows=source, count=rows, stride=frm[-1],
                batches=count, dense_stride=to_outer, rows_stride=from_outer,
            )  # fmt: skip
            return
        if rows in _INTERLEAVED and frm[-1] == rows * size and columns >= _LONG_ENOUGH:
            e.emit(
                f"movement:interleave.part_{size}_{rows}", dense=source, rows=goal, count=columns, stride=to[axis],
                batches=count, dense_stride=from_outer, rows_stride=to_outer,
            )  # fmt: skip
            return
    lists = [[each[i] for i in reversed(rest)] for each in (sizes, to, frm)]
    e.emit(
        f"movement:transpose.{size}", destination=goal, source=source, rows=rows, columns=columns,
        to_stride=to[axis], from_stride=frm[-1], dims=lists[0], to_strides=lists[1], from_strides=lists[2],
    )  # fmt: skip


def emit_remap(
    e: Emitter, goal: Operand, source: Operand, maps: Sequence[np.ndarray], dims: Sequence[int], size: int
) -> None:
    """Fill a dense tensor from a dense one of shape `dims`: index i along an axis comes from ``maps[axis][i]``."""
    if any(m.size == 0 for m in maps):
        return
    strides = [s * size for s in dense_strides(dims)]
    axes = list(range(len(dims)))
    # Trailing axes that stay as they are make up one element.
    length = size
    while axes and np.array_equal(maps[axes[-1]], np.arange(dims[axes[-1]])):
        length *= dims[axes.pop()]
    tables = [(maps[a] * strides[a]).astype(np.int64) for a in axes if maps[a].size != 1 or maps[a][0] != 0]
    tables = tables or [np.zeros(1, np.int64)]
    # A short innermost axis is joined with the one around it, as a table of all their sums.
    while len(tables) > 1 and tables[-1].size < 64 and tables[-1].size * tables[-2].size <= 4096:
        inner = tables.pop()
        tables[-1] = (tables[-1][:, None] + inner[None, :]).reshape(-1)
    *outer, inner = tables
    variant = str(length) if length in (1, 2, 4, 8) else "run"
    e.emit(
        f"movement:remap.{variant}", output=goal, x=source, rows=prod(t.size for t in outer), inner=inner.size,
        table=e.constant(inner), length=length, counts=[t.size for t in reversed(outer)],
        tables=[e.constant(t) for t in reversed(outer)],
    )  # fmt: skip


def _emit_reshape(step: Step, e: Emitter) -> None:
    x, output = operand(step), step.outputs[0]
    emit_copy(e, e.at(output), e.at(x), [x.elements], [1], [1], x.dtype.itemsize)


def _emit_permuted(step: Step, e: Emitter) -> None:
    """The input, seen with other dimensions and its axes in another order, fills the output densely."""
    x, output = operand(step), step.outputs[0]
    in_dims, perm = permutation(step)
    strides = dense_strides(in_dims)
    dims = [in_dims[p] for p in perm]
    emit_copy(e, e.at(output), e.at(x), dims, dense_strides(dims), [strides[p] for p in perm], x.dtype.itemsize)


def _emit_strided_slice(step: Step, e: Emitter) -> None:
    x, output = operand(step), step.outputs[0]
    ranges = np.asarray(step.params["ranges"]).reshape(-1, 3).tolist()
    dense = dense_strides(x.dims)
    counts = [max(0, -((begin - end) // stride)) for begin, end, stride in ranges]
    start = sum(begin * s for (begin, _, _), s in zip(ranges, dense, strict=True))
    strides = [stride * s for (_, _, stride), s in zip(ranges, dense, strict=True)]
    if prod(counts):
        size = x.dtype.itemsize
        emit_copy(e, e.at(output), e.at(x, start * size), counts, dense_strides(counts), strides, size)


def _emit_pieces(step: Step, e: Emitter, whole: Tensor, pieces: Sequence[Tensor], axis: int, joining: bool) -> None:
    """Copy between a tensor and its consecutive pieces along an axis; a strip puts its own in its place."""
    size, strides = whole.dtype.itemsize, dense_strides(whole.dims)
    start = step.part.first if step.part is not None and step.part.axis == axis else 0
    for piece in pieces:
        width = piece.dims[axis] if piece.rank == whole.rank else 1
        dims = (*whole.dims[:axis], width, *whole.dims[axis + 1 :])
        own = dense_strides(dims)
        if prod(dims):
            at_whole = e.at(whole, start * strides[axis] * size)
            if joining:
                emit_copy(e, at_whole, e.at(piece), dims, strides, own, size)
            else:
                emit_copy(e, e.at(piece), at_whole, dims, own, strides, size)
        start += width


def _emit_concat(step: Step, e: Emitter) -> None:
    _emit_pieces(step, e, step.outputs[0], [t for t in step.inputs if t is not None], axis_of(step), True)


def _emit_pack(step: Step, e: Emitter) -> None:
    axis = int(step.params["axis"]) % step.outputs[0].rank
    _emit_pieces(step, e, step.outputs[0], [t for t in step.inputs if t is not None], axis, True)


def _emit_split(step: Step, e: Emitter) -> None:
    _emit_pieces(step, e, operand(step), step.outputs, axis_of(step), False)


def _emit_tile(step: Step, e: Emitter) -> None:
    x, output = operand(step), step.outputs[0]
    multiples = [int(m) for m in step.params["multiples"]]
    strides = dense_strides(x.dims)
    dims = [v for pair in zip(multiples, x.dims, strict=True) for v in pair]
    walk = [v for s in strides for v in (0, s)]
    emit_copy(e, e.at(output), e.at(x), dims, dense_strides(dims), walk, x.dtype.itemsize)


def _emit_reverse(step: Step, e: Emitter) -> None:
    x, output = operand(step), step.outputs[0]
    axes = {int(a) % x.rank for a in step.params["axes"]}
    dense, size = dense_strides(x.dims), x.dtype.itemsize
    if not x.elements:
        return
    start = sum((x.dims[a] - 1) * dense[a] for a in axes)
    walk = [-s if i in axes else s for i, s in enumerate(dense)]
    emit_copy(e, e.at(output), e.at(x, start * size), x.dims, dense, walk, size)


def _emit_space_to_batch(step: Step, e: Emitter) -> None:
    x, output = operand(step), step.outputs[0]
    n, _, _, c = x.dims
    (bh, bw), pads = (int(v) for v in step.params["block_size"]), np.asarray(step.params["pad_amount"]).reshape(2, 2)
    size, strides = x.dtype.itemsize, dense_strides(x.dims)
    if pads.any():
        _emit_fill(e, output, value_bits(0.0, output))
    out_strides = dense_strides(output.dims)
    # Every block offset takes a strided part of the image; padding shifts where the part begins on both sides.
    for i in range(bh):
        for j in range(bw):
            (y0, y, rows), (x0, at, columns) = (
                _part(block, step_, int(pads[axis, 0]), x.dims[1 + axis], output.dims[1 + axis])
                for axis, (block, step_) in enumerate(((i, bh), (j, bw)))
            )
            batch = (i * bw + j) * n
            goal = batch * out_strides[0] + y0 * out_strides[1] + x0 * out_strides[2]
            emit_copy(
                e, e.at(output, goal * size), e.at(x, (y * strides[1] + at * strides[2]) * size), (n, rows, columns, c),
                out_strides, [strides[0], strides[1] * bh, strides[2] * bw, 1], size,
            )  # fmt: skip


def _part(offset: int, block: int, before: int, length: int, out_length: int) -> tuple[int, int, int]:
    """First output index, first input index and count of what one block offset takes from a padded axis."""
    first = max(0, -(-(before - offset) // block))
    last = min(out_length, -(-(before + length - offset) // block))
    return first, first * block + offset - before, max(0, last - first)


def _emit_batch_to_space(step: Step, e: Emitter) -> None:
    x, output = operand(step), step.outputs[0]
    n, _, _, c = output.dims
    (bh, bw), crops = (int(v) for v in step.params["block_size"]), np.asarray(step.params["crops"]).reshape(2, 2)
    size, strides, out_strides = x.dtype.itemsize, dense_strides(x.dims), dense_strides(output.dims)
    for i in range(bh):
        for j in range(bw):
            (y0, y, rows), (x0, at, columns) = (
                _part(block, step_, int(crops[axis, 0]), output.dims[1 + axis], x.dims[1 + axis])
                for axis, (block, step_) in enumerate(((i, bh), (j, bw)))
            )
            source = (i * bw + j) * n * strides[0] + y0 * strides[1] + x0 * strides[2]
            goal = y * out_strides[1] + at * out_strides[2]
            emit_copy(
                e, e.at(output, goal * size), e.at(x, source * size), (n, rows, columns, c),
                [out_strides[0], out_strides[1] * bh, out_strides[2] * bw, 1], strides, size,
            )  # fmt: skip


def value_bits(value: float, tensor: Tensor) -> int:
    """Encode a number as a tensor stores it, its bits in the low bytes of a word."""
    stored = np.asarray(value)
    if tensor.dtype is DataType.BFLOAT_16:
        stored = to_bfloat16(stored)
    elif tensor.quantization is not None:
        stored = tensor.quantization.quantize(stored.astype(np.float32), tensor.dtype.numpy)
    content = stored.astype(tensor.dtype.numpy).tobytes()
    return int.from_bytes(content.ljust(8, b"\0"), "little", signed=True)


def _emit_fill(e: Emitter, output: Tensor, bits: int) -> None:
    e.emit(f"movement:fill.{output.dtype.itemsize}", destination=e.at(output), elements=output.elements, value=bits)


def _emit_pad(step: Step, e: Emitter) -> None:
    x, output = operand(step), step.outputs[0]
    pads = np.asarray(step.params["pad_amount"]).reshape(-1, 2)
    scheme = int(step.params["scheme"])
    if not output.elements:
        return
    if scheme != CONSTANT:
        maps = [border(scheme, size, *map(int, pad)) for size, pad in zip(x.dims, pads, strict=True)]
        emit_remap(e, e.at(output), e.at(x), maps, x.dims, x.dtype.itemsize)
        return
    bits = value_bits(step.params["pad_constant_value"], output)
    size = x.dtype.itemsize
    if not x.elements:
        _emit_fill(e, output, bits)
        return
    # An axis without padding belongs to the one before it: (elements, before, after) of what is left.
    merged: list[tuple[int, int, int]] = []
    for length, (before, after) in zip(x.dims, pads.tolist(), strict=True):
        if merged and before == after == 0:
            merged[-1] = tuple(v * length for v in merged[-1])  # type: ignore[assignment]
        elif merged and merged[-1][1:] == (0, 0) and merged[-1][0] == 1:
            merged[-1] = (length, before, after)
        else:
            merged.append((length, before, after))
    merged = merged or [(1, 0, 0)]
    strides = [s * size for s in dense_strides([length for length, _, _ in merged])]
    *outer, (kept, before, after) = merged
    whole = [length + first + last for length, first, last in outer]
    e.emit(
        f"movement:pad.{size}", output=e.at(output), x=e.at(x), value=bits, rows=prod(whole),
        inner=kept + before + after, before=before, kept=kept, dims=whole[::-1],
        first=[first for _, first, _ in reversed(outer)], lengths=[length for length, _, _ in reversed(outer)],
        strides=strides[-2::-1],
    )  # fmt: skip


def _emit_constant_of_shape(step: Step, e: Emitter) -> None:
    output = step.outputs[0]
    if output.elements:
        _emit_fill(e, output, value_bits(step.params["value"], output))


def _emit_shape(step: Step, e: Emitter) -> None:
    output = step.outputs[0]
    start = int(step.params["start"])
    dims = np.array(operand(step).dims[start : start + output.elements], output.dtype.numpy)
    emit_copy(e, e.at(output), e.constant(dims), output.dims, [1], [1], output.dtype.itemsize)


LOWERINGS: dict[str, Lowering] = {
    op: Lowering(emit, refuses=refuses_movement)
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
} | {"ConstantOfShape": Lowering(_emit_constant_of_shape), "Shape": Lowering(_emit_shape)}
