"""On a GPU, raw memory is transferred before and after the kernels, so an output may be in the memory of an input."""

from __future__ import annotations

import numpy as np
import pytest
from support import in_place_io

from backends.gpu.harness import NBYTES, doubled, gpu, values
from isthmus import QnnError, qnn

GRAPHS = 1000


def test_raw_memory_may_be_that_of_an_input() -> None:
    with gpu() as backend:
        graph, array = doubled(backend.create_context()), values()
        apart = np.empty_like(array)
        given = [qnn.ClientTensor("x", array)], [qnn.ClientTensor("y", array)]
        for _ in range(2):
            graph.execute(given[0], [qnn.ClientTensor("y", apart)])
            graph.execute(*given)
            assert np.array_equal(array, apart)
        assert (graph.stats.copied_in_bytes, graph.stats.copied_out_bytes) == (4 * NBYTES, 4 * NBYTES)
        room = np.zeros(2 * NBYTES, np.uint8)
        with pytest.raises(QnnError, match="overlaps that of tensor 'x'"):
            graph.execute([qnn.ClientTensor("x", room[:NBYTES])], [qnn.ClientTensor("y", room[4 : 4 + NBYTES])])


@pytest.mark.parametrize("seed", range(3))
def test_random_graphs_give_the_same_bits_in_place_and_in_separate_memory(seed) -> None:
    with gpu() as backend:
        assert in_place_io.difference(backend, seed) is None


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_a_thousand_random_graphs_give_the_same_bits_in_place_and_in_separate_memory(part) -> None:
    with gpu() as backend:
        for seed in range(part * GRAPHS // 20, (part + 1) * GRAPHS // 20):
            assert in_place_io.difference(backend, seed) is None, seed
