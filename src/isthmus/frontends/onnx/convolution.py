"""Convolutions and transposed convolutions: channel-last operands, filters permuted to [spatial…, in, out]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.frontends.onnx.windows import MAX_EXTENT, padding, per_axis, read_windows, window_params
from isthmus.graph import DataType, Tensor


def convolve(node: OnnxNode, x: OnnxValue, weights: OnnxValue, bias: Tensor | None, **output: Any) -> OnnxValue:
    """Emit ONNX's Conv of rank 3 to 5; `output` gives the data type and quantization of a quantized result."""
    spatial = x.rank - 2
    if spatial not in (1, 2, 3) or weights.rank != x.rank:
        node.unsupported(f"operands of rank {x.rank} and {weights.rank}")
    group = int(node.attr("group", 1))
    channels = x.dims[1]
    windows = read_windows(node, x.dims[2:], node.attr("kernel_shape") or weights.dims[2:])
    if windows.kernel != weights.dims[2:]:
        node.refuse(f"kernel_shape {list(windows.kernel)} is not that of the weights {list(weights.dims)}")
    depth_wise = group > 1 and group == channels and weights.dims[1] == 1 and spatial < 3
    params = window_params(windows)
    if not depth_wise:
        params["group"] = group
    filters = node.builder.store_as(weights, _filters_last(weights.rank))
    op = f"DepthWiseConv{spatial}d" if depth_wise else f"Conv{spatial}d"
    return node.apply_channel_last(op, x, params, filters, *([] if bias is None else [bias]), **output)


def _filters_last(rank: int) -> tuple[int, ...]:
    """Return the permutation from [spatial…, in, out] to ONNX's [out, in, spatial…]."""
    return (rank - 1, rank - 2, *range(rank - 2))


def _conv(node: OnnxNode) -> OnnxValue:
    bias = node.optional(2)
    return convolve(node, node.value(0), node.value(1), None if bias is None else node.materialize(bias))


def _conv_integer(node: OnnxNode) -> OnnxValue:
    """Convolve integers as floats, which hold every sum of a realistic filter exactly."""
    operands = []
    for index in (0, 1):
        value = node.cast(node.value(index), DataType.FLOAT_32)
        zero_point = node.optional(index + 2)
        if zero_point is not None:
            shift = node.cast(zero_point, DataType.FLOAT_32)
            # One zero point per filter; filters are the first axis of the weights.
            if shift.rank == 1 and shift.dims[0] != 1:
                shift = node.reshape_to(shift, (shift.dims[0], *(1,) * (value.rank - 1)))
            value = node.minus(value, shift)
        operands.append(value)
    result = convolve(node, operands[0], operands[1], None)
    return node.cast(node.elementwise("ElementWiseRound", result), DataType.INT_32)


def _conv_transpose(node: OnnxNode) -> OnnxValue:
    """Convert to a TransposeConv with filters [spatial…, in, out]."""
    # Only TransposeConv3d has a dilation; for others, zeros are inserted into the filters.
    x, weights = node.value(0), node.value(1)
    spatial = x.rank - 2
    if spatial not in (1, 2, 3) or weights.rank != x.rank:
        node.unsupported(f"operands of rank {x.rank} and {weights.rank}")
    group = int(node.attr("group", 1))
    strides = per_axis(node, "strides", spatial)
    dilations = per_axis(node, "dilations", spatial)
    extra = per_axis(node, "output_padding", spatial, default=0, least=0)
    kernel = weights.dims[2:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    # The size of the output before padding is cut off.
    full = [(n - 1) * s + r + e for n, s, r, e in zip(x.dims[2:], strides, reach, extra, strict=True)]
    pads, extra = _transpose_pads(node, x.dims[2:], strides, full, extra)
    rank = x.rank
    filters = node.builder.store_as(weights, (rank - 2, rank - 1, *range(rank - 2)))
    params: dict[str, Any] = {"stride": strides, "pad_amount": pads, "output_padding": extra, "group": group}
    if spatial == 3:
        params["dilation"] = dilations
    elif any(d != 1 for d in dilations):
        filters = _dilate(node, filters, dilations)
    if spatial == 1:
        params |= {"stride": strides[0], "pad_amount": pads[0], "output_padding": extra[0]}
    bias = node.optional(2)
    others = [] if bias is None else [node.materialize(bias)]
    return node.apply_channel_last(f"TransposeConv{spatial}d", x, params, filters, *others)


def _transpose_pads(
    node: OnnxNode, sizes: Sequence[int], strides: Sequence[int], full: Sequence[int], extra: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Return the pads before and after each axis and its output padding, by the output shape if the file gives one."""
    # `full` is the output's size along each axis before padding is cut off, `extra` the output padding that is asked
    # for.
    spatial = len(sizes)
    output_shape = node.attr("output_shape")
    auto = node.attr("auto_pad", "NOTSET")
    if output_shape is not None:
        if len(output_shape) != spatial or any(not 1 <= w < MAX_EXTENT for w in output_shape):
            node.refuse(f"output_shape {list(output_shape)[:8]} does not fit {spatial} spatial axes")
        total = [f - w for f, w in zip(full, output_shape, strict=True)]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        total = [f - n * s for f, n, s in zip(full, sizes, strides, strict=True)]
    else:
        return padding(node, spatial, ()), tuple(extra)
    output_padding = tuple(e + max(-t, 0) for e, t in zip(extra, total, strict=True))
    cropped = [max(t, 0) for t in total]
    if auto == "SAME_UPPER":
        return tuple((t // 2, t - t // 2) for t in cropped), output_padding
    return tuple((t - t // 2, t // 2) for t in cropped), output_padding


def _dilate(node: OnnxNode, filters: Tensor, dilations: Sequence[int]) -> Tensor:
    """Insert zeros between the taps of constant filters."""
    taps = node.builder.array(OnnxValue.of(filters))
    if taps is None:
        node.unsupported("dilated filters that are not constant")
    dims = [(k - 1) * d + 1 for k, d in zip(taps.shape, dilations, strict=False)]
    dilated = np.zeros((*dims, *taps.shape[len(dims) :]), taps.dtype)
    dilated[tuple(slice(None, None, d) for d in dilations)] = taps
    return node.builder.constant(dilated)


CONVERTERS: dict[str, Converter] = {"Conv": _conv, "ConvInteger": _conv_integer, "ConvTranspose": _conv_transpose}
