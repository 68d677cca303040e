"""Lowering of reductions: any set of axes becomes one iteration over rows or over columns."""

from __future__ import annotations

from isthmus.engine.native.lowering.elementwise import KINDS, clamp_in_place, kind_of, without_clamp, without_kind
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.signatures import reduction as declared
from isthmus.engine.native.signatures.elementwise import FLOATS
from isthmus.engine.native.target import Target
from isthmus.engine.native.words import Value
from isthmus.graph import DataType, Tensor
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.reduction import REDUCTIONS, around, reduction
from isthmus.prepare.schedule import Step

# The kinds of kernels that compare bytes. Quantization preserves order, so extremes of stored values are extremes of
# the reals.
_STORED = {
    DataType.SFIXED_POINT_8: "i8",
    DataType.UFIXED_POINT_8: "u8",
    DataType.SFIXED_POINT_16: "i16",
    DataType.UFIXED_POINT_16: "u16",
    DataType.INT_8: "i8",
    DataType.UINT_8: "u8",
}


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
    e.emit(
        "tiles:add_rows", sums=e.at(output), x=e.at(x), pixels=x.elements // channels, channels=channels,
        goes_on=int(part.source_first > 0), factor=1.0 / part.pixels if ends else 1.0,
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
    """Emit a reduction of columns. Sums that must not wait in 16 bits are computed in work space, then rounded."""
    wide = declared.sums_in_float32(function, kind)
    goal = e.work() if wide else e.at(output)
    e.emit(f"reduction:columns.{function}_{kind}", output=goal, **words)
    if wide:
        e.emit(f"elementwise:cast.f32_{kind}", output=e.at(output), x=goal, elements=output.elements)


def column_work(step: Step, target: Target, threads: int) -> int:
    """Return the bytes of work space for sums that must not wait in a result of 16 bits."""
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


def _work(step: Step, target: Target, threads: int) -> int:
    by_rows = not step.outputs[0].elements or reduction(step).reduces_run
    return 0 if by_rows else column_work(step, target, threads)


def _no_work(step: Step, target: Target, threads: int) -> int:
    return 0


def _reduce(name: str) -> Lowering:
    work = _work if name in ("sum", "prod", "mean") else _no_work
    return Lowering(lambda step, e: _emit_reduce(step, e, name), work, lambda step: _refuses_reduce(step, name))


LOWERINGS: dict[str, Lowering] = {
    **{op: _reduce(name) for op, name in REDUCTIONS.items()},
    "CumulativeSum": Lowering(_emit_running_sum, refuses=_refuses_running_sum),
}
