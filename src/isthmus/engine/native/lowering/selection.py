"""Lowering of gathers, scatters and other operations in which data contains indices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from isthmus.engine.native.lowering.elementwise import KINDS, kind_of, without_kind
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.movement import differing, emit_copy, refuses_selection, value_bits
from isthmus.engine.native.lowering.reduction import stored_kind, without_stored_kind
from isthmus.graph import DataType, Tensor
from isthmus.graph.ops.movement import ADD, MAX, MIN, MUL, NONE
from isthmus.prepare.geometry.layout import dense_strides, operand
from isthmus.prepare.schedule import Step

_INDEX_KINDS = {DataType.INT_32: "i32", DataType.UINT_32: "u32", DataType.INT_64: "i64"}
_REDUCTIONS = {NONE: "none", ADD: "add", MUL: "mul", MAX: "max", MIN: "min"}
# The kinds of elements for which kernels find extremes.
_ORDERED = ("f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def _index_kind(tensor: Tensor) -> str:
    return _INDEX_KINDS[tensor.dtype]


def _from_end(step: Step) -> int:
    """Return whether negative indices count from the end."""
    return int(step.params["from_end"])


def _no_index(tensor: Tensor) -> str | None:
    """Return why a tensor cannot hold indices, or None."""
    if tensor.dtype in _INDEX_KINDS:
        return None
    return f"indices {tensor.describe()} must be 32-bit integers or INT_64"


def _refuses_gather(step: Step) -> str | None:
    x, output = operand(step), step.outputs[0]
    if output.elements and not x.elements:
        return f"{x.describe()} has nothing to pick from"
    return refuses_selection(step) or _no_index(operand(step, 1))


def _emit_gather(step: Step, e: Emitter) -> None:
    x, indices, output = operand(step), operand(step, 1), step.outputs[0]
    axis = int(step.params["axis"]) % x.rank
    # The bytes of one slice of the axis, which is copied as a whole.
    length = prod(x.dims[axis + 1 :]) * x.dtype.itemsize
    e.emit(
        f"selection:gather.{_index_kind(indices)}_{length if length in (1, 2, 4, 8) else 'run'}",
        output=e.at(output), x=e.at(x), indices=e.at(indices), outer_count=prod(x.dims[:axis]),
        count=indices.elements, axis_size=x.dims[axis], length=length, from_end=_from_end(step),
    )  # fmt: skip


def _element_walk(step: Step, x: Tensor, indices: Tensor) -> dict[str, int | Sequence[int]]:
    """Return the words with which kernels visit one element of `x` for each index; lists are innermost first."""
    # The element has the coordinates of the index, but with the index's value as its position on the axis.
    axis, size = int(step.params["axis"]) % x.rank, x.dtype.itemsize
    strides = [s * size for s in dense_strides(x.dims)]
    # The position on the axis does not come from the coordinates.
    others = [0 if i == axis else s for i, s in enumerate(strides)]
    return {
        "elements": indices.elements, "axis_size": x.dims[axis], "axis_stride": strides[axis],
        "from_end": _from_end(step), "dims": indices.dims[::-1], "strides": others[::-1],
    }  # fmt: skip


def _emit_gather_elements(step: Step, e: Emitter) -> None:
    x, indices, output = operand(step), operand(step, 1), step.outputs[0]
    e.emit(
        f"selection:gather_elements.{_index_kind(indices)}_{x.dtype.itemsize}", output=e.at(output), x=e.at(x),
        indices=e.at(indices), **_element_walk(step, x, indices),
    )  # fmt: skip


def _emit_gather_nd(step: Step, e: Emitter) -> None:
    x, indices, output = operand(step), operand(step, 1), step.outputs[0]
    # The leading axes that indices and data have in common, and the number of indices in a tuple.
    batch, depth, size = int(step.params["batch_dims"]), indices.dims[-1], x.dtype.itemsize
    strides = [s * size for s in dense_strides(x.dims)]
    tuples = prod(indices.dims[:-1])
    e.emit(
        f"selection:gather_nd.{_index_kind(indices)}", output=e.at(output), x=e.at(x), indices=e.at(indices),
        tuples=tuples, batch_tuples=prod(indices.dims[batch:-1]), batch_bytes=prod(x.dims[batch:]) * size,
        length=prod(x.dims[batch + depth :]) * size, from_end=_from_end(step), sizes=x.dims[batch : batch + depth],
        strides=strides[batch : batch + depth],
    )  # fmt: skip


# The kinds of elements that are only written, and of integers that are added or multiplied, by size in bytes.
_BY_SIZE = {1: "u8", 2: "u16", 4: "i32", 8: "i64"}


def _refuses_scatter(step: Step) -> str | None:
    x, indices, updates = operand(step), operand(step, 1), operand(step, 2)
    reason = differing(step, x, updates, step.outputs[0]) or _no_index(indices)
    if reason is not None or (step.params["reduction"] == NONE and x.dtype.itemsize in _BY_SIZE):
        return reason
    if x.dtype in KINDS and kind_of(x) not in _ORDERED:
        return f"scattering into {x.describe()} is not supported"
    return without_kind(x)


def _begin_scatter(step: Step, e: Emitter) -> str | None:
    """Copy the input to the output and return the kernel variant for the updates; None if there are none."""
    x, indices, updates, output = operand(step), operand(step, 1), operand(step, 2), step.outputs[0]
    reduction = _REDUCTIONS[int(step.params["reduction"])]
    if reduction == "none" or (reduction in ("add", "mul") and x.dtype.is_integer):
        kind = _BY_SIZE[x.dtype.itemsize]
    else:
        kind = kind_of(x)
    if e.at(output) != e.at(x):
        emit_copy(e, e.at(output), e.at(x), [x.elements], [1], [1], x.dtype.itemsize)
    return f"{_index_kind(indices)}_{kind}_{reduction}" if updates.elements and x.elements else None


def _emit_scatter_nd(step: Step, e: Emitter) -> None:
    x, indices, updates, output = operand(step), operand(step, 1), operand(step, 2), step.outputs[0]
    variant = _begin_scatter(step, e)
    if variant is None:
        return
    depth = indices.dims[-1]
    strides = [s * x.dtype.itemsize for s in dense_strides(x.dims)]
    e.emit(
        f"selection:scatter_nd.{variant}", output=e.at(output), indices=e.at(indices), updates=e.at(updates),
        tuples=prod(indices.dims[:-1]), length=prod(x.dims[depth:]), from_end=_from_end(step), sizes=x.dims[:depth],
        strides=strides[:depth],
    )  # fmt: skip


def _emit_scatter_elements(step: Step, e: Emitter) -> None:
    x, indices, updates, output = operand(step), operand(step, 1), operand(step, 2), step.outputs[0]
    variant = _begin_scatter(step, e)
    if variant is not None:
        e.emit(
            f"selection:scatter_elements.{variant}", output=e.at(output), indices=e.at(indices),
            updates=e.at(updates), **_element_walk(step, x, indices),
        )  # fmt: skip


def _emit_one_hot(step: Step, e: Emitter) -> None:
    indices, output = operand(step), step.outputs[0]
    axis = step.params["axis"]
    axis = indices.rank if axis is None else int(axis) % (indices.rank + 1)
    e.emit(
        f"selection:one_hot.{_index_kind(indices)}_{output.dtype.itemsize}", output=e.at(output),
        indices=e.at(indices), outer_count=prod(indices.dims[:axis]), depth=int(step.params["depth"]),
        inner=prod(indices.dims[axis:]), on=value_bits(step.params["on_value"], output),
        off=value_bits(step.params["off_value"], output), from_end=_from_end(step),
    )  # fmt: skip


def _emit_reverse_sequence(step: Step, e: Emitter) -> None:
    x, lengths, output = operand(step), operand(step, 1), step.outputs[0]
    batch, time = (int(step.params[name]) % x.rank for name in ("batch_axis", "time_axis"))
    first, second = sorted((batch, time))
    e.emit(
        f"selection:reverse_sequence.{_index_kind(lengths)}", output=e.at(output), x=e.at(x),
        lengths=e.at(lengths), outer_count=prod(x.dims[:first]), first=x.dims[first],
        middle=prod(x.dims[first + 1 : second]), second=x.dims[second],
        length=prod(x.dims[second + 1 :]) * x.dtype.itemsize, time_first=int(time == first),
    )  # fmt: skip


def _refuses_order(step: Step) -> str | None:
    unknown = without_stored_kind(step)
    if unknown is None and stored_kind(step) not in _ORDERED:
        return f"{operand(step).describe()} cannot be ordered here"
    return unknown or _no_index(step.outputs[-1])


def _emit_argument(step: Step, e: Emitter, name: str) -> None:
    """Emit the index of the largest (`name` is max) or smallest (min) element along an axis."""
    x, output = operand(step), step.outputs[0]
    axis = int(step.params["axis"]) % x.rank
    e.emit(
        f"selection:argument.{name}_{stored_kind(step)}_{_index_kind(output)}", output=e.at(output), x=e.at(x),
        outer_count=prod(x.dims[:axis]), length=x.dims[axis], inner=prod(x.dims[axis + 1 :]),
    )  # fmt: skip


def _emit_top_k(step: Step, e: Emitter) -> None:
    x, (values, indices) = operand(step), step.outputs
    name = "max" if step.params["largest"] else "min"
    e.emit(
        f"selection:top_k.{name}_{stored_kind(step)}_{_index_kind(indices)}", values=e.at(values),
        indices=e.at(indices), x=e.at(x), rows=prod(x.dims[:-1]), length=x.dims[-1], k=int(step.params["k"]),
    )  # fmt: skip


LOWERINGS: dict[str, Lowering] = {
    "Gather": Lowering(_emit_gather, refuses=_refuses_gather),
    "GatherElements": Lowering(_emit_gather_elements, refuses=_refuses_gather),
    "GatherNd": Lowering(_emit_gather_nd, refuses=_refuses_gather),
    "ScatterNd": Lowering(_emit_scatter_nd, refuses=_refuses_scatter),
    "ScatterElements": Lowering(_emit_scatter_elements, refuses=_refuses_scatter),
    "OneHot": Lowering(_emit_one_hot, refuses=lambda step: _no_index(operand(step))),
    "ReverseSequence": Lowering(_emit_reverse_sequence, refuses=_refuses_gather),
    "Argmax": Lowering(lambda step, e: _emit_argument(step, e, "max"), refuses=_refuses_order),
    "Argmin": Lowering(lambda step, e: _emit_argument(step, e, "min"), refuses=_refuses_order),
    "TopK": Lowering(_emit_top_k, refuses=_refuses_order),
}
