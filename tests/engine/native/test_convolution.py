"""Float convolutions agree with the numpy reference: every layout of window, edge, group, stride and channel count."""

from __future__ import annotations

import numpy as np
import pytest
from support.suites import only, sampled

from engine.native import harness
from engine.native.harness import check, static
from isthmus.engine.native.lowering.convolution import ConvBlocking
from isthmus.engine.native.target import by_name, runnable
from isthmus.errors import QnnError
from isthmus.prepare.geometry.windows import ConvWindow

pytestmark = harness.ON_TARGETS
_generator = np.random.default_rng(7)
_CLOSE = {"rtol": 1e-5, "atol": 2e-5}


def _random(*dims: int) -> np.ndarray:
    return _generator.standard_normal(dims).astype(np.float32)


def _pads(*amounts: int) -> list[list[int]]:
    return [[a, a] for a in amounts]


CONVOLUTIONS = {
    "few channels take whole kernel rows": ((2, 9, 11, 3), (3, 3, 3, 24), 2, _pads(1, 1), 1, 1),
    "many channels take single taps": ((1, 9, 9, 40), (3, 3, 40, 33), 1, _pads(1, 1), 1, 1),
    "no padding, whole rows of many channels": ((1, 6, 7, 36), (2, 3, 36, 5), 1, _pads(0, 0), 1, 1),
    "dilation and groups": ((2, 12, 12, 8), (3, 5, 4, 16), 1, _pads(2, 2), 2, 2),
    "small groups, the last ones computed again": ((2, 9, 11, 104), (3, 3, 8, 104), 1, _pads(1, 1), 1, 13),
    "small groups with stride": ((1, 11, 12, 24), (3, 3, 4, 24), 2, [[0, 1], [0, 1]], 1, 6),
    "pairs, dilated": ((1, 9, 12, 18), (3, 2, 2, 18), (1, 2), _pads(2, 3), 2, 9),
    "point-wise in small groups": ((3, 4, 5, 32), (1, 1, 4, 32), 1, _pads(0, 0), 1, 8),
    "uneven padding, uneven stride": ((2, 8, 9, 6), (2, 3, 2, 12), (1, 2), [[0, 1], [1, 0]], 1, 3),
    "point-wise is a plain product": ((1, 5, 5, 4), (1, 1, 4, 60), 1, _pads(0, 0), 1, 1),
    "point-wise, padding below only": ((2, 5, 5, 4), (1, 1, 4, 9), 1, [[0, 1], [0, 0]], 1, 1),
    "point-wise, padding on the right only": ((2, 5, 5, 4), (1, 1, 4, 9), 1, [[0, 0], [0, 2]], 1, 1),
    "point-wise in groups, padding after only": ((2, 5, 5, 4), (1, 1, 2, 6), 1, [[0, 1], [0, 1]], 1, 2),
    "kernel as large as the input, padding after": ((2, 3, 3, 4), (3, 3, 4, 5), 1, [[0, 1], [0, 2]], 1, 1),
    "point-wise with stride": ((1, 6, 6, 4), (1, 1, 4, 10), 2, _pads(0, 0), 1, 1),
    "kernel as large as the input": ((2, 4, 4, 3), (4, 4, 3, 10), 1, _pads(0, 0), 1, 1),
    "windows wider than the input": ((1, 2, 2, 5), (5, 5, 5, 7), 1, _pads(2, 2), 1, 1),
    "padding wider than the kernel": ((1, 3, 3, 2), (2, 2, 2, 3), 1, _pads(3, 3), 1, 1),
    "one pixel, one channel": ((1, 1, 1, 1), (3, 3, 1, 1), 1, _pads(1, 1), 1, 1),
    "deep enough to be summed in parts": ((1, 5, 5, 130), (3, 3, 130, 20), 1, _pads(1, 1), 1, 1),
}


@pytest.mark.parametrize("case", sampled(CONVOLUTIONS, 2))
def test_a_convolution_matches_the_reference(case: str) -> None:
    dims, weights, stride, pads, dilation, groups = CONVOLUTIONS[case]
    strides = [stride, stride] if isinstance(stride, int) else list(stride)
    params = {"stride": strides, "pad_amount": pads, "dilation": [dilation, dilation], "group": groups}
    scale = np.float32(1 / np.sqrt(np.prod(weights[:3])))
    inputs = [_random(*dims), static(_random(*weights) * scale), static(_random(weights[3]))]
    check("Conv2d", inputs, params, clamp=(-1.5, 2.0), **_CLOSE)


def test_a_bias_may_be_absent() -> None:
    check("Conv2d", [_random(1, 4, 4, 3), static(_random(3, 3, 3, 5))], {"stride": [1, 1], "pad_amount": _pads(1, 1)},
          **_CLOSE)  # fmt: skip


def test_one_and_three_dimensional_convolutions_match_the_reference() -> None:
    check("Conv1d", [_random(1, 600, 1), static(_random(256, 1, 30))], {"stride": 128, "pad_amount": [0, 0]},
          rtol=1e-4, atol=1e-4)  # fmt: skip
    volume = {"stride": [1, 2, 1], "pad_amount": [[1, 0], [1, 1], [1, 1]]}
    check("Conv3d", [_random(1, 4, 5, 6, 3), static(_random(2, 3, 3, 3, 9)), static(_random(9))], volume, **_CLOSE)


DEPTH_WISE = {
    "3x3": ((2, 9, 11, 24), (3, 3), 1, 1, 1),
    "3x3 stride 2": ((2, 9, 11, 24), (3, 3), 2, 1, 1),
    "5x5, few channels": ((1, 14, 14, 5), (5, 5), 1, 1, 2),
    "5x5 stride 2": ((1, 14, 13, 35), (5, 5), 2, 1, 2),
    "7x7": ((1, 9, 9, 16), (7, 7), 1, 1, 3),
    "1xk dilated": ((1, 3, 8, 20), (1, 5), 1, 2, 4),
    "kx1": ((1, 9, 9, 20), (3, 1), 1, 1, 1),
    "dilated": ((1, 9, 9, 20), (3, 3), 1, 2, 2),
    "input smaller than a tile": ((1, 2, 3, 20), (3, 3), 1, 1, 1),
    "one pixel": ((1, 1, 1, 33), (3, 3), 1, 1, 1),
}


@pytest.mark.parametrize("case", sampled(DEPTH_WISE, 3))
def test_a_depth_wise_convolution_matches_the_reference(case: str) -> None:
    dims, kernel, stride, dilation, pad = DEPTH_WISE[case]
    params = {"stride": [stride, stride], "pad_amount": _pads(pad, pad), "dilation": [dilation, dilation]}
    inputs = [_random(*dims), static(_random(*kernel, 1, dims[3])), static(_random(dims[3]))]
    check("DepthWiseConv2d", inputs, params, clamp=(0.0, 6.0), **_CLOSE)


def test_a_column_of_pixels_is_convolved_along_its_height() -> None:
    check("DepthWiseConv2d", [_random(1, 20, 1, 30), static(_random(7, 1, 1, 30))],
          {"stride": [1, 1], "pad_amount": _pads(0, 0)}, **_CLOSE)  # fmt: skip
    check("DepthWiseConv1d", [_random(1, 30, 20), static(_random(9, 1, 20))], {"stride": 1, "pad_amount": [4, 4]},
          **_CLOSE)  # fmt: skip


@pytest.mark.parametrize("channels", [1, 3])
def test_depth_wise_filters_may_outnumber_channels(channels: int) -> None:
    inputs = [_random(1, 6, 6, channels), static(_random(3, 3, 1, 4 * channels)), static(_random(4 * channels))]
    check("DepthWiseConv2d", inputs, {"stride": [1, 1], "pad_amount": _pads(1, 1)}, **_CLOSE)


TRANSPOSED = {
    "kernel equals stride": (2, 2, 0, 0, 1, 5, 7),
    "overlapping, with output padding": (3, 2, 1, 1, 1, 6, 20),
    "even kernel": (4, 2, 1, 0, 1, 16, 8),
    "stride one, groups": (3, 1, 1, 0, 2, 8, 12),
    "stride larger than the kernel": (2, 3, 0, 0, 1, 4, 4),
    "large output padding": (5, 3, 2, 2, 1, 4, 18),
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_a_transposed_convolution_matches_the_reference(case: str) -> None:
    kernel, stride, pad, extra, groups, channels, filters = TRANSPOSED[case]
    params = {"stride": [stride] * 2, "pad_amount": _pads(pad, pad), "group": groups, "output_padding": [extra] * 2}
    weights = static(_random(kernel, kernel, channels, filters // groups))
    check("TransposeConv2d", [_random(2, 5, 4, channels), weights, static(_random(filters))], params, **_CLOSE)


def test_transposed_convolutions_of_other_ranks_match_the_reference() -> None:
    check("TransposeConv1d", [_random(1, 9, 6), static(_random(16, 6, 5))], {"stride": 8, "pad_amount": [4, 4]},
          **_CLOSE)  # fmt: skip
    dilated = {"stride": [2, 2, 1], "pad_amount": [[1, 1], [1, 1], [0, 0]], "dilation": [1, 3, 2]}
    check("TransposeConv3d", [_random(1, 3, 4, 3, 6), static(_random(3, 3, 2, 6, 5))], dilated, **_CLOSE)


def test_small_groups_of_other_ranks_match_the_reference() -> None:
    check("Conv1d", [_random(2, 30, 24), static(_random(5, 8, 24))], {"stride": 2, "pad_amount": [2, 2], "group": 3},
          **_CLOSE)  # fmt: skip
    volume = {"stride": [1, 2, 1], "pad_amount": [[1, 0], [1, 1], [1, 1]], "group": 8}
    check("Conv3d", [_random(1, 4, 5, 6, 32), static(_random(2, 3, 3, 4, 32)), static(_random(32))], volume, **_CLOSE)


@pytest.mark.parametrize("group", [4, 8])
def test_nan_and_infinity_stay_in_their_group(group: int) -> None:
    image, params = np.ones((1, 5, 5, 40), np.float32), {"stride": [1, 1], "pad_amount": _pads(1, 1)}
    image[..., 0], image[..., -1] = np.nan, np.inf
    weights = static(np.ones((3, 3, group, 40), np.float32))
    step, arrays = harness.make_step("Conv2d", [image, weights], params | {"group": 40 // group})
    for target in harness.targets("avx512-vnni", "avx2"):
        [out] = harness.run(step, arrays, target)
        assert np.isnan(out[..., :group]).all()
        assert np.isinf(out[..., -group:]).all()
        np.testing.assert_array_equal(out[0, 2, 2, group:-group], 9 * group)


def test_nan_in_the_input_stays_where_windows_see_it() -> None:
    image = np.ones((1, 5, 5, 2), np.float32)
    image[0, 0, 0, 0] = np.nan
    step, arrays = harness.make_step(
        "Conv2d", [image, static(np.ones((3, 3, 2, 4), np.float32))], {"stride": [1, 1], "pad_amount": _pads(1, 1)},
        clamp=(0.0, 6.0),
    )  # fmt: skip
    [out] = harness.run(step, arrays)
    seen = np.isnan(out[0, :, :, 0])
    assert seen[:2, :2].all()
    assert seen.sum() == 4


@pytest.mark.parametrize("name", only(("portable",), ("portable", "avx2", "avx512")))
def test_other_instruction_sets_of_this_machine_agree(name: str) -> None:
    target = by_name(name)
    if not runnable(target):
        pytest.skip(f"this machine has no {name}")
    for op, weights in (("Conv2d", (3, 3, 5, 21)), ("DepthWiseConv2d", (3, 3, 1, 5))):
        step, arrays = harness.make_step(
            op, [_random(1, 7, 9, 5), static(_random(*weights))], {"stride": [1, 1], "pad_amount": _pads(1, 1)}
        )
        for guard in ("after", "before"):
            [out] = harness.run(step, arrays, target, 2, guard)
            np.testing.assert_allclose(out, harness.expected(step, arrays)[0], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("kernel", ["convolution:indirect.8x2", "depthwise:convolve.4x3s1", "matmul:packed.8x2"])
def test_kernels_compile_to_fused_vector_instructions_for_arm(kernel: str) -> None:
    text = harness.compile_apart(kernel, by_name("neon"), assembly=True)
    assert isinstance(text, str)
    assert text.count("fmla\tv") >= 8


def test_weights_known_only_at_run_time_are_refused_by_name() -> None:
    step, _ = harness.make_step(
        "Conv2d", [_random(1, 4, 4, 3), _random(3, 3, 3, 5)], {"stride": [1, 1], "pad_amount": _pads(1, 1)}
    )
    with pytest.raises(QnnError, match=r"'tested' \(Conv2d\).*constants"):
        harness.bind(step)


@pytest.mark.parametrize("size", [1, 2])
def test_work_space_holds_windows_of_small_floats_in_float32(size: int) -> None:
    window = ConvWindow(1, (1, 8, 8), (1, 6, 6), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 0, 0), 4, 8, 1)
    for target in harness.targets("avx2"):
        cut = ConvBlocking.of(window, target, size)
        assert cut.work_bytes >= cut.block * cut.tile.rows * window.depth * 4


def test_a_window_counts_the_positions_that_cross_an_edge() -> None:
    window = ConvWindow(1, (1, 4, 6), (1, 4, 6), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1), 2, 2, 1)
    assert window.crossing() == 2
    assert window.depth == 18
    assert not window.is_product
