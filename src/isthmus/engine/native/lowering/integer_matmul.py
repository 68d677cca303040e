"""Lowering of matrix products of bytes."""

from __future__ import annotations

from math import prod

import numpy as np

from isthmus.engine.native.lowering.elementwise import kind_of, without_kind
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.program import Operand
from isthmus.graph import Tensor
from isthmus.prepare.geometry.layout import dense_strides, operand
from isthmus.prepare.schedule import Step


def _zero_points(step: Step, index: int, e: Emitter) -> tuple[Operand, int]:
    """Return the operand of the zero points, and the step between them: 0 if there is one for all."""
    tensor = step.inputs[index] if index < len(step.inputs) else None
    if tensor is None:
        return e.constant(np.zeros(1, np.uint8)), 0
    return e.at(tensor), int(tensor.elements > 1)


def _batch_strides(tensor: Tensor, batch: tuple[int, ...]) -> list[int]:
    """Return the bytes between a tensor's matrices along each dimension of the batch; 0 where it is broadcast."""
    own = (1,) * (len(batch) + 2 - tensor.rank) + tensor.dims
    strides = dense_strides(own)[: len(batch)]
    return [0 if size == 1 else stride for size, stride in zip(own, strides, strict=False)]


def _emit(step: Step, e: Emitter) -> None:
    left, right, output = operand(step), operand(step, 1), step.outputs[0]
    kinds = kind_of(left), kind_of(right)
    if not output.elements:
        return
    (left_zeros, left_step), (right_zeros, right_step) = _zero_points(step, 2, e), _zero_points(step, 3, e)
    batch = output.dims[:-2]
    e.emit(
        f"integer_matmul:product.{kinds[0]}_{kinds[1]}", output=e.at(output), left=e.at(left), right=e.at(right),
        left_zeros=left_zeros, right_zeros=right_zeros, left_step=left_step, right_step=right_step,
        rows=output.dims[-2], inner=left.dims[-1], columns=output.dims[-1], batches=prod(batch), dims=batch[::-1],
        left_strides=_batch_strides(left, batch)[::-1], right_strides=_batch_strides(right, batch)[::-1],
    )  # fmt: skip


def _refuses(step: Step) -> str | None:
    left, right = operand(step), operand(step, 1)
    unknown = without_kind(left, right)
    if unknown is None and (not {kind_of(left), kind_of(right)} <= {"i8", "u8"} or step.clamp is not None):
        return f"the product of {left.describe()} and {right.describe()} is not supported"
    for matrix, tensor in zip((left, right), step.inputs[2:4], strict=False):
        if tensor is not None and tensor.dtype is not matrix.dtype:
            return unknown or f"zero point {tensor.describe()} must have the type of its matrix"
    return unknown


LOWERINGS: dict[str, Lowering] = {"MatMulInteger": Lowering(_emit, refuses=_refuses)}
