"""The greedy layout keeps all rules, and is the one that is known by its name."""

from isthmus.planning import Buffer, Gap, Problem, check, greedy_by_size


def test_the_largest_goes_first_and_each_into_the_lowest_gap():
    problem = Problem(
        (
            Buffer("small", 0, 4, 2),
            Buffer("large", 0, 2, 10),
            Buffer("middle", 2, 4, 6),
            Buffer("fills", 2, 4, 4),
        )
    )
    assert greedy_by_size(problem) == (10, 0, 0, 6)


def test_alignment_is_kept():
    problem = Problem((Buffer("a", 0, 1, 9), Buffer("b", 0, 1, 4, alignment=8)))
    assert greedy_by_size(problem) == (0, 16)


def test_fixed_buffers_are_walked_around():
    problem = Problem((Buffer("wall", 0, 3, 4, offset=6), Buffer("a", 0, 2, 8), Buffer("b", 1, 3, 5)))
    assert greedy_by_size(problem) == (6, 10, 0)


def test_gaps_are_used():
    problem = Problem((Buffer("a", 0, 9, 8, gaps=(Gap(3, 6),)), Buffer("b", 3, 6, 8)))
    assert greedy_by_size(problem) == (0, 0)


def test_the_capacity_plays_no_part():
    problem = Problem((Buffer("a", 0, 1, 8), Buffer("b", 0, 1, 8)), capacity=1)
    assert check(Problem(problem.buffers), greedy_by_size(problem)) == 16
