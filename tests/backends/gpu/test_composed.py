"""Operations that are composed of others run on the GPU too, without kernels of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import opencl_device as opencl_device

from isthmus import qnn
from isthmus.qnn import DataType, TensorType

RNG = np.random.default_rng(9)
F32, U8 = DataType.FLOAT_32, DataType.UINT_8
CASES: dict[str, tuple[list, list, dict[str, Any]]] = {
    "Buffer": ([(F32, (1, 2, 3))], [(F32, (1, 5, 3))], {"buffer_size": 5, "buffer_dim": 1}),
    "GroupQueryAttention": (
        [(F32, (1, 3, 16)), (F32, (1, 3, 8)), (F32, (1, 3, 8))], [(F32, (1, 3, 16))],
        {"num_heads": 4, "kv_num_heads": 2},
    ),
    "Nv12ToRgb": ([(U8, (1, 96))], [(U8, (1, 8, 8, 3))], {"output_order": 1}),
}  # fmt: skip


def results(name: str, op: str, feeds: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """The outputs of several executions of one node on a backend."""
    inputs, outputs, params = CASES[op]
    with qnn.Backend(name) as backend:
        graph = backend.create_context().create_graph(op)
        given = [graph.create_tensor(f"in{i}", TensorType.APP_WRITE, *spec) for i, spec in enumerate(inputs)]
        made = [graph.create_tensor(f"out{i}", TensorType.APP_READ, *spec) for i, spec in enumerate(outputs)]
        graph.add_node("node", op, given, made, params)
        memory = graph.allocate()
        found = []
        for arrays in feeds:
            for view, array in zip(memory.inputs.values(), arrays, strict=True):
                view[...] = array
            memory.binding.execute()
            found.append([view.copy() for view in memory.outputs.values()])
        memory.close()
    return found


@pytest.mark.parametrize("op", CASES)
def test_the_gpu_matches_the_cpu(op: str) -> None:
    feeds = [[RNG.integers(0, 200, dims).astype(dtype.numpy) for dtype, dims in CASES[op][0]] for _ in range(4)]
    for ours, theirs in zip(results("gpu", op, feeds), results("cpu", op, feeds), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)
