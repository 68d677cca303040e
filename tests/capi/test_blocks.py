"""4-bit weights with a scale or a factor for each block, as clients in C describe them, give exact results."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from capi.qnn_calls import Client, at, opened
from isthmus.cabi import types
from isthmus.errors import Code
from isthmus.graph import DataType, TensorType

DEPTH, COLUMNS, BLOCK, ROWS = 64, 32, 16, 7
U8, S8, U16, F32 = (int(d) for d in (
    DataType.UFIXED_POINT_8, DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_16, DataType.FLOAT_32,
))  # fmt: skip
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "Conv2d": ((1, 1, ROWS, DEPTH), (1, 1, DEPTH, COLUMNS), (1, 1, ROWS, COLUMNS)),
    "FullyConnected": ((ROWS, DEPTH), (COLUMNS, DEPTH), (ROWS, COLUMNS)),
    "MatMul": ((1, 1, ROWS, DEPTH), (1, 1, DEPTH, COLUMNS), (1, 1, ROWS, COLUMNS)),
}
"""Dimensions of the input, the weights and the result."""


def weights_of(client: Client, op: str, encoding: str) -> tuple[types.Tensor, np.ndarray]:
    """A static tensor of 4-bit elements, and its values as floats: [depth, columns]."""
    rng = np.random.default_rng(2)
    stored = rng.integers(-8, 8, (DEPTH, COLUMNS)).astype(np.int8)
    rows = op == "FullyConnected"
    dims = SHAPES[op][1]
    axis = 0 if rows else len(dims) - 1
    if encoding == "expansion":
        scales = (0.001 * (1 + rng.random(COLUMNS))).astype(np.float32)
        factors = rng.integers(1, 17, (COLUMNS, DEPTH // BLOCK))
        params = client.quantize_expansion(axis, scales.tolist(), factors)
        real = stored * factors.T.repeat(BLOCK, 0) * scales.astype(np.float64)
    else:
        blocks = (0.02 * (1 + rng.random((COLUMNS, DEPTH // BLOCK)))).astype(np.float32)
        sizes = [1, BLOCK] if rows else [*(1,) * (len(dims) - 2), BLOCK, 1]
        params = client.quantize_blocks(sizes, blocks.reshape(-1).tolist())
        real = stored * blocks.T.repeat(BLOCK, 0).astype(np.float64)
    data = np.ascontiguousarray((stored.T if rows else stored).reshape(dims))
    return client.tensor("w", TensorType.STATIC, S8, dims, params, data), real


def computed(client: Client, op: str, encoding: str, dtype: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The real values of a result, the exact ones, and the step of the result's type."""
    handle, context = opened(client)
    graph = client.make("graphCreate", context, b"g", None)
    weights, real = weights_of(client, op, encoding)
    x_dims, _, y_dims = SHAPES[op]
    scales = {U8: (0.02, 0.04, -128), U16: (0.0001, 0.0002, -32768)}.get(dtype)
    rng, kind = np.random.default_rng(3), DataType(dtype).numpy
    given = rng.standard_normal(x_dims).astype(np.float32)
    reals, params = given.astype(np.float64), [None, None]
    if scales is not None:
        given = rng.integers(0, np.iinfo(kind).max + 1, x_dims).astype(kind)
        reals = (given.astype(np.float64) + scales[2]) * np.float32(scales[0])
        params = [client.quantize(scales[i], scales[2]) for i in (0, 1)]
    x = client.tensor("x", TensorType.APP_WRITE, dtype, x_dims, params[0])
    y = client.tensor("y", TensorType.APP_READ, dtype, y_dims, params[1])
    for tensor in (x, weights, y):
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    geometry: dict[str, Any] = {}
    if op == "Conv2d":
        geometry = {"stride": np.ones(2, np.uint32), "pad_amount": np.zeros((2, 2), np.uint32)}
    config = client.operation("product", op, [x, weights], [y], {}, geometry)
    client.do("backendValidateOpConfig", handle, config)
    client.do("graphAddNode", graph, config)
    client.do("graphFinalize", graph, None, None)
    found = np.zeros(y_dims, kind)
    assert client.execute(graph, [at(x, given)], [at(y, found)]) == 0
    client.do("backendFree", handle)
    exact = reals.reshape(ROWS, DEPTH) @ real
    if scales is None:
        return found.reshape(ROWS, COLUMNS), exact, 2e-6
    low, high = ((limit + scales[2]) * scales[1] for limit in (0, np.iinfo(kind).max))
    result = (found.reshape(ROWS, COLUMNS).astype(np.float64) + scales[2]) * np.float32(scales[1])
    return result, np.clip(exact, low, high), scales[1]


@pytest.mark.parametrize("dtype", [U8, U16, F32], ids=["8 bits", "16 bits", "floats"])
@pytest.mark.parametrize("encoding", ["expansion", "block"])
@pytest.mark.parametrize("op", SHAPES)
def test_blocks_of_weights_give_the_results_of_their_dequantized_values(
    client: Client, op: str, encoding: str, dtype: int
) -> None:
    found, exact, step = computed(client, op, encoding, dtype)
    assert np.abs(exact).max() > 20 * step
    # Half a step of rounding, and what float32 adds to it.
    tolerance = {U8: 0.5001 * step, U16: 0.52 * step, F32: 2e-5}[dtype]
    assert np.abs(found - exact).max() <= tolerance


def test_blocks_that_do_not_fit_a_tensor_are_refused(client: Client) -> None:
    handle, context = opened(client)
    graph = client.make("graphCreate", context, b"g", None)
    data = np.zeros((32, 48), np.int8)
    wrong = {
        "0 blocks for 48 input channels": client.quantize_expansion(0, [1.0] * 32, np.ones((32, 0), np.uint8)),
        "5 blocks for 48 input channels": client.quantize_expansion(0, [1.0] * 32, np.ones((32, 5), np.uint8)),
        "a factor of at least 1": client.quantize_expansion(0, [1.0] * 32, np.zeros((32, 3), np.uint8)),
        "axis 7 is outside rank 2": client.quantize_expansion(7, [1.0] * 32, np.ones((32, 3), np.uint8)),
        "blocks of [1, 0] elements": client.quantize_blocks([1, 0], [1.0]),
        "positive and finite": client.quantize_blocks([1, 16], [0.0] * 96),
    }
    for reason, params in wrong.items():
        tensor = client.tensor("w", TensorType.STATIC, S8, data.shape, params, data)
        assert client.tensorCreateGraphTensor(graph, ctypes.byref(tensor)) == Code.TENSOR_INVALID_TENSOR_PARAM
        assert reason in client.reason(Code.TENSOR_INVALID_TENSOR_PARAM)
    computed = client.tensor("n", TensorType.NATIVE, S8, (32, 48), client.quantize_blocks([1, 16], [1.0] * 96))
    assert client.tensorCreateGraphTensor(graph, ctypes.byref(computed)) == Code.TENSOR_UNSUPPORTED_TENSOR_PARAM
    assert "only static tensors" in client.reason(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM)
    client.do("backendFree", handle)
