"""Elementwise kernels compute what numpy computes, for every type, broadcast and place."""

from __future__ import annotations

import numpy as np
import pytest
from support.suites import long, sampled

from engine.native.harness import ON_TARGETS, Result, check, make_step, quantized_input, run, static
from isthmus.engine.native.lowering.elementwise import KINDS
from isthmus.graph import DataType, Quantization
from isthmus.graph.ops.elementwise import BINARY_OPERATIONS, NEURON_OPERATIONS, UNARY_OPERATIONS

pytestmark = ON_TARGETS
RNG = np.random.default_rng(0)


def floats(*dims: int, scale: float = 3.0) -> np.ndarray:
    return (RNG.standard_normal(dims) * scale).astype(np.float32)


def integers(*dims: int, dtype: type = np.int32, low: int = -50, high: int = 50) -> np.ndarray:
    return RNG.integers(low, high, dims).astype(dtype)


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 1e-40, 88.6, -88.6, -103.0, 20.0], np.float32)


OF_ANY_REAL = [
    "ElementWiseAbs", "ElementWiseCeil", "ElementWiseExp", "ElementWiseFloor", "ElementWiseNeg", "ElementWiseRound",
    "ElementWiseSign", "Gelu", "HardSwish", "Sigmoid", "Tanh", "Elu", "ElementWiseSoftplus", "Erf", "Silu", "Relu",
    "Relu1", "Relu6", "ElementWiseAtan", "Asinh", "Sinh", "Cosh", "Tan", "Mish",
]  # fmt: skip


@pytest.mark.parametrize("op", sampled(OF_ANY_REAL, 3))
def test_unary_functions_of_any_real(op: str) -> None:
    check(op, [floats(3, 347)], rtol=2e-6, atol=1e-6, in_place=[0])


@pytest.mark.parametrize("op", ["ElementWiseLog", "ElementWiseRsqrt", "ElementWiseSquareRoot", "Acosh"])
def test_unary_functions_of_positive_reals(op: str) -> None:
    check(op, [np.abs(floats(1031)) + np.float32(1.001)], rtol=1e-6, in_place=[0])


def test_mish_keeps_its_digits_far_from_zero() -> None:
    check("Mish", [np.array([-80, -20, -1e-30, 0, 19.9, 20.1, 100, 3e38, np.inf, np.nan], np.float32)], rtol=2e-6)


@pytest.mark.parametrize("op", ["ElementWiseAsin", "Acos", "Atanh"])
def test_unary_functions_of_the_unit_interval(op: str) -> None:
    check(op, [np.linspace(-0.999, 0.999, 1031, dtype=np.float32)], rtol=2e-6)


@pytest.mark.parametrize("op", ["ElementWiseSin", "ElementWiseCos"])
def test_sine_and_cosine_near_and_far(op: str) -> None:
    check(op, [np.concatenate([floats(900, scale=2e4), floats(200)])], rtol=1e-6, atol=1e-6, in_place=[0])
    check(op, [np.array([1e20, np.inf, np.nan, 3.0], np.float32)], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "op",
    ["ElementWiseExp", "Sigmoid", "Tanh", "Erf", "ElementWiseLog", "ElementWiseSoftplus", "Relu", "ElementWiseAbs"],
)
def test_limits_zeros_and_nan(op: str) -> None:
    with np.errstate(all="ignore"):
        check(op, [SPECIAL], rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize(
    ("op", "function", "domain", "ulps"),
    [("ElementWiseExp", np.exp, (-87, 88), 1.5), ("Tanh", np.tanh, (-9, 9), 2.5),
     ("ElementWiseLog", np.log, (0, 9), 1.5), ("Sigmoid", lambda x: 1 / (1 + np.exp(-x)), (-80, 20), 2.5)],
)  # fmt: skip
def test_functions_are_within_a_few_units_in_the_last_place(op, function, domain, ulps) -> None:  # type: ignore[no-untyped-def]
    x = RNG.uniform(*domain, 20000).astype(np.float32)
    exact = function(x.astype(np.float64))
    step, arrays = make_step(op, [x])
    got = run(step, arrays)[0].astype(np.float64)
    spacing = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(got - exact) / spacing) <= ulps


def test_functions_picked_by_number() -> None:
    x = np.abs(floats(77)) % 1
    for number, name in enumerate(UNARY_OPERATIONS):
        if name != "ElementWiseNot":
            check("ElementWiseUnary", [x], {"operation": number}, rtol=2e-6)
    for number, name in enumerate(NEURON_OPERATIONS):
        limits = {"min_value": -0.5, "max_value": 0.25} if name == "ReluMinMax" else {}
        check("ElementWiseNeuron", [floats(77)], {"operation": number, **limits}, rtol=2e-6, atol=1e-6)
    check("ElementWiseBinary", [x, x[:1]], {"operation": BINARY_OPERATIONS.index("ElementWiseMaximum")})


@pytest.mark.parametrize("dtype", [np.int32, long(np.int64)])
def test_unary_functions_of_integers(dtype: type) -> None:
    for op in ("ElementWiseAbs", "ElementWiseNeg", "ElementWiseSign", "Relu", "Relu6"):
        check(op, [integers(5, 123, dtype=dtype)], in_place=[0])


def test_not_and_tests_for_nan_and_infinity() -> None:
    check("ElementWiseNot", [RNG.random(333) > 0.5], in_place=[0])
    check("IsNaN", [np.tile(SPECIAL, 7)])
    for negative, positive in ((True, True), (True, False), (False, True)):
        check("IsInf", [np.tile(SPECIAL, 7)], {"detect_negative": negative, "detect_positive": positive})


ARITHMETIC = ["Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum", "SquaredDifference"]
SHAPES = [
    ((3, 5, 7), (3, 5, 7)),
    ((2, 3, 600), (1,)),
    ((1,), (2, 3, 600)),
    ((4, 9, 33), (33,)),
    ((33,), (4, 9, 33)),
    ((4, 9, 33), (4, 1, 1)),
    ((4, 9, 1), (4, 9, 33)),
    ((5, 1, 7), (1, 6, 1)),
    ((2, 1, 3, 1, 5), (1, 4, 1, 6, 1)),
    ((), ()),
    ((2, 3, 1, 3, 1, 3, 1, 2), (1, 3, 2, 1, 2, 1, 2, 2)),
]


@pytest.mark.parametrize("op", sampled(ARITHMETIC, 3))
def test_float_arithmetic(op: str) -> None:
    a, b = floats(7, 311), floats(7, 311)
    check(f"ElementWise{op}", [a, b], in_place=[0, 1])
    check(f"ElementWise{op}", [a, b], clamp=(-0.5, 1.5), in_place=[0, 1])


@pytest.mark.parametrize("shapes", SHAPES)
def test_operands_broadcast_as_in_numpy(shapes: tuple) -> None:
    left, right = shapes
    check("ElementWiseSubtract", [floats(*left), floats(*right)])
    check("ElementWiseSubtract", [floats(*left), static(floats(*right))])
    check("ElementWiseLess", [integers(*left), integers(*right)])


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 31, 63])
def test_short_constant_rows_are_repeated(channels: int) -> None:
    check("ElementWiseMultiply", [floats(7, 43, channels), static(floats(channels))], in_place=[0])
    check("ElementWiseSubtract", [static(floats(channels)), floats(7, 43, channels)], in_place=[1])


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *sampled([pytest.param(op, np.int32) for op in (*ARITHMETIC, "FloorDiv", "Mod", "Fmod")], 3),
        ("Add", np.int64),
        long("Divide", np.int64),
    ],
)
def test_integer_arithmetic(op: str, dtype: type) -> None:
    b = integers(7, 111, dtype=dtype)
    b[b == 0] = 3
    check(f"ElementWise{op}", [integers(7, 111, dtype=dtype), b], in_place=[0])


@pytest.mark.parametrize("dtype", [np.int8, *map(long, (np.uint8, np.int16, np.uint16, np.uint32, np.uint64))])
def test_arithmetic_of_other_integers_wraps_as_in_numpy(dtype: type) -> None:
    limits = np.iinfo(dtype)
    a, b = (RNG.integers(limits.min, limits.max, (7, 111), dtype, endpoint=True) for _ in range(2))
    for op in ("Add", "Multiply", "Maximum", "Less"):
        check(f"ElementWise{op}", [a, b])


@pytest.mark.parametrize(
    ("op", "dtype"), [("Divide", np.uint8), long("Mod", np.int8), long("Fmod", np.int8), long("Divide", np.uint32)]
)
def test_division_of_other_integers(op: str, dtype: type) -> None:
    limits = np.iinfo(dtype)
    a, b = (RNG.integers(limits.min, limits.max, 777, dtype, endpoint=True) for _ in range(2))
    b[b == 0] = 3
    check(f"ElementWise{op}", [a, b])


INTEGERS = [
    pytest.param("Abs", np.uint8), pytest.param("Abs", np.int8), pytest.param("Neg", np.int8),
    pytest.param("Sign", np.int16),
]  # fmt: skip


@pytest.mark.parametrize(("op", "dtype"), sampled(INTEGERS, 2))
def test_functions_of_integers(op: str, dtype: type) -> None:
    check(f"ElementWise{op}", [integers(301, dtype=dtype, low=-50 if np.iinfo(dtype).min else 0)], in_place=[0])


def test_a_cast_keeps_the_stored_numbers_of_fixed_point_tensors() -> None:
    x = np.arange(-128, 128, dtype=np.int8)
    widened = check("Cast", [quantized_input(x, 0.5, 3)], results=[Result((256,), DataType.INT_32)])[0]
    np.testing.assert_array_equal(widened, x)
    other = Result((256,), DataType.SFIXED_POINT_8, Quantization.per_tensor(0.25, 7))
    np.testing.assert_array_equal(check("Cast", [quantized_input(x, 0.5, 3)], results=[other])[0], x)


def test_integer_division_by_zero_and_overflow_do_not_trap() -> None:
    a = np.array([5, np.iinfo(np.int32).min, -7], np.int32)
    b = np.array([0, -1, 0], np.int32)
    for op in ("Divide", "FloorDiv", "Mod", "Fmod"):
        step, arrays = make_step(f"ElementWise{op}", [a, b])
        run(step, arrays)


@pytest.mark.parametrize("op", sampled(["FloorDiv", "Mod", "Fmod", "Power"], 3))
def test_float_division_and_powers(op: str) -> None:
    check(f"ElementWise{op}", [np.abs(floats(257)), np.abs(floats(257)) + np.float32(0.1)], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("exponent", [2.0, 0.5, -0.5, -1.0, 3.0])
def test_powers_with_a_constant_exponent(exponent: float) -> None:
    check("ElementWisePower", [np.abs(floats(257)), static(np.float32([exponent]))], rtol=2e-6, in_place=[0])


def test_integer_powers() -> None:
    check("ElementWisePower", [integers(99, low=-5, high=5), integers(99, low=0, high=6)])


@pytest.mark.parametrize("op", sampled(["Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"], 3))
def test_comparisons(op: str) -> None:
    check(f"ElementWise{op}", [floats(9, 70).round(), floats(70).round()])


def test_comparisons_of_integers_and_bools() -> None:
    a, b = (integers(9, 70, dtype=np.int64, high=-45) for _ in range(2))
    check("ElementWiseGreater", [a, b])
    check("ElementWiseEqual", [a, b])
    check("ElementWiseNotEqual", [a > b, a < b])


@pytest.mark.parametrize("op", ["And", long("Or"), long("Xor")])
def test_logic(op: str) -> None:
    check(f"ElementWise{op}", [RNG.random((9, 70)) > 0.5, RNG.random((9, 70)) > 0.5], in_place=[0, 1])


@pytest.mark.parametrize(
    "dims",
    [((7, 50), (7, 50), (7, 50)), ((7, 50), (1,), (7, 50)), ((7, 50), (7, 50), (1,)), ((1, 50), (7, 1), (1,)),
     ((7, 1), (7, 50), (50,)), ((1,), (3, 4), (3, 4))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_select_broadcasts_three_operands(dims: tuple, dtype: type) -> None:
    condition, yes, no = dims
    check(
        "ElementWiseSelect",
        [RNG.random(condition) > 0.5, integers(*yes, dtype=dtype, low=0), integers(*no, dtype=dtype, low=0)],
    )


def test_prelu_with_one_slope_a_slope_a_channel_and_a_slope_an_element() -> None:
    x = floats(2, 5, 9, 13)
    for slope in (floats(1), floats(13), floats(1, 1, 13), floats(5, 9, 13)):
        check("Prelu", [x, static(slope)], in_place=[0])
        check("Prelu", [x, slope], in_place=[0])


@pytest.mark.parametrize("goal", sampled(KINDS, 3))
def test_casts_of_floats(goal: DataType) -> None:
    check("Cast", [(RNG.random(301) * 100).astype(np.float32)], results=[Result((301,), goal)])


@pytest.mark.parametrize("source", [np.int32, *map(long, (np.int64, np.bool_, np.uint8))])
@pytest.mark.parametrize("goal", [DataType.FLOAT_32, DataType.INT_64, DataType.BOOL_8])
def test_casts_of_integers(source: type, goal: DataType) -> None:
    check("Cast", [(RNG.random(301) * 3).astype(source)], results=[Result((301,), goal)])


def test_casts_of_what_does_not_fit_saturate() -> None:
    x = np.array([1e20, -1e20, np.nan, np.inf, -3.99, 300.0], np.float32)
    step, arrays = make_step("Cast", [x], results=[Result((6,), DataType.INT_32)])
    top, bottom = np.iinfo(np.int32).max, np.iinfo(np.int32).min
    np.testing.assert_array_equal(run(step, arrays)[0], [top, bottom, 0, top, -3, 300])
    step, arrays = make_step("Cast", [x], results=[Result((6,), DataType.UINT_8)])
    np.testing.assert_array_equal(run(step, arrays)[0], [255, 0, 0, 255, 0, 255])


def test_empty_tensors_are_left_alone() -> None:
    check("ElementWiseAdd", [np.zeros((0, 3), np.float32), np.zeros(3, np.float32)])


def doubles(*dims: int, scale: float = 3.0) -> np.ndarray:
    return RNG.standard_normal(dims) * scale


OF_DOUBLES = [
    *(f"ElementWise{name}" for name in ("Abs", "Atan", "Ceil", "Cos", "Exp", "Floor", "Neg", "Round", "Sign", "Sin")),
    "Tan", "Sinh", "Cosh", "Asinh", "Erf", "Sigmoid", "Tanh",
]  # fmt: skip


@pytest.mark.parametrize("op", sampled(OF_DOUBLES, 6))
def test_functions_of_doubles_keep_the_digits_of_doubles(op: str) -> None:
    check(op, [doubles(3, 171)], rtol=1e-14, atol=1e-15, in_place=[0])


@pytest.mark.parametrize("op", [long("ElementWiseRsqrt"), "ElementWiseSquareRoot", long("ElementWiseLog")])
def test_functions_of_positive_doubles(op: str) -> None:
    check(op, [np.abs(doubles(171)) + 1.001], rtol=1e-14)


@pytest.mark.parametrize("op", sampled([*ARITHMETIC, "FloorDiv", "Mod", "Fmod", "Power"], 5))
def test_arithmetic_of_doubles(op: str) -> None:
    left, right = (np.abs(doubles(7, 111)) + 0.1 for _ in range(2))
    check(f"ElementWise{op}", [left, right[:1]], rtol=1e-14)


def test_doubles_that_nothing_limits_are_written() -> None:
    """Infinite limits need no comparison, but the result must still be written: a ReluMinMax once emitted nothing."""
    x = np.array([1.5, -np.inf, np.nan, 3e300])
    check("ReluMinMax", [x], {"min_value": -np.inf, "max_value": np.inf}, in_place=(0,))


def test_comparisons_limits_and_nan_of_doubles() -> None:
    special = SPECIAL.astype(np.float64)
    check("IsNaN", [special])
    check("IsInf", [special], {"detect_negative": False, "detect_positive": True})
    check("ElementWiseMaximum", [special, special[::-1].copy()])
    check("ElementWiseLess", [special, special[::-1].copy()])
    check("Relu6", [doubles(77)])


@pytest.mark.parametrize("op", ["Divide", long("FloorDiv"), long("Mod"), long("Fmod")])
def test_division_of_the_largest_unsigned_integers(op: str) -> None:
    a, b = (RNG.integers(0, 2**64 - 1, 301, np.uint64, endpoint=True) for _ in range(2))
    b[:99] >>= np.uint64(40)
    check(f"ElementWise{op}", [a, b + np.uint64(b[0] == 0)])


def test_powers_of_unsigned_integers_wrap() -> None:
    check("ElementWisePower", [integers(99, dtype=np.uint64, low=0, high=9), integers(99, dtype=np.uint64, low=0)])


@pytest.mark.parametrize("op", ["BitwiseAnd", long("BitwiseOr"), long("BitwiseXor")])
@pytest.mark.parametrize("dtype", [np.int8, *map(long, (np.uint16, np.int32, np.uint64))])
def test_functions_of_bits(op: str, dtype: type) -> None:
    limits = np.iinfo(dtype)
    a, b = (RNG.integers(limits.min, limits.max, (7, 33), dtype, endpoint=True) for _ in range(2))
    check(op, [a, b[:, :1]])
    check("BitwiseNot", [a], in_place=[0])


@pytest.mark.parametrize("op", ["BitShiftLeft", "BitShiftRight"])
@pytest.mark.parametrize("dtype", [np.uint8, *map(long, (np.uint16, np.uint32, np.uint64))])
def test_shifts_beyond_the_width_leave_nothing(op: str, dtype: type) -> None:
    a = RNG.integers(0, np.iinfo(dtype).max, 300, dtype, endpoint=True)
    check(op, [a, RNG.integers(0, 90, 300).astype(dtype)])
