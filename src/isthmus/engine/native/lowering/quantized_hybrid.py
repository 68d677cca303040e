"""Lowering of products of float activations with constant 8-bit weights.

Activations are rounded to 8 bits at run time, each row by its own range. If the windows of a convolution overlap, a row
is a whole image. Sums are integers, scaled to floats. LiteRT executes such operators in this way, and the rounding is
visible in results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from isthmus.engine.native.lowering import quantized_product as products
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.fixed_point import weight_scales, without_zero_points
from isthmus.engine.native.lowering.packed_weights import NibblePlan, nibble_plan, pack_weights
from isthmus.engine.native.lowering.panels import limits
from isthmus.engine.native.lowering.quantized_product import QuantizedProduct
from isthmus.engine.native.target import Target
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

# The size of what a quantized row is scaled by: its scale (f32) and the value that means 0 (i32).
_SCALING_BYTES = 8


@dataclass(frozen=True)
class _HybridBlocking:
    """The blocking of a hybrid product.

    Parameters
    ----------
    product
        The product; its extents along a pixel are bytes of quantized elements.
    plan
        The blocking of the product.
    size
        The size in bytes of a quantized element.
    ranges, length
        The number of rows that are quantized by their own range, and the elements of each.
    pitch
        The number of bytes between quantized rows.
    scaling
        The offset of the rows' scales in work space.
    staging
        The offset of the threads' own work space, in which the product copies rows.
    nibbles
        The form of packed 4-bit weights; None for bytes.
    """

    product: QuantizedProduct
    plan: products.ProductBlocking
    size: int
    ranges: int
    length: int
    pitch: int
    scaling: int
    staging: int
    nibbles: NibblePlan | None


def is_product_of_rows(step: Step) -> bool:
    """Return whether each row of results comes from a row of inputs that no other result needs."""
    if step.op == "FullyConnected":
        return True
    product = products.product_of(step)
    return product.kernel == product.stride == (1, 1) and product.stays_inside


def _cut(step: Step, target: Target, threads: int) -> _HybridBlocking:
    """Choose the blocking of a hybrid product, and lay out its work space: quantized rows, scales, copied rows."""
    x, product = operand(step, 0), products.product_of(step)
    size = 2 if products.ROW_FORMS[target.dot] == "s16" else 1
    nibbles = nibble_plan(step, product, size)
    word_groups = nibbles.word_groups if nibbles else 0
    # A single row takes as long as reading its weights, which stay bytes in memory.
    is_narrow = nibbles is None and size == 2 and product.rows * product.out_width == 1 and not target.is_uniform
    tile = products.SINGLE_ROW if is_narrow else None
    if is_narrow:
        word_groups = 2
    piece = 4 * max(word_groups, 1)
    # Either each pixel is a row with a range of its own, padded to whole groups of four bytes, or to whole words of
    # 4-bit weights; or each image is.
    if is_product_of_rows(step):
        ranges, pitch = product.width, -(-product.pixel * size // piece) * piece
        channels = pitch if product.groups == 1 else product.channels * size
        product = replace(product, pixel=pitch, channels=channels)
    else:
        ranges, pitch = x.dims[0], x.elements // x.dims[0] * size
        product = products.in_bytes(product, size)
    scaling = -(-ranges * pitch // 64) * 64
    staging = scaling + -(-ranges * _SCALING_BYTES // 64) * 64
    plan = replace(products.cut(product, 0, target, threads, tile, word_groups), is_narrow=is_narrow)
    return _HybridBlocking(product, plan, size, ranges, x.elements // ranges, pitch, scaling, staging, nibbles)


def _work(step: Step, target: Target, threads: int) -> int:
    blocking = _cut(step, target, threads)
    return blocking.staging + blocking.plan.work_bytes * threads


def _emit(step: Step, e: Emitter) -> None:
    """Emit the quantization of rows into work space, then a product for each group of channels."""
    output, blocking = step.outputs[0], _cut(step, e.target, e.threads)
    product, plan, form = blocking.product, blocking.plan, products.ROW_FORMS[e.target.dot]
    e.emit(
        f"quantized_hybrid:quantize_rows.{form}", x=e.at(operand(step, 0)), rows=blocking.ranges,
        length=blocking.length, y=e.work(), pitch=blocking.pitch, scaling=e.work(blocking.scaling),
    )  # fmt: skip
    total = product.columns * product.groups
    matrix = products.matrix_of(step, product, without_zero_points(operand(step, 1)))
    scales = weight_scales(operand(step, 1), total)
    bias = np.zeros(total, np.float32)
    if len(step.inputs) > 2 and step.inputs[2] is not None:
        bias[:] = operand(step, 2).data
    packed = pack_weights(step, product, plan, blocking.nibbles, matrix, blocking.size)
    unit = 1 if blocking.nibbles is None else blocking.nibbles.unit
    columns = plan.vectors * e.target.lanes
    panel_bytes = columns * (12 + packed.column_bytes)
    by_row = is_product_of_rows(step)
    least, most = limits(step.clamp)
    out_product = replace(product, out_pixel=4 * product.out_pixel)
    for group in range(product.groups):
        part = slice(group * product.columns, (group + 1) * product.columns)
        weights = matrix[:, :, part]
        sums = weights.sum((0, 1), dtype=np.int64) * unit
        heads = [bias[part], scales[part] / np.float32(unit), sums.astype(np.int32)]
        e.emit(
            f"quantized_convolution:convolve_to_float.{packed.variant}",
            x=e.work(group * product.channels), y=e.at(output, 4 * group * product.columns),
            weights=packed.emit(e, part, heads, columns),
            offsets=e.offset_table(packed.offsets), work=e.work(blocking.staging), work_bytes=plan.work_bytes,
            **products.geometry_words(out_product, plan, packed.taps, panel_bytes),
            padding=int(form != "s16"), input_zero=0, zero=0, least=least, most=most, flip=0,
            few_rows=int(matrix.size > blocking.ranges * blocking.length), scaling=e.work(blocking.scaling),
            image_step=0 if by_row else _SCALING_BYTES, result_step=_SCALING_BYTES if by_row else 0,
        )  # fmt: skip


HYBRID = Lowering(_emit, _work)
"""The lowering of the steps that `is_hybrid` selects."""
