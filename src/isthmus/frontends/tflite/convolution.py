"""Convolutions, matrix products and pooling. Filters change their axis order; paddings become explicit amounts.

Functions in `CONVERTERS` take an operator's context, emit operations, and return the results (see `Converter`).
"""

from __future__ import annotations

import struct
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


def _conv_2d(site: OperatorContext) -> list[Tensor]:
    """Convert to a Conv2d; the filter's input channels determine the number of groups."""
    x = site.ranked(0, 4)
    weights = site.transposed(factors(site, x), HWIO_OF_OHWI)
    if weights.dims[2] < 1 or x.dims[3] % weights.dims[2]:
        site.refuse(f"{x.dims[3]} input channels cannot be grouped by the filter's {weights.dims[2]}")
    params = _window(site, x, weights, "stride", "dilation")
    params["group"] = x.dims[3] // weights.dims[2]
    bias = site.bias(2, x, weights, weights.dims[3])
    return site.activated("Conv2d", [activations(site, x, weights, 1, IMAGE), weights, bias], params)


def _depthwise_conv_2d(site: OperatorContext) -> list[Tensor]:
    x = site.ranked(0, 4)
    weights = site.transposed(site.weights(1, x), HW1C_OF_1HWC)
    params = _window(site, x, weights, "stride", "dilation")
    bias = site.bias(2, x, weights, weights.dims[3])
    return site.activated("DepthWiseConv2d", [activations(site, x, weights, 1, IMAGE), weights, bias], params)


def _window(site: OperatorContext, x: Tensor, weights: Tensor, stride: str, dilation: str) -> dict[str, Any]:
    """Return the parameters stride, dilation and pad_amount of a convolution.

    `stride` and `dilation` are the names of the options without their endings ``_h`` and ``_w``.
    """
    strides = site.positive(f"{stride}_h", f"{stride}_w")
    dilations = site.positive(f"{dilation}_h", f"{dilation}_w")
    pads = [site.padding(x.dims[1 + i], weights.dims[i], strides[i], dilations[i]) for i in range(2)]
    return {"stride": strides, "dilation": dilations, "pad_amount": pads}


def _conv_3d(site: OperatorContext) -> list[Tensor]:
    x, weights = site.ranked(0, 5), site.ranked(1, 5)
    strides = site.positive("stride_d", "stride_h", "stride_w")
    dilations = site.positive("dilation_d", "dilation_h", "dilation_w")
    pads = [site.padding(x.dims[1 + i], weights.dims[i], strides[i], dilations[i]) for i in range(3)]
    bias = site.bias(2, x, weights, weights.dims[4])
    params = {"stride": strides, "dilation": dilations, "pad_amount": pads}
    return site.activated("Conv3d", [x, weights, bias], params)


def _transpose_conv(site: OperatorContext) -> list[Tensor]:
    """Convert to a TransposeConv2d. The operands are the output's shape, the filter, the input and the bias.

    If the shape is known only at run time, it must be the one that the file declares.
    """
    sizes = site.integers(0) if site.input(0).is_static else list(site.output().shape)
    x = site.ranked(2, 4)
    if len(sizes) != 4:
        site.refuse(f"the output shape must have 4 elements, has {len(sizes)}")
    strides = (*site.positive("stride_h", "stride_w"),)
    weights = site.transposed(site.weights(1, x), (1, 2, 3, 0))
    bias = site.bias(3, x, weights, weights.dims[3])
    params = _transposed_window(site, x, weights, strides, (sizes[1], sizes[2]), site.options["padding"])
    return site.activated("TransposeConv2d", [activations(site, x, weights, 1, IMAGE), weights, bias], params)


def _transposed_window(
    site: OperatorContext, x: Tensor, weights: Tensor, strides: tuple[int, ...], sizes: tuple[int, int], padding: int
) -> dict[str, Any]:
    """Return the padding that gives a transposed convolution the output sizes that the file specifies.

    Parameters
    ----------
    sizes
        The height and width of the output.
    padding
        A value of `Padding`: with SAME the output is cropped to its size, with VALID it is only extended.
    """
    pads, extra = [], []
    for axis, (stride, size) in enumerate(zip(strides, sizes, strict=True)):
        full = (x.dims[1 + axis] - 1) * stride + weights.dims[axis]
        total = max(full - size, 0) if padding == Padding.SAME else 0
        if not 0 <= size - (full - total) < max(stride, 1):
            site.refuse(f"an output of {size} does not follow from {x.dims[1 + axis]} inputs along axis {1 + axis}")
        pads.append((total // 2, total - total // 2))
        extra.append(size - (full - total))
    return {"stride": strides, "pad_amount": pads, "output_padding": extra}


def _transpose_conv_bias(site: OperatorContext) -> list[Tensor]:
    """Convert MediaPipe's custom operator: a transposed convolution whose output is `stride` times its input."""
    if len(site.entry.custom_options) < 12:
        site.refuse("its custom options must hold padding and strides")
    # TfLitePadding counts from 1 (SAME), unlike the schema's enumeration.
    padding, stride_w, stride_h = struct.unpack_from("<iii", site.entry.custom_options)
    x = site.ranked(0, 4)
    if padding not in (1, 2) or min(stride_h, stride_w) < 1:
        site.refuse(f"padding {padding} and strides {stride_h}, {stride_w} make no sense")
    weights = site.transposed(site.weights(1, x), (1, 2, 3, 0))
    bias = site.bias(2, x, weights, weights.dims[3])
    strides = (stride_h, stride_w)
    same = padding == 1
    # The output is stride times the input; with VALID padding there is room for the whole filter in addition.
    sizes = tuple(x.dims[1 + i] * strides[i] + (0 if same else max(weights.dims[i] - strides[i], 0)) for i in range(2))
    params = _transposed_window(
        site, x, weights, strides, (sizes[0], sizes[1]), Padding.SAME if same else Padding.VALID
    )
    return [site.emit("TransposeConv2d", [x, weights, bias], params)]


def _fully_connected(site: OperatorContext) -> list[Tensor]:
    """Convert to a FullyConnected with weights [out, in] and an optional bias."""
    if site.options["weights_format"]:
        site.unsupported("shuffled weights are not supported")
    x = site.input(0)
    weights = factors(site, x)
    if weights.rank != 2:
        site.refuse(f"the weights must have rank 2, have rank {weights.rank}")
    bias = site.bias(2, x, weights, weights.dims[0])
    # Activations with other dimensions are taken as rows of features, each of which is rounded by its own range.
    if x.dtype.is_float and x.dims[-1:] != weights.dims[1:] and weights.dims[1] and not x.elements % weights.dims[1]:
        x = site.reshape(x, (x.elements // weights.dims[1], weights.dims[1]))
    x = activations(site, x, weights, 1, [-1])
    return site.activated("FullyConnected", [x, weights, bias], {"keep_dims": bool(site.options["keep_num_dims"])})


def _batch_matmul(site: OperatorContext) -> list[Tensor]:
    """Convert to a MatMul; fixed-point weights of float activations are dequantized."""
    left, right = site.input(0), site.input(1)
    params = {"transpose_in0": bool(site.options["adj_x"]), "transpose_in1": bool(site.options["adj_y"])}
    if {left.dtype, right.dtype} == {DataType.SFIXED_POINT_8} and data_type(site.output()) is DataType.INT_32:
        return [_product_of_stored(site, left, right)]
    if left.dtype.is_float and right.dtype.is_fixed_point:
        right = site.real(right)
        left = activations(site, left, right, 1, [-2 if site.options["adj_x"] else -1])
    return [site.emit("MatMul", [left, right], params)]


def _product_of_stored(site: OperatorContext, left: Tensor, right: Tensor) -> Tensor:
    """Emit the product of stored bytes as 32-bit integers; LiteRT's kernel for it does not subtract zero points."""
    operands = []
    for tensor, adjoint in ((left, site.options["adj_x"]), (right, site.options["adj_y"])):
        order = (*range(tensor.rank - 2), tensor.rank - 1, tensor.rank - 2)
        plain = site.step("Cast", [tensor], dtype=DataType.INT_8)
        operands.append(site.step("Transpose", [plain], {"perm": order}) if adjoint else plain)
    return site.emit("MatMulInteger", operands)


def _pool(op: str) -> Converter:
    """Return a converter to a pooling operation. LiteRT rounds ties of fixed-point averages away from 0."""

    def convert(site: OperatorContext) -> list[Tensor]:
        x = site.ranked(0, 4)
        strides = site.positive("stride_h", "stride_w")
        sizes = site.positive("filter_h", "filter_w")
        pads = [site.padding(x.dims[1 + i], sizes[i], strides[i]) for i in range(2)]
        params: dict[str, Any] = {"filter_size": sizes, "stride": strides, "pad_amount": pads}
        if op == "PoolAvg2d" and x.dtype.is_fixed_point:
            params["ties_away_from_zero"] = True
        return site.activated(op, [x], params)

    return convert


def _local_response_normalization(site: OperatorContext) -> list[Tensor]:
    o = site.options
    radius = int(o["radius"])
    if radius < 0:
        site.refuse(f"option radius must not be negative, is {radius}")
    params = {"alpha": o["alpha"], "beta": o["beta"], "bias": o["bias"], "radius": radius}
    return [site.emit("Lrn", [site.ranked(0, 4)], params)]


CONVERTERS: dict[str, Converter] = {
    "AVERAGE_POOL_2D": _pool("PoolAvg2d"),
    "BATCH_MATMUL": _batch_matmul,
    "CONV_2D": _conv_2d,
    "CONV_3D": _conv_3d,
    "CUSTOM:Convolution2DTransposeBias": _transpose_conv_bias,
    "DEPTHWISE_CONV_2D": _depthwise_conv_2d,
    "FULLY_CONNECTED": _fully_connected,
    "L2_POOL_2D": _pool("L2Pool2d"),
    "LOCAL_RESPONSE_NORMALIZATION": _local_response_normalization,
    "MAX_POOL_2D": _pool("PoolMax2d"),
    "TRANSPOSE_CONV": _transpose_conv,
}
