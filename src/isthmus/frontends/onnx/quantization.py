"""Quantized models: QuantizeLinear and DequantizeLinear pairs, the QLinear operators, and dynamic quantization.

Integers that represent quantized reals become fixed-point tensors; scales and zero points become their quantization.
In QLinear operators the scale and zero point of a quantized operand are the next two operands; the result's are also
two consecutive operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from isthmus.errors import QnnError
from isthmus.frontends.onnx.convolution import convolve
from isthmus.frontends.onnx.elementwise import leaky_relu
from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.linear import matmul
from isthmus.frontends.onnx.movement import expand, join, slice_value
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.frontends.onnx.pooling import average_pool, global_pool
from isthmus.frontends.onnx.reduction import reduce_value, softmax
from isthmus.frontends.onnx.tensors import FOUR_BITS, QUANTIZED, UINT8, ExternalData, element_type, to_array
from isthmus.graph import DataType, Quantization, Tensor

# The integer types that can hold fixed-point values.
_FIXED = (DataType.INT_8, DataType.UINT_8, DataType.INT_16, DataType.UINT_16, DataType.INT_32)


def four_bits(number: int) -> Quantization | None:
    """Return the quantization that marks constants of a 4-bit element type; None for other types."""
    return Quantization((1.0,), (0,), bits=4) if number in FOUR_BITS else None


def _bits(value: OnnxValue) -> int:
    """Return how many bits the integers of a value have, if fewer than their type; otherwise 0."""
    return 0 if value.tensor.quantization is None else value.tensor.quantization.bits


def _encoding(scales: np.ndarray, zero_points: np.ndarray | None, axis: int) -> Quantization | None:
    """Return the quantization for scales and zero points; None if they are not valid for a fixed-point tensor."""
    scales = np.asarray(scales, np.float32).reshape(-1)
    points = np.zeros(len(scales), np.int64) if zero_points is None else np.asarray(zero_points).reshape(-1)
    if not len(scales) or not (np.isfinite(scales) & (scales > 0)).all() or len(points) not in (1, len(scales)):
        return None
    if len(scales) == 1:
        return Quantization.per_tensor(float(scales[0]), int(points[0]))
    return Quantization.per_channel(scales, np.broadcast_to(points, scales.shape), axis)


def _constant_encoding(node: OnnxNode, x: OnnxValue, scale: int, point: int, axis: int) -> Quantization | None:
    """Return the quantization of `x` if its scales and zero points, operands `scale` and `point`, are constants."""
    # Several scales belong to an axis of ONNX's view.
    if node.attr("block_size", 0):
        return None
    scales = node.builder.array(node.value(scale))
    points = None if node.optional(point) is None else node.builder.array(node.value(point))
    if scales is None or (points is None and node.optional(point) is not None):
        return None
    if scales.size == 1:
        return _encoding(scales, points, 0)
    if scales.ndim != 1:
        return None
    axis = node.axis(axis, x.rank)
    return _encoding(scales, points, x.perm[axis]) if scales.size == x.dims[axis] else None


def positive_scales(
    elements: np.ndarray, points: np.ndarray, scales: np.ndarray, bits: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return elements, zero points and scales with the same reals, where all scales are positive.

    ONNX Runtime's tools write negative scales for blocks whose largest element is negative. The elements of such a
    block are counted from the other end of their range. A scale of 0 becomes 1, and all elements the zero point.

    - `elements`: integers, of which `bits` bits are used; all if it is 0.
    - `points`, `scales`: the zero point and the scale of each element, as arrays that broadcast with the elements.
    """
    ends = sum(Quantization((1.0,), (0,), bits=bits).limits(elements.dtype))
    flipped, points = np.where(scales < 0, ends - elements.astype(np.int64), elements), points.astype(np.int64)
    points = np.where(scales < 0, ends - points, points)
    flipped = np.where(scales == 0, points, flipped)
    return flipped.astype(elements.dtype), points, np.where(scales == 0, np.float32(1), np.abs(scales))


def _dequantize_blocks(node: OnnxNode, x: OnnxValue, block: int) -> OnnxValue | None:
    """Dequantize a constant that has a scale for each block along an axis; None if it has no such quantization."""
    scales, elements = node.builder.array(node.value(1)), node.builder.array(x)
    points = np.zeros(1, np.int64) if node.optional(2) is None else node.builder.array(node.value(2))
    axis, bits = node.axis(int(node.attr("axis", 1)), x.rank), _bits(x)
    if scales is None or points is None or elements is None or not np.isfinite(scales).all():
        return None
    blocks = Quantization((1.0,), (0,), axis, bits, block)
    if blocks.grid(x.dims) != scales.shape or (points.size > 1 and points.shape != scales.shape):
        return None
    points = np.broadcast_to(points, scales.shape)
    if (scales <= 0).any():
        spread = [blocks.spread(part.reshape(-1).tolist(), x.dims) for part in (points, scales)]
        elements, _, _ = positive_scales(elements, spread[0], spread[1], bits)
        _, points, scales = positive_scales(np.zeros(scales.shape, elements.dtype), points, scales, bits)
    values = np.asarray(scales, np.float32).reshape(-1).tolist(), (-points.astype(np.int64)).reshape(-1).tolist()
    quantization = replace(blocks, scales=tuple(values[0]), offsets=tuple(values[1]))
    return OnnxValue.of(node.builder.dequantize(node.builder.constant(elements, quantization)))


def _fixed_point(node: OnnxNode, index: int, axis: int = 0) -> OnnxValue:
    """Return operand `index` as a fixed-point value; its scale and zero point are the next two operands."""
    # `axis` is the axis of ONNX's view that several scales belong to.
    x = node.value(index)
    quantization = _constant_encoding(node, x, index + 1, index + 2, axis)
    if quantization is None:
        node.unsupported(f"scale or zero point of input {index} is not a usable constant")
    return OnnxValue(
        node.builder.reinterpret(x.tensor, DataType.fixed_point(x.tensor.dtype.numpy), quantization), x.perm
    )


def _output(node: OnnxNode, scale: int) -> dict[str, Any]:
    """Return data type and quantization of the result, from operand `scale` and the zero point after it."""
    points = node.array(scale + 1) if node.optional(scale + 1) is not None else np.zeros(1, np.uint8)
    quantization = _encoding(node.array(scale), points, 0)
    if quantization is None or quantization.axis is not None:
        node.unsupported("scale of the result is not one positive constant")
    return {"dtypes": [DataType.fixed_point(points.dtype)], "quantizations": [quantization]}


def _quantize(node: OnnxNode) -> OnnxValue:
    """Convert to a Quantize, or to arithmetic if the scale or the zero point is not constant."""
    x = node.value(0)
    zero_point = node.optional(2)
    number = node.attr("output_dtype", 0)
    dtype = zero_point.tensor.dtype if zero_point is not None else DataType.of(element_type(number or UINT8, node.what))
    dtype = DataType.of(dtype.numpy)
    narrow = number in FOUR_BITS or (zero_point is not None and _bits(zero_point) > 0)
    x = node.cast(x, DataType.FLOAT_32)
    quantization = _constant_encoding(node, x, 1, 2, int(node.attr("axis", 1)))
    if dtype not in _FIXED:
        node.unsupported(f"data type {dtype.name}")
    if quantization is not None and not narrow:
        fixed = DataType.fixed_point(dtype.numpy)
        return node.apply("Quantize", x, dtypes=[fixed], quantizations=[quantization])
    scale = _along(node, node.value(1), x)
    shift = None
    if zero_point is not None:
        shift = node.cast(_along(node, node.builder.plain(zero_point), x), DataType.FLOAT_32)
    return _round(node, x, scale, shift, dtype, 4 if narrow else 0)


def _along(node: OnnxNode, value: OnnxValue, x: OnnxValue) -> OnnxValue:
    """Reshape the scales or zero points of a channel axis, or of blocks along it, to broadcast with `x`."""
    block = int(node.attr("block_size", 0))
    if block:
        return _spread_blocks(node, value, x, block)
    if value.rank != 1 or value.dims[0] == 1:
        return value
    axis = node.axis(int(node.attr("axis", 1)), x.rank)
    return node.reshape_to(value, (value.dims[0], *(1,) * (x.rank - axis - 1)))


def _spread_blocks(node: OnnxNode, value: OnnxValue, x: OnnxValue, block: int) -> OnnxValue:
    """Repeat each scale over the block of elements that it applies to."""
    axis = node.axis(int(node.attr("axis", 1)), x.rank)
    if value.rank != x.rank or not 0 < block <= x.dims[axis] or value.dims[axis] * block < x.dims[axis]:
        node.refuse(f"blocks of {block} with scales {list(value.dims)} do not cover {list(x.dims)}")
    before, after = value.dims[: axis + 1], value.dims[axis + 1 :]
    repeated = expand(node, node.reshape_to(value, (*before, 1, *after)), (*before, block, *after))
    flat = node.reshape_to(repeated, (*before[:-1], before[-1] * block, *after))
    return slice_value(node, flat, {axis: (0, x.dims[axis], 1)})


def _round(
    node: OnnxNode, x: OnnxValue, scale: OnnxValue, shift: OnnxValue | None, dtype: DataType, bits: int = 0
) -> OnnxValue:
    """Quantize by plain arithmetic, because the scale or zero point is known only at run time, or to fewer bits."""
    steps = node.elementwise("ElementWiseRound", node.over(x, scale))
    if shift is not None:
        steps = node.plus(steps, shift)
    least, most = Quantization((1.0,), (0,), bits=bits).limits(dtype.numpy)
    bounds = {"min_value": float(least), "max_value": float(most)}
    return node.cast(node.elementwise("ReluMinMax", steps, params=bounds), dtype)


def _dequantize(node: OnnxNode) -> OnnxValue:
    """Convert to a Dequantize, or to arithmetic if the scale or the zero point is not constant."""
    x = node.value(0)
    if DataType.of(x.tensor.dtype.numpy) not in _FIXED:
        node.unsupported(f"data type {x.tensor.dtype.name}")
    block = int(node.attr("block_size", 0))
    blocks = _dequantize_blocks(node, x, block) if block > 0 and x.is_static else None
    if blocks is not None:
        return blocks
    quantization = _constant_encoding(node, x, 1, 2, int(node.attr("axis", 1)))
    if quantization is not None:
        fixed, quantization = DataType.fixed_point(x.tensor.dtype.numpy), replace(quantization, bits=_bits(x))
        return OnnxValue(node.builder.dequantize(node.builder.reinterpret(x.tensor, fixed, quantization)), x.perm)
    steps = node.cast(node.builder.plain(x), DataType.FLOAT_32)
    zero_point = node.optional(2)
    if zero_point is not None:
        shift = node.cast(_along(node, node.builder.plain(zero_point), x), DataType.FLOAT_32)
        steps = node.minus(steps, shift)
    return node.times(steps, _along(node, node.value(1), x))


def _dynamic_quantize(node: OnnxNode) -> list[OnnxValue | None]:
    """Quantize as ONNX defines it: the range of the data, extended to include 0, is mapped to 0..255."""
    x = node.value(0)
    axes = range(x.rank)
    low = node.elementwise("ElementWiseMinimum", reduce_value(node, "ReduceMin", x, list(axes), False), 0.0)
    high = node.elementwise("ElementWiseMaximum", reduce_value(node, "ReduceMax", x, list(axes), False), 0.0)
    span = node.minus(high, low)
    scale = node.over(span, 255.0)
    # Data of zeros only has no range; any scale represents it.
    is_zero = node.elementwise("ElementWiseEqual", scale, 0.0)
    scale = node.choose(is_zero, 1.0, scale)
    offset = node.over(node.elementwise("ElementWiseNeg", low), scale)
    bounds = {"min_value": 0.0, "max_value": 255.0}
    point = node.elementwise("ElementWiseRound", node.elementwise("ReluMinMax", offset, params=bounds))
    return [_round(node, x, scale, point, DataType.UINT_8), scale, node.cast(point, DataType.UINT_8)]


def _qlinear_conv(node: OnnxNode) -> OnnxValue:
    """Convolve fixed-point operands."""
    # The operands are x and weights, each followed by its scale and zero point, then those of the result, then the
    # bias.
    x, weights = _fixed_point(node, 0), _fixed_point(node, 3, axis=0)
    bias = None if node.optional(8) is None else _product_bias(node, node.value(8), x.tensor, weights)
    return convolve(node, x, weights, bias, **_output(node, 6))


def _product_bias(node: OnnxNode, bias: OnnxValue, x: Tensor, weights: OnnxValue) -> Tensor:
    """Return an int32 bias with the scale of the product: input scale times weight scale."""
    first, second = x.quantization, weights.tensor.quantization
    if first is None or second is None or bias.tensor.dtype is not DataType.INT_32:
        node.unsupported("a bias that is not int32")
    scales = [float(np.float32(first.scale) * np.float32(scale)) for scale in second.scales]
    if len(scales) == 1:
        encoding = Quantization.per_tensor(scales[0])
    else:
        encoding = Quantization.per_channel(np.array(scales), np.zeros(len(scales), np.int64), 0)
    return node.builder.reinterpret(node.materialize(bias), DataType.SFIXED_POINT_32, encoding)


def _qlinear_matmul(node: OnnxNode) -> OnnxValue:
    b = node.value(3)
    return matmul(node, _fixed_point(node, 0), _fixed_point(node, 3, axis=b.rank - 1), **_output(node, 6))


def _qgemm(node: OnnxNode) -> OnnxValue:
    """Convert to a FullyConnected with weights [out, in], fixed-point operands and a fixed-point result."""
    if node.attr("transA", 0) or node.attr("alpha", 1.0) != 1.0 or node.optional(7) is None:
        node.unsupported("transA, alpha, or a float result")
    x, weights = _fixed_point(node, 0), _fixed_point(node, 3, axis=0 if node.attr("transB", 0) else 1)
    if not node.attr("transB", 0):
        weights = weights.permute()
    operands = [node.materialize(x), node.materialize(weights)]
    if node.optional(6) is not None:
        operands.append(_product_bias(node, node.value(6), x.tensor, weights))
    return OnnxValue.of(node.emit("FullyConnected", operands, **_output(node, 7)))


def _qlinear_binary(node: OnnxNode, op: str) -> OnnxValue:
    """Convert to an operation with two fixed-point operands and a fixed-point result."""
    return node.elementwise(op, _fixed_point(node, 0), _fixed_point(node, 3), **_output(node, 6))


def _qlinear_leaky_relu(node: OnnxNode) -> OnnxValue:
    """Dequantize, apply the slope to floats, and quantize again."""
    real = OnnxValue(node.builder.dequantize(_fixed_point(node, 0).tensor), node.value(0).perm)
    return node.apply("Quantize", leaky_relu(node, real, node.attr("alpha", 0.01)), **_output(node, 3))


def _qlinear_pool(node: OnnxNode) -> OnnxValue:
    if node.attr("channels_last", 0):
        node.unsupported("channels_last")
    if node.op == "QLinearGlobalAveragePool":
        return global_pool(node, _fixed_point(node, 0), "ReduceMean", **_output(node, 3))
    return average_pool(node, _fixed_point(node, 0), **_output(node, 3))


def _qlinear_concat(node: OnnxNode) -> OnnxValue:
    """Concatenate fixed-point values, each converted to the result's quantization if it differs."""
    output = _output(node, 0)
    dtype, quantization = output["dtypes"][0], output["quantizations"][0]
    values = []
    for index in range(2, len(node.inputs), 3):
        x = _fixed_point(node, index)
        if x.tensor.dtype is not dtype or x.tensor.quantization != quantization:
            x = node.apply("Convert", x, **output)
        values.append(x)
    return join(node, values, node.axis(int(node.attr("axis", 0)), values[0].rank), **output)


def _matmul_to_float(node: OnnxNode) -> OnnxValue:
    """Compute a float from an integer product whose scales are operands (com.microsoft:MatMulIntegerToFloat)."""
    a, b = (_subtract_zero(node, node.value(index), node.optional(point)) for index, point in ((0, 4), (1, 5)))
    scaled = node.times(matmul(node, a, b), node.value(2))
    result = node.times(scaled, node.value(3))
    bias = node.optional(6)
    return result if bias is None else node.plus(result, bias)


def _subtract_zero(node: OnnxNode, value: OnnxValue, zero_point: OnnxValue | None) -> OnnxValue:
    """Return integers minus their zero point, as floats."""
    real = node.cast(node.builder.plain(value), DataType.FLOAT_32)
    if zero_point is None:
        return real
    return node.minus(real, node.cast(node.builder.plain(zero_point), DataType.FLOAT_32))


CONVERTERS: dict[str, Converter] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "com.microsoft:QLinearAdd": partial(_qlinear_binary, op="ElementWiseAdd"),
    "com.microsoft:QLinearMul": partial(_qlinear_binary, op="ElementWiseMultiply"),
    "com.microsoft:QLinearSigmoid": lambda node: node.elementwise("Sigmoid", _fixed_point(node, 0), **_output(node, 3)),
    "com.microsoft:QLinearLeakyRelu": _qlinear_leaky_relu,
    "com.microsoft:QLinearAveragePool": _qlinear_pool,
    "com.microsoft:QLinearGlobalAveragePool": _qlinear_pool,
    "com.microsoft:QLinearSoftmax": lambda node: softmax(node, _fixed_point(node, 0), "Softmax", **_output(node, 3)),
    "com.microsoft:QLinearConcat": _qlinear_concat,
    "com.microsoft:QGemm": _qgemm,
    "com.microsoft:MatMulIntegerToFloat": _matmul_to_float,
    "com.microsoft:QuantizeLinear": _quantize,
    "com.microsoft:DequantizeLinear": _dequantize,
}

# The positions of each operator's quantized operands; each is followed by its scale and zero point.
_TRIPLES: dict[str, tuple[int, ...]] = {
    "DequantizeLinear": (0,), "QLinearConv": (0,), "QLinearMatMul": (0, 3), "QLinearAdd": (0, 3), "QLinearMul": (0, 3),
    "QLinearSigmoid": (0,), "QLinearLeakyRelu": (0,), "QLinearAveragePool": (0,), "QLinearGlobalAveragePool": (0,),
    "QLinearSoftmax": (0,), "QGemm": (0,),
}  # fmt: skip


def _uses(graph: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the names of quantized operands with those of their scales and zero points."""
    for node in graph.node:
        for index in _TRIPLES.get(node.op_type, ()):
            # Inputs that are omitted at the end count as absent.
            names = [*node.input[index : index + 3], "", "", ""]
            if names[0] and names[1]:
                yield names[0], names[1], names[2]


def input_quantizations(graph: Any, external: ExternalData | None) -> dict[str, Quantization]:
    """Return the quantizations of integer graph inputs, where a node that reads them gives constant scales."""
    constants: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
    integers = {value.name for value in graph.input if value.type.tensor_type.elem_type in QUANTIZED}
    inputs = integers - constants.keys()
    for node in graph.node:
        if node.op_type == "Constant" and len(node.output) == 1:
            for attribute in node.attribute:
                if attribute.name == "value":
                    constants[node.output[0]] = attribute.t
    quantizations: dict[str, Quantization] = {}
    for name, scale, point in _uses(graph):
        if name not in inputs or name in quantizations or scale not in constants or (point and point not in constants):
            continue
        try:
            scales = to_array(constants[scale], external)
            points = to_array(constants[point], external) if point else None
        except QnnError:
            continue
        if scales.size == 1 and math.isfinite(float(scales.reshape(-1)[0])):
            quantization = _encoding(scales, points, 0)
            if quantization is not None:
                quantizations[name] = quantization
    return quantizations
