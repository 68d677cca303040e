"""Lowering of pooling; a window over the whole image is a reduction."""

from __future__ import annotations

from math import prod

import numpy as np

from isthmus.engine.native.lowering import reduction
from isthmus.engine.native.lowering.elementwise import clamp_in_place, without_clamp
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.fixed_point import rounding_kernel, scale_of
from isthmus.engine.native.program import ABSENT, Operand
from isthmus.engine.native.signatures.elementwise import FLOATS
from isthmus.engine.native.signatures.pooling import STORED_INTEGERS
from isthmus.engine.native.target import Target
from isthmus.engine.native.words import Value
from isthmus.graph.rounding import HEXAGON
from isthmus.prepare.geometry.fixed_point import is_sixteen_bit, quantization_of
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.windows import POOLS, ConvWindow, pool_window
from isthmus.prepare.schedule import Step

# The words about fixed-point elements, as poolings of other elements have them.
_PLAIN: dict[str, Value] = {
    "work": ABSENT, "ties_away": 0, "scale_in": 1.0, "scale_out": 1.0, "zero_in": 0, "zero": 0, "least": 0, "most": 0,
}  # fmt: skip


def _emit_windows(e: Emitter, step: Step, variant: str, goal: Operand, stored: dict[str, Value] = _PLAIN) -> None:
    """Emit the pooling of windows into `goal`; `stored` are the words about fixed-point elements."""
    w = pool_window(step)
    depth, height, width = map(list, zip(w.size, w.out, w.kernel, w.stride, w.pad, w.after, strict=True))
    e.emit(
        variant, output=goal, x=e.at(operand(step)), batch=w.batches, channels=w.channels,
        padding_counts=int(bool(step.params.get("count_pad_for_edges"))), depth=depth, height=height, width=width,
        **stored,
    )  # fmt: skip


def _emit_pool(step: Step, e: Emitter, name: str) -> None:
    """Emit a pooling by `name`: max, avg or l2."""
    if step.part is not None and step.part.pixels:
        reduction.emit_mean_of_tile(step, e)
        return
    output, kind = step.outputs[0], reduction.stored_kind(step)
    if not output.elements:
        return
    w = pool_window(step)
    if w.covers_all and name != "l2":
        _emit_global(step, e, w, "max" if name == "max" else "sum", kind)
    else:
        # Means are float32; those of 16 bits are computed in work space, then rounded.
        goal = e.work() if name != "max" and output.dtype.is_half else e.at(output)
        _emit_windows(e, step, f"pooling:pool.{name}_{kind}", goal)
        if name != "max" and output.dtype.is_half:
            e.emit(f"elementwise:cast.f32_{kind}", output=e.at(output), x=goal, elements=output.elements)
    clamp_in_place(step, e)


def _refuses_pool(step: Step, name: str) -> str | None:
    unknown, kinds = reduction.without_stored_kind(step), (*FLOATS, *STORED_INTEGERS) if name == "max" else FLOATS
    if unknown is None and reduction.stored_kind(step) not in kinds:
        return f"the {name} of windows of {operand(step).describe()} is not supported"
    return unknown or without_clamp(step)


def _emit_global(step: Step, e: Emitter, w: ConvWindow, function: str, kind: str) -> None:
    """Emit the pooling of a whole image as a reduction of its pixels."""
    area, pixel_bytes = prod(w.size), w.channels * operand(step).dtype.itemsize
    reduction.emit_columns(
        e, function, kind, step.outputs[0], x=e.at(operand(step)), outer_outputs=w.batches, inner=w.channels,
        elements=area, factor=1.0 if function == "max" else 1.0 / area, kept=[w.batches],
        kept_strides=[area * pixel_bytes], reduced=[area], reduced_strides=[pixel_bytes],
    )  # fmt: skip


def _pool(name: str) -> Lowering:
    emit, refuses = (lambda step, e: _emit_pool(step, e, name)), (lambda step: _refuses_pool(step, name))
    return Lowering(emit, refuses=refuses) if name == "max" else Lowering(emit, reduction.column_work, refuses)


LOWERINGS: dict[str, Lowering] = {op: _pool(name) for op, name in POOLS.items()}


# -- fixed point -------------------------------------------------------------------------------------------------------


def _emit_mean(step: Step, e: Emitter) -> None:
    """Emit an average pooling of fixed-point elements."""
    x, output = operand(step), step.outputs[0]
    qx, qy = quantization_of(x), quantization_of(output)
    # Within one quantization, the mean of stored values is the result, rounded as the model asks.
    ties_away = bool(step.params.get("ties_away_from_zero")) and qx == qy and e.numerics != HEXAGON
    # ONNX Runtime adds up reals, whose rounding moves exact halves. A chip adds up stored values, which is exact.
    scales, ratio = (qx.scale, qy.scale), np.float32(qy.scale) / np.float32(qx.scale)
    if is_sixteen_bit(x):
        ties_away = ties_away and qx.zero_point == 0
        scales = 1.0, scale_of(x) / scale_of(output)
    elif e.numerics == HEXAGON and 0 < ratio < np.inf:
        scales = 1.0, float(ratio)
    kernel = rounding_kernel(e, step.op, "pooling:pool", f"mean_{reduction.stored_types(step)}", step.params)
    stored: dict[str, Value] = {
        "work": e.work(), "ties_away": int(ties_away), "scale_in": scales[0], "scale_out": scales[1],
        "zero_in": qx.zero_point, **reduction.result_limits(step),
    }  # fmt: skip
    _emit_windows(e, step, kernel, e.at(output), stored)


def _mean_work(step: Step, _target: Target, threads: int) -> int:
    """Return the bytes for a sum of each channel, in 32 bits or 64, for each thread."""
    return 4 * operand(step).dtype.itemsize * operand(step).dims[-1] * threads


def _covers_mean(step: Step) -> bool:
    in_16_bits = reduction.has_sixteen_bits(step) and (step.part is None or step.part.pixels == 0)
    return in_16_bits or reduction.has_bytes_of_one_type(step)


QUANTIZED = {"PoolAvg2d": (_covers_mean, Lowering(_emit_mean, _mean_work))}
"""For each operation, a test of which steps its lowering for fixed point covers, and that lowering."""
