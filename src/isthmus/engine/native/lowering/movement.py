"""Lowering of data movement: transposes, slices, joins, blocks, tiles and padding, nearly all as one strided copy."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.program import Operand
from isthmus.graph import Tensor
from isthmus.prepare.geometry import movement as geometry
from isthmus.prepare.geometry.layout import collapse, operand
from isthmus.prepare.schedule import Step

# The sizes in bytes of elements that a short run may become.
_WIDER = (2, 4, 8)
# The numbers of rows that kernels interleave.
_INTERLEAVED = (2, 3, 4)
# The elements of a row from which interleaving is faster than transposing.
_LONG_ENOUGH = 8


def differing(step: Step, *tensors: Tensor) -> str | None:
    """Return why stored values cannot be moved between tensors, or None: sizes and quantizations must be equal."""
    first = tensors[0]
    for tensor in tensors[1:]:
        if tensor.dtype.itemsize != first.dtype.itemsize:
            return f"{first.describe()} and {tensor.describe()} have elements of different sizes"
        if tensor.quantization != first.quantization:
            return f"'{first.name}' and '{tensor.name}' are quantized differently"
    return None if step.clamp is None else "data movement takes no fused activation"


def refuses_movement(step: Step) -> str | None:
    """Return why the elements of a step's operands and results cannot be moved unchanged, or None."""
    return differing(step, *(t for t in step.inputs if t is not None), *step.outputs)


def refuses_selection(step: Step) -> str | None:
    """Return the same as `refuses_movement` for steps where only in[0] is data."""
    return differing(step, operand(step), *step.outputs)


def emit_copy(
    e: Emitter,
    goal: Operand,
    source: Operand,
    dims: Sequence[int],
    goal_strides: Sequence[int],
    source_strides: Sequence[int],
    size: int,
) -> None:
    """Copy elements of `size` bytes from `source` to `goal`, which are the first elements; strides are in elements."""
    if not prod(dims):
        return
    # Strides to the destination and from the source.
    sizes, (to, frm) = collapse(dims, [goal_strides, source_strides])
    # A short dense run is copied as one wider element.
    if len(sizes) > 1 and to[-1] == frm[-1] == 1 and size * sizes[-1] in _WIDER:
        run = sizes[-1]
        if all(s % run == 0 for s in (*to[:-1], *frm[:-1])):
            sizes, to, frm = sizes[:-1], [s // run for s in to[:-1]], [s // run for s in frm[:-1]]
            size *= run
    to, frm = [s * size for s in to], [s * size for s in frm]
    # The axis along which the source is dense. If it is not the destination's, the copy is a transpose.
    axis = next((i for i in range(len(sizes) - 1) if frm[i] == size), None)
    if to[-1] == size and frm[-1] != size and axis is not None:
        _emit_transpose(e, goal, source, sizes, to, frm, size, axis)
        return
    outer = [list(reversed(each[:-1])) for each in (sizes, to, frm)]
    e.emit(
        f"movement:copy.{size}", destination=goal, source=source, elements=prod(sizes), inner=sizes[-1],
        to_step=to[-1], from_step=frm[-1], dims=outer[0], to_strides=outer[1], from_strides=outer[2],
    )  # fmt: skip


def _emit_transpose(
    e: Emitter, goal: Operand, source: Operand, sizes: list[int], to: list[int], frm: list[int], size: int, axis: int
) -> None:
    """Emit a transpose; the destination is dense along its last axis, the source along `axis`."""
    # `to` and `frm` are byte strides along the axes with these sizes. If one side has few rows, they are interleaved.
    rows, columns = sizes[axis], sizes[-1]
    others = [i for i in range(len(sizes) - 1) if i != axis]
    if len(others) <= 1:
        outer = [(sizes[i], to[i], frm[i]) for i in others] or [(1, 0, 0)]
        count, to_outer, from_outer = outer[0]
        if columns in _INTERLEAVED and to[axis] == columns * size and rows >= _LONG_ENOUGH:
            e.emit(
                f"movement:interleave.join_{size}_{columns}", dense=goal, rows=source, count=rows, stride=frm[-1],
                batches=count, dense_stride=to_outer, rows_stride=from_outer,
            )  # fmt: skip
            return
        if rows in _INTERLEAVED and frm[-1] == rows * size and columns >= _LONG_ENOUGH:
            e.emit(
                f"movement:interleave.part_{size}_{rows}", dense=source, rows=goal, count=columns, stride=to[axis],
                batches=count, dense_stride=from_outer, rows_stride=to_outer,
            )  # fmt: skip
            return
    lists = [[each[i] for i in reversed(others)] for each in (sizes, to, frm)]
    e.emit(
        f"movement:transpose.{size}", destination=goal, source=source, rows=rows, columns=columns,
        to_stride=to[axis], from_stride=frm[-1], dims=lists[0], to_strides=lists[1], from_strides=lists[2],
    )  # fmt: skip


def emit_remap(e: Emitter, goal: Operand, source: Operand, remap: geometry.Remap, size: int) -> None:
    """Emit a copy that fills a dense tensor with runs of elements of `size` bytes, from offsets in tables.

    A short inner table is merged with the next one while the result has at most 4096 entries.
    """
    *outer, inner = (table * size for table in remap.joined(4096))
    length = remap.run * size
    variant = str(length) if length in (1, 2, 4, 8) else "run"
    e.emit(
        f"movement:remap.{variant}", output=goal, x=source, rows=prod(t.size for t in outer), inner=inner.size,
        table=e.offset_table(inner), length=length, counts=[t.size for t in reversed(outer)],
        tables=[e.offset_table(t) for t in reversed(outer)],
    )  # fmt: skip


def _emit(step: Step, e: Emitter) -> None:
    """Emit the strided copies of a movement; if they do not fill the output, zeros come first."""
    output = step.outputs[0]
    if geometry.leaves_gaps(step):
        _emit_fill(e, output, 0.0)
    for copy in geometry.copies(step):
        size = copy.source.dtype.itemsize
        goal, source = e.at(copy.goal, copy.goal_start * size), e.at(copy.source, copy.source_start * size)
        emit_copy(e, goal, source, copy.dims, copy.goal_strides, copy.source_strides, size)


def value_bits(value: float, tensor: Tensor) -> int:
    """Encode a number as a tensor stores it, with its bits in the low bytes of a word."""
    return int.from_bytes(geometry.stored_number(value, tensor).tobytes().ljust(8, b"\0"), "little", signed=True)


def _emit_fill(e: Emitter, output: Tensor, value: float) -> None:
    e.emit(
        f"movement:fill.{output.dtype.itemsize}", destination=e.at(output), elements=output.elements,
        value=value_bits(value, output),
    )  # fmt: skip


def _emit_pad(step: Step, e: Emitter) -> None:
    """Emit a padding with a constant, or with elements of the input, which is a copy by tables."""
    x, output = operand(step), step.outputs[0]
    size, value = x.dtype.itemsize, step.params["pad_constant_value"]
    # The tables if elements of the input are repeated or mirrored at the border; None for a constant.
    repeated = geometry.border_remap(step)
    if repeated is not None:
        emit_remap(e, e.at(output), e.at(x), repeated, size)
        return
    if not x.elements:
        _emit_fill(e, output, value)
        return
    *outer, inner = geometry.padded_axes(step)
    outer.reverse()
    e.emit(
        f"movement:pad.{size}", output=e.at(output), x=e.at(x), value=value_bits(value, output),
        rows=prod(axis.whole for axis in outer), inner=inner.whole, before=inner.before, kept=inner.kept,
        dims=[axis.whole for axis in outer], first=[axis.before for axis in outer],
        lengths=[axis.kept for axis in outer], strides=[axis.stride * size for axis in outer],
    )  # fmt: skip


def _emit_constant_of_shape(step: Step, e: Emitter) -> None:
    _emit_fill(e, step.outputs[0], step.params["value"])


def _emit_shape(step: Step, e: Emitter) -> None:
    output = step.outputs[0]
    emit_copy(e, e.at(output), e.constant(geometry.shape_values(step)), output.dims, [1], [1], output.dtype.itemsize)


LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(geometry.MOVEMENTS, Lowering(_emit, refuses=refuses_movement)),
    "Pad": Lowering(_emit_pad, refuses=refuses_movement),
    "ConstantOfShape": Lowering(_emit_constant_of_shape),
    "Shape": Lowering(_emit_shape),
}
