"""Lowering of 8-bit convolutions and products with constant weights: zero points of inputs go into the bias.

Weights whose zero point is not in the middle need nine bits. If the target multiplies bytes, such a weight is the sum
of two bytes: each tap occurs twice at the same offset, once with each part of the weights.
"""

from __future__ import annotations

import numpy as np

from isthmus.engine.native.lowering import fixed_point
from isthmus.engine.native.lowering import quantized_product as products
from isthmus.engine.native.lowering.blocks import cut_blocks, suits_blocks
from isthmus.engine.native.lowering.emitter import Effort, Emitter, Lowering
from isthmus.engine.native.lowering.packed_weights import NibblePlan, fits_unit, nibble_plan, pack_weights
from isthmus.engine.native.lowering.quantized_product import QuantizedProduct
from isthmus.engine.native.target import Target
from isthmus.graph import DataType
from isthmus.prepare.geometry.fixed_point import is_eight_bit, quantization_of
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step


def _plan(
    step: Step, target: Target, threads: int, packed: bool = True
) -> tuple[QuantizedProduct, products.ProductBlocking, NibblePlan | None]:
    """Return the product that a step computes, its blocking, and the form of its weights if they are `packed`."""
    product, form = products.product_of(step), products.row_form(operand(step, 0), target)
    # Forms 3 and 4 of rows widen bytes to 16 bits.
    nibbles = nibble_plan(step, product, 2 if form >= 3 else 1) if packed else None
    if nibbles is None and suits_blocks(step, product, target):
        return product, cut_blocks(product, _form(step, target, True), target, threads), None
    if nibbles is None:
        product = products.by_panels(product, target)
    plan = products.cut(product, form, target, threads, word_groups=nibbles.word_groups if nibbles else 0)
    if nibbles is None:
        plan = products.narrow(plan, operand(step, 1), product, form, target, threads)
    return product, plan, nibbles


def _form(step: Step, target: Target, by_blocks: bool) -> int:
    """Return how rows are converted (see `row_form`); matrix registers multiply signed and unsigned bytes."""
    return 0 if by_blocks and target.has_matrix_registers else products.row_form(operand(step, 0), target)


def _work(step: Step, target: Target, threads: int) -> int:
    """Return the bytes of scratch for rows that cannot be read in place, whether weights are packed or not."""
    return max(_plan(step, target, threads, packed)[1].work_bytes for packed in (False, True)) * threads


def _effort(step: Step, axis: int, target: Target) -> Effort | None:
    """Return the cost of tiles (see `tile_effort`)."""
    product, plan, _ = _plan(step, target, 1)
    return products.tile_effort(product, plan.vectors, step, axis, target)


def _emit(step: Step, e: Emitter) -> None:
    """Emit one instruction for each group of channels."""
    x, output = operand(step, 0), step.outputs[0]
    product, plan, nibbles = _plan(step, e.target, e.threads)
    origin = products.origin_of(x, _form(step, e.target, plan.depth > 0))
    total = product.columns * product.groups
    scales = fixed_point.result_scales(e, step, total)
    matrix = products.matrix_of(step, product, fixed_point.without_zero_points(operand(step, 1)))
    bias = fixed_point.bias_of(step, total) - origin * matrix.sum((0, 1), dtype=np.int64)
    if nibbles is not None and not fits_unit(nibbles.unit, bias, scales, matrix.shape[0] * matrix.shape[1]):
        product, plan, nibbles = _plan(step, e.target, e.threads, False)
    unit = 1 if nibbles is None else nibbles.unit
    columns = panel_columns = plan.vectors * e.target.lanes
    # Threads divide columns rather than rows if the weights are the larger operand.
    favour_columns = int(matrix.size > x.elements)
    kernel, more = "convolve", {}
    if product.panel_columns:
        matrix = _diagonal(matrix, product, total // int(step.params.get("group", x.dims[-1])))
        panel_columns, columns = product.panel_columns, -(-product.panel_columns // e.target.lanes) * e.target.lanes
        kernel, more = "convolve_groups", {
            "panel_columns": panel_columns, "panel_input": product.panel_channels * plan.size,
        }  # fmt: skip
    packed = pack_weights(step, product, plan, nibbles, matrix, plan.size)
    tap_offsets, variant = e.offset_table(packed.offsets), packed.variant
    if plan.depth:
        variant = "s8" if x.dtype is DataType.SFIXED_POINT_8 else "u8"
        kernel, more = "convolve_blocks", {"strip": plan.strip, "depth": plan.depth}
    for group in range(product.groups):
        part = slice(group * product.columns, (group + 1) * product.columns)
        heads = [(bias[part] * unit).astype(np.int32), scales[part] / np.float32(unit)]
        e.emit(
            fixed_point.rounding_kernel(e, step.op, f"quantized_convolution:{kernel}", variant),
            x=e.at(x, group * product.channels), y=e.at(output, group * product.columns),
            weights=packed.emit(e, part, heads, panel_columns),
            offsets=tap_offsets, work=e.work(), work_bytes=plan.work_bytes,
            **products.geometry_words(product, packed.plan, packed.taps, columns * (8 + packed.column_bytes)),
            padding=origin & 0xFF, input_zero=quantization_of(x).zero_point, **fixed_point.signed_result(step, output),
            few_rows=favour_columns, **more,
        )  # fmt: skip


def _diagonal(matrix: np.ndarray, product: QuantizedProduct, filters: int) -> np.ndarray:
    """Extend weights of groups, of so many filters each, by zeros for the other groups' channels of their panel."""
    taps, depth, columns = matrix.shape
    result = np.zeros((taps, product.panel_channels // depth, depth, columns), matrix.dtype)
    for first in range(0, columns, filters):
        own = slice(first, first + filters)
        result[:, first % product.panel_columns // filters, :, own] = matrix[:, :, own]
    return result.reshape(taps, -1, columns)


def _covers_weights(step: Step, *column_axes: int | None) -> bool:
    """Return whether a step multiplies bytes by constant bytes with one scale, or scales along a column axis."""
    weights = products.constant_weights(step, is_eight_bit)
    if weights is None or not fixed_point.has_byte_weights(weights):
        return False
    if quantization_of(weights).axis not in (None, *column_axes):
        return False
    columns = step.outputs[0].dims[-1]
    return fixed_point.bias_fits(step, columns) and fixed_point.sums_fit(step, columns, weights.elements // columns)


COVERS = products.covers_products(_covers_weights)
"""For each operation, the test of whether a step multiplies bytes by constant bytes."""
DENSE = Lowering(_emit, _work, effort=_effort)
"""The lowering of these steps."""
QUANTIZED = {op: (covers, DENSE) for op, covers in COVERS.items()}
"""For each operation, a test of which steps its 8-bit lowering covers, and that lowering."""
