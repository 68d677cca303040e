"""Lowering of resizing and sampling."""

from __future__ import annotations

import numpy as np

from isthmus.engine.native.lowering.elementwise import clamp_in_place, kind_of, without_clamp
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.fixed_point import STORED
from isthmus.engine.native.lowering.movement import emit_remap, refuses_selection
from isthmus.engine.native.signatures.elementwise import FLOATS, KINDS
from isthmus.engine.native.target import Target
from isthmus.graph import DataType
from isthmus.prepare.geometry import resize as geometry
from isthmus.prepare.geometry.fixed_point import is_eight_bit, quantization_of
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

_ALIGNMENT = 64


def _emit_resize(step: Step, e: Emitter) -> None:
    """Emit a resize: a copy by tables, bilinear interpolation of images, or one axis after the other."""
    x, output = operand(step), step.outputs[0]
    if geometry.is_nearest(step):
        emit_remap(e, e.at(output), e.at(x), geometry.nearest(step), x.dtype.itemsize)
        return
    (_emit_bilinear if geometry.is_bilinear(step) else _emit_axes)(step, e)
    clamp_in_place(step, e)


def _refuses_resize(step: Step) -> str | None:
    x, output = operand(step), step.outputs[0]
    if not output.elements:
        return None
    if geometry.is_nearest(step):
        return refuses_selection(step)
    kinds = FLOATS if geometry.is_bilinear(step) else FLOATS[:1]
    return without_clamp(step) if KINDS.get(x.dtype) in kinds else f"interpolation of {x.describe()} needs float32"


def _refuses_sampling(step: Step) -> str | None:
    x, positions = operand(step), operand(step, 1)
    if {x.dtype, positions.dtype} != {DataType.FLOAT_32}:
        return f"{x.describe()} and {positions.describe()} must be float32"
    return without_clamp(step)


def _byte_taps(size: int, count: int, align_corners: bool, half_pixel_centers: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return, like LiteRT, the indices of an axis before and after each of `count` results, and the weights of both."""
    # Weights are integers of 11 fractional bits.
    corner = int(align_corners and count > 1)
    scale = np.float32(size - corner) / np.float32(count - corner)
    position = np.arange(count, dtype=np.float32) * scale
    if half_pixel_centers:
        position = np.clip(position + (np.float32(0.5) * scale - np.float32(0.5)), np.float32(0), np.float32(size - 1))
    before = np.minimum(position.astype(np.int64), size - 1)
    weight = np.rint((position - before.astype(np.float32)) * np.float32(1 << 11))
    return np.stack([before, np.minimum(before + 1, size - 1)], axis=1), np.stack([(1 << 11) - weight, weight], axis=1)


def _emit_bilinear(step: Step, e: Emitter) -> None:
    x, output = operand(step), step.outputs[0]
    batch, height, width, channels = x.dims
    size, is_bytes, taps = x.dtype.itemsize, x.dtype in STORED, geometry.bilinear(step)
    if not output.elements:
        return
    if is_bytes:
        modes = bool(step.params["align_corners"]), bool(step.params["half_pixel_centers"])
        taps = geometry.bilinear(step, lambda size, count, _: _byte_taps(size, count, *modes))
    # For rows, then for columns: the byte offsets before and after each result, and the weights of those after it.
    tables = []
    for places, weights in taps:
        tables += [e.offset_table(places[:, tap] * size) for tap in (0, 1)]
        tables.append(e.constant(weights.astype(np.int32) if is_bytes else weights))
    e.emit(
        f"resize:bilinear.{STORED[x.dtype] if is_bytes else kind_of(x)}", output=e.at(output), x=e.at(x), batch=batch,
        image_bytes=height * width * channels * size,
        height=output.dims[1], width=output.dims[2], channels=channels, upper=tables[0], lower=tables[1],
        row_weights=tables[2], left=tables[3], right=tables[4], pixel_weights=tables[5],
    )  # fmt: skip


def _covers_bytes(step: Step) -> bool:
    """Return whether images of bytes are resized without a change of their quantization."""
    x, output = operand(step), step.outputs[0]
    same = x.dtype is output.dtype and step.clamp is None and is_eight_bit(x) and is_eight_bit(output)
    return same and quantization_of(x) == quantization_of(output)


def _emit_axes(step: Step, e: Emitter) -> None:
    """Resize one axis after the other; intermediate results alternate between two halves of the work space."""
    half, source = geometry.intermediate_bytes(step, _ALIGNMENT), e.at(operand(step))
    last = len(geometry.changed_axes(step)) - 1
    for number, axis in enumerate(geometry.passes(step)):
        goal = e.at(step.outputs[0]) if number == last else e.work(number % 2 * half)
        e.emit(
            "resize:along_axis", output=goal, x=source, outer_count=axis.outer, size=axis.size, count=axis.count,
            inner=axis.inner, taps=axis.taps, places=e.offset_table(axis.places), weights=e.constant(axis.weights),
        )  # fmt: skip
        source = goal


def _work(step: Step, target: Target, threads: int) -> int:
    return geometry.work_bytes(step, _ALIGNMENT)


def _emit_grid_sample(step: Step, e: Emitter) -> None:
    x, grid, output = operand(step), operand(step, 1), step.outputs[0]
    batch, height, width, channels = x.dims
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
    e.emit(
        f"resize:crop_and_resize.{'i64' if indices.dtype.itemsize == 8 else 'i32'}", output=e.at(output), x=e.at(x),
        boxes=e.at(boxes), indices=e.at(indices), count=boxes.dims[0], batch=batch, height=height, width=width,
        channels=channels, out_height=output.dims[1], out_width=output.dims[2],
        nearest=int(step.params["interpolation_mode"]), outside=float(step.params["extrapolation_value"]),
    )  # fmt: skip
    clamp_in_place(step, e)


_INTERPOLATED = Lowering(_emit_resize, _work, _refuses_resize)
QUANTIZED = {"ResizeBilinear": (_covers_bytes, Lowering(_emit_bilinear))}
"""The lowering of images of 8-bit fixed point, and which steps it covers."""
LOWERINGS: dict[str, Lowering] = {
    "Resize": _INTERPOLATED,
    "ResizeBilinear": _INTERPOLATED,
    "ResizeNearestNeighbor": Lowering(_emit_resize, refuses=_refuses_resize),
    "GridSample": Lowering(_emit_grid_sample, refuses=_refuses_sampling),
    "CropAndResize": Lowering(_emit_crop_and_resize, refuses=_refuses_sampling),
}
