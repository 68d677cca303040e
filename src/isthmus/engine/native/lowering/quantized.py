"""Lowering of arithmetic on 8-bit fixed-point tensors: tables, sums, products, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from isthmus.engine.native.lowering import (
    fixed_point,
    normalization,
    pooling,
    quantized_convolution,
    quantized_depthwise,
    reduction,
    resize,
)
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.tables import function_codes
from isthmus.graph import DataType, Tensor
from isthmus.graph.ops import having
from isthmus.prepare.geometry.byte_arithmetic import WeightedSum, byte_product, weighted_sum
from isthmus.prepare.geometry.fixed_point import is_eight_bit
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

Covers = Callable[[Step], bool]
"""A test of whether an 8-bit lowering supports a step."""


# -- functions of one element ------------------------------------------------------------------------------------------

# Functions of one real, each lowered to a table of the 256 values of a byte.
_FUNCTIONS = having(
    lambda op: op.traits.element_wise and op.traits.fixed_point and (op.inputs == (1, 1) or op.traits.coefficients)
)


def _covers_function(step: Step) -> bool:
    """Return whether a table of 256 bytes can replace a function; a second operand must be one constant number."""
    slope_is_one_number = len(step.inputs) < 2 or (operand(step, 1).is_static and operand(step, 1).elements == 1)
    return is_eight_bit(step.inputs[0]) and is_eight_bit(step.outputs[0]) and slope_is_one_number


def _emit_function(step: Step, e: Emitter) -> None:
    x, output = operand(step, 0), step.outputs[0]
    fixed_point.emit_lookup(e, x, e.at(output), function_codes(step, e.numerics), step, output)


# -- sums and products -------------------------------------------------------------------------------------------------


def _modes(output: Tensor, dims: list[tuple[int, ...]]) -> tuple[int, list[bool]]:
    """Return how the axes are divided into runs: the first axis of a run, and whether each operand moves in a run."""
    # A run is the longest tail of axes on which an operand either moves with the output or stays at one element. `dims`
    # are the operands' dimensions, with as many axes as the output.
    # For each operand, whether it moves; None while all axes have one element.
    modes: list[bool | None] = [None, None]
    axis = output.rank
    while axis > 0:
        size = output.dims[axis - 1]
        own = [None if size == 1 else d[axis - 1] == size for d in dims]
        clash = any(w is not None and m is not None and w != m for w, m in zip(own, modes, strict=True))
        if clash:
            break
        modes = [m if w is None else w for w, m in zip(own, modes, strict=True)]
        axis -= 1
    return axis, [m is not False for m in modes]


def _emit_runs(kernel: str, step: Step, e: Emitter, parameters: Callable[[int, int], dict[str, int | float]]) -> None:
    """Emit one instruction over runs (see `_modes`); an operand that is fixed within a run comes second."""
    # `parameters` returns the words that only this kernel has, given the indices of the first and the second operand.
    operands, output = [operand(step, 0), operand(step, 1)], step.outputs[0]
    rank = output.rank
    dims = [(1,) * (rank - t.rank) + t.dims for t in operands]
    axis, moves = _modes(output, dims)
    # For each operand, the offset of each run.
    offsets = []
    for shape in dims:
        tail = math.prod(shape[axis:])
        index = np.arange(math.prod(shape[:axis])).reshape(shape[:axis]) * tail
        offsets.append(e.offset_table(np.broadcast_to(index, output.dims[:axis]).astype(np.int32)))
    first, second = (0, 1) if moves[0] else (1, 0)
    e.emit(
        kernel, a=e.at(operands[first]), b=e.at(operands[second]), y=e.at(output), rows=math.prod(output.dims[:axis]),
        inner=math.prod(output.dims[axis:]), a_offsets=offsets[first], b_offsets=offsets[second],
        b_fixed=int(not all(moves)), **fixed_point.signed_result(step, output), **parameters(first, second),
    )  # fmt: skip


def _sum_of(step: Step) -> WeightedSum | None:
    """Return an addition or subtraction as a weighted sum of bytes; None if it cannot be one."""
    return weighted_sum(step, step.op == "ElementWiseSubtract")


def _emit_add(step: Step, e: Emitter) -> None:
    weighted = _sum_of(step)
    assert weighted is not None

    def parameters(first: int, second: int) -> dict[str, int | float]:
        factors = {"a_factor": weighted.factors[first], "b_factor": weighted.factors[second]}
        return {**factors, "bias": weighted.bias, "shift": weighted.shift}

    # Sums in fixed point round up in every mode.
    _emit_runs(f"quantized_binary:add.{fixed_point.STORED[step.outputs[0].dtype]}", step, e, parameters)


def _emit_multiply(step: Step, e: Emitter) -> None:
    product = byte_product(step)
    assert product is not None

    def parameters(first: int, second: int) -> dict[str, int | float]:
        return {"a_zero": product.zeros[first], "b_zero": product.zeros[second], "scale": float(product.scale)}

    stored = fixed_point.STORED[step.outputs[0].dtype]
    _emit_runs(fixed_point.rounding_kernel(e, step.op, "quantized_binary:multiply", stored), step, e, parameters)


# -- to and from reals -------------------------------------------------------------------------------------------------


def _emit_dequantize(step: Step, e: Emitter) -> None:
    fixed_point.emit_dequantize(e, operand(step, 0), e.at(step.outputs[0]))


def _emit_quantize(step: Step, e: Emitter) -> None:
    fixed_point.emit_quantize(e, e.at(operand(step, 0)), step.outputs[0], step.op)


def _refuses_dequantize(step: Step) -> str | None:
    return fixed_point.no_reals_of(operand(step, 0)) or _not_float(step.outputs[0])


def _refuses_quantize(step: Step) -> str | None:
    return fixed_point.not_from_reals(step.outputs[0]) or _not_float(operand(step, 0))


def _not_float(tensor: Tensor) -> str | None:
    """Return why a tensor cannot hold the reals of a conversion, or None."""
    return None if tensor.dtype is DataType.FLOAT_32 else f"{tensor.describe()} must be float32"


QUANTIZED: dict[str, tuple[Covers, Lowering]] = {
    **quantized_convolution.QUANTIZED,
    **quantized_depthwise.QUANTIZED,
    **normalization.QUANTIZED,
    **pooling.QUANTIZED,
    **reduction.QUANTIZED,
    **resize.QUANTIZED,
    **{op: (_covers_function, Lowering(_emit_function)) for op in _FUNCTIONS},
    "ElementWiseAdd": (lambda step: _sum_of(step) is not None, Lowering(_emit_add)),
    "ElementWiseSubtract": (lambda step: _sum_of(step) is not None, Lowering(_emit_add)),
    "ElementWiseMultiply": (lambda step: byte_product(step) is not None, Lowering(_emit_multiply)),
    "Dequantize": (lambda _: True, Lowering(_emit_dequantize, refuses=_refuses_dequantize)),
    "Quantize": (lambda _: True, Lowering(_emit_quantize, refuses=_refuses_quantize)),
}
"""For each operation, a test of which steps its 8-bit lowering covers, and that lowering."""
