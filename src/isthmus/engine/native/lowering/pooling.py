"""Lowering of pooling; a window over the whole image is a reduction."""

from __future__ import annotations

from math import prod

import numpy as np

from isthmus.engine.native.lowering.elementwise import clamp_in_place, without_clamp
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.reduction import emit_mean_of_strip, stored_kind, without_stored_kind
from isthmus.prepare.geometry.layout import operand, whole_dims
from isthmus.prepare.schedule import Step


def _emit_pool(step: Step, e: Emitter, name: str) -> None:
    if step.part is not None and step.part.pixels:
        emit_mean_of_strip(step, e)
        return
    x, output = operand(step), step.outputs[0]
    kind = stored_kind(step)
    if not output.elements:
        return
    spatial = x.rank - 2
    window = [int(v) for v in step.params["filter_size"]]
    pads = np.asarray(step.params["pad_amount"]).reshape(spatial, 2).tolist()
    batch, channels = x.dims[0], x.dims[-1]
    area = prod(x.dims[1:-1])
    if name != "l2" and prod(whole_dims(step)[1:-1]) == 1 and window == list(x.dims[1:-1]) and not np.any(pads):
        _emit_global(step, e, "max" if name == "max" else "sum", kind, 1.0 if name == "max" else 1.0 / area)
    else:
        # Images are volumes of one plane.
        axes = [[1, 1, 1, 1, 0, 0]] * (3 - spatial)
        for axis in range(spatial):
            stride = int(step.params["stride"][axis])
            axes.append([x.dims[axis + 1], output.dims[axis + 1], window[axis], stride, *pads[axis]])
        edges = int(bool(step.params.get("count_pad_for_edges")))
        e.emit(
            f"pooling:pool.{name}_{kind}", output=e.at(output), x=e.at(x), batch=batch, channels=channels,
            padding_counts=edges, depth=axes[0], height=axes[1], width=axes[2],
        )  # fmt: skip
    clamp_in_place(step, e)


def _refuses_pool(step: Step, name: str) -> str | None:
    unknown = without_stored_kind(step)
    if unknown is None and stored_kind(step) not in (("f32", "i8", "u8") if name == "max" else ("f32",)):
        return f"the {name} of windows of {operand(step).describe()} is not supported"
    return unknown or without_clamp(step)


def _emit_global(step: Step, e: Emitter, function: str, kind: str, factor: float) -> None:
    x, output = operand(step), step.outputs[0]
    batch, channels, area, size = x.dims[0], x.dims[-1], prod(x.dims[1:-1]), x.dtype.itemsize
    e.emit(
        f"reduction:columns.{function}_{kind}", output=e.at(output), x=e.at(x), outer_outputs=batch, inner=channels,
        elements=area, factor=factor, kept=[batch], kept_strides=[area * channels * size], reduced=[area],
        reduced_strides=[channels * size],
    )  # fmt: skip


def _pool(name: str) -> Lowering:
    return Lowering(lambda step, e: _emit_pool(step, e, name), refuses=lambda step: _refuses_pool(step, name))


LOWERINGS: dict[str, Lowering] = {
    "PoolMax2d": _pool("max"),
    "PoolMax3d": _pool("max"),
    "PoolAvg2d": _pool("avg"),
    "PoolAvg3d": _pool("avg"),
    "L2Pool2d": _pool("l2"),
}
