"""The lower bound counts what is live at once, with the padding that alignment forces."""

from isthmus.planning import Gap, PlannerBuffer, Problem, lower_bound


def bound(*buffers):
    return lower_bound(Problem(buffers))


def test_nothing_needs_nothing() -> None:
    assert bound() == 0


def test_the_bound_is_the_largest_sum_of_sizes_live_at_one_step() -> None:
    assert bound(PlannerBuffer("a", 0, 2, 5), PlannerBuffer("b", 1, 3, 7), PlannerBuffer("c", 2, 4, 6)) == 13


def test_lifetimes_are_half_open() -> None:
    assert bound(PlannerBuffer("a", 0, 2, 5), PlannerBuffer("b", 2, 3, 7)) == 7


def test_a_gap_frees_the_memory() -> None:
    assert bound(PlannerBuffer("a", 0, 9, 5, gaps=(Gap(2, 6),)), PlannerBuffer("b", 2, 6, 7)) == 7
    assert bound(PlannerBuffer("a", 0, 9, 5, gaps=(Gap(2, 6),)), PlannerBuffer("b", 2, 7, 7)) == 12


def test_all_but_one_buffer_fill_their_last_multiple_of_the_alignment() -> None:
    # Whichever of the two lies on top, the other ends on a multiple of 8.
    assert bound(PlannerBuffer("a", 0, 1, 9, alignment=8), PlannerBuffer("b", 0, 1, 2, alignment=8)) == 8 + 9


def test_the_padding_that_is_saved_is_that_of_a_buffer_live_at_the_step() -> None:
    wide = [PlannerBuffer(name, 0, 1, 9, alignment=8) for name in "ab"]
    elsewhere = PlannerBuffer("c", 1, 2, 1, alignment=8)
    assert bound(*wide, elsewhere) == 16 + 9


def test_small_buffers_may_fill_the_padding_of_aligned_ones() -> None:
    coarse = [PlannerBuffer(name, 0, 1, 1, alignment=16) for name in "ab"]
    fine = PlannerBuffer("c", 0, 1, 15)
    assert bound(*coarse, fine) == 17


def test_a_fixed_buffer_needs_the_room_up_to_its_end() -> None:
    assert bound(PlannerBuffer("a", 0, 1, 4, offset=96)) == 100
    assert bound(PlannerBuffer("a", 0, 1, 0, offset=96)) == 96
