"""Properties of fixed-point steps that decide what an engine computes: stored limits, 8-bit tensors, hybrid
products.
"""

from __future__ import annotations

import numpy as np

from isthmus.graph import DataType, Quantization, Tensor
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

# The operations that can multiply floats by bytes, and the axis of their weights that has the output channels.
_HYBRID_COLUMN_AXIS = {"FullyConnected": 0, "Conv2d": 3}
# With this many products, a sum of products of two bytes may no longer fit 32 bits.
_MAX_HYBRID_DEPTH = (1 << 31) // (255 * 128)


def is_eight_bit(tensor: Tensor | None) -> bool:
    """Return whether a tensor holds 8-bit fixed-point values with one scale."""
    return (
        tensor is not None
        and tensor.dtype in (DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_8)
        and quantization_of(tensor).axis is None
    )


def is_sixteen_bit(tensor: Tensor | None) -> bool:
    """Return whether a tensor holds 16-bit fixed-point values with one scale."""
    return (
        tensor is not None
        and tensor.dtype in (DataType.SFIXED_POINT_16, DataType.UFIXED_POINT_16)
        and quantization_of(tensor).axis is None
    )


def expand(source: Tensor, dtype: DataType) -> np.ndarray:
    """Return the elements of a constant that was expanded from another one with 4-bit elements.

    FLOAT_32 elements are reals. 8-bit ones are the products of elements and the factors of their blocks; these wrap
    around if they do not fit.
    """
    quantization, data = quantization_of(source), source.data
    assert data is not None
    if dtype is DataType.FLOAT_32:
        return quantization.dequantize(data)
    return (data.astype(np.int64) * quantization.spread(quantization.factors, source.dims)).astype(dtype.numpy)


def block_scales(channels: Quantization, blocks: Quantization, dims: tuple[int, ...]) -> tuple[float, ...]:
    """Return the scales of blocks: the scales of channels times the factors of the blocks."""
    grid = blocks.grid(dims)
    units = np.broadcast_to(channels.spread(channels.scales, dims), grid)
    return tuple((units * np.array(blocks.factors).reshape(grid)).reshape(-1).tolist())


def quantization_of(tensor: Tensor) -> Quantization:
    """Return the quantization of a fixed-point tensor."""
    assert tensor.quantization is not None
    return tensor.quantization


def stored_limits(step: Step, output: Tensor) -> tuple[int, int]:
    """Return the smallest and largest stored value of an output: its type's limits, narrowed by a fused activation."""
    info, quantization = np.iinfo(output.dtype.numpy), quantization_of(output)
    least, most = int(info.min), int(info.max)
    if step.clamp is not None:
        low, high = (
            np.clip(np.rint(np.float64(c) / quantization.scale) + quantization.zero_point, least, most)
            for c in step.clamp
        )
        least, most = int(low), int(high)
    return least, most


def centred_weights(weights: Tensor) -> np.ndarray | None:
    """Return constant weights as signed bytes with zero point 0; None if that is impossible."""
    assert weights.data is not None
    zeros = set(quantization_of(weights).offsets) if weights.dtype.is_fixed_point else set()
    if weights.dtype is DataType.SFIXED_POINT_8 and zeros == {0}:
        return weights.data
    if weights.dtype is DataType.UFIXED_POINT_8 and zeros == {-128}:
        return (weights.data.astype(np.int16) - 128).astype(np.int8)
    return None


def is_hybrid(step: Step) -> bool:
    """Return whether a step multiplies floats by constant signed bytes and its sums fit 32 bits.

    An engine then rounds the floats to bytes too, and multiplies integers.
    """
    axis = _HYBRID_COLUMN_AXIS.get(step.op)
    if axis is None:
        return False
    x, weights, bias = operand(step, 0), operand(step, 1), step.inputs[2] if len(step.inputs) > 2 else None
    floats = all(t is None or t.dtype is DataType.FLOAT_32 for t in (x, bias, *step.outputs))
    if not floats or not weights.is_static or centred_weights(weights) is None or not (bias is None or bias.is_static):
        return False
    if not all(t.elements for t in (x, weights, *step.outputs)):
        return False
    deep = weights.elements // weights.dims[axis] >= _MAX_HYBRID_DEPTH
    return quantization_of(weights).axis in (None, axis) and not deep
