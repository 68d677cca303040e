"""FLOAT_16 tensors on the GPU: at the interface and inside, stored as fp16 where that loses little."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus import Code, QnnError, qnn
from isthmus.qnn import ClientTensor

pytest.importorskip("pyopencl", reason="needs OpenCL")
HALF, SINGLE = qnn.DataType.FLOAT_16, qnn.DataType.FLOAT_32
X = np.random.default_rng(1).standard_normal((1, 8, 8, 5)).astype(np.float16)
W = np.random.default_rng(2).standard_normal((3, 3, 5, 7)).astype(np.float16)


def network(backend: qnn.Backend, inside: qnn.DataType, outside: qnn.DataType) -> np.ndarray:
    """The result of a convolution, a tanh and a mean in one type, with inputs and outputs in another."""
    graph = backend.create_context().create_graph("g")
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, outside, X.shape)
    y = graph.create_tensor("y", qnn.TensorType.APP_READ, outside, (1, 7))
    weights = graph.create_tensor("w", qnn.TensorType.STATIC, inside, W.shape, data=inside.encode(W))
    names = {"a": X.shape, "b": (1, 8, 8, 7), "c": (1, 8, 8, 7), "d": (1, 7)}
    a, b, c, d = (graph.create_tensor(name, qnn.TensorType.NATIVE, inside, dims) for name, dims in names.items())
    mixed = inside is not outside
    if mixed:
        graph.add_node("in", "Cast", [x], [a])
    params = {"stride": np.uint32([1, 1]), "pad_amount": np.uint32([[1, 1], [1, 1]])}
    graph.add_node("conv", "Conv2d", [a if mixed else x, weights], [b], params)
    graph.add_node("tanh", "Tanh", [b], [c])
    graph.add_node("mean", "ReduceMean", [c], [d if mixed else y], {"axes": np.uint32([1, 2])})
    if mixed:
        graph.add_node("out", "Cast", [d], [y])
    graph.finalize()
    result = np.zeros((1, 7), outside.numpy)
    graph.execute([ClientTensor("x", X.astype(outside.numpy))], [ClientTensor("y", result)])
    return result.astype(np.float32)


@pytest.mark.parametrize("outside", [HALF, SINGLE], ids=lambda dtype: dtype.name)
def test_a_graph_in_float16_matches_the_cpu(outside: qnn.DataType) -> None:
    with qnn.Backend("gpu") as gpu, qnn.Backend("cpu") as cpu:
        found, expected = network(gpu, HALF, outside), network(cpu, HALF, outside)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)


def test_bfloat16_is_refused_with_a_reason() -> None:
    with qnn.Backend("gpu") as backend:
        graph = backend.create_context().create_graph("g")
        x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.BFLOAT_16, (4,))
        y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.BFLOAT_16, (4,))
        graph.add_node("relu", "Relu", [x], [y])
        with pytest.raises(QnnError, match="BFLOAT_16") as refused:
            graph.finalize()
        assert refused.value.code is Code.COMMON_NOT_SUPPORTED
