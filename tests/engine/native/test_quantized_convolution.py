"""8-bit convolutions and matrix products give exactly the integers of whole-number arithmetic, rounded once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.suites import long

from engine.native import harness
from engine.native.harness import Operand, Result
from isthmus.engine.native.lower import lowering_of, refusal
from isthmus.engine.native.target import TARGETS
from isthmus.graph import DataType, Quantization

pytestmark = harness.ON_TARGETS
OTHERS = ("avx512-vnni", "avx2", "neon-dot")
FEWER = ("avx512", "avx2-vnni", "neon")
SIGNED, UNSIGNED = np.int8, np.uint8


def requantized(
    total: np.ndarray, scale: np.ndarray, output: Quantization, kind: type, clamp: tuple[float, float] | None = None
) -> np.ndarray:
    """Sums as stored values: ``rint(clamp(sum * scale)) + zero_point`` in float32."""
    info, zero = np.iinfo(kind), output.zero_point
    low, high = info.min, info.max
    if clamp is not None:
        low, high = (int(np.clip(np.rint(c / output.scale) + zero, low, high)) for c in clamp)
    real = total.astype(np.float32) * scale
    return (np.rint(np.clip(real, np.float32(low - zero), np.float32(high - zero))) + zero).astype(kind)


def sums(x: np.ndarray, weights: np.ndarray, params: dict[str, Any], depthwise: bool = False) -> np.ndarray:
    """The whole-number convolution of centred integers; padding is zero."""
    (top, bottom), (left, right) = params["pad_amount"]
    (sh, sw), (dh, dw) = params["stride"], params.get("dilation", (1, 1))
    padded = np.pad(x.astype(np.int64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    kh, kw, depth, filters = weights.shape
    rows = (padded.shape[1] - (kh - 1) * dh - 1) // sh + 1
    columns = (padded.shape[2] - (kw - 1) * dw - 1) // sw + 1
    total = np.zeros((x.shape[0], rows, columns, filters), np.int64)
    groups = 1 if depthwise else x.shape[3] // depth
    for i, j in product(range(kh), range(kw)):
        patch = padded[:, i * dh : i * dh + (rows - 1) * sh + 1 : sh, j * dw : j * dw + (columns - 1) * sw + 1 : sw]
        if depthwise:
            total += patch * weights[i, j, 0].astype(np.int64)
            continue
        width = filters // groups
        for group in range(groups):
            part = slice(group * width, (group + 1) * width)
            inputs = patch[..., group * depth : (group + 1) * depth]
            total[..., part] += inputs @ weights[i, j][:, part].astype(np.int64)
    return total


def weight_scales(
    rng: np.random.Generator, filters: int, per_channel: bool, axis: int, zeros: tuple[int, ...] = (0,)
) -> Quantization:
    if not per_channel:
        return Quantization.per_tensor(0.01, zeros[0])
    return Quantization.per_channel(rng.uniform(0.002, 0.02, filters), np.resize(zeros, filters), axis)


def check(
    op: str,
    inputs: Sequence[Operand | None],
    params: dict[str, Any],
    result: Result,
    expected: np.ndarray,
    clamp: tuple[float, float] | None = None,
    others: Sequence[str] = OTHERS,
) -> None:
    """Run on the test's targets with one to three threads, guards after and before; every integer must be right."""
    step, arrays = harness.make_step(op, inputs, params, [result], clamp)
    assert step.outputs[0].dims == expected.shape
    lowering = lowering_of(step)
    for target in harness.targets(*others):
        for threads, guard in ((1, "after"), (2, "before"), (3, "after")):
            [got] = harness.run(step, arrays, target, threads, guard, None, lowering)
            np.testing.assert_array_equal(got, expected, err_msg=f"{op} on {target.name}, {threads} threads")


def check_convolution(
    dims: tuple[int, int, int, int],
    filters: int,
    kernel: tuple[int, int],
    *,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    pad: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0)),
    group: int = 1,
    kind: type = SIGNED,
    per_channel: bool = True,
    bias: bool = True,
    clamp: tuple[float, float] | None = None,
    depthwise: bool = False,
    zeros: tuple[int, ...] = (0,),
    weight_kind: type = SIGNED,
    others: Sequence[str] = OTHERS,
) -> None:
    rng = np.random.default_rng(sum(dims) + filters)
    info = np.iinfo(kind)
    x = rng.integers(info.min, info.max + 1, dims).astype(kind)
    depth = 1 if depthwise else dims[3] // group
    least = -127 if (weight_kind, zeros) == (SIGNED, (0,)) else np.iinfo(weight_kind).min
    weights = rng.integers(least, np.iinfo(weight_kind).max + 1, (*kernel, depth, filters)).astype(weight_kind)
    quantization = weight_scales(rng, filters, per_channel, 3, zeros)
    offset = rng.integers(-3000, 3000, filters).astype(np.int32) if bias else None
    qx = Quantization.per_tensor(0.05, 3 if kind is SIGNED else 120)
    params: dict[str, Any] = {"stride": stride, "pad_amount": pad, "dilation": dilation}
    if not depthwise:
        params["group"] = group
    centred = weights.astype(np.int64) - np.resize(zeros if per_channel else zeros[0], filters)
    total = sums(x.astype(np.int64) - qx.zero_point, centred, params, depthwise)
    if offset is not None:
        total = total + offset
    spread = float(np.abs(total).mean()) * 0.05 * 0.01 / 40
    qy = Quantization.per_tensor(spread, -5 if kind is SIGNED else 121)
    scale = np.float32(qx.scale) * np.asarray(quantization.scales, np.float32) / np.float32(qy.scale)
    limits = None if clamp is None else (clamp[0] * spread * 127, clamp[1] * spread * 127)
    inputs: list[Operand | None] = [Operand(x, quantization=qx), harness.static(weights, quantization)]
    if offset is not None:
        unit = Quantization(tuple(qx.scale * s for s in quantization.scales), (0,) * len(quantization.scales),
                            0 if per_channel else None)  # fmt: skip
        inputs.append(harness.static(offset, unit))
    expected = requantized(total, scale, qy, kind, limits)
    check(
        "DepthWiseConv2d" if depthwise else "Conv2d", inputs, params,
        Result(None, DataType.fixed_point(kind), qy), expected, limits, others,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
@pytest.mark.parametrize(
    ("dims", "filters"),
    [
        ((1, 5, 7, 8), 16), ((1, 3, 3, 24), 37), ((2, 4, 5, 3), 5), ((1, 1, 1, 13), 70), ((1, 9, 11, 64), 48),
        ((1, 1, 50, 33), 80), ((1, 2, 2, 1), 1), ((1, 40, 13, 130), 17),
    ],
)  # fmt: skip
def test_pointwise_convolutions_of_any_size_are_exact(
    kind: type, dims: tuple[int, int, int, int], filters: int
) -> None:
    check_convolution(dims, filters, (1, 1), kind=kind)


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pad"),
    [
        ((3, 3), (1, 1), (1, 1), ((1, 1), (1, 1))),
        ((3, 3), (2, 2), (1, 1), ((0, 1), (0, 1))),
        ((3, 3), (1, 1), (1, 1), ((0, 0), (0, 0))),
        ((3, 3), (1, 1), (2, 3), ((2, 1), (3, 0))),
        ((1, 1), (2, 2), (1, 1), ((0, 0), (0, 0))),
        ((5, 2), (1, 3), (1, 1), ((4, 2), (1, 0))),
        ((1, 7), (1, 1), (1, 1), ((0, 0), (6, 6))),
        ((9, 9), (1, 1), (1, 1), ((0, 0), (0, 0))),
    ],
)
def test_convolutions_with_every_kind_of_window_are_exact(
    kind: type, kernel: Any, stride: Any, dilation: Any, pad: Any
) -> None:
    for channels, filters in ((3, 32), (8, 20)):
        check_convolution((2, 9, 10, channels), filters, kernel, stride=stride, dilation=dilation, pad=pad, kind=kind)


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
def test_targets_without_the_newest_instructions_are_exact_too(kind: type) -> None:
    check_convolution((1, 6, 7, 12), 33, (3, 3), pad=((1, 1), (1, 1)), kind=kind, others=FEWER)
    check_convolution((1, 6, 7, 80), 80, (3, 3), pad=((1, 1), (1, 1)), kind=kind, depthwise=True, others=FEWER)


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
def test_groups_of_channels_are_kept_apart(kind: type) -> None:
    check_convolution((1, 6, 7, 12), 9, (3, 3), pad=((1, 1), (1, 1)), group=3, kind=kind)
    check_convolution((1, 6, 7, 8), 40, (1, 1), group=2, kind=kind)


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
@pytest.mark.parametrize(
    ("channels", "filters", "group"),
    [(40, 40, 5), (6, 6, 3), (16, 64, 16), (15, 5, 5), (33, 39, 3), (34, 26, 2), (20, 96, 2), (7, 21, 7)],
)
def test_panels_of_several_groups_are_exact(kind: type, channels: int, filters: int, group: int) -> None:
    same, few = ((1, 1), (1, 1)), (*OTHERS, *FEWER)
    check_convolution((2, 5, 17, channels), filters, (3, 3), pad=same, group=group, kind=kind, others=few)
    check_convolution(
        (1, 9, 11, channels), filters, (3, 3), stride=(2, 2), pad=((0, 1), (0, 1)), group=group, kind=kind
    )
    check_convolution((1, 9, 12, channels), filters, (3, 3), pad=((2, 2), (3, 3)), dilation=(2, 3), group=group,
                      kind=kind, clamp=(0.0, 0.4))  # fmt: skip
    check_convolution((1, 3, 6, channels), filters, (1, 1), group=group, kind=kind, others=few)
    check_convolution((1, 3, 3, channels), filters, (3, 3), group=group, zeros=(-100,), weight_kind=UNSIGNED,
                      kind=kind, per_channel=False)  # fmt: skip


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("per_channel", [True, False])
def test_scales_of_channels_or_tensors_with_bias_or_without(bias: bool, per_channel: bool) -> None:
    check_convolution((1, 6, 7, 12), 33, (3, 3), per_channel=per_channel, bias=bias)


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
def test_a_fused_activation_limits_stored_values(kind: type) -> None:
    check_convolution((1, 6, 7, 12), 33, (1, 1), kind=kind, clamp=(0.0, 0.4))
    check_convolution((1, 6, 7, 12), 12, (3, 3), kind=kind, clamp=(-0.1, 0.2), depthwise=True)


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
@pytest.mark.parametrize(
    ("kernel", "stride"), list(product([(3, 3), (5, 5), (2, 4), (7, 3), (1, 1)], [(1, 1), (2, 2), (1, 3)]))
)
def test_depthwise_convolutions_of_every_window_are_exact(kind: type, kernel: Any, stride: Any) -> None:
    pad = ((kernel[0] // 2, (kernel[0] - 1) // 2), (kernel[1] // 2, (kernel[1] - 1) // 2))
    for channels in (5, 80):
        check_convolution((1, 11, 13, channels), channels, kernel, stride=stride, pad=pad, kind=kind, depthwise=True)


@pytest.mark.parametrize("channels", [1, 16, 24, 33, 64, 130])
def test_depthwise_convolutions_of_any_number_of_channels_are_exact(channels: int) -> None:
    for dims in ((2, 6, 21, channels), (1, 1, 2, channels), (1, 30, 3, channels)):
        check_convolution(dims, channels, (3, 3), pad=((1, 1), (1, 1)), depthwise=True)


def test_depthwise_windows_may_lie_outside_the_image_or_be_spread() -> None:
    check_convolution((1, 4, 4, 20), 20, (3, 3), pad=((5, 4), (6, 5)), depthwise=True)
    check_convolution((1, 9, 12, 20), 20, (3, 3), pad=((2, 2), (3, 3)), dilation=(2, 3), depthwise=True)
    check_convolution((1, 5, 1, 6), 6, (5, 1), depthwise=True)


@pytest.mark.parametrize(("channels", "rows"), [(6, 5), (32, 9), long(70, 17)])
def test_a_column_takes_no_work_space_for_other_columns(channels: int, rows: int) -> None:
    check_convolution((1, rows + 2, 1, channels), channels, (rows, 1), depthwise=True, others=(*OTHERS, *FEWER))
    x, weights = np.zeros((1, rows, 1, channels), np.int8), np.zeros((rows, 1, 1, channels), np.int8)
    step, _ = harness.make_step(
        "DepthWiseConv2d", [harness.quantized_input(x, 0.1), harness.quantized_input(weights, 0.1, static=True)],
        {"stride": (1, 1), "pad_amount": ((0, 0), (0, 0))},
        [Result(None, DataType.SFIXED_POINT_8, Quantization.per_tensor(0.1))],
    )  # fmt: skip
    # A pair of rows takes four bytes for each channel of the widest block.
    most = 4 * -(-rows // 2) * min(max(channels, 16), 64)
    assert all(lowering_of(step).work(step, target, 1) <= most for target in TARGETS)


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
@pytest.mark.parametrize(("batch", "depth", "width"), [(1, 40, 10), (1, 1280, 100), (3, 17, 65), (7, 64, 1), (2, 1, 5)])
def test_fully_connected_layers_are_exact(kind: type, batch: int, depth: int, width: int) -> None:
    rng = np.random.default_rng(batch + depth + width)
    info = np.iinfo(kind)
    x = rng.integers(info.min, info.max + 1, (batch, depth)).astype(kind)
    weights = rng.integers(-127, 128, (width, depth)).astype(np.int8)
    bias = rng.integers(-9000, 9000, width).astype(np.int32)
    qx, qy = Quantization.per_tensor(0.02, 7), Quantization.per_tensor(0.02 * depth**0.5, 11)
    for per_channel in (False, True):
        quantization = weight_scales(rng, width, per_channel, 0)
        total = (x.astype(np.int64) - qx.zero_point) @ weights.T.astype(np.int64) + bias
        scale = np.float32(qx.scale) * np.asarray(quantization.scales, np.float32) / np.float32(qy.scale)
        inputs = [Operand(x, quantization=qx), harness.static(weights, quantization), harness.static(bias)]
        check(
            "FullyConnected", inputs, {}, Result((batch, width), DataType.fixed_point(kind), qy),
            requantized(total, scale, qy, kind),
        )  # fmt: skip


@pytest.mark.parametrize("transposed", [False, True])
def test_products_with_a_constant_matrix_are_exact(transposed: bool) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(-128, 128, (2, 3, 21)).astype(np.int8)
    weights = rng.integers(-127, 128, (21, 19)).astype(np.int8)
    qx, qw, qy = Quantization.per_tensor(0.02, -7), Quantization.per_tensor(0.01), Quantization.per_tensor(0.1, 4)
    total = (x.astype(np.int64) - qx.zero_point) @ weights.astype(np.int64)
    scale = np.float32(qx.scale) * np.float32(qw.scale) / np.float32(qy.scale)
    constant = np.ascontiguousarray(weights.T) if transposed else weights
    check(
        "MatMul", [Operand(x, quantization=qx), harness.static(constant, qw)], {"transpose_in1": transposed},
        Result(None, DataType.SFIXED_POINT_8, qy), requantized(total, np.float32(scale), qy, SIGNED),
    )  # fmt: skip


ZERO_POINTS = {
    "in the middle": (UNSIGNED, (128,)), "beside it": (UNSIGNED, (121,)), "lowest": (UNSIGNED, (0,)),
    "highest": (UNSIGNED, (255,)), "of signed weights": (SIGNED, (-30,)),
    "of each filter": (UNSIGNED, (0, 90, 255, 128)),
}  # fmt: skip


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
@pytest.mark.parametrize("case", ZERO_POINTS)
def test_weights_with_zero_points_are_exact(case: str, kind: type) -> None:
    stored, zeros = ZERO_POINTS[case]
    how: dict[str, Any] = {"kind": kind, "zeros": zeros, "weight_kind": stored, "per_channel": len(zeros) > 1}
    check_convolution((1, 5, 7, 24), 37, (1, 1), **how)
    check_convolution((1, 9, 8, 6), 20, (3, 3), stride=(2, 2), pad=((0, 1), (0, 1)), **how)
    check_convolution((1, 6, 7, 8), 8, (3, 3), pad=((1, 1), (1, 1)), group=2, bias=False, **how)
    check_convolution((1, 7, 9, 35), 35, (3, 3), pad=((1, 1), (1, 1)), depthwise=True, **how)
    check_convolution((1, 9, 9, 16), 16, (5, 5), stride=(2, 2), pad=((2, 2), (2, 2)), depthwise=True, **how)
    check_convolution((1, 6, 5, 3), 6, (3, 3), pad=((1, 1), (1, 1)), group=3, **how)


@pytest.mark.parametrize("zero", [0, 121, 255])
def test_fully_connected_layers_and_products_with_zero_points_are_exact(zero: int) -> None:
    rng = np.random.default_rng(zero)
    x, weights = (rng.integers(0, 256, dims).astype(np.uint8) for dims in ((5, 70), (19, 70)))
    qx, qw, qy = (Quantization.per_tensor(s, z) for s, z in ((0.05, 99), (0.01, zero), (2.0, 120)))
    total = (x.astype(np.int64) - 99) @ (weights.astype(np.int64) - zero).T
    expected = requantized(total, np.float32(0.05) * np.float32(0.01) / np.float32(2), qy, UNSIGNED)
    result, left = Result(None, DataType.UFIXED_POINT_8, qy), Operand(x, quantization=qx)
    check("FullyConnected", [left, harness.static(weights, qw)], {}, result, expected)
    check("MatMul", [left, harness.static(np.ascontiguousarray(weights.T), qw)], {}, result, expected)


def test_weights_stored_without_sign_mean_the_same() -> None:
    rng = np.random.default_rng(6)
    x = rng.integers(0, 256, (1, 3, 4, 9)).astype(np.uint8)
    weights = rng.integers(1, 256, (1, 1, 9, 21)).astype(np.uint8)
    qx, qw, qy = (Quantization.per_tensor(s, z) for s, z in ((0.02, 100), (0.01, 128), (0.1, 130)))
    params = {"stride": (1, 1), "pad_amount": ((0, 0), (0, 0)), "dilation": (1, 1), "group": 1}
    total = sums(x.astype(np.int64) - 100, weights.astype(np.int64) - 128, params)
    scale = np.float32(qx.scale) * np.float32(qw.scale) / np.float32(qy.scale)
    check(
        "Conv2d", [Operand(x, quantization=qx), harness.static(weights, qw)], params,
        Result(None, DataType.UFIXED_POINT_8, qy), requantized(total, np.float32(scale), qy, UNSIGNED),
    )  # fmt: skip


@pytest.mark.parametrize("op", ["MatMul", "FullyConnected", "Conv2d", "DepthWiseConv2d"])
@pytest.mark.parametrize("scale", [0.1, long(0.5)])
def test_a_float_bias_counts_to_the_step_of_the_result(op: str, scale: float) -> None:
    """Sums count by halves here: a finer result shows more of a bias than whole units of them can say."""
    rng, image = np.random.default_rng(3), "Conv" in op
    dims = {"MatMul": (2, 5), "FullyConnected": (5, 2), "Conv2d": (2, 2, 2, 5), "DepthWiseConv2d": (2, 2, 1, 2)}[op]
    x = harness.quantized_input(rng.integers(-3, 4, (1, 3, 3, 2) if image else (3, 2)).astype(np.int8), 1.0)
    weights = harness.quantized_input(rng.integers(-3, 4, dims).astype(np.int8), 0.5, static=True)
    bias = Operand(np.float32([0.2, -0.2, 0.7, 1.3, -2.6])[: 2 if op.startswith("Depth") else 5], static=True)
    params = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]} if image else {}
    result = Result(dtype=DataType.SFIXED_POINT_8, quantization=Quantization.per_tensor(scale, 0))
    step, arrays = harness.make_step(op, [x, weights, bias], params, [result])
    wanted = harness.expected(step, arrays)[0].astype(int)
    for target in harness.targets(*OTHERS):
        [got] = harness.run(step, arrays, target)
        assert np.abs(got.astype(int) - wanted).max() <= (1 if scale == 0.5 else 0)


@pytest.mark.parametrize("op", ["MatMul", "FullyConnected", "Conv2d", "DepthWiseConv2d"])
@pytest.mark.parametrize(("kind", "zero"), [(np.int32, 0), (np.int32, 3), (np.int8, -2)])
def test_a_bias_with_a_scale_of_its_own_is_converted_by_that_scale(op: str, kind: type, zero: int) -> None:
    rng, image = np.random.default_rng(3), "Conv" in op
    dims = {"MatMul": (2, 5), "FullyConnected": (5, 2), "Conv2d": (2, 2, 2, 5), "DepthWiseConv2d": (2, 2, 1, 2)}[op]
    x = harness.quantized_input(rng.integers(-3, 4, (1, 3, 3, 2) if image else (3, 2)).astype(np.int8), 1.0)
    weights = harness.quantized_input(rng.integers(-3, 4, dims).astype(np.int8), 0.5, static=True)
    values = np.array([2, -9, 7, 0, 5], kind)[: 2 if op.startswith("Depth") else 5]
    params = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]} if image else {}
    result = Result(dtype=DataType.SFIXED_POINT_8, quantization=Quantization.per_tensor(0.5, 0))
    # A step of it is four of the sums.
    bias = harness.static(values, Quantization.per_tensor(2.0, zero))
    in_units = harness.static(4 * (values.astype(np.int32) - zero))
    step, arrays = harness.make_step(op, [x, weights, bias], params, [result])
    plain, plain_arrays = harness.make_step(op, [x, weights, in_units], params, [result])
    [wanted] = harness.expected(plain, plain_arrays)
    for target in harness.targets(*OTHERS):
        [got] = harness.run(step, arrays, target)
        assert np.array_equal(got, wanted)


WINDOW = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
AROUND = {"stride": [2, 2], "pad_amount": [[1, 1], [1, 1]]}
KINDS = {"8-bit": (SIGNED, SIGNED), "unsigned": (UNSIGNED, SIGNED), "hybrid": (np.float32, SIGNED),
         "float": (np.float32, np.float32)}  # fmt: skip
WITHOUT_RESULTS = [
    ("Conv2d", (1, 6, 6, 4), (1, 1, 4, 0), WINDOW), ("Conv2d", (1, 6, 6, 4), (3, 3, 2, 0), AROUND | {"group": 2}),
    ("Conv2d", (0, 6, 6, 4), (3, 3, 4, 8), AROUND), ("Conv2d", (1, 6, 6, 4), (3, 3, 4, 0), AROUND),
    ("DepthWiseConv2d", (0, 6, 6, 4), (3, 3, 1, 4), AROUND), ("TransposeConv2d", (1, 6, 6, 4), (3, 3, 4, 0), WINDOW),
    ("FullyConnected", (3, 4), (0, 4), {}), ("FullyConnected", (0, 4), (5, 4), {}),
    ("MatMul", (3, 4), (4, 0), {}), ("MatMul", (0, 0), (0, 5), {}),
]  # fmt: skip
SUMS_OF_NOTHING = [
    ("Conv2d", (1, 6, 6, 0), (1, 1, 0, 8), WINDOW), ("Conv2d", (1, 6, 6, 0), (3, 3, 0, 8), AROUND),
    ("Conv2d", (1, 6, 6, 0), (3, 3, 0, 8), WINDOW | {"group": 2}), ("Conv2d", (1, 0, 6, 4), (1, 1, 4, 8), AROUND),
    ("TransposeConv2d", (1, 6, 6, 0), (3, 3, 0, 8), WINDOW),
    ("TransposeConv2d", (1, 6, 6, 0), (3, 3, 0, 4), WINDOW | {"group": 2}), ("MatMul", (3, 0), (0, 5), {}),
]  # fmt: skip


def product_step(op: str, x: tuple[int, ...], weights: tuple[int, ...], params: dict[str, Any], kind: str) -> Any:
    """A product with constant weights, of quantized operands where bytes are meant."""
    operands = [
        Operand(np.ones(dims, stored), fixed, None if stored is np.float32 else Quantization.per_tensor(0.5))
        for dims, stored, fixed in zip((x, weights), KINDS[kind], (False, True), strict=True)
    ]
    quantization = operands[0].quantization
    result = Result(dtype=operands[0].tensor("x").dtype, quantization=quantization)
    return harness.make_step(op, operands, params, None if quantization is None else [result])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", WITHOUT_RESULTS, ids=lambda case: f"{case[0]} {case[1]} {case[2]}")
def test_products_without_results_touch_nothing(case: tuple, kind: str) -> None:
    step, arrays = product_step(*case, kind)
    [got] = harness.run(step, arrays)
    assert got.shape == step.outputs[0].dims
    assert got.size == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", SUMS_OF_NOTHING, ids=lambda case: f"{case[0]} {case[1]} {case[2]}")
def test_sums_of_nothing_are_refused_for_every_type(case: tuple, kind: str) -> None:
    step, _ = product_step(*case, kind)
    assert re.fullmatch("a (product|convolution) over no elements is not supported", refusal(step) or "")
