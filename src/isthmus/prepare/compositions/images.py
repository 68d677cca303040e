"""Compositions of operations on images."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from isthmus.graph import DataType, Tensor
from isthmus.graph.ops.movement import CONSTANT
from isthmus.graph.ops.sampling import GAUSSIAN, SAME, UNIFORM, YUV_TO_RGB, patch_padding
from isthmus.prepare.compositions.composer import FLOAT, INTEGER, Composition, StepComposer

# A coordinate of GridSample that is outside every volume.
_FAR = 1e6


def _extract_patches(c: StepComposer) -> list[Tensor]:
    """Gather the rows of all windows, then their columns, and bring the pixels of each window together."""
    x = c.movable(0)
    n, *counts, _ = c.outputs[0].dims
    sizes, strides, rates = (np.asarray(c.params[name]).tolist() for name in ("size", "stride", "rate"))
    windows = list(zip(x.dims[1:3], sizes, strides, rates, strict=True))
    pads = [
        patch_padding(extent, (size - 1) * rate + 1, stride, c.params["padding"] == SAME)[1:]
        for extent, size, stride, rate in windows
    ]
    if any(map(any, pads)):
        x = c("Pad", x, scheme=CONSTANT, pad_amount=np.array([(0, 0), *pads, (0, 0)]))
    for axis, (count, (_, size, stride, rate)) in enumerate(zip(counts, windows, strict=True), 1):
        places = np.arange(count)[:, None] * stride + np.arange(size) * rate
        x = c("Gather", x, c.constant(places.reshape(-1), INTEGER), axis=axis)
    x = c.reshape(x, n, counts[0], sizes[0], counts[1], sizes[1], x.dims[3])
    return [c.reshape(c("Transpose", x, perm=[0, 1, 3, 2, 4, 5]), *c.outputs[0].dims)]


def _noise(c: StepComposer, x: Tensor) -> Tensor:
    """Return what is outside an image: random numbers with its range or variance, or 0."""
    kind, dims, axes = c.params["noise"], c.outputs[0].dims, [1, 2, 3]
    if kind not in (UNIFORM, GAUSSIAN):
        return c.constant(np.zeros((1, 1, 1, 1)))
    shape, seed = c.constant(dims, DataType.UINT_32), c.constant([0.0])
    op = "RandomUniformLike" if kind == UNIFORM else "RandomNormalLike"
    noise = c(op, shape, seed, dims=dims, dtype=FLOAT)
    if kind == UNIFORM:
        base, most = (c(f"Reduce{end}", x, axes=axes, keep_dims=True) for end in ("Min", "Max"))
        spread = c("ElementWiseSubtract", most, base)
    else:
        base = c("ReduceMean", x, axes=axes, keep_dims=True)
        squares = c("ElementWiseSquaredDifference", x, base)
        spread = c("ElementWiseSquareRoot", c("ReduceMean", squares, axes=axes, keep_dims=True))
    return c("ElementWiseAdd", c("ElementWiseMultiply", noise, spread), base)


def _extract_glimpse(c: StepComposer) -> list[Tensor]:
    """Gather the pixels of a window; those outside the image are noise."""
    x, offsets = c.real(0), c.real(1)
    n, height, width, _ = c.outputs[0].dims
    image = np.array(x.dims[1:3], np.float32)
    if c.params["normalized"]:
        offsets = c("ElementWiseMultiply", offsets, c.constant(image))
    if c.params["centered"]:
        offsets = c("ElementWiseMultiply", offsets, c.constant([0.5]))
        offsets = c("ElementWiseAdd", offsets, c.constant(image / 2))
    offsets = c("ElementWiseSubtract", offsets, c.constant(np.array([height, width], np.float32) / 2))
    starts = c("Cast", offsets, dtype=INTEGER)
    # The row and the column of each pixel [n, height, width].
    places, inside = [], None
    for axis, size in enumerate(x.dims[1:3]):
        start = c.reshape(c.slice(starts, 1, axis, axis + 1), n, 1, 1)
        place = c("ElementWiseAdd", start, c.constant(np.indices((1, height, width))[axis + 1], INTEGER))
        nearest = c("ElementWiseMaximum", place, c.constant([0], INTEGER))
        nearest = c("ElementWiseMinimum", nearest, c.constant([size - 1], INTEGER))
        same = c("ElementWiseEqual", place, nearest)
        inside = same if inside is None else c("ElementWiseAnd", inside, same)
        places.append(nearest)
    assert inside is not None
    pixels = c("GatherNd", x, c("Pack", *places, axis=3), batch_dims=1)
    return [c("ElementWiseSelect", c.reshape(inside, n, height, width, 1), pixels, _noise(c, x))]


def _yuv_to_rgb(c: StepComposer, v_first: bool) -> list[Tensor]:
    """Compute colours as sums of three planes; all numbers are integers or 4096ths of them, so results are exact."""
    n, height, width, _ = c.outputs[0].dims
    data = c.real(0)
    luma = c.reshape(c.slice(data, 1, 0, height * width), n, height, width, 1)
    chroma = c.reshape(c.slice(data, 1, height * width, data.dims[1]), n, height // 2, 1, width // 2, 1, 2)
    chroma = c.reshape(c("Tile", chroma, multiples=[1, 1, 2, 1, 2, 1]), n, height, width, 2)
    luma = c("ElementWiseSubtract", luma, c.constant([16.0]))
    chroma = c("ElementWiseSubtract", chroma, c.constant([128.0]))
    # Output order 0 is RGB, 1 is BGR.
    colours = YUV_TO_RGB[::-1] if c.params["output_order"] == 1 else YUV_TO_RGB
    # Weights [1, 1, planes, colours] of a convolution with a single pixel: luma, then chroma in the order of the image.
    weights = np.array(colours).T[[0, 2, 1] if v_first else [0, 1, 2]] / 4096
    planes = c("Concat", luma, chroma, axis=3)
    filters, bias = c.constant(weights[None, None]), c.constant([0.5] * 3)
    sums = c("Conv2d", planes, filters, bias, stride=[1, 1], pad_amount=[[0, 0], [0, 0]])
    return [c("ReluMinMax", c("ElementWiseFloor", sums), min_value=0.0, max_value=255.0)]


def _correlation(c: StepComposer) -> list[Tensor]:
    """Multiply by shifted copies, one for each displacement that leaves some of the image; others give 0."""
    left, right, reach, shift = c.real(0), c.real(1), c.params["displacement"], c.params["shift"]
    dims, width = c.outputs[0].dims, left.dims[2]
    moves = range(max(shift - reach, 1 - width), min(shift + reach, width - 1) + 1)
    if not moves:
        return [c.constant(np.zeros(dims))]
    before, after = max(-moves[0], 0), max(moves[-1], 0)
    if before or after:
        right = c("Pad", right, scheme=CONSTANT, pad_amount=np.array([[0, 0], [0, 0], [before, after], [0, 0]]))
    means = []
    for move in moves:
        products = c("ElementWiseMultiply", left, c.slice(right, 2, before + move, before + move + width))
        means.append(c("ReduceMean", products, axes=[3], keep_dims=True))
    result = means[0] if len(means) == 1 else c("Concat", *means, axis=3)
    if len(moves) < dims[3]:
        first = moves[0] - (shift - reach)
        outside = [[0, 0]] * 3 + [[first, dims[3] - len(moves) - first]]
        result = c("Pad", result, scheme=CONSTANT, pad_amount=np.array(outside))
    return [result]


def _clamp(c: StepComposer, x: Tensor, low: float, high: float) -> Tensor:
    return c("ElementWiseMinimum", c("ElementWiseMaximum", x, c.constant([low])), c.constant([high]))


def _sampled_place(c: StepComposer, coordinate: Tensor, size: int) -> Tensor:
    """Convert GridSample's coordinates, -1 to 1, to positions along an axis, moved inside by its padding_mode."""
    # Modes are 0 linear, 1 nearest; padding modes are 0 zeros, 1 border, 2 reflection.
    corners, padding = c.params["align_corners"], c.params["padding_mode"]
    scale = (size - 1 if corners else size) / 2
    place = c("ElementWiseMultiply", coordinate, c.constant([scale]))
    place = c("ElementWiseAdd", place, c.constant([(size - 1) / 2]))
    if c.params["mode"] == 1:
        place = c("ElementWiseRound", place)
    if padding < 2:
        # Border: positions end at the edges. Zeros: one element further out, where only zeros are read.
        outside = 1.0 - padding
        return _clamp(c, place, -outside, size - 1 + outside)
    # Reflection is a triangle wave of period 2 * (high - low).
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    if low == high:
        return c("ElementWiseMultiply", place, c.constant([0.0]))
    phase = c("ElementWiseSubtract", place, c.constant([low]))
    phase = c("ElementWiseMod", phase, c.constant([2 * (high - low)]))
    distance = c("ElementWiseAbs", c("ElementWiseSubtract", phase, c.constant([high - low])))
    return c("ElementWiseSubtract", c.constant([high]), distance)


def _grid_sample(c: StepComposer) -> list[Tensor] | None:
    """Gather the elements of a volume around each place, and add them by their weights."""
    if c.input(0).rank == 4:
        return None
    x, grid = c.real(0), c.real(1)
    n, *sizes, _ = x.dims
    axes, count = len(sizes), math.prod(grid.dims[1:-1])
    grid = c.reshape(grid, n, count, axes)
    if c.input(1).dtype.is_float:
        # As in an image, what is not a number is the middle, and infinity is far outside.
        grid = c("ElementWiseSelect", c("ElementWiseEqual", grid, grid), grid, c.constant([0.0]))
        grid = _clamp(c, grid, -_FAR, _FAR)
    taps: list[list[tuple[Tensor, Tensor | None]]] = []
    for axis, size in enumerate(sizes):
        place = _sampled_place(c, c.slice(grid, 2, axes - 1 - axis, axes - axis), size)
        if c.params["mode"] == 1:  # nearest
            found: list[tuple[Tensor, Tensor | None]] = [(place, None)]
        else:
            before = c("ElementWiseFloor", place)
            part = c("ElementWiseSubtract", place, before)
            after = c("ElementWiseAdd", before, c.constant([1.0]))
            found = [(before, c("ElementWiseSubtract", c.constant([1.0]), part)), (after, part)]
        taps.append([_tap(c, index, weight, size) for index, weight in found])
    total: Tensor | None = None
    for chosen in product(*taps):
        part = c("GatherNd", x, c("Concat", *(index for index, _ in chosen), axis=2), batch_dims=1)
        for weight in (weight for _, weight in chosen if weight is not None):
            part = c("ElementWiseMultiply", part, weight)
        total = part if total is None else c("ElementWiseAdd", total, part)
    assert total is not None
    return [c.reshape(total, *c.outputs[0].dims)]


def _tap(c: StepComposer, index: Tensor, weight: Tensor | None, size: int) -> tuple[Tensor, Tensor | None]:
    """Return an index moved inside its axis, and its weight, which is 0 if it was outside and padding is zeros."""
    inside = _clamp(c, index, 0.0, size - 1.0)
    if c.params["padding_mode"] == 0:  # zeros
        weight = c.constant([1.0]) if weight is None else weight
        weight = c("ElementWiseSelect", c("ElementWiseEqual", index, inside), weight, c.constant([0.0]))
    return c("Cast", inside, dtype=INTEGER), weight


def _roi_align(c: StepComposer) -> list[Tensor] | None:
    """Convert the operands to the types that an engine takes."""
    types = [c.input(index).dtype for index in range(3)]
    if types == [FLOAT, FLOAT, INTEGER] and c.outputs[0].dtype is FLOAT:
        return None
    return [c("RoiAlign", c.real(0), c.real(1), c.whole(2), dims=c.outputs[0].dims, **c.params)]


COMPOSITIONS: dict[str, Composition] = {
    "ExtractPatches": _extract_patches,
    "ExtractGlimpse": _extract_glimpse,
    "Nv12ToRgb": lambda c: _yuv_to_rgb(c, v_first=False),
    "Nv21ToRgb": lambda c: _yuv_to_rgb(c, v_first=True),
    "Correlation1D": _correlation,
    "GridSample": _grid_sample,
    "RoiAlign": _roi_align,
}
