"""Products of bytes are exact: the integers that integer arithmetic gives."""

from __future__ import annotations

import numpy as np
import pytest
from support.suites import sampled

from backends.gpu.compile.checking import check, graph_of, run, traits
from isthmus.backends.gpu.compile.lower import prepare
from isthmus.graph import Quantization

_generator = np.random.default_rng(11)


def _bytes(*dims: int, dtype: type = np.int8) -> np.ndarray:
    limits = np.iinfo(dtype)
    return _generator.integers(limits.min, limits.max + 1, dims).astype(dtype)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], list[int], list[list[int]], int, int]] = {
    "one channel": ((1, 9, 8, 1), (5, 4, 1, 16), [1, 1], [[2, 2], [1, 2]], 1, 1),
    "three channels, a stride": ((2, 7, 9, 3), (3, 3, 3, 20), [2, 2], [[0, 1], [1, 0]], 1, 1),
    "a row of windows": ((1, 1, 21, 5), (1, 3, 5, 33), [1, 1], [[0, 0], [1, 1]], 1, 1),
    "groups": ((1, 8, 8, 6), (3, 3, 3, 10), [1, 1], [[2, 2], [2, 2]], 1, 2),
    "dilation": ((1, 8, 8, 6), (3, 3, 6, 10), [1, 1], [[2, 2], [2, 2]], 2, 1),
    "point-wise, uneven": ((1, 5, 5, 7), (1, 1, 7, 9), [1, 1], [[0, 0], [0, 0]], 1, 1),
    "one pixel of many channels": ((1, 1, 1, 67), (1, 1, 67, 40), [1, 1], [[0, 0], [0, 0]], 1, 1),
    "all of the image": ((2, 3, 3, 6), (3, 3, 6, 1), [1, 1], [[0, 0], [0, 0]], 1, 1),
}


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("case", sampled(CONVOLUTIONS, 4))
def test_an_8_bit_convolution_is_that_of_integers(case: str, signed: bool) -> None:
    dims, weights, stride, pads, dilation, groups = CONVOLUTIONS[case]
    kind, filters, point = (np.int8, weights[3], 3) if signed else (np.uint8, weights[3], 255)
    params = {"stride": stride, "pad_amount": pads, "dilation": [dilation] * 2, "group": groups}
    scales = np.array([0.5**n for n in _generator.integers(6, 9, filters)])
    quantizations = [
        Quantization.per_tensor(0.25, point), Quantization.per_channel(scales, np.zeros(filters), 3),
        Quantization.per_channel(0.25 * scales, np.zeros(filters), 0),
    ]  # fmt: skip
    inputs = [_bytes(*dims, dtype=kind), _bytes(*weights), _bytes(filters).astype(np.int32) * 100]
    results = [Quantization.per_tensor(2.0, -7 if signed else 200)]
    check("Conv2d", inputs, params, statics=(1, 2), quantizations=quantizations, results=results)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 63])
def test_an_8_bit_matrix_product_reads_nothing_beyond_its_rows(depth: int) -> None:
    inputs = [_bytes(7, depth), _bytes(depth, 19)]
    quantizations = [Quantization.per_tensor(0.5, 5), Quantization.per_tensor(0.25, 0)]
    results = [Quantization.per_tensor(8.0, 1)]
    check("MatMul", inputs, statics=(1,), quantizations=quantizations, results=results)


def test_batches_of_matrices_are_broadcast() -> None:
    inputs = [_bytes(3, 1, 5, 12), _bytes(2, 12, 20)]
    quantizations = [Quantization.per_tensor(0.5, 5), Quantization.per_tensor(0.25, 0)]
    results = [Quantization.per_tensor(4.0, 1)]
    check("MatMul", inputs, statics=(1,), quantizations=quantizations, results=results)


def test_an_8_bit_transposed_convolution_is_that_of_integers() -> None:
    params = {"stride": [2, 3], "pad_amount": [[1, 0], [0, 1]], "output_padding": [1, 0]}
    quantizations = [Quantization.per_tensor(0.25, 9), Quantization.per_tensor(0.125, 0)]
    check(
        "TransposeConv2d", [_bytes(2, 5, 4, 6), _bytes(3, 4, 6, 5)], params, statics=(1,),
        quantizations=quantizations, results=[Quantization.per_tensor(4.0, 1)],
    )  # fmt: skip


@pytest.mark.parametrize(("row", "weight", "zero"), [(-128, -128, 127), (127, -128, -128), (127, 127, -128)])
def test_sums_of_bytes_below_two_to_the_24_are_exact(row: int, weight: int, zero: int) -> None:
    depth = (1 << 24) // abs((row - zero) * weight)
    bias = np.array([0, 1, -1], np.int32) - np.int32((row - zero) * weight * depth)
    inputs = [np.full((1, depth), row, np.int8), np.full((3, depth), weight, np.int8), bias]
    graph = graph_of(
        "FullyConnected", inputs, statics=(1, 2), results=[Quantization.per_tensor(1.0, 0)],
        quantizations=[Quantization.per_tensor(1.0, q) for q in (zero, 0, 0)],
    )  # fmt: skip
    [got] = run(prepare(graph, traits("cpu")), inputs)
    np.testing.assert_array_equal(got, [[0, 1, -1]])
