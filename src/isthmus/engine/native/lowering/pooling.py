"""Lowering of pooling; a window over the whole image is a reduction."""

from __future__ import annotations

from math import prod

from isthmus.engine.native.lowering.elementwise import clamp_in_place, without_clamp
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.reduction import emit_mean_of_tile, stored_kind, without_stored_kind
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.windows import POOLS, ConvWindow, pool_window
from isthmus.prepare.schedule import Step


def _emit_pool(step: Step, e: Emitter, name: str) -> None:
    """Emit a pooling by `name`: max, avg or l2."""
    if step.part is not None and step.part.pixels:
        emit_mean_of_tile(step, e)
        return
    x, output = operand(step), step.outputs[0]
    kind = stored_kind(step)
    if not output.elements:
        return
    w = pool_window(step)
    if w.covers_all and name != "l2":
        _emit_global(step, e, w, "max" if name == "max" else "sum", kind)
    else:
        depth, height, width = map(list, zip(w.size, w.out, w.kernel, w.stride, w.pad, w.after, strict=True))
        e.emit(
            f"pooling:pool.{name}_{kind}", output=e.at(output), x=e.at(x), batch=w.batches, channels=w.channels,
            padding_counts=int(bool(step.params.get("count_pad_for_edges"))), depth=depth, height=height, width=width,
        )  # fmt: skip
    clamp_in_place(step, e)


def _refuses_pool(step: Step, name: str) -> str | None:
    unknown = without_stored_kind(step)
    if unknown is None and stored_kind(step) not in (("f32", "i8", "u8") if name == "max" else ("f32",)):
        return f"the {name} of windows of {operand(step).describe()} is not supported"
    return unknown or without_clamp(step)


def _emit_global(step: Step, e: Emitter, w: ConvWindow, function: str, kind: str) -> None:
    """Emit the pooling of a whole image as a reduction of its pixels."""
    area, pixel_bytes = prod(w.size), w.channels * operand(step).dtype.itemsize
    e.emit(
        f"reduction:columns.{function}_{kind}", output=e.at(step.outputs[0]), x=e.at(operand(step)),
        outer_outputs=w.batches, inner=w.channels, elements=area, factor=1.0 if function == "max" else 1.0 / area,
        kept=[w.batches], kept_strides=[area * pixel_bytes], reduced=[area], reduced_strides=[pixel_bytes],
    )  # fmt: skip


def _pool(name: str) -> Lowering:
    return Lowering(lambda step, e: _emit_pool(step, e, name), refuses=lambda step: _refuses_pool(step, name))


LOWERINGS: dict[str, Lowering] = {op: _pool(name) for op, name in POOLS.items()}
