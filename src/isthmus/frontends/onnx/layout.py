"""Values as they are stored and as ONNX sees them: logical = transpose(stored, perm).

ONNX is channel-first, graphs are channel-last. A transpose only changes a value's permutation. Data moves when an
operation needs an order other than the stored one. This module has the value class and the arithmetic of permutations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from isthmus.graph.tensor import Tensor

_Item = TypeVar("_Item")
Perm = tuple[int, ...]
"""A permutation of axes. Element i is the stored axis of logical axis i."""


@dataclass(frozen=True)
class OnnxValue:
    """A tensor and the permutation that gives ONNX's view of it: logical axis i is stored axis perm[i]."""

    tensor: Tensor
    perm: Perm

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions in ONNX's view."""
        return tuple(self.tensor.dims[p] for p in self.perm)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.perm)

    @property
    def is_static(self) -> bool:
        """Whether the value is a constant."""
        return self.tensor.is_static

    @staticmethod
    def of(tensor: Tensor) -> OnnxValue:
        """Return the value of a tensor that is stored in ONNX's axis order."""
        return OnnxValue(tensor, identity(tensor.rank))

    def permute(self, order: Sequence[int] | None = None) -> OnnxValue:
        """Apply ONNX's Transpose; by default axes are reversed. It only changes the permutation; no data moves yet."""
        order = tuple(reversed(range(self.rank)) if order is None else order)
        if sorted(order) != list(range(self.rank)):
            raise ValueError(f"perm {list(order)} is not a permutation of {self.rank} axes")
        return OnnxValue(self.tensor, tuple(self.perm[axis] for axis in order))

    def perm_with_last(self, axis: int) -> Perm:
        """Return the permutation of the value if it is stored with this axis last and the others in their order."""
        stored = self.perm[axis]
        return tuple(self.rank - 1 if p == stored else p - (p > stored) for p in self.perm)

    def by_stored_axis(self, by_axis: Mapping[int, _Item], default: Sequence[_Item]) -> list[_Item]:
        """Return an item for each axis as it is stored: those by the axes of ONNX's view, or the default."""
        items = list(default)
        for axis, item in by_axis.items():
            items[self.perm[axis]] = item
        return items


def identity(rank: int) -> Perm:
    """Return the permutation that changes nothing."""
    return tuple(range(rank))


def inverse(perm: Sequence[int]) -> Perm:
    """Return the permutation that undoes `perm`."""
    result = [0] * len(perm)
    for i, p in enumerate(perm):
        result[p] = i
    return tuple(result)


def channel_last(rank: int) -> Perm:
    """Return the permutation of a value that is N, C, spatial… in ONNX's view and stored as N, spatial…, C."""
    return identity(rank) if rank < 3 else (0, rank - 1, *range(1, rank - 1))


def keeps_order(dims: Sequence[int], order: Sequence[int]) -> bool:
    """Return whether taking axes in this order leaves all elements in place, so that only axes of size 1 move."""
    moving = [axis for axis in order if dims[axis] != 1]
    return moving == sorted(moving) or 0 in dims


def renumber(perm: Sequence[int]) -> Perm:
    """Return the permutation of 0..n-1 with the same relative order, after some axes were dropped."""
    ranks = {p: i for i, p in enumerate(sorted(perm))}
    return tuple(ranks[p] for p in perm)


def pad_perm(perm: Perm, rank: int) -> Perm:
    """Return the permutation of the same value with leading axes of size 1 added."""
    added = rank - len(perm)
    return (*range(added), *(p + added for p in perm))


def reshape_groups(dims: Sequence[int], out: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Split a reshape into the smallest groups (axes of `dims`, axes of `out`) with equal products.

    Axes of size 1 in `dims` belong to no group; those in `out` join a neighbouring group.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(dims) or j < len(out):
        ins: list[int] = []
        outs: list[int] = []
        in_size = out_size = 1
        while True:
            if in_size == out_size and ins:
                break
            if in_size <= out_size and i < len(dims):
                if dims[i] != 1:
                    ins.append(i)
                    in_size *= dims[i]
                i += 1
            elif j < len(out):
                outs.append(j)
                out_size *= out[j]
                j += 1
            else:
                break
        if not ins and groups:
            groups[-1][1].extend(outs)
        else:
            groups.append((ins, outs))
    return groups
