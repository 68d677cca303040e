"""Canonical forms: one form for operations that QNN can express in several ways, so that later code has fewer cases."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.graph import Quantization, Tensor
from isthmus.graph.ops import OPERATIONS, having
from isthmus.graph.ops.elementwise import NUMBERED, numbered
from isthmus.graph.ops.movement import CONSTANT
from isthmus.prepare.match import static
from isthmus.prepare.rewrite import rewrite, table
from isthmus.prepare.schedule import Step
from isthmus.prepare.storage import same_encoding
from isthmus.prepare.work import Work

COMMUTATIVE = having(lambda operation: operation.traits.commutative)
_MOVEMENTS = having(
    lambda operation: operation.traits.moves and operation.traits.moves.sources == (0,) and operation.outputs == (1, 1)
)
"""Operations that move elements of in[0] into one result."""
_CONVERT = {"dynamic_input_data": False, "dynamic_output_data": False}
"""The parameters of a Convert, which changes the quantization of a tensor."""


def canonicalize(work: Work) -> None:
    """Bring all steps into their canonical form."""
    rewrite(
        work,
        table(
            (NUMBERED.keys(), _name_function),
            (("Squeeze", "ExpandDims"), _reshape),
            (("Pack",), _pack),
            (_MOVEMENTS, _move_then_convert),
            (("Concat",), _convert_then_join),
            (("UnPack",), _unpack),
            (("StridedSlice",), _keep_axes),
            (("Prelu",), _used_slopes),
            (("Gather",), _slice_instead),
            (("MatMul",), _drop_leading_ones),
            (COMMUTATIVE, _constant_last),
        ),
    )


def _name_function(work: Work, step: Step) -> bool:
    """Replace a numbered function, such as ElementWiseUnary with operation 4, by the operation of its own name."""
    function = numbered(step.op, step.params["operation"])
    if function.name not in OPERATIONS:
        return False
    work.change(step, op=function.name, params={p.name: step.params[p.name] for p in function.params})
    return True


def _reshape(work: Work, step: Step) -> bool:
    """Replace Squeeze and ExpandDims by Reshape."""
    work.replace(step, "Reshape", step.inputs[:1])
    return True


def _differ(a: Tensor, b: Tensor) -> bool:
    """Return whether two fixed-point tensors have different encodings."""
    return a.dtype.is_fixed_point and b.dtype.is_fixed_point and not same_encoding(a, b)


def _move_then_convert(work: Work, step: Step) -> bool:
    """Split a movement into another quantization into a plain movement and a Convert."""
    source, result = step.inputs[0], step.outputs[0]
    if source is None or not _differ(source, result) or not _can_say_fill(step, source):
        return False
    moved = work.insert(step.op, step, step.inputs, result.dims, source, step.params)
    work.replace(step, "Convert", [moved], _CONVERT)
    return True


def _can_say_fill(step: Step, source: Tensor) -> bool:
    """Return whether the operand's encoding can represent the fill value of a movement exactly."""
    moves, quantization = OPERATIONS[step.op].traits.moves, source.quantization
    if moves is None or not moves.fills or quantization is None or step.params.get("scheme", CONSTANT) != CONSTANT:
        return True
    fill, info = float(step.params.get("pad_constant_value", 0)), np.iinfo(source.dtype.numpy)
    units = fill / np.asarray(quantization.scales)
    stored = units - np.asarray(quantization.offsets)
    return bool((units == np.rint(units)).all() and info.min <= stored.min() and stored.max() <= info.max)


def _convert_then_join(work: Work, step: Step) -> bool:
    """Convert the operands of a Concat to the quantization of its result, so that the Concat only moves bytes."""
    result = step.outputs[0]
    if not any(t is not None and _differ(t, result) for t in step.inputs):
        return False
    parts = [
        work.insert("Convert", step, [t], t.dims, result, _CONVERT) if t is not None and _differ(t, result) else t
        for t in step.inputs
    ]
    work.change(step, inputs=parts)
    return True


def _pack(work: Work, step: Step) -> bool:
    """Replace Pack by a Concat of operands that are reshaped to have the new axis."""
    axis, result = step.params["axis"], step.outputs[0]
    if len(step.inputs) == 1:
        work.replace(step, "Reshape", step.inputs)
        return True
    dims = (*result.dims[:axis], 1, *result.dims[axis + 1 :])
    rows = [work.insert("Reshape", step, [t], dims, t) for t in step.inputs if t is not None]
    work.replace(step, "Concat", rows, {"axis": axis})
    return True


def _unpack(work: Work, step: Step) -> bool:
    """Replace UnPack by a Split and reshapes that remove the axis."""
    axis, source = step.params["axis"], step.inputs[0]
    assert source is not None
    results = step.outputs
    if source.dims[axis] == 1:
        work.replace(step, "Reshape", [source])
        return True
    dims = (*source.dims[:axis], 1, *source.dims[axis + 1 :])
    rows = [work.native(t.name, dims, t.dtype, t.quantization) for t in results]
    cuts = np.arange(1, source.dims[axis], dtype=np.int64)
    work.change(step, op="Split", outputs=rows, params={"axis": axis, "split_index": cuts})
    for row, result in zip(rows, results, strict=False):
        work.add("Reshape", row.name, [row], [result], near=step)
    return True


def plain_slice(ranges: np.ndarray) -> dict[str, Any]:
    """Return the parameters of a StridedSlice without masks."""
    return {"ranges": ranges, "begin_mask": 0, "end_mask": 0, "shrink_axes": 0, "new_axes_mask": 0}


def _keep_axes(work: Work, step: Step) -> bool:
    """Replace a StridedSlice that removes axes by one that keeps them, and a Reshape."""
    if not step.params["shrink_axes"]:
        return False
    source = step.inputs[0]
    assert source is not None
    ranges = np.asarray(step.params["ranges"])
    dims = [max(0, -((int(b) - int(e)) // int(s))) for b, e, s in ranges]
    kept = work.insert("StridedSlice", step, [source], dims, step.outputs[0], plain_slice(ranges))
    work.replace(step, "Reshape", [kept])
    return True


def _used_slopes(work: Work, step: Step) -> bool:
    """Drop slopes of a Prelu beyond its channels, which are not used."""
    x, slopes = step.inputs
    assert x is not None
    assert slopes is not None
    if not x.rank or slopes.rank != 1 or slopes.dims[0] <= x.dims[-1]:
        return False
    ranges = np.array([[0, x.dims[-1], 1]], np.int64)
    used = work.insert("StridedSlice", step, [slopes], x.dims[-1:], slopes, plain_slice(ranges))
    work.change(step, inputs=[x, used])
    return True


def _slice_instead(work: Work, step: Step) -> bool:
    """Replace a Gather of consecutive constant indices by a slice."""
    source, indices = step.inputs[0], static(step.inputs[1])
    if source is None or indices is None or indices.size == 0:
        return False
    axis = step.params["axis"]
    rows = indices.reshape(-1).astype(np.int64)
    first = int(rows[0]) + (source.dims[axis] if rows[0] < 0 else 0)
    if not np.array_equal(rows % source.dims[axis], np.arange(first, first + rows.size)):
        return False
    if first + rows.size > source.dims[axis]:
        return False
    ranges = np.array([[0, d, 1] for d in source.dims], np.int64)
    ranges[axis] = first, first + rows.size, 1
    dims = (*source.dims[:axis], rows.size, *source.dims[axis + 1 :])
    part = work.insert("StridedSlice", step, [source], dims, source, plain_slice(ranges))
    work.replace(step, "Reshape", [part])
    return True


def _drop_leading_ones(work: Work, step: Step) -> bool:
    """Reshape the constant second matrix of a MatMul to rank 2 if its other dimensions are 1."""
    left, right = step.inputs[0], step.inputs[1]
    data = static(right)
    if left is None or right is None or data is None or right.rank <= 2 or left.rank < right.rank:
        return False
    if data.size != data.shape[-1] * data.shape[-2] or _axis_below(right.quantization, right.rank - 2):
        return False
    work.change(step, inputs=[left, work.with_rank(right, 2), *step.inputs[2:]])
    return True


def _axis_below(quantization: Quantization | None, limit: int) -> bool:
    """Return whether a quantization has a scale for each index of an axis before `limit`."""
    return quantization is not None and quantization.axis is not None and quantization.axis < limit


def _constant_last(work: Work, step: Step) -> bool:
    """Exchange the operands of a commutative step if the first is a constant and the second is not."""
    first, second = step.inputs
    if first is None or second is None or not first.is_static or second.is_static:
        return False
    work.change(step, inputs=[second, first])
    return True
