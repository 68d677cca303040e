"""Problems say what is wrong with them when they are made."""

import pytest

from isthmus.planning import Gap, PlannerBuffer, PlanningError, Problem


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PlannerBuffer("b", 5, 5, 1), "ends at 5, not after its start 5"),
        (lambda: PlannerBuffer("b", 5, 4, 1), "ends at 4, not after its start 5"),
        (lambda: PlannerBuffer("b", 0, 1, -1), "size -1 is negative"),
        (lambda: PlannerBuffer("b", 0, 1, 2**60), "above the limit"),
        (lambda: PlannerBuffer("b", 0, 2**63, 1), "above the limit"),
        (lambda: PlannerBuffer("b", 0, 1, 1.5), "must be an integer"),
        (lambda: PlannerBuffer("b", 0, 1, True), "must be an integer"),
        (lambda: PlannerBuffer("b", 0, 1, 1, alignment=0), "alignment 0"),
        (lambda: PlannerBuffer("b", 0, 1, 1, offset=-8), "offset -8 is negative"),
        (lambda: PlannerBuffer("b", 0, 1, 1, alignment=8, offset=12), "not a multiple of alignment 8"),
        (lambda: Gap(4, 4), "gap ends at 4"),
        (lambda: PlannerBuffer("b", 0, 9, 1, gaps=(Gap(0, 3),)), "inside the lifetime"),
        (lambda: PlannerBuffer("b", 0, 9, 1, gaps=(Gap(3, 9),)), "inside the lifetime"),
        (lambda: PlannerBuffer("b", 0, 9, 1, gaps=(Gap(3, 5), Gap(5, 6))), "after the gap before it"),
        (lambda: Problem((PlannerBuffer("b", 0, 1, 1), PlannerBuffer("b", 1, 2, 1))), "two buffers have the id 'b'"),
        (lambda: Problem((), capacity=-1), "capacity -1 is negative"),
        (lambda: Problem(tuple(PlannerBuffer(str(i), 0, 1, 2**48) for i in range(5000))), "together exceed"),
    ],
)
def test_what_cannot_be_is_refused(make, message) -> None:
    with pytest.raises(PlanningError, match=message):
        make()


def test_fixed_buffers_that_share_bytes_at_one_time_collide() -> None:
    below = PlannerBuffer("a", 0, 5, 10, offset=0)
    above = PlannerBuffer("b", 4, 9, 10, offset=8)
    with pytest.raises(PlanningError, match="fixed offset 8 collides with buffer 'a'") as caught:
        Problem((below, above))
    assert caught.value.buffer == 1


def test_fixed_buffers_may_share_bytes_at_different_times_and_in_gaps() -> None:
    Problem((PlannerBuffer("a", 0, 4, 10, offset=0), PlannerBuffer("b", 4, 9, 10, offset=8)))
    Problem((PlannerBuffer("a", 0, 9, 10, offset=0, gaps=(Gap(2, 6),)), PlannerBuffer("b", 2, 6, 10, offset=0)))


def test_lifetimes_leave_out_the_gaps() -> None:
    assert PlannerBuffer("b", 0, 9, 1, gaps=(Gap(1, 2), Gap(4, 7))).lifetimes == ((0, 1), (2, 4), (7, 9))
