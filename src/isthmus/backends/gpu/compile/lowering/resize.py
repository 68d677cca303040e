"""Lowering of resizing: what depends only on sizes is computed here, into tables of places and weights."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from isthmus.backends.gpu.compile.lowering.chains import Epilogue, limit_links
from isthmus.backends.gpu.compile.lowering.elementwise import is_real, unknown_types
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering
from isthmus.backends.gpu.compile.lowering.movement import emit_remap, refuses_movement
from isthmus.backends.gpu.compile.lowering.reduction import declare_input
from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.evaluation.sampling import axis_taps, image_resize_params
from isthmus.graph.ops.sampling import LINEAR, NEAREST
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.movement import remap
from isthmus.prepare.schedule import Step

_ALIGNMENT = 128


def _changed(step: Step) -> list[int]:
    x, output = operand(step), step.outputs[0]
    return [axis for axis in range(x.rank) if x.dims[axis] != output.dims[axis]]


def _emit(step: Step, e: KernelEmitter, params: dict[str, Any]) -> None:
    x, output = operand(step), step.outputs[0]
    if not output.elements:
        return
    axes = _changed(step)
    if not axes or params["interpolation_mode"] == NEAREST:
        maps = [np.arange(size) for size in x.dims]
        for axis in axes:
            maps[axis] = axis_taps(x.dims[axis], output.dims[axis], params)[0][:, 0]
        emit_remap(e, output, x, remap(maps, x.dims))
    elif params["interpolation_mode"] == LINEAR and axes in ([1, 2], [1], [2]) and x.rank == 4:
        _emit_bilinear(step, e, params)
    else:
        _emit_axes(step, e, params, axes)


def _emit_bilinear(step: Step, e: KernelEmitter, params: dict[str, Any]) -> None:
    x, output, draft = operand(step), step.outputs[0], e.draft()
    batch, height, width, channels = x.dims
    storage = declare_input(e, draft, x)
    for name, size, count, stride in (
        ("row", height, output.dims[1], width * channels),
        ("column", width, output.dims[2], channels),
    ):
        places, weights = axis_taps(size, count, params)
        draft.memory(f"{name}_at", e.constant((places[:, :2] * stride).astype(np.int32)), "int2")
        draft.memory(f"{name}_weight", e.constant(weights[:, 1].astype(np.float32)), "float")
    draft.ints(
        H=output.dims[1], W=output.dims[2], C=channels, image=height * width * channels,
        pixels=batch * output.dims[1] * output.dims[2],
    )  # fmt: skip
    tail = Epilogue(e, draft, output, limit_links(step.clamp))
    lanes = 4 if e.gpu else 8
    while lanes > 1 and channels % lanes:
        lanes //= 2
    lanes = 1 if lanes == 2 else lanes
    real = "float" if lanes == 1 else f"float{lanes}"
    blocks = channels // lanes
    draft.ints(blocks=blocks)
    load = [storage.load("x", f"{at} + c", lanes) for at in ("a", "b", "d", "f")]
    lines = [
        "  int item = get_global_id(0);",
        f"  int pixel = item{' / blocks' if e.gpu else ''};",
        "  if (pixel >= pixels) return;",
        "  int ox = pixel % W, oy = pixel / W % H, image_at = pixel / (W * H) * image;",
        "  int2 row = row_at[oy], column = column_at[ox];",
        "  float down = row_weight[oy], along = column_weight[ox];",
        "  int a = image_at + row.x + column.x, b = image_at + row.x + column.y;",
        "  int d = image_at + row.y + column.x, f = image_at + row.y + column.y;",
        f"  for (int c = {f'item % blocks * {lanes}' if e.gpu else '0'}; c < C; c += {'C' if e.gpu else lanes}) {{",
        f"    {real} p = {load[0]}, q = {load[1]}, r = {load[2]}, s = {load[3]};",
        f"    {real} top = (q - p) * along + p, bottom = (s - r) * along + r;",
        f"    {real} v = (bottom - top) * down + top;",
        *(f"    {line}" for line in tail.lines(lanes, "pixel * C + c", "c")),
        "  }",
    ]
    pixels = batch * output.dims[1] * output.dims[2]
    e.launch("bilinear", draft, "\n".join(lines), (pixels * (blocks if e.gpu else 1),), (128 if e.gpu else 1,))


def _emit_axes(step: Step, e: KernelEmitter, params: dict[str, Any], axes: list[int]) -> None:
    """One axis after the other, the results in between in two halves of the work space."""
    x, output = operand(step), step.outputs[0]
    half, dims, source = _intermediate_bytes(step), list(x.dims), x
    for number, axis in enumerate(axes):
        last = number == len(axes) - 1
        places, weights = axis_taps(dims[axis], output.dims[axis], params)
        outer, inner, size = prod(dims[:axis]), prod(dims[axis + 1 :]), dims[axis]
        dims[axis] = output.dims[axis]
        goal = output if last else Tensor(f"{x.name} along {axis}", TensorType.NATIVE, DataType.FLOAT_32, tuple(dims))
        if not last:
            e.place_in_work(goal, number % 2 * half)
        draft = e.draft()
        storage = declare_input(e, draft, source)
        draft.memory("places", e.constant(places.astype(np.int32)), "int")
        draft.memory("weights", e.constant(weights.astype(np.float32)), "float")
        draft.ints(
            size=size,
            count=output.dims[axis],
            inner=inner,
            taps=places.shape[1],
            items=outer * output.dims[axis] * inner,
        )
        kept, e.chain = e.chain, e.chain if last else None
        tail = Epilogue(e, draft, goal, limit_links(step.clamp) if last else [])
        e.chain = kept
        lines = [
            "  int item = get_global_id(0);",
            "  if (item >= items) return;",
            "  int i = item % inner, n = item / inner % count, o = item / (inner * count);",
            "  float v = 0.0f;",
            "  for (int t = 0; t < taps; ++t)",
            f"    v += weights[n * taps + t] * ({storage.load('x', '(o * size + places[n * taps + t]) * inner + i')});",
            *(f"  {line}" for line in tail.lines(1, "item", "i")),
        ]
        items = outer * output.dims[axis] * inner
        e.launch("along_axis", draft, "\n".join(lines), (items,), (128 if e.gpu else 1,))
        source = goal


def _intermediate_bytes(step: Step) -> int:
    dims, largest = list(operand(step).dims), 0
    for axis in _changed(step)[:-1]:
        dims[axis] = step.outputs[0].dims[axis]
        largest = max(largest, prod(dims) * 4)
    return -(-largest // _ALIGNMENT) * _ALIGNMENT


def _work(step: Step, traits: DeviceTraits) -> int:
    return min(2, max(len(_changed(step)) - 1, 0)) * _intermediate_bytes(step)


def _refuses(step: Step, mode: int) -> str | None:
    x, output = operand(step), step.outputs[0]
    unknown = unknown_types(step)
    if unknown is not None or not output.elements:
        return unknown
    if not _changed(step) or mode == NEAREST:
        return refuses_movement(Step(step.op, step.name, [x], [output], step.params, step.clamp))
    return None if is_real(x) and is_real(output) else f"interpolation of {x.describe()} is not supported"


LOWERINGS: dict[str, KernelLowering] = {
    "Resize": KernelLowering(
        lambda step, e: _emit(step, e, step.params),
        _work,
        lambda step: _refuses(step, step.params["interpolation_mode"]),
    ),
    "ResizeBilinear": KernelLowering(
        lambda step, e: _emit(step, e, image_resize_params(step.params, LINEAR)),
        _work,
        lambda step: _refuses(step, LINEAR),
    ),
    "ResizeNearestNeighbor": KernelLowering(
        lambda step, e: _emit(step, e, image_resize_params(step.params, NEAREST)),
        refuses=lambda step: _refuses(step, NEAREST),
    ),
}
