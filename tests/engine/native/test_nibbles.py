"""Products with 4-bit weights read them packed, and give exactly the results of the same weights in whole bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.suites import only, sampled

from engine.native import harness
from engine.native.harness import Operand, Result
from isthmus.engine.native.lower import lowering_of
from isthmus.engine.native.target import TARGETS, Target, host, runnable
from isthmus.graph import DataType, Quantization, Tensor, TensorType
from isthmus.prepare.schedule import Step

ON_TARGETS = pytest.mark.parametrize(
    "target", only((host(),), [target for target in TARGETS if runnable(target)]), ids=lambda target: target.name
)
NO_PADDING = {"stride": (1, 1), "pad_amount": ((0, 0), (0, 0)), "dilation": (1, 1), "group": 1}
PADDING = NO_PADDING | {"pad_amount": ((1, 2), (0, 1))}
CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "points": ("Conv2d", (1, 5, 7, 16), (1, 1, 16, 50), NO_PADDING),
    "points of an odd depth": ("Conv2d", (1, 4, 4, 60), (1, 1, 60, 20), NO_PADDING),
    "windows": ("Conv2d", (2, 6, 9, 16), (3, 3, 16, 33), PADDING),
    "windows far apart": ("Conv2d", (1, 9, 9, 24), (3, 2, 24, 17), PADDING | {"stride": (2, 1), "dilation": (2, 3)}),
    "groups": ("Conv2d", (1, 5, 6, 32), (3, 3, 16, 40), PADDING | {"group": 2}),
    "rows": ("FullyConnected", (9, 64), (70, 64), {}),
    "one row": ("FullyConnected", (1, 96), (130, 96), {}),
    "a matrix": ("MatMul", (13, 32), (32, 40), {}),
    "a transposed matrix": ("MatMul", (13, 32), (40, 32), {"transpose_in1": True}),
}


def column_axis(op: str, rank: int, params: dict[str, Any]) -> int:
    """The axis of the weights that has the output channels."""
    return 0 if op == "FullyConnected" or params.get("transpose_in1") else rank - 1


def weights_of(op: str, dims: tuple[int, ...], params: dict[str, Any], kind: type, by_channel: bool) -> Operand:
    """Random 4-bit weights."""
    rng = np.random.default_rng(sum(dims))
    zero = 8 if kind is np.uint8 else 0
    elements = (rng.integers(-8, 8, dims) + zero).astype(kind)
    axis = column_axis(op, len(dims), params) if by_channel else None
    scales = rng.uniform(0.01, 0.03, 1 if axis is None else dims[axis]).astype(np.float32)
    quantization = Quantization(tuple(scales.tolist()), (-zero,) * len(scales), axis, bits=4)
    return Operand(elements, True, quantization)


def step_of(case: str, x: Operand, weights: Operand, result: Quantization | None) -> tuple[Step, list[Any]]:
    """The step of a case, with a result of bytes or of floats."""
    op, _, _, params = CASES[case]
    dtype = DataType.FLOAT_32 if result is None else DataType.fixed_point(x.array.dtype)
    return harness.make_step(op, [x, weights], params, [Result(None, dtype, result)])


def bytes_of(dims: tuple[int, ...], kind: type) -> Operand:
    """Random bytes with a zero point that is not in the middle."""
    info = np.iinfo(kind)
    elements = np.random.default_rng(3).integers(info.min, info.max + 1, dims).astype(kind)
    return harness.quantized_input(elements, 0.04, 17)


def in_whole_bytes(step: Step) -> Step:
    """The same step with weights that do not say that they have 4 bits."""
    weights = step.inputs[1]
    assert weights is not None
    assert weights.quantization is not None
    plain = Tensor(
        weights.name, TensorType.STATIC, weights.dtype, weights.dims, replace(weights.quantization, bits=0),
        weights.data,
    )  # fmt: skip
    return Step(step.op, step.name, [step.inputs[0], plain, *step.inputs[2:]], step.outputs, step.params, step.clamp)


def compare_with_whole_bytes(step: Step, arrays: list[Any], target: Target) -> None:
    """Check that a step computes the same from nibbles as from whole bytes."""
    machine = harness.bind(step, target)
    assert all("nibbles" in kernel for kernel in machine.kernels), machine.kernels
    (expected,) = harness.run(in_whole_bytes(step), arrays, target)
    for threads, guard in ((1, "after"), (2, "before")):
        got = harness.run(step, arrays, target, threads, guard)  # type: ignore[arg-type]
        np.testing.assert_array_equal(got[0], expected)


def check_bytes(case: str, target: Target, kind: type, weight_kind: type, by_channel: bool) -> None:
    """Compare with whole bytes: equal results from half the weights."""
    op, dims, weight_dims, params = CASES[case]
    x, weights = bytes_of(dims, kind), weights_of(op, weight_dims, params, weight_kind, by_channel)
    step, arrays = step_of(case, x, weights, Quantization.per_tensor(0.3, -5))
    compare_with_whole_bytes(step, arrays, target)


@ON_TARGETS
@pytest.mark.parametrize("case", sampled(CASES, 3))
def test_packed_weights_give_the_results_of_whole_bytes(case: str, target: Target) -> None:
    check_bytes(case, target, np.uint8, np.int8, True)


@ON_TARGETS
@pytest.mark.parametrize(
    ("kind", "weight_kind", "by_channel"), [(np.int8, np.int8, False), (np.int8, np.uint8, True)], ids=str
)
def test_bytes_and_weights_may_be_signed_or_unsigned(
    kind: type, weight_kind: type, by_channel: bool, target: Target
) -> None:
    check_bytes("windows", target, kind, weight_kind, by_channel)
    check_bytes("rows", target, kind, weight_kind, by_channel)


@ON_TARGETS
@pytest.mark.parametrize("case", sampled(["windows", "rows", "one row"], 3))
def test_floats_are_multiplied_by_packed_weights_like_by_whole_bytes(case: str, target: Target) -> None:
    op, dims, weight_dims, params = CASES[case]
    weights = weights_of(op, weight_dims, params, np.int8, True)
    x = Operand(np.random.default_rng(4).standard_normal(dims).astype(np.float32))
    step, arrays = step_of(case, x, weights, None)
    assert any("convolve_to_float" in kernel and "nibbles" in kernel for kernel in harness.bind(step, target).kernels)
    expected = harness.run(in_whole_bytes(step), arrays, target)
    for threads in (1, 2):
        np.testing.assert_array_equal(harness.run(step, arrays, target, threads)[0], expected[0])


DEPTHWISE = {
    "one block": (1, 7, 9, 64, 3), "several blocks": (2, 6, 8, 83, 3), "few channels": (1, 5, 6, 5, 5),
}  # fmt: skip
"""Batch, height, width, channels and the size of the kernel."""


@ON_TARGETS
@pytest.mark.parametrize("case", DEPTHWISE)
def test_packed_weights_of_single_channels_give_the_results_of_whole_bytes(case: str, target: Target) -> None:
    *dims, size = DEPTHWISE[case]
    x = bytes_of(tuple(dims), np.uint8)
    weights = weights_of("DepthWiseConv2d", (size, size, 1, dims[3]), {}, np.int8, True)
    params = {"stride": (1, 1), "pad_amount": ((1, 1), (1, 0)), "dilation": (1, 1)}
    result = Result(None, DataType.UFIXED_POINT_8, Quantization.per_tensor(0.1, 100))
    step, arrays = harness.make_step("DepthWiseConv2d", [x, weights], params, [result])
    compare_with_whole_bytes(step, arrays, target)


@pytest.mark.parametrize("op", ["FullyConnected", "DepthWiseConv2d"])
def test_sums_that_would_not_fit_as_multiples_use_whole_bytes(op: str) -> None:
    dims, weight_dims, params = ((3, 64), (20, 64), {})
    if op == "DepthWiseConv2d":
        params = {"stride": (1, 1), "pad_amount": ((1, 1), (1, 1)), "dilation": (1, 1)}
        dims, weight_dims = (1, 6, 6, 20), (3, 3, 1, 20)
    weights = weights_of(op, weight_dims, params, np.int8, False)
    assert weights.quantization is not None
    unit = Quantization.per_tensor(float(np.float32(0.04) * np.float32(weights.quantization.scale)))
    bias = Operand(np.full(20, 1 << 28, np.int32), True, unit)
    result = Result(None, DataType.UFIXED_POINT_8, Quantization.per_tensor(0.04 * weights.quantization.scale * 2e6, 3))
    step, arrays = harness.make_step(op, [bytes_of(dims, np.uint8), weights, bias], params, [result])
    kernels = harness.bind(step).kernels
    assert host().dot == "none" or not any("nibbles" in kernel for kernel in kernels)
    np.testing.assert_array_equal(harness.run(step, arrays)[0], harness.expected(step, arrays)[0])


@pytest.mark.parametrize(
    ("dims", "zero"), [((3, 3, 3, 8), 0), ((1, 1, 4, 8), 0), ((1, 1, 16, 8), 3)], ids=["odd", "short", "off centre"]
)
def test_weights_of_odd_or_short_rows_or_with_a_zero_point_become_bytes(dims: tuple[int, ...], zero: int) -> None:
    quantization = Quantization((0.02,), (-zero,), bits=4)
    weights = Operand(np.random.default_rng(5).integers(0, 8, dims).astype(np.uint8), True, quantization)
    x = bytes_of((1, 6, 6, dims[2]), np.uint8)
    step, arrays = harness.make_step(
        "Conv2d", [x, weights], NO_PADDING, [Result(None, DataType.UFIXED_POINT_8, Quantization.per_tensor(0.3, 2))]
    )
    machine = harness.bind(step)
    assert not any("nibbles" in kernel for kernel in machine.kernels)
    np.testing.assert_array_equal(harness.run(step, arrays)[0], harness.expected(step, arrays)[0])
    assert lowering_of(step) is lowering_of(in_whole_bytes(step))


FLOAT_CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    **CASES,
    "one row of an odd depth": ("FullyConnected", (1, 45), (70, 45), {}),
    "deep rows": ("FullyConnected", (5, 2100), (20, 2100), {}),
    "transposed": (
        "TransposeConv2d", (1, 5, 4, 16), (3, 3, 16, 20), {"stride": (2, 2), "pad_amount": ((1, 1), (0, 1))}
    ),
}  # fmt: skip


def float_step(case: str, kind: type, encoding: str) -> tuple[Step, list[Any]]:
    """A step on floats, with weights that were dequantized from 4-bit ones."""
    op, dims, weight_dims, params = FLOAT_CASES[case]
    rng = np.random.default_rng(6)
    column = column_axis(op, len(weight_dims), params)
    depth = len(weight_dims) - 2 if column == len(weight_dims) - 1 else len(weight_dims) - 1
    axis, block = {"tensor": (None, 0), "channel": (column, 0), "block": (depth, 16)}[encoding]
    shape = Quantization((1.0,), (0,), axis, block=block).grid(weight_dims)
    zeros = rng.integers(-8, 8, shape).reshape(-1) + (8 if kind is np.uint8 else 0)
    scales = rng.uniform(0.01, 0.03, zeros.size).astype(np.float32)
    quantization = Quantization(tuple(scales.tolist()), tuple((-zeros).tolist()), axis, bits=4, block=block)
    elements = rng.integers(*((0, 16) if kind is np.uint8 else (-8, 8)), weight_dims).astype(kind)
    bias = rng.standard_normal(weight_dims[column]).astype(np.float32)
    x = rng.standard_normal(dims).astype(np.float32)
    inputs = [x, harness.dequantized_constant(elements, quantization), harness.static(bias)][
        : 2 if op == "MatMul" else 3
    ]
    return harness.make_step(op, inputs, params, clamp=(-1.5, 2.5))


@ON_TARGETS
@pytest.mark.parametrize("encoding", ["channel", "block"])
@pytest.mark.parametrize("case", sampled(FLOAT_CASES, 4))
def test_floats_times_packed_weights_have_the_bits_of_dequantized_ones(
    case: str, encoding: str, target: Target
) -> None:
    if encoding == "block" and case == "windows far apart":
        # Blocks of 16 do not divide 24 channels.
        encoding = "tensor"
    kind = np.int8 if encoding == "channel" else np.uint8
    step, arrays = float_step(case, kind, encoding)
    assert any("nibbles" in kernel for kernel in harness.bind(step, target).kernels)
    got = [harness.run(step, arrays, target, threads, guard) for threads, guard in ((1, "after"), (2, "before"))]  # type: ignore[arg-type]
    np.testing.assert_array_equal(got[0][0], got[1][0])
    weights = step.inputs[1]
    assert weights is not None
    weights.source = None
    expected = harness.run(step, arrays, target)[0]
    if step.inputs[0] is not None and step.inputs[0].dims[0] == 1 and step.op == "FullyConnected":
        # One row is summed in another order.
        np.testing.assert_allclose(got[0][0], expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got[0][0], expected)
