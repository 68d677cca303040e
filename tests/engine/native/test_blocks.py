"""8-bit products by blocks for matrix registers are exact: strips of narrow images, short taps, last rows and columns.

Targets without such registers compute the same blocks by other instructions, which these tests choose.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.native import harness
from engine.native.test_quantized_convolution import FEWER, OTHERS, SIGNED, UNSIGNED, check_convolution
from isthmus.engine.native.lowering import quantized_convolution

pytestmark = harness.ON_TARGETS


@pytest.fixture(autouse=True)
def by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all 8-bit products be computed by blocks."""
    monkeypatch.setattr(quantized_convolution, "suits_blocks", lambda *_: True)


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
@pytest.mark.parametrize(
    ("dims", "filters", "kernel", "stride"),
    [
        ((1, 7, 7, 40), 70, (3, 3), (1, 1)),
        ((2, 14, 14, 16), 33, (3, 3), (2, 2)),
        ((1, 9, 11, 64), 48, (1, 1), (2, 2)),
        ((2, 5, 8, 3), 8, (5, 2), (2, 3)),
        ((1, 3, 70, 20), 17, (3, 3), (1, 1)),
        ((1, 20, 1, 24), 12, (3, 1), (1, 1)),
    ],
)
def test_narrow_and_wide_images_are_exact(kind: type, dims: Any, filters: int, kernel: Any, stride: Any) -> None:
    pad = ((kernel[0] // 2, kernel[0] // 2), (kernel[1] // 2, kernel[1] // 2))
    for others in (OTHERS, FEWER):
        check_convolution(dims, filters, kernel, stride=stride, pad=pad, kind=kind, others=others)


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
def test_windows_that_are_spread_or_inside_the_image_are_exact(kind: type) -> None:
    check_convolution((1, 12, 13, 20), 20, (3, 3), pad=((2, 2), (3, 3)), dilation=(2, 3), kind=kind)
    check_convolution((1, 6, 50, 64), 20, (3, 3), kind=kind)
    check_convolution((1, 6, 7, 12), 33, (3, 3), kind=kind, clamp=(0.0, 0.4), bias=False)
    check_convolution((1, 8, 8, 16), 8, (3, 3), kind=kind, group=2)


@pytest.mark.parametrize("channels", [1, 12, 32, 64, 65, 130, 192])
def test_rows_of_every_depth_and_number_are_exact(channels: int) -> None:
    for height in (1, 16, 17, 32, 49, 100):
        check_convolution((1, height, 1, channels), 40, (1, 1), kind=UNSIGNED)


def test_weights_of_nine_bits_are_exact() -> None:
    check_convolution((1, 7, 7, 20), 40, (3, 3), zeros=(-100,), weight_kind=UNSIGNED, kind=UNSIGNED, per_channel=False)
