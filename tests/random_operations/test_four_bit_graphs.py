"""Random QDQ graphs with 4-bit weights agree with exact arithmetic: steps are the nearest ones, floats are close."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.suites import sampled

import isthmus
from random_operations.four_bit_graphs import Array, FourBitGraph, Layer, random_graph

GRAPHS, BATCH = 1000, 20
NEAR_A_TIE = 2e-3
"""How far from the nearest step, in parts of one beyond a half, float32 may round bytes."""
NEAR_A_TIE_OF_16_BITS = 0.1
"""The same for 16 bits, of which float32 has few more; `test_random_fixed16` is exact, without blocks."""


def answers(graph: FourBitGraph, folder: Path) -> dict[str, Array]:
    """Return what the engine answers, with the input itself."""
    path = folder / "graph.onnx"
    onnx.save(graph.model, path)
    with isthmus.Session(path) as session:
        return {"x": graph.x, **session.run({"x": graph.x})}


def check(layer: Layer, x: Array, found: Array, what: str) -> None:
    """Compare a layer's result with the exact one for its input."""
    exact = layer.exact(x)
    if layer.scale is None:
        bound = np.abs(exact).max() + 1
        np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5 * bound, err_msg=what)
        return
    info = np.iinfo(layer.dtype)
    steps = np.clip(exact / np.float32(layer.scale) + layer.zero, info.min, info.max)
    stored = np.rint(found.astype(np.float64) / np.float32(layer.scale)) + layer.zero
    near = NEAR_A_TIE if info.bits == 8 else NEAR_A_TIE_OF_16_BITS
    assert np.abs(stored - steps).max() <= 0.5 + near, what


@pytest.mark.parametrize("batch", sampled(range(GRAPHS // BATCH), GRAPHS // BATCH))
def test_four_bit_graphs_agree_with_exact_arithmetic(batch: int, tmp_path: Path) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        graph = random_graph(seed)
        found = answers(graph, tmp_path)
        for number, layer in enumerate(graph.layers):
            source, result = graph.outputs[number], graph.outputs[number + 1]
            check(layer, found[source], found[result], f"graph {seed}, layer {number} ({layer.op})")
