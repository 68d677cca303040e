"""Lowering of reductions: any set of axes becomes one iteration over rows or over columns."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np

from isthmus.engine.native.lowering.elementwise import KINDS, clamp_in_place, kind_of, without_clamp, without_kind
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.fixed_point import STORED, rounding_kernel, scale_of
from isthmus.engine.native.signatures import reduction as declared
from isthmus.engine.native.signatures.elementwise import FLOATS
from isthmus.engine.native.target import Target
from isthmus.engine.native.words import Value
from isthmus.graph import DataType, Tensor
from isthmus.prepare.geometry.fixed_point import is_eight_bit, is_sixteen_bit, quantization_of, stored_limits
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.reduction import REDUCTIONS, around, reduction
from isthmus.prepare.schedule import Step

# The kinds of kernels that compare bytes. Quantization preserves order, so extremes of stored values are extremes of
# the reals.
_STORED = {t: KINDS[DataType.of(t.numpy)] for t in (*STORED, DataType.INT_8, DataType.UINT_8) if t.itemsize <= 2}


def stored_kind(step: Step) -> str:
    """Return the kernels' name of the type of in[0] for operations that only compare elements; see
    `without_stored_kind`.
    """
    x = operand(step)
    return _STORED.get(x.dtype) or kind_of(x)


def without_stored_kind(step: Step) -> str | None:
    """Return why operations that only compare elements cannot use in[0] as it is stored, or None.

    An output of the same elements must be quantized like in[0].
    """
    x, output = operand(step), step.outputs[0]
    if x.dtype in _STORED and output.dtype.is_fixed_point and output.quantization != x.quantization:
        return f"'{x.name}' and '{output.name}' are quantized differently"
    return None if x.dtype in _STORED else without_kind(x)


def emit_mean_of_tile(step: Step, e: Emitter) -> None:
    """Add the pixels of a tile to the sums of earlier tiles; the last tile turns the sums into means."""
    x, output, part = operand(step), step.outputs[0], step.part
    assert part is not None
    channels = output.dims[-1]
    # Whether this is the last tile.
    ends = part.source_first + x.dims[part.source_axis] == part.source_height
    pixels = x.elements // channels
    e.emit(
        "reduction:columns.sum_f32", output=e.at(output), x=e.at(x), outer_outputs=1, inner=channels, elements=pixels,
        goes_on=int(part.source_first > 0), factor=1.0 / part.pixels if ends else 1.0, kept=[], kept_strides=[],
        reduced=[pixels], reduced_strides=[4 * channels],
    )  # fmt: skip
    clamp_in_place(step, e)


def _emit_reduce(step: Step, e: Emitter, name: str) -> None:
    """Emit a reduction by `name`: sum, prod, mean, max or min."""
    if step.part is not None and step.part.pixels:
        emit_mean_of_tile(step, e)
        return
    x, output = operand(step), step.outputs[0]
    function = "sum" if name == "mean" else name
    kind = stored_kind(step) if function in ("max", "min") else kind_of(x)
    if not output.elements:
        return
    axes, size = reduction(step), x.dtype.itemsize
    walk: dict[str, Value] = {
        "factor": 1.0 / axes.count if name == "mean" else 1.0,
        "kept": [length for length, _ in axes.kept],
        "kept_strides": [stride * size for _, stride in axes.kept],
        "reduced": [length for length, _ in axes.reduced],
        "reduced_strides": [stride * size for _, stride in axes.reduced],
    }
    if axes.reduces_run:
        e.emit(
            f"reduction:rows.{function}_{kind}", output=e.at(output), x=e.at(x), outputs=output.elements,
            run=axes.run, runs=axes.runs, **walk,
        )  # fmt: skip
    else:
        emit_columns(
            e, function, kind, output, x=e.at(x), outer_outputs=output.elements // axes.run, inner=axes.run,
            elements=axes.runs, **walk,
        )  # fmt: skip
    clamp_in_place(step, e)


def emit_columns(e: Emitter, function: str, kind: str, output: Tensor, **words: Value) -> None:
    """Emit a reduction of columns. Sums with a 16-bit result are accumulated as float32 in work space, then rounded."""
    wide = declared.sums_in_float32(function, kind)
    goal = e.work() if wide else e.at(output)
    e.emit(f"reduction:columns.{function}_{kind}", output=goal, goes_on=0, **words)
    if wide:
        e.emit(f"elementwise:cast.f32_{kind}", output=e.at(output), x=goal, elements=output.elements)


def column_work(step: Step, target: Target, threads: int) -> int:
    """Return the bytes of work space for sums with a 16-bit result, which are accumulated as float32."""
    output = step.outputs[0]
    return 4 * output.elements if output.dtype.is_half else 0


def _refuses_reduce(step: Step, name: str) -> str | None:
    x = operand(step)
    compares = name in ("max", "min")
    unknown = without_stored_kind(step) if compares else without_kind(x)
    if unknown is not None:
        return unknown
    kind = stored_kind(step) if compares else kind_of(x)
    if kind not in ((*FLOATS, "f64") if name == "mean" else declared.KINDS[name]):
        return f"the {name} of {x.describe()} is not supported"
    return without_clamp(step)


def _refuses_running_sum(step: Step) -> str | None:
    x = operand(step)
    if x.dtype in KINDS and kind_of(x) not in declared.KINDS["sum"]:
        return f"the running sum of {x.describe()} is not supported"
    return without_kind(x) or without_clamp(step)


def _emit_running_sum(step: Step, e: Emitter) -> None:
    x, output = operand(step), step.outputs[0]
    kind = kind_of(x)
    outer, length, inner = around(x.dims, int(step.params["axis"]) % x.rank)
    if x.elements:
        e.emit(
            f"reduction:running_sum.{kind}", output=e.at(output), x=e.at(x), outer_count=outer, length=length,
            inner=inner, exclusive=int(step.params["exclusive"]), reverse=int(step.params["reverse"]),
        )  # fmt: skip
    clamp_in_place(step, e)


# -- fixed point -------------------------------------------------------------------------------------------------------


def has_bytes_of_one_type(step: Step) -> bool:
    """Return whether input and output are bytes of the same type."""
    return all(map(is_eight_bit, (step.inputs[0], step.outputs[0]))) and operand(step).dtype is step.outputs[0].dtype


def has_sixteen_bits(step: Step) -> bool:
    """Return whether input and output have 16 bits; steps without elements are left to the lowering through float."""
    tensors = (step.inputs[0], step.outputs[0])
    return all(map(is_sixteen_bit, tensors)) and all(t is not None and t.elements for t in tensors)


def stored_types(step: Step) -> str:
    """Return the kernels' names of the types of in[0] and of the result, joined; one name if they are equal."""
    return "_".join(dict.fromkeys(STORED[tensor.dtype] for tensor in (operand(step), step.outputs[0])))


def result_limits(step: Step) -> dict[str, int]:
    """Return the words `zero`, `least` and `most` of the result, as it is stored."""
    least, most = stored_limits(step, step.outputs[0])
    return {"zero": quantization_of(step.outputs[0]).zero_point, "least": least, "most": most}


def _extents(step: Step) -> tuple[int, ...] | None:
    """Return the sizes of five merged axes: kept, summed, kept, summed, kept."""
    # None if axes alternate more often, or, for bytes, if the summed axes are not neighbours.
    dims = operand(step).dims
    axes = sorted({int(a) % len(dims) for a in np.asarray(step.params["axes"]).reshape(-1)} or set(range(len(dims))))
    if axes == list(range(axes[0], axes[-1] + 1)):
        # A single group of summed axes takes the inner of the two positions, where its elements are neighbours.
        return prod(dims[: axes[0]]), 1, 1, prod(dims[axes[0] : axes[-1] + 1]), prod(dims[axes[-1] + 1 :])
    if is_eight_bit(operand(step)):
        return None
    groups = itertools.groupby((a for a in range(len(dims)) if dims[a] > 1), lambda a: a in axes)
    # Pairs of whether axes are summed, and the elements along them.
    runs = [(summed, prod(dims[axis] for axis in group)) for summed, group in groups]
    sizes = [*([] if runs and not runs[0][0] else [1]), *(size for _, size in runs)]
    if len(sizes) <= 3:
        outer, count, inner = (*sizes, *[1] * (3 - len(sizes)))
        return outer, 1, 1, count, inner
    return (*sizes, *[1] * (5 - len(sizes))) if len(sizes) <= 5 else None


def _covers_mean(step: Step) -> bool:
    return has_bytes_of_one_type(step) and _extents(step) is not None


def _covers_sum(step: Step) -> bool:
    return has_sixteen_bits(step) and step.part is None and _extents(step) is not None


def _sum_work(step: Step, target: Target, threads: int) -> int:
    """Return the bytes for a sum of each inner element, in 32 bits or 64, for each thread."""
    extents = _extents(step)
    assert extents is not None
    return 4 * operand(step).dtype.itemsize * extents[-1] * threads


def _emit_sum(step: Step, e: Emitter) -> None:
    extents, x = _extents(step), operand(step)
    assert extents is not None
    outer, count, kept, inner_count, inner = extents
    elements = count * inner_count
    if is_eight_bit(x):
        words = _byte_means(step, e, elements)
    else:
        ratio = scale_of(x) / scale_of(step.outputs[0])
        divisor, offset = elements if step.op == "ReduceMean" else 1, elements * quantization_of(x).zero_point
        words = {"scale": ratio, "divisor": divisor, "offset": offset, "bias": 0.0, **result_limits(step)}
    e.emit(
        rounding_kernel(e, step.op, "quantized_reduction:mean", stored_types(step)), x=e.at(x), y=e.at(step.outputs[0]),
        outer_count=outer, count=count, kept=kept, inner_count=inner_count, inner=inner, work=e.work(), **words,
    )  # fmt: skip


def _byte_means(step: Step, e: Emitter, count: int) -> dict[str, int | float]:
    """Return the words that turn sums of `count` stored values of in[0] into means."""
    qx, qy, words = quantization_of(operand(step)), quantization_of(step.outputs[0]), result_limits(step)
    ratio = np.float32(qx.scale) / np.float32(qy.scale)
    offset, bias = count * qx.zero_point, np.float32(0)
    if e.numerics == "litert":
        # Both zero points are added in float, before the only rounding.
        offset, words["zero"] = 0, 0
        bias = np.float32(qy.zero_point) - np.float32(qx.zero_point) * ratio
    return {"scale": float(ratio / np.float32(count)), "divisor": 1, "offset": offset, "bias": float(bias), **words}


def is_mean_of_tile(step: Step) -> bool:
    """Return whether a step is a mean over all pixels of bytes that are added up tile by tile."""
    fixed = any(t is not None and t.dtype.is_fixed_point for t in (*step.inputs, *step.outputs))
    return fixed and step.part is not None and step.part.pixels > 0


def _emit_mean_of_byte_tile(step: Step, e: Emitter) -> None:
    """Add the pixels of a tile to integer sums; or, if the input is these sums, compute the means."""
    x, output, part = operand(step), step.outputs[0], step.part
    assert part is not None
    channels = output.dims[-1]
    if x.dtype is not DataType.INT_32:
        e.emit(
            f"quantized_reduction:add_bytes.{STORED[x.dtype]}", sums=e.at(output), x=e.at(x),
            pixels=x.elements // channels, channels=channels, goes_on=int(part.source_first > 0),
        )  # fmt: skip
        return
    e.emit(
        rounding_kernel(e, step.op, "quantized_reduction:mean_of_sums", STORED[output.dtype]), sums=e.at(x),
        y=e.at(output), channels=channels, **_byte_means(step, e, part.pixels),
    )  # fmt: skip


MEAN_OF_TILE = Lowering(_emit_mean_of_byte_tile)
"""The lowering of the steps that `is_mean_of_tile` selects."""
_SUM = Lowering(_emit_sum, _sum_work)
QUANTIZED = {
    "ReduceMean": (lambda step: _covers_mean(step) or _covers_sum(step), _SUM),
    "ReduceSum": (_covers_sum, _SUM),
}
"""For each operation, a test of which steps its lowering for fixed point covers, and that lowering."""


# -- all ---------------------------------------------------------------------------------------------------------------


def _work(step: Step, target: Target, threads: int) -> int:
    by_rows = not step.outputs[0].elements or reduction(step).reduces_run
    return 0 if by_rows else column_work(step, target, threads)


def _reduce(name: str) -> Lowering:
    emit, refuses = (lambda step, e: _emit_reduce(step, e, name)), (lambda step: _refuses_reduce(step, name))
    return Lowering(emit, refuses=refuses) if name in ("max", "min") else Lowering(emit, _work, refuses)


LOWERINGS: dict[str, Lowering] = {
    **{op: _reduce(name) for op, name in REDUCTIONS.items()},
    "CumulativeSum": Lowering(_emit_running_sum, refuses=_refuses_running_sum),
}
