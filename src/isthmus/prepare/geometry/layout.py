"""Memory layout of steps: their operands, strides of dense tensors, merging of adjacent dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.graph import Tensor
from isthmus.prepare.schedule import Step


def operand(step: Step, index: int = 0) -> Tensor:
    """Return an input that the operation requires."""
    return step.input(index)


def whole_dims(step: Step) -> tuple[int, ...]:
    """Return the dimensions of the result; for a step on a tile, those of the whole result."""
    dims, part = step.outputs[0].dims, step.part
    return dims if part is None else (*dims[: part.axis], part.height, *dims[part.axis + 1 :])


def axis_of(step: Step) -> int:
    """Return the step's axis parameter, by default the last axis."""
    axis, rank = step.params.get("axis"), operand(step).rank
    return rank - 1 if axis is None else int(axis) % max(rank, 1)


def permutation(step: Step) -> tuple[Sequence[int], Sequence[int]]:
    """Return the dimensions with which to view the input of a permuting step, and the order of these axes."""
    dims = operand(step).dims
    if step.op == "Transpose":
        return dims, [int(p) for p in step.params["perm"]]
    if step.op == "ChannelShuffle":
        groups, axis = int(step.params["num_groups"]), axis_of(step)
        order = list(range(len(dims) + 1))
        order[axis], order[axis + 1] = axis + 1, axis
        return (*dims[:axis], groups, dims[axis] // groups, *dims[axis + 1 :]), order
    # Mode 0 is QNN's DCR, where a block's pixels come before the channels in the depth; 1 is CRD, the reverse.
    n, h, w, c = dims
    bh, bw = (int(v) for v in step.params["block_size"])
    if step.op == "SpaceToDepth":
        return (n, h // bh, bh, w // bw, bw, c), (0, 1, 3, 2, 4, 5) if step.params["mode"] == 0 else (0, 1, 3, 5, 2, 4)
    assert step.op == "DepthToSpace"
    depth = c // (bh * bw)
    if step.params["mode"] == 0:
        return (n, h, w, bh, bw, depth), (0, 1, 3, 2, 4, 5)
    return (n, h, w, depth, bh, bw), (0, 1, 4, 2, 5, 3)


def dense_strides(dims: Sequence[int]) -> list[int]:
    """Return the strides of a dense row-major tensor, in elements.

    >>> dense_strides((2, 3, 4))
    [12, 4, 1]
    """
    strides = [1] * len(dims)
    for axis in range(len(dims) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * dims[axis + 1]
    return strides


def collapse(dims: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Merge dimensions that all operands traverse contiguously; return the dimensions (at least one) and strides.

    `strides` holds one list for each operand, with a stride for each dimension.

    >>> collapse((2, 1, 3, 4), [(12, 12, 4, 1), (0, 0, 0, 1)])
    ([6, 4], [[4, 1], [0, 1]])
    """
    # For each dimension, its size and the stride of each operand.
    dimensions = [(size, [s[axis] for s in strides]) for axis, size in enumerate(dims) if size != 1]
    merged: list[tuple[int, list[int]]] = []
    for size, own in dimensions:
        if merged and all(outer == inner * size for outer, inner in zip(merged[-1][1], own, strict=True)):
            merged[-1] = (merged[-1][0] * size, own)
        else:
            merged.append((size, own))
    if not merged:
        # A single element: give every operand stride 1, as for any dense tensor.
        merged = [(1, [1] * len(strides))]
    return [size for size, _ in merged], [[own[i] for _, own in merged] for i in range(len(strides))]


def merge_axes(dims: tuple[int, ...], axes: set[int]) -> list[tuple[bool, int, int]]:
    """Merge adjacent axes of which all are reduced, or all are kept; `axes` are the reduced ones.

    Return (whether it is reduced, size, stride in elements) for each merged axis, the outermost first. Axes of size 1
    are left out.
    """
    groups: list[tuple[bool, int, int]] = []
    for axis, (size, stride) in enumerate(zip(dims, dense_strides(dims), strict=True)):
        if size == 1:
            continue
        if groups and groups[-1][0] == (axis in axes):
            groups[-1] = (groups[-1][0], groups[-1][1] * size, stride)
        else:
            groups.append((axis in axes, size, stride))
    return groups
