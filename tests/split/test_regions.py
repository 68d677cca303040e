"""Estimates of tiles are true of the tiles that are written."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from isthmus.graph.rows import same_rows
from isthmus.split.network import Network, SplitStep, SplitValue, TileRule
from isthmus.split.regions import Compute, SplitRegion, most_alive, whole_values
from isthmus.split.search import SplitSearch
from isthmus.split.tflite import TfliteFile
from split.networks import tflite_network


def regions(search: SplitSearch, longest: int) -> Iterator[SplitRegion]:
    steps = len(search.network.steps)
    for first in range(steps):
        for last in range(first, min(first + longest, steps)):
            known = search.region(first, last)
            if known is not None:
                yield known[0]


@pytest.mark.parametrize("seed", range(6))
def test_an_estimate_of_two_or_three_tiles_is_exact(seed) -> None:
    """The estimate looks at the first tile, the last and one between: of so few, at all of them."""
    search = SplitSearch(TfliteFile(tflite_network(seed, bool(seed % 2)), "random").network)
    exact = []
    for region in regions(search, 6):
        for count in (2, 3):
            ending, instructions = search.ending(region), region.expand(count)
            estimate = region.estimate(count, ending)
            assert (estimate is None) == (instructions is None)
            if estimate is not None and instructions is not None:
                assert estimate.instructions + len(region.outputs) == len(instructions)
                copies = (one.result.bytes for one in instructions if not isinstance(one, Compute))
                assert estimate.copied == sum(copies)
                most, _ = most_alive(instructions, ending, [search._wholes[key] for key in region.outputs])
                assert estimate.bytes >= most
                exact.append(estimate.bytes == most)
    assert any(exact)


def tile_rule(source: str, grain: int = 1, **more: int) -> TileRule:
    """Return the rule of an elementwise function; `grain` rows are computed together."""
    return TileRule((source,), replace(same_rows(6), grain=grain), **more)


def chain(*more: dict[str, int], kept: str = "c") -> Network:
    """Return two elementwise steps over six rows of 10 bytes, "a" to "b" to "c"; `more` has fields of their rules."""
    steps = [
        SplitStep(name, (source,), (name,), tile_rule(source, **rule))
        for source, name, rule in zip("ab", "bc", more or ({}, {}), strict=True)
    ]
    values = {name: SplitValue(name, 60, 6) for name in "abc"}
    return Network(tuple(steps), values, ("a",), frozenset(kept))


def computed(network: Network, count: int) -> list[tuple[int, tuple[int, int]]] | None:
    """Return (step, rows) in the order in which `count` tiles compute them; None if that is impossible."""
    instructions = SplitRegion(network, 0, 1, whole_values(network)).expand(count)
    return None if instructions is None else [(i.step, i.rows) for i in instructions if isinstance(i, Compute)]


def test_a_tile_may_be_a_single_row() -> None:
    assert computed(chain(), 6) == [(step, (row, row + 1)) for row in range(6) for step in (0, 1)]


def test_no_tile_has_fewer_rows_than_a_rule_permits() -> None:
    two = chain({"fewest": 2}, {})
    assert computed(two, 3) == [(step, (row, row + 2)) for row in (0, 2, 4) for step in (0, 1)]
    assert computed(two, 4) is None
    assert computed(chain({"fewest": 9}, {}), 1) == [(0, (0, 6)), (1, (0, 6))], "all six rows are enough"


def test_rows_that_belong_together_are_computed_together() -> None:
    # Tile 2 computes rows 3 to 5 of the first step although it needs row 3 only; tile 3 then has them already.
    assert computed(chain({"grain": 3}, {}), 3) == [
        (0, (0, 3)), (1, (0, 2)), (0, (3, 6)), (1, (2, 4)), (1, (4, 6)),
    ]  # fmt: skip


def test_rows_that_are_cheap_are_computed_again() -> None:
    network = chain({"recomputed": True}, {})
    assert computed(network, 2) == [(0, (0, 3)), (1, (0, 3)), (0, (3, 6)), (1, (3, 6))]
    kept = SplitRegion(chain({"recomputed": True}, {}, kept="bc"), 0, 1, whole_values(network))
    assert kept.flow.recomputed == [False, False]


def test_values_without_readers_after_a_region_end_with_it() -> None:
    network = chain()
    search = SplitSearch(network)
    assert [piece.value for piece in search.ending(SplitRegion(network, 0, 1, whole_values(network)))] == ["a"]
    assert [piece.value for piece in search.ending(SplitRegion(network, 1, 1, whole_values(network)))] == ["b"]
    both = chain(kept="ac")
    assert search.network.end["a"] == 0
    assert both.end["a"] == 2
    assert SplitSearch(both).ending(SplitRegion(both, 0, 1, whole_values(both))) == []


def test_a_value_counts_as_alive_from_its_maker_to_its_last_reader() -> None:
    network = chain()
    assert (network.begin, network.end) == ({"a": -1, "b": 0, "c": 1}, {"a": 0, "b": 1, "c": 2})
    assert (network.live, network.peak) == ([120, 120], 120)
    assert chain(kept="abc").live == [120, 180]


def test_a_region_may_read_earlier_values_whole_but_none_of_its_own() -> None:
    network = chain()
    step = network.steps[1]
    assert SplitRegion(network, 0, 1, whole_values(network)).possible
    before = SplitStep("c", ("b", "a"), ("c",), step.rule)
    assert SplitRegion(replace(network, steps=(network.steps[0], before)), 0, 1, whole_values(network)).possible
    whole = SplitStep("c", ("a", "b"), ("c",), tile_rule("a"))
    assert not SplitRegion(replace(network, steps=(network.steps[0], whole)), 0, 1, whole_values(network)).possible
