"""Which inputs and outputs of a schedule may be the same memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.graph import DataType, Tensor, TensorType
from isthmus.prepare.inplace import shareable_io
from isthmus.prepare.schedule import Place, Pool, Repeat, RowRange, Schedule, Step


def tensor(name: str, type: TensorType = TensorType.NATIVE, size: int = 16) -> Tensor:
    return Tensor(name, type, DataType.FLOAT_32, (1, size))


X, Z = tensor("x", TensorType.APP_WRITE), tensor("z", TensorType.APP_WRITE)
Y, A = tensor("y", TensorType.APP_READ), tensor("a")


def schedule(*steps: Step, **more: object) -> Schedule:
    """A schedule of the inputs x and z and the output y, with a in scratch."""
    places = {X: Place(Pool.IO, 0), Z: Place(Pool.IO + 1, 0), Y: Place(Pool.IO + 2, 0), A: Place(Pool.SCRATCH, 0)}
    places.update(more.pop("places", {}))  # type: ignore[call-overload]
    return Schedule(
        "g", steps, (X, Z), (Y,), (), places, (0,) * len(steps), (0,) * len(steps), 64, 0, (), (), 64, **more
    )  # type: ignore[arg-type]


def step(op: str, inputs: list[Tensor], output: Tensor, **more: object) -> Step:
    return Step(op, output.name, list(inputs), [output], **more)  # type: ignore[arg-type]


FIRST, LAST = step("Softmax", [X], A), step("Softmax", [A], Y)


def test_an_input_that_is_read_before_the_output_is_written_may_be_its_memory() -> None:
    assert shareable_io(schedule(FIRST, LAST)) == {(0, 0), (1, 0)}
    assert shareable_io(schedule(LAST, FIRST)) == {(1, 0)}, "z is never read"


@pytest.mark.parametrize("threads", [1, 2])
def test_repeated_steps_read_again_what_they_have_overwritten(threads) -> None:
    assert shareable_io(schedule(FIRST, LAST, repeats=(Repeat(0, 1, 4, {}, threads),))) == {(1, 0)}
    after = step("Relu", [Z], A)
    assert shareable_io(schedule(after, FIRST, LAST, repeats=(Repeat(1, 2, 4, {}, threads),))) == {(1, 0)}
    alone = step("Relu", [X], Y)
    assert shareable_io(schedule(alone, repeats=(Repeat(0, 0, 4, {}, threads),))) == {(1, 0)}


@pytest.mark.parametrize(
    ("made", "pairs"),
    [
        (step("Relu", [X], Y), {(0, 0), (1, 0)}),
        (step("ElementWiseAdd", [X, Z], Y), {(0, 0), (1, 0)}),
        (step("ElementWiseAdd", [X, tensor("row", TensorType.APP_WRITE, 1)], Y), {(0, 0), (1, 0)}),
        (step("Softmax", [X], Y), {(1, 0)}),
        (step("ScatterElements", [X, A, Z], Y), {(0, 0)}),
        (step("ScatterElements", [X, A, X], Y), {(1, 0)}),
        (step("Relu", [X], Y, part=RowRange(1, 0, 16, 1, 0, 16)), {(1, 0)}),
    ],
    ids=lambda made: getattr(made, "op", None),
)
def test_one_step_may_overwrite_what_it_reads_at_the_same_position_only(made, pairs) -> None:
    row = {t: Place(Pool.SCRATCH, 0) for t in made.inputs if t not in (X, Z, A)}
    assert shareable_io(schedule(made, places=row)) == pairs


def test_a_part_of_an_input_is_not_the_output() -> None:
    half, other = tensor("half", size=8), tensor("other", size=8)
    second = {half: Place(Pool.IO, 32), other: Place(Pool.IO + 2, 0)}
    assert shareable_io(schedule(step("Relu", [half], other), places=second)) == {(1, 0)}
    moved = replace(schedule(step("Relu", [X], A)), places={X: Place(Pool.IO, 0), A: Place(Pool.IO + 2, 4)})
    assert shareable_io(moved) == {(1, 0)}


def test_memory_of_another_size_is_no_pair() -> None:
    small = tensor("small", TensorType.APP_READ, 8)
    other = replace(schedule(FIRST), outputs=(small,), places={X: Place(Pool.IO, 0), A: Place(Pool.SCRATCH, 0)})
    assert shareable_io(other) == set()
