"""The private tensors of an iteration of repeated steps, and what the iteration before must have completed."""

from __future__ import annotations

import random

import pytest

from isthmus.graph import DataType, Tensor, TensorType
from isthmus.prepare.layout import Demand, lay_out, thread_arenas
from isthmus.prepare.pipelining import _Access, _meet, awaited_steps, own_blocks
from isthmus.prepare.schedule import Place, Pool, Repeat, Step
from isthmus.prepare.storage import Life, Storage


def tensor(name: str, size: int = 64) -> Tensor:
    return Tensor(name, TensorType.NATIVE, DataType.UINT_8, (size,))


def step(inputs: list[Tensor], output: Tensor) -> Step:
    return Step("Relu", output.name, list(inputs), [output])


X, A, B, KEPT, Y = (tensor(name) for name in ("x", "a", "b", "kept", "y"))
# Rows of x become rows of y by way of two tensors; the first needs what the iteration before has kept of the second.
STEPS = [step([X, KEPT], A), step([A], B), step([B], KEPT), step([B], Y)]
PLACES = {
    X: Place(Pool.IO, 0), Y: Place(Pool.IO + 1, 0),
    A: Place(Pool.SCRATCH, 0), B: Place(Pool.SCRATCH, 64), KEPT: Place(Pool.SCRATCH, 256),
}  # fmt: skip


def repeat(advances=None, threads: int = 2, times: int = 9, arena=(0, 128)) -> Repeat:
    return Repeat(0, 3, times, {X: 64, Y: 64} if advances is None else advances, threads, arena)


def test_an_iteration_waits_for_tensors_that_the_one_before_writes_for_it() -> None:
    # The first step reads what the third writes; the others follow those of the iteration before.
    assert awaited_steps(STEPS, repeat(), PLACES) == (2, 1, 2, 3)


def test_an_iteration_waits_until_tensors_outside_the_arenas_are_no_longer_read() -> None:
    assert awaited_steps(STEPS, repeat(arena=(0, 64)), PLACES) == (2, 3, 2, 3)


@pytest.mark.parametrize(("move", "first"), [(64, 1), (63, 3), (32, 3), (0, 3), (-64, 1), (-63, 3)])
def test_a_step_waits_for_moving_rows_only_where_they_overlap(move, first) -> None:
    # The second step writes a whole tensor by rows that the fourth reads again.
    whole = tensor("whole")
    steps = [step([X], A), step([A], whole), step([A], B), step([whole], Y)]
    places = PLACES | {whole: Place(Pool.SCRATCH, 1024)}
    assert awaited_steps(steps, repeat({X: 64, Y: 64, whole: move}), places)[1] == first


def test_a_step_waits_for_rows_that_move_at_another_speed_if_they_will_overlap() -> None:
    behind, ahead = tensor("behind"), tensor("ahead")
    steps = [step([X], ahead), step([ahead], A), step([A], behind), step([A], Y)]
    places = PLACES | {ahead: Place(Pool.SCRATCH, 4096), behind: Place(Pool.SCRATCH, 4096 + 640)}
    moves = {X: 64, Y: 64, ahead: 128, behind: 64}
    # What moves by 64 bytes an iteration is reached by what moves by 128 in the tenth, and not before.
    assert awaited_steps(steps, repeat(moves, times=9), places)[0] == 0
    assert awaited_steps(steps, repeat(moves, times=10), places)[0] == 2


def test_more_threads_are_further_apart() -> None:
    # What moves by 64 bytes an iteration reaches what does not move after two: two threads are never so far apart.
    moving, still = tensor("moving"), tensor("still")
    steps = [step([X], A), step([A], moving), step([A], B), step([still], Y)]
    places = PLACES | {moving: Place(Pool.SCRATCH, 1024), still: Place(Pool.SCRATCH, 1024 + 128)}
    moves = {X: 64, Y: 64, moving: 64}
    assert awaited_steps(steps, repeat(moves, threads=2, times=2), places)[1] == 1
    assert awaited_steps(steps, repeat(moves, threads=3, times=3), places)[1] == 3


@pytest.mark.parametrize("seed", range(20))
def test_conflicting_accesses_are_those_that_trying_every_iteration_finds(seed) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        one, other = (
            _Access(0, True, low, low + rng.randint(1, 9), rng.randint(-6, 6))
            for low in (rng.randint(0, 40), rng.randint(0, 40))
        )
        many = repeat(threads=rng.randint(2, 4), times=rng.randint(1, 12))
        tried = any(
            one.low + later * one.stride < other.high + earlier * other.stride
            and other.low + earlier * other.stride < one.high + later * one.stride
            for earlier in range(many.times)
            for later in range(earlier + 1, min(earlier + many.threads, many.times))
        )
        assert _meet(one, other, many) == tried, (one, other, many)


def test_tensors_that_only_one_iteration_writes_and_reads_are_private() -> None:
    storage = Storage()
    before, after = step([X], KEPT), step([Y, B], tensor("z"))
    steps = [before, *STEPS]
    one = Repeat(1, 4, 9, {}, 2)
    for every, own in ((steps, {A, B}), ([*steps, after], {A})):
        life = Life(every, storage, [X], [Y], [(one.first, one.last)])
        found = {t for block in own_blocks(every, storage, life, one) for t in block.members}
        assert found == own


def test_tensors_that_are_read_before_they_are_written_are_not_private() -> None:
    storage = Storage()
    one = Repeat(0, 3, 9, {}, 2)
    life = Life(STEPS, storage, [X], [Y], [(one.first, one.last)])
    assert {t for block in own_blocks(STEPS, storage, life, one) for t in block.members} == {A, B}


def test_each_thread_has_an_arena_for_all_tensors_of_an_iteration() -> None:
    storage = Storage()
    life = Life(STEPS, storage, [X], [Y], [(0, 3)])
    blocks = [storage.block(t) for t in (A, B, KEPT)]
    own = [storage.block(t) for t in (A, B)]
    spaces = [0, 192, 0, 0]
    arenas = thread_arenas(repeat(threads=3), own, life, spaces, 64, 1000)
    layout = lay_out(Demand(STEPS, blocks, life, spaces, [arenas]), 64, 1000)
    ((begin, arena),) = layout.arenas
    # A, B and a work space of 192 bytes are there at once.
    assert arena == 320
    assert layout.plan.bytes == 3 * 320 + 64
    assert {begin <= layout.blocks[block] < begin + arena for block in own} == {True}
    assert begin <= layout.work[1] <= begin + arena - 192
    kept = layout.blocks[storage.block(KEPT)]
    assert kept + 64 <= begin or kept >= begin + 3 * arena


def test_arenas_share_no_cache_line() -> None:
    storage = Storage()
    life = Life(STEPS, storage, [X], [Y], [(0, 3)])
    small = [step([X, KEPT], A), *STEPS[1:]]
    own = [storage.block(t) for t in (A, B)]
    spaces = [0, 1, 0, 0]
    arenas = thread_arenas(repeat(), own, life, spaces, 1, 1000)
    layout = lay_out(Demand(small, own, life, spaces, [arenas]), 1, 1000)
    assert [size % 64 for _, size in layout.arenas] == [0]
