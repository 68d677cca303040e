"""Random graphs with 16-bit activations agree with exact arithmetic, from the file to the stored numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.suites import sampled

import isthmus
from random_operations.fixed16_graphs import FOUR_BITS, WEIGHTS, random_graph

GRAPHS = 2000
TOGETHER = 10
"""Graphs in one test."""


@pytest.mark.parametrize("first", sampled(range(0, GRAPHS, TOGETHER), GRAPHS))
@pytest.mark.parametrize("weights", [WEIGHTS, FOUR_BITS], ids=["weights of 8 and 16 bits", "weights of 4 bits"])
def test_random_graphs_of_16_bits_agree_with_exact_arithmetic(first: int, weights: list[Any], tmp_path: Path) -> None:
    for seed in range(first, first + TOGETHER):
        model, feeds, expected = random_graph(seed, weights)
        path = tmp_path / f"{seed}.onnx"
        onnx.save(model, path)
        with isthmus.Session(path) as session:
            [got] = session.run(feeds).values()
        np.testing.assert_array_equal(got, expected, err_msg=f"seed {seed}")
