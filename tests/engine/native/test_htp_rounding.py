"""The numerics "htp": exact halves are rounded as HTP's chips round them, by the kernels and by the reference.

All scales make results exact in steps of the output, so that the expected integers follow from the rule alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.suites import sampled

from engine.native import harness
from engine.native.harness import Operand, Result, quantized_input
from isthmus.graph import DataType, Quantization
from isthmus.graph.evaluate import evaluate
from isthmus.graph.rounding import Ties, ties_of

_SCALE = float(np.float32(0.05))
_TYPES = {np.uint8: 128, np.int8: -3, np.uint16: 32768, np.int16: 5}
"""The types of stored numbers, each with a zero point."""
EXPECTED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "up": lambda steps: np.floor(steps + 0.5),
    "away": lambda steps: np.sign(steps) * np.floor(np.abs(steps) + 0.5),
    "towards": lambda steps: np.sign(steps) * np.ceil(np.abs(steps) - 0.5),
    "even": np.rint,
}


@dataclass
class Case:
    """An operation, and its exact results in steps above the zero point of its output."""

    op: str
    inputs: list[Any]
    result: Result
    steps: np.ndarray
    rule: str = "up"
    params: dict[str, Any] = field(default_factory=dict)


def _stored(kind: type, *dims: int, spread: int = 120) -> np.ndarray:
    """Return numbers around the zero point of a type."""
    return (np.random.default_rng(2).integers(-spread, spread, dims) + _TYPES[kind]).clip(
        np.iinfo(kind).min, np.iinfo(kind).max
    ).astype(kind)  # fmt: skip


def _of(array: np.ndarray, scale: float, static: bool = False) -> Operand:
    return quantized_input(array, scale, _TYPES[array.dtype.type], static)


def _centred(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) - _TYPES[array.dtype.type]


def _to(kind: type, scale: float, *dims: int) -> Result:
    return Result(dims or None, DataType.fixed_point(np.dtype(kind)), Quantization.per_tensor(scale, _TYPES[kind]))


def _convert(source: type, goal: type) -> Case:
    x = _stored(source, 4, 64)
    return Case("Convert", [_of(x, 0.5)], _to(goal, 1.0), _centred(x) / 2)


def _quantize(goal: type) -> Case:
    steps = np.arange(-120, 120).astype(np.float32) / 2
    return Case("Quantize", [steps * 4], _to(goal, 4.0), steps.astype(np.float64), "away")


def _binary(op: str, function: Callable, kind: type, out: float) -> Case:
    x, z = _stored(kind, 8, 33), _stored(kind, 8, 33)[::-1].copy()
    return Case(op, [_of(x, 0.5), _of(z, 0.5)], _to(kind, out), function(_centred(x) / 2, _centred(z) / 2) / out)


def _pool(kind: type) -> Case:
    x = _stored(kind, 1, 8, 8, 5)
    steps = _centred(x).reshape(1, 4, 2, 4, 2, 5).mean((2, 4))
    params = {"filter_size": [2, 2], "stride": [2, 2], "pad_amount": [[0, 0], [0, 0]]}
    return Case("PoolAvg2d", [_of(x, _SCALE)], _to(kind, _SCALE, 1, 4, 4, 5), steps, params=params)


def _pool_in_stages(kind: type) -> Case:
    """Return an average of four by four bytes: the averages of two by two are rounded too."""
    x = _stored(kind, 1, 8, 8, 5)
    first = np.floor(_centred(x).reshape(1, 4, 2, 4, 2, 5).mean((2, 4)) + 0.5)
    steps = first.reshape(1, 2, 2, 2, 2, 5).mean((2, 4))
    params = {"filter_size": [4, 4], "stride": [4, 4], "pad_amount": [[0, 0], [0, 0]]}
    return Case("PoolAvg2d", [_of(x, _SCALE)], _to(kind, _SCALE, 1, 2, 2, 5), steps, params=params)


def _mean(kind: type) -> Case:
    x = _stored(kind, 6, 8, 4)
    params = {"axes": [2], "keep_dims": True}
    return Case("ReduceMean", [_of(x, _SCALE)], _to(kind, _SCALE, 6, 8, 1), _centred(x).mean(2, keepdims=True),
                "towards", params)  # fmt: skip


def _product(op: str, kind: type) -> Case:
    """Return a product with weights in halves, so that odd sums lie halfway."""
    depth, columns = 6, 37
    weights = np.random.default_rng(3).integers(-3, 4, (depth, columns)).astype(np.int8)
    if op == "DepthWiseConv2d":
        x, dims = _stored(kind, 1, 5, 5, columns, spread=9), (1, 5, 5, columns)
        steps, data = _centred(x) * weights[0] / 2, weights[:1].reshape(1, 1, 1, columns)
    elif op == "Conv2d":
        x, dims = _stored(kind, 1, 5, 5, depth, spread=9), (1, 5, 5, columns)
        steps, data = _centred(x) @ weights / 2, weights.reshape(1, 1, depth, columns)
    else:
        x, dims = _stored(kind, 9, depth, spread=9), (9, columns)
        steps, data = _centred(x) @ weights / 2, weights.T.copy() if op == "FullyConnected" else weights
    params = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]} if "Conv" in op else {}
    weights_operand = quantized_input(data, 0.5, 0, static=True)
    return Case(op, [_of(x, _SCALE), weights_operand], _to(kind, _SCALE, *dims), steps, params=params)


def _resize(kind: type) -> Case:
    x = _stored(kind, 1, 4, 4, 3)
    at = np.clip((np.arange(8) + 0.5) / 2 - 0.5, 0, 3)
    low = np.floor(at).astype(int)
    high, part = np.minimum(low + 1, 3), at - low
    values = _centred(x)[0]
    rows = values[low] * (1 - part)[:, None, None] + values[high] * part[:, None, None]
    steps = rows[:, low] * (1 - part)[None, :, None] + rows[:, high] * part[None, :, None]
    params = {"half_pixel_centers": True, "align_corners": False}
    return Case("ResizeBilinear", [_of(x, 0.25)], _to(kind, 0.25, 1, 8, 8, 3), steps[None], params=params)


_BYTES, _WORDS = (np.uint8, np.int8), (np.uint16, np.int16)
CASES: dict[str, Case] = {
    **{f"Convert {a.__name__} to {b.__name__}": _convert(a, b) for a in _TYPES for b in _TYPES},
    **{f"Quantize to {kind.__name__}": _quantize(kind) for kind in _TYPES},
    **{f"Add {kind.__name__}": _binary("ElementWiseAdd", np.add, kind, 1.0) for kind in _TYPES},
    **{f"Subtract {kind.__name__}": _binary("ElementWiseSubtract", np.subtract, kind, 1.0) for kind in _TYPES},
    **{f"Multiply {kind.__name__}": _binary("ElementWiseMultiply", np.multiply, kind, 32.0) for kind in _TYPES},
    **{f"PoolAvg2d {kind.__name__}": _pool(kind) for kind in _TYPES},
    **{f"ReduceMean {kind.__name__}": _mean(kind) for kind in _TYPES},
    **{f"ResizeBilinear {kind.__name__}": _resize(kind) for kind in _BYTES},
    **{f"{op} {kind.__name__}": _product(op, kind) for op in ("Conv2d", "DepthWiseConv2d", "FullyConnected", "MatMul")
       for kind in _TYPES},
}  # fmt: skip


def _expected(case: Case, rule: str) -> np.ndarray:
    dtype = case.result.dtype.numpy
    info, zero = np.iinfo(dtype), _TYPES[dtype.type]
    halves = np.abs(case.steps - np.floor(case.steps)) == 0.5
    assert (halves & (case.steps < 0)).any()
    assert (halves & (case.steps > 0)).any()
    return np.clip(EXPECTED[rule](case.steps) + zero, info.min, info.max).astype(dtype)


@pytest.mark.parametrize("name", sampled(CASES, 4))
def test_ties_are_rounded_as_on_a_chip(name: str) -> None:
    case = CASES[name]
    step, arrays = harness.make_step(case.op, case.inputs, case.params, [case.result])
    expected = _expected(case, case.rule)
    [reference] = evaluate(case.op, step.inputs, arrays, step.params, step.outputs, "hexagon")
    np.testing.assert_array_equal(reference, expected)
    [computed] = harness.run(step, arrays, numerics="hexagon")
    np.testing.assert_array_equal(computed, expected)
    assert ties_of("hexagon", case.op) is Ties(case.rule)


@pytest.mark.parametrize("kind", _BYTES)
def test_the_reference_averages_four_by_four_bytes_in_two_steps(kind: type) -> None:
    case = _pool_in_stages(kind)
    step, arrays = harness.make_step(case.op, case.inputs, case.params, [case.result])
    [reference] = evaluate(case.op, step.inputs, arrays, step.params, step.outputs, "hexagon")
    np.testing.assert_array_equal(reference, _expected(case, "up"))


_FUNCTIONS = "Sigmoid", "Tanh", "Gelu", "ElementWiseExp", "ElementWiseSquareRoot", "HardSwish", "Relu"


@pytest.mark.parametrize("op", _FUNCTIONS)
def test_tables_have_the_nearest_steps(op: str) -> None:
    """The judge computes in extended precision, rounded half up."""
    x = np.arange(256, dtype=np.uint8)
    case = Case(op, [_of(x, 1 / 16)], _to(np.uint8, 1 / 32), np.zeros(1))
    step, arrays = harness.make_step(op, case.inputs, {}, [case.result])
    reals = _centred(x).astype(np.longdouble) / 16
    with np.errstate(invalid="ignore"):
        exact = {
            "Sigmoid": lambda: 1 / (1 + np.exp(-reals)),
            "Tanh": lambda: np.tanh(reals),
            "Gelu": lambda: reals / 2 * (1 + np.array([math.erf(r / math.sqrt(2)) for r in reals.tolist()])),
            "ElementWiseExp": lambda: np.exp(reals),
            "ElementWiseSquareRoot": lambda: np.nan_to_num(np.sqrt(reals)),
            "HardSwish": lambda: reals * np.clip(reals + 3, 0, 6) / 6,
            "Relu": lambda: np.maximum(reals, 0),
        }[op]()
    expected = np.clip(np.floor(exact * 32 + np.longdouble(0.5)) + 128, 0, 255).astype(np.uint8)
    [computed] = harness.run(step, arrays, numerics="hexagon")
    np.testing.assert_array_equal(computed, expected)


@pytest.mark.parametrize("op", ["ElementWiseCeil", "ElementWiseFloor", "ElementWiseRound"])
def test_a_function_jumps_where_single_precision_has_the_jump(op: str) -> None:
    """In double precision, twenty steps of 0.05 are a little more than 1."""
    steps = np.arange(128, 256, 20, dtype=np.uint8)[:6]
    case = Case(op, [_of(steps, 0.05)], _to(np.uint8, 0.05), np.zeros(1))
    step, arrays = harness.make_step(op, case.inputs, {}, [case.result])
    [computed] = harness.run(step, arrays, numerics="hexagon")
    np.testing.assert_array_equal(computed, steps)


def test_a_quantize_multiplies_by_the_reciprocal_of_the_scale() -> None:
    """The reciprocal of 0.05 is 20 in single precision, so that there are exact halves although 0.05 is not exact."""
    steps = np.float32([-2.5, -0.5, 0.5, 2.5, 7.5])
    case = Case("Quantize", [steps / 20], _to(np.uint16, 0.05), steps.astype(np.float64), "away")
    step, arrays = harness.make_step("Quantize", case.inputs, {}, [case.result])
    [computed] = harness.run(step, arrays, numerics="hexagon")
    np.testing.assert_array_equal(computed, _expected(case, case.rule))
