"""Replacement of Dequantize, float operation, Quantize by one operation on fixed-point tensors.

Dequantize is moved down and Quantize is moved up through operations that only move elements, which does not change
results. Where they meet, they cancel or become one Convert. An operation between them then uses the fixed-point tensors
directly.
"""

from __future__ import annotations

import math

import numpy as np

from isthmus.graph import DataType, Quantization, Tensor
from isthmus.graph.ops import having
from isthmus.graph.traits import ProductKind
from isthmus.prepare.passes.affine import LINEAR, output_axis, product_of
from isthmus.prepare.passes.constants import fold_if_constant
from isthmus.prepare.passes.redundant import permutation
from isthmus.prepare.rewrite import floats, operand, rewrite
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

ACTIVATIONS = (DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_8, DataType.SFIXED_POINT_16, DataType.UFIXED_POINT_16)
"""Data types of activations, and of weights, that quantized operations accept."""

MOVEMENT = having(lambda operation: operation.traits.moves and operation.traits.moves.of_one)
"""Operations whose results are elements of in[0], selected by position or by order; they commute with quantization."""

FIXED_POINT = having(lambda operation: operation.traits.fixed_point)
"""Operations that accept fixed-point tensors in place of floats."""

ALIKE = FIXED_POINT & having(
    lambda operation: operation.inputs[1] != 1 and not operation.traits.coefficients and not operation.traits.moves
)
"""The operations with several data operands, all of which must have the data type of the result. A Concat is not among
them: its operands are converted.
"""


def resolve_quantization(work: Work) -> None:
    """Replace float operations between Dequantize and Quantize by quantized ones."""
    rewrite(
        work,
        (MOVEMENT | {"Quantize"}, fold_if_constant),
        (("Quantize",), _cancel),
        (MOVEMENT, _sink_dequantize),
        (("Quantize",), _raise_quantize),
        (("Quantize",), _use_fixed_point),
        (LINEAR | FIXED_POINT, _retry_fixed_point),
    )


def _dequantize(work: Work, tensor: Tensor | None) -> Tensor | None:
    """Return the fixed-point tensor that a float tensor was dequantized from; None if it was not."""
    step = work.producer(tensor)
    return step.inputs[0] if step is not None and step.op == "Dequantize" else None


def _activation(work: Work, tensor: Tensor | None) -> Tensor | None:
    """Return the activations with one scale that a float tensor was dequantized from; None if there are none."""
    stored = _dequantize(work, tensor)
    if stored is None or stored.dtype not in ACTIVATIONS or stored.quantization is None:
        return None
    return stored if stored.quantization.axis is None else None


def _cancel(work: Work, step: Step) -> None:
    """Replace a Dequantize and a Quantize by a Convert, or by nothing if both have the same quantization."""
    stored, result = _activation(work, step.inputs[0]), step.outputs[0]
    if stored is None or result.dtype not in ACTIVATIONS:
        return
    params = {"dynamic_input_data": False, "dynamic_output_data": False}
    work.replace(step, "Convert", [stored], params)
    if stored.dtype is result.dtype and stored.quantization == result.quantization:
        work.bypass(step)


def _sink_dequantize(work: Work, step: Step) -> None:
    """Replace ``move(dequantize(x))`` by ``dequantize(move(x))``."""
    source = step.inputs[0]
    stored = _dequantize(work, source)
    if source is None or stored is None or stored.quantization is None or step.clamp is not None:
        return
    quantization: Quantization | None = stored.quantization
    if quantization is not None and quantization.axis is not None:
        quantization = _move_scales(stored, step) if stored.is_static else None
    if quantization is None or not _worth_sinking(work, step, source, stored):
        return
    results = step.outputs
    moved = [work.native(t.name, t.dims, stored.dtype, quantization) for t in results]
    work.change(step, inputs=[stored, *step.inputs[1:]], outputs=moved)
    for inner, result in zip(moved, results, strict=True):
        work.add("Dequantize", inner.name, [inner], [result], near=step)


def _move_scales(stored: Tensor, step: Step) -> Quantization | None:
    """Return the quantization of a tensor with several scales after a Transpose; None after another movement."""
    if step.op != "Transpose" or stored.quantization is None:
        return None
    return stored.quantization.transpose(permutation(step), stored.dims)


def _worth_sinking(work: Work, step: Step, source: Tensor, stored: Tensor) -> bool:
    """Return whether moving a Dequantize down does more than duplicate it."""
    if stored.is_static or work.sole_consumer(source) is not None:
        return True
    readers = [r for t in step.outputs for r in work.consumers(t)]
    # Operations that may use 16-bit numbers directly once the Dequantize is gone; few of them have an 8-bit kernel.
    wide = LINEAR | FIXED_POINT if stored.dtype.itemsize == 2 else frozenset()
    return bool(readers) and all(r.op == "Quantize" or r.op in MOVEMENT or r.op in wide for r in readers)


def _raise_quantize(work: Work, step: Step) -> None:
    """Replace ``quantize(move(x))`` by ``move(quantize(x))``."""
    move, result = work.sole_producer(step.inputs[0]), step.outputs[0]
    if move is None or move.op not in MOVEMENT or move.clamp is not None or len(move.outputs) != 1:
        return
    source = move.inputs[0]
    if source is None or result.quantization is None or result.quantization.axis is not None:
        return
    if work.sole_consumer(source) is None or work.producer(source) is None:
        return
    stored = work.native(source.name, source.dims, result.dtype, result.quantization)
    work.add("Quantize", stored.name, [source], [stored], near=move)
    work.change(move, inputs=[stored, *move.inputs[1:]])
    work.absorb(move, step)


def _use_fixed_point(work: Work, step: Step) -> None:
    """Let the operation before a Quantize work on fixed-point tensors, if they exist for all its operands."""
    result = step.outputs[0]
    before = work.sole_producer(step.inputs[0])
    if before is None or len(before.outputs) != 1 or result.dtype not in ACTIVATIONS or result.quantization is None:
        return
    if result.quantization.axis is not None:
        return
    if before.op in LINEAR:
        inputs = _linear_operands(work, before)
    elif before.op in FIXED_POINT | MOVEMENT:
        inputs = [_activation(work, t) for t in before.inputs]
    else:
        return
    if (
        inputs is None
        or inputs[0] is None
        or any(new is None and old is not None for new, old in zip(inputs, before.inputs, strict=True))
    ):
        return
    if before.op in ALIKE and len({t.dtype for t in inputs if t is not None} | {result.dtype}) > 1:
        return
    if before.op != "Concat" and inputs[0].dtype.itemsize != result.dtype.itemsize:
        return
    if before.op == "Concat":
        inputs = [t if t is None else _convert(work, before, t, result) for t in inputs]
    work.change(before, inputs=inputs)
    work.absorb(before, step)


def _retry_fixed_point(work: Work, step: Step) -> None:
    """Apply `_use_fixed_point` to the Quantize after an operation whose operands have changed."""
    reader = work.sole_consumer(step.outputs[0])
    if reader is not None and reader.op == "Quantize":
        _use_fixed_point(work, reader)


def _convert(work: Work, step: Step, tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor converted to the quantization of another."""
    if tensor.dtype is like.dtype and tensor.quantization == like.quantization:
        return tensor
    params = {"dynamic_input_data": False, "dynamic_output_data": False}
    return work.insert("Convert", step, [tensor], tensor.dims, like, params)


def _linear_operands(work: Work, step: Step) -> list[Tensor | None] | None:
    """Return fixed-point input, constant weights, and the bias in units of their product; None if they do not exist."""
    x = _activation(work, step.inputs[0])
    weights = _dequantize(work, step.inputs[1])
    if x is None or weights is None or x.quantization is None or weights.quantization is None:
        return None
    if weights.dtype not in ACTIVATIONS or weights.dtype.itemsize > x.dtype.itemsize:
        return None
    if not weights.is_static and not _multiplies_at_run_time(step, x, weights):
        return None
    if weights.quantization.block or weights.quantization.axis not in (None, output_axis(step)):
        return None
    if product_of(step) is ProductKind.TRANSPOSED and step.params["group"] != 1:
        return None
    operands: list[Tensor | None] = [x, weights]
    bias = operand(step, 2)
    if bias is not None:
        unit = _product(x.quantization, weights.quantization)
        stored = None if unit is None else _bias(work, bias, unit)
        if stored is None:
            return None
        operands.append(stored)
    return operands + [None] * (len(step.inputs) - len(operands))


def _multiplies_at_run_time(step: Step, x: Tensor, other: Tensor) -> bool:
    """Return whether a step multiplies matrices known at run time, the left one of 16 bits; 8 bits go through float."""
    single = other.quantization is not None and other.quantization.axis is None
    return step.op == "MatMul" and x.dtype.itemsize == 2 and single and operand(step, 2) is None


def _product(x: Quantization, weights: Quantization) -> Quantization | None:
    """Return the quantization of sums of products; None if a product of scales is not a valid scale."""
    scales = tuple(float(np.float32(x.scale) * np.float32(s)) for s in weights.scales)
    if not all(0 < scale < math.inf for scale in scales):
        return None
    return Quantization(scales, (0,) * len(scales), None if weights.axis is None else 0)


def _bias(work: Work, bias: Tensor, unit: Quantization) -> Tensor | None:
    """Return a constant bias as 32-bit integers of this quantization; None if it is not constant or does not fit."""
    stored = _dequantize(work, bias)
    if stored is not None and stored.is_static and stored.data is not None and stored.quantization is not None:
        agrees = (
            stored.dtype is DataType.SFIXED_POINT_32
            and len(stored.quantization.scales) in (1, len(unit.scales))
            and not any(stored.quantization.offsets)
            and np.allclose(stored.quantization.scales, unit.scales, rtol=1e-5, atol=0)
        )
        if agrees:
            return stored
        reals = stored.quantization.dequantize(stored.data).astype(np.float64)
    else:
        values = floats(bias)
        if values is None:
            return None
        reals = values
    integers = np.rint(reals / np.asarray(unit.scales))
    if not (np.abs(integers) <= np.iinfo(np.int32).max).all():
        return None
    return work.constant(bias.name, integers.astype(np.int32), unit)
