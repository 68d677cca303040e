"""Lowering of pooling; a window over the whole image is a reduction."""

from __future__ import annotations

from math import prod

from isthmus.engine.native.lowering.elementwise import clamp_in_place, without_clamp
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.reduction import (
    column_work,
    emit_columns,
    emit_mean_of_tile,
    stored_kind,
    without_stored_kind,
)
from isthmus.engine.native.signatures.elementwise import FLOATS
from isthmus.engine.native.signatures.pooling import STORED_INTEGERS
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
        # Means are float32; those of 16 bits are computed in work space, then rounded.
        goal = e.work() if name != "max" and output.dtype.is_half else e.at(output)
        e.emit(
            f"pooling:pool.{name}_{kind}", output=goal, x=e.at(x), batch=w.batches, channels=w.channels,
            padding_counts=int(bool(step.params.get("count_pad_for_edges"))), depth=depth, height=height, width=width,
        )  # fmt: skip
        if name != "max" and output.dtype.is_half:
            e.emit(f"elementwise:cast.f32_{kind}", output=e.at(output), x=goal, elements=output.elements)
    clamp_in_place(step, e)


def _refuses_pool(step: Step, name: str) -> str | None:
    unknown = without_stored_kind(step)
    if unknown is None and stored_kind(step) not in ((*FLOATS, *STORED_INTEGERS) if name == "max" else FLOATS):
        return f"the {name} of windows of {operand(step).describe()} is not supported"
    return unknown or without_clamp(step)


def _emit_global(step: Step, e: Emitter, w: ConvWindow, function: str, kind: str) -> None:
    """Emit the pooling of a whole image as a reduction of its pixels."""
    area, pixel_bytes = prod(w.size), w.channels * operand(step).dtype.itemsize
    emit_columns(
        e, function, kind, step.outputs[0], x=e.at(operand(step)), outer_outputs=w.batches, inner=w.channels,
        elements=area, factor=1.0 if function == "max" else 1.0 / area, kept=[w.batches],
        kept_strides=[area * pixel_bytes], reduced=[area], reduced_strides=[pixel_bytes],
    )  # fmt: skip


def _pool(name: str) -> Lowering:
    emit, refuses = (lambda step, e: _emit_pool(step, e, name)), (lambda step: _refuses_pool(step, name))
    return Lowering(emit, refuses=refuses) if name == "max" else Lowering(emit, column_work, refuses)


LOWERINGS: dict[str, Lowering] = {op: _pool(name) for op, name in POOLS.items()}
