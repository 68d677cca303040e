"""Resizing and sampling read the places that the coordinate rules name."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.native.harness import ON_TARGETS, Result, bind, check, make_step, quantized_input, run

pytestmark = ON_TARGETS
RNG = np.random.default_rng(5)


def floats(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


SIZES = [(10, 14), (3, 4), (5, 7), (1, 1), (13, 6), (5, 14)]


@pytest.mark.parametrize("size", SIZES)
def test_nearest(size: tuple) -> None:
    for transformation, nearest in itertools.product(range(4), range(4)):
        params = {"transformation_mode": transformation, "interpolation_mode": 0, "nearest_mode": nearest}
        check("Resize", [floats(2, 5, 7, 3)], params, [Result((2, *size, 3))])
    x = quantized_input(RNG.integers(0, 99, (1, 5, 7, 4)).astype(np.uint8), 0.1, 3)
    check("ResizeNearestNeighbor", [x], {"half_pixel_centers": True}, [Result((1, *size, 4))])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", [1, 2])
def test_linear_and_cubic(size: tuple, mode: int) -> None:
    for transformation in range(4):
        params = {"transformation_mode": transformation, "interpolation_mode": mode}
        check("Resize", [floats(2, 5, 7, 3)], params, [Result((2, *size, 3))], rtol=1e-4, atol=1e-5)
    check("Resize", [floats(2, 5, 7, 3)], {"interpolation_mode": 2, "exclude_outside": True}, [Result((2, *size, 3))],
          rtol=1e-4, atol=1e-5)  # fmt: skip


@pytest.mark.parametrize(("corners", "centers"), [(False, False), (True, False), (False, True)])
def test_bilinear_of_images(corners: bool, centers: bool) -> None:
    params = {"align_corners": corners, "half_pixel_centers": centers}
    check("ResizeBilinear", [floats(2, 5, 7, 37)], params, [Result((2, 9, 13, 37))], rtol=1e-5, atol=1e-5)


def test_linear_along_three_axes() -> None:
    check("Resize", [floats(4, 5, 3)], {"interpolation_mode": 1}, [Result((7, 3, 8))], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("corners", [False, True])
def test_grid_sample(padding: int, mode: int, corners: bool) -> None:
    x, grid = floats(2, 5, 7, 9), RNG.uniform(-1.6, 1.6, (2, 4, 6, 2)).astype(np.float32)
    params = {"padding_mode": padding, "mode": mode, "align_corners": corners}
    check("GridSample", [x, grid], params, rtol=1e-4, atol=1e-4)


def test_grids_of_nan_and_infinity_stay_inside() -> None:
    grid = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0], np.float32).reshape(1, 1, 3, 2)
    for padding, mode in itertools.product(range(3), range(2)):
        step, arrays = make_step("GridSample", [floats(1, 3, 3, 2), grid], {"padding_mode": padding, "mode": mode})
        run(step, arrays)


@pytest.mark.parametrize("mode", [0, 1])
def test_crop_and_resize(mode: int) -> None:
    boxes = np.array([[0, 0, 1, 1], [0.13, 0.27, 0.71, 0.93], [-0.2, 0.3, 0.5, 1.4], [0.8, 0.8, 0.1, 0.2]], np.float32)
    indices = np.array([0, 1, 1, 0], np.int32)
    params = {"resize_dims": (5, 4), "interpolation_mode": mode, "extrapolation_value": -7.0}
    check("CropAndResize", [floats(2, 6, 8, 5), boxes, indices], params, rtol=1e-4, atol=1e-4)


def test_a_crop_of_an_image_that_is_not_there_is_reported() -> None:
    boxes = np.array([[0, 0, 1, 1], [0, 0, 1, 1]], np.float32)
    for index, fault in ((1, False), (-2, False), (2, True), (-3, True)):
        inputs = [floats(2, 6, 8, 5), boxes, np.array([0, index], np.int32)]
        step, arrays = make_step("CropAndResize", inputs, {"resize_dims": (5, 4)})
        machine = bind(step)
        machine.run_on(arrays)
        assert machine.fault == fault, index
