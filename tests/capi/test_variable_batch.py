"""Executions in C of a multiple of the batch that a graph was prepared with, and in which words others are refused."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capi.qnn_calls import Client, at
from isthmus.cabi import types
from isthmus.graph import DataType, TensorType

WEIGHTS = np.arange(32, dtype=np.float32).reshape(4, 8) / 32


@pytest.fixture(scope="module")
def opened(libraries: Path) -> Iterator[tuple[Client, int]]:
    client = Client(libraries / "libQnnHtp.so")
    backend = client.make("backendCreate", None, None)
    yield client, client.make("contextCreate", backend, None, None)
    client.do("backendFree", backend)


def layer(client: Client, context: int, batch: int) -> tuple[int, types.Tensor, types.Tensor]:
    """A graph y = x W, prepared for a batch."""
    graph = client.make("graphCreate", context, f"batch {batch} of {len(client._kept)}".encode(), None)
    x = client.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (batch, 8))
    w = client.tensor("w", TensorType.STATIC, DataType.FLOAT_32, WEIGHTS.shape, data=WEIGHTS)
    y = client.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (batch, 4))
    for tensor in (x, w, y):
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    client.do("graphAddNode", graph, client.operation("fc", "FullyConnected", [x, w], [y]))
    client.do("graphFinalize", graph, None, None)
    return graph, x, y


def shaped(client: Client, tensor: types.Tensor, array: np.ndarray) -> types.Tensor:
    """The tensor with this memory and its dimensions."""
    copy = at(tensor, array)
    copy.v1.rank, copy.v1.dimensions = array.ndim, client.keep((ctypes.c_uint32 * array.ndim)(*array.shape))
    return copy


def answer(client: Client, made: Any, x: np.ndarray, y: np.ndarray) -> int:
    graph, given, result = made
    return client.execute(graph, [shaped(client, given, x)], [shaped(client, result, y)])


@pytest.mark.parametrize(("batch", "multiple"), [(1, 1), (1, 2), (2, 2), (2, 1), (3, 20)])
def test_every_part_of_a_multiple_of_the_batch_is_computed(opened: tuple[Client, int], batch, multiple) -> None:
    client, context = opened
    made = layer(client, context, batch)
    rng = np.random.default_rng(batch)
    x = rng.random((batch * multiple, 8), np.float32)
    y = np.zeros((batch * multiple, 4), np.float32)
    for _ in range(2):
        x[...] = rng.random(x.shape, np.float32)
        assert answer(client, made, x, y) == 0
        np.testing.assert_allclose(y, x @ WEIGHTS.T, rtol=1e-5)
    # The same memory with the batch of the graph again.
    y[...] = 0
    assert answer(client, made, x[:batch], y[:batch]) == 0
    np.testing.assert_allclose(y[:batch], x[:batch] @ WEIGHTS.T, rtol=1e-5)
    assert not y[batch:].any()


@pytest.mark.parametrize(
    ("batch", "given", "result", "words"),
    [
        (1, (3, 8), (1, 4), "Mismatching input and output batch sizes (3, 1)"),
        (2, (3, 8), (2, 4), "batch (dim[0]) incompatible. (3, 2)"),
        (1, (1, 16), (1, 4), "dim 1 mismatch. 16 != 8"),
        (1, (2, 8), (2, 5), "dim 1 mismatch. 5 != 4"),
        (2, (0, 8), (2, 4), "batch (dim[0]) incompatible. (0, 2)"),
        (1, (1, 1, 8), (1, 4), "it has the dimensions [1, 1, 8], and was created with [1, 8]"),
    ],
    ids=str,
)
def test_other_dimensions_are_refused_in_the_vendors_words(
    opened: tuple[Client, int], batch, given, result, words
) -> None:
    client, context = opened
    made = layer(client, context, batch)
    y = np.zeros(result, np.float32)
    assert answer(client, made, np.ones(given, np.float32), y) == 6004
    assert words in client.reason(6004)
    assert not y.any()


def test_a_buffer_for_fewer_parts_is_refused(opened: tuple[Client, int]) -> None:
    client, context = opened
    graph, given, result = layer(client, context, 1)
    x, y = np.ones((3, 8), np.float32), np.zeros((3, 4), np.float32)
    short = shaped(client, result, y)
    short.v1.clientBuf.dataSize = 2 * 16
    assert client.execute(graph, [shaped(client, given, x)], [short]) == 6004
    assert "has 32 bytes, 48 are needed" in client.reason(6004)
    # A tensor without dimensions has the batch of the others.
    unstated = at(result, y)
    unstated.v1.dimensions, unstated.v1.rank = None, 0
    assert client.execute(graph, [shaped(client, given, x)], [unstated]) == 0
    np.testing.assert_allclose(y, x @ WEIGHTS.T, rtol=1e-5)


def test_the_capability_is_offered_by_htp_only(libraries: Path, opened: tuple[Client, int]) -> None:
    assert opened[0].propertyHasCapability(312) == 0
    assert Client(libraries / "libQnnCpu.so").propertyHasCapability(312) == 1000
