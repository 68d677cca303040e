"""The validator finds every kind of broken layout."""

import random

import pytest

from isthmus.planning import Gap, PlannerBuffer, PlanningError, Problem, check

PAIR = (PlannerBuffer("a", 0, 4, 8), PlannerBuffer("b", 2, 6, 8))


def test_the_peak_is_the_end_of_the_highest_buffer() -> None:
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
        (Problem((PlannerBuffer("a", 0, 1, 8, alignment=16),)), (8,), "not aligned to 16"),
        (Problem((PlannerBuffer("a", 0, 1, 8, offset=16),)), (0,), "fixed at 16"),
        (
            Problem((PlannerBuffer("a", 0, 9, 8, gaps=(Gap(2, 4),)), PlannerBuffer("b", 3, 5, 8))),
            (0, 4),
            "share bytes at step 4",
        ),
    ],
)
def test_a_broken_rule_is_named(problem, offsets, message) -> None:
    with pytest.raises(PlanningError, match=message):
        check(problem, offsets)


def test_a_large_buffer_hides_none_below_it() -> None:
    problem = Problem((PlannerBuffer("tall", 0, 9, 100), PlannerBuffer("a", 1, 2, 4), PlannerBuffer("b", 3, 4, 4)))
    with pytest.raises(PlanningError, match="'tall' and 'b'"):
        check(problem, (0, 100, 50))


def test_buffers_of_other_lifetimes_in_gaps_or_without_bytes_may_overlap() -> None:
    check(Problem((PlannerBuffer("a", 0, 4, 8), PlannerBuffer("b", 4, 6, 8))), (0, 0))
    check(Problem((PlannerBuffer("a", 0, 9, 8, gaps=(Gap(2, 4),)), PlannerBuffer("b", 2, 4, 8))), (0, 0))
    check(Problem((PlannerBuffer("a", 0, 4, 8), PlannerBuffer("empty", 0, 4, 0))), (0, 4))


def overlap(problem: Problem, offsets: tuple[int, ...]) -> bool:
    """Return whether two buffers share a byte at some step, by looking at every byte of every step."""
    taken: set[tuple[int, int]] = set()
    for buffer, offset in zip(problem.buffers, offsets, strict=True):
        steps = [t for t in range(buffer.start, buffer.end) if not any(g.start <= t < g.end for g in buffer.gaps)]
        cells = {(t, byte) for t in steps for byte in range(offset, offset + buffer.size)}
        if cells & taken:
            return True
        taken |= cells
    return False


def test_every_overlap_is_found_and_none_is_made_up() -> None:
    rng = random.Random(3)
    ends = {True: 0, False: 0}
    for _ in range(2000):
        buffers = []
        for name in "abcd"[: rng.randint(2, 4)]:
            start = rng.randrange(6)
            end = start + rng.randint(1, 6)
            middle = sorted(rng.sample(range(start + 1, end), 2)) if end - start > 3 and rng.random() < 0.5 else ()
            buffers.append(PlannerBuffer(name, start, end, rng.randrange(5), gaps=(Gap(*middle),) if middle else ()))
        problem, offsets = Problem(tuple(buffers)), tuple(rng.randrange(12) for _ in buffers)
        broken = overlap(problem, offsets)
        ends[broken] += 1
        if broken:
            with pytest.raises(PlanningError, match="share bytes"):
                check(problem, offsets)
        else:
            assert check(problem, offsets) == max(o + b.size for b, o in zip(buffers, offsets, strict=True))
    assert min(ends.values()) > 500
