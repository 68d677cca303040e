"""How far declared walks reach, held against walks that are really made, byte by byte."""

from __future__ import annotations

import itertools
import random

import pytest

from isthmus.engine.native.signatures.arithmetic import ceil, outer, padded, reach, sum_of, walk


def span(starts: list[int], size: int) -> tuple[int, int]:
    """Return what elements of `size` bytes at these offsets occupy, seen from offset 0."""
    return (min(0, *starts), max(starts) + size) if starts else (0, 0)


@pytest.mark.parametrize("size", [1, 4])
def test_a_reach_is_what_all_sums_of_strides_occupy(size: int) -> None:
    rng = random.Random(1)
    for _ in range(500):
        counts = [rng.randrange(4) for _ in range(rng.randint(1, 3))]
        strides = [rng.randint(-9, 9) for _ in counts]
        places = [sum(i * s for i, s in zip(at, strides, strict=True)) for at in itertools.product(*map(range, counts))]
        assert reach(counts, strides, size) == span(places, size), (counts, strides)
    assert reach([3], [4], 0) == (0, 0)


def places_of(rows: int, dims: list[int], strides: list[int]) -> list[int]:
    """Offsets of the first rows, innermost dimension first; the outermost takes what the others leave."""
    found = []
    for row in range(rows):
        place = 0
        for number, (size, stride) in enumerate(zip(dims, strides, strict=True), 1):
            place += (row if number == len(dims) else row % size) * stride
            row //= size
        found.append(place)
    return found


def test_rows_of_whole_dimensions_reach_exactly_as_far_as_they_lie() -> None:
    rng = random.Random(2)
    for _ in range(500):
        dims = [rng.randint(1, 4) for _ in range(rng.randint(0, 3))]
        strides = [rng.randint(-9, 9) for _ in dims]
        rows = 1
        for size in dims:
            rows *= size
        low, high = outer(rows, dims, strides)
        places = places_of(rows, dims, strides)
        assert (low, high) == (min(0, *places, 0), max(0, *places, 0)), (dims, strides)
    assert outer(0, [3], [5]) == (0, 0)


def test_fewer_rows_reach_at_least_as_far_as_they_lie_and_no_farther_than_all() -> None:
    rng = random.Random(3)
    for _ in range(500):
        dims = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
        strides = [rng.randint(-9, 9) for _ in dims]
        rows = rng.randint(1, 70)
        low, high = outer(rows, dims, strides)
        places = places_of(rows, dims, strides)
        assert low <= min(0, *places, 0)
        assert high >= max(0, *places, 0)
        if len(dims) == 1:
            assert (low, high) == (min(0, *places, 0), max(0, *places, 0))


def test_a_walk_reaches_exactly_as_far_as_its_elements_lie_where_rows_are_whole_or_of_one_dimension() -> None:
    rng = random.Random(4)
    for _ in range(2000):
        inner, size, step = rng.randint(1, 5), rng.choice((1, 4)), rng.randint(0, 5)
        dims = [rng.randint(1, 4) for _ in range(rng.randint(0, 3))]
        strides = [rng.randint(0, 40) for _ in dims]
        rows = 1
        for n in dims:
            rows *= n
        elements = rows * inner - (rng.randrange(inner) if len(dims) == 1 else 0)
        places = [
            place + i * step
            for row, place in enumerate(places_of(rows, dims, strides))
            for i in range(min(inner, elements - row * inner))
        ]
        assert walk(elements, inner, dims, strides, step, size) == span(places, size), (elements, inner, dims, strides)


def test_a_walk_backwards_reaches_before_its_start() -> None:
    assert walk(6, 3, [2], [-12], -4, 4) == (-20, 4)
    assert walk(6, 3, [2], [12], -4, 4) == (-8, 16)
    assert walk(6, 3, [2], [-12], 4, 4) == (-12, 12)


def test_a_walk_over_no_elements_has_an_empty_range() -> None:
    assert walk(0, 3, [2], [12], 4, 4) == (0, 0)
    assert walk(0, 1, [], [], 0, 1) == (0, 0)


def test_a_short_last_row_may_end_before_a_longer_one() -> None:
    # Rows overlap: the whole row before the last ends behind the single element of the last.
    assert walk(6, 5, [2], [4], 4, 4) == (0, 20)
    assert walk(4, 3, [2], [100], 4, 4) == (0, 104)


def test_offsets_add_up() -> None:
    assert sum_of((-3, 5), (-1, 0), (0, 4)) == (-4, 9)


@pytest.mark.parametrize(("count", "by", "pieces"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2)])
def test_pieces_are_counted_upwards(count: int, by: int, pieces: int) -> None:
    assert (ceil(count, by), padded(count, by)) == (pieces, pieces * by)
