"""What of a problem need not be searched: the parts that it comes apart into."""

import math

from isthmus.planning import Gap, PlannerBuffer, Problem, portfolio
from isthmus.planning.attempt import Task
from isthmus.planning.component import Parts, Scale, take_apart
from isthmus.planning.conflicts import find_conflicts
from planning.squares import square_in_pieces


def parts_of(capacity: int, *buffers: PlannerBuffer) -> Parts:
    problem = Problem(buffers)
    return take_apart(problem, Scale.of(problem), find_conflicts(problem), capacity)


def test_a_buffer_that_is_set_aside_is_no_neighbour_of_the_others_any_more() -> None:
    """The middle buffer surely finds room only once the first, which fits anywhere, is set aside."""
    buffers = PlannerBuffer("first", 0, 2, 1), PlannerBuffer("middle", 1, 4, 2), PlannerBuffer("last", 3, 6, 4)
    parts = parts_of(7, *buffers)
    assert (parts.components, parts.settled, sorted(parts.last)) == ([], {}, [0, 1, 2])
    assert parts.last.index(1) < parts.last.index(0), "what was set aside first is placed last"


def test_what_finds_room_only_in_some_layouts_is_searched() -> None:
    buffers = PlannerBuffer("first", 0, 2, 1), PlannerBuffer("middle", 1, 4, 2), PlannerBuffer("last", 3, 6, 4)
    parts = parts_of(6, *buffers)
    assert parts.last == [0]
    assert parts.settled == {1: 0, 2: 2}, "these two meet one another and no other: a stack"


CHAIN = [("a", 0, 3, 6), ("b", 2, 5, 7), ("c", 4, 7, 6), ("d", 6, 9, 7)]
"""None meets all others, and together any two that meet leave little of the memory they need."""


def test_a_buffer_is_set_aside_where_its_neighbours_leave_just_enough() -> None:
    """Neighbours of 13 bytes have three holes beside them: with four bytes more, one of them holds two."""
    buffers = [*(PlannerBuffer(*each) for each in CHAIN), PlannerBuffer("small", 2, 3, 2)]
    assert parts_of(17, *buffers).last == [4]
    assert parts_of(16, *buffers).last == []


def test_buffers_on_two_sides_of_a_moment_that_none_spans_come_apart() -> None:
    buffers = [
        PlannerBuffer(f"{name}{side}", s + side, e + side, size) for side in (0, 9) for name, s, e, size in CHAIN
    ]
    found = sorted(parts_of(15, *buffers).components, key=lambda c: c.members)
    assert [(c.members, c.base, c.sections) for c in found] == [([0, 1, 2, 3], 0, 3), ([4, 5, 6, 7], 0, 3)]
    for c in found:
        assert (c.left.tolist(), c.right.tolist()) == ([0, 0, 1, 2], [1, 2, 3, 3])
        assert c.piece_first.tolist() == [0, 1, 2, 3, 4]
        assert (c.piece_left.tolist(), c.piece_right.tolist()) == (c.left.tolist(), c.right.tolist())


def test_a_buffer_that_pauses_spans_its_pause() -> None:
    """The first two and the last two would be apart but for the one that is live with either."""
    sides = [
        PlannerBuffer("a", 0, 3, 6),
        PlannerBuffer("b", 2, 4, 7),
        PlannerBuffer("c", 6, 8, 6),
        PlannerBuffer("d", 7, 9, 7),
    ]
    (component,) = parts_of(19, *sides, PlannerBuffer("paused", 1, 9, 6, gaps=(Gap(3, 7),))).components
    assert (component.members, component.sections) == ([0, 1, 2, 3, 4], 2)
    assert component.piece_first.tolist() == [0, 1, 2, 3, 4, 6]
    assert (component.left.tolist()[4], component.right.tolist()[4]) == (0, 2)


def test_a_buffer_that_is_live_with_all_others_is_placed_below_them() -> None:
    parts = parts_of(18, PlannerBuffer("under", 0, 9, 5), *(PlannerBuffer(*each) for each in CHAIN))
    assert parts.settled == {0: 0}
    assert [(c.members, c.base) for c in parts.components] == [([1, 2, 3, 4], 5)]


def test_only_what_the_last_attempts_learnt_is_kept() -> None:
    problem = square_in_pieces(40, seed=1)
    scale, conflicts = Scale.of(problem), find_conflicts(problem)
    component = max(take_apart(problem, scale, conflicts, 256).components, key=lambda each: len(each.members))
    task = Task(problem, scale, component, conflicts)
    for first, attempts in ((0, 5), (5, 2)):
        limits = portfolio.SearchBudget(math.inf, 10**6, 1)
        found = portfolio.answer(task, 256, first, attempts, 10, limits)
        assert (found.offsets, found.turns, found.nodes) == (None, attempts, 10 * attempts)
        assert sorted(task.blame) == [first + attempts - 2, first + attempts - 1]


def test_units_lose_nothing() -> None:
    problem = Problem(
        (PlannerBuffer("a", 0, 1, 100, 32), PlannerBuffer("b", 0, 1, 64, 64), PlannerBuffer("c", 0, 1, 32, 32, 256))
    )
    scale = Scale.of(problem)
    assert scale.unit == math.gcd(128, 64, 32, 256) == 32
    assert (scale.size, scale.alignment) == ([4, 2, 1], [1, 2, 1])
    assert scale.fixed[2] == 8
    assert [scale.is_plain(i) for i in range(3)] == [True, False, False]
