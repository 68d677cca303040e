"""Lowering of resizing and sampling: what depends only on sizes is computed here, into tables."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from isthmus.engine.native.lowering.elementwise import clamp_in_place, without_clamp
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.movement import emit_remap, refuses_selection
from isthmus.engine.native.target import Target
from isthmus.graph import DataType
from isthmus.graph.evaluation.sampling import axis_taps, image_resize_params
from isthmus.graph.ops.sampling import LINEAR, NEAREST
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.movement import remap
from isthmus.prepare.schedule import Step


def _changed(step: Step) -> list[int]:
    x = operand(step)
    return [axis for axis in range(x.rank) if _sizes(step, axis)[0] != _sizes(step, axis)[1]]


def _sizes(step: Step, axis: int) -> tuple[int, int]:
    """Sizes of input and output along an axis; of a strip those of the whole step."""
    part = step.part
    if part is not None and part.axis == axis:
        return part.source_height, part.height
    return operand(step).dims[axis], step.outputs[0].dims[axis]


def _taps(step: Step, axis: int, params: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Input places and weights along an axis; of a strip its rows of the whole table, counted from its first row."""
    places, weights = axis_taps(*_sizes(step, axis), params)
    part = step.part
    if part is None or part.axis != axis:
        return places, weights
    rows = slice(part.first, part.first + step.outputs[0].dims[axis])
    return places[rows] - part.source_first, weights[rows]


def _emit_resize(step: Step, e: Emitter, params: dict[str, Any]) -> None:
    x, output = operand(step), step.outputs[0]
    if not output.elements:
        return
    axes = _changed(step)
    if not axes or params["interpolation_mode"] == NEAREST:
        maps = [np.arange(size) for size in x.dims]
        for axis in axes:
            maps[axis] = _taps(step, axis, params)[0][:, 0]
        emit_remap(e, e.at(output), e.at(x), remap(maps, x.dims), x.dtype.itemsize)
        return
    if params["interpolation_mode"] == LINEAR and axes in ([1, 2], [1], [2]) and x.rank == 4:
        _emit_bilinear(step, e, params)
    else:
        _emit_axes(step, e, params, axes)
    clamp_in_place(step, e)


def _refuses_resize(step: Step, mode: int) -> str | None:
    x, output = operand(step), step.outputs[0]
    if not output.elements:
        return None
    if not _changed(step) or mode == NEAREST:
        return refuses_selection(step)
    return f"interpolation of {x.describe()} needs float32" if x.dtype is not DataType.FLOAT_32 else without_clamp(step)


def _refuses_sampling(step: Step) -> str | None:
    x, places = operand(step), operand(step, 1)
    if {x.dtype, places.dtype} != {DataType.FLOAT_32}:
        return f"{x.describe()} and {places.describe()} must be float32"
    return without_clamp(step)


def _emit_bilinear(step: Step, e: Emitter, params: dict[str, Any]) -> None:
    x, output = operand(step), step.outputs[0]
    batch, height, width, channels = x.dims
    tables = []
    for axis, stride in ((1, width * channels * 4), (2, channels * 4)):
        places, weights = _taps(step, axis, params)
        tables += [e.constant(places[:, tap] * stride) for tap in (0, 1)]
        tables.append(e.constant(weights[:, 1].astype(np.float32)))
    e.emit(
        "resize:bilinear", output=e.at(output), x=e.at(x), batch=batch, image_bytes=height * width * channels * 4,
        height=output.dims[1], width=output.dims[2], channels=channels, upper=tables[0], lower=tables[1],
        row_weights=tables[2], left=tables[3], right=tables[4], pixel_weights=tables[5],
    )  # fmt: skip


def _emit_axes(step: Step, e: Emitter, params: dict[str, Any], axes: list[int]) -> None:
    """One axis after the other, the results in between in two halves of the work space."""
    x, output = operand(step), step.outputs[0]
    half = _intermediate_bytes(step)
    dims, source = list(x.dims), e.at(x)
    for number, axis in enumerate(axes):
        goal = e.at(output) if number == len(axes) - 1 else e.work(number % 2 * half)
        places, weights = _taps(step, axis, params)
        e.emit(
            "resize:along_axis", output=goal, x=source, outer_count=prod(dims[:axis]), size=dims[axis],
            count=output.dims[axis], inner=prod(dims[axis + 1 :]), taps=places.shape[1], places=e.constant(places),
            weights=e.constant(weights.astype(np.float32)),
        )  # fmt: skip
        dims[axis], source = output.dims[axis], goal


def _intermediate_bytes(step: Step) -> int:
    """The largest result between two axes, in whole cache lines."""
    dims, largest = list(operand(step).dims), 0
    for axis in _changed(step)[:-1]:
        dims[axis] = step.outputs[0].dims[axis]
        largest = max(largest, prod(dims) * 4)
    return -(-largest // 64) * 64


def _work(step: Step, target: Target, threads: int) -> int:
    return min(2, max(len(_changed(step)) - 1, 0)) * _intermediate_bytes(step)


def _emit_grid_sample(step: Step, e: Emitter) -> None:
    x, grid, output = operand(step), operand(step, 1), step.outputs[0]
    batch, height, width, channels = x.dims
    if output.elements:
        e.emit(
            "resize:grid_sample", output=e.at(output), x=e.at(x), grid=e.at(grid), batch=batch, height=height,
            width=width, channels=channels, pixels=grid.dims[1] * grid.dims[2],
            corners=int(step.params["align_corners"]), nearest=int(step.params["mode"]),
            padding=int(step.params["padding_mode"]),
        )  # fmt: skip
    clamp_in_place(step, e)


def _emit_crop_and_resize(step: Step, e: Emitter) -> None:
    x, boxes, indices, output = operand(step), operand(step, 1), operand(step, 2), step.outputs[0]
    batch, height, width, channels = x.dims
    if output.elements:
        e.emit(
            f"resize:crop_and_resize.{'i64' if indices.dtype.itemsize == 8 else 'i32'}", output=e.at(output), x=e.at(x),
            boxes=e.at(boxes), indices=e.at(indices), count=boxes.dims[0], batch=batch, height=height, width=width,
            channels=channels, out_height=output.dims[1], out_width=output.dims[2],
            nearest=int(step.params["interpolation_mode"]), outside=float(step.params["extrapolation_value"]),
        )  # fmt: skip
    clamp_in_place(step, e)


LOWERINGS: dict[str, Lowering] = {
    "Resize": Lowering(
        lambda step, e: _emit_resize(step, e, step.params),
        _work,
        lambda step: _refuses_resize(step, step.params["interpolation_mode"]),
    ),
    "ResizeBilinear": Lowering(
        lambda step, e: _emit_resize(step, e, image_resize_params(step.params, LINEAR)),
        _work,
        lambda step: _refuses_resize(step, LINEAR),
    ),
    "ResizeNearestNeighbor": Lowering(
        lambda step, e: _emit_resize(step, e, image_resize_params(step.params, NEAREST)),
        refuses=lambda step: _refuses_resize(step, NEAREST),
    ),
    "GridSample": Lowering(_emit_grid_sample, refuses=_refuses_sampling),
    "CropAndResize": Lowering(_emit_crop_and_resize, refuses=_refuses_sampling),
}
