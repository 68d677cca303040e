"""ONNX Runtime's product with weights of 4 or 8 bits in blocks (com.microsoft:MatMulNBits)."""

from __future__ import annotations

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.linear import matmul
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.frontends.onnx.quantization import positive_scales
from isthmus.graph import DataType, Quantization
from isthmus.graph.nibbles import unpack


def _matmul_nbits(node: OnnxNode) -> OnnxValue:
    """Convert to a MatMul by a dequantized constant [columns, depth], of which each row is divided into blocks."""
    # Floats of 16 bits are multiplied in 32 bits, so that the constant stays packed, and the result is rounded once.
    # The operands are a, the packed constant, its scales, and optionally its zero points, an order of the depth, a
    # bias.
    bits, block = int(node.attr("bits", 4)), int(node.attr("block_size", 0))
    depth, columns = int(node.attr("K", 0)), int(node.attr("N", 0))
    if bits not in (4, 8):
        node.unsupported(f"weights of {bits} bits")
    if node.optional(4) is not None:
        node.unsupported("an order of the depth (g_idx)")
    if depth < 1 or columns < 1 or block < 16 or block & (block - 1):
        node.refuse(f"K = {depth}, N = {columns} and block_size = {block} are not those of a matrix in blocks")
    blocks = -(-depth // block)
    packed = node.array(1).astype(np.uint8).reshape(-1)
    if packed.size != columns * blocks * block * bits // 8:
        node.refuse(f"its {packed.size} bytes of weights are not {columns} rows of {blocks} blocks of {block}")
    scales = node.array(2).astype(np.float32).reshape(-1)
    if scales.size != columns * blocks or not np.isfinite(scales).all():
        node.refuse(f"its {scales.size} scales are not finite numbers for {columns * blocks} blocks")
    elements = unpack(packed, 2 * packed.size, packed.dtype) if bits == 4 else packed
    # As [columns, blocks, elements of a block], whose scales are then all positive.
    elements, zeros, scales = positive_scales(
        elements.reshape(columns, blocks, block), _zero_points(node, bits, columns, blocks)[:, :, None],
        scales.reshape(columns, blocks, 1), bits,
    )  # fmt: skip
    matrix = np.ascontiguousarray(elements.reshape(columns, blocks * block)[:, :depth])
    quantization = Quantization(
        tuple(scales.reshape(-1).tolist()), tuple((-zeros).reshape(-1).tolist()), 1, bits if bits < 8 else 0,
        min(block, depth),
    )  # fmt: skip
    weights = node.builder.constant(matrix, quantization)
    transposed = OnnxValue(node.builder.dequantize(weights), (1, 0))
    a, bias = node.value(0), node.optional(5)
    result = matmul(node, node.cast(a, DataType.FLOAT_32), transposed)
    if bias is not None:
        result = node.plus(result, node.cast(bias, DataType.FLOAT_32))
    return node.cast(result, a.tensor.dtype)


def _zero_points(node: OnnxNode, bits: int, columns: int, blocks: int) -> np.ndarray:
    """Return the zero point of each block: given as packed integers or as floats; if absent, the middle."""
    zero_points = node.optional(3)
    if zero_points is None:
        return np.full((columns, blocks), 1 << (bits - 1), np.int64)
    array = node.array(3)
    if zero_points.tensor.dtype.is_float:
        if array.size != columns * blocks or (array != np.rint(array)).any() or (np.abs(array) > 255).any():
            node.unsupported("zero points that are not integers")
        return array.reshape(columns, blocks).astype(np.int64)
    # Each row of packed zero points begins with a new byte.
    row_bytes = -(-blocks * bits // 8)
    if array.size != columns * row_bytes:
        node.refuse(f"{array.size} bytes of zero points for {columns} rows of {blocks} blocks")
    data = array.astype(np.uint8).reshape(columns, row_bytes)
    rows = data if bits == 8 else unpack(data, 2 * data.size, data.dtype).reshape(columns, -1)
    return rows[:, :blocks].astype(np.int64)


CONVERTERS: dict[str, Converter] = {"com.microsoft:MatMulNBits": _matmul_nbits}
