"""Lowering of 8-bit convolutions and products with constant weights: zero points of inputs go into the bias.

Weights whose zero point is not in the middle need nine bits. If the target multiplies bytes, such a weight is the sum
of two bytes: each tap occurs twice at the same offset, once with each part of the weights.
"""

from __future__ import annotations

import numpy as np

from isthmus.engine.native.lowering.emitter import Effort, Emitter, Lowering
from isthmus.engine.native.lowering.fixed_point import (
    bias_fits,
    bias_of,
    has_byte_weights,
    result_scales,
    rounding_kernel,
    signed_result,
    sums_fit,
    without_zero_points,
)
from isthmus.engine.native.lowering.nibbles import NibblePlan, fits_unit, nibble_plan
from isthmus.engine.native.lowering.packed_weights import pack_weights
from isthmus.engine.native.lowering.quantized_product import (
    ROW_FORMS,
    ProductBlocking,
    QuantizedProduct,
    constant_weights,
    covers_products,
    cut,
    geometry_words,
    matrix_of,
    product_of,
    tile_effort,
)
from isthmus.engine.native.target import Target
from isthmus.graph import DataType, Tensor
from isthmus.prepare.geometry.fixed_point import is_eight_bit, quantization_of
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step


def _form(x: Tensor, target: Target) -> int:
    """Return how the kernel converts elements of rows for the target: 0 not at all, 2 by flipping the sign bit, 3 and 4
    to 16 bits from signed and from unsigned bytes.
    """
    signed, wanted = x.dtype is DataType.SFIXED_POINT_8, ROW_FORMS[target.dot]
    if wanted == "s16":
        return 3 if signed else 4
    return 0 if signed == (wanted == "s8") else 2


def _origin(x: Tensor, target: Target) -> int:
    """Return the value of an element that means 0, in the form in which it is multiplied."""
    form = _form(x, target)
    if form >= 3:
        return 0
    shift = 128 if x.dtype is DataType.SFIXED_POINT_8 else -128
    return quantization_of(x).zero_point + (shift if form == 2 else 0)


def _plan(
    step: Step, target: Target, threads: int, packed: bool = True
) -> tuple[QuantizedProduct, ProductBlocking, NibblePlan | None]:
    """Return the product that a step computes, its blocking, and the form of its weights if they are `packed`."""
    product, form = product_of(step), _form(operand(step, 0), target)
    nibbles = nibble_plan(step, product, 2 if form >= 3 else 1) if packed else None
    return product, cut(product, form, target, threads, word_groups=nibbles.word_groups if nibbles else 0), nibbles


def work_of(step: Step, target: Target, threads: int) -> int:
    """Return the bytes of scratch for rows that cannot be read in place, whether weights are packed or not."""
    return max(_plan(step, target, threads, packed)[1].work_bytes for packed in (False, True)) * threads


def effort(step: Step, axis: int, target: Target) -> Effort | None:
    """Return the cost of tiles (see `tile_effort`)."""
    product, plan, _ = _plan(step, target, 1)
    return tile_effort(product, plan.vectors, step, axis, target)


def emit(step: Step, e: Emitter) -> None:
    """Emit one instruction for each group of channels."""
    x, output = operand(step, 0), step.outputs[0]
    product, plan, nibbles = _plan(step, e.target, e.threads)
    qx = quantization_of(x)
    origin = _origin(x, e.target)
    total = product.columns * product.groups
    scales = result_scales(e, step, total)
    matrix, bias = matrix_of(step, product, without_zero_points(operand(step, 1))), bias_of(step, total)
    bias = bias - origin * matrix.sum((0, 1), dtype=np.int64)
    if nibbles is not None and not fits_unit(nibbles.unit, bias, scales, matrix.shape[0] * matrix.shape[1]):
        product, plan, nibbles = _plan(step, e.target, e.threads, False)
    unit = 1 if nibbles is None else nibbles.unit
    packed = pack_weights(step, product, plan, nibbles, matrix, plan.size)
    tap_offsets = e.constant(packed.offsets)
    columns = plan.vectors * e.target.lanes
    # Threads divide columns rather than rows if the weights are the larger operand.
    favour_columns = int(matrix.size > x.elements)
    kernel, tile = f"quantized_convolution:convolve{packed.variant}".split(".")
    for group in range(product.groups):
        part = slice(group * product.columns, (group + 1) * product.columns)
        heads = [(bias[part] * unit).astype(np.int32), scales[part] / np.float32(unit)]
        e.emit(
            rounding_kernel(e, step.op, kernel, tile),
            x=e.at(x, group * product.channels), y=e.at(output, group * product.columns),
            weights=e.constant(packed.panels(part, heads, columns, e.target.lanes)),
            offsets=tap_offsets, work=e.work(), work_bytes=plan.work_bytes,
            **geometry_words(product, packed.plan, packed.taps, columns * (8 + packed.column_bytes)),
            padding=origin & 0xFF, input_zero=qx.zero_point, **signed_result(step, output), few_rows=favour_columns,
        )  # fmt: skip


def _covers_weights(step: Step, *column_axes: int | None) -> bool:
    """Return whether a step multiplies bytes by constant bytes, which have one scale or one along one of these axes."""
    weights = constant_weights(step, is_eight_bit)
    if weights is None or not has_byte_weights(weights) or quantization_of(weights).axis not in (None, *column_axes):
        return False
    columns = step.outputs[0].dims[-1]
    return bias_fits(step, columns) and sums_fit(step, columns, weights.elements // columns)


COVERS = covers_products(_covers_weights)
"""For each operation, the test of whether a step multiplies bytes by constant bytes."""
QUANTIZED = {op: (covers, Lowering(emit, work_of, effort=effort)) for op, covers in COVERS.items()}
"""For each operation, a test of which steps its 8-bit lowering covers, and that lowering."""
