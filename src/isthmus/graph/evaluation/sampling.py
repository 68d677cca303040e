"""Reference computations that resample images.

`axis_taps` is the core of resizing: for each output position along one axis, it gives the input positions and their
weights. A function of (values, params, outputs) is a computation, which the package's docstring describes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from isthmus.graph.evaluation import Computation, Outputs, Params, Values, wide
from isthmus.graph.evaluation.movement import within
from isthmus.graph.evaluation.random import normal, uniform
from isthmus.graph.ops.sampling import (
    ALIGN_CORNERS,
    ASYMMETRIC,
    CEIL,
    FLOOR,
    GAUSSIAN,
    HALF_PIXEL,
    LINEAR,
    NEAREST,
    PYTORCH_HALF_PIXEL,
    ROUND_PREFER_CEIL,
    ROUND_PREFER_FLOOR,
    SAME,
    UNIFORM,
    YUV_TO_RGB,
    patch_padding,
)

ROUNDINGS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    ROUND_PREFER_FLOOR: lambda x: np.ceil(x - 0.5),
    ROUND_PREFER_CEIL: lambda x: np.floor(x + 0.5),
    FLOOR: np.floor,
    CEIL: np.ceil,
}
"""The rules of Resize's nearest_mode."""


def _coordinates(size: int, count: int, transformation: int) -> np.ndarray:
    """Return the coordinate of each of `count` output positions among `size` input positions."""
    position = np.arange(count, dtype=np.float64)
    if transformation == ASYMMETRIC:
        return position * size / count
    if transformation == ALIGN_CORNERS:
        return position * (size - 1) / max(count - 1, 1)
    if transformation == PYTORCH_HALF_PIXEL and count == 1:
        return np.zeros(1)
    return (position + 0.5) * size / count - 0.5


def axis_taps(size: int, count: int, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """Return input positions and weights of each output position, both [count, taps], for Resize's parameters."""
    coordinates = _coordinates(size, count, params["transformation_mode"])
    if params["interpolation_mode"] == NEAREST:
        positions = ROUNDINGS[params["nearest_mode"]](coordinates)[:, None]
        return np.clip(positions, 0, size - 1).astype(np.int64), np.ones((count, 1))
    base = np.floor(coordinates)
    fraction = (coordinates - base)[:, None]
    if params["interpolation_mode"] == LINEAR:
        positions = base[:, None] + np.arange(2)
        weights = np.concatenate([1 - fraction, fraction], 1)
    else:
        positions = base[:, None] + np.arange(-1, 3)
        weights = _cubic(np.abs(fraction - np.arange(-1, 3)), params["cubic_coeff"])
        if params["exclude_outside"]:
            weights = np.where((positions < 0) | (positions > size - 1), 0.0, weights)
            weights = weights / weights.sum(1, keepdims=True)
    return np.clip(positions, 0, size - 1).astype(np.int64), weights


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Return the weight of a tap in cubic convolution by its distance, up to 2; `a` is the kernel's coefficient."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, far)


def _resize(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Resize one axis after the other."""
    x = values[0]
    for axis, (size, count) in enumerate(zip(x.shape, outputs[0].dims, strict=True)):
        if size == count:
            continue
        positions, weights = axis_taps(size, count, params)
        if params["interpolation_mode"] == NEAREST:
            x = np.take(x, positions[:, 0], axis)
            continue
        shape = [-1 if a == axis else 1 for a in range(x.ndim)]
        taps = zip(positions.T, weights.T, strict=True)
        x = sum(np.take(x, position, axis).astype(np.float64) * weight.reshape(shape) for position, weight in taps)
    return x


def image_resize_params(params: Params, interpolation: int) -> Params:
    """Return the parameters of Resize that correspond to ResizeBilinear's or ResizeNearestNeighbor's."""
    if params["align_corners"]:
        transformation, nearest = ALIGN_CORNERS, ROUND_PREFER_CEIL
    elif params["half_pixel_centers"]:
        transformation, nearest = HALF_PIXEL, ROUND_PREFER_CEIL
    else:
        transformation, nearest = ASYMMETRIC, FLOOR
    return {
        "transformation_mode": transformation,
        "interpolation_mode": interpolation,
        "nearest_mode": nearest,
        "exclude_outside": False,
        "cubic_coeff": -0.75,
    }


def _read(x: np.ndarray, batch: np.ndarray, places: Sequence[np.ndarray], outside: float | None) -> np.ndarray:
    """Return pixels x[batch, *places]; outside the image `outside`, or the nearest pixel if that is None."""
    nearest = [np.clip(place, 0, size - 1) for place, size in zip(places, x.shape[1:], strict=False)]
    index = (batch, *(place.astype(np.int64) for place in nearest))
    pixels = x[index]
    if outside is None:
        return pixels
    inside = np.all([place == near for place, near in zip(places, nearest, strict=True)], 0)
    return np.where(inside[..., None], pixels, outside)


def _linear(x: np.ndarray, batch: np.ndarray, places: Sequence[np.ndarray], outside: float | None) -> np.ndarray:
    """Interpolate linearly between the pixels around fractional places along each axis, read as `_read` does."""

    def between(axis: int, chosen: tuple[np.ndarray, ...]) -> np.ndarray:
        if axis == len(places):
            return _read(x, batch, chosen, outside)
        before = np.floor(places[axis])
        part = (places[axis] - before)[..., None]
        first, last = (between(axis + 1, (*chosen, before + step)) for step in (0, 1))
        return first * (1 - part) + last * part

    return between(0, ())


def _crop_and_resize(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Resize a part of an image for each box [top, left, bottom, right], in fractions of the image."""
    # Interpolation mode 0 is linear, 1 takes the nearest pixel.
    x, boxes = wide(values[0]), wide(values[1])
    batch = within(values[2], x.shape[0])[:, None, None]
    coordinates = []
    for low, high, size, count in (
        (boxes[:, 0], boxes[:, 2], x.shape[1], outputs[0].dims[1]),
        (boxes[:, 1], boxes[:, 3], x.shape[2], outputs[0].dims[2]),
    ):
        # The corners of a box are the centers of its corner pixels; a single pixel is at the middle.
        steps = np.arange(count) / max(count - 1, 1) if count > 1 else np.full(1, 0.5)
        coordinates.append((low[:, None] + (high - low)[:, None] * steps) * (size - 1))
    row, column = np.broadcast_arrays(coordinates[0][:, :, None], coordinates[1][:, None, :])
    fill = params["extrapolation_value"]
    inside = (row >= 0) & (row <= x.shape[1] - 1) & (column >= 0) & (column <= x.shape[2] - 1)
    if params["interpolation_mode"] == 0:
        pixels = _linear(x, batch, [np.nan_to_num(row), np.nan_to_num(column)], None)
    else:
        pixels = _read(x, batch, [np.rint(np.nan_to_num(row)), np.rint(np.nan_to_num(column))], None)
    return np.where(inside[..., None], pixels, fill)


def _reflect(coordinates: np.ndarray, low: float, high: float) -> np.ndarray:
    """Mirror coordinates at both edges until they are inside."""
    if high <= low:
        return np.zeros_like(coordinates)
    span = high - low
    phase = np.mod(coordinates - low, 2 * span)
    return low + np.minimum(phase, 2 * span - phase)


def _grid_sample(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Read an image at the coordinates (x, y), or a volume at (x, y, z), of a grid, from -1 to 1."""
    # Mode 0 interpolates, 1 takes the nearest pixel. Outside the image, padding mode 0 reads 0, 1 the nearest pixel, 2
    # mirrors the image.
    x, grid = wide(values[0]), np.nan_to_num(wide(values[1]))
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * (grid.ndim - 2))
    positions = []
    for axis, size in enumerate(x.shape[1:-1], 1):
        coordinates = grid[..., -axis]
        corners = params["align_corners"]
        coordinates = (coordinates + 1) / 2 * (size - 1) if corners else ((coordinates + 1) * size - 1) / 2
        if params["mode"] == 1:
            coordinates = np.rint(coordinates)
        if params["padding_mode"] == 1:
            coordinates = np.clip(coordinates, 0, size - 1)
        elif params["padding_mode"] == 2:
            coordinates = _reflect(coordinates, 0.0, size - 1.0) if corners else _reflect(coordinates, -0.5, size - 0.5)
        positions.append(coordinates)
    outside = 0.0 if params["padding_mode"] == 0 else None
    read = _linear if params["mode"] == 0 else _read
    return read(x, batch, positions, outside)


def _yuv_to_rgb(values: Values, params: Params, outputs: Outputs, v_first: bool) -> np.ndarray:
    """Convert NV12 (U first) or NV21 (V first) images of limited range to RGB by BT.601; order 1 is BGR."""
    n, height, width, _ = outputs[0].dims
    data = wide(values[0]).astype(np.float64)
    luma = data[:, : height * width].reshape(n, height, width)
    chroma = data[:, height * width :].reshape(n, height // 2, width // 2, 2).repeat(2, 1).repeat(2, 2) - 128
    u, v = (chroma[..., 1], chroma[..., 0]) if v_first else (chroma[..., 0], chroma[..., 1])
    planes = [YUV_TO_RGB[0][0] * (luma - 16) + of_u * u + of_v * v for _, of_u, of_v in YUV_TO_RGB]
    if params["output_order"] == 1:
        planes.reverse()
    return np.clip(np.floor(np.stack(planes, -1) / 4096 + 0.5), 0, 255)


def _correlation(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Compute the mean over the depth of in[0] times in[1] shifted along the width; zeros outside the image."""
    left, right = wide(values[0]), wide(values[1])
    width, reach = left.shape[2], params["displacement"]
    out = np.zeros(outputs[0].dims)
    for index in range(2 * reach + 1):
        # Position i of in[0] is multiplied by position i + move of in[1].
        move = index - reach + params["shift"]
        first, last = max(0, -move), min(width, width - move)
        if first < last:
            pairs = left[:, :, first:last] * right[:, :, first + move : last + move]
            out[:, :, first:last, index] = pairs.mean(-1)
    return out


def _extract_patches(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Copy each window of an image to a vector: its pixels row by row, with all channels."""
    sizes, strides, rates = (np.asarray(params[name]).tolist() for name in ("size", "stride", "rate"))
    pads = [
        patch_padding(extent, (size - 1) * rate + 1, stride, params["padding"] == SAME)[1:]
        for extent, size, stride, rate in zip(values[0].shape[1:3], sizes, strides, rates, strict=True)
    ]
    x = np.pad(values[0], ((0, 0), *pads, (0, 0)))
    _, height, width, _ = outputs[0].dims
    pixels = [
        x[:, row * rates[0] :: strides[0], column * rates[1] :: strides[1]][:, :height, :width]
        for row in range(sizes[0])
        for column in range(sizes[1])
    ]
    return np.concatenate(pixels, -1)


def _extract_glimpse(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Copy a window of each image; pixels outside the image are noise with the range or variance of the image."""
    x, offsets = wide(values[0]), np.asarray(values[1], np.float32)
    n, height, width, _ = outputs[0].dims
    image = np.array(x.shape[1:3], np.float32)
    if params["normalized"]:
        offsets = offsets * image
    if params["centered"]:
        offsets = offsets / np.float32(2) + image / np.float32(2)
    starts = np.trunc(offsets - np.array([height, width], np.float32) / np.float32(2)).astype(np.int64)
    row = (starts[:, :1] + np.arange(height))[:, :, None]
    column = (starts[:, 1:] + np.arange(width))[:, None]
    row, column = np.broadcast_arrays(row, column)
    inside = (row >= 0) & (row < x.shape[1]) & (column >= 0) & (column < x.shape[2])
    axes, noise = (1, 2, 3), np.zeros(outputs[0].dims)
    if params["noise"] == GAUSSIAN:
        noise = normal(0, 0, 0, outputs[0].elements).reshape(outputs[0].dims)
        noise = noise * x.std(axes, keepdims=True) + x.mean(axes, keepdims=True)
    elif params["noise"] == UNIFORM:
        low, high = x.min(axes, keepdims=True), x.max(axes, keepdims=True)
        noise = uniform(0, 0, 0, outputs[0].elements).reshape(outputs[0].dims) * (high - low) + low
    pixels = _read(x, np.arange(n)[:, None, None], [row, column], None)
    return np.where(inside[..., None], pixels, noise)


def _roi_align(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Interpolate each region at regular points; each pixel of the result is the mean (or the most) of its points."""
    x, regions = wide(values[0]), wide(values[1])
    batches = within(values[2], x.shape[0])
    count, height, width, channels = outputs[0].dims
    image, shift = x.shape[1:3], 0.5 if params["aligned"] else 0.0
    ratios = np.asarray(params["img_size_ratio"], np.float32).astype(np.float64)
    out = np.zeros((count, height, width, channels))
    for index, (left, top, right, bottom) in enumerate(regions):
        low = np.array([top, left]) / ratios - shift
        extent = np.array([bottom, right]) / ratios - shift - low
        if not params["aligned"]:
            extent = np.maximum(extent, 1.0)
        cells = extent / (height, width)
        requested = (params["num_samples_y"], params["num_samples_x"])
        samples = [n or max(int(np.ceil(cell)), 1) for n, cell in zip(requested, cells, strict=True)]
        rows, columns = (
            low[axis] + (np.arange(size * n) + 0.5) / n * cells[axis]
            for axis, (size, n) in enumerate(zip((height, width), samples, strict=True))
        )
        row, column = np.meshgrid(rows, columns, indexing="ij")
        inside = (row >= -1) & (row <= image[0]) & (column >= -1) & (column <= image[1])
        row, column = (np.clip(at, 0, size - 1) for at, size in zip((row, column), image, strict=True))
        points = np.where(inside[..., None], _linear(x, np.full_like(row, batches[index], int), [row, column], None), 0)
        points = points.reshape(height, samples[0], width, samples[1], channels)
        out[index] = points.max((1, 3)) if params["largest_sample"] else points.mean((1, 3))
    return out


COMPUTATIONS: dict[str, Computation] = {
    "Resize": _resize,
    "ResizeNearestNeighbor": lambda v, p, o: _resize(v, image_resize_params(p, NEAREST), o),
    "ResizeBilinear": lambda v, p, o: _resize(v, image_resize_params(p, LINEAR), o),
    "CropAndResize": _crop_and_resize,
    "GridSample": _grid_sample,
    "Nv12ToRgb": lambda v, p, o: _yuv_to_rgb(v, p, o, v_first=False),
    "Nv21ToRgb": lambda v, p, o: _yuv_to_rgb(v, p, o, v_first=True),
    "Correlation1D": _correlation,
    "ExtractPatches": _extract_patches,
    "ExtractGlimpse": _extract_glimpse,
    "RoiAlign": _roi_align,
}
