"""Lowering of resizing: nearest pixels as a movement, bilinear in one kernel, anything else axis by axis."""

from __future__ import annotations

import numpy as np

from isthmus.backends.gpu.compile.lowering.chains import Epilogue, limit_links
from isthmus.backends.gpu.compile.lowering.elementwise import is_real
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering
from isthmus.backends.gpu.compile.lowering.movement import emit_remap, refuses_movement
from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.prepare.geometry import resize as geometry
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

# The alignment in bytes of the halves of the work space.
_ALIGNMENT = 128


def _emit(step: Step, e: KernelEmitter) -> None:
    """Emit resizing: to the nearest pixel as a movement, bilinear in one kernel, anything else one axis at a time."""
    if geometry.is_nearest(step):
        emit_remap(e, step.outputs[0], operand(step), geometry.nearest(step))
    else:
        (_emit_bilinear if geometry.is_bilinear(step) else _emit_axes)(step, e)


def _emit_bilinear(step: Step, e: KernelEmitter) -> None:
    """Emit bilinear resizing; tables give two rows and two columns for each pixel, and the weight of the second."""
    x, output, kernel = operand(step), step.outputs[0], e.kernel()
    batch, height, width, channels = x.dims
    storage = kernel.tensor("x", x)
    for name, (places, weights) in zip(("row", "column"), geometry.bilinear(step), strict=True):
        kernel.memory(f"{name}_at", e.constant(places.astype(np.int32)), "int2")
        kernel.memory(f"{name}_weight", e.constant(weights), "float")
    kernel.ints(
        H=output.dims[1], W=output.dims[2], C=channels, image=height * width * channels,
        pixels=batch * output.dims[1] * output.dims[2],
    )  # fmt: skip
    tail = Epilogue(e, kernel, output, limit_links(step.clamp))
    lanes = 1 if channels % 4 else 4
    real = "float" if lanes == 1 else f"float{lanes}"
    blocks = channels // lanes
    kernel.ints(blocks=blocks)
    load = [storage.load("x", f"{at} + c", lanes) for at in ("a", "b", "d", "f")]
    lines = [
        "  int item = get_global_id(0);",
        f"  int pixel = item / blocks, c = item % blocks * {lanes};",
        "  if (pixel >= pixels) return;",
        "  int ox = pixel % W, oy = pixel / W % H, image_at = pixel / (W * H) * image;",
        "  int2 row = row_at[oy], column = column_at[ox];",
        "  float down = row_weight[oy], along = column_weight[ox];",
        "  int a = image_at + row.x + column.x, b = image_at + row.x + column.y;",
        "  int d = image_at + row.y + column.x, f = image_at + row.y + column.y;",
        f"  {real} p = {load[0]}, q = {load[1]}, r = {load[2]}, s = {load[3]};",
        f"  {real} top = (q - p) * along + p, bottom = (s - r) * along + r;",
        f"  {real} v = (bottom - top) * down + top;",
        *(f"  {line}" for line in tail.lines(lanes, "pixel * C + c", "c")),
    ]
    pixels = batch * output.dims[1] * output.dims[2]
    kernel.launch("bilinear", lines, (pixels * blocks,), (128,))


def _emit_axes(step: Step, e: KernelEmitter) -> None:
    """Emit one pass for each axis; intermediate results alternate between the two halves of the work space."""
    half, source, axes = geometry.intermediate_bytes(step, _ALIGNMENT), operand(step), geometry.passes(step)
    for number, axis in enumerate(axes):
        last = number == len(axes) - 1
        goal = step.outputs[0]
        if not last:
            goal = Tensor(f"{step.name} {number}", TensorType.NATIVE, DataType.FLOAT_32, (axis.elements,))
            e.place_in_work(goal, number % 2 * half)
        kernel = e.kernel()
        storage = kernel.tensor("x", source)
        kernel.memory("places", e.constant(axis.places.astype(np.int32)), "int")
        kernel.memory("weights", e.constant(axis.weights), "float")
        kernel.ints(size=axis.size, count=axis.count, inner=axis.inner, taps=axis.taps, items=axis.elements)
        # Only the last pass applies the chain and the activation.
        chain, e.chain = e.chain, e.chain if last else None
        tail = Epilogue(e, kernel, goal, limit_links(step.clamp) if last else [])
        e.chain = chain
        lines = [
            "  int item = get_global_id(0);",
            "  if (item >= items) return;",
            "  int i = item % inner, n = item / inner % count, o = item / (inner * count);",
            "  float v = 0.0f;",
            "  for (int t = 0; t < taps; ++t)",
            f"    v += weights[n * taps + t] * ({storage.load('x', '(o * size + places[n * taps + t]) * inner + i')});",
            *(f"  {line}" for line in tail.lines(1, "item", "i")),
        ]
        kernel.launch("along_axis", lines, (axis.elements,), (128,))
        source = goal


def _work(step: Step, traits: DeviceTraits) -> int:
    """Return the bytes of work space for intermediate results, which are the same on every device."""
    return geometry.work_bytes(step, _ALIGNMENT)


def _refuses(step: Step) -> str | None:
    """Return why resizing cannot be executed, or None: only reals are interpolated, and other elements moved."""
    x, output = operand(step), step.outputs[0]
    if not output.elements:
        return None
    if geometry.is_nearest(step):
        return refuses_movement(Step(step.op, step.name, [x], [output], step.params, step.clamp))
    return None if is_real(x) and is_real(output) else f"interpolation of {x.describe()} is not supported"


_INTERPOLATED = KernelLowering(_emit, _work, _refuses)
LOWERINGS: dict[str, KernelLowering] = {
    "Resize": _INTERPOLATED,
    "ResizeBilinear": _INTERPOLATED,
    "ResizeNearestNeighbor": KernelLowering(_emit, refuses=_refuses),
}
