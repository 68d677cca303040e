"""The validator finds every kind of broken layout."""

import pytest

from isthmus.planning import Buffer, Gap, PlanningError, Problem, check

PAIR = (Buffer("a", 0, 4, 8), Buffer("b", 2, 6, 8))


def test_the_peak_is_the_end_of_the_highest_buffer():
    assert check(Problem(PAIR), (0, 8)) == 16
    assert check(Problem(PAIR), (8, 100)) == 108
    assert check(Problem(()), ()) == 0


@pytest.mark.parametrize(
    ("problem", "offsets", "message"),
    [
        (Problem(PAIR), (0,), "1 offsets for 2 buffers"),
        (Problem(PAIR), (0, -8), "negative offset"),
        (Problem(PAIR), (0, 7), "buffers 'a' and 'b' share bytes at step 2"),
        (Problem(PAIR), (3, 0), "share bytes"),
        (Problem(PAIR), (0, 0), "share bytes"),
        (Problem(PAIR, capacity=15), (0, 8), "above capacity 15"),
        (Problem((Buffer("a", 0, 1, 8, alignment=16),)), (8,), "not aligned to 16"),
        (Problem((Buffer("a", 0, 1, 8, offset=16),)), (0,), "fixed at 16"),
        (Problem((Buffer("a", 0, 9, 8, gaps=(Gap(2, 4),)), Buffer("b", 3, 5, 8))), (0, 4), "share bytes at step 4"),
    ],
)
def test_a_broken_rule_is_named(problem, offsets, message):
    with pytest.raises(PlanningError, match=message):
        check(problem, offsets)


def test_a_large_buffer_hides_none_below_it():
    problem = Problem((Buffer("tall", 0, 9, 100), Buffer("a", 1, 2, 4), Buffer("b", 3, 4, 4)))
    with pytest.raises(PlanningError, match="'tall' and 'b'"):
        check(problem, (0, 100, 50))


def test_time_apart_and_gaps_and_nothing_at_all_may_share():
    check(Problem((Buffer("a", 0, 4, 8), Buffer("b", 4, 6, 8))), (0, 0))
    check(Problem((Buffer("a", 0, 9, 8, gaps=(Gap(2, 4),)), Buffer("b", 2, 4, 8))), (0, 0))
    check(Problem((Buffer("a", 0, 4, 8), Buffer("empty", 0, 4, 0))), (0, 4))
