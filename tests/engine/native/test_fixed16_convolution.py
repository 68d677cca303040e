"""Products of 16-bit fixed point are exact sums, rounded once, whatever the weights and their widths."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from support import exact
from support.suites import long, sampled

from engine.native import harness
from engine.native.harness import Operand, Result
from isthmus.engine.native.lower import is_in_float, lowering_of
from isthmus.graph import DataType, Quantization

pytestmark = harness.ON_TARGETS
OTHERS = ("avx512-vnni", "avx2", "neon-dot", "neon")
KINDS = [np.int16, np.uint16]
WEIGHTS = [np.int8, np.uint8, np.int16, np.uint16]


def sums(x: np.ndarray, weights: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """The whole-number convolution of centred integers; padding is zero."""
    (top, bottom), (left, right) = params["pad_amount"]
    (sh, sw), (dh, dw) = params["stride"], params["dilation"]
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    kh, kw, depth, filters = weights.shape
    rows = (padded.shape[1] - (kh - 1) * dh - 1) // sh + 1
    columns = (padded.shape[2] - (kw - 1) * dw - 1) // sw + 1
    total = np.zeros((x.shape[0], rows, columns, filters), np.int64)
    groups = x.shape[3] // depth
    width = filters // groups
    for i, j in product(range(kh), range(kw)):
        patch = padded[:, i * dh : i * dh + (rows - 1) * sh + 1 : sh, j * dw : j * dw + (columns - 1) * sw + 1 : sw]
        for group in range(groups):
            part = slice(group * width, (group + 1) * width)
            total[..., part] += patch[..., group * depth : (group + 1) * depth] @ weights[i, j][:, part]
    return total


def scattered(x: np.ndarray, weights: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """The whole-number transposed convolution of centred integers: filters are scattered, then padding is cropped."""
    (top, bottom), (left, right) = params["pad_amount"]
    (sh, sw), groups, (extra_h, extra_w) = params["stride"], params["group"], params["output_padding"]
    batch, height, width, channels = x.shape
    kh, kw, _, columns = weights.shape
    depth = channels // groups
    size = (height - 1) * sh + kh + extra_h, (width - 1) * sw + kw + extra_w
    total = np.zeros((batch, *size, columns * groups), np.int64)
    for group, i, j in product(range(groups), range(kh), range(kw)):
        part = slice(group * depth, (group + 1) * depth)
        answer = x[..., part] @ weights[i, j, part]
        place = total[:, i : i + (height - 1) * sh + 1 : sh, j : j + (width - 1) * sw + 1 : sw]
        place[..., group * columns : (group + 1) * columns] += answer
    return total[:, top : total.shape[1] - bottom, left : total.shape[2] - right]


def numbers(rng: np.random.Generator, kind: Any, dims: tuple[int, ...], extreme: bool) -> np.ndarray:
    """Stored values: anything, or only the limits of the type."""
    info = np.iinfo(kind)
    if extreme:
        return rng.choice(np.array([info.min, info.max], kind), dims)
    return rng.integers(info.min, info.max + 1, dims).astype(kind)


def check(
    op: str, x_dims: tuple[int, ...], w_dims: tuple[int, ...], params: dict[str, Any], x_kind: Any, w_kind: Any,
    *, seed: int = 0, per_channel: bool = False, extreme: bool = False, clamp: tuple[float, float] | None = None,
    bias: bool = True,
) -> None:  # fmt: skip
    """Run a product on every target, with one and two threads, and compare with integers."""
    rng = np.random.default_rng(seed)
    x, w = numbers(rng, x_kind, x_dims, extreme), numbers(rng, w_kind, w_dims, extreme)
    column_axis = {"FullyConnected": 0}.get(op, len(w_dims) - 1)
    columns = w_dims[column_axis]
    count = columns if per_channel else 1
    info = np.iinfo(w_kind)
    # Symmetric or not, with any zero point that the type has.
    zeros = np.zeros(count, np.int64) if info.min < 0 and seed % 2 else rng.integers(info.min, info.max + 1, count)
    sw = rng.uniform(0.5e-3, 2e-3, count).astype(np.float32)
    qx = Quantization.per_tensor(np.float32(rng.uniform(1e-4, 1e-3)), int(numbers(rng, x_kind, (), False)))
    qw = Quantization.per_channel(sw, zeros, column_axis) if per_channel else Quantization.per_tensor(sw[0], zeros[0])
    shaped = zeros.reshape([-1 if per_channel and d == column_axis else 1 for d in range(len(w_dims))])
    left, right = x.astype(np.int64) - qx.zero_point, w.astype(np.int64) - shaped
    if op == "FullyConnected":
        total = left.reshape(-1, w_dims[1]) @ right.T
    elif op == "MatMul":
        total = left @ right
    elif op == "TransposeConv2d":
        total = scattered(left, right, params)
    else:
        total = sums(left, right, params)
    columns = total.shape[-1]
    b = rng.integers(-(1 << 20), 1 << 20, columns).astype(np.int32) if bias else None
    if b is not None:
        total = total + b
    # Results of about the range of their type.
    scale = np.float32(max(float(np.abs(total).max()) * qx.scale * float(sw.max()) / 40000, 1e-30))
    qy = Quantization.per_tensor(scale, int(numbers(rng, x_kind, (), False)))
    steps = np.empty(total.shape, object)
    for column in range(columns):
        factor = exact.fraction(qx.scale) * exact.fraction(sw[column % count]) / exact.fraction(qy.scale)
        steps[..., column] = exact.round_half_even(total[..., column], factor)
    expected = exact.stored_values(steps, qy, x_kind, clamp)
    operands: list[Any] = [Operand(x, quantization=qx), Operand(w, True, qw)]
    if b is not None:
        units = [float(np.float32(qx.scale) * s) for s in sw]
        qb = Quantization.per_channel(units, np.zeros(count), 0) if per_channel else Quantization.per_tensor(units[0])
        operands.append(Operand(b, True, qb))
    result = Result(total.shape, DataType.fixed_point(x_kind), qy)
    step, arrays = harness.make_step(op, operands, params, [result], clamp)
    assert not is_in_float(step)
    for target in harness.targets(*OTHERS):
        for threads, guard in ((1, "after"), (2, "before")):
            got = harness.run(step, arrays, target, threads, guard)[0]  # type: ignore[arg-type]
            np.testing.assert_array_equal(got, expected, err_msg=f"{target.name}, {threads} threads")


def window(kernel: tuple[int, int], stride: int = 1, pad: int = 0, dilation: int = 1, **more: Any) -> dict[str, Any]:
    """The parameters of a convolution."""
    pads = [[pad, pad], [pad, pad]]
    return {"stride": [stride, stride], "pad_amount": pads, "dilation": [dilation, dilation], **more}


@pytest.mark.parametrize("w_kind", WEIGHTS)
@pytest.mark.parametrize("x_kind", sampled(KINDS, 2))
def test_a_convolution_is_an_exact_sum_rounded_once(x_kind: Any, w_kind: Any) -> None:
    check("Conv2d", (2, 7, 9, 5), (3, 3, 5, 19), window((3, 3), 1, 1, group=1), x_kind, w_kind, seed=1)
    check("Conv2d", (1, 6, 11, 8), (1, 1, 8, 70), window((1, 1), group=1), x_kind, w_kind, seed=2, per_channel=True)


@pytest.mark.parametrize("w_kind", sampled(WEIGHTS, 4))
def test_deep_sums_of_the_largest_numbers_do_not_overflow(w_kind: Any) -> None:
    check("FullyConnected", (3, 1500), (40, 1500), {}, np.uint16, w_kind, extreme=True, seed=3)
    check("MatMul", (2, 5, 770), (770, 33), {}, np.int16, w_kind, extreme=True, seed=4, per_channel=True, bias=False)


@pytest.mark.parametrize("w_kind", sampled(WEIGHTS, 2))
@pytest.mark.parametrize("x_kind", KINDS)
def test_a_depthwise_convolution_is_an_exact_sum_rounded_once(x_kind: Any, w_kind: Any) -> None:
    check("DepthWiseConv2d", (2, 7, 9, 37), (3, 3, 1, 37), window((3, 3), 1, 1), x_kind, w_kind, seed=5, extreme=True)
    check("DepthWiseConv2d", (1, 9, 13, 64), (5, 2, 1, 64), window((5, 2), 2), x_kind, w_kind, seed=6, per_channel=True)
    check("DepthWiseConv2d", (1, 5, 6, 3), (2, 2, 1, 6), window((2, 2)), x_kind, w_kind, seed=7)


@pytest.mark.parametrize("w_kind", WEIGHTS)
@pytest.mark.parametrize("x_kind", KINDS)
def test_a_transposed_convolution_is_an_exact_sum_rounded_once(x_kind: Any, w_kind: Any) -> None:
    params = {"stride": [2, 3], "pad_amount": [[1, 0], [0, 1]], "group": 1, "output_padding": [1, 0]}
    check("TransposeConv2d", (2, 5, 6, 7), (3, 4, 7, 9), params, x_kind, w_kind, seed=8, per_channel=True)
    params = {"stride": [2, 2], "pad_amount": [[0, 0], [0, 0]], "group": 2, "output_padding": [0, 0]}
    check("TransposeConv2d", (1, 4, 5, 8), (1, 2, 8, 20), params, x_kind, w_kind, seed=9)


@pytest.mark.parametrize("kinds", sampled(product(KINDS, [np.int16, np.uint16, np.uint8, np.int8]), 3))
@pytest.mark.parametrize(
    ("left", "right", "transposed"),
    [((3, 20, 33), (3, 33, 19), (False, False)), ((2, 3, 9, 300), (3, 40, 300), (False, True)),
     ((1, 70, 5), (2, 70, 66), (True, False))],
)  # fmt: skip
def test_a_product_of_matrices_known_at_run_time_is_exact(
    kinds: tuple[Any, Any], left: tuple[int, ...], right: tuple[int, ...], transposed: tuple[bool, bool]
) -> None:
    rng = np.random.default_rng(len(left))
    extreme = left[-1] == 300
    a, b = (numbers(rng, kind, dims, extreme) for kind, dims in zip(kinds, (left, right), strict=True))
    qa, qb = (
        Quantization.per_tensor(float(np.float32(rng.uniform(1e-4, 1e-3))), int(numbers(rng, kind, (), False)))
        for kind in kinds
    )
    one, other = a.astype(np.int64) - qa.zero_point, b.astype(np.int64) - qb.zero_point
    one = np.swapaxes(one, -1, -2) if transposed[0] else one
    other = np.swapaxes(other, -1, -2) if transposed[1] else other
    total = one @ other
    scale = np.float32(float(np.abs(total).max()) * qa.scale * qb.scale / 40000)
    qy = Quantization.per_tensor(float(scale), int(numbers(rng, kinds[0], (), False)))
    factor = exact.fraction(qa.scale) * exact.fraction(qb.scale) / exact.fraction(qy.scale)
    expected = exact.stored_values(exact.round_half_even(total, factor), qy, kinds[0])
    params = {"transpose_in0": transposed[0], "transpose_in1": transposed[1]}
    step, arrays = harness.make_step(
        "MatMul", [Operand(a, quantization=qa), Operand(b, quantization=qb)], params,
        [Result(total.shape, DataType.fixed_point(kinds[0]), qy)],
    )  # fmt: skip
    assert not is_in_float(step)
    for target in harness.targets(*OTHERS):
        for threads, guard in ((1, "after"), (2, "before")):
            got = harness.run(step, arrays, target, threads, guard)[0]  # type: ignore[arg-type]
            np.testing.assert_array_equal(got, expected, err_msg=f"{target.name}, {threads} threads")


@pytest.mark.parametrize("seed", [*range(4), *map(long, range(4, 200))])
def test_random_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x_kind, w_kind = rng.choice(KINDS), rng.choice(WEIGHTS)
    groups = int(rng.choice([1, 1, 1, 2, 3]))
    kernel = tuple(int(k) for k in rng.integers(1, 5, 2))
    depth, width = (int(n) for n in rng.integers(1, 40, 2))
    stride, pad, dilation = int(rng.integers(1, 3)), int(rng.integers(0, 3)), int(rng.integers(1, 3))
    size = tuple(int(n) for n in rng.integers(9, 15, 2))
    clamp = (-2.0, 3.0) if rng.random() < 0.3 else None
    options = {"seed": seed, "per_channel": bool(rng.integers(2)), "extreme": bool(rng.integers(2)), "clamp": clamp}
    batch = int(rng.integers(1, 3))
    if rng.random() < 0.4:
        params = window(kernel, stride, pad, dilation)
        check("DepthWiseConv2d", (batch, *size, depth), (*kernel, 1, depth), params, x_kind, w_kind, **options)
        return
    params = window(kernel, stride, pad, dilation, group=groups)
    dims = (batch, *size, depth * groups), (*kernel, depth, width * groups)
    check("Conv2d", *dims, params, x_kind, w_kind, **options)


def test_work_space_is_a_few_rows_not_the_tensor() -> None:
    rng = np.random.default_rng(0)
    quantization = Quantization.per_tensor(0.001, 5)
    x = Operand(np.zeros((1, 112, 112, 32), np.uint16), quantization=quantization)
    w = Operand(rng.integers(-128, 128, (3, 3, 32, 32)).astype(np.int8), True, Quantization.per_tensor(0.01))
    params = window((3, 3), 1, 1, group=1)
    step, _ = harness.make_step(
        "Conv2d", [x, w], params, [Result((1, 112, 112, 32), DataType.UFIXED_POINT_16, quantization)]
    )
    for target in harness.targets(*OTHERS):
        assert lowering_of(step).work(step, target, 1) <= 1 << 15
