"""What is told of strips before they are written is true of them."""

from collections.abc import Iterator

import pytest
from split_networks import tflite_network

from isthmus.split.search import Search
from isthmus.split.strips import Cut, Join, Ready, Run, most_alive
from isthmus.split.tflite import TfliteFile


def runs(search: Search, longest: int) -> Iterator[Run]:
    steps = len(search.network.steps)
    for first in range(steps):
        for last in range(first, min(first + longest, steps)):
            known = search._run(first, last)
            if known is not None:
                yield known[0]


@pytest.mark.parametrize("seed", range(6))
def test_a_sketch_of_two_or_three_strips_is_exact(seed):
    """Of more strips it looks at the first, the last and one between, of so few at all of them."""
    search = Search(TfliteFile(tflite_network(seed, bool(seed % 2)), "random").network)
    exact = []
    for run in runs(search, 6):
        for count in (2, 3):
            ending, instructions = search._ending(run), run.expand(count)
            sketch = run.sketch(count, ending)
            assert (sketch is None) == (instructions is None)
            if sketch is not None and instructions is not None:
                assert sketch.instructions + len(run.outputs) == len(instructions)
                copies = (one.result.bytes for one in instructions if isinstance(one, Cut | Join | Ready))
                assert sketch.copied == sum(copies)
                most, _ = most_alive(instructions, ending, [search._wholes[key] for key in run.outputs])
                assert sketch.bytes >= most
                exact.append(sketch.bytes == most)
    assert any(exact)
