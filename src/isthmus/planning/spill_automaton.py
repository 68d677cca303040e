"""An item as an automaton: its state between two uses says whether it stays, and which bytes are there and dirty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from isthmus.planning.spill import Ranges, SpillItem, SpillProblem, amount, common, union, without

SCALE = 1 << 20
"""Prices and bounds are in bytes of traffic times this."""


@dataclass(frozen=True)
class ItemState:
    """An item in one of its states at a use: bytes to fill, bytes to spill if it leaves, its next state if it stays."""

    fill: int
    spill: int
    stays: int


@dataclass
class Automaton:
    """The states of an item at each use; state 0 is that it is not there.

    - `room`, `windows`: the bytes that a stay takes, and those of each use outside one.
    - `may_leave`, `may_stay`: what is allowed in each gap; behind the last use an item leaves.
    - `least`: for each use and state, the least cost from there with the present prices.
    """

    number: int
    steps: tuple[int, ...]
    room: int
    windows: tuple[int, ...]
    may_leave: list[bool]
    may_stay: list[bool]
    nodes: list[list[ItemState]] = field(default_factory=list)
    least: list[list[int]] = field(default_factory=list)

    @property
    def is_free(self) -> bool:
        """Whether there is anything to decide."""
        return any(a and b for a, b in zip(self.may_leave, self.may_stay, strict=True))

    def connect(self, item: SpillItem) -> None:
        """Find the states at each use."""
        arriving: dict[tuple[Ranges, Ranges], int] = {((), ()): 0}
        self.nodes = []
        for number, use in enumerate(item.uses):
            following: dict[tuple[Ranges, Ranges], int] = {((), ()): 0}
            nodes = []
            for there, dirty in arriving:
                fill = amount(without(common(use.reads, item.ranges_written[number]), there))
                needed = item.ranges_needed[number]
                there = common(union((*there, *use.reads, *use.writes)), needed)
                dirty = common(union((*dirty, *use.writes)), needed)
                stays = following.setdefault((there, dirty), len(following)) if self.may_stay[number] else -1
                nodes.append(ItemState(fill, amount(dirty), stays))
            self.nodes.append(nodes)
            arriving = following

    def choices(self, use: int, state: int, prices: Sequence[int], sums: Sequence[int]) -> list[tuple[int, int, int]]:
        """List what may follow a use in a state: the cost of all the rest, the room at this use, the next state.

        - `prices`, `sums`: the price of a byte at each step, and their sums up to each step.
        """
        node, step = self.nodes[use][state], self.steps[use]
        # In state 0 nothing that is needed is there, so it may as well leave.
        choices: list[tuple[int, int, int]] = []
        if self.may_leave[use] or not node.stays:
            room = self.room if state else self.windows[use]
            rest = self.least[use + 1][0] if use + 1 < len(self.steps) else 0
            choices.append(((node.fill + node.spill) * SCALE + room * prices[step] + rest, room, 0))
        if node.stays > 0:
            until = self.steps[use + 1]
            rest = self.room * (sums[until] - sums[step]) + self.least[use + 1][node.stays]
            choices.append((node.fill * SCALE + rest, self.room, node.stays))
        return choices

    def price(self, prices: Sequence[int], sums: Sequence[int]) -> int:
        """Set `least` for new prices, and return that of the whole item."""
        self.least = [[0] * len(nodes) for nodes in self.nodes]
        for use in reversed(range(len(self.nodes))):
            for state in range(len(self.nodes[use])):
                self.least[use][state] = min(each[0] for each in self.choices(use, state, prices, sums))
        return self.least[0][0]

    def cheapest(self, prices: Sequence[int], sums: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield the rooms of the cheapest way through all uses, as first step, the step behind, and bytes."""
        state = 0
        for use, step in enumerate(self.steps):
            _, room, state = min(self.choices(use, state, prices, sums))
            yield step, self.steps[use + 1] if state else step + 1, room


def automata_of(problem: SpillProblem, keeps_what_fits: bool) -> list[Automaton]:
    """Return the automata of all items, without choices that no step leaves open.

    - `keeps_what_fits`: whether an item stays wherever everything fits that may stay. No solution has less traffic for
      not doing so, but it may be easier to place.
    """
    automata = [
        Automaton(number, tuple(use.step for use in item.uses), problem.rooms[number], problem.windows[number],
                   [True] * len(item.uses), [False] * len(item.uses))
        for number, item in enumerate(problem.items)
    ]  # fmt: skip
    least = _loads(problem, automata)
    for each in automata:
        for gap in range(len(each.steps) - 1):
            first, last = each.steps[gap : gap + 2]
            load = [*least[first : last + 1]]
            load[0] -= each.windows[gap]
            load[-1] -= each.windows[gap + 1]
            each.may_stay[gap] = max(load) + each.room <= problem.capacity
    if keeps_what_fits:
        most = _loads(problem, automata)
        for each in automata:
            for gap in range(len(each.steps) - 1):
                span = most[each.steps[gap] : each.steps[gap + 1] + 1]
                each.may_leave[gap] = not each.may_stay[gap] or max(span) > problem.capacity
    for each, item in zip(automata, problem.items, strict=True):
        each.connect(item)
    return automata


def _loads(problem: SpillProblem, automata: Sequence[Automaton]) -> list[int]:
    """Return the bytes that are taken at each step if every item stays wherever it may."""
    change = [0] * (problem.steps + 1)
    for each in automata:
        for use, step in enumerate(each.steps):
            stays, stayed = each.may_stay[use], use > 0 and each.may_stay[use - 1]
            until = each.steps[use + 1] if stays else step + 1
            room = each.room if stays or stayed else each.windows[use]
            change[step] += room
            change[until] -= room
    return list(accumulate(change))[: problem.steps]
