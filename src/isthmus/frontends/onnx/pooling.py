"""Pooling over windows and over whole images, channel-last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue, channel_last
from isthmus.frontends.onnx.node import Converter, OnnxNode, Results
from isthmus.frontends.onnx.windows import Windows, read_windows, window_params
from isthmus.graph import DataType, Tensor


def _pool(node: OnnxNode, x: OnnxValue, op: str, windows: Windows, more: dict[str, Any], **output: Any) -> OnnxValue:
    """Emit a pooling operation, PoolMax2d for "PoolMax"; one spatial axis is treated as an image of height 1."""
    # `more` are parameters in addition to those of the windows, `output` further arguments of `OnnxNode.emit`.
    tensor = node.builder.channel_last(x)
    spatial = windows.spatial
    kernel, strides, pads = list(windows.kernel), list(windows.strides), list(windows.pads)
    if spatial == 1:
        tensor = node.builder.arrange(tensor, range(3), (tensor.dims[0], 1, *tensor.dims[1:]))
        kernel, strides, pads = [1, *kernel], [1, *strides], [(0, 0), *pads]
    params = {"filter_size": kernel, "stride": strides, "pad_amount": pads, "rounding_mode": int(windows.ceil), **more}
    result = node.emit(f"{op}{max(spatial, 2)}d", [tensor], params, **output)
    if spatial == 1:
        result = node.builder.arrange(result, range(4), (result.dims[0], *result.dims[2:]))
    return OnnxValue(result, channel_last(x.rank))


def _windows(node: OnnxNode, x: OnnxValue) -> Windows:
    """Read the windows of a pool over a signal, an image or a volume."""
    if x.rank not in (3, 4, 5):
        node.unsupported(f"an operand of rank {x.rank}")
    return read_windows(node, x.dims[2:], node.attr("kernel_shape", ()))


def _max_pool(node: OnnxNode) -> Results:
    """Convert to a PoolMax, or to a maximum of slices if there are dilations or indices are wanted."""
    x = node.value(0)
    windows = _windows(node, x)
    if node.wants(1):
        return _max_with_indices(node, x, windows)
    if any(d != 1 for d in windows.dilations):
        return _max_of_taps(node, x, windows)
    return _pool(node, x, "PoolMax", windows, {})


def _counts(windows: Windows, sizes: Sequence[int]) -> list[int]:
    """Return the number of windows along each axis."""
    counts = []
    for size, stride, reach, (before, after) in zip(sizes, windows.strides, windows.reach, windows.pads, strict=True):
        free = size + before + after - reach
        count = (-(-free // stride) if windows.ceil else free // stride) + 1
        counts.append(count - 1 if windows.ceil and (count - 1) * stride >= size + before else count)
    return counts


def _pad(node: OnnxNode, x: OnnxValue, windows: Windows, fill: float) -> tuple[Tensor, list[int]]:
    """Pad the operand so that every window is inside; return it and the number of windows along each axis."""
    tensor = node.builder.channel_last(x)
    counts = _counts(windows, x.dims[2:])
    if min(counts) < 1:
        node.refuse(f"windows of reach {list(windows.reach)} do not fit {list(x.dims)}")
    pads = [(0, 0), *_with_overhang(windows, x.dims[2:]).pads, (0, 0)]
    if any(p != (0, 0) for p in pads):
        tensor = node.emit("Pad", [tensor], {"scheme": 0, "pad_amount": pads, "pad_constant_value": fill})
    return tensor, counts


def _taps(windows: Windows) -> list[tuple[int, ...]]:
    """Return the positions in a window; the last axis varies fastest."""
    return list(product(*(range(k) for k in windows.kernel)))


def _slices(node: OnnxNode, x: OnnxValue, windows: Windows) -> tuple[list[Tensor], list[int]]:
    """Return a strided slice of the padded operand for each tap of the windows, and the number of windows."""
    if math.prod(windows.kernel) > 256:
        node.unsupported("windows of more than 256 taps with indices")
    tensor, counts = _pad(node, x, windows, _lowest(x.tensor.dtype))
    slices = []
    for tap in _taps(windows):
        ranges = [(0, tensor.dims[0], 1)]
        for index, dilation, stride, count in zip(tap, windows.dilations, windows.strides, counts, strict=True):
            begin = index * dilation
            ranges.append((begin, begin + (count - 1) * stride + 1, stride))
        ranges.append((0, tensor.dims[-1], 1))
        slices.append(node.emit("StridedSlice", [tensor], {"ranges": ranges}))
    return slices, counts


def _max_of_taps(node: OnnxNode, x: OnnxValue, windows: Windows) -> OnnxValue:
    """Compute the maximum of windows with dilations, one axis after the other."""
    # The maximum of two windows that overlap is that of a longer one, so the length doubles with each operation.
    tensor, counts = _pad(node, x, windows, _lowest(x.tensor.dtype))
    for axis in range(windows.spatial):
        taps, dilation = 1, windows.dilations[axis]
        while taps < windows.kernel[axis]:
            more = min(taps, windows.kernel[axis] - taps)
            length = tensor.dims[axis + 1] - more * dilation
            parts = [_cut(node, tensor, axis, (begin, begin + length, 1)) for begin in (0, more * dilation)]
            tensor = node.emit("ElementWiseMaximum", parts)
            taps += more
        stride = windows.strides[axis]
        tensor = _cut(node, tensor, axis, (0, (counts[axis] - 1) * stride + 1, stride))
    return OnnxValue(tensor, channel_last(x.rank))


def _cut(node: OnnxNode, tensor: Tensor, axis: int, bounds: tuple[int, int, int]) -> Tensor:
    """Slice a spatial axis of a channel-last tensor by (begin, end, step)."""
    ranges = [(0, d, 1) for d in tensor.dims]
    if ranges[axis + 1] == bounds:
        return tensor
    ranges[axis + 1] = bounds
    return node.emit("StridedSlice", [tensor], {"ranges": ranges})


def _lowest(dtype: DataType) -> float:
    """Return the lowest number of a data type."""
    return -math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def _max_with_indices(node: OnnxNode, x: OnnxValue, windows: Windows) -> Results:
    """Return the maximum over the taps, and its element index in the entire operand in ONNX's layout."""
    (result, *others), counts = _slices(node, x, windows)
    tap_indices = _element_indices(x.dims[2:], windows, counts, column_major=bool(node.attr("storage_order", 0)))
    index = node.builder.constant(tap_indices[0][None, ..., None])
    for other, tap_index in zip(others, tap_indices[1:], strict=True):
        larger = node.emit("ElementWiseGreater", [other, result])
        result = node.emit("ElementWiseSelect", [larger, other, result])
        index = node.emit("ElementWiseSelect", [larger, node.builder.constant(tap_index[None, ..., None]), index])
    batch, channels = x.dims[:2]
    planes = (np.arange(batch * channels) * math.prod(x.dims[2:])).reshape(batch, *[1] * windows.spatial, channels)
    indices = node.emit("ElementWiseAdd", [index, node.builder.constant(planes)])
    return OnnxValue(result, channel_last(x.rank)), OnnxValue(indices, channel_last(x.rank))


def _element_indices(
    sizes: Sequence[int], windows: Windows, counts: Sequence[int], column_major: bool
) -> list[np.ndarray]:
    """Return for each tap the index of the element that it reads in each window; in the padding, of the first inside.

    Padding is the lowest value, and a tap wins only if it is larger than all taps before it. So a tap in the padding
    wins only if it is the first and all elements of its window are the lowest value.
    `counts` is the number of windows along each spatial axis; if `column_major`, the first of them counts fastest.
    """
    strides = np.cumprod([1, *sizes[:-1]]) if column_major else np.cumprod([1, *sizes[:0:-1]])[::-1]
    axis_positions = []
    for size, stride, dilation, kernel, count, (before, _) in zip(
        sizes, windows.strides, windows.dilations, windows.kernel, counts, windows.pads, strict=True
    ):
        positions = np.arange(count)[:, None] * stride - before + np.arange(kernel) * dilation
        inside = (positions >= 0) & (positions < size)
        first = np.min(positions, axis=1, where=inside, initial=size - 1, keepdims=True)
        axis_positions.append(np.where(inside, positions, first))
    tap_indices = []
    for tap in _taps(windows):
        indices = np.zeros((), np.int64)
        for axis, index in enumerate(tap):
            indices = np.add.outer(indices, axis_positions[axis][:, index] * strides[axis])
        tap_indices.append(indices)
    return tap_indices


def average_pool(node: OnnxNode, x: OnnxValue, **output: Any) -> OnnxValue:
    """Emit ONNX's AveragePool; `output` gives the data type and quantization of a quantized result."""
    windows = _windows(node, x)
    # Quantized averages count the overhang of the last window as padding.
    if output and windows.ceil and node.attr("count_include_pad", 0):
        windows = _with_overhang(windows, x.dims[2:])
    padded = any(p != (0, 0) for p in windows.pads)
    count_pads = bool(node.attr("count_include_pad", 0)) and padded
    if any(d != 1 for d in windows.dilations) or (count_pads and windows.ceil):
        if output:
            node.unsupported("dilated or partial windows over quantized values")
        return _weighted_sum(node, x, windows, count_pads)
    return _pool(node, x, "PoolAvg", windows, {"count_pad_for_edges": count_pads}, **output)


def _with_overhang(windows: Windows, sizes: Sequence[int]) -> Windows:
    """Return the same windows with their overhang beyond the padding added to the padding."""
    # The last window may hang over if the number of windows is rounded up.
    pads = []
    for count, size, stride, reach, (before, after) in zip(
        _counts(windows, sizes), sizes, windows.strides, windows.reach, windows.pads, strict=True
    ):
        pads.append((before, max(after, (count - 1) * stride + reach - size - before)))
    return replace(windows, pads=tuple(pads), ceil=False)


def _weighted_sum(node: OnnxNode, x: OnnxValue, windows: Windows, count_pads: bool) -> OnnxValue:
    """Compute averages as sums of taps, each divided by the number of elements that its window counts."""
    tensor, counts = _pad(node, x, windows, 0.0)
    spatial = windows.spatial
    channels = tensor.dims[-1]
    ones = node.builder.numbers(np.ones((*windows.kernel, 1, channels)), tensor.dtype)
    params = window_params(replace(windows, pads=((0, 0),) * spatial))
    if spatial == 3:
        params["group"] = channels
    sums = node.emit(f"{'DepthWiseConv' if spatial < 3 else 'Conv'}{spatial}d", [tensor, ones], params)
    # The number of elements that each window counts is a product over its axes.
    sizes = np.ones((), np.float64)
    for axis in range(spatial):
        before, after = windows.pads[axis]
        first = np.arange(counts[axis])[:, None] * windows.strides[axis] - before
        taps = first + np.arange(windows.kernel[axis]) * windows.dilations[axis]
        low, high = (-before, x.dims[axis + 2] + after) if count_pads else (0, x.dims[axis + 2])
        sizes = np.multiply.outer(sizes, ((taps >= low) & (taps < high)).sum(axis=1))
    factor = node.builder.numbers((1.0 / np.maximum(sizes, 1))[None, ..., None], tensor.dtype)
    return OnnxValue(node.emit("ElementWiseMultiply", [sums, factor]), channel_last(x.rank))


def _lp_pool(node: OnnxNode) -> OnnxValue:
    """Compute the p-norm of each window from the average of p-th powers."""
    x, p = node.value(0), float(node.attr("p", 2))
    windows = _windows(node, x)
    powers = node.elementwise("ElementWisePower", node.elementwise("ElementWiseAbs", x), p)
    tensor, _ = _pad(node, powers, windows, 0.0)
    inside = replace(windows, pads=((0, 0),) * windows.spatial, ceil=False)
    padded = OnnxValue(tensor, channel_last(x.rank))
    is_dilated = any(d != 1 for d in windows.dilations)
    mean = _weighted_sum(node, padded, inside, False) if is_dilated else _pool(node, padded, "PoolAvg", inside, {})
    total = node.times(mean, float(math.prod(windows.kernel)))
    return node.elementwise("ElementWisePower", total, 1.0 / p)


def global_pool(node: OnnxNode, x: OnnxValue, op: str, **output: Any) -> OnnxValue:
    """Emit a reduction over all spatial axes, which stay with size 1; `output` as for `average_pool`."""
    axes = sorted(x.perm[axis] for axis in range(2, x.rank))
    return node.apply(op, x, {"axes": axes, "keep_dims": True}, **output)


def _global_lp_pool(node: OnnxNode) -> OnnxValue:
    """Compute the p-norm over all spatial axes."""
    p = float(node.attr("p", 2))
    powers = node.elementwise("ElementWisePower", node.elementwise("ElementWiseAbs", node.value(0)), p)
    return node.elementwise("ElementWisePower", global_pool(node, powers, "ReduceSum"), 1.0 / p)


CONVERTERS: dict[str, Converter] = {
    "MaxPool": _max_pool,
    "AveragePool": lambda node: average_pool(node, node.value(0)),
    "LpPool": _lp_pool,
    "GlobalAveragePool": lambda node: global_pool(node, node.value(0), "ReduceMean"),
    "GlobalMaxPool": lambda node: global_pool(node, node.value(0), "ReduceMax"),
    "GlobalLpPool": _global_lp_pool,
}
