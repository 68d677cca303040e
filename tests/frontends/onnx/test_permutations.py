"""The arithmetic of permutations, held against numpy's transposes and reshapes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from isthmus.frontends.onnx.layout import (
    channel_last,
    identity,
    inverse,
    keeps_order,
    pad_perm,
    renumber,
    reshape_groups,
)

SHAPES = [(), (3,), (1, 3), (2, 1, 3), (2, 3, 4), (1, 1, 5), (2, 0, 3), (1, 2, 1, 3)]


@pytest.mark.parametrize("dims", SHAPES, ids=str)
def test_an_order_is_kept_exactly_when_the_elements_stay_where_they_are(dims) -> None:
    array = np.arange(math.prod(dims)).reshape(dims)
    for order in itertools.permutations(range(len(dims))):
        stays = array.transpose(order).reshape(-1).tolist() == array.reshape(-1).tolist()
        assert keeps_order(dims, order) is stays, order


@pytest.mark.parametrize("rank", range(5))
def test_permutations_are_undone_and_widened(rank) -> None:
    array = np.arange(math.prod(range(2, 2 + rank))).reshape(tuple(range(2, 2 + rank)))
    for perm in itertools.permutations(range(rank)):
        np.testing.assert_array_equal(array.transpose(perm).transpose(inverse(perm)), array)
        wide = array.reshape((1, 1, *array.shape)).transpose(pad_perm(perm, rank + 2))
        np.testing.assert_array_equal(wide.reshape(array.transpose(perm).shape), array.transpose(perm))
    np.testing.assert_array_equal(array.transpose(identity(rank)), array)


@pytest.mark.parametrize("rank", range(6))
def test_channels_are_stored_last(rank) -> None:
    seen = np.empty(tuple(range(2, 2 + rank))).shape
    stored = seen if rank < 3 else (seen[0], *seen[2:], seen[1])
    assert tuple(stored[p] for p in channel_last(rank)) == seen


def test_axes_that_are_dropped_leave_the_order_of_the_others() -> None:
    assert renumber([5, 0, 2]) == (2, 0, 1)
    assert renumber([]) == ()


def test_a_reshape_splits_into_groups_of_equal_products() -> None:
    for dims, out in itertools.product([*SHAPES, (6, 4), (4, 6), (24,), (2, 12), (12, 2), (24, 1, 1)], repeat=2):
        if math.prod(dims) != math.prod(out) or 0 in dims or 0 in out:
            continue
        groups = reshape_groups(dims, out)
        assert [a for ins, _ in groups for a in ins] == [a for a, d in enumerate(dims) if d != 1], (dims, out)
        assert [a for _, outs in groups for a in outs] == list(range(len(out))), (dims, out)
        for ins, outs in groups:
            assert math.prod(dims[a] for a in ins) == math.prod(out[a] for a in outs), (dims, out)
    assert reshape_groups((2, 3, 4), (6, 4)) == [([0, 1], [0]), ([2], [1])]
    assert reshape_groups((2, 3, 4), (2, 12)) == [([0], [0]), ([1, 2], [1])]
    assert reshape_groups((4, 6), (2, 2, 3, 2)) == [([0], [0, 1]), ([1], [2, 3])]
