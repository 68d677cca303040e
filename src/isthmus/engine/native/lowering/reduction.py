"""Lowering of reductions: any set of axes becomes one walk over rows or over columns."""

from __future__ import annotations

from math import prod

from isthmus.engine.native.lowering.elementwise import KINDS, clamp_in_place, kind_of, without_clamp, without_kind
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.signatures import reduction as declared
from isthmus.engine.native.words import Value
from isthmus.graph import DataType
from isthmus.prepare.geometry.layout import joined_axes, operand
from isthmus.prepare.schedule import Step

# Order is kept by quantization, so extremes of stored values are extremes of what they mean.
_STORED = {
    DataType.SFIXED_POINT_8: "i8",
    DataType.UFIXED_POINT_8: "u8",
    DataType.INT_8: "i8",
    DataType.UINT_8: "u8",
}


def stored_kind(step: Step) -> str:
    """The kind of in[0] for operations that only compare; fixed point counts when the output means the same."""
    x = operand(step)
    return _STORED.get(x.dtype) or kind_of(x)


def without_stored_kind(step: Step) -> str | None:
    """Why operations that only compare cannot do so with in[0] as it is stored."""
    x, output = operand(step), step.outputs[0]
    if x.dtype in _STORED and output.dtype.is_fixed_point and output.quantization != x.quantization:
        return f"'{x.name}' and '{output.name}' are quantized differently"
    return None if x.dtype in _STORED else without_kind(x)


def emit_mean_of_strip(step: Step, e: Emitter) -> None:
    """Add the pixels of a strip to the sums of those before; the last strip makes means of them."""
    x, output, part = operand(step), step.outputs[0], step.part
    assert part is not None
    channels = output.dims[-1]
    ends = part.source_first + x.dims[part.source_axis] == part.source_height
    e.emit(
        "strips:add_rows", sums=e.at(output), x=e.at(x), pixels=x.elements // channels, channels=channels,
        goes_on=int(part.source_first > 0), factor=1.0 / part.pixels if ends else 1.0,
    )  # fmt: skip
    clamp_in_place(step, e)


def _emit_reduce(step: Step, e: Emitter, name: str) -> None:
    if step.part is not None and step.part.pixels:
        emit_mean_of_strip(step, e)
        return
    x, output = operand(step), step.outputs[0]
    function = "sum" if name == "mean" else name
    kind = stored_kind(step) if function in ("max", "min") else kind_of(x)
    if not output.elements:
        return
    axes = {int(a) % x.rank for a in step.params["axes"]} if x.rank else set()
    size = x.dtype.itemsize
    count = prod(x.dims[a] for a in axes)
    factor = 1.0 / count if name == "mean" else 1.0
    groups = joined_axes(x.dims, axes)
    inner_reduced = not groups or groups[-1][0]
    run = groups[-1][1] if groups else 1
    if count == 0:
        inner_reduced, run, groups = True, 0, []
    outer = list(reversed(groups[:-1]))
    kept = [(length, stride * size) for reduced, length, stride in outer if not reduced]
    reduced = [(length, stride * size) for is_reduced, length, stride in outer if is_reduced]
    walk: dict[str, Value] = {
        "factor": factor,
        "kept": [length for length, _ in kept],
        "kept_strides": [stride for _, stride in kept],
        "reduced": [length for length, _ in reduced],
        "reduced_strides": [stride for _, stride in reduced],
    }
    times = prod(length for length, _ in reduced)
    if inner_reduced:
        e.emit(
            f"reduction:rows.{function}_{kind}", output=e.at(output), x=e.at(x), outputs=output.elements, run=run,
            runs=times, **walk,
        )  # fmt: skip
    else:
        e.emit(
            f"reduction:columns.{function}_{kind}", output=e.at(output), x=e.at(x),
            outer_outputs=output.elements // run, inner=run, elements=times, **walk,
        )  # fmt: skip
    clamp_in_place(step, e)


def _refuses_reduce(step: Step, name: str) -> str | None:
    x = operand(step)
    compares = name in ("max", "min")
    unknown = without_stored_kind(step) if compares else without_kind(x)
    if unknown is not None:
        return unknown
    kind = stored_kind(step) if compares else kind_of(x)
    if kind not in (("f32",) if name == "mean" else declared.KINDS[name]):
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
    axis = int(step.params["axis"]) % x.rank
    if x.elements:
        e.emit(
            f"reduction:running_sum.{kind}", output=e.at(output), x=e.at(x), outer_count=prod(x.dims[:axis]),
            length=x.dims[axis], inner=prod(x.dims[axis + 1 :]), exclusive=int(step.params["exclusive"]),
            reverse=int(step.params["reverse"]),
        )  # fmt: skip
    clamp_in_place(step, e)


def _reduce(name: str) -> Lowering:
    return Lowering(lambda step, e: _emit_reduce(step, e, name), refuses=lambda step: _refuses_reduce(step, name))


LOWERINGS: dict[str, Lowering] = {
    "ReduceSum": _reduce("sum"),
    "ReduceMean": _reduce("mean"),
    "ReduceProd": _reduce("prod"),
    "ReduceMax": _reduce("max"),
    "ReduceMin": _reduce("min"),
    "CumulativeSum": Lowering(_emit_running_sum, refuses=_refuses_running_sum),
}
