"""Sums, means and pools of 16-bit fixed point are exact and rounded once; softmax is within one step."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support import exact

from engine.native import harness
from engine.native.harness import Operand, Result
from engine.native.test_fixed16_elementwise import KINDS, numbers, random_quantization, run
from isthmus.engine.native.lower import lowering_of
from isthmus.engine.native.target import host
from isthmus.graph import DataType, Quantization
from isthmus.graph.evaluate import evaluate

pytestmark = harness.ON_TARGETS


def rounded(sums: np.ndarray, counts: Any, qx: Quantization, qy: Quantization, kind: Any) -> np.ndarray:
    """Sums of steps divided by counts, as stored values."""
    ratio = exact.fraction(qx.scale) / exact.fraction(qy.scale)
    fractions = np.frompyfunc(lambda total, count: round(Fraction(int(total), int(count)) * ratio), 2, 1)
    return exact.stored_values(fractions(sums, counts), qy, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("axes", [(1, 2), (2,), (0,), (3,), (2, 3), (0, 1, 2, 3), (0, 2), (1, 3)])
def test_a_sum_or_mean_is_exact_and_rounded_once(kind: Any, op: str, axes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(axes))
    x = numbers(rng, kind, 2, 6, 7, 37)
    dyadic = len(axes) == 1
    qx, qy = (random_quantization(rng, kind, dyadic) for _ in range(2))
    total = (x.astype(np.int64) - qx.zero_point).sum(axes)
    count = x.size // max(total.size, 1)
    if op == "ReduceSum":
        qy = Quantization.per_tensor(float(np.float32(qy.scale * count)), qy.zero_point)
    expected = rounded(total, count if op == "ReduceMean" else 1, qx, qy, kind)
    result = Result(total.shape, DataType.fixed_point(kind), qy)
    got = run(op, [Operand(x, quantization=qx)], result, {"axes": np.array(axes)})
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("counts", [True, False])
def test_an_average_pool_is_exact_and_rounded_once(kind: Any, counts: bool) -> None:
    rng = np.random.default_rng(8)
    x = numbers(rng, kind, 2, 8, 9, 21)
    qx = random_quantization(rng, kind, True)
    qy = Quantization.per_tensor(qx.scale / 2, qx.zero_point)
    params = {"filter_size": [3, 2], "stride": [2, 2], "pad_amount": [[1, 1], [1, 0]], "count_pad_for_edges": counts}
    pad = ((0, 0), (1, 1), (1, 0), (0, 0))
    steps = np.pad(x.astype(np.int64) - qx.zero_point, pad)
    inside = np.pad(np.ones(x.shape, np.int64), pad)
    total = np.zeros((2, 4, 5, 21), np.int64)
    count = np.zeros_like(total)
    for i in range(3):
        for j in range(2):
            total += steps[:, i : i + 7 : 2, j : j + 9 : 2]
            count += 1 if counts else inside[:, i : i + 7 : 2, j : j + 9 : 2]
    got = run("PoolAvg2d", [Operand(x, quantization=qx)], Result(total.shape, DataType.fixed_point(kind), qy), params)
    np.testing.assert_array_equal(got, rounded(total, count, qx, qy, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_softmax_is_within_one_step(kind: Any) -> None:
    rng = np.random.default_rng(9)
    x = numbers(rng, kind, 5, 130)
    qx = Quantization.per_tensor(2**-12, int(np.iinfo(kind).min) + 1000)
    qy = Quantization.per_tensor(2**-16, int(np.iinfo(kind).min))
    result = Result(x.shape, DataType.fixed_point(kind), qy)
    got = run("Softmax", [Operand(x, quantization=qx)], result, {"beta": 1.0}, steps=1)
    step, arrays = harness.make_step("Softmax", [Operand(x, quantization=qx)], {"beta": 1.0}, [result])
    [expected] = evaluate(step.op, step.inputs, arrays, step.params, step.outputs)
    assert np.abs(got.astype(np.int64) - expected).max() <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_of_windows_and_axes_needs_no_work_space(kind: Any) -> None:
    rng = np.random.default_rng(11)
    x = numbers(rng, kind, 1, 8, 8, 21)
    q = random_quantization(rng, kind, False)
    params = {"filter_size": [2, 2], "stride": [2, 2], "pad_amount": [[0, 0], [0, 0]]}
    expected = x.reshape(1, 4, 2, 4, 2, 21).max((2, 4))
    pool = [Operand(x, quantization=q)], Result(expected.shape, DataType.fixed_point(kind), q)
    np.testing.assert_array_equal(run("PoolMax2d", *pool, params), expected)
    axis = [Operand(x, quantization=q)], Result((1, 8, 21), DataType.fixed_point(kind), q)
    np.testing.assert_array_equal(run("ReduceMin", *axis, {"axes": np.array([2])}), x.min(2))
    for op, (operands, result), given in (("PoolMax2d", pool, params), ("ReduceMin", axis, {"axes": np.array([2])})):
        step, _ = harness.make_step(op, operands, given, [result])
        assert lowering_of(step).work(step, host(), 1) == 0
