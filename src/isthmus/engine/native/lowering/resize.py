"""Lowering of resizing and sampling."""

from __future__ import annotations

from isthmus.engine.native.lowering.elementwise import clamp_in_place, kind_of, without_clamp
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.movement import emit_remap, refuses_selection
from isthmus.engine.native.signatures.elementwise import FLOATS, KINDS
from isthmus.engine.native.target import Target
from isthmus.graph import DataType
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.resize import (
    bilinear,
    changed_axes,
    intermediate_bytes,
    is_bilinear,
    is_nearest,
    nearest,
    passes,
    work_bytes,
)
from isthmus.prepare.schedule import Step

_ALIGNMENT = 64


def _emit_resize(step: Step, e: Emitter) -> None:
    """Emit a resize: a copy by tables, bilinear interpolation of images, or one axis after the other."""
    x, output = operand(step), step.outputs[0]
    if not output.elements:
        return
    if is_nearest(step):
        emit_remap(e, e.at(output), e.at(x), nearest(step), x.dtype.itemsize)
        return
    (_emit_bilinear if is_bilinear(step) else _emit_axes)(step, e)
    clamp_in_place(step, e)


def _refuses_resize(step: Step) -> str | None:
    x, output = operand(step), step.outputs[0]
    if not output.elements:
        return None
    if is_nearest(step):
        return refuses_selection(step)
    kinds = FLOATS if is_bilinear(step) else FLOATS[:1]
    return without_clamp(step) if KINDS.get(x.dtype) in kinds else f"interpolation of {x.describe()} needs float32"


def _refuses_sampling(step: Step) -> str | None:
    x, positions = operand(step), operand(step, 1)
    if {x.dtype, positions.dtype} != {DataType.FLOAT_32}:
        return f"{x.describe()} and {positions.describe()} must be float32"
    return without_clamp(step)


def _emit_bilinear(step: Step, e: Emitter) -> None:
    x, output = operand(step), step.outputs[0]
    batch, height, width, channels = x.dims
    size = x.dtype.itemsize
    # For rows, then for columns: the byte offsets before and after each, and the weights of the latter.
    tables = []
    for places, weights in bilinear(step):
        tables += [*(e.constant(places[:, tap] * size) for tap in (0, 1)), e.constant(weights)]
    e.emit(
        f"resize:bilinear.{kind_of(x)}", output=e.at(output), x=e.at(x), batch=batch,
        image_bytes=height * width * channels * size,
        height=output.dims[1], width=output.dims[2], channels=channels, upper=tables[0], lower=tables[1],
        row_weights=tables[2], left=tables[3], right=tables[4], pixel_weights=tables[5],
    )  # fmt: skip


def _emit_axes(step: Step, e: Emitter) -> None:
    """Resize one axis after the other; intermediate results alternate between two halves of the work space."""
    half, source, last = intermediate_bytes(step, _ALIGNMENT), e.at(operand(step)), len(changed_axes(step)) - 1
    for number, axis in enumerate(passes(step)):
        goal = e.at(step.outputs[0]) if number == last else e.work(number % 2 * half)
        e.emit(
            "resize:along_axis", output=goal, x=source, outer_count=axis.outer, size=axis.size, count=axis.count,
            inner=axis.inner, taps=axis.taps, places=e.constant(axis.places), weights=e.constant(axis.weights),
        )  # fmt: skip
        source = goal


def _work(step: Step, target: Target, threads: int) -> int:
    return work_bytes(step, _ALIGNMENT)


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


_INTERPOLATED = Lowering(_emit_resize, _work, _refuses_resize)
LOWERINGS: dict[str, Lowering] = {
    "Resize": _INTERPOLATED,
    "ResizeBilinear": _INTERPOLATED,
    "ResizeNearestNeighbor": Lowering(_emit_resize, refuses=_refuses_resize),
    "GridSample": Lowering(_emit_grid_sample, refuses=_refuses_sampling),
    "CropAndResize": Lowering(_emit_crop_and_resize, refuses=_refuses_sampling),
}
