"""Normalizations: batch, layer, group, instance, RMS, Lp and local response."""

from __future__ import annotations

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue, channel_last, identity
from isthmus.frontends.onnx.node import Converter, OnnxNode, Results
from isthmus.frontends.onnx.reduction import reduce_value
from isthmus.graph import DataType, Tensor


def _batch_normalization(node: OnnxNode) -> Results:
    """Emit one multiplication and one addition per channel, folded from the five operands."""
    # In training mode the mean and the variance are those of the batch. Further results are running averages of them.
    x = node.value(0)
    if not node.attr("spatial", 1):
        node.unsupported("statistics per element (spatial=0)")
    if node.opset < 14 and any(node.wants(i) for i in range(1, 5)):
        node.unsupported("training mode before operator set 14")
    if not node.attr("training_mode", 0):
        return _normalize_by(node, x, node.value(3), node.value(4))
    others = [axis for axis in range(x.rank) if axis != 1]
    # Sums of squares would overflow 16 bits.
    numbers = node.cast(x, DataType.FLOAT_32) if x.tensor.dtype.is_half else x
    mean = reduce_value(node, "ReduceMean", numbers, others, True)
    squares = node.elementwise("ElementWiseSquaredDifference", numbers, mean)
    statistics = [mean, reduce_value(node, "ReduceMean", squares, others, True)]
    mean, variance = (node.reshape_to(value, (x.dims[1],)) for value in statistics)
    momentum = node.attr("momentum", 0.9)

    def average(before: OnnxValue, now: OnnxValue) -> OnnxValue:
        return node.plus(node.times(before, momentum), node.times(node.cast(now, before.tensor.dtype), 1 - momentum))

    averages = average(node.value(3), mean), average(node.value(4), variance)
    return [_normalize_by(node, x, mean, variance), *averages]


def _normalize_by(node: OnnxNode, x: OnnxValue, mean: OnnxValue, variance: OnnxValue) -> OnnxValue:
    """Normalize channels by a mean and a variance for each, then apply the node's scale and bias."""
    # Floats of 16 bits are computed as float32 and rounded once. Factor and shift would lose digits that matter where
    # the mean is large, and a small variance could underflow. Preparation removes the casts around the Batchnorm.
    dtype = x.tensor.dtype
    scale, bias = node.value(1), node.value(2)
    if x.rank > 1:
        x = OnnxValue(node.builder.channel_last(x), channel_last(x.rank))
    if dtype.is_half:
        x, scale, bias, mean, variance = (node.cast(v, DataType.FLOAT_32) for v in (x, scale, bias, mean, variance))
    safe_variance = node.plus(variance, node.attr("epsilon", 1e-5))
    factor = node.over(scale, node.elementwise("ElementWiseSquareRoot", safe_variance))
    shift = node.minus(bias, node.times(mean, factor))
    if x.rank == 1:
        result = node.plus(node.times(x, factor), shift)
    else:
        result = OnnxValue(node.emit("Batchnorm", [x.tensor, factor.tensor, shift.tensor]), x.perm)
    return node.cast(result, dtype)


def _instance_normalization(node: OnnxNode) -> OnnxValue:
    affine = [node.materialize(node.value(index)) for index in (1, 2)]
    return node.apply_channel_last("InstanceNorm", node.value(0), {"epsilon": node.attr("epsilon", 1e-5)}, *affine)


def _group_normalization(node: OnnxNode) -> OnnxValue:
    x = node.value(0)
    groups, channels = int(node.attr("num_groups", 1)), x.dims[1]
    if groups < 1 or channels % groups:
        node.refuse(f"num_groups {groups} must divide {channels} channels")
    affine = []
    for index in (1, 2):
        value = node.value(index)
        if value.dims == (groups,) and groups != channels:
            # Before operator set 21, scale and bias have one element for each group. Repeat it for each channel.
            column = node.reshape_to(value, (groups, 1)).tensor
            repeated = node.emit("Tile", [column], {"multiples": [1, channels // groups]})
            value = OnnxValue.of(node.builder.arrange(repeated, (0, 1), (channels,)))
        affine.append(node.materialize(value))
    params = {"epsilon": node.attr("epsilon", 1e-5), "group": groups}
    return node.apply_channel_last("GroupNorm", x, params, *affine)


def _affine(node: OnnxNode, value: OnnxValue | None, dims: tuple[int, ...]) -> Tensor | None:
    """Return a scale or bias over the normalized axes, broadcast to their dimensions."""
    if value is None:
        return None
    own_dims = value.dims
    while len(own_dims) > len(dims) and own_dims[0] == 1:
        own_dims = own_dims[1:]
    own_dims = (1,) * (len(dims) - len(own_dims)) + own_dims
    if len(own_dims) != len(dims) or any(k not in (1, d) for d, k in zip(dims, own_dims, strict=True)):
        node.unsupported(f"a scale or bias of dimensions {list(value.dims)}")
    tensor = node.materialize(node.reshape_to(value, own_dims))
    if own_dims != dims:
        multiples = [d if k == 1 else 1 for d, k in zip(dims, own_dims, strict=True)]
        tensor = node.emit("Tile", [tensor], {"multiples": multiples})
    return tensor


def _normalize(
    node: OnnxNode, op: str, x: OnnxValue, scale: OnnxValue | None, bias: OnnxValue | None, epsilon: float
) -> tuple[OnnxValue, OnnxValue, list[int]]:
    """Normalize over the trailing axes; return the operand in the order used, the result, and the axes."""
    first = node.axis(int(node.attr("axis", -1)), x.rank)
    axes = list(range(first, x.rank))
    dims = x.dims[first:]
    stored = [x.perm[axis] for axis in axes]
    # Scales apply to the last stored axes, in their order.
    if stored != axes:
        x = OnnxValue(node.materialize(x), identity(x.rank))
        stored = axes
    operands = [x.tensor, _affine(node, scale, dims), _affine(node, bias, dims)]
    while operands[-1] is None:
        operands.pop()
    return x, OnnxValue(node.emit(op, operands, {"epsilon": epsilon, "axes": stored}), x.perm), axes


def _layer_normalization(node: OnnxNode) -> list[OnnxValue | None]:
    """Convert to a LayerNorm; the mean and the inverse deviation are computed only if they are outputs."""
    epsilon = node.attr("epsilon", 1e-5)
    x, result, axes = _normalize(node, "LayerNorm", node.value(0), node.optional(1), node.optional(2), epsilon)
    results: list[OnnxValue | None] = [result]
    if node.wants(1) or node.wants(2):
        mean = reduce_value(node, "ReduceMean", x, axes, True)
        deltas = node.minus(x, mean)
        variance = reduce_value(node, "ReduceMean", node.times(deltas, deltas), axes, True)
        safe_variance = node.plus(variance, epsilon)
        results += [mean, node.elementwise("ElementWiseRsqrt", safe_variance)]
    return results


def layer_norm(node: OnnxNode, x: OnnxValue, scale: OnnxValue, bias: OnnxValue | None, epsilon: float) -> OnnxValue:
    """Return a value whose last axis is normalized by its mean and deviation."""
    return _normalize(node, "LayerNorm", x, scale, bias, epsilon)[1]


def rms_norm(node: OnnxNode, x: OnnxValue, scale: OnnxValue, epsilon: float) -> OnnxValue:
    """Return a value whose last axis is divided by its root mean square."""
    return _normalize(node, "RmsNorm", x, scale, None, epsilon)[1]


def _rms_normalization(node: OnnxNode) -> OnnxValue:
    return rms_norm(node, node.value(0), node.value(1), node.attr("epsilon", 1e-5))


def _lp_normalization(node: OnnxNode) -> OnnxValue:
    """Divide by the sum of absolute values or by the root of the sum of squares along an axis."""
    x = node.value(0)
    axis = node.axis(int(node.attr("axis", -1)))
    p = node.attr("p", 2)
    info = np.finfo(np.float32)
    if p == 1:
        norm = reduce_value(node, "ReduceSum", node.elementwise("ElementWiseAbs", x), [axis], True)
        least = float(info.tiny)
    elif p == 2:
        squares = node.times(x, x)
        norm = node.elementwise("ElementWiseSquareRoot", reduce_value(node, "ReduceSum", squares, [axis], True))
        least = float(np.sqrt(info.smallest_subnormal))
    else:
        node.unsupported(f"p = {p}")
    # A norm of 0 means that all elements are zero and stay zero, or that their squares underflow; those must not grow.
    safe = node.elementwise("ElementWiseMaximum", norm, least)
    return node.over(x, safe)


def _mean_variance_normalization(node: OnnxNode) -> OnnxValue:
    """Subtract the mean over axes and divide by the deviation, to which ONNX adds 1e-9."""
    x = node.value(0)
    axes = node.axes(node.attr("axes", (0, 2, 3)))
    centred = node.minus(x, reduce_value(node, "ReduceMean", x, axes, True))
    squares = node.times(centred, centred)
    deviation = node.elementwise("ElementWiseSquareRoot", reduce_value(node, "ReduceMean", squares, axes, True))
    return node.over(centred, node.plus(deviation, 1e-9))


def _lrn(node: OnnxNode) -> OnnxValue:
    """Convert to an Lrn over channels; ONNX divides alpha by the window's size."""
    x, size = node.value(0), int(node.attr("size", 1))
    if size % 2 == 0 or size < 1 or x.rank != 4:
        node.unsupported(f"size {size} over rank {x.rank}")
    params = {
        "alpha": node.attr("alpha", 1e-4) / size, "beta": node.attr("beta", 0.75), "bias": node.attr("bias", 1.0),
        "radius": size // 2, "region": 0,
    }  # fmt: skip
    return node.apply_channel_last("Lrn", x, params)


CONVERTERS: dict[str, Converter] = {
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "SimplifiedLayerNormalization": _rms_normalization,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "LRN": _lrn,
}
