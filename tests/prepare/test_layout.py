"""The facts of a plan: which step needs the most memory, what is live there, and what blocks are called."""

from __future__ import annotations

import pytest

from isthmus.graph import DataType, Tensor, TensorType
from isthmus.prepare.layout import _name, _peak
from isthmus.prepare.schedule import PlanRow
from isthmus.prepare.storage import Block


def row(name: str, size: int, first: int, last: int) -> PlanRow:
    return PlanRow(name, size, first, last, 0)


@pytest.mark.parametrize(
    ("rows", "steps", "step", "live"),
    [
        ([], 3, -1, ()),
        ([row("a", 8, 0, 1), row("b", 8, 1, 2)], 3, 1, ("a", "b")),
        ([row("a", 8, 0, 0), row("b", 9, 1, 1)], 2, 1, ("b",)),
        ([row("a", 9, 0, 0), row("b", 9, 1, 1)], 2, 0, ("a",)),
        ([row("a", 8, 0, 2), row("b", 8, 2, 2), row("c", 7, 1, 1)], 3, 2, ("a", "b")),
        # Before the first step and after the last one count to the nearest.
        ([row("a", 8, -1, 0), row("b", 8, 0, 1)], 2, 0, ("a", "b")),
        ([row("a", 8, 0, 3), row("b", 4, 1, 3)], 2, 1, ("a", "b")),
        ([row("a", 8, 0, 1), row("b", 9, 2, 3)], 2, 1, ("a", "b")),
        ([row("in", 8, -1, 0)], 0, 0, ("in",)),
        ([row("a", 0, 0, 1)], 2, -1, ()),
    ],
)
def test_the_peak_is_the_first_step_with_the_most_live_bytes(rows, steps, step, live) -> None:
    assert _peak(rows, steps) == (step, live)


def test_a_block_is_called_by_its_largest_tensor_and_of_equals_by_the_last() -> None:
    def tensor(name: str, size: int) -> Tensor:
        return Tensor(name, TensorType.NATIVE, DataType.INT_8, (size,))

    for sizes, name in (((4, 8, 2), "b"), ((8, 8, 2), "b"), ((2, 4, 8), "c"), ((8, 4, 2), "a")):
        members = [tensor(n, size) for n, size in zip("abc", sizes, strict=True)]
        block = Block(members[0])
        block.members = dict.fromkeys(members, 0)
        assert _name(block) == name
