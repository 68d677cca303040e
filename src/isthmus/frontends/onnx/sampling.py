"""Operators that read between the elements of an image or write to positions in it, as gathers and scatters.

GridSample, RoiAlign and DeformConv read at computed positions. Each position becomes a few taps per axis, an index and
a weight each; the elements at all combinations of taps are gathered, weighted and added. Col2Im and MaxUnpool write to
positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import product

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue, channel_last, identity
from isthmus.frontends.onnx.linear import matmul
from isthmus.frontends.onnx.movement import join, slice_value
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.frontends.onnx.reduction import reduce_value
from isthmus.frontends.onnx.windows import padding, per_axis
from isthmus.graph import DataType
from isthmus.graph.ops.movement import CONSTANT

Tap = tuple[OnnxValue, OnnxValue]
"""An element that contributes to a position along an axis: its index, an integer in a float32, and its weight."""

# The parameter of cubic interpolation.
_ALPHA = -0.75


def _limit(node: OnnxNode, x: OnnxValue, low: float, high: float) -> OnnxValue:
    """Limit numbers to a range."""
    return node.elementwise("ElementWiseMinimum", node.elementwise("ElementWiseMaximum", x, low), high)


# --- reading at positions ----------------------------------------------------------------------------------------


def _nearest_taps(node: OnnxNode, position: OnnxValue) -> list[Tap]:
    """Return the element nearest to a position; halves are rounded to even."""
    index = node.elementwise("ElementWiseRound", position)
    return [(index, node.scalar(1.0, DataType.FLOAT_32))]


def _linear_taps(node: OnnxNode, position: OnnxValue) -> list[Tap]:
    """Return the two elements around a position."""
    below = node.elementwise("ElementWiseFloor", position)
    fraction = node.minus(position, below)
    rest = node.plus(node.times(fraction, -1.0), 1.0)
    return [(below, rest), (node.plus(below, 1.0), fraction)]


def _cubic_taps(node: OnnxNode, position: OnnxValue) -> list[Tap]:
    """Return the four elements around a position, with weights of cubic convolution."""
    below = node.elementwise("ElementWiseFloor", position)
    fraction = node.minus(position, below)
    a = _ALPHA
    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    backwards = node.times(fraction, -1.0)
    distances = [node.plus(fraction, 1.0), fraction, node.plus(backwards, 1.0), node.plus(backwards, 2.0)]
    taps = []
    for offset, distance, coefficients in zip((-1, 0, 1, 2), distances, (far, near, near, far), strict=True):
        # Horner's rule for the polynomial of the distance.
        weight = node.times(distance, coefficients[0])
        for coefficient in coefficients[1:3]:
            weight = node.times(node.plus(weight, coefficient), distance)
        taps.append((node.plus(below, float(offset)), node.plus(weight, coefficients[3])))
    return taps


_TAPS = {"nearest": _nearest_taps, "linear": _linear_taps, "bilinear": _linear_taps, "cubic": _cubic_taps,
         "bicubic": _cubic_taps}  # fmt: skip
_CUBIC = {"cubic", "bicubic"}


def _ends(size: int, aligned: bool) -> tuple[float, float]:
    """Return the ends of an axis: the centres of its last elements if they are `aligned`, else their borders."""
    return (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)


def _reflect(node: OnnxNode, x: OnnxValue, low: float, high: float) -> OnnxValue:
    """Reflect positions at both ends of a range until they are inside."""
    if low == high:
        return node.times(x, 0.0)
    turn = node.elementwise("ElementWiseMod", node.plus(x, -low), 2 * (high - low))
    from_top = node.elementwise("ElementWiseAbs", node.plus(turn, low - high))
    return node.plus(node.times(from_top, -1.0), high)


def _position_inside(node: OnnxNode, position: OnnxValue, size: int, outside: str, aligned: bool) -> OnnxValue:
    """Move positions outside an axis of `size` by ONNX's padding_mode, before their taps are chosen."""
    # Cubic sampling has no such rule: it weighs taps by the position as it is, and only moves the taps.
    low, high = _ends(size, aligned)
    if outside == "border":
        # Between the border and the centre of the last element, a position stays.
        is_inside = node.elementwise("ElementWiseEqual", _limit(node, position, low, high), position)
        nearest = _limit(node, position, 0.0, size - 1.0)
        return node.choose(is_inside, position, nearest)
    return _reflect(node, position, low, high) if outside == "reflection" else position


def _inside(node: OnnxNode, tap: Tap, size: int, outside: str, aligned: bool) -> Tap:
    """Return a tap whose index is inside an axis of `size`, by the rule for indices outside."""
    # `outside` is ONNX's padding_mode, and `aligned` its align_corners.
    index, weight = tap
    if outside == "reflection":
        index = _reflect(node, index, *_ends(size, aligned))
    limited = _limit(node, index, 0.0, size - 1.0)
    if outside == "zeros":
        weight = node.choose(node.elementwise("ElementWiseEqual", limited, index), weight, 0.0)
    return limited, weight


def _sample(
    node: OnnxNode, image: OnnxValue, taps: Sequence[Sequence[Tap]], combine: str = "ElementWiseAdd"
) -> OnnxValue:
    """Return the weighted elements of an image at all combinations of taps, combined: [N, positions, C]."""
    # - `image`: [N, C, spatial…] in ONNX's view.
    # - `taps`: for each spatial axis its taps. Indices are [N, positions], and inside the image.
    builder = node.builder
    batch, channels, *sizes = image.dims
    pixels = math.prod(sizes)
    tensor = builder.channel_last(image)
    rows = builder.arrange(tensor, identity(tensor.rank), (batch * pixels, channels))
    first = builder.literal((np.arange(batch) * pixels).astype(np.int32).reshape(batch, 1))
    strides = np.cumprod([1, *sizes[:0:-1]])[::-1]
    total: OnnxValue | None = None
    for combination in product(*taps):
        place = first
        for (index, _), stride in zip(combination, strides, strict=True):
            place = node.plus(place, node.times(node.cast(index, DataType.INT_32), int(stride)))
        weight = reduce(node.times, (weight for _, weight in combination))
        weight = node.cast(weight, rows.dtype)
        gathered = OnnxValue.of(node.emit("Gather", [rows, builder.materialize(place)], {"axis": 0}))
        part = node.times(gathered, builder.reshape_to(weight, (*weight.dims, 1)) if weight.rank else weight)
        total = part if total is None else node.elementwise(combine, total, part)
    assert total is not None
    return total


def _image(node: OnnxNode, samples: OnnxValue, sizes: Sequence[int]) -> OnnxValue:
    """Return samples [N, positions, C] as [N, C, spatial…] in ONNX's view, with spatial axes of these sizes."""
    batch, _, channels = samples.dims
    tensor = node.materialize(node.reshape_to(samples, (batch, *sizes, channels)))
    return OnnxValue(tensor, channel_last(tensor.rank))


# Values of GridSample's mode and padding_mode, by ONNX's names.
_SAMPLING = {"linear": 0, "bilinear": 0, "nearest": 1}
_PADDING = {"zeros": 0, "border": 1, "reflection": 2}


def _grid_sample(node: OnnxNode) -> OnnxValue:
    """Convert to QNN's operation if it has the mode, otherwise to gathers."""
    x, grid = node.value(0), node.value(1)
    mode, outside = node.attr("mode", "linear"), node.attr("padding_mode", "zeros")
    aligned = bool(node.attr("align_corners", 0))
    if mode not in _TAPS or outside not in _PADDING:
        node.refuse(f"mode '{mode}' and padding_mode '{outside}' are unknown")
    axes = x.rank - 2
    if axes < 1 or grid.rank != x.rank or grid.dims[-1] != axes or grid.dims[0] != x.dims[0]:
        node.refuse(f"a grid of {list(grid.dims)} does not fit {list(x.dims)}")
    if axes == 2 and mode in _SAMPLING:
        params = {"align_corners": aligned, "mode": _SAMPLING[mode], "padding_mode": _PADDING[outside]}
        return node.apply_channel_last("GridSample", x, params, node.materialize(grid))
    batch, *out_sizes, _ = grid.dims
    flat = node.reshape_to(grid, (batch, math.prod(out_sizes), axes))
    taps = []
    for axis, size in enumerate(x.dims[2:]):
        # The coordinates of a position are in reverse order, from -1 to 1.
        column = slice_value(node, flat, {2: (axes - 1 - axis, axes - axis, 1)})
        coordinate = node.cast(node.reshape_to(column, flat.dims[:2]), DataType.FLOAT_32)
        scale, shift = ((size - 1) / 2, (size - 1) / 2) if aligned else (size / 2, (size - 1) / 2)
        position = node.plus(node.times(coordinate, scale), shift)
        if mode == "nearest":
            position = node.elementwise("ElementWiseRound", position)
        if mode not in _CUBIC:
            position = _position_inside(node, position, size, outside, aligned)
        taps.append([_inside(node, tap, size, outside, aligned) for tap in _TAPS[mode](node, position)])
    return _image(node, _sample(node, x, taps), out_sizes)


def _deform_conv(node: OnnxNode) -> OnnxValue:
    """Gather what each filter tap reads, each at an offset of its own, and multiply it by the filters as a matrix."""
    x, weights, offsets = node.value(0), node.value(1), node.value(2)
    bias, mask = node.optional(3), node.optional(4)
    if x.rank != 4 or weights.rank != 4 or offsets.rank != 4:
        node.unsupported(f"operands of rank {x.rank}")
    group, offset_groups = int(node.attr("group", 1)), int(node.attr("offset_group", 1))
    kernel, (batch, channels) = weights.dims[2:], x.dims[:2]
    out_sizes, taps_count = offsets.dims[2:], math.prod(kernel)
    if min(group, offset_groups) < 1 or channels % (group * offset_groups) or weights.dims[0] % group:
        node.refuse(f"group {group} and offset_group {offset_groups} must divide {channels} channels")
    if weights.dims[1] * group != channels or offsets.dims[1] != 2 * taps_count * offset_groups:
        node.refuse(f"filters {list(weights.dims)} and offsets {list(offsets.dims)} do not fit {list(x.dims)}")
    strides, dilations = per_axis(node, "strides", 2), per_axis(node, "dilations", 2)
    pads = padding(node, 2, (0, 0))
    places = taps_count * math.prod(out_sizes)
    offsets = node.reshape_to(offsets, (batch, offset_groups, taps_count, 2, math.prod(out_sizes)))
    if mask is not None:
        mask = node.reshape_to(mask, (batch, offset_groups, places, 1))
    # Where each tap reads without an offset: one array [taps, outputs] for each axis.
    grids = np.meshgrid(*map(np.arange, (*kernel, *out_sizes)), indexing="ij")
    undeformed = [
        (grids[2 + a] * strides[a] + grids[a] * dilations[a] - pads[a][0]).reshape(1, places).astype(np.float32)
        for a in range(2)
    ]
    per_group = channels // offset_groups
    parts = []
    for g in range(offset_groups):
        taps = []
        for axis, size in enumerate(x.dims[2:]):
            offset = slice_value(node, offsets, {1: (g, g + 1, 1), 3: (axis, axis + 1, 1)})
            offset = node.cast(node.reshape_to(offset, (batch, places)), DataType.FLOAT_32)
            moved = node.plus(offset, node.literal(undeformed[axis]))
            taps.append([_inside(node, tap, size, "zeros", True) for tap in _linear_taps(node, moved)])
        part = _sample(node, slice_value(node, x, {1: (g * per_group, (g + 1) * per_group, 1)}), taps)
        if mask is not None:
            factor = node.reshape_to(slice_value(node, mask, {1: (g, g + 1, 1)}), (batch, places, 1))
            part = node.times(part, factor)
        parts.append(part)
    columns = node.reshape_to(join(node, parts, 2), (batch, taps_count, math.prod(out_sizes), channels))
    results = []
    ins, outs = channels // group, weights.dims[0] // group
    for g in range(group):
        part = slice_value(node, columns, {3: (g * ins, (g + 1) * ins, 1)}).permute((0, 2, 1, 3))
        matrix = slice_value(node, weights, {0: (g * outs, (g + 1) * outs, 1)}).permute((2, 3, 1, 0))
        matrix = node.reshape_to(matrix, (taps_count * ins, outs))
        rows = node.reshape_to(part, (batch, math.prod(out_sizes), taps_count * ins))
        results.append(matmul(node, rows, matrix))
    result = join(node, results, 2)
    return _image(node, result if bias is None else node.plus(result, bias), out_sizes)


def _roi_align(node: OnnxNode) -> OnnxValue:
    """Sample a grid of points in each part of each region, and take their average or maximum."""
    x, rois, batches = node.value(0), node.value(1), node.value(2)
    ratio, mode = int(node.attr("sampling_ratio", 0)), node.attr("mode", "avg")
    if x.rank != 4 or rois.rank != 2 or rois.dims[1] != 4 or mode not in ("avg", "max"):
        node.refuse(f"regions {list(rois.dims)} and mode '{mode}' do not fit {list(x.dims)}")
    if ratio < 1:
        node.unsupported("a number of samples that depends on the size of each region (sampling_ratio 0)")
    out_sizes = [int(node.attr(f"output_{name}", 1)) for name in ("height", "width")]
    count, scale = rois.dims[0], node.attr("spatial_scale", 1.0)
    # Before operator set 16 there was no other mode.
    half = node.opset >= 16 and node.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    corners = node.times(node.cast(rois, DataType.FLOAT_32), scale)
    if half:
        corners = node.plus(corners, -0.5)
    grids = np.meshgrid(*(np.arange(size * ratio) for size in out_sizes), indexing="ij")
    taps, valid = [], []
    for axis, (size, out) in enumerate(zip(x.dims[2:], out_sizes, strict=True)):
        # A region is its corners x1, y1, x2, y2.
        low, high = (slice_value(node, corners, {1: (1 - axis + 2 * end, 2 - axis + 2 * end, 1)}) for end in (0, 1))
        length = node.minus(high, low)
        if not half:
            length = node.elementwise("ElementWiseMaximum", length, 1.0)
        shares = ((grids[axis].reshape(1, -1) + 0.5) / (ratio * out)).astype(np.float32)
        position = node.plus(low, node.times(length, node.literal(shares)))
        limited = _limit(node, position, 0.0, size - 1.0)
        valid.append(node.elementwise("ElementWiseEqual", _limit(node, position, -1.0, float(size)), position))
        taps.append([_inside(node, tap, size, "border", True) for tap in _linear_taps(node, limited)])
    first = node.times(node.cast(batches, DataType.FLOAT_32), float(x.dims[2]))
    # All images become one, stacked by rows; `first` is the row at which the image of each region begins.
    rows = [(node.plus(index, node.reshape_to(first, (count, 1))), weight) for index, weight in taps[0]]
    stacked = OnnxValue(node.builder.channel_last(x), identity(4))
    stacked = node.reshape_to(stacked, (1, x.dims[0] * x.dims[2], *stacked.dims[2:]))
    places = (1, count * grids[0].size)
    flat = [
        [(node.reshape_to(index, places), node.reshape_to(weight, places)) for index, weight in axis]
        for axis in (rows, taps[1])
    ]
    # As in ONNX Runtime, a maximum is that of all weighted elements, not of the interpolated points.
    combine = "ElementWiseAdd" if mode == "avg" else "ElementWiseMaximum"
    samples = _sample(node, stacked.permute((0, 3, 1, 2)), flat, combine)
    inside = node.elementwise("ElementWiseAnd", *valid)
    channels = x.dims[1]
    samples = node.times(
        node.reshape_to(samples, (count, grids[0].size, channels)),
        node.reshape_to(node.cast(inside, x.tensor.dtype), (count, grids[0].size, 1)),
    )
    split = node.reshape_to(samples, (count, out_sizes[0], ratio, out_sizes[1], ratio, channels))
    pooled = reduce_value(node, "ReduceMean" if mode == "avg" else "ReduceMax", split, [2, 4], False)
    return _image(node, node.reshape_to(pooled, (count, math.prod(out_sizes), channels)), out_sizes)


# --- writing to positions ----------------------------------------------------------------------------------------


def _col2im(node: OnnxNode) -> OnnxValue:
    """Add the columns of blocks to a padded image, whose positions are constant, and cut the padding off."""
    x = node.value(0)
    image, block = node.ints(1) or [], node.ints(2) or []
    axes = len(image)
    if x.rank != 3 or not axes or len(block) != axes or min(*image, *block) < 1 or x.dims[1] % math.prod(block):
        node.refuse(f"blocks of {block} in an image of {image} do not fit {list(x.dims)}")
    strides, dilations = per_axis(node, "strides", axes), per_axis(node, "dilations", axes)
    pads = padding(node, axes, (0,) * axes)
    full = [size + before + after for size, (before, after) in zip(image, pads, strict=True)]
    counts = [(size - (k - 1) * d - 1) // s + 1 for size, k, d, s in zip(full, block, dilations, strides, strict=True)]
    if min(counts) < 1 or math.prod(counts) != x.dims[2]:
        node.refuse(f"{x.dims[2]} blocks of {block} are not those of an image of {image}")
    grids = np.meshgrid(*map(np.arange, (*block, *counts)), indexing="ij")
    positions = [grids[a] * dilations[a] + grids[axes + a] * strides[a] for a in range(axes)]
    places = np.ravel_multi_index(positions, full).reshape(-1, 1).astype(np.int32)
    batch, channels = x.dims[0], x.dims[1] // math.prod(block)
    columns = node.reshape_to(x, (batch * channels, places.size))
    blank = node.builder.constant(np.zeros((math.prod(full), batch * channels), x.tensor.dtype.numpy))
    operands = [blank, node.builder.constant(places), node.materialize(columns.permute((1, 0)))]
    sums = OnnxValue.of(node.emit("ScatterNd", operands, {"reduction": 1}))
    whole = node.reshape_to(sums, (*full, batch, channels))
    cut = {a: (pads[a][0], pads[a][0] + image[a], 1) for a in range(axes)}
    return slice_value(node, whole, cut).permute((axes, axes + 1, *range(axes)))


def _max_unpool(node: OnnxNode) -> OnnxValue:
    """Scatter the maxima into zeros; a larger output shape is padded."""
    x, indices = node.value(0), node.value(1)
    axes = x.rank - 2
    kernel, strides = per_axis(node, "kernel_shape", axes), per_axis(node, "strides", axes)
    pads = padding(node, axes, (0,) * axes)
    sizes = [
        (n - 1) * s + k - before - after
        for n, k, s, (before, after) in zip(x.dims[2:], kernel, strides, pads, strict=True)
    ]
    dims = (*x.dims[:2], *sizes)
    if axes < 1 or min(dims) < 1 or indices.dims != x.dims:
        node.refuse(f"indices {list(indices.dims)} and windows {list(kernel)} do not fit {list(x.dims)}")
    elements = x.tensor.elements
    operands = [
        node.builder.constant(np.zeros(math.prod(dims), x.tensor.dtype.numpy)),
        *(node.materialize(node.reshape_to(v, (elements,))) for v in (indices, x)),
    ]
    result = node.reshape_to(OnnxValue.of(node.emit("ScatterElements", operands, {"axis": 0})), dims)
    shape = node.ints(2)
    if shape is None or tuple(shape) == dims:
        return result
    if len(shape) != x.rank or any(size < d for size, d in zip(shape, dims, strict=True)):
        node.refuse(f"output shape {shape} is smaller than {list(dims)}")
    after = [(0, size - d) for size, d in zip(shape, dims, strict=True)]
    tensor = node.materialize(result)
    return OnnxValue.of(node.emit("Pad", [tensor], {"scheme": CONSTANT, "pad_amount": after}))


def _affine_grid(node: OnnxNode) -> OnnxValue:
    """Multiply the positions of a picture or volume, from -1 to 1, by a matrix for each sample."""
    # ONNX's own definition fails for a batch of 1.
    theta, dims = node.value(0), node.ints(1) or []
    sizes = dims[2:]
    axes = len(sizes)
    if axes not in (2, 3) or theta.dims != (dims[0], axes, axes + 1) or min(sizes) < 1:
        node.refuse(f"matrices {list(theta.dims)} do not fit a picture of {dims}")
    # The outermost elements are at -1 and 1 if corners are aligned, otherwise their outer edges.
    ends = [size - 1 if node.attr("align_corners", 0) else size for size in sizes]
    lines = [(2 * np.arange(size) + 1 - size) / max(end, 1) for size, end in zip(sizes, ends, strict=True)]
    # Coordinates are in reverse order, and 1 follows for the shift.
    grid = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(sizes)], -1).reshape(-1, axes + 1)
    positions = OnnxValue(node.builder.numbers(grid, theta.tensor.dtype), (0, 1))
    moved = matmul(node, positions, theta.permute((0, 2, 1)))
    return node.reshape_to(moved, (dims[0], *sizes, axes))


CONVERTERS: dict[str, Converter] = {
    "AffineGrid": _affine_grid,
    "GridSample": _grid_sample,
    "DeformConv": _deform_conv,
    "RoiAlign": _roi_align,
    "Col2Im": _col2im,
    "MaxUnpool": _max_unpool,
}
