"""The search for stays with the least traffic: shortest paths through the states of all items, step by step.

A state of the whole is one state of its automaton for each item that is alive. Two bounds keep the states few:

- Lagrangian: each step has a price for a byte of its fast memory. With prices, the items no longer depend on each
  other, and the least cost of each, less the price of the capacity, is a bound for any state. All of it is computed in
  integers, so that a proof does not depend on rounding.
- A solution that is known already, at first that of `largest_first`.

States ignore where in the fast memory an item is. So the solutions are placed in the order of their traffic; the first
one that can be placed is optimal if those before it are proved to have no layout.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from isthmus.planning.problem import Status
from isthmus.planning.solver import solve
from isthmus.planning.spill import SpillProblem, SpillSolution, SpillTraffic, Stays, fast_layout, traffic_of
from isthmus.planning.spill_automaton import SCALE, Automaton, automata_of

ROUNDS = 120
"""How often prices are improved."""
FEW_STATES = 60
"""States that are kept between two steps to find a first solution."""
MAX_STATES = 4000
"""States that are kept between two steps for a proof; without them the result has a bound only."""
MAX_EXAMINED = 240_000
"""States in all: where there are many steps, fewer are kept between two of them."""
MAX_CHOICES = 1 << 10
"""Choices of a step for one state before it."""
MAX_PLACED = 40
"""Solutions that are placed in the order of their traffic."""
NODES, PATIENCE = 20_000, 10.0
"""The limits of the planner that places a solution: partial layouts, and seconds, which are reached on no machine."""

State = tuple[int, ...]
"""For each item that is alive after a step, the number of its state; 0 if it does not stay."""


@dataclass
class _Reached:
    """How a state was reached: the least bound, and each way there as what it adds to a bound and the state before."""

    cost: int
    ways: list[tuple[int, State]] = field(default_factory=list)


# The states after a step.
_Layer = dict[State, _Reached]
# The states after the steps from one on.
_Chain: TypeAlias = "tuple[State, _Chain] | None"


class _Search:
    """The search through the states of all items.

    - `free`: the automata of items with a choice. The traffic and the room of the others is known.
    - `capacity`: the bytes at each step that the free items share.
    - `unit`: all traffic of free items is a multiple of this.
    - `bound`: a bound of the traffic, times `SCALE`.
    """

    def __init__(self, problem: SpillProblem, keeps_what_fits: bool) -> None:
        self.problem = problem
        self.automata = automata_of(problem, keeps_what_fits)
        self.free = [each for each in self.automata if each.is_free]
        self.examined = 0
        self.capacity = [problem.capacity] * problem.steps
        self.fixed = 0
        self._stays = [self._keeping(each, None) for each in self.automata]
        for each, stays in zip(self.automata, self._stays, strict=True):
            if not each.is_free:
                self.fixed += traffic_of(problem.items[each.number], stays).total
                for use, step in enumerate(each.steps):
                    goes_on, came = use < len(stays) and stays[use], use > 0 and stays[use - 1]
                    for t in range(step, each.steps[use + 1] if goes_on else step + 1):
                        self.capacity[t] -= each.room if goes_on or came else each.windows[use]
        self._used: list[dict[int, int]] = [{} for _ in range(problem.steps)]
        for n, each in enumerate(self.free):
            for use, step in enumerate(each.steps):
                self._used[step][n] = use
        self._alive = [
            [n for n, each in enumerate(self.free) if each.steps[0] <= step < each.steps[-1]]
            for step in range(problem.steps)
        ]
        amounts = [(node.fill, node.spill) for each in self.free for nodes in each.nodes for node in nodes]
        self.unit = math.gcd(*(value for pair in amounts for value in pair)) or 1
        self._set_prices([0] * problem.steps)

    def _keeping(self, automaton: Automaton, states: dict[tuple[int, int], int] | None) -> Stays:
        """Return the gaps in which an item stays: by its states after its uses, or wherever it must."""
        gaps = range(len(automaton.steps) - 1)
        if states is None:
            return tuple(not automaton.may_leave[gap] for gap in gaps)
        return tuple(states[automaton.number, gap] > 0 for gap in gaps)

    # -- prices --------------------------------------------------------------------------------------------------------

    def improve_prices(self, best: int) -> None:
        """Raise the bound by subgradient steps; `best` is the traffic of a known solution."""
        # Each step of the graph has a price for a byte in memory, and every item is optimal for itself at these prices.
        # Where the items together exceed the capacity the price rises, where room is left it falls, ever less.
        chosen, prices, patience, pace = self.prices, [float(each) for each in self.prices], 0, 1.0
        top = self.bound
        for _ in range(ROUNDS):
            over = [-each for each in self.capacity] + [0]
            change = [0] * (self.problem.steps + 1)
            for each in self.free:
                for first, last, room in each.cheapest(self.prices, self._sums):
                    change[first] += room
                    change[last] -= room
            over = [a + b for a, b in zip(over, accumulate(change), strict=True)]
            length = sum(each * each for t, each in enumerate(over[:-1]) if each > 0 or self.prices[t])
            if not length or top > self._below(best) * SCALE:
                break
            step = pace * max(best * SCALE - self.bound, SCALE) / length
            prices = [max(0.0, price + step * each) for price, each in zip(prices, over, strict=False)]
            self._set_prices([round(each) for each in prices])
            if self.bound > top:
                top, chosen, patience = self.bound, self.prices, 0
            else:
                patience += 1
                if patience % 8 == 0:
                    pace /= 2
        self._set_prices(chosen)

    def _set_prices(self, prices: list[int]) -> None:
        self.prices = prices
        self._sums = [0, *accumulate(prices)]
        total = sum(each.price(prices, self._sums) for each in self.free)
        self.bound = self.fixed * SCALE + total - sum(a * b for a, b in zip(prices, self.capacity, strict=True))

    def floor(self, bound: int) -> int:
        """Return the least traffic that is possible with a bound that is scaled."""
        free = -(-bound // SCALE) - self.fixed
        return self.fixed + max(0, -(-free // self.unit)) * self.unit

    def _below(self, best: int) -> int:
        """Return the largest traffic below `best` that a solution may have."""
        return self.fixed + (best - 1 - self.fixed) // self.unit * self.unit

    # -- states --------------------------------------------------------------------------------------------------------

    def run(self, best: int, most: int) -> tuple[list[_Layer], int | None]:
        """Go through all states that may lead to less traffic than `best`; keep at most so many after each step.

        Returns the states after each step, and the least bound of those that were left out; None if none was.
        """
        limit = self._below(best) * SCALE
        layer: _Layer = {(): _Reached(self.bound)}
        layers, dropped = [layer], None
        if self.bound > limit:
            return [], None
        for step in range(self.problem.steps):
            layer, left_out = self._advance(layer, step, limit)
            self.examined += len(layer)
            if len(layer) > most:
                ordered = sorted(layer, key=lambda state: (layer[state].cost, state))
                left_out.append(layer[ordered[most]].cost)
                layer = {state: layer[state] for state in ordered[:most]}
            dropped = min((each for each in (*left_out, dropped) if each is not None), default=None)
            layers.append(layer)
            if not layer:
                return [], dropped
        return layers, dropped

    def _advance(self, layer: _Layer, step: int, limit: int) -> tuple[_Layer, list[int]]:
        """Return the states after a step, and the bounds of choices that were left out because a step has too many."""
        used, following = self._used[step], self._alive[step]
        alive = self._alive[step - 1] if step else []
        idle = [place for place, n in enumerate(alive) if n not in used]
        places = {n: place for place, n in enumerate(alive)}
        price, capacity = self.prices[step], self.capacity[step]
        choices_after: dict[State, tuple[list[tuple[int, int, State]], int | None]] = {}
        left_out: list[int] = []
        following_layer: _Layer = {}
        for state, reached in layer.items():
            room = capacity - sum(self.free[alive[place]].room for place in idle if state[place])
            arriving = tuple(state[places[n]] if n in places else 0 for n in used)
            if arriving not in choices_after:
                choices_after[arriving] = self._choices(used, arriving)
            unchanged = {alive[place]: state[place] for place in idle}
            choices, beyond = choices_after[arriving]
            if beyond is not None and reached.cost + beyond <= limit:
                left_out.append(reached.cost + beyond)
            for cost, taken, leaving in choices:
                if taken > room:
                    continue
                total = reached.cost + cost + price * (room - taken)
                if total > limit:
                    continue
                chosen = unchanged | dict(zip(used, leaving, strict=True))
                after = tuple(chosen[n] for n in following)
                entry = following_layer.setdefault(after, _Reached(total))
                entry.cost = min(entry.cost, total)
                entry.ways.append((total - reached.cost, state))
        return following_layer, left_out

    def _choices(self, used: dict[int, int], arriving: State) -> tuple[list[tuple[int, int, State]], int | None]:
        """List what the items of a step may do: what it costs beyond their least, the room, and their next states."""
        # Also returns the least cost of choices that were left out because there are too many.
        partial: list[tuple[int, int, State]] = [(0, 0, ())]
        left_out: int | None = None
        for (n, use), state in zip(used.items(), arriving, strict=True):
            each = self.free[n]
            options = each.choices(use, state, self.prices, self._sums)
            least = each.least[use][state]
            partial = [
                (cost + more - least, taken + room, (*leaving, after))
                for cost, taken, leaving in partial
                for more, room, after in options
            ]
            if len(partial) > MAX_CHOICES:
                partial.sort()
                left_out = min(partial[MAX_CHOICES][0], partial[MAX_CHOICES][0] if left_out is None else left_out)
                del partial[MAX_CHOICES:]
        return partial, left_out

    def solutions(self, layers: Sequence[_Layer]) -> Iterator[tuple[int, tuple[Stays, ...]]]:
        """Yield the solutions that the states hold, in the order of their traffic."""
        # A best-first search from the end. What is before a state costs what the state says, so nothing is tried twice.
        end = len(layers) - 1
        heap: list[tuple[int, int, int, State, int, _Chain]] = [
            (reached.cost, 0, end, state, 0, None) for state, reached in layers[end].items()
        ]
        number = 0
        while heap:
            total, _, step, state, behind, chain = heapq.heappop(heap)
            if step == 0:
                yield total // SCALE, self._stays_in(chain)
                continue
            for cost, before in layers[step][state].ways:
                number -= 1
                rest = behind + cost
                entry = (layers[step - 1][before].cost + rest, number, step - 1, before, rest, (state, chain))
                heapq.heappush(heap, entry)

    def _stays_in(self, chain: _Chain) -> tuple[Stays, ...]:
        """Return the gaps in which items stay, from the states after all steps."""
        states: list[State] = []
        while chain is not None:
            state, chain = chain
            states.append(state)
        stays = list(self._stays)
        for n, each in enumerate(self.free):
            gaps = each.steps[:-1]
            stays[each.number] = tuple(states[step][self._alive[step].index(n)] > 0 for step in gaps)
        return tuple(stays)


def largest_first(problem: SpillProblem) -> tuple[tuple[Stays, ...], tuple[int, ...]]:
    """Return the simple rule's choice and its layout: the largest items that fit stay from their first use to the last.

    Items are taken by size, the largest first. If their sizes fit at each step but they cannot be placed, the last one
    that was taken is given up.

    Examples
    --------
    >>> from isthmus.planning.spill import SpillItem, SpillUse
    >>> whole = ((0, 8),)
    >>> lives = [(0, 1), (1, 4), (2, 3)]
    >>> items = [SpillItem(str(a), 8, (SpillUse(a, writes=whole), SpillUse(b, whole))) for a, b in lives]
    >>> largest_first(SpillProblem(tuple(items), capacity=16, window=0))[0]
    ((True,), (True,), (True,))
    """
    items, stays = problem.items, [(False,) * (len(item.uses) - 1) for item in problem.items]
    load = [0] * problem.steps
    for item, windows in zip(items, problem.windows, strict=True):
        for use, window in zip(item.uses, windows, strict=True):
            load[use.step] += window
    taken = []
    for number in sorted(range(len(items)), key=lambda number: (-items[number].size, number)):
        item = items[number]
        first, last = item.uses[0].step, item.uses[-1].step
        more = [problem.rooms[number]] * (last + 1 - first)
        for use, window in zip(item.uses, problem.windows[number], strict=True):
            more[use.step - first] -= window
        after = [a + b for a, b in zip(load[first : last + 1], more, strict=True)]
        if stays[number] and max(after) <= problem.capacity:
            load[first : last + 1] = after
            stays[number] = (True,) * len(stays[number])
            taken.append(number)
    while True:
        offsets, _ = _layout(problem, stays)
        if offsets is not None:
            return tuple(stays), offsets
        last = taken.pop()
        stays[last] = (False,) * len(stays[last])


def _layout(problem: SpillProblem, stays: Sequence[Stays]) -> tuple[tuple[int, ...] | None, bool]:
    """Return a layout of the fast memory, and whether there is proof that there is none."""
    solution = solve(fast_layout(problem, stays), timeout=PATIENCE, node_limit=NODES)
    return solution.offsets, solution.status is Status.INFEASIBLE


def solve_spills(problem: SpillProblem, states: int = MAX_STATES) -> SpillSolution:
    """Choose where items stay so that little traffic is left, and place them.

    The result never has more traffic than `largest_first`, and is the same on every machine.

    Parameters
    ----------
    problem
        The items and the fast memory.
    states
        The number of states that the search keeps after each step. Beyond it, the result may not be proved.

    Returns
    -------
    SpillSolution
        The choice, its layout and how good it is.

    Examples
    --------
    >>> from isthmus.planning.spill import SpillItem, SpillUse
    >>> def made_and_read(name, size, first, *others):
    ...     whole = ((0, size),)
    ...     return SpillItem(name, size, (SpillUse(first, (), whole), *(SpillUse(step, whole) for step in others)))
    >>> items = [made_and_read("x", 6, 0, 1, 5), made_and_read("y", 8, 1, 2), made_and_read("z", 8, 2, 5)]
    >>> solution = solve_spills(SpillProblem(tuple(items), capacity=16, window=0))
    >>> solution.status.value, solution.stays, solution.traffic
    ('optimal', ((True, False), (True,), (True,)), SpillTraffic(read=6, written=6))
    """
    stays, offsets = largest_first(problem)
    simple = best = _total(problem, stays)
    states = min(states, max(FEW_STATES, MAX_EXAMINED // max(problem.steps, 1)))
    bound = examined = 0
    for keeps_what_fits in (True, False):
        search = _Search(problem, keeps_what_fits)
        search.improve_prices(best)
        for most in (min(FEW_STATES, states), states):
            layers, dropped = search.run(best, most)
            solution = _first_placed(search, layers)
            if solution.stays is not None and solution.offsets is not None:
                stays, offsets, best = solution.stays, solution.offsets, solution.traffic
            left = None if dropped is None else search.floor(dropped)
            # What does not stay although it fits may be easier to place, and was not examined in the first round.
            missed = solution.refused if keeps_what_fits else None
            bound = max(bound, min(each for each in (best, left, solution.unproved, missed) if each is not None))
            if dropped is None or bound == best:
                break
        examined += search.examined
        if bound == best or solution.refused is None:
            break
    status = Status.OPTIMAL if bound == best else Status.FEASIBLE
    traffic = [traffic_of(item, gaps) for item, gaps in zip(problem.items, stays, strict=True)]
    total = SpillTraffic(sum(each.read for each in traffic), sum(each.written for each in traffic))
    return SpillSolution(status, stays, offsets, total, bound, simple, examined)


@dataclass(frozen=True)
class _Placed:
    """The first solution that can be placed, if there is one.

    - `unproved`: the least traffic of a solution of which it is not known whether it can be placed; None if there is
      none.
    - `refused`: the least traffic of a solution that was not placed; None if there is none.
    """

    stays: tuple[Stays, ...] | None = None
    offsets: tuple[int, ...] | None = None
    traffic: int = 0
    unproved: int | None = None
    refused: int | None = None


def _first_placed(search: _Search, layers: Sequence[_Layer]) -> _Placed:
    """Place the solutions in the order of their traffic until one can be placed."""
    unproved = refused = None
    for number, (traffic, stays) in enumerate(search.solutions(layers) if layers else ()):
        if number == MAX_PLACED:
            unproved = traffic if unproved is None else unproved
            break
        offsets, is_proved = _layout(search.problem, stays)
        if offsets is not None:
            return _Placed(stays, offsets, traffic, unproved, refused)
        refused = traffic if refused is None else refused
        if not is_proved and unproved is None:
            unproved = traffic
    return _Placed(unproved=unproved, refused=refused)


def _total(problem: SpillProblem, stays: Sequence[Stays]) -> int:
    """Return the traffic of a choice."""
    return sum(traffic_of(item, gaps).total for item, gaps in zip(problem.items, stays, strict=True))
