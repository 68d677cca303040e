"""One attempt of the exact search at one component, with a capacity, a preference and a node limit.

The time of a search depends on the order in which it prefers buffers, and hardly any order is good for all problems. So
several attempts use different orders in rotation. Each order is perturbed a little at random, and prefers the buffers
that earlier attempts found hardest to place.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from isthmus.planning.component import Component, Scale
from isthmus.planning.conflicts import Conflicts
from isthmus.planning.problem import Problem
from isthmus.planning.search import (
    ENTRY,
    FRAME,
    FULL,
    MEMBERS,
    NEXT_PART,
    NODES_LEFT,
    ORDER_LENGTH,
    PHASE,
    REGISTERS,
    TRAIL_LENGTH,
    Advance,
    State,
)

# Preferences, used in rotation: whether buffers where memory is scarcest come first, then whether width or area
# decides.
PREFERENCES = (("crowd", "width", "area"), ("crowd", "area", "width"), ("width", "area"))
SHAKE = (0.05, 0.3)
"""The largest relative changes of a perturbed measure; perturbed attempts use them in rotation."""
BLAME_WEIGHT = 0.3
"""By how much the measures of the buffer that was hardest to place grow, relative to their value."""
BLAME_DECAY = 0.9
"""The factor by which the blame of earlier attempts counts less after each attempt."""


@dataclass
class Task:
    """A component with all tables that do not change between attempts, and what the latest attempts learned.

    - `problem`, `scale`: the whole problem, and its numbers in units.
    - `component`: the buffers to place. The tables below number them from 0 in the order of its members.
    - `conflicts`: the conflicts of all buffers of the problem.
    - `blame`: by the number of an attempt: how hard each member was to place, from 0 to 1.
    """

    problem: Problem
    scale: Scale
    component: Component
    conflicts: Conflicts
    blame: dict[int, list[float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.component.members)

    @cached_property
    def fixed_tables(self) -> dict[str, list[int]]:
        """The fields of a search state that all attempts share, as lists; `search.State` explains them."""
        c, scale = self.component, self.scale
        local = {index: k for k, index in enumerate(c.members)}
        first, conflict = [0], []
        barrier_first, barrier_low, barrier_high = [0], [], []
        for index in c.members:
            others = self.conflicts.others[self.conflicts.first[index] : self.conflicts.first[index + 1]].tolist()
            conflict += [local[j] for j in others if j in local]
            first.append(len(conflict))
            # The fixed buffers that this one must not overlap.
            walls = sorted((scale.fixed[j], scale.size[j]) for j in others if j in local and scale.fixed[j] >= 0)
            if scale.fixed[index] < 0:
                barrier_low += [low for low, _ in walls]
                barrier_high += [low + size for low, size in walls]
            barrier_first.append(len(barrier_low))
        return {
            "size": [scale.size[i] for i in c.members],
            "alignment": [scale.alignment[i] for i in c.members],
            "conflict_first": first,
            "conflict": conflict,
            "piece_first": c.piece_first.tolist(),
            "piece_left": c.piece_left.tolist(),
            "piece_right": c.piece_right.tolist(),
            "left": c.left.tolist(),
            "right": c.right.tolist(),
            "barrier_first": barrier_first,
            "barrier_low": barrier_low,
            "barrier_high": barrier_high,
            "group": self._groups(),
        }

    @cached_property
    def fixed_arrays(self) -> dict[str, Any]:
        """The tables of `fixed_tables` as arrays."""
        return {name: np.array(values, dtype=np.int64) for name, values in self.fixed_tables.items()}

    @cached_property
    def start(self) -> dict[str, list[int]]:
        """The fields of a search state before anything is placed; `search.State` explains them."""
        c, tables = self.component, self.fixed_tables
        total, spans = [0] * c.sections, [0] * c.sections
        for k, size in enumerate(tables["size"]):
            for p in range(tables["piece_first"][k], tables["piece_first"][k + 1]):
                for t in range(tables["piece_left"][p], tables["piece_right"][p]):
                    total[t] += size
            for t in range(tables["left"][k], tables["right"][k] - 1):
                spans[t] += 1
        floor = [self._first_floor(k) for k in range(len(self))]
        frames = [0] * (FRAME * (2 * len(self) + 4))
        # The first frame iterates over the parts of the whole component. SPLIT and CALLER are -1: nothing encloses it.
        frames[:FRAME] = [0, len(self), 0, c.sections, 0, 0, 0, -1, -1, 0, 0]
        # Order and trail begin with some reserve; `Attempt.run` doubles them when they are full.
        order = list(range(len(self))) + [0] * (15 * len(self))
        trail = [0] * (ENTRY * (16 * len(self) + 64))
        registers = [0] * REGISTERS
        registers[PHASE] = NEXT_PART
        registers[MEMBERS], registers[TRAIL_LENGTH], registers[ORDER_LENGTH] = len(self), len(trail), len(order)
        return {
            "floor": floor,
            "reach": floor,
            "placed": [0] * len(self),
            "total": total,
            "spans": spans,
            "turn": [0] * len(self),
            "order": order,
            "group_last": [-1] * len(self),
            "group_top": [0] * len(self),
            "frames": frames,
            "trail": trail,
            "registers": registers,
            "blame": [0] * len(self),
            "load": [0] * c.sections,
            "crowd": [0] * len(self),
            "bag": [0] * len(self),
        }

    @cached_property
    def start_arrays(self) -> dict[str, Any]:
        """The tables of `start` as arrays."""
        return {name: np.array(values, dtype=np.int64) for name, values in self.start.items()}

    @cached_property
    def crowding(self) -> list[int]:
        """For each member, the maximum of live memory during its lifetime."""
        tables, total = self.fixed_tables, self.start["total"]
        first, left, right = tables["piece_first"], tables["piece_left"], tables["piece_right"]
        return [max(max(total[left[p] : right[p]]) for p in range(first[k], first[k + 1])) for k in range(len(self))]

    @cached_property
    def widths_and_areas(self) -> tuple[list[float], list[float]]:
        """For each member, the length of its lifetime, and that length times its size."""
        buffers = [self.problem.buffers[i] for i in self.component.members]
        width = [float(sum(end - start for start, end in b.lifetimes)) for b in buffers]
        return width, [w * b.size for w, b in zip(width, buffers, strict=True)]

    def limits(self, capacity: int) -> list[int]:
        """Return for each member the highest offset, in units above the base, at which it ends within the capacity."""
        c, buffers = self.component, self.problem.buffers
        highest = [(capacity - buffers[i].size) // self.scale.unit - c.base for i in c.members]
        fixed = [self.scale.fixed[i] for i in c.members]
        return [min(h, f) if f >= 0 else h for h, f in zip(highest, fixed, strict=True)]

    def _first_floor(self, k: int) -> int:
        """Return the lowest offset of member `k` while only fixed buffers are placed."""
        fixed = self.scale.fixed[self.component.members[k]]
        if fixed >= 0:
            return fixed
        tables = self.fixed_tables
        at, step, size = 0, tables["alignment"][k], tables["size"][k]
        for p in range(tables["barrier_first"][k], tables["barrier_first"][k + 1]):
            if at < tables["barrier_high"][p] and at + size > tables["barrier_low"][p]:
                at = -(-tables["barrier_high"][p] // step) * step
        return at

    def _groups(self) -> list[int]:
        """Return a group number for each member; members with equal lifetime and padding and no constraints share
        one.

        In a stack of such members the order does not matter, so the search tries only one.
        """
        numbers: dict[object, int] = {}
        c = self.component
        groups = []
        for k, index in enumerate(c.members):
            a, b = int(c.piece_first[k]), int(c.piece_first[k + 1])
            lifetime = (tuple(c.piece_left[a:b].tolist()), tuple(c.piece_right[a:b].tolist()))
            padding = -self.problem.buffers[index].size % self.scale.unit
            key = (lifetime, padding) if self.scale.is_plain(index) else index
            groups.append(numbers.setdefault(key, len(numbers)))
        return groups


class Attempt:
    """A search that can run in slices.

    - `task`: the component to place.
    - `turn`: the number of this attempt at the component; it determines preference and perturbation.
    - `blame`: for each member, how hard it was to place in earlier attempts, from 0 to 1; empty for the first.
    - `machine`: whether the search will run as machine code, on arrays.
    - `blame_before`: the parameter `blame`, with zeros if it was empty.
    """

    def __init__(
        self, task: Task, capacity: int, turn: int, node_limit: int, blame: Sequence[float] = (), *, machine: bool
    ) -> None:
        preference = PREFERENCES[turn % len(PREFERENCES)]
        self.blame_before = blame or [0.0] * len(task)
        self.nodes = 0
        self.node_limit = node_limit
        limits = task.limits(capacity)
        rank = _ranks(task, preference, turn // len(PREFERENCES), self.blame_before)
        own = {
            "limit": limits,
            "ceiling": [max(a + b for a, b in zip(limits, task.fixed_tables["size"], strict=True))],
            "by_crowd": [int(preference[0] == "crowd")],
            "rank": rank,
            "twin": _twins(task, rank),
        }
        if machine:
            fresh = {name: values.copy() for name, values in task.start_arrays.items()}
            arrays = {name: np.array(values, dtype=np.int64) for name, values in own.items()}
            self.state = State(**task.fixed_arrays, **fresh, **arrays)
        else:
            self.state = State(**task.fixed_tables, **{k: list(v) for k, v in task.start.items()}, **own)

    def run(self, advance: Advance, nodes: int) -> int:
        """Continue for at most `nodes` nodes; return the result of `search.advance`."""
        left = min(nodes, self.node_limit - self.nodes)
        while True:
            result = advance(self.state, left)
            after = int(self.state.registers[NODES_LEFT])
            self.nodes += left - after
            left = after
            if result != FULL:
                return result
            # Double both tables; only their length matters, because the search writes the new half before it reads it.
            trail, order = self.state.trail, self.state.order
            if isinstance(trail, list):
                trail, order = trail + trail, order + order
            else:
                trail, order = np.concatenate((trail, trail)), np.concatenate((order, order))
            self.state = self.state._replace(trail=trail, order=order)
            self.state.registers[TRAIL_LENGTH], self.state.registers[ORDER_LENGTH] = len(trail), len(order)

    @property
    def blame(self) -> list[float]:
        """How hard each member was to place, in this and earlier attempts; the hardest has 1."""
        counts = [int(n) for n in self.state.blame]
        total = max(sum(counts), 1)
        mixed = [BLAME_DECAY * b + n / total for b, n in zip(self.blame_before, counts, strict=True)]
        most = max(mixed) or 1.0
        return [b / most for b in mixed]

    @property
    def offsets(self) -> list[int]:
        """The offsets of the members in units above the base, once solved."""
        return [int(at) for at in self.state.floor]


def _ranks(task: Task, preference: Sequence[str], seed: int, blame: Sequence[float]) -> list[int]:
    """Return the rank of each member by the preferred measures, the largest first; seed 0 means no perturbation."""
    chance = random.Random(seed)
    shake = SHAKE[seed % len(SHAKE)] if seed else 0.0
    weight = [1 + BLAME_WEIGHT * b for b in blame]
    width, area = task.widths_and_areas
    # Negative, so that the largest comes first.
    measures = {
        "crowd": [-float(c) for c in task.crowding],
        "width": [-w * (1 + shake * chance.uniform(-1, 1)) * p for w, p in zip(width, weight, strict=True)],
        "area": [-a * (1 + shake * chance.uniform(-1, 1)) * p for a, p in zip(area, weight, strict=True)],
    }
    keys = list(zip(*(measures[name] for name in preference), strict=True))
    order = sorted(range(len(task)), key=keys.__getitem__)
    rank = [0] * len(task)
    for place, k in enumerate(order):
        rank[k] = place
    return rank


def _twins(task: Task, rank: Sequence[int]) -> list[int]:
    """Return for each member the closest identical one before it in rank, or -1."""
    # The search places identical members only in order of rank, since any other order gives an equal layout.
    twin = [-1] * len(task)
    last: dict[tuple[int, int], int] = {}
    tables = task.fixed_tables
    for k in sorted(range(len(task)), key=rank.__getitem__):
        key = (tables["group"][k], tables["size"][k])
        twin[k] = last.get(key, -1)
        last[key] = k
    return twin
