"""Arithmetic on 16-bit fixed point gives the nearest steps; other functions are within one step."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from support import exact
from support.suites import long

from engine.native import harness
from engine.native.harness import Operand, Result
from isthmus.engine.native.lower import is_in_float
from isthmus.graph import DataType, Quantization
from isthmus.graph.evaluate import evaluate

pytestmark = harness.ON_TARGETS
OTHERS = ("avx512-vnni", "avx2", "neon-dot", "neon")
KINDS = [np.int16, np.uint16]
BYTES = [np.int8, np.uint8]


def numbers(rng: np.random.Generator, kind: Any, *dims: int) -> np.ndarray:
    """Stored values of the whole range."""
    info = np.iinfo(kind)
    return np.asarray(rng.integers(info.min, info.max + 1, dims)).astype(kind)


def random_quantization(rng: np.random.Generator, kind: Any, dyadic: bool) -> Quantization:
    """A scale, a power of two if `dyadic`, and any zero point that the type has."""
    scale = 2.0 ** int(rng.integers(-12, -8)) if dyadic else rng.uniform(2**-12, 2**-8)
    return Quantization.per_tensor(float(np.float32(scale)), int(numbers(rng, kind)))


def run(
    op: str, operands: list[Any], result: Result, params: dict[str, Any] | None = None,
    clamp: tuple[float, float] | None = None, steps: int = 0,
) -> np.ndarray:  # fmt: skip
    """The result of a step, the same within `steps` on every target, with one and two threads, and in place."""
    step, arrays = harness.make_step(op, operands, params, [result], clamp)
    assert not is_in_float(step)
    answers = [
        harness.run(step, arrays, target, threads, guard)[0]  # type: ignore[arg-type]
        for target in harness.targets(*OTHERS)
        for threads, guard in ((1, "after"), (2, "before"))
    ]
    first = step.inputs[0]
    if first is not None and (first.dims, first.dtype) == (step.outputs[0].dims, step.outputs[0].dtype):
        answers.append(harness.run(step, arrays, in_place=0)[0])
    for answer in answers[1:]:
        assert np.abs(answer.astype(np.int64) - answers[0]).max() <= steps
    return answers[0]


def reals(stored: np.ndarray, quantization: Quantization) -> np.ndarray:
    """Stored values as fractions."""
    return (stored.astype(np.int64) - quantization.zero_point).astype(object) * exact.fraction(quantization.scale)


def nearest(values: np.ndarray, quantization: Quantization, kind: Any, clamp: Any = None) -> np.ndarray:
    """Fractions as the nearest stored values, half to even."""
    steps = np.frompyfunc(round, 1, 1)(values / exact.fraction(quantization.scale))
    return exact.stored_values(steps, quantization, kind, clamp)


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "ElementWiseAdd": lambda a, b: a + b,
    "ElementWiseSubtract": lambda a, b: a - b,
    "ElementWiseMultiply": lambda a, b: a * b,
    "ElementWiseMaximum": lambda a, b: np.maximum(a, b),
    "ElementWiseMinimum": lambda a, b: np.minimum(a, b),
}


@pytest.mark.parametrize("op", ARITHMETIC)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1, *map(long, range(2, 12))])
def test_arithmetic_gives_the_nearest_step(op: str, kind: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dims = [((4, 37), (4, 37)), ((2, 3, 33), (33,)), ((5, 40), (5, 1)), ((70,), ()), ((1, 6), (5, 1))][seed % 5]
    dyadic = bool(rng.integers(2))
    qa, qb, qy = (random_quantization(rng, kind, dyadic) for _ in range(3))
    a, b = (numbers(rng, kind, *d) for d in dims)
    clamp = (-1.5, 2.25) if seed % 3 == 1 and op in ("ElementWiseAdd", "ElementWiseMultiply") else None
    expected = nearest(ARITHMETIC[op](reals(a, qa), reals(b, qb)), qy, kind, clamp)
    result = Result(expected.shape, DataType.fixed_point(kind), qy)
    got = run(op, [Operand(a, quantization=qa), Operand(b, quantization=qb)], result, {}, clamp)
    np.testing.assert_array_equal(got, expected)


def test_ties_go_to_the_even_number() -> None:
    q, wide = Quantization.per_tensor(0.1, 7), Quantization.per_tensor(float(np.float32(0.1)) * 2, 7)
    a = np.arange(-20, 20, dtype=np.int16)
    b = np.zeros(40, np.int16) + np.int16(7)
    result = Result((40,), DataType.SFIXED_POINT_16, wide)
    got = run("ElementWiseAdd", [Operand(a, quantization=q), Operand(b, quantization=q)], result)
    np.testing.assert_array_equal(got, np.rint((a - 7) / 2) + 7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_quotient_is_the_nearest_step_and_nothing_divided_by_nothing_is_zero(kind: Any) -> None:
    rng = np.random.default_rng(3)
    qa, qb, qy = (random_quantization(rng, kind, False) for _ in range(3))
    a, b = numbers(rng, kind, 500), numbers(rng, kind, 500)
    b[b == qb.zero_point] += 1
    expected = nearest(reals(a, qa) / reals(b, qb), qy, kind)
    a[:2], b[:2] = qa.zero_point, qb.zero_point
    a[1] ^= 1
    with np.errstate(all="ignore"):
        infinite = np.float64(int(a[1]) - qa.zero_point) / 0.0
    info = np.iinfo(kind)
    expected[:2] = qy.zero_point, info.max if infinite > 0 else info.min
    result = Result((500,), DataType.fixed_point(kind), qy)
    got = run("ElementWiseDivide", [Operand(a, quantization=qa), Operand(b, quantization=qb)], result)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("op", "function"),
    [("Equal", np.equal), ("Greater", np.greater), ("LessEqual", np.less_equal), ("NotEqual", np.not_equal)],
)
def test_comparisons_are_those_of_the_exact_reals(op: str, function: Any) -> None:
    rng = np.random.default_rng(4)
    qa, qb = Quantization.per_tensor(0.25, 30000), Quantization.per_tensor(0.125, 100)
    a, b = (rng.integers(q.zero_point, q.zero_point + 8, (6, 50)).astype(np.uint16) for q in (qa, qb))
    expected = function(reals(a, qa), reals(b, qb)).astype(bool)
    result = Result((6, 50), DataType.BOOL_8)
    operands = [Operand(a, quantization=qa), Operand(b, quantization=qb)]
    np.testing.assert_array_equal(run(f"ElementWise{op}", operands, result), expected)


@pytest.mark.parametrize(
    ("source", "goal"),
    [*product(KINDS, KINDS), *product(BYTES, KINDS), *product(KINDS, BYTES)],
)
@pytest.mark.parametrize("dyadic", [True, False])
def test_conversions_give_the_nearest_step(source: Any, goal: Any, dyadic: bool) -> None:
    rng = np.random.default_rng(5)
    qx, qy = random_quantization(rng, source, dyadic), random_quantization(rng, goal, dyadic)
    x = numbers(rng, source, 3, 333)
    result = Result(x.shape, DataType.fixed_point(goal), qy)
    got = run("Convert", [Operand(x, quantization=qx)], result)
    np.testing.assert_array_equal(got, nearest(reals(x, qx), qy, goal))


LIMITS: list[tuple[str, dict[str, Any], Callable[[Any], Any]]] = [
    ("Relu", {}, lambda x: np.maximum(x, 0)),
    ("Relu6", {}, lambda x: np.minimum(np.maximum(x, 0), 6)),
    ("ReluMinMax", {"min_value": -0.5, "max_value": 0.75},
     lambda x: np.minimum(np.maximum(x, Fraction(-1, 2)), Fraction(3, 4))),
    ("ElementWiseNeg", {}, lambda x: -x),
    ("ElementWiseAbs", {}, abs),
]  # fmt: skip


@pytest.mark.parametrize(("op", "params", "function"), LIMITS, ids=[case[0] for case in LIMITS])
@pytest.mark.parametrize("kind", KINDS)
def test_limits_and_signs_give_the_nearest_step(op: str, params: dict[str, Any], function: Any, kind: Any) -> None:
    rng = np.random.default_rng(6)
    qx, qy = random_quantization(rng, kind, False), random_quantization(rng, kind, False)
    x = numbers(rng, kind, 1000)
    got = run(op, [Operand(x, quantization=qx)], Result((1000,), DataType.fixed_point(kind), qy), params)
    np.testing.assert_array_equal(got, nearest(function(reals(x, qx)), qy, kind))


def test_a_slope_applies_below_zero() -> None:
    rng = np.random.default_rng(7)
    qx, qy = (random_quantization(rng, np.uint16, False) for _ in range(2))
    x = numbers(rng, np.uint16, 1000)
    slope = Operand(np.array([40000], np.uint16), True, Quantization.per_tensor(1 / 40000))
    factor = 40000 * exact.fraction(1 / 40000)
    got = run("Prelu", [Operand(x, quantization=qx), slope], Result((1000,), DataType.UFIXED_POINT_16, qy))
    real = reals(x, qx)
    np.testing.assert_array_equal(got, nearest(np.where(real < 0, real * factor, real), qy, np.uint16))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "op",
    ["Sigmoid", "Tanh", "Gelu", "HardSwish", "ElementWiseExp", "ElementWiseLog", "ElementWiseSquareRoot",
     *map(long, ("ElementWiseRsqrt", "Elu", "Erf", "Silu", "Mish", "ElementWiseSoftplus", "ElementWiseFloor",
                 "ElementWiseRound", "ElementWiseSign", "ElementWiseAtan"))],
)  # fmt: skip
def test_functions_are_within_one_step(op: str, kind: Any) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(kind)
    qx = Quantization.per_tensor(1 / 4096, int(np.iinfo(kind).min) + 30000)
    qy = Quantization.per_tensor(1 / 8192, int(np.iinfo(kind).min) + 32768)
    result = Result(x.shape, DataType.fixed_point(kind), qy)
    got = run(op, [Operand(x, quantization=qx)], result, steps=1)
    step, arrays = harness.make_step(op, [Operand(x, quantization=qx)], None, [result])
    [expected] = evaluate(step.op, step.inputs, arrays, step.params, step.outputs)
    assert np.abs(got.astype(np.int64) - expected).max() <= 1
    assert np.mean(got == expected) > 0.99


@pytest.mark.parametrize("kind", [np.uint16, np.int16])
def test_slopes_of_channels_apply_below_zero(kind: Any) -> None:
    rng = np.random.default_rng(10)
    qx, qy, qs = (random_quantization(rng, kind, False) for _ in range(3))
    x, slopes = numbers(rng, kind, 5, 7, 20), numbers(rng, kind, 20)
    got = run(
        "Prelu", [Operand(x, quantization=qx), Operand(slopes, True, qs)],
        Result(x.shape, DataType.fixed_point(kind), qy),
    )  # fmt: skip
    real = reals(x, qx)
    np.testing.assert_array_equal(got, nearest(np.where(real < 0, real * reals(slopes, qs), real), qy, kind))
