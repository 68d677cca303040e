"""Resizing and sampling. Modes that Resize does not support become gathers and products with constant matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.graph.evaluation.sampling import ROUNDINGS, axis_taps
from isthmus.graph.ops.sampling import CUBIC, LINEAR, NEAREST

# The values of Resize's parameters, by ONNX's names. Those of nearest_mode are their places in `_ROUNDINGS`.
_TRANSFORMATIONS = {"half_pixel": 0, "pytorch_half_pixel": 1, "align_corners": 2, "asymmetric": 3}
_INTERPOLATIONS = {"nearest": NEAREST, "linear": LINEAR, "cubic": CUBIC}
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# The limit of scales and of sizes after resizing.
_MAX_SIZE = 1 << 20


@dataclass(frozen=True)
class ResizedAxis:
    """How one axis is resized.

    - `scale`: the factor, which need not be exactly out / size.
    - `region`: the first and last position that are used, as fractions of the axis.
    """

    size: int
    out: int
    scale: float
    region: tuple[float, float] = (0.0, 1.0)


def _coordinates(node: OnnxNode, mode: str, axis: ResizedAxis) -> np.ndarray:
    """Return the position of each output element on the input axis."""
    # Positions are computed in float32, as ONNX Runtime and PyTorch do: 3 / 0.6 is then 5, and in float64 it is less,
    # since the scale itself is a float32.
    i = np.arange(axis.out, dtype=np.float32)
    scale = np.float32(axis.scale)
    half = np.float32(0.5)
    last = axis.size - 1
    begin, end = axis.region
    zeros = np.zeros(axis.out, np.float32)
    if mode == "half_pixel":
        return (i + half) / scale - half
    if mode == "pytorch_half_pixel":
        return (i + half) / scale - half if axis.out > 1 else zeros
    if mode == "align_corners":
        return i * np.float32(last) / np.float32(axis.out - 1) if axis.out > 1 else zeros
    if mode == "asymmetric":
        return i / scale
    if mode == "tf_half_pixel_for_nn":
        return (i + half) / scale
    if mode == "half_pixel_symmetric":
        shift = np.float32(axis.size) / 2 * (1 - np.float32(axis.out) / (scale * np.float32(axis.size)))
        return shift + (i + half) / scale - half
    if mode == "tf_crop_and_resize":
        if axis.out > 1:
            return begin * last + i * (end - begin) * last / (axis.out - 1)
        return zeros + 0.5 * (begin + end) * last
    node.unsupported(f"coordinate_transformation_mode '{mode}'")


def _taps(
    interpolation: int, scale: float, coefficient: float
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Return the offsets of the taps around an element, and their weight as a function of distance."""
    # An antialiased reduction stretches the filter by its `scale`; `coefficient` is that of the cubic function.
    reach = (1 if interpolation == LINEAR else 2) / scale
    first = math.floor(-reach) + 1
    offsets = np.arange(first, 2 - first)

    def linear(distance: np.ndarray) -> np.ndarray:
        return np.clip(1 - distance, 0, 1)

    def cubic(d: np.ndarray) -> np.ndarray:
        a = coefficient
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return offsets, linear if interpolation == LINEAR else cubic


def _matrix(node: OnnxNode, axis: ResizedAxis, coordinates: np.ndarray, interpolation: int) -> np.ndarray:
    """Return the matrix [input, output] of an interpolation along one axis."""
    scale = min(axis.scale, 1.0) if node.attr("antialias", 0) else 1.0
    offsets, weight_at = _taps(interpolation, scale, node.attr("cubic_coeff_a", -0.75))
    # A position exactly on a pixel counts as the right end of the interval before it.
    left = np.where(coordinates == np.floor(coordinates), coordinates - 1, np.floor(coordinates))
    ratio = coordinates - left
    weights = weight_at(np.abs(offsets[None, :] - ratio[:, None].astype(np.float64)) * scale)
    positions = left[:, None].astype(np.int64) + offsets[None, :]
    if node.attr("exclude_outside", 0):
        weights = np.where((positions >= 0) & (positions < axis.size), weights, 0.0)
    if scale != 1.0 or node.attr("exclude_outside", 0):
        weights = weights / weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((axis.size, axis.out))
    columns = np.broadcast_to(np.arange(axis.out)[:, None], positions.shape)
    np.add.at(matrix, (np.clip(positions, 0, axis.size - 1), columns), weights)
    return matrix


def _rounding(node: OnnxNode) -> str:
    """Return the name of the node's rule for rounding positions, which must be known."""
    rounding: str = node.attr("nearest_mode", "round_prefer_floor" if node.opset >= 11 else "floor")
    if rounding not in _ROUNDINGS:
        node.unsupported(f"nearest_mode '{rounding}'")
    return rounding


def _nearest(node: OnnxNode, mode: str, axis: ResizedAxis) -> np.ndarray:
    """Return the input element of each output element."""
    positions = ROUNDINGS[_ROUNDINGS.index(_rounding(node))](_coordinates(node, mode, axis))
    return np.clip(positions, 0, axis.size - 1).astype(np.int32)


def _resize_params(node: OnnxNode, mode: str, interpolation: int) -> dict[str, Any]:
    """Return the parameters of QNN's Resize for a mode that it has."""
    return {
        "transformation_mode": _TRANSFORMATIONS[mode], "interpolation_mode": interpolation,
        "nearest_mode": _ROUNDINGS.index(_rounding(node)),
        "exclude_outside": bool(node.attr("exclude_outside", 0)), "cubic_coeff": node.attr("cubic_coeff_a", -0.75),
    }  # fmt: skip


def _is_same(node: OnnxNode, mode: str, axis: ResizedAxis, params: dict[str, Any]) -> bool:
    """Return whether QNN's Resize, which knows the sizes and not the scale, reads the same elements of an axis."""
    if params["interpolation_mode"] == NEAREST:
        return np.array_equal(axis_taps(axis.size, axis.out, params)[0][:, 0], _nearest(node, mode, axis))
    return mode == "align_corners" or abs(axis.size * axis.scale - axis.out) < 1e-4


def _along_axis(
    node: OnnxNode, x: OnnxValue, index: int, axis: ResizedAxis, mode: str, interpolation: int
) -> OnnxValue:
    """Resize one axis, number `index` in ONNX's order: by a gather if nearest, else by a product with a matrix."""
    stored_axis = x.perm[index]
    if interpolation == NEAREST:
        indices = node.builder.constant(_nearest(node, mode, axis))
        return node.apply("Gather", x, {"axis": stored_axis}, indices)
    coordinates = _coordinates(node, mode, axis)
    if axis.size * axis.out > 1 << 24:
        node.unsupported(f"resizing an axis of {axis.size} to {axis.out} in this mode")
    # A matrix product works along the last axis, so this one is moved there.
    perm = x.perm_with_last(index)
    matrix = node.builder.numbers(_matrix(node, axis, coordinates, interpolation), x.tensor.dtype)
    tensor = node.builder.store_as(x, perm)
    if x.rank == 1:
        tensor = node.builder.arrange(tensor, (0,), (1, axis.size))
    result = node.emit("MatMul", [tensor, matrix])
    if x.rank == 1:
        result = node.builder.arrange(result, (0, 1), (axis.out,))
    return OnnxValue(result, perm)


def _resize_axes(node: OnnxNode, x: OnnxValue, axes: dict[int, ResizedAxis]) -> OnnxValue:
    """Resize some axes of ONNX's view, by a Resize if it supports the mode, otherwise one axis after the other."""
    default = "half_pixel" if node.op == "Resize" and node.opset >= 11 else "asymmetric"
    mode = node.attr("coordinate_transformation_mode", default)
    name = {"bilinear": "linear", "bicubic": "cubic"}.get(node.attr("mode", "nearest"), node.attr("mode", "nearest"))
    if name not in _INTERPOLATIONS:
        node.unsupported(f"mode '{name}'")
    interpolation = _INTERPOLATIONS[name]
    if mode in _TRANSFORMATIONS and x.rank == 4 and set(axes) <= {2, 3} and not node.attr("antialias", 0):
        params = _resize_params(node, mode, interpolation)
        if all(_is_same(node, mode, axis, params) for axis in axes.values()):
            n, c, h, w = x.dims
            dims = (n, axes[2].out if 2 in axes else h, axes[3].out if 3 in axes else w, c)
            return node.apply_channel_last("Resize", x, params, dims=[dims])
    result = x
    for index, axis in axes.items():
        result = _along_axis(node, result, index, axis, mode, interpolation)
    # Elements of a region outside the input get a fixed value.
    if mode == "tf_crop_and_resize":
        outside = np.zeros((1,) * x.rank, bool)
        for index, axis in axes.items():
            coordinates = _coordinates(node, mode, axis)
            shape = [-1 if a == index else 1 for a in range(x.rank)]
            outside = outside | ((coordinates < 0) | (coordinates > axis.size - 1)).reshape(shape)
        if outside.any():
            result = node.choose(node.literal(outside), node.attr("extrapolation_value", 0.0), result)
    return result


def _resize(node: OnnxNode) -> OnnxValue:
    """Resize by scales or to sizes; before operator set 11 only by scales of all axes."""
    x = node.value(0)
    if node.op == "Upsample" or node.opset < 11:
        scales = node.attr("scales") or (node.array(1).reshape(-1) if node.optional(1) is not None else ())
        return _resize_axes(node, x, _by_scale(node, x, [float(s) for s in scales], range(x.rank), None))
    axes = node.axes(node.attr("axes") or range(x.rank))
    roi = node.optional(1)
    regions = None
    if roi is not None and roi.tensor.elements and node.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        regions = [float(r) for r in node.array(1).reshape(-1)]
    sizes = node.ints(3)
    if sizes:
        return _resize_axes(node, x, _by_size(node, x, sizes, axes, regions))
    scales = [float(s) for s in node.array(2).reshape(-1)]
    return _resize_axes(node, x, _by_scale(node, x, scales, axes, regions))


def _region(regions: Sequence[float] | None, index: int) -> tuple[float, float]:
    """Return the region of an axis. ONNX lists the begins of all axes, then the ends."""
    if regions is None:
        return 0.0, 1.0
    return regions[index], regions[index + len(regions) // 2]


def _check(node: OnnxNode, numbers: Sequence[float], axes: Sequence[int]) -> None:
    """Refuse scales or sizes that are not one for each axis, or not within limits."""
    if len(numbers) != len(axes) or any(not 0 < n < _MAX_SIZE for n in numbers):
        node.refuse(f"scales or sizes {list(numbers)[:8]} do not fit {len(axes)} axes")


def _by_scale(
    node: OnnxNode, x: OnnxValue, scales: Sequence[float], axes: Sequence[int], regions: Sequence[float] | None
) -> dict[int, ResizedAxis]:
    """Return how axes are resized by scales; axes that do not change are left out."""
    _check(node, scales, axes)
    result = {}
    for index, (axis, scale) in enumerate(zip(axes, scales, strict=True)):
        begin, end = _region(regions, index)
        size = x.dims[axis]
        if scale != 1.0 or (begin, end) != (0.0, 1.0):
            out = math.floor(size * (end - begin) * scale + 1e-6)
            _check(node, [max(out, 1)], [axis])
            result[axis] = ResizedAxis(size, out, scale, (begin, end))
    return result


def _by_size(
    node: OnnxNode, x: OnnxValue, sizes: Sequence[int], axes: Sequence[int], regions: Sequence[float] | None
) -> dict[int, ResizedAxis]:
    """Return how axes are resized to sizes; axes that do not change are left out."""
    _check(node, sizes, axes)
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    scales = [out / x.dims[axis] for axis, out in zip(axes, sizes, strict=True)]
    if policy in ("not_larger", "not_smaller"):
        scale = min(scales) if policy == "not_larger" else max(scales)
        scales = [scale] * len(scales)
        sizes = [math.floor(scale * x.dims[axis] + 0.5) for axis in axes]
    elif policy != "stretch":
        node.unsupported(f"keep_aspect_ratio_policy '{policy}'")
    return {
        axis: ResizedAxis(x.dims[axis], out, scale, _region(regions, index))
        for index, (axis, out, scale) in enumerate(zip(axes, sizes, scales, strict=True))
        if out != x.dims[axis] or regions is not None
    }


CONVERTERS: dict[str, Converter] = {"Resize": _resize, "Upsample": _resize}
