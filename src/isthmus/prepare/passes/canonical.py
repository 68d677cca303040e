"""Canonical forms: one form for operations that QNN can express in several ways, so that later code has fewer cases.

Products get two dimensions, since the rows of all batches form one product; the reshapes around them cost nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from isthmus.graph import Quantization, Tensor
from isthmus.graph.ops import OPERATIONS, having
from isthmus.graph.ops.elementwise import NUMBERED, numbered_function
from isthmus.graph.ops.movement import CONSTANT
from isthmus.prepare.rewrite import operand, rewrite, static
from isthmus.prepare.schedule import Step
from isthmus.prepare.storage import same_encoding
from isthmus.prepare.work import Work

COMMUTATIVE = having(lambda operation: operation.traits.commutative)
# Operations that move elements of in[0] into one result.
_MOVEMENTS = having(
    lambda operation: operation.traits.moves and operation.traits.moves.sources == (0,) and operation.outputs == (1, 1)
)
# The parameters of a Convert, which changes the quantization of a tensor.
_CONVERT = {"dynamic_input_data": False, "dynamic_output_data": False}
_TWO_DIMENSIONAL = {"Conv1d": "Conv2d", "DepthWiseConv1d": "DepthWiseConv2d", "TransposeConv1d": "TransposeConv2d"}


def canonicalize(work: Work) -> None:
    """Bring all steps into their canonical form."""
    rewrite(
        work,
        (NUMBERED.keys(), _name_function),
        (("Squeeze", "ExpandDims"), _reshape),
        (("Pack",), _pack),
        (_MOVEMENTS, _move_then_convert),
        (("Concat",), _convert_then_join),
        (("UnPack",), _unpack),
        (("StridedSlice",), _keep_axes),
        (("Prelu",), _drop_unused_slopes),
        (("Gather",), _slice_instead),
        (("MatMul",), _drop_leading_ones),
        (COMMUTATIVE, _constant_last),
    )


def _name_function(work: Work, step: Step) -> None:
    """Replace a numbered function, such as ElementWiseUnary with operation 4, by the operation of its own name."""
    function = numbered_function(step.op, step.params["operation"])
    if function.name not in OPERATIONS:
        return
    work.change(step, op=function.name, params={p.name: step.params[p.name] for p in function.params})


def _reshape(work: Work, step: Step) -> None:
    """Replace Squeeze and ExpandDims by Reshape."""
    work.replace(step, "Reshape", step.inputs[:1])


def _differ(a: Tensor, b: Tensor) -> bool:
    """Return whether two fixed-point tensors have different encodings."""
    return a.dtype.is_fixed_point and b.dtype.is_fixed_point and not same_encoding(a, b)


def _move_then_convert(work: Work, step: Step) -> None:
    """Split a movement into another quantization into a plain movement and a Convert."""
    source, result = step.inputs[0], step.outputs[0]
    if source is None or not _differ(source, result) or not _can_represent_fill(step, source):
        return
    moved = work.insert(step.op, step, step.inputs, result.dims, source, step.params)
    work.replace(step, "Convert", [moved], _CONVERT)


def _can_represent_fill(step: Step, source: Tensor) -> bool:
    """Return whether the operand's encoding can represent the fill value of a movement exactly."""
    moves, quantization = OPERATIONS[step.op].traits.moves, source.quantization
    if moves is None or not moves.fills or quantization is None or step.params.get("scheme", CONSTANT) != CONSTANT:
        return True
    fill, info = float(step.params.get("pad_constant_value", 0)), np.iinfo(source.dtype.numpy)
    units = fill / np.asarray(quantization.scales)
    stored = units - np.asarray(quantization.offsets)
    return bool((units == np.rint(units)).all() and info.min <= stored.min() and stored.max() <= info.max)


def _convert_then_join(work: Work, step: Step) -> None:
    """Convert the operands of a Concat to the quantization of its result, so that the Concat only moves bytes."""
    result = step.outputs[0]
    if not any(t is not None and _differ(t, result) for t in step.inputs):
        return
    parts = [
        work.insert("Convert", step, [t], t.dims, result, _CONVERT) if t is not None and _differ(t, result) else t
        for t in step.inputs
    ]
    work.change(step, inputs=parts)


def _pack(work: Work, step: Step) -> None:
    """Replace Pack by a Concat of operands that are reshaped to have the new axis."""
    axis, result = step.params["axis"], step.outputs[0]
    if len(step.inputs) == 1:
        work.replace(step, "Reshape", step.inputs)
        return
    dims = (*result.dims[:axis], 1, *result.dims[axis + 1 :])
    rows = [work.insert("Reshape", step, [t], dims, t) for t in step.inputs if t is not None]
    work.replace(step, "Concat", rows, {"axis": axis})


def _unpack(work: Work, step: Step) -> None:
    """Replace UnPack by a Split and reshapes that remove the axis."""
    axis, source = step.params["axis"], step.input()
    results = step.outputs
    if source.dims[axis] == 1:
        work.replace(step, "Reshape", [source])
        return
    dims = (*source.dims[:axis], 1, *source.dims[axis + 1 :])
    rows = [work.native(t.name, dims, t.dtype, t.quantization) for t in results]
    cuts = np.arange(1, source.dims[axis], dtype=np.int64)
    work.change(step, op="Split", outputs=rows, params={"axis": axis, "split_index": cuts})
    for row, result in zip(rows, results, strict=False):
        work.add("Reshape", row.name, [row], [result], near=step)


def plain_slice(ranges: np.ndarray) -> dict[str, Any]:
    """Return the parameters of a StridedSlice without masks."""
    return {"ranges": ranges, "begin_mask": 0, "end_mask": 0, "shrink_axes": 0, "new_axes_mask": 0}


def _keep_axes(work: Work, step: Step) -> None:
    """Replace a StridedSlice that removes axes by one that keeps them, and a Reshape."""
    if not step.params["shrink_axes"]:
        return
    source = step.input()
    ranges = np.asarray(step.params["ranges"])
    dims = [max(0, -((int(b) - int(e)) // int(s))) for b, e, s in ranges]
    slice_ = work.insert("StridedSlice", step, [source], dims, step.outputs[0], plain_slice(ranges))
    work.replace(step, "Reshape", [slice_])


def _drop_unused_slopes(work: Work, step: Step) -> None:
    """Drop slopes of a Prelu beyond its channels, which are not used."""
    x, slopes = step.inputs
    assert x is not None
    assert slopes is not None
    if not x.rank or slopes.rank != 1 or slopes.dims[0] <= x.dims[-1]:
        return
    ranges = np.array([[0, x.dims[-1], 1]], np.int64)
    used = work.insert("StridedSlice", step, [slopes], x.dims[-1:], slopes, plain_slice(ranges))
    work.change(step, inputs=[x, used])


def _slice_instead(work: Work, step: Step) -> None:
    """Replace a Gather of consecutive constant indices by a slice."""
    source, indices = step.inputs[0], static(step.inputs[1])
    if source is None or indices is None or indices.size == 0:
        return
    axis = step.params["axis"]
    rows = indices.reshape(-1).astype(np.int64)
    first = int(rows[0]) + (source.dims[axis] if rows[0] < 0 else 0)
    if not np.array_equal(rows % source.dims[axis], np.arange(first, first + rows.size)):
        return
    if first + rows.size > source.dims[axis]:
        return
    ranges = np.array([[0, d, 1] for d in source.dims], np.int64)
    ranges[axis] = first, first + rows.size, 1
    dims = (*source.dims[:axis], rows.size, *source.dims[axis + 1 :])
    part = work.insert("StridedSlice", step, [source], dims, source, plain_slice(ranges))
    work.replace(step, "Reshape", [part])


def _drop_leading_ones(work: Work, step: Step) -> None:
    """Reshape the constant second matrix of a MatMul to rank 2 if its other dimensions are 1."""
    left, right = step.inputs[0], step.inputs[1]
    data = static(right)
    if left is None or right is None or data is None or right.rank <= 2 or left.rank < right.rank:
        return
    if data.size != data.shape[-1] * data.shape[-2] or _axis_below(right.quantization, right.rank - 2):
        return
    work.change(step, inputs=[left, work.with_rank(right, 2), *step.inputs[2:]])


def _axis_below(quantization: Quantization | None, limit: int) -> bool:
    """Return whether a quantization has a scale for each index of an axis before `limit`."""
    return quantization is not None and quantization.axis is not None and quantization.axis < limit


def _constant_last(work: Work, step: Step) -> None:
    """Exchange the operands of a commutative step if the first is a constant and the second is not."""
    first, second = step.inputs
    if first is None or second is None or not first.is_static or second.is_static:
        return
    work.change(step, inputs=[second, first])


def flatten_products(work: Work) -> None:
    """Rewrite 1-D convolutions as 2-D ones of height 1, and batched products with a constant matrix as one product."""
    rewrite(work, (_TWO_DIMENSIONAL.keys(), _as_two_dimensional), (("MatMul", "FullyConnected"), _as_rows))


def _as_two_dimensional(work: Work, step: Step) -> None:
    """Rewrite a 1-D convolution as a 2-D one of height 1, with reshapes before and after it."""
    source, weights, result = step.input(), step.input(1), step.outputs[0]
    params = dict(step.params)
    params["pad_amount"] = np.stack([np.zeros(2, np.int64), np.asarray(params["pad_amount"]).reshape(2)])
    for name, of_height in (("stride", 1), ("dilation", 1), ("output_padding", 0)):
        if name in params:
            params[name] = np.array([of_height, params[name]], np.int64)
    tall = work.insert("Reshape", step, [source], (source.dims[0], 1, *source.dims[1:]), source)
    filters = _with_height(work, step, weights)
    flat = work.native(result.name, (result.dims[0], 1, *result.dims[1:]), result.dtype, result.quantization)
    bias = operand(step, 2)
    work.change(step, op=_TWO_DIMENSIONAL[step.op], inputs=[tall, filters, bias], outputs=[flat], params=params)
    work.add("Reshape", flat.name, [flat], [result], near=step)


def _with_height(work: Work, step: Step, weights: Tensor) -> Tensor:
    """Return the weights with a new first axis of size 1, the height of the kernel."""
    if weights.is_static:
        return work.with_rank(weights, weights.rank + 1)
    quantization = weights.quantization
    if quantization is not None and quantization.axis is not None:
        quantization = replace(quantization, axis=quantization.axis + 1)
    return work.insert("Reshape", step, [weights], (1, *weights.dims), weights, quantization=quantization)


def _as_rows(work: Work, step: Step) -> None:
    """Reshape the left operand of a product to one matrix, with the rows of all batches, and the result back."""
    source, matrix, result = step.inputs[0], step.inputs[1], step.outputs[0]
    if source is None or matrix is None or matrix.rank != 2 or not source.elements:
        return
    if step.op == "MatMul" and (step.params["transpose_in0"] or not matrix.is_static):
        return
    columns = matrix.dims[1] if step.op == "FullyConnected" or step.params["transpose_in1"] else matrix.dims[0]
    if source.rank == 2 and source.dims[1] == columns:
        return
    rows = source.elements // columns
    flat = work.insert("Reshape", step, [source], (rows, columns), source)
    product = work.native(result.name, (rows, result.dims[-1]), result.dtype, result.quantization)
    work.change(step, inputs=[flat, *step.inputs[1:]], outputs=[product])
    work.add("Reshape", product.name, [product], [result], near=step)
