"""Constants of 4-bit elements stay packed through preparation: with one scale, a scale per channel, and in blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isthmus import qnn
from isthmus.errors import QnnError
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType
from isthmus.graph.evaluate import evaluate

DEPTH, COLUMNS, BLOCK = 64, 48, 16
BYTES = Quantization.per_tensor(0.03, 100)
RESULT = Quantization.per_tensor(0.05, 90)
ENDS = {
    DataType.FLOAT_32: (None, None),
    DataType.UFIXED_POINT_8: (BYTES, RESULT),
    DataType.UFIXED_POINT_16: (Quantization.per_tensor(0.0001, 30000), Quantization.per_tensor(0.0002, 32000)),
}
"""The types of inputs and results, and their quantizations."""
GEOMETRY = {"stride": (1, 1), "pad_amount": ((1, 1), (1, 1))}


def weights_of(dims: tuple[int, ...], axis: int | None, block: int, factors: bool, column: int) -> Tensor:
    """A constant of 4-bit elements; the scale of its blocks is a multiple of one for each column if it has factors."""
    rng = np.random.default_rng(1)
    grid = Quantization((1.0,), (0,), axis, block=block).grid(dims)
    scales = rng.uniform(0.01, 0.02, grid).astype(np.float32).astype(np.float64)
    multiples: tuple[int, ...] = ()
    if factors:
        units = rng.uniform(0.001, 0.002, dims[column]).astype(np.float32).astype(np.float64)
        integers = rng.integers(1, 17, grid)
        scales = units.reshape([-1 if a == column else 1 for a in range(len(dims))]) * integers
        multiples = tuple(integers.reshape(-1).tolist())
    count = scales.size
    quantization = Quantization(tuple(scales.reshape(-1).tolist()), (0,) * count, axis, 4, block, multiples)
    elements = rng.integers(-8, 8, dims).astype(np.int8)
    return Tensor("w", TensorType.STATIC, DataType.SFIXED_POINT_8, dims, quantization, elements)


CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int, dict[str, Any]]] = {
    "Conv2d": ("Conv2d", (1, 6, 5, DEPTH), (3, 3, DEPTH, COLUMNS), (1, 6, 5, COLUMNS), 2, 3, GEOMETRY),
    "FullyConnected": ("FullyConnected", (5, DEPTH), (COLUMNS, DEPTH), (5, COLUMNS), 1, 0, {}),
    "MatMul": ("MatMul", (1, 5, DEPTH), (1, DEPTH, COLUMNS), (1, 5, COLUMNS), 1, 2, {}),
}
"""Operation, dimensions of input, weights and result, axes of input channels and of columns, parameters."""


def run(case: str, weights: Tensor, kind: DataType) -> tuple[np.ndarray, np.ndarray, list[str], int]:
    """The result of a graph with one node, that of the numpy reference, the program's kernels, bytes of constants."""
    op, x_dims, _, y_dims, _, _, params = CASES[case]
    rng = np.random.default_rng(4)
    stored, (before, after) = kind.numpy, ENDS[kind]
    if kind is DataType.FLOAT_32:
        given = rng.standard_normal(x_dims).astype(np.float32)
    else:
        given = rng.integers(0, np.iinfo(stored).max + 1, x_dims).astype(stored)
    with qnn.Backend("cpu") as backend:
        graph = backend.create_context().create_graph("g")
        x = graph.create_tensor("x", TensorType.APP_WRITE, kind, x_dims, before)
        w = graph.create_tensor("w", TensorType.STATIC, weights.dtype, weights.dims, weights.quantization, weights.data)
        y = graph.create_tensor("y", TensorType.APP_READ, kind, y_dims, after)
        graph.add_node("product", op, [x, w], [y], params)
        graph.finalize()
        found = np.zeros(y_dims, stored)
        graph.execute([qnn.ClientTensor("x", given)], [qnn.ClientTensor("y", found)])
        program = graph.driver.program
    expected = evaluate(op, [x, w], [given, weights.data], params, [y])[0]
    return found, expected, list(program.kernels), program.constant_bytes


@pytest.mark.parametrize("case", CASES)
def test_multiples_of_a_channels_scale_are_computed_in_integers_from_packed_weights(case: str) -> None:
    _, _, dims, _, axis, column, _ = CASES[case]
    weights = weights_of(dims, axis, BLOCK, True, column)
    found, expected, kernels, nbytes = run(case, weights, DataType.UFIXED_POINT_8)
    assert any(kernel.startswith("quantized_convolution:") and "_nibbles" in kernel for kernel in kernels)
    assert all(kernel.endswith("_factors") for kernel in kernels if "nibbles" in kernel)
    # The reference multiplies reals, so it may round a tie to the other side.
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert (found == expected).mean() > 0.99
    # Half a byte for each weight, a byte for each block, and little for columns and taps.
    assert nbytes <= weights.elements * (0.5 + 1 / BLOCK) + 16 * COLUMNS + 1024


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("blocks", [False, True])
def test_products_of_16_bits_are_computed_in_integers(case: str, blocks: bool) -> None:
    _, _, dims, _, axis, column, _ = CASES[case]
    weights = weights_of(dims, axis, BLOCK, True, column) if blocks else weights_of(dims, column, 0, False, column)
    found, expected, kernels, _ = run(case, weights, DataType.UFIXED_POINT_16)
    assert [kernel for kernel in kernels if kernel.startswith("quantized_convolution:convolve_wide.w8")]
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert (found == expected).mean() > 0.99


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("case", CASES)
def test_any_other_scales_of_blocks_are_computed_in_floats_from_packed_weights(case: str, kind: DataType) -> None:
    _, _, dims, _, axis, column, _ = CASES[case]
    weights = weights_of(dims, axis, BLOCK, False, column)
    found, expected, kernels, nbytes = run(case, weights, kind)
    assert any(kernel.startswith(("matmul:", "convolution:")) and kernel.endswith("_nibbles") for kernel in kernels)
    if kind.is_fixed_point:
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert nbytes <= weights.elements * (0.5 + 5 / BLOCK) + 16 * COLUMNS + 2048


@pytest.mark.parametrize("case", CASES)
def test_the_constants_of_a_program_are_half_of_those_in_bytes(case: str) -> None:
    _, _, dims, _, _, column, _ = CASES[case]
    weights = weights_of(dims, column, 0, False, column)
    found, expected, _, nbytes = run(case, weights, DataType.UFIXED_POINT_8)
    np.testing.assert_array_equal(found, expected)
    assert weights.quantization is not None
    whole = Tensor("w", TensorType.STATIC, weights.dtype, dims, replace(weights.quantization, bits=0), weights.data)
    again, _, _, in_bytes = run(case, whole, DataType.UFIXED_POINT_8)
    np.testing.assert_array_equal(found, again)
    assert in_bytes - nbytes >= weights.elements // 2


def test_elements_of_more_bits_than_declared_are_refused() -> None:
    graph = Graph("g")
    with pytest.raises(QnnError, match="elements of more than 4 bits"):
        graph.constant("w", np.array([8], np.int8), Quantization((1.0,), (0,), bits=4))


def test_blocks_follow_a_transposition() -> None:
    rng = np.random.default_rng(3)
    quantization = Quantization(tuple(rng.uniform(1, 2, 12).tolist()), (0,) * 12, 1, 4, 4)
    elements = rng.integers(-8, 8, (3, 14, 1)).astype(np.int8)
    moved = quantization.transpose((1, 2, 0), elements.shape)
    assert moved.axis == 0
    np.testing.assert_array_equal(
        moved.dequantize(elements.transpose(1, 2, 0)), quantization.dequantize(elements).transpose(1, 2, 0)
    )
