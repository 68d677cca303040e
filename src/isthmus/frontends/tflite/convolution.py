"""Convolutions, matrix products and pooling. Filters change their axis order; paddings become explicit amounts."""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

from isthmus.frontends.tflite.elementwise import Converter
from isthmus.frontends.tflite.hybrid import activations, factors
from isthmus.frontends.tflite.operator_context import OperatorContext, data_type
from isthmus.frontends.tflite.schema import Padding
from isthmus.graph import DataType, Tensor

HWIO_OF_OHWI = (1, 2, 3, 0)
"""The permutation from TFLite's filter order [out, height, width, in] to QNN's [height, width, in, out]."""
HW1C_OF_1HWC = (1, 2, 0, 3)
"""The same for a depth-wise filter."""
IMAGE = (1, 2, 3)
"""The axes of one image."""


def _conv_2d(node: OperatorContext) -> list[Tensor]:
    """Convert to a Conv2d; the filter's input channels determine the number of groups."""
    x = node.input_of_rank(0, 4)
    weights = node.transpose(factors(node, x), HWIO_OF_OHWI)
    if weights.dims[2] < 1 or x.dims[3] % weights.dims[2]:
        node.refuse(f"{x.dims[3]} input channels cannot be grouped by the filter's {weights.dims[2]}")
    params = _window(node, x, weights)
    params["group"] = x.dims[3] // weights.dims[2]
    bias = node.bias(2, x, weights, weights.dims[3])
    return node.emit_activated("Conv2d", [activations(node, x, weights, axes=IMAGE), weights, bias], params)


def _depthwise_conv_2d(node: OperatorContext) -> list[Tensor]:
    x = node.input_of_rank(0, 4)
    weights = node.transpose(node.weights(1, x), HW1C_OF_1HWC)
    params = _window(node, x, weights)
    bias = node.bias(2, x, weights, weights.dims[3])
    return node.emit_activated("DepthWiseConv2d", [activations(node, x, weights, axes=IMAGE), weights, bias], params)


def _window(node: OperatorContext, x: Tensor, weights: Tensor, axes: str = "hw") -> dict[str, Any]:
    """Return the parameters stride, dilation and pad_amount of a convolution; `axes` are the endings of options."""
    strides, dilations = (node.positive(*(f"{name}_{axis}" for axis in axes)) for name in ("stride", "dilation"))
    pads = [node.padding(x.dims[1 + i], weights.dims[i], strides[i], dilations[i]) for i in range(len(axes))]
    return {"stride": strides, "dilation": dilations, "pad_amount": pads}


def _conv_3d(node: OperatorContext) -> list[Tensor]:
    x, weights = node.input_of_rank(0, 5), node.input_of_rank(1, 5)
    params = _window(node, x, weights, axes="dhw")
    return node.emit_activated("Conv3d", [x, weights, node.bias(2, x, weights, weights.dims[4])], params)


def _transpose_conv(node: OperatorContext) -> list[Tensor]:
    """Convert to a TransposeConv2d. The operands are the output's shape, the filter, the input and the bias."""
    # If the shape is known only at run time, it must be the one that the file declares.
    sizes = node.integers(0) if node.input(0).is_static else list(node.output().shape)
    x = node.input_of_rank(2, 4)
    if len(sizes) != 4:
        node.refuse(f"the output shape must have 4 elements, has {len(sizes)}")
    strides = (*node.positive("stride_h", "stride_w"),)
    weights = node.transpose(node.weights(1, x), HWIO_OF_OHWI)
    bias = node.bias(3, x, weights, weights.dims[3])
    params = _transpose_window(node, x, weights, strides, (sizes[1], sizes[2]), node.options["padding"])
    return node.emit_activated("TransposeConv2d", [activations(node, x, weights, axes=IMAGE), weights, bias], params)


def _transpose_window(
    node: OperatorContext, x: Tensor, weights: Tensor, strides: tuple[int, ...], sizes: tuple[int, int], padding: int
) -> dict[str, Any]:
    """Return the padding that gives a transposed convolution the height and width that the file specifies."""
    # With `Padding.SAME` the output is cropped to its size, with `Padding.VALID` it is only extended.
    pads, extra = [], []
    for axis, (stride, size) in enumerate(zip(strides, sizes, strict=True)):
        full = (x.dims[1 + axis] - 1) * stride + weights.dims[axis]
        total = max(full - size, 0) if padding == Padding.SAME else 0
        if not 0 <= size - (full - total) < max(stride, 1):
            node.refuse(f"an output of {size} does not follow from {x.dims[1 + axis]} inputs along axis {1 + axis}")
        pads.append((total // 2, total - total // 2))
        extra.append(size - (full - total))
    return {"stride": strides, "pad_amount": pads, "output_padding": extra}


def _transpose_conv_bias(node: OperatorContext) -> list[Tensor]:
    """Convert MediaPipe's custom operator: a transposed convolution whose output is `stride` times its input."""
    if len(node.entry.custom_options) < 12:
        node.refuse("its custom options must hold padding and strides")
    # TfLitePadding counts from 1 (SAME), unlike the schema's enumeration.
    padding, stride_w, stride_h = struct.unpack_from("<iii", node.entry.custom_options)
    x = node.input_of_rank(0, 4)
    if padding not in (1, 2) or min(stride_h, stride_w) < 1:
        node.refuse(f"padding {padding} and strides {stride_h}, {stride_w} make no sense")
    weights = node.transpose(node.weights(1, x), HWIO_OF_OHWI)
    bias = node.bias(2, x, weights, weights.dims[3])
    strides = (stride_h, stride_w)
    same = padding == 1
    # The output is stride times the input; with VALID padding there is room for the whole filter in addition.
    sizes = tuple(x.dims[1 + i] * strides[i] + (0 if same else max(weights.dims[i] - strides[i], 0)) for i in range(2))
    params = _transpose_window(node, x, weights, strides, (sizes[0], sizes[1]), Padding.SAME if same else Padding.VALID)
    return [node.emit("TransposeConv2d", [x, weights, bias], params)]


def _fully_connected(node: OperatorContext) -> list[Tensor]:
    """Convert to a FullyConnected with weights [out, in] and an optional bias."""
    if node.options["weights_format"]:
        node.unsupported("shuffled weights are not supported")
    x = node.input(0)
    weights = factors(node, x)
    if weights.rank != 2:
        node.refuse(f"the weights must have rank 2, have rank {weights.rank}")
    bias = node.bias(2, x, weights, weights.dims[0])
    # Activations with other dimensions are taken as rows of features, each of which is rounded by its own range.
    if x.dtype.is_float and x.dims[-1:] != weights.dims[1:] and weights.dims[1] and not x.elements % weights.dims[1]:
        x = node.reshape(x, (x.elements // weights.dims[1], weights.dims[1]))
    x = activations(node, x, weights, axes=[-1])
    return node.emit_activated("FullyConnected", [x, weights, bias], {"keep_dims": bool(node.options["keep_num_dims"])})


def _batch_matmul(node: OperatorContext) -> list[Tensor]:
    """Convert to a MatMul; fixed-point weights of float activations are dequantized."""
    left, right = node.input(0), node.input(1)
    params = {"transpose_in0": bool(node.options["adj_x"]), "transpose_in1": bool(node.options["adj_y"])}
    if {left.dtype, right.dtype} == {DataType.SFIXED_POINT_8} and data_type(node.output()) is DataType.INT_32:
        return [_product_of_stored(node, left, right)]
    if left.dtype.is_float and right.dtype.is_fixed_point:
        right = node.real(right)
        left = activations(node, left, right, axes=[-2 if node.options["adj_x"] else -1])
    return [node.emit("MatMul", [left, right], params)]


def _product_of_stored(node: OperatorContext, left: Tensor, right: Tensor) -> Tensor:
    """Emit the product of stored bytes as 32-bit integers; LiteRT's kernel for it does not subtract zero points."""
    operands = []
    for tensor, adjoint in ((left, node.options["adj_x"]), (right, node.options["adj_y"])):
        order = (*range(tensor.rank - 2), tensor.rank - 1, tensor.rank - 2)
        plain = node.step("Cast", [tensor], dtype=DataType.INT_8)
        operands.append(node.step("Transpose", [plain], {"perm": order}) if adjoint else plain)
    return node.emit("MatMulInteger", operands)


def _pool(node: OperatorContext, op: str) -> list[Tensor]:
    """Convert to a pooling operation. LiteRT rounds ties of fixed-point averages away from 0."""
    x = node.input_of_rank(0, 4)
    strides = node.positive("stride_h", "stride_w")
    sizes = node.positive("filter_h", "filter_w")
    pads = [node.padding(x.dims[1 + i], sizes[i], strides[i]) for i in range(2)]
    params: dict[str, Any] = {"filter_size": sizes, "stride": strides, "pad_amount": pads}
    if op == "PoolAvg2d" and x.dtype.is_fixed_point:
        params["ties_away_from_zero"] = True
    return node.emit_activated(op, [x], params)


def _local_response_normalization(node: OperatorContext) -> list[Tensor]:
    o = node.options
    radius = int(o["radius"])
    if radius < 0:
        node.refuse(f"option radius must not be negative, is {radius}")
    params = {"alpha": o["alpha"], "beta": o["beta"], "bias": o["bias"], "radius": radius}
    return [node.emit("Lrn", [node.input_of_rank(0, 4)], params)]


CONVERTERS: dict[str, Converter] = {
    "AVERAGE_POOL_2D": partial(_pool, op="PoolAvg2d"),
    "BATCH_MATMUL": _batch_matmul,
    "CONV_2D": _conv_2d,
    "CONV_3D": _conv_3d,
    "CUSTOM:Convolution2DTransposeBias": _transpose_conv_bias,
    "DEPTHWISE_CONV_2D": _depthwise_conv_2d,
    "FULLY_CONNECTED": _fully_connected,
    "L2_POOL_2D": partial(_pool, op="L2Pool2d"),
    "LOCAL_RESPONSE_NORMALIZATION": _local_response_normalization,
    "MAX_POOL_2D": partial(_pool, op="PoolMax2d"),
    "TRANSPOSE_CONV": _transpose_conv,
}
