"""Floats of 16 bits: stored as such, computed in float32, rounded once. The same bits on every target."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.suites import long, sampled

from engine.native.harness import ON_TARGETS, Operand, Result, check, expected, make_step, run, targets
from isthmus.graph import DataType
from isthmus.graph.datatypes import from_bfloat16, to_bfloat16

pytestmark = ON_TARGETS
ALL_BITS = np.arange(1 << 16, dtype=np.uint16)
HALVES = (DataType.FLOAT_16, DataType.BFLOAT_16)
BINARY = ("ElementWiseAdd", "ElementWiseMultiply", "ElementWiseDivide", "ElementWiseMaximum")


def in_halves(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """List each case in both types; one in three is for `make test`, as kernels of each are compiled."""
    return sampled([pytest.param(*case, dtype) for case, dtype in product(cases, HALVES)], 3)


def half(values: np.ndarray, dtype: DataType, static: bool = False) -> Operand:
    """An operand with these numbers, rounded to the type."""
    return Operand(dtype.encode(np.asarray(values)), static, dtype=dtype)


def around(bits: np.ndarray, shift: int) -> np.ndarray:
    """The float32 numbers with these upper bits, those halfway to the next, and the neighbours of both."""
    upper = bits.astype(np.uint32) << np.uint32(shift)
    middle = np.uint32(1 << (shift - 1))
    return np.concatenate([upper + np.uint32(offset) for offset in (0, 1, middle - 1, middle, middle + 1)])


def test_every_float16_becomes_its_float32() -> None:
    check("Cast", [Operand(ALL_BITS.view(np.float16))], None, [Result(dtype=DataType.FLOAT_32)], rtol=0, atol=0)


def test_every_bfloat16_becomes_its_float32() -> None:
    x = Operand(ALL_BITS, dtype=DataType.BFLOAT_16)
    got = check("Cast", [x], None, [Result(dtype=DataType.FLOAT_32)], rtol=0, atol=0)
    np.testing.assert_array_equal(got[0].view(np.uint32), ALL_BITS.astype(np.uint32) << 16)


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_is_to_nearest_ties_to_even_on_every_target(dtype: DataType) -> None:
    """Float32 numbers on, beside and halfway between the numbers of 16 bits, infinities, NaN and denormals too."""
    if dtype is DataType.FLOAT_16:
        exact = ALL_BITS.view(np.float16).astype(np.float32).view(np.uint32)
        steps = np.array([0, 1, -1, 1 << 12, (1 << 12) - 1, (1 << 12) + 1], np.int64)
        bits = (exact.astype(np.int64)[:, None] + steps).astype(np.uint32).reshape(-1)
        # Halfway between denormal numbers, and just beside.
        middles = (np.arange(2048) + 0.5) * 2.0**-24
        small = np.concatenate([middles, np.nextafter(middles, 1), np.nextafter(middles, 0)]).astype(np.float32)
        numbers = np.concatenate([bits.view(np.float32), small, -small, np.float32([65519.99, 65520, 1e30, np.inf])])
        numbers = numbers[~np.isnan(numbers)]
    else:
        bits = around(ALL_BITS, 16)
        numbers = bits.view(np.float32)
        numbers = numbers[~np.isnan(numbers)]
    step, arrays = make_step("Cast", [numbers], None, [Result(dtype=dtype)])
    for target in targets():
        got = run(step, arrays, target)[0]
        np.testing.assert_array_equal(got.view(np.uint16), dtype.encode(numbers).view(np.uint16), err_msg=target.name)


@pytest.mark.parametrize("dtype", HALVES)
def test_nan_stays_nan_with_the_same_bits_on_every_target(dtype: DataType) -> None:
    bits = np.uint32([0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x7F801000, 0xFF812345])
    step, arrays = make_step("Cast", [bits.view(np.float32)], None, [Result(dtype=dtype)])
    results = [run(step, arrays, target)[0].view(np.uint16) for target in targets()]
    assert np.isnan(dtype.decode(results[0].view(dtype.numpy))).all()
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_a_sum_beyond_65504_is_infinite() -> None:
    got = check("ElementWiseAdd", [np.float16([65504, 65504, -65504]), np.float16([8, 16, -16])], rtol=0, atol=0)
    np.testing.assert_array_equal(got[0], np.float16([65504, np.inf, -np.inf]))


@pytest.mark.parametrize(("op", "dtype"), in_halves((op,) for op in BINARY))
def test_functions_of_two_elements_are_rounded_once(op: str, dtype: DataType) -> None:
    rng = np.random.default_rng(5)
    operands = [half(rng.normal(0, 3, (7, 33)), dtype), half(rng.normal(0, 3, (33,)), dtype)]
    check(op, operands, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_numpy_reference_computes_in_float32(dtype: DataType) -> None:
    """1 + 2^-11 - 1: rounded after each of two operations it would be 0, the sum of a whole product is not."""
    encode = {DataType.FLOAT_16: lambda v: v.astype(np.float16), DataType.BFLOAT_16: to_bfloat16}[dtype]
    decode = {DataType.FLOAT_16: lambda v: v.astype(np.float32), DataType.BFLOAT_16: from_bfloat16}[dtype]
    small = 2.0**-14
    x, w = half(np.array([[1, small, -1]]), dtype), half(np.ones((3, 1)), dtype, static=True)
    got = check("MatMul", [x, w], {"transpose_in0": False, "transpose_in1": False}, rtol=0, atol=0)
    np.testing.assert_array_equal(decode(got[0]), decode(encode(np.float32([[small]]))))


def same_as_float32(
    dtype: DataType, op: str, operands: list, params: dict | None = None, results: list | None = None, threads: int = 2
) -> None:
    """Run in a type of 16 bits on every target, and compare with the float32 result of that target, rounded once.

    Operands are float32 arrays, or pairs of one and whether it is a constant. Float32 results of the same numbers have
    the same bits before they are rounded: kernels add up in one order, whatever the type.
    """
    pairs = [x if isinstance(x, tuple) else (x, False) for x in operands]
    stored = [None if x is None else half(x, dtype, s) if x.dtype.kind == "f" else Operand(x, s) for x, s in pairs]
    wide = [o if o is None or o.dtype is None else Operand(dtype.decode(o.array), o.static) for o in stored]
    results16 = None if results is None else [Result(r.dims, dtype) for r in results]
    step, arrays = make_step(op, stored, params, results16)
    step32, arrays32 = make_step(op, wide, params, results)
    for target in targets():
        reference = run(step32, arrays32, target, 1)
        for count, guard in ((1, "after"), (threads, "before")):
            got = run(step, arrays, target, count, guard)  # type: ignore[arg-type]
            for index, (a, b) in enumerate(zip(got, reference, strict=True)):
                wanted = dtype.encode(b) if step.outputs[index].dtype is dtype else b
                np.testing.assert_array_equal(
                    a.view(np.uint16) if a.dtype.itemsize == 2 else a,
                    wanted.view(np.uint16) if a.dtype.itemsize == 2 else wanted,
                    err_msg=f"{op} in {dtype.name} on {target.name}, {count} threads",
                )


def normal(*dims: int) -> np.ndarray:
    return np.random.default_rng(sum(dims)).standard_normal(dims).astype(np.float32)


def constant(*dims: int) -> tuple[np.ndarray, bool]:
    return normal(*dims), True


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 40, 70), (5, 33, 17), (30, 600, 50), (64, 7, 100)])
def test_products_with_constants_have_the_bits_of_float32(rows: int, depth: int, columns: int, dtype: DataType) -> None:
    same_as_float32(dtype, "MatMul", [normal(rows, depth), constant(depth, columns)])
    same_as_float32(dtype, "FullyConnected", [normal(rows, depth), constant(columns, depth), constant(columns)])


@pytest.mark.parametrize("dtype", [DataType.FLOAT_16, long(DataType.BFLOAT_16)])
@pytest.mark.parametrize("flipped", [(False, False), (False, True), (True, False)])
def test_products_of_computed_matrices_have_the_bits_of_float32(flipped: tuple[bool, bool], dtype: DataType) -> None:
    left, right = (3, 20, 37), (3, 37, 45)
    if flipped[0]:
        left = (3, 37, 20)
    if flipped[1]:
        right = (3, 45, 37)
    params = {"transpose_in0": flipped[0], "transpose_in1": flipped[1]}
    same_as_float32(dtype, "MatMul", [normal(*left), normal(*right)], params)
    same_as_float32(dtype, "MatMul", [normal(*left), normal(*right), normal(45)], params)


@pytest.mark.parametrize("dtype", [DataType.FLOAT_16, long(DataType.BFLOAT_16)])
@pytest.mark.parametrize(
    ("size", "channels", "filters", "kernel", "stride", "group"),
    [
        ((9, 11), 3, 8, (3, 3), (2, 2), 1),
        long((6, 7), 40, 70, (3, 3), (1, 1), 1),
        ((6, 7), 40, 33, (1, 1), (1, 1), 1),
        long((8, 5), 12, 24, (3, 2), (1, 1), 3),
        long((30, 30), 4, 20, (5, 5), (1, 1), 1),
    ],
)
def test_convolutions_have_the_bits_of_float32(
    size: tuple[int, int],
    channels: int,
    filters: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    group: int,
    dtype: DataType,
) -> None:
    params = {"stride": stride, "pad_amount": [[1, 1], [0, 1]], "dilation": [1, 1], "group": group}
    weights = constant(*kernel, channels // group, filters)
    same_as_float32(dtype, "Conv2d", [normal(2, *size, channels), weights, constant(filters)], params)


@pytest.mark.parametrize("dtype", [DataType.FLOAT_16, long(DataType.BFLOAT_16)])
@pytest.mark.parametrize(("kernel", "stride", "width"), [(3, 1, 9), (3, 2, 11), (5, 1, 12), (2, 1, 6), (3, 1, 3)])
def test_depth_wise_convolutions_have_the_bits_of_float32(
    kernel: int, stride: int, width: int, dtype: DataType
) -> None:
    params = {"stride": [stride, stride], "pad_amount": [[1, 1], [1, 0]], "dilation": [1, 1]}
    weights = constant(kernel, kernel, 1, 37)
    same_as_float32(dtype, "DepthWiseConv2d", [normal(1, 8, width, 37), weights, constant(37)], params)


@pytest.mark.parametrize("dtype", [DataType.FLOAT_16, long(DataType.BFLOAT_16)])
def test_transposed_convolutions_have_the_bits_of_float32(dtype: DataType) -> None:
    params = {"stride": [2, 2], "pad_amount": [[1, 1], [1, 1]], "output_padding": [0, 0], "group": 1}
    same_as_float32(dtype, "TransposeConv2d", [normal(1, 5, 6, 9), constant(4, 4, 9, 18), constant(18)], params)


POOL = {"filter_size": [3, 2], "stride": [2, 1], "pad_amount": [[1, 0], [0, 1]]}
WHOLE = {"filter_size": [9, 7], "stride": [9, 7], "pad_amount": [[0, 0], [0, 0]]}
KERNELS = [
    ("PoolMax2d", (2, 9, 8, 21), POOL),
    ("PoolAvg2d", (2, 9, 8, 21), POOL),
    ("L2Pool2d", (1, 6, 6, 5), {"filter_size": [2, 2], "stride": [2, 2], "pad_amount": [[0, 0], [0, 0]]}),
    ("PoolAvg2d", (2, 9, 7, 150), WHOLE),
    ("PoolMax2d", (2, 9, 7, 150), WHOLE),
    ("ReduceSum", (5, 40, 9), {"axes": [1]}),
    ("ReduceMean", (5, 40, 150), {"axes": [1]}),
    ("ReduceMax", (5, 40, 9), {"axes": [1]}),
    ("ReduceMin", (5, 41), {"axes": [1]}),
    ("ReduceProd", (5, 3, 9), {"axes": [1]}),
    ("CumulativeSum", (3, 20, 4), {"axis": 1}),
    ("Batchnorm", (2, 5, 5, 70), {}),
    ("Batchnorm", (2, 5, 5, 7), {}),
    ("ResizeBilinear", (1, 5, 7, 19), {"align_corners": False, "half_pixel_centers": True}),
    ("ElementWiseSin", (300,), {}),
    ("Gelu", (300,), {}),
    ("ReluMinMax", (300,), {"min_value": -0.5, "max_value": 0.7}),
    ("Transpose", (4, 5, 6), {"perm": [2, 0, 1]}),
]


@pytest.mark.parametrize(("op", "dims", "params", "dtype"), in_halves(KERNELS))
def test_kernels_have_the_bits_of_float32(op: str, dims: tuple[int, ...], params: dict, dtype: DataType) -> None:
    """Each of these sums in one order, whatever the type."""
    operands: list = [normal(*dims)]
    if op == "Batchnorm":
        operands += [constant(dims[-1]), constant(dims[-1])]
    results = [Result((1, 10, 14, 19))] if op == "ResizeBilinear" else None
    same_as_float32(dtype, op, operands, params, results)


NORMALIZATIONS = [
    ("Softmax", (7, 50), {}),
    ("Softmax", (3, 9, 40), {"axis": 1}),
    ("LogSoftmax", (7, 50), {"axis": 1}),
    ("LogSoftmax", (3, 9, 40), {"axis": 1}),
    ("LayerNorm", (7, 50), {"axes": [1], "epsilon": 1e-5}),
    ("RmsNorm", (7, 50), {"axes": [1], "epsilon": 1e-5}),
    ("L2Norm", (3, 20, 30), {"axes": [1]}),
    ("InstanceNorm", (2, 6, 6, 20), {"epsilon": 1e-5}),
    ("GroupNorm", (2, 6, 6, 20), {"epsilon": 1e-5, "group": 4}),
    ("ReduceSum", (5, 400), {"axes": [1]}),
    ("Lrn", (1, 3, 3, 20), {"radius": 2, "alpha": 0.5, "beta": 0.75, "bias": 1.0}),
]


@pytest.mark.parametrize(("op", "dims", "params", "dtype"), in_halves(NORMALIZATIONS))
def test_normalizations_are_within_one_step_of_the_reference(
    op: str, dims: tuple[int, ...], params: dict, dtype: DataType
) -> None:
    operands: list = [half(normal(*dims), dtype)]
    if op in ("LayerNorm", "RmsNorm", "InstanceNorm", "GroupNorm"):
        operands += [half(normal(dims[-1]), dtype, static=True) for _ in range(1 + (op != "RmsNorm"))]
    step, arrays = make_step(op, operands, params)
    wanted = dtype.decode(expected(step, arrays)[0])
    precision = 2.0**-10 if dtype is DataType.FLOAT_16 else 2.0**-7
    for target in targets():
        for threads in (1, 2):
            got = dtype.decode(run(step, arrays, target, threads)[0])
            np.testing.assert_allclose(got, wanted, rtol=precision, atol=1e-6, err_msg=f"{target.name}, {threads}")
