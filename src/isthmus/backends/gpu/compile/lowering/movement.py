"""Lowering of data movement: transposes, slices, joins, blocks, tiles and padding, nearly all as one strided walk.

Elements change their storage during the copy if source and destination differ: fp32 to fp16, or one quantization to
another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from isthmus.backends.gpu.compile.kernel_source import KernelOperand
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering
from isthmus.backends.gpu.compile.lowering.walk import emit_walk
from isthmus.backends.gpu.compile.storage import OperandStorage
from isthmus.graph import Tensor
from isthmus.prepare.geometry import movement as geometry
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.movement import PaddedAxis, Remap, StridedCopy
from isthmus.prepare.schedule import Step


def as_moved(*operands: KernelOperand) -> tuple[KernelOperand, ...]:
    """Treat operands with the same quantization, or none, as plain stored numbers, so that nothing is rounded."""
    first = operands[0]
    if all(
        (o.storage.kind, o.scale, o.zero) == (first.storage.kind, first.scale, first.zero) for o in operands
    ) and first.storage.kind not in ("f32", "f16"):
        return tuple(replace(o, storage=OperandStorage(o.storage.kind, real=False)) for o in operands)
    return operands


def emit_copy(e: KernelEmitter, copy: StridedCopy) -> None:
    """Emit a copy between two strided layouts."""
    y = e.operand("y", copy.goal, copy.goal_strides, copy.goal_start, writes=True)
    # A walk that goes backwards reads what is before its start, so its memory must be the tensor from the beginning.
    backwards = min(copy.source_strides, default=0) < 0
    x = e.operand("x", copy.source, copy.source_strides, 0 if backwards else copy.source_start)
    if backwards:
        x = replace(x, start=copy.source_start)
    y, x = as_moved(y, x)

    def compute(width: int, loaded: dict[str, str]) -> list[str]:
        wide = "" if width == 1 else str(width)
        return [f"{y.storage.computed}{wide} v = {loaded['x']};"]

    emit_walk(e, "copy", copy.dims, y, [x], compute)


def _emit(step: Step, e: KernelEmitter) -> None:
    """Emit the copies of a movement; an output that they do not fill is set to 0 first."""
    output = step.outputs[0]
    if geometry.leaves_gaps(step):
        _emit_constant(e, output, geometry.stored_number(0.0, output).reshape(1))
    for copy in geometry.copies(step):
        emit_copy(e, copy)


def emit_remap(e: KernelEmitter, goal: Tensor, source: Tensor, remap: Remap) -> None:
    """Emit a kernel that fills a dense tensor with runs of elements.

    It looks up where a run begins in the source as the sum of an entry of an outer and one of an inner table.
    """
    run, tables = remap.run, remap.joined(1 << 16, 2)
    outer, inner = tables if len(tables) == 2 else (np.zeros(1, np.int64), tables[0])
    kernel = e.kernel()
    y, x = as_moved(e.operand("y", goal, writes=True), e.operand("x", source))
    kernel.declare(x, y)
    kernel.memory("outer", e.constant(outer.astype(np.int32)), "int")
    kernel.memory("inner", e.constant(inner.astype(np.int32)), "int")
    kernel.ints(inners=inner.size, run=run, runs=outer.size * inner.size)
    lines = [
        "  int item = get_global_id(0), c = item % run, number = item / run;",
        "  if (number >= runs) return;",
        "  int at = outer[number / inners] + inner[number % inners];",
        f"  {y.storage.computed} v = {x.storage.load('x', 'at + c')};",
        f"  {y.storage.store('y', 'item', 'v')}",
    ]
    kernel.launch("remap", lines, (goal.elements,), (128,))


def _emit_pad(step: Step, e: KernelEmitter) -> None:
    """Emit padding with repeated or mirrored elements, or with a constant."""
    x, output = operand(step), step.outputs[0]
    repeated = geometry.border_remap(step)
    if repeated is not None:
        emit_remap(e, output, x, repeated)
    else:
        _emit_padded(e, output, x, geometry.padded_axes(step), float(step.params["pad_constant_value"]))


def _emit_padded(e: KernelEmitter, goal: Tensor, source: Tensor, axes: Sequence[PaddedAxis], value: float) -> None:
    """Emit a kernel that fills a tensor with another one and a constant around it."""
    *outer, last = axes
    kernel = e.kernel()
    y, x = as_moved(e.operand("y", goal, writes=True), e.operand("x", source))
    kernel.declare(x, y)
    if y.storage.real:
        kernel.floats(value=value)
    else:
        kernel.longs(value=int(geometry.stored_number(value, goal)))
    rows, inner = prod(axis.whole for axis in outer), last.whole
    kernel.ints(rows=rows, inner=inner, before=last.before, kept=last.kept)
    computed = y.storage.computed
    lines = [
        "  int row = get_global_id(1), i = get_global_id(0);",
        "  if (row >= rows || i >= inner) return;",
        "  int rest = row, from = 0, inside = 1, index;",
    ]
    for level, axis in enumerate(reversed(outer)):
        # d: length of the padded axis, f: elements before, l: elements kept, s: stride in the source.
        numbers = {"d": axis.whole, "f": axis.before, "l": axis.kept, "s": axis.stride}
        kernel.ints(**{f"{name}{level}": number for name, number in numbers.items()})
        lines.append(f"  index = rest % d{level} - f{level}; rest /= d{level};")
        lines.append(f"  inside = inside && (uint)index < (uint)l{level}; from += index * s{level};")
    load = x.storage.load("x", "from + i - before")
    lines += [
        f"  {computed} v = inside && (uint)(i - before) < (uint)kept ? ({computed})({load}) : ({computed})value;",
        f"  {y.storage.store('y', 'row * inner + i', 'v')}",
    ]
    kernel.launch("pad", lines, (inner, rows), (64, 2))


def _emit_constant(e: KernelEmitter, output: Tensor, content: np.ndarray) -> None:
    """Emit a copy of constant elements to an output; a single one is repeated."""
    constant = Tensor(output.name, output.type.STATIC, output.dtype, content.shape, output.quantization, content)
    strides = [0] if content.size == 1 else [1]
    emit_copy(e, StridedCopy(output, constant, [output.elements], [1], strides))


def _emit_constant_of_shape(step: Step, e: KernelEmitter) -> None:
    """Emit an output that is one value throughout."""
    output = step.outputs[0]
    _emit_constant(e, output, geometry.stored_number(step.params["value"], output).reshape(1))


def _emit_shape(step: Step, e: KernelEmitter) -> None:
    """Emit the shape of an operand, which is known in advance."""
    _emit_constant(e, step.outputs[0], geometry.shape_values(step))


def refuses_movement(step: Step) -> str | None:
    """Return why the elements of a step's operands and results cannot be moved, or None."""
    tensors = [t for t in (*step.inputs, *step.outputs) if t is not None]
    for tensor in tensors[1:]:
        both = tensor.dtype.is_fixed_point and tensors[0].dtype.is_fixed_point
        if tensor.dtype is not tensors[0].dtype and not both:
            return f"{tensors[0].describe()} and {tensor.describe()} have elements of different types"
    return None if step.clamp is None else "data movement takes no fused activation"


LOWERINGS: dict[str, KernelLowering] = {
    **dict.fromkeys(geometry.MOVEMENTS, KernelLowering(_emit, refuses=refuses_movement)),
    "Pad": KernelLowering(_emit_pad, refuses=refuses_movement),
    "ConstantOfShape": KernelLowering(_emit_constant_of_shape),
    "Shape": KernelLowering(_emit_shape),
}
