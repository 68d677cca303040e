"""Decomposition of a problem: easy buffers are set aside, and the hard ones form independent components.

Three facts make most problems small. Buffers on different sides of a point in time that no buffer spans do not
conflict. A buffer that conflicts with all others of its component may be placed below them. And a buffer always finds
space, wherever the others are, if its neighbours leave more memory free than the total of all holes that are too small
for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from isthmus.planning.conflicts import Conflicts
from isthmus.planning.problem import Problem

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Scale:
    """A problem in the largest unit that loses no precision.

    With all sizes rounded up to the common alignment, every offset is a multiple of `unit` in a layout where no buffer
    can move down.

    - `size`, `alignment`: size and alignment of each buffer, in units.
    - `fixed`: the fixed offset of each buffer in units, or -1.
    """

    unit: int
    size: list[int]
    alignment: list[int]
    fixed: list[int]

    @classmethod
    def of(cls, problem: Problem) -> Scale:
        """Convert a problem: the unit is the greatest common divisor of all sizes, alignments and fixed offsets."""
        buffers = problem.buffers
        step = math.gcd(*(b.alignment for b in buffers))
        size = [-(-b.size // step) * step for b in buffers]
        mixed = [b.alignment for b in buffers if b.alignment != step]
        unit = math.gcd(*size, *mixed, *(b.offset for b in buffers if b.offset is not None)) or 1
        # Alignments that divide the unit no longer have a cost.
        return cls(
            unit,
            [s // unit for s in size],
            [max(b.alignment // unit, 1) for b in buffers],
            [-1 if b.offset is None else b.offset // unit for b in buffers],
        )

    def is_plain(self, index: int) -> bool:
        """Return whether a buffer may be at any multiple of the unit."""
        return self.alignment[index] == 1 and self.fixed[index] < 0


@dataclass
class Component:
    """Connected buffers, with time divided into sections: the moments at which the set of live buffers is maximal.

    - `members`: indices of the buffers in the problem; all tables below are in this order.
    - `base`: units below the component that are occupied by buffers set aside.
    - `piece_first`, `piece_left`, `piece_right`: sections in which each buffer is live: pieces ``piece_first[i]`` to
      ``piece_first[i + 1]``, each a half-open range.
    - `left`, `right`: the first section of each buffer, and the one after its last.
    """

    members: list[int]
    base: int
    piece_first: Ints
    piece_left: Ints
    piece_right: Ints
    left: Ints
    right: Ints
    sections: int


@dataclass
class Parts:
    """A problem split into parts.

    - `settled`: offset in units of each buffer that cannot affect any other.
    - `last`: buffers that always find space after all others are placed, in the order in which to place them.
    """

    settled: dict[int, int] = field(default_factory=dict)
    components: list[Component] = field(default_factory=list)
    last: list[int] = field(default_factory=list)


def take_apart(
    problem: Problem, scale: Scale, conflicts: Conflicts, capacity: int, deadline: float = math.inf
) -> Parts | None:
    """Split a problem into components, for any capacity of at least `capacity` bytes.

    Return None if this takes longer than the deadline, a time of `time.perf_counter`.
    """
    parts = Parts()
    neighbours = conflicts.lists()
    capacity_units = capacity // scale.unit
    everything = [i for i, b in enumerate(problem.buffers) if b.size]
    # Buffers of zero bytes conflict with none.
    parts.settled.update((i, max(scale.fixed[i], 0)) for i, b in enumerate(problem.buffers) if not b.size)
    # Buffers that are still to be split, and the units below them that are occupied. Setting buffers aside can
    # disconnect the others, so what remains is split again.
    work = [(everything, 0)]
    while work:
        if time.perf_counter() >= deadline:
            return None
        members, base = work.pop()
        members = _without_easy(members, capacity_units - base, scale, neighbours, parts.last)
        for component in _components(problem, members, base):
            bottom = _bottom(problem, scale, component)
            if not bottom:
                parts.components.append(component)
                continue
            for index in bottom:
                parts.settled[index] = base
                base += scale.size[index]
            work.append(([i for i in component.members if i not in parts.settled], base))
            base = component.base
    # A buffer was set aside without regard to those set aside before it, so they are placed after it.
    parts.last.reverse()
    return parts


def _without_easy(
    members: list[int], room: int, scale: Scale, neighbours: Sequence[Sequence[int]], easy: list[int]
) -> list[int]:
    """Return the members without those that find space, in `room` units, wherever their neighbours are."""
    # These are appended to `easy`. Each one makes its neighbours easier to place, so they are examined again.
    remaining = set(members)
    taken = {i: sum(scale.size[j] for j in neighbours[i] if j in remaining) for i in members}
    count = {i: sum(j in remaining for j in neighbours[i]) for i in members}
    work = list(members)
    while work:
        i = work.pop()
        size = scale.size[i]
        # `count` neighbours leave at most `count + 1` holes. If each were one unit too small, the buffer would not fit;
        # with one unit more it always does.
        if i not in remaining or not scale.is_plain(i) or taken[i] + (count[i] + 1) * (size - 1) + 1 > room:
            continue
        remaining.remove(i)
        easy.append(i)
        for j in neighbours[i]:
            if j in remaining:
                taken[j] -= size
                count[j] -= 1
                work.append(j)
    return [i for i in members if i in remaining]


def _components(problem: Problem, members: list[int], base: int) -> list[Component]:
    """Separate the members at every point in time that none of them spans."""
    if not members:
        return []
    pieces = [(s, e, k) for k, i in enumerate(members) for s, e in problem.buffers[i].lifetimes]
    starts, ends, owners = np.array(pieces, dtype=np.int64).T
    times = np.unique(np.concatenate((starts, ends)))
    begin, stop = np.searchsorted(times, starts), np.searchsorted(times, ends)
    # In an interval between two times, the set of live buffers is maximal only if some buffer starts at its start and
    # some buffer ends at its end.
    opens, closes = np.zeros(len(times), dtype=bool), np.zeros(len(times), dtype=bool)
    opens[begin] = True
    closes[stop] = True
    # For each time, the number of sections that begin before it.
    number = np.concatenate(([0], np.cumsum(opens[:-1] & closes[1:])))
    left, right = number[begin], number[stop]
    sections = int(number[-1])

    # How many members span the border after each section; where none does, one component ends.
    spans = np.zeros(sections + 1, dtype=np.int64)
    hull_left, hull_right = _hull(owners, left, right, len(members))
    np.add.at(spans, hull_left, 1)
    np.add.at(spans, hull_right - 1, -1)
    borders = np.concatenate((np.flatnonzero(np.cumsum(spans[:sections]) == 0) + 1, [sections]))
    # The number of the component that each member, and each piece of a lifetime, belongs to.
    member_part = np.searchsorted(borders, hull_left, side="right")
    piece_part = member_part[owners]

    components = []
    for part in np.unique(member_part).tolist():
        inside = np.flatnonzero(member_part == part)
        shift = int(borders[part - 1]) if part else 0  # sections count from 0 in each component
        pieces_inside = np.flatnonzero(piece_part == part)
        components.append(
            Component(
                [members[k] for k in inside.tolist()],
                base,
                np.searchsorted(owners[pieces_inside], np.append(inside, len(members))),
                left[pieces_inside] - shift,
                right[pieces_inside] - shift,
                hull_left[inside] - shift,
                hull_right[inside] - shift,
                int(borders[part]) - shift,
            )
        )
    return components


def _hull(owners: Ints, left: Ints, right: Ints, count: int) -> tuple[Ints, Ints]:
    """Return the first section of each of `count` buffers and the one after its last, over all pieces of each."""
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.zeros(count, dtype=np.int64)
    np.minimum.at(low, owners, left)
    np.maximum.at(high, owners, right)
    return low, high


def _bottom(problem: Problem, scale: Scale, component: Component) -> list[int]:
    """Return the members that conflict with all others and may be stacked below them."""
    # Members with padding are excluded, because on top of all others their padding would cost nothing.
    members = component.members
    if not all(scale.is_plain(i) for i in members):
        return []
    has_one_piece = np.diff(component.piece_first) == 1
    always_live = (component.left == 0) & (component.right == component.sections) & has_one_piece
    return [
        i
        for i, spans_all in zip(members, always_live.tolist(), strict=True)
        if spans_all and (problem.buffers[i].size % scale.unit == 0 or len(members) == 1)
    ]
