"""Arithmetic on 8-bit tensors: sums, products, tables, conversions, means, pools, softmax, movements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine.native import harness
from engine.native.harness import Operand, Result, quantized_input, static
from isthmus.engine.native.lower import lowering_of
from isthmus.graph import DataType, Quantization

pytestmark = harness.ON_TARGETS
OTHERS = ("avx512-vnni", "avx2", "neon-dot")
KINDS = [np.int8, np.uint8]
SHAPES = [
    ((1, 7, 9, 48), (1, 1, 1, 48)), ((3, 7, 5), (7, 5)), ((21, 130), (21, 1)),
    ((1,), (1,)), ((200,), (200,)), ((2, 3, 5, 7), (2, 3, 5, 7)), ((2, 3, 5, 7), (7,)), ((7,), (2, 3, 5, 7)),
    ((2, 3, 5, 7), (1, 3, 1, 7)), ((2, 3, 5, 7), (2, 1, 1, 1)), ((3, 1, 66), (1, 4, 1)), ((4, 1), (1, 1)),
]  # fmt: skip


def random(kind: type, dims: Sequence[int], seed: int = 0) -> np.ndarray:
    info = np.iinfo(kind)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, dims).astype(kind)


def zero(kind: type, point: int) -> int:
    """A zero point of signed bytes, moved for unsigned ones."""
    return point if kind is np.int8 else point + 128


def result(kind: type, scale: float, point: int, dims: tuple[int, ...] | None = None) -> Result:
    return Result(dims, DataType.fixed_point(kind), Quantization.per_tensor(scale, point))


def check(
    op: str,
    inputs: Sequence[np.ndarray | Operand | None],
    params: dict[str, Any],
    results: Sequence[Result],
    expected: Sequence[np.ndarray],
    clamp: tuple[float, float] | None = None,
    in_place: Sequence[int] = (),
    steps: int = 0,
) -> None:
    """Run on every target, with one and two threads, guards on both sides; no result is off by more than `steps`."""
    step, arrays = harness.make_step(op, inputs, params, results, clamp)
    lowering = lowering_of(step)
    for target in harness.targets(*OTHERS):
        runs = [(1, "after", None), (2, "before", None), *((2, "after", i) for i in in_place)]
        for threads, guard, place in runs:
            got = harness.run(step, arrays, target, threads, guard, place, lowering)
            for index, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
                assert ours.dtype == theirs.dtype
                assert ours.shape == theirs.shape
                distance = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max(initial=0)
                assert distance <= steps, f"{op} out[{index}] on {target.name}: off by {distance}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("op", ["ElementWiseAdd", "ElementWiseSubtract"])
def test_sums_are_rounded_half_up_after_20_bit_multipliers(op: str, kind: type, left: Any, right: Any) -> None:
    a, b = random(kind, left), random(kind, right, 1)
    (sa, za), (sb, zb), (sy, zy) = (0.05, zero(kind, -4)), (0.031, zero(kind, 9)), (0.07, zero(kind, 3))
    ratios = np.float32(sa) / np.float32(sy), np.float32(sb) / np.float32(sy)
    shift = 20 - (int(np.frexp(max(ratios))[1]) - 1)
    fa, fb = (int(np.rint(np.ldexp(np.float64(r), shift))) for r in ratios)
    sign = 1 if op == "ElementWiseAdd" else -1
    total = (a.astype(np.int64) - za) * fa + sign * (b.astype(np.int64) - zb) * fb
    info = np.iinfo(kind)
    expected = np.clip(((total + (1 << (shift - 1))) >> shift) + zy, info.min, info.max).astype(kind)
    inputs = [quantized_input(a, sa, za), quantized_input(b, sb, zb)]
    in_place = [i for i, x in enumerate((a, b)) if x.size == expected.size]
    check(op, inputs, {}, [result(kind, sy, zy)], [expected], in_place=in_place)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_products_are_rounded_half_to_even(kind: type, left: Any, right: Any) -> None:
    a, b = random(kind, left), random(kind, right, 1)
    (sa, za), (sb, zb), (sy, zy) = (0.05, zero(kind, -4)), (0.031, zero(kind, 9)), (0.07, zero(kind, 3))
    scale = np.float32(sa) * np.float32(sb) / np.float32(sy)
    product = ((a.astype(np.int64) - za) * (b.astype(np.int64) - zb)).astype(np.float32) * scale
    info = np.iinfo(kind)
    expected = (np.rint(np.clip(product, info.min - zy, info.max - zy)) + zy).astype(kind)
    in_place = [i for i, x in enumerate((a, b)) if x.size == expected.size]
    check(
        "ElementWiseMultiply", [quantized_input(a, sa, za), quantized_input(b, sb, zb)], {}, [result(kind, sy, zy)],
        [expected], in_place=in_place,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_activation_limits_sums_and_products(kind: type) -> None:
    a, point = random(kind, (3, 50)), zero(kind, 0)
    for op in ("ElementWiseAdd", "ElementWiseMultiply"):
        inputs = [quantized_input(a, 0.1, point), quantized_input(random(kind, (3, 50), 1), 0.1, point)]
        step, arrays = harness.make_step(op, inputs, {}, [result(kind, 0.1, point)], (0.0, 6.0))
        [got] = harness.run(step, arrays, lowering=lowering_of(step))
        assert got.min() == point
        assert got.max() == point + 60


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 63, 64, 129, 1000])
def test_functions_of_one_byte_are_looked_up(kind: type, count: int) -> None:
    x = random(kind, (count,))
    real = (x.astype(np.float64) - zero(kind, -4)) * 0.05
    info = np.iinfo(kind)
    for op, function, scale, point in (
        ("Sigmoid", 1 / (1 + np.exp(-real)), 1 / 256, zero(kind, -128)),
        ("Tanh", np.tanh(real), 1 / 128, zero(kind, 0)),
        ("Relu", np.maximum(real, 0), 0.05, zero(kind, -4)),
        ("ElementWiseAbs", np.abs(real), 0.04, zero(kind, -100)),
        ("ElementWiseExp", np.exp(real), 0.5, zero(kind, -128)),
        ("ElementWiseAtan", np.arctan(real), 1 / 64, zero(kind, 0)),
        ("Asinh", np.arcsinh(real), 1 / 32, zero(kind, 0)),
    ):
        expected = np.clip(np.rint(function / scale) + point, info.min, info.max).astype(kind)
        check(
            op,
            [quantized_input(x, 0.05, zero(kind, -4))],
            {},
            [result(kind, scale, point)],
            [expected],
            in_place=[0],
            steps=1,
        )


def test_convert_changes_scale_and_sign() -> None:
    x = np.arange(256, dtype=np.uint8)
    expected = np.clip(np.rint((x.astype(np.float64) - 120) * 0.05 / 0.03) - 7, -128, 127).astype(np.int8)
    check("Convert", [quantized_input(x, 0.05, 120)], {}, [result(np.int8, 0.03, -7)], [expected])
    check("Convert", [quantized_input(x, 0.05, 120)], {}, [result(np.int8, 0.05, -8)], [(x ^ 0x80).view(np.int8)])


@pytest.mark.parametrize(("source", "goal"), [(np.int16, np.int16), (np.uint8, np.int16), (np.uint16, np.int8)])
def test_conversions_of_wider_types_are_computed_in_float(source: type, goal: type) -> None:
    x = random(source, (3, 200))
    real = (x.astype(np.float64) - 7) * 0.05
    info = np.iinfo(goal)
    expected = np.clip(np.rint(real / 0.11) + 5, info.min, info.max).astype(goal)
    check("Convert", [quantized_input(x, 0.05, 7)], {}, [result(goal, 0.11, 5)], [expected], steps=1)


def test_minimum_and_maximum_of_wider_types_are_computed_in_float() -> None:
    x = random(np.int16, (3, 200))
    same = [result(np.int16, 0.05, 7, (3,))]
    check("ReduceMax", [quantized_input(x, 0.05, 7)], {"axes": np.array([1])}, same, [x.max(1)])
    expected = x.argmin(1).astype(np.int32)
    check("Argmin", [quantized_input(x, 0.05, 7)], {"axis": 1}, [Result((3,), DataType.INT_32)], [expected])


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_floats_are_quantized_to_the_nearest_values_and_dequantized(kind: type, axis: int | None) -> None:
    rng = np.random.default_rng(3)
    dims = (3, 5, 37)
    count = 1 if axis is None else dims[axis]
    scales, points = rng.uniform(0.01, 0.1, count), rng.integers(-5, 6, count) if axis is None else np.zeros(count)
    if np.dtype(kind).kind == "u":
        points = points + 20
    quantization = (
        Quantization.per_channel(scales, points, axis or 0)
        if axis is not None
        else (Quantization.per_tensor(scales[0], int(points[0])))
    )
    reals = (rng.standard_normal(dims) * 3).astype(np.float32)
    reals[0, 0, :3] = (1e30, -1e30, 0)
    stored = quantization.quantize(reals, np.dtype(kind))
    in_place = [0] if kind is np.int32 else []
    check("Quantize", [reals], {}, [Result(dims, DataType.fixed_point(kind), quantization)], [stored],
          in_place=in_place)  # fmt: skip
    expected = quantization.dequantize(stored)
    check("Dequantize", [Operand(stored, quantization=quantization)], {}, [Result(dims, DataType.FLOAT_32)], [expected],
          steps=1e-5, in_place=in_place)  # fmt: skip


def test_nan_is_quantized_to_some_stored_value() -> None:
    x = np.full(70, np.nan, np.float32)
    step, arrays = harness.make_step("Quantize", [x], {}, [result(np.int8, 0.1, 3)])
    [got] = harness.run(step, arrays, lowering=lowering_of(step))
    assert got.shape == (70,)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", [(1, 2), (3,), (0,), (1,), (2, 3), (0, 1, 2, 3)])
def test_means_are_rounded_once(kind: type, axes: tuple[int, ...]) -> None:
    x = random(kind, (2, 5, 6, 35))
    total = (x.astype(np.int64) - zero(kind, -4)).sum(axes)
    count = np.prod([x.shape[a] for a in axes])
    info = np.iinfo(kind)
    real = total.astype(np.float32) * (np.float32(0.05) / np.float32(0.02) / np.float32(count))
    expected = np.clip(np.rint(real) + zero(kind, 5), info.min, info.max).astype(kind)
    dims = tuple(expected.shape)
    check(
        "ReduceMean", [quantized_input(x, 0.05, zero(kind, -4))],
        {"axes": np.array(axes, np.uint32), "keep_dims": False}, [result(kind, 0.02, zero(kind, 5), dims)], [expected],
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("away", [True, False])
def test_average_pools_with_any_border_are_within_a_quantization_step(kind: type, away: bool) -> None:
    x = random(kind, (2, 9, 7, 19))
    params = {
        "filter_size": (3, 2), "stride": (2, 1), "pad_amount": ((1, 1), (0, 1)), "count_pad_for_edges": False,
        "ties_away_from_zero": away,
    }  # fmt: skip
    padded = np.pad(x.astype(np.float64) - zero(kind, -4), ((0, 0), (1, 1), (0, 1), (0, 0)), constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), (1, 2))[:, ::2]
    expected = np.rint(np.nanmean(windows, (-2, -1)) + zero(kind, -4)).astype(kind)
    check(
        "PoolAvg2d",
        [quantized_input(x, 0.05, zero(kind, -4))],
        params,
        [result(kind, 0.05, zero(kind, -4))],
        [expected],
        steps=1,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [(1, 1), (3, 10), (2, 3, 1000)])
def test_softmax_is_the_nearest_stored_probability(kind: type, dims: tuple[int, ...]) -> None:
    x = random(kind, dims)
    real = (x.astype(np.float64)) * 0.05
    power = np.exp(real - real.max(-1, keepdims=True))
    stored = np.rint(power / power.sum(-1, keepdims=True) * 256) + zero(kind, -128)
    expected = np.minimum(stored, np.iinfo(kind).max).astype(kind)
    check(
        "Softmax",
        [quantized_input(x, 0.05, zero(kind, 3))],
        {},
        [result(kind, 1 / 256, zero(kind, -128))],
        [expected],
        steps=1,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_bilinear_resizing_is_within_a_quantization_step_of_the_float_result(kind: type) -> None:
    x = random(kind, (2, 5, 6, 19))
    q = Quantization.per_tensor(0.05, zero(kind, 3))
    for out, corners, half in (
        ((10, 12), False, True),
        (((3, 17)), False, False),
        ((9, 11), True, False),
        ((1, 1), True, False),
    ):
        params = {"align_corners": corners, "half_pixel_centers": half}
        dims = (2, *out, 19)
        step, arrays = harness.make_step(
            "ResizeBilinear", [Operand(x, quantization=q)], params, [Result(dims, None, q)]
        )
        check("ResizeBilinear", [Operand(x, quantization=q)], params, [Result(dims, DataType.fixed_point(kind), q)],
              harness.expected(step, arrays), steps=1)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_other_scales_are_joined_in_the_scale_of_the_whole(kind: type) -> None:
    a, b = random(kind, (2, 3, 5)), random(kind, (2, 4, 5), 1)
    (sa, za), (sb, zb), (sy, zy) = (0.05, zero(kind, -4)), (0.07, zero(kind, 3)), (0.07, zero(kind, 3))
    info = np.iinfo(kind)
    moved = np.clip(np.rint((a.astype(np.float64) - za) * sa / sy) + zy, info.min, info.max).astype(kind)
    expected = np.concatenate([moved, b], 1)
    check(
        "Concat",
        [quantized_input(a, sa, za), quantized_input(b, sb, zb)],
        {"axis": 1},
        [result(kind, sy, zy, (2, 7, 5))],
        [expected],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_elements_that_only_move_are_not_touched(kind: type) -> None:
    x = random(kind, (2, 5, 6, 3))
    q = Quantization.per_tensor(0.05, zero(kind, 3))
    check("Transpose", [Operand(x, quantization=q)], {"perm": np.array([0, 3, 1, 2], np.uint32)},
          [Result((2, 3, 5, 6), DataType.fixed_point(kind), q)], [x.transpose(0, 3, 1, 2)])  # fmt: skip
    pads = np.array([[0, 0], [1, 0], [0, 2], [0, 0]], np.uint32)
    expected = np.pad(x, pads.astype(int), constant_values=zero(kind, 3))
    check("Pad", [Operand(x, quantization=q)], {"scheme": 0, "pad_amount": pads},
          [Result(expected.shape, DataType.fixed_point(kind), q)], [expected])  # fmt: skip
    larger = [Result((2, 10, 12, 3), DataType.fixed_point(kind), q)]
    check("ResizeNearestNeighbor", [Operand(x, quantization=q)], {}, larger, [x.repeat(2, 1).repeat(2, 2)])


def test_what_has_no_8_bit_kernel_is_computed_in_float() -> None:
    a, b = random(np.int8, (3, 40)), random(np.int8, (3, 40), 1)
    b[b == 0] = 1
    real = a.astype(np.float64) * 0.05 / (b.astype(np.float64) * 0.5)
    expected = np.clip(np.rint(real / 0.02), -128, 127).astype(np.int8)
    check(
        "ElementWiseDivide",
        [quantized_input(a, 0.05), quantized_input(b, 0.5)],
        {},
        [result(np.int8, 0.02, 0)],
        [expected],
        steps=1,
    )
    weights = random(np.int8, (40, 8), 2)
    product = (a.astype(np.float64) * 0.05) @ (weights.astype(np.float64) * 0.01)
    expected = np.clip(np.rint(product / 0.1), -128, 127).astype(np.int8)
    check(
        "MatMul",
        [quantized_input(a, 0.05), quantized_input(weights, 0.01)],
        {},
        [result(np.int8, 0.1, 0)],
        [expected],
        steps=1,
    )


def test_a_constant_operand_may_have_a_scale_of_its_own() -> None:
    a = random(np.int8, (2, 3, 16))
    b = random(np.int8, (16,), 1)
    total = (a.astype(np.float64) + 4) * 0.05 + b * 0.02
    expected = np.clip(np.rint(total / 0.06), -128, 127).astype(np.int8)
    second = static(b, Quantization.per_tensor(0.02))
    check("ElementWiseAdd", [quantized_input(a, 0.05, -4), second], {}, [result(np.int8, 0.06, 0)], [expected], steps=1)
