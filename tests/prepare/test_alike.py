"""What is computed the same way lies at the same place, wherever nothing else does."""

from __future__ import annotations

import random

from support import tile_networks

from isthmus.backends.seam import native
from isthmus.planning import PlannerBuffer, Problem, check, solve
from isthmus.prepare.layout import move_together
from isthmus.prepare.tiling import ScratchLimit


def test_a_buffer_is_moved_to_where_another_one_lay() -> None:
    buffers = [
        PlannerBuffer("a", 0, 2, 64),
        PlannerBuffer("b", 0, 2, 64),
        PlannerBuffer("c", 3, 5, 64),
        PlannerBuffer("d", 3, 5, 64),
    ]
    assert move_together(buffers, [0, 64, 64, 0], [[(2, 0), (3, 1)]], 128) == [0, 64, 0, 64]


def test_a_buffer_that_would_overlap_another_stays() -> None:
    buffers = [PlannerBuffer("a", 0, 2, 64), PlannerBuffer("long", 1, 9, 64), PlannerBuffer("c", 3, 5, 128)]
    assert move_together(buffers, [0, 64, 128], [[(2, 0)]], 256) == [0, 64, 128]
    assert move_together([*buffers[:2], PlannerBuffer("c", 3, 5, 64)], [0, 64, 128], [[(2, 0)]], 192) == [0, 64, 0]


def test_nothing_is_moved_beyond_the_end_of_scratch() -> None:
    buffers = [PlannerBuffer("a", 0, 2, 64), PlannerBuffer("b", 3, 5, 128)]
    assert move_together(buffers, [64, 0], [[(1, 0)]], 128) == [64, 0]


def test_random_layouts_stay_layouts() -> None:
    rng = random.Random(0)
    for _ in range(60):
        buffers = []
        for number in range(30):
            start = rng.randrange(20)
            buffers.append(PlannerBuffer(str(number), start, start + rng.randint(1, 6), 64 * rng.randint(1, 9)))
        problem = Problem(tuple(buffers))
        solution = solve(problem, node_limit=200)
        groups = [[(rng.randrange(30), rng.randrange(30)) for _ in range(6)] for _ in range(4)]
        moved = move_together(buffers, solution.offsets, groups, solution.peak)
        check(problem, moved)
        assert max(at + b.size for at, b in zip(moved, buffers, strict=True)) <= solution.peak


def test_instructions_that_are_the_same_have_one_set_of_words() -> None:
    program = native.prepare(tile_networks.squeezed(False), limit=ScratchLimit.of("30%")).program
    assert len({start for _, start, _ in program.table.tolist()}) < len(program.table)
    whole = native.prepare(tile_networks.squeezed(False)).program
    assert len({start for _, start, _ in whole.table.tolist()}) == len(whole.table)
