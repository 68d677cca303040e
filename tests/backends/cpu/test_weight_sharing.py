"""Graphs of `cpu` have equal weights once, also for other numbers of rows if the configuration asks for that."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus import Code, QnnError, qnn
from isthmus.graph import DataType, Quantization, TensorType
from isthmus.qnn import ClientTensor

SIZE = 512
FLOATS = (np.random.default_rng(0).standard_normal((SIZE, SIZE)) * 0.05).astype(np.float32)
BYTES = np.random.default_rng(0).integers(-127, 128, (SIZE, SIZE)).astype(np.int8)
ROWS = (128, 20, 1)
LITTLE = 80_000
"""What a further graph of the same weights may add."""


def product(context: qnn.Context, rows: int, weights: np.ndarray) -> qnn.Graph:
    """A graph of one product, in floats or in 8 bits as its weights are."""
    graph = context.create_graph(f"rows {rows}")
    fixed = weights.dtype == np.int8
    kind, encoding = (DataType.UFIXED_POINT_8, Quantization((0.01,), (-128,))) if fixed else (DataType.FLOAT_32, None)
    x, y = (
        graph.create_tensor(name, end, kind, (rows, SIZE), encoding)
        for name, end in (("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ))
    )
    stored = (DataType.SFIXED_POINT_8, Quantization((0.002,), (0,))) if fixed else (DataType.FLOAT_32, None)
    w = graph.create_tensor("w", TensorType.STATIC, stored[0], weights.shape, stored[1], weights)
    graph.add_node("product", "MatMul", [x, w], [y])
    return graph


def binary_of(weights: np.ndarray, shares: bool, rows: tuple[int, ...] = ROWS) -> bytes:
    """The binary of graphs of one product for these numbers of rows."""
    with qnn.Backend("cpu", {"cpu": {"weight_sharing": shares}}) as backend:
        context = backend.create_context()
        for count in rows:
            product(context, count, weights)
        return bytes(context.prepare_offline())


def results_of(binary: bytes) -> list[np.ndarray]:
    """Return what each graph of a binary computes of the first rows of one input."""
    found = []
    with qnn.Backend("cpu") as backend:
        context = backend.create_context_from_binary(binary)
        for name in context.graph_names:
            graph = context.retrieve(name)
            [x] = graph.info.inputs
            given = (np.arange(x.dims[0] * SIZE) % 251).astype(x.dtype.numpy).reshape(x.dims)
            found.append(np.zeros_like(given))
            graph.execute([ClientTensor("x", given)], [ClientTensor("y", found[-1])])
    return found


@pytest.mark.parametrize("weights", [FLOATS, BYTES], ids=["floats", "8 bits"])
def test_graphs_of_other_numbers_of_rows_share_if_the_configuration_says_so(weights: np.ndarray) -> None:
    one, several = binary_of(weights, True, ROWS[:1]), binary_of(weights, True)
    assert len(several) - len(one) < 2 * LITTLE
    sizes = [graph.sizes for graph in qnn.SystemContext().get_binary_info(several).graphs]
    assert all(each is not None and each.shared_weights >= weights.nbytes for each in sizes)
    assert qnn.SystemContext().get_unshared_constants(several) == ()
    # A product of one row without sharing has a kernel of its own, whose float sums may have another order.
    for found, alone in zip(results_of(several), results_of(binary_of(weights, False)), strict=True):
        np.testing.assert_allclose(found, alone, rtol=1e-4, atol=1e-3)


def test_the_setting_is_a_truth_value() -> None:
    with pytest.raises(QnnError) as refusal:
        qnn.Backend("cpu", {"cpu": {"weight_sharing": 3}})
    assert refusal.value.code is Code.BACKEND_INVALID_CONFIG
