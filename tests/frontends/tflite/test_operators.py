"""Each operator, alone in a model, gives what LiteRT gives."""

import numpy as np
import pytest

from frontends.tflite.cases import CASES, Case
from frontends.tflite.runners import GraphRunner, LiteRtRunner, random_input
from isthmus.frontends.tflite import load


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operator_matches_litert(case: Case) -> None:
    graph = load(case.model, case.name)
    rng = np.random.default_rng(3)
    inputs = [random_input(rng, t.dims, t.dtype.numpy) for t in graph.inputs]
    if case.positive:
        inputs = [np.abs(x) + np.float32(0.1) for x in inputs]
    expected = LiteRtRunner(case.model)(*inputs)
    results = GraphRunner(graph)(*inputs)
    assert len(results) == len(expected)
    for result, reference in zip(results, expected, strict=True):
        assert result.shape == reference.shape
        assert result.dtype == reference.dtype
        if reference.dtype.kind == "f":
            np.testing.assert_allclose(result, reference, rtol=2e-6, atol=2e-6 * max(1.0, np.abs(reference).max()))
        else:
            difference = np.abs(result.astype(np.int64) - reference.astype(np.int64))
            assert difference.max(initial=0) <= case.steps
