"""Expansion of constants with a scale for each block, so that other passes and engines need not know blocks.

The scales of LPBQ are small integer multiples of one scale per channel. If the products of 4-bit elements and these
integers fit 8 bits, the constant becomes an 8-bit one with a scale per channel, which represents the same reals. Any
other constant with blocks becomes a float constant. The expanded constant names the original one as its source, which
an engine may store instead.
"""

from __future__ import annotations

import numpy as np

from isthmus.graph import DataType, Quantization, Tensor
from isthmus.prepare.geometry.fixed_point import expanded
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work


def expand_blocks(work: Work) -> None:
    """Expand the constants with blocks of all steps but Dequantize, which is folded later."""
    # The new constants, by the original tensor and whether the first operand of the step is fixed point.
    found: dict[tuple[Tensor, bool], Tensor] = {}

    def replaced(step: Step, tensor: Tensor | None) -> Tensor | None:
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
            inputs = [replaced(step, tensor) for tensor in step.inputs]
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
    reals = expanded(tensor, DataType.FLOAT_32)
    return _with_source(work.constant(tensor.name, reals, None, DataType.FLOAT_32), tensor)


def _with_source(constant: Tensor, source: Tensor) -> Tensor:
    """Let an expanded constant name its source, if that has 4-bit elements."""
    constant.source = source if source.is_four_bit else None
    return constant
