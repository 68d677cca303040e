"""Data movement as data: strided copies, index tables and padded axes, from which engines generate code.

All starts, strides and offsets are in elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from isthmus.graph import Tensor
from isthmus.graph.ops.movement import CONSTANT, EDGE, MIRROR_REFLECT, MIRROR_SYMMETRIC
from isthmus.graph.tensor import MAX_RANK
from isthmus.prepare.geometry.layout import axis_of, dense_strides, operand, permutation
from isthmus.prepare.schedule import Step

# If an innermost table has fewer entries, a loop over it is too short.
_SHORT = 64


@dataclass(frozen=True)
class StridedCopy:
    """A copy of `dims` elements between two strided layouts, from `source` to `goal`.

    Each tensor has a stride for each dimension of the copy, and a start: the element where the copy begins.
    """

    goal: Tensor
    source: Tensor
    dims: Sequence[int]
    goal_strides: Sequence[int]
    source_strides: Sequence[int]
    goal_start: int = 0
    source_start: int = 0


def copies(step: Step) -> list[StridedCopy]:
    """List the copies that a step consists of, without empty ones."""
    return [copy for copy in _COPIES[step.op](step) if prod(copy.dims)]


def _reshape(step: Step) -> list[StridedCopy]:
    """Copy all elements in order."""
    x = operand(step)
    return [StridedCopy(step.outputs[0], x, [x.elements], [1], [1])]


def _permute(step: Step) -> list[StridedCopy]:
    """View the input with other dimensions and permute its axes; the output is filled densely."""
    in_dims, perm = permutation(step)
    strides, dims = dense_strides(in_dims), [in_dims[p] for p in perm]
    return [StridedCopy(step.outputs[0], operand(step), dims, dense_strides(dims), [strides[p] for p in perm])]


def _slice(step: Step) -> list[StridedCopy]:
    """Copy every stride-th element from begin to end along each axis."""
    x = operand(step)
    ranges = np.asarray(step.params["ranges"]).reshape(-1, 3).tolist()
    dense = dense_strides(x.dims)
    counts = [max(0, -((begin - end) // stride)) for begin, end, stride in ranges]
    start = sum(begin * s for (begin, _, _), s in zip(ranges, dense, strict=True))
    strides = [stride * s for (_, _, stride), s in zip(ranges, dense, strict=True)]
    return [StridedCopy(step.outputs[0], x, counts, dense_strides(counts), strides, 0, start)]


def _pieces(step: Step, whole: Tensor, pieces: Sequence[Tensor], axis: int, joining: bool) -> list[StridedCopy]:
    """Copy between a tensor and its consecutive pieces along an axis, into the tensor if `joining`."""
    # For a step on a tile, the first piece starts at the first row of the tile. A piece without the axis has one row.
    piece_copies, strides = [], dense_strides(whole.dims)
    start = step.part.first if step.part is not None and step.part.axis == axis else 0
    for piece in pieces:
        width = piece.dims[axis] if piece.rank == whole.rank else 1
        dims = (*whole.dims[:axis], width, *whole.dims[axis + 1 :])
        at, piece_strides = start * strides[axis], dense_strides(dims)
        piece_copies.append(
            StridedCopy(whole, piece, dims, strides, piece_strides, at)
            if joining
            else StridedCopy(piece, whole, dims, piece_strides, strides, 0, at)
        )
        start += width
    return piece_copies


def _join(step: Step) -> list[StridedCopy]:
    """Copy the operands of a Concat or Pack into the result."""
    whole = step.outputs[0]
    axis = int(step.params["axis"]) % whole.rank if step.op == "Pack" else axis_of(step)
    return _pieces(step, whole, [t for t in step.inputs if t is not None], axis, True)


def _split(step: Step) -> list[StridedCopy]:
    """Copy the parts of the operand to the results of a Split or UnPack."""
    return _pieces(step, operand(step), step.outputs, axis_of(step), False)


def _tile(step: Step) -> list[StridedCopy]:
    """Repeat the operand along each axis: an axis of stride 0 before it counts the repetitions."""
    x = operand(step)
    multiples = [int(m) for m in step.params["multiples"]]
    dims = [v for pair in zip(multiples, x.dims, strict=True) for v in pair]
    source_strides = [v for s in dense_strides(x.dims) for v in (0, s)]
    return [StridedCopy(step.outputs[0], x, dims, dense_strides(dims), source_strides)]


def _reverse(step: Step) -> list[StridedCopy]:
    """Copy with negative strides along the reversed axes, from their last elements."""
    x = operand(step)
    axes, dense = {int(a) % x.rank for a in step.params["axes"]}, dense_strides(x.dims)
    start = sum((x.dims[a] - 1) * dense[a] for a in axes)
    source_strides = [-s if axis in axes else s for axis, s in enumerate(dense)]
    return [StridedCopy(step.outputs[0], x, x.dims, dense, source_strides, 0, start)]


def _blocks(step: Step) -> list[StridedCopy]:
    """Copy between an image and its blocks: an offset within a block is a strided part of the image, and one batch."""
    # Padding and crops shift the start of such a part on both sides.
    x, output = operand(step), step.outputs[0]
    to_batch = step.op == "SpaceToBatch"
    image, batches = (x, output) if to_batch else (output, x)
    (n, _, _, c), (bh, bw) = image.dims, (int(v) for v in step.params["block_size"])
    edges = np.asarray(step.params["pad_amount" if to_batch else "crops"]).reshape(2, 2)
    of_image, of_batches = dense_strides(image.dims), dense_strides(batches.dims)
    subset_strides = [of_image[0], of_image[1] * bh, of_image[2] * bw, 1]
    subset_copies = []
    for i in range(bh):
        for j in range(bw):
            (batch_y, image_y, rows), (batch_x, image_x, columns) = (
                _part(offset, block, int(edges[axis, 0]), image.dims[1 + axis], batches.dims[1 + axis])
                for axis, (offset, block) in enumerate(((i, bh), (j, bw)))
            )
            in_image = image_y * of_image[1] + image_x * of_image[2]
            in_batches = (i * bw + j) * n * of_batches[0] + batch_y * of_batches[1] + batch_x * of_batches[2]
            dims = (n, rows, columns, c)
            subset_copies.append(
                StridedCopy(output, x, dims, of_batches, subset_strides, in_batches, in_image)
                if to_batch
                else StridedCopy(output, x, dims, subset_strides, of_batches, in_image, in_batches)
            )
    return subset_copies


def _part(offset: int, block: int, before: int, length: int, out_length: int) -> tuple[int, int, int]:
    """Return the first index among the blocks, the first in the image and the count, for one block offset."""
    # Along one axis, blocks have the length `block`. The image has `length` elements after `before` elements of padding
    # or cropping, and `out_length` blocks.
    first = max(0, -(-(before - offset) // block))
    last = min(out_length, -(-(before + length - offset) // block))
    return first, first * block + offset - before, max(0, last - first)


_COPIES: dict[str, Callable[[Step], list[StridedCopy]]] = {
    **dict.fromkeys(("Reshape", "Squeeze", "ExpandDims"), _reshape),
    **dict.fromkeys(("Transpose", "DepthToSpace", "SpaceToDepth", "ChannelShuffle"), _permute),
    **dict.fromkeys(("SpaceToBatch", "BatchToSpace"), _blocks),
    **dict.fromkeys(("Concat", "Pack"), _join),
    **dict.fromkeys(("Split", "UnPack"), _split),
    "StridedSlice": _slice,
    "Tile": _tile,
    "Reverse": _reverse,
}
MOVEMENTS = tuple(_COPIES)
"""The operations that are implemented as copies."""


def leaves_gaps(step: Step) -> bool:
    """Return whether the copies of a step leave elements of the result unwritten; these are zero."""
    return step.op == "SpaceToBatch" and bool(np.any(step.params["pad_amount"]))


@dataclass(frozen=True)
class Remap:
    """Runs of neighbouring elements in another order.

    - `tables`: run [i, j, …] of the result starts at ``tables[0][i] + tables[1][j] + …`` in the source.
    - `run`: the number of elements in a run.
    """

    tables: list[np.ndarray]
    run: int

    def joined(self, most: int, count: int = MAX_RANK) -> list[np.ndarray]:
        """Return the tables, with the innermost merged into the next outer one as a table of all their sums.

        Merging repeats while there are more than `count` tables, or while the innermost is short and the merged table
        has at most `most` entries.
        """
        tables = list(self.tables)
        while len(tables) > count or (
            len(tables) > 1 and tables[-1].size < _SHORT and tables[-1].size * tables[-2].size <= most
        ):
            inner = tables.pop()
            tables[-1] = (tables[-1][:, None] + inner[None, :]).reshape(-1)
        return tables


def remap(maps: Sequence[np.ndarray], dims: Sequence[int]) -> Remap:
    """Return runs that fill a dense tensor from one of shape `dims`: index i of an axis comes from
    ``maps[axis][i]``.
    """
    axes, strides, run = list(range(len(dims))), dense_strides(dims), 1
    # Trailing axes that do not change form one run.
    while axes and np.array_equal(maps[axes[-1]], np.arange(dims[axes[-1]])):
        run *= dims[axes.pop()]
    tables = [(maps[a] * strides[a]).astype(np.int64) for a in axes if maps[a].size != 1 or maps[a][0] != 0]
    return Remap(tables or [np.zeros(1, np.int64)], run)


@dataclass(frozen=True)
class PaddedAxis:
    """An axis of a padded tensor: the number of elements kept, added before and added after, and its stride."""

    kept: int
    before: int
    after: int
    stride: int

    @property
    def whole(self) -> int:
        """The length of the padded axis."""
        return self.kept + self.before + self.after


def border_remap(step: Step) -> Remap | None:
    """Return the runs of a Pad step that repeats or mirrors its operand; None if it pads with a constant."""
    scheme, x = int(step.params["scheme"]), operand(step)
    if scheme == CONSTANT:
        return None
    pads = np.asarray(step.params["pad_amount"]).reshape(-1, 2)
    return remap([border(scheme, size, *map(int, pad)) for size, pad in zip(x.dims, pads, strict=True)], x.dims)


def padded_axes(step: Step) -> list[PaddedAxis]:
    """Return the axes of a Pad step, at least one; an axis without padding is merged into the one before it."""
    merged: list[tuple[int, int, int]] = []
    pads = np.asarray(step.params["pad_amount"]).reshape(-1, 2).tolist()
    for length, (before, after) in zip(operand(step).dims, pads, strict=True):
        if merged and before == after == 0:
            kept, first, last = merged[-1]
            merged[-1] = (kept * length, first * length, last * length)
        elif merged and merged[-1] == (1, 0, 0):
            merged[-1] = (length, before, after)
        else:
            merged.append((length, before, after))
    merged = merged or [(1, 0, 0)]
    strides = dense_strides([kept for kept, _, _ in merged])
    return [PaddedAxis(*axis, stride) for axis, stride in zip(merged, strides, strict=True)]


def stored_number(value: float, tensor: Tensor) -> np.ndarray:
    """Return a number as the tensor stores it."""
    number = np.asarray(value)
    if tensor.quantization is not None:
        return tensor.quantization.quantize(number.astype(np.float32), tensor.dtype.numpy)
    return tensor.dtype.encode(number)


def shape_values(step: Step) -> np.ndarray:
    """Return the result of a Shape step."""
    output, start = step.outputs[0], int(step.params["start"])
    return np.array(operand(step).dims[start : start + output.elements], output.dtype.numpy)


def border(scheme: int, size: int, before: int, after: int) -> np.ndarray:
    """Return the source index for each index of a padded axis.

    `scheme` is QNN's: EDGE repeats the outermost element, MIRROR_SYMMETRIC mirrors the axis including that element,
    MIRROR_REFLECT without it.
    """
    index = np.arange(-before, size + after)
    if scheme == EDGE:
        return np.clip(index, 0, size - 1)
    repeated = {MIRROR_SYMMETRIC: 1, MIRROR_REFLECT: 0}[scheme]
    index = np.where(index < 0, -index - repeated, index)
    return np.where(index >= size, 2 * (size - 1) - index + repeated, index)
