"""Resizing as data: the source elements of each result and their weights. Strides are in elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from isthmus.graph.evaluation.sampling import axis_taps, image_resize_params
from isthmus.graph.ops.sampling import LINEAR, NEAREST
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.movement import Remap, remap
from isthmus.prepare.schedule import Step

_IMAGES = {"ResizeBilinear": LINEAR, "ResizeNearestNeighbor": NEAREST}
RESIZES = ("Resize", *_IMAGES)


def resize_params(op: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of any resizing operation in the form of Resize's."""
    return image_resize_params(params, _IMAGES[op]) if op in _IMAGES else params


def changed_axes(step: Step) -> list[int]:
    """List the axes whose size changes."""
    return [axis for axis in range(operand(step).rank) if len(set(_sizes(step, axis))) > 1]


def _sizes(step: Step, axis: int) -> tuple[int, int]:
    """Return the sizes of input and output along an axis; for a tile, those of the whole step."""
    part = step.part
    if part is not None and part.axis == axis:
        return part.source_height, part.height
    return operand(step).dims[axis], step.outputs[0].dims[axis]


Taps = Callable[[int, int, dict[str, Any]], tuple[np.ndarray, np.ndarray]]
"""A function of the sizes of input and output, and of the parameters of a Resize, for indices and weights."""


def _taps(step: Step, axis: int, taps: Taps = axis_taps) -> tuple[np.ndarray, np.ndarray]:
    """Return input indices and weights along an axis, both [count, taps]: each result is a weighted sum of its taps."""
    # For a tile these are its rows of the whole table, with indices relative to its first input row.
    places, weights = taps(*_sizes(step, axis), resize_params(step.op, step.params))
    weights = weights.astype(np.float32)
    part = step.part
    if part is None or part.axis != axis:
        return places, weights
    rows = slice(part.first, part.first + step.outputs[0].dims[axis])
    return places[rows] - part.source_first, weights[rows]


def is_nearest(step: Step) -> bool:
    """Return whether every result is an element of the input."""
    mode = resize_params(step.op, step.params)["interpolation_mode"]
    return mode == NEAREST or not changed_axes(step)


def nearest(step: Step) -> Remap:
    """Return the runs of elements that make up the result."""
    x = operand(step)
    maps = [np.arange(size) for size in x.dims]
    for axis in changed_axes(step):
        maps[axis] = _taps(step, axis)[0][:, 0]
    return remap(maps, x.dims)


def is_bilinear(step: Step) -> bool:
    """Return whether every result depends on at most four pixels of an image."""
    mode = resize_params(step.op, step.params)["interpolation_mode"]
    return mode == LINEAR and operand(step).rank == 4 and changed_axes(step) in ([1, 2], [1], [2])


def bilinear(step: Step, taps: Taps = axis_taps) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for rows and then columns, the offsets of both neighbours, [count, 2], and the weight of the second."""
    _, _, width, channels = operand(step).dims
    for axis, stride in ((1, width * channels), (2, channels)):
        places, weights = _taps(step, axis, taps)
        yield places[:, :2] * stride, weights[:, 1]


@dataclass(frozen=True)
class AxisPass:
    """The resizing of [outer, size, inner] to [outer, count, inner] along one axis.

    Each result is a sum of `taps` inputs at the indices `places`, times `weights`; both are [count, taps].
    """

    outer: int
    size: int
    count: int
    inner: int
    places: np.ndarray
    weights: np.ndarray

    @property
    def taps(self) -> int:
        """The number of input elements for each result."""
        return int(self.places.shape[1])

    @property
    def elements(self) -> int:
        """The number of elements of the result."""
        return self.outer * self.count * self.inner


def passes(step: Step) -> list[AxisPass]:
    """Return one pass for each axis whose size changes, in axis order."""
    axis_passes, dims = [], list(operand(step).dims)
    for axis in changed_axes(step):
        count = step.outputs[0].dims[axis]
        axis_passes.append(AxisPass(prod(dims[:axis]), dims[axis], count, prod(dims[axis + 1 :]), *_taps(step, axis)))
        dims[axis] = count
    return axis_passes


def intermediate_bytes(step: Step, alignment: int) -> int:
    """Return the bytes of the largest intermediate result between two passes."""
    dims, largest = list(operand(step).dims), 0
    for axis in changed_axes(step)[:-1]:
        dims[axis] = step.outputs[0].dims[axis]
        largest = max(largest, prod(dims) * 4)
    return -(-largest // alignment) * alignment


def work_bytes(step: Step, alignment: int) -> int:
    """Return the bytes of the intermediate results between passes; at most two exist at a time."""
    return min(2, max(len(changed_axes(step)) - 1, 0)) * intermediate_bytes(step, alignment)
