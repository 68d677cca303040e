"""Constant folding, and constants with a scale for each block, which other passes and engines need not know.

The scales of LPBQ are small integer multiples of one scale per channel. If the products of 4-bit elements and these
integers fit 8 bits, the constant becomes an 8-bit one with a scale per channel, which represents the same reals. Any
other constant with blocks becomes a float constant. The expanded constant names the original one as its source, which
an engine may store instead.
"""

from __future__ import annotations

import numpy as np

from isthmus.graph import DataType, Quantization, Tensor
from isthmus.graph.evaluate import evaluate
from isthmus.prepare.geometry.fixed_point import expand
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

MAX_BYTES = 1 << 26
"""Results larger than this many bytes are not kept as constants."""


def fold_constants(work: Work) -> None:
    """Fold all but Dequantize, since a quantized operation may still use the fixed-point constant behind it."""
    _fold(work, keep=frozenset({"Dequantize"}))


def fold_all_constants(work: Work) -> None:
    """Fold every step that reads only constants."""
    _fold(work, keep=frozenset())


def _fold(work: Work, keep: frozenset[str]) -> None:
    """Fold all steps that read only constants, except those of the operations to keep."""
    for step in work.ordered():
        if step.op not in keep:
            fold_if_constant(work, step)


def is_constant(work: Work, step: Step) -> bool:
    """Return whether a step can be computed now; a constant that is copied to a graph output stays a copy."""
    return (
        step.clamp is None
        and all(t is None or t.is_static for t in step.inputs)
        and (sum(t.nbytes for t in step.outputs) <= MAX_BYTES or _unpacks(step))
        and not (step.op == "Reshape" and work.is_output(step.outputs[0]))
    )


def _unpacks(step: Step) -> bool:
    """Return whether a step dequantizes 4-bit constants: an engine that keeps them packed needs no room for reals."""
    return step.op == "Dequantize" and step.inputs[0] is not None and step.inputs[0].is_four_bit


def fold(work: Work, step: Step) -> None:
    """Compute a step that reads only constants, and replace it by its results."""
    arrays = [None if t is None else t.data for t in step.inputs]
    results = evaluate(step.op, step.inputs, arrays, step.params, step.outputs, work.numerics)
    work.remove(step)
    for tensor, value in zip(step.outputs, results, strict=False):
        constant = work.constant(tensor.name, value.astype(tensor.dtype.numpy), tensor.quantization, tensor.dtype)
        if _unpacks(step) and tensor.dtype is DataType.FLOAT_32:
            constant.source = step.inputs[0]
        work.reread(tensor, constant)
        # The client's memory for an output is still written by a step.
        if work.is_output(tensor):
            work.add("Reshape", step.name, [constant], [tensor])


def fold_if_constant(work: Work, step: Step) -> None:
    """Fold a step if it is constant; a rule for passes whose other rules create constants."""
    if is_constant(work, step):
        fold(work, step)


def expand_blocks(work: Work) -> None:
    """Expand the constants with blocks of all steps but Dequantize, which is folded later."""
    # The new constants, by the original tensor and whether the first operand of the step is fixed point.
    found: dict[tuple[Tensor, bool], Tensor] = {}

    def replace_constant(step: Step, tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not tensor.is_static or tensor.quantization is None or not tensor.quantization.block:
            return tensor
        fixed = step.inputs[0] is not None and step.inputs[0].dtype.is_fixed_point
        key = (tensor, fixed)
        if key not in found:
            by_channel = _by_channel(work, tensor) if fixed else None
            found[key] = by_channel or _real(work, tensor)
        return found[key]

    for step in work.ordered():
        if step.op != "Dequantize":
            inputs = [replace_constant(step, tensor) for tensor in step.inputs]
            if any(new is not old for new, old in zip(inputs, step.inputs, strict=True)):
                work.change(step, inputs=inputs)


def _by_channel(work: Work, tensor: Tensor) -> Tensor | None:
    """Return a constant with factors as an 8-bit one with a scale per channel; None if it cannot be one."""
    quantization, data = tensor.quantization, tensor.data
    assert quantization is not None
    assert data is not None
    if not quantization.factors or any(quantization.offsets):
        return None
    grid = quantization.grid(tensor.dims)
    units = (np.array(quantization.scales) / np.array(quantization.factors)).reshape(grid)
    # The axes along which the scale of a channel changes.
    changing = [axis for axis in range(tensor.rank) if (np.diff(units, axis=axis) != 0).any()]
    products = data.astype(np.int64) * quantization.spread(quantization.factors, tensor.dims)
    if len(changing) > 1 or quantization.axis in changing or products.min() < -128 or products.max() > 127:
        return None
    axis = changing[0] if changing else None
    scales = units.max(tuple(a for a in range(tensor.rank) if a != axis)) if changing else units.reshape(-1)[:1]
    by_channel = Quantization(tuple(scales.tolist()), (0,) * scales.size, axis)
    return _with_source(work.constant(tensor.name, products.astype(np.int8), by_channel), tensor)


def _real(work: Work, tensor: Tensor) -> Tensor:
    """Return the reals of a constant as a float constant."""
    reals = expand(tensor, DataType.FLOAT_32)
    return _with_source(work.constant(tensor.name, reals, None, DataType.FLOAT_32), tensor)


def _with_source(constant: Tensor, source: Tensor) -> Tensor:
    """Let an expanded constant name its source, if that has 4-bit elements."""
    constant.source = source if source.is_four_bit else None
    return constant
