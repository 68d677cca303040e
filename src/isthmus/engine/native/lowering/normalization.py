"""Lowering of softmax and of the normalisations."""

from __future__ import annotations

from math import inf, prod

import numpy as np

from isthmus.engine.native.lowering import reduction
from isthmus.engine.native.lowering.elementwise import clamp_in_place
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.fixed_point import scale_of
from isthmus.engine.native.program import ABSENT, Operand
from isthmus.engine.native.signatures.elementwise import FLOATS, KINDS
from isthmus.engine.native.signatures.normalization import COLUMN_WORK
from isthmus.engine.native.target import Target
from isthmus.engine.native.words import Value
from isthmus.graph import DataType
from isthmus.graph.ops.reduction import ACROSS_ALL, ACROSS_CHANNEL, LRN_ACROSS_CHANNEL, RMS
from isthmus.prepare.geometry.fixed_point import is_eight_bit, quantization_of
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.reduction import norm_span, refuses_norm_axes
from isthmus.prepare.schedule import Step

# Constant rows with fewer elements than this are repeated.
_SHORT_ROW = 64
# The approximate number of elements of a repeated row.
_LONG_ROW = 512


def _work(step: Step, target: Target, threads: int) -> int:
    return COLUMN_WORK * threads


def _refuses(step: Step) -> str | None:
    """Return why the kernels cannot compute a step, or None; coefficients of 16 bits must be constants."""
    x = operand(step)
    for tensor in (x, *step.outputs):
        if tensor.dtype is not x.dtype or KINDS.get(tensor.dtype) not in FLOATS:
            return f"{tensor.describe()} must be float32"
    for coefficients in step.inputs[1:]:
        if coefficients is None or coefficients.dtype is DataType.FLOAT_32:
            continue
        if coefficients.dtype is not x.dtype or not coefficients.is_static:
            return f"{coefficients.describe()} must be a constant or float32"
    return None


def _variant(form: str, step: Step) -> str:
    """Return the variant of a kernel for the type of a step's tensors: ``plain``, ``plain_f16``."""
    kind = KINDS[operand(step).dtype]
    return form if kind == "f32" else f"{form}_{kind}"


def _refuses_axes(step: Step) -> str | None:
    return _refuses(step) or refuses_norm_axes(step)


def _refuses_lrn(step: Step) -> str | None:
    across = step.params["region"] == LRN_ACROSS_CHANNEL
    if operand(step).dtype.is_half:
        return f"{operand(step).describe()} must be float32"
    return _refuses(step) or (None if across else "only the region across channels is supported")


def _emit_softmax(step: Step, e: Emitter, variant: str) -> None:
    """Emit a softmax, over dense rows if its axis is the last one; the variant is plain or log."""
    x, output = operand(step), step.outputs[0]
    axis = x.rank - 1 if step.params["axis"] is None else int(step.params["axis"]) % max(x.rank, 1)
    outer, length, inner = prod(x.dims[:axis]), prod(x.dims[axis : axis + 1]), prod(x.dims[axis + 1 :])
    beta = float(step.params["beta"])
    if not x.elements:
        return
    words: dict[str, Value] = (
        {"rows": outer} if inner == 1 else {"outer_count": outer, "columns": inner, "work": e.work()}
    )
    e.emit(
        f"normalization:softmax_{'rows' if inner == 1 else 'columns'}.{_variant(variant, step)}", output=e.at(output),
        x=e.at(x), length=length, beta=beta, **words,
    )  # fmt: skip
    clamp_in_place(step, e)


def _affine(step: Step, e: Emitter, count: int) -> tuple[Operand, Operand]:
    """Return the operands of `count` scales and offsets, in float32; missing ones become ones and zeros."""

    def single(index: int, missing: float) -> Operand:
        tensor = step.inputs[index] if len(step.inputs) > index else None
        if tensor is None:
            return e.constant(np.full(count, missing, np.float32))
        return e.constant(tensor.dtype.decode(np.asarray(tensor.data))) if tensor.dtype.is_half else e.at(tensor)

    return single(1, 1.0), single(2, 0.0)


def _emit_norm(step: Step, e: Emitter, form: str, count: int, **words: Value) -> None:
    """Emit a norm by a kernel with `count` coefficients; `words` are those that only this kernel has."""
    # The form is that of the kernel, ``rows`` or ``columns``, and moments (mean and variance), mean, rms or l2.
    x, output = operand(step), step.outputs[0]
    if x.elements:
        scales, offsets = _affine(step, e, count)
        e.emit(
            f"normalization:norm_{_variant(form, step)}", output=e.at(output), x=e.at(x), scales=scales,
            offsets=offsets, epsilon=float(step.params["epsilon"]), **words,
        )  # fmt: skip
    clamp_in_place(step, e)


def _emit_norm_rows(step: Step, e: Emitter, variant: str, outer: int, rows: int, groups: int, run: int) -> None:
    """Emit a norm over dense memory."""
    # Elements are seen as [outer, rows, groups, run]; those of one group over all rows are normalized together.
    _emit_norm(step, e, f"rows.{variant}", groups * run, outer_count=outer, rows=rows, groups=groups, run=run)


def _emit_norm_columns(step: Step, e: Emitter, variant: str, outer: int, rows: int, columns: int) -> None:
    """Emit a norm of each column of elements that are seen as [outer, rows, columns]."""
    _emit_norm(step, e, f"columns.{variant}", columns, outer_count=outer, rows=rows, columns=columns, work=e.work())


def _emit_axes_norm(step: Step, e: Emitter, variant: str) -> None:
    """Emit a norm over neighbouring axes: over rows if they are the last ones, else over columns."""
    x = operand(step)
    first, last = norm_span(step)
    outer, length, inner = prod(x.dims[:first]), prod(x.dims[first : last + 1]), prod(x.dims[last + 1 :])
    if inner == 1:
        _emit_norm_rows(step, e, variant, outer, 1, 1, length)
    else:
        _emit_norm_columns(step, e, variant, outer, length, inner)


def _emit_instance_norm(step: Step, e: Emitter) -> None:
    """Emit a norm over the channels of each pixel, over all of an image, or over the pixels of each channel."""
    x = operand(step)
    params = step.params
    variant = "rms" if params["mode"] == RMS else "moments" if params["normalize_variance"] else "mean"
    batch, spatial, channels = x.dims[0], prod(x.dims[1:-1]), x.dims[-1]
    if params["region"] == ACROSS_CHANNEL:
        _emit_norm_rows(step, e, variant, batch * spatial, 1, 1, channels)
    elif params["region"] == ACROSS_ALL:
        _emit_norm_rows(step, e, variant, batch, spatial, 1, channels)
    else:
        _emit_norm_columns(step, e, variant, batch, spatial, channels)


def _emit_group_norm(step: Step, e: Emitter) -> None:
    x = operand(step)
    groups = int(step.params["group"])
    _emit_norm_rows(step, e, "moments", x.dims[0], prod(x.dims[1:-1]), groups, x.dims[-1] // groups)


def _emit_batchnorm(step: Step, e: Emitter) -> None:
    """Emit a scale and an offset for each channel."""
    x, output = operand(step), step.outputs[0]
    channels = x.dims[-1]
    scales, offsets = _affine(step, e, channels)
    # Short constant rows are repeated, because a loop over a few elements is mostly overhead.
    if 0 < channels < _SHORT_ROW and all(t.is_static for t in step.inputs[1:] if t is not None):
        repeats = _LONG_ROW // channels
        arrays = [np.ones(channels, np.float32), np.zeros(channels, np.float32)]
        for index, tensor in enumerate(step.inputs[1:]):
            if tensor is not None:
                arrays[index] = tensor.dtype.decode(np.asarray(tensor.data))
        scales, offsets = (e.constant(np.tile(a.reshape(-1), repeats)) for a in arrays)
        channels *= repeats
    low, high = step.clamp or (-inf, inf)
    if x.elements:
        e.emit(
            f"normalization:affine.{KINDS[x.dtype]}", output=e.at(output), x=e.at(x), scales=scales, offsets=offsets,
            elements=x.elements, channels=channels, low=float(low), high=float(high),
        )  # fmt: skip


def _emit_lrn(step: Step, e: Emitter) -> None:
    x, output = operand(step), step.outputs[0]
    params = step.params
    if x.elements:
        e.emit(
            "normalization:local_response", output=e.at(output), x=e.at(x), rows=prod(x.dims[:-1]),
            channels=x.dims[-1], radius=int(params["radius"]), alpha=float(params["alpha"]),
            beta=float(params["beta"]), bias=float(params["bias"]),
        )  # fmt: skip
    clamp_in_place(step, e)


LOWERINGS: dict[str, Lowering] = {
    "Softmax": Lowering(lambda step, e: _emit_softmax(step, e, "plain"), _work, _refuses),
    "LogSoftmax": Lowering(lambda step, e: _emit_softmax(step, e, "log"), _work, _refuses),
    "LayerNorm": Lowering(lambda step, e: _emit_axes_norm(step, e, "moments"), _work, _refuses_axes),
    "RmsNorm": Lowering(lambda step, e: _emit_axes_norm(step, e, "rms"), _work, _refuses_axes),
    "L2Norm": Lowering(lambda step, e: _emit_axes_norm(step, e, "l2"), _work, _refuses_axes),
    "InstanceNorm": Lowering(_emit_instance_norm, _work, _refuses),
    "GroupNorm": Lowering(_emit_group_norm, refuses=_refuses),
    "Batchnorm": Lowering(_emit_batchnorm, refuses=_refuses),
    "Lrn": Lowering(_emit_lrn, refuses=_refuses_lrn),
}


# -- softmax in fixed point --------------------------------------------------------------------------------------------

# The scale of a result must be larger than this for its inverse to be an integer of 31 bits.
_MIN_SCALE = 2.0**-31


def _covers_stored_softmax(step: Step) -> bool:
    last = int(step.params["axis"]) in (-1, operand(step).rank - 1)
    return last and (reduction.has_bytes_of_one_type(step) or reduction.has_sixteen_bits(step))


def _stored_softmax_work(step: Step, target: Target, threads: int) -> int:
    """Return the bytes for the exponentials of a row of 16-bit numbers, for each thread; bytes have a table."""
    return 0 if is_eight_bit(operand(step)) else 4 * operand(step).dims[-1] * threads


def _integer_table(step: Step) -> tuple[np.ndarray, float]:
    """Return the table and the factor of a softmax in ONNX Runtime's integer arithmetic."""
    # Exponentials have up to 23 bits, so that sums fit 32. The inverse of the output's scale is truncated.
    x, output = operand(step), step.outputs[0]
    largest = min(float(0xFFFFFFFF) / x.dims[-1], float(0x7FFFFF))
    table = np.rint(largest * np.exp(-np.arange(256) * scale_of(x) * float(step.params["beta"])))
    return table.astype(np.int32), float(np.floor(np.float32(1) / np.float32(quantization_of(output).scale)))


def _emit_stored_softmax(step: Step, e: Emitter) -> None:
    x, output, beta = operand(step), step.outputs[0], float(step.params["beta"])
    qx, qy = quantization_of(x), quantization_of(output)
    ending, table, work, scale = "", ABSENT, ABSENT, 0.0
    if not is_eight_bit(x):
        work, scale, inverse = e.work(), scale_of(x) * beta, 1.0 / scale_of(output)
    elif e.numerics == "onnxruntime" and qy.scale > _MIN_SCALE:
        numbers, inverse = _integer_table(step)
        ending, table = "_integers", e.constant(numbers)
    else:
        # The exponential of how far a stored value is below the largest one of its row.
        table = e.constant(np.exp(-np.arange(256, dtype=np.float64) * qx.scale * beta).astype(np.float32))
        inverse = min(1.0 / qy.scale, float(np.finfo(np.float32).max))
    length = x.dims[-1]
    e.emit(
        f"quantized_reduction:softmax.{reduction.stored_types(step)}{ending}", x=e.at(x), y=e.at(output),
        rows=x.elements // length, length=length, table=table, work=work, scale=scale, inverse=inverse,
        **reduction.result_limits(step),
    )  # fmt: skip


QUANTIZED = {"Softmax": (_covers_stored_softmax, Lowering(_emit_stored_softmax, _stored_softmax_work))}
"""For each operation, a test of which steps its lowering for fixed point covers, and that lowering."""
