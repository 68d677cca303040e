"""What is told of strips before they are written is true of them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from split_networks import tflite_network

from isthmus.split.network import Network, Rule, SplitStep, SplitValue
from isthmus.split.regions import Compute, CopyRows, Join, PrepareOperand, SplitRegion, Wholes, most_alive
from isthmus.split.search import SplitSearch
from isthmus.split.tflite import TfliteFile


def runs(search: SplitSearch, longest: int) -> Iterator[SplitRegion]:
    steps = len(search.network.steps)
    for first in range(steps):
        for last in range(first, min(first + longest, steps)):
            known = search._run(first, last)
            if known is not None:
                yield known[0]


@pytest.mark.parametrize("seed", range(6))
def test_a_sketch_of_two_or_three_strips_is_exact(seed):
    """Of more strips it looks at the first, the last and one between, of so few at all of them."""
    search = SplitSearch(TfliteFile(tflite_network(seed, bool(seed % 2)), "random").network)
    exact = []
    for run in runs(search, 6):
        for count in (2, 3):
            ending, instructions = search._ending(run), run.expand(count)
            sketch = run.sketch(count, ending)
            assert (sketch is None) == (instructions is None)
            if sketch is not None and instructions is not None:
                assert sketch.instructions + len(run.outputs) == len(instructions)
                copies = (one.result.bytes for one in instructions if isinstance(one, CopyRows | Join | PrepareOperand))
                assert sketch.copied == sum(copies)
                most, _ = most_alive(instructions, ending, [search._wholes[key] for key in run.outputs])
                assert sketch.bytes >= most
                exact.append(sketch.bytes == most)
    assert any(exact)


def chain(*more: dict[str, int], kept: str = "c") -> Network:
    """Two functions of elements over six rows, "a" to "b" to "c", with what their rules have besides."""
    steps = [
        SplitStep(name, (source,), (name,), Rule((source,), lambda low, high: (low, high), **rule))
        for source, name, rule in zip("ab", "bc", more or ({}, {}), strict=True)
    ]
    values = {name: SplitValue(name, 60, 6) for name in "abc"}
    return Network(tuple(steps), values, ("a",), frozenset(kept))


def computed(network: Network, count: int) -> list[tuple[int, tuple[int, int]]] | None:
    """The rows of each step in the order in which so many strips compute them."""
    instructions = SplitRegion(network, 0, 1, Wholes(network)).expand(count)
    return None if instructions is None else [(i.step, i.rows) for i in instructions if isinstance(i, Compute)]


def test_a_strip_may_be_a_single_row():
    assert computed(chain(), 6) == [(step, (row, row + 1)) for row in range(6) for step in (0, 1)]


def test_no_strip_has_fewer_rows_than_a_rule_wants():
    two = chain({"fewest": 2}, {})
    assert computed(two, 3) == [(step, (row, row + 2)) for row in (0, 2, 4) for step in (0, 1)]
    assert computed(two, 4) is None
    assert computed(chain({"fewest": 9}, {}), 1) == [(0, (0, 6)), (1, (0, 6))], "all of them are enough"


def test_rows_that_belong_together_are_computed_together():
    assert computed(chain({"grain": 3}, {}), 3) == [
        (0, (0, 3)), (1, (0, 2)), (0, (3, 6)), (1, (2, 4)), (1, (4, 6)),
    ]  # fmt: skip


def test_rows_that_are_cheap_are_computed_again():
    network = chain({"again": True}, {})
    assert computed(network, 2) == [(0, (0, 3)), (1, (0, 3)), (0, (3, 6)), (1, (3, 6))]
    assert SplitRegion(chain({"again": True}, {}, kept="bc"), 0, 1, Wholes(network)).again == [False, False]


def test_a_run_ends_what_nobody_reads_after_it():
    network = chain()
    search = SplitSearch(network)
    assert [piece.value for piece in search._ending(SplitRegion(network, 0, 1, Wholes(network)))] == ["a"]
    assert [piece.value for piece in search._ending(SplitRegion(network, 1, 1, Wholes(network)))] == ["b"]
    both = chain(kept="ac")
    assert search.network.end["a"] == 0
    assert both.end["a"] == 2
    assert SplitSearch(both)._ending(SplitRegion(both, 0, 1, Wholes(both))) == []


def test_what_is_alive_is_counted_from_its_maker_to_its_last_reader():
    network = chain()
    assert (network.begin, network.end) == ({"a": -1, "b": 0, "c": 1}, {"a": 0, "b": 1, "c": 2})
    assert (network.live, network.peak) == ([120, 120], 120)
    assert chain(kept="abc").live == [120, 180]


def test_a_run_takes_whole_what_was_made_before_it_and_nothing_that_it_makes_itself():
    network = chain()
    step = network.steps[1]
    assert SplitRegion(network, 0, 1, Wholes(network)).possible
    before = SplitStep("c", ("b", "a"), ("c",), step.rule)
    assert SplitRegion(replace(network, steps=(network.steps[0], before)), 0, 1, Wholes(network)).possible
    whole = SplitStep("c", ("a", "b"), ("c",), Rule(("a",), lambda low, high: (low, high)))
    assert not SplitRegion(replace(network, steps=(network.steps[0], whole)), 0, 1, Wholes(network)).possible
