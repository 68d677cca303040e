"""Pooling sees exactly the pixels of its windows, at edges too."""

from __future__ import annotations

import numpy as np
import pytest

from engine.native.harness import ON_TARGETS, bind, check, make_step, quantized_input

pytestmark = ON_TARGETS
RNG = np.random.default_rng(4)


def floats(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


WINDOWS = [
    {"filter_size": (2, 2), "stride": (2, 2), "pad_amount": [(0, 0), (0, 0)]},
    {"filter_size": (3, 3), "stride": (2, 2), "pad_amount": [(1, 1), (1, 1)]},
    {"filter_size": (3, 2), "stride": (1, 3), "pad_amount": [(2, 0), (0, 1)], "rounding_mode": 1},
    {"filter_size": (1, 5), "stride": (1, 1), "pad_amount": [(0, 0), (2, 2)]},
    {"filter_size": (9, 11), "stride": (1, 1), "pad_amount": [(0, 0), (0, 0)]},
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("channels", [1, 7, 40])
def test_pools_of_images(window: dict, channels: int) -> None:
    x = floats(2, 9, 11, channels)
    check("PoolMax2d", [x], window)
    check("PoolAvg2d", [x], window, rtol=1e-5, atol=1e-6)
    check("PoolAvg2d", [x], {**window, "count_pad_for_edges": True}, rtol=1e-5, atol=1e-6)
    if "rounding_mode" not in window:
        check("L2Pool2d", [x], window, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("window", WINDOWS)
def test_largest_stored_value_of_fixed_point(dtype: type, window: dict) -> None:
    x = quantized_input(RNG.integers(0, 127, (2, 9, 11, 21)).astype(dtype), 0.1, 4)
    check("PoolMax2d", [x], window)


VOLUME = {"filter_size": (2, 3, 2), "stride": (2, 1, 2), "pad_amount": [(1, 0), (1, 1), (0, 1)]}


def test_pools_of_volumes() -> None:
    check("PoolMax3d", [floats(2, 5, 6, 7, 9)], VOLUME)
    check("PoolAvg3d", [floats(2, 5, 6, 7, 9)], VOLUME, rtol=1e-5, atol=1e-6)


def test_largest_stored_value_of_volumes() -> None:
    x = quantized_input(RNG.integers(-128, 127, (2, 5, 6, 7, 9)).astype(np.int8), 0.1, 4)
    check("PoolMax3d", [x], VOLUME)
    assert all("quantize" not in kernel for kernel in bind(make_step("PoolMax3d", [x], VOLUME)[0]).kernels)


def test_fused_activation() -> None:
    check("PoolAvg2d", [floats(1, 6, 6, 5)], WINDOWS[0], clamp=(0.0, 0.3), rtol=1e-5, atol=1e-6)
    check("PoolMax2d", [floats(1, 6, 6, 5)], WINDOWS[0], clamp=(0.0, 0.3))
    check("PoolAvg3d", [floats(2, 5, 6, 7, 9)], VOLUME, clamp=(0.0, 0.3), rtol=1e-5, atol=1e-6)
    check("PoolMax3d", [floats(2, 5, 6, 7, 9)], VOLUME, clamp=(0.0, 0.3))
