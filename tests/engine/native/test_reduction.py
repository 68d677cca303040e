"""Reductions over any axes agree with numpy, whatever the layout of kept and reduced axes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.suites import long

from engine.native.harness import ON_TARGETS, check, quantized_input

pytestmark = ON_TARGETS
RNG = np.random.default_rng(2)


def floats(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"])
def test_every_set_of_axes(op: str) -> None:
    x = floats(3, 5, 7, 9)
    for count in range(1, 5):
        for axes in itertools.combinations(range(4), count):
            check(op, [x], {"axes": axes, "keep_dims": count % 2 == 0}, rtol=1e-5, atol=1e-5)


def test_long_rows_and_many_channels() -> None:
    check("ReduceMean", [floats(2, 1031)], {"axes": (1,)}, rtol=1e-5, atol=1e-6)
    check("ReduceMean", [floats(1, 9, 11, 300)], {"axes": (1, 2)}, rtol=1e-5, atol=1e-6)
    check("ReduceSum", [floats(1, 33, 1)], {"axes": (0, 2)}, rtol=1e-5, atol=1e-6)
    check("ReduceMean", [floats(1, 9, 300)], {"axes": (1,)}, clamp=(-0.1, 0.2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("ReduceSum", np.int32), ("ReduceMax", np.int32), long("ReduceMin", np.int64), long("ReduceProd", np.int64),
        ("ReduceSum", np.uint64), long("ReduceSum", np.uint32), ("ReduceMin", np.uint16), long("ReduceMax", np.int16),
    ],
)  # fmt: skip
def test_integers(op: str, dtype: type) -> None:
    x = RNG.integers(-9 if np.iinfo(dtype).min else 0, 9, (3, 35, 5)).astype(dtype)
    for axes in ((1,), (2,), (0, 2)):
        check(op, [x[:, :7]], {"axes": axes})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_extremes_of_fixed_point_are_those_of_the_stored_values(dtype: type) -> None:
    x = quantized_input(RNG.integers(0, 100, (3, 35, 40)).astype(dtype), 0.1, 5)
    for axes in ((1,), (2,)):
        check("ReduceMax", [x], {"axes": axes})
        check("ReduceMin", [x], {"axes": axes})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_reaches_the_extremes(dtype: type) -> None:
    x = floats(4, 40).astype(dtype)
    x[2, 17] = np.nan
    check("ReduceMax", [x], {"axes": (1,)})
    check("ReduceMin", [x], {"axes": (0,)})


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", long("ReduceProd")])
def test_sums_of_doubles_keep_the_digits_of_doubles(op: str) -> None:
    x = RNG.standard_normal((5, 7, 9))
    for axes in ((1,), (2,), (0, 2)):
        check(op, [x], {"axes": axes}, rtol=1e-13, atol=1e-14)
    check("CumulativeSum", [x], {"axis": 1}, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("exclusive", "reverse"), list(itertools.product((False, True), repeat=2)))
def test_running_sums(axis: int, exclusive: bool, reverse: bool) -> None:
    params = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    check("CumulativeSum", [floats(5, 7, 9)], params, rtol=1e-5, atol=1e-5)
    check("CumulativeSum", [RNG.integers(-9, 9, (5, 7, 9))], params)
