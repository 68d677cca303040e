"""Large constants of a context's graphs are on the device once, until the last graph that uses them is freed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends.gpu.harness import gpu
from isthmus import memory, qnn
from isthmus.graph import DataType, TensorType
from isthmus.qnn import ClientTensor

SIZE = 512
WEIGHTS, OTHERS = (np.random.default_rng(0).standard_normal((2, SIZE, SIZE)) * 0.05).astype(np.float32)
BIAS = np.arange(SIZE, dtype=np.float32)
LITTLE = 100_000
"""Bytes of small constants, scratch and staging of a graph here."""


def layer(context: qnn.Context, name: str, rows: int, *weights: np.ndarray) -> qnn.Graph:
    """A graph that multiplies its input by each of these weights, and adds all."""
    graph = context.create_graph(name)

    def tensor(key: str, kind: TensorType, dims: tuple[int, ...], data: np.ndarray | None = None) -> Any:
        return graph.create_tensor(key, kind, DataType.FLOAT_32, dims, None, data)

    x = tensor("x", TensorType.APP_WRITE, (rows, SIZE))
    total = tensor("bias", TensorType.STATIC, BIAS.shape, BIAS)
    for number, each in enumerate(weights):
        w = tensor(f"w{number}", TensorType.STATIC, each.shape, each)
        part = tensor(f"part {number}", TensorType.NATIVE, (rows, SIZE))
        graph.add_node(f"product {number}", "MatMul", [x, w], [part])
        is_last = number == len(weights) - 1
        after = tensor("y" if is_last else f"sum {number}", TensorType.APP_READ if is_last else TensorType.NATIVE,
                       (rows, SIZE))  # fmt: skip
        graph.add_node(f"addition {number}", "ElementWiseAdd", [part, total], [after])
        total = after
    graph.finalize()
    return graph


def check(graph: qnn.Graph, *weights: np.ndarray) -> None:
    """Execute a graph of `layer` and compare its result."""
    given = np.random.default_rng(1).standard_normal(graph.info.inputs[0].dims).astype(np.float32)
    found = np.zeros_like(given)
    graph.execute([ClientTensor("x", given)], [ClientTensor("y", found)])
    np.testing.assert_allclose(found, sum(given @ each for each in weights) + BIAS, atol=1e-3)


@pytest.mark.parametrize("form", ["composed", "binary"])
def test_graphs_of_a_context_have_equal_constants_once_on_the_device(form: str) -> None:
    with gpu() as backend, memory.statistics("opencl") as counted:

        def grown(*rows: int) -> tuple[qnn.Context, int]:
            before = counted.live_bytes
            context = backend.create_context()
            for each in rows:
                layer(context, f"rows {each}", each, WEIGHTS)
            if form == "binary":
                binary = context.get_binary()
                context.free()
                context = backend.create_context_from_binary(binary)
            return context, counted.live_bytes - before

        context, one = grown(4)
        context.free()
        assert one >= WEIGHTS.nbytes
        context, both = grown(4, 1)
        assert both < one + LITTLE
        before = counted.live_bytes
        context.release_graph(context.graphs["rows 4"])
        assert before - counted.live_bytes < LITTLE, "the other graph keeps the weights"
        check(context.graphs["rows 1"], WEIGHTS)
        last = layer(context, "rows 2", 2, WEIGHTS.copy())
        check(last, WEIGHTS)
        context.free()
        assert counted.live_bytes < one / 10


def test_other_constants_and_other_contexts_have_buffers_of_their_own() -> None:
    with gpu() as backend, memory.statistics("opencl") as counted:
        context, other = backend.create_context(), backend.create_context()
        graphs = {
            layer(context, "both", 3, WEIGHTS, OTHERS): (WEIGHTS, OTHERS),
            layer(context, "one", 1, OTHERS): (OTHERS,),
            layer(context, "twice", 1, WEIGHTS, OTHERS, WEIGHTS): (WEIGHTS, OTHERS, WEIGHTS),
        }
        assert 2 * WEIGHTS.nbytes <= counted.live_bytes < 2 * WEIGHTS.nbytes + 3 * LITTLE
        graphs[layer(other, "apart", 1, WEIGHTS)] = (WEIGHTS,)
        assert 3 * WEIGHTS.nbytes <= counted.live_bytes < 3 * WEIGHTS.nbytes + 4 * LITTLE
        for graph, weights in graphs.items():
            check(graph, *weights)
