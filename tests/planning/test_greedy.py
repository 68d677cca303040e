"""The greedy layout keeps all rules, and is the one that is known by its name."""

import random
import time

import pytest

from isthmus.planning import Gap, PlannerBuffer, PlanningError, Problem, check, greedy, greedy_by_size, lower_bound
from isthmus.planning.conflicts import count_conflicts, find_conflicts
from isthmus.planning.greedy import first_fit, in_order_of_time


def test_the_largest_goes_first_and_each_into_the_lowest_gap() -> None:
    problem = Problem(
        (
            PlannerBuffer("small", 0, 4, 2),
            PlannerBuffer("large", 0, 2, 10),
            PlannerBuffer("middle", 2, 4, 6),
            PlannerBuffer("fills", 2, 4, 4),
        )
    )
    assert greedy_by_size(problem) == (10, 0, 0, 6)


def test_alignment_is_kept() -> None:
    problem = Problem((PlannerBuffer("a", 0, 1, 9), PlannerBuffer("b", 0, 1, 4, alignment=8)))
    assert greedy_by_size(problem) == (0, 16)


def test_fixed_buffers_are_walked_around() -> None:
    problem = Problem(
        (PlannerBuffer("wall", 0, 3, 4, offset=6), PlannerBuffer("a", 0, 2, 8), PlannerBuffer("b", 1, 3, 5))
    )
    assert greedy_by_size(problem) == (6, 10, 0)


def test_gaps_are_used() -> None:
    problem = Problem((PlannerBuffer("a", 0, 9, 8, gaps=(Gap(3, 6),)), PlannerBuffer("b", 3, 6, 8)))
    assert greedy_by_size(problem) == (0, 0)


def test_the_capacity_plays_no_part() -> None:
    problem = Problem((PlannerBuffer("a", 0, 1, 8), PlannerBuffer("b", 0, 1, 8)), capacity=1)
    assert check(Problem(problem.buffers), greedy_by_size(problem)) == 16


def random_problem(seed):
    """Buffers of all kinds; None where fixed ones collide."""
    chance = random.Random(seed)
    buffers = []
    for number in range(chance.randint(1, 60)):
        start = chance.randint(0, 20)
        end = start + chance.randint(1, 15)
        alignment = chance.choice([1, 1, 4, 6])
        gaps = (Gap(start + 1, end - 1),) if end - start > 4 and chance.random() < 0.2 else ()
        offset = alignment * chance.randint(0, 20) if chance.random() < 0.05 else None
        buffers.append(PlannerBuffer(str(number), start, end, chance.randint(0, 30), alignment, offset, gaps))
    try:
        return Problem(tuple(buffers))
    except PlanningError:
        return None


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_a_layout_in_order_of_time_keeps_all_rules(first) -> None:
    tried = 0
    for seed in range(first, first + 100):
        problem = random_problem(seed)
        if problem is not None:
            tried += 1
            assert check(problem, in_order_of_time(problem)) >= lower_bound(problem)
    assert tried > 50


def test_in_order_of_time_memory_is_used_again() -> None:
    problem = Problem(tuple(PlannerBuffer(str(k), k, k + 2, 8 + k % 2) for k in range(100)))
    assert check(problem, in_order_of_time(problem)) <= 2 * lower_bound(problem)
    whole = Problem(tuple(PlannerBuffer(str(k), 0, 9, k) for k in range(1, 50)))
    assert check(whole, in_order_of_time(whole)) == lower_bound(whole)


def test_conflicts_are_counted_as_they_are_listed() -> None:
    for seed in range(60):
        problem = random_problem(seed)
        if problem is not None and not any(buffer.gaps for buffer in problem.buffers):
            assert 2 * count_conflicts(problem) == len(find_conflicts(problem).others)


def test_so_many_conflicts_that_they_are_not_listed_are_placed_in_order_of_time(monkeypatch) -> None:
    problem = Problem((PlannerBuffer("a", 0, 2, 4), PlannerBuffer("b", 1, 3, 8), PlannerBuffer("c", 2, 4, 6)))
    monkeypatch.setattr(greedy, "MAX_CONFLICTS", 1)
    assert greedy_by_size(problem) == in_order_of_time(problem)


def test_a_layout_that_takes_too_long_is_given_up() -> None:
    problem = Problem(tuple(PlannerBuffer(str(k), k, k + 2, 8) for k in range(1000)))
    conflicts = find_conflicts(problem).lists()
    assert first_fit(problem, range(1000), conflicts, deadline=time.perf_counter()) is None
    assert first_fit(problem, range(1000), conflicts) is not None


def test_fixed_buffers_collide_exactly_where_they_share_bytes() -> None:
    collisions = 0
    for seed in range(300):
        chance = random.Random(seed)
        fixed = []
        for k in range(6):
            start, offset, size = chance.randint(0, 6), chance.randint(0, 20), chance.randint(1, 6)
            fixed.append(PlannerBuffer(str(k), start, start + chance.randint(1, 4), size, offset=offset))
        share = any(
            a.start < b.end and b.start < a.end and a.offset < b.offset + b.size and b.offset < a.offset + a.size
            for k, a in enumerate(fixed)
            for b in fixed[:k]
        )
        collisions += share
        if share:
            with pytest.raises(PlanningError, match="collides"):
                Problem(tuple(fixed))
        else:
            Problem(tuple(fixed))
    assert 50 < collisions < 290
